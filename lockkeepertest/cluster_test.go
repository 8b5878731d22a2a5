package lockkeepertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestCluster: a session and its ephemeral outlive three leaders in turn.
func TestCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		holder, other := c.Connect(t, 20*time.Second), c.Connect(t, 20*time.Second)
		if _, err := holder.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		session := holder.SessionID()
		for range 3 {
			lead := c.Leader()
			c.Kill(lead)
			time.Sleep(5 * time.Second) // both have found another server
			_, stat, err := other.Get("/lock")
			if err != nil || stat.EphemeralOwner != session {
				t.Fatalf("the lock is %+v, %v", stat, err)
			}
			c.Restart(lead)
			time.Sleep(time.Second)
		}
		if holder.SessionID() != session {
			t.Error("the holder has another session")
		}
		holder.Close()
		if _, err := other.Sync("/lock"); err != nil {
			t.Fatal(err)
		}
		if ok, _, err := other.Exists("/lock"); ok || err != nil {
			t.Errorf("the lock after its session's end: %v, %v", ok, err)
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
