package peer

import (
	"io"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// callPort connects to a as a member of cluster 7 does.
func callPort(t *testing.T, network Network) net.Conn {
	t.Helper()
	c, err := network.Dial(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	g, err := Greet(c, "a:1", &Hello{Kind: KindState, Cluster: 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
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
		defer callPort(t, network.Host("b")).Close()
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
		member := func() net.Conn { return callPort(t, network.Host("b")) }
		echo := func(c net.Conn) {
			t.Helper()
			c.SetDeadline(time.Now().Add(time.Second))
			if _, err := c.Write([]byte{1}); err != nil {
				t.Error(err)
			} else if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Error("no answer:", err)
			}
		}
		first := member()
		defer first.Close()
		echo(first)
		hello := (&Hello{Kind: KindState, Cluster: 7}).Encode()
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
		time.Sleep(timing.HelloTimeout)
		synctest.Wait()
		if n := network.Open("a", "stranger"); n != 0 || len(p.waiting.conns) != 0 {
			t.Errorf("%d connections of strangers are open, %d in the list", n, len(p.waiting.conns))
		}
	})
}

// openPort opens the peer port of server 1, which handles questions with serve, until the test ends.
func openPort(t *testing.T, network Network, serve func(net.Conn)) (*Port, *testkit.Log) {
	t.Helper()
	log := new(testkit.Log)
	g := new(Gate)
	g.Open(7)
	p := NewPort(network, 1, "a:1", g, log.Logger(slog.LevelInfo))
	p.Serve = map[byte]func(net.Conn){KindState: serve}
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	p.Start()
	t.Cleanup(func() {
		p.Close()
		p.Wait()
	})
	return p, log
}

// TestWarnings: the same warning comes again after pauses that grow, a warning about another peer at once, and all of it
// stays small.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		p := NewPort(nil, 1, "a:1", nil, log.Logger(slog.LevelWarn))
		at := []int(nil)
		for second := range 3600 {
			before := log.Count("fails")
			if p.warnOf("b", "TLS fails"); log.Count("fails") > before {
				at = append(at, second)
			}
			time.Sleep(time.Second)
		}
		if want := []int{0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030}; !slices.Equal(at, want) {
			t.Errorf("after %v s, not %v", at, want)
		}
		before := log.Count("fails")
		if p.warnOf("c", "TLS fails"); log.Count("fails") != before+1 {
			t.Error("a warning about another peer does not come")
		}
		time.Sleep(time.Hour)
		for range 2 {
			p.warnOf("b", "TLS fails")
			time.Sleep(quietFirst)
		}
		if n := log.Count("fails"); n != before+3 {
			t.Errorf("%d warnings after an hour of silence", n-before-1)
		}
		for i := range 10000 {
			p.warnOf(net.IPv4(10, 0, byte(i>>8), byte(i)).String(), "TLS fails")
		}
		if n := len(p.warned); n > maxWarnings+1 {
			t.Errorf("it remembers %d warnings", n)
		}
	})
}
