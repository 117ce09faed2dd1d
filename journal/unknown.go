package journal

import (
	"cmp"
	"maps"
	"slices"

	"github.com/highwater-io/highwater/messages"
)

// unknownRecords are the records of kinds that this version does not know, the last one of each kind and key. They are kept
// for the version that knows them: snapshots carry them on, and so do backups. Nothing else is done with them, so a record
// that hangs on another, as on a topic, stays here when that one ends; who knows its kind drops it then.
type unknownRecords map[unknownKey]*messages.UnknownRecord

type unknownKey struct {
	kind uint32
	key  string
}

// put takes in a record, or the end of one.
func (u *unknownRecords) put(r *messages.UnknownRecord) {
	k := unknownKey{r.Kind, r.Key}
	if r.Ended {
		delete(*u, k)
		return
	}
	if *u == nil {
		*u = unknownRecords{}
	}
	(*u)[k] = r
}

// sorted returns all of them by kind and key.
func (u unknownRecords) sorted() []*messages.UnknownRecord {
	return slices.SortedFunc(maps.Values(u), func(a, b *messages.UnknownRecord) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
}

// UnknownRecords returns the records of kinds that this version does not know, by kind and key.
func (c *Catalog) UnknownRecords() []*messages.UnknownRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.unknown.sorted()
}

// Reads returns the highest version that the catalog takes in.
func (c *Catalog) Reads() messages.Version { return c.reads }
