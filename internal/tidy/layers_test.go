package tidy

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/highwater-io/highwater"

// layers says, for each package (or tree of packages, with /...), which packages of the project its code may import, and
// which modules from outside are its alone to use. The first rule that matches a package counts.
var layers = []struct {
	packages string
	may      []string
	why      string
}{
	{"messages/...", []string{"messages/..."}, "the contract depends on nothing but protobuf"},
	{"placement", []string{"messages/..."}, "placement is a library: snapshot in, proposal out"},
	{"actors", []string{"messages/..."}, "the contract of machines is below every machine"},
	{"actors/placer", []string{"messages/...", "actors", "placement"}, "only the placement actor places"},
	{"actors/...", []string{"messages/...", "actors"}, "machines talk only by message, so they cannot even name each other"},
	{"broker/replica", []string{"messages/..."}, "the replica is pure and below the broker"},
	{"journal/journaltest", []string{"messages/...", "actors", "journal"}, "the suite knows the port, not an implementation"},
	{"journal/jetstream", []string{"messages/...", "actors", "journal"}, "an implementation of the log"},
	{"journal", []string{"messages/...", "actors"}, "the journal stores what machines decide and knows no machine"},
	{"supervisor", []string{"messages/...", "actors", "journal"}, "the host runs any machine and drives the committer"},
	{"natsbus", []string{"messages/...", "actors", "journal"}, "the edge turns subjects into messages; it decides nothing"},
	{"broker/...", []string{"messages/...", "broker/..."}, "a broker's author never gets a controller package"},
	{"client", []string{"messages/...", "broker/replica"}, "a client never gets a controller package"},
	{"controller/activation", []string{"messages/..."}, "when a standby claims is pure, and driven by the simulator too"},
	{"controller", []string{"messages/...", "placement", "actors/...", "journal/...", "supervisor", "natsbus", "controller/activation"}, "one process, wired"},
	{"cmd/...", []string{"messages/...", "controller", "broker/...", "client", "cmd/...", "journal/...", "actors/...", "placement", "internal/freeport"}, "thin mains and benchmarks"},
	{"sim", []string{"messages/...", "actors/...", "placement", "journal", "broker/replica", "controller/activation"}, "the simulator has no NATS"},
	{"e2e/history", nil, "what was seen is judged without knowing how it came about"},
	{"e2e", []string{"messages/...", "client", "broker/...", "internal/freeport", "e2e/history"}, "outside tests see what users see"},
	{"internal/...", nil, "tools of the tree"},
}

// owners says which packages alone may import a module from outside, and why.
var owners = map[string]struct {
	packages []string
	why      string
}{
	"github.com/asynkron/protoactor-go": {[]string{"supervisor"}, "its faults are worked around in one place"},
	"github.com/nats-io/nats.go": {[]string{"natsbus", "journal/jetstream", "broker/...", "client", "controller", "cmd/...", "e2e"},
		"the cores and the hosts know no wire"},
	"github.com/nats-io/nats-server":      {[]string{"controller", "cmd/highwater-bench", "broker/brokertest"}, "one place starts servers, and one for tests of brokers"},
	"github.com/cockroachdb/pebble":       {[]string{"broker/pebblelog"}, "the storage is an implementation"},
	"github.com/rs/zerolog":               {[]string{"supervisor", "natsbus", "controller", "broker/...", "cmd/..."}, "cores return events, shells log"},
	"github.com/spf13/cobra":              {[]string{"cmd/..."}, "the command line is outermost"},
	"github.com/prometheus/client_golang": {[]string{"controller", "natsbus", "broker/...", "cmd/..."}, "metrics belong to the shells"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list names only %d packages", len(all))
	}
	return all
}

func matches(pattern, name string) bool {
	tree, ok := strings.CutSuffix(pattern, "/...")
	return name == pattern || ok && (name == tree || strings.HasPrefix(name, tree+"/"))
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func TestPackagesImportOnlyWhatTheirLayerMay(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		i := slices.IndexFunc(layers, func(l struct {
			packages string
			may      []string
			why      string
		}) bool {
			return matches(l.packages, name)
		})
		if i < 0 {
			t.Errorf("package %s has no place in the layers; give it one", name)
			continue
		}
		for _, imported := range p.Imports {
			checkImport(t, name, imported, layers[i].may, layers[i].why)
		}
	}
}

func checkImport(t *testing.T, name, imported string, may []string, why string) {
	t.Helper()
	if own, ok := strings.CutPrefix(imported, module+"/"); ok {
		if !matchesAny(may, own) {
			t.Errorf("%s imports %s: %s", name, own, why)
		}
		return
	}
	for outside, owner := range owners {
		if (imported == outside || strings.HasPrefix(imported, outside+"/")) && !matchesAny(owner.packages, name) {
			t.Errorf("%s imports %s, which only %v may: %s", name, imported, owner.packages, owner.why)
		}
	}
	if strings.HasPrefix(name, "messages") && strings.Contains(imported, ".") && !strings.HasPrefix(imported, "google.golang.org/protobuf/") {
		t.Errorf("%s imports %s: the contract depends on nothing but protobuf", name, imported)
	}
}
