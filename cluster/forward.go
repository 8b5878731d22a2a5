package cluster

import (
	"bufio"
	"encoding/binary"
	"net"
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// serveForward handles a connection over which another member sends its entries, touches
// and questions. If this member does not lead, the engine refuses the entries. A connection that is
// not used for ten election timeouts is closed; the other member opens one when it needs it.
func (m *Member) serveForward(c net.Conn) {
	f := &forwarded{
		Member: m, c: peer.TimeoutConn{Conn: c, ReadTimeout: 10 * m.contacts.ElectionTimeout, WriteTimeout: m.contacts.ElectionTimeout}, writing: wake.NewTurn(),
		work: make(chan func(), 16), gone: make(chan struct{}),
	}
	f.running.Go(func() {
		for do := range f.work {
			do()
		}
	})
	for r := bufio.NewReader(peer.ReadFunc(f.read)); ; {
		kind, b, err := peer.ReadMessage(r)
		if err != nil || !f.take(kind, b) {
			break
		}
	}
	close(f.work)
	close(f.gone)
	f.c.Close()
	f.running.Wait()
}

// forwarded is a connection of another member, over which that forwards what only the leader can do.
type forwarded struct {
	*Member
	c       net.Conn
	writing wake.Turn // held while an answer is written
	// Entries and questions, one after the other. The engine may be waiting for a slow disk that writes the previous entry. The
	// touches that come after an entry must be handled meanwhile, or their sessions would expire.
	work    chan func()
	gone    chan struct{} // closed when the connection has ended
	running sync.WaitGroup

	received   int    // bytes since the last sign of life
	parts      []byte // of an entry that has not come completely
	identified bool   // the replicated state belongs to a cluster
}

// answer sends a message to the other member. It reports whether that worked; otherwise it closes the connection.
func (f *forwarded) answer(kind byte, payload []byte) bool {
	if !f.writing.TakeWithin(f.contacts.ElectionTimeout) {
		f.c.Close()
		return false
	}
	defer f.writing.Give()
	err := peer.WriteMessage(f.c, kind, payload)
	if err != nil {
		f.c.Close()
	}
	return err == nil
}

// read reads from the connection, and gives signs of life while a long message comes.
func (f *forwarded) read(p []byte) (int, error) {
	n, err := f.c.Read(p)
	if f.received += n; f.received >= timing.MaxWrite/2 {
		f.received = 0
		f.answer(propose.MsgAlive, nil)
	}
	return n, err
}

// take handles a message. It returns false if the connection must be closed.
func (f *forwarded) take(kind byte, b []byte) bool {
	switch kind {
	case propose.MsgAlive:
		return f.answer(propose.MsgAlive, nil)
	case propose.MsgPart:
		if len(f.parts)+len(b) > peer.MaxMessage {
			return false
		}
		f.parts = append(f.parts, b...)
		return true
	case propose.MsgBatch:
		if len(f.parts) > 0 {
			b, f.parts = append(f.parts, b...), nil
		}
		return f.takeEntry(b)
	case propose.MsgAsk:
		if len(b) < propose.AskLen {
			return false
		}
		f.liveness.Hear(b[propose.AskLen:], nil)
		return f.later(func() {
			number, asker, newest := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
			f.answer(propose.MsgAnswer, propose.Answer(number, f.proposer.ReadIndex(asker, newest, f.gone)))
		})
	case propose.MsgTouched:
		return f.answer(propose.MsgHeard, f.takeTouches(b))
	}
	return false
}

// later has something done after what came before. It returns false if too much waits.
func (f *forwarded) later(do func()) bool {
	if !wake.Offer(f.work, do) {
		f.cfg.Log.Error("a peer sends entries or questions without waiting", "peer", f.c.RemoteAddr().String())
		return false
	}
	return true
}

func (f *forwarded) takeEntry(b []byte) bool {
	e, sessions, err := fsm.CheckEntry(b)
	if err != nil {
		f.cfg.Log.Error("refusing a peer's entry", "peer", f.c.RemoteAddr().String(), "error", err)
		return false
	}
	f.liveness.Hear(alive.TouchesNow(sessions), nil) // before clients of that member can have an answer
	return f.later(func() { f.propose(e.Batch, b) })
}

// propose proposes an entry of the other member.
func (f *forwarded) propose(number uint64, entry []byte) {
	refuse := func() { f.answer(propose.MsgAnswer, propose.Answer(number, 0)) }
	// What a restored cluster gives out before it has its id would be given out again if
	// it were restored once more; see fsm.Restored.
	if f.identified = f.identified || f.Member.identified() != 0; !f.identified {
		refuse()
		return
	}
	fsm.Stamp(entry, f.timeOfDay())
	f.proposer.Sizes.Proposed(len(entry))
	done := f.engine.Propose(entry, f.contacts.ElectionTimeout)
	f.running.Go(func() {
		if done() != nil {
			refuse()
		}
	})
}
