package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestLeaderLostWhileRemovingJoined is TestLeaderLostWhileRemoving for a voter that has joined by a snapshot,
// and has lost power with the others. What it has applied is then the state of that snapshot, in which it has
// no vote yet.
func TestLeaderLostWhileRemovingJoined(t *testing.T) {
	testkit.SlowUnderRace(t)
	removals(t, func(t *testing.T, how string) {
		f, config, lead := threeOfFour(t)
		f.writes(lead, 20)
		f.snapshot(3)
		// Server 4 joins, and gets the snapshot.
		cfg := config(3)
		cfg.Join = "a:1"
		f.open(3, cfg)
		f.losesPlace(lead, how, true, config)
	})
}

// slowApplier applies the next entry in three seconds once slow is true.
type slowApplier struct {
	noObserver
	slow, waits atomic.Bool
}

func (o *slowApplier) Applied(index, term uint64, bytes int) {
	if o.slow.CompareAndSwap(true, false) {
		o.waits.Store(true)
		time.Sleep(3 * time.Second)
	}
}

// TestRemovedDoesNotStand: a member knows that the list without it is committed, but applies entries
// slowly, and has not applied that one, when the leader is lost. It does not stand for election: Raft
// would not notice that it must step down.
func TestRemovedDoesNotStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		var o slowApplier
		x := f.observed(0, &o)
		for i := 1; i < 4; i++ {
			f.start(i)
		}
		f.whole()
		f.handTo(1)
		time.Sleep(10 * time.Second)
		o.slow.Store(true)
		f.write(1)
		until(t, "the slow entry", o.waits.Load)
		f.tell(1, request.Request{Remove: 1})
		until(t, "the commit", func() bool { return x.engine.Committed() >= f.running[1].engine.Committed() })
		f.stop(1)
		for _, i := range []int{2, 3} { // so that they need long for an election
			f.disks[i].SetFault(func() error { time.Sleep(900 * time.Millisecond); return nil })
		}
		for range 10_000 {
			time.Sleep(2 * time.Millisecond)
			if x.stands() {
				t.Fatal("it stands")
			}
		}
	})
}

// TestLeaderLostWhileRemoving: the leader removes or demotes a voter, and is lost when that one has the new
// list and the others do not have it yet. Those that remain of four voters (a member of three is being
// replaced) are a majority of the old list and of the new one. (Those that remain of three are none of the
// new one, which has two: then the leader has to come back.)
func TestLeaderLostWhileRemoving(t *testing.T) {
	removals(t, func(t *testing.T, how string) {
		f, lead := fleetOf(t, 4)
		f.loseLeaderWhileRemoving(lead, (lead+1)%4, how, false, f.config)
	})
}

// loseLeaderWhileRemoving has the leader remove or demote member x, and takes the power when only x has the
// new list. All but the leader come back; x itself had not lost its power unless restarts is true.
// Something must be acknowledged then.
func (f *fleet) loseLeaderWhileRemoving(lead, x int, how string, restarts bool, config func(i int) Config) {
	t := f.t
	t.Helper()
	id := uint64(x + 1)
	var others []int
	for i := range f.running {
		if i != lead && i != x {
			others = append(others, i)
		}
	}
	leader := f.running[lead]
	crash := f.crashAtList(leader, leader.engine.LastIndex(), others...)
	q := request.Request{Remove: id}
	if how == "demote" {
		q = request.Request{Add: &proto.Peer{ID: id, Addr: f.peers[id], Observer: true}}
	}
	go request.Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], q)
	until(t, "the list on the member", func() bool {
		all := f.running[x].engine.Members()
		is := election.Find(all, id)
		return len(all) > 0 && (is == nil || is.Observer)
	})
	// A loss of power. All but the leader come back.
	crash.Store(true)
	f.stop(lead)
	for _, i := range others {
		f.stop(i)
		f.disks[i].SetFault(nil)
		f.open(i, config(i))
	}
	if restarts {
		f.stop(x)
		f.open(x, config(x))
	}
	time.Sleep(10 * time.Minute)
	f.acknowledges(append(others, x)...)
}

// TestLeaderLostWhileRemovingAfterSnapshot is TestLeaderLostWhileRemoving for a voter whose log once had a
// list in which it had no vote: it was added as an observer, was down when a reconfig made it a voter (as in
// ZooKeeper, new voters may be down), and has got the leader's snapshot since then, which took the place of
// its log. The lists that it has noted are still those of that log.
func TestLeaderLostWhileRemovingAfterSnapshot(t *testing.T) {
	testkit.SlowUnderRace(t)
	removals(t, func(t *testing.T, how string) {
		f, config, lead := threeOfFour(t)
		f.open(3, config(3))
		f.tell(lead, request.Request{Add: &proto.Peer{ID: 4, Addr: f.peers[4], Observer: true}})
		until(t, "the observer", func() bool { return f.running[3].engine.LastApplied() == f.running[lead].engine.LastApplied() })
		f.stop(3)
		f.tell(lead, request.Request{Reconfig: &request.Reconfig{Joining: []proto.Peer{{ID: 4, Addr: f.peers[4]}}, Version: -1, WaitMs: 5000}})
		f.writes(lead, 20)
		f.snapshot(3)
		f.open(3, config(3))
		// As compactor.run does before each snapshot of its own: thousands of entries, usually.
		if err := f.running[3].engine.Configure(func(r *raft.ReloadableConfig) { r.TrailingLogs = 1000 }); err != nil {
			t.Fatal(err)
		}
		f.losesPlace(lead, how, false, config)
	})
}

// TestObserverOwedNoVote: a server was started with the address of a cluster that did not take it in, and is
// started again as an observer. It does not become a voter.
func TestObserverOwedNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, lead := threeOfFour(t)
		f.writes(lead, 1)
		// Another change is under way, so the first attempt fails.
		f.running[lead].membership.Hold()
		cfg := f.joins(3, lead)
		m := f.open(3, cfg)
		until(t, "the question", func() bool { return m.membership.HasAsked() })
		time.Sleep(time.Second)
		f.stop(3)
		time.Sleep(time.Minute)
		f.running[lead].membership.Release()
		// The operator corrects the command line.
		observe(&cfg, 4)
		f.open(3, cfg)
		time.Sleep(time.Minute)
		if x := f.place(lead, 4); x == nil || !x.Observer {
			t.Errorf("server 4 is started as an observer, and is %v", x)
		}
	})
}

// TestFormedAfterWrongCluster: a new server was given the address of another cluster to join, which has
// refused it. Then it is started with the right list, and crashes while the cluster is formed.
func TestFormedAfterWrongCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3) // the wrong cluster
		addrs := map[uint64]string{1: "p:1", 2: "q:1", 3: "r:1"}
		disks := []*storage.Memory{storage.NewMemory(), storage.NewMemory(), storage.NewMemory()}
		config := func(i int) Config {
			cfg := f.config(0)
			cfg.ID, cfg.Peers, cfg.Memory = uint64(i+1), listOf(addrs), disks[i]
			cfg.Network = f.net.Host(strings.TrimSuffix(addrs[uint64(i+1)], ":1"))
			return cfg
		}
		open := func(cfg Config) *Member {
			m := &fleet{t: t, running: make([]*Member, 1)}
			x := m.open(0, cfg)
			t.Cleanup(func() { m.stop(0) })
			return x
		}
		wrong := config(0)
		wrong.Peers, wrong.Addr, wrong.Join = nil, addrs[1], f.peers[uint64(lead+1)]
		m := open(wrong)
		time.Sleep(time.Minute)
		if m.pulse.gate.IsOpen() {
			t.Fatal("it was taken in")
		}
		m.Kill()
		var known atomic.Pointer[Member]
		disks[0].SetFault(func() error {
			if m := known.Load(); m != nil && m.engine.Storage().Identity().Agreed {
				return errors.New("crashed")
			}
			return nil
		})
		m = open(config(0))
		known.Store(m)
		others := []*Member{open(config(1)), open(config(2))}
		until(t, "the crash", func() bool { return m.engine.Storage().Identity().Agreed })
		time.Sleep(100 * time.Millisecond)
		m.Kill()
		disks[0].SetFault(nil)
		m = open(config(0))
		time.Sleep(10 * time.Minute)
		for i, m := range append(others, m) {
			if !m.pulse.gate.IsOpen() {
				s := m.membership.Status()
				t.Errorf("after ten minutes, member %d of 3 is in no cluster: %s", i, s.Waiting)
			}
		}
		for _, m := range others {
			m.Kill()
		}
		m.Kill()
	})
}

// TestClusterIsGone: a server that has lost its disk waits to be taken in, and its cluster is emptied and formed anew meanwhile. It cannot know
// that, and says what to do.
func TestClusterIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.whole()
		lead := leadOf(t, f)
		c, other := (lead+1)%3, (lead+2)%3
		f.lose(c)
		f.start(c) // so soon, it is refused at first
		time.Sleep(100 * time.Millisecond)
		f.lose(other)
		time.Sleep(5 * time.Second)
		f.lose(lead)
		f.start(lead)
		f.start(other)
		time.Sleep(time.Minute)
		if why := f.running[0].Waiting() + f.running[1].Waiting() + f.running[2].Waiting(); !strings.Contains(why, "start this server again") {
			t.Fatal(why)
		}
		f.stop(c)
		f.start(c)
		until(t, "the new cluster", func() bool { return f.write(c) })
	})
}

// threeOfFour is a fleet of four servers, of which three are a cluster. It returns how they are configured, and the leader's index.
func threeOfFour(t *testing.T) (f *fleet, config func(i int) Config, lead int) {
	t.Helper()
	f = newFleet(t, 4)
	config = f.found(3)
	return f, config, leadOf(t, f)
}

// removals runs a test for each way in which a voter loses its vote.
func removals(t *testing.T, f func(t *testing.T, how string)) {
	for _, how := range []string{"remove", "demote"} {
		testkit.Bubble(t, how, func(t *testing.T) { f(t, how) })
	}
}

// losesPlace waits until server 4 votes, which has got a snapshot, and has the leader be lost while it removes that one.
func (f *fleet) losesPlace(lead int, how string, restarts bool, config func(i int) Config) {
	f.t.Helper()
	f.awaitVoters(3, 4)
	f.writes(lead, 3)
	time.Sleep(time.Minute)
	if !f.hasSnapshot(3) {
		f.t.Fatal("it has got no snapshot")
	}
	f.loseLeaderWhileRemoving(lead, 3, how, restarts, config)
}

// hasSnapshot reports whether a member has a snapshot.
func (f *fleet) hasSnapshot(i int) bool {
	newest, _ := f.running[i].engine.Storage().NewestSnapshot()
	return newest.Index > 0
}

// losing is a network on which requests for a place in the cluster are lost while holds is true or, if refused is set,
// refused.
type losing struct {
	peer.Network
	holds   atomic.Bool
	refused bool
}

func (n *losing) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return losingConn{c, n}, nil
}

type losingConn struct {
	net.Conn
	n *losing
}

func (c losingConn) Write(b []byte) (int, error) {
	switch {
	case !bytes.Contains(b, []byte(`"add":`)) || !c.n.holds.Load():
		return c.Conn.Write(b)
	case !c.n.refused:
		return 0, &net.OpError{Op: "write", Err: errors.New("reset")}
	}
	_, err := c.Conn.Write([]byte(`{"remove":99,"cluster":"00000000000000ff"}` + "\n"))
	return len(b), err
}

// TestRemovedBeforeItAsked: a server joins with the id and the address of a member that was removed before, or of none, and
// its first requests are lost or refused. Meanwhile another server is added. Then a member leads that has got both changes
// in a snapshot which ends after the server began to ask, or that was started with one. The server is added.
func TestRemovedBeforeItAsked(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct{ before, refused, restarted bool }{
		{true, false, false}, {true, true, false}, {false, false, false}, {false, false, true},
	} {
		testkit.Bubble(t, fmt.Sprintf("%+v", x), func(t *testing.T) {
			f, config, lead := threeOfFour(t)
			next := (lead + 1) % 3
			third := 3 - lead - next
			if x.before {
				f.tell(lead, request.Request{Add: &proto.Peer{ID: 4, Addr: "d:1", Observer: true}})
				until(t, "the addition", func() bool {
					return f.place(next, 4) != nil && f.running[next].engine.LastApplied() == f.running[lead].engine.LastIndex()
				})
			}
			f.cutOff(next, !x.restarted)
			if x.before {
				f.tell(lead, request.Request{Remove: 4})
			}
			f.writes(lead, 20)
			cfg := f.joins(3, third)
			n := &losing{Network: cfg.Network, refused: x.refused}
			n.holds.Store(true)
			cfg.Network = n
			m := f.open(3, cfg)
			time.Sleep(10 * time.Second)
			f.tell(lead, request.Request{Add: &proto.Peer{ID: 5, Addr: "e:1", Observer: true}})
			f.writes(lead, 20)
			if x.restarted {
				f.snapshot(3)
				f.stop(next)
				f.open(next, config(next))
			} else if err := f.running[lead].engine.TakeSnapshot(); err != nil {
				t.Fatal(err)
			}
			f.net.Heal()
			until(t, "the snapshot", func() bool { return f.hasSnapshot(next) })
			f.handTo(next)
			time.Sleep(10 * time.Second)
			n.holds.Store(false)
			if err := fault(m, time.Minute); err != nil {
				t.Errorf("its fault is %v", err)
			}
			if f.place(next, 4) == nil {
				t.Error("it was not added")
			}
		})
	}
}

// TestRemoveBesideStranger: of three members, one has lost its disk, and runs without being in the cluster again: it was
// started with another server to join, or with a list of only itself. Its answer does not count when another one is removed
// or loses its vote: without that one, nothing could be committed any more.
func TestRemoveBesideStranger(t *testing.T) {
	testkit.SlowUnderRace(t)
	for name, wrong := range map[string]func(f *fleet, i int) Config{
		"in no cluster": func(f *fleet, i int) Config {
			cfg := f.joins(i, -1)
			cfg.Join = "x:1"
			return cfg
		},
		"in another cluster": func(f *fleet, i int) Config {
			cfg := f.config(i)
			cfg.Peers = slices.DeleteFunc(cfg.Peers, func(x proto.Peer) bool { return x.ID != cfg.ID })
			return cfg
		},
	} {
		for change, q := range map[string]func(x proto.Peer) request.Request{
			"remove":   func(x proto.Peer) request.Request { return request.Request{Remove: x.ID} },
			"observer": func(x proto.Peer) request.Request { x.Observer = true; return request.Request{Add: &x} },
			"reconfig": func(x proto.Peer) request.Request {
				return request.Request{Reconfig: &request.Reconfig{Version: -1, Leaving: []uint64{x.ID}}}
			},
		} {
			testkit.Bubble(t, name+", "+change, func(t *testing.T) {
				f, lead := fleetOf(t, 3)
				other, third := (lead+1)%3, (lead+2)%3
				f.lose(third)
				f.open(third, wrong(f, third))
				time.Sleep(time.Minute)
				if f.ask(lead, q(*f.place(lead, uint64(other+1)))) == nil {
					t.Error("it is done")
				}
				time.Sleep(time.Minute)
				f.acknowledges(lead, other)
				f.lose(third) // the operator has seen the mistake
				f.start(third)
				time.Sleep(10 * time.Minute)
				f.acknowledges(lead, other)
				f.whole()
			})
		}
	}
}

// TestRemoveWhileOneLags: of three members, one has been away, and is slow to catch up. Until it has, another one cannot be
// removed: all writes would have to wait for the one that lags.
func TestRemoveWhileOneLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		other, third := (lead+1)%3, (lead+2)%3
		f.cutOff(third, true)
		f.writes(lead, 2*membership.NearlyCaughtUp)
		f.disks[third].SetFault(func() error { time.Sleep(500 * time.Millisecond); return nil })
		f.cutOff(third, false)
		time.Sleep(5 * time.Second)
		for _, leaves := range []int{other, lead} {
			removed := make(chan error, 1)
			go func() { removed <- f.ask(lead, request.Request{Remove: uint64(leaves + 1)}) }()
			time.Sleep(time.Second)
			written(t, f.running[lead], time.Second)
			if err := <-removed; err == nil || !strings.Contains(err.Error(), "caught up") {
				t.Errorf("removing server %d: %v", leaves+1, err)
			}
		}
		time.Sleep(5 * time.Minute)
		f.tell(lead, request.Request{Remove: uint64(other + 1)})
	})
}

// TestAddBesideStranger: a client makes a server a voter that answers, but never joins. It does not count when the next such
// server is to get a vote: without it there would be no majority.
func TestAddBesideStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.found(2)
		lead := leadOf(t, f)
		f.writes(lead, 20)
		for i := 2; i < 4; i++ {
			cfg := f.joins(i, -1)
			cfg.Join = "x:1"
			f.open(i, cfg)
			x := proto.Peer{ID: uint64(i + 1), Addr: f.peers[uint64(i+1)]}
			err := f.ask(lead, request.Request{Reconfig: &request.Reconfig{Version: -1, Joining: []proto.Peer{x}, WaitMs: 1000}})
			if is := f.place(lead, x.ID); (err == nil) != (i == 2) || is != nil && is.Observer != (i == 3) {
				t.Errorf("server %d is %v: %v", i+1, is, err)
			}
			time.Sleep(time.Minute)
			f.acknowledges(0, 1)
		}
	})
}

// TestRemoveWhileOneIsStuck is TestRemoveWhileOneLags for one whose disk is stuck, although it answers.
func TestRemoveWhileOneIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		other, third := (lead+1)%3, (lead+2)%3
		end := f.stuck(third)
		f.writes(lead, 5)
		time.Sleep(10 * time.Second)
		began := time.Now()
		if err := f.ask(lead, request.Request{Remove: uint64(other + 1)}); err == nil || !strings.Contains(err.Error(), "caught up") || time.Since(began) > 2*timing.PeerTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		f.acknowledges(lead, other)
		end(nil)
		time.Sleep(time.Minute)
		f.tell(lead, request.Request{Remove: uint64(other + 1)})
		f.acknowledges(lead, third)
	})
}

// TestReconfigWhileOneIsStuck is TestRemoveWhileOneIsStuck for a leader that a client removes by the whole new list, with the
// addresses for clients. It does not hand over first: the next leader would have to refuse that, too.
func TestReconfigWhileOneIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		other, third := (lead+1)%3, (lead+2)%3
		end := f.stuck(third)
		f.writes(lead, 5)
		time.Sleep(10 * time.Second)
		var list []proto.Peer
		for _, i := range []int{other, third} {
			x := *f.place(lead, uint64(i+1))
			x.ClientAddr = "127.0.0.1:2181"
			list = append(list, x)
		}
		if err := f.ask(lead, request.Request{Reconfig: &request.Reconfig{Version: -1, Joining: list, Whole: true}}); err == nil || !strings.Contains(err.Error(), "caught up") {
			t.Error(err)
		}
		if f.running[lead].Role() != "leader" {
			t.Error("it has handed over")
		}
		end(nil)
	})
}

// TestRemovesThoseThatAreDown: of five members two are down. A client's reconfig removes one of these, and one that is up, in the
// order in which that is possible.
func TestRemovesThoseThatAreDown(t *testing.T) {
	for _, leaving := range [][]uint64{{4, 2}, {2, 4}} {
		testkit.Bubble(t, fmt.Sprint(leaving), func(t *testing.T) {
			f, _ := fleetOf(t, 5)
			f.handTo(0)
			f.write(0)
			f.stop(3)
			f.stop(4)
			time.Sleep(5 * time.Second)
			f.tell(0, request.Request{Reconfig: &request.Reconfig{Version: -1, Leaving: leaving}})
		})
	}
}

// TestRemovedAsksMembersFirst: a member that was removed while it was down learns that at once, although the host of the server to join
// with which it is started again is lost.
func TestRemovedAsksMembersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		f.found(3)
		for i := 3; i < 5; i++ {
			f.open(i, f.joins(i, 0))
			f.awaitVoters(i, i+1)
		}
		f.handTo(3)
		f.tell(3, request.Request{Remove: 1})
		until(t, "the removal", func() bool { return f.place(4, 1) == nil })
		f.cutOff(0, true)
		f.stop(4)
		f.tell(3, request.Request{Remove: 5})
		if err := fault(f.open(4, f.joins(4, 0)), time.Second); !errors.Is(err, request.ErrRemoved) {
			t.Error(err)
		}
	})
}
