package lockkeepertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/session"
)

// Waits are the methods that wait. Those of a [Cluster] wait for the clients of all members, and
// otherwise for the state of the member that leads at the beginning or, if none leads, of another
// one that runs.
//
// They do not poll, except for Leader, and see every state that the server applies, also one that
// lasts only for a moment. They fail the test if what they wait for is not reached within the longest
// timeout of the current sessions and another minute; [Waits.Within] sets another limit. They must
// be called from the goroutine that runs the test.
type Waits struct {
	in    *common
	limit time.Duration
	ctx   context.Context
}

// Within returns the same methods with another limit. If d is 0, it is the usual one.
//
//	server.Within(5 * time.Second).WaitGone("/locks/a")
func (w Waits) Within(d time.Duration) Waits {
	w.limit = d
	return w
}

// WithContext returns the same methods, which also fail the test as soon as ctx ends.
func (w Waits) WithContext(ctx context.Context) Waits {
	w.ctx = ctx
	return w
}

// shown returns the server whose state is awaited.
func (w Waits) shown() *Server {
	shown := w.in.servers[0]
	for _, s := range w.in.servers {
		if role := s.Role(); role == lockkeeper.RoleLeader {
			return s
		} else if role != "" && shown.Role() == "" {
			shown = s
		}
	}
	return shown
}

// context returns the context of a wait, whose cause says why it has ended.
func (w Waits) context(s *Server) (context.Context, context.CancelFunc) {
	w.in.t.Helper()
	w.in.here(w.in.t)
	limit := w.limit
	if limit <= 0 {
		for _, x := range s.Sessions() {
			limit = max(limit, x.Timeout)
		}
		limit += patience
	}
	ctx, end := context.WithCancelCause(w.ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %v", limit))
	ended := context.AfterFunc(s.life, func() { end(errors.New("the test has ended")) })
	return ctx, func() {
		ended()
		cancel()
		end(nil)
	}
}

// state blocks until a state is reached. Otherwise it fails the test with what why returns.
func (w Waits) state(reached func(v *fsm.View) bool, why func(s *Server) string) {
	w.in.t.Helper()
	s := w.shown()
	ctx, cancel := w.context(s)
	defer cancel()
	if !s.awaitState(ctx, reached) {
		w.in.t.Fatalf("lockkeepertest: %s (%v)", why(s), context.Cause(ctx))
	}
}

// clients blocks until reached returns true, which only a message of or to a client can change.
func (w Waits) clients(reached func() bool, why func() string) {
	w.in.t.Helper()
	ctx, cancel := w.context(w.shown())
	defer cancel()
	for {
		next := w.in.report.messages.awaitNext()
		if reached() {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			w.in.t.Fatalf("lockkeepertest: %s (%v)", why(), context.Cause(ctx))
		}
	}
}

// WaitHeld blocks until a session holds a lock: either it has the first of the ephemeral
// and sequential children of path, as the recipes of clients have it, or path itself is an
// ephemeral of the session. The client may not know it yet.
func (w Waits) WaitHeld(path string, sessionID int64) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool {
		if n := v.Tree().Lookup(path); n != nil && n.Stat().EphemeralOwner == sessionID {
			return true
		}
		q := queue(v, path)
		return len(q) > 0 && q[0].session == sessionID
	}, func(s *Server) string {
		return fmt.Sprintf("session %s does not get the lock: %s", session.FormatID(sessionID), s.describe(path))
	})
}

// WaitWaiters blocks until exactly n sessions wait behind the holder of a lock. If n is 0,
// the lock may also be free. A session waits from when its znode exists, which is shortly
// before its client watches another znode.
func (w Waits) WaitWaiters(path string, n int) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool { return max(len(queue(v, path))-1, 0) == n },
		func(s *Server) string {
			return fmt.Sprintf("the lock does not have %d waiters: %s", n, s.describe(path))
		})
}

// WaitGone blocks until a znode does not exist.
func (w Waits) WaitGone(path string) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool { return v.Tree().Lookup(path) == nil },
		func(s *Server) string { return "the znode is not deleted: " + s.describe(path) })
}

// WaitExists blocks until a znode exists.
func (w Waits) WaitExists(path string) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool { return v.Tree().Lookup(path) != nil },
		func(*Server) string { return path + " is not created" })
}

// WaitData blocks until a znode exists and has this data.
func (w Waits) WaitData(path string, data []byte) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool {
		n := v.Tree().Lookup(path)
		return n != nil && bytes.Equal(n.Record().Data, data)
	}, func(s *Server) string {
		is, _, err := s.Get(path)
		if err != nil {
			return path + " does not exist"
		}
		return fmt.Sprintf("the data of %s is %q, and does not become %q", path, is, data)
	})
}

// WaitChildren blocks until a znode exists and has exactly n children.
func (w Waits) WaitChildren(path string, n int) {
	w.in.t.Helper()
	w.state(func(v *fsm.View) bool {
		x := v.Tree().Lookup(path)
		return x != nil && x.NumChildren() == n
	}, func(s *Server) string {
		_, stat, err := s.Get(path)
		if err != nil {
			return path + " does not exist"
		}
		return fmt.Sprintf("%s has %d children, and does not get %d", path, stat.NumChildren, n)
	})
}

// WaitRequests blocks until [Server.Requests] returns at least n requests of which a path matches
// pattern, as in a [Fault]; an empty pattern also matches those without a path. It fails the test
// at once if no request has the name op or pattern is not valid.
func (w Waits) WaitRequests(op, pattern string, n int) {
	w.in.t.Helper()
	if err := cmp.Or(checkOp(op), checkPath(pattern)); err != nil {
		w.in.t.Fatalf("lockkeepertest: %v", err)
	}
	count := func() int {
		return len(w.in.report.messages.find(func(r *Request) bool {
			return slices.Contains(w.in.servers, r.server) && r.has(op) && (pattern == "" || slices.ContainsFunc(paths(r.frame), func(p string) bool {
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
// methods that wait, it may miss a watch that fires at once.
func (w Waits) WaitWatched(path string, sessionID int64) {
	w.in.t.Helper()
	w.clients(func() bool {
		return slices.ContainsFunc(w.in.servers, func(s *Server) bool {
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

// Leader blocks until a member leads, or one of those with these ids, and returns its id. Right after a
// partition it may be the old leader, which takes a moment to notice that it has lost the majority. A
// server that is no member of a cluster leads itself, and its id is 1.
func (w Waits) Leader(among ...int) int {
	w.in.t.Helper()
	ctx, cancel := w.context(w.shown())
	defer cancel()
	for {
		for _, s := range w.in.servers {
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
		case <-ctx.Done():
			who := "no member"
			if len(among) > 0 {
				who = fmt.Sprintf("none of the members %v", among)
			}
			w.in.t.Fatalf("lockkeepertest: %s leads (%v)", who, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
