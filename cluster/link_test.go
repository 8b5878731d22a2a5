package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestLinkEnds: when a follower's connection to the leader breaks while the leader
// stays the same, the follower connects again: what it sent before is applied, and so
// is what it sends next.
func TestLinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		m := members[(lead+1)%3]
		write := func() result {
			done := make(result, 1)
			m.Propose(someWrite(), done, nil)
			return done
		}
		<-write()
		term := m.raft.CurrentTerm()
		for range 3 {
			before := m.proposer.link.link
			done := write()
			before.c.Close()
			for _, done := range []result{done, write()} {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(time.Second):
					t.Fatal("it is not done after a second")
				}
			}
			synctest.Wait()
			if m.proposer.link.link == before {
				t.Fatal("it still uses a connection that has ended")
			}
		}
		if m.raft.CurrentTerm() != term {
			t.Error("the leader was replaced meanwhile")
		}
	})
}
