package cluster

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
)

// Work is what a member has done since it was started, for operators to watch.
type Work struct {
	LogWrites stopwatch.Durations // writes of entries to the log, until they were durable
	Snapshots stopwatch.Durations // snapshots written, of its own or received from the leader
	Commit    uint64              // index of the last log entry that it knows to be committed
	// Entries is how many log entries it has proposed for its own clients, and Commands
	// how many commands were in them.
	Entries, Commands int64
}

// Work may be called at any time after Start, also after Close.
func (m *Member) Work() Work {
	w := &m.raft.work
	return Work{w.writes.Durations(), w.snapshots.Durations(), m.raft.log.committed(m.raft.CommitIndex()), w.entries.Load(), w.commands.Load()}
}

// work counts what is in [Work].
type work struct {
	writes, snapshots stopwatch.Stopwatch
	entries, commands atomic.Int64
}

// watchedSnapshots is a snapshot store that measures how long snapshots take, and notes why
// one could not be written.
type watchedSnapshots struct {
	raft.SnapshotStore
	n *node
}

func (s watchedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
	if err != nil {
		s.n.unwritten.Store(&err)
		return nil, err
	}
	return watchedSink{sink, s.n, time.Now()}, nil
}

type watchedSink struct {
	raft.SnapshotSink
	n     *node
	began time.Time
}

func (s watchedSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	if err != nil {
		s.n.unwritten.Store(&err)
	}
	return n, err
}

func (s watchedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err != nil {
		s.n.unwritten.Store(&err)
	} else {
		s.n.work.snapshots.Since(s.began)
	}
	return err
}
