package fsm

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/watch"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Watcher is a connection that can have watches. Its methods are called while
// the tree is locked, so they must neither block nor read the tree.
type Watcher interface {
	// Event queues an event. zxid is for its header: the zxid of the change, or -1 for
	// an event that setWatches causes.
	Event(zxid int64, t proto.EventType, path string)
	// Identities returns the connection's current identities.
	Identities() []proto.ID
}

// Waiter is told the outcome of a proposed command. Exactly one of its methods is
// called, once.
type Waiter interface {
	// Done is called when the command has been applied here, in the order of the log, or
	// answered by [Replica.Answer].
	// The tree is locked during the call, so Done must not block. v shows the tree as
	// the command left it. Both arguments are valid only during the call.
	Done(v *View, r *Result)
	// Lost is called when the outcome is unknown: the command may have been applied,
	// may still be, or may never be.
	Lost()
}

// Observer is notified of what happens to a replica.
type Observer interface {
	// Changed is called while the tree is locked, after the watches of each
	// command have fired and before its Waiter is done.
	Changed(v *View, changes []proto.Change)
	// Applied is called after each entry, when the tree is unlocked again.
	// bytes is the entry's length; term and bytes are 0 for a change of members.
	Applied(index, term uint64, bytes int)
	// Answered is called after [Replica.Answer] has answered commands, when the tree is
	// unlocked again.
	Answered()
	// Restoring is called while the tree is locked, right before a snapshot
	// replaces the whole state. No reader has seen the new state yet.
	Restoring()
	// Restored is called when a snapshot has replaced the whole state and the
	// tree is unlocked again. No entry is applied before it returns.
	Restored()
	// Failed is called when an entry or snapshot could not be understood, after which the replica
	// applies nothing any more, or with ErrMemory. The server must stop.
	Failed(err error)
}

// Completer returns the Waiter of the i-th command of an entry that was proposed on this
// server, and nil for an entry of another server. It is called for every command of the entry, in
// order. If the entry was skipped as a duplicate (see [Machine.Apply]), it is called
// once with i -1, and the Waiter that it returns is ignored.
type Completer func(e *Envelope, i int) Waiter

// Replica is this server's copy of the replicated state together with its watches.
// Apart from Observe and Complete, which are for setting it up, its methods for
// reading and watching are safe for concurrent use.
type Replica struct {
	mu   sync.RWMutex // held for reading while a View is used
	m    *Machine
	view View // of m

	watchMu sync.Mutex // since readers, which share mu, set watches; locked after mu
	watches *watch.Table[Watcher]

	// Set before the first entry and not changed afterwards.
	observers []Observer
	completer Completer
	trace     func(locked bool) // nil without a test; see Trace

	noteMu sync.Mutex // locked after mu, and only for a moment
	notes  [notes]stateDigest
	newest uint64          // index of the newest note
	voters map[uint64]bool // the ids of voting members; replaced, never changed

	failed error // why this replica no longer applies entries; only Raft's goroutine sets it, with mu locked
}

// NewReplica returns a replica with the state of a new cluster.
func NewReplica() *Replica {
	r := &Replica{m: NewMachine(), watches: watch.New[Watcher](), completer: func(*Envelope, int) Waiter { return nil }}
	r.view = View{r, r.m}
	return r
}

// Observe adds an observer. It must not be called once entries are applied.
func (r *Replica) Observe(o Observer) { r.observers = append(r.observers, o) }

// Complete sets the Completer. It must not be called once entries are applied.
func (r *Replica) Complete(c Completer) { r.completer = c }

// notes is for how many of the newest entries a replica knows the digest of its state.
const notes = 1024

type stateDigest struct{ index, digest uint64 }

// note records the digest of the state. r.mu must be locked.
func (r *Replica) note() {
	n := stateDigest{r.m.index, r.m.Quick()}
	r.noteMu.Lock()
	r.notes[n.index%notes], r.newest = n, n.index
	r.noteMu.Unlock()
}

// Newest returns the index of the newest entry that was applied here, and the digest of the
// state there (see [Machine.Quick]); both are 0 if there was none. Unlike View, it does not
// wait while an entry is applied.
func (r *Replica) Newest() (index, digest uint64) {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	n := r.notes[r.newest%notes]
	return n.index, n.digest
}

// DigestAt returns the digest of the state after the entry with this index, one of the last
// that were applied here. ok is false if it is not known. Like Newest, it does not wait.
func (r *Replica) DigestAt(index uint64) (digest uint64, ok bool) {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	n := r.notes[index%notes]
	return n.digest, index != 0 && n.index == index
}

// noteVoters records who votes. r.mu must be locked.
func (r *Replica) noteVoters() {
	ids := map[uint64]bool{}
	for _, s := range r.m.members {
		if !s.Observer {
			ids[s.ID] = true
		}
	}
	r.noteMu.Lock()
	r.voters = ids
	r.noteMu.Unlock()
}

// Votes reports whether the server with this id is a voting member, as far as entries were applied
// here. Like Newest, it does not wait.
func (r *Replica) Votes(id uint64) bool {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	return r.voters[id]
}

// View gives read access to a replica. The replica does not change while a View is used.
type View struct {
	r *Replica
	m *Machine
}

// View calls f with a view of the replica. No entry is applied until f returns. Work
// that grows with the state belongs in [Replica.Browse].
func (r *Replica) View(f func(v *View)) {
	r.rlock()
	defer r.runlock()
	f(&r.view)
}

// Trace has f called when the replica was locked for somebody who reads it, and right before it is
// unlocked again. It is for tests, and must not be called once entries are applied.
func (r *Replica) Trace(f func(locked bool)) { r.trace = f }

func (r *Replica) traced(locked bool) {
	if r.trace != nil {
		r.trace(locked)
	}
}

func (r *Replica) rlock() {
	r.mu.RLock()
	r.traced(true)
}

func (r *Replica) runlock() {
	r.traced(false)
	r.mu.RUnlock()
}

// pace is after how many steps a reader lets others have their turn.
const pace = 256

// Paced returns a function that a reader calls after each step of a long read with a lock held. After
// every 256 steps, that function releases the lock for a moment, so that others can take it.
func Paced(unlock, lock func()) (step func()) {
	steps := 0
	return func() {
		if steps++; steps%pace == 0 {
			unlock()
			runtime.Gosched() // as in yielding
			lock()
		}
	}
}

// Browse calls f with a view of the replica, for those who read much of it. f calls step after each
// step, such as a session or a znode that it has read. In some of these calls entries are applied,
// so that f does not block writes. So f does not see the state at one moment, and must not keep nodes
// of the tree across such a call.
func (r *Replica) Browse(f func(v *View, step func())) {
	r.rlock()
	defer r.runlock()
	f(&r.view, Paced(r.runlock, r.rlock))
}

// Zxid returns the zxid of the last transaction that was applied here.
func (v *View) Zxid() int64 { return v.m.zxid }

// LastBatch returns the number of the last entry of an origin that was applied here, or 0 if
// there was none.
func (v *View) LastBatch(origin uint64) uint64 { return v.m.LastBatch(origin) }

// Cluster returns the id of the cluster that the state belongs to; 0 if no entry has said it.
func (v *View) Cluster() uint64 { return v.m.cluster }

// Index returns the log index of the last entry that was applied here.
func (v *View) Index() uint64 { return v.m.index }

// Tree returns the tree of znodes. The caller must not change it.
func (v *View) Tree() *znode.Tree { return v.m.tree }

// Sessions returns the table of sessions. The caller must not change it.
func (v *View) Sessions() *session.Table { return v.m.sessions }

// Ephemerals returns all ephemerals of a session, for [Replica.Browse]. One that was there all the
// time may be in the list twice; see [znode.PathsOf].
func (v *View) Ephemerals(session int64, step func()) (all []znode.Owned) {
	for i := math.MaxInt; ; step() {
		var e znode.Owned
		if e, i = v.m.tree.EphemeralBelow(session, i); i < 0 {
			return all
		}
		all = append(all, e)
	}
}

// Digest returns a hash of the whole replicated state. It takes longer the more sessions there are;
// see DigestLater.
func (v *View) Digest() uint64 { return v.m.Digest() }

// DigestLater returns a function that computes the digest of the state that v shows now. Call that
// function after View has returned, so that entries can be applied meanwhile.
func (v *View) DigestLater() func() uint64 { return v.m.summary().digest }

// Digests returns the digests of the tree after every 128th transaction, at most the last
// 1024 of them, the oldest first. They go back no further than the last start or restored
// snapshot.
func (v *View) Digests() []TreeDigest { return slices.Clone(v.m.digests) }

// Check verifies the whole replicated state; see [Machine.Check].
func (v *View) Check() error { return v.m.Check() }

// WatchCounts returns the number of connections that have watches, of watched
// paths, and of watches.
func (v *View) WatchCounts() (connections, paths, watches int) {
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	return v.r.watches.Connections(), v.r.watches.Paths(), v.r.watches.Len()
}

// Watches calls f for every pair of a connection of this server and a path that it
// watches, in no particular order, until f returns false. f must not read the replica. Entries are
// applied and watches are set meanwhile, as in [Replica.Browse]; see [watch.Table.Each].
func (r *Replica) Watches(f func(w Watcher, path string) bool) {
	lock := func() {
		r.watchMu.Lock()
		r.traced(true)
	}
	unlock := func() {
		r.traced(false)
		r.watchMu.Unlock()
	}
	step := Paced(unlock, lock)
	lock()
	defer unlock()
	r.watches.Each(func(w Watcher, path string) bool {
		step()
		return f(w, path)
	})
}

// DropWatches removes all watches of a connection that has ended.
func (r *Replica) DropWatches(w Watcher) {
	r.watchMu.Lock()
	r.watches.Drop(w)
	r.watchMu.Unlock()
}

// apply applies an entry. For each command it queues the events before the reply, all while
// the tree is locked, so that no reader sees the change before the event.
func (r *Replica) apply(index, term uint64, entry []byte) error {
	r.mu.Lock()
	v := &View{r, r.m}
	err := r.m.Apply(index, term, entry, func(e *Envelope, i int, res *Result, changes []proto.Change) {
		if len(changes) > 0 {
			r.fire(changes)
			for _, o := range r.observers {
				o.Changed(v, changes)
			}
		}
		if w := r.completer(e, i); w != nil && i >= 0 {
			w.Done(v, res)
		}
	})
	if err != nil {
		err = fmt.Errorf("log entry %d: %w", index, err)
		r.failed = err
	}
	r.note()
	r.mu.Unlock()
	for _, o := range r.observers {
		o.Applied(index, term, len(entry))
	}
	return err
}

// State returns the state after the last entry that was applied here. It fails if an entry
// could not be applied, since a part of that one may have been.
func (r *Replica) State() (*Snapshot, error) {
	r.mu.Lock()
	r.traced(true)
	defer r.mu.Unlock()
	defer r.traced(false)
	if r.failed != nil {
		return nil, r.failed
	}
	return r.m.Snapshot(), nil
}

// Answer answers the commands of an entry that is not in the log (see [Machine.Answer]),
// from the current state, and reports the i-th command's result to the i-th waiter. The
// tree is locked as for an entry of the log.
func (r *Replica) Answer(entry []byte, waiters []Waiter) {
	r.mu.Lock()
	v := &View{r, r.m}
	done := 0
	r.m.Answer(entry, func(i int, res *Result) { // on an error, the remaining commands are lost
		waiters[i].Done(v, res)
		done++
	})
	r.mu.Unlock()
	for _, w := range waiters[done:] {
		w.Lost()
	}
	for _, o := range r.observers {
		o.Answered()
	}
}

// setMembers sets the members of the cluster, as an entry of the log would.
func (r *Replica) setMembers(index uint64, members []proto.Peer) {
	r.mu.Lock()
	changes := r.m.SetMembers(index, members)
	r.noteVoters()
	r.fire(changes)
	for _, o := range r.observers {
		o.Changed(&View{r, r.m}, changes)
	}
	r.note()
	r.mu.Unlock()
	for _, o := range r.observers {
		o.Applied(index, 0, 0)
	}
}

// fire sends the events that changes cause to the connections that may see them.
func (r *Replica) fire(changes []proto.Change) {
	r.watchMu.Lock()
	defer r.watchMu.Unlock()
	var checker znode.Checker
	for i := range changes {
		r.watches.Fire(&changes[i], func(w Watcher, e watch.Event) {
			if checker.Permits(e.Access, proto.PermRead, w.Identities()) {
				w.Event(r.m.zxid, e.Type, e.Path)
			}
		})
	}
}
