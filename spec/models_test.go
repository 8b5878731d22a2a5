package spec

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

var specFlag = flag.String("spec", "", "check the models with SPIN: `what`, small or large runs, or all: the small ones and the mutants; needs spin and a C compiler")

var (
	guards  = regexp.MustCompile(`\b(?:NO|WITHOUT)_[A-Z_]+\b`)
	result  = regexp.MustCompile(`errors: (\d+)\s+(\S+) states, stored`)
	broken  = regexp.MustCompile(`(?m)^pan:1: .*`)
	cutOff  = regexp.MustCompile(`max search depth too small|out of memory|VECTORSZ`)
	comment = regexp.MustCompile(`(?m)^// (small|large|mutants|pan): *(.*)$`)
)

// TestModels has SPIN go through all states of each model. A model begins with lines such as
//
//	// small: -DMEMBERS=3 -DCRASHES=1
//	// large: -DMEMBERS=3 -DCRASHES=2
//	// mutants: -DMEMBERS=3 -DCRASHES=1
//	// pan: -DSAFETY -DCOLLAPSE
//
// which say how it is checked in each size, and how SPIN's program is compiled. Each size may have several lines, each a run of
// its own. Each name NO_... in it is a guard that can be taken out, and each WITHOUT_... a condition that the docs state. It is 0
// (not defined, if there is an #ifdef for it); in the runs of mutants one of them is 1, and the model must fail.
func TestModels(t *testing.T) {
	if *specFlag == "" {
		t.Skip("needs -spec=small, -spec=large or -spec=all; see make spec")
	}
	files, err := filepath.Glob("*.pml")
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	for _, file := range files {
		text := testkit.Must(os.ReadFile(file))(t)
		m := model{file: file, text: string(text), runs: map[string][]string{}}
		for _, line := range comment.FindAllStringSubmatch(m.text, -1) {
			m.runs[line[1]] = append(m.runs[line[1]], line[2])
		}
		m.runs["all"] = m.runs["small"]
		if len(m.runs[*specFlag]) == 0 {
			t.Errorf("%s has no line for %s runs", file, *specFlag)
		}
		name := strings.TrimSuffix(file, ".pml")
		for _, with := range m.runs[*specFlag] {
			t.Run(name+" "+with, func(t *testing.T) {
				if m.fails(t, with, "") {
					t.Error("it breaks a promise")
				}
			})
		}
		for _, guard := range m.guards() {
			if *specFlag == "all" {
				t.Run(name+" "+guard, func(t *testing.T) {
					if !slices.ContainsFunc(m.runs["mutants"], func(with string) bool { return m.fails(t, with, guard) }) {
						t.Error("nothing fails without it")
					}
				})
			}
		}
	}
}

type model struct {
	file, text string
	runs       map[string][]string // what its head has for each size
}

func (m *model) guards() []string {
	return slices.Compact(slices.Sorted(slices.Values(guards.FindAllString(m.text, -1))))
}

// fails reports whether SPIN finds an error without a guard.
func (m *model) fails(t *testing.T, with, without string) bool {
	path := testkit.Must(filepath.Abs(m.file))(t)
	defines, value := with, map[bool]string{true: "=1", false: "=0"}
	for _, guard := range m.guards() {
		defines += " -D" + guard + value[guard == without]
	}
	pan := strings.Join(m.runs["pan"], " ")
	began := time.Now()
	cmd := exec.Command("sh", "-ec", "spin -a "+defines+` "$0"; gcc -O1 -w -o pan `+pan+" pan.c; ./pan -m10000000 -w24", path)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	found := result.FindSubmatch(out)
	if found == nil || cutOff.Match(out) {
		t.Fatalf("SPIN did not go through all states:\n%s", out)
	}
	took := time.Since(began).Round(100 * time.Millisecond)
	t.Logf("%s: %s states, %s errors, %v %s", with, found[2], found[1], took, broken.Find(out))
	return string(found[1]) != "0"
}
