package broker

import (
	"fmt"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// beat is the answer to one heartbeat.
type beat struct {
	sent       time.Time
	generation uint64
	resp       *pb.HeartbeatResponse
	err        error
}

// beat sends a heartbeat, unless one is on its way; then the next follows its answer.
func (l *life) beat() {
	if l.beating {
		l.beatAgain = true
		return
	}
	if !l.bus.connected() {
		return
	}
	l.beating, l.beatAgain = true, false
	ready, failed := l.snapshotIn && l.sink.ready(), l.sink.storageFailed()
	if failed {
		l.lease.end() // leaderships move when this is heard, which may be before the answer is here
	}
	l.mu.Lock()
	req := &pb.HeartbeatRequest{
		Broker: string(l.id), Incarnation: string(l.incarnation), BrokerEpoch: uint64(l.reg.epoch), Feed: l.feed.position,
		Ready: ready, WantsStop: l.stopping, StorageFailed: failed, Connection: l.bus.connection(),
		Seen: messages.SeenToProto(l.seen),
	}
	timeout := max(l.reg.settings.Session/3, 50*time.Millisecond)
	l.mu.Unlock()
	go func() {
		b := beat{generation: l.lease.begin(), sent: time.Now(), resp: &pb.HeartbeatResponse{}}
		b.err = l.ask(l.ctx, timeout, messages.VerbHeartbeat, req, b.resp)
		l.beats <- b
	}()
}

// onBeat takes the answer to a heartbeat. Without one nothing changes: the lease runs out by itself.
func (l *life) onBeat(b beat) error {
	l.beating = false
	defer func() {
		if l.beatAgain {
			l.beat()
		}
	}()
	switch messages.CodeOf(b.err) {
	case "":
	case messages.CodeStaleBrokerEpoch, messages.CodeUnknownBroker:
		return fmt.Errorf("%w: %w", errOver, b.err)
	case messages.CodeClusterMismatch, messages.CodeUnsupportedVersion:
		return b.err
	default:
		l.log.Debug().Err(b.err).Msg("heartbeat was not answered")
		return nil
	}
	l.take(b)
	if l.overdue() || l.resync || !b.resp.GetFenced() && l.term != l.covered || l.feed.synced && l.highest().Controller > l.feed.controller {
		// After a reconnect, a fence, and under a new controller, whose feed may stay silent for long, only a snapshot tells.
		l.resync = false
		l.feed.lose(nil)
		l.takeSnapshot()
	}
	return nil
}

// leaseTerm names a stretch in which no leadership is taken from a broker that it does not know of: between two fences, under
// one controller. A broker that was cut off may have been fenced, deposed and unfenced again without a word to it, so a lease
// of a new term counts only when a snapshot has been applied that was asked for within that term.
type leaseTerm struct {
	controller messages.ControllerEpoch
	unfenced   uint64
}

// take applies an answer: the lease, the fence, and whether a stopping broker may go.
func (l *life) take(b beat) {
	fenced := b.resp.GetFenced()
	l.term = leaseTerm{messages.ControllerEpoch(b.resp.GetSeen().GetControllerEpoch()), b.resp.GetUnfenced()}
	l.mu.Lock()
	was := l.fenced
	l.fenced = fenced
	l.lastBeat = b.sent
	stopping := l.stopping
	l.mu.Unlock()
	if d := time.Duration(b.resp.GetLeaseMs()) * time.Millisecond; fenced || stopping || d == 0 || l.sink.storageFailed() {
		l.lease.end()
	} else if l.term == l.covered {
		l.lease.grant(b.generation, b.sent, d)
	}
	if fenced && !was && !stopping {
		l.resync = true // what the fence has deposed it from may have been said and lost
	}
	if was != fenced {
		l.log.Info().Bool("fenced", fenced).Msg("fence changed")
	}
	if !fenced {
		closeOnce(l.firstReady)
	}
	if stopping && b.resp.GetMayStop() {
		closeOnce(l.mayStop)
	}
}

// closeOnce closes a channel that only this goroutine closes.
func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// checkpoint reports the marks of the partitions that this broker leads. A lost report is made up for by the next.
func (l *life) checkpoint() {
	reports := l.sink.reports()
	epoch := uint64(l.registration().epoch)
	for len(reports) > 0 {
		n := min(len(reports), messages.MaxBatchItems)
		req := &pb.OffsetsRequest{Broker: string(l.id), BrokerEpoch: epoch, Reports: reports[:n]}
		reports = reports[n:]
		go func() {
			if err := l.ask(l.ctx, registerTimeout, messages.VerbOffsets, req, &pb.OffsetsResponse{}); err != nil {
				l.log.Debug().Err(err).Msg("marks were not taken")
			}
		}()
	}
}
