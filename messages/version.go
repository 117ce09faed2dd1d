package messages

import "fmt"

// Version numbers the forms of journal, snapshots and wire. A cluster has a finalized version, which is in its Cluster record;
// processes know a range of them. What a later version writes and an earlier one must not miss is gated: it is not written
// before the cluster's version is at least that one. What an earlier version may carry along without knowing it, a further
// field or a further kind of record, needs no gate.
type Version uint32

// FirstVersion is the version of the first release.
const FirstVersion Version = 1

// VersionRange is what a process knows, both ends included. The zero value stands for the first version alone: it is what a
// process means that says nothing.
type VersionRange struct {
	Min Version `json:"min"`
	Max Version `json:"max"`
}

// Known returns the versions that this build knows.
func Known() VersionRange { return VersionRange{Min: FirstVersion, Max: latestVersion} }

// Or returns the range, or the first version alone for the zero value.
func (r VersionRange) Or() VersionRange {
	return VersionRange{Min: max(r.Min, FirstVersion), Max: max(r.Max, FirstVersion)}
}

// Has reports whether a version is in the range.
func (r VersionRange) Has(v Version) bool { r = r.Or(); return v >= r.Min && v <= r.Max }

// String is "2" or "1 to 2".
func (r VersionRange) String() string {
	if r = r.Or(); r.Min == r.Max {
		return fmt.Sprint(uint32(r.Min))
	}
	return fmt.Sprintf("%d to %d", r.Min, r.Max)
}

// FinalizedVersion returns the version whose forms may be written; machines ask it before they write a form that not every
// version has. It is the first one where there is no cluster yet.
func (c *Cluster) FinalizedVersion() Version {
	if c == nil {
		return FirstVersion
	}
	return max(c.Version, FirstVersion)
}
