package journal

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/highwater-io/highwater/messages"
)

func snapshotOf(t *testing.T, store Snapshots, at messages.Sequence) *Snapshot {
	t.Helper()
	s, err := read(t.Context(), store, at, messages.FirstVersion)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestARestoredJournalGoesOnAboveEverythingInTheSnapshot(t *testing.T) {
	_, store, _ := twoSnapshots(t)
	s := snapshotOf(t, store, 9)
	log, kept := NewMemory(), NewMemorySnapshots()
	at, epoch, err := Restore(t.Context(), log, kept, s, "c7", "new store")
	if err != nil || at.Last <= s.Info.At.Last+1<<31 || epoch <= s.Info.Epoch+1<<15 {
		t.Fatalf("at %d with epoch %d, %v", at.Last, epoch, err)
	}
	c := NewCatalog()
	r, err := RecoverFrom(t.Context(), log, kept, c)
	if err != nil || r.At != at || r.Epoch != epoch || r.Replayed != 1 || len(r.Unusable) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if id := c.Identity(); id.ID != "id" || id.Store != "new store" || len(c.Brokers()) != 8 || c.Claimed().Controller != "c7" {
		t.Errorf("the identity is %+v, there are %d brokers", id, len(c.Brokers()))
	}
	if _, epoch2, err := Claim(t.Context(), log, c, r.At, "c8"); err != nil || epoch2 != epoch+1 {
		t.Errorf("the next claim: %d, %v", epoch2, err)
	}

	for name, restore := range map[string]func() error{
		"a second time": func() error {
			_, _, err := Restore(t.Context(), log, kept, s, "c7", "x")
			return err
		},
		"into another cluster's journal": func() error {
			other, _ := logOf(t, 1)
			_, _, err := Restore(t.Context(), other, NewMemorySnapshots(), s, "c7", "x")
			return err
		},
		"beside what is left of one": func() error {
			_, _, err := Restore(t.Context(), NewMemory(), store, s, "c7", "x")
			return err
		},
	} {
		if err := restore(); messages.CodeOf(err) != messages.CodeClusterMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARestoreThatWasCutOffCanBeRepeated(t *testing.T) {
	_, store, _ := twoSnapshots(t)
	s := snapshotOf(t, store, 9)
	log, kept := NewMemory(), NewMemorySnapshots()
	full := errors.New("no space left on device")
	kept.FailSaves(full, true)
	if _, _, err := Restore(t.Context(), log, kept, s, "c1", "a"); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if _, err := RecoverFrom(t.Context(), log, kept, NewCatalog()); err == nil {
		t.Error("half a restore is taken for a cluster")
	}
	kept.FailSaves(nil, false)
	log.InjectFunc(func(messages.Sequence, []byte) Fault { return Fault{Kind: FaultRefused, Err: full} })
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := Restore(short, log, kept, s, "c1", "a"); err == nil {
		t.Fatal("a journal that takes nothing is restored")
	}
	log.InjectFunc(nil)
	at, _, err := Restore(t.Context(), log, kept, s, "c1", "a")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := RecoverFrom(t.Context(), log, kept, NewCatalog()); err != nil || r.At != at {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestDamageStaysBehindInARestore(t *testing.T) {
	log, _ := logOf(t, 3)
	c := NewCatalog()
	if _, _, err := Recover(t.Context(), log, c); err != nil {
		t.Fatal(err)
	}
	c.addDamage(2, []Damage{{Err: errIndex}})
	s, err := ReadSnapshot(bytes.NewReader(encode(t, c)))
	if err != nil || s.damaged != 1 {
		t.Fatal(err)
	}
	fresh, kept, again := NewMemory(), NewMemorySnapshots(), NewCatalog()
	if _, _, err := Restore(t.Context(), fresh, kept, s, "c1", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := RecoverFrom(t.Context(), fresh, kept, again); err != nil {
		t.Fatal(err)
	}
	if _, n := again.Damaged(); n != 0 {
		t.Errorf("%d damaged records, of entries that this journal never had", n)
	}
}
