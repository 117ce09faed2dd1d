// Package natsbus is the NATS edge of the controller: everything that comes in from subjects and goes out to them.
//
// Start with edge.go for the life of an Edge. A request comes in by inbound.go, which reads and admits it (wire.go,
// credits.go), becomes an exchange (exchange.go) that is answered exactly once, and is told to the actor whose business it
// is by verbs.go; batched requests are split there and their answers gathered. snapshot.go serves the pages of a broker's
// snapshot from the catalog. What the actors want said comes to Reply, Fail and Publish, and leaves by one writer in
// outgoing.go; leadership.go keeps the stream of last values. advisories.go turns NATS's notices of closed connections into
// messages to the registry. monitor.go, views.go and lists.go are the micro service "highwater" that monitors ask.
//
// The edge decides nothing. It checks that a body can be read, that its sender is the principal of its subject, and that
// there is room; everything else is for the machines. No callback of a subscription ever waits: what would have to wait is
// refused with BUSY and a time to come back.
package natsbus
