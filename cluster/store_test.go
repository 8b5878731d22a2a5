package cluster

import (
	"fmt"
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

// noops returns empty entries.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}

// TestGuardedLog: no write leaves a gap in the log or replaces an entry, and the last entry
// that the snapshot covers is kept.
func TestGuardedLog(t *testing.T) {
	n, life := newNode(1), newLifecycle()
	n.storage = storage.NewMemory().Open()
	s := newGuardedStore(&n.disk, life, func() moment { return moment{} }, n.applied, nil)
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

// TestStaleLog: a member whose log has entries that no other member has, and ends
// before, at or after the end of the leader's snapshot, gets the same state as the
// others, even without further writes. This holds for each kind of log.
func TestStaleLog(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, kind := range append([]storage.LogStore{""}, storage.LogStores...) { // "" is memory
		for _, beyond := range []int{-2, -1, 0, 1, 3} {
			t.Run(fmt.Sprint(kind, beyond), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testStaleLog(t, kind, beyond) })
			})
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

// leading returns the leader of members.
func leading(members map[uint64]*Member) *Member {
	for _, m := range members {
		if m.raft.State() == raft.Leader {
			return m
		}
	}
	return nil
}

// TestRecentLog: the newest entries are kept in memory, but not more than recentBytes of
// them unless it is a single one, and none that were deleted.
func TestRecentLog(t *testing.T) {
	under := raft.NewInmemStore()
	r := newRecentLog(under)
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
