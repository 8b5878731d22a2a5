package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
