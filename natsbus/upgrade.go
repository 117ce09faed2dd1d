package natsbus

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// finalizeUpgrade passes the request on with what is known of the controllers, which no journal has.
func (e *Edge) finalizeUpgrade(x *exchange, body proto.Message) {
	id := e.waiting.ask(time.Now(), x.settle)
	e.tell(actors.Registry, actors.FinalizeUpgrade{Request: id, Body: body.(*pb.FinalizeUpgradeRequest), Controllers: e.cfg.Controllers()}, id)
}

// viewUpgrade serves mon.v1.upgrade.
func (e *Edge) viewUpgrade(q *inquiry) (any, string, error) {
	brokers := e.cfg.Catalog.Brokers()
	v := messages.UpgradeView{Version: e.cfg.Catalog.Identity().FinalizedVersion(), Controllers: e.cfg.Controllers(),
		Brokers: map[messages.Version]int{}, Kept: len(e.cfg.Catalog.UnknownRecords()), State: "FINALIZED", Blockers: []messages.UpgradeBlocker{}}
	v.Target = max(e.cfg.Known.Max, v.Version)
	for _, b := range brokers {
		v.Brokers[b.Speaks.Or().Max]++
	}
	if v.Target > v.Version {
		v.State = "READY"
		if v.Blockers = messages.UpgradeBlockers(v.Target, brokers, v.Controllers); len(v.Blockers) > 0 {
			v.State = "BLOCKED"
		}
	}
	f := &filler{budget: q.budget / 2}
	v.Blockers, _ = fit(f, v.Blockers)
	return v, "", nil
}

// unfit returns the controllers that must not become active, and what the first of them says.
func (e *Edge) unfit() (names []string, why string) {
	for _, c := range e.cfg.Controllers() {
		if c.Unfit == "" || c.AgeMs > unfitSilence.Milliseconds() {
			continue
		}
		if names = append(names, c.Name); why == "" {
			why = c.Name + ": " + c.Unfit
		}
	}
	return names, why
}

// unfitSilence is how long a controller that must not become active is a reason for not being healthy after it was heard last.
const unfitSilence = 10 * time.Second
