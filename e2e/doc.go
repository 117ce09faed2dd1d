// Package e2e tests a whole cluster from outside: real processes, real NATS, real disks, real faults. Run it with
//
//	go test -tags e2e ./e2e/...
//
// The tests build the highwater binary, start a controller and brokers on loopback with random ports and temporary folders,
// kill, stop, pause and wipe them, and read back what was acknowledged.
//
// The tests whose names begin with TestNet, behind the number of a scenario, run on Linux, as root, with iproute2, util-linux and e2fsprogs: each process has a host of its
// own, a network namespace, and the test cuts the ways between them, in one direction or both, and the disks below them. Where
// something is missing they say what, and fail; -skip '^Test(B[0-9]+)?Net' leaves them out. With -artifacts the logs of their processes
// are kept. What clients and brokers have seen in them is judged by package history.
package e2e
