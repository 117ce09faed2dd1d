package controller

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/natsbus"
)

// Config says how one controller process runs. The zero value of a field means its default.
type Config struct {
	// Cluster names the cluster in every subject; default "dev".
	Cluster messages.ClusterName
	// Name names this process for people and in the journal, 1 to 64 of [A-Za-z0-9_-]; default "c1". No two processes of a
	// cluster may have the same.
	Name string
	// DataDir is the folder of this process: the embedded server's streams, the lock, the mark of the cluster. Needed with
	// the embedded server; with NATSURL it may be empty, and then nothing is locked or remembered.
	DataDir string

	// Listen is host:port of the embedded server; port 0 takes a free one. Default 127.0.0.1:4222. There is no
	// authentication yet, so a host that is not loopback is refused without InsecureNoAuth.
	Listen string
	// InsecureNoAuth lets everybody who reaches Listen do everything.
	InsecureNoAuth bool
	// StoreLimit bounds the embedded server's streams on disk, in bytes; default 8 GiB.
	StoreLimit int64

	// DiskLimit is how long a small write to DataDir may take before the process ends, default 10 s, at least 2 s: an embedded
	// server that cannot write must not stand in the way of the others.
	DiskLimit time.Duration

	// ClusterListen makes the embedded server one of a cluster: host:port for the routes of the other servers. Routes are
	// theirs, host:port each; the own one may be among them. The processes share one journal.
	ClusterListen string
	Routes        []string

	// NATSURL connects to servers elsewhere instead of embedding one; several are separated by commas. NATSOptions say who
	// this process is there, and whom it trusts; what is about reconnecting is the controller's.
	NATSURL     string
	NATSOptions []nats.Option
	// SystemURL and SystemOptions connect to the system account of those servers. Without SystemURL brokers that die are
	// noticed by the end of their session only, not by the end of their connection.
	SystemURL     string
	SystemOptions []nats.Option
	// Standby says that several processes with the same NATSURL share the cluster: this one stands by while another is
	// active. Without it, a process that is started makes itself the active one. With ClusterListen it is so anyway.
	Standby bool
	// Beat is how often an active controller says that it is there, default 250 ms; Suspicion the silence after which a
	// standby claims, default 1.5 s; IdleTick the time without changes after which the active one writes an empty entry,
	// default 1 s.
	Beat      time.Duration
	Suspicion time.Duration
	IdleTick  time.Duration
	// JournalReplicas is how many servers keep the journal: 1, 3 or 5; default 1, with ClusterListen 3. With an embedded
	// server alone it is 1.
	JournalReplicas int

	// Restore begins an empty journal with a backup: the path of its file, or AwaitRestore in the other processes of a cluster,
	// which then wait for that. A folder that has served a cluster already, or a journal that has begun with this backup, goes
	// on as it is, so that the field may stay set. Embedded servers only; for others there is the function Restore.
	Restore string

	// Settings are what a new cluster begins with; default messages.DefaultSettings. A cluster that exists keeps its own.
	Settings messages.Settings

	// MaxOutstanding bounds the items of requests that are admitted and not answered yet; default 20,000.
	MaxOutstanding int
	// RequestTimeout is how long a request may go without an answer before it is answered UNAVAILABLE; default 30 s. It
	// should be longer than AppendLimit.
	RequestTimeout time.Duration
	// AppendTimeout bounds one write to the journal, after which it is found out what became of it; default 5 s, at most
	// AppendLimit.
	AppendTimeout time.Duration
	// AppendLimit is how long the journal may take nothing before the controller ends; default 15 s.
	AppendLimit time.Duration

	// SnapshotEntries and SnapshotBytes are how much the journal may grow until a snapshot is taken, in entries and in bytes;
	// default 10,000 and 64 MiB. SnapshotInterval is the longest time without one while the journal grows at all; default 1 h.
	SnapshotEntries  int
	SnapshotBytes    int64
	SnapshotInterval time.Duration

	// Logger takes the logs of the process; the default is none. It must not write to NATS.
	Logger *zerolog.Logger

	versions      messages.VersionRange         // that are known, for tests of upgrades; default those of the build
	release       string                        // of the build, for people
	wrapLog       func(journal.Log) journal.Log // for faults in tests
	wrapSnapshots func(journal.Snapshots) journal.Snapshots
	snapshotRetry time.Duration
}

func (c Config) withDefaults() Config {
	or(&c.Cluster, "dev")
	or(&c.Name, "c1")
	or(&c.Listen, "127.0.0.1:4222")
	or(&c.StoreLimit, 8<<30)
	or(&c.DiskLimit, 10*time.Second)
	if c.ClusterListen != "" {
		or(&c.JournalReplicas, 3)
	}
	or(&c.JournalReplicas, 1)
	or(&c.Beat, 250*time.Millisecond)
	or(&c.Suspicion, 1500*time.Millisecond)
	or(&c.IdleTick, time.Second)
	or(&c.Settings, messages.DefaultSettings())
	or(&c.MaxOutstanding, 20_000)
	or(&c.RequestTimeout, 30*time.Second)
	or(&c.AppendTimeout, 5*time.Second)
	or(&c.AppendLimit, 15*time.Second)
	or(&c.SnapshotEntries, 10_000)
	or(&c.SnapshotBytes, 64<<20)
	or(&c.SnapshotInterval, time.Hour)
	or(&c.snapshotRetry, snapshotRetry)
	or(&c.versions, messages.Known())
	or(&c.release, natsbus.Version)
	if c.Logger == nil {
		nothing := zerolog.Nop()
		c.Logger = &nothing
	}
	return c
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) embedded() bool { return c.NATSURL == "" }

// shared reports whether several processes share the journal.
func (c *Config) shared() bool { return c.ClusterListen != "" || c.Standby }

// Validate reports everything that is wrong with the configuration, defaults filled in: one error with all of them joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, messages.Errorf(messages.CodeInvalidRequest, format, args...))
		}
	}
	if err := c.Cluster.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := messages.BrokerID(c.Name).Validate(); err != nil {
		bad(true, "the name of the controller must be 1 to 64 of [A-Za-z0-9_-], not %q", c.Name)
	}
	if c.embedded() {
		bad(c.DataDir == "", "the embedded server needs a data folder")
		bad(c.JournalReplicas != 1 && c.ClusterListen == "", "the embedded server keeps one replica of the journal, not %d", c.JournalReplicas)
		bad(len(c.NATSOptions) > 0 || c.SystemURL != "" || len(c.SystemOptions) > 0, "credentials and a system URL are for servers elsewhere, but no NATS URL is given")
		if _, _, err := splitListen(c.Listen, c.InsecureNoAuth); err != nil {
			errs = append(errs, err)
		}
	}
	if c.ClusterListen != "" {
		bad(!c.embedded(), "a cluster of embedded servers, and a NATS URL elsewhere")
		if _, _, err := splitListen(c.ClusterListen, c.InsecureNoAuth); err != nil {
			errs = append(errs, err)
		}
		if _, err := routes(c.Routes); err != nil {
			errs = append(errs, err)
		}
	}
	bad(c.Restore != "" && !c.embedded(), "a start with a backup is for embedded servers; restore it with the command first")
	bad(c.Restore == AwaitRestore && c.ClusterListen == "", "no other process can restore the journal of an embedded server alone")
	bad(len(c.Routes) > 0 && c.ClusterListen == "", "routes without a cluster listen address")
	bad(c.DiskLimit < 2*diskLook, "the disk limit %v is shorter than %v", c.DiskLimit, 2*diskLook)
	bad(c.Standby && c.embedded() && c.ClusterListen == "", "an embedded server alone has no standby")
	bad(c.Beat < 0 || c.IdleTick < 0 || c.Suspicion < 2*c.Beat, "the suspicion %v is shorter than two beats of %v", c.Suspicion, c.Beat)
	bad(len(c.SystemOptions) > 0 && c.SystemURL == "", "credentials of the system account without its URL")
	bad(c.StoreLimit < 64<<20, "the store limit is %d bytes, at least 64 MiB are needed", c.StoreLimit)
	bad(c.MaxOutstanding < 1, "max outstanding must be positive, not %d", c.MaxOutstanding)
	bad(c.AppendTimeout < 0 || c.AppendLimit < 0 || c.RequestTimeout < 0, "times must be positive")
	bad(c.AppendTimeout > c.AppendLimit, "the append timeout %v is above the append limit %v", c.AppendTimeout, c.AppendLimit)
	bad(c.SnapshotEntries < 1 || c.SnapshotBytes < 1 || c.SnapshotInterval < 0, "the limits of snapshots must be positive")
	errs = append(errs, validateSettings(c.Settings))
	return errors.Join(errs...)
}

// validateSettings checks the settings that a new cluster begins with.
func validateSettings(s messages.Settings) error {
	var errs []error
	bad := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, messages.Errorf(messages.CodeInvalidRequest, format, args...))
		}
	}
	for name, d := range map[string]time.Duration{"heartbeat": s.Heartbeat, "session": s.Session, "disconnect grace": s.DisconnectGrace,
		"leader ready": s.LeaderReady, "replica lag": s.ReplicaLag, "checkpoint": s.Checkpoint} {
		bad(d < time.Millisecond || d > 24*time.Hour, "the setting %s is %v; it may be 1 ms to 24 h", name, d)
	}
	bad(s.Session < 3*s.Heartbeat, "the session %v is shorter than three heartbeats of %v", s.Session, s.Heartbeat)
	bad(s.DisconnectGrace > s.Session, "the disconnect grace %v is longer than the session %v", s.DisconnectGrace, s.Session)
	bad(s.DefaultReplicationFactor < 1, "the default replication factor must be positive, not %d", s.DefaultReplicationFactor)
	bad(s.DefaultMinISR < 1 || s.DefaultMinISR > s.DefaultReplicationFactor, "the default min ISR %d is not 1 to the default replication factor %d",
		s.DefaultMinISR, s.DefaultReplicationFactor)
	bad(s.MaxPartitionsPerTopic < 1 || s.MaxPartitionsPerTopic > 10_000, "the most partitions of a topic are %d; it may be 1 to 10,000", s.MaxPartitionsPerTopic)
	return errors.Join(errs...)
}

// splitListen reads host and port, and refuses to be open to strangers by accident.
func splitListen(listen string, insecure bool) (string, int, error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, messages.Errorf(messages.CodeInvalidRequest, "the listen address %q is not host:port", listen)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, messages.Errorf(messages.CodeInvalidRequest, "the port of the listen address %q is not 0 to 65535", listen)
	}
	if !insecure && !loopback(host) {
		return "", 0, messages.Errorf(messages.CodeInvalidRequest,
			"%q is not a loopback address, and there is no authentication: whoever reaches it could do everything", listen).
			WithHint("listen on 127.0.0.1, or accept the risk with --insecure-no-auth")
	}
	return host, port, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}
