// Package jetstream keeps the journal in one JetStream stream with one subject.
//
// Every publish names the last sequence that it expects, so the server refuses whoever does not know the end: that is the
// whole of the fencing. There are no message ids, because a duplicate window settles nothing here, and no retries inside
// the client, because they would hide an outcome. What an acknowledgement is worth is the server's business: it is on disk
// only where the server runs with sync_interval: always.
//
// Last and Get ask the stream's leader, or who believes to be it; both may be stale after a leader was cut off or paused.
// Only an append proves what the end is. Connections must be made with nats.ReconnectBufSize(-1), so that an append is not
// kept back over a reconnect; one that arrives late is refused all the same.
package jetstream
