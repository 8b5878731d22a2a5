package lockkeepertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
)

// Snapshot is the state of a server or a cluster at one moment. It can be restored any
// number of times, on the server or cluster that it was taken of.
type Snapshot struct {
	state    *fsm.Command // that puts it back
	faults   []*Injection
	requests int   // how many there had been
	ahead    int64 // of the clock
}

// Snapshot returns the present state, for Restore.
func (c *common) Snapshot() *Snapshot {
	c.t.Helper()
	c.here(c.t)
	s := c.leaderFirst()[0]
	x := new(Snapshot)
	// What clients of other members have done may not be applied here yet.
	if err := s.propose(fsm.Nothing()); err != nil {
		c.t.Fatalf("lockkeepertest: snapshot: %v", err)
	}
	s.view(func(v *fsm.View) {
		var sessions []int64
		for x := range v.Sessions().All() {
			sessions = append(sessions, x.ID)
		}
		x.state = fsm.PutBack(sessions, v.Tree().AppendNodes(nil))
	})
	for _, s := range c.servers {
		x.faults = append(x.faults, s.faults.list()...)
	}
	x.requests = c.report.messages.count()
	x.ahead = s.skew.ahead.Load()
	return x
}

// Restore puts back the state of a snapshot, so that tests can share a server and each
// finds it clean. It takes microseconds for a small tree, and works as if clients made the
// changes, all in one transaction:
//
//   - Znodes that have been created are deleted, those that have been deleted are created,
//     and those that have changed get back their data, ACLs, versions, times and the
//     counters for sequential children. Others stay as they are. Watches fire as usual.
//   - Zxids do not go back. What Restore changes has its zxid as mzxid, and what it creates
//     has it as czxid, so fencing tokens never repeat.
//   - Sessions that were opened after the snapshot end, and their clients' connections are
//     closed. A client that is still running then opens a new session, so close
//     clients first.
//   - Other sessions continue, with their connections and watches, and get back their
//     ephemerals. A session that has ended does not come back, nor do its ephemerals.
//   - Faults that were injected after the snapshot are removed. One that has not taken
//     effect fails the test, unless it is optional.
//   - [Server.Requests] forgets the requests that came after the snapshot.
//   - A clock that [Server.Advance] has moved since goes back.
//
// Restore returns when all this is visible to clients. It fails the test if the server is
// stopped. A member of a cluster restores the state of the whole cluster, but only the Restore of the
// Cluster waits until each member that is not stopped, and has not failed, has it. So end partitions and
// pauses first; other faults of links and disks, and the clocks, stay as they are.
func (c *common) Restore(x *Snapshot) {
	c.t.Helper()
	c.here(c.t)
	for _, s := range c.servers {
		for _, why := range s.faults.keep(x.faults) {
			c.t.Errorf("lockkeepertest: %s", why)
		}
		s.skew.ahead.Store(x.ahead)
	}
	if err := commit(c.servers, x.state); err != nil {
		c.t.Errorf("lockkeepertest: restore: %v", err)
	}
	c.report.messages.forget(x.requests)
}

// keep removes all faults but some. It returns why the test is to fail because of faults
// that did nothing.
func (f *faults) keep(some []*Injection) (unused []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(f.all, func(i *Injection) bool {
		if slices.Contains(some, i) {
			return false
		}
		if why := i.unused(); why != "" {
			unused = append(unused, why)
		}
		i.Remove()
		return true
	})
	return unused
}

// count returns how many requests there have been.
func (m *messages) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dropped + len(m.requests)
}

// forget forgets all but the first n requests.
func (m *messages) forget(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = max(0, n-m.dropped)
	for i := n; i < len(m.requests); i++ {
		m.size -= len(m.requests[i].frame.Payload)
		m.requests[i] = Request{}
	}
	m.requests = m.requests[:min(n, len(m.requests))]
}

// commit has the servers, which are one server or the members of a cluster, apply a
// command that may be applied twice. It returns when those that are neither stopped nor have
// failed have applied it.
func commit(servers []*Server, c *fsm.Command) error {
	done := false
	for _, s := range servers {
		if server, err := s.running(); len(servers) > 1 && (err != nil || server.Err() != nil) {
			continue
		}
		if done {
			c = fsm.Nothing() // it is done once everything before it is applied there
		}
		if err := s.propose(c); err != nil {
			return err
		}
		done = true
	}
	if !done {
		return errors.New("all members are stopped or have failed")
	}
	return nil
}

// name returns what the server is called in messages.
func (s *Server) name() string {
	if s.network != nil {
		return fmt.Sprintf("member %d", s.cfg.ID)
	}
	return "the server"
}

// propose returns when a command that may be applied twice is applied here.
func (s *Server) propose(c *fsm.Command) error {
	name := s.name()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // if the leader is lost
		server, err := s.running()
		if err != nil {
			return fmt.Errorf("%s is stopped", name)
		}
		if err := server.Err(); err != nil {
			return fmt.Errorf("%s has failed: %w", name, err)
		}
		select {
		case err = <-testhooks.Of(server).Propose(c):
			if err == nil {
				return nil
			}
		case <-server.Done(): // closed, or failed
		case <-time.After(time.Until(end)):
			if s.network == nil {
				return fmt.Errorf("%s applies nothing: it cannot write to its disk", name)
			}
			return fmt.Errorf("%s applies nothing: it is not connected to a majority, or cannot write to its disk", name)
		}
	}
}
