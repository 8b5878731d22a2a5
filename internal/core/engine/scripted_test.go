package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// scriptedLeader is all leaders of a cluster, one after another, as far as one follower
// hears of them. A third member, which does not exist, acknowledges everything at once.
type scriptedLeader struct {
	t        *testing.T
	random   *rand.Rand
	wire     openedTransport
	memory   *storage.Memory // of the follower, or
	dir      string          // the follower's directory, with
	store    storage.LogStore
	follower member
	network  *memnet.Network

	term      uint64
	log       []*raft.Log // entry i+1 at i
	begins    uint64      // what comes before this entry is only in the snapshot
	committed uint64
	next      uint64 // the entry to send next
	members   []proto.Peer
}

func newScriptedLeader(t *testing.T, random *rand.Rand, store storage.LogStore) *scriptedLeader {
	net := memnet.New()
	l := &scriptedLeader{
		t: t, random: random, network: net, wire: openTransport(t, net, "a"), begins: 1, committed: 1, next: 2, term: 1, store: store,
		members: []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1"}},
	}
	l.wire.answers(t, func(rpc raft.RPC) { rpc.Respond(nil, lifecycle.ErrClosed) }) // the others do not vote for the follower
	if store == "" {
		l.memory = storage.NewMemory()
	} else {
		l.dir = filepath.Join(testkit.MemoryDir(t), "data")
	}
	s := l.open()
	if err := s.SetIdentity(storage.Identity{Cluster: 0x1234, Agreed: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap(l.members); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	l.log = []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(storage.Configuration(l.members))}}
	l.start()
	t.Cleanup(func() {
		if err := l.follower.Close(); err != nil {
			t.Error(err)
		}
	})
	l.lead(2)
	return l
}

// send sends one message with entries of the leader's log, from first to last, and returns the answer.
func (l *scriptedLeader) send(first, last uint64) (*raft.AppendEntriesResponse, error) {
	q := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: first - 1, LeaderCommitIndex: min(l.committed, last)}
	if first > 1 {
		q.PrevLogTerm = l.log[first-2].Term
	}
	for _, e := range l.log[first-1 : last] {
		sent := *e
		q.Entries = append(q.Entries, &sent)
	}
	r := new(raft.AppendEntriesResponse)
	return r, l.wire.exchange("b:1", q, r)
}

// addMember has the leader propose a list with a fourth server.
func (l *scriptedLeader) addMember() {
	newer := storage.Configuration(append(slices.Clone(l.members), proto.Peer{ID: 4, Addr: "d:1", Observer: true}))
	l.log = append(l.log, &raft.Log{Index: l.last() + 1, Term: l.term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(newer)})
}

// compareAt asks whether the follower has the leader's log up to the entry at index.
func (l *scriptedLeader) compareAt(index uint64) (*raft.AppendEntriesResponse, error) {
	r := new(raft.AppendEntriesResponse)
	return r, l.wire.exchange("b:1", &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: index, PrevLogTerm: l.log[index-1].Term}, r)
}

// open opens the follower's storage.
func (l *scriptedLeader) open() *storage.Storage {
	if l.memory != nil {
		return l.memory.Open()
	}
	s, err := storage.Open(l.dir, l.store, 2, testkit.Quiet, raftlog.Logger(testkit.Quiet))
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *scriptedLeader) start() { l.startOn(l.open()) }

func (l *scriptedLeader) startOn(s *storage.Storage) {
	l.follower = newMember(2, "b:1", l.network.Host("b"))
	if err := l.follower.start(s); err != nil {
		l.t.Fatalf("the member does not start: %v", err)
	}
}

func (l *scriptedLeader) last() uint64 { return uint64(len(l.log)) }

func (l *scriptedLeader) step() {
	switch l.random.IntN(12) {
	case 0: // another leader, which may not have what is not committed
		l.log = l.log[:l.committed+uint64(l.random.IntN(int(l.last()-l.committed)+1))]
		l.lead(l.term + 1)
	case 1:
		if l.log[l.last()-1].Term == l.term {
			l.committed += uint64(l.random.IntN(int(l.last()-l.committed) + 1))
		}
	case 2: // the leader takes a snapshot, and keeps some entries or none
		l.begins = max(l.begins, l.committed+1-min(l.committed, uint64(l.random.IntN(4))))
	case 3:
		l.snapshot(l.committed)
	case 4:
		trailing := 1 + uint64(l.random.IntN(5))
		if err := l.follower.Configure(func(c *raft.ReloadableConfig) { c.TrailingLogs = trailing }); err != nil {
			l.t.Fatal(err)
		}
		l.follower.TakeSnapshot() // there may be nothing new
	case 5:
		stop := l.follower.Close
		if l.random.IntN(2) == 0 {
			stop = l.follower.Kill
		}
		if err := stop(); err != nil {
			l.t.Fatal(err)
		}
		l.start()
	case 6: // another leader has others in the place of entries that only the follower has
		l.propose(1 + l.random.IntN(3))
		for range 3 {
			l.replicate()
		}
		l.log = l.log[:l.committed]
		l.lead(l.term + 1)
		l.propose(l.random.IntN(4))
		l.committed = l.last()
		end, _ := l.follower.disk.Storage.Log.LastIndex()
		l.snapshot(min(l.committed, max(end, 1)))
	case 7, 8:
		l.propose(1 + l.random.IntN(3))
	default:
		l.replicate()
	}
}

func (l *scriptedLeader) propose(n int) {
	for range n {
		index := l.last() + 1
		command := fsm.OpenSession(1, int64(index), 10_000, session.Password{1})
		entry := fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), command), &fsm.Envelope{Origin: 1, Batch: index, Count: 1})
		l.log = append(l.log, &raft.Log{Index: index, Term: l.term, Type: raft.LogCommand, Data: entry})
	}
}

func (l *scriptedLeader) lead(term uint64) {
	l.term = term
	l.log = append(l.log, &raft.Log{Index: l.last() + 1, Term: term, Type: raft.LogNoop})
	l.next = l.last()
}

// state is the state after an entry.
func (l *scriptedLeader) state(index uint64) *fsm.Machine {
	m := fsm.NewMachine()
	for _, e := range l.log[:index] {
		switch e.Type {
		case raft.LogCommand:
			if err := m.Apply(e.Index, e.Term, e.Data, nil); err != nil {
				l.t.Fatal(err)
			}
		case raft.LogConfiguration:
			m.SetMembers(e.Index, fsm.Members(storage.Configuration(l.members)))
		}
	}
	return m
}

// replicate sends some entries, or the snapshot, as Raft's replication does. It reports
// whether the follower has accepted entries.
func (l *scriptedLeader) replicate() bool {
	previous := l.next - 1
	if l.next < l.begins || previous > 0 && previous < l.begins && previous != l.committed {
		l.snapshot(l.committed)
		return false
	}
	end := min(l.last(), previous+uint64(l.random.IntN(6))) // that the leader has by now
	q := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: previous, LeaderCommitIndex: min(l.committed, end)}
	if previous > 0 {
		q.PrevLogTerm = l.log[previous-1].Term
	}
	for _, e := range l.log[previous:end] {
		sent := *e
		q.Entries = append(q.Entries, &sent)
	}
	var r raft.AppendEntriesResponse
	err := l.wire.appendEntries("2", "b:1", q, &r)
	l.alive()
	switch {
	case err != nil:
		l.t.Fatal(err)
	case r.Term > l.term:
		l.lead(r.Term + 1)
	case r.Success:
		l.next = end + 1
	default:
		l.next = max(min(l.next-1, r.LastLog+1), 1)
	}
	return r.Success
}

func (l *scriptedLeader) snapshot(index uint64) {
	r, err := l.install(index)
	if err == nil && r.Success && l.random.IntN(4) > 0 { // see transport.InstallSnapshot
		l.endEntry(index)
	}
	l.alive()
	if r.Term > l.term {
		l.lead(r.Term + 1)
	}
	if err == nil && r.Success { // otherwise it has a newer state, for example
		l.next = index + 1
	}
}

// install sends a snapshot, without the empty entry at its end.
func (l *scriptedLeader) install(index uint64) (*raft.InstallSnapshotResponse, error) {
	time.Sleep(time.Millisecond) // the time is a part of a snapshot's name
	var b bytes.Buffer
	if err := l.state(index).Snapshot().Write(&b); err != nil {
		l.t.Fatal(err)
	}
	r := new(raft.InstallSnapshotResponse)
	return r, l.wire.sendSnapshot("b:1", &raft.InstallSnapshotRequest{
		RPCHeader: l.wire.header(), SnapshotVersion: 1, Term: l.term, LastLogIndex: index, LastLogTerm: l.log[index-1].Term,
		Configuration: raft.EncodeConfiguration(storage.Configuration(l.members)), ConfigurationIndex: 1, Size: int64(b.Len()),
	}, r, &b)
}

// endEntry sends the empty entry at the end of a snapshot.
func (l *scriptedLeader) endEntry(index uint64) {
	l.wire.appendEntries("2", "b:1", &raft.AppendEntriesRequest{
		RPCHeader: l.wire.header(), Term: l.term, Entries: []*raft.Log{{Index: index, Term: l.log[index-1].Term, Type: raft.LogNoop}},
	}, new(raft.AppendEntriesResponse))
}

func (l *scriptedLeader) alive() {
	synctest.Wait()
	select {
	case err := <-l.follower.Errs:
		l.t.Fatalf("the member stops by itself: %v", err)
	default:
	}
}

// catchUp sends everything, and compares the follower with the leader.
func (l *scriptedLeader) catchUp() {
	l.committed = l.last()
	for tries := 0; !l.replicate() || l.next <= l.last(); tries++ {
		if tries > 100+10*len(l.log) {
			l.t.Fatalf("the member still refuses entry %d of %d", l.next, l.last())
		}
		l.committed = l.last()
	}
	synctest.Wait()
	log := l.follower.disk.Storage.Log
	first, _ := log.FirstIndex()
	last, _ := log.LastIndex()
	if newest, err := l.follower.disk.Storage.NewestSnapshot(); max(last, newest.Index) != l.last() || err != nil {
		l.t.Errorf("its log ends at %d, its snapshot at %d, the leader's log at %d: %v", last, newest.Index, l.last(), err)
	}
	for i := max(first, 1); i <= min(last, l.last()); i++ {
		var e raft.Log
		if err := log.GetLog(i, &e); err != nil || e.Term != l.log[i-1].Term {
			l.t.Errorf("its entry %d is of term %d, the leader's of term %d: %v", i, e.Term, l.log[i-1].Term, err)
		}
	}
	want := l.state(l.last())
	l.follower.replica.View(func(v *fsm.View) {
		if is, should := fmt.Sprintf("%x", v.Digest()), fmt.Sprintf("%x", want.Digest()); is != should {
			l.t.Errorf("its state has the digest %s, the leader's %s", is, should)
		}
	})
}

// zeros is a source of zeros.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }

// beginTerm has the follower begin a term.
func (o openedTransport) beginTerm(term uint64) (*raft.RequestVoteResponse, error) {
	r := new(raft.RequestVoteResponse)
	return r, o.exchange("b:1", &raft.RequestVoteRequest{RPCHeader: o.header(), Term: term, LeadershipTransfer: true}, r)
}

// sends is send for a message that the follower has to accept.
func (l *scriptedLeader) sends(first, last uint64) {
	l.t.Helper()
	if r, err := l.send(first, last); err != nil || !r.Success {
		l.t.Fatal(r, err)
	}
}

// hasFour checks that the newest list that the follower knows is that of addMember.
func (l *scriptedLeader) hasFour() {
	l.t.Helper()
	if have := l.follower.servers(); len(have) != 4 {
		l.t.Errorf("its newest list of members is %v", have)
	}
}
