package lockkeepertest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// Cluster is a cluster under test. Its n members are named by their server ids, which are 1 to
// n. Its methods may be called from any goroutine of the test. They fail the test if there is no
// such member.
type Cluster struct {
	t       testing.TB
	net     *memnet.Network
	links   links
	servers []*Server // the one with the id 1 first
}

func host(id int) string { return fmt.Sprintf("member%d", id) }

// StartCluster starts a cluster of n members that keep their state in memory and
// are connected by a simulated network. It waits until all members are ready and have
// their votes, and stops them when the test ends.
func StartCluster(t testing.TB, n int, options ...Option) *Cluster {
	t.Helper()
	if n < 1 {
		t.Fatalf("lockkeepertest: a cluster of %d members", n)
	}
	c := &Cluster{t: t, net: memnet.New()}
	c.net.HealAtOnce() // as Link.Cut says
	var peers []lockkeeper.Peer
	for id := 1; id <= n; id++ {
		peers = append(peers, lockkeeper.Peer{ID: uint64(id), Addr: host(id) + ":1"})
	}
	for id := 1; id <= n; id++ {
		member := WithConfig(func(cfg *lockkeeper.Config) {
			cfg.ID, cfg.Peers = uint64(id), slices.Clone(peers) // an option may change them
		})
		s := newServer(t, append([]Option{member}, options...))
		testhooks.In(&s.cfg).Network = c.net.Host(host(id)) // after the options, which may replace the whole Config
		c.servers = append(c.servers, s)
	}
	shared := newReport(c.servers...)
	for _, s := range c.servers {
		s.report = shared
	}
	for i, s := range c.servers {
		s.pauseNet = func(paused bool) { c.net.Pause(host(i+1), paused) }
	}
	for _, s := range c.servers {
		if err := s.open(); err != nil {
			t.Fatalf("lockkeepertest: %v", err)
		}
	}
	for i, s := range c.servers {
		if err := s.await(); err != nil {
			t.Fatalf("lockkeepertest: member %d: %v", i+1, err)
		}
	}
	for end := time.Now().Add(patience); !c.vote(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("lockkeepertest: a member has no vote after %v", patience)
		}
	}
	if err := plant(c.servers); err != nil {
		t.Fatalf("lockkeepertest: %v", err)
	}
	shared.watch()
	return c
}

// vote reports whether all members know that all have their votes, except those that
// were configured as observers. A member that started late has found the cluster running,
// and votes only when it has caught up.
func (c *Cluster) vote() bool {
	var observers []uint64
	for _, s := range c.servers {
		for _, p := range s.cfg.Peers {
			if p.Observer {
				observers = append(observers, p.ID)
			}
		}
	}
	for _, s := range c.servers {
		server, err := s.running()
		if err != nil {
			return false
		}
		settled := 0
		for _, p := range server.Members() {
			if !p.Observer || slices.Contains(observers, p.ID) {
				settled++
			}
		}
		if settled < len(s.cfg.Peers) {
			return false
		}
	}
	return true
}

// Server returns a member.
func (c *Cluster) Server(id int) *Server {
	c.t.Helper()
	if id < 1 || id > len(c.servers) {
		c.t.Fatalf("lockkeepertest: there is no member %d, only 1 to %d", id, len(c.servers))
	}
	return c.servers[id-1]
}

// Leader waits until there is a leader and returns its id. Right after a
// partition it may return the old leader, which takes a moment to notice that it
// has lost the majority; [Waits.Leader] can wait for one of the other members.
func (c *Cluster) Leader() int {
	c.t.Helper()
	return c.Within(patience).Leader()
}

// Partition cuts the network so that only members of the same group can reach each
// other. A member that is in no group can reach nobody.
func (c *Cluster) Partition(groups ...[]int) {
	c.t.Helper()
	c.servers[0].here(c.t)
	side := map[int]int{} // by the ids of members; 0 is no group
	for g, members := range groups {
		for _, id := range members {
			c.Server(id) // must exist
			side[id] = g + 1
		}
	}
	for from := 1; from <= len(c.servers); from++ {
		for to := 1; to <= len(c.servers); to++ {
			c.net.Cut(host(from), host(to), from != to && (side[from] != side[to] || side[from] == 0))
		}
	}
}

// Heal reconnects all members and ends the delays and losses between them, for what is sent
// from then on.
func (c *Cluster) Heal() {
	c.t.Helper()
	c.servers[0].here(c.t)
	c.links.mu.Lock()
	clear(c.links.all)
	c.links.mu.Unlock()
	c.net.Heal()
}

// Kill stops a member as abruptly as if its process had been killed. Its state is kept for
// [Cluster.Restart].
func (c *Cluster) Kill(id int) {
	c.t.Helper()
	c.servers[0].here(c.t)
	s := c.Server(id)
	c.net.Kill(host(id))
	if err := s.stop(func(s *lockkeeper.Server) error { return testhooks.Of(s).Kill() }); err != nil {
		c.t.Errorf("lockkeepertest: kill %d: %v", id, err)
	}
}

// Restart starts a stopped member with the state that it had. It does not wait until the member
// serves clients, which takes a leader; Dial and Connect do wait.
func (c *Cluster) Restart(id int) {
	c.t.Helper()
	c.servers[0].here(c.t)
	if err := c.Server(id).open(); err != nil {
		c.t.Fatalf("lockkeepertest: restart %d: %v", id, err)
	}
}

// Dial connects to the member whose id is the port in address. Its signature fits
// zk.WithDialer.
func (c *Cluster) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	id, err := strconv.Atoi(port)
	if err != nil || id < 1 || id > len(c.servers) {
		return nil, fmt.Errorf("lockkeepertest: there is no member %s, only 1 to %d", port, len(c.servers))
	}
	return c.servers[id-1].Dial(network, address, timeout)
}

// Connect returns a go-zookeeper client that knows all members and has a session
// with the given timeout. It is closed when the test ends.
func (c *Cluster) Connect(t testing.TB, sessionTimeout time.Duration) *zk.Conn {
	t.Helper()
	c.servers[0].here(t)
	return connect(t, len(c.servers), sessionTimeout, c.Dial, c.servers[0].report)
}
