// Package brokertest helps those who write a broker to test it: a Controller in memory that speaks the broker plane over
// a NATS connection, with a clock that only the test moves and faults that the test turns on; StartNATS, a server on
// loopback for it; and TestHandler, a suite that any broker.Handler can run.
//
// The Controller follows the rules that brokers can see (epochs, fencing, ISR proposals, feeds, snapshots, removals). It
// places nothing by itself: topics are created with the replicas that the test names.
package brokertest
