package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

// Every benchmark at a size that says nothing but that it works: one result with figures for each line that is promised.
func TestEveryBenchmarkRuns(t *testing.T) {
	binary, err := (&bench{}).buildBinary(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		args    []string
		results int
		figures []string
	}{
		{"failover", []string{"failover", "--partitions", "20", "--runs", "1"}, 1, []string{"work_ms", "plain_ms"}},
		{"failover of processes", []string{"failover", "--partitions", "20", "--runs", "1", "--controllers", "1"}, 1, []string{"work_ms", "plain_ms"}},
		{"create", []string{"create", "--topics", "2", "--partitions", "10"}, 1, []string{"partitions_per_second", "plain_partitions_per_second"}},
		{"create with three", []string{"create", "--topics", "2", "--partitions", "10", "--controllers", "3"}, 1, []string{"partitions_per_second", "plain_partitions_per_second"}},
		{"heartbeats", []string{"heartbeats", "--brokers", "5", "--duration", "1s", "--controllers", "1"}, 1, []string{"p99_ms", "plain_p99_ms"}},
		{"memory", []string{"memory", "--partitions", "10000"}, 1, []string{"bytes_per_partition", "standby_bytes_per_partition", "record_bytes"}},
		{"memory of three", []string{"memory", "--partitions", "20000", "--controllers", "3"}, 1, []string{"rss_active", "rss_standby"}},
		{"produce", []string{"produce", "--in-flight", "8", "--fsync", "interval", "--duration", "200ms"}, 1, []string{"records_per_second", "jetstream_r3_per_second"}},
		{"snapshot", []string{"snapshot", "--partitions", "20", "--every", "20", "--snapshots", "2"}, 1, []string{"snapshot_ms", "pause_max_ms", "between_max_ms"}},
		{"fencing", []string{"fencing", "--replicas", "20", "--runs", "1"}, 1, []string{"gap_max_ms", "plain_gap_max_ms"}},
		{"cold start", []string{"cold-start", "--partitions", "20", "--runs", "1"}, 2, []string{"ready_ms", "accepted_ms", "work_ms", "empty_ms"}},
		{"takeover of who is silent, or dies with the stream's leader", []string{"takeover", "--partitions", "20", "--runs", "1", "--faults", "silent,together"}, 2, []string{"accepted_ms", "confirmed_ms", "work_ms", "plain_ms"}},
		{"takeover", []string{"takeover", "--partitions", "20", "--runs", "1", "--faults", "kill,step-down"}, 2, []string{"accepted_ms", "confirmed_ms", "work_ms", "plain_ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			b := &bench{out: &out}
			root := b.root()
			root.SetArgs(append(c.args, "--binary", binary))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
			if len(lines) != c.results {
				t.Fatalf("%d results, %d are expected:\n%s", len(lines), c.results, out.Bytes())
			}
			for _, line := range lines {
				var r result
				if err := json.Unmarshal(line, &r); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				for _, f := range c.figures {
					if r.Figures[f] <= 0 {
						t.Errorf("%s is %v in %s", f, r.Figures[f], line)
					}
				}
			}
		})
	}
}
