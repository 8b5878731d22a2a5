package propose

import (
	"encoding/binary"
	"runtime"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Parts are what a [Proposer] and a [ReadIndex] work with.
type Parts struct {
	*lifecycle.Lifecycle
	ID        uint64
	Engine    *engine.Engine
	Contacts  *election.Contacts
	Leader    *election.KnownLeader
	Replica   *fsm.Replica
	Port      *peer.Port   // nil on a standalone server
	Look      wake.Signal  // is raised when heartbeats are due
	TimeOfDay func() int64 // the wall clock, in ms since the epoch
	Settings  fsm.Settings // of the entries
}

// Proposer gets the commands of this member's clients into the log. Its goroutines are
// Run, which ends with the member, and those of its link to the
// leader. Its methods are safe for concurrent use.
type Proposer struct {
	*Parts
	index *ReadIndex
	room  func() <-chan struct{} // in the log; see engine.Engine.Full

	batcher batcher
	pending pending
	link    leaderLink // carries entries while another member leads
	Sizes   Sizes
}

// New returns a Proposer, which Run must serve, and the ReadIndex of this member. room is engine.Engine.Full.
func New(parts *Parts, room func() <-chan struct{}) (*Proposer, *ReadIndex) {
	index := &ReadIndex{parts}
	p := &Proposer{Parts: parts, index: index, room: room, link: newLeaderLink(parts.Port, &parts.Running, parts.Contacts)}
	p.batcher.wake = wake.NewSignal()
	p.Sizes.Reset()
	return p, index
}

// Propose queues a command for the log, after all that the same caller proposed
// before, and reports its outcome to w. It blocks while the next entry is full, or the log is too long
// for another one, until over is closed. It does not retain c.
func (p *Proposer) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	if !c.ReadOnly() && !p.awaitRoom(over) {
		w.Lost()
		return
	}
	p.add(c, w, over, ofClients)
}

// Do is Propose for what the leader does by itself. It waits neither for room in the log, as long as a
// snapshot may take, nor for clients: a leader that cannot do its duties is not replaced for that.
func (p *Proposer) Do(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	p.add(c, w, over, ofLeader)
}

// awaitRoom waits while the log is too long for another entry of clients. It returns false if it gives up.
func (p *Proposer) awaitRoom(over <-chan struct{}) bool {
	suspended := p.Leader.Get().Suspended
	for {
		room := p.room()
		if room == nil {
			return true
		}
		select {
		case <-room:
		case <-over:
			return false
		case <-suspended:
			return false
		case <-p.Stop:
			return false
		}
	}
}

// add adds a command to the next entry. It blocks while the share of its kind is full.
func (p *Proposer) add(c *fsm.Command, w fsm.Waiter, over <-chan struct{}, kind int) {
	b := &p.batcher
	b.mu.Lock()
	for !b.closed && b.shares[kind].full() {
		room := b.room.Wait()
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
	before := len(b.entry)
	b.entry = fsm.AppendCommand(b.entry, c)
	b.shares[kind].commands++
	b.shares[kind].bytes += len(b.entry) - before
	b.waiters = append(b.waiters, w)
	b.writes = b.writes || !c.ReadOnly()
	first := len(b.waiters) == 1
	b.mu.Unlock()
	if first {
		b.wake.Raise()
	}
}

// Run proposes the collected commands, one entry at a time: the next is
// proposed when the outcome of the previous one is known, or it is given up. An entry
// whose commands are all read-only is not stored: read answers it. Read-only commands
// among others are in the log, where they cost nothing and need no other way to keep their
// place.
func (p *Proposer) Run() {
	defer p.batcher.close() // commands proposed later are lost at once
	number := FirstNumber(p.TimeOfDay())
	suspended := p.Leader.Get().Suspended
	for {
		select {
		case <-p.batcher.wake:
		case <-suspended:
			suspended = p.Leader.Get().Suspended
			p.batcher.lose()
			continue
		case <-p.Stop:
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
		p.Sizes.Entries.Add(1)
		p.Sizes.Commands.Add(int64(len(waiters)))
		p.Replica.View(func(v *fsm.View) { number = NextNumber(number, v.LastBatch(p.ID)) })
		done := p.pending.begin(number, waiters)
		entry = fsm.EndEntry(entry, &fsm.Envelope{
			Origin: p.ID, Batch: number, Time: p.TimeOfDay(), Settings: p.Settings, Count: len(waiters),
		})
		p.deliver(number, entry, suspended, done)
		if left := p.pending.end(); len(left) > 0 {
			lose(left)
			p.batcher.lose() // it may be of the same callers, whose commands must not overtake lost ones
		}
	}
}

// Complete implements [fsm.Completer]: it returns the waiter of the i-th command of
// an entry. Entries of an earlier run have other numbers, so they find no waiter.
func (p *Proposer) Complete(e *fsm.Envelope, i int) fsm.Waiter {
	if e.Origin != p.ID {
		return nil
	}
	return p.pending.complete(e.Batch, i)
}

// deliver gets an entry into the log: through the engine if this member leads, otherwise
// by sending it to the leader. It retries, with new leaders too, until the entry is
// applied here, which closes done. Retrying is safe since an entry is never applied
// twice (see [fsm.Machine.Apply]). deliver gives up when suspended is closed.
func (p *Proposer) deliver(number uint64, entry []byte, suspended, done <-chan struct{}) {
	for tries, first := 1, true; ; tries, first = tries+1, false {
		lead := p.Leader.Get()
		switch {
		case lead.ID == p.ID:
			mine := entry
			if !first { // the engine may still hold the slice of the previous attempt
				mine = append([]byte(nil), entry...)
			}
			fsm.Stamp(mine, p.TimeOfDay())
			p.Sizes.Proposed(len(mine))
			if p.apply(mine, suspended) {
				return // applied or skipped; or not understood, then its waiters are lost
			}
		case lead.ID != 0:
			if p.forward(lead, number, entry, suspended, done) {
				return
			}
		}
		select {
		case <-done:
			return
		case <-suspended:
			return
		case <-p.Stop:
			return
		case <-lead.Changed:
			tries = 0
		case <-time.After(timing.RetryBackoff(tries)):
		}
	}
}

// apply has the engine append an entry to the log of this member, which leads, and waits until it is applied.
// It returns false if the caller must retry, or give up: the engine may be waiting for
// a stuck disk. Then the entry may still come into the log, as one that was sent to another leader may.
func (p *Proposer) apply(entry []byte, suspended <-chan struct{}) bool {
	answered := make(chan error, 1)
	p.Running.Go(func() { answered <- p.Engine.Propose(entry, p.Contacts.ElectionTimeout)() })
	select {
	case err := <-answered:
		return err == nil
	case <-suspended:
		return false
	case <-p.Stop:
		return false
	}
}

// forward sends an entry to the leader and waits until it is applied here. It returns
// false if the caller must retry.
func (p *Proposer) forward(lead election.Leader, number uint64, entry []byte, suspended, done <-chan struct{}) bool {
	l, err := p.link.to(lead)
	if err != nil {
		return false
	}
	defer l.Await()()
	if l.sendEntry(entry) != nil {
		return false
	}
	for {
		select {
		case <-done:
			return true
		case n := <-l.refused:
			if n == number {
				return false
			}
		case <-l.Gone:
			return false
		case <-lead.Changed:
			return false
		case <-suspended:
			return false
		case <-p.Stop:
			return false
		}
	}
}

// read answers read-only commands, all of which have arrived by now. It asks again until
// it has an answer of a leader, and gives up when suspended is closed.
func (p *Proposer) read(entry []byte, waiters []fsm.Waiter, suspended <-chan struct{}) bool {
	for tries := 1; ; tries++ {
		lead := p.Leader.Get()
		var index uint64
		ok := false
		switch lead.ID {
		case 0:
		case p.ID:
			index, ok = p.index.Get(0, suspended)
		default:
			index, ok = p.ask(lead, fsm.Sessions(entry), suspended)
		}
		if ok && p.awaitApplied(index, suspended) {
			p.Replica.Answer(entry, waiters)
			return true
		}
		select {
		case <-suspended:
			return false
		case <-p.Stop:
			return false
		case <-lead.Changed:
			tries = 0
		case <-time.After(timing.RetryBackoff(tries)):
		}
	}
}

// ask asks another member, which leads, for the index that its ReadIndex.Get returns, after it
// has told it that the given sessions are alive (see Touch). It returns false if the caller
// must retry. It does not wait until the leader vouches for the sessions. The leader may have
// found one late, but when Touch let the sync pass, the session had two thirds of its timeout
// left, after which the client does not trust this answer any more. Or the leader does not
// know the session yet, and then its whole timeout begins later.
func (p *Proposer) ask(lead election.Leader, sessions []int64, suspended <-chan struct{}) (uint64, bool) {
	l, err := p.link.to(lead)
	if err != nil {
		return 0, false
	}
	defer l.Await()()
	if len(sessions) > 0 && l.Send(MsgTouched, append(binary.BigEndian.AppendUint64(nil, Unanswered), alive.TouchesNow(sessions)...)) != nil {
		return 0, false
	}
	l.asked++
	b := binary.BigEndian.AppendUint64(make([]byte, 0, AskLen), l.asked)
	b = binary.BigEndian.AppendUint64(b, p.ID)
	b = binary.BigEndian.AppendUint64(b, p.Engine.NewestTerm())
	if l.Send(MsgAsk, b) != nil {
		return 0, false
	}
	for {
		select {
		case b := <-l.indexes:
			if len(b) != 16 || binary.BigEndian.Uint64(b) != l.asked {
				continue
			}
			index := binary.BigEndian.Uint64(b[8:])
			return index, index != 0
		case <-l.Gone:
			return 0, false
		case <-lead.Changed:
			return 0, false
		case <-suspended:
			return 0, false
		case <-p.Stop:
			return 0, false
		}
	}
}

// awaitApplied waits until the entry at index is applied here. It returns false if it
// gives up.
func (p *Proposer) awaitApplied(index uint64, suspended <-chan struct{}) bool {
	for {
		applied, news := p.Engine.StateNews()
		if applied >= index {
			return true
		}
		select {
		case <-news:
		case <-suspended:
			return false
		case <-p.Stop:
			return false
		}
	}
}

// Restored is called when the state was replaced by that of a snapshot: whether what waits is in it is not known.
func (p *Proposer) Restored() { p.pending.restored() }

// Number returns the number of the entry that was proposed last. For tests.
func (p *Proposer) Number() uint64 {
	p.pending.mu.Lock()
	defer p.pending.mu.Unlock()
	return p.pending.number
}

// LinkTo returns a connection to the leader: the existing one if it still works,
// otherwise a new one. It gives up when the leader changes.
func (p *Proposer) LinkTo(lead election.Leader) (*Link, error) { return p.link.to(lead) }
