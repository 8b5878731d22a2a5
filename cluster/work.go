package cluster

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
)

// Work is what a member has done since it was started, for operators to watch.
type Work struct {
	LogWrites stopwatch.Durations // writes of entries to the log, until they were durable
	Snapshots stopwatch.Durations // snapshots written, of its own or received from the leader
	Elections stopwatch.Durations // times without a leader, as far as this member knew; empty if it is standalone
	Commit    uint64              // index of the last log entry that it knows to be committed
	// Entries is how many log entries it has proposed for its own clients, and Commands
	// how many commands were in them.
	Entries, Commands int64
}

// work counts what is in [Work].
type work struct {
	writes, snapshots, elections stopwatch.Stopwatch
	entries, commands            atomic.Int64
}
