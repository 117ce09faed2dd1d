package replica

import (
	"slices"
	"time"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Assign takes over what the controller has decided, with the epoch of this broker's current registration. What is older
// than what is known is ignored. The same leader epoch again changes neither the role nor what is known of followers; a
// later one begins anew. An assignment that does not know yet that this leader has proven itself makes it report again.
func (r *Replica) Assign(now time.Duration, a *pb.Assignment, self messages.BrokerEpoch) []Action {
	r.begin()
	r.brokerEpoch = max(r.brokerEpoch, self)
	r.assign(now, a)
	return r.take()
}

func (r *Replica) assign(now time.Duration, a *pb.Assignment) {
	le, pe := messages.LeaderEpoch(a.GetLeaderEpoch()), messages.PartitionEpoch(a.GetPartitionEpoch())
	if r.known && (le < r.leaderEpoch || pe < r.epoch) {
		return
	}
	if r.known && le == r.leaderEpoch && messages.BrokerID(a.GetLeader()) != r.leader {
		// Two leaders of one epoch: the controller never decides that. Whatever is behind it, this is not followed.
		r.failed(messages.Errorf(messages.CodeInternal, "leader epoch %d was led by %q and is now given to %q", le, r.leader, a.GetLeader()))
		return
	}
	if !r.known || le > r.leaderEpoch {
		r.confirmed, r.resigned = false, false
	}
	r.confirmed = r.confirmed || a.GetLeaderProven()
	first, newEpoch, changed := !r.known, !r.known || le > r.leaderEpoch, !r.known || pe > r.epoch
	r.known, r.leaderEpoch, r.epoch = true, le, pe
	r.leader = messages.BrokerID(a.GetLeader())
	r.floor = max(r.floor, messages.Offset(a.GetFloor()))
	before := r.isr
	if changed {
		r.replicas, r.isr = messages.BrokerIDs(a.GetReplicas()), messages.BrokerIDs(a.GetIsr())
		r.minISR = max(1, int(a.GetMinIsr()))
	}
	switch {
	case r.isFaulted():
	case newEpoch:
		r.changeRole(now, first)
	case changed && r.serving():
		r.isrCommitted(now, before)
	}
	if r.leader != r.cfg.Self {
		return
	}
	if a.GetResign() {
		r.resign()
	}
	if !a.GetLeaderProven() || r.resigned {
		r.report()
	}
}

// resign gives up the leader epoch, so that another can lead: what this leader had under its lease has ended when it says so.
func (r *Replica) resign() {
	if r.role != RoleLeader && r.role != RoleProving {
		return
	}
	r.dropWaiting("this broker hands the lead over")
	r.leading = leading{}
	r.role, r.resigned = RoleWithdrawn, true
}

// changeRole begins a leader epoch.
func (r *Replica) changeRole(now time.Duration, first bool) {
	r.following = following{mark: r.mark}
	keep := r.leading.waiting
	r.leading = leading{}
	switch {
	case r.leader != r.cfg.Self:
		r.leading.waiting = keep
		r.dropWaiting("this broker does not lead the partition any more")
		r.role = RoleNone
		if r.leader != "" && slices.Contains(r.replicas, r.cfg.Self) {
			r.role = RoleFollower
		}
	case first && r.cfg.FirstSnapshot, r.leaderEpoch <= r.loadedEpoch:
		r.leading.waiting = keep
		r.dropWaiting("this broker may have led the epoch in an earlier life")
		r.role = RoleWithdrawn
	default:
		// A leader that follows itself still holds what its producers wait for.
		r.leading.waiting = keep
		r.role = RoleProving
		r.prove(now)
	}
}

// prove starts to lead if the log holds everything that the controller knows to be committed. While the storage is busy
// the log's end is not known yet.
func (r *Replica) prove(now time.Duration) {
	if r.busy() {
		return
	}
	if r.end < r.floor {
		r.dropWaiting("this replica declines to lead")
		r.role = RoleDeclined
		r.report()
		return
	}
	r.role = RoleLeader
	r.startLeading(now)
	r.report()
}

// report tells the controller where the leadership stands. A leader that is still proving says nothing yet, and one that
// withdrew because of an earlier life never does.
func (r *Replica) report() {
	rep := &pb.LeaderReport{TopicId: r.cfg.Partition.Topic.Bytes(), Partition: r.cfg.Partition.Index,
		LeaderEpoch: int64(r.leaderEpoch), LogEnd: int64(r.durable), HighWatermark: int64(r.mark)}
	switch r.role {
	case RoleLeader:
	case RoleWithdrawn:
		if !r.resigned {
			return
		}
		rep.Resigned = true
	case RoleDeclined:
		rep.Declined, rep.Reason = true, "the log ends below the known high-water mark"
	case RoleFaulted:
		rep.Declined, rep.Reason = true, r.fault.Error()
	default:
		return
	}
	r.drop(func(a Action) bool { _, ok := a.(Report); return ok })
	r.do(Report{Report: rep})
}

// drop takes actions of this call back.
func (r *Replica) drop(which func(Action) bool) { r.out = slices.DeleteFunc(r.out, which) }

// OffsetReport returns this leader's mark for the controller's checkpoint; false if it does not lead.
func (r *Replica) OffsetReport() (*pb.OffsetReport, bool) {
	if !r.serving() {
		return nil, false
	}
	return &pb.OffsetReport{TopicId: r.cfg.Partition.Topic.Bytes(), Partition: r.cfg.Partition.Index,
		LeaderEpoch: int64(r.leaderEpoch), HighWatermark: int64(r.mark), LogEnd: int64(r.durable)}, true
}
