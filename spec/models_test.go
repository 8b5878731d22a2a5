package spec

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var specFlag = flag.String("spec", "", "check the models with SPIN: `what`, small or large runs, or all: the small ones and the mutants; needs spin and a C compiler")

var (
	guards  = regexp.MustCompile(`\b(?:NO|WITHOUT)_[A-Z_]+\b`)
	errs    = regexp.MustCompile(`errors: (\d+)`)
	states  = regexp.MustCompile(`(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored`)
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
// which say how it is checked in each size, and how SPIN's program is compiled. Each size may have several lines, each a run of its
// own. Each name NO_... in it is a guard that can be taken out, and each WITHOUT_... a condition that the docs state: with it
// defined, in the runs of mutants, the model must fail.
func TestModels(t *testing.T) {
	if *specFlag == "" {
		t.Skip("needs -spec=small, -spec=large or -spec=all; see make spec")
	}
	files, err := filepath.Glob("*.pml")
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		runs := map[string][]string{}
		for _, m := range comment.FindAllStringSubmatch(string(text), -1) {
			runs[m[1]] = append(runs[m[1]], m[2])
		}
		name := strings.TrimSuffix(file, ".pml")
		size := *specFlag
		if size == "all" {
			size = "small"
		}
		for _, with := range runs[size] {
			t.Run(name+" "+with, func(t *testing.T) {
				failed, out, said := verify(t, file, with, runs["pan"])
				if failed {
					t.Errorf("%s\n%s", said, out)
				}
				t.Log(said)
			})
		}
		if *specFlag != "all" {
			continue
		}
		all := guards.FindAllString(string(text), -1)
		slices.Sort(all)
		for _, guard := range slices.Compact(all) {
			t.Run(name+" "+guard, func(t *testing.T) {
				for _, with := range runs["mutants"] {
					failed, _, said := verify(t, file, with+" -D"+guard, runs["pan"])
					t.Log(said)
					if failed {
						return
					}
				}
				t.Error("nothing fails without it")
			})
		}
	}
}

// verify reports whether SPIN finds an error in a model, what it prints, and that in short.
func verify(t *testing.T, file, with string, pan []string) (failed bool, out []byte, said string) {
	dir := t.TempDir()
	began := time.Now()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) []byte {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return out
	}
	run("spin", slices.Concat([]string{"-a"}, strings.Fields(with), []string{file})...)
	run("gcc", slices.Concat([]string{"-O1", "-w", "-o", "pan"}, strings.Fields(strings.Join(pan, " ")), []string{"pan.c"})...)
	out = run("./pan", "-m10000000", "-w24")
	n := errs.FindSubmatch(out)
	if n == nil || bytes.Contains(out, []byte("max search depth too small")) || cutOff.Match(out) {
		t.Fatalf("SPIN did not go through all states:\n%s", out)
	}
	stored := ""
	if m := states.FindSubmatch(out); m != nil {
		stored = string(m[1])
	}
	return string(n[1]) != "0", out, fmt.Sprintf("%s %s: %s states, %s errors, %v", filepath.Base(file), with, stored, n[1], time.Since(began).Round(100*time.Millisecond))
}
