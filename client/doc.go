// Package client is the Go SDK for operators, producers and consumers of a Highwater cluster.
//
// New makes a Client on a NATS connection that the caller owns. Operators use CreateTopic, DeleteTopic and the views
// (Health, Brokers, Topics, Partitions); NewProducer writes records, Consume reads them. Leadership is followed on the
// leadership subjects: the client subscribes first, then takes a snapshot, and keeps whatever has the higher epochs. A
// request that is out when a newer leader epoch becomes known is sent again to the new leader at once; records carry a
// producer id and a sequence, so that one that was stored by the first try is not stored twice.
//
// Errors are *messages.Error with a code; errors.Is compares codes.
package client
