// Package partition decides for one partition: who leads it and in which leader epoch, which replicas are in sync (ISR),
// which others are known to hold everything committed (the eligible set), and how far the high-water mark is known to be.
//
// Where to look:
//
//	step.go       the only switch: which message is decided where
//	decide.go     one decision: membership, leader, epochs, in one record; and what follows from it
//	elect.go      who leads
//	isr.go        a leader's proposal of another ISR, and its checks
//	proof.go      a new leader proves itself, declines, or lets its time pass
//	offsets.go    the high-water mark
//	reconcile.go  brokers come and go; a stored state that cannot be right
//	prefer.go     the placer's hint, for which the present leader resigns
//	events.go     what is told to logs and metrics
//
// The invariants that hold after every step, whatever the messages: the leader is in the ISR, or there is none; the ISR
// is a subset of the replicas; ISR and eligible set are disjoint; epochs and the mark never fall; whoever is elected may
// lead; no record is written in which nothing has changed.
//
// Why the eligible set is safe: a leader does not move its mark while fewer than min ISR replicas are in sync, so whoever
// leaves the ISR then, and keeps its storage, still holds everything below the mark when it comes back. The set is given up
// as soon as enough replicas are in sync, because from then on the mark moves without its members.
//
// The transcripts in testdata can be read as prose; each shows one case with its outcome.
package partition
