package placement_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// lead carries changes of leaders out, after checking that each goes from the leader to an ISR member on a usable broker.
func (w *world) lead(t failer, plan *placement.LeaderPlan) {
	t.Helper()
	for _, c := range plan.Changes {
		p := w.part(c.Partition)
		if p.Leader != c.From || c.To == c.From || !slices.Contains(p.ISR, c.To) || !slices.Contains(p.Replicas, c.To) {
			t.Fatalf("%v of %+v", c, *p)
		}
		if b := w.broker(c.To); b.Gone || b.Fenced || b.Stopping {
			t.Fatalf("%v: %+v cannot lead", c, *b)
		}
		p.Leader = c.To
	}
}

func led(t failer, v placement.View, propose func(placement.View) (*placement.LeaderPlan, error)) *placement.LeaderPlan {
	t.Helper()
	plan, err := propose(v)
	if err != nil {
		t.Fatalf("no plan: %v", err)
	}
	return plan
}

func prefer(most int) func(placement.View) (*placement.LeaderPlan, error) {
	return func(v placement.View) (*placement.LeaderPlan, error) { return placement.PreferLeaders(v, most) }
}

func balance(r placement.LeaderRules) func(placement.View) (*placement.LeaderPlan, error) {
	return func(v placement.View) (*placement.LeaderPlan, error) { return placement.BalanceLeaders(v, r) }
}

func succeed(lost ...messages.BrokerID) func(placement.View) (*placement.LeaderPlan, error) {
	return func(v placement.View) (*placement.LeaderPlan, error) { return placement.Successors(v, lost...) }
}

// away takes a broker out of every ISR and elects others, as it happens when a broker dies.
func (w *world) away(t failer, id messages.BrokerID) {
	t.Helper()
	plan := led(t, w.view(), succeed(id))
	w.broker(id).Fenced = true
	w.lead(t, plan)
	for i := range w.parts {
		w.parts[i].ISR = without(w.parts[i].ISR, id)
	}
}

func without(ids []messages.BrokerID, id messages.BrokerID) []messages.BrokerID {
	return slices.DeleteFunc(slices.Clone(ids), func(x messages.BrokerID) bool { return x == id })
}

// back lets a broker rejoin every ISR.
func (w *world) back(id messages.BrokerID) {
	w.broker(id).Fenced = false
	for i := range w.parts {
		if p := &w.parts[i]; slices.Contains(p.Replicas, id) && !slices.Contains(p.ISR, id) {
			p.ISR = append(slices.Clone(p.ISR), id)
		}
	}
}

func TestK13PreferredLeaderThatIsStoppingDoesNotLeadAndLaterDoes(t *testing.T) {
	w := worldOf("1@A!stopping 2@B 3@C 4@D", "1,2,3 2,3,4")
	plan := led(t, w.view(), prefer(0))
	if len(plan.Changes) != 0 || len(plan.Skipped) != 1 || plan.Skipped[0].Reason.String() != "BROKER_STOPPING broker=1" {
		t.Fatalf("%v %v", plan.Changes, plan.Skipped)
	}
	w.broker("1").Stopping = false
	if plan = led(t, w.view(), prefer(0)); len(plan.Changes) != 0 || plan.Skipped[0].Reason.Code != placement.ReasonNotInISR {
		t.Fatalf("%v %v", plan.Changes, plan.Skipped)
	}
	w.back("1")
	w.broker("1").Unsettled = true
	if plan = led(t, w.view(), prefer(0)); len(plan.Changes) != 0 || plan.Skipped[0].Reason.Code != placement.ReasonBrokerUnsettled {
		t.Fatalf("%v %v", plan.Changes, plan.Skipped)
	}
	w.broker("1").Unsettled = false
	plan = led(t, w.view(), prefer(0))
	if len(plan.Changes) != 1 || plan.Changes[0].To != "1" || plan.Changes[0].Reason.Code != placement.ReasonPreferredLeader {
		t.Fatalf("%v", plan.Changes)
	}
}

func TestK16ImbalanceStaysListedUntilThePreferredLeaderIsBack(t *testing.T) {
	w := worldOf("0@A!fenced 1@A 2@B 3@C", "1,2,3 0,2,3")
	w.parts[0].Leader = "2"
	plan := led(t, w.view(), prefer(0))
	if len(plan.Changes) != 1 || plan.Changes[0].To != "1" || len(plan.Skipped) != 1 || plan.Skipped[0].Partition != partitionID(1) {
		t.Fatalf("%v %v", plan.Changes, plan.Skipped)
	}
	w.lead(t, plan)
	w.back("0")
	w.lead(t, led(t, w.view(), prefer(0)))
	if plan = led(t, w.view(), prefer(0)); plan.Wanted != 0 || len(plan.Skipped) != 0 {
		t.Errorf("%v %v", plan.Changes, plan.Skipped)
	}
}

func TestB60DeadBrokerIsNoSpareCapacityForLeaders(t *testing.T) {
	w := worldOf("1@A!fenced 2@B 3@C", strings.Repeat("2,3,1 ", 70)+strings.Repeat("3,2,1 ", 20))
	plan := led(t, w.view(), balance(placement.LeaderRules{}))
	for _, c := range plan.Changes {
		if c.To == "1" {
			t.Errorf("%v goes to the dead broker", c)
		}
	}
	w.lead(t, plan)
	if b := w.view().Brokers; len(plan.Changes) != 25 || b[1].Leaders != 45 || b[2].Leaders != 45 {
		t.Errorf("%d changes, %d and %d", len(plan.Changes), b[1].Leaders, b[2].Leaders)
	}
	w.broker("1").Fenced = false // back, and in sync nowhere
	if plan = led(t, w.view(), balance(placement.LeaderRules{})); len(plan.Changes) != 0 {
		t.Errorf("%v", plan.Changes)
	}
}

func TestB61BalancingOfUnevenSizesUnderNoiseComesToRest(t *testing.T) {
	w := worldOf("1@A 2@B 3@C 4@D 5@E", strings.Repeat("1,2,3 2,3,4 3,4,5 4,5,1 5,1,2 ", 10))
	rules := placement.LeaderRules{ByWriteRate: true, Threshold: 30}
	moved := map[messages.PartitionID]int{}
	changes := 0
	for round := range 50 {
		for i := range w.parts {
			w.parts[i].WriteRate = 1000 + int64(i*37+round*101)%100 // a tenth of noise
		}
		w.parts[49].WriteRate *= 30
		w.seed = uint64(round)
		plan := led(t, w.view(), balance(rules))
		for _, c := range plan.Changes {
			if moved[c.Partition]++; moved[c.Partition] > 1 {
				t.Errorf("round %d: %v moves again", round, c)
			}
		}
		if changes += len(plan.Changes); round > 3 && len(plan.Changes) > 0 {
			t.Errorf("round %d: %v", round, plan.Changes)
		}
		w.lead(t, plan)
	}
	if changes == 0 {
		t.Error("nothing was balanced")
	}
	plan := led(t, w.view(), balance(rules))
	wantLine(t, plan.Explanation, "broker 5", "no change would improve anything")
}

func TestThresholdLeavesSmallDifferencesAndSaysSo(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", strings.Repeat("1,2,3 ", 11)+strings.Repeat("2,3,1 ", 10)+strings.Repeat("3,1,2 ", 9))
	plan := led(t, w.view(), balance(placement.LeaderRules{Threshold: 20}))
	if len(plan.Changes) != 0 || plan.Loads[0].Reason.Code != placement.ReasonBelowThreshold {
		t.Errorf("%v %v", plan.Changes, plan.Loads)
	}
	if plan = led(t, w.view(), balance(placement.LeaderRules{})); len(plan.Changes) != 1 {
		t.Errorf("%v", plan.Changes)
	}
}

func TestDrainingBrokerIsToLeadNothing(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", "1,2,3 1,2,3 2,1,3 3,1,2")
	w.broker("1").Draining = true
	plan := led(t, w.view(), balance(placement.LeaderRules{Threshold: 50}))
	w.lead(t, plan)
	if b := w.view().Brokers; b[0].Leaders != 0 || b[1].Leaders != 2 || plan.Changes[0].Reason.Code != placement.ReasonBrokerDraining {
		t.Errorf("%v %+v", plan.Changes, b)
	}
}

// After one broker's death what it led is spread evenly, and after its return all lead what they led before, in waves.
func TestLeadersAreEvenAgainAfterADeathAndAReturn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawEven(t)
		w.apply(t, rebalance(t, w))
		before := w.view().Snapshot
		id := rapid.SampledFrom(w.brokers).Draw(t, "dies").ID
		w.away(t, id)
		w.seed++
		w.back(id)
		wave := rapid.IntRange(1, 7).Draw(t, "wave")
		moved := map[messages.PartitionID]bool{}
		for round := 0; ; round++ {
			plan := led(t, w.view(), prefer(wave))
			if len(plan.Changes) > wave || round > 200 {
				t.Fatalf("wave %d has %d changes", round, len(plan.Changes))
			}
			if len(plan.Changes) == 0 {
				break
			}
			for _, c := range plan.Changes {
				if moved[c.Partition] {
					t.Fatalf("partition %v moves again", c.Partition)
				}
				moved[c.Partition] = true
			}
			w.lead(t, plan)
		}
		if after := w.view().Snapshot; !reflect.DeepEqual(before.Brokers, after.Brokers) && spanOf(after, leadersOf) > 1 {
			t.Fatalf("before %v, after %v", before.Brokers, after.Brokers)
		}
	})
}

func TestSuccessorsShareWhatTheDeadBrokerLed(t *testing.T) {
	w := &world{brokers: racksOf(3, 3, 3).Brokers, seed: 5}
	w.fill(t, 180, 3)
	w.apply(t, rebalance(t, w))
	w.away(t, "b004")
	v := w.view()
	// Those in the rack of the dead broker follow none of what it led.
	v.Brokers = slices.DeleteFunc(v.Brokers, func(b placement.Broker) bool { return b.Rack == "r1" })
	if span := spanOf(v.Snapshot, leadersOf); span > 1 {
		t.Errorf("leaders differ by %d: %+v", span, v.Brokers)
	}
	for _, p := range w.parts {
		if p.Leader == "b004" || p.Leader == "" {
			t.Errorf("partition %v is led by %q", p.ID, p.Leader)
		}
	}
}

func TestSuccessorIsSettledWhereThereIsAChoice(t *testing.T) {
	w := worldOf("1@A 2@B 3@C 4@D", "1,2,3 1,2,4 1,4 1")
	w.broker("2").Unsettled, w.broker("4").Draining = true, true
	plan := led(t, w.view(), succeed("1"))
	to := map[messages.PartitionID]messages.BrokerID{}
	for _, c := range plan.Changes {
		to[c.Partition] = c.To
	}
	want := map[messages.PartitionID]messages.BrokerID{partitionID(0): "3", partitionID(1): "2", partitionID(2): "4"}
	if !reflect.DeepEqual(to, want) || len(plan.Skipped) != 1 || plan.Skipped[0].Reason.Code != placement.ReasonNoLeaderToElect {
		t.Errorf("%v %v", to, plan.Skipped)
	}
}

func TestBalancedLeadersStayAndAreAsEvenAsTheISRsAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 10)
		rules := placement.LeaderRules{
			ByWriteRate: rapid.Bool().Draw(t, "rate"), Threshold: rapid.SampledFrom([]int{0, 10, 50}).Draw(t, "threshold"),
			Max: rapid.SampledFrom([]int{0, 1, 5}).Draw(t, "max"),
		}
		for i := range w.parts {
			w.parts[i].WriteRate = rapid.Int64Range(0, 100).Draw(t, "rate")
			if isr := w.parts[i].ISR; len(isr) > 0 {
				w.parts[i].Leader = rapid.SampledFrom(isr).Draw(t, "leader")
			}
		}
		for round := 0; ; round++ {
			w.seed++
			plan := led(t, w.view(), balance(rules))
			if rules.Max > 0 && len(plan.Changes) > rules.Max || round > 300 {
				t.Fatalf("round %d has %d changes", round, len(plan.Changes))
			}
			if rules.Max == 0 && round > 0 && len(plan.Changes) > 0 {
				t.Fatalf("round %d: %v", round, plan.Changes)
			}
			for _, c := range plan.Changes {
				if w.part(c.Partition).Cooling {
					t.Fatalf("partition %v changes its leader again", c.Partition)
				}
				w.part(c.Partition).Cooling = rules.Max > 0
			}
			w.lead(t, plan)
			if len(plan.Changes) > 0 {
				continue
			}
			if !slices.ContainsFunc(w.parts, func(p placement.Partition) bool { return p.Cooling }) {
				break
			}
			for i := range w.parts {
				w.parts[i].Cooling = false
			}
		}
		if !rules.ByWriteRate && rules.Threshold == 0 {
			w.checkNoBetterLeader(t)
		}
	})
}

// checkNoBetterLeader looks for one change that would make the leaders more even.
func (w *world) checkNoBetterLeader(t *rapid.T) {
	t.Helper()
	v := w.view()
	of := map[messages.BrokerID]placement.Broker{}
	for _, b := range v.Brokers {
		if b.Weight == 0 {
			b.Weight = placement.DefaultWeight
		}
		of[b.ID] = b
	}
	for _, p := range w.parts {
		from, ok := of[p.Leader]
		for _, id := range p.ISR {
			to := of[id]
			if ok && from.Refusal() == "" && to.Refusal() == "" && (2*to.Leaders+1)*from.Weight < (2*from.Leaders-1)*to.Weight {
				t.Fatalf("%s could lead %v better than %s", id, p.ID, p.Leader)
			}
		}
	}
}

func TestExplainLeaderSaysWhyNot(t *testing.T) {
	w := worldOf("1@A!fenced 2@B 3@C 4@D!draining 5@E 6@F", "1,2,3,4,5,6,7")
	w.parts[0].ISR = named("2 3 4 6")
	verdicts, err := placement.ExplainLeader(w.view().Snapshot, w.parts[0])
	var got []string
	for _, v := range verdicts {
		got = append(got, fmt.Sprintf("%s: %s", v.Broker, v.Reason))
	}
	want := []string{
		"1: BROKER_FENCED broker=1", "2: ALREADY_LEADS broker=2", "3: NOT_PREFERRED preferred=2", "4: BROKER_DRAINING broker=4",
		"5: NOT_IN_ISR broker=5", "6: NOT_PREFERRED preferred=2", "7: BROKER_UNKNOWN broker=7",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %q", err, got)
	}
}
