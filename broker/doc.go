// Package broker is the Go SDK for brokers.
package broker
