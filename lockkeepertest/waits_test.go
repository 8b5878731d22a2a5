package lockkeepertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestWhatWritesWaitFor counts what a write waits for: writes of disks, one after the other, and
// messages between members. In virtual time nothing else takes any.
func TestWhatWritesWaitFor(t *testing.T) {
	for _, size := range []int{3, 5} {
		for _, x := range []struct {
			disk, link                           time.Duration
			atLeader, atFollower, lock, handOver time.Duration
		}{
			{10, 0, 10, 10, 10, 10},
			{0, 10, 20, 40, 40, 30},
			{10, 10, 30, 50, 50, 40},
		} {
			t.Run(fmt.Sprintf("%d members, disks %d ms, links %d ms", size, x.disk, x.link), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := lockkeepertest.StartCluster(t, size)
					lead := c.Leader()
					leader, follower := c.Server(lead).Connect(t, time.Minute), c.Server(lead%size+1).Connect(t, time.Minute)
					held, waits := zk.NewLock(leader, "/lock", zk.WorldACL(zk.PermAll)), zk.NewLock(follower, "/lock", zk.WorldACL(zk.PermAll))
					if err := held.Lock(); err != nil { // creates its directory
						t.Fatal(err)
					}
					for i := 1; i <= size; i++ {
						c.Server(i).SetDisk(lockkeepertest.Disk{Delay: x.disk * time.Millisecond})
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
						check(t, held.Unlock())
						handOver = min(handOver, (<-granted).Sub(released))
						check(t, waits.Unlock())
						time.Sleep(time.Second)
						check(t, held.Lock())
						time.Sleep(time.Second)
					}
					expect("a handover from the leader to a follower", handOver, x.handOver)
					check(t, held.Unlock())

					best := time.Hour
					for range 3 {
						began := time.Now()
						lock := zk.NewLock(follower, "/lock", zk.WorldACL(zk.PermAll))
						check(t, lock.Lock())
						best = min(best, time.Since(began))
						check(t, lock.Unlock())
						time.Sleep(time.Second)
					}
					expect("a lock at a follower", best, x.lock)
					c.Server(lead).SetDisk(lockkeepertest.Disk{Delay: time.Hour}) // the end of the test does not wait for it
				})
			})
		}
	}
}

// TestWaits: each method that waits returns when it happens, and otherwise fails the test in time.
func TestWaits(t *testing.T) {
	for _, members := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			fake := &failures{TB: t}
			fake.run(func() {
				var s interface {
					Within(time.Duration) lockkeepertest.Waits
					Connect(testing.TB, time.Duration) *zk.Conn
				}
				if members == 0 {
					s = lockkeepertest.Start(fake)
				} else {
					s = lockkeepertest.StartCluster(fake, members)
				}
				conn := s.Connect(t, time.Minute)
				acl := zk.WorldACL(zk.PermAll)
				for name, x := range map[string]struct {
					wait func(w lockkeepertest.Waits)
					do   func() error
				}{
					"exists":   {func(w lockkeepertest.Waits) { w.WaitExists("/exists") }, func() error { return create(conn, "/exists") }},
					"data":     {func(w lockkeepertest.Waits) { w.WaitData("/data", []byte("x")) }, func() error { return create(conn, "/data") }},
					"children": {func(w lockkeepertest.Waits) { w.WaitChildren("/children", 0) }, func() error { return create(conn, "/children") }},
					"requests": {func(w lockkeepertest.Waits) { w.WaitRequests("create*", "/requests/*", 1) }, func() error {
						if err := create(conn, "/requests"); err != nil {
							return err
						}
						return create(conn, "/requests/a")
					}},
					"watched": {func(w lockkeepertest.Waits) { w.WaitWatched("/watched", conn.SessionID()) }, func() error { _, _, _, err := conn.ExistsW("/watched"); return err }},
					"gone":    {func(w lockkeepertest.Waits) { w.WaitGone("/gone") }, func() error { return conn.Delete("/gone", -1) }},
					"held":    {func(w lockkeepertest.Waits) { w.WaitHeld("/held", conn.SessionID()) }, func() error { _, err := conn.Create("/held", nil, zk.FlagEphemeral, acl); return err }},
				} {
					if name == "gone" {
						check(t, create(conn, "/gone"))
					}
					began := time.Now()
					late := make(chan struct{})
					go func() { // Fatalf ends the goroutine
						defer close(late)
						x.wait(s.Within(5 * time.Second))
					}()
					<-late
					if d := time.Since(began); d != 5*time.Second || len(fake.errors) != 1 || !strings.Contains(fake.errors[0], "(waited 5s)") {
						t.Errorf("%s: gave up after %v: %q", name, d, fake.errors)
					}
					fake.errors = nil
					began = time.Now()
					reached := make(chan struct{})
					go func() {
						defer close(reached)
						x.wait(s.Within(0))
					}()
					time.Sleep(time.Minute)
					if err := x.do(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					<-reached
					if d := time.Since(began); d > time.Minute+time.Second || len(fake.errors) > 0 {
						t.Errorf("%s: after %v: %q", name, d, fake.errors)
					}
				}
			})
		})
	}
}

// TestWaitsEnd: the methods that wait give up when their context ends.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			for name, wait := range map[string]func(w lockkeepertest.Waits){
				"state":   func(w lockkeepertest.Waits) { w.WaitExists("/never") },
				"clients": func(w lockkeepertest.Waits) { w.WaitWatched("/never", 0) },
				"leader":  func(w lockkeepertest.Waits) { w.Leader(2) },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				began := time.Now()
				late := make(chan struct{})
				go func() { // Fatalf ends the goroutine
					defer close(late)
					wait(s.Within(time.Hour / 2).WithContext(ctx))
				}()
				<-late
				cancel()
				if d := time.Since(began); d != 5*time.Second || len(fake.errors) != 1 || strings.Contains(fake.errors[0], "(waited") {
					t.Errorf("%s: gave up after %v: %q", name, d, fake.errors)
				}
				fake.errors = nil
			}
		})
	})
}

// TestWaitsLeader: with a partition, that of the cut-off leader is not the leader that others wait for.
func TestWaitsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			c := lockkeepertest.StartCluster(fake, 3)
			old := c.Leader()
			others := []int{old%3 + 1, (old+1)%3 + 1}
			c.Partition([]int{old}, others)
			if id := c.Within(0).Leader(others...); !slices.Contains(others, id) {
				t.Errorf("member %d leads, and not one of %v", id, others)
			}
			if lead := c.Leader(); lead != old && c.Server(lead).Within(0).Leader() != lead {
				t.Errorf("member %d leads by another id", lead)
			}
			c.Server(others[0]).Kill()
			late := make(chan struct{})
			go func() { // Fatalf ends the goroutine
				defer close(late)
				c.Within(5 * time.Second).Leader(others[0])
			}()
			<-late
			if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], fmt.Sprintf("none of the members [%d] leads (waited 5s)", others[0])) {
				t.Errorf("nobody leads: %q", fake.errors)
			}
			fake.errors = nil
		})
		fake = &failures{TB: t}
		fake.run(func() {
			if id := lockkeepertest.Start(fake).Within(0).Leader(); id != 1 {
				t.Errorf("member %d leads, where there is only one", id)
			}
		})
	})
}
