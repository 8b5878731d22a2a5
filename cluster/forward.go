package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"math"
	"net"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// link is a connection to the leader. What this member's clients write goes
// over it; that it was done is learned from the log.
type link struct {
	addr string
	c    net.Conn

	turn    turn          // of whoever writes
	refused chan uint64   // batches
	heard   chan []byte   // answers to messages of touches
	gone    chan struct{} // closed when the connection is
}

// linkTo returns a connection to the leader, the one that there is if it still
// works. It stops trying when there is another leader. The batcher and the
// sender of touches use it, one at a time.
func (m *Member) linkTo(lead leaderInfo) (*link, error) {
	addr := lead.addr
	m.linkTurn.take()
	defer m.linkTurn.give()
	if l := m.link; l != nil {
		select {
		case <-l.gone:
		default:
			if l.addr == addr {
				return l, nil
			}
			l.c.Close()
		}
		m.link = nil
	}
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	m.wg.Go(func() {
		select {
		case <-lead.changed:
			cancel()
		case <-ctx.Done():
		}
	})
	c, err := m.peers.dial(ctx, addr, kindForward)
	if err != nil {
		return nil, err
	}
	l := &link{addr: addr, c: c, turn: newTurn(), refused: make(chan uint64, 16), heard: make(chan []byte, 16), gone: make(chan struct{})}
	m.link = l
	m.wg.Go(func() {
		defer close(l.gone)
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			kind, b, err := readMessage(r)
			if err != nil || len(b) < 8 {
				return
			}
			// What finds no room, nobody waits for any more.
			switch kind {
			case msgRefused:
				select {
				case l.refused <- binary.BigEndian.Uint64(b):
				default:
				}
			case msgHeard:
				select {
				case l.heard <- b:
				default:
				}
			default:
				return
			}
		}
	})
	return l, nil
}

func (l *link) send(kind byte, payload []byte) error {
	l.turn.take()
	defer l.turn.give()
	err := writeMessage(l.c, kind, payload)
	if err != nil {
		l.c.Close()
	}
	return err
}

// deliver brings an entry into the log: by Raft if this member leads, else by
// way of the leader. It tries again, with other leaders, until the entry is
// applied here, which closes done; nothing is applied twice (see
// fsm.Machine.Apply). It gives up when this member stops serving, which closes
// suspended.
func (m *Member) deliver(number uint64, entry []byte, suspended, done <-chan struct{}) {
	for first := true; ; first = false {
		lead := m.leader()
		switch {
		case lead.id == m.cfg.ID:
			mine := entry
			if !first { // Raft may still have the one before
				mine = append([]byte(nil), entry...)
			}
			fsm.Stamp(mine, m.timeOfDay())
			m.proposals.proposed(len(mine))
			if m.answer(m.raft.Apply(mine, 0)) == nil {
				return // applied, or passed over, or not understood: then nobody is done
			}
		case lead.id != 0:
			if m.forward(lead, number, entry, suspended, done) {
				return
			}
		}
		select {
		case <-done:
			return
		case <-suspended:
			return
		case <-m.stop:
			return
		case <-lead.changed:
		case <-time.After(retryAfter):
		}
	}
}

// retryAfter is how long an entry that was refused waits.
const retryAfter = 20 * time.Millisecond

// forward sends an entry to the leader and waits until it is applied here; false if it
// has to be tried again.
func (m *Member) forward(lead leaderInfo, number uint64, entry []byte, suspended, done <-chan struct{}) bool {
	l, err := m.linkTo(lead)
	if err != nil || l.send(msgBatch, entry) != nil {
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
		case <-lead.changed:
			return false
		case <-suspended:
			return false
		case <-m.stop:
			return false
		}
	}
}

// serveForward takes what another member's clients write, while this member leads.
func (m *Member) serveForward(c net.Conn) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.Close()
	type batch struct {
		number uint64
		entry  []byte
	}
	// Raft takes no entry while a slow disk has the one before. The touches
	// behind it must be heard meanwhile: their sessions would be found late.
	batches := make(chan batch, 16)
	defer close(batches)
	var mu sync.Mutex
	answer := func(kind byte, payload []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		err := writeMessage(c, kind, payload)
		if err != nil {
			c.Close()
		}
		return err == nil
	}
	wg.Go(func() {
		for b := range batches {
			fsm.Stamp(b.entry, m.timeOfDay())
			m.proposals.proposed(len(b.entry))
			f := m.raft.Apply(b.entry, peerTimeout)
			wg.Go(func() {
				if m.answer(f) != nil {
					answer(msgRefused, binary.BigEndian.AppendUint64(nil, b.number))
				}
			})
		}
	})
	for r := bufio.NewReader(c); ; {
		kind, b, err := readMessage(r)
		if err != nil {
			return
		}
		switch kind {
		case msgBatch:
			e, _, err := fsm.OpenEntry(b)
			if err != nil {
				m.cfg.Log.Error("refusing a peer's entry", "peer", c.RemoteAddr().String(), "error", err)
				return
			}
			select {
			case batches <- batch{e.Batch, b}:
			default:
				m.cfg.Log.Error("a peer sends entries without waiting", "peer", c.RemoteAddr().String())
				return
			}
		case msgTouched:
			if len(b) < 8 || !answer(msgHeard, m.takeTouches(b)) {
				return
			}
		default:
			return
		}
	}
}

// noteTouch remembers when a session was heard of, for the leader to know, and
// the next one. The tracker's lock is held.
func (m *Member) noteTouch(id, at int64) {
	if m.peers == nil {
		return
	}
	if len(m.touched) == 0 {
		m.touchedSince = m.nowMs()
		m.touchWake.raise()
	}
	m.touched[id] = at
}

// hurryGap is how long after one message of touches the next is sent if somebody
// waits for it: one message does for many who wait.
const hurryGap = 5 * time.Millisecond

// sendTouches tells the leader which sessions were heard of here and how long
// ago, soon after they were and all at once, or at once if somebody waits.
// Nothing is sent when nobody speaks.
//
// Who heard it may have been replaced already by a leader that counts since
// before. So what was told last is told again to the next one.
func (m *Member) sendTouches() {
	defer m.wg.Done()
	var (
		pause = max(min(m.cfg.Tick/4, m.contacts.sure/2), time.Millisecond)
		keep  = unheardLimit * m.contacts.silence // who was replaced knows it by then
		told  = map[int64]int64{}
		lead  = m.leader() // who was told
		last  = m.nowMs()  // when it was
	)
	for {
		select {
		case <-m.touchWake:
			m.trackMu.Lock()
			since := m.touchedSince
			m.trackMu.Unlock()
			select {
			case <-time.After(pause - m.since(since)):
			case <-m.hurry:
				select {
				case <-time.After(hurryGap - m.since(last)):
				case <-m.stop:
					return
				}
			case <-m.stop:
				return
			}
		case <-lead.changed:
			if now := m.leader(); now.id == 0 || len(told) == 0 {
				lead = now
				continue
			}
		case <-m.stop:
			return
		}
		m.trackMu.Lock()
		news, since := m.touched, m.touchedSince
		m.touched = map[int64]int64{}
		m.trackMu.Unlock()
		if len(news) == 0 {
			since = m.nowMs()
		}
		if !m.sayUnheard(since) {
			return
		}
		var unsure []int64
		if lead, unsure = m.tell(lead, told, news); lead.id == 0 || !m.sayUnheard(allHeard) {
			return
		}
		last = m.nowMs()
		m.confirm(news, unsure)
		maps.Copy(told, news)
		maps.DeleteFunc(told, func(_, at int64) bool { return m.since(at) > keep })
	}
}

// confirm notes what the leader knows now, and has it told once more of sessions
// that it is unsure about.
func (m *Member) confirm(news map[int64]int64, unsure []int64) {
	m.trackMu.Lock()
	defer m.trackMu.Unlock()
	for _, id := range unsure {
		at, is := news[id]
		if _, newer := m.touched[id]; is && !newer && m.tracker.Touch(id, at) {
			m.noteTouch(id, at)
		}
		delete(news, id)
	}
	for id, at := range news {
		m.tracker.Confirm(id, at)
	}
	close(m.confirmed)
	m.confirmed = make(chan struct{})
}

// allHeard is what sayUnheard says when the leader has heard all.
const allHeard = -1

// sayUnheard tells watchLeader since when the leader has not heard what this
// member did; false when the member stops.
func (m *Member) sayUnheard(since int64) bool {
	select {
	case m.unheard <- since:
		return true
	case <-m.stop:
		return false
	}
}

// tell has the leader hear news, and what was told before if that was to another
// one than leads now. It returns who has heard it, which may be this member, or
// nobody if the member stops, and the sessions that the leader does not answer for.
func (m *Member) tell(last leaderInfo, told, news map[int64]int64) (leaderInfo, []int64) {
	for {
		lead, touches := m.leader(), news
		if lead.changed != last.changed {
			touches = maps.Clone(told)
			maps.Copy(touches, news)
		}
		var again <-chan time.Time
		switch lead.id {
		case 0:
		case m.cfg.ID:
			if m.surelyLeads() {
				return lead, nil
			}
			again = time.After(retryAfter)
		default:
			if unsure, ok := m.tellLeader(lead, touches); ok {
				return lead, unsure
			}
			again = time.After(retryAfter)
		}
		select {
		case <-lead.changed:
		case <-again:
		case <-m.stop:
			return leaderInfo{}, nil
		}
	}
}

// tellLeader sends touches to the leader. It returns true when the leader has
// heard them, and the sessions that it does not answer for.
func (m *Member) tellLeader(lead leaderInfo, touches map[int64]int64) (unsure []int64, ok bool) {
	l, err := m.linkTo(lead)
	if err != nil {
		return nil, false
	}
	m.toldCount++
	now := m.nowMs()
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+touchLen*len(touches)), m.toldCount)
	for id, at := range touches {
		ago := now - at - 1 // both are rounded
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(ago, 0), math.MaxUint32)))
	}
	if l.send(msgTouched, b) != nil {
		return nil, false
	}
	again := time.After(m.contacts.silence / 2)
	for {
		select {
		case b := <-l.heard:
			switch binary.BigEndian.Uint64(b) {
			case m.toldCount:
			case unheardTouches:
				return nil, false
			default:
				continue
			}
			for b = b[8:]; len(b) >= 8; b = b[8:] {
				unsure = append(unsure, int64(binary.BigEndian.Uint64(b)))
			}
			return unsure, true
		case <-again:
			return nil, false
		case <-l.gone:
			return nil, false
		case <-lead.changed:
			return nil, false
		case <-m.stop:
			return nil, false
		}
	}
}

// touchLen is the length of a touch: the session, and how many ms ago it was heard of.
const touchLen = 8 + 4

// unheardTouches answers a message of touches that came to a member that may not lead.
const unheardTouches = 0

// takeTouches notes what another member tells, and returns the answer. If this
// member is about to do its duties as the leader, every session gets its whole
// time then. The answer is the number of the message, and the sessions that this
// member does not answer for: those that it has found late, whose end is on its
// way, and those that it does not know, any more or yet.
func (m *Member) takeTouches(b []byte) []byte {
	heard := bytes.Clone(b[:8])
	now := m.nowMs()
	m.trackMu.Lock()
	defer m.trackMu.Unlock()
	for t := b[8:]; len(t) >= touchLen; t = t[touchLen:] {
		if !m.tracker.Touch(int64(binary.BigEndian.Uint64(t)), now-int64(binary.BigEndian.Uint32(t[8:]))) {
			heard = append(heard, t[:8]...)
		}
	}
	if !m.surelyLeads() {
		return binary.BigEndian.AppendUint64(nil, unheardTouches)
	}
	return heard
}
