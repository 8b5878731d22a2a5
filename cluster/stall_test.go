package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/storage"
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
				s := newGuardedStore(n, newLifecycle(), now, nil)
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
// serving before its state is older than promised.
func TestReplacedWhileStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 5)
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
		f.cutBetween(lead, other, true)
		old.Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(result, 1), nil)
		until(t, "another leader", func() bool { return f.running[other].raft.State() == raft.Leader })
		for !f.write(other) {
		}
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
		if old.raft.State() != raft.Leader {
			t.Error("its Raft has noticed")
		}
	})
}
