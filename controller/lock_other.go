//go:build !unix

package controller

import "github.com/highwater-io/highwater/messages"

// lockFolder is not there for this system yet, and without a lock two processes could ruin one data folder.
func lockFolder(dir, _ string) (func(), error) {
	return nil, messages.Errorf(messages.CodeUnavailable, "the data folder %s cannot be locked on this system", dir)
}
