// Package registry is the machine that decides about brokers and topics: who is registered, whose session is alive, who is
// fenced, which topics exist.
//
// It keeps soft state only: sessions, and creations of topics that wait for the placer. What is committed it reads from
// Env.Cluster, so that a registry loaded anew after a panic or by another controller knows everything but who was heard
// when; Activated gives every unfenced broker a fresh session for that.
//
// Where to look:
//
//   - step.go        every message that the machine knows, in one switch
//   - register.go    who may be registered, and what becomes of the one before (identity.go: what a request must look like)
//   - heartbeat.go   contact, lease, unfencing and controlled stop
//   - session.go     the queue of sessions by deadline; expire.go: the clock; connection.go: fast death
//   - ahead.go       brokers that know more than the journal: then nothing is decided
//   - fence.go       the records that fence and unfence, and what holds an unfencing back
//   - create.go      topics, with placement.go for the placer's answer and topicspec.go for what may be asked
//   - delete.go      deletions, and removed.go for the brokers' confirmations
//
// A broker is in one of these states. Its record has the first three; the session is soft.
//
//	              register                 heartbeat: ready, not held back
//	(unknown) ───────────────▶ fenced ──────────────────────────────────────────▶ active
//	                             ▲  ▲                                               │ │
//	                             │  └──── silence, closed connection, storage failed┘ │ heartbeat: wants to stop
//	                             │        (also a new incarnation)                    ▼
//	                             └─────────────────────────────────────────────── stopping
//
// Every request has exactly one reply of its own type, or none if nobody waits for it (RequestID 0). A request that is
// refused changes nothing.
package registry
