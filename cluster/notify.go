package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Raft tells followers that an entry is committed with the next entry, or after
// CommitTimeout, 50 to 100 ms later. A lone write through a follower, and every
// event of one, would wait for that. So the leader says so itself, at once, by
// the message that Raft would send: an AppendEntries without entries.

// commits is the newest entry that was applied here, for those who tell others. Its
// term is 0 if it is not known.
type commits struct {
	mu          sync.Mutex
	index, term uint64
	news        chan struct{} // closed and replaced when there is a newer one
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

// rpcHeader is that of Raft's messages from this member.
func (m *Member) rpcHeader() raft.RPCHeader {
	id := serverID(m.cfg.ID)
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: m.transport.EncodePeer(id, m.transport.LocalAddr())}
}

// tellCommits tells the other members what is committed until stop, while this
// one leads in the given term.
func (m *Member) tellCommits(term uint64, stop <-chan struct{}) {
	for {
		f := m.raft.GetConfiguration()
		if f.Error() != nil {
			return
		}
		these := make(chan struct{}) // closed when the members are others
		for _, s := range f.Configuration().Servers {
			if s.ID != serverID(m.cfg.ID) {
				m.wg.Go(func() { m.tellCommitsTo(s, term, these) })
			}
		}
		select {
		case <-m.membership.changed:
			close(these)
		case <-stop:
			close(these)
			return
		case <-m.stop:
			close(these)
			return
		}
	}
}

// mostTries bounds how often a member is told of an entry that it does not
// have yet: for 30 ms in all, after which Raft's own message is near.
const mostTries = 4

// tellCommitsTo tells one of them: one message at a time, the newest.
func (m *Member) tellCommitsTo(s raft.Server, term uint64, stop <-chan struct{}) {
	told, tries := uint64(0), 0
	for {
		var again <-chan time.Time
		index, entryTerm, news := m.commits.get()
		if index > told && entryTerm != 0 {
			q := raft.AppendEntriesRequest{
				RPCHeader:    m.rpcHeader(),
				Term:         term,
				PrevLogEntry: index, PrevLogTerm: entryTerm,
				LeaderCommitIndex: index,
			}
			var r raft.AppendEntriesResponse
			err := m.transport.AppendEntries(s.ID, s.Address, &q, &r)
			if err == nil && !r.Success && tries < mostTries {
				// The others were faster: the entry is still on its way there.
				tries++
				again = time.After(time.Millisecond << tries)
			} else {
				// One that does not answer, or lags, learns it from Raft.
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
