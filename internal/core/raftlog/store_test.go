package raftlog

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/internal/testing/slowdisk"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// stuckLog deletes nothing until hold is closed.
type stuckLog struct {
	raft.LogStore
	hold chan struct{}
}

func (s stuckLog) DeleteRange(first, last uint64) error {
	<-s.hold
	return s.LogStore.DeleteRange(first, last)
}

// TestAcks: what a member has accepted in an earlier term, or as an observer, does not count.
func TestAcks(t *testing.T) {
	var a Acks
	servers := []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4", Suffrage: raft.Nonvoter}}
	expect := func(term, want uint64) {
		t.Helper()
		if got := a.majority(term, servers); got != want {
			t.Errorf("term %d: %d, want %d", term, got, want)
		}
	}
	accept := func(id raft.ServerID, term, prev uint64, entries ...*raft.Log) {
		a.Accepted(id, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev, Entries: entries})
	}
	expect(2, 0)
	accept("2", 2, 10)
	accept("4", 2, 10)
	expect(2, 0)
	news := a.Wait()
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

// TestCommittedInLaterTerm: entries that a majority has accepted are written while Committed is asked about them, and the member
// then leads in another term. They are still committed.
func TestCommittedInLaterTerm(t *testing.T) {
	a := NewAsyncLog()
	a.Servers = func() []raft.Server { return []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}} }
	if !a.postpone([]*raft.Log{{Index: 10, Term: 5}, {Index: 11, Term: 5}, {Index: 12, Term: 5}}) {
		t.Fatal("the entries are not pending")
	}
	for _, id := range []raft.ServerID{"2", "3"} {
		a.Acks.Accepted(id, &raft.AppendEntriesRequest{Term: 5, PrevLogEntry: 12})
	}
	if got := a.Committed(12); got != 12 {
		t.Fatalf("%d, want 12", got)
	}
	got := make(chan uint64, 1)
	a.Acks.mu.Lock()
	go func() { got <- a.Committed(12) }()
	time.Sleep(50 * time.Millisecond) // until it waits for what was accepted
	a.mu.Lock()
	a.pending = nil
	a.mu.Unlock()
	a.Acks.term, a.Acks.upTo = 6, map[raft.ServerID]uint64{"2": 13}
	a.Acks.mu.Unlock()
	if n := <-got; n != 12 {
		t.Errorf("%d, want 12", n)
	}
}

// TestStuckBesideWrites: a disk that is stuck while the log is shortened, or while snapshots
// are listed for that or for an entry, counts as stuck.
func TestStuckBesideWrites(t *testing.T) {
	for name, x := range map[string]struct {
		deleting bool // is stuck, and not listing
		do       func(s GuardedStore) error
	}{
		"deleting": {true, func(s GuardedStore) error {
			return errors.Join(s.StoreLogs(noops(1, 5, 1)), s.DeleteRange(1, 3))
		}},
		"listing, to delete": {false, func(s GuardedStore) error { return s.DeleteRange(1, 3) }},
		"listing, to store":  {false, func(s GuardedStore) error { return s.StoreLogs(noops(1, 1, 1)) }},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			began := time.Now()
			now := func() timing.Moment { return timing.Moment{Running: time.Since(began).Milliseconds()} }
			n := NewDisk(1, lifecycle.NewLifecycle(), now, notStarted)
			n.Storage = storage.NewMemory().Open()
			hold, done := make(chan struct{}), make(chan error)
			if x.deleting {
				n.Storage.Log = stuckLog{n.Storage.Log, hold}
			} else {
				n.Storage.Snapshots = slowdisk.Snapshots{SnapshotStore: n.Storage.Snapshots, At: func(string, uint64, int) error { <-hold; return nil }}
			}
			s := GuardedStore{LogStore: n.Storage.Log, StableStore: n.Storage.Stable, Disk: n}
			go func() { done <- x.do(s) }()
			time.Sleep(3 * time.Second)
			if stalled := n.Stall.Length(now()); stalled != 3*time.Second {
				t.Errorf("it counts as stuck for %v", stalled)
			}
			close(hold)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if stalled := n.Stall.Length(now()); stalled != 0 {
				t.Errorf("it counts as stuck for %v afterwards", stalled)
			}
		})
	}
}

// TestStallsOverlap: operations that overlap, each of them short, do not count as a long one.
func TestStallsOverlap(t *testing.T) {
	var s Stall
	at := func(ran int64) timing.Moment { return timing.Moment{Running: ran} }
	expect := func(ran, want int64) {
		t.Helper()
		if got := s.Length(at(ran)).Milliseconds(); got != want {
			t.Errorf("at %d it counts as stuck for %d ms, want %d", ran, got, want)
		}
	}
	failed := errors.New("failed")
	first, second := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	for i, hold := range []chan struct{}{first, second} {
		begun := make(chan struct{})
		go func() {
			ended <- s.During(at(int64(10*i)), func() error {
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
	s.During(at(30), func() error { return s.During(at(31), func() error { expect(35, 5); return nil }) })
}

// notStarted is Engine.LastApplied before Raft is started.
func notStarted() uint64 { return 0 }

// TestGuardedLog: no write leaves a gap in the log or replaces an entry, and the last entry
// that the snapshot covers is kept.
func TestGuardedLog(t *testing.T) {
	n := NewDisk(1, lifecycle.NewLifecycle(), func() timing.Moment { return timing.Moment{} }, notStarted)
	n.Storage = storage.NewMemory().Open()
	s := GuardedStore{LogStore: n.Storage.Log, StableStore: n.Storage.Stable, Disk: n}
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
	sink, err := n.Storage.Snapshots.Create(1, 6, 1, raft.Configuration{}, 1, nil)
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
	n.Killed.Store(true)
	expect(s.StoreLogs(noops(8, 8, 3)), false, 6, 7)
	expect(s.DeleteRange(6, 7), false, 6, 7)
}

// TestRecentLog: the newest entries are kept in memory, but not more than recentBytes of
// them unless it is a single one, and none that were deleted.
func TestRecentLog(t *testing.T) {
	under := raft.NewInmemStore()
	r := NewRecentLog(under, lifecycle.NewLifecycle())
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
		terms := Terms{Turn: wake.NewTurn()}
		terms.Begin(4)
		handled, done := make(chan struct{}), make(chan bool)
		go func() {
			done <- terms.During(4, func() bool {
				terms.Begin(4) // as Raft does when it was a candidate in this term
				<-handled
				return terms.Newest.Load() == 4
			})
		}()
		synctest.Wait()
		go func() {
			terms.Begin(5)
			done <- true
		}()
		synctest.Wait()
		if now := terms.Newest.Load(); now != 4 {
			t.Errorf("term %d has begun meanwhile", now)
		}
		close(handled)
		for range 2 {
			if !<-done {
				t.Error("the heartbeat was not handled")
			}
		}
		for term, want := range map[uint64]bool{4: false, 5: true, 6: false} {
			if got := terms.During(term, func() bool { return true }); got != want {
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
		raft.ErrLogNotFound:           false,
		errors.New("EOF in snapshot"): false,
	} {
		if OfConnection(err) != want {
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
	is := func(x *Lists, newest, before list) {
		t.Helper()
		if x.newest != newest || x.before != before {
			t.Errorf("%+v, then %+v", x.before, x.newest)
		}
	}
	var x Lists
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
	g := &GatedFSM{Replica: r, Digests: to, Trace: noTrace{}}
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

// TestNothingIsAppliedAtTheEnd: Raft leaves out an entry while it shuts down. The next one is not applied either.
func TestNothingIsAppliedAtTheEnd(t *testing.T) {
	log := NewAsyncLog()
	log.Disk = NewDisk(1, lifecycle.NewLifecycle(), nil, nil)
	r := fsm.NewReplica()
	g := &GatedFSM{Replica: r, Log: log, Known: new(Commits), Trace: noTrace{}}
	entry := fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing()), &fsm.Envelope{Origin: 9, Count: 1})
	for index, stopped := range []bool{false, false, true} {
		if stopped {
			close(log.Stop)
			index++ // one is left out
		}
		g.Apply(&raft.Log{Index: uint64(index) + 1, Term: 1, Data: entry})
	}
	if newest, _ := r.Newest(); newest != 2 {
		t.Errorf("entry %d is applied, and what comes before it is not", newest)
	}
}

// restoring is an [fsm.Observer] that hears of restored states.
type restoring struct{ restored func() }

func (restoring) Applied(uint64, uint64, int) {}

func (restoring) Changed(*fsm.View, []proto.Change) {}

func (restoring) Answered() {}

func (restoring) Restoring() {}

func (restoring) Failed(error) {}

func (r restoring) Restored() { r.restored() }

type noTrace struct{}

func (noTrace) Visible(uint64, uint64, []byte) {}

func (noTrace) Restored(uint64) {}

// noops returns empty entries.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}
