package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestUnwrittenBeforeTerm: a term, a vote, an entry without a command, and a deletion wait until all
// entries that are pending have been written.
func TestUnwrittenBeforeTerm(t *testing.T) {
	for name, store := range map[string]func(l *raftlog.AsyncLog, last uint64) error{
		"term":     func(l *raftlog.AsyncLog, _ uint64) error { return l.SetUint64([]byte(storage.TermKey), 7) },
		"vote":     func(l *raftlog.AsyncLog, _ uint64) error { return l.Set([]byte("any"), []byte("value")) },
		"no-op":    func(l *raftlog.AsyncLog, last uint64) error { return l.StoreLogs(noops(last+1, last+1, 2)) },
		"deletion": func(l *raftlog.AsyncLog, last uint64) error { return l.DeleteRange(last, last) },
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
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
			if n, _ := l.GuardedStore.LastIndex(); n != end {
				t.Fatalf("the disk has entry %d", n)
			}
			close(written)
			if err := <-done; err != nil {
				t.Error(err)
			}
			l.Sync = true
		})
	}
}

// TestListThatIsNotStored: a leader cannot write an entry, nor the list of members after it, which Raft takes for the newest all
// the same. The entry does not become committed by it.
func TestListThatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end, term, written := heldLeader(t)
		voters := []raft.Server{{ID: "1"}, {ID: "2"}}
		l.Servers = func() []raft.Server { return voters }
		if err := l.StoreLogs([]*raft.Log{{Index: end + 1, Term: term, Type: raft.LogCommand}}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []raft.ServerID{"2", "3"} {
			l.Acks.Accepted(id, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: end + 1})
		}
		voters = append(voters, raft.Server{ID: "3"})
		if got := l.Committed(end + 1); got != end {
			t.Errorf("entry %d is committed, want %d", got, end)
		}
		close(written)
		l.Sync = true
	})
}

// heldLeader returns the log of a leader, where it ends and in which term, and what to close so that its
// disk writes.
func heldLeader(t *testing.T) (l *raftlog.AsyncLog, end, term uint64, written chan struct{}) {
	m := loneLeader(t)
	m.write(t, 1)
	m.log.Drain(t.Context())
	l, written = m.log, make(chan struct{})
	l.GuardedStore.LogStore = heldLog{l.GuardedStore.LogStore, written}
	end, err := l.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return l, end, m.Term(), written
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

// TestWritesBesideSnapshot: the write that makes a snapshot due does not wait for its end.
func TestWritesBesideSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := loneLeader(t)
		m.cfg.SnapshotBytes = 10 * EntryCost
		c := newCompactor(m.Engine)
		c.grew(10 * EntryCost)
		room := c.room()
		if room == nil {
			t.Error("the log grows before the snapshot is begun")
		}
		if grown, entries := c.begin(); grown != 10*EntryCost || entries != 1 {
			t.Errorf("%d bytes, %d entries", grown, entries)
		}
		testkit.Receive(t, "room in the log", room)
		if c.room() != nil {
			t.Error("there is no room while the snapshot is taken")
		}
	})
}

// TestHeartbeatOfNewTerm: a heartbeat of a new term that waits for the disk does
// not take a member back from a term after that.
func TestHeartbeatOfNewTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		hold, first := make(chan struct{}), true
		l.memory.SetFault(func() error {
			if first {
				first = false
				<-hold
			}
			return nil
		})
		term := l.follower.Term()
		var sent sync.WaitGroup
		sent.Go(func() {
			l.wire.appendEntries("2", "b:1", &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: term + 5}, new(raft.AppendEntriesResponse))
		})
		synctest.Wait()
		sent.Go(func() { l.wire.beginTerm(term + 6) })
		synctest.Wait()
		reached := l.follower.Term()
		close(hold)
		sent.Wait()
		if got := l.follower.Term(); got < reached || got < term+6 {
			t.Errorf("term %d, after %d", got, reached)
		}
	})
}

// TestVoteNotStored: a member that cannot store its vote does not send it, not even
// while it closes.
func TestVoteNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.memory.SetFault(func() error { return syscall.ENOSPC })
		var r raft.RequestVoteResponse
		var sent sync.WaitGroup
		sent.Go(func() {
			l.wire.exchange("b:1", &raft.RequestVoteRequest{
				RPCHeader: l.wire.header(), Term: l.term + 1, LastLogIndex: l.last() + 1, LastLogTerm: l.term, LeadershipTransfer: true,
			}, &r)
		})
		synctest.Wait()
		if err := l.follower.Close(); err != nil {
			t.Error(err)
		}
		sent.Wait()
		l.memory.SetFault(nil)
		l.start()
		if r.Granted {
			t.Error("it has voted, and nothing is stored")
		}
	})
}

// TestAppliedIsNotReplaced: a member ends, and keeps its log, rather than replace an entry that it
// has applied.
func TestAppliedIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := loneLeader(t)
		m.write(t, 9)
		m.log.Drain(t.Context())
		s, last := m.log.GuardedStore, m.LastIndex()
		if err := s.DeleteRange(last-3, last); !errors.Is(err, election.ErrDiffers) {
			t.Errorf("applied entries were deleted: %v", err)
		}
		if err := testkit.Receive(t, "a fault", m.Errs); !errors.Is(err, election.ErrDiffers) || !strings.Contains(err.Error(), fmt.Sprintf("another entry %d ", last-3)) {
			t.Errorf("its fault is %v", err)
		}
		if end, err := s.LastIndex(); end != last || err != nil {
			t.Errorf("the log ends at %d of %d, %v", end, last, err)
		}
	})
}

// TestTimeoutsLost: the end of catching up and a snapshot, which both change Raft's configuration, do
// not undo each other's changes.
func TestTimeoutsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := loneLeader(t)
		last := m.LastIndex()
		for n := range 20000 {
			m.AbstainUntil(last) // as if it had just reached that
			var both sync.WaitGroup
			both.Go(m.EndAbstention) // as pulse.run does
			both.Go(func() {         // as compactor.run does
				m.Configure(func(r *raft.ReloadableConfig) { r.TrailingLogs = uint64(n%100 + 1) })
			})
			both.Wait()
			if now := m.raft.ReloadableConfig().HeartbeatTimeout; now == noTimeout {
				t.Fatalf("try %d: it abstains until %d, and Raft waits for %v", n, m.abstainUntil.Load(), now)
			}
		}
	})
}

// TestLastChange: the entries of Raft's own change no state, also if what is before them is committed and not applied yet, nor do
// those that a snapshot has replaced.
func TestLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := loneLeader(t)
		m.write(t, 3)
		if err := m.Barrier(0); err != nil {
			t.Fatal(err)
		}
		applied, commit := m.StateIndex(), m.Committed()
		if commit <= applied {
			t.Fatalf("committed %d, applied %d", commit, applied)
		}
		visible := func(upTo uint64) {
			t.Helper()
			if index, ok := m.StateIndexAt(upTo); index != applied || !ok {
				t.Errorf("up to %d, the state last changed at %d, want %d", upTo, index, applied)
			}
		}
		visible(commit)
		visible(commit + 10) // which is not in the log
		m.applied.Set(applied-1, 1)
		visible(commit)
		m.applied.Set(applied, 1)
	})
}

// TestStartsWithState: what the storage has verified at the start counts as applied, although Raft does not read it again.
func TestStartsWithState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.propose(5)
		l.committed = l.last()
		l.sends(2, l.last())
		testkit.Eventually(t, "all entries", func() bool { return l.follower.StateIndex() == l.last() })
		if err := l.follower.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if err := l.follower.Close(); err != nil {
			t.Fatal(err)
		}
		l.start()
		if is := l.follower.StateIndex(); is != l.last() {
			t.Errorf("its state is said to be that after entry %d, should be %d", is, l.last())
		}
	})
}

// TestUnreadableAtStart: a member whose disk cannot read an entry does not start, and says so.
func TestUnreadableAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMember(1, "a:1", memnet.New().Host("a")), storage.NewMemory().Open()
		if err := s.Bootstrap([]proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Log.StoreLogs(noops(2, 5, 1)); err != nil {
			t.Fatal(err)
		}
		s.Log = unreadableLog{s.Log, 3}
		if err := m.start(s); err == nil || !strings.Contains(err.Error(), "memory: unreadable") {
			t.Errorf("it starts: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// unreadableLog has one entry that cannot be read.
type unreadableLog struct {
	raft.LogStore
	at uint64
}

func (l unreadableLog) GetLog(index uint64, e *raft.Log) error {
	if index == l.at {
		return errors.New("unreadable")
	}
	return l.LogStore.GetLog(index, e)
}
