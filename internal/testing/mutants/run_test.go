//go:build unix

package mutants

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
)

var (
	numberFlag = flag.Int("mutants.n", 0, "TestMutants: try this many mutants")
	seedFlag   = flag.Uint64("mutants.seed", 1, "TestMutants: the seed that selects them")
	matchFlag  = flag.String("mutants.match", "", "TestMutants: only mutants whose names match this pattern")
	leaseFlag  = flag.Bool("mutants.leases", false, "TestMutants: only mutants of leases, expiry and votes")
	stagesFlag = flag.String("mutants.stages", "unit,directed,simulation", "TestMutants: the stages, in this order")
	seedsFlag  = flag.Int("mutants.sim", 20, "TestMutants: how many seeds of the simulation to run on each")
	outFlag    = flag.String("mutants.out", "", "TestMutants: append the results to this file, and skip the mutants that it contains")
	countFlag  = flag.Bool("mutants.count", false, "TestMutants: only count the mutants that compile")
	sampleFlag = flag.Bool("mutants.sample", false, "TestSample: run it")
)

// leases matches the mutants of the code that decides who leads and when a session
// expires.
var leases = regexp.MustCompile(`^(cluster/(contacts|forward|lead|lease|liveness|node|touches|pulse|readindex|serving|store|transport)\.go|internal/core/storage/(latch|storage|vote)\.go|session/)`)

// directed are the packages whose tests also cover other packages, the fastest first.
var directed = []string{"internal/core/server", "fsm", "internal/core/storage", "lockkeepertest", "cluster", "conform", "internal/testing/whole"}

// slow are tests that take long, each with the only package whose mutants it has to
// find.
var slow = map[string]string{"TestClientThatDoesNotRead": "internal/core/server"}

// result is the result of trying a mutant.
type result struct {
	Name, Change string
	Stage        string // the stage that found it; empty if none did
	By           string // the test, or the simulation's first violation
	Seconds      float64
}

// TestMutants builds mutants, runs the tests on them, and reports which stage found
// each of them first:
//
//	unit        the tests of the mutant's own package
//	directed    the tests of other packages that depend on it
//	simulation  seeds of internal/testing/sim with perturbed schedules, a virtual minute each
//
// Mutants that survive do not make it fail.
func TestMutants(t *testing.T) {
	if *numberFlag == 0 && !*countFlag {
		t.Skip("needs -mutants.n; see make mutants")
	}
	made, texts := all(t)
	match := regexp.MustCompile(*matchFlag)
	made = slices.DeleteFunc(made, func(m *Mutant) bool {
		return *leaseFlag && !leases.MatchString(m.Name()) || !match.MatchString(m.Name())
	})
	equivalent := map[string]bool{}
	everything, _ := all(t)
	for _, l := range readList(t, equivalentFile, everything) {
		equivalent[l.name] = true
	}
	c := newChecker(t)
	if *countFlag {
		c.count(t, made, texts, equivalent)
		return
	}

	// The order depends only on the names and the seed, so that a new mutant changes the
	// sample by at most one.
	number := func(m *Mutant) string {
		return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d %s", *seedFlag, m.Name())))
	}
	slices.SortFunc(made, func(a, b *Mutant) int { return cmp.Compare(number(a), number(b)) })
	known := earlier(t)
	r := newRunner(t)
	var tried []*Mutant
	same := 0
	for _, m := range made {
		if len(tried) == *numberFlag {
			break
		}
		if !c.compiles(m, texts) {
			continue
		}
		if equivalent[m.Name()] {
			same++
			continue
		}
		tried = append(tried, m)
		if _, ok := known[m.Name()]; ok {
			continue
		}
		began := time.Now()
		x := r.judge(t, m, texts[m.File])
		x.Seconds = time.Since(began).Round(time.Second / 10).Seconds()
		known[m.Name()] = x
		t.Logf("%d %s: %s %s (%.0f s)", len(tried), x.Name, cmp.Or(x.Stage, "SURVIVED"), x.By, x.Seconds)
		save(t, x)
	}
	report(t, tried, texts, known, same)
}

// earlier reads the results of earlier runs.
func earlier(t *testing.T) map[string]result {
	known := map[string]result{}
	b, err := os.ReadFile(*outFlag)
	if *outFlag == "" || errors.Is(err, os.ErrNotExist) {
		return known
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var x result
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatal(err)
		}
		known[x.Name] = x
	}
	return known
}

// save appends a result to the file of results.
func save(t *testing.T, x result) {
	if *outFlag == "" {
		return
	}
	f, err := os.OpenFile(*outFlag, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, _ := json.Marshal(x)
	if _, err := f.Write(append(b, '\n')); err != nil {
		t.Fatal(err)
	}
}

// report prints a table, and the mutants that survived.
func report(t *testing.T, tried []*Mutant, texts map[string]string, known map[string]result, same int) {
	var out strings.Builder
	stages := strings.Split(*stagesFlag, ",")
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "package\ttried\t%s\tsurvived\tfound\t\n", strings.Join(stages, "\t"))
	row := func(name string, of func(*Mutant) bool) {
		count, n := map[string]int{}, 0
		for _, m := range tried {
			if of(m) {
				count[known[m.Name()].Stage]++
				n++
			}
		}
		if n == 0 {
			return
		}
		fmt.Fprintf(w, "%s\t%d\t", name, n)
		for _, s := range stages {
			fmt.Fprintf(w, "%d\t", count[s])
		}
		fmt.Fprintf(w, "%d\t%d%%\t\n", count[""], 100*(n-count[""])/n)
	}
	for _, p := range packages {
		row(p, func(m *Mutant) bool { return m.Package() == p })
	}
	row("all", func(*Mutant) bool { return true })
	w.Flush()
	fmt.Fprintf(&out, "%d equivalent mutants skipped; sample with seed %d\n", same, *seedFlag)
	for _, m := range tried {
		if known[m.Name()].Stage == "" {
			fmt.Fprintf(&out, "\nsurvived: %s\n%s", m.Name(), m.Diff(texts[m.File]))
		}
	}
	t.Logf("\n%s", out.String())
}

// TestSample checks that each mutant in sampleFile is found by the test named there.
func TestSample(t *testing.T) {
	if !*sampleFlag {
		t.Skip("needs -mutants.sample; see .ci/run")
	}
	made, texts := all(t)
	byName := map[string]*Mutant{}
	for _, m := range made {
		byName[m.Name()] = m
	}
	r := newRunner(t)
	list := readList(t, sampleFile, made)
	if t.Failed() {
		return
	}
	for _, l := range list {
		m := byName[l.name]
		pkg, test, _ := strings.Cut(l.rest, " ")
		began := time.Now()
		dir := t.TempDir()
		binary, err := r.build(pkg, r.overlay(t, dir, m, texts[m.File]), dir)
		if err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		out, err := r.run(binary, pkg, 2*time.Minute, "-test.run=^"+test+"$")
		os.Remove(binary)
		if err == nil {
			t.Errorf("%s: %s in %s does not find it:\n%s", l.name, test, pkg, m.Diff(texts[m.File]))
			continue
		}
		t.Logf("%s: %s (%.1f s)", l.name, finder(out, err), time.Since(began).Seconds())
	}
}

// runner builds and runs tests.
type runner struct {
	overlays  string
	baselines map[string]time.Duration   // how long a package's tests take without a fault
	deps      map[string]map[string]bool // packages of this module that a package's tests depend on
	weaver    string                     // the test program that builds the simulation with points
}

func newRunner(t *testing.T) *runner {
	return &runner{overlays: t.TempDir(), baselines: map[string]time.Duration{}, deps: map[string]map[string]bool{}}
}

// overlay writes a list for go build -overlay that replaces a file by its mutant, and
// returns the list's path.
func (r *runner) overlay(t *testing.T, dir string, m *Mutant, src string) string {
	list, err := overlay.Write(root, dir, map[string]string{m.File: m.Apply(src)})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// build builds the tests of a package.
func (r *runner) build(pkg, overlay, dir string) (binary string, err error) {
	binary = filepath.Join(dir, strings.NewReplacer("/", "-", ".", "root").Replace(pkg)+".test")
	c := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+overlay, "-o="+binary, "./"+pkg)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
}

var errTooLong = errors.New("took too long")

// run runs a package's tests, and at its end kills every process that they started. It
// limits their time, memory and output, and gives them their own temporary directory.
func (r *runner) run(binary, pkg string, limit time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tmp, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 12000000; exec "$0" "$@"`, binary, "-test.failfast", "-test.timeout=0"}, args...)...)
	c.Dir = filepath.Join(root, pkg)
	c.Env = append(os.Environ(), "TMPDIR="+tmp)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	out := &bounded{}
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	if ctx.Err() != nil {
		err = errTooLong
	}
	return out.Bytes(), err
}

// bounded keeps only about the first 4 MiB that are written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len() < 4<<20 {
		b.Buffer.Write(p)
	}
	return len(p), nil
}

var (
	failed   = regexp.MustCompile(`--- FAIL: (\w+)`)
	panicked = regexp.MustCompile(`\.(Test\w+)\(`)
	verdict  = regexp.MustCompile(`"Violations":\["([^"]*)`)
	message  = regexp.MustCompile(`(?m)^(?:panic|fatal error): .*`)
)

// finder returns the test or violation by which a failed run found a mutant.
func finder(out []byte, err error) string {
	if err == errTooLong {
		return err.Error()
	}
	for _, re := range []*regexp.Regexp{verdict, failed, panicked} {
		if m := re.FindSubmatch(out); m != nil {
			return string(m[1])
		}
	}
	if m := message.Find(out); m != nil {
		return string(m)
	}
	return err.Error()
}

// judge runs the stages on a mutant until one finds it.
func (r *runner) judge(t *testing.T, m *Mutant, src string) result {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	x := result{Name: m.Name(), Change: m.Change()}
	overlay := r.overlay(t, dir, m, src)
	for _, stage := range strings.Split(*stagesFlag, ",") {
		switch stage {
		case "unit":
			x.By = r.tests(t, m.Package(), m, overlay, dir)
		case "directed":
			for _, pkg := range directed {
				if pkg != m.Package() && r.dependencies(t, pkg)[m.Package()] && x.By == "" {
					x.By = r.tests(t, pkg, m, overlay, dir)
				}
			}
		case "simulation":
			x.By = r.simulate(t, overlay, dir)
		default:
			t.Fatalf("unknown stage %q", stage)
		}
		if x.By != "" {
			x.Stage = stage
			break
		}
	}
	return x
}

// tests runs the tests of a package, and returns the one that finds the mutant. A test
// must fail twice, since on a busy machine it may fail by chance.
func (r *runner) tests(t *testing.T, pkg string, m *Mutant, overlay, dir string) string {
	limit := r.baseline(t, pkg)*5 + 20*time.Second
	binary, err := r.build(pkg, overlay, dir)
	if err != nil {
		t.Fatalf("%s: %v", m.Name(), err)
	}
	defer os.Remove(binary)
	var skip []string
	for name, only := range slow {
		if only != m.Package() {
			skip = append(skip, name)
		}
	}
	args := []string{"-test.skip=^(" + strings.Join(skip, "|") + ")$"}
	for range 2 {
		out, err := r.run(binary, pkg, limit, args...)
		if err == nil {
			return ""
		}
		by := finder(out, err)
		if err == errTooLong {
			return by
		}
		again := args
		if strings.HasPrefix(by, "Test") {
			again = []string{"-test.run=^" + by + "$"}
		}
		if _, err := r.run(binary, pkg, limit, again...); err != nil {
			return by
		}
	}
	return ""
}

// baseline returns how long a package's tests take without a mutant. They must pass.
func (r *runner) baseline(t *testing.T, pkg string) time.Duration {
	d, ok := r.baselines[pkg]
	if ok {
		return d
	}
	list := filepath.Join(r.overlays, "none.json")
	if err := os.WriteFile(list, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	binary, err := r.build(pkg, list, r.overlays)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(binary)
	began := time.Now()
	if out, err := r.run(binary, pkg, 10*time.Minute); err != nil {
		t.Fatalf("%s fails without a fault: %v\n%s", pkg, err, out)
	}
	r.baselines[pkg] = time.Since(began)
	return r.baselines[pkg]
}

// dependencies returns the packages of this module that a package's tests depend on.
func (r *runner) dependencies(t *testing.T, pkg string) map[string]bool {
	if r.deps[pkg] == nil {
		own := module(t) + "/"
		set := map[string]bool{}
		for _, p := range strings.Fields(golist(t, "-test", "-deps", "-f", "{{.ImportPath}}", "./"+pkg)) {
			if name, ok := strings.CutPrefix(p, own); ok {
				set[name] = true
			}
		}
		r.deps[pkg] = set
	}
	return r.deps[pkg]
}

// simulate runs seeds of the simulation with perturbed schedules until one of them finds
// the mutant.
func (r *runner) simulate(t *testing.T, overlay, dir string) string {
	if r.weaver == "" {
		list := filepath.Join(r.overlays, "none.json")
		if err := os.WriteFile(list, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		var err error
		if r.weaver, err = r.build("internal/testing/sim", list, r.overlays); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "woven.test")
	if out, err := r.run(r.weaver, "internal/testing/sim", 5*time.Minute, "-test.run=^TestSeeds$", "-sim.perturb", "-sim.changed="+overlay, "-sim.woven="+binary); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	defer os.Remove(binary)
	// The simulation itself finds what hangs. The limit must not: a busy machine is slow.
	for seed := 1; seed <= *seedsFlag; seed++ {
		out, err := r.run(binary, "internal/testing/sim", 5*time.Minute, "-test.run=^TestSeeds$", fmt.Sprintf("-sim.seed=%d", seed), "-sim.for=1m", "-sim.keep="+dir)
		if err != nil {
			return fmt.Sprintf("seed %d: %s", seed, finder(out, err))
		}
	}
	return ""
}

func golist(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir = root
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return string(out)
}

func module(t *testing.T) string { return strings.TrimSpace(golist(t, "-m")) }

// checker finds out which mutants compile, faster than the compiler would.
type checker struct {
	module   string
	fset     *token.FileSet
	importer types.Importer
	parsed   map[string]*ast.File
}

func newChecker(t *testing.T) *checker {
	exports := map[string]string{}
	args := []string{"-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	for line := range strings.Lines(golist(t, args...)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	c := &checker{module: module(t), fset: token.NewFileSet(), parsed: map[string]*ast.File{}}
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	return c
}

func (c *checker) compiles(m *Mutant, texts map[string]string) bool {
	var files []*ast.File
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if filepath.Dir(name) != m.Package() {
			continue
		}
		f := c.parsed[name]
		if f == nil || name == m.File {
			text := texts[name]
			if name == m.File {
				text = m.Apply(text)
			}
			var err error
			if f, err = parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution); err != nil {
				return false
			}
			if name != m.File {
				c.parsed[name] = f
			}
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: c.importer}
	_, err := conf.Check(c.module+"/"+m.Package(), c.fset, files, nil)
	return err == nil
}

// count prints how many mutants compile.
func (c *checker) count(t *testing.T, made []*Mutant, texts map[string]string, equivalent map[string]bool) {
	compile, same, kinds := map[string]int{}, map[string]int{}, map[string]int{}
	total := 0
	for _, m := range made {
		if !c.compiles(m, texts) {
			continue
		}
		total++
		compile[m.Package()]++
		kinds[m.Kind]++
		if equivalent[m.Name()] {
			same[m.Package()]++
		}
	}
	t.Logf("%d mutants compile, of %d: %v, %v; listed as equivalent: %v", total, len(made), compile, kinds, same)
}
