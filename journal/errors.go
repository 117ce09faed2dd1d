package journal

import (
	"fmt"

	"github.com/highwater-io/highwater/messages"
)

// Defect says in which way a log is broken.
type Defect string

// The defects. Each of them means: refuse to act, change nothing, ask a person.
const (
	DefectGap    Defect = "gap"    // a sequence is missing, or the log has shrunk
	DefectChain  Defect = "chain"  // the hash chain does not continue the entry before: something was changed or exchanged
	DefectFormat Defect = "format" // written by a newer version, which this one cannot read
	DefectEntry  Defect = "entry"  // the bytes are no entry at all
	DefectEpoch  Defect = "epoch"  // written by a controller that was not the active one, or an epoch was issued twice
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

// Unwrap returns the error for the wire: UNSUPPORTED_VERSION for a newer format, UNAVAILABLE for everything else.
func (b *Broken) Unwrap() error {
	if b.Defect == DefectFormat {
		return messages.Errorf(messages.CodeUnsupportedVersion, "%s", b.Error())
	}
	return messages.Errorf(messages.CodeUnavailable, "%s", b.Error()).
		WithHint("do not start over: compare the store with its backups and with what the brokers have seen")
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
