package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/placement"
)

func TestB1SmallRackTakesItsReplicasButLeadsItsPart(t *testing.T) {
	s := cluster("0@r0 1@r0 2@r0 3@r1 4@r1 5@r1 6@r2")
	p := place(t, &s, 10, 3, 1)
	replicas, leaders := tally(p.Replicas)
	for i, list := range p.Replicas {
		if in := racksIn(s, list); len(in) != 3 {
			t.Errorf("partition %d: %v is in %d racks", i, list, len(in))
		}
	}
	for _, b := range s.Brokers[:6] {
		if n := replicas[b.ID]; n < 3 || n > 4 {
			t.Errorf("broker %s has %d replicas", b.ID, n)
		}
	}
	if replicas["6"] != 10 || leaders["6"] > 2 {
		t.Errorf("broker 6 has %d replicas and leads %d", replicas["6"], leaders["6"])
	}
	wantLine(t, p.Warnings, "imbalance", "broker 6", "10 of 30", "4.3", "r2")
	if len(p.Warnings) != 1 {
		t.Errorf("warnings: %q", p.Warnings)
	}
}

func TestB2MoreReplicasThanRacks(t *testing.T) {
	words := "1@A 2@A 3@A 4@B 5@B 6@B"
	t.Run("B2a three replicas are two and one, by turns", func(t *testing.T) {
		s := cluster(words)
		p := place(t, &s, 12, 3, 2)
		two := 0
		for i, list := range p.Replicas {
			in := racksIn(s, list)
			if in["A"] < 1 || in["B"] < 1 {
				t.Errorf("partition %d: %v is in one rack", i, list)
			}
			if in["A"] == 2 {
				two++
			}
		}
		if two != 6 {
			t.Errorf("rack A has two replicas %d times of 12", two)
		}
		wantLine(t, p.Warnings, "rack_violation", "2 of 3 replicas", "2 usable racks (A, B)")
	})
	t.Run("B2b four replicas are two and two", func(t *testing.T) {
		s := cluster(words)
		for i, list := range place(t, &s, 12, 4, 2).Replicas {
			if in := racksIn(s, list); in["A"] != 2 || in["B"] != 2 {
				t.Errorf("partition %d: %v is not two and two", i, list)
			}
		}
	})
	t.Run("B2c seven replicas are refused", func(t *testing.T) {
		_, err := placement.Place(cluster(words), placement.NewTopic{Partitions: 1, ReplicationFactor: 7}, [2]uint64{})
		wantCode(t, err, messages.CodeInvalidReplicationFactor)
		wantLine(t, []string{err.Error()}, "factor is 7", "6 of 6")
	})
}

func TestB3UnlabelledBrokersShareOneRack(t *testing.T) {
	s := cluster("1@A 2@B 3@- 4@-")
	p := place(t, &s, 8, 3, 3)
	for i, list := range p.Replicas {
		if slices.Contains(list, "3") == slices.Contains(list, "4") {
			t.Errorf("partition %d: %v has not one of 3 and 4", i, list)
		}
	}
	if replicas, _ := tally(p.Replicas); replicas["3"] != 4 || replicas["4"] != 4 {
		t.Errorf("unlabelled brokers have %d and %d replicas", replicas["3"], replicas["4"])
	}
	wantLine(t, p.Warnings, "unlabelled", "3, 4", "one rack")

	s.Brokers = append(s.Brokers, cluster("5@C").Brokers...)
	p = place(t, &s, 8, 3, 4)
	for i, list := range p.Replicas {
		if slices.Contains(list, "3") && slices.Contains(list, "4") || !slices.Contains(list, "5") {
			t.Errorf("partition %d: %v has both 3 and 4, or not the empty 5", i, list)
		}
	}
}

func TestB4LabelsAreTakenAsTheyAreRegistered(t *testing.T) {
	var s placement.Snapshot
	for i, label := range []string{"az1", "az1 ", "az2", "AZ2", "az3", ""} {
		rack, err := messages.ParseRackPath(label)
		if err != nil {
			t.Fatal(err)
		}
		s.Brokers = append(s.Brokers, placement.Broker{ID: messages.BrokerID(fmt.Sprint(i + 1)), Rack: rack})
	}
	p := place(t, &s, 12, 3, 1)
	for i, list := range p.Replicas {
		if slices.Contains(list, "1") && slices.Contains(list, "2") {
			t.Errorf("partition %d: %v has 1 and 2, which share az1", i, list)
		}
	}
	wantLine(t, p.Explanation, "5 usable racks", "AZ2", "az1", "az2", "az3", "unlabelled")
}

func TestB6LostRackDoesNotPreventReplicas(t *testing.T) {
	s := cluster("1@A 2@A 3@B 4@B 5@C!fenced 6@C!draining")
	p := place(t, &s, 12, 3, 1)
	for i, list := range p.Replicas {
		if in := racksIn(s, list); in["A"] < 1 || in["B"] < 1 {
			t.Errorf("partition %d: %v is in one rack", i, list)
		}
	}
	wantLine(t, p.Warnings, "rack_violation", "no usable broker in C")
	racks := placement.NewRacks(s)
	for _, list := range [][]messages.BrokerID{{"1", "3", "2"}, {"1", "3", "4"}} {
		if got := racks.Check(list); !got.Violated || got.Avoidable {
			t.Errorf("%v: %+v, want a violation without a remedy", list, got)
		}
	}
	s.Brokers = append(s.Brokers, cluster("7@C").Brokers...)
	if got := placement.NewRacks(s).Check([]messages.BrokerID{"1", "3", "2"}); !got.Avoidable {
		t.Errorf("with 7@C: %+v, want a violation with a remedy", got)
	}
}

func TestB8DeadBrokersGetNothing(t *testing.T) {
	words := "1@A 2@B 3@C 4@A!fenced 5@B!fenced 6@C!fenced"
	t.Run("B8a replicas only on live ones", func(t *testing.T) {
		s := cluster(words)
		p := place(t, &s, 6, 3, 1)
		if replicas, _ := tally(p.Replicas); replicas["1"] != 6 || replicas["2"] != 6 || replicas["3"] != 6 {
			t.Errorf("replicas: %v", replicas)
		}
		wantLine(t, p.Explanation, "not used", "broker 4", "fenced")
	})
	t.Run("B8b factor above the live ones", func(t *testing.T) {
		_, err := placement.Place(cluster(words), placement.NewTopic{Partitions: 1, ReplicationFactor: 6}, [2]uint64{})
		wantCode(t, err, messages.CodeInvalidReplicationFactor)
		wantLine(t, []string{err.Error()}, "factor is 6", "3 of 6")
	})
	t.Run("B8c a dead one in a manual assignment is accepted with a live one", func(t *testing.T) {
		if _, err := placement.CheckAssignment(cluster(words), [][]messages.BrokerID{{"4", "2", "3"}}); err != nil {
			t.Error(err)
		}
	})
}

func TestB9TopicsDoNotPileUp(t *testing.T) {
	words := "1@A 2@A 3@B 4@B 5@C 6@C"
	t.Run("B9a sixty topics of one partition", func(t *testing.T) {
		s := cluster(words)
		for i := range 60 {
			place(t, &s, 1, 3, uint64(i))
		}
		if r, l := spanOf(s, replicasOf), spanOf(s, leadersOf); r > 2 || l > 2 {
			t.Errorf("replicas differ by %d, leaders by %d", r, l)
		}
	})
	t.Run("B9b one topic of sixty partitions", func(t *testing.T) {
		s := cluster(words)
		place(t, &s, 60, 3, 1)
		if r, l := spanOf(s, replicasOf), spanOf(s, leadersOf); r > 0 || l > 0 {
			t.Errorf("replicas differ by %d, leaders by %d", r, l)
		}
	})
	t.Run("B9c racks of unequal size", func(t *testing.T) {
		s := cluster("1@A 2@A 3@A 4@B 5@C")
		p := place(t, &s, 60, 3, 1)
		for i, list := range p.Replicas {
			if len(racksIn(s, list)) != 3 {
				t.Errorf("partition %d: %v is not in three racks", i, list)
			}
		}
		if r := spanOf(placement.Snapshot{Brokers: s.Brokers[:3]}, replicasOf); r > 1 {
			t.Errorf("replicas in rack A differ by %d", r)
		}
		if l := spanOf(s, leadersOf); l > 1 {
			t.Errorf("leaders differ by %d", l)
		}
	})
}

func TestB11EmptyBrokerDoesNotLeadEverything(t *testing.T) {
	s := cluster("1@A 2@B 3@C 4@A 5@B 6@C 7@A")
	for i := range s.Brokers[:6] {
		s.Brokers[i].Replicas, s.Brokers[i].Leaders = 20, 6+i%2
	}
	before := s
	for i := range 30 {
		for _, list := range place(t, &s, 1, 3, uint64(i)).Replicas {
			if len(racksIn(s, list)) != 3 {
				t.Errorf("topic %d: %v is not in three racks", i, list)
			}
		}
	}
	if n := s.Brokers[6].Leaders; n > 15 {
		t.Errorf("broker 7 leads %d of 30", n)
	}
	var gained placement.Snapshot
	for _, i := range []int{1, 2, 4, 5} {
		gained.Brokers = append(gained.Brokers, placement.Broker{Replicas: s.Brokers[i].Replicas - before.Brokers[i].Replicas})
	}
	if span := spanOf(gained, replicasOf); span > 3 {
		t.Errorf("what 2, 3, 5, 6 gained differs by %d", span)
	}
}

func TestB12DrainingBrokerGetsNothing(t *testing.T) {
	s := cluster("1@A 2@A 3@B 4@B 5@C!draining")
	p := place(t, &s, 10, 3, 1)
	wantLine(t, p.Explanation, "not used", "broker 5", "draining")
	if got := placement.NewRacks(s).Check([]messages.BrokerID{"1", "3", "2"}); !got.Violated || got.Avoidable {
		t.Errorf("%+v: want a violation that is known to have no target", got)
	}
}

func TestB14MorePartitionsLaterAreSpreadToo(t *testing.T) {
	s := cluster("1@A 2@A 3@B 4@B 5@C 6@C")
	place(t, &s, 3, 3, 1)
	for i, list := range place(t, &s, 6, 3, 2).Replicas {
		if len(racksIn(s, list)) != 3 {
			t.Errorf("partition %d: %v is not in three racks", i, list)
		}
	}
	if r := spanOf(s, replicasOf); r > 1 {
		t.Errorf("replicas differ by %d", r)
	}
}

func TestB15NewLabelCountsAtOnce(t *testing.T) {
	s := cluster("1@A 2@B 3@A 4@C")
	for i, list := range place(t, &s, 9, 3, 1).Replicas {
		if slices.Contains(list, "1") && slices.Contains(list, "3") {
			t.Errorf("partition %d: %v has both brokers of rack A", i, list)
		}
	}
	got := placement.NewRacks(s).Check([]messages.BrokerID{"1", "2", "3"})
	if !got.Violated || !got.Avoidable || !strings.Contains(got.Detail, "2 of 3 replicas are in rack A") {
		t.Errorf("%+v", got)
	}
}

func TestK77OneRack(t *testing.T) {
	s := cluster("0@A 1@A 2@A 3@A!fenced")
	p := place(t, &s, 9, 3, 1)
	if l := spanOf(placement.Snapshot{Brokers: s.Brokers[:3]}, leadersOf); l != 0 {
		t.Errorf("leaders differ by %d", l)
	}
	wantLine(t, p.Warnings, "rack_violation", "3 of 3 replicas are in rack A", "1 usable rack (A)")
}

func TestK78RackWithOneUsableBroker(t *testing.T) {
	s := cluster("10@a 11@a 20@b!fenced 21@b 30@c 31@c")
	for i, list := range place(t, &s, 12, 4, 1).Replicas {
		if in := racksIn(s, list); in["a"] < 1 || in["b"] != 1 || in["c"] < 1 {
			t.Errorf("partition %d: %v leaves a rack out", i, list)
		}
	}
	for _, b := range s.Brokers {
		if want := map[bool]int{true: 12, false: 9}[b.ID == "21"]; b.ID != "20" && b.Replicas != want {
			t.Errorf("broker %s has %d replicas, want %d", b.ID, b.Replicas, want)
		}
	}
}

func TestK79ImpossibleNumbers(t *testing.T) {
	for _, c := range []struct {
		name, words        string
		partitions, factor int
		code               messages.Code
		part               string
	}{
		{"factor 0", "0@a", 1, 0, messages.CodeInvalidReplicationFactor, "factor is 0"},
		{"factor -1", "0@a", 1, -1, messages.CodeInvalidReplicationFactor, "factor is -1"},
		{"factor above brokers", "0@a 1@b", 1, 3, messages.CodeInvalidReplicationFactor, "2 of 2"},
		{"K51 all fenced", "0@a!fenced 1@b!fenced", 1, 1, messages.CodeInvalidReplicationFactor, "0 of 2"},
		{"K51 four of three", "0@a 1@b 2@c", 1, 4, messages.CodeInvalidReplicationFactor, "3 of 3"},
		{"no brokers", "", 1, 1, messages.CodeInvalidReplicationFactor, "0 of 0"},
		{"no partitions", "0@a", 0, 1, messages.CodeInvalidPartitions, "0 partitions"},
		{"too many", "0@a 1@b", 1 << 40, 2, messages.CodeInvalidPartitions, "limit"},
	} {
		t.Run("K79 "+c.name, func(t *testing.T) {
			topic := placement.NewTopic{Partitions: c.partitions, ReplicationFactor: c.factor}
			_, err := placement.Place(cluster(c.words), topic, [2]uint64{})
			wantCode(t, err, c.code)
			wantLine(t, []string{err.Error()}, c.part)
		})
	}
}

func TestK80OneLiveBrokerTakesAll(t *testing.T) {
	s := cluster("0@a 1@b!fenced")
	p := place(t, &s, 3, 1, 1)
	if replicas, leaders := tally(p.Replicas); replicas["0"] != 3 || leaders["0"] != 3 {
		t.Errorf("%v", p.Replicas)
	}
}

func TestManualAssignments(t *testing.T) {
	type lists = [][]messages.BrokerID
	for _, c := range []struct {
		name, words string
		assignment  lists
		part        string // of the error, "" if accepted
	}{
		{"K52 one of three is active", "0@a 1@b!stopping 2@c!fenced", lists{{"0", "1", "2"}}, ""},
		{"K53 all fenced", "0@a 1@b!fenced 2@c!fenced", lists{{"0"}, {"1"}}, "partition 1 has no replica"},
		{"K57 lists of different length", "0@a 1@b", lists{{"0", "1"}, {"1"}}, "partition 1 has 1 replicas"},
		{"K57 empty list", "0@a", lists{{}}, "partition 0 has 0 replicas"},
		{"K57 no list", "0@a", lists{}, "no partitions"},
		{"one broker twice", "0@a", lists{{"0", "0"}}, "twice"},
		{"unknown broker", "0@a", lists{{"0", "9"}}, `"9", which is not registered`},
		{"draining broker", "0@a 1@b!draining", lists{{"0", "1"}}, "draining"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := placement.CheckAssignment(cluster(c.words), c.assignment)
			if c.part == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantCode(t, err, messages.CodeInvalidAssignment)
			wantLine(t, []string{err.Error()}, c.part)
		})
	}
	warning, err := placement.CheckAssignment(cluster("0@a 1@a 2@b"), lists{{"0", "2"}, {"0", "1"}})
	if err != nil {
		t.Error(err)
	}
	wantLine(t, []string{warning}, "rack_violation", "1 partition", "rack a")
}
