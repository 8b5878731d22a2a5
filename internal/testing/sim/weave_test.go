package sim

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	randv2 "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
	"github.com/lockkeeper/lockkeeper/internal/testing/sim/perturb"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// woven are the packages whose code gets points (see package perturb). The packages
// below them need none: they have no goroutines, and their callers do the locking.
var woven = []string{".", "cluster", "fsm", "internal/core/alive", "internal/core/election", "internal/core/engine", "internal/core/lifecycle", "internal/core/membership", "internal/core/peer", "internal/core/propose", "internal/core/raftlog", "internal/core/request", "internal/core/server", "internal/core/storage", "internal/core/wake"}

// notWoven are files whose functions run while a lock of a package that is not woven is
// held. If such a function slept, virtual time would stop.
var notWoven = map[string]bool{
	"internal/core/raftlog/log.go":         true, // go-hclog
	"internal/core/peer/conn.go":           true, // Raft's transport, which closes connections
	"internal/core/engine/watch.go":        true, // Raft, which tells of a leader
	"internal/core/peer/peers.go":          true, // the same
	"internal/core/storage/bolt.go":        true, // bbolt, as in those below
	"internal/core/storage/boltpages.go":   true,
	"internal/core/storage/check.go":       true,
	"internal/core/storage/checksums.go":   true,
	"internal/core/storage/descriptors.go": true,
	"internal/core/storage/directory.go":   true,
	"internal/core/storage/diskstore.go":   true,
	"internal/core/storage/snapshots.go":   true,
	"internal/core/storage/verify.go":      true,
	"internal/core/storage/wal.go":         true, // raft-wal
	"internal/core/storage/memory.go":      true, // belongs to the simulation, which causes faults through it
}

// TestWoven checks that no package of a server was forgotten: while one of its mutexes that is not woven is held, a point in a package
// that is would stop virtual time.
func TestWoven(t *testing.T) {
	files, err := filepath.Glob("../../../internal/core/*/*.go")
	if err != nil || len(files) < 50 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		b := testkit.Must(os.ReadFile(f))(t)
		dir := "internal/core/" + filepath.Base(filepath.Dir(f))
		leaf := dir == "internal/core/stopwatch" || dir == "internal/core/logqueue" // which call nothing while they hold one
		if locks := regexp.MustCompile(`\bsync\.(RW)?Mutex\b`).Match(b); locks && !strings.HasSuffix(f, "_test.go") && !leaf && !slices.Contains(woven, dir) {
			t.Errorf("%s has a mutex, and is not in the list woven", dir)
		}
	}
}

// weave returns the servers' files with points in them, and with the mutexes and the Once of package
// perturb, by their names in the repository. changed has the text of files that differ
// from the repository.
func weave(t *testing.T, changed map[string]string) map[string]string {
	t.Helper()
	return weaveFiles(t, changed, true)
}

// weaveFiles is weave. If mutexes is false, the mutexes stay those of package sync.
func weaveFiles(t *testing.T, changed map[string]string, mutexes bool) map[string]string {
	t.Helper()
	files := map[string]string{}
	maps.Copy(files, changed)
	var sites []string
	for name := range notWoven {
		if _, err := os.Stat(filepath.Join("../../..", name)); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range woven {
		names := testkit.Must(filepath.Glob(filepath.Join("../../..", dir, "*.go")))(t)
		for _, name := range names {
			file := testkit.Must(filepath.Rel("../../..", name))(t)
			file = filepath.ToSlash(file)
			if strings.HasSuffix(file, "_test.go") || notWoven[file] {
				continue
			}
			text, ok := changed[file]
			if !ok {
				b := testkit.Must(os.ReadFile(name))(t)
				text = string(b)
			}
			files[file] = weaveFile(t, file, text, mutexes, &sites)
		}
	}
	var table strings.Builder
	table.WriteString("package perturb\n\nvar sites = []string{\n")
	for _, s := range sites {
		fmt.Fprintf(&table, "\t%q,\n", s)
	}
	table.WriteString("}\n")
	files["internal/testing/sim/perturb/sites.go"] = table.String()
	return files
}

// weaveFile adds points to one file: at the start of each function and of each case of
// a select, and after each unlock and each call of View. If mutexes is true, it replaces
// those of package sync. Lines keep their numbers.
func weaveFile(t *testing.T, file, text string, mutexes bool, sites *[]string) string {
	t.Helper()
	fset := token.NewFileSet()
	f := testkit.Must(parser.ParseFile(fset, file, text, parser.SkipObjectResolution))(t)
	type insert struct {
		at         int
		text       string
		until, seq int // if until is not 0, the text from at to until is replaced
	}
	var inserts []insert
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	point := func(p token.Pos, format string) {
		site := len(*sites)
		*sites = append(*sites, fmt.Sprintf("%s:%d", file, fset.Position(p).Line))
		inserts = append(inserts, insert{at: offset(p), text: fmt.Sprintf(format, fmt.Sprintf("perturb.Point(%d)", site)), seq: len(inserts)})
	}
	const first, behind = " %s; ", "; %s"
	called := func(e ast.Expr) string { // the method's name
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return ""
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok {
			return s.Sel.Name
		}
		return ""
	}
	skip := map[*ast.FuncLit]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			// These functions are called while Raft or package sync holds a lock.
			if name := called(n); name == "NewObserver" || name == "Do" {
				for _, arg := range n.Args {
					if lit, ok := arg.(*ast.FuncLit); ok {
						skip[lit] = true
					}
				}
			}
		case *ast.FuncDecl:
			// Loggers call Error and String while they hold their lock.
			if name := n.Name.Name; n.Body != nil && name != "init" && name != "Error" && name != "String" {
				point(n.Body.Lbrace+1, first)
			}
		case *ast.FuncLit:
			if skip[n] {
				return false
			}
			point(n.Body.Lbrace+1, first)
		case *ast.CommClause:
			point(n.Colon+1, first)
		case *ast.ExprStmt:
			switch called(n.X) {
			case "Unlock", "RUnlock", "View":
				point(n.End(), behind)
			}
		case *ast.DeferStmt:
			switch called(n.Call) {
			case "Unlock", "RUnlock":
				point(n.Pos(), "defer %s; ")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && mutexes && x.Name == "sync" && (n.Sel.Name == "Mutex" || n.Sel.Name == "RWMutex" || n.Sel.Name == "Once") {
				inserts = append(inserts, insert{at: offset(x.Pos()), text: "perturb", until: offset(x.End()), seq: len(inserts)})
			}
		}
		return true
	})
	if len(inserts) == 0 {
		return text
	}
	slices.SortFunc(inserts, func(a, b insert) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	var out strings.Builder
	end := offset(f.Name.End())
	out.WriteString(text[:end] + `; import "github.com/lockkeeper/lockkeeper/internal/testing/sim/perturb"`)
	for _, x := range inserts {
		out.WriteString(text[end:x.at] + x.text)
		end = max(x.at, x.until)
	}
	out.WriteString(text[end:])
	out.WriteString("\nvar _ perturb.Mutex\n")
	if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"sync"` }) {
		out.WriteString("var _ sync.Locker\n")
	}
	return out.String()
}

// buildWith builds the tests of this package with other text in some files. It returns
// the program's path.
func buildWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "sim.test")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlaid(t, dir, files), "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// overlaid writes files to dir. It returns the path of their list, for go build -overlay.
func overlaid(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	list := testkit.Must(overlay.Write("../../..", dir, files))(t)
	return list
}

// TestShake runs the tests of the other packages, -sim.shake times, in a build with points
// at which goroutines yield, to find tests and code that rely on which goroutine runs
// first. The goroutines yield often at a few points, which a seed selects.
func TestShake(t *testing.T) {
	if *shakeFlag == 0 {
		t.Skip("runs with -sim.shake")
	}
	list := overlaid(t, t.TempDir(), weaveFiles(t, nil, false))
	out := testkit.Must(exec.Command("go", "list", "../../../...").Output())(t)
	packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool { return strings.Contains(p, "/internal/testing/sim") })
	first := cmp.Or(*seedFlag, randv2.Uint64()>>1)
	for seed := first; seed < first+uint64(*shakeFlag); seed++ {
		// TestBudget measures CPU time, which yielding takes.
		args := append([]string{"test", "-vet=off", "-count=1", "-shuffle=on", "-skip=^TestBudget$", "-overlay", list}, packages...)
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", perturb.EnvShake, seed))
		out, err := cmd.CombinedOutput()
		t.Logf("seed %d: %v", seed, err)
		if err != nil {
			t.Errorf("%s", out)
		}
	}
}
