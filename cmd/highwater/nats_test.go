package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// natsElsewhere starts a NATS server with a configuration; JetStream has a folder of its own. The listener is on a free port.
func natsElsewhere(t *testing.T, config string) *server.Server {
	t.Helper()
	o := &server.Options{}
	must(t, o.ProcessConfigString(config))
	o.Host, o.NoSigs = "127.0.0.1", true
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	if o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	s, err := server.NewServer(o)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	return s
}

func address(s *server.Server) string { return s.Addr().String() }

// certificates writes a CA, and a certificate with its key that serves for both ends on this machine.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	make := func(c *x509.Certificate, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if by == nil {
			parent, by = c, own
		}
		raw, err := x509.CreateCertificate(rand.Reader, c, parent, &own.PublicKey, by)
		must(t, err)
		return raw, own
	}
	root := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootRaw, rootKey := make(root, nil, nil)
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "hw"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	leafRaw, leafKey := make(leaf, root, rootKey)
	keyRaw, err := x509.MarshalECPrivateKey(leafKey)
	must(t, err)
	dir := t.TempDir()
	write := func(name, kind string, raw []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600))
		return path
	}
	return write("ca.pem", "CERTIFICATE", rootRaw), write("cert.pem", "CERTIFICATE", leafRaw), write("key.pem", "EC PRIVATE KEY", keyRaw)
}

// seedFile makes an nkey of a user, and returns the file of its seed, the seed, and the public key.
func seedFile(t *testing.T) (file, seed, public string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	must(t, err)
	raw, err := pair.Seed()
	must(t, err)
	public, err = pair.PublicKey()
	must(t, err)
	file = filepath.Join(t.TempDir(), "seed")
	must(t, os.WriteFile(file, raw, 0o600))
	return file, string(raw), public
}

// operated is the configuration of a server of an operator with one account that has JetStream, and the credentials of a user.
func operated(t *testing.T) (config, creds, seed string) {
	t.Helper()
	pair := func(make func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		k, err := make()
		must(t, err)
		public, err := k.PublicKey()
		must(t, err)
		return k, public
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	account, accountID := pair(nkeys.CreateAccount)
	user, userID := pair(nkeys.CreateUser)
	_, systemID := pair(nkeys.CreateAccount)
	systemJWT, err := jwt.NewAccountClaims(systemID).Encode(operator)
	must(t, err)
	operatorJWT, err := jwt.NewOperatorClaims(operatorID).Encode(operator)
	must(t, err)
	a := jwt.NewAccountClaims(accountID)
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accountJWT, err := a.Encode(operator)
	must(t, err)
	userJWT, err := jwt.NewUserClaims(userID).Encode(account)
	must(t, err)
	raw, err := user.Seed()
	must(t, err)
	text, err := jwt.FormatUserConfig(userJWT, raw)
	must(t, err)
	creds = filepath.Join(t.TempDir(), "hw.creds")
	must(t, os.WriteFile(creds, text, 0o600))
	return fmt.Sprintf("jetstream: enabled\noperator: %s\nresolver: MEMORY\nsystem_account: %s\nresolver_preload: { %s: %s, %s: %s }\n",
		operatorJWT, systemID, systemID, systemJWT, accountID, accountJWT), creds, string(raw)
}

func TestEverythingRunsOnNATSElsewhereWithItsProofs(t *testing.T) {
	ca, cert, key := certificates(t)
	nkey, seed, public := seedFile(t)
	closed := natsElsewhere(t, fmt.Sprintf(`jetstream: enabled
tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }
accounts { HW: { jetstream: enabled, users: [{user: hw, password: pa55word}, {nkey: %s}] } }`, cert, key, ca, public))
	token := natsElsewhere(t, "jetstream: enabled\nauthorization { token: pa55token }")
	config, creds, credsSeed := operated(t)
	operator := natsElsewhere(t, config)
	home := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700))
	must(t, os.WriteFile(filepath.Join(home, "nats", "context", "prod.json"), fmt.Appendf(nil,
		`{"url":"nats://%s","user":"hw","password":"pa55word","ca":%q,"cert":%q,"key":%q}`, address(closed), ca, cert, key), 0o600))
	passwordFile := filepath.Join(home, "password")
	must(t, os.WriteFile(passwordFile, []byte("pa55word\n"), 0o600))
	nobody := "nats://127.0.0.1:1,nats://"
	for i, way := range []struct {
		name string
		args []string
		env  []string
	}{
		{"TLS, user and password by variables of NATS, several URLs", nil, []string{"NATS_URL=" + nobody + address(closed), "NATS_USER=hw",
			"NATS_PASSWORD=pa55word", "NATS_CA=" + ca, "NATS_CERT=" + cert, "NATS_KEY=" + key}},
		{"TLS and an nkey by flags", []string{"--server", "tls://" + address(closed), "--nkey", nkey, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key}, nil},
		{"a context", []string{"--context", "prod"}, []string{"XDG_CONFIG_HOME=" + home}},
		{"the password from a file", []string{"--user", "hw"}, []string{"HIGHWATER_NATS_URL=nats://" + address(closed), "HIGHWATER_NATS_PASSWORD_FILE=" + passwordFile,
			"NATS_CA=" + ca, "NATS_CERT=" + cert, "NATS_KEY=" + key}},
		{"a token", []string{"-s", "nats://" + address(token)}, []string{"NATS_TOKEN=pa55token"}},
		{"a user in the URL", []string{"-s", "nats://pa55token@" + address(token)}, nil},
		{"credentials", nil, []string{"NATS_URL=nats://" + address(operator), "NATS_CREDS=" + creds}},
	} {
		t.Run(way.name, func(t *testing.T) {
			runsElsewhere(t, fmt.Sprintf("w%d", i), way.args, way.env, []string{"pa55", seed, credsSeed})
		})
	}
}

// runsElsewhere runs a controller, a broker and commands, and checks that none of them tells a secret.
func runsElsewhere(t *testing.T, cluster string, args, env, secrets []string) {
	with := func(more ...string) []string { return append(append(more, "-c", cluster), args...) }
	serve := startDaemonIn(t, env, with("serve", "--data-dir", "", "-v")...)
	serve.says("controller is ready")
	broker := startDaemonIn(t, env, with("broker", "run", "--id", "b1", "--data-dir", t.TempDir(), "-v")...)
	var said strings.Builder
	command := func(more ...string) (string, error) {
		cmd := exec.Command("highwater", with(more...)...)
		cmd.Env = append(cleanEnv(), env...)
		out, err := cmd.CombinedOutput()
		said.Write(out)
		return string(out), err
	}
	eventually(t, "the broker to be active", func() bool {
		out, _ := command("cluster", "health", "-o", "json")
		return strings.Contains(out, `"active": 1`)
	})
	for _, more := range [][]string{{"topic", "create", "t", "--replication-factor", "1", "--min-isr", "1", "--trace"}, {"topic", "list"},
		{"controller", "list"}, {"serve", "--print-config"}} {
		if out, err := command(more...); err != nil {
			t.Errorf("%v: %v\n%s", more, err, out)
		}
	}
	for _, d := range []*daemon{broker, serve} {
		d.signal(syscall.SIGTERM)
		if code := d.ends(); code != 0 {
			t.Errorf("%v ends with %d", d.cmd.Args, code)
		}
		said.WriteString(d.stderr())
	}
	for _, s := range secrets {
		if s != "" && strings.Contains(said.String(), s) {
			t.Errorf("the secret %.4s… is told:\n%s", s, said.String())
		}
	}
}
