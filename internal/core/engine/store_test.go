package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/internal/testing/slowdisk"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

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
		testkit.Bubble(t, name, func(t *testing.T) {
			began := time.Now()
			now := func() timing.Moment { return timing.Moment{Running: time.Since(began).Milliseconds()} }
			n := &disk{storage: storage.NewMemory().Open(), terms: newTerms()}
			hold, done := make(chan struct{}), make(chan error)
			if x.deleting {
				n.storage.Log = stuckLog{n.storage.Log, hold}
			} else {
				n.storage.Snapshots = slowdisk.Snapshots{SnapshotStore: n.storage.Snapshots, At: func(string, uint64, int) error { <-hold; return nil }}
			}
			s := newGuardedStore(n, NewLifecycle(), now, notStarted, nil)
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

// notStarted is Engine.LastApplied before Raft is started.
func notStarted() uint64 { return 0 }

// TestGuardedLog: no write leaves a gap in the log or replaces an entry, and the last entry
// that the snapshot covers is kept.
func TestGuardedLog(t *testing.T) {
	n, life := &disk{storage: storage.NewMemory().Open(), terms: newTerms()}, NewLifecycle()
	s := newGuardedStore(n, life, func() timing.Moment { return timing.Moment{} }, notStarted, nil)
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
	life.Killed.Store(true)
	expect(s.StoreLogs(noops(8, 8, 3)), false, 6, 7)
	expect(s.DeleteRange(6, 7), false, 6, 7)
}

// TestRecentLog: the newest entries are kept in memory, but not more than recentBytes of
// them unless it is a single one, and none that were deleted.
func TestRecentLog(t *testing.T) {
	under := raft.NewInmemStore()
	r := newRecentLog(under, NewLifecycle())
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

// TestTerms: no term begins while a heartbeat is being handled, and after one has
// begun no heartbeat of an earlier term is handled.
func TestTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := terms{turn: wake.NewTurn()}
		terms.begin(4)
		handled, done := make(chan struct{}), make(chan bool)
		go func() {
			done <- terms.during(4, func() bool {
				terms.begin(4) // as Raft does when it was a candidate in this term
				<-handled
				return terms.newest.Load() == 4
			})
		}()
		synctest.Wait()
		go func() {
			terms.begin(5)
			done <- true
		}()
		synctest.Wait()
		if now := terms.newest.Load(); now != 4 {
			t.Errorf("term %d has begun meanwhile", now)
		}
		close(handled)
		for range 2 {
			if !<-done {
				t.Error("the heartbeat was not handled")
			}
		}
		for term, want := range map[uint64]bool{4: false, 5: true, 6: false} {
			if got := terms.during(term, func() bool { return true }); got != want {
				t.Errorf("a heartbeat of term %d: %v", term, got)
			}
		}
	})
}

func TestOfConnection(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for err, want := range map[error]bool{
		reset: true,
		errors.New("msgpack decode error [pos 0]: " + reset.Error()): true,
		raft.ErrTransportShutdown:                                    true,
		raft.ErrLogNotFound:                                          false,
		errors.New("EOF in snapshot"):                                false,
	} {
		if ofConnection(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// TestLists: which of a log's lists takes a vote away, whatever is stored, read and deleted.
func TestLists(t *testing.T) {
	entry := func(index uint64, votes bool) *raft.Log {
		s := raft.Server{ID: "7", Suffrage: raft.Nonvoter}
		if votes {
			s.Suffrage = raft.Voter
		}
		return &raft.Log{Index: index, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{s}})}
	}
	is := func(x *lists, newest, before list) {
		t.Helper()
		if x.newest != newest || x.before != before {
			t.Errorf("%+v, then %+v", x.before, x.newest)
		}
	}
	var x lists
	for _, l := range []*raft.Log{entry(9, false), entry(2, false), entry(5, true), entry(9, false), entry(5, true), {Index: 10}} {
		x.note(l, "7")
	}
	is(&x, list{9, false}, list{5, true})
	x.deleted(1, 4)
	is(&x, list{9, false}, list{5, true})
	x.deleted(9, 12)
	is(&x, list{5, true}, list{})
	x.note(entry(9, true), "7")
	x.note(entry(11, false), "7")
	is(&x, list{11, false}, list{9, true})
	x.deleted(9, 12)
	is(&x, list{}, list{})
}

// TestCopyNeverProof: a member that has restored another one's snapshot says so with the first digest of that state.
func TestCopyNeverProof(t *testing.T) {
	from := fsm.NewReplica()
	for i := uint64(1); i <= 5; i++ {
		entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.OpenSession(i, int64(i), 1000, session.Password{}))
		if err := from.Apply(&raft.Log{Index: i, Term: 1, Data: fsm.EndEntry(entry, &fsm.Envelope{Origin: 1, Batch: i, Count: 1})}); err != nil {
			t.Fatal(err)
		}
	}
	state, err := from.State()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := state.Write(&b); err != nil {
		t.Fatal(err)
	}
	r := fsm.NewReplica()
	to := election.NewDigests(2, r)
	told := false
	r.Observe(restoring{func() {
		if a := to.Answer(5); a.Index == 5 {
			if told = true; a.Copied == 0 {
				t.Error("it says that the state is its own")
			}
		}
	}})
	g := &gatedFSM{Replica: r, digests: to, trace: noTrace{}}
	if err := g.Restore(io.NopCloser(&b)); err != nil || !told {
		t.Fatal(err, told)
	}
	if copied := to.Answer(5).Copied; copied != 5 {
		t.Error("copied up to", copied)
	}
	if err := g.Restore(io.NopCloser(bytes.NewReader(nil))); err == nil {
		t.Fatal("no state was restored")
	}
	if copied := to.Answer(5).Copied; copied != 5 {
		t.Error("a snapshot that was not restored counts: copied up to", copied)
	}
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
	m := loneLeader(t)
	m.write(t, 1)
	m.log.drain(t.Context())
	l, written = m.log, make(chan struct{})
	l.guardedStore.LogStore = heldLog{l.guardedStore.LogStore, written}
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
			l.wire.NetworkTransport.RequestVote("2", "b:1", &raft.RequestVoteRequest{
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
		m.log.drain(t.Context())
		s, last := m.log.guardedStore, m.LastIndex()
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
				t.Fatalf("try %d: since is %d, and Raft waits for %v", n, m.since.Load(), now)
			}
		}
	})
}

// restoring is an [fsm.Observer] that hears of restored states.
type restoring struct{ restored func() }

func (restoring) Applied(uint64, uint64, int)       {}
func (restoring) Changed(*fsm.View, []proto.Change) {}
func (restoring) Answered()                         {}
func (restoring) Restoring()                        {}
func (restoring) Failed(error)                      {}
func (r restoring) Restored()                       { r.restored() }

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
		m.applied.set(applied-1, 1)
		visible(commit)
		m.applied.set(applied, 1)
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
