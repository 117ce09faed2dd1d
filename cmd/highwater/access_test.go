package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/spf13/pflag"

	"github.com/highwater-io/highwater/messages"
)

// reach resolves how NATS is reached by a command line and an environment in an empty home with a folder for contexts.
func reach(t *testing.T, line string, environment map[string]string) (access, nats.Options, error) {
	t.Helper()
	for _, k := range accessKeys {
		for _, name := range []string{k.variable, "HIGHWATER_" + strings.ToUpper(k.key)} {
			t.Setenv(name, environment[name])
		}
	}
	a := &app{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.accessFlags(f)
	must(t, f.Parse(strings.Fields(line)))
	x, err := a.access()
	o := nats.GetDefaultOptions()
	for _, opt := range x.opts {
		must(t, opt(&o))
	}
	return x, o, err
}

// contexts makes a home with contexts in it, of which one may be selected.
func contexts(t *testing.T, selected string, files map[string]string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	must(t, os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(home, "nats", "context", name+".json"), []byte(text), 0o600))
	}
	if selected != "" {
		must(t, os.WriteFile(filepath.Join(home, "nats", "context.txt"), []byte(selected+"\n"), 0o600))
	}
}

type vars = map[string]string

func TestEachValueComesFromTheFirstPlaceThatHasIt(t *testing.T) {
	contexts(t, "chosen", map[string]string{"chosen": `{"url":"nats://chosen","user":"cu","password":"cp"}`, "other": `{"url":"nats://other","token":"ct","inbox_prefix":"_in"}`})
	for name, c := range map[string]struct {
		line            string
		env             vars
		url, user, pass string
		token, inbox    string
	}{
		"nothing is said, but a context is selected": {url: "nats://chosen", user: "cu", pass: "cp"},
		"servers named without a context":            {line: "-s nats://flag", url: "nats://flag"},
		"NATS before the selected context":           {env: vars{"NATS_URL": "nats://var"}, url: "nats://var"},
		"only the user of NATS's variables":          {env: vars{"NATS_USER": "nu", "NATS_PASSWORD": "np"}, url: "nats://chosen", user: "nu", pass: "np"},
		"Highwater's variable before NATS's":         {env: vars{"NATS_URL": "nats://var", "HIGHWATER_NATS_URL": "nats://own"}, url: "nats://own"},
		"the flag before both":                       {line: "--server nats://flag", env: vars{"NATS_URL": "nats://var", "HIGHWATER_NATS_URL": "nats://own"}, url: "nats://flag"},
		"a context by flag before variables":         {line: "--context other", env: vars{"NATS_URL": "nats://var", "HIGHWATER_NATS_USER": "hu"}, url: "nats://other", token: "ct", inbox: "_in"},
		"a flag before the context by flag":          {line: "--context other -s nats://flag --user fu --password fp", url: "nats://flag", user: "fu", pass: "fp", inbox: "_in"},
		"a context by variable behind variables":     {env: vars{"NATS_CONTEXT": "other", "NATS_URL": "nats://var"}, url: "nats://var", token: "ct", inbox: "_in"},
		"the password from elsewhere than the user":  {line: "-s nats://flag --user fu", env: vars{"NATS_PASSWORD": "np"}, url: "nats://flag", user: "fu", pass: "np"},
		"a user in the URL":                          {line: "-s nats://a:b@flag", env: vars{"NATS_USER": "nu"}, url: "nats://a:b@flag"},
		"a flag instead of the user in a URL":        {line: "--user fu", env: vars{"NATS_URL": "nats://a:b@var,tls://a:b@two", "NATS_PASSWORD": "np"}, url: "nats://var,tls://two", user: "fu", pass: "np"},
	} {
		t.Run(name, func(t *testing.T) {
			x, o, err := reach(t, c.line, c.env)
			must(t, err)
			if x.url != c.url || o.User != c.user || o.Password != c.pass || o.Token != c.token || o.InboxPrefix != c.inbox {
				t.Errorf("%s, user %q %q, token %q, inbox %q", x.url, o.User, o.Password, o.Token, o.InboxPrefix)
			}
		})
	}
}

func TestWithoutAnythingNATSIsOnThisMachine(t *testing.T) {
	contexts(t, "", nil)
	if x, o, err := reach(t, "", nil); err != nil || x.url != nats.DefaultURL || o.User+o.Token != "" || o.UserJWT != nil {
		t.Errorf("%s, %v", x.url, err)
	}
}

func TestNkeyAndCredentialsAreUsed(t *testing.T) {
	contexts(t, "", nil)
	pair, err := nkeys.CreateUser()
	must(t, err)
	seed, err := pair.Seed()
	must(t, err)
	file := filepath.Join(t.TempDir(), "seed")
	must(t, os.WriteFile(file, seed, 0o600))
	public, err := pair.PublicKey()
	must(t, err)
	if _, o, err := reach(t, "", vars{"NATS_NKEY": file}); err != nil || o.Nkey != public {
		t.Errorf("the key is %q: %v", o.Nkey, err)
	}
	if _, o, err := reach(t, "--creds "+file, nil); err != nil || o.UserJWT == nil {
		t.Errorf("the credentials are not used: %v", err)
	}
}

func TestAWrongAccessIsRefusedWithoutItsSecrets(t *testing.T) {
	contexts(t, "", map[string]string{"broken": `{"password":"pa55"`, "proxy": `{"url":"nats://x","socks_proxy":"socks5://u:pa55@p"}`})
	seed := filepath.Join(t.TempDir(), "seed")
	must(t, os.WriteFile(seed, []byte("SUpa55"), 0o600))
	for line, want := range map[string]string{
		"-s nats://u:pa55@h:port":           "URL 1 of the NATS servers cannot be understood",
		"-s nats://h,http://u:pa55@h":       "URL 2 of the NATS servers cannot be understood",
		"--user u --token pa55":             "the flag has several ways to sign in to NATS: nats_user, nats_token",
		"-s nats://u:pa55@h --user u":       "the flag has several ways to sign in to NATS: nats_url, nats_user",
		"--creds /nowhere":                  "the credentials file for NATS cannot be read",
		"--nkey /nowhere":                   "the nkey seed file /nowhere cannot be used",
		"--nkey " + seed:                    "cannot be used",
		"--tls-ca /nowhere":                 "cannot be read",
		"--tls-cert /nowhere":               "the flag has only one of certificate and key for TLS",
		"--context none --password pa55":    `the NATS context "none" cannot be read`,
		"--context ../x":                    "no name of a NATS context",
		"--context broken":                  "is no JSON of one",
		"--context proxy":                   "a SOCKS proxy, which is not supported",
		"--tls-cert /nowhere --tls-key /no": "cannot be read",
	} {
		_, _, err := reach(t, line, nil)
		if messages.CodeOf(err) != messages.CodeInvalidRequest || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pa55") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestURLsAreShownWithoutSecrets(t *testing.T) {
	for url, want := range map[string]string{"nats://h": "nats://h", "nats://u:pa55@h,tls://token@i": "nats://u:xxxxx@h,tls://xxxxx@i",
		"u:pa55@h": "nats://u:xxxxx@h", "nats://u:pa55@h:port": "xxxxx", "": ""} {
		if got := withoutSecret(url); got != want {
			t.Errorf("%q is shown as %q, want %q", url, got, want)
		}
	}
}
