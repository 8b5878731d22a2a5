package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// link is a connection to the leader, over which this member sends entries, touches and
// questions. The leader answers touches, questions, and entries that it refuses; an
// entry's success is learned when it is applied here. It serves one leaderInfo.
type link struct {
	changed <-chan struct{} // of the leaderInfo
	c       net.Conn

	turn    turn          // held while writing a message
	refused chan uint64   // numbers of refused entries
	heard   chan []byte   // answers to messages of touches
	asked   uint64        // number of the last question; only proposer.run uses it
	indexes chan []byte   // answers to questions
	gone    chan struct{} // closed when the connection is

	waits atomic.Int32 // how many wait for an answer; see watch
	came  atomic.Bool  // something has come since watch last looked
}

// linkTo returns a connection to the leader: the existing one if it still works,
// otherwise a new one. It gives up when the leader changes. proposer.run and
// sendTouches share the connection.
func (p *proposer) linkTo(lead leaderInfo) (*link, error) {
	p.link.turn.take()
	defer p.link.turn.give()
	select {
	case <-lead.changed:
		return nil, ErrNotLeader
	default:
	}
	if l := p.link.link; l != nil {
		select {
		case <-l.gone:
		default:
			if l.changed == lead.changed {
				return l, nil
			}
			// Even if it leads to the same member, that was lost meanwhile, and the
			// connection perhaps too.
			l.c.Close()
		}
		p.link.link = nil
	}
	silence := p.index.contacts.silence
	ctx, cancel := context.WithCancel(p.peers.ctx)
	defer cancel()
	p.wg.Go(func() {
		select {
		case <-lead.changed:
			cancel()
		case <-ctx.Done():
		}
	})
	c, err := p.peers.dialAgain(ctx, lead.addr, kindForward, lead.id, silence)
	if err != nil {
		return nil, err
	}
	c = patient{c, 0, silence}
	l := &link{changed: lead.changed, c: c, turn: newTurn(), refused: make(chan uint64, 16), heard: make(chan []byte, 16), indexes: make(chan []byte, 16), gone: make(chan struct{})}
	p.link.link = l
	p.wg.Go(func() { l.watch(silence/looks, &p.index.contacts.gaps) })
	p.wg.Go(func() {
		defer close(l.gone)
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			kind, b, err := readMessage(r)
			if err != nil || len(b) < 8 && kind != msgAlive {
				return
			}
			l.came.Store(true)
			// If a channel is full, its answers are to messages that were given up.
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
			case msgIndex:
				select {
				case l.indexes <- b:
				default:
				}
			case msgAlive:
			default:
				return
			}
		}
	})
	return l, nil
}

// watch closes the link when it does not work, although the leader is the same: when
// something waits for the leader, and it has been silent over the link for the election
// timeout. It may have no answer to give yet, so it is asked whether it is alive. every is a
// quarter of the timeout. Time in which this process is paused does not count.
//
// If the leader's heartbeats show that the network was cut, a quarter of the timeout is enough
// (see transport.redial). gaps is contacts.gaps.
func (l *link) watch(every time.Duration, gaps *atomic.Int64) {
	before := gaps.Load()
	for asked, quiet := false, 0; ; {
		select {
		case <-time.After(every):
		case <-l.gone:
			return
		}
		if l.came.Swap(false) {
			asked, quiet = false, 0
			before = gaps.Load()
		} else if asked {
			quiet++
		}
		if quiet == looks || quiet > 0 && gaps.Load() != before {
			l.c.Close()
			return
		}
		if asked = asked || l.waits.Load() > 0; asked {
			l.send(msgAlive, nil)
		}
	}
}

// await notes that an answer is awaited, until done is called.
func (l *link) await() (done func()) {
	l.waits.Add(1)
	return func() { l.waits.Add(-1) }
}

// leaderLink holds the current link to the leader.
type leaderLink struct {
	turn turn  // guards link, also while connecting
	link *link // nil if there is none
}

func newLeaderLink() leaderLink { return leaderLink{turn: newTurn()} }

func (l *link) send(kind byte, payload []byte) error {
	l.turn.take()
	defer l.turn.give()
	err := writeMessage(l.c, kind, payload)
	if err != nil {
		l.c.Close()
	}
	return err
}

// sendEntry sends an entry to the leader, a long one in parts, so that touches and questions do
// not wait behind all of it. Only proposer.run calls it, so the parts of two entries never mix;
// after an error the link is closed.
func (l *link) sendEntry(entry []byte) error {
	for len(entry) > maxPart {
		if err := l.send(msgPart, entry[:maxPart]); err != nil {
			return err
		}
		entry = entry[maxPart:]
	}
	return l.send(msgBatch, entry)
}

// deliver gets an entry into the log: through Raft if this member leads, otherwise
// by sending it to the leader. It retries, with new leaders too, until the entry is
// applied here, which closes done. Retrying is safe since an entry is never applied
// twice (see [fsm.Machine.Apply]). deliver gives up when suspended is closed.
func (p *proposer) deliver(number uint64, entry []byte, suspended, done <-chan struct{}) {
	for first := true; ; first = false {
		lead := p.leader.get()
		switch {
		case lead.id == p.id:
			mine := entry
			if !first { // Raft may still hold the slice of the previous attempt
				mine = append([]byte(nil), entry...)
			}
			fsm.Stamp(mine, p.timeOfDay())
			p.sizes.proposed(len(mine))
			if p.raft.answer(p.raft.Apply(mine, 0)) == nil {
				return // applied or skipped; or not understood, then its waiters are lost
			}
		case lead.id != 0:
			if p.forward(lead, number, entry, suspended, done) {
				return
			}
		}
		select {
		case <-done:
			return
		case <-suspended:
			return
		case <-p.stop:
			return
		case <-lead.changed:
		case <-time.After(retryAfter):
		}
	}
}

// retryAfter is the pause before something that failed is tried again.
const retryAfter = 20 * time.Millisecond

// forward sends an entry to the leader and waits until it is applied here. It returns
// false if the caller must retry.
func (p *proposer) forward(lead leaderInfo, number uint64, entry []byte, suspended, done <-chan struct{}) bool {
	l, err := p.linkTo(lead)
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
		case <-lead.changed:
			return false
		case <-suspended:
			return false
		case <-p.stop:
			return false
		}
	}
}

// serveForward handles a connection over which another member sends its entries, touches
// and questions. If this member does not lead, Raft refuses the entries. A connection that is
// not used for ten election timeouts is closed; the other member opens one when it needs it.
func (m *Member) serveForward(c net.Conn) {
	c = patient{c, 10 * m.contacts.silence, m.contacts.silence}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.Close()
	gone := make(chan struct{})
	defer close(gone)
	type batch struct {
		number uint64
		entry  []byte
	}
	// Raft blocks while a slow disk writes the previous entry. The touches that come
	// after this one must be handled meanwhile, or their sessions would expire.
	batches := make(chan batch, 16)
	defer close(batches)
	questions := make(chan []byte, 16)
	defer close(questions)
	turn := newTurn() // held while writing an answer
	answer := func(kind byte, payload []byte) bool {
		if !turn.takeWithin(m.contacts.silence) {
			c.Close()
			return false
		}
		defer turn.give()
		err := writeMessage(c, kind, payload)
		if err != nil {
			c.Close()
		}
		return err == nil
	}
	wg.Go(func() {
		known := false
		for b := range batches {
			// What a restored cluster gives out before it has its id would be given out again if
			// it were restored once more; see fsm.Restored.
			if known = known || m.identified() != 0; !known {
				answer(msgRefused, binary.BigEndian.AppendUint64(nil, b.number))
				continue
			}
			fsm.Stamp(b.entry, m.timeOfDay())
			m.proposer.sizes.proposed(len(b.entry))
			f := m.raft.Apply(b.entry, m.contacts.silence)
			wg.Go(func() {
				if m.raft.answer(f) != nil {
					answer(msgRefused, binary.BigEndian.AppendUint64(nil, b.number))
				}
			})
		}
	})
	wg.Go(func() {
		for b := range questions {
			index, _ := m.readIndex.answer(binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), gone)
			answer(msgIndex, binary.BigEndian.AppendUint64(b[:8:8], index))
		}
	})
	received := 0 // bytes since the last sign of life
	in := readFunc(func(p []byte) (int, error) {
		n, err := c.Read(p)
		if received += n; received >= oneWrite/2 { // of a message that takes long, perhaps
			received = 0
			answer(msgAlive, nil)
		}
		return n, err
	})
	var parts []byte // of an entry that has not come completely
	for r := bufio.NewReader(in); ; {
		kind, b, err := readMessage(r)
		if err != nil {
			return
		}
		switch kind {
		case msgAlive:
			if !answer(msgAlive, nil) {
				return
			}
		case msgPart:
			if len(parts)+len(b) > maxMessage {
				return
			}
			parts = append(parts, b...)
		case msgBatch:
			if len(parts) > 0 {
				b, parts = append(parts, b...), nil
			}
			e, sessions, err := fsm.CheckEntry(b)
			if err != nil {
				m.cfg.Log.Error("refusing a peer's entry", "peer", c.RemoteAddr().String(), "error", err)
				return
			}
			m.liveness.hear(touchesNow(sessions), nil) // before clients of that member can have an answer
			select {
			case batches <- batch{e.Batch, b}:
			default:
				m.cfg.Log.Error("a peer sends entries without waiting", "peer", c.RemoteAddr().String())
				return
			}
		case msgAsk:
			if len(b) != askLen {
				return
			}
			select {
			case questions <- b:
			default:
				m.cfg.Log.Error("a peer asks without waiting", "peer", c.RemoteAddr().String())
				return
			}
		case msgTouched:
			if len(b) < 8 {
				return
			}
			if heard := m.takeTouches(b); heard != nil && !answer(msgHeard, heard) {
				return
			}
		default:
			return
		}
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }
