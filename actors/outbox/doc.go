// Package outbox is the machine that gathers what one broker must be told, and sends it in batches.
//
// The stream of batches of one broker is its feed. Its id is new with every life of the outbox, and the position rises by
// one with every batch. A broker that sees another feed id, or a position that is not the next one, has missed something and
// takes a snapshot.
//
// So that a lost last batch is noticed too, a batch without content follows after 1 s of quiet, at the next position, and
// is repeated after 5 s. It is a batch like any other: whoever has the one before it goes on, whoever has not sees a gap. A new
// life sends its feed id at once, at position 0.
//
// FeedStart answers the position of the last batch: whatever was sent up to it is in the catalog already, and a snapshot that
// is read from the catalog afterwards includes it. What has gathered but is not sent yet is in the catalog too, and comes
// again under a later position.
//
// What comes gathers for 2 ms before it is sent, for a fenced broker 20 ms: when a broker dies, its own outbox is the fullest of
// all, and everyone else waits behind it for nothing.
//
// Within a batch each partition stands once, with its newest partition epoch. Nothing is sent of a topic that is deleted:
// the order to remove it stands instead.
package outbox
