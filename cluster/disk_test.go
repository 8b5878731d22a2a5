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

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
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
		last := f.running[lead].raft.LastIndex()
		at := []result{f.propose(lead, 98), f.propose(has, 99)}
		time.Sleep(f.running[lead].contacts.ElectionTimeout / 2)
		for _, i := range []int{lead, has} {
			if now := f.running[i].raft.LastIndex(); now != last+2 {
				t.Fatalf("the log of member %d ends at %d, and not at %d", i+1, now, last+2)
			}
			if applied := f.running[i].commits.applied(); applied > last {
				t.Errorf("member %d has applied entry %d", i+1, applied)
			}
		}
		for i, w := range at {
			if len(w) > 0 {
				t.Errorf("the %d. write is answered", i+1)
			}
		}
		f.running[lead].killed.Store(true)
		end(errors.New("killed"))
		f.stop(lead)
		f.stop(has)
		f.cutBetween(lead, lacks, false)
		f.cutBetween(has, lacks, false)
		f.disks[lead].SetFault(nil)
		f.start(lead)
		if n := f.running[lead].raft.LastIndex(); n > last {
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
		bubble(t, fmt.Sprintf("%d members, %d down", x.size, x.down), func(t *testing.T) {
			f, lead := fleetOf(t, x.size)
			for i := range x.down {
				f.stop((lead + 1 + i) % x.size)
			}
			time.Sleep(time.Second)
			end := f.stuck(lead)
			at := []result{f.propose(lead, 98), f.propose((lead+x.size-1)%x.size, 99)}
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

// TestUnwrittenBeforeTerm: a term, a vote, an entry without a command, and a deletion wait until all
// entries that are pending have been written.
func TestUnwrittenBeforeTerm(t *testing.T) {
	for name, store := range map[string]func(l *asyncLog, last uint64) error{
		"term":     func(l *asyncLog, _ uint64) error { return l.SetUint64([]byte(storage.TermKey), 7) },
		"vote":     func(l *asyncLog, _ uint64) error { return l.Set([]byte("any"), []byte("value")) },
		"no-op":    func(l *asyncLog, last uint64) error { return l.StoreLogs(noops(last+1, last+1, 2)) },
		"deletion": func(l *asyncLog, last uint64) error { return l.DeleteRange(last, last) },
	} {
		bubble(t, name, func(t *testing.T) {
			l, end, term, written := heldLeader(t)
			command := func(i uint64) []*raft.Log {
				return []*raft.Log{{Index: i, Term: term, Type: raft.LogCommand, Data: []byte{1}}}
			}
			for i := range uint64(3) {
				if err := l.StoreLogs(command(end + 1 + i)); err != nil {
					t.Fatal(err)
				}
			}
			var got raft.Log
			if last, err := l.LastIndex(); last != end+3 || err != nil {
				t.Errorf("the log ends at %d, %v", last, err)
			}
			if err := l.GetLog(end+2, &got); err != nil || got.Index != end+2 {
				t.Errorf("a pending entry is %v, %v", got, err)
			}
			if err := l.GetLog(end+4, &got); err != raft.ErrLogNotFound {
				t.Errorf("the entry after the last: %v", err)
			}
			done := make(chan error, 1)
			go func() { done <- store(l, end+3) }()
			time.Sleep(time.Second)
			if len(done) > 0 {
				t.Fatalf("it did not wait: %v", <-done)
			}
			if n, _ := l.guardedStore.LastIndex(); n != end {
				t.Fatalf("the disk has entry %d", n)
			}
			close(written)
			if err := <-done; err != nil {
				t.Error(err)
			}
			l.off = true
		})
	}
}

// TestVotersChangeWhileAsked: all that is pending is written, and then the list of voters changes, while it
// is asked what is committed. The answer is not less than what was acknowledged before.
func TestVotersChangeWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end, term, written := heldLeader(t)
		if err := l.StoreLogs([]*raft.Log{{Index: end + 1, Term: term, Type: raft.LogCommand}}); err != nil {
			t.Fatal(err)
		}
		l.acks.accepted("2", &raft.AppendEntriesRequest{Term: term, PrevLogEntry: end + 1})
		l.acks.accepted("3", &raft.AppendEntriesRequest{Term: term, PrevLogEntry: end + 1})
		voters := []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}}
		l.servers = func() []raft.Server { return voters }
		if got := l.committed(end + 1); got != end+1 || !l.await(end+1) {
			t.Fatalf("entry %d is committed, want %d", got, end+1)
		}
		l.servers = func() []raft.Server {
			close(written)
			if err := l.flush(); err != nil {
				t.Error(err)
			}
			return voters[:2]
		}
		if got := l.committed(end + 1); got != end+1 {
			t.Errorf("entry %d is committed, want %d", got, end+1)
		}
		l.off = true
	})
}

// heldLeader returns the log of a leader, where it ends and in which term, and what to close so that its
// disk writes.
func heldLeader(t *testing.T) (l *asyncLog, end, term uint64, written chan struct{}) {
	b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
	l, written = b.pulse.raft.log, make(chan struct{})
	l.guardedStore.LogStore = heldLog{l.guardedStore.LogStore, written}
	b.wg.Go(l.run)
	l.off = false
	end, err := l.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return l, end, b.pulse.raft.CurrentTerm(), written
}

// heldLog stores nothing until written is closed.
type heldLog struct {
	raft.LogStore
	written chan struct{}
}

func (l heldLog) StoreLogs(logs []*raft.Log) error {
	<-l.written
	return l.LogStore.StoreLogs(logs)
}

// TestAcks: what a member has accepted in an earlier term, or as an observer, does not count.
func TestAcks(t *testing.T) {
	var a acks
	servers := []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4", Suffrage: raft.Nonvoter}}
	expect := func(term, want uint64) {
		t.Helper()
		if got := a.majority(term, servers); got != want {
			t.Errorf("term %d: %d, want %d", term, got, want)
		}
	}
	accept := func(id raft.ServerID, term, prev uint64, entries ...*raft.Log) {
		a.accepted(id, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev, Entries: entries})
	}
	expect(2, 0)
	accept("2", 2, 10)
	accept("4", 2, 10)
	expect(2, 0)
	news := a.wait()
	accept("3", 2, 7, &raft.Log{Index: 8}, &raft.Log{Index: 9})
	select {
	case <-news:
	default:
		t.Error("nobody is told")
	}
	expect(2, 9)
	accept("3", 2, 4)
	expect(2, 9)
	expect(3, 0)
	accept("3", 3, 9)
	expect(3, 0)
	expect(2, 0)
	accept("2", 2, 20)
	expect(3, 0)
	accept("2", 3, 12)
	expect(3, 9)
}

// byteSlowLog is a disk that takes time for each byte.
type byteSlowLog struct {
	raft.LogStore
	perMB time.Duration
}

func (l byteSlowLog) StoreLogs(logs []*raft.Log) error {
	n := 0
	for _, x := range logs {
		n += len(x.Data)
	}
	time.Sleep(l.perMB * time.Duration(n) / 1e6)
	return l.LogStore.StoreLogs(logs)
}

// TestSlowLeaderIsNotReplaced: one client writes 1 MB at a time through the leader, whose disk takes less than
// half an election timeout for each; those of the others are faster. The leader is merely slow: it is not replaced,
// no write is lost, and none waits for more than an election timeout.
func TestSlowLeaderIsNotReplaced(t *testing.T) {
	bothDiskOrders(t, 3, func(t *testing.T, f *fleet, lead int) {
		l := f.running[lead]
		must(t, l, fsm.OpenSession(1, 1, 1<<30, session.Password{}))
		time.Sleep(time.Second)
		term := l.raft.CurrentTerm()
		log := l.raft.log
		log.mu.Lock() // nothing is pending
		log.guardedStore.LogStore = byteSlowLog{log.guardedStore.LogStore, 900 * time.Millisecond}
		log.mu.Unlock()
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
			if now := l.raft.CurrentTerm(); now != term || l.raft.State() != raft.Leader {
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
		perSnapshot := uint64(m.cfg.SnapshotBytes / entryCost) // entries, as short as these
		for i := range 5 * perSnapshot / 2 {
			if i == perSnapshot*9/10 {
				time.Sleep(10 * time.Minute)
				if newest, err := m.raft.storage.NewestSnapshot(); err != nil || newest.Index != 0 {
					t.Errorf("a snapshot of %d entries, before one is due: %v", newest.Index, err)
				}
			}
			did(t, m, someWrite())
		}
		time.Sleep(10 * time.Minute)
		newest, err := m.raft.storage.NewestSnapshot()
		if err != nil || newest.Index == 0 {
			t.Fatalf("no snapshot: %v", err)
		}
		first, _ := m.raft.storage.Log.FirstIndex()
		last, _ := m.raft.storage.Log.LastIndex()
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
			s.Snapshots = steps{s.Snapshots, func(step string, _ uint64, _ int) error {
				if step == "create" && !works.Load() {
					return syscall.EIO
				}
				return nil
			}}
		})
		for range 200 { // 50,000 bytes, as entries are counted
			did(t, m, someWrite())
		}
		if first, err := m.raft.storage.Log.FirstIndex(); err != nil || first != 1 || m.Work().Snapshots.Count != 0 {
			t.Errorf("%d snapshots were written, and the log begins at %d, %v", m.Work().Snapshots.Count, first, err)
		}
		works.Store(true)
		until(t, "a snapshot", func() bool { did(t, m, someWrite()); return m.Work().Snapshots.Count > 0 })
		if err := fault(m, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestWritesBesideSnapshot: the write that makes a snapshot due does not wait for its end.
func TestWritesBesideSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		b.cfg.SnapshotBytes = 10 * entryCost
		c := newCompactor(b.stop, b.cfg, b.proposer().raft, b.replica)
		c.grew(10 * entryCost)
		room := c.room()
		if room == nil {
			t.Error("the log grows before the snapshot is begun")
		}
		if grown, entries := c.begin(); grown != 10*entryCost || entries != 1 {
			t.Errorf("%d bytes, %d entries", grown, entries)
		}
		receive(t, "room in the log", room)
		if c.room() != nil {
			t.Error("there is no room while the snapshot is taken")
		}
	})
}

// TestStuckBesideWrites: a disk that is stuck while the log is shortened, or while snapshots
// are listed for that or for an entry, counts as stuck.
func TestStuckBesideWrites(t *testing.T) {
	for name, x := range map[string]struct {
		deleting bool // is stuck, and not listing
		do       func(s guardedStore) error
	}{
		"deleting":           {true, func(s guardedStore) error { return errors.Join(s.StoreLogs(noops(1, 5, 1)), s.DeleteRange(1, 3)) }},
		"listing, to delete": {false, func(s guardedStore) error { return s.DeleteRange(1, 3) }},
		"listing, to store":  {false, func(s guardedStore) error { return s.StoreLogs(noops(1, 1, 1)) }},
	} {
		bubble(t, name, func(t *testing.T) {
			began := time.Now()
			now := func() timing.Moment { return timing.Moment{Running: time.Since(began).Milliseconds()} }
			n := newNode(1)
			n.storage = storage.NewMemory().Open()
			hold, done := make(chan struct{}), make(chan error)
			if x.deleting {
				n.storage.Log = stuckLog{n.storage.Log, hold}
			} else {
				n.storage.Snapshots = steps{n.storage.Snapshots, func(string, uint64, int) error { <-hold; return nil }}
			}
			s := newGuardedStore(&n.disk, newLifecycle(), now, n.applied, nil)
			go func() { done <- x.do(s) }()
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
	at := func(ran int64) timing.Moment { return timing.Moment{Running: ran} }
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

// holding starts three members whose snapshots are due after a few entries, and returns the leader. held is called for
// each step of the snapshots of the member that comes so many after the leader.
func holding(t *testing.T, after int, held func(step string, bytes int)) (f *fleet, lead int) {
	f = newFleet(t, 3)
	var one atomic.Int64
	one.Store(-1)
	for i := range f.running {
		cfg := f.config(i)
		cfg.SnapshotBytes = 20 * entryCost
		f.openWith(i, cfg, func(s *storage.Storage) {
			s.Snapshots = steps{s.Snapshots, func(step string, _ uint64, bytes int) error {
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
		bubble(t, stuck, func(t *testing.T) {
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
			receive(t, "the snapshot", reached)
			began, limit := time.Now(), old.contacts.ElectionTimeout
			until(t, "a log that is long enough", func() bool { return old.compactor.room() != nil })
			waits := make(result, 1)
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
			parts := (bytes + maxSnapshotPart - 1) / maxSnapshotPart
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
		began, term := time.Now(), leader.raft.CurrentTerm()
		backup, read := io.Pipe()
		defer backup.Close()
		state, err := leader.replica.State()
		if err != nil {
			t.Fatal(err)
		}
		go state.Write(read)
		stop := make(chan struct{})
		wait := keepWriting(leader, 3, 10*time.Millisecond, stop)
		if err := leader.raft.takeSnapshot(); err != nil {
			t.Error(err)
		}
		close(stop)
		wait()
		if took := time.Since(began); took < 10*leader.contacts.ElectionTimeout {
			t.Errorf("it took only %v", took)
		}
		if now, leads := leader.raft.term(); !leads || now != term {
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
			cfg.SnapshotBytes, cfg.ReapInterval = 20*entryCost, time.Second
			s.Snapshots = steps{s.Snapshots, func(step string, _ uint64, _ int) error {
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
		end := m.raft.LastIndex()
		time.Sleep(5 * time.Minute)
		if m.raft.LastIndex() != end || end > 200 {
			t.Errorf("the log has grown to %d, and then to %d", end, m.raft.LastIndex())
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
		if receive(t, "a sync", synced) == nil {
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
			bubble(t, fmt.Sprintf("write %d, formed %v", n, formed), func(t *testing.T) {
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

// TestGuardedLog: no write leaves a gap in the log or replaces an entry, and the last entry
// that the snapshot covers is kept.
func TestGuardedLog(t *testing.T) {
	n, life := newNode(1), newLifecycle()
	n.storage = storage.NewMemory().Open()
	s := newGuardedStore(&n.disk, life, func() timing.Moment { return timing.Moment{} }, n.applied, nil)
	expect := func(err error, ok bool, first, last uint64) {
		t.Helper()
		f, _ := s.FirstIndex()
		l, _ := s.LastIndex()
		if (err == nil) != ok || f != first || l != last {
			t.Errorf("entries %d to %d, want %d to %d; %v", f, l, first, last, err)
		}
	}
	expect(s.StoreLogs(noops(2, 3, 1)), false, 0, 0)
	expect(s.StoreLogs(noops(1, 8, 1)), true, 1, 8)
	expect(s.StoreLogs(noops(10, 10, 1)), false, 1, 8)
	sink, err := n.storage.Snapshots.Create(1, 6, 1, raft.Configuration{}, 1, nil)
	if err == nil {
		err = sink.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	expect(s.DeleteRange(1, 3), true, 4, 8)
	expect(s.DeleteRange(4, 6), true, 6, 8)
	expect(s.DeleteRange(6, 6), true, 6, 8)
	expect(s.DeleteRange(8, 8), true, 6, 7)
	expect(s.DeleteRange(6, 7), true, 0, 0) // the leader has others there
	expect(s.DeleteRange(0, 5), true, 0, 0)
	expect(s.StoreLogs(noops(8, 8, 2)), false, 0, 0)
	expect(s.StoreLogs(noops(6, 6, 2)), true, 6, 6)
	expect(s.StoreLogs(noops(6, 7, 3)), false, 6, 6)
	expect(s.DeleteRange(6, 6), true, 0, 0) // the leader has the snapshot's last entry
	expect(s.StoreLogs(noops(6, 6, 1)), true, 6, 6)
	expect(s.DeleteRange(6, 6), true, 6, 6)
	expect(s.StoreLogs(noops(7, 7, 3)), true, 6, 7)
	life.killed.Store(true)
	expect(s.StoreLogs(noops(8, 8, 3)), false, 6, 7)
	expect(s.DeleteRange(6, 7), false, 6, 7)
}

// TestRecentLog: the newest entries are kept in memory, but not more than recentBytes of
// them unless it is a single one, and none that were deleted.
func TestRecentLog(t *testing.T) {
	under := raft.NewInmemStore()
	r := newRecentLog(under, newLifecycle())
	store := func(index, term uint64, size int) {
		t.Helper()
		if err := r.StoreLog(&raft.Log{Index: index, Term: term, Data: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(first, last uint64, bytes int) {
		t.Helper()
		if n := len(r.kept); n == 0 && last > 0 || n > 0 && (r.kept[0].Index != first || r.kept[n-1].Index != last) || r.bytes != bytes {
			t.Errorf("%d entries of %d bytes are kept, want %d to %d of %d", n, r.bytes, first, last, bytes)
		}
		for i := uint64(1); i <= last; i++ {
			var l, want raft.Log
			err := r.GetLog(i, &l)
			if wantErr := under.GetLog(i, &want); err != wantErr || l.Term != want.Term || len(l.Data) != len(want.Data) {
				t.Errorf("entry %d is of term %d; %v", i, l.Term, err)
			}
		}
	}
	expect(0, 0, 0)
	for i := range uint64(20) {
		store(i+1, 1, 10)
	}
	expect(5, 20, 160)
	store(21, 1, recentBytes-100)
	expect(11, 21, recentBytes)
	store(22, 1, recentBytes+1)
	expect(22, 22, recentBytes+1)
	store(23, 1, 10)
	expect(23, 23, 10)
	if err := r.DeleteRange(21, 23); err != nil {
		t.Fatal(err)
	}
	expect(0, 0, 0)
	store(21, 2, 10)
	expect(21, 21, 10)
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
