package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	envprovider "github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
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
		{"nats_url", "", "NATS servers elsewhere instead of the embedded one, separated by commas"},
		{"nats_creds", "", "credentials file for --nats-url"},
		{"system_url", "", "the same servers' system account, to notice closed connections"},
		{"system_creds", "", "credentials file for --system-url"},
		{"journal_replicas", 1, "servers that keep the journal: 1, 3 or 5"},
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

// configFlags declares a flag for each key; --cluster is one of all commands already.
func configFlags(f *pflag.FlagSet) {
	for _, k := range configKeys {
		switch v := k.fallback.(type) {
		case string:
			if k.key != "cluster" {
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

// loadedConfig is the configuration with where each value came from.
type loadedConfig struct {
	values *koanf.Koanf
	from   map[string]string
}

// loadConfig merges defaults, file, environment and flags. Unknown keys are errors.
func loadConfig(path string, flags *pflag.FlagSet) (*loadedConfig, error) {
	l := &loadedConfig{values: koanf.New("."), from: map[string]string{}}
	defaults := map[string]any{}
	for _, k := range configKeys {
		defaults[k.key] = k.fallback
	}
	if err := l.add("default", confmap.Provider(defaults, "."), nil); err != nil {
		return nil, err
	}
	if path != "" {
		if err := l.add("file "+path, file.Provider(path), yaml.Parser()); err != nil {
			return nil, err
		}
	}
	fromFlags := map[string]string{}
	for _, k := range configKeys {
		fromFlags[flagOf(k.key)] = k.key
	}
	environment := envprovider.Provider(".", envprovider.Opt{Prefix: "HIGHWATER_", TransformFunc: fromEnvironment})
	if err := l.add("environment", environment, nil); err != nil {
		return nil, err
	}
	given := posflag.ProviderWithFlag(flags, ".", nil, func(f *pflag.Flag) (string, any) {
		key, known := fromFlags[f.Name]
		if !known || !f.Changed {
			return "", nil
		}
		return key, posflag.FlagVal(flags, f)
	})
	return l, l.add("flag", given, nil)
}

// fromEnvironment turns HIGHWATER_SETTINGS__SESSION into settings.session, and reads a file for a name that ends in _FILE.
func fromEnvironment(name, value string) (string, any) {
	key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "HIGHWATER_")), "__", ".")
	if secret, ok := strings.CutSuffix(key, "_file"); ok {
		raw, err := os.ReadFile(value)
		if err != nil {
			return key, value // an unknown key, which is refused with its name
		}
		return secret, strings.TrimSpace(string(raw))
	}
	return key, value
}

func (l *loadedConfig) add(source string, p koanf.Provider, parser koanf.Parser) error {
	k := koanf.New(".")
	if err := k.Load(p, parser); err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the configuration from the %s cannot be read: %v", source, err)
	}
	for _, key := range k.Keys() {
		known := false
		for _, c := range configKeys {
			known = known || c.key == key
		}
		if !known {
			return messages.Errorf(messages.CodeInvalidRequest, "the configuration from the %s has the unknown key %q", source, key).
				WithHint("`highwater serve --print-config` lists the keys")
		}
		l.from[key] = source
	}
	return l.values.Merge(k)
}

func (l *loadedConfig) controller() (controller.Config, error) {
	v := l.values
	durations := map[string]time.Duration{}
	for _, k := range configKeys {
		if _, ok := k.fallback.(time.Duration); !ok {
			continue
		}
		d, err := time.ParseDuration(v.String(k.key))
		if err != nil {
			return controller.Config{}, messages.Errorf(messages.CodeInvalidRequest, "%s from the %s is no duration: %v", k.key, l.from[k.key], err)
		}
		durations[strings.TrimPrefix(k.key, "settings.")] = d
	}
	cfg := controller.Config{
		Cluster: messages.ClusterName(v.String("cluster")), Name: v.String("name"), DataDir: v.String("data_dir"), Listen: v.String("listen"),
		InsecureNoAuth: v.Bool("insecure_no_auth"), StoreLimit: v.Int64("store_limit"), NATSURL: v.String("nats_url"), NATSCreds: v.String("nats_creds"),
		SystemURL: v.String("system_url"), SystemCreds: v.String("system_creds"), JournalReplicas: v.Int("journal_replicas"),
		SnapshotEntries: v.Int("snapshot_entries"), SnapshotBytes: v.Int64("snapshot_bytes"), SnapshotInterval: durations["snapshot_interval"],
		Settings: settingsFrom(durations, v.Int("settings.replication_factor"), v.Int("settings.min_isr")),
	}
	return cfg, cfg.Validate()
}

func (l *loadedConfig) print(a *app) error {
	type line struct {
		Key   string `json:"key"`
		Value string `json:"value"`
		From  string `json:"from"`
	}
	var lines []line
	for _, k := range configKeys {
		value := l.values.String(k.key)
		if d, ok := k.fallback.(time.Duration); ok && value == fmt.Sprint(int64(d)) {
			value = d.String()
		}
		lines = append(lines, line{k.key, value, l.from[k.key]})
	}
	sort.Slice(lines, func(i, j int) bool { return lines[i].Key < lines[j].Key })
	t := rows{header: []string{"key", "value", "from"}}
	for _, x := range lines {
		t.cells = append(t.cells, []any{x.Key, orDash(x.Value), x.From})
		t.names = append(t.names, x.Key)
	}
	return a.print(lines, t)
}
