package main

import (
	"io/fs"
	"path"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
)

// heapFloor is the size of the heap, in bytes, below which keepHeapFloor avoids
// collections.
const heapFloor = 32 << 20

// Percentages for [debug.SetGCPercent]: Go's default, and the one with which a heap of
// 4 MB, the smallest that Go counts on, grows to heapFloor.
const (
	defaultPercent = 100
	mostPercent    = 100 * (heapFloor - 4<<20) / (4 << 20)
)

// keepHeapFloor lets the heap grow to heapFloor before it is collected, until stop is
// called. By default Go collects it at twice what is alive. On a server with few znodes,
// that is a few megabytes, which load allocates many times per second. A fixed higher
// percentage would let a large heap grow too far, so the percentage is computed again
// after each collection. It reaches Go's default when half of heapFloor is alive.
// keepHeapFloor does nothing if the user has set GOGC or GOMEMLIMIT.
//
// It changes the whole process, so it is for the command and not for package lockkeeper.
func keepHeapFloor(getenv func(string) string) (stop func()) {
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	percent := mostPercent
	before := debug.SetGCPercent(percent)
	var mu sync.Mutex // guards percent, which stop sets to 0
	seen := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	var await func()
	await = func() {
		// A cleanup runs once after the next collection, and needs no goroutine until then.
		runtime.AddCleanup(&struct{ _ [64]byte }{}, func(struct{}) {
			mu.Lock()
			defer mu.Unlock()
			if percent == 0 {
				return
			}
			metrics.Read(seen)
			live, roots := seen[0].Value.Uint64(), seen[1].Value.Uint64()+seen[2].Value.Uint64()
			if p := gcPercent(live, roots); p != percent { // each change stops the world for a moment
				percent = p
				debug.SetGCPercent(p)
			}
			await()
		}, struct{}{})
	}
	await()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		percent = 0
		debug.SetGCPercent(before)
	}
}

// gcPercent returns the percentage, a multiple of 10, with which a heap that has live
// bytes alive grows to heapFloor. The percentage counts stacks and globals too, the roots.
func gcPercent(live, roots uint64) int {
	if live >= heapFloor {
		return defaultPercent
	}
	p := int(100 * (heapFloor - live) / max(live+roots, 1))
	return min(max(p/10*10, defaultPercent), mostPercent)
}

// keepMemoryLimit has Go collect garbage more often as the process comes near the memory that its control group
// lets it have, until stop is called. Otherwise the heap grows to twice what is alive, and the kernel kills a server
// that has much less alive than it may use. root is the root directory. keepMemoryLimit does nothing if the user has
// set GOGC or GOMEMLIMIT.
//
// Like [keepHeapFloor], it is for the command and not for package lockkeeper.
func keepMemoryLimit(getenv func(string) string, root fs.FS) (stop func()) {
	limit := memoryLimit(root)
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" || limit == 0 {
		return func() {}
	}
	before := debug.SetMemoryLimit(limit / 10 * 9) // the rest is for what Go does not count, such as mapped files
	return func() { debug.SetMemoryLimit(before) }
}

// memoryLimit returns how many bytes the control group of Linux that this process is in, and those above it, let it
// use, or 0 if they set no limit. A container sees its own group at the root of their file system, or where /proc says it is.
func memoryLimit(root fs.FS) (least int64) {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	_, group, _ := strings.Cut("\n"+string(groups), "\n0::")
	group, _, found := strings.Cut(group, "\n")
	for group = path.Clean("/" + group); found; group = path.Dir(group) {
		text, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", group, "memory.max"))
		limit, invalid := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
		if err == nil && invalid == nil && limit > 0 && (least == 0 || limit < least) {
			least = limit
		}
		if group == "/" {
			break
		}
	}
	return least
}
