package placement_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

// named makes broker ids of words.
func named(words string) []messages.BrokerID {
	var ids []messages.BrokerID
	for _, w := range strings.Fields(words) {
		ids = append(ids, messages.BrokerID(w))
	}
	return ids
}

func sorted(ids []messages.BrokerID) []messages.BrokerID { return slices.Sorted(slices.Values(ids)) }

func TestB6LostRackIsHealedInTheOthersAndSpreadAgainLater(t *testing.T) {
	w := worldOf("1@A 2@A 3@B 4@B 5@C!fenced 6@C!fenced", "1,3,5")
	w.broker("5").Gone, w.broker("6").Gone = true, true
	plan := planned(t, w.view(), placement.Repair)
	w.apply(t, plan)
	got := sorted(w.parts[0].Replicas)
	if !slices.Equal(got, named("1 2 3")) && !slices.Equal(got, named("1 3 4")) {
		t.Fatalf("the partition has %v", got)
	}
	wantLine(t, plan.Warnings, "rack_violation", "no better spread is possible")
	if again := planned(t, w.view(), placement.Repair); len(again.Moves) > 0 {
		t.Errorf("it moves again: %s", describe(again))
	}
	w.brokers = append(w.brokers, cluster("7@C").Brokers...)
	plan = planned(t, w.view(), placement.Repair)
	w.apply(t, plan)
	if list := w.parts[0].Replicas; len(racksIn(w.view().Snapshot, list)) != 3 || !slices.Contains(list, "7") {
		t.Errorf("with 7@C the partition has %v", list)
	}
	if got := plan.Moves[0].Reason.Code; got != placement.ReasonRackSpread {
		t.Errorf("the reason is %s", got)
	}
}

func TestB7NewBrokerGetsItsPartWithoutLossOfSpread(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", strings.Repeat("1,2,3 2,3,1 3,1,2 ", 4))
	w.brokers = append(w.brokers, cluster("4@A").Brokers...)
	plan := planned(t, w.view(), func(v placement.View) (*placement.Plan, error) { return placement.Add(v, "4") })
	if plan.Copies != 6 || plan.FewestCopies != 6 {
		t.Errorf("not 6 copies: %s", describe(plan))
	}
	for _, m := range plan.Moves {
		if len(m.Steps) > 0 && !slices.Equal(m.Steps, []placement.Step{{Add: "4", Remove: "1"}}) {
			t.Errorf("%v does not replace 1 by 4", m)
		}
	}
	w.apply(t, plan) // checks the spread at every step
	for _, p := range w.parts {
		if len(racksIn(w.view().Snapshot, p.Replicas)) != 3 {
			t.Errorf("%v is not in three racks", p.Replicas)
		}
	}
	v := w.view()
	if v.Brokers[1].Replicas != 12 || v.Brokers[2].Replicas != 12 || v.Brokers[3].Leaders != 3 {
		t.Errorf("brokers: %+v", v.Brokers)
	}
	if next := rebalance(t, w); len(next.Moves) > 0 {
		t.Errorf("the next plan is not empty: %s", describe(next))
	}
}

func TestB12DrainAndRackRepairDoNotFight(t *testing.T) {
	w := worldOf("1@A 2@A 3@B 4@B 5@C!draining", strings.Repeat("5,1,3 2,5,4 1,4,5 3,2,5 4,5,1 ", 2))
	for i := range w.parts { // a draining broker is in the ISR
		w.parts[i].ISR = w.parts[i].Replicas
	}
	moved := map[messages.PartitionID]int{}
	for round := range 20 {
		for _, propose := range []func(placement.View) (*placement.Plan, error){drain(), placement.Repair, placement.Rebalance} {
			w.seed++
			plan := planned(t, w.view(), propose)
			for _, m := range plan.Moves {
				if moved[m.Partition]++; len(m.Steps) > 0 && round > 0 || slices.Contains(m.To, "5") {
					t.Errorf("round %d: %v", round, m)
				}
			}
			w.apply(t, plan)
		}
	}
	for id, n := range moved {
		if n > 2 { // once away from 5, and perhaps once in order only
			t.Errorf("partition %v moved %d times", id, n)
		}
	}
	racks := placement.NewRacks(w.view().Snapshot)
	for _, p := range w.parts {
		if got := racks.Check(p.Replicas); !got.Violated || got.Avoidable {
			t.Errorf("%v: %+v, want a violation that is known to have no target", p.Replicas, got)
		}
	}
}

func TestB15BrokerUnderAnotherRackIsRepairedAndTheLeaderStays(t *testing.T) {
	w := worldOf("1@A 2@B 3@A 4@C", "1,2,3")
	plan := planned(t, w.view(), placement.Repair)
	if len(plan.Moves) != 1 || !slices.Equal(plan.Moves[0].To, named("1 2 4")) {
		t.Fatalf("want 3 replaced by 4, and 1 to lead on: %s", describe(plan))
	}
	wantLine(t, plan.Explanation, "spread better with 4 than with 3")
}

func TestB74DrainWithoutATargetSaysSoAndGoesOnLater(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", "1,2,3 2,3,1 3,1,2")
	plan := planned(t, w.on("3"), drain("3"))
	if len(plan.Moves) != 0 || len(plan.Skipped) != 3 || plan.Skipped[0].Reason.Code != placement.ReasonNoTarget {
		t.Fatalf("want no target: %s", describe(plan))
	}
	wantLine(t, plan.Explanation, "left out: 3 partitions", "2 usable brokers", "3 replicas")
	w.brokers = append(w.brokers, cluster("4@C").Brokers...)
	w.apply(t, planned(t, w.on("3"), drain("3")))
	for _, p := range w.parts {
		if slices.Contains(p.Replicas, "3") || !slices.Contains(p.Replicas, "4") {
			t.Errorf("%v", p.Replicas)
		}
	}
	w.broker("3").Draining = true
	if plan := planned(t, w.on("1"), drain("1")); plan.Copies != 0 || len(plan.Skipped) != 3 {
		t.Errorf("1 has nowhere to go while 3 is draining: %s", describe(plan))
	}
	w.broker("3").Draining = false // taken back
	if plan := rebalance(t, w); plan.Copies != 1 {
		t.Errorf("3 and 4 share what rack C has: %s", describe(plan))
	}
}

func TestDistinctLevelIsNeverGivenUp(t *testing.T) {
	w := worldOf("1@A 2@B 3@C!fenced 4@A 5@B", "1,2,3")
	w.broker("3").Gone = true
	w.rules.Distinct = 1
	plan := planned(t, w.view(), placement.Repair)
	if len(plan.Moves) != 0 || len(plan.Skipped) != 1 || plan.Skipped[0].Reason.String() != "LEVEL_REQUIRED level=1" {
		t.Fatalf("want a refusal: %s", describe(plan))
	}
	w.rules.Distinct = 0
	if plan := planned(t, w.view(), placement.Repair); plan.Copies != 1 {
		t.Errorf("want 4 or 5 where nothing is a must: %s", describe(plan))
	}
	w.rules.Distinct = 2
	if _, err := placement.Repair(w.view()); messages.CodeOf(err) != messages.CodeInvalidRequest {
		t.Errorf("a level that there is not: %v", err)
	}
	// Zones must be distinct: one of three regions has one zone only, and spreading regions evenly would need two.
	w = worldOf("1@eu/a 2@eu/a 3@us/a 4@us/b 5@us/c", "1,2,3,4")
	w.rules.Distinct = 2
	w.apply(t, planned(t, w.view(), placement.Repair))
	if got := sorted(w.parts[0].Replicas); !slices.Equal(got, named("1 3 4 5")) && !slices.Equal(got, named("2 3 4 5")) {
		t.Errorf("the partition has %v", got)
	}
}

func TestMovesInProgressAndLostPartitionsAreLeftAlone(t *testing.T) {
	w := worldOf("1@A 2@B 3@C!fenced 4@C", "1,2,3 2,1,3 1,2,3")
	w.broker("3").Gone = true
	w.parts[0].Reassigning = true
	w.parts[1].ISR = named("3")
	plan := planned(t, w.view(), placement.Repair)
	if len(plan.Moves) != 1 || plan.Moves[0].Partition != partitionID(2) || len(plan.Skipped) != 2 ||
		plan.Skipped[0].Reason.Code != placement.ReasonMoveInProgress || plan.Skipped[1].Reason.Code != placement.ReasonNoLiveCopy {
		t.Errorf("%v %v", plan.Moves, plan.Skipped)
	}
}

func TestReplicasOnBrokersThatNobodyKnowsAreRebuilt(t *testing.T) {
	w := worldOf("1@A 2@B 4@C", "1,2,forgotten")
	plan := planned(t, w.view(), placement.Repair)
	if len(plan.Moves) != 1 || plan.Moves[0].Reason.String() != "BROKER_GONE broker=forgotten to=4" {
		t.Errorf("%s", describe(plan))
	}
}

func TestReasonsAreReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"TIE", "NO_TARGET replicas=3 usable=2", `WORSE_SPREAD domain="a b=c" replicas=""`, "LATER x=eu/a-1_b.c"} {
		r, err := placement.ParseReason(text)
		if err != nil || r.String() != text {
			t.Errorf("%q is read as %q: %v", text, r, err)
		}
	}
	for _, text := range []string{"", " x=1", "CODE x", `CODE x="1`, "CODE =1"} {
		if _, err := placement.ParseReason(text); messages.CodeOf(err) != messages.CodeInvalidRequest {
			t.Errorf("%q: %v", text, err)
		}
	}
}
