// Package sim runs a whole cluster in one goroutine, on one virtual clock, from one seed: the pure machines that decide
// (registry, partitions, placer, outboxes), the journal's committer and catalog over a simulated log, and the pure
// replicas on simulated disks, joined by a simulated network. A run of the same seed is the same to the last message.
//
//	world.go       the clock, the queue of events, the random source, the trace
//	network.go     processes that live, pause and die; messages that are delayed, lost and reordered
//	store.go       the journal's log with slow, lost and late appends
//	controller.go  one controller process: hosts of machines, group commit, "decide, store, then act"; edge.go: its requests
//	broker.go      one broker process: session, lease, assignments; replicas.go: its replicas; fetch.go: replication
//	disk.go        a broker's disk: what was not fsynced is lost with the power
//	clients.go     producers that retry, readers that go on from where they were
//	nemesis.go     what goes wrong, and when
//	checker.go     the invariants, from what is stored, served and acknowledged; truth.go: what the journal says
//	faults.go      faults of the code under test, put in on purpose to prove that the checkers see them
//
// The brokers' sessions are simulated, not run: package broker has them with goroutines and a real bus. What a broker
// decides about a log is run: package replica.
//
// A failing seed is repeated with its trace by
//
//	go test ./sim -run TestSeed -seed N -v
package sim
