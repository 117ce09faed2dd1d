package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/messages"
)

// The oldest server whose appends are fenced well enough: before it, a deposed stream leader's proposals were not bound to
// its term.
const (
	minServerMajor = 2
	minServerMinor = 15
)

// Config returns the stream that a cluster's journal needs.
func Config(cluster messages.ClusterName, replicas int) js.StreamConfig {
	return js.StreamConfig{
		Name:        messages.JournalStream(cluster),
		Description: "Highwater: the metadata journal. Do not write to it, do not edit it, do not delete it.",
		Subjects:    []string{messages.NewSubjects(cluster).Journal()},
		Storage:     js.FileStorage, Replicas: replicas,
		Retention: js.LimitsPolicy, Discard: js.DiscardNew,
		MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		DenyDelete: true,
	}
}

// Ensure returns the journal of a cluster, and makes its stream if there is none. replicas is 1, 3 or 5. The stream is
// never changed: one that is not as Config says is refused.
//
// Errors: UNSUPPORTED_VERSION for a server that is too old; INVALID_REQUEST that names each setting that has drifted;
// UNAVAILABLE when the server does not answer or cannot make the stream.
func Ensure(ctx context.Context, client js.JetStream, cluster messages.ClusterName, replicas int) (*Log, error) {
	if err := cluster.Validate(); err != nil {
		return nil, err
	}
	if !slices.Contains([]int{1, 3, 5}, replicas) {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the journal has 1, 3 or 5 replicas, not %d", replicas)
	}
	if err := checkServer(client.Conn().ConnectedServerVersion()); err != nil {
		return nil, err
	}
	want := Config(cluster, replicas)
	stream, err := client.Stream(ctx, want.Name)
	if errors.Is(err, js.ErrStreamNotFound) {
		stream, err = client.CreateStream(ctx, want)
		if errors.Is(err, js.ErrStreamNameAlreadyInUse) { // another process was faster, with other settings
			stream, err = client.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the stream %s cannot be opened: %v", want.Name, err)
	}
	if drift := drifted(stream.CachedInfo().Config, want); len(drift) > 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "the stream %s is not set up as a journal: %s", want.Name,
			strings.Join(drift, "; ")).WithHint("set it right with `nats stream edit %s`; do not delete it", want.Name)
	}
	return &Log{js: client, stream: stream, name: want.Name, subject: want.Subjects[0], short: shortReplay}, nil
}

func checkServer(version string) error {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d.", &major, &minor); err != nil {
		return messages.Errorf(messages.CodeUnsupportedVersion, "the NATS server's version %q cannot be read", version)
	}
	if major < minServerMajor || major == minServerMajor && minor < minServerMinor {
		return messages.Errorf(messages.CodeUnsupportedVersion, "the NATS server has version %s, the journal needs %d.%d or later",
			version, minServerMajor, minServerMinor)
	}
	return nil
}

// drifted names every setting on which the journal's safety rests and that is not as it should be.
func drifted(have, want js.StreamConfig) []string {
	var out []string
	add := func(name string, have, want any) {
		if have != want {
			out = append(out, fmt.Sprintf("%s is %v instead of %v", name, have, want))
		}
	}
	add("subjects", strings.Join(have.Subjects, ","), strings.Join(want.Subjects, ","))
	add("storage", have.Storage, want.Storage)
	add("replicas", have.Replicas, want.Replicas)
	add("retention", have.Retention, want.Retention)
	add("discard", have.Discard, want.Discard)
	add("max_msgs", unlimited(have.MaxMsgs), want.MaxMsgs)
	add("max_bytes", unlimited(have.MaxBytes), want.MaxBytes)
	add("max_msgs_per_subject", unlimited(have.MaxMsgsPerSubject), want.MaxMsgsPerSubject)
	add("max_msg_size", unlimited(have.MaxMsgSize), want.MaxMsgSize)
	add("max_age", have.MaxAge, want.MaxAge)
	add("deny_delete", have.DenyDelete, want.DenyDelete)
	add("deny_purge", have.DenyPurge, want.DenyPurge)
	add("no_ack", have.NoAck, want.NoAck)
	add("sealed", have.Sealed, want.Sealed)
	add("allow_direct", have.AllowDirect, want.AllowDirect)
	add("allow_rollup_hdrs", have.AllowRollup, want.AllowRollup)
	add("allow_msg_ttl", have.AllowMsgTTL, want.AllowMsgTTL)
	add("allow_msg_counter", have.AllowMsgCounter, want.AllowMsgCounter)
	add("persist_mode", have.PersistMode, want.PersistMode)
	add("mirror", have.Mirror != nil, false)
	add("sources", len(have.Sources), 0)
	add("subject_transform", have.SubjectTransform != nil, false)
	return out
}

func unlimited[T int32 | int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}
