package cluster

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/slowdisk"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestUnwrittenIsNotShown: the leader's disk is stuck, and one of the two others has got the entries
// that it has sent. For Raft that is a majority. Neither acknowledges them, nor applies them. The
// leader is killed, and leads again without them, while that other is down.
func TestUnwrittenIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 5)
		lead := leadOf(t, f)
		has, lacks := (lead+1)%3, (lead+2)%3
		time.Sleep(time.Second)
		f.cutBetween(lead, lacks, true)
		f.cutBetween(has, lacks, true)
		end := f.stuck(lead)
		last := f.running[lead].engine.LastIndex()
		at := []propose.Result{f.propose(lead, 98), f.propose(has, 99)}
		time.Sleep(f.running[lead].contacts.ElectionTimeout / 2)
		for _, i := range []int{lead, has} {
			if now := f.running[i].engine.LastIndex(); now != last+2 {
				t.Fatalf("the log of member %d ends at %d, and not at %d", i+1, now, last+2)
			}
			if applied := f.running[i].engine.StateIndex(); applied > last {
				t.Errorf("member %d has applied entry %d", i+1, applied)
			}
		}
		for i, w := range at {
			if len(w) > 0 {
				t.Errorf("the %d. write is answered", i+1)
			}
		}
		f.running[lead].Killed.Store(true)
		end(errors.New("killed"))
		f.stop(lead)
		f.stop(has)
		f.cutBetween(lead, lacks, false)
		f.cutBetween(has, lacks, false)
		f.disks[lead].SetFault(nil)
		f.start(lead)
		if n := f.running[lead].engine.LastIndex(); n > last {
			t.Fatalf("its log ends at %d", n)
		}
		f.writes(lacks, 1)
		f.start(has)
		f.whole()
		f.check()
		f.unharmed()
	})
}

// TestWithoutLeadersDisk: while the leader's disk is stuck, writes are acknowledged as soon as a
// majority of the voters without the leader has them.
func TestWithoutLeadersDisk(t *testing.T) {
	for _, x := range []struct{ size, down int }{{3, 0}, {3, 1}, {5, 0}, {5, 1}, {5, 2}} {
		testkit.Bubble(t, fmt.Sprintf("%d members, %d down", x.size, x.down), func(t *testing.T) {
			f, lead := fleetOf(t, x.size)
			for i := range x.down {
				f.stop((lead + 1 + i) % x.size)
			}
			time.Sleep(time.Second)
			end := f.stuck(lead)
			at := []propose.Result{f.propose(lead, 98), f.propose((lead+x.size-1)%x.size, 99)}
			time.Sleep(100 * time.Millisecond)
			for i, w := range at {
				if acked, want := len(w) > 0, x.size-1-x.down > x.size/2; acked != want || acked && <-w != nil {
					t.Errorf("the %d. write is acknowledged: %v, want %v", i+1, acked, want)
				}
			}
			end(nil)
		})
	}
}

// TestFollowerWritesFirst: a follower acknowledges no entry that its disk has not.
func TestFollowerWritesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 5)
		lead := leadOf(t, f)
		f.stop((lead + 1) % 3)
		time.Sleep(time.Second)
		end := f.stuck((lead + 2) % 3)
		w := f.propose(lead, 98)
		time.Sleep(f.running[lead].contacts.ElectionTimeout / 2)
		if len(w) > 0 {
			t.Error("the write is answered")
		}
		end(nil)
		if err := <-w; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowLeaderIsNotReplaced: one client writes 1 MB at a time through the leader, whose disk takes less than
// half an election timeout for each; those of the others are faster. The leader is merely slow: it is not replaced,
// no write is lost, and none waits for more than an election timeout.
func TestSlowLeaderIsNotReplaced(t *testing.T) {
	bothDiskOrders(t, 3, func(t *testing.T, f *fleet, lead int) {
		l := f.running[lead]
		must(t, l, fsm.OpenSession(1, 1, 1<<30, session.Password{}))
		time.Sleep(time.Second)
		term := l.engine.Term()
		f.disks[lead].SetFault(func() error { time.Sleep(900 * time.Millisecond); return nil })
		for i := range f.disks {
			if i != lead {
				f.disks[i].SetFault(func() error { time.Sleep(20 * time.Millisecond); return nil })
			}
		}
		data := make([]byte, 1000_000)
		rand.NewChaCha8([32]byte{}).Read(data)
		for n := range 10 {
			q := proto.CreateRequest{Path: fmt.Sprint("/n", n), Data: data, ACL: proto.OpenACL}
			if took := did(t, l, &fsm.Command{Op: proto.OpCreate, Session: 1, Conn: 1, Body: q.Append(nil)}); took > l.contacts.ElectionTimeout {
				t.Errorf("write %d took %v", n, took)
			}
			if now := l.engine.Term(); now != term || l.engine.Role() != engine.Leader {
				t.Fatalf("the leader was replaced at write %d", n)
			}
		}
	})
}

// TestTrailingLog: whatever makes a snapshot due, enough of the log is kept for a
// member that lags a little, and the number of entries is bounded too.
func TestTrailingLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := alone(t, func(cfg *Config, _ *storage.Storage) {
			cfg.Peers, cfg.Network = listOf(map[uint64]string{1: "a:1"}), memnet.New().Host("a")
			cfg.SnapshotBytes = 3 << 20 // more entries than the 8,192 after which Raft would take one
		})
		perSnapshot := uint64(m.cfg.SnapshotBytes / engine.EntryCost) // entries, as short as these
		for i := range 5 * perSnapshot / 2 {
			if i == perSnapshot*9/10 {
				time.Sleep(10 * time.Minute)
				if newest, err := m.engine.Storage().NewestSnapshot(); err != nil || newest.Index != 0 {
					t.Errorf("a snapshot of %d entries, before one is due: %v", newest.Index, err)
				}
			}
			did(t, m, someWrite())
		}
		time.Sleep(10 * time.Minute)
		newest, err := m.engine.Storage().NewestSnapshot()
		if err != nil || newest.Index == 0 {
			t.Fatalf("no snapshot: %v", err)
		}
		first, _ := m.engine.Storage().Log.FirstIndex()
		last, _ := m.engine.Storage().Log.LastIndex()
		if newest.Index-first < perSnapshot*9/10 {
			t.Errorf("the log begins with entry %d, but the snapshot ends at %d", first, newest.Index)
		}
		if last-first > 3*perSnapshot {
			t.Errorf("the log has entries %d to %d", first, last)
		}
	})
}

// TestOwnSnapshotFails: a member whose disk reports errors when it takes snapshots of its own
// goes on, with all of its log. When the disk works again, the next snapshot is taken.
func TestOwnSnapshotFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		m := alone(t, func(cfg *Config, s *storage.Storage) {
			cfg.SnapshotBytes = 10_000
			s.Snapshots = slowdisk.Snapshots{SnapshotStore: s.Snapshots, At: func(step string, _ uint64, _ int) error {
				if step == "create" && !works.Load() {
					return syscall.EIO
				}
				return nil
			}}
		})
		for range 200 { // 50,000 bytes, as entries are counted
			did(t, m, someWrite())
		}
		if first, err := m.engine.Storage().Log.FirstIndex(); err != nil || first != 1 || m.Work().Snapshots.Count != 0 {
			t.Errorf("%d snapshots were written, and the log begins at %d, %v", m.Work().Snapshots.Count, first, err)
		}
		works.Store(true)
		until(t, "a snapshot", func() bool { did(t, m, someWrite()); return m.Work().Snapshots.Count > 0 })
		if err := fault(m, 0); err != nil {
			t.Error(err)
		}
	})
}

// holding starts three members whose snapshots are due after a few entries, and returns the leader. held is called for
// each step of the snapshots of the member that comes so many after the leader.
func holding(t *testing.T, after int, held func(step string, bytes int)) (f *fleet, lead int) {
	f = newFleet(t, 3)
	var one atomic.Int64
	one.Store(-1)
	for i := range f.running {
		cfg := f.config(i)
		cfg.SnapshotBytes = 20 * engine.EntryCost
		f.openWith(i, cfg, func(s *storage.Storage) {
			s.Snapshots = slowdisk.Snapshots{SnapshotStore: s.Snapshots, At: func(step string, _ uint64, bytes int) error {
				if step != "list" && int(one.Load()) == i {
					held(step, bytes)
				}
				return nil
			}}
		})
	}
	f.whole()
	lead = leadOf(t, f)
	one.Store(int64((lead + after) % 3))
	return f, lead
}

// TestStuckSnapshot: a leader whose disk is stuck while it writes a snapshot of its own is replaced, although its log
// can be written. A session whose client is silent expires.
func TestStuckSnapshot(t *testing.T) {
	for _, stuck := range []string{"create", "write", "close"} {
		testkit.Bubble(t, stuck, func(t *testing.T) {
			release, reached := make(chan struct{}), make(chan struct{})
			defer close(release)
			var once sync.Once
			f, lead := holding(t, 0, func(step string, _ int) {
				if step == stuck {
					once.Do(func() { close(reached) })
					<-release
				}
			})
			old, other := f.running[lead], f.running[(lead+1)%3]
			did(t, other, fsm.OpenSession(99, 99, 10_000, session.Password{}))
			stop := make(chan struct{})
			wait := keepWriting(old, 3, 10*time.Millisecond, stop)
			testkit.Receive(t, "the snapshot", reached)
			began, limit := time.Now(), old.contacts.ElectionTimeout
			until(t, "a log that is long enough", func() bool { return old.engine.Full() != nil })
			waits := make(propose.Result, 1)
			go old.Propose(fsm.OpenSession(98, 98, 10_000, session.Password{}), waits, nil)
			if stuck != "write" {
				limit *= storage.SnapshotSyncs
			}
			f.anotherLeads(lead, time.Minute)
			if took := time.Since(began); took > limit+500*time.Millisecond {
				t.Errorf("no other member led after %v", took)
			}
			time.Sleep(20 * time.Second)
			if other.hasSession(99) {
				t.Error("the session has not expired")
			}
			if len(waits) == 0 {
				t.Error("a client that waits for room in the log of the former leader has got no answer")
			}
			close(stop)
			wait()
		})
	}
}

// TestSlowSnapshot: a leader whose disk takes long for a snapshot, but gets on with it, goes on leading. So does one
// whose state somebody reads slowly, for a backup.
func TestSlowSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		f, lead := holding(t, 0, func(step string, bytes int) {
			parts := (bytes + raftlog.MaxSnapshotPart - 1) / raftlog.MaxSnapshotPart
			if step != "write" {
				parts = storage.SnapshotSyncs
			}
			time.Sleep(time.Duration(parts) * time.Duration(slow.Load()))
		})
		leader := f.running[lead]
		for range 2 { // znodes that do not fit into one part
			create(t, leader, 3<<20)
		}
		time.Sleep(time.Second) // until the snapshot that is due has been taken
		slow.Store(int64(leader.contacts.ElectionTimeout * 9 / 10))
		began, term := time.Now(), leader.engine.Term()
		backup, read := io.Pipe()
		defer backup.Close()
		state, err := leader.replica.State()
		if err != nil {
			t.Fatal(err)
		}
		go state.Write(read)
		stop := make(chan struct{})
		wait := keepWriting(leader, 3, 10*time.Millisecond, stop)
		if err := leader.engine.TakeSnapshot(); err != nil {
			t.Error(err)
		}
		close(stop)
		wait()
		if took := time.Since(began); took < 10*leader.contacts.ElectionTimeout {
			t.Errorf("it took only %v", took)
		}
		if now, leads := leader.engine.LeaderTerm(); !leads || now != term {
			t.Errorf("it leads: %v, in term %d, which was %d", leads, now, term)
		}
	})
}

// TestDutiesBesideSnapshot: on a standalone server, whose disk is stuck while it writes a snapshot, writes of clients
// wait when the log is long enough for the next snapshot. What the server does by itself does not: sessions expire, and
// znodes are deleted that nobody needs any more. Nor do syncs wait.
func TestDutiesBesideSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stuck atomic.Bool
		release := make(chan struct{})
		m := alone(t, func(cfg *Config, s *storage.Storage) {
			cfg.SnapshotBytes, cfg.ReapInterval = 20*engine.EntryCost, time.Second
			s.Snapshots = slowdisk.Snapshots{SnapshotStore: s.Snapshots, At: func(step string, _ uint64, _ int) error {
				if stuck.Load() && step != "list" {
					<-release
				}
				return nil
			}}
		})
		defer close(release)
		client := func(op proto.OpCode, q proto.Record) {
			must(t, m, &fsm.Command{Op: op, Session: 7, Conn: 1, Body: q.Append(nil)})
		}
		must(t, m, fsm.OpenSession(1, 7, 10_000, session.Password{}))
		client(proto.OpCreateContainer, &proto.CreateRequest{Path: "/c", ACL: proto.OpenACL, Flags: proto.FlagContainer})
		client(proto.OpCreate, &proto.CreateRequest{Path: "/c/child", ACL: proto.OpenACL})
		client(proto.OpDelete, &proto.PathVersion{Path: "/c/child", Version: -1})
		stuck.Store(true)
		stop := make(chan struct{})
		wait := keepWriting(m, 3, 10*time.Millisecond, stop)
		defer wait()
		defer close(stop)
		time.Sleep(time.Minute)
		end := m.engine.LastIndex()
		time.Sleep(5 * time.Minute)
		if m.engine.LastIndex() != end || end > 200 {
			t.Errorf("the log has grown to %d, and then to %d", end, m.engine.LastIndex())
		}
		if m.hasSession(7) {
			t.Error("the session has not expired")
		}
		m.replica.View(func(v *fsm.View) {
			if v.Tree().Lookup("/c") != nil {
				t.Error("the container has not been deleted")
			}
		})
		synced := make(outcome, 1)
		m.Propose(fsm.Nothing(), synced, nil)
		if testkit.Receive(t, "a sync", synced) == nil {
			t.Error("the sync is lost")
		}
	})
}

// TestFaultAtStart: if a write fails while a member starts, Start returns, and its
// error or the member's fault names the storage and the cause.
func TestFaultAtStart(t *testing.T) {
	fault := errors.New("the disk is broken")
	for _, formed := range []bool{false, true} {
		for n := 1; n <= 4; n++ {
			testkit.Bubble(t, fmt.Sprintf("write %d, formed %v", n, formed), func(t *testing.T) {
				cfg := testConfig("")
				cfg.Memory = storage.NewMemory()
				if formed {
					openReady(t, cfg)
				}
				writes := 0
				cfg.Memory.SetFault(func() error {
					if writes++; writes == n {
						return fault
					}
					return nil
				})
				ended := make(chan error, 1)
				go func() {
					m, err := openMember(cfg, fsm.NewReplica())
					if err == nil {
						select {
						case err = <-m.Err():
						case <-m.Ready():
						}
						m.Close()
					}
					ended <- err
				}()
				select {
				case err := <-ended:
					if err == nil && writes < n { // a start has fewer writes
						return
					}
					if err == nil || !errors.Is(err, fault) || !strings.Contains(err.Error(), "memory") {
						t.Errorf("the fault is %v", err)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("it hangs")
				}
			})
		}
	}
}

// TestLogNotStored: a leader that cannot store an entry stops with that fault. By
// itself, Raft would make it stand for election again.
func TestLogNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		f.disks[lead].SetFault(func() error { // only the first write fails
			f.disks[lead].SetFault(nil)
			return syscall.ENOSPC
		})
		f.propose(lead, 99)
		if fault(f.running[lead], time.Minute) == nil {
			t.Error("no fault")
		}
	})
}
