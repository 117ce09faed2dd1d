package main

import (
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

// accessKey is one value of how a process reaches NATS. Every command takes it from the same places: its flag, the variable
// HIGHWATER_ and the key, the configuration file (serve), NATS's own variable, a NATS context.
type accessKey struct {
	key, flag, variable string
	help                string
}

// accessKeys are all of them. What serve calls --nats-url and --nats-creds is --server and --creds of the others.
var accessKeys = []accessKey{
	{"nats_url", "server", "NATS_URL", "NATS servers, separated by commas; without any, and without a context, " + nats.DefaultURL},
	{"nats_context", "context", "NATS_CONTEXT", "NATS context: its name, or its file; without any, and without servers, the selected one"},
	{"nats_creds", "creds", "NATS_CREDS", "credentials file"},
	{"nats_nkey", "nkey", "NATS_NKEY", "file with the seed of an nkey"},
	{"nats_user", "user", "NATS_USER", "user"},
	{"nats_password", "password", "NATS_PASSWORD", "password of the user; every user of this machine sees flags, so better the variable"},
	{"nats_token", "token", "NATS_TOKEN", "token; better the variable"},
	{"nats_ca", "tls-ca", "NATS_CA", "file with the certificates that the servers' are checked by; without any, the system's"},
	{"nats_cert", "tls-cert", "NATS_CERT", "file with the certificate to show"},
	{"nats_key", "tls-key", "NATS_KEY", "file with the key of --tls-cert"},
}

// accessFlags declares a flag for each key.
func (a *app) accessFlags(f *pflag.FlagSet) {
	a.given = map[string]*string{}
	for _, k := range accessKeys {
		short := ""
		if k.flag == "server" {
			short = "s"
		}
		a.given[k.key] = f.StringP(k.flag, short, "", k.help+" (also "+k.variable+")")
	}
}

// source is one place where values come from.
type source struct {
	name   string
	values map[string]string
	more   []nats.Option // of a context, what has no key
}

// access is how NATS is reached, when all places have been asked.
type access struct {
	url  string
	opts []nats.Option
	tls  []nats.Option // those of opts that are about certificates
}

// where names the servers without their secrets.
func (x access) where() string { return withoutSecret(x.url) }

// access returns how this command reaches NATS.
func (a *app) access() (access, error) {
	if a.fixed != nil {
		return *a.fixed, nil
	}
	return a.usual()
}

// usual is how a command without anything else in mind reaches NATS.
func (a *app) usual() (access, error) {
	flags, own := source{name: "flag", values: map[string]string{}}, source{name: "environment", values: map[string]string{}}
	for key, value := range a.given {
		flags.values[key] = *value
	}
	for _, k := range accessKeys {
		for _, suffix := range []string{"", "_FILE"} {
			name := "HIGHWATER_" + strings.ToUpper(k.key) + suffix
			if v := os.Getenv(name); v != "" {
				_, value, err := fromEnvironment(name, v)
				if err != nil {
					return access{}, err
				}
				own.values[k.key] = value
			}
		}
	}
	return resolveAccess([]source{flags, own, natsEnvironment()})
}

// natsEnvironment is what the variables of NATS say.
func natsEnvironment() source {
	s := source{name: "NATS variables", values: map[string]string{}}
	for _, k := range accessKeys {
		s.values[k.key] = os.Getenv(k.variable)
	}
	return s
}

// resolveAccess takes each value from the first place that has it. A context that the first place names counts right behind it,
// every other one last; the selected one counts only where nobody names servers or a context. What proves who one is comes
// from one place as a whole, but for the password, so that it need not stand where the user does.
func resolveAccess(sources []source) (access, error) {
	sources, err := withContext(slices.Clone(sources))
	if err != nil {
		return access{}, err
	}
	x := access{url: nats.DefaultURL}
	at := slices.IndexFunc(sources, func(s source) bool { return s.values["nats_url"] != "" })
	inURL := false
	if at >= 0 {
		x.url = sources[at].values["nats_url"]
		if inURL, err = checkURLs(x.url); err != nil {
			return access{}, err
		}
	}
	for i, s := range sources {
		way, err := s.proof(inURL && i == at)
		if err != nil {
			return access{}, err
		}
		if way == "" {
			continue
		}
		if way != "nats_url" {
			o, err := proofOption(way, s.values[way], sources)
			if err != nil {
				return access{}, err
			}
			x.url, x.opts = withoutUsers(x.url), append(x.opts, o)
		}
		break
	}
	if x.tls, err = tlsOptions(sources); err != nil {
		return access{}, err
	}
	x.opts = append(x.opts, x.tls...)
	for _, s := range sources {
		x.opts = append(x.opts, s.more...)
	}
	return x, nil
}

// withContext puts the context, if there is one, where it belongs.
func withContext(sources []source) ([]source, error) {
	named := slices.IndexFunc(sources, func(s source) bool { return s.values["nats_context"] != "" })
	name := ""
	switch {
	case named >= 0:
		name = sources[named].values["nats_context"]
	case slices.ContainsFunc(sources, func(s source) bool { return s.values["nats_url"] != "" }):
		return sources, nil
	default:
		if name = selectedContext(); name == "" {
			return sources, nil
		}
	}
	c, err := readContext(name)
	if err != nil {
		return nil, err
	}
	if named == 0 {
		return slices.Insert(sources, 1, c), nil
	}
	return append(sources, c), nil
}

// proof returns the key of the one way by which a place says who one is, "" for none.
func (s source) proof(inURL bool) (string, error) {
	var ways []string
	if inURL {
		ways = append(ways, "nats_url")
	}
	for _, key := range []string{"nats_creds", "nats_nkey", "nats_user", "nats_token"} {
		if s.values[key] != "" {
			ways = append(ways, key)
		}
	}
	switch len(ways) {
	case 0:
		return "", nil
	case 1:
		return ways[0], nil
	}
	return "", messages.Errorf(messages.CodeInvalidRequest, "the %s has several ways to sign in to NATS: %s", s.name, strings.Join(ways, ", ")).
		WithHint("give one of credentials file, nkey, user and password, token, or a user in the URL")
}

func proofOption(way, value string, sources []source) (nats.Option, error) {
	switch way {
	case "nats_creds":
		return nats.UserCredentials(value), readable("credentials file", value)
	case "nats_nkey":
		o, err := nats.NkeyOptionFromSeed(value)
		if err != nil {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "the nkey seed file %s cannot be used: %v", value, err)
		}
		return o, nil
	case "nats_token":
		return nats.Token(value), nil
	}
	return nats.UserInfo(value, first(sources, "nats_password")), nil
}

func first(sources []source, key string) string {
	for _, s := range sources {
		if v := s.values[key]; v != "" {
			return v
		}
	}
	return ""
}

// tlsOptions are those about certificates. Certificate and key come from one place.
func tlsOptions(sources []source) ([]nats.Option, error) {
	var out []nats.Option
	if ca := first(sources, "nats_ca"); ca != "" {
		if err := readable("file of certificates", ca); err != nil {
			return nil, err
		}
		out = append(out, nats.RootCAs(ca))
	}
	for _, s := range sources {
		cert, key := s.values["nats_cert"], s.values["nats_key"]
		if cert == "" && key == "" {
			continue
		}
		if cert == "" || key == "" {
			return nil, messages.Errorf(messages.CodeInvalidRequest, "the %s has only one of certificate and key for TLS", s.name)
		}
		for what, file := range map[string]string{"certificate file": cert, "key file": key} {
			if err := readable(what, file); err != nil {
				return nil, err
			}
		}
		return append(out, nats.ClientCert(cert, key)), nil
	}
	return out, nil
}

// readable finds out now what would otherwise be found out at every try to connect.
func readable(what, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the %s for NATS cannot be read: %v", what, err)
	}
	return f.Close()
}

// checkURLs reports whether one of a list of URLs names a user. An error does not repeat what may be a secret.
func checkURLs(list string) (bool, error) {
	users := false
	for i, s := range strings.Split(list, ",") {
		u, err := parseServer(s)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return false, messages.Errorf(messages.CodeInvalidRequest, "URL %d of the NATS servers cannot be understood", i+1).
				WithHint("it is nats://host:port, or tls, ws or wss")
		}
		users = users || u.User != nil
	}
	return users, nil
}

// parseServer reads one URL, whose scheme may be left out.
func parseServer(s string) (*url.URL, error) {
	s = strings.TrimSpace(s)
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	return url.Parse(s)
}

// withoutUsers takes users and passwords out of a list of URLs.
func withoutUsers(list string) string {
	all := strings.Split(list, ",")
	for i, s := range all {
		if u, err := parseServer(s); err == nil && u.User != nil {
			u.User = nil
			all[i] = u.String()
		}
	}
	return strings.Join(all, ",")
}

// withoutSecret hides the password of each URL in a list of them, and a user without one, which is a token.
func withoutSecret(value string) string {
	if !strings.Contains(value, "@") {
		return value
	}
	list := strings.Split(value, ",")
	for i, s := range list {
		u, err := parseServer(s)
		list[i] = strings.TrimSpace(s)
		switch {
		case err != nil:
			list[i] = "xxxxx"
		case u.User != nil:
			if _, has := u.User.Password(); !has {
				u.User = url.User("xxxxx")
			}
			list[i] = u.Redacted()
		}
	}
	return strings.Join(list, ",")
}

// elsewhere fills in how NATS elsewhere is reached, for a command that could also embed a server in a data folder: flags and the
// variables of Highwater ask for it, those of NATS only where there is no folder.
func (a *app) elsewhere(cfg *controller.Config) error {
	asked := *a.given["nats_url"] + *a.given["nats_context"] + os.Getenv("HIGHWATER_NATS_URL") + os.Getenv("HIGHWATER_NATS_CONTEXT")
	if asked == "" && (cfg.DataDir != "" || os.Getenv("NATS_URL")+os.Getenv("NATS_CONTEXT") == "") {
		return nil
	}
	x, err := a.access()
	if err == nil {
		cfg.NATSURL, cfg.NATSOptions = x.url, x.opts
	}
	return err
}
