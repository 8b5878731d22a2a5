package propose

import (
	"bufio"
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
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
	MsgTouched = 'T' // to the leader: a number, or Unanswered, and sessions that were touched
	MsgHeard   = 'H' // from the leader: the answer to MsgTouched; see takeTouches
	MsgAsk     = 'Q' // to the leader: what is committed? A number, the sender's id, and the newest term that it knows
	MsgIndex   = 'I' // from the leader: the answer to MsgAsk: its number, and an index (see ReadIndex.Get) or 0
	MsgAlive   = 'L' // to the leader, without content: is the connection alive? And from the leader: yes
	MsgRefused = 'N' // from the leader: the entry with this number is not, or may not be, in the log

	maxPart = 64 << 10 // bytes of a longer entry in one message, so that other messages go between
)

const (
	// UnheardTouches is the answer to a message of touches from a member that does not
	// surely lead.
	UnheardTouches = 0
	// Unanswered is the number of a message of touches that is not answered: see Proposer.ask.
	Unanswered = math.MaxUint64
)

// AskLen is the length of a MsgAsk.
const AskLen = 3 * 8

// Link is a connection to the leader, over which this member sends entries, touches and
// questions. The leader answers touches, questions, and entries that it refuses; an
// entry's success is learned when it is applied here. It serves one election.Leader.
type Link struct {
	changed <-chan struct{} // of the election.Leader
	c       net.Conn

	turn    wake.Turn     // held while writing a message
	refused chan uint64   // numbers of refused entries
	Heard   chan []byte   // answers to messages of touches
	asked   uint64        // number of the last question; only Proposer.Run uses it
	indexes chan []byte   // answers to questions
	Gone    chan struct{} // closed when the connection is

	waits atomic.Int32 // how many wait for an answer; see watch
	came  atomic.Bool  // something has come since watch last looked
}

// leaderLink holds the current link to the leader. Proposer.Run and sendTouches share it. Its
// goroutines are those of the link.
type leaderLink struct {
	peers   *peer.Port
	wg      *sync.WaitGroup // of its goroutines
	silence time.Duration   // the election timeout
	gaps    *atomic.Int64   // election.Contacts.Gaps

	turn wake.Turn // guards link, also while connecting
	link *Link     // nil if there is none
}

func newLeaderLink(peers *peer.Port, wg *sync.WaitGroup, c *election.Contacts) leaderLink {
	return leaderLink{peers: peers, wg: wg, silence: c.ElectionTimeout, gaps: &c.Gaps, turn: wake.NewTurn()}
}

// to returns a connection to the leader: the existing one if it still works,
// otherwise a new one. It gives up when the leader changes.
func (k *leaderLink) to(lead election.Leader) (*Link, error) {
	k.turn.Take()
	defer k.turn.Give()
	select {
	case <-lead.Changed:
		return nil, engine.ErrNotLeader
	default:
	}
	if l := k.link; l != nil {
		select {
		case <-l.Gone:
		default:
			if l.changed == lead.Changed {
				return l, nil
			}
			// Even if it leads to the same member, that was lost meanwhile, and the
			// connection perhaps too.
			l.c.Close()
		}
		k.link = nil
	}
	ctx, cancel := context.WithCancel(k.peers.Ctx)
	defer cancel()
	k.wg.Go(func() {
		select {
		case <-lead.Changed:
			cancel()
		case <-ctx.Done():
		}
	})
	c, err := k.peers.DialTwice(ctx, lead.Addr, peer.KindForward, lead.ID, k.silence)
	if err != nil {
		return nil, err
	}
	c = peer.TimeoutConn{Conn: c, ReadTimeout: 0, WriteTimeout: k.silence}
	l := &Link{changed: lead.Changed, c: c, turn: wake.NewTurn(), refused: make(chan uint64, 16), Heard: make(chan []byte, 16), indexes: make(chan []byte, 16), Gone: make(chan struct{})}
	k.link = l
	k.wg.Go(func() { l.watch(k.silence/timing.LooksPerTimeout, k.gaps) })
	k.wg.Go(func() {
		defer close(l.Gone)
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			kind, b, err := peer.ReadMessage(r)
			if err != nil || len(b) < 8 && kind != MsgAlive {
				return
			}
			l.came.Store(true)
			// If a channel is full, its answers are to messages that were given up.
			switch kind {
			case MsgRefused:
				wake.Offer(l.refused, binary.BigEndian.Uint64(b))
			case MsgHeard:
				wake.Offer(l.Heard, b)
			case MsgIndex:
				wake.Offer(l.indexes, b)
			case MsgAlive:
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
// (as peer.Conns.Redial). gaps is election.Contacts.Gaps.
func (l *Link) watch(every time.Duration, gaps *atomic.Int64) {
	before := gaps.Load()
	for asked, quiet := false, 0; ; {
		select {
		case <-time.After(every):
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
			l.c.Close()
			return
		}
		if asked = asked || l.waits.Load() > 0; asked {
			l.Send(MsgAlive, nil)
		}
	}
}

// Await notes that an answer is awaited, until done is called.
func (l *Link) Await() (done func()) {
	l.waits.Add(1)
	return func() { l.waits.Add(-1) }
}

func (l *Link) Send(kind byte, payload []byte) error {
	l.turn.Take()
	defer l.turn.Give()
	err := peer.WriteMessage(l.c, kind, payload)
	if err != nil {
		l.c.Close()
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
