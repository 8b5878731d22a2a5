package lockkeepertest

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Session is a session that exists.
type Session struct {
	ID         int64
	Timeout    time.Duration
	Connected  bool     // this server has a connection of the client
	Ephemerals []string // paths of its ephemeral znodes, in the order of their creation
}

// Watch is a client's watch, of any kind.
type Watch struct {
	Session int64
	Path    string
}

// Lock is a znode with children that are ephemeral and sequential, as the lock recipes
// of go-zookeeper, kazoo and Curator make them. The session of the first child holds the
// lock; if readers share it, the others of them are in the queue.
type Lock struct {
	Path   string
	Holder int64     // session
	Token  int64     // fencing token: the czxid of the holder's znode
	Since  time.Time // when it became the first; if this member did not see that, when its znode was created
	Queue  []int64   // the sessions behind it, in order
}

// look calls f with the server, or with the one that it was if it is stopped.
func (s *Server) look(f func(server testhooks.Server)) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last != nil { // otherwise it could not be opened
		f(testhooks.Of(last))
	}
}

// view calls f with the server's state, or with the last one that it had if it is
// stopped.
func (s *Server) view(f func(v *fsm.View)) {
	s.look(func(server testhooks.Server) { server.View(f) })
}

// Get returns a znode's data and Stat, or zk.ErrNoNode. Like all methods that look inside
// a server, it needs no client, no request and no ACL, and shows what this server has
// applied; of a stopped server, what it had applied.
func (s *Server) Get(path string) (data []byte, stat *zk.Stat, err error) {
	err = zk.ErrNoNode
	s.view(func(v *fsm.View) {
		n := v.Tree().Lookup(path)
		if n == nil {
			return
		}
		data, stat, err = n.Record().Data, new(zk.Stat(n.Stat())), nil
	})
	return data, stat, err
}

// Tree returns the znodes as text, one line each, sorted, with their data and the owners of
// ephemerals. It omits /zookeeper. [WithTree] has the format, which does not change, except that long
// data is shortened.
//
// Tree, Sessions, Watches and Locks do not keep the server from applying changes: if there are
// hundreds of znodes, sessions or watches, what they show may not all be of one moment.
func (s *Server) Tree() string {
	var b strings.Builder
	s.look(func(server testhooks.Server) {
		server.Browse(func(v *fsm.View, step func()) {
			var write func(at string)
			write = func(at string) {
				step()
				n := v.Tree().Lookup(at)
				if n == nil {
					return // it was just deleted
				}
				if at != "/" {
					writeNode(&b, at, n)
				}
				for _, name := range slices.Sorted(v.Tree().Children(n)) {
					if at != "/" || name != "zookeeper" {
						write(path.Join(at, name))
					}
				}
			}
			write("/")
		})
	})
	return b.String()
}

func writeNode(b *strings.Builder, at string, n *znode.Node) {
	r := n.Record()
	b.WriteString(at)
	if len(r.Data) > 0 {
		b.WriteString(" = " + wire.Text(r.Data))
	}
	switch r.Kind {
	case znode.Ephemeral:
		b.WriteString(" (ephemeral of " + session.FormatID(r.Owner) + ")")
	case znode.Container:
		b.WriteString(" (container)")
	case znode.TTL:
		fmt.Fprintf(b, " (TTL %v)", time.Duration(r.Owner)*time.Millisecond)
	}
	b.WriteByte('\n')
}

// Sessions returns the sessions that exist, in order of their ids.
func (s *Server) Sessions() (all []Session) {
	s.look(func(server testhooks.Server) {
		server.Browse(func(v *fsm.View, step func()) {
			for x := range v.Sessions().All() {
				step()
				if v.Sessions().Get(x.ID) != nil { // it has not just ended
					paths := znode.PathsOf(v.Ephemerals(x.ID, step))
					all = append(all, Session{x.ID, time.Duration(x.Timeout) * time.Millisecond, server.Connected(x.ID), paths})
				}
			}
		})
	})
	return all
}

// Watches returns the watches of the clients that are connected to this server, in order
// of session and path. A client's watches of different kinds on the same path are one.
func (s *Server) Watches() (all []Watch) {
	s.look(func(server testhooks.Server) {
		server.Watches(func(session int64, path string) { all = append(all, Watch{session, path}) })
	})
	slices.SortFunc(all, func(a, b Watch) int { return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Path, b.Path)) })
	return slices.Compact(all) // one that went and came back may be there twice
}

// Locks returns the locks that are held, in order of their paths.
func (s *Server) Locks() (all []Lock) {
	s.look(func(server testhooks.Server) {
		server.Browse(func(v *fsm.View, step func()) {
			dirs := map[string]bool{}
			for x := range v.Sessions().All() {
				step()
				for _, e := range v.Ephemerals(x.ID, step) {
					if _, ok := locks.Sequence(e.Path); ok {
						dirs[path.Dir(e.Path)] = true
					}
				}
			}
			for dir := range dirs {
				step()
				q := queue(v, dir)
				if len(q) == 0 { // it was just given back
					continue
				}
				l := Lock{Path: dir, Holder: q[0].session, Token: q[0].czxid, Since: s.changes.since(dir, &q[0])}
				for _, x := range q[1:] {
					l.Queue = append(l.Queue, x.session)
				}
				all = append(all, l)
			}
		})
	})
	slices.SortFunc(all, func(a, b Lock) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// contender is an ephemeral and sequential znode.
type contender struct {
	path           string
	number         int // its sequence number
	session, czxid int64
	ctime          int64
}

// queue returns the contenders below dir in order.
func queue(v *fsm.View, dir string) (all []contender) {
	n := v.Tree().Lookup(dir)
	if n == nil {
		return nil
	}
	for name := range v.Tree().Children(n) {
		number, ok := locks.Sequence(name)
		if !ok {
			continue
		}
		at := path.Join(dir, name)
		if x := v.Tree().Lookup(at).Stat(); v.Sessions().Get(x.EphemeralOwner) != nil {
			all = append(all, contender{at, number, x.EphemeralOwner, x.Czxid, x.Ctime})
		}
	}
	slices.SortFunc(all, func(a, b contender) int {
		return locks.Compare(int64(a.number), a.czxid, int64(b.number), b.czxid)
	})
	return all
}

// changes follows what a server applies. It lasts as long as the [Server], over
// restarts.
type changes struct {
	mu      sync.Mutex
	firsts  map[string]first // by the path of the lock
	waiting map[*waiting]struct{}
	opened  chan struct{} // closed and replaced when a server is opened
}

// first is the contender that became the first of a lock.
type first struct {
	path  string
	czxid int64
	since time.Time
}

// waiting is a call of a Wait method.
type waiting struct {
	reached func(v *fsm.View) bool
	done    chan struct{} // closed when reached has returned true
	again   chan struct{} // closed when the state was replaced
}

// restarted makes the calls that wait look at a server that was opened.
func (c *changes) restarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.opened)
	c.opened = make(chan struct{})
}

// since returns when a contender became the first of a lock.
func (c *changes) since(dir string, q *contender) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.firsts[dir]; f.path == q.path && f.czxid == q.czxid {
		return f.since
	}
	return time.UnixMilli(q.ctime)
}

// note notes who is the first of a lock if a change may have changed that. The caller
// holds mu.
func (c *changes) note(v *fsm.View, x *proto.Change) {
	dir := path.Dir(x.Path)
	if f, ok := c.firsts[dir]; ok {
		if n := v.Tree().Lookup(f.path); n != nil && n.Stat().Czxid == f.czxid {
			return // later ones are behind it
		}
	}
	delete(c.firsts, dir)
	q := queue(v, dir)
	switch {
	case len(q) == 0:
	case x.Kind == proto.NodeDeleted || q[0].path == x.Path:
		c.firsts[dir] = first{q[0].path, q[0].czxid, time.Now()}
	default: // it became the first earlier, unseen
		c.firsts[dir] = first{q[0].path, q[0].czxid, time.UnixMilli(q[0].ctime)}
	}
}

// observer is the fsm.Observer of one run of a server.
type observer struct {
	*changes
	guards *guards
	server atomic.Pointer[lockkeeper.Server] // nil until it is open
}

// replays reports whether what is applied is the past.
func (o *observer) replays() bool {
	server := o.server.Load()
	if server == nil {
		return true
	}
	select {
	case <-server.Ready():
		return false
	default:
		return true
	}
}

func (o *observer) Changed(v *fsm.View, changes []proto.Change) {
	if o.replays() {
		return
	}
	o.guards.changed(v)
	c := o.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range changes {
		x := &changes[i]
		if _, ok := locks.Sequence(x.Path); ok && x.Session != 0 && (x.Kind == proto.NodeCreated || x.Kind == proto.NodeDeleted) {
			c.note(v, x)
		}
	}
	for w := range c.waiting {
		if w.reached(v) {
			close(w.done)
			delete(c.waiting, w)
		}
	}
}

func (o *observer) Restored() {
	c := o.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiting {
		close(w.again)
		delete(c.waiting, w)
	}
}

func (*observer) Applied(uint64, uint64, int) {}
func (*observer) Answered()                   {}
func (*observer) Restoring()                  {}
func (*observer) Failed(error)                {}

// awaitState blocks until a state is reached. It reports false if ctx ends first.
func (s *Server) awaitState(ctx context.Context, reached func(v *fsm.View) bool) bool {
	c := &s.changes
	for {
		c.mu.Lock()
		opened := c.opened
		c.mu.Unlock()
		var ready <-chan struct{}
		server, err := s.running()
		if err == nil {
			ready = server.Ready()
		}
		select {
		case <-ready:
		case <-opened:
			continue
		case <-ctx.Done():
			return false
		}
		w := &waiting{reached, make(chan struct{}), make(chan struct{})}
		testhooks.Of(server).View(func(v *fsm.View) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if reached(v) {
				close(w.done)
			} else {
				c.waiting[w] = struct{}{}
			}
		})
		select {
		case <-w.done:
		case <-w.again:
		case <-opened:
		case <-ctx.Done():
		}
		c.mu.Lock()
		delete(c.waiting, w)
		c.mu.Unlock()
		select {
		case <-w.done: // perhaps just now
			return true
		default:
			if ctx.Err() != nil {
				return false
			}
		}
	}
}

// describe returns who holds a lock, for messages.
func (s *Server) describe(path string) string {
	for _, l := range s.Locks() {
		if l.Path == path {
			return l.String()
		}
	}
	if _, stat, err := s.Get(path); err != nil {
		return path + " does not exist"
	} else if stat.EphemeralOwner != 0 {
		return path + " is an ephemeral of " + session.FormatID(stat.EphemeralOwner)
	}
	return path + " has no ephemeral and sequential children"
}

// String formats the lock as one line.
func (l Lock) String() string {
	var queue []string
	for _, id := range l.Queue {
		queue = append(queue, session.FormatID(id))
	}
	text := fmt.Sprintf("%s is held by %s since %s with token %#x", l.Path, session.FormatID(l.Holder), l.Since.Format("15:04:05.000"), l.Token)
	if len(queue) > 0 {
		text += "; waiting: " + strings.Join(queue, " ")
	}
	return text
}
