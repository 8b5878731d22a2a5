package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestWordWhileFirstStarts: an operator lets servers 2 and 3 form the cluster, since server 1 does not start. It starts just
// then after all, and proposes an id as well. The cluster serves clients.
func TestWordWhileFirstStarts(t *testing.T) {
	const round = 20 * time.Millisecond
	for _, restored := range []bool{false, true} {
		for late := time.Duration(0); late < 2*round; late += round / 5 {
			t.Run(fmt.Sprintf("restored %v, %v later", restored, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					f.asked = 100
					f.net.SetDelay(func(from, to string) time.Duration { return round / 2 })
					for i := range 3 {
						if restored {
							f.restored(i, 9, 1)
						}
						if i > 0 {
							f.start(i)
						}
					}
					time.Sleep(10 * time.Second)
					word := make(chan error, 1)
					go func() { word <- f.running[1].membership.former.form() }()
					time.Sleep(late)
					f.start(0)
					err := <-word
					time.Sleep(time.Minute)
					if f.write(0) || f.write(1) || f.write(2) {
						return
					}
					t.Errorf("a minute after the word (%v), with all servers up, nobody acknowledges a write", err)
					for i, m := range f.running {
						x := m.raft.storage.Identity()
						t.Logf("server %d: cluster %v, agreed %v, waits since %q", i+1, x.Cluster, x.Agreed, m.Waiting())
					}
				})
			})
		}
	}
}
