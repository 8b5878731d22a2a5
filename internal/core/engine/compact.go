package engine

import (
	"sync"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// EntryCost is the minimum number of bytes that an entry counts for, since raft.db
// adds some to each. It also bounds the number of entries in a log of short ones.
const EntryCost = 256

// compactor has Raft take snapshots and truncate its log. It counts the bytes of log
// since the last snapshot, to decide when the next is due: Raft would count entries,
// but an entry may hold one command or thousands. Its goroutine is run. Its methods
// are safe for concurrent use.
type compactor struct {
	engine *Engine
	bytes  int64 // Config.SnapshotBytes

	mu      sync.Mutex
	due     wake.Signal   // for run
	grown   int64         // bytes applied since the newest snapshot was begun; each entry counts at least EntryCost
	entries int64         // applied since then
	taking  bool          // a snapshot is due or being taken
	full    chan struct{} // see room
}

func newCompactor(e *Engine) *compactor {
	return &compactor{engine: e, bytes: e.cfg.SnapshotBytes, due: wake.NewSignal()}
}

// grew counts an entry that was applied. It takes the replica's lock, so the caller
// must not hold it.
func (c *compactor) grew(bytes int) {
	var limit int64 // of the bytes that make a snapshot due
	c.engine.replica.View(func(v *fsm.View) { limit = max(c.bytes, v.Tree().DataSize()) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grown += max(int64(bytes), EntryCost)
	c.entries++
	if c.grown < limit {
		return
	}
	if !c.taking {
		c.taking = true
		c.due.Raise()
	}
	if c.full == nil {
		c.full = make(chan struct{})
	}
}

// room does what [Engine.Full] says. This bounds the log when writes outrun the disk.
func (c *compactor) room() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full
}

// makeRoom notes that there is room in the log. The caller holds mu.
func (c *compactor) makeRoom() {
	if c.full != nil {
		close(c.full)
		c.full = nil
	}
}

// run has Raft take a snapshot and truncate its log when one is due. If a snapshot
// fails, also because of the disk, that is no fault of this member: nothing has been
// promised that depends on it. The log stays longer, and the next one is tried as usual.
// If the disk is full or broken, writing the log fails too, and that is a fault.
func (c *compactor) run() {
	for {
		select {
		case <-c.due:
		case <-c.engine.Stop:
			return
		}
		grown, entries := c.begin()
		if c.engine.transport != nil {
			// Keep about SnapshotBytes of log for members that lag: sending them
			// log is cheaper than sending the snapshot.
			trailing := uint64(max(1, c.bytes*entries/max(1, grown)))
			if err := c.engine.Configure(func(r *raft.ReloadableConfig) { r.TrailingLogs = trailing }); err != nil {
				c.engine.cfg.Log.Warn("cannot set how much log to keep after a snapshot", "error", err)
			}
		}
		if err := c.engine.TakeSnapshot(); err != nil {
			c.engine.cfg.Log.Warn("cannot take a snapshot", "error", err)
		}
		c.mu.Lock()
		c.taking = false
		c.makeRoom()
		c.mu.Unlock()
	}
}

// begin begins to count for the next snapshot, and returns what was counted for the one that is due.
func (c *compactor) begin() (grown, entries int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	grown, entries = c.grown, c.entries
	c.grown, c.entries = 0, 0
	c.makeRoom()
	return grown, entries
}

// TakeSnapshot has Raft take a snapshot, and shorten its log. It gives up, without an error, if the leader has sent one
// that covers all of it.
func (e *Engine) TakeSnapshot() error {
	e.disk.Saving.Turn.Take()
	defer e.disk.Saving.Turn.Give()
	if err := e.raft.Snapshot().Error(); !e.disk.Saving.Superseded.Load() {
		return err
	}
	return nil
}
