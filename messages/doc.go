// Package messages is the contract of Highwater: identifiers, the four counters as types of their own, the records of the
// journal, the error codes, and every NATS subject, built and parsed in one place. The wire messages themselves are in
// messages/highwaterpb, generated from messages/proto.
//
// Start with records.go for what the cluster knows, counters.go for what is never mixed up, subjects.go for who says what
// to whom. The package imports nothing of the project and nothing but protobuf from outside.
package messages
