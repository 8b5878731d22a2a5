package cluster

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Raft tells followers that an entry is committed together with the next entry, or
// after CommitTimeout, 50 to 100 ms later. On an idle cluster a write through a
// follower, and every watch event on one, would wait that long. So the leader tells them at once, over the
// stream ([stream.committed]): before it applies the entry itself, it wakes the goroutines that send
// the message. Programs that write through one member and read
// through another then find what they wrote more often, although nobody promises it.

// commits holds the index and term of the newest entry that is applied locally, or that is known
// to be committed. The term is 0 if it is unknown, as after a snapshot.
type commits struct {
	mu          sync.Mutex
	index, term uint64
	newest      atomic.Uint64 // index, for await
	news        chan struct{} // closed by set; nil if nobody waits for it
}

func newCommits() *commits { return new(commits) }

func (c *commits) set(index, term uint64) {
	c.mu.Lock()
	c.index, c.term = index, term
	c.newest.Store(index)
	if c.news != nil {
		close(c.news)
		c.news = nil
	}
	c.mu.Unlock()
}

// applied returns the index of the newest entry.
func (c *commits) applied() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index
}

// get returns the newest entry, and a channel that is closed when there is a newer one.
func (c *commits) get() (index, term uint64, news <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.news == nil {
		c.news = make(chan struct{})
	}
	return c.index, c.term, c.news
}

// told is how far the leader has said that the log is committed. Two more of Raft's goroutines have to
// run until the entries are applied. A client that has learned of a write from another member may send
// this one a request meanwhile, and then await delays the request. Its methods are safe for concurrent use.
type told struct {
	index  atomic.Uint64
	missed atomic.Uint64 // it did not come in time
}

// toldWait is how long a request may wait for what is committed to be applied. It usually takes
// some hundred microseconds. If it takes longer, something else is wrong, such as the disk.
const toldWait = 2 * time.Millisecond

// hear is called for each message of a leader.
func (t *told) hear(q *raft.AppendEntriesRequest) {
	if q.LeaderCommitIndex > t.index.Load() {
		t.index.Store(q.LeaderCommitIndex) // two at a time may leave the lower one, which does no harm
	}
}

// await waits until what was told has been applied. It gives up after toldWait, once for each index:
// the entry may be one of Raft's own, which nobody applies, or may be missing here.
func (t *told) await(applied *commits, over <-chan struct{}) {
	// The leader's message may have come before the request, while the goroutine that reads it
	// has not run yet. This lets it run first.
	runtime.Gosched()
	want := t.index.Load()
	if want <= t.missed.Load() || applied.newest.Load() >= want {
		return
	}
	late := time.NewTimer(toldWait)
	defer late.Stop()
	for {
		index, _, news := applied.get()
		if index >= want {
			return
		}
		select {
		case <-news:
		case <-over:
			return
		case <-late.C:
			t.missed.Store(want)
			return
		}
	}
}

// notifier tells the other members what is committed while this one leads.
// Its goroutines are run and those that run starts. It has no state.
type notifier struct {
	*lifecycle
	raft      *node
	transport *transport
	known     *commits // see gatedFSM
	changed   signal   // for run: the members have changed
}

func newNotifier(l *lifecycle, n *node, t *transport, known *commits) *notifier {
	return &notifier{l, n, t, known, newSignal()}
}

// run tells the other members what is committed, from the beginning of this
// member's leadership in term, when an entry of that term is committed, until stop is closed.
func (n *notifier) run(term uint64, stop <-chan struct{}) {
	// The first entries are Raft's own, so they are not among the commits.
	first := n.raft.log.committed(n.raft.CommitIndex())
	if now, leads := n.raft.term(); !leads || now != term {
		return // so the entry at first may be of a later term
	}
	for {
		f := n.raft.GetConfiguration()
		if f.Error() != nil {
			return
		}
		replaced := make(chan struct{}) // closed when the list of members changes
		for _, s := range f.Configuration().Servers {
			if s.ID != serverID(n.raft.id) {
				n.wg.Go(func() { n.tell(s, term, first, replaced) })
			}
		}
		select {
		case <-n.changed:
			close(replaced)
		case <-stop:
			close(replaced)
			return
		case <-n.stop:
			close(replaced)
			return
		}
	}
}

// mostTries limits the retries towards a member that does not have the entry yet.
// They take 30 ms in all; soon after, Raft sends its own message.
const mostTries = 4

// tell tells one member, always about the newest entry. It begins with the one at first, which is
// of this term. A member to which there is no stream is told by a message of its own, one at a time:
// there will be one soon, or it is of an earlier version.
func (n *notifier) tell(s raft.Server, term, first uint64, stop <-chan struct{}) {
	told, tries := uint64(0), 0
	for {
		var again <-chan time.Time
		index, entryTerm, news := n.known.get()
		if index < first {
			index, entryTerm = first, term
		}
		if index <= told || entryTerm == 0 {
			// Nothing new.
		} else if stream := n.transport.stream(s.ID); stream != nil && stream.committed(term, index, entryTerm) {
			told, tries = index, 0
		} else {
			q := raft.AppendEntriesRequest{
				RPCHeader:    n.transport.header(),
				Term:         term,
				PrevLogEntry: index, PrevLogTerm: entryTerm,
				LeaderCommitIndex: index,
			}
			var r raft.AppendEntriesResponse
			err := n.transport.appendEntries(s.ID, s.Address, &q, &r)
			if err == nil && !r.Success && tries < mostTries {
				// A majority has the entry, but it is still on its way to this member.
				tries++
				again = time.After(time.Millisecond << tries)
			} else {
				// Success; or the member does not answer or lags, and Raft will tell it.
				told, tries = index, 0
			}
		}
		select {
		case <-news:
		case <-again:
		case <-stop:
			return
		}
	}
}
