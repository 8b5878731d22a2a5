package cluster

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
)

// work counts what is in report.Work.
type work struct {
	writes, snapshots, elections stopwatch.Stopwatch
	entries, commands            atomic.Int64
}
