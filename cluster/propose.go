package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"runtime"
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// Limits of one entry. Propose blocks while the next entry is full, which in turn
// slows the clients down.
const (
	maxBatchCommands = 4096
	maxBatchBytes    = 1 << 20
)

// proposer gets the commands of this member's clients into the log. Its goroutines are
// run, which ends with the member, and those that linkTo starts for a connection to the
// leader. Its methods are safe for concurrent use.
type proposer struct {
	*lifecycle
	*clock
	id       uint64
	settings fsm.Settings
	raft     *node
	replica  *fsm.Replica
	leader   *knownLeader
	index    *readIndex
	peers    *peerPort // nil on a standalone server
	// awaitLog blocks while the log is too long for another entry.
	awaitLog func()

	batcher batcher
	pending pending
	link    leaderLink // carries proposals while another member leads
	sizes   proposals
}

func newProposer(l *lifecycle, clock *clock, cfg *Config, n *node, replica *fsm.Replica, leader *knownLeader, index *readIndex, peers *peerPort, awaitLog func()) *proposer {
	p := &proposer{
		lifecycle: l, clock: clock, id: cfg.ID, settings: cfg.Settings, raft: n, replica: replica,
		leader: leader, index: index, peers: peers, awaitLog: awaitLog, link: newLeaderLink(),
	}
	p.batcher.wake = newSignal()
	p.sizes.reset()
	return p
}

// Propose queues a command for the log, after all that the same caller proposed
// before, and reports its outcome to w. It blocks while the next entry is full, until over is
// closed. It does not retain c.
//
// Once over is closed, commands are reported as lost and not proposed; over may be
// nil. A caller whose [fsm.Waiter.Lost] closes over may propose many commands
// without waiting for each: they are applied in order, and none is applied after one
// that was lost. Lost must not call Propose.
func (m *Member) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	m.proposer.propose(c, w, over)
}

// batcher collects commands into the next entry while the previous one is being
// stored (group commit): under load, more commands share one disk write.
type batcher struct {
	mu      sync.Mutex
	room    chan struct{} // closed when the entry is taken or given up; nil if nobody waits for that
	wake    signal        // for proposer.run: there is something to propose
	entry   []byte        // the encoded commands collected so far
	waiters []fsm.Waiter  // one per command
	writes  bool          // not all of the commands are read-only
	closed  bool
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
	b.entry, b.waiters, b.writes = nil, nil, false
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
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

// close reports as lost all commands collected so far and any proposed later.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.lose()
}

// propose implements [Member.Propose].
func (p *proposer) propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	b := &p.batcher
	b.mu.Lock()
	for !b.closed && (len(b.waiters) >= maxBatchCommands || len(b.entry) >= maxBatchBytes) {
		if b.room == nil {
			b.room = make(chan struct{})
		}
		room := b.room
		b.mu.Unlock()
		select {
		case <-room:
		case <-over:
			w.Lost()
			return
		}
		b.mu.Lock()
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
	b.writes = b.writes || !c.ReadOnly()
	first := len(b.waiters) == 1
	b.mu.Unlock()
	if first {
		b.wake.raise()
	}
}

// run proposes the collected commands, one entry at a time: the next is
// proposed when the outcome of the previous one is known, or it is given up. An entry
// whose commands are all read-only is not stored: read answers it. Read-only commands
// among others are in the log, where they cost nothing and need no other way to keep their
// place.
func (p *proposer) run() {
	defer p.batcher.close() // commands proposed later are lost at once
	number := firstNumber(p.timeOfDay())
	suspended := p.leader.get().suspended
	for {
		select {
		case <-p.batcher.wake:
		case <-suspended:
			suspended = p.leader.get().suspended
			p.batcher.lose()
			continue
		case <-p.stop:
			return
		}
		// Goroutines that can run may be about to propose a command. Letting each run once
		// costs little, and the more commands share an entry, the less each costs.
		runtime.Gosched()
		entry, waiters, writes := p.batcher.take()
		if len(waiters) == 0 {
			continue
		}
		if !writes {
			if !p.read(entry, waiters, suspended) {
				lose(waiters)
				p.batcher.lose() // as below
			}
			continue
		}
		p.raft.work.entries.Add(1)
		p.raft.work.commands.Add(int64(len(waiters)))
		p.replica.View(func(v *fsm.View) { number = nextNumber(number, v.LastBatch(p.id)) })
		done := p.pending.begin(number, waiters)
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: p.id, Batch: number, Time: p.timeOfDay(), Settings: p.settings, Count: len(waiters),
		})
		p.deliver(number, entry, suspended, done)
		if left := p.pending.end(); len(left) > 0 {
			lose(left)
			p.batcher.lose() // it may be of the same callers, whose commands must not overtake lost ones
		}
		p.awaitLog()
	}
}

// A member numbers its entries in ascending order, and an entry is skipped if one
// of the same member with the same or a higher number was applied before it. Entries
// of an earlier run of this member may still be on their way through the log, and
// must not be mistaken for entries of this run. So the numbers of a run start at the
// time of day, which is usually above all earlier ones; the low bits are random,
// since two runs may start at the same time of day.

// firstNumber returns the number after which those of a run begin; ms is the time
// of day.
func firstNumber(ms int64) uint64 {
	ms = min(max(ms, 0), 1<<43) // leaves room above, however wrong the clock is
	return uint64(ms)<<20 + random(20)
}

// nextNumber returns the number of the entry that follows the one with the given
// number; applied is the highest number of this member that has been applied here.
func nextNumber(number, applied uint64) uint64 {
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

// pending is the entry that proposer.run has proposed and waits for. There is one at
// a time. Only run reports its commands as lost.
type pending struct {
	mu      sync.Mutex
	number  uint64        // of the entry; 0 if it is finished or given up
	waiters []fsm.Waiter  // one per command
	next    int           // index of the first waiter that complete has not returned yet
	done    chan struct{} // closed when number becomes 0
}

func (p *pending) begin(number uint64, waiters []fsm.Waiter) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.waiters, p.next, p.done = number, waiters, 0, make(chan struct{})
	return p.done
}

// end forgets the entry, and returns the waiters that complete has not returned.
func (p *pending) end() []fsm.Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.waiters[p.next:]
	p.number, p.waiters, p.next = 0, nil, 0
	return left
}

// over marks the entry, if there is one, as finished. The caller holds mu.
func (p *pending) over() {
	if p.number != 0 {
		p.number = 0
		close(p.done)
	}
}

// restored gives the entry up after a snapshot was restored: the snapshot may
// include the entry, which is then never applied here.
func (p *pending) restored() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over()
}

// complete implements [fsm.Completer]: it returns the waiter of the i-th command of
// an entry. Entries of an earlier run have other numbers, so they find no waiter.
func (p *proposer) complete(e *fsm.Envelope, i int) fsm.Waiter {
	if e.Origin != p.id {
		return nil
	}
	return p.pending.complete(e.Batch, i)
}

func (p *pending) complete(number uint64, i int) fsm.Waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.number != number {
		return nil
	}
	if i < 0 { // skipped without being applied: its number is too low
		p.over()
		return nil
	}
	w := p.waiters[i]
	if p.next = i + 1; p.next == len(p.waiters) {
		p.over()
	}
	return w
}
