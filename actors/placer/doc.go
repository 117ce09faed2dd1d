// Package placer is the machine of the placement actor: it answers where the replicas of a new topic should go.
//
// It decides nothing for good. The registry asks with PlaceTopic and gets a Placement, which it checks against the brokers
// as they are by then; partition actors check every hint against their own state. How places are chosen is documented in
// package placement; this package feeds it.
//
// # Reservations
//
// Between the answer and the commit of a topic, nobody sees its load in the committed state. If many topics are created
// at once, each would find the same brokers least loaded. So the placer counts what it has answered as taken until the
// registry says PlacementSettled, whether the topic was committed or given up. A reservation whose topic is already in
// the committed state is not counted twice.
//
// Reservations are soft state: Activated forgets them, and one that nobody settles within a minute lapses, because its
// registry was loaded anew. Nothing is lost by that but some evenness.
//
// Repair, rebalance, drain and the hints for leader balance (PreferLeader) belong here too; there are none yet.
package placer
