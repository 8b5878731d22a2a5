package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// someState returns the state of a standalone server with one session, which has a lock,
// after an entry of term 5.
func someState(t *testing.T) *fsm.Machine {
	t.Helper()
	m := fsm.NewMachine()
	create := proto.CreateRequest{Path: "/lock", ACL: proto.OpenACL, Flags: proto.FlagEphemeral}
	b := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.OpenSession(1, 7, 10_000, session.Password{1}))
	b = fsm.AppendCommand(b, &fsm.Command{Op: proto.OpCreate, Session: 7, Conn: 1, Body: create.Append(nil)})
	if err := m.Apply(40, 5, fsm.EndEntry(b, &fsm.Envelope{Origin: 1, Batch: 1, Count: 2}), nil); err != nil {
		t.Fatal(err)
	}
	if m.Tree().Lookup("/lock") == nil {
		t.Fatal("there is no lock")
	}
	return m
}

// reread returns the state after a snapshot was written and read.
func reread(t *testing.T, m *fsm.Machine) *fsm.Machine {
	t.Helper()
	var b bytes.Buffer
	if err := m.Snapshot().Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := fsm.ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// TestRestore restores a state to a standalone server, from there to a cluster, to a
// cluster with other members, and back. All members get the same state, with the right
// members and the next index. The zxid goes up each time.
func TestRestore(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, kind := range storage.LogStores {
		t.Run(string(kind), func(t *testing.T) {
			base := testkit.MemoryDir(t)
			state := someState(t)
			for i, x := range []struct {
				id        uint64
				peers     map[uint64]string
				observers []uint64
				config    string // what /zookeeper/config begins with
			}{
				{id: 1},
				{id: 3},
				{peers: map[uint64]string{1: "a:7000", 2: "b:7000", 3: "c:7000"}, config: "server.1=a:7000:8000:participant\nserver.2=b:7000:8000:participant\nserver.3=c:7000:8000:participant\nversion="},
				{peers: map[uint64]string{1: "a:7000", 2: "b:7000", 3: "c:7000"}, config: "server.1=a:7000:8000:participant\nserver.2=b:7000:8000:participant\nserver.3=c:7000:8000:participant\nversion="},
				{peers: map[uint64]string{4: "d:7000", 2: "b:7000"}, observers: []uint64{2}, config: "server.2=b:7000:8000:observer\nserver.4=d:7000:8000:participant\nversion="},
				{peers: map[uint64]string{2: "b:7000"}, config: "server.2=b:7000:8000:participant\nversion="},
				{id: 2},
			} {
				ids := []uint64{x.id}
				if x.id == 0 {
					ids = nil
					for id := range x.peers {
						ids = append(ids, id)
					}
				}
				var next *fsm.Machine
				for _, id := range ids {
					cfg := testConfig(filepath.Join(base, fmt.Sprintf("%d-%d", i, id)))
					cfg.ID, cfg.LogStore, cfg.Peers = id, kind, listOf(x.peers)
					observe(&cfg, x.observers...)
					if err := Restore(cfg, reread(t, state)); err != nil {
						t.Fatal(err)
					}
					s, err := storage.Open(cfg.Dir, "", id, cfg.Log, raftlog.Logger(cfg.Log))
					if err != nil {
						t.Fatal(err)
					}
					m := s.TakeState()
					meta, err := s.NewestSnapshot()
					if err != nil {
						t.Fatal(err)
					}
					if term, err := s.Term(); err != nil || term != 5 || meta.Term != 5 || meta.Index != state.Index()+1 || m.Index() != meta.Index {
						t.Errorf("%d: term %d, entry %d of term %d", i, term, meta.Index, meta.Term)
					}
					if len(s.Members) != max(1, len(x.peers)) || !m.HasMembers(fsm.Members(storage.Configuration(s.Members))) {
						t.Errorf("%d: the members are %v", i, s.Members)
					}
					if config := string(m.Tree().Lookup(znode.ConfigPath).Record().Data); !strings.HasPrefix(config, x.config) || x.config == "" && config != "" {
						t.Errorf("%d: /zookeeper/config is %q", i, config)
					}
					if m.Zxid()>>32 <= state.Zxid()>>32 || m.Sessions().Len() != 1 || m.Tree().Lookup("/lock") == nil {
						t.Errorf("%d: zxid %#x after %#x, %d sessions", i, m.Zxid(), state.Zxid(), m.Sessions().Len())
					}
					if next != nil && next.Digest() != m.Digest() {
						t.Errorf("%d: member %d has another state than the first", i, id)
					}
					if next = m; s.Close() != nil {
						t.Error("it cannot be closed")
					}
					if r, err := storage.Check(cfg.Dir); err != nil || r.Digest != fmt.Sprintf("%016x", m.Digest()) || r.ServerID != id || r.LogStore != kind {
						t.Errorf("%d: Check says %+v, %v", i, r, err)
					}
					if x.id > 0 { // a standalone server
						openReady(t, cfg)
						if r, err := storage.Check(cfg.Dir); err != nil || r.FirstIndex != meta.Index+1 {
							t.Errorf("%d: after a start, Check says %+v, %v", i, r, err)
						}
					}
				}
				state = next
			}
		})
	}
}

// TestRestoreNothing restores the state of a server on which nothing was written.
func TestRestoreNothing(t *testing.T) {
	cfg := testConfig(filepath.Join(testkit.MemoryDir(t), "data"))
	cfg.Join, cfg.Addr = "b:7000", "a:7000"
	if err := Restore(cfg, fsm.NewMachine()); err == nil || !strings.Contains(err.Error(), "joins a cluster") {
		t.Errorf("a server that joins a cluster: %v", err)
	}
	if _, err := os.Stat(cfg.Dir); err == nil {
		t.Error("there is a directory")
	}
	cfg.Join, cfg.Addr, cfg.Peers = "", "", listOf(map[uint64]string{1: "a:7000"})
	if err := Restore(cfg, fsm.NewMachine()); err != nil {
		t.Fatal(err)
	}
	s, err := storage.Open(cfg.Dir, "", 1, cfg.Log, raftlog.Logger(cfg.Log))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if newest, err := s.NewestSnapshot(); err != nil || newest.Index < 1 || newest.Term != 1 {
		t.Errorf("%+v, %v", newest, err)
	}
}

// TestRestoreEnds: after so many restores that no zxid is far enough above that of the state, there is an error, not a zxid below it.
func TestRestoreEnds(t *testing.T) {
	m := fsm.NewMachine()
	for m.Zxid()>>32 < 1<<31-2<<16 {
		m.Restart(m.Index()+1, nil)
	}
	for range 4 {
		was := m.Zxid()
		cfg := testConfig(filepath.Join(testkit.MemoryDir(t), "data"))
		err := Restore(cfg, m)
		if err == nil && m.Zxid() <= was {
			t.Fatalf("zxid %#x after %#x", m.Zxid(), was)
		}
		if _, missing := os.Stat(cfg.Dir); err != nil && (missing == nil || !strings.Contains(err.Error(), "zxid")) {
			t.Errorf("%v; the directory: %v", err, missing)
		} else if err != nil {
			return
		}
	}
	t.Error("there is always a higher zxid")
}

// restoredFleet returns three servers that were restored from a state with a session, whose last entry is 2.
func restoredFleet(t *testing.T) *fleet {
	f := newFleet(t, 3)
	f.acked = append(f.acked, 1<<40)
	for i := range 3 {
		m := fsm.NewMachine()
		if err := m.Restart(2, fsm.Members(storage.Configuration(ptr(f.config(i)).First()))); err != nil {
			t.Fatal(err)
		}
		m.Sessions().Open(session.Session{ID: 1 << 40, Timeout: 1 << 30})
		f.restoredAt(i, m)
		f.start(i)
	}
	return f
}

// TestFirstLeaderOfRestored: the first leader of restored servers, which have no log, is cut off when it stores its first entry. The
// others go on without it, and it comes back, also if it is started again.
func TestFirstLeaderOfRestored(t *testing.T) {
	for _, again := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprint("again ", again), func(t *testing.T) {
			f := restoredFleet(t)
			f.net.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
			var first atomic.Int64
			for i, m := range f.running {
				f.disks[i].SetFault(func() error {
					if _, leads := m.engine.LeaderTerm(); leads && first.CompareAndSwap(0, int64(i+1)) {
						f.cutOff(i, true)
					}
					return nil
				})
			}
			until(t, "a leader", func() bool { return first.Load() != 0 })
			c := int(first.Load() - 1)
			until(t, "a write", func() bool { return f.write((c + 1) % 3) })
			time.Sleep(10 * time.Second)
			if again {
				f.stop(c)
			}
			f.net.Heal()
			if again {
				f.start(c)
			}
			time.Sleep(10 * time.Second)
			var at []uint64
			for _, m := range f.running {
				at = append(at, m.engine.LastIndex())
			}
			if at[0] != at[1] || at[0] != at[2] {
				t.Fatalf("10 s after the cut was healed, the members' logs end with %v; the first leader was %d", at, c+1)
			}
			f.whole()
			f.check()
		})
	}
}

// TestAheadOfLeader: a member has applied entries that the leader does not have, since its snapshot is of another history. It
// ends and says so, whether the leader's log reaches its snapshot's end or not, and is not sent a snapshot all the time. The
// others go on.
func TestAheadOfLeader(t *testing.T) {
	for _, writes := range []int{0, 1, 2, 30} {
		for _, down := range []bool{false, true} {
			testkit.Bubble(t, fmt.Sprintf("%d writes, third member down %v", writes, down), func(t *testing.T) {
				f := newFleet(t, 3)
				f.mixed(9, 9, 13)
				f.start(0)
				f.start(1)
				until(t, "a leader", func() bool {
					return f.running[0].pulse.leader.ReadyTerm.Load() != 0 || f.running[1].pulse.leader.ReadyTerm.Load() != 0
				})
				f.writes(0, writes)
				other := 1 - leadOf(t, f)
				if down {
					f.stop(other)
				}
				m := f.start(2)
				if err := testkit.Receive(t, "its fault", m.Err()); !errors.Is(err, election.ErrDiffers) {
					t.Error(err)
				}
				f.stop(2)
				if down {
					f.start(other)
				}
				until(t, "a write", func() bool { return f.write(0) })
				time.Sleep(10 * time.Second)
				f.unharmed()
			})
		}
	}
}
