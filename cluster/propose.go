package cluster

import (
	"encoding/binary"
	"runtime"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// proposer gets the commands of this member's clients into the log. Its goroutines are
// run, which ends with the member, and those of its link to the
// leader. Its methods are safe for concurrent use.
type proposer struct {
	*pulse
	settings fsm.Settings
	replica  *fsm.Replica
	leader   *election.KnownLeader
	index    *readIndex
	room     func() <-chan struct{} // in the log; see engine.Engine.Full

	batcher batcher
	pending pending
	link    leaderLink // carries proposals while another member leads
	sizes   proposals
}

func newProposer(cfg *Config, replica *fsm.Replica, index *readIndex, room func() <-chan struct{}) *proposer {
	p := &proposer{
		pulse: index.pulse, settings: cfg.Settings, replica: replica, leader: index.leader, index: index, room: room,
		link: newLeaderLink(index.peers, &index.Running, index.contacts),
	}
	p.batcher.wake = wake.NewSignal()
	p.sizes.reset()
	return p
}

// propose implements [Member.Propose].
func (p *proposer) propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	if !c.ReadOnly() && !p.awaitRoom(over) {
		w.Lost()
		return
	}
	p.add(c, w, over, ofClients)
}

// do is propose for what the leader does by itself. It waits neither for room in the log, as long as a
// snapshot may take, nor for clients: a leader that cannot do its duties is not replaced for that.
func (p *proposer) do(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	p.add(c, w, over, ofLeader)
}

// awaitRoom waits while the log is too long for another entry of clients. It returns false if it gives up.
func (p *proposer) awaitRoom(over <-chan struct{}) bool {
	suspended := p.leader.Get().Suspended
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
func (p *proposer) add(c *fsm.Command, w fsm.Waiter, over <-chan struct{}, kind int) {
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

// run proposes the collected commands, one entry at a time: the next is
// proposed when the outcome of the previous one is known, or it is given up. An entry
// whose commands are all read-only is not stored: read answers it. Read-only commands
// among others are in the log, where they cost nothing and need no other way to keep their
// place.
func (p *proposer) run() {
	defer p.batcher.close() // commands proposed later are lost at once
	number := firstNumber(p.timeOfDay())
	suspended := p.leader.Get().Suspended
	for {
		select {
		case <-p.batcher.wake:
		case <-suspended:
			suspended = p.leader.Get().Suspended
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
		p.sizes.entries.Add(1)
		p.sizes.commands.Add(int64(len(waiters)))
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
	}
}

// complete implements [fsm.Completer]: it returns the waiter of the i-th command of
// an entry. Entries of an earlier run have other numbers, so they find no waiter.
func (p *proposer) complete(e *fsm.Envelope, i int) fsm.Waiter {
	if e.Origin != p.id {
		return nil
	}
	return p.pending.complete(e.Batch, i)
}

// deliver gets an entry into the log: through Raft if this member leads, otherwise
// by sending it to the leader. It retries, with new leaders too, until the entry is
// applied here, which closes done. Retrying is safe since an entry is never applied
// twice (see [fsm.Machine.Apply]). deliver gives up when suspended is closed.
func (p *proposer) deliver(number uint64, entry []byte, suspended, done <-chan struct{}) {
	for tries, first := 1, true; ; tries, first = tries+1, false {
		lead := p.leader.Get()
		switch {
		case lead.ID == p.id:
			mine := entry
			if !first { // Raft may still hold the slice of the previous attempt
				mine = append([]byte(nil), entry...)
			}
			fsm.Stamp(mine, p.timeOfDay())
			p.sizes.proposed(len(mine))
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

// apply has Raft append an entry to the log of this member, which leads, and waits until it is applied.
// It returns false if the caller must retry, or give up: Raft's main goroutine may be waiting for
// a stuck disk. Then the entry may still come into the log, as one that was sent to another leader may.
func (p *proposer) apply(entry []byte, suspended <-chan struct{}) bool {
	answered := make(chan error, 1)
	p.Running.Go(func() { answered <- p.engine.Propose(entry, p.contacts.ElectionTimeout)() })
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
func (p *proposer) forward(lead election.Leader, number uint64, entry []byte, suspended, done <-chan struct{}) bool {
	l, err := p.link.to(lead)
	if err != nil {
		return false
	}
	defer l.await()()
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
		case <-l.gone:
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
func (p *proposer) read(entry []byte, waiters []fsm.Waiter, suspended <-chan struct{}) bool {
	for tries := 1; ; tries++ {
		lead := p.leader.Get()
		var index uint64
		ok := false
		switch lead.ID {
		case 0:
		case p.id:
			index, ok = p.index.get(0, suspended)
		default:
			index, ok = p.ask(lead, fsm.Sessions(entry), suspended)
		}
		if ok && p.awaitApplied(index, suspended) {
			p.replica.Answer(entry, waiters)
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

// ask asks another member, which leads, for the index that its readIndex.get returns, after it
// has told it that the given sessions are alive (see Touch). It returns false if the caller
// must retry. It does not wait until the leader vouches for the sessions. The leader may have
// found one late, but when Touch let the sync pass, the session had two thirds of its timeout
// left, after which the client does not trust this answer any more. Or the leader does not
// know the session yet, and then its whole timeout begins later.
func (p *proposer) ask(lead election.Leader, sessions []int64, suspended <-chan struct{}) (uint64, bool) {
	l, err := p.link.to(lead)
	if err != nil {
		return 0, false
	}
	defer l.await()()
	if len(sessions) > 0 && l.send(msgTouched, append(binary.BigEndian.AppendUint64(nil, unanswered), touchesNow(sessions)...)) != nil {
		return 0, false
	}
	l.asked++
	b := binary.BigEndian.AppendUint64(make([]byte, 0, askLen), l.asked)
	b = binary.BigEndian.AppendUint64(b, p.id)
	b = binary.BigEndian.AppendUint64(b, p.engine.NewestTerm())
	if l.send(msgAsk, b) != nil {
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
		case <-l.gone:
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
func (p *proposer) awaitApplied(index uint64, suspended <-chan struct{}) bool {
	for {
		applied, news := p.engine.StateNews()
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
