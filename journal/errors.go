package journal

import (
	"fmt"

	"github.com/highwater-io/highwater/messages"
)

// Defect says in which way a log is broken.
type Defect string

// The defects. Each of them means: refuse to act, change nothing, ask a person.
const (
	DefectGap   Defect = "gap"   // a sequence is missing, or the log has shrunk
	DefectChain Defect = "chain" // the hash chain does not continue the entry before: something was changed or exchanged
	DefectEntry Defect = "entry" // the bytes are no entry at all
	DefectEpoch Defect = "epoch" // written by a controller that was not the active one, or an epoch was issued twice
)

// Broken says that the log cannot be trusted from a sequence on.
type Broken struct {
	At     messages.Sequence
	Defect Defect
	Detail string
}

// Error says what is broken, and where.
func (b *Broken) Error() string {
	return fmt.Sprintf("journal: broken at sequence %d (%s): %s", b.At, b.Defect, b.Detail)
}

// Unwrap returns UNAVAILABLE, the error for the wire.
func (b *Broken) Unwrap() error {
	return messages.Errorf(messages.CodeUnavailable, "%s", b.Error()).
		WithHint("do not start over: compare the store with its backups and with what the brokers have seen")
}

// TooNew says that the journal goes on with something that this build is too old for. Nothing of it has been applied: what is
// known is right, as far as it goes. Who gets it must not claim the journal and not act.
type TooNew struct {
	At    messages.Sequence // the entry, or the position of the snapshot
	By    string            // the controller that wrote it
	Needs messages.Version  // the least version that may use it; 0 where only its format says so
	// Detail says what it is that cannot be read, and what this build reads.
	Detail string
}

func tooNew(at messages.Sequence, what, by string, needs, reads messages.Version) *TooNew {
	return &TooNew{At: at, By: by, Needs: needs,
		Detail: fmt.Sprintf("%s needs version %d, this build knows up to %d", what, needs, reads)}
}

// Error says what cannot be read and who wrote it.
func (e *TooNew) Error() string {
	return fmt.Sprintf("journal: this build is too old: %s; written by controller %q", e.Detail, e.By)
}

// Unwrap returns UNSUPPORTED_VERSION, the error for the wire.
func (e *TooNew) Unwrap() error {
	return messages.Errorf(messages.CodeUnsupportedVersion, "%s", e.Error()).
		WithHint("run the build that the others run, or a later one; nothing was changed")
}

// Deposed says that another writer's entry stands where the next of ours would have: this one may write nothing more.
// Nothing that was still pending has been stored, or ever will be.
type Deposed struct {
	At    messages.Sequence
	By    string // the controller that wrote the entry
	Epoch messages.ControllerEpoch
}

// Error names the entry and its writer.
func (d *Deposed) Error() string {
	return fmt.Sprintf("journal: deposed by controller %q (epoch %d) at sequence %d", d.By, d.Epoch, d.At)
}

// Unwrap returns NOT_ACTIVE_CONTROLLER, the error for the wire.
func (d *Deposed) Unwrap() error {
	return messages.Errorf(messages.CodeNotActiveController, "%s", d.Error())
}

// Damage is one record that cannot be used. It is left out and reported; everything else goes on.
type Damage struct {
	Sequence messages.Sequence
	Index    int // place of the record in its entry, from 0
	Err      error
}

// String says which record it is and what is wrong with it.
func (d Damage) String() string {
	return fmt.Sprintf("record %d of entry %d: %v", d.Index, d.Sequence, d.Err)
}
