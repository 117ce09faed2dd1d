package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

func factor(n int) func(placement.View) (*placement.Plan, error) {
	return func(v placement.View) (*placement.Plan, error) { return placement.ChangeFactor(v, n) }
}

func TestRaisingTheFactorAddsWhereTheSpreadIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{brokers: drawCluster(t, 10).Brokers, seed: rapid.Uint64().Draw(t, "seed")}
		usable := len(usableOf(w.view().Snapshot))
		was := rapid.IntRange(1, usable).Draw(t, "was")
		w.fill(t, rapid.IntRange(1, 20).Draw(t, "partitions"), was)
		is := rapid.IntRange(1, usable).Draw(t, "is")
		leaders := map[messages.PartitionID]messages.BrokerID{}
		for _, p := range w.parts {
			leaders[p.ID] = p.Leader
		}
		plan := planned(t, w.view(), factor(is))
		if len(plan.Skipped) > 0 || plan.Copies != max(0, is-was)*len(w.parts) || plan.FewestCopies != plan.Copies {
			t.Fatal(describe(plan))
		}
		w.apply(t, plan)
		racks := placement.NewRacks(w.view().Snapshot)
		for _, p := range w.parts {
			if len(p.Replicas) != is || !slices.Contains(p.Replicas, leaders[p.ID]) {
				t.Fatalf("%v has %v, it was led by %s", p.ID, p.Replicas, leaders[p.ID])
			}
			// What is added one by one is the best there is; what stays may be spread better only where the leader is in the way.
			if is > was && racks.Check(p.Replicas).Avoidable {
				t.Fatalf("%v is not spread as well as it could be", p.Replicas)
			}
		}
		if next := planned(t, w.view(), factor(is)); len(next.Moves) > 0 {
			t.Fatal(describe(next))
		}
	})
}

func TestLoweringTheFactorSparesLeaderAndISR(t *testing.T) {
	for _, c := range []struct{ name, brokers, list, isr, leader, want string }{
		{"who is not in sync goes first", "1@A 2@B 3@C", "1,2,3", "1 3", "1", "1 3"},
		{"the gone one goes before that", "1@A 2@B 3@C!fenced", "1,2,3", "1 3", "1", "1 2"},
		{"the leader stays though its rack is crowded", "1@A 2@A 3@B", "1,2,3", "1 2 3", "1", "1 3"},
		{"the last goes where nothing else decides", "1@A 2@B 3@C", "1,2,3", "1 2 3", "2", "1 2"},
		{"a draining broker goes before others", "1@A 2@B!draining 3@C", "1,2,3", "1 2 3", "1", "1 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worldOf(c.brokers, c.list)
			w.parts[0].ISR, w.parts[0].Leader = named(c.isr), messages.BrokerID(c.leader)
			if b := w.broker("3"); b.Fenced {
				b.Gone = true
			}
			plan := planned(t, w.view(), factor(2))
			if len(plan.Moves) != 1 || !slices.Equal(sorted(plan.Moves[0].To), named(c.want)) {
				t.Errorf("want %s: %s", c.want, describe(plan))
			}
		})
	}
	w := worldOf("1@A 2@B 3@C", "1,2,3")
	wantLine(t, planned(t, w.view(), factor(1)).Warnings, "min_isr", "1 partition", "there will be")
	for _, n := range []int{0, 4} {
		if _, err := placement.ChangeFactor(w.view(), n); messages.CodeOf(err) != messages.CodeInvalidReplicationFactor {
			t.Errorf("factor %d: %v", n, err)
		}
	}
}

func TestB14TopicGrowsByTheRacksAndByTheLoadThatIsThere(t *testing.T) {
	w := worldOf("1@A 2@A 3@B 4@B 5@C 6@C", "")
	w.fill(t, 3, 3)
	p, err := placement.AddPartitions(w.view(), 9)
	if err != nil || len(p.Replicas) != 6 {
		t.Fatalf("%v %v", p, err)
	}
	for _, list := range p.Replicas {
		if len(racksIn(w.view().Snapshot, list)) != 3 {
			t.Errorf("%v is not in three racks", list)
		}
		w.add(list)
	}
	if span := spanOf(w.view().Snapshot, replicasOf); span > 1 {
		t.Errorf("replicas differ by %d", span)
	}
	for _, total := range []int{5, 9} {
		if _, err := placement.AddPartitions(w.view(), total); messages.CodeOf(err) != messages.CodeInvalidPartitions {
			t.Errorf("to %d: %v", total, err)
		}
	}
}

func TestNewTopicKeepsTheLevelThatMustBeDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawCluster(t, 10)
		depth := 0
		for _, b := range usableOf(s) {
			depth = max(depth, len(b.Rack.Levels()))
		}
		if depth == 0 {
			return
		}
		level := rapid.IntRange(1, depth).Draw(t, "level")
		in := func(b placement.Broker) string {
			levels := append(b.Rack.Levels(), make([]string, messages.MaxRackDepth)...)
			return strings.Join(levels[:level], "/")
		}
		domains := map[string]bool{}
		for _, b := range usableOf(s) {
			domains[in(b)] = true
		}
		n := rapid.IntRange(1, len(usableOf(s))).Draw(t, "factor")
		p, err := placement.Place(s, placement.NewTopic{Partitions: 10, ReplicationFactor: n, Distinct: level}, [2]uint64{1, 1})
		if n > len(domains) {
			if messages.CodeOf(err) != messages.CodeInvalidReplicationFactor {
				t.Fatalf("%d replicas in %d domains: %v", n, len(domains), err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range p.Replicas {
			seen := map[string]bool{}
			for _, b := range s.Brokers {
				if slices.Contains(list, b.ID) {
					seen[in(b)] = true
				}
			}
			if len(seen) != n {
				t.Fatalf("%v is in %v", list, seen)
			}
		}
	})
}

func target(i int, replicas, expect string) placement.Target {
	return placement.Target{Partition: partitionID(i), Replicas: named(replicas), Expect: named(expect)}
}

func TestPlansByHandAreChecked(t *testing.T) {
	type targets = []placement.Target
	for _, c := range []struct {
		name    string
		targets targets
		code    messages.Code
		part    string
	}{
		{"accepted", targets{target(0, "1 2 4", "1 2 3"), target(1, "3 1 2", "")}, "", ""},
		{"an unknown partition", targets{target(7, "1 2", "")}, messages.CodeUnknownPartition, "-7"},
		{"twice", targets{target(0, "1 2 4", ""), target(0, "1 2 3", "")}, messages.CodeInvalidAssignment, "twice"},
		{"stale", targets{target(0, "1 2 4", "1 3 2")}, messages.CodeStalePartitionEpoch, "[1 2 3]"},
		{"no replicas", targets{target(0, "", "")}, messages.CodeInvalidAssignment, "no replicas"},
		{"an unknown broker", targets{target(0, "1 9", "")}, messages.CodeInvalidAssignment, `"9"`},
		{"one broker twice", targets{target(0, "1 2 1", "")}, messages.CodeInvalidAssignment, "1 twice"},
		{"a draining broker", targets{target(0, "1 2 5", "")}, messages.CodeInvalidAssignment, "draining"},
		{"nobody to lead", targets{target(0, "6", "")}, messages.CodeInvalidAssignment, "all are fenced"},
		{"too many", make(targets, placement.MaxTargets+1), messages.CodeTooLarge, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worldOf("1@A 2@B 3@C 4@C 5@C!draining 6@C!fenced", "1,2,3 1,2,3")
			for i := range c.targets {
				if len(c.targets[i].Expect) == 0 {
					c.targets[i].Expect = nil
				}
			}
			plan, err := placement.CheckPlan(w.view(), c.targets)
			if c.code == "" {
				if err != nil || len(plan.Moves) != 2 || plan.Copies != 1 || plan.Reordered != 1 {
					t.Errorf("%v %v", plan, err)
				}
				return
			}
			wantCode(t, err, c.code)
			wantLine(t, []string{err.Error()}, c.part)
		})
	}
}

func TestB73PlanThatChangesNothingIsNoMove(t *testing.T) {
	w := worldOf("1@A 2@B 3@C 6@C", "1,2,3 1,2,3")
	plan, err := placement.CheckPlan(w.view(), []placement.Target{target(0, "1 2 6", "1 2 3"), target(1, "1 2 3", "1 2 3")})
	if err != nil || len(plan.Moves) != 1 || len(plan.Skipped) != 1 || plan.Skipped[0].Reason.Code != placement.ReasonNoChange {
		t.Fatalf("%v %v", plan, err)
	}
	w.parts[0].Reassigning = true
	plan, err = placement.CheckPlan(w.view(), []placement.Target{target(0, "1 2 6", "1 2 3")})
	if err != nil || len(plan.Moves) != 1 {
		t.Fatalf("%v %v", plan, err)
	}
	wantLine(t, plan.Warnings, "in_progress", "1 partition")
}

func TestPlanByHandMayCrowdARackWithAWarningButNotWhereItMust(t *testing.T) {
	w := worldOf("1@A 2@B 3@C 4@A", "1,2,3")
	plan, err := placement.CheckPlan(w.view(), []placement.Target{{Partition: partitionID(0), Replicas: named("1 2 4")}})
	if err != nil {
		t.Fatal(err)
	}
	wantLine(t, plan.Warnings, "rack_violation", "2 of 3 replicas are in rack A")
	w.rules.Distinct = 1
	_, err = placement.CheckPlan(w.view(), []placement.Target{{Partition: partitionID(0), Replicas: named("1 2 4")}})
	wantCode(t, err, messages.CodeInvalidAssignment)
}

func TestDebtIsMeasured(t *testing.T) {
	w := worldOf("1@A 2@B 3@A 4@C!fenced 5@-", "1,2,3 1,2,5 1,3")
	debt, err := placement.SpreadDebt(w.view())
	if err != nil || debt.Violated != 2 || debt.Avoidable != 2 || len(debt.Partitions) != 2 || debt.Partitions[1].Partition != partitionID(2) {
		t.Fatalf("%+v %v", debt, err)
	}
	if !slices.Equal(debt.Unlabelled, named("5")) || debt.Partitions[0].Detail != "2 of 3 replicas are in rack A" {
		t.Errorf("%+v", debt)
	}
}

func TestWhatIfARackIsLost(t *testing.T) {
	w := worldOf("1@r1 2@r1 3@r2 4@r2 5@r3 6@r3", "")
	w.fill(t, 12, 3)
	w.add(named("3"))
	w.add(named("3 1"))
	o, err := placement.WhatIf(w.view(), placement.Change{LoseRacks: []messages.RackPath{"r2"}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.Lost, named("3 4")) || len(o.Offline) != 1 || o.Offline[0] != partitionID(12) || len(o.NoCopy) != 1 {
		t.Errorf("lost %v, offline %v, without a copy %v", o.Lost, o.Offline, o.NoCopy)
	}
	if len(o.UnderMinISR) != 1 || o.UnderMinISR[0] != partitionID(13) {
		t.Errorf("under min ISR: %v", o.UnderMinISR)
	}
	if o.Repair.Copies != 13 || o.ViolatedBefore != 0 || o.ViolatedAfter != 12 || len(o.Leaders.Skipped) != 1 {
		t.Errorf("%d copies, violated %d and %d, %v", o.Repair.Copies, o.ViolatedBefore, o.ViolatedAfter, o.Leaders.Skipped)
	}
	wantLine(t, o.Explanation, "lost: 3, 4", "1 go offline", "1 fall below min ISR")
}

func TestWhatIfBrokersAreAdded(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", strings.Repeat("1,2,3 2,3,1 3,1,2 ", 4))
	o, err := placement.WhatIf(w.view(), placement.Change{Add: cluster("4@A 5@B 6@C").Brokers})
	if err != nil || o.Addition.Copies != 18 || len(o.Offline) != 0 || o.Repair.Copies != 0 {
		t.Fatalf("%+v %v", o, err)
	}
	for _, c := range []struct {
		change placement.Change
		code   messages.Code
	}{
		{placement.Change{LoseBrokers: named("9")}, messages.CodeUnknownBroker},
		{placement.Change{LoseRacks: []messages.RackPath{"Z"}}, messages.CodeInvalidRack},
		{placement.Change{Add: cluster("1@A").Brokers}, messages.CodeBrokerIDInUse},
	} {
		if _, err := placement.WhatIf(w.view(), c.change); messages.CodeOf(err) != c.code {
			t.Errorf("%+v: %v, want %s", c.change, err, c.code)
		}
	}
}

func TestB59WhatIfSaysWhetherItIsSafeToStopABroker(t *testing.T) {
	w := worldOf("1@A 2@B 3@C", "1,2,3 2,3,1 3,1,2")
	safe := func(id messages.BrokerID) bool {
		o, err := placement.WhatIf(w.on(id), placement.Change{LoseBrokers: []messages.BrokerID{id}})
		if err != nil {
			t.Fatal(err)
		}
		return len(o.Offline) == 0 && len(o.UnderMinISR) == 0
	}
	if !safe("2") {
		t.Error("all are in sync, so one may stop")
	}
	w.parts[1].ISR = named("2 3")
	if safe("2") || safe("3") || !safe("1") {
		t.Error("one partition has two in sync: 2 and 3 may not stop, 1 may")
	}
}

func TestExplainReplicasSaysWhyNot(t *testing.T) {
	w := worldOf("1@A 2@B 3@C 4@A 5@B!draining 6@C!fenced 7@C*300 8@D 9@C!stopping", "1,2,3")
	for i := range w.brokers {
		w.brokers[i].Replicas = 5
	}
	w.broker("4").Replicas = 9
	explain := func(rules placement.Rules) []string {
		verdicts, err := placement.ExplainReplicas(placement.Snapshot{Brokers: w.brokers}, rules, w.parts[0])
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range verdicts {
			got = append(got, fmt.Sprintf("%s: %s", v.Broker, v.Reason))
		}
		return got
	}
	want := []string{
		"1: HOLDS_REPLICA", "2: HOLDS_REPLICA", "3: HOLDS_REPLICA",
		"4: MORE_LOADED load=9 weight=100 chosen=1 chosen_load=5 chosen_weight=100",
		"5: BROKER_DRAINING broker=5", "6: BROKER_FENCED broker=6", "7: EVEN_REPLICAS from=3 to=7", "8: TIE chosen=1",
		"9: BROKER_STOPPING broker=9",
	}
	if got := explain(placement.Rules{}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	w = worldOf("1@A 2@B 3@C 4@B 5@D", "1,2,3")
	for i := range w.brokers {
		w.brokers[i].Replicas = 1
	}
	w.broker("1").Replicas = 12
	want = []string{
		"1: HOLDS_REPLICA", "2: HOLDS_REPLICA", "3: HOLDS_REPLICA", "4: WORSE_SPREAD domain=B replicas=1", "5: EVEN_REPLICAS from=1 to=5",
	}
	if got := explain(placement.Rules{}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	want[3] = "4: LEVEL_REQUIRED level=1"
	if got := explain(placement.Rules{Distinct: 1}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	w.brokers[2].Rack = "A"
	if got := explain(placement.Rules{})[4]; got != "5: RACK_SPREAD from=1 to=5" {
		t.Errorf("%q", got)
	}
}
