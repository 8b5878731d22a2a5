package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
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
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// fleet is a cluster whose members a test starts, stops and deprives of their disks. Its
// writes are sessions, which are never closed.
type fleet struct {
	t       *testing.T
	net     *memnet.Network
	log     testkit.Log
	level   slog.Level // what has at least this level is in log; WARN unless it is set
	peers   map[uint64]string
	disks   []*storage.Memory
	running []*Member // nil if it is down
	acked   []int64   // sessions
	first   bool      // Config.DiskFirst
	asked   int64
}

func newFleet(t *testing.T, size int) *fleet {
	f := &fleet{t: t, net: memnet.New(), level: slog.LevelWarn, peers: addresses(size), running: make([]*Member, size)}
	for range size {
		f.disks = append(f.disks, storage.NewMemory())
	}
	t.Cleanup(func() {
		for i := range f.running {
			f.stop(i)
		}
	})
	return f
}

// listOf returns the members with these addresses, by id.
func listOf(addrs map[uint64]string) (list []proto.Peer) {
	for id, addr := range addrs {
		list = append(list, proto.Peer{ID: id, Addr: addr})
	}
	return list
}

// observe makes a configuration say that the servers with these ids do not vote.
func observe(cfg *Config, ids ...uint64) {
	cfg.Observer = slices.Contains(ids, cfg.ID)
	for i := range cfg.Peers {
		cfg.Peers[i].Observer = slices.Contains(ids, cfg.Peers[i].ID)
	}
}

func (f *fleet) config(i int) Config {
	id := uint64(i + 1)
	host, _, _ := net.SplitHostPort(f.peers[id])
	cfg := memberConfig(id, f.peers, f.net.Host(host))
	cfg.Memory, cfg.DiskFirst = f.disks[i], f.first
	cfg.Log = f.log.Logger(f.level)
	return cfg
}

func (f *fleet) start(i int) *Member {
	f.t.Helper()
	return f.open(i, f.config(i))
}

func (f *fleet) open(i int, cfg Config) *Member {
	f.t.Helper()
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = m
	return m
}

// found starts the first n servers as the members of a new cluster. It returns how servers are
// configured: those beyond n have only the address of their peer port.
func (f *fleet) found(n int) (config func(i int) Config) {
	f.t.Helper()
	first := maps.Clone(f.peers)
	maps.DeleteFunc(first, func(id uint64, _ string) bool { return id > uint64(n) })
	config = func(i int) Config {
		cfg := f.config(i)
		if cfg.Peers = listOf(first); i >= n {
			cfg.Peers, cfg.Addr = nil, f.peers[uint64(i+1)]
		}
		return cfg
	}
	for i := range n {
		f.open(i, config(i))
	}
	return config
}

// stop ends a member without handing over, as a crash does.
func (f *fleet) stop(i int) {
	if m := f.running[i]; m != nil {
		f.running[i] = nil
		m.Kill()
	}
}

// handTo has a member lead.
func (f *fleet) handTo(i int) {
	f.t.Helper()
	until(f.t, "the handover", func() bool {
		if f.running[i].Role() == "leader" {
			return true
		}
		id := uint64(i + 1)
		Ask(f.t.Context(), f.net.Host("operator"), f.peers[id], Request{Transfer: &id})
		return false
	})
}

// lose stops a member and takes its disk.
func (f *fleet) lose(i int) {
	f.stop(i)
	f.disks[i] = storage.NewMemory()
}

// write opens a session through a member, and reports whether that was acknowledged within
// some seconds.
func (f *fleet) write(i int) bool {
	m := f.running[i]
	if m == nil {
		return false
	}
	f.asked++
	done, cancel := make(result, 1), make(chan struct{})
	m.Propose(fsm.OpenSession(uint64(f.asked), f.asked, 1<<30, session.Password{}), done, cancel)
	select {
	case err := <-done:
		if err == nil {
			f.acked = append(f.acked, f.asked)
		}
		return err == nil
	case <-time.After(5 * time.Second):
		close(cancel)
		go func() { <-done }()
		return false
	}
}

// writes writes through a member until n writes have been acknowledged.
func (f *fleet) writes(i, n int) {
	for range n {
		for !f.write(i) {
		}
	}
}

// snapshot has the first n members take snapshots of the same state.
func (f *fleet) snapshot(n int) {
	f.t.Helper()
	until(f.t, "all entries", func() bool {
		return !slices.ContainsFunc(f.running[:n], func(m *Member) bool { return m.raft.AppliedIndex() != f.running[0].raft.AppliedIndex() })
	})
	for _, m := range f.running[:n] {
		if err := m.raft.Snapshot().Error(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// whole waits until all members are in the same cluster, with their votes and the same state.
func (f *fleet) whole() {
	f.t.Helper()
	until(f.t, "the whole cluster", func() bool {
		// A leader that has begun has applied all that was acknowledged before.
		if !slices.ContainsFunc(f.running, func(m *Member) bool { return m != nil && m.raft.begun.Load() != 0 }) {
			return false
		}
		var states []string
		for _, m := range f.running {
			if m == nil {
				f.t.Fatal("a member is down")
			}
			s, err := m.Status()
			if err != nil || s.Leader == 0 || !s.Formed || len(s.Members) != len(f.running) || slices.ContainsFunc(s.Members, func(x proto.Peer) bool { return x.Observer }) {
				return false
			}
			states = append(states, fmt.Sprint(s.Cluster, s.Index, s.Digest, m.identified()))
		}
		return len(slices.Compact(states)) == 1
	})
}

// check fails if an acknowledged write is missing on a member that runs.
func (f *fleet) check() {
	f.t.Helper()
	for i, m := range f.running {
		if m == nil {
			continue
		}
		m.replica.View(func(v *fsm.View) {
			for _, id := range f.acked {
				if v.Sessions().Get(id) == nil {
					f.t.Errorf("member %d has lost the acknowledged write %d", i+1, id)
					break
				}
			}
		})
	}
}

// TestFormedOnce: two of three members whose disks are empty do not form the cluster a second
// time, whatever the third has stored.
func TestFormedOnce(t *testing.T) {
	for _, third := range []string{"never started", "formed, and then down"} {
		t.Run(third, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				f.start(0)
				f.start(1)
				time.Sleep(20 * time.Second)
				if f.write(0) || f.write(1) {
					t.Fatal("two members have formed a cluster without the third")
				}
				f.start(2)
				f.whole()
				if third == "never started" { // as if it had never come: it has stored nothing
					f.lose(2)
				} else {
					f.stop(2)
				}
				f.writes(0, 1)
				f.stop(0)
				f.lose(1) // with the above, two disks are lost; without, one is
				f.start(1)
				f.start(2)
				time.Sleep(time.Minute)
				if f.write(1) || f.write(2) {
					t.Error("members without the first one's data acknowledge a write")
				}
				f.start(0)
				if third == "never started" {
					time.Sleep(time.Minute)
					if f.write(0) {
						t.Error("a member alone acknowledges a write")
					}
					for i, m := range f.running[1:] {
						if m.membership.gate.lifted() {
							t.Errorf("member %d, which has lost its disk, is in a cluster", i+2)
						}
					}
					return
				}
				f.whole()
				f.check()
			})
		})
	}
}

// TestFormByWord: an operator lets a majority form the cluster; the third member joins it
// later, and two members without data do not form another one.
func TestFormByWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.start(1)
		form := func(i int) error {
			_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(i+1)], Request{Form: true})
			return err
		}
		observed := newFleet(t, 3)
		cfg := observed.config(2)
		observe(&cfg, 3)
		observed.open(2, cfg)
		if _, err := Ask(t.Context(), observed.net.Host("operator"), observed.peers[3], Request{Form: true}); err == nil || !strings.Contains(err.Error(), "does not vote") {
			t.Errorf("an observer: %v", err)
		}
		if err := form(1); err == nil || !strings.Contains(err.Error(), "only 1 of 3") {
			t.Errorf("one of three: %v", err)
		}
		f.start(2)
		time.Sleep(time.Second)
		if err := form(1); err != nil {
			t.Fatal(err)
		}
		until(t, "a write", func() bool { return f.write(1) })
		if err := form(2); err == nil {
			t.Error("the cluster is formed twice")
		}
		f.stop(1)
		f.lose(2)
		f.start(2)
		f.start(0)
		time.Sleep(time.Minute)
		if f.write(0) || f.write(2) {
			t.Error("members without data acknowledge a write")
		}
		f.lose(2) // as it was
		f.stop(0)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.start(1)
		f.start(2)
		time.Sleep(time.Second)
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[2], Request{Form: true}); err != nil {
			t.Fatal(err)
		}
		until(t, "a write", func() bool { return f.write(2) })
		time.Sleep(30 * time.Second)
		if n := f.log.Count("this member's data is empty"); n > 0 {
			t.Errorf("a member that has formed the cluster joins it:\n%s", f.log.String())
		}
		f.start(0)
		f.whole()
		f.check()
	})
}

// TestFormWithAnotherList: a proposal that was made with another list of members does not
// become the cluster's id, nor does that list begin its log.
func TestFormWithAnotherList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier := newFleet(t, 3)
		f := newFleet(t, 2)
		for i := range f.disks {
			if err := f.disks[i].Open().SetIdentity(storage.Identity{Cluster: testCluster, First: ptr(earlier.config(i)).first()}); err != nil {
				t.Fatal(err)
			}
			f.start(i)
		}
		f.whole()
		if of := f.running[0].membership.gate.cluster(); of == testCluster {
			t.Error("it has the id that was proposed with another list")
		}
	})
}

// TestFormInAnyOrder starts, stops and kills members, and takes their disks, in a random order,
// before, while and after they form their cluster. Of the disks, a minority is lost at a time.
func TestFormInAnyOrder(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 150
	if testkit.Thorough && !testkit.Race {
		runs = 400
	}
	seed := testkit.Seed(t)
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			f := newFleet(t, 3)
			lost := -1 // whose disk is lost, until it has recovered
			var did []string
			for range 10 + r.IntN(40) {
				i := r.IntN(3)
				switch n := r.IntN(10); {
				case n < 4 && f.running[i] == nil:
					f.start(i)
					did = append(did, fmt.Sprint("start ", i+1))
				case n < 6:
					f.stop(i)
					did = append(did, fmt.Sprint("stop ", i+1))
				case n == 6 && lost < 0:
					f.lose(i)
					lost = i
					did = append(did, fmt.Sprint("lose ", i+1))
				case n == 7 && !slices.Contains(f.running, nil):
					f.whole()
					lost = -1
					did = append(did, "all well")
				default:
					f.write(i)
				}
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
			}
			for i, m := range f.running {
				if m == nil {
					f.start(i)
				}
			}
			f.whole()
			f.check()
			for i, m := range f.running {
				select {
				case err := <-m.Err():
					t.Errorf("member %d: %v", i+1, err)
				default:
				}
			}
			if t.Failed() {
				t.Errorf("run %d: %v", run, did)
			}
		})
	}
}

// TestRestoreInAnyOrder: an operator restores three servers from snapshots that may differ, starts and stops them, restores
// another snapshot where no cluster was formed, or on one lost disk, and asks a majority to form the cluster, all in any order.
// No acknowledged write is lost, and all members of the cluster begin with the same state.
func TestRestoreInAnyOrder(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 40
	if testkit.Thorough && !testkit.Race {
		runs = 400
	}
	seed, formed := testkit.Seed(t), 0
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			f := newFleet(t, 3)
			f.asked = 100
			var did []string
			defer func() {
				if t.Failed() {
					t.Errorf("run %d: %v", run, did)
				}
			}()
			restore := func(i int) {
				f.lose(i)
				n := min(r.IntN(5), 2) // mostly the same one
				f.restored(i, []uint64{9, 12, 12}[n], int64(1+n))
				did = append(did, fmt.Sprintf("restore %d on %d", n, i+1))
			}
			of := func(i int) ClusterID { return f.disks[i%3].Open().Identity().Cluster } // perhaps only proposed
			for i := range 3 {
				restore(i)
			}
			lost := -1
			for range 10 + r.IntN(40) {
				i := r.IntN(3)
				switch n := r.IntN(12); {
				case n < 4 && f.running[i] == nil:
					f.start(i)
					did = append(did, fmt.Sprint("start ", i+1))
				case n < 6:
					f.stop(i)
					did = append(did, fmt.Sprint("stop ", i+1))
				case n < 8:
					f.stop(i)
					switch own, next, last := of(i), of(i+1), of(i+2); {
					case own == 0 && next == 0 && last == 0: // nobody has begun to form a cluster
						restore(i)
					case (lost < 0 || lost == i) && next == last && next != 0: // the others are a majority
						lost = i
						restore(i)
					}
				case n == 8 && f.running[i] != nil:
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					_, err := Ask(ctx, f.net.Host("operator"), f.peers[uint64(i+1)], Request{Form: true})
					cancel()
					did = append(did, fmt.Sprintf("form on %d: %v", i+1, err))
				default:
					f.write(i)
				}
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
			}
			for i, m := range f.running {
				if m == nil {
					f.start(i)
				}
			}
			time.Sleep(time.Minute)
			in := func(m *Member) bool { return m.membership.gate.lifted() }
			if slices.ContainsFunc(f.running, in) {
				formed++
				for i, m := range f.running {
					if !in(m) { // as it says
						f.lose(i)
						f.start(i)
					}
				}
			} else {
				for i := range 3 {
					f.lose(i)
					f.restored(i, 9, 1)
				}
				for i := range 3 {
					f.start(i)
				}
			}
			f.whole()
			f.check()
			for i, m := range f.running {
				if err := fault(m, 0); err != nil {
					t.Errorf("member %d: %v", i+1, err)
				}
			}
		})
	}
	if formed < runs/10 {
		t.Errorf("a cluster was formed in %d of %d runs only", formed, runs)
	}
}

// TestOtherClustersData: a member that is started with the data of another cluster, with the
// same ids and addresses, takes no part, and ends when it sees that the others agree.
func TestOtherClustersData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := newFleet(t, 5)
		for i := range 5 {
			other.start(i)
		}
		other.whole()
		for range 5 {
			other.write(0)
		}
		for i := range 5 {
			other.stop(i)
		}
		f := newFleet(t, 5)
		for i := range 5 {
			f.start(i)
		}
		f.whole()
		f.write(0)
		f.stop(4)
		own := f.disks[4]
		f.disks[4] = other.disks[4]
		m := f.start(4)
		err := receive(t, "its fault", m.Err())
		if a, b := fmt.Sprint(m.raft.storage.Identity().Cluster), fmt.Sprint(f.running[0].raft.storage.Identity().Cluster); !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) || strings.Contains(err.Error(), "\n") {
			t.Errorf("the fault does not name clusters %s and %s: %v", a, b, err)
		}
		if f.log.Count("refusing a server of another cluster") == 0 {
			t.Error("the others do not say that they refuse it")
		}
		if m.Role() != "looking" || m.identified() == f.running[0].identified() {
			t.Error("it takes part")
		}
		lead := slices.IndexFunc(f.running, func(m *Member) bool { return m.Role() == "leader" })
		for _, voter := range []bool{false, true} { // it does not keep others from getting theirs
			x := proto.Peer{ID: uint64((lead+1)%4 + 1), Addr: f.peers[uint64((lead+1)%4+1)], Observer: !voter}
			if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Reconfig: &Reconfig{Version: -1, Joining: []proto.Peer{x}, WaitMs: 5000}}); err != nil {
				t.Errorf("with a vote: %v: %v", voter, err)
			}
		}
		f.stop(4)
		f.disks[4] = own
		f.start(4)
		f.whole()
		f.check()
	})
}

// TestDiffers: a member whose state is not what the log makes of it is found, and it is that
// one which stops, the leader too.
func TestDiffers(t *testing.T) {
	for _, who := range []string{"a follower", "the leader"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				for i := range 3 {
					f.start(i)
				}
				f.whole()
				lead := slices.IndexFunc(f.running, func(m *Member) bool { return m.Role() == "leader" })
				bad := lead
				if who == "a follower" {
					bad = (lead + 1) % 3
				}
				synctest.Wait() // so that nobody reads the state meanwhile
				f.running[bad].replica.View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: 1 << 40}) })
				f.write(lead)
				for i, m := range f.running {
					if i == bad {
						if err := receive(t, "its fault", m.Err()); !errors.Is(err, ErrDiffers) {
							t.Error(err)
						}
						if s, err := f.running[lead].Status(); err != nil || who == "a follower" && (len(s.Differs) != 1 || s.Differs[0].ID != uint64(bad+1) || s.Differs[0].Index == 0) {
							t.Errorf("the leader's status names %v, %v", s.Differs, err)
						}
					}
				}
				time.Sleep(10 * time.Second)
				for i, m := range f.running {
					select {
					case err := <-m.Err():
						t.Errorf("member %d stops: %v", i+1, err)
					default:
					}
				}
				f.stop(bad)
				f.start(bad)
				f.whole()
				f.check()
				time.Sleep(10 * time.Second)
				for i, m := range f.running {
					select {
					case err := <-m.Err():
						t.Errorf("after the restart, member %d stops: %v", i+1, err)
					default:
					}
				}
			})
		})
	}
}

// TestRestoredInto: a server that was restored from a snapshot does not come into a cluster that exists.
func TestRestoredInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.lose(2)
		f.restored(2, 77)
		if err := receive(t, "its fault", f.start(2).Err()); !strings.Contains(err.Error(), "belongs to cluster") || !strings.Contains(err.Error(), "empty the directory") {
			t.Error(err)
		}
		f.lose(2)
		f.start(2)
		f.whole()
		f.check()
	})
}

func ptr[T any](v T) *T { return &v }

// restored gives a member's disk a snapshot that ends with the entry index, and has these sessions.
func (f *fleet) restored(i int, index uint64, sessions ...int64) {
	f.t.Helper()
	m := fsm.NewMachine()
	for _, id := range sessions {
		m.Sessions().Open(session.Session{ID: id, Timeout: 1 << 30})
	}
	if err := m.Restart(index, fsm.Members(ptr(f.config(i)).first())); err != nil {
		f.t.Fatal(err)
	}
	f.restoredAt(i, m)
}

// restoredAt gives a member's disk a snapshot with the state m, as [Restore] does with a
// directory.
func (f *fleet) restoredAt(i int, m *fsm.Machine) {
	f.t.Helper()
	s := f.disks[i].Open()
	first := ptr(f.config(i)).first()
	sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, m.Index(), 1, first, m.Index(), newLoneTransport("x"))
	if err == nil {
		err = errors.Join(s.Stable.SetUint64([]byte(storage.TermKey), 1), m.Snapshot().Write(sink), sink.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestRemovedWhileJoining: a member that has lost its disk and is removed before it has its
// vote back does not add itself again, and ends; meanwhile it is in no other change's way.
func TestRemovedWhileJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		for i := range 3 {
			f.start(i)
		}
		f.whole()
		lead := slices.IndexFunc(f.running, func(m *Member) bool { return m.Role() == "leader" })
		other := (lead + 1) % 3
		f.lose(other)
		for range 2000 {
			f.running[lead].Propose(fsm.Nothing(), make(result, 1), nil)
		}
		for range 2 * nearlyCaughtUp {
			f.write(lead)
		}
		var slow atomic.Bool
		slow.Store(true)
		f.disks[other].SetFault(func() error { // it catches up, but not soon
			if slow.Load() {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		m := f.start(other)
		time.Sleep(30 * time.Second)
		ask := func(q Request) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := Ask(ctx, f.net.Host("operator"), f.peers[uint64(lead+1)], q)
			return err
		}
		refused := 0
		for range 30 {
			if err := ask(Request{Reconfig: &Reconfig{Version: -1, Joining: []proto.Peer{{ID: uint64(lead + 1), Addr: f.peers[uint64(lead+1)]}}, WaitMs: 100}}); err != nil {
				refused++
			}
			time.Sleep(time.Second)
		}
		if refused > 3 {
			t.Errorf("%d of 30 changes were refused while a member waits for its vote", refused)
		}
		if err := ask(Request{Remove: uint64(other + 1)}); err != nil {
			t.Fatal(err)
		}
		slow.Store(false)
		err := receive(t, "its fault", m.Err())
		if !errors.Is(err, ErrRemoved) && !strings.Contains(err.Error(), "not a member") {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if s, err := f.running[lead].Status(); err != nil || len(s.Members) != 2 {
			t.Errorf("the members are %v, %v", s.Members, err)
		}
		f.stop(other)
	})
}

// TestWaitingServerHasNoVote: a server without data that was started with only the address of
// its peer port, at the address of a voter, takes no part before the others have taken the
// vote away.
func TestWaitingServerHasNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		for i := range 3 {
			f.start(i)
		}
		f.whole()
		f.stop(2)
		f.write(0)
		f.stop(0)
		f.lose(1)
		cfg := f.config(1)
		cfg.Peers, cfg.Addr = nil, f.peers[2]
		f.open(1, cfg)
		f.start(2) // it has not got the write
		time.Sleep(time.Minute)
		if f.write(2) || f.write(1) {
			t.Error("a server that has forgotten everything completes a majority")
		}
		f.start(0)
		f.whole()
		f.check()
	})
}
