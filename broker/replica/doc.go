// Package replica decides for one replica of one partition: as leader what is committed and who is in sync, as follower
// what to append and what to truncate. It is pure: no clock, goroutine, lock or I/O. Time comes in as an argument (a
// monotonic reading, of which only differences mean anything), and what is to be done comes out as a list of Actions.
//
// The host calls one method at a time, carries out the actions in their order, and calls back:
//
//	Assign          the controller's assignment, from the feed, a snapshot, or the answer to a proposal
//	Produce         a batch of a client                        → Write, later Ack or Fail
//	Written         the storage holds everything below an end  → Appended, HighWatermarkMoved, Ack
//	Fetched         a follower's position                      → a FetchAnswer
//	Consume         a consumer's offset                        → how far it may read
//	Position        where this follower wants to fetch from
//	FetchResult     the leader's answer to that position       → Write or Truncate
//	Truncated       the storage has truncated
//	ProposalAnswer  the controller's answer to a Propose
//	Tick            every 100 ms or so: lag, retries, deadlines, the stored mark
//
// Files: assign.go has the roles and their changes, leader.go the append and fetch path of a leader, isr.go the in-sync
// set and its proposals, acks.go the producers that wait, follower.go replication, epochs.go the leader epochs of a log,
// producers.go the memory of idempotent producers, batch.go the stored form of a batch.
package replica
