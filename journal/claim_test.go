package journal

import (
	"testing"

	"github.com/highwater-io/highwater/messages"
)

// However a claim's outcome is hidden, what it leaves in the log can be replayed: nothing of its epoch comes before it.
func TestAClaimWithoutAnOutcomeLeavesAJournalThatCanBeReplayed(t *testing.T) {
	for name, faults := range map[string][]Fault{
		"lost before":            {{Kind: FaultLostBefore}},
		"lost after":             {{Kind: FaultLostAfter}},
		"refused":                {{Kind: FaultRefused}},
		"lost twice":             {{Kind: FaultLostBefore}, {Kind: FaultLostBefore}},
		"lost before, and after": {{Kind: FaultLostBefore}, {Kind: FaultLostAfter}},
		"twice":                  {{Kind: FaultTwice}},
	} {
		t.Run(name, func(t *testing.T) {
			log, c := NewMemory(), NewCatalog()
			at, _, err := Claim(t.Context(), log, c, Position{}, "c1", &messages.Cluster{Name: "one", ID: "id"})
			if err != nil {
				t.Fatal(err)
			}
			log.Inject(faults...)
			at, epoch, err := Claim(t.Context(), log, c, at, "c2")
			if err != nil || epoch != 2 {
				t.Fatalf("epoch %d: %v", epoch, err)
			}
			replayed := NewCatalog()
			got, epoch, err := Recover(t.Context(), log, replayed)
			if err != nil || got != at || epoch != 2 || replayed.Claimed().Controller != "c2" {
				t.Errorf("replayed up to %d under %q with epoch %d: %v", got.Last, replayed.Claimed().Controller, epoch, err)
			}
		})
	}
}
