package lockkeepertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestCluster: a lock outlives the leader, and its holder's session moves.
func TestCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		holder, waiter := c.Connect(t, 20*time.Second), c.Connect(t, 20*time.Second)
		lock := zk.NewLock(holder, "/lock", zk.WorldACL(zk.PermAll))
		if err := lock.Lock(); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- zk.NewLock(waiter, "/lock", zk.WorldACL(zk.PermAll)).Lock() }()
		for range 3 {
			lead := c.Leader()
			c.Kill(lead)
			time.Sleep(5 * time.Second)
			select {
			case err := <-got:
				t.Fatalf("the lock was given to two: %v", err)
			default:
			}
			c.Restart(lead)
			time.Sleep(time.Second)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	})
}

// TestPartition: the side with most members goes on, the other one does not serve.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 5)
		lead := c.Leader()
		few := []int{lead, (lead + 1) % 5}
		most := []int{(lead + 2) % 5, (lead + 3) % 5, (lead + 4) % 5}
		conn := c.Server(few[1]).Connect(t, 20*time.Second)
		c.Partition(few, most)
		time.Sleep(2 * time.Second)
		if s := conn.State(); s == zk.StateHasSession {
			t.Errorf("the smaller side serves: %v", s)
		}
		other := c.Server(most[0]).Connect(t, 20*time.Second)
		if _, err := other.Create("/most", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Error(err)
		}
		c.Heal()
		time.Sleep(2 * time.Second)
		if _, _, err := conn.Get("/most"); err != nil {
			t.Errorf("after the partition: %v", err)
		}
	})
}
