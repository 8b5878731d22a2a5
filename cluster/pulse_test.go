package cluster

import (
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPulseBeats: the pulse of a leader sends heartbeats, notes who follows, and hangs
// up when this member no longer leads.
func TestPulseBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		p := b.pulse
		beats, hungUp := make(chan []byte, 100), make(chan bool, 1)
		b.answer(t, "b", kindBeat, func(c net.Conn) {
			defer c.Close()
			for {
				beat := readFull(c, beatLen)
				if beat == nil {
					hungUp <- true
					return
				}
				beats <- beat
				c.Write(append(binary.BigEndian.AppendUint64(nil, p.raft.CurrentTerm()), make([]byte, answerLen-8)...))
			}
		})
		p.commits.set(7, 1)
		p.raft.begun.Store(p.raft.CurrentTerm())
		b.wg.Go(p.run)
		beat := receive(t, "a heartbeat", beats)
		if term := binary.BigEndian.Uint64(beat); term != p.raft.CurrentTerm() {
			t.Errorf("a heartbeat of term %d, want %d", term, p.raft.CurrentTerm())
		}
		if id, applied := binary.BigEndian.Uint64(beat[8:]), binary.BigEndian.Uint64(beat[24:]); id != 1 || applied != 7 {
			t.Errorf("a heartbeat of member %d with %d applied, want 1 with 7", id, applied)
		}
		synctest.Wait()
		if followers, observers := p.contacts.present(p.nowMs()); followers != 0 || observers != 1 {
			t.Errorf("%d followers and %d observers, want one observer", followers, observers)
		}
		if v := p.verdict.Load(); !v.leads || v.lost || v.noMajority {
			t.Errorf("verdict %+v", v)
		}
		began := len(beats)
		time.Sleep(time.Second)
		if n := len(beats) - began; n < 5 || n > 20 {
			t.Errorf("%d heartbeats in a second", n)
		}
		if err := p.raft.Shutdown().Error(); err != nil {
			t.Fatal(err)
		}
		receive(t, "the end of the connection", hungUp)
	})
}

// TestPulseStands: a pulse that has heard of no leader for the election timeout asks
// the other members, and gives Raft the message to stand once one of two has lost the
// leader too, but not before the gate is lifted.
func TestPulseStands(t *testing.T) {
	for _, lifted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1"}, proto.Peer{ID: 3, Addr: "c:1"})
			p := b.pulse
			if !lifted {
				p.gate.lift(0)
			}
			b.answerState(t, "b", state{lost: true, term: 1})
			b.wg.Go(p.run)
			var stands bool
			select {
			case rpc := <-p.transport.rpcs:
				_, stands = rpc.Command.(*raft.TimeoutNowRequest)
				rpc.Respond(&raft.TimeoutNowResponse{}, nil)
			case <-time.After(10 * time.Second):
			}
			if stands != lifted {
				t.Errorf("gate lifted %v: it stands: %v", lifted, stands)
			}
			if v := p.verdict.Load(); v.leads || !v.lost {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

// TestPulseHears: a pulse answers a leader's heartbeats with the newest term and its
// verdict names no loss; when the connection ends and the leader refuses a new one, the
// leader is lost at once.
func TestPulseHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1"}, proto.Peer{ID: 3, Addr: "c:1"})
		p := b.pulse
		b.wg.Go(p.run)
		here, there := net.Pipe()
		b.wg.Go(func() { p.takeBeats(here) })
		for range 5 {
			beat := make([]byte, beatLen)
			binary.BigEndian.PutUint64(beat, 4)
			binary.BigEndian.PutUint64(beat[8:], 3)
			there.Write(beat)
			if answer := readFull(there, answerLen); answer == nil || binary.BigEndian.Uint64(answer) != 1 {
				t.Fatalf("answer %v, want term 1", answer)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if v := p.verdict.Load(); v.lost || v.noMajority {
			t.Errorf("verdict %+v while the leader sends heartbeats", v)
		}
		there.Close()
		time.Sleep(50 * time.Millisecond)
		if v := p.verdict.Load(); !v.lost {
			t.Errorf("verdict %+v after the leader has gone", v)
		}
	})
}

// TestPulseAnswers: a pulse answers a question with this member's state.
func TestPulseAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, members := range map[state][]proto.Peer{
			{leads: true, term: 2, lastTerm: 2, lastIndex: 2}: {{ID: 1, Addr: "a:1"}},
			{lost: true, term: 1, lastTerm: 1, lastIndex: 1}:  {{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}},
		} {
			b := newBase(t, members...)
			here, there := net.Pipe()
			b.wg.Go(func() { b.pulse.tellState(here) })
			if got := decodeState(readFull(there, stateLen)); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	})
}
