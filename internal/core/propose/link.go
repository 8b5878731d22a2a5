package propose

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// The kinds of messages on a connection of peer.KindForward.
const (
	MsgBatch   = 'B' // to the leader: an entry for the log, or the last part of one
	MsgPart    = 'b' // to the leader: a part of an entry, which the next message of these two continues
	MsgAsk     = 'Q' // to the leader: what is committed? A number, the sender's id, the newest term that it knows, and touches
	MsgAnswer  = 'A' // from the leader: the answer to MsgAsk, or that an entry may not be in the log; see Answer
	MsgTouched = 'T' // to the leader: sessions that were touched
	MsgHeard   = 'H' // from the leader: the answer to MsgTouched, see Member.takeTouches of package cluster
	MsgAlive   = 'L' // to the leader, without content: is the connection alive? And from the leader: yes

	maxPart = 64 << 10 // bytes of a longer entry in one message, so that other messages go between
)

// AskLen is the length of a MsgAsk without touches.
const AskLen = 3 * 8

// Answer encodes a MsgAnswer: the number of a question, and the index that Proposer.ReadIndex returned; or the number of an entry
// that is not, or may not be, in the log, and 0.
func Answer(number, index uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, number), index)
}

// Link is a connection to the leader, over which this member sends entries, touches and
// questions. The leader answers touches, questions, and entries that it refuses; an
// entry's success is learned when it is applied here. It serves one election.Leader, and is closed when that changes.
type Link struct {
	changed <-chan struct{} // of the election.Leader
	c       net.Conn

	turn    wake.Turn     // held while writing a message
	answers chan []byte   // to entries and questions
	asked   uint64        // number of the last question; only Proposer.Run uses it
	Heard   chan []byte   // answers to messages of touches
	Gone    chan struct{} // closed when the connection is

	waits atomic.Int32 // how many wait for an answer; see watch
	came  atomic.Bool  // something has come since watch last looked
}

// LinkTo returns a connection to the leader: the existing one if it still works,
// otherwise a new one. It gives up when the leader changes. Proposer.Run and Member.sendTouches of package cluster share it.
func (p *Proposer) LinkTo(lead election.Leader) (*Link, error) {
	p.linking.Take()
	defer p.linking.Give()
	if wake.Closed(lead.Changed) {
		return nil, engine.ErrNotLeader
	}
	if l := p.link; l != nil && l.changed == lead.Changed && !wake.Closed(l.Gone) {
		return l, nil
	}
	ctx, cancel := context.WithCancel(p.Port.Ctx)
	defer cancel()
	p.Running.Go(func() {
		select {
		case <-lead.Changed:
			cancel()
		case <-ctx.Done():
		}
	})
	silence := p.Contacts.ElectionTimeout
	c, err := p.Port.DialTwice(ctx, lead.Addr, peer.KindForward, lead.ID, silence)
	if err != nil {
		return nil, err
	}
	l := &Link{
		changed: lead.Changed, c: peer.TimeoutConn{Conn: c, WriteTimeout: silence}, turn: wake.NewTurn(),
		answers: make(chan []byte, 16), Heard: make(chan []byte, 16), Gone: make(chan struct{}),
	}
	p.link = l
	p.Running.Go(func() { l.watch(silence/timing.LooksPerTimeout, &p.Contacts.Gaps) })
	p.Running.Go(l.read)
	return l, nil
}

// read takes what the leader answers, until the link is closed.
func (l *Link) read() {
	defer close(l.Gone)
	defer l.Close()
	for r := bufio.NewReader(l.c); ; {
		kind, b, err := peer.ReadMessage(r)
		if err != nil {
			return
		}
		l.came.Store(true)
		// If a channel is full, its answers are to messages that were given up.
		switch {
		case kind == MsgAnswer && len(b) == 16:
			wake.Offer(l.answers, b)
		case kind == MsgHeard && len(b) > 0:
			wake.Offer(l.Heard, b)
		case kind == MsgAlive:
		default:
			return
		}
	}
}

// awaitAnswer waits for the leader's answer to an entry or question, and returns the index in it. It returns 0 if the link or one of the
// channels is closed.
func (l *Link) awaitAnswer(number uint64, suspended, done <-chan struct{}) (index uint64) {
	for {
		select {
		case b := <-l.answers:
			if binary.BigEndian.Uint64(b) == number {
				return binary.BigEndian.Uint64(b[8:])
			}
		case <-l.Gone:
			return 0
		case <-suspended:
			return 0
		case <-done:
			return 0
		}
	}
}

// watch closes the link when the leader changes. It does so too when the link does not work, although the leader is the same: when
// something waits for the leader, and it has been silent over the link for the election
// timeout. It may have no answer to give yet, so it is asked whether it is alive. every is a
// quarter of the timeout. Time in which this process is paused does not count.
//
// If the leader's heartbeats show that the network was cut, a quarter of the timeout is enough
// (as peer.Conns.Redial). gaps is election.Contacts.Gaps.
func (l *Link) watch(every time.Duration, gaps *atomic.Int64) {
	before := gaps.Load()
	for asked, quiet := false, 0; ; {
		select {
		case <-time.After(every):
		case <-l.changed:
			l.Close()
			return
		case <-l.Gone:
			return
		}
		if l.came.Swap(false) {
			asked, quiet = false, 0
			before = gaps.Load()
		} else if asked {
			quiet++
		}
		if quiet == timing.LooksPerTimeout || quiet > 0 && gaps.Load() != before {
			l.Close()
			return
		}
		// While another goroutine writes, no question can be sent; the write has a deadline of its own.
		asked = (asked || l.waits.Load() > 0) && l.turn.TryTake()
		if asked {
			l.write(MsgAlive, nil)
			l.turn.Give()
		}
	}
}

// NoteWaiting notes that an answer is awaited, until done is called.
func (l *Link) NoteWaiting() (done func()) {
	l.waits.Add(1)
	return func() { l.waits.Add(-1) }
}

func (l *Link) Send(kind byte, payload []byte) error {
	l.turn.Take()
	defer l.turn.Give()
	return l.write(kind, payload)
}

// write does what Send says. The caller has the turn.
func (l *Link) write(kind byte, payload []byte) error {
	err := peer.WriteMessage(l.c, kind, payload)
	if err != nil {
		l.Close()
	}
	return err
}

// sendEntry sends an entry to the leader, a long one in parts, so that touches and questions do
// not wait behind all of it. Only Proposer.Run calls it, so the parts of two entries never mix;
// after an error the link is closed.
func (l *Link) sendEntry(entry []byte) error {
	for len(entry) > maxPart {
		if err := l.Send(MsgPart, entry[:maxPart]); err != nil {
			return err
		}
		entry = entry[maxPart:]
	}
	return l.Send(MsgBatch, entry)
}

// Close closes the connection. What waits for an answer over it is given up.
func (l *Link) Close() { l.c.Close() }
