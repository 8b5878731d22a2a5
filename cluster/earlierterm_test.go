package cluster

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestEntryOfEarlierTermByDeposed: as TestEntriesOfLaterTerm, but what the deposed leader's log has by now, in the place of its own
// entry, is of a term before its own.
func TestEntryOfEarlierTermByDeposed(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
			defer l.close()
			l.catchUp()
			end := l.last()
			l.lead(3) // its first entry reaches nobody
			own := l.log[end:]
			l.log = l.log[:end:end]
			l.term = 2 // another member, which led in term 2, has this one in that place, leads in term 4 and commits it
			l.propose(1)
			l.term, l.committed = 3, l.last()
			send := func(entries []*raft.Log, commit uint64) error {
				return l.wire.appendEntries("2", "b:1", &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: 3, PrevLogEntry: end, PrevLogTerm: 2, Entries: entries, LeaderCommitIndex: commit}, new(raft.AppendEntriesResponse))
			}
			if snapshot {
				r, err := l.install(l.last())
				t.Log(r, err)
			} else {
				t.Log(send(l.log[end:], l.last()))
			}
			t.Log(send(own, end)) // the earlier message comes late
			time.Sleep(time.Second)
			select {
			case err := <-l.follower.Err():
				if errors.Is(err, ErrDiffers) {
					t.Errorf("snapshot %v: %v", snapshot, err)
				}
				t.Errorf("snapshot %v: it ends: %v", snapshot, err)
			default:
			}
		})
	}
}
