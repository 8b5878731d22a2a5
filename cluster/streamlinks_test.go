package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// overTLS is a network whose connections are encrypted. It counts the connections that were dialed, by kind.
type overTLS struct {
	Network
	config *tls.Config // nil: plain
	dials  *dialCount
}

type dialCount struct {
	mu     sync.Mutex
	dialed map[string]int // by kind and address
	open   map[string]int
}

func (d *dialCount) of(kind byte, addr string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dialed[string(kind)+addr]
}

func (d *dialCount) left() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprint(d.open)
}

type dialCounted struct {
	net.Conn
	d    *dialCount
	addr string
	once sync.Once
	key  string
	shut atomic.Bool
}

func (c *dialCounted) Write(p []byte) (int, error) {
	c.once.Do(func() {
		c.d.mu.Lock()
		c.key = string(p[:1]) + c.addr
		c.d.dialed[c.key]++
		c.d.open[c.key]++
		c.d.mu.Unlock()
	})
	return c.Conn.Write(p)
}

func (c *dialCounted) Close() error {
	if !c.shut.Swap(true) {
		c.d.mu.Lock()
		if c.key != "" {
			c.d.open[c.key]--
		}
		c.d.mu.Unlock()
	}
	return c.Conn.Close()
}

func (o overTLS) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := o.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if o.config != nil {
		s := tls.Client(c, o.config)
		if err := s.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		c = s
	}
	return &dialCounted{Conn: c, d: o.dials, addr: addr}, nil
}

func (o overTLS) Listen(addr string) (net.Listener, error) {
	l, err := o.Network.Listen(addr)
	if err == nil && o.config != nil {
		l = tls.NewListener(l, o.config)
	}
	return l, err
}

func newDialCount() *dialCount { return &dialCount{dialed: map[string]int{}, open: map[string]int{}} }

func tlsConfig(t *testing.T) *tls.Config {
	ca := testkit.NewCA(t)
	cert := ca.Peer(t)
	at := time.Now()
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Time: func() time.Time { return at }, ServerName: "127.0.0.1"}
}

// TestSnapshotOnNarrowLink checks that a member gets its snapshot over a link that is slow and
// narrow, but works.
func TestSnapshotOnNarrowLink(t *testing.T) {
	for _, rate := range []int{50 << 10, 80 << 10} {
		for _, trip := range []time.Duration{20, 560} {
			t.Run(fmt.Sprint(rate>>10, " KiB ", int(trip), " ms"), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newWires()
					members, lead := n.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
					leader, late := members[lead], members[(lead+1)%3]
					again := stopUntilSnapshot(t, late, leader)
					n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
					n.rate.Store(int64(rate))
					time.Sleep(10 * time.Second)
					want := leader.commits.applied()
					began := time.Now()
					late = again()
					most := time.Duration(8<<20/rate+1) * time.Second
					for time.Since(began) < 4*most && late.commits.applied() < want {
						time.Sleep(10 * time.Millisecond)
					}
					took := time.Since(began)
					t.Log(took, "of", most)
					if took > 2*most {
						t.Errorf("it has %d of %d after %v", late.commits.applied(), want, took)
					}
				})
			})
		}
	}
}

// TestStreamsOverTLS checks, with TLS between members and without, that a write takes at most
// about two election timeouts although connections are forgotten again and again, and that
// nothing is left.
func TestStreamsOverTLS(t *testing.T) {
	testkit.SlowUnderRace(t)
	config := tlsConfig(t)
	for _, secure := range []bool{false, true} {
		for _, trip := range []time.Duration{2, 250} {
			t.Run(fmt.Sprint(secure, int(trip)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					d := newDialCount()
					for i := range 3 {
						cfg := f.config(i)
						cfg.Network = overTLS{cfg.Network, nil, d}
						if secure {
							cfg.Network = overTLS{f.net.Host(string(rune('a' + i))), config.Clone(), d}
						}
						f.open(i, cfg)
					}
					f.whole()
					f.net.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
					time.Sleep(20 * time.Second)
					lead := leadOf(t, f)
					l := f.running[lead]
					term := l.raft.CurrentTerm()
					write := func() time.Duration {
						at := time.Now()
						w := make(result, 1)
						l.Propose(someWrite(), w, nil)
						if err := <-w; err != nil {
							t.Error(err)
						}
						return time.Since(at)
					}
					var usual, worst time.Duration
					for range 50 {
						usual = max(usual, write())
						time.Sleep(37 * time.Millisecond)
					}
					streams := d.of(kindStream, f.peers[uint64((lead+1)%3+1)])
					for k := range 8 {
						for i := range 3 {
							if i != lead {
								f.net.Forget(string(rune('a'+lead)), string(rune('a'+i)), func() bool { return true })
							}
						}
						for began := time.Now(); time.Since(began) < 12*time.Second; time.Sleep(time.Duration(13*k+1) * time.Millisecond) {
							worst = max(worst, write())
						}
					}
					t.Log("usual", usual, "worst", worst, "streams before", streams, "after", d.of(kindStream, f.peers[uint64((lead+1)%3+1)]), "term", l.raft.CurrentTerm()-term, "disconnects", f.log.Count("disconnecting clients"), d.left())
					if worst > 4*time.Second+4*trip*time.Millisecond || f.log.Count("disconnecting clients") > 0 {
						t.Error("too long")
					}
					for i := range 3 {
						f.stop(i)
					}
					for k, n := range d.open {
						if n != 0 {
							t.Errorf("%d connections of %q are left open", n, k)
						}
					}
				})
			})
		}
	}
}

// TestNeededStreamForgotten checks that a write takes at most about two election timeouts while
// one member is down, and a firewall forgets the connections to the other again and again,
// except that for heartbeats.
func TestNeededStreamForgotten(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, half := range []string{"both", "to", "from"} {
		for _, trip := range []time.Duration{1, 250} {
			for _, each := range []time.Duration{20 * time.Millisecond, 3 * time.Second} {
				t.Run(fmt.Sprint(half, " ", int(trip), " ", each), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newWires()
						members, lead := n.open(t, 3, nil)
						leader, f := members[lead], members[(lead+1)%3]
						members[(lead+2)%3].Kill()
						n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
						time.Sleep(10 * time.Second)
						var worst time.Duration
						bad := 0
						term := leader.raft.CurrentTerm()
						for k := range 6 {
							n.forget(func(w *wire) bool {
								return w.from == hostOf(leader) && w.to == hostOf(f) && (w.kind == kindStream || w.kind == kindRaft) &&
									(half == "both" || w.dialed == (half == "from"))
							})
							for began := time.Now(); time.Since(began) < 15*time.Second+time.Duration(k)*331*time.Millisecond; time.Sleep(each) {
								at := time.Now()
								w := make(result, 1)
								leader.Propose(someWrite(), w, nil)
								if <-w != nil {
									bad++
									time.Sleep(100 * time.Millisecond)
								}
								worst = max(worst, time.Since(at))
							}
						}
						n.mu.Lock()
						ends := len(n.ends)
						n.mu.Unlock()
						t.Log("worst", worst, "failed", bad, "terms", leader.raft.CurrentTerm()-term, "ends", ends)
						if worst > 5*time.Second+4*trip*time.Millisecond || bad > 0 {
							t.Error("too long")
						}
					})
				})
			}
		}
	}
}

// TestSnapshotBesideLateHeartbeat checks that a member gets its snapshot over a narrow link
// although every 30 s a heartbeat is late or its connection is forgotten.
func TestSnapshotBesideLateHeartbeat(t *testing.T) {
	for _, how := range []string{"late", "forgotten"} {
		for _, rate := range []int{80 << 10} {
			for _, trip := range []time.Duration{2, 400} {
				t.Run(fmt.Sprint(how, " ", rate>>10, " KiB ", int(trip), " ms"), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newWires()
						members, lead := n.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
						leader, late := members[lead], members[(lead+1)%3]
						again := stopUntilSnapshot(t, late, leader)
						n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
						n.rate.Store(int64(rate))
						from, to := hostOf(leader), hostOf(late)
						beats := func(w *wire) bool {
							return w.from == from && w.to == to && (w.kind == kindBeat || w.kind == kindRebeat)
						}
						var slow atomic.Bool
						came := func(w *wire) {
							w.mu.Lock()
							is := beats(w) && w.dialed
							w.mu.Unlock()
							if is && slow.Swap(false) {
								time.Sleep(520*time.Millisecond - trip*time.Millisecond)
							}
						}
						n.came.Store(&came)
						time.Sleep(10 * time.Second)
						want := leader.commits.applied()
						began, last := time.Now(), time.Now()
						late = again()
						most := time.Duration(8<<20/rate+1) * time.Second
						for time.Since(began) < 4*most && late.commits.applied() < want {
							time.Sleep(10 * time.Millisecond)
							if time.Since(last) > 30*time.Second {
								last = time.Now()
								if how == "late" {
									slow.Store(true)
								} else {
									n.forget(beats)
								}
							}
						}
						took := time.Since(began)
						t.Log(took, "of", most)
						if took > 2*most {
							t.Errorf("it has %d of %d after %v", late.commits.applied(), want, took)
						}
					})
				})
			}
		}
	}
}

// TestObserverStreams checks, with two voters and an observer, that writes do not wait for the
// observer while its connections are forgotten or end, and that it follows.
func TestObserverStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		var members []*Member
		peers := map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}
		for id := uint64(1); id <= 4; id++ {
			cfg := observerConfig(n, id, peers)
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			members = append(members, m)
		}
		for _, m := range members {
			<-m.Ready()
		}
		time.Sleep(30 * time.Second)
		lead := leaderOf(t, members)
		leader, obs := members[lead], members[3]
		infos, _ := leader.raft.members()
		t.Log(infos)
		n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
		worst, lag := time.Duration(0), time.Duration(0)
		write := func() {
			at := time.Now()
			w := make(result, 1)
			leader.Propose(someWrite(), w, nil)
			if err := <-w; err != nil {
				t.Error(err)
			}
			worst = max(worst, time.Since(at))
		}
		for k := range 5 {
			n.forget(func(w *wire) bool { return w.from == hostOf(leader) && w.to == "d" })
			for range 40 + k {
				write()
				time.Sleep(100 * time.Millisecond)
			}
			want, at := leader.commits.applied(), time.Now()
			until(t, "the observer", func() bool { return obs.commits.applied() >= want })
			lag = max(lag, time.Since(at))
		}
		t.Log("worst", worst, "lag", lag)
		if worst > 10*time.Millisecond || lag > 3*time.Second {
			t.Error("too long")
		}
		n.mu.Lock()
		before := len(n.ends)
		n.mu.Unlock()
		for i := range 300 {
			write()
			n.mu.Lock()
			var lost []*wire
			for w := range n.ends {
				if w.dialed && kindOf(w) == kindStream && w.to == "d" {
					lost = append(lost, w)
				}
			}
			n.mu.Unlock()
			for _, w := range lost {
				w.Close()
			}
			time.Sleep(time.Duration(i%7) * 3 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		n.mu.Lock()
		after := len(n.ends)
		n.mu.Unlock()
		if after > before+6 || obs.commits.applied() != leader.commits.applied() {
			t.Error(before, after, obs.commits.applied(), leader.commits.applied())
		}
		// One voter is left beside the observer: nothing may be acknowledged.
		for i, m := range members[:3] {
			if i != lead {
				m.Kill()
			}
		}
		w := make(result, 1)
		leader.Propose(someWrite(), w, nil)
		select {
		case err := <-w:
			if err == nil {
				t.Error("acknowledged with the observer's answer only")
			}
		case <-time.After(20 * time.Second):
		}
		obs.Kill()
		leader.Kill()
	})
}

// TestTermsLeaveNothing checks that no connection is left when leaders change again and again
// while writes go on.
func TestTermsLeaveNothing(t *testing.T) {
	testkit.SlowUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		members, _ := n.open(t, 3, nil)
		n.SetDelay(func(string, string) time.Duration { return 300 * time.Microsecond })
		time.Sleep(5 * time.Second)
		count := func() (all, streams int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for w := range n.ends {
				if kindOf(w) == kindStream {
					streams++
				}
			}
			return len(n.ends), streams
		}
		a0, s0 := count()
		for i := range 100 {
			lead := leaderOf(t, members)
			for range i % 5 {
				w := make(result, 1)
				members[lead].Propose(someWrite(), w, nil)
				if i%2 == 0 {
					<-w
				}
			}
			x := members[(lead+1+i%2)%3]
			if i%3 == 0 {
				n.forget(func(w *wire) bool { return w.kind == kindStream && w.dialed == (i%2 == 0) })
			}
			term, _ := members[lead].raft.term()
			x.transport.give(&raft.RequestVoteRequest{RPCHeader: x.transport.header(), Term: term + 1, LeadershipTransfer: true}, time.Second)
			time.Sleep(time.Duration(i%13) * 50 * time.Millisecond)
		}
		lead := leaderOf(t, members)
		time.Sleep(2 * time.Minute)
		a1, s1 := count()
		t.Log(a0, s0, a1, s1)
		if s1 > 4 || a1 > a0+8 {
			t.Error("connections are left")
		}
		for _, m := range members {
			if m.commits.applied() != members[lead].commits.applied() {
				t.Error(m.commits.applied())
			}
			m.transport.conns.mu.Lock()
			if len(m.transport.conns.open) > 12 {
				t.Error(len(m.transport.conns.open))
			}
			m.transport.conns.mu.Unlock()
			m.transport.mu.Lock()
			t.Log(len(m.transport.streams), len(m.transport.waiting), len(m.transport.away))
			m.transport.mu.Unlock()
		}
	})
}

func observerConfig(n *wires, id uint64, peers map[uint64]string) Config {
	cfg := memberConfig(id, peers, n.host(peers[id][:1]))
	for i := range cfg.Peers {
		cfg.Peers[i].Observer = cfg.Peers[i].ID == 4
	}
	return cfg
}
