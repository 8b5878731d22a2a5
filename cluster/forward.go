package cluster

import (
	"bufio"
	"encoding/binary"
	"net"
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// serveForward handles a connection over which another member sends its entries, touches
// and questions. If this member does not lead, Raft refuses the entries. A connection that is
// not used for ten election timeouts is closed; the other member opens one when it needs it.
func (m *Member) serveForward(c net.Conn) {
	c = peer.Patient{Conn: c, ReadIn: 10 * m.contacts.Silence, WriteIn: m.contacts.Silence}
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
	turn := wake.NewTurn() // held while writing an answer
	answer := func(kind byte, payload []byte) bool {
		if !turn.TakeWithin(m.contacts.Silence) {
			c.Close()
			return false
		}
		defer turn.Give()
		err := peer.WriteMessage(c, kind, payload)
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
			f := m.raft.Apply(b.entry, m.contacts.Silence)
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
	in := peer.ReadFunc(func(p []byte) (int, error) {
		n, err := c.Read(p)
		if received += n; received >= timing.OneWrite/2 { // of a message that takes long, perhaps
			received = 0
			answer(msgAlive, nil)
		}
		return n, err
	})
	var parts []byte // of an entry that has not come completely
	for r := bufio.NewReader(in); ; {
		kind, b, err := peer.ReadMessage(r)
		if err != nil {
			return
		}
		switch kind {
		case msgAlive:
			if !answer(msgAlive, nil) {
				return
			}
		case msgPart:
			if len(parts)+len(b) > peer.MaxMessage {
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
			if !wake.Offer(batches, batch{e.Batch, b}) {
				m.cfg.Log.Error("a peer sends entries without waiting", "peer", c.RemoteAddr().String())
				return
			}
		case msgAsk:
			if len(b) != askLen {
				return
			}
			if !wake.Offer(questions, b) {
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
