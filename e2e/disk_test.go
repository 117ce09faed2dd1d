//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// disk is a file system of its own, ext4 on a loop device, that can hang and lose its power.
type disk struct {
	t     testing.TB
	image string
	path  string // where it is mounted
}

// What the kernel is asked for: to let no write through any more, to let them through again, and to stop using the device at
// once. With shutdownNoFlush what is not on the device is lost, the journal's tail of the file system too: it is how file
// systems are tested against power loss.
const (
	ioctlFreeze     = 0xC0045877
	ioctlThaw       = 0xC0045878
	ioctlShutdown   = 0x8004587D
	shutdownNoFlush = 2
)

// newDisk makes a disk of so many MiB, which take room only as they are used.
func newDisk(t testing.TB, mib int64) *disk {
	t.Helper()
	needTools(t, "make file systems on loop devices", "e2fsprogs and mount", "mkfs.ext4", "mount", "umount", "losetup")
	dir := t.TempDir()
	d := &disk{t: t, image: filepath.Join(dir, "image"), path: filepath.Join(dir, "disk")}
	must(t, os.Mkdir(d.path, 0o700))
	must(t, os.WriteFile(d.image, nil, 0o600))
	must(t, os.Truncate(d.image, mib<<20))
	d.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", d.image)
	d.mount()
	t.Cleanup(func() {
		_ = d.control(ioctlThaw, 0) // if the test has ended while it hung
		d.unmount()
	})
	return d
}

func (d *disk) run(program string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// mount mounts it; the file system then replays its journal.
func (d *disk) mount() {
	d.t.Helper()
	d.run("mount", "-o", "loop", d.image, d.path)
}

// unmount takes the file system away, once the processes that use it have ended.
func (d *disk) unmount() {
	d.t.Helper()
	d.run("umount", d.path)
}

func (d *disk) control(what uint, with int) error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if what == ioctlShutdown {
		return unix.IoctlSetPointerInt(int(f.Fd()), what, with)
	}
	return unix.IoctlSetInt(int(f.Fd()), what, with)
}

// freeze has every write to it hang until thaw. A process that has begun one cannot even be killed.
func (d *disk) freeze() { d.t.Helper(); must(d.t, d.control(ioctlFreeze, 0)) }
func (d *disk) thaw()   { d.t.Helper(); must(d.t, d.control(ioctlThaw, 0)) }

// cutPower loses whatever has not reached the device. Processes get errors from now on.
func (d *disk) cutPower() { d.t.Helper(); must(d.t, d.control(ioctlShutdown, shutdownNoFlush)) }

// A disk that loses its power keeps what was synced and loses what was not; else the test of power loss would prove nothing.
func TestNetADiskThatLosesItsPowerLosesWhatWasNotSynced(t *testing.T) {
	d := newDisk(t, 64)
	write := func(name string, sync bool) {
		t.Helper()
		f, err := os.Create(filepath.Join(d.path, name))
		must(t, err)
		defer f.Close()
		_, err = fmt.Fprint(f, name)
		must(t, err)
		if sync {
			must(t, f.Sync())
		}
	}
	write("synced", true)
	write("written", false)
	d.cutPower()
	if err := os.WriteFile(filepath.Join(d.path, "late"), nil, 0o600); err == nil {
		t.Error("it takes writes without power")
	}
	d.unmount()
	d.mount()
	if got, err := os.ReadFile(filepath.Join(d.path, "synced")); err != nil || string(got) != "synced" {
		t.Errorf("what was synced is %q: %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(d.path, "written")); err == nil && len(got) > 0 {
		t.Errorf("what was not synced is still there: %q", got)
	}
}
