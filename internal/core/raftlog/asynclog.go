package raftlog

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// AsyncLog is the log as Raft sees it. While this member leads, its disk writes an entry while
// Raft already sends it to the other members (section 10.2.1 of Raft's thesis). By itself,
// Raft stores an entry first, so a write would wait for two disks, one after the other.
//
// StoreLogs returns at once: the entries are pending until Run has written them. Raft counts
// this member among those that have an entry from then on, which is too early. That does no
// harm while this process lives, since it never forgets a pending entry: no other leader can be
// elected by the others and this member without it. But a crash loses the pending entries. So
// nobody outside this process may learn that one is committed before that is true: before this
// member's disk has it, or a majority of the voters without this member. Three gates see to it:
//
//   - the state machine gets an entry only then ([GatedFSM], by await);
//   - no message says before that it is committed ([AsyncLog.Committed], which package engine asks);
//   - nothing else is written to the log, and no term or vote, before all that is pending
//     (Flush). So whatever this member says in a later term, its disk has all that its Raft
//     believes to be there; and the voters do not change while entries are pending.
//
// Only a leader's entries with commands become pending, and at most mostPending bytes of them.
// docs/decisions/022-one-disk-on-the-way.md has the argument. The methods are safe for concurrent use.
type AsyncLog struct {
	GuardedStore                      // set before Raft is started
	Servers      func() []raft.Server // the newest list; set before Raft is started
	Leads        func() bool          // this member's Raft leads; set before Raft is started
	Acks         Acks
	Sync         bool        // nothing becomes pending; set before Raft is started
	more         wake.Signal // for Run: there are pending entries

	mu      sync.Mutex
	pending []*raft.Log    // in order, without gaps; all of the term in which this member leads
	voters  []raft.Server  // the newest list that is stored, while entries are pending
	bytes   int            // of their data
	failed  error          // why pending entries could not be written
	ended   bool           // Run has ended
	news    wake.Broadcast // entries have been written, or could not be
}

// mostPending is how many bytes of entries may be pending, or one entry; beyond that Raft waits for the
// disk. Half of them are written at once: a disk that needs longer than an election timeout
// for what it is given at once counts as stuck.
const mostPending = 1 << 20

// NewAsyncLog returns an AsyncLog without a storage.
func NewAsyncLog() *AsyncLog { return &AsyncLog{more: wake.NewSignal()} }

func (a *AsyncLog) StoreLog(l *raft.Log) error { return a.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. Raft calls it on its main goroutine, on which alone its
// state changes from or to that of a leader: as a leader it stores only what it has proposed.
func (a *AsyncLog) StoreLogs(logs []*raft.Log) error {
	if !a.Sync && a.Leads() && a.postpone(logs) {
		return nil
	}
	if err := a.Flush(); err != nil {
		return err
	}
	return a.GuardedStore.StoreLogs(logs)
}

// postpone makes a leader's entries pending, if they may be. It waits until there is room.
func (a *AsyncLog) postpone(logs []*raft.Log) bool {
	bytes := 0
	for _, l := range logs {
		if l.Type != raft.LogCommand {
			return false
		}
		bytes += len(l.Data)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.pending) > 0 && a.bytes+bytes > mostPending && a.failed == nil {
		a.awaitNews()
	}
	if a.failed != nil || a.ended {
		return false
	}
	if len(a.pending) == 0 {
		// The voters do not change while entries are pending. Raft says that they do if it could not store a list.
		a.voters = a.Servers()
	}
	a.pending, a.bytes = append(a.pending, logs...), a.bytes+bytes
	a.more.Raise()
	return true
}

// Run writes pending entries until Stop is closed, and then those that are left.
func (a *AsyncLog) Run() {
	for open := true; open; {
		select {
		case <-a.more:
		case <-a.Stop:
			open = false
		}
		for a.write(!open) {
		}
	}
}

// write writes what is pending, and reports whether it has to be called again. If last is set,
// nothing becomes pending any more once it returns false.
func (a *AsyncLog) write(last bool) bool {
	a.mu.Lock()
	n, bytes := 0, 0
	for n < len(a.pending) && (n == 0 || bytes+len(a.pending[n].Data) <= mostPending/2) {
		bytes += len(a.pending[n].Data)
		n++
	}
	logs := slices.Clip(a.pending[:n])
	if n == 0 || a.failed != nil {
		a.ended = a.ended || last
		a.mu.Unlock()
		return false
	}
	a.mu.Unlock()
	err := a.GuardedStore.StoreLogs(logs)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.failed = err
	} else {
		a.pending, a.bytes = slices.Clone(a.pending[n:]), a.bytes-bytes
	}
	a.news.Raise()
	return true
}

// Flush waits until everything that is pending now is written.
func (a *AsyncLog) Flush() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending) == 0 {
		return a.failed
	}
	for end := a.pending[len(a.pending)-1].Index; a.failed == nil && len(a.pending) > 0 && a.pending[0].Index <= end; {
		a.awaitNews()
	}
	return a.failed
}

// awaitNews waits until Run has written something, or could not. It does so also if the member is
// closed. The caller holds mu.
func (a *AsyncLog) awaitNews() {
	news := a.news.Wait()
	a.mu.Unlock()
	<-news
	a.mu.Lock()
}

// Drain waits until nothing is pending for a moment, or cannot be written, or ctx is done.
func (a *AsyncLog) Drain(ctx context.Context) {
	for {
		a.mu.Lock()
		news, n, err := a.news.Wait(), len(a.pending), a.failed
		a.mu.Unlock()
		if n == 0 || err != nil {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
	}
}

// begins returns the index of the first pending entry; 0 if there is none. news is
// closed when that has changed. others returns how far a majority of the voters has the log without this member itself.
func (a *AsyncLog) begins() (index uint64, others func() uint64, news <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending) == 0 {
		return 0, nil, nil
	}
	term, voters := a.pending[0].Term, a.voters
	return a.pending[0].Index, func() uint64 { return a.Acks.majority(term, voters) }, a.news.Wait()
}

// Await blocks until an entry that Raft takes to be committed is so whatever happens to this
// process. It returns false if the member is closed before.
func (a *AsyncLog) Await(index uint64) bool {
	for {
		first, others, written := a.begins()
		if first == 0 || index < first {
			return true
		}
		accepted := a.Acks.Wait()
		if index <= others() {
			return true
		}
		select {
		case <-written:
		case <-accepted:
		case <-a.Stop:
			return false
		}
	}
}

// Committed returns how far the log is committed whatever happens to this process, if Raft takes
// it to be committed up to index.
func (a *AsyncLog) Committed(index uint64) uint64 {
	for {
		first, others, _ := a.begins()
		if first == 0 || index < first {
			return index
		}
		upTo := max(first-1, others())
		// If they have been written meanwhile, this member may lead in another term, for which others returns 0.
		if now, _, _ := a.begins(); now == first {
			return min(index, upTo)
		}
	}
}

// GetLog implements raft.LogStore. If a follower's log begins right after the newest snapshot, GetLog returns an empty entry
// in the place of the last one that the snapshot covers. Raft looks for the term of that entry in the log only, and would
// otherwise refuse to replace the entries after it.
func (a *AsyncLog) GetLog(index uint64, l *raft.Log) error {
	a.mu.Lock()
	if len(a.pending) > 0 && a.pending[0].Index <= index {
		defer a.mu.Unlock()
		i := index - a.pending[0].Index
		if i >= uint64(len(a.pending)) {
			return raft.ErrLogNotFound
		}
		*l = *a.pending[i]
		return nil
	}
	a.mu.Unlock()
	err := a.GuardedStore.GetLog(index, l)
	if err != raft.ErrLogNotFound || index > a.LastApplied() || a.Leads() {
		return err
	}
	newest, fault := a.newestSnapshot()
	if fault != nil || newest.Index != index {
		return cmp.Or(fault, err)
	}
	*l = raft.Log{Index: index, Term: newest.Term, Type: raft.LogNoop}
	return nil
}

func (a *AsyncLog) LastIndex() (uint64, error) {
	a.mu.Lock()
	if n := len(a.pending); n > 0 {
		defer a.mu.Unlock()
		return a.pending[n-1].Index, nil
	}
	a.mu.Unlock()
	return a.GuardedStore.LastIndex()
}

func (a *AsyncLog) DeleteRange(first, last uint64) error {
	if err := a.Flush(); err != nil {
		return err
	}
	return a.GuardedStore.DeleteRange(first, last)
}

func (a *AsyncLog) Set(key, val []byte) error {
	if err := a.Flush(); err != nil {
		return a.stable(func() error { return err })
	}
	return a.GuardedStore.Set(key, val)
}

func (a *AsyncLog) SetUint64(key []byte, val uint64) error {
	if string(key) == storage.TermKey {
		a.Terms.Begin(val)
	}
	if err := a.Flush(); err != nil {
		return a.stable(func() error { return err })
	}
	return a.GuardedStore.SetUint64(key, val)
}

// Acks notes how far the logs of the other members are that of this member, in the newest term in
// which it has led: what they have accepted. Its methods are safe for concurrent use.
type Acks struct {
	mu   sync.Mutex
	term uint64
	upTo map[raft.ServerID]uint64
	news wake.Broadcast // a member has accepted more
}

// Accepted notes that a member has accepted a message.
func (a *Acks) Accepted(id raft.ServerID, q *raft.AppendEntriesRequest) {
	index := q.PrevLogEntry
	if n := len(q.Entries); n > 0 {
		index = q.Entries[n-1].Index
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.Term > a.term {
		a.term, a.upTo = q.Term, map[raft.ServerID]uint64{}
	}
	if q.Term < a.term || index <= a.upTo[id] {
		return
	}
	a.upTo[id] = index
	a.news.Raise()
}

// Wait returns a channel that is closed when a member has accepted more.
func (a *Acks) Wait() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.news.Wait()
}

// majority returns how far a majority of the voters have accepted the log of this member, which
// leads in term. This member is not among them, unless it is no voter: it sends itself nothing.
func (a *Acks) majority(term uint64, servers []raft.Server) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if term != a.term {
		return 0
	}
	var upTo []uint64
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			upTo = append(upTo, a.upTo[s.ID])
		}
	}
	if len(upTo) == 0 {
		return 0
	}
	slices.Sort(upTo)
	return upTo[(len(upTo)-1)/2]
}

// Trace is told what the state machine gets, at the moment when it gets it. Its methods must not block.
type Trace interface {
	// Visible says that the entry at index is about to be applied here; entry is nil if it is a list of members.
	Visible(index, term uint64, entry []byte)
	// Restored says that the state is now that of a snapshot, which ends at index.
	Restored(index uint64)
}

// GatedFSM is the state machine as Raft sees it. It gets an entry only when that is committed
// whatever happens to this process. Raft calls its methods on one goroutine.
type GatedFSM struct {
	*fsm.Replica
	Log     *AsyncLog
	Known   *Commits // the newest entry that was let through to the state machine
	Digests *election.Digests
	Trace   Trace
	closed  bool // nothing is applied any more
}

// errNotApplied is the response to an entry that Raft takes to be committed, of a member that is to end before it is applied.
var errNotApplied = errors.New("cluster: closed before the entry was applied")

// await waits until an entry may be applied. It returns false once the member is to end: while Raft shuts down, it may leave
// out entries, and go on with the next.
func (g *GatedFSM) await(index uint64) bool {
	g.Log.Await(index)
	g.closed = wake.Closed(g.Log.Stop)
	return !g.closed
}

func (g *GatedFSM) Apply(l *raft.Log) any {
	if !g.await(l.Index) {
		return errNotApplied
	}
	g.Trace.Visible(l.Index, l.Term, l.Data)
	g.Known.Set(l.Index, l.Term)
	return g.Replica.Apply(l)
}

func (g *GatedFSM) StoreConfiguration(index uint64, c raft.Configuration) {
	if g.await(index) {
		g.Trace.Visible(index, 0, nil)
		g.Replica.StoreConfiguration(index, c)
	}
}

func (g *GatedFSM) Snapshot() (raft.FSMSnapshot, error) {
	if g.closed {
		return nil, errNotApplied
	}
	return g.Replica.Snapshot()
}

func (g *GatedFSM) Restore(rc io.ReadCloser) error {
	if g.closed {
		rc.Close()
		return errNotApplied
	}
	was := g.Digests.Restored(math.MaxUint64)
	if err := g.Replica.Restore(rc); err != nil {
		g.Digests.Restored(was)
		return err
	}
	index, _ := g.Replica.Newest()
	g.Trace.Restored(index)
	g.Digests.Restored(index)
	return nil
}
