// Package placement proposes where replicas go and who leads. It is a pure library: a view of the cluster goes in, a
// proposal with its reasons comes out; nothing here changes the cluster, and the same view and seed give the same proposal,
// in whatever order brokers and partitions come.
//
// # What it proposes
//
//	Place           the replicas of a new topic                       snapshot.go, newtopic.go
//	CheckAssignment whether replica lists written by hand can be      manual.go
//	Repair          replicas of gone brokers rebuilt, spread debt     repair.go
//	Drain           brokers emptied, also for decommissioning         repair.go
//	Add             new brokers filled with their part                even.go
//	Rebalance       all of these, and replicas and leaders made even  even.go
//	ChangeFactor    more or fewer replicas for a topic                factor.go
//	CheckPlan       moves of a plan that a person has written         check.go
//	AddPartitions   the replicas of partitions that a topic gains     factor.go
//	PreferLeaders   the first replicas lead again, in waves           leaders.go
//	BalanceLeaders  what brokers lead made even, by number or rate    leaders.go
//	Successors      who leads what dead brokers led                   leaders.go
//	SpreadDebt      which partitions are spread worse than they could debt.go
//	WhatIf          what a loss or new brokers would lead to          whatif.go
//	Explain…        why a broker has a replica or the lead, or not    debt.go
//
// Repair to CheckPlan take a View and return a Plan (plan.go): moves in the order in which to make them, each with the
// replica lists before and after and the single steps between; what each broker has before and after; a lower bound of
// copies and bytes; what was left out; warnings; an explanation. A Move is about one partition, and no partition has two.
// Only CheckPlan touches partitions that are Reassigning (MOVE_IN_PROGRESS) or have no live copy (NO_LIVE_COPY).
//
// Repair and Drain are incremental: the view yields the partitions concerned, say those of one broker, and the brokers come
// with what they hold in all. So are PreferLeaders and Successors. Add, Rebalance and BalanceLeaders need the whole cluster.
// Each says so. Broker's fields tell who is away: one that is only fenced may come back, so its replicas stay and it gets
// none; those of one that is Gone are rebuilt elsewhere.
//
// Rules.Distinct makes a level of the racks a must: what cannot have it is refused, with LEVEL_REQUIRED, instead of being
// spread as well as can be. Leaders go only to ISR members on brokers that are ready; brokers that came back lately are
// Unsettled and get none by balancing, and partitions that were balanced lately are Cooling. Who calls decides how often
// and how many at a time: what such a bound keeps back is in Skipped.
//
// Reasons (reason.go) are codes with arguments, CODE name=value …, in one grammar for what is done and what is not. They
// depend on nothing else here.
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
// # Plans
//
// A replica that has to go is replaced by the broker where one more costs the spread least, and of those by the one with
// the least load for its weight. Since the spread is a convex cost over nested sets, one exchange after another, each the
// best, ends at the best spread: that is how spread debt is repaired (target.go looks at racks, not at brokers).
//
// Evening out computes the quotas of all brokers as in step 2 above and moves replicas from those above to those below,
// where it costs the spread nothing; what is stuck goes by chains over third brokers. Leaders are a matching of partitions
// to their replicas, made even by such chains too (matching.go). Every step lowers the sum of load²/weight, and whether
// there is one depends on the state alone: so a plan that has been carried out leaves nothing to plan.
//
// The copies of evening out are the lower bound in most clusters: over 300 mixed ones the excess is less than one in fifty in
// sum, and none in four of five. Where racks let a replica reach its broker only over a third one, it is more: the
// worst of some ten thousand small clusters drawn at random needed 24 copies where the bound is 13.
package placement
