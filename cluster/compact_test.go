package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestTrailingLog: whatever makes a snapshot due, enough of the log is kept for a
// member that lags a little, and the number of entries is bounded too.
func TestTrailingLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig("")
		cfg.Peers, cfg.Network = listOf(map[uint64]string{1: "a:1"}), memnet.New().Host("a")
		cfg.SnapshotBytes = 3 << 20 // more entries than the 8,192 after which Raft would take one
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		<-m.Ready()
		perSnapshot := uint64(cfg.SnapshotBytes / entryCost) // entries, as short as these
		for i := range 5 * perSnapshot / 2 {
			if i == perSnapshot*9/10 {
				time.Sleep(10 * time.Minute)
				if newest, err := m.raft.storage.NewestSnapshot(); err != nil || newest.Index != 0 {
					t.Errorf("a snapshot of %d entries, before one is due: %v", newest.Index, err)
				}
			}
			done := make(outcome, 1)
			m.Propose(someWrite(), done, nil)
			if <-done == nil {
				t.Fatal("lost entry", i)
			}
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
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.SnapshotBytes = 10_000
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	<-m.Ready()
	write := func() {
		w := make(result, 1)
		m.Propose(someWrite(), w, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
	}
	snapshots := filepath.Join(dir, "raft", "snapshots")
	if err := errors.Join(os.Remove(snapshots), os.WriteFile(snapshots, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 200 { // 50,000 bytes, as entries are counted
		write()
	}
	if first, err := m.raft.storage.Log.FirstIndex(); err != nil || first != 1 || m.Work().Snapshots.Count != 0 {
		t.Errorf("%d snapshots were written, and the log begins at %d, %v", m.Work().Snapshots.Count, first, err)
	}
	if err := errors.Join(os.Remove(snapshots), os.MkdirAll(snapshots, 0o700)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); m.Work().Snapshots.Count == 0; write() {
		if time.Now().After(end) {
			t.Fatal("no snapshot was written afterwards")
		}
	}
	select {
	case err := <-m.Err():
		t.Error(err)
	default:
	}
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

// TestCompactor: a snapshot is taken when the log is long enough, and meanwhile a
// proposer whose entries would make the next one due has to wait.
func TestCompactor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		p := b.proposer()
		b.replica.Complete(p.complete)
		b.wg.Go(p.run)
		done := make(result, 1)
		p.propose(someWrite(), done, nil)
		if err := receive[error](t, "the outcome", done); err != nil {
			t.Fatal(err)
		}
		b.cfg.SnapshotBytes = 10 * entryCost
		c := newCompactor(b.stop, b.cfg, p.raft, b.replica)
		c.grew(9 * entryCost)
		if c.room() != nil {
			t.Error("a snapshot is due too early")
		}
		c.grew(1) // counts as more
		p.room = c.room
		waited := make(result, 1)
		go p.propose(someWrite(), waited, nil)
		synctest.Wait()
		if len(waited) > 0 {
			t.Error("the log grows while a snapshot is due")
		}
		b.wg.Go(c.run)
		receive[error](t, "room in the log", waited)
		until(t, "a snapshot", func() bool {
			newest, err := p.raft.storage.NewestSnapshot()
			return err == nil && newest.Index > 0
		})
	})
}
