package history

import (
	"slices"
	"strings"
	"testing"
)

func TestATenureIsWhereLeadingAndLeaseMeet(t *testing.T) {
	for name, x := range map[string]struct {
		events []Event
		want   []Tenure
	}{
		"a lease that is extended is one": {
			[]Event{{Kind: Leased, At: 10, Until: 40}, {Kind: Leads, At: 20, Partition: "p", Epoch: 1}, {Kind: Leased, At: 30, Until: 60}},
			[]Tenure{{"p", "b1", 1, 20, 60}}},
		"a lease that has run out begins anew": {
			[]Event{{Kind: Leads, At: 5, Partition: "p", Epoch: 1}, {Kind: Leased, At: 10, Until: 20}, {Kind: Leased, At: 30, Until: 50}},
			[]Tenure{{"p", "b1", 1, 10, 20}, {"p", "b1", 1, 30, 50}}},
		"giving the lease up ends it": {
			[]Event{{Kind: Leads, At: 5, Partition: "p", Epoch: 1}, {Kind: Leased, At: 10, Until: 90}, {Kind: LeaseEnded, At: 30}},
			[]Tenure{{"p", "b1", 1, 10, 30}}},
		"giving up what has run out changes nothing": {
			[]Event{{Kind: Leads, At: 5, Partition: "p", Epoch: 1}, {Kind: Leased, At: 10, Until: 20}, {Kind: LeaseEnded, At: 30}},
			[]Tenure{{"p", "b1", 1, 10, 20}}},
		"the leadership ends before the lease": {
			[]Event{{Kind: Leased, At: 10, Until: 90}, {Kind: Leads, At: 20, Partition: "p", Epoch: 1}, {Kind: Leads, At: 20, Partition: "q", Epoch: 1},
				{Kind: LeadsNoMore, At: 40, Partition: "p", Epoch: 1}, {Kind: Leads, At: 50, Partition: "p", Epoch: 3}},
			[]Tenure{{"p", "b1", 1, 20, 40}, {"q", "b1", 1, 20, 90}, {"p", "b1", 3, 50, 90}}},
		"a process that has died holds nothing": {
			[]Event{{Kind: Leased, At: 10, Until: 90}, {Kind: Leads, At: 20, Partition: "p", Epoch: 1}, {Kind: Died, At: 50}},
			[]Tenure{{"p", "b1", 1, 20, 50}}},
		"a fence in the answer is no lease": {
			[]Event{{Kind: Leads, At: 20, Partition: "p", Epoch: 1}, {Kind: Leased, At: 40, Until: 30}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Tenures("b1", x.events); !slices.Equal(got, x.want) {
				t.Errorf("%v, want %v", got, x.want)
			}
		})
	}
}

func TestTenuresThatShareAMomentAreFoundOut(t *testing.T) {
	sound := []Tenure{{"p", "b1", 1, 0, 10}, {"p", "b1", 1, 8, 30}, {"p", "b2", 2, 30, 40}, {"q", "b3", 1, 0, 100}, {"p", "b1", 4, 41, 50}}
	if err := Overlaps(sound); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		more Tenure
		want string
	}{
		"two brokers":                                   {Tenure{"p", "b3", 3, 39, 40}, "at the same time"},
		"two brokers in one epoch":                      {Tenure{"p", "b3", 4, 45, 46}, "at the same time"},
		"one broker in two epochs":                      {Tenure{"p", "b1", 5, 49, 60}, "at the same time"},
		"one that lies within another, after a shorter": {Tenure{"q", "b1", 2, 90, 95}, "at the same time"},
		"a later one with a lower epoch":                {Tenure{"p", "b2", 3, 60, 70}, "after"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Overlaps(append(slices.Clone(sound), x.more)); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("found %v, want %q", err, x.want)
			}
		})
	}
}
