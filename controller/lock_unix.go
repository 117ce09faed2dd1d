//go:build unix

package controller

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/highwater-io/highwater/messages"
)

// lockFolder makes the data folder and takes its lock for this process. The lock ends with the process, however that ends.
func lockFolder(dir, name string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the data folder cannot be made: %v", err)
	}
	path := filepath.Join(dir, "controller.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the lock of the data folder cannot be opened: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path) // only for the message
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, messages.Errorf(messages.CodeUnavailable, "the data folder %s is in use by another controller process (%s)", dir,
				strings.TrimSpace(string(holder))).WithHint("stop that one, or choose another --data-dir")
		}
		return nil, messages.Errorf(messages.CodeUnavailable, "the data folder %s cannot be locked: %v", dir, err)
	}
	_ = f.Truncate(0) // what is written here is only for the message above
	_, _ = f.WriteAt([]byte(fmt.Sprintf("controller %s, pid %d\n", name, os.Getpid())), 0)
	return func() { _ = f.Close() }, nil
}
