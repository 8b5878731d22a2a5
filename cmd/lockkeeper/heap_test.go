package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/fstest"
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

// TestMemoryLimit: the limit of a control group is found, and Go keeps below it.
func TestMemoryLimit(t *testing.T) {
	const gib = "1073741824\n"
	tree := func(files ...string) fstest.MapFS {
		root := fstest.MapFS{}
		for i := 0; i < len(files); i += 2 {
			root[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
		}
		return root
	}
	for _, x := range []struct {
		name string
		root fstest.MapFS
		want int64
	}{
		{"no Linux", tree(), 0},
		{"a container", tree("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", gib), 1 << 30},
		{"a container without a limit", tree("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "max\n"), 0},
		{"a container that sees the path of the host", tree("proc/self/cgroup", "0::/kubepods.slice/pod1/a\n", "sys/fs/cgroup/memory.max", gib), 1 << 30},
		{"a service", tree("proc/self/cgroup", "0::/system.slice/lockkeeper.service\n", "sys/fs/cgroup/system.slice/lockkeeper.service/memory.max", gib, "sys/fs/cgroup/system.slice/memory.max", "max\n"), 1 << 30},
		{"the slice of a service", tree("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", gib, "sys/fs/cgroup/a/memory.max", "536870912\n"), 512 << 20},
		{"nothing readable", tree("proc/self/cgroup", "0::/a/b\n"), 0},
		{"damaged", tree("proc/self/cgroup", "0:\nx\n0::/\n", "sys/fs/cgroup/memory.max", "-1\n"), 0},
	} {
		if got := memoryLimit(x.root); got != x.want {
			t.Errorf("%s: %d, want %d", x.name, got, x.want)
		}
	}
	before := debug.SetMemoryLimit(-1)
	container := tree("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", gib)
	stop := keepMemoryLimit(func(string) string { return "" }, container)
	if got := debug.SetMemoryLimit(-1); got > 970<<20 || got < 900<<20 {
		t.Errorf("of 1 GiB Go uses up to %d bytes", got)
	}
	stop()
	for _, stop := range []func(){
		keepMemoryLimit(func(string) string { return "" }, tree()),
		keepMemoryLimit(func(name string) string { return map[string]string{"GOMEMLIMIT": "1GiB"}[name] }, container),
	} {
		if got := debug.SetMemoryLimit(-1); got != before {
			t.Errorf("the limit is %d, want %d", got, before)
		}
		stop()
	}
}
