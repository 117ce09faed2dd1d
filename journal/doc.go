// Package journal is the fenced, single-writer log of the cluster's metadata and what is built from it.
//
//   - log.go: Log, the port to whatever keeps the entries; memory.go is the one in memory, with faults to inject, and
//     journal/jetstream the one on JetStream. journal/journaltest is the suite that both pass.
//   - entry.go: how one commit is written, and the hash chain over all of them.
//   - committer.go: Committer, the pure state machine of group commit. It decides what to append, and settles appends
//     whose outcome is not known. drive.go runs it against a Log where nothing cleverer is needed.
//   - catalog.go: Catalog, the committed state in memory, for many readers.
//   - recover.go: Recover rebuilds the catalog and refuses a log that is broken; Claim makes a process the only writer.
//   - pin.go: View, the catalog as it was at one position, read while commits go on. snapshot.go writes one as a stream of
//     digested pieces, snapshot_read.go reads it. snapshots.go: Snapshots, the port to where they are kept, and which of
//     them are kept for how long; snapshots_memory.go is the one in memory, with damage to do.
//   - recover_snapshot.go: RecoverFrom starts from the newest good snapshot; restore.go begins a new log with one.
//   - unknown.go: records of kinds that only later versions know, which are kept for those.
//
// There is one writer because every append names the sequence that it expects to follow: whoever appends next makes the
// appends of everybody else fail. No lock and no clock is part of that.
package journal
