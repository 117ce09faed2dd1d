//go:build !linux

package broker

import "time"

var clockOrigin = time.Now()

// machineClock is a monotonic clock in nanoseconds; on this system it is of this process alone.
func machineClock() int64 { return int64(time.Since(clockOrigin)) }
