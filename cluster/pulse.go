package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// Heartbeats have connections and goroutines of their own, which never wait for a
// disk, a log entry or the replica's lock. Raft has heartbeats too, but its timeouts
// are so long that they matter only if everything here fails.
//
// A heartbeat consists of the leader's term and id, how many ms ago a majority
// confirmed it, for how many ms its disk has been blocking a write, and the index of
// the last entry that it has applied. The answer is the newest term that the receiver
// knows; unless that is later than the sender's, the receiver follows the sender.
const (
	beatLen   = 8 + 8 + 4 + 4 + 8
	answerLen = 8
)

// moment returns now by both clocks.
func (m *Member) moment() moment { return m.contacts.moment(m.nowMs()) }

// state returns this member's state, except for lost, which contacts.state fills in,
// and the end of the log, which node.logEnd returns.
func (m *Member) state() state {
	s := state{term: m.raft.terms.newest.Load(), stalled: m.raft.stall.length(m.moment())}
	s.applied, _, _ = m.commits.get()
	switch m.raft.State() {
	case raft.Leader:
		s.leads = true
	case raft.Candidate:
		s.candidate = true
	}
	return s
}

// outlook holds the newest verdict of watchContacts.
type outlook struct {
	look    signal                  // for watchContacts: look at once
	verdict atomic.Pointer[verdict] // never nil
	changed signal                  // for watchLeader: the verdict has changed
}

func newOutlook() *outlook {
	o := &outlook{look: newSignal(), changed: newSignal()}
	o.verdict.Store(new(verdict))
	return o
}

// look makes watchContacts look at once.
func (m *Member) look() { m.outlook.look.raise() }

// watchContacts sends heartbeats while this member leads, detects the loss of the
// leader or of the majority, and has this member stand for election or step down.
func (m *Member) watchContacts() {
	defer m.wg.Done()
	senders := map[uint64]*sender{}
	defer func() {
		for _, s := range senders {
			close(s.stop)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var servers []raft.Server
	var members []MemberInfo
	for {
		select {
		case <-timer.C:
		case <-m.outlook.look:
		case <-m.stop:
			return
		}
		f := m.raft.GetConfiguration() // never fails
		if now := f.Configuration(); !slices.Equal(now.Servers, servers) {
			servers, members = now.Servers, infos(now)
		}
		own := m.state()
		if m.contacts.troubled() {
			own.lastIndex, own.lastTerm = m.raft.logEnd()
		}
		m.keepSenders(senders, members, own.leads)
		v, ask, stand, again := m.contacts.look(m.nowMs(), members, own)
		if v != *m.outlook.verdict.Swap(&v) {
			m.outlook.changed.raise()
		}
		for _, x := range ask {
			m.wg.Go(func() { m.question(x) })
		}
		switch {
		case stand && m.gate.lifted():
			m.wg.Go(m.stand)
		case v.leads && v.noMajority:
			// Sessions that it has found late must not expire when a majority is
			// back, and the others must not take it for a leader when they ask.
			m.wg.Go(m.stepDown)
		}
		timer.Reset(again)
	}
}

// sender sends heartbeats to one member.
type sender struct {
	addr string
	beat signal // when one is due
	stop chan struct{}
}

// keepSenders stops the senders of members that were removed or moved. While this
// member leads it starts a sender for each other member that has none. Then it wakes
// them all: they send a heartbeat, or hang up if this member does not lead.
func (m *Member) keepSenders(senders map[uint64]*sender, members []MemberInfo, leads bool) {
	for id, s := range senders {
		if x := find(members, id); x == nil || x.Addr != s.addr {
			close(s.stop)
			delete(senders, id)
		}
	}
	for _, x := range members {
		if x.ID == m.cfg.ID {
			continue
		}
		s := senders[x.ID]
		if s == nil && leads {
			s = &sender{x.Addr, newSignal(), make(chan struct{})}
			senders[x.ID] = s
			m.wg.Go(func() { m.sendBeats(x.ID, s) })
		}
		if s != nil {
			s.beat.raise()
		}
	}
}

// sendBeats sends heartbeats to one member while this one leads. When this one stops
// leading, sendBeats closes the connection, which tells the other member at once.
func (m *Member) sendBeats(to uint64, s *sender) {
	var c net.Conn
	works := false // a heartbeat was answered over c
	hangUp := func() {
		if c != nil {
			c.Close()
			c = nil
		}
	}
	defer hangUp()
	var beat [beatLen]byte
	var answer [answerLen]byte
	for {
		select {
		case <-s.beat:
		case <-s.stop:
			return
		case <-m.stop:
			return
		}
		term, leads := m.raft.term()
		if !leads {
			hangUp()
			continue
		}
		if c == nil {
			var err error
			if c, err = m.call(s.addr, kindBeat); err != nil {
				c = nil
				if errors.Is(err, syscall.ECONNREFUSED) {
					m.contacts.refused(to)
				}
				continue
			}
			works = false
		}
		asked := m.moment()
		binary.BigEndian.PutUint64(beat[:], term)
		binary.BigEndian.PutUint64(beat[8:], m.cfg.ID)
		binary.BigEndian.PutUint32(beat[16:], millis(m.contacts.ledAgo()))
		binary.BigEndian.PutUint32(beat[20:], millis(m.raft.stall.length(asked)))
		applied, _, _ := m.commits.get()
		binary.BigEndian.PutUint64(beat[24:], applied)
		c.SetDeadline(time.Now().Add(m.contacts.silence))
		_, err := c.Write(beat[:])
		if err == nil {
			_, err = io.ReadFull(c, answer[:])
		}
		if err != nil {
			hangUp()
			if works {
				s.beat.raise() // reconnect at once, to find out whether only the connection failed
			}
			continue
		}
		works = true
		if binary.BigEndian.Uint64(answer[:]) <= term {
			m.contacts.followed(to, asked)
		}
	}
}

// call connects to another member, within half of the election timeout.
func (m *Member) call(addr string, kind byte) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(m.peers.ctx, m.contacts.silence/2)
	defer cancel()
	return m.peers.dial(ctx, addr, kind)
}

// takeBeats receives and answers the heartbeats that come over a connection.
func (m *Member) takeBeats(c net.Conn) {
	defer c.Close()
	defer func() {
		if m.contacts.hungUp(c, m.nowMs()) {
			m.look()
		}
	}()
	var beat [beatLen]byte
	var answer [answerLen]byte
	for {
		// The next heartbeat is sent after this: the leader waits for each answer.
		asked := m.moment()
		c.SetDeadline(time.Now().Add(10 * m.contacts.silence)) // a machine that crashes does not close its connections
		if _, err := io.ReadFull(c, beat[:]); err != nil {
			return
		}
		newest := m.raft.terms.newest.Load()
		h := heard{
			term: binary.BigEndian.Uint64(beat[:]), id: binary.BigEndian.Uint64(beat[8:]),
			stalled: duration(binary.BigEndian.Uint32(beat[20:])), conn: c,
			applied: binary.BigEndian.Uint64(beat[24:]), asked: asked.ran,
		}
		if m.contacts.hear(m.nowMs(), h, duration(binary.BigEndian.Uint32(beat[16:])), newest) {
			m.look()
		}
		binary.BigEndian.PutUint64(answer[:], newest)
		if _, err := c.Write(answer[:]); err != nil {
			return
		}
	}
}

// question asks another member for its state and notes the answer in the contacts.
func (m *Member) question(x MemberInfo) {
	defer m.look()
	defer m.contacts.questionDone(x.ID)
	asked := m.moment()
	c, err := m.call(x.Addr, kindReach)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			m.contacts.refused(x.ID)
		}
		return
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(m.contacts.silence / 2))
	var b [stateLen]byte
	if _, err = io.ReadFull(c, b[:]); err == nil {
		m.contacts.answered(x.ID, asked, m.nowMs(), decodeState(b[:]))
	}
}

// tellState answers a question of another member with this one's state.
func (m *Member) tellState(c net.Conn) {
	defer c.Close()
	s := m.state()
	s.lastIndex, s.lastTerm = m.raft.logEnd()
	s = m.contacts.state(s)
	if s.leads {
		m.look() // the other member seems to miss this leader's heartbeats: send one now
	}
	c.SetWriteDeadline(time.Now().Add(helloTimeout))
	c.Write(s.append(nil)) // if this fails, the other member asks again
}

// stand has this member stand for election, by giving Raft the message with which a
// leader hands over: then the others vote for it even if they still know a leader.
// contacts.mayStand has checked that a majority has lost its leader. If Raft is still
// a candidate in an earlier election, it would wait for its own long timeout, so it
// steps down first.
func (m *Member) stand() {
	switch m.raft.State() {
	case raft.Leader:
		return
	case raft.Candidate:
		m.stepDown()
	}
	m.cfg.Log.Info("standing for election", "term", m.raft.CurrentTerm())
	m.transport.give(&raft.TimeoutNowRequest{RPCHeader: m.transport.header()}, m.contacts.sure)
}

// stepDown turns a leader or a candidate into a follower, by giving Raft a vote
// request of a later term. The request comes with an empty log, so it gets no vote.
func (m *Member) stepDown() {
	if m.raft.State() == raft.Follower {
		return
	}
	m.transport.give(&raft.RequestVoteRequest{RPCHeader: m.transport.header(), Term: m.raft.CurrentTerm() + 1, LeadershipTransfer: true}, m.contacts.sure)
}
