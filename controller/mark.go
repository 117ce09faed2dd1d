package controller

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// markFile keeps the id of the cluster that a data folder has served. An empty journal in a folder with a mark is a lost
// journal, and no new cluster.
const markFile = "cluster-id"

// newClusterID makes the id of a new cluster.
func newClusterID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails: without randomness the program ends
	return hex.EncodeToString(b)
}

// checkMark compares the journal's cluster id, "" for an empty journal, with the mark of the folder.
func checkMark(dir, id string) error {
	raw, err := os.ReadFile(filepath.Join(dir, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "the mark of the data folder cannot be read: %v", err)
	}
	marked := strings.TrimSpace(string(raw))
	switch {
	case marked == id || marked == "":
		return nil
	case id == "":
		return messages.Errorf(messages.CodeClusterMismatch, "the journal is empty, but this data folder has served cluster %s: its metadata is lost",
			marked).WithHint("restore the journal; to begin a new, empty cluster, remove %s", filepath.Join(dir, markFile))
	}
	return messages.Errorf(messages.CodeClusterMismatch, "the journal is of cluster %s, but this data folder has served cluster %s", id, marked).
		WithHint("connect to the right servers, or use another data folder")
}

// writeMark remembers the cluster id, durably.
func writeMark(dir, id string) error {
	path := filepath.Join(dir, markFile)
	if raw, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(raw)) == id {
		return nil
	}
	f, err := os.CreateTemp(dir, markFile+".*")
	if err != nil {
		return messages.Errorf(messages.CodeUnavailable, "the mark of the data folder cannot be written: %v", err)
	}
	_, err = f.WriteString(id + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return messages.Errorf(messages.CodeUnavailable, "the mark of the data folder cannot be written: %v", err)
	}
	return nil
}
