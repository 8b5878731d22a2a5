package cluster

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestEntriesByDeposed: a member led in term 3. By now it follows the leader of term 4, which has replaced its last entry by another
// one, of an earlier or a later term. Its Raft still sends in term 3 what its log has: that must not arrive, since the message
// with the entry that was replaced may come late.
func TestEntriesByDeposed(t *testing.T) {
	for _, term := range []uint64{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
			defer l.close()
			l.catchUp()
			end := l.last()
			l.lead(3)
			own := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: 3, PrevLogEntry: end, PrevLogTerm: 2, Entries: l.log[end:], LeaderCommitIndex: end}
			var s raft.AppendPipeline
			until(t, "a stream", func() (ok bool) {
				var err error
				s, err = l.wire.AppendEntriesPipeline("2", "b:1")
				return err == nil
			})
			defer s.Close()
			l.log = l.log[:end:end]
			l.term = term
			l.propose(1)
			l.wire.transport.raft.terms.begin(4)
			others := *own
			others.Entries, others.LeaderCommitIndex = l.log[end:], l.last()
			if err := l.wire.appendEntries("2", "b:1", &others, new(raft.AppendEntriesResponse)); !errors.Is(err, errDeposed) {
				t.Errorf("it sends an entry of term %d in term 3: %v", term, err)
			}
			if _, err := s.AppendEntries(&others, new(raft.AppendEntriesResponse)); !errors.Is(err, errDeposed) {
				t.Errorf("it sends an entry of term %d in term 3 over a stream: %v", term, err)
			}
			var state bytes.Buffer
			if err := l.state(l.last()).Snapshot().Write(&state); err != nil {
				t.Fatal(err)
			}
			q := &raft.InstallSnapshotRequest{RPCHeader: own.RPCHeader, SnapshotVersion: 1, Term: 3, LastLogIndex: l.last(), LastLogTerm: term,
				Configuration: raft.EncodeConfiguration(l.members), ConfigurationIndex: 1, Size: int64(state.Len())}
			if err := l.wire.InstallSnapshot("2", "b:1", q, new(raft.InstallSnapshotResponse), &state); !errors.Is(err, errDeposed) {
				t.Errorf("it sends a snapshot of term %d in term 3: %v", term, err)
			}
			l.wire.NetworkTransport.AppendEntries("2", "b:1", own, new(raft.AppendEntriesResponse)) // was sent before, and comes late
			time.Sleep(time.Second)
			l.alive()
		})
	}
}
