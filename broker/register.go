package broker

import (
	"context"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Pauses between tries to register, and how long one try waits.
const (
	registerFirstPause = 50 * time.Millisecond
	registerLastPause  = 5 * time.Second
	registerTimeout    = 3 * time.Second
	doubtedPause       = time.Second // while the controller asks for what is held
)

// register tries until it has an answer that decides. No controller, or one that cannot act, is no reason to give up:
// the broker waits with growing pauses for as long as ctx lasts. An id that another live process holds is tried again
// until the in-use timeout, because the holder may be the last life of this very broker.
func (s *session) register(ctx context.Context) error {
	s.mu.Lock()
	s.incarnation = messages.IncarnationID(randomID())
	s.mu.Unlock()
	pauses := backoff{first: registerFirstPause, limit: registerLastPause}
	var inUseUntil time.Time
	for {
		resp, err := s.askRegister(ctx)
		switch code := messages.CodeOf(err); {
		case err == nil:
			return s.accept(resp)
		case ctx.Err() != nil:
			return registerError(ctx, err)
		case code == messages.CodeBrokerIDInUse:
			if inUseUntil.IsZero() {
				inUseUntil = time.Now().Add(s.cfg.inUse)
			} else if !time.Now().Before(inUseUntil) {
				return err
			}
			pauses.limit = time.Second // the holder's session ends within seconds
		case !messages.AsError(err).Retryable():
			return err
		case code == messages.CodeStoreWentBack:
			s.mu.Lock()
			said := s.doubted
			s.doubted = true
			s.mu.Unlock()
			if !said {
				s.log.Warn().Err(err).Msg("the controller decides nothing; everything is kept until it does")
			}
			pauses.limit = doubtedPause
		default:
			pauses.limit = registerLastPause
		}
		s.log.Debug().Err(err).Msg("not registered yet")
		if !pauses.wait(ctx) {
			return registerError(ctx, err)
		}
	}
}

// registerError says what the last try failed with when the time is up.
func registerError(ctx context.Context, last error) error {
	if messages.CodeOf(last) == messages.CodeBrokerIDInUse {
		return last
	}
	return context.Cause(ctx)
}

func (s *session) askRegister(ctx context.Context) (*pb.RegisterResponse, error) {
	s.mu.Lock()
	req := &pb.RegisterRequest{
		ClusterId: s.clusterID, Broker: string(s.id), Incarnation: string(s.incarnation), Storage: string(s.cfg.storage),
		Rack: string(s.cfg.rack), Endpoints: s.cfg.endpoints, Weight: s.cfg.weight, Fsyncs: s.cfg.fsyncs,
		CleanEpoch: uint64(s.cleanEpoch), MinProtocol: minProtocol, MaxProtocol: maxProtocol, Host: s.cfg.host,
		Pid: int64(os.Getpid()), Version: s.cfg.version, Connection: s.bus.connection(), Seen: messages.SeenToProto(s.seen),
	}
	doubted := s.doubted
	s.mu.Unlock()
	if doubted {
		var total int
		req.Held, total = s.sink.copies()
		req.HeldTotal = uint32(total)
	}
	resp := &pb.RegisterResponse{}
	err := s.ask(ctx, registerTimeout, messages.VerbRegister, req, resp)
	return resp, err
}

// accept takes over what the controller answered.
func (s *session) accept(resp *pb.RegisterResponse) error {
	r := registration{clusterID: resp.GetClusterId(), epoch: messages.BrokerEpoch(resp.GetBrokerEpoch()),
		settings: messages.SettingsFromProto(resp.GetSettings())}
	if r.settings.Heartbeat <= 0 || r.settings.Session <= 0 {
		r.settings = messages.DefaultSettings()
	}
	if p := resp.GetProtocol(); p != 0 && (p < minProtocol || p > maxProtocol) {
		return withSentinel(messages.Errorf(messages.CodeUnsupportedVersion,
			"the controller speaks protocol %d, this broker %d to %d", p, minProtocol, maxProtocol))
	}
	s.mu.Lock()
	if s.clusterID != "" && r.clusterID != s.clusterID {
		s.mu.Unlock()
		return withSentinel(messages.Errorf(messages.CodeClusterMismatch,
			"the broker belongs to cluster %s, the controller answered for %s", s.clusterID, r.clusterID))
	}
	s.reg, s.clusterID, s.fenced, s.doubted = r, r.clusterID, true, false
	s.mu.Unlock()
	if err := s.sink.registered(r); err != nil {
		return err
	}
	s.log.Info().Uint64("broker_epoch", uint64(r.epoch)).Msg("registered")
	return nil
}

// answer is what every response has.
type answer interface {
	proto.Message
	GetError() *pb.Error
}

// ask sends one request to the active controller. The error is coded: the controller's own, or UNAVAILABLE if nothing
// came, which is known at once when the connection is lost. Answers of a controller that has been replaced count as none.
func (s *session) ask(ctx context.Context, timeout time.Duration, verb messages.BrokerVerb, req proto.Message, resp answer) error {
	body, err := proto.Marshal(req)
	if err != nil {
		return messages.Errorf(messages.CodeInternal, "%s cannot be written: %v", verb, err)
	}
	ctx, cancel := s.overLink(ctx, timeout)
	defer cancel()
	data, err := s.bus.request(ctx, s.subjects.Broker(principalOf(s.cfg, s.id), verb), body)
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "no controller answers %s: %v", verb, err)
	}
	if err := proto.Unmarshal(data, resp); err != nil {
		return messages.Errorf(messages.CodeUnavailable, "the answer to %s cannot be read: %v", verb, err)
	}
	if seen, ok := resp.(interface{ GetSeen() *pb.Seen }); ok && seen.GetSeen() != nil && !s.observe(seen.GetSeen()) {
		return messages.Errorf(messages.CodeNotActiveController, "the answer to %s comes from a replaced controller", verb)
	}
	return withSentinel(messages.ErrorFromProto(resp.GetError()))
}
