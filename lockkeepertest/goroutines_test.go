package lockkeepertest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing notes what a test would fail with.
type failing struct {
	testing.TB
	said []string
}

func (f *failing) Helper()                        {}
func (f *failing) Errorf(format string, a ...any) { f.said = append(f.said, fmt.Sprintf(format, a...)) }

// TestGoroutinesLeftBehind: a test fails if its server has left a goroutine behind, but not
// if the goroutine ends soon.
func TestGoroutinesLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		s := &Server{common: common{t: f}, label: t.Name() + "-1"}
		s.labelled(func() { go time.Sleep(time.Second) })
		began := time.Now()
		s.checkGoroutines()
		if took := time.Since(began); len(f.said) != 0 || took < time.Second || took > time.Second+100*time.Millisecond {
			t.Errorf("after %v: %q", took, f.said)
		}
		stop := make(chan struct{})
		s.labelled(func() { go func() { <-stop }() })
		s.checkGoroutines()
		if len(f.said) != 1 || !strings.Contains(f.said[0], s.label) || !strings.Contains(f.said[0], "TestGoroutinesLeftBehind") {
			t.Errorf("it says %.2000q", f.said)
		}
		close(stop)
	})
}
