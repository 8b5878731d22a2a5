package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestPeerPortBadInput: whoever sends to a peer port what no member sends loses only the
// connection. The members keep their connections and their leader, and commands are applied.
func TestPeerPortBadInput(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		leader := f.running[lead]
		term := leader.engine.Term()
		entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		entry = fsm.EndEntry(entry, &fsm.Envelope{Origin: 77, Batch: 1, Count: 1})
		entry[len(entry)-1]++
		hello := func(kind byte, rest ...byte) []byte {
			h := peer.Hello{Kind: kind, Cluster: leader.pulse.gate.Cluster(), From: 2, Addr: "stranger:1"}
			return append(h.Encode(), rest...)
		}
		long := "E" + strings.Repeat("\x00", 40)
		starts := [][]byte{
			{}, {'R', 1}, {'R', 99}, {'F'}, hello('R')[:20], hello('X'),
			hello('R'), hello('F'), hello('A'), hello('P'), hello('H'),
			hello('F', 'B', 0x3f, 0xff, 0xff, 0xff),                                 // an entry of a gigabyte that does not come
			hello('F', append([]byte{'B', 0, 0, 0, byte(len(entry))}, entry...)...), // one that is damaged
			hello('A', '{', '}', '\n'),
			hello(peer.KindRaft, []byte("X")...),
			hello(peer.KindRaft, []byte(long+"\xff\xff\xff\xff")...), // too many entries, or too long ones
			hello(peer.KindRaft, []byte(long+"\x00\x00\x00\x01"+strings.Repeat("\x00", 17)+"\xff\xff\xff\xff\x00\x00\x00\x00")...),
		}
		for i := range 6 * len(starts) {
			nc, err := f.net.Host("stranger").Dial(t.Context(), f.peers[uint64(i%3+1)])
			if err != nil {
				t.Fatal(err)
			}
			garbage := make([]byte, r.IntN(3000))
			for j := range garbage {
				garbage[j] = byte(r.Uint32())
			}
			if start := starts[i%len(starts)]; len(garbage) > 0 && len(start) > 0 && start[0] == peer.KindRaft {
				garbage[0] &= 0x1f // otherwise it may be a message
			}
			start := starts[i%len(starts)]
			nc.SetDeadline(time.Now().Add(2 * time.Second))
			nc.Write(append(start, garbage...))
			if i%2 == 0 {
				io.Copy(io.Discard, nc) // until the member closes it
			}
			nc.Close()
			if !f.write(0) {
				t.Fatalf("after %q and noise, a command is lost", start)
			}
		}
		if now := leader.engine.Term(); now != term || leader.Role() != "leader" {
			t.Errorf("the leader of term %d is a %s in term %d", term, leader.Role(), now)
		}
	})
}

// TestOtherLists: members that were started with different lists do not form a cluster,
// and log why.
func TestOtherLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.start(0)
		cfg := f.config(1)
		cfg.Peers = listOf(addresses(2))
		f.open(1, cfg)
		time.Sleep(30 * time.Second)
		for i, m := range f.running[:2] {
			if m.Role() != "looking" {
				t.Errorf("member %d is a %s", i+1, m.Role())
			}
		}
		for _, words := range []string{"server 2 was started with other members than server 1", "server 1 was started with other members than server 2"} {
			if f.log.Count(words) == 0 {
				t.Errorf("the log does not say %q:\n%s", words, f.log.String())
			}
		}
	})
}

// TestAskClients: a member tells others its clients, in one answer of limited length, and is told which it
// should look for. One that has nothing to tell says only its status.
func TestAskClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, asked := newFleet(t, 3), make(chan []string, 1)
		f.all(func(cfg *Config) {
			if cfg.ID == 3 {
				return
			}
			id := cfg.ID
			cfg.Clients = func(find []string) report.ClientList {
				asked <- find
				all := report.ClientList{Total: 5000}
				for i := range 5000 * (id - 1) {
					all.Some = append(all.Some, report.Client{Number: i, Session: int64(id), Addr: strings.Repeat("a", int(i)), Op: "PING"})
				}
				return all
			}
		})
		for i, m := range f.running {
			q := &request.ClientQuery{Find: []string{"10.0.0.1", "0x"}}
			s, all, err := request.AskStatus(t.Context(), f.net.Host("stranger"), m.cfg.Address(), q)
			switch {
			case err != nil || s.ID != m.cfg.ID || s.Cluster != m.pulse.gate.Cluster():
				t.Errorf("member %d: %+v, %v", m.cfg.ID, s, err)
			case (all != nil) != (i < 2):
				t.Errorf("member %d: %+v", m.cfg.ID, all)
			case all == nil:
				continue
			case all.Total != 5000 || len(all.Some) != []int{0, report.MaxClients}[i]:
				t.Errorf("member %d: %d of %d clients", m.cfg.ID, len(all.Some), all.Total)
			}
			if got := <-asked; !slices.Equal(got, q.Find) {
				t.Errorf("member %d was asked for %q", m.cfg.ID, got)
			}
			for _, c := range all.Some {
				if len(c.Addr) != min(int(c.Number), 100) || c.Session != 2 || c.Op != "PING" {
					t.Errorf("%+v", c)
				}
			}
			if s, all, err := request.AskStatus(t.Context(), f.net.Host("stranger"), m.cfg.Address(), nil); err != nil || s == nil || all != nil {
				t.Errorf("member %d: %+v, %v", m.cfg.ID, all, err)
			}
		}
	})
}

// TestReplyOfManyParts: a reply of the length that one may have, which would fill a hundred times as much memory with clients
// of whom it says nothing, is not unpacked.
func TestReplyOfManyParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.answer(t, "b", peer.KindAdmin, func(c net.Conn) {
			io.WriteString(c, `{"status":{"id":2},"clients":{"some":[{}`+strings.Repeat(`,{}`, 340_000)+`]}}`)
			c.Close()
		})
		_, clients, err := request.AskStatus(t.Context(), b.net.Host("a"), "b:1", &request.ClientQuery{})
		if err == nil || !strings.Contains(err.Error(), "b:1: its answer has too many parts") || clients != nil {
			t.Errorf("%v, and it has clients: %v", err, clients != nil)
		}
	})
}

// TestEndlessReply: a server that answers a question about the members without end is given up, after a
// limited number of bytes.
func TestEndlessReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		sent := make(chan int, 1)
		b.answer(t, "b", peer.KindAdmin, func(c net.Conn) {
			defer c.Close()
			io.WriteString(c, `{"status":{"members":[`)
			part, n := strings.Repeat(" ", 64<<10), 0
			for {
				if _, err := io.WriteString(c, part); err != nil || n > 100<<20 {
					break
				}
				n += len(part)
			}
			sent <- n
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := request.AskStatus(ctx, b.net.Host("a"), "b:1", nil)
		if n := <-sent; n > 2<<20 || err == nil || !strings.Contains(err.Error(), "b:1: its answer is too long") {
			t.Errorf("%v, after %d bytes", err, n)
		}
	})
}

// TestAskInCircles: while two members each name the other as the leader, who asks them
// pauses between its questions.
func TestAskInCircles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		var asked atomic.Int64
		var serving sync.WaitGroup
		defer serving.Wait()
		for addr, names := range map[string]string{"a:1": "b:1", "b:1": "a:1"} {
			l, err := net.Host(addr[:1]).Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			serving.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond) // so that time passes
					asked.Add(1)
					json.NewEncoder(c).Encode(request.Reply{Error: request.ErrNotLeader.Error(), NotLeader: true, Leader: names})
					c.Close()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := request.Ask(ctx, net.Host("c"), "a:1", request.Request{Status: true}); err == nil {
			t.Error("there is no leader, and no error")
		}
		if n := asked.Load(); n > 10*2*int64(time.Second/(50*time.Millisecond))+50 {
			t.Errorf("%d questions in 10 s", n)
		}
	})
}

// TestEarlyPeer: an entry that another member sends while this one is still starting
// waits, as it would in the backlog of a TCP port.
func TestEarlyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memnet.New()
		var peers sync.WaitGroup
		send := func(kind byte, say func(c net.Conn) error) {
			peers.Go(func() {
				c, err := callPeer(mem.Host("b"), "a:7", kind, testCluster)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if err := say(c); err != nil && !errors.Is(err, syscall.EPIPE) { // it may have been refused already
					t.Error(err)
				}
				io.Copy(io.Discard, c) // until it is closed
			})
		}
		listened := false
		network := slowNetwork{mem.Host("a"), func() {
			listened = true
			send(peer.KindForward, func(c net.Conn) error {
				e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
				return peer.WriteMessage(c, propose.MsgBatch, fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1}))
			})
			send(peer.KindAdmin, func(c net.Conn) error {
				_, err := io.WriteString(c, `{"status":true}`+"\n")
				return err
			})
			time.Sleep(time.Second)
		}}
		m, err := openMember(memberConfig(1, map[uint64]string{1: "a:7", 2: "b:7"}, network), fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		if !listened {
			t.Error("the member did not listen")
		}
		synctest.Wait() // the connections were accepted
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		peers.Wait()
	})
}

// slowNetwork calls listening when a port is open, before Listen returns.
type slowNetwork struct {
	peer.Network
	listening func()
}

func (n slowNetwork) Listen(addr string) (net.Listener, error) {
	l, err := n.Network.Listen(addr)
	n.listening()
	return l, err
}
