// Package outbox is the machine that gathers what one broker must be told, and sends it in batches.
//
// The stream of batches of one broker is its feed. Its id is new with every life of the outbox, and the position rises by
// one with every batch, so a broker notices what it has missed:
//
//   - another feed id, or a position that is not the next: take a snapshot;
//   - a batch without assignments and removals is an announcement and has the position of the last batch. It says nothing
//     new to whoever has that position. To whoever has an earlier one it says that a batch was lost, even if only one is
//     missing: take a snapshot.
//
// The last position is announced when a life begins, and again after 1 s and 5 s of quiet. FeedStart answers the position of
// the last batch: whatever was sent up to it is in the catalog already, and a snapshot that is read from the catalog afterwards
// includes it. What has gathered but is not sent yet is in the catalog too, and comes again under a later position.
//
// Within a batch each partition stands once, with its newest partition epoch. Nothing is sent of a topic that is deleted:
// the order to remove it stands instead.
package outbox
