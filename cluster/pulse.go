package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Heartbeats have connections and goroutines of their own, which never wait for a
// disk, a log entry or the replica's lock. The engine has heartbeats too, but its timeouts
// are so long that they matter only if everything here fails.
//
// Unless the answer to one names a later term than the sender's, the receiver follows the sender.

// beat is a leader's heartbeat.
type beat struct {
	Term, ID uint64
	LeaseAge time.Duration // how long ago a majority accepted it
	Stalled  time.Duration // how long its disk has been blocking a write
	Applied  uint64        // the index of the last entry that it has applied; see election.NoApplied
	End      uint64        // the index of the last entry in its log
	Question election.DigestQuestion
}

type beatAnswer struct {
	Newest uint64 // the newest term that the receiver knows
	Digest election.DigestAnswer
}

// pulse sends and answers heartbeats, and notices when the leader or the majority is lost. It has this member stand for election
// or step down. Its methods are safe for concurrent use.
//
// A standalone server has a pulse that is not run: its verdict stays empty.
type pulse struct {
	*lifecycle.Lifecycle
	*clock
	id       uint64
	log      *slog.Logger
	engine   *engine.Engine
	contacts *election.Contacts // what is known about the other members
	replica  *fsm.Replica
	digests  *election.Digests
	gate     *peer.Gate
	peers    *peer.Port // nil on a standalone server
	leader   *election.KnownLeader

	wake    wake.Signal                      // for run: look at once
	verdict atomic.Pointer[election.Verdict] // the newest one; never nil
	changed wake.Signal                      // for service.run: the verdict has changed

	leaseStart atomic.Int64 // from when this member's lease runs, by nowMs: election.Contacts.LeaseStart
	gained     wake.Signal  // for service.run: this member has begun to lead; see gain
}

// newPulse returns the pulse of a member that is about to start, with the parts that it shares with others.
func newPulse(cfg *Config, replica *fsm.Replica) *pulse {
	p := &pulse{
		Lifecycle: lifecycle.NewLifecycle(), clock: newClock(cfg.TimeOfDay), id: cfg.ID, log: cfg.Log, replica: replica,
		contacts: election.NewContacts(cfg.ID, timing.For(cmp.Or(cfg.ElectionTimeout, timing.DefaultElectionTimeout))),
		digests:  election.NewDigests(cfg.ID, replica), gate: new(peer.Gate), leader: new(election.KnownLeader),
		wake: wake.NewSignal(), changed: wake.NewSignal(), gained: wake.NewSignal(),
	}
	p.verdict.Store(new(election.Verdict))
	p.leaseStart.Store(timing.Never)
	if cfg.Clustered() {
		p.peers = peer.NewPort(cfg.Network, cfg.ID, cfg.Address(), p.gate, cfg.Log)
	}
	p.engine = engine.New(engine.Config{
		ID: cfg.ID, Port: p.peers, Contacts: p.contacts, Digests: p.digests, Leader: p.leader, Now: p.moment,
		SnapshotBytes: cfg.SnapshotBytes, DiskFirst: cfg.DiskFirst, Trace: cfg.Trace, Log: cfg.Log,
	}, p.Lifecycle, replica)
	return p
}

// moment returns now by both clocks.
func (p *pulse) moment() timing.Moment { return p.contacts.Moment(p.nowMs()) }

// state returns this member's state as the engine knows it: Contacts.CompleteState adds what the contacts know,
// and Engine.LogEnd returns the end of the log.
func (p *pulse) state() election.State {
	s := election.State{Term: p.engine.NewestTerm(), Saving: p.engine.SnapshotStall(p.moment()), Applied: p.engine.StateIndex()}
	role := p.engine.Role()
	s.Leads, s.Candidate = role == engine.Leader, role == engine.Candidate
	s.Ready = s.Leads && p.leader.ReadyTerm.Load() == s.Term
	s.Stalled = p.stalled(p.moment(), s.Leads)
	return s
}

// forever is how long the disk of a member that has failed is said to be stuck.
const forever = 24 * time.Hour

// stalled returns for how long this member's disk has been blocking a write. A member that has failed
// does not go on, and its owner may be slow to close it: the others replace it if it leads. Writing snapshots counts only
// if it leads: without them its log has no end. Otherwise it can vote meanwhile, and stand for election.
func (p *pulse) stalled(at timing.Moment, leads bool) time.Duration {
	switch d := p.engine.DiskStall(at); {
	case p.Failed.Load():
		return forever
	case leads:
		return max(d, p.engine.SnapshotStall(at))
	default:
		return d
	}
}

// gain tells service.run that this member has begun to lead. Everything that was
// committed at asked, when it was already the leader, is applied here. The contacts
// must know that first: their state can still be that of a member which had no leader
// for long, and service.run would disconnect the clients at once.
func (p *pulse) gain(asked timing.Moment) {
	p.contacts.CaughtUp(asked.Running)
	p.gained.Raise()
}

// leads reports whether the engine takes this member for the leader, and it has applied all entries of earlier terms.
func (p *pulse) leads() bool {
	term, leads := p.engine.LeaderTerm()
	return leads && p.leader.ReadyTerm.Load() == term
}

// holdsLease reports whether this member leads and holds its lease: a majority has accepted it as
// the leader within the last [timing.Times.Lease], so it had not been replaced when they did.
// The engine's own state is not enough: it notices late that it was replaced if the disk
// blocks it or this process was paused.
func (p *pulse) holdsLease() bool {
	// Entries that earlier leaders left in the log may close sessions, so they must
	// have been applied.
	if !p.leads() {
		return false
	}
	if p.since(p.leaseStart.Load()) > p.contacts.Lease {
		p.leaseStart.Store(p.contacts.LeaseStart(p.nowMs(), p.engine.Members()))
	}
	return p.since(p.leaseStart.Load()) <= p.contacts.Lease
}

// run sends heartbeats while this member leads, detects the loss of the
// leader or of the majority, and has this member stand for election or step down.
func (p *pulse) run() {
	senders := map[uint64]*sender{}
	defer func() {
		for _, s := range senders {
			close(s.stop)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.Stop:
			return
		}
		p.engine.EndAbstention()
		members := p.engine.Members()
		own := p.state()
		if self := election.Find(members, p.id); (self == nil || self.Observer) && len(members) > 0 {
			own.LosesVote = p.engine.LosesVote()
		}
		if p.contacts.Troubled() && p.gate.IsOpen() {
			own.LastIndex, own.LastTerm = p.engine.LogEnd()
		}
		v, ask, stand, again := p.contacts.Look(p.nowMs(), members, own)
		p.compare(members, own)
		p.keepSenders(senders, members, own.Leads)
		v.Disputed = p.digests.Dispute() != 0
		if v != *p.verdict.Swap(&v) || v.Behind { // it may have begun to serve since the look before
			p.changed.Raise()
		}
		for _, x := range ask {
			p.Running.Go(func() { p.question(x) })
		}
		switch {
		case stand && p.gate.IsOpen() && !p.engine.Abstains():
			p.Running.Go(func() {
				if p.engine.Role() != engine.Leader {
					p.engine.Campaign(p.contacts.Lease)
				}
			})
		// A leader without a majority steps down: expiries that it has proposed must not be committed
		// when a majority is back, and members that ask who leads must not be told that it does.
		// One that is deposed does, since perhaps nobody leads in the later term: the member that has begun it could not
		// store it. Otherwise the engine would have heard of it by now, unless it waits for a disk.
		case v.Leads && v.NoMajority || v.Deposed:
			p.Running.Go(func() { p.engine.StepDown(p.contacts.Lease) })
		}
		timer.Reset(again)
	}
}

// keepSenders stops the senders of members that were removed or moved. While this
// member leads it starts a sender for each other member that has none. A server that this
// leader is only about to add gets no heartbeat yet: if it is not added in the end, it would
// take the next leader's answer that it is no member for its removal. Then keepSenders wakes
// all senders: they send a heartbeat, or hang up if this member does not lead.
func (p *pulse) keepSenders(senders map[uint64]*sender, members []proto.Peer, leads bool) {
	for id, s := range senders {
		if x := election.Find(members, id); x == nil || x.Addr != s.to.Addr {
			close(s.stop)
			delete(senders, id)
		}
	}
	for _, x := range members {
		if x.ID == p.id {
			continue
		}
		s := senders[x.ID]
		if s == nil && leads && x.ID != p.engine.Adding() {
			s = &sender{pulse: p, to: x, due: wake.NewSignal(), stop: make(chan struct{})}
			senders[x.ID] = s
			p.Running.Go(s.sendBeats)
		}
		if s != nil {
			s.due.Raise()
		}
	}
}

// sender sends heartbeats to one member.
type sender struct {
	*pulse
	to    proto.Peer
	due   wake.Signal // raised when a heartbeat is due
	stop  chan struct{}
	c     net.Conn // nil if there is no connection
	works bool     // a heartbeat was answered over c
	led   uint64   // the term at the last beat
}

// sendBeats sends heartbeats while this member leads. When it stops
// leading, sendBeats closes the connection, which tells the other member at once.
func (b *sender) sendBeats() {
	defer b.hangUp()
	defer b.engine.HasReturned(b.to.ID) // it was removed or has moved, or this member is stopping
	for {
		select {
		case <-b.due:
		case <-b.stop:
			return
		case <-b.Stop:
			return
		}
		term, leads := b.engine.LeaderTerm()
		if !leads || term != b.led {
			b.led = term
			b.engine.HasReturned(b.to.ID)
		}
		if !leads {
			b.hangUp()
		} else if b.connected() {
			b.send(term)
		}
	}
}

func (b *sender) hangUp() {
	if b.c != nil {
		b.c.Close()
		b.c = nil
	}
}

// connected connects to the member, unless there is a connection, and reports whether there is one.
func (b *sender) connected() bool {
	if b.c != nil {
		return true
	}
	c, err := b.call(b.to, peer.KindBeat, b.contacts.ElectionTimeout/2)
	if err != nil {
		return false
	}
	b.c, b.works = c, false
	return true
}

// send sends a heartbeat, and does what follows from the answer.
func (b *sender) send(term uint64) {
	asked, round := b.moment(), b.contacts.Round()
	b.engine.BeatSent(b.to.Addr)
	a, err := b.exchange(b.next(term, asked))
	if err != nil {
		b.hangUp()
		if b.works {
			b.due.Raise() // reconnect at once, to find out whether only the connection failed
		}
		return
	}
	if a == nil { // over another connection now
		b.engine.Reconnected(b.to.Addr)
		b.due.Raise()
		return
	}
	if !b.works {
		b.digests.Forget(b.to.ID)
	}
	late := b.moment().Running-asked.Running >= timing.Late(b.contacts.ElectionTimeout.Milliseconds())
	b.engine.BeatAnswered(b.to.ID, b.to.Addr, late, !b.works || a.Newest > term)
	b.works = true
	if a.Newest <= term {
		differs, news := b.digests.Answered(b.to.ID, a.Digest) // first: this leader may be about to serve
		b.contacts.Accepted(b.to.ID, asked, round)
		if differs {
			b.log.Error("the state of a member differs from this leader's", "id", b.to.ID, "entry", a.Digest.Index)
		}
		if news {
			b.wake.Raise()
		}
	} else if b.contacts.SawLaterTerm(a.Newest) {
		b.wake.Raise()
	}
}

// next returns the heartbeat that is due.
func (b *sender) next(term uint64, asked timing.Moment) *beat {
	age, knowsCommitted := b.contacts.LeaseAge(asked.Real, term)
	x := &beat{Term: term, ID: b.id, LeaseAge: age, Stalled: b.stalled(asked, true), Applied: election.NoApplied}
	if b.leader.ReadyTerm.Load() == term && knowsCommitted && !b.verdict.Load().NoMajority {
		x.Applied = b.engine.StateIndex()
	}
	x.End, x.Question = b.engine.LastIndex(), b.digests.Question(b.to.ID)
	if !b.works { // it may have been started again, and its state is compared anew
		x.Question.Wrong, x.Question.Right = 0, 0
	}
	return x
}

// exchange sends a heartbeat and returns the answer. It returns nil, without an error, if that was so late that there is another
// connection now, over which nothing was sent yet.
func (b *sender) exchange(x *beat) (*beatAnswer, error) {
	b.c.SetDeadline(time.Now().Add(b.contacts.ElectionTimeout))
	if err := binary.Write(b.c, binary.BigEndian, x); err != nil {
		return nil, err
	}
	a := new(beatAnswer)
	answer := make([]byte, binary.Size(a))
	instead, err := b.await(answer)
	if err != nil {
		return nil, err
	}
	if instead != nil {
		b.hangUp()
		b.c, b.works = instead, false
		return nil, nil
	}
	_, err = binary.Decode(answer, binary.BigEndian, a)
	return a, err
}

// await reads the answer to a heartbeat. While it is late, await tries to connect again, and
// returns the new connection in place of an answer: TCP waits longer and longer before it sends
// again what was lost, so after a cut of 1.5 s the old connection would be silent for as long
// again, and this leader would be taken for lost.
func (b *sender) await(answer []byte) (instead net.Conn, err error) {
	last := time.Now().Add(b.contacts.ElectionTimeout)
	for n, patience := 0, timing.Late(b.contacts.ElectionTimeout); ; patience = time.Millisecond {
		b.c.SetReadDeadline(time.Now().Add(patience))
		m, err := io.ReadFull(b.c, answer[n:])
		n += m
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(last) {
			return nil, err
		}
		redial := timing.Redial(b.contacts.ElectionTimeout)
		c, err := b.call(b.to, peer.KindRebeat, redial)
		if err == nil {
			err = c.(*peer.Outgoing).AwaitWelcome(redial) // so it is not only its system that accepts connections
		}
		if err == nil {
			return c, nil
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
	}
}

// call connects to another member.
func (p *pulse) call(x proto.Peer, kind byte, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(p.peers.Ctx, patience)
	defer cancel()
	c, err := p.peers.Dial(ctx, x.Addr, kind, x.ID)
	if errors.Is(err, syscall.ECONNREFUSED) {
		p.contacts.Refused(x.ID)
	}
	return c, err
}

// takeBeats receives and answers the heartbeats that come over a connection. The first one was sent after
// asked, in running time, and each other one after this member began to answer the one before it.
func (p *pulse) takeBeats(c net.Conn, asked int64) {
	defer c.Close()
	defer func() {
		if p.contacts.HungUp(c, p.nowMs()) {
			p.wake.Raise()
		}
	}()
	applied := uint64(0) // here, before the sender has read the end of its log
	for {
		c.SetDeadline(time.Now().Add(10 * p.contacts.ElectionTimeout)) // a machine that crashes does not close its connections
		var b beat
		if binary.Read(c, binary.BigEndian, &b) != nil {
			return
		}
		if g, ok := c.(peer.Incoming); ok && g.From != b.ID {
			return // this is no heartbeat
		}
		newest := p.engine.NewestTerm()
		h := election.Heartbeat{Term: b.Term, ID: b.ID, Stalled: b.Stalled, Conn: c, Applied: b.Applied, AsOf: asked}
		if h.Term >= newest && p.digests.Heard(b.Question) { // first: it may be about to serve
			p.wake.Raise()
		}
		if p.contacts.Heard(p.nowMs(), h, b.LeaseAge, newest) {
			p.wake.Raise()
		}
		if b.Question.Wrong != 0 && h.Term >= newest {
			p.failDiffers(b.Question.Wrong)
		}
		a := beatAnswer{newest, p.digests.Answer(b.Question.Index)}
		// A leader has all entries that were committed in its term and before.
		if h.Term >= newest && applied > b.End {
			p.Fail(fmt.Errorf("%s: it has applied entry %d, and the log of the leader, server %d, ends with entry %d: %w", p.engine.Storage().Name, applied, h.ID, b.End, election.ErrDiffers))
		}
		applied, asked = p.engine.StateIndex(), p.moment().Running
		if binary.Write(c, binary.BigEndian, a) != nil {
			return
		}
	}
}

// compare compares the digests of the members if this one leads.
func (p *pulse) compare(members []proto.Peer, own election.State) {
	wrong, disputed := p.digests.Look(members, own.Leads && own.Ready, p.moment().Running, p.contacts.ElectionTimeout)
	if wrong != 0 {
		p.failDiffers(wrong)
	}
	if disputed {
		p.log.Error("the states of members differ, and no majority has the same one: nobody serves", "entry", p.digests.Dispute())
	}
}

func (p *pulse) failDiffers(index uint64) {
	p.Fail(fmt.Errorf("%s: after entry %d of the log, its state is not that of the other members: %w", p.engine.Storage().Name, index, election.ErrDiffers))
}

// question asks another member for its state and notes the answer in the contacts.
func (p *pulse) question(x proto.Peer) {
	defer p.wake.Raise()
	asked, said := p.moment(), (*election.State)(nil)
	defer func() { p.contacts.Answered(x.ID, asked, p.nowMs(), said) }()
	c, err := p.call(x, peer.KindState, p.contacts.ElectionTimeout/2)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(p.contacts.ElectionTimeout / 2))
	var s election.State
	if binary.Read(c, binary.BigEndian, &s) == nil {
		said = &s
	}
}

// tellState answers a question of another member with this one's state.
func (p *pulse) tellState(c net.Conn) {
	defer c.Close()
	s := p.state()
	s.LastIndex, s.LastTerm = p.engine.LogEnd()
	s = p.contacts.CompleteState(s)
	if s.Leads {
		p.wake.Raise() // the other member seems to miss this leader's heartbeats: send one now
	}
	c.SetWriteDeadline(time.Now().Add(timing.HelloTimeout))
	binary.Write(c, binary.BigEndian, s) // if this fails, the other member asks again
}
