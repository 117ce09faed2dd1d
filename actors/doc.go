// Package actors is the contract between the pure machines that decide and the hosts that run them.
//
// A machine is a pure function: Step(env, state, message) (state, effects). It has no clock, goroutine, context, lock,
// random source or logger; time and randomness come in with Env. The host keeps the order "decide, store, then act":
//
//  1. it runs Step and holds every further message of that actor,
//  2. it commits Effects.Records to the journal as one entry, all or nothing,
//  3. only then it releases replies, messages to other actors, publications and wake-ups.
//
// A machine that panics is discarded and loaded again from the committed state. The machines are in the packages below
// this one and never import each other: they talk only by the messages of messages.go.
package actors
