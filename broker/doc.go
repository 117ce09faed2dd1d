// Package broker is the Go SDK for whoever writes a broker of a Highwater cluster. It has two levels.
//
// Join is the session alone: the broker registers, keeps its lease by heartbeats, follows its feed of assignments, and a
// Handler is told for each partition what to be. Replication is the author's business.
//
// Serve is a whole broker over a Storage: replication, high-water marks, truncation, produce and fetch. Most authors
// implement Storage and call Serve.
//
// Where to look:
//
//	session.go       the life of one registration after another: register.go, heartbeat.go, snapshot.go
//	lease.go         what "may I act as leader right now" means
//	feed.go          which batches of assignments count
//	batcher.go       ISR proposals and leader reports, many partitions a message, one message in flight
//	member.go        Join; roles.go drives a Handler; leadership.go is what a leader holds
//	server.go        Serve; partition.go is one replica under its lock, writer.go the only place that changes the storage,
//	                 fetchleader.go and fetchfollower.go the two ends of a fetch session; dataloop.go takes the requests
//	                 of clients, produce.go and consume.go answer them
//
// Concurrency of Serve: one lock a partition, held for memory work only. All changes of the storage go through one
// writer goroutine, which merges what many partitions want written into one Storage.Write.
package broker
