// Package supervisor runs the pure machines of package actors as supervised actors, and is the only package that knows the
// actor library.
//
// Start builds one tree of actors over a recovered journal and catalog:
//
//	controller ── journal                    group commit, one append in flight
//	           ├─ registry, placer           one machine each
//	           ├─ outboxes ── outbox of a broker, made when it is first told something
//	           └─ topics ── topic ── partition 0 … 999
//	                              └─ group 1 … ── partition 1000 … 1999 …
//
// Supervisors keep nothing that cannot be read from the catalog and do nothing that can wait. Machines are leaves.
//
// The way of one message, which is the order "decide, store, then act":
//
//	Tree.Tell ─ admission ─ mailbox ─ host: Step ─ journal: append ─ catalog: apply ─ host: replies, messages, publications
//
// While its records are on the way to the journal, an actor is given no further message; they wait in its mailbox, which
// refuses requests beyond its limit and never refuses anything else. So a machine never decides on a state that is not
// committed, and nothing leaves before what it rests on is stored.
//
// What can go wrong, and what then happens:
//   - A machine panics, or cannot be loaded: the request at hand is answered INTERNAL, the state is thrown away, and the
//     actor loads from the catalog again, the first time at once, then after growing pauses (strategy.go). What waits in its
//     mailbox is kept.
//   - It does so more than five times in a minute: the actor is marked failed (Tree.Failed), its requests are refused, and
//     one attempt is made each minute. Nobody else notices.
//   - The store does not answer: everything waits, up to Limits.AppendLimit; then the tree ends.
//   - Another controller has appended: the tree ends at once. Nothing that was not stored has left, nothing leaves any more.
//   - A supervisor or the journal actor panics, which is a fault of this package: the tree ends. Whoever owns it may claim the
//     journal anew and start another; all that counts is in the journal.
//
// A tree that has ended (Tree.Done, Tree.Err) still has to be stopped with Tree.Stop. Every request that was admitted is
// answered exactly once, by Edge.Reply or by Edge.Fail, in all of these cases.
//
// Start reading at tree.go (what callers see), then host.go (one actor), mailbox.go, strategy.go, journal.go.
package supervisor
