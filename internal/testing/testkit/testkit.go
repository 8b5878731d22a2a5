// Package testkit has what the tests of several packages share: transcripts, generated
// parts of documents, seeds of random tests, certificates, ports, directories in memory,
// measurements of memory and processor time, and waiting for a condition or for the end
// of goroutines. Only tests import it.
package testkit

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "update transcripts and generated files, for review as a diff")

// Tests have small heaps, and collecting them at every doubling takes a fifth of the
// processor time of the whole suite. A heap that becomes large is still collected often.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(1 << 30)
	}
}

// Transcripts runs the transcripts in testdata/*.txt, each with a new call of start.
//
// A transcript is a list of commands, each followed by a line of dashes and the
// command's output, up to an empty line. A command is one line and the indented lines
// after it. Lines that start with # are comments:
//
//	create /a data=x
//	----
//	Ok /a
//	  created /a
//
// The output must be the same in every run. With the flag -rewrite, Transcripts updates
// the files instead, so that the change can be reviewed as a diff. A new transcript
// therefore needs only its commands, separated by empty lines.
func Transcripts(t *testing.T, start func(t *testing.T) (run func(command []string) string)) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts in testdata ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(string(b), start(t))
			settle(t, file, "", got, string(b), got)
		})
	}
}

// play returns the transcript with the output that run returns now.
func play(text string, run func(command []string) string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if line := lines[i]; line == "" || line[0] == '#' {
			out.WriteString(line + "\n")
			i++
			continue
		}
		var command []string
		for ; i < len(lines) && lines[i] != "----" && lines[i] != ""; i++ {
			command = append(command, lines[i])
		}
		for i < len(lines) && lines[i] != "" { // the recorded output
			i++
		}
		out.WriteString(strings.Join(command, "\n") + "\n----\n" + run(command))
	}
	return out.String()
}

// settle reports where a text, or the part of it that where names, is not what it should be. With the flag -rewrite it
// writes the file instead.
func settle(t *testing.T, file, where, is, should, text string) {
	t.Helper()
	switch {
	case is == should:
	case *rewrite:
		Check(t, os.WriteFile(file, []byte(text), 0o644))
	default:
		line, is, should := firstDifference(is, should)
		t.Errorf("%s: line %d%s is %q, should be %q (-rewrite updates it)", file, line, where, is, should)
	}
}

func firstDifference(a, b string) (line int, inA, inB string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for line < len(x)-1 && line < len(y)-1 && x[line] == y[line] {
		line++
	}
	return line + 1, x[line], y[line]
}

// Thorough reports whether a test that goes through many offsets, sizes or random cases
// goes through all of them: if LOCKKEEPER_THOROUGH is set, as in the nightly run. A plain go test
// goes through a part, so that it takes less than two minutes.
var Thorough = os.Getenv("LOCKKEEPER_THOROUGH") != ""

// Nightly reports whether a test of random runs, each of which takes long, makes all of them: if LOCKKEEPER_THOROUGH is
// set, as in the nightly run, but not under the race detector. Otherwise it makes a few.
var Nightly = os.Getenv("LOCKKEEPER_THOROUGH") != "" && !Race

// SlowUnderRace skips a test under the race detector, which makes it slow, and with which Go's runtime has
// crashed in thousands of bubbles with timers. CI runs such tests of cluster without the detector.
func SlowUnderRace(t *testing.T) {
	if Race {
		t.Skip("slow under the race detector")
	}
}

// Seed returns the seed for a test's random numbers: LOCKKEEPER_SEED if it is set, and
// otherwise a random one. If the test fails, its log shows the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("LOCKKEEPER_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to reproduce: LOCKKEEPER_SEED=%d", seed)
		}
	})
	return seed
}

// Allocated returns how many bytes this process allocates while f runs.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Unblocked returns a log for servers under test. It fails the test if it gets a line from anybody but the
// queue in front of it: whoever else calls it would wait while it blocks.
func Unblocked(t testing.TB) *slog.Logger { return slog.New(unblocked{t}) }

type unblocked struct{ t testing.TB }

func (u unblocked) Enabled(context.Context, slog.Level) bool { return true }
func (u unblocked) WithAttrs([]slog.Attr) slog.Handler       { return u }
func (u unblocked) WithGroup(string) slog.Handler            { return u }
func (u unblocked) Handle(_ context.Context, r slog.Record) error {
	if !inQueue() {
		u.t.Errorf("whoever logs this waits for the log: %s", r.Message)
	}
	return nil
}

// inQueue reports whether a method of logqueue.Queue is on the stack.
func inQueue() bool {
	var pcs [100]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "/logqueue.(*Queue).") {
			return true
		}
		if !more {
			return false
		}
	}
}

// GeneratedFile checks that a file has the given text. With the flag -rewrite it writes
// the file instead.
func GeneratedFile(t *testing.T, file, want string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !*rewrite {
		t.Fatalf("%v (-rewrite creates it)", err)
	}
	settle(t, file, "", string(b), want, want)
}

// Generated checks that the part of a file between the lines "<!-- NAME -->" and
// "<!-- end of NAME -->" is the given text. With the flag -rewrite it updates the file
// instead.
func Generated(t *testing.T, file, name, want string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), "<!-- "+name+" -->\n")
	was, after, ok2 := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no part named %q", file, name)
	}
	text := before + "<!-- " + name + " -->\n" + want + "<!-- end of " + name + " -->\n" + after
	settle(t, file, fmt.Sprintf(" of the part %q", name), was, want, text)
}
