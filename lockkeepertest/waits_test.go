package lockkeepertest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestWhatWritesWaitFor counts what a write waits for: writes of disks, one after the other, and
// messages between members. In virtual time nothing else takes any.
func TestWhatWritesWaitFor(t *testing.T) {
	for _, size := range []int{3, 5} {
		for _, x := range []struct {
			first                                bool // Features.LeaderDiskFirst
			disk, link                           time.Duration
			atLeader, atFollower, lock, handOver time.Duration
		}{
			{false, 10, 0, 10, 10, 10, 10},
			{true, 10, 0, 20, 20, 20, 20},
			{false, 0, 10, 20, 40, 40, 30},
			{false, 10, 10, 30, 50, 50, 40},
		} {
			t.Run(fmt.Sprintf("%d members, disks %d ms, links %d ms, %v", size, x.disk, x.link, x.first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := lockkeepertest.StartCluster(t, size, lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Features.LeaderDiskFirst = x.first }))
					lead := c.Leader()
					leader, follower := c.Server(lead).Connect(t, time.Minute), c.Server(lead%size+1).Connect(t, time.Minute)
					held, waits := zk.NewLock(leader, "/lock", zk.WorldACL(zk.PermAll)), zk.NewLock(follower, "/lock", zk.WorldACL(zk.PermAll))
					if err := held.Lock(); err != nil { // creates its directory
						t.Fatal(err)
					}
					for i := 1; i <= size; i++ {
						c.SetDisk(i, lockkeepertest.Disk{Delay: x.disk * time.Millisecond})
						for j := 1; j <= size; j++ {
							if i != j {
								c.SetLink(i, j, lockkeepertest.Link{Delay: x.link * time.Millisecond})
							}
						}
					}
					duration(t, follower) // connects to the leader
					time.Sleep(10 * time.Second)
					expect := func(what string, took, want time.Duration) {
						t.Helper()
						if took != want*time.Millisecond {
							t.Errorf("%s takes %v, not %d ms", what, took, want)
						}
					}
					// The fastest of three: now and then one waits for something else, too.
					fastest := func(conn *zk.Conn) time.Duration {
						best := time.Hour
						for range 3 {
							best = min(best, duration(t, conn))
							time.Sleep(time.Second)
						}
						return best
					}
					expect("a set at the leader", fastest(leader), x.atLeader)
					expect("a set at a follower", fastest(follower), x.atFollower)

					handOver := time.Hour
					for range 3 {
						granted := make(chan time.Time, 1)
						go func() {
							if err := waits.Lock(); err != nil {
								t.Error(err)
							}
							granted <- time.Now()
						}()
						time.Sleep(time.Second)
						released := time.Now()
						if err := held.Unlock(); err != nil {
							t.Fatal(err)
						}
						handOver = min(handOver, (<-granted).Sub(released))
						if err := waits.Unlock(); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
						if err := held.Lock(); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
					}
					expect("a handover from the leader to a follower", handOver, x.handOver)
					if err := held.Unlock(); err != nil {
						t.Fatal(err)
					}

					best := time.Hour
					for range 3 {
						began := time.Now()
						lock := zk.NewLock(follower, "/lock", zk.WorldACL(zk.PermAll))
						if err := lock.Lock(); err != nil {
							t.Fatal(err)
						}
						best = min(best, time.Since(began))
						if err := lock.Unlock(); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
					}
					expect("a lock at a follower", best, x.lock)
				})
			})
		}
	}
}
