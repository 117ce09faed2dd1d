package controller

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// diskLook is the time between two looks at whether the disk takes writes.
const diskLook = time.Second

// probeFile is what is written to find that out, in the data folder.
const probeFile = "probe"

// diskWatch finds out when the disk below the embedded server takes no writes any more. Such a server may go on speaking,
// and be the leader of streams that it cannot write; another process is better off without it.
type diskWatch struct {
	write func() error  // one durable write; it may never return
	limit time.Duration // for one write
	ended func(error)   // called once, when a write has failed, or not returned within the limit
}

// watchDisk begins to watch the data folder of an embedded server.
func (c *Controller) watchDisk(context.Context) error {
	if c.server == nil {
		return nil
	}
	path := filepath.Join(c.cfg.DataDir, probeFile)
	w := diskWatch{limit: c.cfg.DiskLimit, write: func() error { return writeProbe(path) }, ended: func(err error) {
		c.stuck.Store(true)
		c.fail(err)
	}}
	go w.run(c.life.Done())
	return nil
}

// run looks until stop is closed. Only looks are counted, not the time between them: while the whole process stands still, its
// disk is not to blame.
func (w *diskWatch) run(stop <-chan struct{}) {
	look := time.NewTicker(diskLook)
	defer look.Stop()
	written := make(chan error, 1)
	for writing, looks := false, time.Duration(0); ; {
		select {
		case <-stop:
			return
		case err := <-written:
			if err != nil {
				w.ended(messages.Errorf(messages.CodeUnavailable, "the data folder cannot be written: %v", err))
				return
			}
			writing = false
		case <-look.C:
			if !writing {
				writing, looks = true, 0
				go func() { written <- w.write() }()
			} else if looks++; looks*diskLook >= w.limit {
				w.ended(messages.Errorf(messages.CodeUnavailable, "a write to the data folder has not ended within %v", w.limit).
					WithHint("look at the disk; another controller takes over meanwhile if there is one"))
				return
			}
		}
	}
}

// writeProbe writes a few bytes and waits until they are on the disk.
func writeProbe(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(time.Now().UTC().Format(time.RFC3339)), 0)
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
