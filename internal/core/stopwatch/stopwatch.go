// Package stopwatch measures how long something takes, each time that it happens, for
// operators to watch.
package stopwatch

import (
	"sync"
	"time"
)

// Durations is how long something has taken, each time that it happened.
type Durations struct {
	Count   int64
	Sum     time.Duration
	Buckets map[time.Duration]int64 // how many took at most that long
}

// Stopwatch measures durations. The zero value has measured none. It is safe for concurrent
// use.
type Stopwatch struct {
	mu      sync.Mutex
	count   int64
	sum     time.Duration
	buckets [buckets]int64 // the first counts those up to unit, and each next one doubles that
}

// The first bucket ends before an SSD has written anything durably, and the last at 3 s.
const (
	unit    = 100 * time.Microsecond
	buckets = 16
)

// Since counts something that began at a given time and has just ended.
func (s *Stopwatch) Since(began time.Time) {
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.sum += took
	for i := range s.buckets {
		if took <= unit<<i {
			s.buckets[i]++
			return
		}
	}
}

// Durations returns what was measured so far.
func (s *Stopwatch) Durations() Durations {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := Durations{s.count, s.sum, make(map[time.Duration]int64, buckets)}
	sum := int64(0)
	for i, n := range s.buckets {
		sum += n
		d.Buckets[unit<<i] = sum
	}
	return d
}
