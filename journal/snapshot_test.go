package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/highwater-io/highwater/messages"
)

// encode returns the snapshot of a catalog as bytes.
func encode(t testing.TB, c *Catalog) []byte {
	t.Helper()
	v, err := c.Pin()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	e := NewEncoder(v, 5)
	data, err := io.ReadAll(e)
	if err != nil || int64(len(data)) != e.Info().Bytes {
		t.Fatalf("%d bytes, the encoder says %d, %v", len(data), e.Info().Bytes, err)
	}
	return data
}

// print is a fingerprint with the damage.
func print(c *Catalog) string {
	damage, n := c.Damaged()
	text := fmt.Sprintln(n, c.Position())
	for _, d := range damage {
		text += d.String() + "\n"
	}
	return text + fingerprint(c)
}

func TestASnapshotHoldsWhatTheCatalogHeldWhenItWasPinned(t *testing.T) {
	c := NewCatalog()
	for i := range 5 {
		c.ApplyAt(Position{messages.Sequence(i + 1), [32]byte{1}}, topicWith(byte(i+1), fmt.Sprint("t", i), 3*visitBatch/2))
	}
	c.ApplyAt(Position{6, [32]byte{6}}, []messages.Record{&messages.Broker{ID: "b1"}, &messages.ControllerClaimed{Controller: "c1", Epoch: 9}})
	want := print(c)
	v, err := c.Pin()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	e := NewEncoder(v, 5)
	var data []byte
	for seq := messages.Sequence(7); ; seq++ { // between any two pieces everything changes
		piece, err := e.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, piece...)
		topic := byte(seq%5 + 1)
		change := []messages.Record{&messages.Broker{ID: "b2"}, &messages.BrokerForgotten{ID: "b1"}, &messages.ControllerClaimed{Controller: "c2", Epoch: 10},
			&messages.TopicDeletion{ID: messages.TopicID{topic}}, &messages.TopicDeletionDone{ID: messages.TopicID{topic}}}
		change = append(change, topicWith(topic, "again", 2*visitBatch)...)
		change = append(change, partition(topic%5+1, 1, "b3"), partition(topic%5+1, 1499, "b4"))
		c.ApplyAt(Position{seq, [32]byte{2}}, change)
	}
	s, err := ReadSnapshot(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	again := NewCatalog()
	again.load(s)
	if got := print(again); got != want {
		t.Fatalf("the snapshot holds %d bytes of state, there were %d", len(got), len(want))
	}
	checkIndex(t, again)
	checkIndex(t, c)
	if s.Info != e.Info() || s.Info.Pieces < 4 || s.Partitions() != 5*3*visitBatch/2 {
		t.Errorf("the snapshot is %+v, the encoder says %+v", s.Info, e.Info())
	}
	v.Close()
	if len(c.views) != 0 {
		t.Error("a closed view is kept")
	}
}

func TestACatalogThatDoesNotKnowItsChainIsNotPinned(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, nil)
	if _, err := c.Pin(); messages.CodeOf(err) != messages.CodeInternal {
		t.Errorf("the error is %v", err)
	}
}

func TestEqualCatalogsHaveEqualSnapshots(t *testing.T) {
	var all [][]byte
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}} {
		c := NewCatalog()
		for _, i := range order {
			c.ApplyAt(Position{1, [32]byte{1}}, topicWith(byte(i+1), fmt.Sprint("t", i), 50))
			c.ApplyAt(Position{1, [32]byte{1}}, []messages.Record{&messages.Broker{ID: messages.BrokerID(fmt.Sprint("b", i))},
				&messages.TopicDeletion{ID: messages.TopicID{9, byte(i)}}})
		}
		all = append(all, encode(t, c))
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("the bytes differ")
	}
}

func TestEveryFlippedByteOfASnapshotIsFound(t *testing.T) {
	c := NewCatalog()
	c.ApplyAt(Position{3, [32]byte{7}}, append(topicWith(1, "x", 3), &messages.Cluster{Name: "c", ID: "id"}))
	good := encode(t, c)
	for i := range good {
		data := bytes.Clone(good)
		data[i] ^= 1 << (i % 8)
		if _, err := ReadSnapshot(bytes.NewReader(data)); !isBad(err) {
			t.Fatalf("byte %d: %v", i, err)
		}
		if _, err := ReadSnapshot(bytes.NewReader(good[:i])); !isBad(err) {
			t.Fatalf("torn at %d: %v", i, err)
		}
	}
	if _, err := ReadSnapshot(bytes.NewReader(append(bytes.Clone(good), 0))); !isBad(err) {
		t.Fatalf("with something behind it: %v", err)
	}
	broken := errors.New("no connection")
	if _, err := ReadSnapshot(io.MultiReader(bytes.NewReader(good[:50]), failing{broken})); !errors.Is(err, broken) || isBad(err) {
		t.Fatalf("of a broken reader: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func isBad(err error) bool {
	b := (*BadSnapshot)(nil)
	return errors.As(err, &b) && messages.CodeOf(err) == messages.CodeInvalidRequest
}

func TestPiecesOfSnapshotsCannotBeMixed(t *testing.T) {
	c := NewCatalog()
	c.ApplyAt(Position{3, [32]byte{7}}, topicWith(1, "x", 5000))
	data := encode(t, c)
	for name, f := range map[string]func([]byte) []byte{"torn": Torn, "corrupt": Corrupt, "without a piece": WithoutPiece} {
		if _, err := ReadSnapshot(bytes.NewReader(f(bytes.Clone(data)))); !isBad(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// writeHistory appends drawn entries, some with damaged records, and returns the log with the catalog that followed it live.
type drawn struct {
	log    *Memory
	prints []string // behind each entry
	chains []Position
}

func genHistory(rt *rapid.T, ctx context.Context) drawn {
	h := drawn{log: NewMemory()}
	live, at := NewCatalog(), Position{}
	for range rapid.IntRange(1, 14).Draw(rt, "entries") {
		w := Writer{Controller: live.Claimed().Controller, Epoch: live.Claimed().Epoch}
		drawn := rapid.SliceOfN(rapid.Custom(genRecord), 0, 8).Draw(rt, "records")
		if at.Last == 0 || rapid.IntRange(0, 4).Draw(rt, "claim") == 0 {
			w = Writer{Controller: fmt.Sprint("c", w.Epoch+1), Epoch: w.Epoch + 1}
			drawn = append([]messages.Record{&messages.ControllerClaimed{Controller: w.Controller, Epoch: w.Epoch}}, drawn...)
		}
		body, err := encodeRecords(drawn)
		if err != nil {
			rt.Fatal(err)
		}
		if rapid.IntRange(0, 3).Draw(rt, "damaged") == 0 {
			body = protowire.AppendBytes(protowire.AppendTag(body, fieldRecords, protowire.BytesType), []byte{0xff, 0xff})
		}
		payload, _ := assemble(at, w, NewStamp(), [][]byte{body})
		if _, err := h.log.Append(ctx, at.Last, payload); err != nil {
			rt.Fatal(err)
		}
		if at, _, err = Follow(ctx, h.log, live, at); err != nil {
			rt.Fatal(err)
		}
		h.prints = append(h.prints, print(live))
		h.chains = append(h.chains, at)
	}
	return h
}

// upTo is the log up to an entry, cut behind another.
func (h drawn) upTo(last, purged messages.Sequence) *Memory {
	part := NewMemory()
	part.entries = slices.Clone(h.log.entries[:last])
	_ = part.Purge(context.Background(), purged)
	return part
}

func TestK75ReplayingASnapshotAndTheTailEqualsReplayingEverythingAtEveryPrefix(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		h := genHistory(rt, ctx)
		for cut := messages.Sequence(1); int(cut) <= len(h.prints); cut++ {
			taken := NewCatalog()
			if _, _, err := Recover(ctx, h.upTo(cut, 0), taken); err != nil {
				rt.Fatal(err)
			}
			store := NewMemorySnapshots()
			if _, err := TakeSnapshot(ctx, taken, store, time.UnixMilli(7)); err != nil {
				rt.Fatal(err)
			}
			for end := cut; int(end) <= len(h.prints); end++ {
				c := NewCatalog()
				r, err := RecoverFrom(ctx, h.upTo(end, cut), store, c)
				if err != nil || r.At != h.chains[end-1] || r.From.At.Last != cut || r.Replayed != uint64(end-cut) {
					rt.Fatalf("snapshot of %d, log to %d: %+v, %v", cut, end, r, err)
				}
				if got := print(c); got != h.prints[end-1] {
					rt.Fatalf("snapshot of %d, log to %d: recovered\n%s\nlive\n%s", cut, end, got, h.prints[end-1])
				}
				checkIndex(rt, c)
			}
		}
	})
}

// twoSnapshots returns a log of 12 entries with snapshots of 5 and of 9.
func twoSnapshots(t *testing.T) (*Memory, *MemorySnapshots, Position) {
	t.Helper()
	log, _ := logOf(t, 4)
	store, c := NewMemorySnapshots(), NewCatalog()
	at, epoch, err := Recover(t.Context(), log, c)
	for i := 5; err == nil && i <= 12; i++ {
		if i == 6 || i == 10 {
			_, err = TakeSnapshot(t.Context(), c, store, time.Now())
		}
		if i > 5 && err == nil {
			appendRaw(t, log, at, Writer{"c1", epoch}, records(t, &messages.Broker{ID: name(2, i)}))
			at, _, err = Follow(t.Context(), log, c, c.Position())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return log, store, at
}

func TestABrokenSnapshotFallsBackToTheOneBefore(t *testing.T) {
	log, store, at := twoSnapshots(t)
	wanted := NewCatalog()
	if _, _, err := Recover(t.Context(), log, wanted); err != nil {
		t.Fatal(err)
	}
	recovered := func(wantFrom messages.Sequence, unusable int) {
		t.Helper()
		c := NewCatalog()
		r, err := RecoverFrom(t.Context(), log, store, c)
		if err != nil || r.At != at || r.From.At.Last != wantFrom || len(r.Unusable) != unusable || r.Replayed != uint64(at.Last-wantFrom) {
			t.Fatalf("%+v, %v", r, err)
		}
		if print(c) != print(wanted) {
			t.Fatal("another catalog")
		}
	}
	recovered(9, 0)
	store.Change(9, Corrupt)
	recovered(5, 1)
	store.Change(5, Torn)
	recovered(0, 2)

	if err := log.Purge(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	_, err := RecoverFrom(t.Context(), log, store, NewCatalog())
	wantBroken(t, err, 1, DefectGap)
	if !strings.Contains(err.Error(), "9: snapshot: ") {
		t.Errorf("the error does not name the snapshots: %v", err)
	}
}

func TestAGapBehindTheSnapshotIsBroken(t *testing.T) {
	log, store, _ := twoSnapshots(t)
	store.Change(9, Torn)
	if err := log.Purge(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	_, err := RecoverFrom(t.Context(), log, store, NewCatalog())
	wantBroken(t, err, 6, DefectGap)
}

func TestALogThatEndsBeforeItsSnapshotIsBroken(t *testing.T) {
	log, store, _ := twoSnapshots(t)
	log.Truncate(7)
	c := NewCatalog()
	_, err := RecoverFrom(t.Context(), log, store, c)
	wantBroken(t, err, 8, DefectGap)
	_, err = RecoverFrom(t.Context(), NewMemory(), store, c)
	wantBroken(t, err, 1, DefectGap)
	if c.Applied() != 0 {
		t.Error("something was applied")
	}
}

func TestASnapshotOfAnotherHistoryIsPassedOver(t *testing.T) {
	log, store, at := twoSnapshots(t)
	_, other, _ := twoSnapshots(t)
	foreign, err := other.Load(t.Context(), 9)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Save(t.Context(), 9, foreign); err != nil {
		t.Fatal(err)
	}
	for _, purged := range []messages.Sequence{0, 5} {
		if err := log.Purge(t.Context(), purged); err != nil {
			t.Fatal(err)
		}
		r, err := RecoverFrom(t.Context(), log, store, NewCatalog())
		if err != nil || r.At != at || r.From.At.Last != 5 || len(r.Unusable) != 1 {
			t.Fatalf("purged to %d: %+v, %v", purged, r, err)
		}
	}
	// The entry at its position is gone, the one behind it tells.
	if err := log.Purge(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	_, err = RecoverFrom(t.Context(), log, store, NewCatalog())
	wantBroken(t, err, 6, DefectGap)
	if !strings.Contains(err.Error(), "another history") {
		t.Errorf("the error is %v", err)
	}
}

// busy is a store that belongs to an active controller: while somebody reads a snapshot, it takes another and cuts the log.
type busy struct {
	*MemorySnapshots
	meanwhile func()
}

func (b *busy) Load(ctx context.Context, at messages.Sequence) (io.ReadCloser, error) {
	if f := b.meanwhile; f != nil {
		b.meanwhile = nil
		f()
	}
	return b.MemorySnapshots.Load(ctx, at)
}

func TestASnapshotThatIsTakenMeanwhileIsUsed(t *testing.T) {
	log, store, at := twoSnapshots(t)
	active := NewCatalog()
	if _, err := RecoverFrom(t.Context(), log, store, active); err != nil {
		t.Fatal(err)
	}
	in := &busy{MemorySnapshots: store}
	in.meanwhile = func() {
		taken, err := TakeSnapshot(t.Context(), active, store, time.Now())
		if err == nil {
			err = errors.Join(store.Delete(t.Context(), 5), store.Delete(t.Context(), 9), log.Purge(t.Context(), taken.At.Last))
		}
		if err != nil {
			t.Error(err)
		}
	}
	c := NewCatalog()
	r, err := RecoverFrom(t.Context(), log, in, c)
	if err != nil || r.From.At != at || len(r.Unusable) != 0 || print(c) != print(active) {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestASaveThatFailsIsNoSnapshot(t *testing.T) {
	log, store, at := twoSnapshots(t)
	c := NewCatalog()
	if _, err := RecoverFrom(t.Context(), log, store, c); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	store.FailSaves(full, true)
	if _, err := TakeSnapshot(t.Context(), c, store, time.Now()); !errors.Is(err, full) {
		t.Fatalf("the error is %v", err)
	}
	r, err := RecoverFrom(t.Context(), log, store, NewCatalog())
	if err != nil || r.At != at || r.From.At.Last != 9 || len(r.Unusable) != 1 || r.Unusable[0].At != at.Last {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestRetainKeepsTwoSnapshotsAndTheEntriesBehindTheOlder(t *testing.T) {
	log, store, at := twoSnapshots(t)
	c := NewCatalog()
	if _, err := RecoverFrom(t.Context(), log, store, c); err != nil {
		t.Fatal(err)
	}
	if _, err := TakeSnapshot(t.Context(), c, store, time.Now()); err != nil {
		t.Fatal(err)
	}
	upTo, err := Retain(t.Context(), log, store, c, 9, at.Last)
	kept, _ := store.List(t.Context())
	if err != nil || upTo != 9 || len(kept) != 2 || kept[0].At != at.Last || kept[1].At != 9 || log.first != 10 {
		t.Fatalf("purged to %d, kept %+v, first entry %d, %v", upTo, kept, log.first, err)
	}
	for _, older := range []messages.Sequence{0, at.Last} { // nothing to go by yet
		if upTo, err := Retain(t.Context(), log, store, c, older, at.Last); upTo != 0 || err != nil {
			t.Errorf("purged to %d, %v", upTo, err)
		}
	}
}

func TestB124EntriesThatThisVersionCannotReadAreNotPurged(t *testing.T) {
	log, store, at := twoSnapshots(t)
	c := NewCatalog()
	if _, err := RecoverFrom(t.Context(), log, store, c); err != nil {
		t.Fatal(err)
	}
	c.addDamage(4, []Damage{{Err: errIndex}})
	if upTo, err := Retain(t.Context(), log, store, c, 9, at.Last); upTo != 3 || err != nil || log.first != 4 {
		t.Fatalf("purged to %d, %v; the first entry is %d", upTo, err, log.first)
	}
}

func TestCommitsGoOnWhileSnapshotsAreTaken(t *testing.T) {
	log, c, store := NewMemory(), NewCatalog(), NewMemorySnapshots()
	at, epoch, err := Claim(t.Context(), log, c, Position{}, "c1", topicWith(1, "x", 2500)...)
	if err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		m := NewCommitter(at, Writer{"c1", epoch}, Limits{})
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := *partition(1, i%2500, "b1", "b2")
			p.Epoch = messages.PartitionEpoch(i)
			if err := m.Propose(Ticket(i), []messages.Record{&p}); err != nil {
				t.Error(err)
				return
			}
			if err := Drive(context.Background(), log, m, func(done Committed) { c.ApplyAt(done.At(), done.Records) }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var older messages.Sequence
	for range 15 {
		taken, err := TakeSnapshot(t.Context(), c, store, time.Now())
		if err != nil {
			t.Error(err)
			break
		}
		again := NewCatalog()
		r, err := RecoverFrom(t.Context(), log, store, again)
		if err != nil || r.From.At != taken.At {
			t.Errorf("%+v, %v", r, err)
			break
		}
		if _, err := Retain(t.Context(), log, store, c, older, taken.At.Last); err != nil {
			t.Error(err)
		}
		older = taken.At.Last
	}
	close(stop)
	writer.Wait()
	again := NewCatalog()
	if _, err := RecoverFrom(t.Context(), log, store, again); err != nil || print(again) != print(c) {
		t.Fatalf("the catalog is another, %v", err)
	}
}

func FuzzReadSnapshot(f *testing.F) {
	c := NewCatalog()
	c.ApplyAt(Position{3, [32]byte{7}}, append(topicWith(1, "x", 3), &messages.Cluster{Name: "c", ID: "id"}, &messages.Broker{ID: "b"},
		&messages.TopicDeletion{ID: messages.TopicID{3}, Name: "y"}))
	c.addDamage(2, []Damage{{Index: 4, Err: errIndex}})
	good := encode(f, c)
	f.Add(good)
	f.Add(Torn(bytes.Clone(good)))
	f.Add([]byte(snapshotMagic + "\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			if !isBad(err) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		c := NewCatalog()
		c.load(s)
		checkIndex(t, c)
		if s.Info.At.Chain == [32]byte{} {
			return
		}
		second, err := ReadSnapshot(bytes.NewReader(encode(t, c)))
		if err != nil || second.Info.At != s.Info.At {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again := NewCatalog()
		again.load(second)
		if print(again) != print(c) {
			t.Fatal("what was written reads differently")
		}
	})
}

// FuzzSnapshotChunk gives the reader chunks with right digests, so that it gets to what is in them.
func FuzzSnapshotChunk(f *testing.F) {
	good := records(f, topicWith(1, "x", 2)...)
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(records(f, &messages.TopicDeletionDone{ID: messages.TopicID{1}}))
	f.Fuzz(func(t *testing.T, chunk []byte) {
		d := newDecoder(nil)
		d.out.Info.Pieces = 2
		if err := d.chunk(chunk); err != nil {
			if !isBad(err) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		d.out.Info.At = Position{1, [32]byte{1}}
		c := NewCatalog()
		c.load(d.out)
		checkIndex(t, c)
		if got := len(d.out.records); got != d.out.Info.Records || got > math.MaxInt32 {
			t.Fatalf("%d records are counted as %d", got, d.out.Info.Records)
		}
	})
}

// BenchmarkSnapshot takes snapshots of 100,000 partitions while a writer commits, and says how long the catalog's lock was
// held for the snapshot and how long the longest Apply took.
func BenchmarkSnapshot(b *testing.B) {
	c := NewCatalog()
	var size int64
	var held, slowest time.Duration
	quiet := time.Hour // the longest of the run that the machine has disturbed least
	for i := range 100 {
		c.ApplyAt(Position{1, [32]byte{1}}, topicWith(byte(i+1), fmt.Sprint("t", i), 1000))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			began := time.Now()
			c.ApplyAt(Position{messages.Sequence(i + 2), [32]byte{1}}, []messages.Record{partition(byte(i%100+1), i%1000, "b1", "b2", "b3")})
			slowest = max(slowest, time.Since(began))
		}
	}()
	for b.Loop() {
		v, err := c.Pin()
		if err != nil {
			b.Fatal(err)
		}
		if size, err = io.Copy(io.Discard, NewEncoder(v, 0)); err != nil {
			b.Fatal(err)
		}
		v.Close()
		held, quiet = max(held, v.LockHeld()), min(quiet, v.LockHeld())
	}
	close(stop)
	<-done
	b.ReportMetric(float64(held.Microseconds()), "µs-lock-held-longest")
	b.ReportMetric(float64(quiet.Microseconds()), "µs-lock-held-quiet")
	b.ReportMetric(float64(slowest.Microseconds()), "µs-apply-longest")
	b.ReportMetric(float64(size)/100_000, "bytes/partition")
}
