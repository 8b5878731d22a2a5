//go:debug randseednop=0
package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/sim/perturb"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

var (
	seedFlag    = flag.Uint64("sim.seed", 0, "TestSeeds: run only this seed; TestLong, TestShake: begin with it")
	countFlag   = flag.Int("sim.count", 1, "TestSeeds: run this many seeds, from sim.seed on")
	forFlag     = flag.Duration("sim.for", 0, "the longest that a run may be")
	hoursFlag   = flag.Float64("sim.hours", 0, "TestLong: run this many virtual hours")
	jobsFlag    = flag.Int("sim.jobs", runtime.NumCPU(), "TestLong: use this many processes")
	perturbFlag = flag.Bool("sim.perturb", false, "perturb schedules and pause processes (see package perturb)")
	shakeFlag   = flag.Int("sim.shake", 0, "TestShake: run the tests of the other packages this many times")
	forksFlag   = flag.String("sim.forks", "", "TestSeeds: from when on other seeds determine what happens: `TIME:SEED,...`")
	guideFlag   = flag.Bool("sim.guide", false, "TestLong: vary the runs that reach steps in kinds of states that no run before has reached")
	withoutFlag = flag.String("sim.without", "", "names of faults that are not made, with commas between them")
	keepFlag    = flag.String("sim.keep", os.TempDir(), "where to keep the histories of runs that fail")
)

// fixedSeeds always run. Some of them have found a fault.
var fixedSeeds = []uint64{1, 2, 5}

// TestSeeds runs the fixed seeds and some new ones.
func TestSeeds(t *testing.T) {
	if *perturbFlag && !perturb.Woven() {
		runWoven(t)
		return
	}
	most := *forFlag
	if most == 0 && *seedFlag == 0 {
		most = 15 * time.Second // to keep a plain go test short
	}
	seeds := slices.Clone(fixedSeeds)
	fresh := 3
	if !testkit.Thorough {
		fresh = 1
	}
	for range fresh {
		seeds = append(seeds, randv2.Uint64()>>1)
	}
	if *seedFlag != 0 {
		seeds = nil
		for i := range *countFlag {
			seeds = append(seeds, *seedFlag+uint64(i))
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			fmt.Printf("SIM-BEGIN %d\n", seed) // so that a panic can be traced to its seed
			r := run(t, seed, most)
			s := summarize(r)
			b, _ := json.Marshal(s)
			fmt.Printf("SIM %s\n", b)
			t.Logf("%+v", s)
			if !r.Failed() {
				return
			}
			path := filepath.Join(*keepFlag, fmt.Sprintf("sim-%d.jsonl", seed))
			if err := r.History.save(path); err != nil {
				t.Error(err)
			}
			t.Errorf("seed %d broke a promise; its history is in %s; run it again with: go test ./internal/testing/sim -run TestSeeds -sim.seed=%d -sim.for=%v", seed, path, seed, most)
			for _, v := range r.History.Violations {
				t.Error(v)
			}
		})
	}
}

// run runs a seed, for at most the given time unless that is 0. To repeat a run as
// closely as possible, all random numbers come from the seed, also in Raft and in the
// servers, and only one processor is used.
func run(t *testing.T, seed uint64, most time.Duration) (r *Report) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	//lint:ignore SA1019 Raft uses it
	rand.Seed(int64(seed))
	cryptotest.SetGlobalRandom(t, seed)
	o := OptionsFor(seed)
	o.Forks = forksIn(t, *forksFlag)
	if most > 0 {
		o.For = min(o.For, most)
	}
	if o.Files {
		o.Dir = t.TempDir()
	}
	if *withoutFlag != "" {
		if o.Without = strings.Split(*withoutFlag, ","); slices.Contains(o.Without, "first start") {
			o.Late = 0
		}
	}
	synctest.Test(t, func(t *testing.T) { r = Run(o) })
	r.Linearize(20 * time.Second)
	return r
}

// runWoven runs this test in a build with points (see package perturb).
func runWoven(t *testing.T) {
	binary := buildWith(t, weave(t, nil))
	cmd := exec.Command(binary, append(slices.Clone(os.Args[1:]), "-test.run=^"+t.Name()+"$")...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// TestHaveRoles checks that a member that has lost its disk counts as an observer although its own list, an old one, says that it votes.
func TestHaveRoles(t *testing.T) {
	list := func(observers ...uint64) (l []lockkeeper.Peer) {
		for id := uint64(1); id <= 3; id++ {
			l = append(l, lockkeeper.Peer{ID: id, Observer: slices.Contains(observers, id)})
		}
		return l
	}
	for _, c := range []struct {
		name  string
		lists [][]lockkeeper.Peer
		want  bool
	}{
		{"all vote", [][]lockkeeper.Peer{list(), list(), list()}, true},
		{"member 1 does not know that it is an observer", [][]lockkeeper.Peer{list(), list(1), list(1)}, false},
		{"member 1 knows no list", [][]lockkeeper.Peer{nil, list(), list()}, false},
	} {
		if got := haveRoles(c.lists, list()); got != c.want {
			t.Errorf("%s: haveRoles = %v", c.name, got)
		}
	}
}

// TestRealTime runs the same work in real time on all processors, so that goroutines
// race where in virtual time one always comes first. Under the race detector it also
// finds unsynchronized access. Limits on time are wide, or not checked. A plain go test
// does not run it without -sim.for, since it waits for most of its ten seconds.
func TestRealTime(t *testing.T) {
	if !testkit.Thorough && *forFlag == 0 {
		t.Skip("runs under the race detector, or with -sim.for")
	}
	o := OptionsFor(randv2.Uint64() >> 1)
	o.Real, o.Files, o.Pace, o.For = true, false, 1, 3*time.Second
	if *forFlag > 0 {
		o.For = *forFlag
	}
	o.ElectionTimeout = usualElection
	t.Logf("seed %d, %d members", o.Seed, o.Members)
	r := Run(o)
	r.Linearize(20 * time.Second)
	if r.Failed() {
		path := filepath.Join(*keepFlag, fmt.Sprintf("sim-real-%d.jsonl", o.Seed))
		t.Errorf("it broke a promise; its history is in %s: %v", path, r.History.save(path))
	}
	for _, v := range r.History.Violations {
		t.Error(v)
	}
	t.Logf("%+v", r.Checked)
}

// summary is the result of a run, or of several, in numbers.
type summary struct {
	Seed       uint64
	Runs       int
	Virtual    time.Duration
	Faults     Counts
	Checked    Counts
	Violations []string
	Reached    map[string]time.Duration `json:",omitempty"` // see spec.World; with -sim.guide
}

func summarize(r *Report) *summary {
	s := &summary{Seed: r.Seed, Runs: 1, Virtual: r.Virtual, Faults: r.Faults, Checked: r.Checked}
	for _, v := range r.History.Violations {
		s.Violations = append(s.Violations, v.String())
	}
	if *guideFlag {
		s.Reached = map[string]time.Duration{}
		for p, at := range r.Reached {
			s.Reached[fmt.Sprint(p)] = at
		}
	}
	return s
}

// TestLong runs seeds in several processes, for -sim.hours virtual hours in all, and
// prints a report.
func TestLong(t *testing.T) {
	if *hoursFlag == 0 {
		t.Skip("needs -sim.hours; see make sim")
	}
	const block = 10
	var (
		mu    sync.Mutex
		next  = *seedFlag
		total = summary{Faults: Counts{}, Checked: Counts{}}
		bad   []string
		wg    sync.WaitGroup
		guide = guide{reached: map[string]bool{}}
	)
	if next == 0 {
		next = randv2.Uint64() >> 1
	}
	first := next
	binary := os.Args[0]
	if *perturbFlag {
		binary = buildWith(t, weave(t, nil))
	}
	limit := time.Duration(*hoursFlag * float64(time.Hour))
	began := time.Now()
	lastSaid := began
	for range *jobsFlag {
		wg.Go(func() {
			for {
				mu.Lock()
				from, n, forks := next, block, ""
				if *guideFlag {
					n = 1
					from, forks = guide.choose(next)
				}
				if forks == "" {
					next += uint64(n)
				}
				over := total.Virtual >= limit || len(bad) > 20
				mu.Unlock()
				if over {
					return
				}
				reports, failed := process(binary, from, n, forks)
				mu.Lock()
				for _, s := range reports {
					total.Runs++
					total.Virtual += s.Virtual
					total.Checked.add(s.Checked)
					total.Faults.add(s.Faults)
					guide.learn(s, forks)
				}
				bad = append(bad, failed...)
				for _, f := range failed {
					fmt.Println(f)
				}
				if time.Since(lastSaid) > time.Minute {
					lastSaid = time.Now()
					fmt.Printf("%v: %d runs, %.1f virtual hours, %d failures\n", time.Since(began).Round(time.Second), total.Runs, total.Virtual.Hours(), len(bad))
					guide.report()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Printf("seeds %d to %d: %d histories of %.1f virtual hours, in %v\n", first, next-1, total.Runs, total.Virtual.Hours(), time.Since(began).Round(time.Second))
	for _, counts := range []Counts{total.Checked, total.Faults} {
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			fmt.Printf("  %9d %s\n", counts[what], what)
		}
	}
	guide.report()
	fmt.Printf("failures: %d\n", len(bad))
	for _, b := range bad {
		t.Error(b)
	}
}

// fastDir is in memory on most Linux systems. Runs with files need no disk, since no
// crash in them loses what was written to a file.
const fastDir = "/dev/shm"

// process runs seeds in a process of their own. It returns their summaries, and what
// failed.
func process(binary string, from uint64, n int, forks string) (reports []summary, failed []string) {
	cmd := exec.Command(binary, "-test.run=^TestSeeds$", "-test.timeout=20m",
		fmt.Sprintf("-sim.seed=%d", from), fmt.Sprintf("-sim.count=%d", n), "-sim.forks="+forks, fmt.Sprintf("-sim.guide=%v", *guideFlag),
		"-sim.keep="+*keepFlag, "-sim.without="+*withoutFlag)
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all", "GOGC=1600")
	if _, err := os.Stat(fastDir); err == nil {
		cmd.Env = append(cmd.Env, "TMPDIR="+fastDir)
	}
	out, err := cmd.CombinedOutput()
	running := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if seed, ok := strings.CutPrefix(lines.Text(), "SIM-BEGIN "); ok {
			running = seed
		} else if text, ok := strings.CutPrefix(lines.Text(), "SIM "); ok {
			var s summary
			if json.Unmarshal([]byte(text), &s) == nil {
				reports = append(reports, s)
				running = ""
				for _, v := range s.Violations {
					failed = append(failed, strings.TrimSpace(fmt.Sprintf("seed %d: %s %s", s.Seed, v, forks)))
				}
			}
		}
	}
	if err != nil && len(failed) == 0 {
		path := filepath.Join(*keepFlag, fmt.Sprintf("sim-%s.out", running))
		err = errors.Join(err, os.WriteFile(path, out, 0o644))
		failed = append(failed, fmt.Sprintf("seed %s: %v: see %s", running, err, path))
	}
	return reports, failed
}
