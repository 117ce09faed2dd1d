// Package replica decides for one replica of one partition: as leader what is committed and who is in sync, as follower
// what to append and what to truncate. It is pure: no clock, goroutine, lock or I/O.
package replica
