package freeport

import (
	"net"
	"testing"
)

func TestAPortIsFreeAndNoOutgoingConnectionTakesIt(t *testing.T) {
	for range 50 {
		address, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if port := l.Addr().(*net.TCPAddr).Port; port < lowest || port >= highest {
			t.Errorf("port %d", port)
		}
		_ = l.Close()
	}
}
