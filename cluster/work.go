package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Work is what a member has done since it was started, for operators to watch.
type Work struct {
	LogWrites Durations // writes of entries to the log, until they were durable
	Snapshots Durations // snapshots written, of its own or received from the leader
	Commit    uint64    // index of the last log entry that it knows to be committed
	// Entries is how many log entries it has proposed for its own clients, and Commands
	// how many commands were in them.
	Entries, Commands int64
}

// Durations is how long something has taken, each time that it happened.
type Durations struct {
	Count   int64
	Sum     time.Duration
	Buckets map[time.Duration]int64 // how many took at most that long
}

// Work may be called at any time after Start, also after Close.
func (m *Member) Work() Work {
	w := &m.raft.work
	return Work{w.writes.durations(), w.snapshots.durations(), m.raft.CommitIndex(), w.entries.Load(), w.commands.Load()}
}

// work counts what is in [Work].
type work struct {
	writes, snapshots stopwatch
	entries, commands atomic.Int64
}

// stopwatch measures durations. It is safe for concurrent use.
type stopwatch struct {
	mu      sync.Mutex
	count   int64
	sum     time.Duration
	buckets [16]int64 // the first counts those up to bucketUnit, and each next one doubles that
}

// bucketUnit is less than an SSD takes to write durably; the last bucket ends at 3 s.
const bucketUnit = 100 * time.Microsecond

// since counts something that began at a given time and has just ended.
func (s *stopwatch) since(began time.Time) {
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.sum += took
	for i := range s.buckets {
		if took <= bucketUnit<<i {
			s.buckets[i]++
			return
		}
	}
}

func (s *stopwatch) durations() Durations {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := Durations{s.count, s.sum, map[time.Duration]int64{}}
	sum := int64(0)
	for i, n := range s.buckets {
		sum += n
		d.Buckets[bucketUnit<<i] = sum
	}
	return d
}

// timedSnapshots is a snapshot store that measures how long snapshots take.
type timedSnapshots struct {
	raft.SnapshotStore
	times *stopwatch
}

func (s timedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return timedSink{sink, s.times, time.Now()}, nil
}

type timedSink struct {
	raft.SnapshotSink
	times *stopwatch
	began time.Time
}

func (s timedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.times.since(s.began)
	}
	return err
}
