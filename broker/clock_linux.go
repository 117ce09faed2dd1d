package broker

import "golang.org/x/sys/unix"

// machineClock is the monotonic clock that all processes of the machine share, in nanoseconds.
func machineClock() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0 // Linux has it
	}
	return t.Nano()
}
