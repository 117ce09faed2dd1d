package replica

import (
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// Epochs is the list of the leader epochs of a log with their first offsets, rising strictly in both. Storages may use
// it to keep LogState.Epochs. Its methods return new lists and leave the old one as it is.
type Epochs []EpochStart

// normalEpochs copies what a storage returned, without entries that contradict the order. Entries below the log's start
// are lifted to it, so that the list says what holds for the records that are kept.
func normalEpochs(in []EpochStart, start messages.Offset) Epochs {
	var out Epochs
	for _, e := range in {
		out = out.With(EpochStart{Epoch: e.Epoch, Start: max(e.Start, start)})
	}
	return out
}

// With returns the list for a log that goes on with an epoch at its end s.Start: because a batch of that epoch is written
// there, or because a leader begins. An epoch that has records keeps its first offset. Epochs without records (several
// elections may pass without a write) are forgotten once something else follows, else they would stand in the way of what
// another replica has written there under a lower epoch.
func (e Epochs) With(s EpochStart) Epochs {
	kept := e.Truncated(s.Start)
	if s.Epoch <= kept.Last() {
		return kept
	}
	return append(kept, s)
}

// Truncated returns the list for a log that ends at an offset.
func (e Epochs) Truncated(end messages.Offset) Epochs {
	n, _ := slices.BinarySearchFunc(e, end, func(s EpochStart, at messages.Offset) int {
		if s.Start < at {
			return -1
		}
		return 1
	})
	return e[:n:n]
}

// Last returns the newest epoch, NoLeaderEpoch for an empty list.
func (e Epochs) Last() messages.LeaderEpoch {
	if len(e) == 0 {
		return messages.NoLeaderEpoch
	}
	return e[len(e)-1].Epoch
}

// EndOf returns the largest epoch not above the asked one and where it ends; end is the log's end. If even the first
// epoch is above the asked one, the answer is the asked epoch, ending where the first begins. ok is false if the asked
// epoch is above all of the list, or none at all.
func (e Epochs) EndOf(asked messages.LeaderEpoch, end messages.Offset) (messages.LeaderEpoch, messages.Offset, bool) {
	if asked > e.Last() || asked < 0 {
		return messages.NoLeaderEpoch, 0, false
	}
	for i := len(e) - 1; i >= 0; i-- {
		if e[i].Epoch <= asked {
			return e[i].Epoch, end, true
		}
		end = e[i].Start
	}
	return asked, end, true
}
