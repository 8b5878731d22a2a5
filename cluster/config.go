package cluster

import (
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Config says how to run a [Member].
type Config struct {
	membership.Server

	Network peer.Network // how members reach each other; nil means TCP
	// ElectionTimeout is how long the leader, or a majority, may be silent
	// before a member gives it up; 0 means 2 s.
	ElectionTimeout time.Duration

	Dir      string           // where to keep the log; empty means Memory
	LogStore storage.LogStore // how; empty means as it is there, or the first of storage.LogStores
	Memory   *storage.Memory  // used if Dir is empty; nil means a new one

	Tick          time.Duration // granularity of session expiry
	ReapInterval  time.Duration // how often expired container and TTL znodes are deleted
	SnapshotBytes int64         // take a snapshot after this much log
	Settings      fsm.Settings
	Log           *slog.Logger // its handler must not block: nothing here can wait for it
	// AllowSingleVoter lets a client's reconfig leave a single voter.
	AllowSingleVoter bool
	// TimeOfDay is the wall clock, used to stamp entries and to expire TTL
	// znodes; nil means time.Now. Timers and sessions do not depend on it.
	TimeOfDay func() time.Time
	membership.Answers
	Probes
}

// Probes are for tests.
type Probes struct {
	// DiskFirst has this member, as the leader, write an entry to its disk before it sends it to the others.
	DiskFirst bool
	Trace     Trace // is told what the member does; nil is nobody
}
