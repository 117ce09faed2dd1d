package controller

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/jetstream"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// RecoverOptions say what a person has accepted.
type RecoverOptions struct {
	// Wait is for how long brokers are listened to, unless all of the journal's have spoken before; at least 1 s.
	Wait time.Duration
	// Lend: only run the embedded server of this folder, for a recovery that runs in the place of another controller of the same
	// cluster of servers, until the context ends. Nothing is looked at or changed.
	Lend bool
	// AcceptLostDecisions: without it nothing is changed.
	AcceptLostDecisions bool
	// AcceptMissingReplicas goes on although not every replica of every partition was described.
	AcceptMissingReplicas bool
	// Archive is the file that the journal's entries are written to before they are dropped. It must not exist.
	Archive string
}

// RecoveryReport says what was found, and what was made of it.
type RecoveryReport struct {
	Cluster    messages.ClusterName     `json:"cluster"`
	ClusterID  string                   `json:"cluster_id"`
	Revision   messages.Sequence        `json:"revision"` // as far as the journal can be used
	Epoch      messages.ControllerEpoch `json:"controller_epoch"`
	Fault      string                   `json:"fault"` // of the journal itself, "" if it is in order
	Topics     int                      `json:"topics"`
	Partitions int                      `json:"partitions"`
	Brokers    []RecoveryBroker         `json:"brokers"`
	// Unknown are topics that brokers hold and the journal does not know; they are kept aside.
	Unknown []RecoveryTopic `json:"unknown_topics"`
	// Missing are replicas that nobody has described, as topic/partition on broker; the first hundred of MissingCount.
	Missing      []string   `json:"missing_replicas"`
	MissingCount int        `json:"missing_replicas_count"`
	Recovered    *Recovered `json:"recovered,omitempty"`
}

// RecoveryBroker is what one broker has said.
type RecoveryBroker struct {
	ID       messages.BrokerID        `json:"id"`
	Heard    bool                     `json:"heard"`
	Revision messages.Sequence        `json:"seen_revision"`
	Epoch    messages.ControllerEpoch `json:"seen_controller_epoch"`
	Ahead    bool                     `json:"ahead"` // of the journal
	Replicas int                      `json:"replicas"`
}

// RecoveryTopic is a topic that the journal does not know.
type RecoveryTopic struct {
	ID      string              `json:"topic_id"`
	Name    string              `json:"name"`
	Brokers []messages.BrokerID `json:"brokers"`
}

// Recovered is where the journal goes on.
type Recovered struct {
	Revision messages.Sequence        `json:"revision"`
	Epoch    messages.ControllerEpoch `json:"controller_epoch"`
	Store    string                   `json:"store_id"`
	Archive  string                   `json:"archive"`
}

// Recover looks at a journal that no controller is to act on as it is, listens to what the brokers know, and, if that is
// accepted, makes the journal go on above everything that anybody has seen. No controller may be running. Without
// AcceptLostDecisions it changes nothing. The report comes also with an error.
//
// Errors: those of Start; NOT_ACTIVE_CONTROLLER when another controller is heard; INVALID_REQUEST when replicas are missing and that is not
// accepted, for an archive that cannot be written, and for a journal that holds no cluster.
func Recover(ctx context.Context, cfg Config, o RecoverOptions) (RecoveryReport, error) {
	if err := cfg.Validate(); err != nil {
		return RecoveryReport{}, err
	}
	cfg = cfg.withDefaults()
	c := newController(cfg)
	r := &recovery{c: c, options: o, copies: map[messages.BrokerID]map[messages.PartitionID]described{}, brokers: map[messages.BrokerID]*pb.RegisterRequest{}}
	steps := []func(context.Context) error{c.lock, c.serve, c.connect, r.quiet, c.openJournal, r.salvage, r.listen, r.judge, r.rewrite}
	if o.Lend {
		steps = []func(context.Context) error{c.lock, c.serve, r.lend}
	}
	var err error
	for _, step := range steps {
		if err = step(ctx); err != nil {
			break
		}
	}
	c.stopping.Store(true)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	return r.report, errors.Join(err, c.shutdown(bounded))
}

// lend keeps the embedded server running for somebody else.
func (r *recovery) lend(ctx context.Context) error {
	if r.c.server == nil || r.c.alone() {
		return messages.Errorf(messages.CodeInvalidRequest, "only an embedded server of a cluster of servers can be lent").
			WithHint("give --cluster-listen and --routes as the controller has them")
	}
	r.report.Cluster = r.c.cfg.Cluster
	r.c.log.Warn().Str("url", r.c.URL()).Msg("the server of this folder is lent to a recovery; interrupt it when that is done")
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.c.failures:
		return err
	}
}

// recovery is one recovery under way.
type recovery struct {
	c       *Controller
	options RecoverOptions
	catalog *journal.Catalog
	report  RecoveryReport

	mu      sync.Mutex
	brokers map[messages.BrokerID]*pb.RegisterRequest // the last one of each, without its replicas
	copies  map[messages.BrokerID]map[messages.PartitionID]described
}

type described struct {
	topic string
	copy  journal.Copy
}

// quietFor is for how long nobody may be heard who is an active controller.
const quietFor = 2 * time.Second

// quiet makes sure that no other controller is active.
func (r *recovery) quiet(ctx context.Context) error {
	heard, err := r.c.conns.edge.SubscribeSync(messages.NewSubjects(r.c.cfg.Cluster).BeatAll())
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "subscription to the beats: %v", err)
	}
	defer func() { _ = heard.Unsubscribe() }()
	bounded, cancel := context.WithTimeout(ctx, quietFor)
	defer cancel()
	if m, err := heard.NextMsgWithContext(bounded); err == nil {
		return messages.Errorf(messages.CodeNotActiveController, "a controller is running: %.200s", m.Data).WithHint("stop every controller first")
	}
	return ctx.Err()
}

func (r *recovery) salvage(ctx context.Context) error {
	catalog, fault, err := journal.Salvage(ctx, r.c.store, r.c.kept, r.c.cfg.versions.Max)
	if err != nil {
		return err
	}
	r.catalog = catalog
	p := &r.report
	p.Cluster, p.Revision, p.Epoch = r.c.cfg.Cluster, catalog.Applied(), catalog.Claimed().Epoch
	if fault != nil {
		p.Fault = fault.Error()
	}
	known := catalog.Identity()
	if known == nil {
		p.Fault = "the journal is empty"
		return nil
	}
	if p.ClusterID = known.ID; known.Name != r.c.cfg.Cluster {
		return messages.Errorf(messages.CodeClusterMismatch, "the journal is of cluster %q, not %q", known.Name, r.c.cfg.Cluster)
	}
	if r.c.cfg.DataDir == "" {
		return nil
	}
	return checkMark(r.c.cfg.DataDir, known.ID)
}

// listen answers brokers that nothing is decided, whereupon they describe what they hold.
func (r *recovery) listen(ctx context.Context) error {
	s := messages.NewSubjects(r.c.cfg.Cluster)
	for verb, serve := range map[messages.BrokerVerb]nats.MsgHandler{messages.VerbRegister: r.register, messages.VerbHeartbeat: r.heartbeat} {
		sub, err := r.c.conns.edge.Subscribe(s.BrokerWildcard(verb), serve)
		if err != nil {
			return messages.Errorf(messages.CodeUnavailable, "subscription to the brokers: %v", err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	until := time.After(max(r.options.Wait, time.Second))
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for !r.complete() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-until:
			return nil
		case <-look.C:
		}
	}
	return nil
}

func (r *recovery) register(m *nats.Msg) {
	q := &pb.RegisterRequest{}
	id := messages.BrokerID("")
	if proto.Unmarshal(m.Data, q) == nil {
		id = messages.BrokerID(q.GetBroker())
	}
	principal, _, ok := messages.NewSubjects(r.c.cfg.Cluster).ParseBroker(m.Subject)
	if !ok || id.Validate() != nil || principal != string(id) || q.GetClusterId() != "" && r.report.ClusterID != "" && q.GetClusterId() != r.report.ClusterID {
		r.answer(m, &pb.RegisterResponse{Error: messages.Errorf(messages.CodeClusterMismatch, "the broker is of another cluster").Proto()})
		return
	}
	r.mu.Lock()
	held := r.copies[id]
	if held == nil || r.brokers[id].GetStorage() != q.GetStorage() {
		held = map[messages.PartitionID]described{}
		r.copies[id] = held
	}
	for _, h := range q.GetHeld() {
		topic, err := messages.ParseTopicID(h.GetTopicId())
		if err != nil || h.GetPartition() < 0 {
			continue
		}
		held[messages.PartitionID{Topic: topic, Index: h.GetPartition()}] = described{h.GetTopic(), journal.Copy{Broker: id,
			LeaderEpoch: messages.LeaderEpoch(h.GetLeaderEpoch()), LogEnd: messages.Offset(h.GetLogEnd()),
			HighWatermark: messages.Offset(h.GetHighWatermark()), Epoch: messages.PartitionEpoch(h.GetPartitionEpoch())}}
	}
	q.Held = nil
	r.brokers[id] = q
	r.mu.Unlock()
	r.answer(m, &pb.RegisterResponse{Error: messages.Errorf(messages.CodeStoreWentBack, "the journal is being recovered").
		WithHint("the broker keeps everything and asks again").Proto()})
}

// heartbeat ends the registration of a broker that has been running all the time: it stops serving, and describes what it holds.
func (r *recovery) heartbeat(m *nats.Msg) {
	r.answer(m, &pb.HeartbeatResponse{Error: messages.Errorf(messages.CodeStaleBrokerEpoch, "the journal is being recovered").Proto()})
}

func (r *recovery) answer(m *nats.Msg, body proto.Message) {
	if data, err := proto.Marshal(body); err == nil && m.Reply != "" {
		_ = m.Respond(data) // the broker asks again
	}
}

// spoken reports whether a broker has described everything. The caller holds the lock.
func (r *recovery) spoken(b messages.BrokerID) bool {
	q := r.brokers[b]
	return q != nil && len(r.copies[b]) >= int(q.GetHeldTotal()) && (q.GetHeldTotal() > 0 || len(r.catalogReplicas(b, 1)) == 0)
}

func (r *recovery) catalogReplicas(b messages.BrokerID, most int) (out []*messages.Partition) {
	r.catalog.PartitionsOf(b, func(p *messages.Partition) bool {
		out = append(out, p)
		return len(out) < most
	})
	return out
}

func (r *recovery) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.catalog.Brokers() {
		if !r.spoken(id) {
			return false
		}
	}
	return len(r.catalog.Brokers()) > 0
}

// maxMissing is how many missing replicas the report names.
const maxMissing = 100

// judge completes the report.
func (r *recovery) judge(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.report
	ids := map[messages.BrokerID]bool{}
	for id := range r.catalog.Brokers() {
		ids[id] = true
	}
	for id := range r.brokers {
		ids[id] = true
	}
	unknown, partitions := map[messages.TopicID]*RecoveryTopic{}, map[messages.PartitionID]bool{}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		q := r.brokers[id]
		seen := messages.SeenFromProto(q.GetSeen())
		p.Brokers = append(p.Brokers, RecoveryBroker{ID: id, Heard: q != nil, Revision: seen.Sequence, Epoch: seen.Controller,
			Ahead: seen.Controller > p.Epoch || seen.Sequence > p.Revision, Replicas: len(r.copies[id])})
		for at, d := range r.copies[id] {
			if _, known := r.catalog.Topic(at.Topic); known {
				continue
			}
			if _, ending := r.catalog.Deletion(at.Topic); ending {
				continue
			}
			if unknown[at.Topic] == nil {
				unknown[at.Topic] = &RecoveryTopic{ID: at.Topic.String(), Name: d.topic}
			}
			if t := unknown[at.Topic]; !slices.Contains(t.Brokers, id) {
				t.Brokers = append(t.Brokers, id)
			}
		}
		for _, part := range r.catalogReplicas(id, 1<<31) {
			partitions[part.ID] = true
			if _, has := r.copies[id][part.ID]; has {
				continue
			}
			if p.MissingCount++; len(p.Missing) < maxMissing {
				name, _ := r.catalog.Topic(part.ID.Topic)
				p.Missing = append(p.Missing, fmt.Sprintf("%s/%d on %s", name.Name, part.ID.Index, id))
			}
		}
	}
	for _, t := range unknown {
		p.Unknown = append(p.Unknown, *t)
	}
	slices.SortFunc(p.Unknown, func(a, b RecoveryTopic) int { return compareNames(a.Name+a.ID, b.Name+b.ID) })
	p.Topics, p.Partitions = r.catalog.TopicCount(), len(partitions)
	return nil
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// witnessed is what the brokers have said.
func (r *recovery) witnessed() journal.Witnessed {
	w := journal.Witnessed{Brokers: map[messages.BrokerID]messages.BrokerEpoch{}, Replicas: map[messages.PartitionID][]journal.Copy{}}
	for id, q := range r.brokers {
		seen := messages.SeenFromProto(q.GetSeen())
		w.Seen.Controller = max(w.Seen.Controller, seen.Controller)
		w.Seen.Sequence = max(w.Seen.Sequence, seen.Sequence)
		w.Brokers[id] = messages.BrokerEpoch(q.GetCleanEpoch())
		for at, d := range r.copies[id] {
			w.Replicas[at] = append(w.Replicas[at], d.copy)
		}
	}
	return w
}

func (r *recovery) rewrite(ctx context.Context) error {
	if !r.options.AcceptLostDecisions {
		return nil
	}
	if r.catalog.Identity() == nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the journal is empty: there is nothing to go on with").
			WithHint("restore a backup into a new data folder: highwater cluster snapshot restore")
	}
	if r.report.Topics == 0 && len(r.catalog.Brokers()) == 0 {
		return messages.Errorf(messages.CodeInvalidRequest, "the journal is of a new cluster without brokers and topics: there is nothing to go on with").
			WithHint("restore a backup into a new data folder: highwater cluster snapshot restore")
	}
	if r.report.MissingCount > 0 && !r.options.AcceptMissingReplicas {
		return messages.Errorf(messages.CodeInvalidRequest, "%d replicas were not described by their brokers: what they alone hold could be lost",
			r.report.MissingCount).WithHint("start their brokers, or give --wait more time; --accept-missing-replicas goes on without them. Nothing was changed")
	}
	if err := r.archive(ctx); err != nil {
		return err
	}
	log, ok := r.c.purger.(*jetstream.Log)
	if !ok {
		return messages.Errorf(messages.CodeInternal, "the journal cannot be rewritten: it is a %T", r.c.purger)
	}
	r.mu.Lock()
	w := r.witnessed()
	r.mu.Unlock()
	out := &Recovered{Store: newClusterID(), Archive: r.options.Archive}
	at, epoch, err := journal.Rewrite(ctx, log, r.c.kept, r.catalog, w, journal.Heir{Controller: r.c.cfg.Name, Store: out.Store})
	if err != nil {
		return err
	}
	out.Revision, out.Epoch = at.Last, epoch
	r.report.Recovered = out
	r.c.log.Warn().Uint64("was", uint64(r.report.Revision)).Uint64("revision", uint64(at.Last)).Uint64("controller_epoch", uint64(epoch)).
		Str("store_id", out.Store).Str("archive", out.Archive).Msg("the journal is recovered; what was decided behind its end is lost")
	return nil
}

// archive writes the entries as they are: for each its sequence and its length, 8 and 4 bytes, and the entry.
func (r *recovery) archive(ctx context.Context) error {
	f, err := os.OpenFile(r.options.Archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the archive of the journal cannot be made: %v", err).WithHint("name one with --archive")
	}
	err = r.c.store.Replay(ctx, 1, func(at messages.Sequence, payload []byte) error {
		head := binary.BigEndian.AppendUint64(nil, uint64(at))
		head = binary.BigEndian.AppendUint32(head, uint32(len(payload)))
		_, err := f.Write(append(head, payload...))
		return err
	})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return messages.Errorf(messages.CodeUnavailable, "the archive of the journal: %v", err)
	}
	return nil
}
