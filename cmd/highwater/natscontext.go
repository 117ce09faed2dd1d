package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
)

// contextFile is what a context of the nats command line tool holds, as far as it is understood here.
type contextFile struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Token    string `json:"token"`
	Creds    string `json:"creds"`
	NKey     string `json:"nkey"`
	CA       string `json:"ca"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	Inbox    string `json:"inbox_prefix"`
	TLSFirst bool   `json:"tls_first"`

	// What would change how NATS is reached and is not understood: refused rather than left out.
	SOCKS    string `json:"socks_proxy"`
	NSC      string `json:"nsc"`
	JWT      string `json:"user_jwt"`
	Windows  string `json:"windows_cert_store"`
	JSDomain string `json:"jetstream_domain"`
	JSPrefix string `json:"jetstream_api_prefix"`
}

// contextFolder is where contexts are kept: nats in the folder of configurations of this user.
func contextFolder() string {
	if parent := os.Getenv("XDG_CONFIG_HOME"); parent != "" {
		return filepath.Join(parent, "nats")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "nats")
}

// selectedContext is the name of the context that `nats context select` has chosen, "" for none.
func selectedContext() string {
	dir := contextFolder()
	if dir == "" {
		return ""
	}
	raw, err := os.ReadFile(filepath.Join(dir, "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// readContext reads a context by its name, or by the path of its file.
func readContext(name string) (source, error) {
	bad := func(format string, args ...any) (source, error) {
		return source{}, messages.Errorf(messages.CodeInvalidRequest, format, args...).
			WithHint("`nats context ls` lists the contexts; --server names servers without one")
	}
	path := name
	if !filepath.IsAbs(path) {
		if strings.Contains(name, "..") || strings.ContainsRune(name, filepath.Separator) {
			return bad("%q is no name of a NATS context", name)
		}
		path = filepath.Join(contextFolder(), "context", name+".json")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return bad("the NATS context %q cannot be read: %v", name, err)
	}
	var c contextFile
	if err := json.Unmarshal(raw, &c); err != nil {
		return bad("the NATS context %q is no JSON of one: %v", name, err)
	}
	for what, value := range map[string]string{"a SOCKS proxy": c.SOCKS, "an nsc lookup": c.NSC, "a bare user JWT": c.JWT,
		"a Windows certificate store": c.Windows, "a JetStream domain": c.JSDomain, "a JetStream API prefix": c.JSPrefix} {
		if value != "" {
			return bad("the NATS context %q has %s, which is not supported", name, what)
		}
	}
	return c.source(name), nil
}

func (c contextFile) source(name string) source {
	s := source{name: "NATS context " + name, values: map[string]string{"nats_url": c.URL, "nats_user": c.User,
		"nats_password": c.Password, "nats_token": c.Token, "nats_creds": inHome(os.ExpandEnv(c.Creds)), "nats_nkey": inHome(c.NKey),
		"nats_ca": inHome(c.CA), "nats_cert": inHome(c.Cert), "nats_key": inHome(c.Key)}}
	if c.Inbox != "" {
		s.more = append(s.more, nats.CustomInboxPrefix(c.Inbox))
	}
	if c.TLSFirst {
		s.more = append(s.more, nats.TLSHandshakeFirst())
	}
	return s
}

// inHome replaces a ~ at the beginning of a path.
func inHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	home, err := os.UserHomeDir()
	if !ok || err != nil {
		return path
	}
	return filepath.Join(home, rest)
}
