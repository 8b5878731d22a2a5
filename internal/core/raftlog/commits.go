package raftlog

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Commits holds the index and term of the newest entry that is applied locally, or that is known
// to be committed. The term is 0 if it is unknown, as after a snapshot. The zero value of Commits has no entry.
type Commits struct {
	mu          sync.Mutex
	index, term uint64
	last        atomic.Uint64  // index, for Newest
	news        wake.Broadcast // raised by Set
}

// Set replaces the newest entry.
func (c *Commits) Set(index, term uint64) {
	c.mu.Lock()
	c.index, c.term = index, term
	c.last.Store(index)
	c.news.Raise()
	c.mu.Unlock()
}

// Newest returns the index of the newest entry.
func (c *Commits) Newest() uint64 { return c.last.Load() }

// Get returns the newest entry, and a channel that is closed when there is a newer one.
func (c *Commits) Get() (index, term uint64, news <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index, c.term, c.news.Wait()
}

// LeaderCommit is how far the leader has said that the log is committed. Two more of Raft's goroutines have to
// run until the entries are applied. A client that has learned of a write from another member may send
// this one a request meanwhile, and then Await delays the request. Its methods are safe for concurrent use.
type LeaderCommit struct {
	Index  atomic.Uint64
	missed atomic.Uint64 // it did not come in time
}

// toldWait is how long a request may wait for what is committed to be applied. It usually takes
// some hundred microseconds. If it takes longer, something else is wrong, such as the disk.
const toldWait = 2 * time.Millisecond

// Hear is called for each message of a leader.
func (t *LeaderCommit) Hear(q *raft.AppendEntriesRequest) {
	if q.LeaderCommitIndex > t.Index.Load() {
		t.Index.Store(q.LeaderCommitIndex) // two at a time may leave the lower one, which does no harm
	}
}

// Await waits until that has been applied. It gives up after toldWait, once for each index:
// the entry may be one of Raft's own, which nobody applies, or may be missing here.
func (t *LeaderCommit) Await(applied *Commits, over <-chan struct{}) {
	// The leader's message may have come before the request, while the goroutine that reads it
	// has not run yet. This lets it run first.
	runtime.Gosched()
	want := t.Index.Load()
	if want <= t.missed.Load() || applied.Newest() >= want {
		return
	}
	late := time.NewTimer(toldWait)
	defer late.Stop()
	for {
		index, _, news := applied.Get()
		if index >= want {
			return
		}
		select {
		case <-news:
		case <-over:
			return
		case <-late.C:
			t.missed.Store(want)
			return
		}
	}
}
