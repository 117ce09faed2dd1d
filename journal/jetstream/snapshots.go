package jetstream

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// Snapshots keeps snapshots in an object store, one object each, named by the sequence with twenty digits. It is safe for
// concurrent use.
type Snapshots struct {
	js     js.JetStream
	store  js.ObjectStore
	bucket string
}

var _ journal.Snapshots = (*Snapshots)(nil)

// objectPiece is the size of the messages of an object, in bytes: below every usual max_payload.
const objectPiece = 512 << 10

// objectStall is how long reading waits for the next message of an object: its consumer may have been asked for while the
// stream changed its leader, and then nothing ever comes.
const objectStall = 5 * time.Second

// objectTimeout bounds one transfer whose context has no earlier end.
const objectTimeout = 5 * time.Minute

// BucketConfig returns the object store that a cluster's snapshots need.
func BucketConfig(cluster messages.ClusterName, replicas int) js.ObjectStoreConfig {
	return js.ObjectStoreConfig{Bucket: messages.SnapshotBucket(cluster), Storage: js.FileStorage, Replicas: replicas,
		Description: "Highwater: snapshots of the metadata journal. The journal is cut behind them: do not delete them."}
}

// EnsureSnapshots returns the store of a cluster's snapshots, and makes it if there is none. replicas is the journal's; a
// store that is there keeps its own. UNAVAILABLE when it cannot be opened or made.
func EnsureSnapshots(ctx context.Context, client js.JetStream, cluster messages.ClusterName, replicas int) (*Snapshots, error) {
	if err := cluster.Validate(); err != nil {
		return nil, err
	}
	want := BucketConfig(cluster, replicas)
	store, err := client.ObjectStore(ctx, want.Bucket)
	if errors.Is(err, js.ErrBucketNotFound) {
		store, err = client.CreateObjectStore(ctx, want)
		if errors.Is(err, js.ErrBucketExists) { // another process was faster
			store, err = client.ObjectStore(ctx, want.Bucket)
		}
	}
	if err == nil {
		store, err = readByLeader(ctx, client, store, want.Bucket)
	}
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the object store %s cannot be opened: %v", want.Bucket, err)
	}
	return &Snapshots{js: client, store: store, bucket: want.Bucket}, nil
}

// readByLeader has the heads of objects read from the leader of the stream alone. Object stores are made so that any replica may
// answer, and one that is behind says that a snapshot which was just written, or the only one behind which the journal was
// cut, is not there.
func readByLeader(ctx context.Context, client js.JetStream, store js.ObjectStore, bucket string) (js.ObjectStore, error) {
	stream, err := client.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, err
	}
	config := stream.CachedInfo().Config
	if !config.AllowDirect {
		return store, nil
	}
	config.AllowDirect = false
	if _, err := client.UpdateStream(ctx, config); err != nil {
		return nil, err
	}
	return client.ObjectStore(ctx, bucket) // the one before goes on as it was opened
}

func objectName(at messages.Sequence) string { return fmt.Sprintf("%020d", at) }

// Save stores a snapshot. The object's head is written last; if a part of it was refused, it is taken away again.
func (s *Snapshots) Save(ctx context.Context, at messages.Sequence, from io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	meta := js.ObjectMeta{Name: objectName(at), Opts: &js.ObjectMetaOptions{ChunkSize: objectPiece}}
	if _, err := s.store.Put(ctx, meta, whole{from}); err != nil {
		_ = s.Delete(context.WithoutCancel(ctx), at) // as well as it can be done; a torn one is found out by reading
		return fmt.Errorf("writing object %s of %s: %w", meta.Name, s.bucket, err)
	}
	return nil
}

// whole reads as much as there is room for, so that an object has few messages whatever the pieces of its reader.
type whole struct{ from io.Reader }

// Read fills p, unless the end comes first.
func (w whole) Read(p []byte) (int, error) {
	n, err := io.ReadFull(w.from, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // the end comes with the next call
	}
	return n, err
}

// List returns what is there, the newest first.
func (s *Snapshots) List(ctx context.Context) ([]journal.StoredSnapshot, error) {
	// The names by a request, and not by the store's own List: that waits without end for a consumer whose stream has just
	// been made by another process and has no leader yet.
	prefix := "$O." + s.bucket + ".M."
	stream, err := s.js.Stream(ctx, "OBJ_"+s.bucket)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", s.bucket, err)
	}
	info, err := stream.Info(ctx, js.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", s.bucket, err)
	}
	var out []journal.StoredSnapshot
	for subject := range info.State.Subjects {
		name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, prefix))
		if err != nil {
			continue // not an object
		}
		at, err := strconv.ParseUint(string(name), 10, 64)
		if err != nil || objectName(messages.Sequence(at)) != string(name) {
			continue // not a snapshot
		}
		o, err := s.store.GetInfo(ctx, string(name))
		if errors.Is(err, js.ErrObjectNotFound) {
			continue // deleted
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", s.bucket, err)
		}
		out = append(out, journal.StoredSnapshot{At: messages.Sequence(at), Bytes: int64(o.Size)})
	}
	slices.SortFunc(out, func(a, b journal.StoredSnapshot) int { return cmp.Compare(b.At, a.At) })
	return out, nil
}

// Load opens a snapshot. One of which messages are missing is refused at once as *journal.BadSnapshot, for reading would wait
// for them.
func (s *Snapshots) Load(ctx context.Context, at messages.Sequence) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	info, err := s.store.GetInfo(ctx, objectName(at))
	if err == nil {
		err = s.complete(ctx, info)
	}
	if err != nil {
		cancel()
		if errors.Is(err, js.ErrObjectNotFound) {
			return nil, journal.ErrNotFound
		}
		return nil, err
	}
	r := &reading{cancel: cancel}
	r.stall = time.AfterFunc(objectStall, func() { r.stalled.Store(true); cancel() })
	if r.ObjectResult, err = s.store.Get(ctx, info.Name); err != nil {
		r.stall.Stop()
		cancel()
		return nil, r.why(fmt.Errorf("opening object %s of %s: %w", info.Name, s.bucket, err))
	}
	return r, nil
}

// complete makes sure that every message of an object is there.
func (s *Snapshots) complete(ctx context.Context, info *js.ObjectInfo) error {
	stream, err := s.js.Stream(ctx, "OBJ_"+s.bucket)
	if err != nil {
		return fmt.Errorf("asking for object %s of %s: %w", info.Name, s.bucket, err)
	}
	subject := "$O." + s.bucket + ".C." + info.NUID
	state, err := stream.Info(ctx, js.WithSubjectFilter(subject))
	if err != nil {
		return fmt.Errorf("asking for object %s of %s: %w", info.Name, s.bucket, err)
	}
	if have := state.State.Subjects[subject]; have != uint64(info.Chunks) || have == 0 {
		return &journal.BadSnapshot{Detail: fmt.Sprintf("%d of %d messages of object %s are there", have, info.Chunks, info.Name)}
	}
	return nil
}

// reading is an open object.
type reading struct {
	js.ObjectResult
	cancel  context.CancelFunc
	stall   *time.Timer // gives up when nothing comes
	stalled atomic.Bool
}

// why is an error of the object, or that nothing came: that says nothing of the object, and another try may do.
func (r *reading) why(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && r.stalled.Load() {
		return messages.Errorf(messages.CodeUnavailable, "nothing has come of a snapshot for %v: %v", objectStall, err)
	}
	return err
}

// Read reads on. An object that is not as it was stored is a *journal.BadSnapshot.
func (r *reading) Read(p []byte) (int, error) {
	r.stall.Reset(objectStall)
	n, err := r.ObjectResult.Read(p)
	r.stall.Stop() // whoever reads may take its time
	if errors.Is(err, js.ErrDigestMismatch) {
		err = &journal.BadSnapshot{Detail: "the object is not as it was stored"}
	}
	return n, r.why(err)
}

// Close ends the reading.
func (r *reading) Close() error {
	defer r.cancel()
	r.stall.Stop()
	return r.ObjectResult.Close()
}

// Delete removes a snapshot.
func (s *Snapshots) Delete(ctx context.Context, at messages.Sequence) error {
	err := s.store.Delete(ctx, objectName(at))
	if err != nil && !errors.Is(err, js.ErrObjectNotFound) {
		return fmt.Errorf("deleting object %s of %s: %w", objectName(at), s.bucket, err)
	}
	return nil
}
