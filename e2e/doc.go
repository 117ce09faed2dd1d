// Package e2e tests a whole cluster from outside: real processes, real NATS, real disks, real faults. Run it with
//
//	go test -tags e2e ./e2e/...
//
// The tests build the highwater binary, start a controller and brokers on loopback with random ports and temporary folders,
// kill, stop, pause and wipe them, and read back what was acknowledged.
package e2e
