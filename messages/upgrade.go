package messages

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// UpgradeView is the data of mon.v1.upgrade.
type UpgradeView struct {
	// Version is finalized: forms of later ones are not written, and the builds that know it may still be run.
	Version Version `json:"version"`
	// Target is the highest version that the process that answers knows.
	Target Version `json:"target"`
	// State is FINALIZED when there is nothing to do, READY when Target could be finalized, BLOCKED when not.
	State    string           `json:"state"`
	Blockers []UpgradeBlocker `json:"blockers"`
	// Controllers are all that are known of; those that were not heard for longer block nothing.
	Controllers []ControllerView `json:"controllers"`
	// Brokers counts the registered brokers by the highest version that they speak.
	Brokers map[Version]int `json:"brokers_by_version"`
	// Kept counts the records of later versions that the process that answers carries along without knowing them.
	Kept int `json:"unknown_records"`
}

// UpgradeBlocker is somebody who does not know a version.
type UpgradeBlocker struct {
	Kind     string       `json:"kind"` // controller or broker
	Name     string       `json:"name"`
	Versions VersionRange `json:"versions"`
	Release  string       `json:"release,omitempty"`
	Detail   string       `json:"detail"` // what to do about it
}

// controllerSilence is how long, in milliseconds, a controller that is not heard may still be there. One that returns later
// finds out by itself that it is too old.
const controllerSilence = 10_000

// UpgradeBlockers returns everybody who does not know a version: first controllers, then brokers, by name.
func UpgradeBlockers(target Version, brokers map[BrokerID]*Broker, controllers []ControllerView) []UpgradeBlocker {
	out := []UpgradeBlocker{}
	for _, c := range slices.SortedFunc(slices.Values(controllers), func(a, b ControllerView) int { return cmp.Compare(a.Name, b.Name) }) {
		if c.AgeMs < controllerSilence && !c.Versions.Has(target) {
			out = append(out, UpgradeBlocker{Kind: "controller", Name: c.Name, Versions: c.Versions.Or(), Release: c.Release,
				Detail: fmt.Sprintf("start it with a build that knows version %d", target)})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(brokers)) {
		b := brokers[id]
		if b.Speaks.Has(target) {
			continue
		}
		detail := fmt.Sprintf("start it with a build that knows version %d", target)
		if b.Fenced {
			detail += fmt.Sprintf("; if it is gone for good: highwater broker forget %s", id)
		}
		out = append(out, UpgradeBlocker{Kind: "broker", Name: string(id), Versions: b.Speaks.Or(), Release: b.Version, Detail: detail})
	}
	return out
}

// ErrUpgradeBlocked returns the error of a version that somebody does not know; it names them, the first ten one by one.
func ErrUpgradeBlocked(target Version, blockers []UpgradeBlocker) *Error {
	text := ""
	for i, b := range blockers[:min(len(blockers), 10)] {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %s knows %s", b.Kind, b.Name, b.Versions)
	}
	if more := len(blockers) - 10; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return Errorf(CodeUpgradeBlocked, "version %d cannot be finalized: %s", target, text)
}
