// Package freeport finds ports for servers that are started, killed and started again on the same one.
//
// A port that the system gives out for port 0 is of the range from which it also takes the ports of outgoing connections. While
// its server is down, any connection of any process may take it, and the server cannot come back. The ports of this package
// are below that range.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The range: above the ports of well-known services, below 32768, where outgoing connections begin on Linux.
const (
	lowest  = 15_000
	highest = 32_000
	tries   = 200
)

// Listen listens on a free port of 127.0.0.1. Close the listener when the port is to be used; hold several until all are found, so
// that no two are the same. It fails when no port of many that were tried is free.
func Listen() (net.Listener, error) {
	var err error
	for range tries {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest))); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// Address returns host:port of a port that is free now.
func Address() (string, error) {
	l, err := Listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
