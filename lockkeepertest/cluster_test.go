package lockkeepertest_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// get retries until the client can read a znode: while there is no server, during an
// election for instance, its requests fail.
func get(t *testing.T, conn *zk.Conn, path string) *zk.Stat {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, stat, err := conn.Get(path)
		if err == nil {
			return stat
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

// TestCluster: a session and its ephemeral survive the loss of three leaders in turn.
func TestCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		holder, other := c.Connect(t, 20*time.Second), c.Connect(t, 20*time.Second)
		must(holder.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))(t)
		session := holder.SessionID()
		for range 3 {
			lead := c.Leader()
			c.Server(lead).Kill()
			time.Sleep(5 * time.Second) // most likely there is another leader
			if stat := get(t, other, "/lock"); stat.EphemeralOwner != session {
				t.Fatalf("the lock is %+v", stat)
			}
			get(t, holder, "/lock") // when it has found another server
			c.Server(lead).Restart()
			time.Sleep(time.Second)
		}
		if holder.SessionID() != session {
			t.Error("the holder has another session")
		}
		holder.Close()
		must(other.Sync("/lock"))(t)
		if ok, _, err := other.Exists("/lock"); ok || err != nil {
			t.Errorf("the lock after its session's end: %v, %v", ok, err)
		}
	})
}

// TestPartition: the side with a majority continues to serve, and the other side stops.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 5)
		lead := c.Leader()
		few := []int{lead, lead%5 + 1}
		most := []int{(lead+1)%5 + 1, (lead+2)%5 + 1, (lead+3)%5 + 1}
		conn := c.Server(few[1]).Connect(t, 20*time.Second)
		c.Partition(few, most)
		time.Sleep(3 * time.Second)
		if s := conn.State(); s == zk.StateHasSession {
			t.Errorf("the smaller side serves: %v", s)
		}
		other := c.Server(most[0]).Connect(t, 20*time.Second)
		if _, err := other.Create("/most", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Error(err)
		}
		c.Heal()
		get(t, conn, "/most")
	})
}

// TestNoSuchMember: the members are named by their ids, 1 to n, and no other is taken.
func TestNoSuchMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]func(c *lockkeepertest.Cluster, id int){
			"Server":       func(c *lockkeepertest.Cluster, id int) { c.Server(id) },
			"Partition":    func(c *lockkeepertest.Cluster, id int) { c.Partition([]int{1}, []int{id}) },
			"SetLink from": func(c *lockkeepertest.Cluster, id int) { c.SetLink(id, 1, lockkeepertest.Link{}) },
			"SetLink to":   func(c *lockkeepertest.Cluster, id int) { c.SetLink(1, id, lockkeepertest.Link{}) },
		} {
			for _, id := range []int{-1, 0, 3} {
				fake := &failures{TB: t}
				fake.run(func() { f(lockkeepertest.StartCluster(fake, 2), id) })
				if want := fmt.Sprintf("there is no member %d, only 1 to 2", id); len(fake.errors) != 1 || !strings.Contains(fake.errors[0], want) {
					t.Errorf("%s: got %q, want %q", name, fake.errors, want)
				}
			}
		}
		fake := &failures{TB: t}
		fake.run(func() { lockkeepertest.StartCluster(fake, 0) })
		if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], "cluster of 0 members") {
			t.Errorf("a cluster without members: %q", fake.errors)
		}
		c := lockkeepertest.StartCluster(t, 2)
		for id := 1; id <= 2; id++ { // the session's id has the server's in its high byte
			conn := must(c.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", id), time.Minute))(t)
			conn.Close()
			if got := c.Server(id).Connect(t, time.Minute).SessionID() >> 56; got != int64(id) {
				t.Errorf("member %d has the server id %d", id, got)
			}
		}
		for _, port := range []int{0, 3} {
			if _, err := c.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Minute); err == nil {
				t.Errorf("a member has port %d", port)
			}
		}
	})
}

// TestLateMember: a member that opens when the others already have a leader gets its vote
// before StartCluster returns, so that any two members can go on without the third.
func TestLateMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithConfig(func(cfg *lockkeeper.Config) {
			if cfg.ID == 3 {
				cfg.Logger = slog.New(&sleepsOnce{Handler: slog.DiscardHandler})
			}
		}))
		lead := c.Leader()
		c.Server(lead).Kill()
		if next := c.Leader(); next == lead {
			t.Errorf("the killed member %d still leads", lead)
		}
	})
}

// sleepsOnce delays the opening of a server, which logs.
type sleepsOnce struct {
	slog.Handler
	slept atomic.Bool
}

func (h *sleepsOnce) Enabled(context.Context, slog.Level) bool {
	if h.slept.CompareAndSwap(false, true) {
		time.Sleep(10 * time.Second)
	}
	return false
}

// TestReplacedConfig: an option may replace the whole Config of a member, except for its
// id and its peers.
func TestReplacedConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithConfig(func(cfg *lockkeeper.Config) {
			*cfg = lockkeeper.Config{ID: cfg.ID, Peers: cfg.Peers, TickTime: time.Second}
		}))
		if got := c.Connect(t, time.Minute); got.SessionID() == 0 {
			t.Error("no session")
		}
	})
}

func TestRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		if r := s.Role(); r != lockkeeper.RoleStandalone {
			t.Errorf("a server is %q", r)
		}
		s.Kill()
		if r := s.Role(); r != "" {
			t.Errorf("a stopped server is %q", r)
		}
		c := lockkeepertest.StartCluster(t, 3)
		lead := c.Leader()
		for i := 1; i <= 3; i++ {
			if r := c.Server(i).Role(); (r == lockkeeper.RoleLeader) != (i == lead) || r == "" {
				t.Errorf("member %d leads, member %d is %q", lead, i, r)
			}
		}
	})
}
