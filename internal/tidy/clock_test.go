package tidy

import (
	"go/ast"
	"slices"
	"testing"
)

// Deadlines, leases and ages are differences of the monotonic clock, which no change of the wall clock touches. Whoever turns
// a time into a number or a date has left that clock; these files do, for people to read.
var wallClocks = map[string]string{
	"supervisor/tree.go":        "when a topic was made, for people",
	"actors/registry/create.go": "when a topic was made, for people",
	"journal/entry.go":          "when an entry was written, for people",
	"journal/snapshots.go":      "when a snapshot was taken, for people",
	"journal/restore.go":        "when a snapshot was taken, for people",
	"journal/rewrite.go":        "when a snapshot was taken, for people",
	"controller/export.go":      "when a snapshot was taken, for people",
	"controller/diskwatch.go":   "what is written is not read",
	"natsbus/monitor.go":        "when an answer was given, for people",
	"client/producer.go":        "the timestamp of a record, for its reader",
	"cmd/highwater/snapshot.go": "shown",
	"cmd/highwater/topic.go":    "shown",
	"cmd/highwater/cluster.go":  "shown",
}

var wallReaders = []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC", "Local", "Date"}

func TestWallClocksAreReadForPeopleOnly(t *testing.T) {
	found := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() || s.in("messages/...", "internal/...", "cmd/highwater-bench") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if what := wallReading(s, n); what != "" {
				found[s.path] = true
				if _, known := wallClocks[s.path]; !known {
					t.Errorf("%s:%d: .%s leaves the monotonic clock; if it is for people to read, say so in the table", s.path,
						s.fset.Position(n.Pos()).Line, what)
				}
			}
			return true
		})
	}
	for path := range wallClocks {
		if !found[path] {
			t.Errorf("%s reads no wall clock any more; take it out of the table", path)
		}
	}
}

// wallReading names what reads a wall clock at a node, "" if nothing does.
func wallReading(s source, n ast.Node) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		if f, is := n.Fun.(*ast.SelectorExpr); is && slices.Contains(wallReaders, f.Sel.Name) {
			return f.Sel.Name + "()"
		}
	case *ast.SelectorExpr:
		if n.Sel.Name == "WallUnixMs" && s.in("actors/...") {
			return n.Sel.Name
		}
	}
	return ""
}
