package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

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
	number := firstNumber(m.timeOfDay())
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
		m.replica.View(func(v *fsm.View) { number = nextNumber(number, v.LastBatch(m.cfg.ID)) })
		done := m.pending.add(number, waiters)
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: m.cfg.ID, Batch: number, Time: m.timeOfDay(), Settings: m.cfg.Settings, Count: len(waiters),
		})
		m.deliver(number, entry, done)
		m.awaitLog()
	}
}

// The numbers of a member's entries rise, and an entry is passed over if one
// with a higher number was before it. Those of an earlier run of this member may
// still be on their way through the log, and must not be taken for entries of
// this run. So a run begins with the time of day, in the hope that it is above
// those before, and below that with a random number, since the time of day may
// be the same again.

// firstNumber is what the numbers of a run begin behind; ms is the time of day.
func firstNumber(ms int64) uint64 {
	ms = min(max(ms, 0), 1<<43) // there is room above for any clock
	return uint64(ms)<<20 + random(20)
}

// nextNumber is the number of the entry behind that with the given number,
// where applied is the highest of this member that was applied here.
func nextNumber(number, applied uint64) uint64 {
	if applied <= number {
		return number + 1
	}
	// An earlier run wrote that, by a clock that was ahead. What it wrote then
	// has the numbers that follow, and may not be applied yet.
	return applied + 1 + random(36)
}

// random is a number of so many bits.
func random(bits int) uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:]) >> (64 - bits)
}

func lose(waiters []fsm.Waiter) {
	for _, w := range waiters {
		w.Lost()
	}
}

// pending holds the waiters of entries that are on their way through the log.
type pending struct {
	mu      sync.Mutex
	entries map[uint64]*pendingEntry // by number
}

type pendingEntry struct {
	waiters []fsm.Waiter
	next    int           // the first that has not been told
	done    chan struct{} // closed when all were, or the entry was passed over
}

func (p *pending) init() { p.entries = map[uint64]*pendingEntry{} }

func (p *pending) add(number uint64, waiters []fsm.Waiter) (done <-chan struct{}) {
	e := &pendingEntry{waiters: waiters, done: make(chan struct{})}
	p.mu.Lock()
	p.entries[number] = e
	p.mu.Unlock()
	return e.done
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

// drop gives up all entries: the snapshot that was restored may have them, and
// then nobody will hear of them any more.
func (p *pending) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number, e := range p.entries {
		delete(p.entries, number)
		lose(e.waiters[e.next:])
		close(e.done)
	}
}

// complete finds who waits for the i-th command of an entry (fsm.Completer).
// Numbers of an earlier run are not given again, so its entries find nobody.
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
	if i < 0 { // passed over, and was never applied: its number is too low
		delete(p.entries, e.Batch)
		lose(entry.waiters)
		close(entry.done)
		return nil
	}
	w := entry.waiters[i]
	if entry.next = i + 1; entry.next == len(entry.waiters) {
		delete(p.entries, e.Batch)
		close(entry.done)
	}
	return w
}
