package tidy

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/scenarios.md anew")

const scenariosPage = "docs/scenarios.md"

// What names a scenario: a test function (TestB16AndB17…), a text that begins with scenarios (a subtest's or a case's
// name: "K51 all fenced", "B2a …"), and the title of a transcript (== K1 …).
var (
	inFunction = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)((?:(?:And)?[KB][0-9]+)+)`)
	inText     = regexp.MustCompile(`^((?:[KB][0-9]+[a-d]?,? )+)[^ ]`)
	number     = regexp.MustCompile(`[KB][0-9]+`)
)

// naming returns which scenarios are named where: scenario → files below the root.
func naming(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(names []string, path string) {
		for _, s := range number.FindAllString(strings.Join(names[1:], " "), -1) {
			if !slices.Contains(found[s], path) {
				found[s] = append(found[s], path)
			}
		}
	}
	for _, s := range sources(t) {
		if !s.test() || s.in("internal/...") {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if m := inFunction.FindStringSubmatch(f.Name.Name); m != nil {
					add(m, s.path)
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil {
						if m := inText.FindStringSubmatch(text); m != nil {
							add(m, s.path)
						}
					}
				}
				return true
			})
		}
	}
	for path, titles := range transcripts(t) {
		for _, title := range titles {
			if m := inText.FindStringSubmatch(title); m != nil {
				add(m, path)
			}
		}
	}
	for _, paths := range found {
		slices.Sort(paths)
	}
	return found
}

// transcripts returns the titles of the cases in every transcript.
func transcripts(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "actors", "*", "testdata", "*.txt"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d transcripts found: %v", len(files), err)
	}
	titles := map[string][]string{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if title, ok := strings.CutPrefix(line, "== "); ok {
				titles[filepath.ToSlash(rel)] = append(titles[filepath.ToSlash(rel)], strings.TrimSpace(title))
			}
		}
	}
	return titles
}

// Every scenario is named by a test, or has a reason why not; and no test names one that is not in the table.
func TestScenariosAreTestedOrLeftOutForAReason(t *testing.T) {
	found := naming(t)
	known := map[string]bool{}
	for _, g := range groups {
		for _, s := range g.scenarios {
			if known[s.id] {
				t.Errorf("%s is in the table twice", s.id)
			}
			known[s.id] = true
			switch named := len(found[s.id]) > 0; {
			case named && s.out != "":
				t.Errorf("%s (%s) is named by %v; take out the reason why it is not, or make it the rest", s.id, s.what, found[s.id])
			case !named && s.out == "":
				t.Errorf("%s (%s) is named by no test", s.id, s.what)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !known[id] {
			t.Errorf("%v name %s, which is not in the table", found[id], id)
		}
	}
}

// The page says what the table and the tests say. `go test ./internal/tidy -run Page -update` writes it.
func TestScenariosPageIsUpToDate(t *testing.T) {
	want := page(naming(t))
	path := filepath.Join(root, scenariosPage)
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what the tests say; write it anew: go test ./internal/tidy -run Page -update", scenariosPage)
	}
}

func page(found map[string][]string) []byte {
	var b bytes.Buffer
	b.WriteString(`# Scenarios

What a cluster manager of this kind has to show, and where it is tested. **K** scenarios are behaviours of the controller that
Kafka has in KRaft; **B** scenarios are faults that were seen in the field, in several systems. All are retold, and where
Highwater decides otherwise its tests say so. The number is part of the test's name: ` + "`grep -rn B16`" + ` finds it.

This page is made from the table in internal/tidy and the names of the tests; a test compares it.
`)
	tested, total := 0, 0
	for _, g := range groups {
		for _, s := range g.scenarios {
			total++
			if s.out == "" {
				tested++
			}
		}
	}
	fmt.Fprintf(&b, "%d of %d are tested.\n", tested, total)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| | scenario | tests |\n|---|---|---|\n", g.title)
		for _, s := range g.scenarios {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", s.id, s.what, where(s, found[s.id]))
		}
	}
	return b.Bytes()
}

// where says where a scenario is tested, or why it is not.
func where(s scenario, files []string) string {
	if s.out != "" {
		return "*" + s.out + "*"
	}
	links := make([]string, len(files))
	for i, f := range files {
		links[i] = fmt.Sprintf("[%s](../%s)", strings.Replace(f, "/testdata/", "/", 1), f)
	}
	text := strings.Join(links, ", ")
	if s.rest != "" {
		text += "; *" + s.rest + "*"
	}
	return text
}
