package cluster

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// heldSnapshots is a store that calls held before each step of writing a snapshot: "create", "write" of so many bytes, or
// "close".
type heldSnapshots struct {
	raft.SnapshotStore
	held func(step string, bytes int)
}

func (s heldSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.held("create", 0)
	sink, err := s.SnapshotStore.Create(version, index, term, c, at, trans)
	return heldSink{sink, s.held}, err
}

type heldSink struct {
	raft.SnapshotSink
	held func(step string, bytes int)
}

func (s heldSink) Write(p []byte) (int, error) {
	s.held("write", len(p))
	return s.SnapshotSink.Write(p)
}

func (s heldSink) Close() error {
	s.held("close", 0)
	return s.SnapshotSink.Close()
}

// holding starts three members whose snapshots are due after a few entries, and returns the leader. held is called for
// each step of the leader's own snapshots.
func holding(t *testing.T, held func(step string, bytes int)) (f *fleet, lead int) {
	f = newFleet(t, 3)
	var leader atomic.Pointer[Member]
	for i := range f.running {
		cfg := f.config(i)
		cfg.SnapshotBytes = 20 * entryCost
		var m *Member
		m = f.openWith(i, cfg, func(s *storage.Storage) {
			s.Snapshots = heldSnapshots{s.Snapshots, func(step string, bytes int) {
				if m != nil && leader.Load() == m {
					held(step, bytes)
				}
			}}
		})
	}
	f.whole()
	lead = leadOf(t, f)
	leader.Store(f.running[lead])
	return f, lead
}

// keepWriting has clients write through a member until stop is closed.
func keepWriting(m *Member, clients int, stop <-chan struct{}) (wait func()) {
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				w := make(result, 1)
				m.Propose(someWrite(), w, stop)
				select {
				case <-w:
				case <-stop:
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return wg.Wait
}

// TestStuckSnapshot: a leader whose disk is stuck while it writes a snapshot of its own is replaced, although its log
// can be written. A session whose client is silent expires.
func TestStuckSnapshot(t *testing.T) {
	for _, stuck := range []string{"create", "write", "close"} {
		t.Run(stuck, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release, reached := make(chan struct{}), make(chan struct{})
				defer close(release)
				var once sync.Once
				f, lead := holding(t, func(step string, _ int) {
					if step == stuck {
						once.Do(func() { close(reached) })
						<-release
					}
				})
				old, other := f.running[lead], f.running[(lead+1)%3]
				opened := make(result, 1)
				other.Propose(fsm.OpenSession(99, 99, 10_000, session.Password{}), opened, nil)
				if err := <-opened; err != nil {
					t.Fatal(err)
				}
				stop := make(chan struct{})
				wait := keepWriting(old, 3, stop)
				receive(t, "the snapshot", reached)
				began, limit := time.Now(), old.contacts.silence
				until(t, "a log that is long enough", func() bool { return old.compactor.room() != nil })
				waits := make(result, 1)
				go old.Propose(fsm.OpenSession(98, 98, 10_000, session.Password{}), waits, nil)
				if stuck != "write" {
					limit *= storage.SnapshotSyncs
				}
				for other.raft.State() != raft.Leader && f.running[(lead+2)%3].raft.State() != raft.Leader && time.Since(began) < time.Minute {
					time.Sleep(10 * time.Millisecond)
				}
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
		})
	}
}

// TestSlowSnapshot: a leader whose disk takes long for a snapshot, but gets on with it, goes on leading. So does one
// whose state somebody reads slowly, for a backup.
func TestSlowSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		f, lead := holding(t, func(step string, bytes int) {
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
		slow.Store(int64(leader.contacts.silence * 9 / 10))
		began, term := time.Now(), leader.raft.CurrentTerm()
		backup, read := io.Pipe()
		defer backup.Close()
		state, err := leader.replica.State()
		if err != nil {
			t.Fatal(err)
		}
		go state.Write(read)
		stop := make(chan struct{})
		wait := keepWriting(leader, 3, stop)
		if err := leader.raft.takeSnapshot(); err != nil {
			t.Error(err)
		}
		close(stop)
		wait()
		if took := time.Since(began); took < 10*leader.contacts.silence {
			t.Errorf("it took only %v", took)
		}
		if now, leads := leader.raft.term(); !leads || now != term {
			t.Errorf("it leads: %v, in term %d, which was %d", leads, now, term)
		}
	})
}

// create creates a znode with so many bytes of data.
func create(t *testing.T, m *Member, bytes int) {
	t.Helper()
	q := proto.CreateRequest{Path: "/n", Data: make([]byte, bytes), ACL: proto.OpenACL, Flags: proto.FlagSequential}
	must(t, m, fsm.OpenSession(1, 7, 40_000, session.Password{}))
	must(t, m, &fsm.Command{Op: proto.OpCreate, Session: 7, Conn: 1, Body: q.Append(nil)})
}

// must proposes a command, which has to succeed.
func must(t *testing.T, m *Member, c *fsm.Command) {
	t.Helper()
	done := make(outcome, 1)
	m.Propose(c, done, nil)
	if r := <-done; r == nil || r.Code != proto.OK {
		t.Fatalf("%+v", r)
	}
}

// TestDutiesBesideSnapshot: on a standalone server, whose disk is stuck while it writes a snapshot, writes of clients
// wait when the log is long enough for the next snapshot. What the server does by itself does not: sessions expire, and
// znodes are deleted that nobody needs any more. Nor do syncs wait.
func TestDutiesBesideSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cfg := testConfig("")
		cfg.Memory, cfg.SnapshotBytes, cfg.ReapInterval = storage.NewMemory(), 20*entryCost, time.Second
		m := New(cfg, fsm.NewReplica())
		s := cfg.Memory.Open()
		var stuck atomic.Bool
		s.Snapshots = heldSnapshots{s.Snapshots, func(string, int) {
			if stuck.Load() {
				<-release
			}
		}}
		if err := m.startOn(s); err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		defer close(release)
		<-m.Ready()
		client := func(op proto.OpCode, q proto.Record) {
			must(t, m, &fsm.Command{Op: op, Session: 7, Conn: 1, Body: q.Append(nil)})
		}
		must(t, m, fsm.OpenSession(1, 7, 10_000, session.Password{}))
		client(proto.OpCreateContainer, &proto.CreateRequest{Path: "/c", ACL: proto.OpenACL, Flags: proto.FlagContainer})
		client(proto.OpCreate, &proto.CreateRequest{Path: "/c/child", ACL: proto.OpenACL})
		client(proto.OpDelete, &proto.PathVersion{Path: "/c/child", Version: -1})
		stuck.Store(true)
		stop := make(chan struct{})
		wait := keepWriting(m, 3, stop)
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

// blockingLog is a handler of a log that nobody reads.
type blockingLog struct {
	slog.Handler
	message string // that blocks
	release chan struct{}
}

func (b blockingLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == b.message {
		<-b.release
	}
	return nil
}

func (b blockingLog) Enabled(context.Context, slog.Level) bool { return true }

// TestExpiryBesideLog: sessions expire although the log blocks.
func TestExpiryBesideLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cfg := testConfig("")
		cfg.Memory, cfg.Log = storage.NewMemory(), slog.New(blockingLog{slog.DiscardHandler, "session expired", release})
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		defer close(release)
		<-m.Ready()
		for id := range int64(2000) {
			opened := make(outcome, 1)
			m.Propose(fsm.OpenSession(1, id+1, 10_000, session.Password{}), opened, nil)
			<-opened
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		if n := m.Expired(); n != 2000 {
			t.Errorf("%d of 2000 sessions have expired", n)
		}
	})
}
