package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// stuckSnapshots cannot be listed until hold is closed.
type stuckSnapshots struct {
	raft.SnapshotStore
	hold chan struct{}
}

func (s stuckSnapshots) List() ([]*raft.SnapshotMeta, error) {
	<-s.hold
	return s.SnapshotStore.List()
}

// TestStuckBesideWrites: a disk that is stuck while the log is shortened, or while snapshots
// are listed for that or for an entry, counts as stuck.
func TestStuckBesideWrites(t *testing.T) {
	for name, f := range map[string]func(n *node, s guardedStore, hold chan struct{}) error{
		"deleting": func(n *node, s guardedStore, hold chan struct{}) error {
			n.storage.Log = stuckLog{n.storage.Log, hold}
			s.LogStore = n.storage.Log
			if err := s.StoreLogs(noops(1, 5, 1)); err != nil {
				return err
			}
			return s.DeleteRange(1, 3)
		},
		"listing, to delete": func(n *node, s guardedStore, hold chan struct{}) error {
			n.storage.Snapshots = stuckSnapshots{n.storage.Snapshots, hold}
			return s.DeleteRange(1, 3)
		},
		"listing, to store": func(n *node, s guardedStore, hold chan struct{}) error {
			n.storage.Snapshots = stuckSnapshots{n.storage.Snapshots, hold}
			return s.StoreLogs(noops(1, 1, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				now := func() moment { return moment{ran: time.Since(began).Milliseconds()} }
				n := newNode(1)
				n.storage = storage.NewMemory().Open()
				hold, done := make(chan struct{}), make(chan error)
				s := newGuardedStore(&n.disk, newLifecycle(), now, n.applied, nil)
				go func() { done <- f(n, s, hold) }()
				time.Sleep(3 * time.Second)
				if stalled := n.stall.length(now()); stalled != 3*time.Second {
					t.Errorf("it counts as stuck for %v", stalled)
				}
				close(hold)
				if err := <-done; err != nil {
					t.Error(err)
				}
				if stalled := n.stall.length(now()); stalled != 0 {
					t.Errorf("it counts as stuck for %v afterwards", stalled)
				}
			})
		})
	}
}

// stuckLog deletes nothing until hold is closed.
type stuckLog struct {
	raft.LogStore
	hold chan struct{}
}

func (s stuckLog) DeleteRange(first, last uint64) error {
	<-s.hold
	return s.LogStore.DeleteRange(first, last)
}

// TestStallsOverlap: operations that overlap, each of them short, do not count as a long one.
func TestStallsOverlap(t *testing.T) {
	var s stall
	at := func(ran int64) moment { return moment{ran: ran} }
	expect := func(ran, want int64) {
		t.Helper()
		if got := s.length(at(ran)).Milliseconds(); got != want {
			t.Errorf("at %d it counts as stuck for %d ms, want %d", ran, got, want)
		}
	}
	failed := errors.New("failed")
	first, second := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	for i, hold := range []chan struct{}{first, second} {
		begun := make(chan struct{})
		go func() {
			ended <- s.write(at(int64(10*i)), func() error {
				close(begun)
				<-hold
				return failed
			})
		}()
		<-begun
	}
	expect(15, 15)
	close(first)
	if err := <-ended; err != failed {
		t.Error(err)
	}
	expect(17, 7)
	close(second)
	<-ended
	expect(30, 0)
	s.write(at(30), func() error { return s.write(at(31), func() error { expect(35, 5); return nil }) })
}

// TestStuckDeleting: a leader whose disk is stuck while its log is shortened is replaced.
func TestStuckDeleting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		members, lead := net.open(t, 3, nil)
		leader, other := members[lead], members[(lead+1)%3]
		fill(t, leader, "n", 3, 1)
		r := leader.raft.ReloadableConfig()
		r.TrailingLogs = 1
		if err := leader.raft.ReloadConfig(r); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		defer close(release)
		leader.cfg.Memory.SetFault(func() error { <-release; return nil })
		go leader.raft.Snapshot().Error() // and shortens the log; nothing else is written
		time.Sleep(leader.contacts.silence + time.Second)
		if other.raft.State() != raft.Leader && members[(lead+2)%3].raft.State() != raft.Leader {
			t.Error("no other member leads")
		}
	})
}

// TestReplacedWhileStuck: the leader's disk is stuck, so Raft does not notice that another was
// elected, and that one cannot reach it. The third member answers its heartbeats. It stops
// serving before its state is older than promised. That is also so if Raft is free to notice it,
// and has sent the others what it cannot write.
func TestReplacedWhileStuck(t *testing.T) {
	t.Run("disk first", func(t *testing.T) { replacedWhileStuck(t, true) })
	t.Run("by default", func(t *testing.T) { replacedWhileStuck(t, false) })
}

func replacedWhileStuck(t *testing.T, diskFirst bool) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = diskFirst
		for i := range f.running {
			f.start(i)
		}
		f.whole()
		lead := leadOf(t, f)
		other := (lead + 1) % 3
		if lead != 0 {
			other = 0 // of equals, the one with the lowest id stands first
		}
		old := f.running[lead]
		until(t, "clients", func() bool { return <-old.Serving() })
		until(t, "equal logs", func() bool {
			return f.running[0].raft.AppliedIndex() == f.running[1].raft.AppliedIndex() && f.running[1].raft.AppliedIndex() == f.running[2].raft.AppliedIndex()
		})
		release := make(chan struct{})
		f.disks[lead].SetFault(func() error { <-release; return nil })
		defer close(release)
		if diskFirst {
			f.cutBetween(lead, other, true)
		}
		end := old.raft.LastIndex() + 1
		old.Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(result, 1), nil)
		if !diskFirst {
			until(t, "the entry everywhere", func() bool {
				return f.running[0].raft.LastIndex() >= end && f.running[1].raft.LastIndex() >= end && f.running[2].raft.LastIndex() >= end
			})
			f.cutBetween(lead, other, true)
		}
		until(t, "another leader", func() bool { return f.running[other].raft.State() == raft.Leader })
		f.writes(other, 1)
		since := time.Now()
		for serving := true; serving; {
			select {
			case serving = <-old.Serving():
			case <-time.After(time.Minute):
				t.Fatal("it goes on serving")
			}
		}
		if took, limit := time.Since(since), unheardLimit*old.contacts.silence; took > limit {
			t.Errorf("it stopped serving after %v, more than %v", took, limit)
		}
		if diskFirst && old.raft.State() != raft.Leader {
			t.Error("its Raft has noticed")
		}
	})
}

// cutWhenDone is a waiter that calls cut in the moment in which its command is answered.
type cutWhenDone struct {
	result
	cut func()
}

func (c cutWhenDone) Done(v *fsm.View, r *fsm.Result) { c.cut(); c.result.Done(v, r) }

// TestOldReadsOfNewLeader: the leader acknowledges a write and loses its power in that moment, before it has
// told the others that the write is committed. One of them is elected. The disks of the others get stuck after
// they have stored their votes, so the new leader cannot commit anything, and does not apply that write. It
// stops serving reads after two election timeouts.
func TestOldReadsOfNewLeader(t *testing.T) {
	t.Run("three", func(t *testing.T) { oldReadsOfNewLeader(t, 3) })
	t.Run("five", func(t *testing.T) { oldReadsOfNewLeader(t, 5) }) // and the disk of one of the others works
}

func oldReadsOfNewLeader(t *testing.T, size int) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, size)
		for i := range size {
			f.start(i)
		}
		f.whole()
		old := leadOf(t, f)
		const timeout = 40_000 // the longest by default
		var serves [5]atomic.Bool
		for i, m := range f.running {
			go func() {
				for {
					select {
					case yes := <-m.Serving():
						serves[i].Store(yes)
					case <-m.stop:
						return
					}
				}
			}()
			w := make(result, 1)
			m.Propose(fsm.OpenSession(uint64(1000+i), int64(1000+i), timeout, session.Password{}), w, nil)
			if err := <-w; err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		for i, m := range f.running {
			if !m.Touch(int64(1000+i), nil) {
				t.Fatal("no session")
			}
		}
		time.Sleep(time.Second)
		release := make(chan struct{})
		members := slices.Clone(f.running) // which the test ends while disks are still used
		next := func() int {               // the new leader
			for i, m := range members {
				if i != old && m.raft.State() == raft.Leader {
					return i
				}
			}
			return -1
		}
		var lead atomic.Int32
		lead.Store(-1)
		for x := range f.running {
			if x == old {
				continue
			}
			f.disks[x].SetFault(func() error {
				if i := next(); i >= 0 {
					lead.CompareAndSwap(-1, int32(i))
				}
				// The lowest of the others works.
				works := 0
				for works == old || works == int(lead.Load()) {
					works++
				}
				if l := int(lead.Load()); l >= 0 && x != l && (x != works || size == 3) {
					<-release
				}
				return nil
			})
		}
		w := make(result, 1)
		host := func(i int) string { return f.peers[uint64(i+1)][:1] }
		f.running[old].Propose(fsm.OpenSession(7777, 7777, timeout, session.Password{}), cutWhenDone{w, func() {
			for i := range size {
				f.net.Cut(host(old), host(i), true)
			}
		}}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		acked := time.Now()
		was := f.running[old]
		was.Kill()
		worst := map[int]time.Duration{}
		for time.Since(acked) < 30*time.Second {
			time.Sleep(500 * time.Millisecond)
			for i, m := range f.running {
				if i == old || !serves[i].Load() {
					continue
				}
				over := make(chan struct{})
				answered := make(chan bool, 1)
				began := time.Now()
				go func() { answered <- m.Touch(int64(1000+i), over) }()
				synctest.Wait()
				select {
				case ok := <-answered:
					m.replica.View(func(v *fsm.View) {
						if ok && v.Sessions().Get(7777) == nil {
							worst[i] = began.Sub(acked)
						}
					})
				default:
					close(over)
					<-answered
				}
			}
		}
		for i, d := range worst {
			if m := f.running[i]; d > 2*m.contacts.silence+500*time.Millisecond {
				t.Errorf("member %d (%s) serves a read %v after a write was acknowledged that it does not show", i+1, m.Role(), d)
			}
		}
		close(release)
		l := f.running[lead.Load()]
		until(t, "the write", func() bool {
			ok := false
			l.replica.View(func(v *fsm.View) { ok = v.Sessions().Get(7777) != nil })
			return ok
		})
	})
}

// TestTermThatNobodyBegins: the leader's disk is stuck for somewhat more than the election timeout. The member
// that stands for election gets stuck itself when it stores the new term (the two may share a disk), and has
// told the leader that term with the answer to a heartbeat. The leader's disk works again, and the third
// member follows it on: a majority is up, connected, with working disks. It goes on serving, and expires
// sessions, also if the stuck member is ended for good.
func TestTermThatNobodyBegins(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, how := range []string{"stuck", "ended"} {
		t.Run(how, func(t *testing.T) {
			for range 10 { // in about half of them, the third member stands first
				synctest.Test(t, func(t *testing.T) {
					f := startedFleet(t, 5)
					lead := leadOf(t, f)
					l := f.running[lead]
					first, third := (lead+1)%3, (lead+2)%3
					if first > third { // of equals, the one with the lowest id stands first
						first, third = third, first
					}
					until(t, "equal logs", func() bool {
						return f.running[0].raft.LastIndex() == f.running[1].raft.LastIndex() && f.running[1].raft.LastIndex() == f.running[2].raft.LastIndex()
					})
					term := l.raft.CurrentTerm()
					x := f.running[first]
					var once sync.Once
					works, end := make(chan struct{}), make(chan struct{})
					defer close(end)
					f.disks[first].SetFault(func() error {
						if x.raft.terms.newest.Load() > term {
							once.Do(func() { close(works) })
							<-end
						}
						return nil
					})
					f.disks[lead].SetFault(func() error { <-works; return nil })
					l.Propose(fsm.OpenSession(99, 99, 4000, session.Password{}), make(result, 1), nil)
					<-works
					time.Sleep(5 * time.Second)
					if how == "ended" {
						f.running[first] = nil
						go x.Kill()
					}
					time.Sleep(5 * time.Minute)
					for _, i := range []int{lead, third} {
						m := f.running[i]
						if !f.write(i) {
							t.Errorf("server %d acknowledges no write after five minutes", i+1)
						}
						if m.hasSession(99) {
							t.Errorf("server %d: a session of 4 s whose client has been silent for five minutes has not expired", i+1)
						}
					}
				})
			}
		})
	}
}

// oldReads has the leader's disk get stuck, and another member elected, which is cut off from a third one, far. cut does
// what else happens at that moment. far still hears the old leader; its client is idle, so no touch of the session
// waits for the leader. oldReads fails if far answers a read much later than two election timeouts after a
// write was acknowledged that the read does not show.
func (f *fleet) oldReads(cut func(lead, other, far int)) {
	t := f.t
	t.Helper()
	time.Sleep(3 * time.Second)
	lead := leadOf(t, f)
	other, far := 0, len(f.running)-1 // of equals, the one with the lowest id stands first
	if lead == 0 {
		other = 1
	}
	if lead == far {
		far--
	}
	m := f.running[far]
	var serves atomic.Bool
	go func() {
		for {
			select {
			case yes := <-m.Serving():
				serves.Store(yes)
			case <-m.stop:
				return
			}
		}
	}()
	w := make(result, 1)
	m.Propose(fsm.OpenSession(1000, 1000, 40_000, session.Password{}), w, nil)
	if err := <-w; err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if !m.Touch(1000, nil) {
		t.Fatal("no session")
	}
	time.Sleep(time.Second)
	release := make(chan struct{})
	defer close(release)
	f.disks[lead].SetFault(func() error { <-release; return nil })
	f.cutBetween(other, far, true)
	go f.running[lead].Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(result, 1), nil)
	cut(lead, other, far)
	elected := -1
	until(t, "another leader", func() bool {
		elected = slices.IndexFunc(f.running, func(x *Member) bool { return x != f.running[lead] && x.raft.State() == raft.Leader })
		return elected >= 0
	})
	if elected != other { // two stood at once, and far, which reaches other no more, may be the leader
		t.Logf("member %d leads, not %d", elected+1, other+1)
		return
	}
	f.running[other].Propose(fsm.OpenSession(7777, 7777, 1<<30, session.Password{}), w, nil)
	if err := <-w; err != nil {
		t.Fatal(err)
	}
	acked := time.Now()
	var oldest time.Duration
	time.Sleep(4200 * time.Millisecond)
	for time.Since(acked) < 40*time.Second && serves.Load() {
		over := make(chan struct{})
		answered := make(chan bool, 1)
		go func() { answered <- m.Touch(1000, over) }()
		synctest.Wait()
		select {
		case ok := <-answered:
			m.replica.View(func(v *fsm.View) {
				if ok && v.Sessions().Get(7777) == nil {
					oldest = time.Since(acked)
				}
			})
		default:
			close(over)
			<-answered
		}
		time.Sleep(50 * time.Millisecond)
	}
	if oldest > 4500*time.Millisecond {
		t.Errorf("serves a read %v after a write was acknowledged that it does not show; leader %d, new leader %d, terms %d %d", oldest, m.Leader(), other+1, m.raft.CurrentTerm(), f.running[other].raft.CurrentTerm())
	}
	if serves.Load() {
		t.Errorf("it still serves 40 s later")
	}
}

// TestOldReadsBesideStuckLeader: the old leader's Raft does not notice that another was elected, since it waits for the
// disk. It hears of the later term from the other members only. The same with three voters and an observer.
func TestOldReadsBesideStuckLeader(t *testing.T) {
	for name, x := range map[string]struct {
		size      int
		observers []uint64
		first     bool // its Raft waits for the disk before it sends an entry
	}{"five voters": {5, nil, true}, "an observer": {4, []uint64{4}, true}, "five voters, disk last": {5, nil, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, x.size)
				for i := range f.running {
					cfg := f.config(i)
					observe(&cfg, x.observers...)
					cfg.DiskFirst = x.first
					f.open(i, cfg)
				}
				until(t, "the whole cluster", func() bool {
					for _, m := range f.running {
						if s, err := m.Status(); err != nil || s.Leader == 0 || s.Index == 0 || s.Index != f.running[0].commits.applied() || m.identified() == 0 {
							return false
						}
					}
					return true
				})
				f.oldReads(func(int, int, int) {})
			})
		})
	}
}

// TestElectionOnSlowDisks: disks take some hundred milliseconds for each write, as those of virtual machines
// do whose credit is used up. Writes are acknowledged, slowly. When the leader is lost, the two others elect
// a new one.
func TestElectionOnSlowDisks(t *testing.T) {
	for _, x := range []struct{ timeout, slow time.Duration }{{2000, 100}, {2000, 700}, {2000, 800}, {500, 150}, {500, 200}, {200, 50}, {200, 80}} {
		for _, l := range []int{0, 2} {
			slow := x.slow
			t.Run(fmt.Sprint("timeout ", int(x.timeout), " write ", int(slow), " leader ", l+1), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					for i := range f.running {
						cfg := f.config(i)
						cfg.ElectionTimeout = x.timeout * time.Millisecond
						f.open(i, cfg)
					}
					f.whole()
					until(t, "the leader", func() bool {
						if f.running[leadOf(t, f)] != f.running[l] {
							f.running[leadOf(t, f)].membership.handover.to(t.Context(), uint64(l+1))
						}
						return f.running[l].Leader() == uint64(l+1) && f.running[l].raft.begun.Load() != 0
					})
					time.Sleep(5 * time.Second)
					var sleeps atomic.Int64
					for i := range f.disks {
						f.disks[i].SetFault(func() error { time.Sleep(time.Duration(sleeps.Load())); return nil })
					}
					sleeps.Store(int64(slow * time.Millisecond))
					began := time.Now()
					for range 10 {
						if !f.write(l) {
							t.Fatal("no write is acknowledged")
						}
					}
					t.Logf("a write takes %v", time.Since(began)/10)
					f.stop(l)
					lost := time.Now()
					for time.Since(lost) < 20*x.timeout*time.Millisecond { // two candidates may split the votes more than once
						for i, m := range f.running {
							if m != nil && m.Leader() == uint64(i+1) && m.raft.begun.Load() != 0 {
								t.Logf("there is a leader after %v", time.Since(lost))
								return
							}
						}
						time.Sleep(10 * time.Millisecond)
					}
					t.Errorf("no leader after %v", time.Since(lost))
				})
			})
		}
	}
}

// walls are firewalls that reject: a connection between two hosts with a wall between them is reset, and a new one refused.
type walls struct {
	mu    sync.Mutex
	up    map[[2]string]bool
	conns map[[2]string][]net.Conn
}

func (w *walls) raise(a, b string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range [][2]string{{a, b}, {b, a}} {
		w.up[k] = true
		for _, c := range w.conns[k] {
			c.Close()
		}
	}
}

type walled struct {
	Network
	host string
	w    *walls
}

func (x walled) Dial(ctx context.Context, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(addr)
	k := [2]string{x.host, host}
	x.w.mu.Lock()
	up := x.w.up[k]
	x.w.mu.Unlock()
	if up {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	c, err := x.Network.Dial(ctx, addr)
	if err == nil {
		x.w.mu.Lock()
		x.w.conns[k] = append(x.w.conns[k], c)
		x.w.mu.Unlock()
	}
	return c, err
}

// bothDiskOrders runs a test twice: with leaders whose Raft waits for their own disks before they send an
// entry, and with leaders that send it first. Only the former are kept by a stuck disk from noticing their successors.
func bothDiskOrders(t *testing.T, f func(t *testing.T, first bool)) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("disk first ", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, first) })
		})
	}
}

// TestOldReadsBehindWall: a firewall resets the old leader's connections to all members but far, so that the others replace
// it at once, without waiting for an election timeout.
func TestOldReadsBehindWall(t *testing.T) {
	bothDiskOrders(t, func(t *testing.T, first bool) {
		f := newFleet(t, 5)
		f.first = first
		w := &walls{up: map[[2]string]bool{}, conns: map[[2]string][]net.Conn{}}
		for i := range f.running {
			cfg := f.config(i)
			cfg.Network = walled{cfg.Network, string(rune('a' + i)), w}
			f.open(i, cfg)
		}
		f.whole()
		f.oldReads(func(lead, _, far int) {
			time.Sleep(50 * time.Millisecond)
			for i := range f.running {
				if i != lead && i != far {
					w.raise(string(rune('a'+i)), string(rune('a'+lead)))
				}
			}
		})
	})
}

// TestOldReadsBehindSilentCut: the old leader is replaced because its disk is stuck, and loses at that moment, without a
// reset, all members but far. So a majority accepted it until then, and it does not hear of the later term.
func TestOldReadsBehindSilentCut(t *testing.T) {
	bothDiskOrders(t, func(t *testing.T, first bool) {
		f := newFleet(t, 5)
		f.first = first
		for i := range f.running {
			f.start(i)
		}
		f.whole()
		f.net.SetDelay(func(from, to string) time.Duration { return 10 * time.Millisecond })
		f.oldReads(func(lead, other, far int) {
			for f.running[other].raft.State() == raft.Follower {
				time.Sleep(time.Millisecond)
			}
			for i := range f.running {
				if i != lead && i != far {
					f.cutBetween(i, lead, true)
				}
			}
		})
	})
}
