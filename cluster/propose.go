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
	room    sync.Cond    // on mu: the entry is not full any more, or closed
	wake    signal       // has an element when there is something to propose
	entry   []byte       // commands gathered so far, encoded
	waiters []fsm.Waiter // one for each
	closed  bool
}

func (b *batcher) init() {
	b.room.L = &b.mu
	b.wake = newSignal()
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

// lose gives up what has been gathered. Nothing is gathered before all who wait
// for it are told, so that nothing more comes from one whose command is lost.
func (b *batcher) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	lose(b.waiters)
	b.entry, b.waiters = nil, nil
	b.room.Broadcast()
}

// close gives up what has been gathered and all that comes behind it.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.lose()
}

// Propose puts a command into the log, after those that this caller proposed
// before. c is not used after Propose returns; w learns what came of it. It
// waits while too much else does.
//
// Nothing is proposed once over is closed. If [fsm.Waiter.Lost] closes it, then
// what a caller proposes without waiting is applied in order and without a gap: behind
// a command that is lost, none is applied. It may be nil. Lost must not propose.
func (m *Member) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	b := &m.batcher
	b.mu.Lock()
	for !b.closed && (len(b.waiters) >= maxBatchCommands || len(b.entry) >= maxBatchBytes) {
		b.room.Wait()
	}
	select {
	case <-over:
		b.mu.Unlock()
		w.Lost()
		return
	default:
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
		b.wake.raise()
	}
}

// runBatcher proposes one entry after the other.
func (m *Member) runBatcher() {
	defer m.wg.Done()
	defer m.batcher.close() // nothing is gathered that nobody takes
	number := firstNumber(m.timeOfDay())
	suspended := m.leader.get().suspended
	for {
		select {
		case <-m.batcher.wake:
		case <-suspended:
			suspended = m.leader.get().suspended
			m.batcher.lose()
			continue
		case <-m.stop:
			return
		}
		entry, waiters := m.batcher.take()
		if len(waiters) == 0 {
			continue
		}
		m.replica.View(func(v *fsm.View) { number = nextNumber(number, v.LastBatch(m.cfg.ID)) })
		done := m.pending.begin(number, waiters)
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: m.cfg.ID, Batch: number, Time: m.timeOfDay(), Settings: m.cfg.Settings, Count: len(waiters),
		})
		m.deliver(number, entry, suspended, done)
		if left := m.pending.end(); len(left) > 0 {
			lose(left)
			m.batcher.lose() // it may be of the same callers
		}
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

// pending is the entry that is on its way through the log. There is one at a
// time, and runBatcher alone tells who waits for it that it is lost.
type pending struct {
	mu      sync.Mutex
	number  uint64 // 0 if nothing more will be heard of it
	waiters []fsm.Waiter
	next    int           // the first that has not been told
	done    chan struct{} // closed when nothing more will be heard of it
}

func (p *pending) begin(number uint64, waiters []fsm.Waiter) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.waiters, p.next, p.done = number, waiters, 0, make(chan struct{})
	return p.done
}

// end forgets the entry, and returns who has not been told what came of it.
func (p *pending) end() []fsm.Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.waiters[p.next:]
	p.number, p.waiters, p.next = 0, nil, 0
	return left
}

// over notes that nothing more will be heard of the entry, if there is one.
func (p *pending) over() {
	if p.number != 0 {
		p.number = 0
		close(p.done)
	}
}

// restored gives the entry up: the snapshot that was restored may have it.
func (p *pending) restored() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over()
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
	if p.number != e.Batch {
		return nil
	}
	if i < 0 { // passed over, and was never applied: its number is too low
		p.over()
		return nil
	}
	w := p.waiters[i]
	if p.next = i + 1; p.next == len(p.waiters) {
		p.over()
	}
	return w
}
