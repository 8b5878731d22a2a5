package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
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
	"github.com/lockkeeper/lockkeeper/internal/core/report"
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
		term := leader.raft.CurrentTerm()
		entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		entry = fsm.EndEntry(entry, &fsm.Envelope{Origin: 77, Batch: 1, Count: 1})
		entry[len(entry)-1]++
		hello := func(kind byte, rest ...byte) []byte {
			h := hello{kind: kind, cluster: leader.membership.gate.cluster(), from: 2, addr: "stranger:1"}
			return append(h.append(nil), rest...)
		}
		long := "\x00\x01aE" + strings.Repeat("\x00", 32)
		starts := [][]byte{
			{}, {'R', 1}, {'R', 99}, {'F'}, hello('R')[:20], hello('X'),
			hello('R'), hello('F'), hello('A'), hello('P'), hello('H'),
			hello('F', 'B', 0x3f, 0xff, 0xff, 0xff),                                 // an entry of a gigabyte that does not come
			hello('F', append([]byte{'B', 0, 0, 0, byte(len(entry))}, entry...)...), // one that is damaged
			hello('A', '{', '}', '\n'),
			hello(kindStream, []byte("\x00\x01aX")...),            // (noise that begins as a message does would be one)
			hello(kindStream, []byte(long+"\xff\xff\xff\xff")...), // too many entries, or too long ones
			hello(kindStream, []byte(long+"\x00\x00\x00\x01"+strings.Repeat("\x00", 17)+"\xff\xff\xff\xff\x00\x00\x00\x00")...),
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
		if now := leader.raft.CurrentTerm(); now != term || leader.Role() != "leader" {
			t.Errorf("the leader of term %d is a %s in term %d", term, leader.Role(), now)
		}
	})
}

// fullNetwork is a network on which the first connections cannot be accepted, because the
// process has no file descriptor left.
type fullNetwork struct {
	Network
	failures int
}

func (n *fullNetwork) Listen(addr string) (net.Listener, error) {
	l, err := n.Network.Listen(addr)
	return fullListener{l, n}, err
}

type fullListener struct {
	net.Listener
	n *fullNetwork
}

func (l fullListener) Accept() (net.Conn, error) {
	if l.n.failures--; l.n.failures >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestPeerPortNoFiles: while a peer port cannot accept connections, it tries again without being
// busy with that, and logs it from time to time.
func TestPeerPortNoFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, greeted, began := memnet.New(), make(chan struct{}), time.Now()
		_, log := openPort(t, &fullNetwork{network.Host("a"), 3000}, func(c net.Conn) {
			c.Close()
			close(greeted)
		})
		c, err := callPeer(network.Host("b"), "a:1", kindReach, testCluster)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		<-greeted
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("3000 attempts to accept in %v", took)
		}
		if n := log.Count("cannot accept a peer"); n == 0 || n > 5 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

// TestPeerPortSilence: however many strangers connect to a peer port and say nothing, or not all
// of what a member says first, a member is greeted, and the port does not keep many of their
// connections. It closes none on which it has greeted a member.
func TestPeerPortSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		p, log := openPort(t, network.Host("a"), func(c net.Conn) {
			io.Copy(c, c) // until the member closes it
			c.Close()
		})
		p.waiting.most = 8
		member := func() net.Conn {
			t.Helper()
			c, err := callPeer(network.Host("b"), "a:1", kindReach, testCluster)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		echo := func(c net.Conn) {
			t.Helper()
			c.SetDeadline(time.Now().Add(time.Second))
			if _, err := c.Write([]byte{1}); err != nil {
				t.Error(err)
			} else if readFull(c, 1) == nil {
				t.Error("no answer")
			}
		}
		first := member()
		defer first.Close()
		echo(first)
		hello := (&hello{kind: kindReach, cluster: testCluster}).append(nil)
		for i := range 100 {
			c, err := network.Host("stranger").Dial(t.Context(), "a:1")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.Write(hello[:i%len(hello)])
			synctest.Wait()
		}
		if n := network.Open("a", "stranger"); n != p.waiting.most {
			t.Errorf("%d connections of strangers are open", n)
		}
		second := member()
		defer second.Close()
		echo(second)
		echo(first)
		if n := log.Count("do not say from which server they come"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
		time.Sleep(helloTimeout)
		synctest.Wait()
		if n := network.Open("a", "stranger"); n != 0 || len(p.waiting.conns) != 0 {
			t.Errorf("%d connections of strangers are open, %d in the list", n, len(p.waiting.conns))
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
			q := &ClientQuery{Find: []string{"10.0.0.1", "0x"}}
			s, all, err := AskStatus(t.Context(), f.net.Host("stranger"), m.cfg.addr(), q)
			switch {
			case err != nil || s.ID != m.cfg.ID || s.Cluster != m.membership.gate.cluster():
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
				if len(c.Addr) != min(int(c.Number), maxClientText) || c.Session != 2 || c.Op != "PING" {
					t.Errorf("%+v", c)
				}
			}
			if s, all, err := AskStatus(t.Context(), f.net.Host("stranger"), m.cfg.addr(), nil); err != nil || s == nil || all != nil {
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
		b.answer(t, "b", kindAdmin, func(c net.Conn) {
			io.WriteString(c, `{"status":{"id":2},"clients":{"some":[{}`+strings.Repeat(`,{}`, 340_000)+`]}}`)
			c.Close()
		})
		r, err := ask(t.Context(), b.net.Host("a"), "b:1", Request{Status: true, Clients: &ClientQuery{}})
		if err == nil || !strings.Contains(err.Error(), "b:1: its answer has too many parts") || r.Clients != nil {
			t.Errorf("%v, and it has clients: %v", err, r.Clients != nil)
		}
	})
}

// TestEndlessReply: a server that answers a question about the members without end is given up, after a
// limited number of bytes.
func TestEndlessReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		sent := make(chan int, 1)
		b.answer(t, "b", kindAdmin, func(c net.Conn) {
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
		_, err := ask(ctx, b.net.Host("a"), "b:1", Request{Status: true})
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
					json.NewEncoder(c).Encode(Reply{Error: ErrNotLeader.Error(), Lead: true, Leader: names})
					c.Close()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := Ask(ctx, net.Host("c"), "a:1", Request{Status: true}); err == nil {
			t.Error("there is no leader, and no error")
		}
		if n := asked.Load(); n > 10*2*int64(time.Second/askAgain)+50 {
			t.Errorf("%d questions in 10 s", n)
		}
	})
}

// openPort opens the peer port of server 1, which handles questions with serve, until the test ends.
func openPort(t *testing.T, network Network, serve func(net.Conn)) (*peerPort, *testkit.Log) {
	t.Helper()
	log := new(testkit.Log)
	p := newPeerPort(network, 1, "a:1", lifted(), log.Logger(slog.LevelInfo))
	p.serve = map[byte]func(net.Conn){kindReach: serve}
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.close()
		p.wg.Wait()
	})
	return p, log
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
			send(kindForward, func(c net.Conn) error {
				e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
				return writeMessage(c, msgBatch, fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1}))
			})
			send(kindAdmin, func(c net.Conn) error {
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
	Network
	listening func()
}

func (n slowNetwork) Listen(addr string) (net.Listener, error) {
	l, err := n.Network.Listen(addr)
	n.listening()
	return l, err
}
