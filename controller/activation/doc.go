// Package activation decides when a standby controller claims the journal: what it has heard of the others, what their
// silence means, and who comes first. It is pure; the controller drives it by clock and messages, and so does the
// simulator.
//
// What it says is only a hint. Which controller is active follows from the order of the journal alone: a claim that rests
// on a wrong suspicion costs one cheap takeover.
package activation
