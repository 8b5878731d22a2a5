package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// overTLS is a network whose connections are encrypted.
type overTLS struct {
	peer.Network
	config *tls.Config
}

func (o overTLS) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := o.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	s := tls.Client(c, o.config)
	if err := s.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

func (o overTLS) Listen(addr string) (net.Listener, error) {
	l, err := o.Network.Listen(addr)
	if err == nil {
		l = tls.NewListener(l, o.config)
	}
	return l, err
}

// TestStreamsOverTLS checks that with TLS between members a write takes at most about two election timeouts
// although connections are forgotten again and again, and that nothing is left.
func TestStreamsOverTLS(t *testing.T) {
	ca := testkit.NewCA(t)
	at := time.Now()
	config := &tls.Config{Certificates: []tls.Certificate{ca.Peer(t)}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Time: func() time.Time { return at }, ServerName: "127.0.0.1"}
	for _, trip := range []time.Duration{2, 250} {
		testkit.Bubble(t, fmt.Sprint(int(trip)), func(t *testing.T) {
			var log testkit.Log
			n, leader, next, third := wired(t, func(c *Config) { c.Network, c.Log = overTLS{c.Network, config.Clone()}, log.Logger(slog.LevelWarn) })
			n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
			time.Sleep(20 * time.Second)
			var worst time.Duration
			for k := range 4 {
				n.forget(func(w *wire) bool { return between(leader, next)(w) || between(leader, third)(w) })
				for began := time.Now(); time.Since(began) < 12*time.Second; time.Sleep(time.Duration(26*k+5) * time.Millisecond) {
					worst = max(worst, did(t, leader, someWrite()))
				}
			}
			if n := log.Count("disconnecting clients"); worst > 4*time.Second+4*trip*time.Millisecond || n > 0 {
				t.Errorf("a write takes up to %v; %d times, clients were disconnected", worst, n)
			}
			for _, m := range []*Member{leader, next, third} {
				m.Kill()
			}
			synctest.Wait() // Raft's transport does not wait for the connections that it accepted
			if len(n.ends) > 0 {
				t.Errorf("%d connections are left open", len(n.ends))
			}
		})
	}
}

// TestNeededStreamForgotten checks that a write takes at most about two election timeouts while
// one member is down, and a firewall forgets the connections to the other again and again,
// except that for heartbeats.
func TestNeededStreamForgotten(t *testing.T) {
	for _, half := range []string{"both", "to", "from"} {
		for trip, each := range map[time.Duration]time.Duration{1: 20 * time.Millisecond, 250: 3 * time.Second} {
			testkit.Bubble(t, fmt.Sprint(half, " ", int(trip), " ", each), func(t *testing.T) {
				n, leader, f, third := wired(t, nil)
				third.Kill()
				n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
				time.Sleep(10 * time.Second)
				var worst time.Duration
				for k := range 4 {
					n.forget(func(w *wire) bool {
						return w.from == hostOf(leader) && between(leader, f, peer.KindRaft)(w) && (half == "both" || w.dialed == (half == "from"))
					})
					for began := time.Now(); time.Since(began) < 9*time.Second+time.Duration(k)*331*time.Millisecond; time.Sleep(each) {
						worst = max(worst, did(t, leader, someWrite()))
					}
				}
				if worst > 5*time.Second+4*trip*time.Millisecond {
					t.Errorf("a write takes up to %v", worst)
				}
			})
		}
	}
}

// TestObserverStreams checks, with three voters and an observer, that writes do not wait for the
// observer while its connections are forgotten, that it follows, and that its answers do not count.
func TestObserverStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		f := newFleet(t, 4)
		for i := range f.running {
			cfg := f.config(i)
			cfg.Network = n.host(f.peers[uint64(i+1)][:1])
			observe(&cfg, 4)
			f.open(i, cfg)
		}
		time.Sleep(30 * time.Second)
		lead := leadOf(t, f)
		leader, obs := f.running[lead], f.running[3]
		n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
		var worst time.Duration
		for k := range 5 {
			n.forget(between(leader, obs))
			for range 40 + k {
				worst = max(worst, did(t, leader, someWrite()))
				time.Sleep(100 * time.Millisecond)
			}
			want, at := leader.engine.StateIndex(), time.Now()
			until(t, "the observer", func() bool { return obs.engine.StateIndex() >= want })
			if lag := time.Since(at); lag > 3*time.Second || worst > 10*time.Millisecond {
				t.Errorf("the observer lags for %v; a write takes up to %v", lag, worst)
			}
		}
		f.stop((lead + 1) % 3)
		f.stop((lead + 2) % 3)
		if f.write(lead) {
			t.Error("acknowledged with the observer's answer only")
		}
	})
}

// TestCommitLost: a connection for entries dies silently between the answer to an entry and the message that it is
// committed. The follower is reachable otherwise, and learns that in about an election timeout.
func TestCommitLost(t *testing.T) {
	for _, timeout := range []time.Duration{2 * time.Second, 500 * time.Millisecond} {
		testkit.Bubble(t, timeout.String(), func(t *testing.T) {
			n, leader, f, third := wired(t, func(c *Config) { c.ElectionTimeout = timeout })
			time.Sleep(10 * time.Second)
			n.SetDelay(func(from, to string) time.Duration {
				if from == hostOf(third) {
					return 5 * time.Millisecond // so the entry is committed when f has answered already
				}
				return time.Millisecond
			})
			time.Sleep(2 * time.Second)
			w := make(propose.Result, 1)
			leader.Propose(fsm.OpenSession(4242, 4242, 1<<30, session.Password{}), w, nil)
			// The connection dies silently when the answer to the entry has come.
			n.when(streamTo(leader, f), func(w *wire) {
				n.forget(func(x *wire) bool { return x == w })
			})
			if err := <-w; err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			until(t, "the write at the follower", func() bool { return f.hasSession(4242) })
			if took := time.Since(began); took > timeout*5/4+300*time.Millisecond {
				t.Errorf("the follower, which hears the leader's heartbeats, learns after %v that the entry is committed", took)
			}
		})
	}
}

// TestNoNewConnections: one member is down, and a firewall lets no new connections through to the other; those
// that exist work. The connection for entries is lost. The other member is reachable, so writes go on.
func TestNoNewConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		n, leader, f, third := wired(t, func(c *Config) { c.Network = slowDials{c.Network, &slow} })
		third.Kill()
		time.Sleep(10 * time.Second)
		until(t, "an end of the stream", func() bool {
			did(t, leader, someWrite())
			slow.Store(int64(time.Hour))
			return n.end(streamTo(leader, f)) > 0
		})
		for range 20 {
			written(t, leader, 200*time.Millisecond)
			time.Sleep(150 * time.Millisecond)
		}
	})
}

// TestShortCutOfStream: the network is cut for 1.5 s, just when a write is acknowledged, so all that is on the way in the
// stream is what is committed. One other member is down. When the network is whole again, a write
// does not wait until TCP sends that again.
func TestShortCutOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, leader, f, third := wired(t, nil)
		time.Sleep(10 * time.Second)
		n.SetDelay(func(from, to string) time.Duration { return 500 * time.Microsecond })
		third.Kill()
		time.Sleep(2 * time.Second)
		w := make(propose.Result, 1)
		leader.Propose(fsm.OpenSession(4242, 4242, 1<<30, session.Password{}), cutWhenDone{w, func() { n.cut(leader, f, true) }}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		n.cut(leader, f, false)
		time.Sleep(300 * time.Millisecond)
		if !f.hasSession(4242) {
			t.Error("the follower does not know of the write before the cut")
		}
		written(t, leader, 100*time.Millisecond)
	})
}

// TestForgottenAgain: a firewall forgets all connections between the leader and a follower, which is connected
// all the time, again and again. The follower keeps its clients.
func TestForgottenAgain(t *testing.T) {
	for _, gap := range []time.Duration{1200, 1700} {
		for k := range 2 {
			testkit.Bubble(t, fmt.Sprint(int(gap), " ", k), func(t *testing.T) {
				f := newFleet(t, 3)
				f.all(func(c *Config) { c.ElectionTimeout = 2 * time.Second })
				f.net.SetDelay(func(from, to string) time.Duration { return time.Duration(k) * 3 * time.Millisecond })
				time.Sleep(20 * time.Second)
				lead := leadOf(t, f)
				m := f.running[(lead+1)%3]
				stop := make(chan struct{})
				wait := keepWriting(f.running[lead], 1, 50*time.Millisecond, stop)
				var worst time.Duration
				var lagging sync.WaitGroup
				lagging.Go(func() {
					for last, at := uint64(0), time.Now(); ; {
						if now := m.engine.StateIndex(); now > last {
							last, at = now, time.Now()
						}
						worst = max(worst, time.Since(at))
						select {
						case <-stop:
							return
						case <-time.After(5 * time.Millisecond):
						}
					}
				})
				time.Sleep(3*time.Second + time.Duration(k)*682*time.Millisecond)
				for range 20 {
					f.net.Forget(string(rune('a'+lead)), string(rune('a'+(lead+1)%3)), func() bool { return true })
					time.Sleep(gap * time.Millisecond)
				}
				time.Sleep(15 * time.Second)
				close(stop)
				wait()
				lagging.Wait()
				if stops := f.log.Count("disconnecting clients"); stops > 0 || worst > 1500*time.Millisecond {
					t.Errorf("it disconnects its clients %d times, and lags for up to %v", stops, worst)
				}
			})
		}
	}
}

// TestForgottenWhileReplicating: when a connection over which the leader sends entries is
// forgotten on its way, the member gets the entries soon over a new one.
func TestForgottenWhileReplicating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, leader, m, _ := wired(t, nil)
		for range 5 {
			time.Sleep(10 * time.Second)
			net.forget(between(leader, m, peer.KindRaft))
			began := time.Now()
			did(t, leader, someWrite())
			last := leader.engine.StateIndex()
			until(t, "the entry", func() bool { return m.engine.StateIndex() >= last })
			if took, most := time.Since(began), leader.contacts.ElectionTimeout*3/2; took > most {
				t.Errorf("a member has the entry after %v, should within %v", took, most)
			}
		}
	})
}

// TestSlowLinkWrites: all links are slow, and work. The connections for entries are kept, and a write takes about one round
// trip, or a few if it is long.
func TestSlowLinkWrites(t *testing.T) {
	for _, x := range []struct {
		timeout, trip time.Duration // in ms
		size          int
	}{{500, 110, 100}, {500, 140, 100}, {2000, 450, 100}, {2000, 560, 100}, {2000, 560, 600 << 10}} {
		testkit.Bubble(t, fmt.Sprintf("timeout %d trip %d size %d", x.timeout, x.trip, x.size), func(t *testing.T) {
			n, leader, _, _ := wired(t, func(c *Config) { c.ElectionTimeout, c.SnapshotBytes = x.timeout*time.Millisecond, 1<<30 })
			trip := x.trip * time.Millisecond
			n.SetDelay(func(from, to string) time.Duration { return trip / 2 })
			time.Sleep(10 * time.Second)
			opened := map[*wire]bool{}
			var took []time.Duration
			for i := range 40 {
				at := time.Now()
				fill(t, leader, fmt.Sprint("x", i, "-"), 1, x.size)
				took = append(took, time.Since(at))
				time.Sleep(730 * time.Millisecond)
				n.forget(func(w *wire) bool {
					if w.dialed && w.from == hostOf(leader) && w.kind == peer.KindRaft {
						opened[w] = true
					}
					return false
				})
			}
			slices.Sort(took)
			if len(opened) > 120 { // most rounds end a stream
				t.Errorf("%d connections for Raft's messages to two members", len(opened))
			}
			// Half of the short writes take at most 1.6 trips; if redial closed idle connections, it would be 2. Half of the
			// long ones take at most 2.7 trips. A write takes longer if its stream ends meanwhile, which may happen repeatedly.
			half, longest := trip*7/4, 8*trip
			if x.size > 100 {
				half, longest = trip*7/2, 16*trip
			}
			if took[20] > half || took[39] > longest {
				t.Errorf("half of the writes take %v or more, and one %v, with a round trip of %v", took[20], took[39], trip)
			}
		})
	}
}
