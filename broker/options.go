package broker

import (
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/highwater-io/highwater/messages"
)

// The protocol versions that this SDK speaks.
var minProtocol, maxProtocol = uint32(messages.Known().Min), uint32(messages.Known().Max)

// Option changes a default of Join or Serve.
type Option func(*config)

type config struct {
	rack      messages.RackPath
	endpoints map[string]string
	weight    uint32
	version   string
	host      string
	principal string
	logger    zerolog.Logger
	// inUse bounds the retries while another live process holds the broker id.
	inUse       time.Duration
	concurrency int
	clusterID   string
	storage     messages.StorageID
	fsyncs      bool
	cleanEpoch  messages.BrokerEpoch
	seen        messages.Seen
	limits      Limits
}

// Limits bound what a Server holds in memory. Zero fields mean the defaults.
type Limits struct {
	// ProduceBytes bounds the batches of clients that are not answered yet, in bytes; beyond it produce requests are
	// refused with BUSY. Default 64 MiB.
	ProduceBytes int64
	// TailBytes bounds what is kept in memory of the ends of logs beyond what is not durable yet. Default 64 MiB.
	TailBytes int64
	// BatchBytes bounds one batch; it is never above the connection's payload limit less 4 KiB. Default that limit.
	BatchBytes int
	// Waiting bounds the consumers' fetches that wait for data. Default 10,000.
	Waiting int
	// CommitTimeout is the wait of acks=all for producers that state none. Default 10 s; also the longest allowed ×6.
	CommitTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.ProduceBytes, 64<<20)
	def(&l.TailBytes, 64<<20)
	if l.Waiting <= 0 {
		l.Waiting = 10_000
	}
	if l.CommitTimeout <= 0 {
		l.CommitTimeout = 10 * time.Second
	}
	return l
}

func newConfig(opts []Option) config {
	host, _ := os.Hostname()
	c := config{host: host, logger: zerolog.Nop(), inUse: 30 * time.Second, concurrency: 64, fsyncs: true}
	for _, o := range opts {
		o(&c)
	}
	c.limits = c.limits.withDefaults()
	return c
}

// WithRack places the broker in failure domains: "region/zone/rack". Default: unlabelled.
func WithRack(r messages.RackPath) Option { return func(c *config) { c.rack = r } }

// WithEndpoints publishes addresses of the broker's own listeners, by protocol.
func WithEndpoints(e map[string]string) Option { return func(c *config) { c.endpoints = e } }

// WithWeight sets the relative capacity, 1 to 1000. Default 100.
func WithWeight(w uint32) Option { return func(c *config) { c.weight = w } }

// WithVersion names the release of the broker, for people.
func WithVersion(v string) Option { return func(c *config) { c.version = v } }

// WithPrincipal sets the principal under which the connection may publish. Default: the broker id.
func WithPrincipal(p string) Option { return func(c *config) { c.principal = p } }

// WithLogger sets where the SDK logs. Default: nowhere.
func WithLogger(l zerolog.Logger) Option { return func(c *config) { c.logger = l } }

// WithInUseTimeout bounds the retries while another live process holds the broker id; then BROKER_ID_IN_USE is returned.
// Default 30 s, which is longer than a session.
func WithInUseTimeout(d time.Duration) Option { return func(c *config) { c.inUse = d } }

// WithConcurrency bounds how many Handler calls run at once. Default 64.
func WithConcurrency(n int) Option { return func(c *config) { c.concurrency = max(1, n) } }

// WithStorage says for Join what the broker keeps its replicas in: the id of the data folder, the cluster it is bound to
// ("" for a new one), whether it is durable before it acknowledges, and the broker epoch of the last orderly stop (0 for
// none). Serve takes all of it from its Storage. Default: a storage that is new with each start, which is right only for
// brokers that keep nothing.
func WithStorage(id messages.StorageID, clusterID string, fsyncs bool, clean messages.BrokerEpoch) Option {
	return func(c *config) { c.storage, c.clusterID, c.fsyncs, c.cleanEpoch = id, clusterID, fsyncs, clean }
}

// WithLimits bounds the memory of a Server.
func WithLimits(l Limits) Option { return func(c *config) { c.limits = l } }
