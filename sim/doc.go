// Package sim runs a whole cluster in one goroutine, on one virtual clock, from one seed: the pure machines that decide
// (registry, partitions, placer, outboxes), the journal's committer and catalog over a simulated log, and the pure
// replicas on simulated disks, joined by a simulated network. A run of the same seed is the same to the last message.
//
//	world.go       the clock, the queue of events, the random source, the trace
//	network.go     processes that live, pause and die, each with a clock of its own; messages that are delayed, lost and reordered
//	store.go       the journal's log with slow, lost and late appends, times without a leader, reads that are behind, snapshots
//	controller.go  one controller process of two or three: it stands by, claims, hands over; when, is decided by controller/activation
//	term.go        an active controller: hosts of machines, group commit, "decide, store, then act"; edge.go: its requests;
//	               shots.go: its snapshots
//	broker.go      one broker process: session, lease, assignments; replicas.go: its replicas; fetch.go: replication
//	disk.go        a broker's disk: what was not fsynced is lost with the power
//	clients.go     producers that retry, readers that go on from where they were
//	nemesis.go     what goes wrong, and when; trouble.go: with controllers; back.go: the store that goes back in time
//	checker.go     the invariants, from what is stored, served and acknowledged; truth.go: what the journal says
//	faults.go      faults of the code under test, put in on purpose to prove that the checkers see them
//
// Explore goes through every order of events of a small cluster instead of drawing one from a seed:
//
//	explore.go     what is explored, breadth first, by taking the steps of each path anew
//	model.go       its world and its controllers; explored.go: its brokers; scene.go: how it begins
//	fingerprint.go which states are the same
//
// The brokers' sessions are simulated, not run: package broker has them with goroutines and a real bus. What a broker
// decides about a log is run: package replica. So are the goroutines of a controller: package controller drives the same
// activation.Watch, journal.NewClaim, journal.Follow and journal.RecoverFrom. Times are about half of the defaults; any two clocks
// differ by up to 5 %.
//
// A failing seed is repeated with its trace by
//
//	go test ./sim -run 'TestSeed$' -seed N -v
//
// docs/simulation.md says what goes wrong, what is checked, and how much of it has been run.
package sim
