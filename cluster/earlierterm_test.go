package cluster

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestEntryOfEarlierTermByDeposed: as TestEntriesOfLaterTerm, but what the deposed leader's log has by now, in the place of its own
// entry, is of a term before its own.
func TestEntryOfEarlierTermByDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
		defer l.close()
		l.catchUp()
		end := l.last()
		l.lead(3)
		own := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: 3, PrevLogEntry: end, PrevLogTerm: 2, Entries: l.log[end:], LeaderCommitIndex: end}
		l.log = l.log[:end:end]
		l.term = 2 // another member, which led in term 2, has this one in that place, leads in term 4 and commits it
		l.propose(1)
		l.wire.transport.raft.terms.begin(4)
		others := *own
		others.Entries, others.LeaderCommitIndex = l.log[end:], l.last()
		if err := l.wire.appendEntries("2", "b:1", &others, new(raft.AppendEntriesResponse)); err == nil {
			t.Error("it sends what the leader of term 4 has given it in term 3")
		}
		if s, err := l.wire.AppendEntriesPipeline("2", "b:1"); err == nil {
			s.AppendEntries(&others, new(raft.AppendEntriesResponse))
			defer s.Close()
		}
		l.wire.NetworkTransport.AppendEntries("2", "b:1", own, new(raft.AppendEntriesResponse)) // was sent before, and comes late
		time.Sleep(time.Second)
		select {
		case err := <-l.follower.Err():
			t.Error(err)
		default:
		}
	})
}
