// Package placement proposes where replicas go. It is a pure library: a Snapshot of the cluster goes in, a Proposal with
// its reasons comes out; nothing here changes the cluster.
//
// # Goals
//
// Must: the replicas of a partition are on distinct brokers, and only on brokers that are neither fenced, nor stopping,
// nor draining. A request that cannot have that is refused.
//
// Should, each only as far as the ones before allow:
//
//  1. Spread. The counts of a partition's replicas are as even as possible over the domains of the highest level of the
//     rack labels, then of the next level, and so on; for three replicas and three racks, one in each.
//  2. Even replicas in proportion to weight, over all topics.
//  3. Even leaders in proportion to weight, over all topics. One bound goes before goal 2: within one topic nobody leads
//     more than its part of the partitions plus one, however small its rack is, however empty it is otherwise.
//  4. Scatter. The followers of one leader are spread over many brokers, and so are the first followers, who take over
//     when it dies: the load of a dead broker does not fall on one neighbour.
//
// What cannot be met is met as well as possible and is said in a warning: rack_violation, imbalance, unlabelled.
//
// # Racks
//
// Labels are paths, "region/zone/rack". Brokers without a label share one pseudo-rack, which is a rack like any other:
// they may well stand together, so no partition has two of them while other racks can serve. A label that ends early
// does the same at its level. If nobody has a label, there are no racks and nothing is violated. Only brokers that take
// replicas make a rack.
//
// # Algorithm
//
// Three steps, the first two exact (each is the greedy solution of a convex allocation over nested sets, which is
// optimal):
//
//  1. Bounds (spread.go). For each domain the interval [lo, hi], hi ≤ lo+1, of the replicas that a partition with the
//     best spread has there. Every choice within the intervals is a best spread, so the later steps are free within them.
//  2. Quotas (quotas.go). How many replicas and leaders each broker gets of the whole topic. One by one they go to the
//     broker with the least load for its weight that has room: of replicas, partitions·hi in each of its domains, and
//     every domain gets at least partitions·lo; of leaders, its part plus one, and no more than its replicas.
//  3. Assignment (assign.go). Partition by partition, from the root down: the leader from the child with the most leaders
//     left; then the children that cannot do without this partition; then, among those with the most followers left,
//     the one that has followed this leader least. What is left stays feasible on the way, so the quotas come out.
//
// No broker is looked at for every replica: the time is about (brokers + replicas) · log brokers, 100,000 partitions
// on 1,000 brokers in well under a second. All ties are broken by the seed: the same input gives the same proposal.
//
// # Example
//
// Brokers 0, 1, 2 in rack a, 3, 4, 5 in b, 6 alone in c; 10 partitions with 3 replicas. Bounds: [1, 1] for each rack, so
// broker 6 has to take all 10. Quotas: replicas 3 or 4 for each of the others; leaders one or two for everybody, also
// for 6. Assignment: {0, 4, 6}, {1, 6, 5}, {4, 1, 6}, … and the warning that broker 6 takes 10 of 30 replicas where its
// capacity's part is 4.3.
//
// Repair, rebalance and drain are to stand on the same three steps, with the replicas that stay taken off the quotas.
package placement
