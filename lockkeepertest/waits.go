package lockkeepertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/session"
)

// Waits are the methods that wait, with a limit of time: see [Server.Within].
type Waits struct {
	s     *Server   // whose state is awaited
	all   []*Server // whose clients are awaited
	limit time.Duration
	ctx   context.Context // nil for none
}

// Within returns the methods that wait, such as [Server.WaitHeld], with another limit: they fail
// the test if what they wait for takes longer than d. If d is 0, the limit is that of WaitHeld.
//
//	server.Within(5 * time.Second).Gone("/locks/a")
func (s *Server) Within(d time.Duration) Waits { return Waits{s: s, all: []*Server{s}, limit: d} }

// Within is [Server.Within] for a cluster. Requests and Watched are about the clients of all
// members, and the others about the state of the member that leads at the beginning or, if none
// leads, of another one that runs.
func (c *Cluster) Within(d time.Duration) Waits {
	shown := c.servers[0]
	for _, s := range c.servers {
		if role := s.Role(); role == lockkeeper.RoleLeader {
			shown = s
			break
		} else if role != "" && shown.Role() == "" {
			shown = s
		}
	}
	return Waits{s: shown, all: c.servers, limit: d}
}

// WithContext returns the same methods, which also fail the test as soon as ctx ends.
func (w Waits) WithContext(ctx context.Context) Waits {
	w.ctx = ctx
	return w
}

// canceled returns a channel that is closed when the context ends.
func (w Waits) canceled() <-chan struct{} {
	if w.ctx == nil {
		return nil
	}
	return w.ctx.Done()
}

// longest returns how long to wait: as long as all current sessions need to expire, and some more,
// unless there is another limit.
func (w Waits) longest() time.Duration {
	if w.limit > 0 {
		return w.limit
	}
	longest := time.Duration(0)
	for _, x := range w.s.Sessions() {
		longest = max(longest, x.Timeout)
	}
	return longest + patience
}

// state blocks until a state is reached. Otherwise it fails the test with what why returns.
func (w Waits) state(reached func(v *fsm.View) bool, why func() string) {
	w.s.t.Helper()
	w.s.here(w.s.t)
	began, limit := time.Now(), w.longest()
	switch {
	case w.s.awaitState(limit, w.canceled(), reached):
	case time.Since(began) < limit:
		w.s.t.Fatalf("lockkeepertest: %s", why())
	default:
		w.s.t.Fatalf("lockkeepertest: %s (waited %v)", why(), limit)
	}
}

// clients blocks until reached returns true, which only a message of or to a client can change.
func (w Waits) clients(reached func() bool, why func() string) {
	w.s.t.Helper()
	w.s.here(w.s.t)
	limit := w.longest()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		next := w.s.report.messages.awaitNext()
		if reached() {
			return
		}
		select {
		case <-next:
		case <-timer.C:
			w.s.t.Fatalf("lockkeepertest: %s (waited %v)", why(), limit)
		case <-w.canceled():
			w.s.t.Fatalf("lockkeepertest: %v: %s", w.ctx.Err(), why())
		case <-w.s.ended:
			w.s.t.Fatalf("lockkeepertest: the test has ended: %s", why())
		}
	}
}

// WaitHeld blocks until a session holds a lock: either it has the first of the ephemeral
// and sequential children of path, as the recipes of clients have it, or path itself is an
// ephemeral of the session. The client may not know it yet.
//
// The methods that wait do not poll. They see every state that this server applies, also
// one that lasts only for a moment. They fail the test if the state is not reached within
// the longest timeout of the current sessions and another minute, or the limit of
// [Server.Within]. They must be called from the goroutine that runs the test.
func (s *Server) WaitHeld(path string, sessionID int64) {
	s.t.Helper()
	s.Within(0).Held(path, sessionID)
}

// Held is [Server.WaitHeld].
func (w Waits) Held(path string, sessionID int64) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool {
		if n := v.Tree().Lookup(path); n != nil && n.Stat().EphemeralOwner == sessionID {
			return true
		}
		q := queue(v, path)
		return len(q) > 0 && q[0].session == sessionID
	}, func() string {
		return fmt.Sprintf("session %s does not get the lock: %s", session.FormatID(sessionID), w.s.describe(path))
	})
}

// WaitWaiters blocks until exactly n sessions wait behind the holder of a lock. If n is 0,
// the lock may also be free. A session waits from when its znode exists, which is shortly
// before its client watches another znode. See [Server.WaitHeld].
func (s *Server) WaitWaiters(path string, n int) {
	s.t.Helper()
	s.Within(0).Waiters(path, n)
}

// Waiters is [Server.WaitWaiters].
func (w Waits) Waiters(path string, n int) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool { return max(len(queue(v, path))-1, 0) == n },
		func() string { return fmt.Sprintf("the lock does not have %d waiters: %s", n, w.s.describe(path)) })
}

// WaitGone blocks until a znode does not exist. See [Server.WaitHeld].
func (s *Server) WaitGone(path string) {
	s.t.Helper()
	s.Within(0).Gone(path)
}

// Gone is [Server.WaitGone].
func (w Waits) Gone(path string) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool { return v.Tree().Lookup(path) == nil },
		func() string { return "the znode is not deleted: " + w.s.describe(path) })
}

// WaitExists blocks until a znode exists. See [Server.WaitHeld].
func (s *Server) WaitExists(path string) {
	s.t.Helper()
	s.Within(0).Exists(path)
}

// Exists is [Server.WaitExists].
func (w Waits) Exists(path string) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool { return v.Tree().Lookup(path) != nil },
		func() string { return path + " is not created" })
}

// WaitData blocks until a znode exists and has this data. See [Server.WaitHeld].
func (s *Server) WaitData(path string, data []byte) {
	s.t.Helper()
	s.Within(0).Data(path, data)
}

// Data is [Server.WaitData].
func (w Waits) Data(path string, data []byte) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool {
		n := v.Tree().Lookup(path)
		return n != nil && bytes.Equal(n.Record().Data, data)
	}, func() string {
		is, _, err := w.s.Get(path)
		if err != nil {
			return path + " does not exist"
		}
		return fmt.Sprintf("the data of %s is %q, and does not become %q", path, is, data)
	})
}

// WaitChildren blocks until a znode exists and has exactly n children. See [Server.WaitHeld].
func (s *Server) WaitChildren(path string, n int) {
	s.t.Helper()
	s.Within(0).Children(path, n)
}

// Children is [Server.WaitChildren].
func (w Waits) Children(path string, n int) {
	w.s.t.Helper()
	w.state(func(v *fsm.View) bool {
		x := v.Tree().Lookup(path)
		return x != nil && x.NumChildren() == n
	}, func() string {
		_, stat, err := w.s.Get(path)
		if err != nil {
			return path + " does not exist"
		}
		return fmt.Sprintf("%s has %d children, and does not get %d", path, stat.NumChildren, n)
	})
}

// WaitRequests blocks until [Server.Requests] returns at least n requests of which a path matches
// pattern, as in a [Fault]; an empty pattern also matches those without a path. It fails the test
// within the limit of [Server.WaitHeld], and at once if no request has the name op or pattern is
// not valid.
func (s *Server) WaitRequests(op, pattern string, n int) {
	s.t.Helper()
	s.Within(0).Requests(op, pattern, n)
}

// WaitRequests is [Server.WaitRequests] for the requests to all members together.
func (c *Cluster) WaitRequests(op, pattern string, n int) {
	c.t.Helper()
	c.Within(0).Requests(op, pattern, n)
}

// Requests is [Server.WaitRequests].
func (w Waits) Requests(op, pattern string, n int) {
	w.s.t.Helper()
	if err := cmp.Or(checkOp(op), checkPath(pattern)); err != nil {
		w.s.t.Fatalf("lockkeepertest: %v", err)
	}
	count := func() int {
		return len(w.s.report.messages.find(func(r *Request) bool {
			return slices.Contains(w.all, r.server) && r.has(op) && (pattern == "" || slices.ContainsFunc(paths(r.frame), func(p string) bool {
				ok, _ := path.Match(pattern, p)
				return ok
			}))
		}))
	}
	w.clients(func() bool { return count() >= n },
		func() string { return fmt.Sprintf("there are %d such requests, not %d", count(), n) })
}

// WaitWatched blocks until a client that is connected to this server has a watch, of any kind, on
// this path; it need not exist. If sessionID is 0, it may be any client's. Unlike the other
// methods that wait, it may miss a watch that fires at once. See [Server.WaitHeld] for its limit.
func (s *Server) WaitWatched(path string, sessionID int64) {
	s.t.Helper()
	s.Within(0).Watched(path, sessionID)
}

// WaitWatched is [Server.WaitWatched] for the clients of all members.
func (c *Cluster) WaitWatched(path string, sessionID int64) {
	c.t.Helper()
	c.Within(0).Watched(path, sessionID)
}

// Watched is [Server.WaitWatched].
func (w Waits) Watched(path string, sessionID int64) {
	w.s.t.Helper()
	w.clients(func() bool {
		return slices.ContainsFunc(w.all, func(s *Server) bool {
			return slices.ContainsFunc(s.Watches(), func(x Watch) bool {
				return x.Path == path && (sessionID == 0 || x.Session == sessionID)
			})
		})
	}, func() string {
		who := "session " + session.FormatID(sessionID)
		if sessionID == 0 {
			who = "any client"
		}
		return fmt.Sprintf("%s is not watched by %s", path, who)
	})
}

// Leader blocks until a member leads, or one of those with these ids, and returns its id. It fails
// the test if that takes longer than the limit of [Server.WaitHeld]. A server that is no member of a
// cluster leads itself, and its id is 1.
func (w Waits) Leader(among ...int) int {
	w.s.t.Helper()
	w.s.here(w.s.t)
	why := func() string {
		if len(among) > 0 {
			return fmt.Sprintf("none of the members %v leads", among)
		}
		return "no member leads"
	}
	limit := w.longest()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		for _, s := range w.all {
			id := 1
			switch s.Role() {
			case lockkeeper.RoleLeader:
				id = int(s.cfg.ID)
			case lockkeeper.RoleStandalone:
			default:
				continue
			}
			if s.Err() == nil && (len(among) == 0 || slices.Contains(among, id)) {
				return id
			}
		}
		select {
		case <-w.canceled():
			w.s.t.Fatalf("lockkeepertest: %v: %s", w.ctx.Err(), why())
		case <-w.s.ended:
			w.s.t.Fatalf("lockkeepertest: the test has ended: %s", why())
		case <-time.After(time.Millisecond):
		}
	}
	w.s.t.Fatalf("lockkeepertest: %s (waited %v)", why(), limit)
	return 0
}
