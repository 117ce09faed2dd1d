package partition

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the transcripts print into testdata")

// TestTranscripts runs the cases of testdata: commands, each with what follows from it. See testdata/README.md.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runFile(t, file) })
	}
}

func runFile(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(string(data), "\n== ")
	for i, text := range cases[1:] {
		title, body, _ := strings.Cut(text, "\n")
		t.Run(title, func(t *testing.T) {
			cases[i+1] = title + "\n" + runCase(t, body)
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(cases, "\n== ")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const indent = "    "

// runCase runs the commands of a case and compares the indented lines below each. It returns the case as it came out.
func runCase(t *testing.T, body string) string {
	s := &script{}
	var out []string
	lines := strings.Split(body, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		out = append(out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var want []string
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], indent) {
			i++
			want = append(want, strings.TrimPrefix(lines[i], indent))
		}
		got, err := s.run(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, l := range got {
			out = append(out, indent+l)
		}
		if !*update && !slices.Equal(got, want) {
			t.Errorf("%s\n got:\n%s\nwant:\n%s", line, indent+strings.Join(got, "\n"+indent), indent+strings.Join(want, "\n"+indent))
		}
	}
	return strings.Join(out, "\n")
}
