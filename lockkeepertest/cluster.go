package lockkeepertest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// Cluster is a cluster under test. Its n members are named by their server ids, which are 1 to n;
// [Cluster.Server] returns one of them. What it has in common with a [Server] is about all members: faults
// count matching requests together, whichever member they reach, and what changes the state needs a
// majority. Its methods may be called from any goroutine of the test. They fail the test if there is no
// such member.
type Cluster struct {
	common
	Waits

	net   *memnet.Network
	links links
}

func host[ID int | uint64](id ID) string { return fmt.Sprintf("member%d", id) }

// StartCluster starts a cluster of n members that keep their state in memory and
// are connected by a simulated network. It waits until all members are ready and have
// their votes, and stops them when the test ends.
func StartCluster(t testing.TB, n int, options ...Option) *Cluster {
	t.Helper()
	if n < 1 {
		t.Fatalf("lockkeepertest: a cluster of %d members", n)
	}
	c := &Cluster{common: common{t: t, cluster: true}, net: memnet.New()}
	c.Waits = Waits{in: &c.common, ctx: context.Background()}
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
		s.network = c.net
		c.servers = append(c.servers, s)
	}
	c.report = newReport(c.servers...)
	for _, s := range c.servers {
		s.report = c.report
	}
	c.begin()
	return c
}

// vote reports whether all members know that all have their votes, except those that
// were configured as observers. A member that started late has found the cluster running,
// and votes only when it has caught up.
func (c *common) vote() bool {
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

// Partition cuts the network so that only members of the same group can reach each
// other. A member that is in no group can reach nobody.
func (c *Cluster) Partition(groups ...[]int) {
	c.t.Helper()
	c.here(c.t)
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
	c.here(c.t)
	c.links.mu.Lock()
	clear(c.links.all)
	c.links.mu.Unlock()
	c.net.Heal()
}
