package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// Budgets, of style: what does not fit is telling its author something.
const (
	maxFileLines     = 600
	maxFunctionLines = 70
	maxParameters    = 5
	maxMethods       = 8
)

type source struct {
	path string // below the root
	fset *token.FileSet
	file *ast.File
}

func (s source) lines(n ast.Node) int {
	return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) in(trees ...string) bool {
	dir := filepath.ToSlash(filepath.Dir(s.path))
	return matchesAny(trees, dir)
}

// sources parses every Go file that people write.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || rel == "tools") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{path: filepath.ToSlash(rel), fset: fset, file: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found only %d files", len(all))
	}
	return all
}

func TestFilesAndFunctionsFitTheirBudgets(t *testing.T) {
	short, functions := 0, 0
	for _, s := range sources(t) {
		if n := s.lines(s.file); n > maxFileLines {
			t.Errorf("%s has %d lines, the budget is %d", s.path, n, maxFileLines)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.lines(f)
			functions++
			if n <= 35 {
				short++
			}
			if n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, the budget is %d", s.path, f.Name.Name, n, maxFunctionLines)
			}
			if got := parameters(f); got > maxParameters && !libraryMethods[f.Name.Name] {
				t.Errorf("%s: %s has %d parameters, the budget is %d", s.path, f.Name.Name, got, maxParameters)
			}
		}
	}
	if short*10 < functions*9 {
		t.Errorf("%d of %d functions have 35 lines or less; nine in ten should", short, functions)
	}
}

// libraryMethods are methods whose parameters a library's interface prescribes.
var libraryMethods = map[string]bool{"HandleFailure": true} // protoactor's SupervisorStrategy

// parameters counts what a caller has to think about: neither a context nor trailing options.
func parameters(f *ast.FuncDecl) int {
	n := f.Type.Params.NumFields()
	for _, p := range f.Type.Params.List {
		if sel, ok := p.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Context" {
			n--
		}
		if _, ok := p.Type.(*ast.Ellipsis); ok {
			n--
		}
	}
	return n
}

func TestInterfacesAreSmall(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			i, ok := n.(*ast.InterfaceType)
			if ok && i.Methods.NumFields() > maxMethods {
				t.Errorf("%s:%d: an interface has %d methods, the budget is %d", s.path, s.fset.Position(i.Pos()).Line, i.Methods.NumFields(), maxMethods)
			}
			return true
		})
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		documented[dir] = documented[dir] || s.file.Doc != nil
		if s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			checkDoc(t, s, d)
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

func checkDoc(t *testing.T, s source, d ast.Decl) {
	t.Helper()
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d))) {
			t.Errorf("%s: %s has no doc comment", s.path, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
					t.Errorf("%s: type %s has no doc comment", s.path, spec.Name.Name)
				}
			case *ast.ValueSpec:
				if spec.Names[0].IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
					t.Errorf("%s: %s has no doc comment", s.path, spec.Names[0].Name)
				}
			}
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// The pure packages decide; whatever would make two runs differ comes in as an argument.
var pure = []string{"placement", "actors/...", "broker/replica"}

var impureImports = map[string]string{
	"sync": "one actor, one goroutine: there is nothing to lock", "sync/atomic": "one actor, one goroutine: there is nothing to lock",
	"context": "a machine never waits", "os": "a machine does no I/O", "net": "a machine does no I/O", "log": "cores return events",
	"log/slog": "cores return events", "github.com/rs/zerolog": "cores return events", "math/rand": "randomness comes in with Env",
	"crypto/rand": "randomness comes in with Env",
}

var impureCalls = map[string]bool{"time.Now": true, "time.Since": true, "time.Until": true, "time.Sleep": true, "time.After": true,
	"time.AfterFunc": true, "time.NewTimer": true, "time.NewTicker": true, "time.Tick": true}

// randConstructors are what the pure packages may use of math/rand/v2: generators with a seed of their own.
var randConstructors = map[string]bool{"New": true, "NewPCG": true, "NewChaCha8": true, "Rand": true, "Source": true, "PCG": true, "ChaCha8": true}

func TestPurePackagesArePure(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		if !s.in(pure...) || s.test() {
			continue
		}
		checked++
		for _, i := range s.file.Imports {
			if why, bad := impureImports[strings.Trim(i.Path.Value, `"`)]; bad {
				t.Errorf("%s imports %s: %s", s.path, i.Path.Value, why)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			checkPure(t, s, n)
			return true
		})
	}
	if checked < 20 {
		t.Fatalf("only %d files of pure packages found", checked)
	}
}

func checkPure(t *testing.T, s source, n ast.Node) {
	t.Helper()
	at := func() int { return s.fset.Position(n.Pos()).Line }
	switch n := n.(type) {
	case *ast.GoStmt:
		t.Errorf("%s:%d: a pure package starts a goroutine", s.path, at())
	case *ast.SelectStmt, *ast.SendStmt:
		t.Errorf("%s:%d: a pure package uses a channel", s.path, at())
	case *ast.SelectorExpr:
		x, ok := n.X.(*ast.Ident)
		if !ok || x.Obj != nil {
			return
		}
		if impureCalls[x.Name+"."+n.Sel.Name] {
			t.Errorf("%s:%d: a pure package calls %s.%s", s.path, at(), x.Name, n.Sel.Name)
		}
		if x.Name == "rand" && !randConstructors[n.Sel.Name] {
			t.Errorf("%s:%d: a pure package draws from the global random source (rand.%s)", s.path, at(), n.Sel.Name)
		}
	}
}

// A test that sleeps instead of waiting for what it waits for, or that is skipped, proves nothing.
func TestTestsNeitherSleepNorSkip(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test() {
			continue
		}
		synctest := false
		for _, i := range s.file.Imports {
			synctest = synctest || i.Path.Value == `"testing/synctest"`
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			if x.Name == "time" && sel.Sel.Name == "Sleep" && !synctest {
				t.Errorf("%s:%d: a test sleeps; wait for a condition with a deadline", s.path, s.fset.Position(n.Pos()).Line)
			}
			if (x.Name == "t" || x.Name == "b") && (sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf" || sel.Sel.Name == "SkipNow") {
				t.Errorf("%s:%d: a test is skipped; say clearly what is missing and fail", s.path, s.fset.Position(n.Pos()).Line)
			}
			return true
		})
	}
}
