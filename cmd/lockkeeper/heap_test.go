package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// currentPercent returns what was last set with debug.SetGCPercent.
func currentPercent() int {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}

// TestHeapFloor checks that the heap grows to 32 MB while little of it is alive, and by
// its own size when it is large.
func TestHeapFloor(t *testing.T) {
	before := currentPercent()
	stop := keepHeapFloor(func(string) string { return "" })
	await := func(what string, ok func(percent int) bool) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { runtime.GC(); return ok(currentPercent()) })
	}
	if got := currentPercent(); got != 700 {
		t.Errorf("at the start: GOGC is %d, want 700", got)
	}
	large := make([]byte, 64<<20)
	await("with 64 MB alive", func(p int) bool { return p == 100 })
	runtime.KeepAlive(large)
	await("with them collected", func(p int) bool { return p > 100 })
	stop()
	for range 3 { // cleanups of earlier collections change nothing any more
		runtime.GC()
		time.Sleep(time.Millisecond)
		if got := currentPercent(); got != before {
			t.Fatalf("after stop: GOGC is %d, want %d", got, before)
		}
	}
}

func TestHeapFloorLeavesSettings(t *testing.T) {
	before := currentPercent()
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		stop := keepHeapFloor(func(n string) string {
			if n == name {
				return "50"
			}
			return ""
		})
		if got := currentPercent(); got != before {
			t.Errorf("with %s: GOGC is %d, want %d", name, got, before)
			debug.SetGCPercent(before)
		}
		stop()
	}
}

func TestGCPercent(t *testing.T) {
	for _, x := range []struct {
		live, roots uint64
		want        int
	}{
		{0, 0, 700}, {1 << 20, 0, 700}, {4 << 20, 0, 700}, {8 << 20, 0, 300}, {8 << 20, 2 << 20, 240},
		{8 << 20, 24 << 20, 100}, {16 << 20, 0, 100}, {17 << 20, 0, 100}, {1 << 30, 0, 100},
	} {
		if got := gcPercent(x.live, x.roots); got != x.want {
			t.Errorf("gcPercent(%d, %d) = %d, want %d", x.live, x.roots, got, x.want)
		}
	}
}
