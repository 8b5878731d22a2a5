package propose

import (
	"bytes"
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

// Parts are what a [Proposer] works with.
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

// Proposer gets the commands of this member's clients into the log. Its methods are safe for concurrent use.
type Proposer struct {
	*Parts
	batcher batcher
	pending pending
	Sizes   Sizes

	linking wake.Turn // guards link, also while connecting
	link    *Link     // the newest one; nil if there was none
}

// New returns a Proposer, which Run must serve.
func New(parts *Parts) *Proposer {
	p := &Proposer{Parts: parts, batcher: batcher{wake: wake.NewSignal()}, linking: wake.NewTurn()}
	p.Sizes.Reset()
	return p
}

// Propose queues a command for the log, after all that the same caller proposed
// before, and reports its outcome to w. It blocks while the next entry is full, or the log is too long
// for another one, until over is closed. It does not retain c.
//
// Once over is closed, commands are reported as lost and not proposed; over may be
// nil. A caller whose [fsm.Waiter.Lost] closes over may propose many commands
// without waiting for each: they are applied in order, and none is applied after one
// that was lost. Lost must not call Propose.
func (p *Proposer) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	if !c.ReadOnly() && !p.awaitRoom(over) {
		w.Lost()
		return
	}
	p.add(c, w, over, ofClients)
}

// Await is Propose for a caller that waits for the outcome, until over is closed. After an error the command may be applied
// or not.
func (p *Proposer) Await(c *fsm.Command, over <-chan struct{}) error {
	done := make(Result, 1)
	p.Propose(c, done, over)
	select {
	case err := <-done:
		return err
	case <-over:
		return lifecycle.ErrClosed
	}
}

// Do is Propose for what the leader does by itself. It waits neither for room in the log, as long as a
// snapshot may take, nor for clients: a leader that cannot do its duties is not replaced for that.
func (p *Proposer) Do(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	p.add(c, w, over, ofLeader)
}

func (p *Proposer) add(c *fsm.Command, w fsm.Waiter, over <-chan struct{}, kind int) {
	if !p.batcher.add(c, w, over, kind) {
		w.Lost()
	}
}

// awaitRoom waits while the log is too long for another entry of clients. It returns false if it gives up.
func (p *Proposer) awaitRoom(over <-chan struct{}) bool {
	suspended := p.Leader.Get().Suspended
	for {
		room := p.Engine.Full()
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

// deliver gets an entry into the log: through the engine if this member leads, otherwise
// by sending it to the leader. It retries, with new leaders too, until the entry is
// applied here, or may be in a snapshot that was restored, which closes done. Retrying is safe since an entry is never applied
// twice (see [fsm.Machine.Apply]). deliver gives up when suspended is closed.
func (p *Proposer) deliver(number uint64, entry []byte, suspended, done <-chan struct{}) {
	p.retry(suspended, done, func(lead election.Leader) bool {
		if lead.ID != p.ID {
			p.forward(lead, number, entry, suspended, done)
			return false
		}
		fsm.Stamp(entry, p.TimeOfDay())
		p.Sizes.Proposed(len(entry))
		if p.apply(entry, suspended) {
			return true // applied or skipped; or not understood, then its waiters are lost
		}
		entry = bytes.Clone(entry) // the engine may still hold the slice
		return false
	})
}

// retry calls do with the leader, again with pauses and with new leaders, until do returns true, or suspended or done is closed. It
// returns whether do has returned true.
func (p *Proposer) retry(suspended, done <-chan struct{}, do func(lead election.Leader) bool) bool {
	for tries := 1; ; tries++ {
		lead := p.Leader.Get()
		if lead.ID != 0 && do(lead) {
			return true
		}
		select {
		case <-done:
			return false
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

// forward sends an entry to the leader and waits until it is applied here. It gives up if the caller must retry.
func (p *Proposer) forward(lead election.Leader, number uint64, entry []byte, suspended, done <-chan struct{}) {
	l, err := p.LinkTo(lead)
	if err != nil {
		return
	}
	defer l.NoteWaiting()()
	if l.sendEntry(entry) == nil {
		l.awaitAnswer(number, suspended, done)
	}
}

// read answers read-only commands, all of which have arrived by now. It asks again until
// it has an answer of a leader, and gives up when suspended is closed.
func (p *Proposer) read(entry []byte, waiters []fsm.Waiter, suspended <-chan struct{}) bool {
	return p.retry(suspended, nil, func(lead election.Leader) bool {
		var index uint64
		if lead.ID == p.ID {
			index = p.ReadIndex(0, 0, suspended)
		} else {
			index = p.ask(lead, fsm.Sessions(entry), suspended)
		}
		answers := index != 0 && p.awaitApplied(index, suspended)
		if answers {
			p.Replica.Answer(entry, waiters)
		}
		return answers
	})
}

// ask asks another member, which leads, for the index that its ReadIndex returns, and
// tells it that the given sessions are alive (see Member.Touch of package cluster). It returns 0 if the caller
// must retry. It does not wait until the leader vouches for the sessions. The leader may have
// found one late, but when Touch let the sync pass, the session had two thirds of its timeout
// left, after which the client does not trust this answer any more. Or the leader does not
// know the session yet, and then its whole timeout begins later.
func (p *Proposer) ask(lead election.Leader, sessions []int64, suspended <-chan struct{}) (index uint64) {
	l, err := p.LinkTo(lead)
	if err != nil {
		return 0
	}
	defer l.NoteWaiting()()
	l.asked++
	b := binary.BigEndian.AppendUint64(make([]byte, 0, AskLen), l.asked)
	b = binary.BigEndian.AppendUint64(b, p.ID)
	b = binary.BigEndian.AppendUint64(b, p.Engine.NewestTerm())
	if l.Send(MsgAsk, append(b, alive.TouchesNow(sessions)...)) != nil {
		return 0
	}
	return l.awaitAnswer(l.asked, suspended, nil)
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
