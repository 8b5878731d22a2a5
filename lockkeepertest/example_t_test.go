package lockkeepertest_test

import (
	"fmt"
	"log"
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

func (t *exampleT) Error(args ...any)                 { fmt.Println(args...) } // makes the example fail, since its output differs
func (t *exampleT) Errorf(format string, args ...any) { t.Error(fmt.Sprintf(format, args...)) }
func (t *exampleT) Fatal(args ...any)                 { log.Fatal(args...) }
func (t *exampleT) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

func (t *exampleT) end() {
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		f := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		f()
	}
}
