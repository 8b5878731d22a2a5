package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"maps"
	"math"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// link is a connection to the leader. What this member's clients write goes
// over it; that it was done is learned from the log.
type link struct {
	addr string
	c    net.Conn

	turn    chan struct{} // has an element while somebody writes
	refused chan uint64
	gone    chan struct{} // closed when the connection is
}

// linkTo returns a connection to the leader, the one that there is if it still
// works. It stops trying when there is another leader. The batcher and the
// sender of touches use it, one at a time.
func (m *Member) linkTo(lead leaderInfo) (*link, error) {
	addr := lead.addr
	// No mutex, since to connect may take seconds: whoever waits for one holds
	// up the clock in virtual time.
	m.linkTurn <- struct{}{}
	defer func() { <-m.linkTurn }()
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
	l := &link{addr: addr, c: c, turn: make(chan struct{}, 1), refused: make(chan uint64, 16), gone: make(chan struct{})}
	m.link = l
	m.wg.Go(func() {
		defer close(l.gone)
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			kind, b, err := readMessage(r)
			if err != nil || kind != msgRefused || len(b) != 8 {
				return
			}
			select {
			case l.refused <- binary.BigEndian.Uint64(b):
			default: // nobody waits for it any more
			}
		}
	})
	return l, nil
}

func (l *link) send(kind byte, payload []byte) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	err := writeMessage(l.c, kind, payload)
	if err != nil {
		l.c.Close()
	}
	return err
}

// deliver brings an entry into the log: by Raft if this member leads, else by
// way of the leader. It tries again, with other leaders, until the entry is
// applied here, which closes done; nothing is applied twice (see
// fsm.Machine.Apply). It gives up, and loses who waits, when this member stops
// serving.
func (m *Member) deliver(number uint64, entry []byte, done <-chan struct{}) {
	for first := true; ; first = false {
		lead := m.leader()
		switch {
		case lead.id == m.cfg.ID:
			mine := entry
			if !first { // Raft may still have the one before
				mine = append([]byte(nil), entry...)
			}
			fsm.Stamp(mine, m.timeOfDay())
			m.watched.proposed(len(mine))
			if m.answer(func() raft.Future { return m.raft.Apply(mine, 0) }) == nil {
				// Applied, or passed over, or not understood: then nobody is done.
				lose(m.pending.take(number))
				return
			}
		case lead.id != 0:
			if m.forward(lead, number, entry, done) {
				return
			}
		}
		select {
		case <-done:
			return
		case <-lead.suspended:
			lose(m.pending.take(number))
			return
		case <-m.stop:
			lose(m.pending.take(number))
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
func (m *Member) forward(lead leaderInfo, number uint64, entry []byte, done <-chan struct{}) bool {
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
		case <-lead.suspended:
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
	wg.Go(func() {
		var mu sync.Mutex
		for b := range batches {
			fsm.Stamp(b.entry, m.timeOfDay())
			m.watched.proposed(len(b.entry))
			f := m.ask(func() raft.Future { return m.raft.Apply(b.entry, peerTimeout) })
			wg.Go(func() {
				if m.answered(f) != nil {
					mu.Lock()
					defer mu.Unlock()
					if writeMessage(c, msgRefused, binary.BigEndian.AppendUint64(nil, b.number)) != nil {
						c.Close()
					}
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
			now := m.nowMs()
			m.trackMu.Lock()
			for ; len(b) >= touchLen; b = b[touchLen:] {
				m.tracker.Touch(int64(binary.BigEndian.Uint64(b)), now-int64(binary.BigEndian.Uint32(b[8:])))
			}
			m.trackMu.Unlock()
		default:
			return
		}
	}
}

// noteTouch remembers that a session was heard of at now, for the leader to
// know, and the next one. The tracker's lock is held.
func (m *Member) noteTouch(id, now int64) {
	if m.peers == nil {
		return
	}
	if len(m.touched) == 0 {
		select {
		case m.touchWake <- struct{}{}:
		default:
		}
	}
	m.touched[id] = max(now, m.touched[id])
}

// sendTouches tells the leader which sessions were heard of here and how long
// ago, soon after they were and all at once. Nothing is sent when nobody speaks.
//
// Who is told may have been replaced already, by a leader that counts since
// before, or may never read it. So what was told last is told again to the next
// leader, and on the next connection.
func (m *Member) sendTouches() {
	defer m.wg.Done()
	var (
		pause = max(m.cfg.Tick/4, time.Millisecond)
		keep  = (pause + 4*m.electionTimeout).Milliseconds() // who was replaced knows it by then
		told  = map[int64]int64{}
		lead  = m.leader()
		to    *link // that told went over
	)
	for {
		var gone chan struct{}
		if to != nil {
			gone = to.gone
		}
		select {
		case <-m.touchWake:
		case <-lead.changed:
		case <-gone:
			to = nil
		case <-m.stop:
			return
		}
		maps.DeleteFunc(told, func(_, at int64) bool { return m.nowMs()-at > keep })
		select {
		case <-time.After(pause):
		case <-m.stop:
			return
		}
		// While none is known one may lead already, and count from its beginning.
		for lead = m.leader(); lead.id == 0; lead = m.leader() {
			select {
			case <-lead.changed:
			case <-m.stop:
				return
			}
		}
		m.trackMu.Lock()
		news := m.touched
		m.touched = map[int64]int64{}
		m.trackMu.Unlock()
		var l *link
		var err error
		if lead.id != m.cfg.ID && len(news)+len(told) > 0 {
			l, err = m.linkTo(lead)
		}
		if maps.Copy(told, news); l != to {
			news = told
		}
		if l != nil && len(news) > 0 {
			err = l.send(msgTouched, m.touches(news))
		}
		to = l
		if err != nil { // the same leader may be there in a moment
			to = nil
			m.trackMu.Lock()
			for id, at := range told {
				m.noteTouch(id, at)
			}
			m.trackMu.Unlock()
		}
	}
}

// touches puts into a message who was heard of when.
func (m *Member) touches(heard map[int64]int64) []byte {
	now, b := m.nowMs(), make([]byte, 0, touchLen*len(heard))
	for id, at := range heard {
		ago := now - at - 1 // both are rounded
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(ago, 0), math.MaxUint32)))
	}
	return b
}

// touchLen is the length of a touch: the session, and how many ms ago it was heard of.
const touchLen = 8 + 4
