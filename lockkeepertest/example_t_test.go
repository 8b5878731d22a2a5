package lockkeepertest_test

import (
	"fmt"
	"log"
	"strings"
	"testing"
)

// exampleT is a testing.TB for examples, which have none.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func newT() *exampleT { return new(exampleT) }

func (t *exampleT) Helper()          {}
func (t *exampleT) Failed() bool     { return false }
func (t *exampleT) Name() string     { return "Example" }
func (t *exampleT) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *exampleT) Error(args ...any)                 { t.Errorf("%s", fmt.Sprint(args...)) }
func (t *exampleT) Fatal(args ...any)                 { log.Fatal(args...) }
func (t *exampleT) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// Errorf prints the first line of an error. If it is not expected, the example fails, since
// its output differs. The other lines of a [lockkeepertest.Guard]'s verdict contain the ids
// of sessions, which are different each time.
func (t *exampleT) Errorf(format string, args ...any) {
	line, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	fmt.Println(line)
}

func (t *exampleT) end() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		f := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		f()
	}
}
