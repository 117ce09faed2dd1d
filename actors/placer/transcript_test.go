package placer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the transcripts anew instead of comparing")

// TestTranscripts plays each file of testdata. A line at the margin is something that happens, the indented lines below it
// are what the placer does about it, and # begins a remark. A line "== name" begins a scenario of its own.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for i, scenario := range strings.Split(string(data), "\n== ") {
			if i == 0 {
				out.WriteString(scenario)
				continue
			}
			name, body, _ := strings.Cut(scenario, "\n")
			t.Run(name, func(t *testing.T) {
				played := play(t, body)
				out.WriteString("\n== " + name + "\n" + played)
				if !*update && played != body {
					t.Errorf("the transcript says\n%s\nbut it went\n%s", body, played)
				}
			})
		}
		if *update {
			if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func play(t *testing.T, body string) string {
	w := newWorld(t)
	var out strings.Builder
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue // what the transcript says happened
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, l := range w.do(strings.Fields(line)) {
			fmt.Fprintf(&out, "  %s\n", l)
		}
	}
	return strings.TrimSuffix(out.String(), "\n") + tail(body)
}

// tail keeps the end of a scenario as it was written.
func tail(body string) string {
	if strings.HasSuffix(body, "\n") {
		return "\n"
	}
	return ""
}
