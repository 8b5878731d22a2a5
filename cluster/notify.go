package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft tells followers that an entry is committed together with the next entry, or
// after CommitTimeout, 50 to 100 ms later. On an idle cluster a write through a
// follower, and every watch event on one, would wait that long. So the leader sends
// the message that Raft would send, an AppendEntries without entries, at once.

// commits holds the index and term of the newest entry applied locally. The term is
// 0 if it is unknown, as after a snapshot.
type commits struct {
	mu          sync.Mutex
	index, term uint64
	news        chan struct{} // closed and replaced by set
}

func (c *commits) init() { c.news = make(chan struct{}) }

func (c *commits) set(index, term uint64) {
	c.mu.Lock()
	c.index, c.term = index, term
	close(c.news)
	c.news = make(chan struct{})
	c.mu.Unlock()
}

func (c *commits) get() (index, term uint64, news chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index, c.term, c.news
}

// tellCommits tells the other members what is committed, from the beginning of this
// member's leadership in term until stop is closed.
func (m *Member) tellCommits(term uint64, stop <-chan struct{}) {
	for {
		f := m.raft.GetConfiguration()
		if f.Error() != nil {
			return
		}
		replaced := make(chan struct{}) // closed when the list of members changes
		for _, s := range f.Configuration().Servers {
			if s.ID != serverID(m.cfg.ID) {
				m.wg.Go(func() { m.tellCommitsTo(s, term, replaced) })
			}
		}
		select {
		case <-m.membership.changed:
			close(replaced)
		case <-stop:
			close(replaced)
			return
		case <-m.stop:
			close(replaced)
			return
		}
	}
}

// mostTries limits the retries towards a member that does not have the entry yet.
// They take 30 ms in all; soon after, Raft sends its own message.
const mostTries = 4

// tellCommitsTo tells one member, one message at a time, always about the newest
// entry.
func (m *Member) tellCommitsTo(s raft.Server, term uint64, stop <-chan struct{}) {
	told, tries := uint64(0), 0
	for {
		var again <-chan time.Time
		index, entryTerm, news := m.commits.get()
		if index > told && entryTerm != 0 {
			q := raft.AppendEntriesRequest{
				RPCHeader:    m.transport.header(),
				Term:         term,
				PrevLogEntry: index, PrevLogTerm: entryTerm,
				LeaderCommitIndex: index,
			}
			var r raft.AppendEntriesResponse
			err := m.transport.AppendEntries(s.ID, s.Address, &q, &r)
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
