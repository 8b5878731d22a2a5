package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestFollowerModel runs one member, to which the test sends what leaders may send in any
// order that Raft allows: entries, others in their place that a later leader has, and
// snapshots. Meanwhile the member takes snapshots of its own, truncates its log, and is
// closed or killed and started again. It must never stop by itself, and at last have the
// log and the state of the leader.
func TestFollowerModel(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, store := range append([]storage.LogStore{""}, storage.LogStores...) {
		t.Run(cmp.Or(string(store), "memory"), func(t *testing.T) {
			seed, rounds := testkit.Seed(t), 10
			switch {
			case testkit.Race && store == storage.WAL:
				rounds = 3 // each start reads whole segments, which is slow under the race detector
			case testkit.Thorough && !testkit.Race:
				rounds = 50
			}
			for round := range rounds {
				synctest.Test(t, func(t *testing.T) {
					l := newScriptedLeader(t, rand.New(rand.NewPCG(seed, uint64(round))), store)
					for range 80 {
						l.step()
					}
					l.catchUp()
				})
				if t.Failed() {
					t.Fatalf("round %d", round)
				}
			}
		})
	}
}

// TestSnapshotOlderThanState: answers of a follower are lost while the leader takes a snapshot, which ends between what the leader
// knows the follower to have and what that has applied. Then the follower refuses this snapshot, and must not need
// it.
func TestSnapshotOlderThanState(t *testing.T) {
	for _, own := range []bool{false, true} { // the follower has taken a snapshot too, and has nothing of the log before it
		bubble(t, fmt.Sprint("own ", own), func(t *testing.T) {
			f := startedFleet(t, 20)
			lead := leadOf(t, f)
			c := (lead + 1) % 3
			l, x := f.running[lead].raft, f.running[c].raft
			snapshot := func(n *node) {
				if err := n.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
			// Few messages are sent to a follower that does not answer, so this may need several attempts.
			until(t, "a follower that has more than the leader's snapshot", func() bool {
				f.net.Heal()
				f.whole()
				time.Sleep(time.Second)
				f.net.Cut(string(rune('a'+c)), string(rune('a'+lead)), true)
				f.writes(lead, 1)
				snapshot(l)
				f.writes(lead, 1)
				time.Sleep(100 * time.Millisecond)
				return x.AppliedIndex() == l.LastIndex()
			})
			if own {
				snapshot(x)
			}
			time.Sleep(10 * time.Second)
			f.net.Heal()
			f.writes(lead, 1)
			f.whole()
			if leadOf(t, f) != lead {
				t.Error("another member leads")
			}
		})
	}
}

// TestLeaderLostAfterSnapshot: a follower's log ends with entries that were never committed, where the leader's snapshot ends. The leader is lost
// while the follower installs that, and the next one has all of its log. The two are a majority, also if the
// follower is started again.
func TestLeaderLostAfterSnapshot(t *testing.T) {
	for _, again := range []bool{false, true} {
		bubble(t, fmt.Sprint("again ", again), func(t *testing.T) {
			f := startedFleet(t, 20)
			f.whole()
			lead := leadOf(t, f)
			c, other := (lead+1)%3, (lead+2)%3
			f.stop(c)
			log := f.disks[c].Open().Log
			var end raft.Log
			if last, err := log.LastIndex(); err != nil || log.GetLog(last, &end) != nil {
				t.Fatal(last, err)
			}
			f.handTo(other) // the follower's entries are of an earlier term
			f.handTo(lead)
			f.writes(lead, 10)
			time.Sleep(10 * time.Second)
			if err := f.running[lead].raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
			newest, err := f.running[lead].raft.storage.NewestSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := log.StoreLogs(noops(end.Index+1, newest.Index+3, end.Term)); err != nil {
				t.Fatal(err)
			}
			var has atomic.Bool
			f.disks[c].SetFault(func() error {
				if is, err := f.running[c].raft.storage.NewestSnapshot(); err == nil && is.Index == newest.Index && !has.Load() {
					f.cutBetween(c, lead, true)
					has.Store(true)
				}
				if again && has.Load() {
					return errors.New("killed")
				}
				return nil
			})
			f.running[c] = New(f.config(c), fsm.NewReplica())
			if err := f.running[c].Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "the snapshot", has.Load)
			f.stop(lead)
			if again {
				f.disks[c].SetFault(nil)
				f.stop(c)
				f.start(c)
			}
			until(t, "a write", func() bool { return f.write(other) })
			f.net.Heal()
			f.start(lead)
			f.whole()
			f.check()
		})
	}
}

// TestTailRefused: a leader that has taken a snapshot is cut off with entries that nobody else has. When the next leader, whose log begins with
// the first entry, has others in their place, its disk is full. Later it has room, and is started again, and a majority needs it.
func TestTailRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		c := leadOf(t, f)
		if err := f.running[c].raft.takeSnapshot(); err != nil {
			t.Fatal(err)
		}
		f.cutOff(c, true)
		f.write(c)
		until(t, "another leader", func() bool { return f.write((c + 1) % 3) })
		time.Sleep(20 * time.Second)
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.net.Heal()
		until(t, "its fault", f.running[c].over.Load)
		time.Sleep(100 * time.Millisecond) // until its owner has closed it
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.start(c)
		time.Sleep(10 * time.Second)
		lead := leadOf(t, f)
		third := 3 - c - lead
		f.stop(third)
		until(t, "a write", func() bool { return f.write(lead) })
		f.start(third)
		f.whole()
		f.check()
	})
}

// TestStaleLog: a member whose log has entries that no other member has, and ends
// before, at or after the end of the leader's snapshot, gets the same state as the
// others, even without further writes. This holds for each kind of log.
func TestStaleLog(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, kind := range append([]storage.LogStore{""}, storage.LogStores...) { // "" is memory
		for _, beyond := range []int{-2, -1, 0, 1, 3} {
			bubble(t, fmt.Sprint(kind, beyond), func(t *testing.T) { testStaleLog(t, kind, beyond) })
		}
	}
}

func testStaleLog(t *testing.T, kind storage.LogStore, beyond int) {
	dir := t.TempDir()
	memories := map[uint64]*storage.Memory{1: storage.NewMemory(), 2: storage.NewMemory(), 3: storage.NewMemory()}
	withLog := func(f func(log raft.LogStore)) { // of the member 3, which is down
		if kind == "" {
			f(memories[3].Open().Log)
			return
		}
		s, err := storage.Open(dir, kind, 3, testkit.Quiet, raftLogger(testkit.Quiet))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		f(s.Log)
	}
	net := memnet.New()
	// The same snapshot sent again and again takes time, so that the wait below ends.
	net.SetDelay(func(string, string) time.Duration { return time.Millisecond })
	peers := map[uint64]string{1: "a:7", 2: "b:7", 3: "c:7"}
	members := map[uint64]*Member{}
	snapshotBytes := int64(1)
	start := func(ids ...uint64) {
		for _, id := range ids {
			cfg := memberConfig(id, peers, net.Host(peers[id][:1]))
			cfg.Memory, cfg.SnapshotBytes = memories[id], snapshotBytes
			if id == 3 && kind != "" {
				cfg.Memory, cfg.Dir, cfg.LogStore = nil, dir, kind
			}
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			members[id] = m
		}
		for _, id := range ids {
			select {
			case <-members[id].Ready():
			case err := <-members[id].Err():
				t.Fatalf("member %d: %v", id, err)
			case <-time.After(10 * time.Second):
				t.Fatalf("member %d is not ready after ten seconds", id)
			}
		}
	}
	stop := func(ids ...uint64) {
		for _, id := range ids {
			if m := members[id]; m != nil {
				delete(members, id)
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	defer stop(3, 2, 1)
	write := func() {
		for n := 0; n < 20; {
			done := make(result, 1)
			members[1].Propose(fsm.OpenSession(1, 0, 1000_000, session.Password{1}), done, nil)
			if <-done == nil { // else a snapshot has taken it along
				n++
			}
		}
	}
	start(1, 2, 3)
	write()
	time.Sleep(time.Second) // so that all have it
	stop(3, 2, 1)
	var l raft.Log
	withLog(func(log raft.LogStore) {
		last, _ := log.LastIndex()
		if err := log.GetLog(last, &l); err != nil {
			t.Fatal(err)
		}
	})
	last := l.Index
	start(1, 2) // in a later term
	leader := leading(members)
	var newest raft.SnapshotMeta
	for newest.Index < last+5 {
		write()
		time.Sleep(time.Second)
		var err error
		if newest, err = leader.raft.storage.NewestSnapshot(); err != nil {
			t.Fatal(err)
		}
	}
	if newest.Term <= l.Term {
		t.Fatalf("the log ends in term %d, the snapshot in term %d", l.Term, newest.Term)
	}
	// Without further snapshots: a snapshot of what is written from here on would help
	// a member that the first one did not help.
	stop(2, 1)
	snapshotBytes = 1 << 30
	start(1, 2)
	leader = leading(members)
	if newest, _ = leader.raft.storage.NewestSnapshot(); newest.Index < last+5 {
		t.Fatalf("the log ends at %d, the snapshot at %d", last, newest.Index)
	}
	withLog(func(log raft.LogStore) {
		if err := log.StoreLogs(noops(last+1, newest.Index+uint64(beyond), l.Term)); err != nil {
			t.Fatal(err)
		}
	})
	start(3)
	write()
	time.Sleep(time.Second)
	states := map[string]bool{}
	for _, m := range members {
		m.replica.View(func(v *fsm.View) {
			states[fmt.Sprintf("index %d, digest %x, %v", v.Index(), v.Digest(), v.Check())] = true
		})
	}
	if len(states) != 1 {
		t.Errorf("states differ: %v", states)
	}
	log := members[3].raft.storage.Log
	first, _ := log.FirstIndex()
	last, _ = log.LastIndex()
	for i := first; i <= last; i++ {
		var here, there raft.Log
		if err := log.GetLog(i, &here); err != nil {
			t.Errorf("entry %d of %d to %d: %v", i, first, last, err)
		}
		if leader.raft.storage.Log.GetLog(i, &there) == nil && here.Term != there.Term {
			t.Errorf("entry %d is of term %d, the leader's of term %d", i, here.Term, there.Term)
		}
	}
}

// TestStuckFollower: a member whose disk is stuck for long does not collect the leader's
// messages, and has everything soon after its disk works again.
func TestStuckFollower(t *testing.T) {
	testkit.SlowUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		members, lead := net.open(t, 3, nil)
		leader, m := members[lead], members[(lead+1)%3]
		time.Sleep(10 * time.Second)
		held := func() int {
			stacks := make([]byte, 4<<20)
			text := string(stacks[:runtime.Stack(stacks, true)])
			return strings.Count(text, ").handleConn(") + strings.Count(text, ").takeStream(")
		}
		before := held()
		release := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-release; return nil })
		for i := range 60 {
			fill(t, leader, string(rune('A'+i)), 1, 900_000)
			time.Sleep(8 * time.Second)
		}
		if now := held(); now > before+10 {
			t.Errorf("%d connections of Raft are open, %d before", now, before)
		}
		m.cfg.Memory.SetFault(nil)
		close(release)
		began := time.Now()
		last := leader.commits.applied()
		until(t, "all entries", func() bool { return m.commits.applied() >= last })
		if took := time.Since(began); took > m.contacts.silence {
			t.Errorf("it has them after %v", took)
		}
	})
}

// TestLateMemberOnSlowLink: a member that missed long entries, or needs a snapshot, catches up
// over a link that needs long for them. Then a long entry of its own gets over that link.
func TestLateMemberOnSlowLink(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		rate     int64 // bytes a second
		entries  int   // of 900 kB
		snapshot bool
		most     time.Duration
	}{
		{10 << 20, 84, false, 20 * time.Second},
		{150 << 10, 10, false, 80 * time.Second},
		{150 << 10, 0, true, 80 * time.Second}, // it has 8 MB
	} {
		synctest.Test(t, func(t *testing.T) {
			net := newWires()
			members, lead := net.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			leader, late := members[lead], members[(lead+1)%3]
			term := leader.raft.CurrentTerm()
			again := stopMember(t, late)
			if x.snapshot {
				again = stopUntilSnapshot(t, late, leader)
			}
			fill(t, leader, "n", x.entries, 900_000)
			last := leader.commits.applied()
			net.rate.Store(x.rate)
			began := time.Now()
			late = again()
			for late.commits.applied() < last && time.Since(began) < 2*x.most {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took > x.most {
				t.Errorf("%+v: it has them after %v", x, took)
			}
			<-late.Ready()
			began = time.Now()
			fill(t, late, "own", 1, 900_000)
			if took, most := time.Since(began), 3*time.Duration(900_000/x.rate+1)*time.Second; took > most {
				t.Errorf("%+v: its own entry takes %v", x, took)
			}
			if leader.raft.CurrentTerm() != term {
				t.Error("the leader was replaced meanwhile")
			}
		})
	}
}

// TestNeededMemberOnSlowLink: of three members one is down. Another one missed 8 MB, and is behind a slow
// link. It is needed for a majority. The leader's heartbeats wait on the link behind the entries, or behind the
// snapshot.
func TestNeededMemberOnSlowLink(t *testing.T) {
	for _, rate := range []int{140 << 10, 256 << 10, 300 << 10, 400 << 10} {
		for _, snapshot := range []bool{false, true} {
			if snapshot && rate < 256<<10 {
				continue
			}
			bubble(t, fmt.Sprintf("%d KiB per s, snapshot %v", rate>>10, snapshot), func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
				leader, late, third := members[lead], members[(lead+1)%3], members[(lead+2)%3]
				var again func() *Member
				if snapshot {
					again = stopUntilSnapshot(t, late, leader)
				} else {
					again = stopMember(t, late)
					fill(t, leader, "n", 9, 900_000)
				}
				net.SetBandwidth(hostOf(leader), hostOf(late), rate)
				net.SetBandwidth(hostOf(late), hostOf(leader), rate)
				stopMember(t, third)
				term := leader.raft.CurrentTerm()
				began := time.Now()
				late = again()
				most := time.Duration(8<<20/rate+1) * time.Second
				acked := make(chan struct{})
				go func() {
					for w := make(result, 1); ; time.Sleep(10 * time.Millisecond) {
						leader.Propose(someWrite(), w, nil)
						if err := <-w; err == nil || leader.killed.Load() {
							close(acked)
							return
						}
					}
				}()
				select {
				case <-acked:
				case <-time.After(5*most + time.Minute):
					t.Errorf("rate %d, snapshot %v: nothing is acknowledged in %v; term %d, was %d; the late one has %d of %d", rate, snapshot, time.Since(began), leader.raft.CurrentTerm(), term, late.commits.applied(), leader.raft.LastIndex())
					leader.Kill()
					late.Kill()
					return
				}
				t.Logf("rate %d, snapshot %v: a write after %v (8 MB take %v); term %d, was %d", rate, snapshot, time.Since(began), most, leader.raft.CurrentTerm(), term)
			})
		}
	}
}

// TestReturn: a member that was down or cut off for long serves, and counts for the majority,
// soon after it has returned.
func TestReturn(t *testing.T) {
	for _, crash := range []bool{true, false} {
		most := 50 * time.Millisecond
		if !crash {
			most = time.Second // until TCP sends again what the cut has swallowed
		}
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			members, lead := threeMembers(t, network, new(testkit.Log))
			i, j := (lead+1)%3, (lead+2)%3
			host := func(i int) string { return string(rune('a' + i)) }
			cut := func(i int, is bool) {
				for k := range 3 {
					network.Cut(host(i), host(k), is && i != k)
					network.Cut(host(k), host(i), is && i != k)
				}
			}
			for range 3 {
				cfg := members[i].cfg
				if crash {
					network.Kill(host(i))
					if err := members[i].Kill(); err != nil {
						t.Fatal(err)
					}
				} else {
					cut(i, true)
				}
				for range 12 {
					written(t, members[lead], 50*time.Millisecond)
					time.Sleep(time.Second)
				}
				began := time.Now()
				if crash {
					m, err := openMember(cfg, fsm.NewReplica())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { m.Close() })
					members[i] = m
				} else {
					cut(i, false)
				}
				<-members[i].Ready()
				if took := time.Since(began); took > 300*time.Millisecond {
					t.Errorf("a member that has returned serves after %v", took)
				}
				time.Sleep(time.Until(began.Add(300 * time.Millisecond)))
				cut(j, true)
				written(t, members[lead], most)
				cut(j, false)
				time.Sleep(10 * time.Second)
			}
		})
	}
}

// TestRestartWhileQuiet: a follower that restarts while nothing is written learns soon what
// is committed.
func TestRestartWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		time.Sleep(time.Minute)
		i := (lead + 1) % 3
		for range 3 {
			cfg := members[i].cfg
			if err := members[i].Kill(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			members[i] = m
			<-m.Ready()
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("a member that has restarted serves after %v", took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestFollowerLearnsCommit: a single write through a follower does not wait until Raft
// tells the follower, 50 to 100 ms later, that the entry is committed.
func TestFollowerLearnsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		follower := members[(lead+1)%3]
		for range 10 {
			time.Sleep(time.Second)
			began := time.Now()
			did(t, follower, someWrite())
			if took := time.Since(began); took > 40*time.Millisecond {
				t.Errorf("a write waited %v", took)
			}
		}
	})
}

// slowObserver is slow after each entry, so the next one is applied that much later.
type slowObserver struct {
	committing
	each atomic.Int64
}

func (o *slowObserver) Applied(uint64, uint64, int) { time.Sleep(time.Duration(o.each.Load())) }

// TestOthersKnowFirst: the leader tells the others that an entry is committed before it applies the
// entry, and a request that comes to one of them waits for what it has been told, but not for long.
func TestOthersKnowFirst(t *testing.T) {
	has := func(m *Member, id int64) (yes bool) {
		m.replica.View(func(v *fsm.View) { yes = v.Sessions().Get(id) != nil })
		return yes
	}
	start := func(t *testing.T) (f *fleet, leader, follower *Member, slow *slowObserver) {
		f, slow = startedFleet(t, 5), new(slowObserver)
		lead := leadOf(t, f)
		one := (lead + 1) % 3
		f.stop(one)
		replica := fsm.NewReplica()
		replica.Observe(slow)
		m, err := openMember(f.config(one), replica)
		if err != nil {
			t.Fatal(err)
		}
		f.running[one] = m
		f.whole()
		until(t, "a touch", func() bool { return m.Touch(f.acked[0], nil) })
		f.net.SetDelay(func(string, string) time.Duration { return 100 * time.Microsecond })
		time.Sleep(time.Second)
		return f, f.running[lead], m, slow
	}
	bubble(t, "before the leader applies it", func(t *testing.T) {
		_, leader, _, _ := start(t)
		known := uint64(0)
		w := make(result, 1)
		leader.Propose(fsm.OpenSession(98, 98, 1<<30, session.Password{}), cutWhenDone{w, func() { known = leader.known.applied() }}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		if last := leader.commits.applied(); known != last {
			t.Errorf("when entry %d was answered, the others were told of %d", last, known)
		}
	})
	for _, x := range []struct {
		each time.Duration
		want bool
	}{{toldWait / 2, true}, {10 * toldWait, false}} {
		bubble(t, "a follower is slow by "+x.each.String(), func(t *testing.T) {
			f, leader, follower, slow := start(t)
			slow.each.Store(int64(x.each))
			for id := range int64(2) {
				if err := <-f.propose(int(leader.cfg.ID)-1, 98+id); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(400 * time.Microsecond) // until the follower has been told of both
			began := time.Now()
			if !follower.Touch(f.acked[0], nil) {
				t.Fatal("no session")
			}
			if took := time.Since(began); took > toldWait || has(follower, 99) != x.want {
				t.Errorf("after %v the follower has the write: %v", took, !x.want)
			}
			began = time.Now()
			follower.Touch(f.acked[0], nil)
			if took := time.Since(began); took > 0 {
				t.Errorf("the next request waits too, for %v", took)
			}
		})
	}
}

// TestServesAfterCut: a member that was cut off serves soon after the cut is healed, although
// its old connections carry nothing any more, and whether something waited on them or not.
func TestServesAfterCut(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 3 * time.Second, 56 * time.Second} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, nil)
				m := members[(lead+1)%3]
				fill(t, m, "n", 1, 1)
				time.Sleep(10 * time.Second)
				host := hostOf(m)
				net.forget(func(w *wire) bool { return w.from == host || w.to == host })
				cutOff(net.Network, members, (lead+1)%3)
				if waits {
					m.Propose(someWrite(), make(result, 1), nil)
					go m.Touch(fillsIn(m), nil)
				}
				time.Sleep(length)
				net.Heal()
				began := time.Now()
				for served := false; !served; {
					w := make(result, 1)
					m.Propose(someWrite(), w, nil)
					select {
					case err := <-w:
						served = err == nil
					case <-time.After(time.Minute):
						t.Fatalf("after a cut of %v a member does not serve within a minute", length)
					}
				}
				if took, most := time.Since(began), m.contacts.silence*3/2; took > most || length > 3*time.Second && took > m.contacts.silence {
					t.Errorf("after a cut of %v a member serves within %v; waits %v", length, took, waits)
				}
			})
		}
	}
}

// TestServesAfterCutInSnapshot: a member that is cut off while it gets its snapshot serves soon after
// the cut is healed, although its old connections carry nothing any more, as promise 10 says.
func TestServesAfterCutInSnapshot(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, length := range []time.Duration{0, time.Second, 3 * time.Second, 56 * time.Second} {
		bubble(t, length.String(), func(t *testing.T) {
			n := newWires()
			members, lead := n.open(t, 3, nil)
			leader, late := members[lead], members[(lead+1)%3]
			again := stopUntilSnapshot(t, late, leader)
			n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
			n.rate.Store(4 << 20) // the snapshot takes 2 s
			host := hostOf(late)
			half := make(chan struct{})
			came := func(w *wire) {
				w.mu.Lock()
				is := w.kind == kindRaft && !w.dialed && w.to == host && w.read > 2<<20
				w.mu.Unlock()
				if is {
					n.came.Store(nil)
					close(half)
				}
			}
			n.came.Store(&came)
			late = again()
			<-half
			n.forget(func(w *wire) bool { return w.from == host || w.to == host })
			members[(lead+1)%3] = late
			if length > 0 {
				cutOff(n.Network, members, (lead+1)%3)
				time.Sleep(length)
				n.Heal()
			}
			began := time.Now()
			select {
			case <-late.Ready():
			case <-time.After(2 * time.Minute):
			}
			took, most := time.Since(began), late.contacts.silence*5/2+3*time.Second
			t.Log(took)
			if took > most {
				t.Errorf("after a cut of %v it serves within %v, should within %v", length, took, most)
			}
		})
	}
}

// TestServesAfterManyCuts: a member whose snapshot was cut off many times in a row gets the next one soon after the last
// cut is healed, as promise 10 says of any cut.
func TestServesAfterManyCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		members, lead := n.open(t, 3, nil)
		leader, late := members[lead], members[(lead+1)%3]
		again := stopUntilSnapshot(t, late, leader)
		n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
		n.rate.Store(4 << 20) // the snapshot takes 2 s
		host := hostOf(late)
		late = again()
		members[(lead+1)%3] = late
		for i := range 14 {
			half := make(chan struct{})
			came := func(w *wire) {
				w.mu.Lock()
				is := w.kind == kindRaft && !w.dialed && w.to == host && w.read > 1<<20
				w.mu.Unlock()
				if is {
					n.came.Store(nil)
					close(half)
				}
			}
			n.came.Store(&came)
			waited := time.Now()
			<-half
			t.Logf("%d: the snapshot comes %v after the cut was healed", i, time.Since(waited))
			n.forget(func(w *wire) bool { return w.from == host || w.to == host })
			cutOff(n.Network, members, (lead+1)%3)
			time.Sleep(time.Second)
			n.Heal()
		}
		began := time.Now()
		select {
		case <-late.Ready():
		case <-time.After(2 * time.Minute):
		}
		took, most := time.Since(began), late.contacts.silence*5/2+3*time.Second
		if took > most {
			t.Errorf("after the last cut it serves within %v, should within %v", took, most)
		}
	})
}

// TestSameSnapshotAgain: a leader that sends a member the same snapshot again and again pauses in between, longer each time. It
// sends another one at once, and the same one if the last time is long ago.
func TestSameSnapshotAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := openTransport(t, memnet.New(), "leader")
		q := raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 9}
		began, sent := time.Now(), 0
		for ; sent < 1000 && time.Since(began) < time.Minute; sent++ {
			leader.transport.pauseBefore("2", &q)
		}
		if most := int(time.Minute/defaultElectionTimeout) + 10; sent > most {
			t.Errorf("it was sent %d times in a minute, should be at most %d times", sent, most)
		}
		for what, q := range map[raft.ServerID]raft.InstallSnapshotRequest{
			"3": q, "2": {Term: 1, LastLogIndex: 12},
		} {
			began := time.Now()
			if leader.transport.pauseBefore(what, &q); time.Since(began) != 0 {
				t.Errorf("to %s, up to entry %d: it waits", what, q.LastLogIndex)
			}
		}
		time.Sleep(time.Minute) // the link may have failed nine times, and works now
		began = time.Now()
		if leader.transport.pauseBefore("2", &raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 12}); time.Since(began) != 0 {
			t.Error("it waits because of what was long ago")
		}
	})
}
