package cluster

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// Limits of one entry. Who proposes beyond them waits, which in turn makes the
// clients wait.
const (
	maxBatchCommands = 4096
	maxBatchBytes    = 1 << 20
)

// batcher gathers commands while the entry before is being stored: group
// commit. The more wait, the more share the next write to disk.
type batcher struct {
	mu      sync.Mutex
	room    sync.Cond     // on mu: the entry is not full any more, or closed
	wake    chan struct{} // has an element when there is something to propose
	entry   []byte        // commands gathered so far, encoded
	waiters []fsm.Waiter  // one for each
	closed  bool
}

func (b *batcher) init() {
	b.room.L = &b.mu
	b.wake = make(chan struct{}, 1)
}

func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.room.Broadcast()
	b.mu.Unlock()
}

// take returns what has been gathered and begins anew.
func (b *batcher) take() (entry []byte, waiters []fsm.Waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	entry, waiters = b.entry, b.waiters
	b.entry, b.waiters = nil, nil
	b.room.Broadcast()
	return entry, waiters
}

// Propose puts a command into the log, after those that this caller proposed
// before. c is not used after Propose returns; w learns what came of it. It
// waits while too much else does.
func (m *Member) Propose(c *fsm.Command, w fsm.Waiter) {
	b := &m.batcher
	b.mu.Lock()
	for !b.closed && (len(b.waiters) >= maxBatchCommands || len(b.entry) >= maxBatchBytes) {
		b.room.Wait()
	}
	if b.closed {
		b.mu.Unlock()
		w.Lost()
		return
	}
	if b.entry == nil {
		b.entry = fsm.BeginEntry(make([]byte, 0, 512))
	}
	b.entry = fsm.AppendCommand(b.entry, c)
	b.waiters = append(b.waiters, w)
	first := len(b.waiters) == 1
	b.mu.Unlock()
	if first {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// runBatcher proposes one entry after the other.
func (m *Member) runBatcher() {
	defer m.wg.Done()
	number := randomUint64()
	bytes := m.stores.bytes // of log since the last snapshot
	for {
		select {
		case <-m.batcher.wake:
		case <-m.stop:
			_, waiters := m.batcher.take()
			lose(waiters)
			return
		}
		entry, waiters := m.batcher.take()
		if len(waiters) == 0 {
			continue
		}
		number++
		m.pending.add(number, waiters)
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: m.cfg.ID, Batch: number, Time: time.Now().UnixMilli(), Settings: m.cfg.Settings, Count: len(waiters),
		})
		f := m.raft.Apply(entry, 0)
		if err := f.Error(); err != nil || f.Response() != nil {
			lose(m.pending.take(number))
			continue
		}
		if bytes += int64(len(entry)); bytes >= m.snapshotDue() {
			bytes = 0
			m.takeSnapshot()
		}
	}
}

func lose(waiters []fsm.Waiter) {
	for _, w := range waiters {
		w.Lost()
	}
}

// snapshotDue is how many bytes of log make a snapshot worth its while: those
// that were configured, or as many as the snapshot would have.
func (m *Member) snapshotDue() (due int64) {
	m.replica.View(func(v *fsm.View) { due = max(m.cfg.SnapshotBytes, v.Tree().DataSize()) })
	return due
}

// takeSnapshot has Raft take a snapshot and cut its log, beside everything
// else. While an earlier one is still being written it waits, and with it
// whoever proposes: that bounds the log when writes outrun the disk. A snapshot
// that fails leaves the log longer, and Raft says so.
func (m *Member) takeSnapshot() {
	f := m.raft.Snapshot()
	m.wg.Go(func() {
		if err := f.Error(); err != nil {
			m.cfg.Log.Warn("no snapshot", "error", err)
		}
	})
}

// pending holds the waiters of entries that are on their way through the log.
type pending struct {
	mu      sync.Mutex
	entries map[uint64]*pendingEntry // by number
}

type pendingEntry struct {
	waiters []fsm.Waiter
	next    int // the first that has not been told
}

func (p *pending) init() { p.entries = map[uint64]*pendingEntry{} }

func (p *pending) add(number uint64, waiters []fsm.Waiter) {
	p.mu.Lock()
	p.entries[number] = &pendingEntry{waiters: waiters}
	p.mu.Unlock()
}

// take returns the waiters of an entry that have not been told, and forgets it.
func (p *pending) take(number uint64) []fsm.Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[number]
	if e == nil {
		return nil
	}
	delete(p.entries, number)
	return e.waiters[e.next:]
}

// complete finds who waits for the i-th command of an entry (fsm.Completer).
// Batch numbers start at random, so entries of an earlier run find nobody.
func (m *Member) complete(e *fsm.Envelope, i int) fsm.Waiter {
	if e.Origin != m.cfg.ID {
		return nil
	}
	p := &m.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.entries[e.Batch]
	if entry == nil {
		return nil
	}
	w := entry.waiters[i]
	if entry.next = i + 1; entry.next == len(entry.waiters) {
		delete(p.entries, e.Batch)
	}
	return w
}
