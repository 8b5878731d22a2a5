package propose

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Limits of each share of an entry. Propose blocks while the clients' share of the next entry is
// full, which in turn slows the clients down.
const (
	MaxBatchCommands = 4096
	MaxBatchBytes    = 1 << 20
)

// A share is what is in an entry from one kind of callers. No kind waits for another.
type share struct{ commands, bytes int }

func (s share) full() bool { return s.commands >= MaxBatchCommands || s.bytes >= MaxBatchBytes }

// The kinds of callers.
const (
	ofClients = iota
	ofLeader  // what a leader does by itself
	kinds
)

// batcher collects commands into the next entry while the previous one is being
// stored (group commit): under load, more commands share one disk write.
type batcher struct {
	mu      sync.Mutex
	room    wake.Broadcast // the entry was taken or given up
	wake    wake.Signal    // for Proposer.Run: there is something to propose
	entry   []byte         // the encoded commands collected so far
	waiters []fsm.Waiter   // one per command
	shares  [kinds]share   // what they are from
	writes  bool           // not all of the commands are read-only
	closed  bool
}

// add adds a command to the next entry. It blocks while the share of its kind is full, and returns false if it is not added, since
// over is closed or the member has stopped.
func (b *batcher) add(c *fsm.Command, w fsm.Waiter, over <-chan struct{}, kind int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if wake.Closed(over) || b.closed {
			return false
		}
		if !b.shares[kind].full() {
			break
		}
		room := b.room.Wait()
		b.mu.Unlock()
		select {
		case <-room:
		case <-over:
		}
		b.mu.Lock()
	}
	if b.entry == nil {
		b.entry = fsm.BeginEntry(make([]byte, 0, 512))
		b.wake.Raise()
	}
	before := len(b.entry)
	b.entry = fsm.AppendCommand(b.entry, c)
	b.shares[kind].commands++
	b.shares[kind].bytes += len(b.entry) - before
	b.waiters = append(b.waiters, w)
	b.writes = b.writes || !c.ReadOnly()
	return true
}

// take returns the commands collected so far, and whether they have to be in the log,
// and starts a new entry.
func (b *batcher) take() (entry []byte, waiters []fsm.Waiter, writes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	entry, waiters, writes = b.entry, b.waiters, b.writes
	b.clear()
	return entry, waiters, writes
}

// clear starts a new entry. The caller holds mu.
func (b *batcher) clear() {
	b.entry, b.waiters, b.shares, b.writes = nil, nil, [kinds]share{}, false
	b.room.Raise()
}

// lose reports all commands collected so far as lost. It holds mu meanwhile, so that
// nothing is added before every waiter has been told: a caller that has lost a
// command cannot slip in the command after it.
func (b *batcher) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	lose(b.waiters)
	b.clear()
}

// close has commands reported as lost: all collected so far, and any proposed later.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.lose()
}

// pending is the entry that Proposer.Run has proposed and waits for. There is one at
// a time. Only Run reports its commands as lost.
type pending struct {
	mu      sync.Mutex
	number  uint64        // of the entry; 0 if it is finished or given up, or there is none
	waiters []fsm.Waiter  // one per command
	next    int           // index of the first waiter that Complete has not returned yet
	done    chan struct{} // closed by finish: the entry was applied or skipped, or may be in a snapshot that was restored
}

func (p *pending) begin(number uint64, waiters []fsm.Waiter) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.waiters, p.next, p.done = number, waiters, 0, make(chan struct{})
	return p.done
}

// end forgets the entry, and returns the waiters that Complete has not returned.
func (p *pending) end() []fsm.Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.waiters[p.next:]
	p.number, p.waiters, p.next = 0, nil, 0
	return left
}

// finish marks the entry, if there is one, as finished or given up. The caller holds mu.
func (p *pending) finish() {
	if p.number != 0 {
		p.number = 0
		close(p.done)
	}
}

// Restored is called when the state was replaced by that of a snapshot. It gives up the entry that waits: the snapshot may
// include it, and then it is never applied here.
func (p *Proposer) Restored() {
	p.pending.mu.Lock()
	defer p.pending.mu.Unlock()
	p.pending.finish()
}

// Complete implements [fsm.Completer]: it returns the waiter of the i-th command of
// an entry. Entries of an earlier run have other numbers, so they find no waiter.
func (p *Proposer) Complete(e *fsm.Envelope, i int) fsm.Waiter {
	if e.Origin != p.ID {
		return nil
	}
	x := &p.pending
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.number != e.Batch {
		return nil
	}
	if i < 0 { // skipped without being applied: its number is too low
		x.finish()
		return nil
	}
	w := x.waiters[i]
	if x.next = i + 1; x.next == len(x.waiters) {
		x.finish()
	}
	return w
}

// A member numbers its entries in ascending order, and an entry is skipped if one
// of the same member with the same or a higher number was applied before it. Entries
// of an earlier run of this member may still be on their way through the log, and
// must not be mistaken for entries of this run. So the numbers of a run start at the
// time of day, which is usually above all earlier ones; the low bits are random,
// since two runs may start at the same time of day.

// FirstNumber returns the number after which those of a run begin; ms is the time
// of day.
func FirstNumber(ms int64) uint64 {
	ms = min(max(ms, 0), 1<<43) // leaves room above, however wrong the clock is
	return uint64(ms)<<20 + random(20)
}

// NextNumber returns the number of the entry that follows the one with the given
// number; applied is the highest number of this member that has been applied here.
func NextNumber(number, applied uint64) uint64 {
	if applied <= number {
		return number + 1
	}
	// An earlier run, whose clock was ahead, wrote that entry. It may also have
	// written entries with the next numbers that are not applied yet; skip them.
	return applied + 1 + random(36)
}

// random returns a random number of the given number of bits.
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

// Result is an [fsm.Waiter] that reports only whether the command was applied.
type Result chan error

func (r Result) Done(*fsm.View, *fsm.Result) { r <- nil }

func (r Result) Lost() { r <- lifecycle.ErrClosed }

// Outcome is an [fsm.Waiter] that is called with the result of a command, or with nil if the command is lost.
type Outcome func(*fsm.Result)

func (o Outcome) Done(_ *fsm.View, r *fsm.Result) { o(r) }

func (o Outcome) Lost() { o(nil) }
