package controller

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"golang.org/x/crypto/bcrypt"

	"github.com/highwater-io/highwater/messages"
)

// maxPayload is the largest message of the embedded server, in bytes: the most that it takes without a warning.
const maxPayload = 8 << 20

// storeFolder is where a single server keeps its streams. A server that becomes a member of a cluster must not find them
// there: it would delete them.
const (
	storeFolder        = "nats-single"
	clusterStoreFolder = "nats-cluster"
)

// natsServer is the embedded server with the secrets of the controller's own connections.
type natsServer struct {
	server *server.Server
	user   string // the secret of the user hw, who may do everything in the account of the cluster
	system string // the secret of the user sys of the system account
	member bool   // of a cluster of servers
}

// startServer starts the embedded server and waits until it takes connections.
func startServer(ctx context.Context, c Config) (*natsServer, error) {
	host, port, err := splitListen(c.Listen, c.InsecureNoAuth)
	if err != nil {
		return nil, err
	}
	n := &natsServer{user: secret(), system: secret()}
	o := &server.Options{}
	accounts, err := n.accounts(c.Cluster)
	if err == nil {
		err = o.ProcessConfigString(accounts)
	}
	if err != nil {
		return nil, messages.Errorf(messages.CodeInternal, "the embedded server's accounts: %v", err)
	}
	o.ServerName, o.Host, o.Port = c.Name, host, port
	if port == 0 {
		o.Port = server.RANDOM_PORT
	}
	o.JetStream, o.StoreDir, o.SyncAlways = true, filepath.Join(c.DataDir, storeFolder), true
	if err := joinCluster(o, c); err != nil {
		return nil, err
	}
	o.JetStreamMaxStore, o.JetStreamMaxMemory = c.StoreLimit, 256<<20
	o.MaxPayload, o.PingInterval, o.MaxPingsOut = maxPayload, 10*time.Second, 2
	o.NoSigs = true
	n.member = c.ClusterListen != ""
	s, err := server.NewServer(o)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the embedded server cannot be made: %v", err)
	}
	n.server = s
	logs := &serverLog{log: c.Logger.With().Str("part", "nats").Logger()}
	s.SetLoggerV2(logs, false, false, false)
	s.Start()
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if fault := logs.fatal(); fault != "" || ctx.Err() != nil || !s.Running() {
			_ = n.stop(true) // it has not even begun
			return nil, messages.Errorf(messages.CodeUnavailable, "the embedded server does not start on %s: %s", c.Listen,
				strings.TrimSpace(fault+" "+errText(ctx.Err()))).WithHint("is the port taken by another process?")
		}
	}
	return n, nil
}

// joinCluster makes the server one of a cluster, if it is to be.
func joinCluster(o *server.Options, c Config) error {
	if c.ClusterListen == "" {
		return nil
	}
	host, port, err := splitListen(c.ClusterListen, c.InsecureNoAuth)
	if err != nil {
		return err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	o.StoreDir = filepath.Join(c.DataDir, clusterStoreFolder)
	o.LameDuckDuration, o.LameDuckGracePeriod = lameDuck, lameDuck/10
	o.Cluster = server.ClusterOpts{Name: "highwater-" + string(c.Cluster), Host: host, Port: port}
	o.Routes, err = routes(c.Routes)
	return err
}

// routes reads the addresses of the other servers of a cluster.
func routes(all []string) ([]*url.URL, error) {
	var out []*url.URL
	for _, r := range all {
		if _, _, err := net.SplitHostPort(r); err != nil {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "the route %q is not host:port", r)
		}
		out = append(out, &url.URL{Scheme: "nats-route", Host: r})
	}
	return out, nil
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// lameDuck is the time over which a server that leaves its cluster lets its clients go.
const lameDuck = time.Second

// Limits of the end of a server: of a healthy one, and of one whose disk takes no writes.
const (
	serverStop      = 20 * time.Second
	serverStopStuck = time.Second
)

// stop ends the server and waits for it. A member of a cluster first gives away the leaders of streams that it has, and lets its
// clients go one by one.
func (n *natsServer) stop(healthy bool) error {
	limit := serverStop
	if !healthy {
		limit = serverStopStuck
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if n.member && healthy {
			n.server.LameDuckShutdown()
		}
		n.server.Shutdown()
		n.server.WaitForShutdown()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(limit):
		return messages.Errorf(messages.CodeUnavailable, "the embedded server has not ended within %v", limit)
	}
}

// accounts is the configuration of accounts and users. Who connects without credentials is anonymous: it may ask and
// read everything, but what only a controller says is denied to it, and so is whatever could harm its streams. It is a key
// and not a password because the server signs it in by itself, for which it would need the password in plain text.
func (n *natsServer) accounts(cluster messages.ClusterName) (string, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	anonymous, err := pair.PublicKey()
	if err != nil {
		return "", err
	}
	root := strings.TrimSuffix(messages.NewSubjects(cluster).Journal(), "jnl.v1.log")
	denied := []string{root + "jnl.>", root + "lead.>", root + "asg.>", root + "evt.>", root + "ctr.>",
		"$O." + messages.SnapshotBucket(cluster) + ".>"}
	for _, stream := range []string{messages.JournalStream(cluster), messages.LeadershipStream(cluster), "OBJ_" + messages.SnapshotBucket(cluster)} {
		for _, verb := range []string{"UPDATE", "DELETE", "PURGE", "RESTORE", "MSG.DELETE", "LEADER.STEPDOWN", "PEER.REMOVE"} {
			denied = append(denied, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	list := `["` + strings.Join(denied, `", "`) + `"]` // none of them has a quote
	var b bytes.Buffer
	fmt.Fprintf(&b, "accounts {\n  SYS: { users: [{user: sys, password: %q}] }\n", hashed(n.system))
	fmt.Fprintf(&b, "  HW: { jetstream: enabled, users: [\n    {user: hw, password: %q}\n", hashed(n.user))
	fmt.Fprintf(&b, "    {nkey: %s, permissions: {publish: {deny: %s}}}\n  ] }\n}\n", anonymous, list)
	fmt.Fprintf(&b, "system_account: SYS\nno_auth_user: %s\n", anonymous)
	return b.String(), nil
}

// hashed is what the server keeps of a secret. A secret is random, so that the cheapest hash is as good as any.
func hashed(secret string) string {
	h, err := bcrypt.GenerateFromPassword([]byte(secret), bcrypt.MinCost)
	if err != nil {
		panic("a secret cannot be hashed: " + err.Error()) // it is longer than 72 bytes
	}
	return string(h)
}

func secret() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // it never fails: without randomness the program ends
	return "s" + hex.EncodeToString(b)
}

// serverLog passes the server's log on. What it says in the course of things is for debugging here.
type serverLog struct {
	log zerolog.Logger

	mu   sync.Mutex
	last string
}

func (l *serverLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Noticef and the others implement the server's logger.
func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug().Msgf(format, v...) }

// Warnf logs a warning.
func (l *serverLog) Warnf(format string, v ...any) { l.log.Warn().Msgf(format, v...) }

// Fatalf logs a fault that ends the server.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	l.last = fmt.Sprintf(format, v...)
	l.mu.Unlock()
	l.log.Error().Msgf(format, v...)
}

// Errorf logs an error.
func (l *serverLog) Errorf(format string, v ...any) { l.log.Error().Msgf(format, v...) }

// Debugf logs for debugging.
func (l *serverLog) Debugf(format string, v ...any) { l.log.Trace().Msgf(format, v...) }

// Tracef logs every message of the protocol; the server is told not to ask for it.
func (l *serverLog) Tracef(format string, v ...any) { l.log.Trace().Msgf(format, v...) }
