package cluster

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestStreamChaos writes through all members while streams are forgotten at one end or both, or
// end, terms change, links are cut, and members are killed and restarted. Nothing acknowledged is
// lost, no connection is left, and the members agree.
func TestStreamChaos(t *testing.T) {
	testkit.SlowUnderRace(t)
	for seed := range int64(3) {
		bubble(t, fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			n := newWires()
			members, _ := n.open(t, 3, func(c *Config) { c.SnapshotBytes = []int64{1 << 20, 4 << 10}[seed%2] })
			var rm sync.Mutex
			n.SetDelay(func(string, string) time.Duration {
				rm.Lock()
				defer rm.Unlock()
				d := time.Duration(r.IntN(4000)) * time.Microsecond
				if r.IntN(200) == 0 {
					d += time.Duration(r.IntN(900)) * time.Millisecond
				}
				return d
			})
			rnd := func(k int) int { rm.Lock(); defer rm.Unlock(); return r.IntN(k) }
			var mu sync.Mutex
			at := func(i int) *Member { mu.Lock(); defer mu.Unlock(); return members[i] }
			acked := map[int64]bool{}
			stop := make(chan struct{})
			var writers sync.WaitGroup
			for k := range int64(6) {
				writers.Go(func() {
					for id := 1000 * (k + 1) * 100; ; id++ {
						select {
						case <-stop:
							return
						default:
						}
						w := make(result, 1)
						m := at(int(k) % 3)
						m.Propose(fsm.OpenSession(uint64(id), id, 1<<30, session.Password{}), w, nil)
						select {
						case err := <-w:
							if err == nil {
								mu.Lock()
								acked[id] = true
								mu.Unlock()
							} else {
								time.Sleep(20 * time.Millisecond)
							}
						case <-time.After(40 * time.Second):
							t.Error("a write has no answer after 40 s")
							return
						}
						time.Sleep(time.Duration(rnd(30)) * time.Millisecond)
					}
				})
			}
			for range 60 {
				time.Sleep(time.Duration(rnd(1500)) * time.Millisecond)
				switch rnd(6) {
				case 0, 1:
					half := rnd(3)
					n.forget(func(w *wire) bool {
						return (w.kind == kindStream || rnd(2) == 0 && w.kind == kindRaft) && (half == 2 || w.dialed == (half == 0)) && rnd(2) == 0
					})
				case 2:
					n.mu.Lock()
					var lost []*wire
					for w := range n.ends {
						if kindOf(w) == kindStream && rnd(2) == 0 {
							lost = append(lost, w)
						}
					}
					n.mu.Unlock()
					for _, w := range lost {
						w.Close()
					}
				case 3:
					x := at(rnd(3))
					x.transport.give(&raft.RequestVoteRequest{RPCHeader: x.transport.header(), Term: x.raft.CurrentTerm() + 1, LeadershipTransfer: true}, time.Second)
				case 4:
					i := rnd(3)
					m := at(i)
					m.Kill()
					time.Sleep(time.Duration(rnd(600)) * time.Millisecond)
					x, err := openMember(m.cfg, fsm.NewReplica())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { x.Close() })
					mu.Lock()
					members[i] = x
					mu.Unlock()
				case 5:
					a, b := string(rune('a'+rnd(3))), string(rune('a'+rnd(3)))
					n.Cut(a, b, true)
					time.Sleep(time.Duration(rnd(1800)) * time.Millisecond)
					n.Cut(a, b, false)
				}
			}
			close(stop)
			writers.Wait()
			time.Sleep(3 * time.Minute)
			for i, m := range members {
				missing := 0
				m.replica.View(func(v *fsm.View) {
					for id := range acked {
						if v.Sessions().Get(id) == nil {
							missing++
						}
					}
				})
				if missing > 0 || m.commits.applied() != members[0].commits.applied() {
					t.Errorf("member %d misses %d of %d, applied %d", i, missing, len(acked), m.commits.applied())
				}
				m.transport.conns.mu.Lock()
				if len(m.transport.conns.open) > 12 {
					t.Error(len(m.transport.conns.open), "connections")
				}
				m.transport.conns.mu.Unlock()
			}
			n.mu.Lock()
			t.Log(len(acked), "acked,", len(n.ends), "ends")
			n.mu.Unlock()
		})
	}
}
