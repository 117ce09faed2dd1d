package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	envprovider "github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

// settingKey is one key of the node's configuration.
type settingKey struct {
	key      string // as in the file; the flag has - for _ and .
	fallback any
	help     string
}

var configKeys = func() []settingKey {
	s := messages.DefaultSettings()
	return []settingKey{
		{"cluster", "dev", "cluster name"},
		{"name", "c1", "name of this controller"},
		{"data_dir", "", "folder for journal and streams (needed with the embedded server)"},
		{"listen", "127.0.0.1:4222", "host:port of the embedded NATS server; port 0 takes a free one"},
		{"insecure_no_auth", false, "allow a listener that is not loopback, without authentication"},
		{"store_limit", int64(8 << 30), "bytes that the embedded server may keep on disk"},
		{"disk_limit", 10 * time.Second, "time that a small write to the data folder may take before the process ends"},
		{"cluster_listen", "", "host:port for the routes of a cluster of embedded servers, whose controllers stand by for each other"},
		{"routes", "", "cluster_listen of the other servers, separated by commas"},
		{"standby", false, "with --nats-url: stand by while another controller of the cluster is active"},
		{"nats_url", "", "NATS servers elsewhere instead of the embedded one, separated by commas; the same as --server"},
		{"nats_creds", "", "credentials file for --nats-url; the same as --creds"},
		{"nats_context", "", ""}, {"nats_nkey", "", ""}, {"nats_user", "", ""}, {"nats_password", "", ""}, {"nats_token", "", ""},
		{"nats_ca", "", ""}, {"nats_cert", "", ""}, {"nats_key", "", ""},
		{"system_url", "", "the same servers' system account, to notice closed connections"},
		{"system_creds", "", "credentials file for --system-url"},
		{"journal_replicas", 0, "servers that keep the journal: 1, 3 or 5; 0 is 1, with cluster_listen 3"},
		{"beat", 250 * time.Millisecond, "several controllers: pause between two signs of life"},
		{"suspicion", 1500 * time.Millisecond, "several controllers: silence of the active one after which another claims"},
		{"restore", "", "backup to begin an empty journal with; in the other processes of a cluster: elsewhere"},
		{"append_limit", 15 * time.Second, "time that the journal may take nothing before the active controller gives up"},
		{"snapshot_entries", 10_000, "entries by which the journal may grow until a snapshot is taken"},
		{"snapshot_bytes", int64(64 << 20), "bytes by which the journal may grow until a snapshot is taken"},
		{"snapshot_interval", time.Hour, "longest time without a snapshot while the journal grows"},
		{"settings.heartbeat", s.Heartbeat, "new cluster: pause between two heartbeats of a broker"},
		{"settings.session", s.Session, "new cluster: silence after which a broker is fenced"},
		{"settings.disconnect_grace", s.DisconnectGrace, "new cluster: time to reconnect before a broker is fenced"},
		{"settings.leader_ready", s.LeaderReady, "new cluster: time for a new leader to prove that it is current"},
		{"settings.replica_lag", s.ReplicaLag, "new cluster: time that a follower may be behind"},
		{"settings.checkpoint", s.Checkpoint, "new cluster: pause between two reports of a high-water mark"},
		{"settings.replication_factor", s.DefaultReplicationFactor, "new cluster: default replication factor of topics"},
		{"settings.min_isr", s.DefaultMinISR, "new cluster: default min ISR of topics"},
	}
}()

func flagOf(key string) string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.TrimPrefix(key, "settings."))
}

// configFlags declares a flag for each key; --cluster and how NATS is reached are flags of all commands already.
func configFlags(f *pflag.FlagSet) {
	for _, k := range configKeys {
		switch v := k.fallback.(type) {
		case string:
			if k.key != "cluster" && k.help != "" {
				f.String(flagOf(k.key), v, k.help)
			}
		case bool:
			f.Bool(flagOf(k.key), v, k.help)
		case int:
			f.Int(flagOf(k.key), v, k.help)
		case int64:
			f.Int64(flagOf(k.key), v, k.help)
		case time.Duration:
			f.Duration(flagOf(k.key), v, k.help)
		}
	}
}

// loadedConfig is the configuration as text, with where each value came from.
type loadedConfig map[string]setting

type setting struct{ value, from string }

// loadConfig merges defaults, file, environment and flags. Unknown keys are errors.
func loadConfig(path string, flags *pflag.FlagSet) (loadedConfig, error) {
	l := loadedConfig{}
	for _, k := range configKeys {
		l[k.key] = setting{fmt.Sprint(k.fallback), "default"}
	}
	if path != "" {
		if err := l.add("file "+path, file.Provider(path), yaml.Parser()); err != nil {
			return nil, err
		}
	}
	var unreadable error
	environment := envprovider.Provider(".", envprovider.Opt{Prefix: "HIGHWATER_", TransformFunc: func(name, value string) (string, any) {
		if value == "" {
			return "", nil // as if it were not set
		}
		key, value, err := fromEnvironment(name, value)
		unreadable = errors.Join(unreadable, err)
		return key, value
	}})
	if err := l.add("environment", environment, nil); err != nil || unreadable != nil {
		return nil, errors.Join(unreadable, err)
	}
	keys := map[string]string{}
	for _, k := range configKeys {
		keys[flagOf(k.key)] = k.key
	}
	for _, k := range accessKeys {
		keys[k.flag] = k.key
	}
	given := posflag.ProviderWithFlag(flags, ".", nil, func(f *pflag.Flag) (string, any) {
		if !f.Changed {
			return "", nil
		}
		return keys[f.Name], f.Value.String() // "" leaves out a flag that is no key
	})
	return l, l.add("flag", given, nil)
}

// fromEnvironment turns HIGHWATER_SETTINGS__SESSION into settings.session, and reads a file for a name that ends in _FILE.
func fromEnvironment(name, value string) (string, string, error) {
	key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "HIGHWATER_")), "__", ".")
	secret, ok := strings.CutSuffix(key, "_file")
	if !ok {
		return key, value, nil
	}
	raw, err := os.ReadFile(value)
	if err != nil {
		return secret, "", messages.Errorf(messages.CodeInvalidRequest, "the file of %s cannot be read: %v", name, err)
	}
	return secret, strings.TrimSpace(string(raw)), nil
}

func (l loadedConfig) add(source string, p koanf.Provider, parser koanf.Parser) error {
	k := koanf.New(".")
	if err := k.Load(p, parser); err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the configuration from the %s cannot be read: %v", source, err)
	}
	for key, value := range k.All() {
		if _, known := l[key]; !known {
			return messages.Errorf(messages.CodeInvalidRequest, "the configuration from the %s has the unknown key %q", source, key).
				WithHint("`highwater serve --print-config` lists the keys")
		}
		if value == nil {
			return messages.Errorf(messages.CodeInvalidRequest, "the configuration from the %s has no value for %s", source, key)
		}
		l[key] = setting{fmt.Sprint(value), source}
	}
	return nil
}

// reader reads values of the types of Config, and keeps what is wrong with them.
type reader struct {
	loaded loadedConfig
	errs   []error
}

func read[T any](r *reader, key, what string, parse func(string) (T, error)) T {
	s := r.loaded[key]
	v, err := parse(s.value)
	if err != nil {
		r.errs = append(r.errs, messages.Errorf(messages.CodeInvalidRequest, "%s from the %s is %q, which is no %s", key, s.from, s.value, what))
	}
	return v
}

func (r *reader) text(key string) string { return r.loaded[key].value }

func (r *reader) yes(key string) bool { return read(r, key, "true or false", strconv.ParseBool) }

func (r *reader) number(key string) int { return read(r, key, "whole number", strconv.Atoi) }

func (r *reader) duration(key string) time.Duration {
	return read(r, key, "duration like 500ms", time.ParseDuration)
}

// controller returns the configuration of a controller, or everything that is wrong with it.
func (l loadedConfig) controller() (controller.Config, error) {
	r := &reader{loaded: l}
	s := messages.DefaultSettings()
	s.Heartbeat, s.Session, s.DisconnectGrace = r.duration("settings.heartbeat"), r.duration("settings.session"), r.duration("settings.disconnect_grace")
	s.LeaderReady, s.ReplicaLag, s.Checkpoint = r.duration("settings.leader_ready"), r.duration("settings.replica_lag"), r.duration("settings.checkpoint")
	s.DefaultReplicationFactor, s.DefaultMinISR = r.number("settings.replication_factor"), r.number("settings.min_isr")
	cfg := controller.Config{
		Cluster: messages.ClusterName(r.text("cluster")), Name: r.text("name"), DataDir: r.text("data_dir"), Listen: r.text("listen"),
		InsecureNoAuth: r.yes("insecure_no_auth"), StoreLimit: int64(r.number("store_limit")), SystemURL: r.text("system_url"),
		JournalReplicas: r.number("journal_replicas"), ClusterListen: r.text("cluster_listen"), Standby: r.yes("standby"), Restore: r.text("restore"),
		Settings: s, SnapshotEntries: r.number("snapshot_entries"),
		SnapshotBytes: int64(r.number("snapshot_bytes")), SnapshotInterval: r.duration("snapshot_interval"),
		DiskLimit: r.duration("disk_limit"), Beat: r.duration("beat"), Suspicion: r.duration("suspicion"), AppendLimit: r.duration("append_limit"),
	}
	if len(r.errs) > 0 {
		return cfg, errors.Join(r.errs...)
	}
	if routes := r.text("routes"); routes != "" {
		cfg.Routes = strings.Split(routes, ",")
	}
	if err := l.elsewhere(&cfg); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// elsewhere says how NATS elsewhere is reached, if it is to be used: when servers or a context are given for Highwater, and also
// when NATS's own variables name them and there is no data folder, without which no server could be embedded.
func (l loadedConfig) elsewhere(cfg *controller.Config) error {
	order := []string{"flag", "environment", "file"}
	sources := make([]source, len(order), len(order)+1)
	own := false
	for i, from := range order {
		sources[i] = source{name: from, values: map[string]string{}}
		for _, k := range accessKeys {
			if s := l[k.key]; s.value != "" && strings.HasPrefix(s.from, from) {
				sources[i].values[k.key] = s.value
				own = own || k.key == "nats_url" || k.key == "nats_context"
			}
		}
	}
	variables := natsEnvironment()
	if !own && (cfg.DataDir != "" || variables.values["nats_url"] == "" && variables.values["nats_context"] == "") {
		for _, k := range accessKeys {
			if s := l[k.key]; s.value != "" {
				return messages.Errorf(messages.CodeInvalidRequest, "%s from the %s is for NATS elsewhere, but neither --nats-url nor --context is given",
					k.key, s.from)
			}
		}
		return nil
	}
	for _, k := range accessKeys { // so that --print-config shows them
		if v := variables.values[k.key]; v != "" && l[k.key].value == "" {
			l[k.key] = setting{v, k.variable}
		}
	}
	x, err := resolveAccess(append(sources, variables))
	if err != nil {
		return err
	}
	cfg.NATSURL, cfg.NATSOptions = x.url, x.opts
	if cfg.SystemURL == "" {
		return nil
	}
	if _, err := checkURLs(cfg.SystemURL); err != nil {
		return err
	}
	cfg.SystemOptions = x.tls
	if creds := l["system_creds"].value; creds != "" {
		if err := readable("credentials file of the system account", creds); err != nil {
			return err
		}
		cfg.SystemOptions = append(slices.Clone(x.tls), nats.UserCredentials(creds))
	}
	return nil
}

// configLine is one value as --print-config shows it.
type configLine struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
}

func (l loadedConfig) print(a *app) error {
	var lines []configLine
	t := rows{header: []string{"key", "value", "from"}}
	for _, k := range configKeys {
		line := configLine{k.key, withoutSecret(l[k.key].value), l[k.key].from}
		if (k.key == "nats_password" || k.key == "nats_token") && line.Value != "" {
			line.Value = "xxxxx"
		}
		lines = append(lines, line)
		t.cells = append(t.cells, []any{line.Key, orDash(line.Value), line.From})
		t.names = append(t.names, line.Key)
	}
	return a.print(lines, t)
}
