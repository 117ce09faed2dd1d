// Package history judges what clients and brokers have seen of a cluster, after the fact. It knows nothing of how that was
// gathered: a history is what was called when, and what came of it, on one monotonic clock.
//
// A History holds appends that were acknowledged, records that were read, and strict reads of where a partition ends. Check
// says what is wrong with it: an acknowledged record that is missing, is another one, or is stored twice; an offset that has had two
// contents; a record that nobody wrote; and whether each partition has behaved as one log would that does one thing at a
// time (linearizability, decided by porcupine).
//
// Tenures are the intervals in which a broker would have answered yes to Leadership.Valid. Overlaps says which of them should
// not have been at the same time.
package history
