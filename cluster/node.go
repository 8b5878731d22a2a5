package cluster

import (
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// node is this server's Raft with its storage, and what this package observes of the
// two. Its methods are safe for concurrent use once Member.Start has set the fields.
type node struct {
	*raft.Raft // nil until Member.Start has started it
	disk
	log          *asyncLog // on storage, once Raft is started
	leaderCommit leaderCommit
	recent       *recentLog    // on log
	down         chan struct{} // closed when Raft has shut down
	begun        atomic.Uint64 // the term in which this member leads, once all entries of earlier terms are applied here; 0 otherwise
	adding       atomic.Uint64 // the server that this leader is adding, or giving its vote; or 0
	since        atomic.Uint64 // see storage.Identity
	last         time.Duration // Raft's own election timeout, a last resort: pulse detects failures much sooner
	reload       sync.Mutex    // held while Raft's configuration is replaced
}

func newNode(id uint64) *node {
	n := &node{disk: disk{id: id, terms: newTerms(), saving: saving{turn: wake.NewTurn()}}, log: newAsyncLog(), down: make(chan struct{})}
	n.log.servers, n.log.leads = n.servers, func() bool { return n.State() == raft.Leader }
	return n
}

// noTimeout is a timeout of Raft's that does not pass.
const noTimeout = 100 * 365 * 24 * time.Hour

// catchUp keeps this member out of elections until its log has reached an index: it neither
// stands nor votes. Until then it knows less than it did before it lost its data, and its list
// of members is one of the past, in which it may be the only voter, or decide with others whose
// list is old, too.
func (n *node) catchUp(since uint64) {
	n.since.Store(since)
	n.timeouts(noTimeout)
}

// behind reports whether this member must keep out of elections; see catchUp.
func (n *node) behind() bool {
	since := n.since.Load()
	return since > 0 && n.LastIndex() < since
}

// caughtUp ends catchUp if the log has reached the index.
func (n *node) caughtUp() {
	if n.since.Load() > 0 && !n.behind() {
		n.since.Store(0)
		n.timeouts(n.last)
	}
}

// applied returns the index of the last entry that Raft has had applied here; 0 while it starts.
func (n *node) applied() uint64 {
	if n.Raft == nil {
		return 0
	}
	return n.AppliedIndex()
}

// takeSnapshot has Raft take a snapshot, and shorten its log. It gives up, without an error, if the leader has sent one
// that covers all of it.
func (n *node) takeSnapshot() error {
	n.saving.turn.Take()
	defer n.saving.turn.Give()
	if err := n.Snapshot().Error(); !n.saving.superseded.Load() {
		return err
	}
	return nil
}

// servers returns the newest list of members in this member's log, committed or not.
func (n *node) servers() []raft.Server {
	f := n.GetConfiguration()
	if f.Error() != nil { // which does not happen
		return nil
	}
	return f.Configuration().Servers
}

// timeouts sets how long Raft itself waits for the leader, and for the end of an election.
func (n *node) timeouts(d time.Duration) {
	n.configure(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = d, d }) // which does not fail
}

// configure changes Raft's configuration.
func (n *node) configure(change func(*raft.ReloadableConfig)) error {
	n.reload.Lock()
	defer n.reload.Unlock()
	c := n.ReloadableConfig()
	change(&c)
	return n.ReloadConfig(c)
}

// term returns the term in which this member leads; the result is false if it does
// not lead.
func (n *node) term() (uint64, bool) {
	term := n.CurrentTerm()
	leads := n.State() == raft.Leader
	return term, leads && n.CurrentTerm() == term // terms only rise, so it led in between
}

// members returns the members in the newest configuration in this member's log,
// committed or not, sorted by id.
func (n *node) members() ([]proto.Peer, error) {
	f := n.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, err
	}
	return storage.Peers(f.Configuration()), nil
}

// logEnd returns the index and term of the last entry in this member's log, or of its
// newest snapshot if the log ends before that. It does not wait for the disk: if the entry is not kept in
// memory, Raft knows its term, but gives that only as one of its statistics, which takes long.
func (n *node) logEnd() (index, term uint64) {
	if l := n.recent.last(); l != nil && l.Index == n.LastIndex() {
		return l.Index, l.Term
	}
	stats := n.Stats()
	number := func(key string) uint64 {
		n, _ := strconv.ParseUint(stats[key], 10, 64)
		return n
	}
	index, term = number("last_log_index"), number("last_log_term")
	if snapshot := number("last_snapshot_index"); snapshot > index {
		index, term = snapshot, number("last_snapshot_term")
	}
	return index, term
}

// answer waits for the result of a request to Raft. It returns ErrClosed if Raft
// shuts down first.
func (n *node) answer(f raft.Future) error {
	endWith(f, n.down)
	err := f.Error()
	if err == raft.ErrRaftShutdown {
		return ErrClosed
	}
	return err
}

// endWith makes a future fail when down is closed. Raft never completes the
// futures of entries that are committed but not applied when it shuts down. They
// have a field for a shutdown channel, but Raft leaves it unset, so endWith sets it.
func endWith(f raft.Future, down chan struct{}) {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer {
		if end := v.Elem().FieldByName("ShutdownCh"); end.CanSet() {
			end.Set(reflect.ValueOf(down))
		}
	}
}

// dropped reports whether the newest list takes this member's vote away and is not known here to be
// committed. voted is whether it has a vote in the state that is applied here, up to the entry
// applied or a later one. A list before that may be older than a snapshot which was received since.
func (n *node) dropped(applied uint64, voted bool) bool {
	n.lists.mu.Lock()
	defer n.lists.mu.Unlock()
	newest, before := n.lists.newest, n.lists.before
	if before.index > applied {
		voted = before.votes
	}
	return voted && !newest.votes && newest.index > max(n.CommitIndex(), n.AppliedIndex())
}
