package lockkeepertest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Advanced is what [Server.Advance] has ended.
type Advanced struct {
	Expired []int64  // sessions, in order of their ids
	Deleted []string // paths of TTL znodes and containers, sorted
}

// Advance sets the server's clock forward by d, at most 100 years, for tests outside of synctest
// bubbles. What is due then has ended when Advance returns: sessions, with their ephemerals, and
// TTL znodes and containers, also containers that are empty because of that.
//
// A session with a connection is treated as if its client had gone on sending pings. One without,
// such as after [Server.Disconnect] with a fault that refuses connections, has d less until it
// expires. Clients' own timers are not moved: those for pings and retries, and the timeouts by
// which they notice that something is wrong.
//
// The clock stays ahead: it gives later znodes their times, and [Server.Restore] sets it back. A
// server that is restarted, and a new leader, give each session its full timeout again, as ever.
func (c *common) Advance(d time.Duration) Advanced {
	c.t.Helper()
	return c.advance(d, false)
}

// AdvanceSilent is Advance as if no client had sent anything in that time: sessions whose
// timeout is less than d expire, also those with a connection.
func (c *common) AdvanceSilent(d time.Duration) Advanced {
	c.t.Helper()
	return c.advance(d, true)
}

// mostAdvance is the most that Advance advances at a time.
const mostAdvance = 100 * 365 * 24 * time.Hour

func (c *common) advance(d time.Duration, silent bool) (x Advanced) {
	c.t.Helper()
	c.here(c.t)
	if d < 0 || d > mostAdvance {
		c.t.Fatalf("lockkeepertest: impossible advance by %v: it is negative or more than 100 years", d)
	}
	servers := c.leaderFirst()
	lead := servers[0]
	server, err := lead.running()
	if err == nil && server.Role() != lockkeeper.RoleLeader && server.Role() != lockkeeper.RoleStandalone {
		err = fmt.Errorf("%s does not lead", lead.name())
	}
	known := map[int64]bool{} // the others are just being opened, by clients that are connected
	if err == nil {
		err = lead.propose(fsm.Nothing()) // it works, and knows the sessions of all members
		lead.view(func(v *fsm.View) {
			for x := range v.Sessions().All() {
				known[x.ID] = true
			}
		})
	}
	if err == nil {
		err = commit(servers, fsm.Nothing()) // now all members know which of these are connected
	}
	if err == nil {
		connected := map[int64]bool{}
		for _, s := range servers {
			s.skew.advance(d)
			for _, x := range s.Sessions() {
				if _, err := s.running(); err == nil && x.Connected {
					connected[x.ID] = true
				}
			}
		}
		x.Expired = testhooks.Of(server).Advance(d, func(id int64) bool { return connected[id] || !known[id] }, !silent)
		slices.Sort(x.Expired)
		err = endSessions(server, x.Expired)
	}
	if err == nil {
		x.Deleted, err = lead.deleteAll(func(v *fsm.View) []string { return v.Tree().Reapable(lead.skew.now().UnixMilli(), func() {}) }, fsm.Reap)
	}
	if err == nil {
		err = commit(servers, fsm.Nothing())
	}
	if err != nil {
		c.t.Fatalf("lockkeepertest: advance: %v", err)
	}
	return x
}

// endSessions waits until sessions have ended that the server is about to expire.
func endSessions(server *lockkeeper.Server, sessions []int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, id := range sessions {
		if err := server.EndSession(ctx, id); err != nil && !errors.Is(err, lockkeeper.ErrNoSession) {
			return err
		}
	}
	return nil
}

// EndTTLs deletes all TTL znodes and containers without children, whatever their time, and then
// those that have no children any more. It returns their paths, sorted.
func (c *common) EndTTLs() []string {
	c.t.Helper()
	c.here(c.t)
	servers := c.leaderFirst()
	lead := servers[0]
	err := lead.propose(fsm.Nothing())
	var deleted []string
	if err == nil {
		deleted, err = lead.deleteAll(childless, func(path string) *fsm.Command { return fsm.Edit([]string{path}, false, nil) })
	}
	if err == nil {
		err = commit(servers, fsm.Nothing())
	}
	if err != nil {
		c.t.Fatalf("lockkeepertest: end of TTLs: %v", err)
	}
	return deleted
}

// childless returns the TTL znodes and containers without children.
func childless(v *fsm.View) (paths []string) {
	tree := v.Tree()
	var look func(at string)
	look = func(at string) {
		n := tree.Lookup(at)
		for name := range tree.Children(n) {
			look(path.Join(at, name))
		}
		if kind := n.Record().Kind; n.NumChildren() == 0 && (kind == znode.TTL || kind == znode.Container) {
			paths = append(paths, at)
		}
	}
	look(znode.Root)
	return paths
}

// deleteAll deletes znodes, each with a command, until none are due. It returns those that were
// deleted, sorted.
func (s *Server) deleteAll(due func(v *fsm.View) []string, by func(path string) *fsm.Command) (deleted []string, err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var paths []string
		s.view(func(v *fsm.View) { paths = due(v) })
		if len(paths) == 0 {
			slices.Sort(deleted)
			return slices.Compact(deleted), nil
		}
		server, err := s.running()
		if err != nil {
			return nil, fmt.Errorf("%s is stopped", s.name())
		}
		var done []<-chan error
		for _, p := range paths {
			done = append(done, testhooks.Of(server).Propose(by(p)))
		}
		ctx, cancel := context.WithDeadline(context.Background(), end)
		for _, d := range done {
			select {
			case <-d: // what was not deleted is found again
			case <-ctx.Done():
			}
		}
		cancel()
		s.view(func(v *fsm.View) {
			for _, p := range paths {
				if v.Tree().Lookup(p) == nil {
					deleted = append(deleted, p)
				}
			}
		})
	}
	return nil, fmt.Errorf("%s does not delete its TTL znodes within %v", s.name(), patience)
}
