// Package lockscan reads the locks of any server that speaks ZooKeeper's protocol, with a
// stock client, and follows them by watches. It learns more about clients and servers from
// four-letter words. Package locks decides what is a lock.
package lockscan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
)

// maxFrame is the length of the longest reply that a client accepts: ZooKeeper does not
// limit a list of children.
const maxFrame = 64 << 20

// Connect opens a session of a stock client. If ctx ends before there is a session, the
// error says what was wrong with each server. It gives up at once if an attempt is
// [connect.Hopeless]. The options come after Connect's own.
func Connect(ctx context.Context, servers []string, timeout time.Duration, o Options) (*zk.Conn, error) {
	ready := make(chan struct{})
	var once sync.Once
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	dialer := cmp.Or(o.Dialer, &connect.Dialer{})
	dialer.OnHopeless = func(h connect.Hopeless) { giveUp(h) }
	open := o.Dial
	if open == nil {
		open = dialer.DialTimeout
	}
	failures := connect.Failures{Dialer: dialer}
	conn, _, err := zk.Connect(servers, timeout, zk.WithLogger(stock.Quiet{}), zk.WithLogInfo(false), zk.WithMaxBufferSize(maxFrame), zk.WithDialer(failures.Watch(open)),
		zk.WithHostProvider(&names{}),
		zk.WithEventCallback(func(e zk.Event) {
			if e.State == zk.StateHasSession {
				once.Do(func() { close(ready) })
			}
			if o.Event != nil {
				o.Event(e)
			}
		}))
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		if o.Auth != nil {
			err = o.Auth(conn)
		}
	case <-ctx.Done():
		if err = context.Cause(ctx); !errors.As(err, &connect.Hopeless{}) {
			err = cmp.Or(failures.Err(ctx), fmt.Errorf("cannot connect to %s: no session", strings.Join(servers, ",")))
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Options are options of [Connect]. Each may be nil.
type Options struct {
	Auth   func(*zk.Conn) error // is called with the new connection
	Event  func(zk.Event)       // is called with the events of the session and of watches; it must not block
	Dialer *connect.Dialer      // opens the network connections; Connect sets its OnHopeless
	Dial   zk.Dialer            // is called instead of Dialer, and calls that
}

// names is a zk.HostProvider that leaves the names of servers to the dialer, since they are in
// the servers' certificates. Otherwise it does what the stock client's own does.
type names struct {
	mu         sync.Mutex
	servers    []string
	curr, last int
}

func (n *names) Init(servers []string) error {
	n.servers, n.curr, n.last = servers, -1, -1
	return nil
}

func (n *names) Len() int { return len(n.servers) }

func (n *names) Next() (server string, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.curr = (n.curr + 1) % len(n.servers)
	all = n.curr == n.last
	n.last = max(n.last, 0)
	return n.servers[n.curr], all
}

func (n *names) Connected() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = n.curr
}

// Scanner reads the znodes below a root and keeps the directories of locks. Only one of its
// methods may be called at a time.
type Scanner struct {
	conn   *zk.Conn
	chroot string // "" or the path below which the paths of callers are; those of dirs and events are the server's
	root   string // of the last Scan

	mu    sync.Mutex
	dirty map[string]bool // directories whose children have changed
	lost  bool            // the watches are gone
	wake  chan struct{}   // has a value if dirty or lost was set

	dirs       map[string]*directory
	data       map[holder]string // texts of data that Describe has read
	unreadable map[string]bool   // no permission
}

// holder is a znode by which a lock is held.
type holder struct {
	path  string
	token int64
}

// directory is a znode that was listed.
type directory struct {
	locks.Directory
	czxid int64
	below []string // the names of its children that are directories
}

// Start opens a session and returns a Scanner that has not read anything yet. All paths that
// callers give and get are below chroot, "" or a path.
func Start(ctx context.Context, servers []string, chroot string, o Options) (*Scanner, error) {
	s := On(nil, chroot)
	o.Event = s.event
	conn, err := Connect(ctx, servers, sessionTimeout, o)
	s.conn = conn
	return s, err
}

// On returns a Scanner over a connection that the caller keeps. Only Scan without watch may
// be called.
func On(conn *zk.Conn, chroot string) *Scanner {
	return &Scanner{conn: conn, chroot: chroot, dirty: map[string]bool{}, wake: make(chan struct{}, 1), dirs: map[string]*directory{}, unreadable: map[string]bool{}}
}

// Full returns the server's path of a znode.
func (s *Scanner) Full(at string) string {
	if at == "/" && s.chroot != "" {
		return s.chroot
	}
	return s.chroot + at
}

// local is the reverse of Full.
func (s *Scanner) local(at string) string { return cmp.Or(strings.TrimPrefix(at, s.chroot), "/") }

const sessionTimeout = 10 * time.Second

// Close ends the session.
func (s *Scanner) Close() { s.conn.Close() }

// Conn returns the connection.
func (s *Scanner) Conn() *zk.Conn { return s.conn }

func (s *Scanner) event(e zk.Event) {
	s.mu.Lock()
	switch {
	case e.Type == zk.EventNodeChildrenChanged, e.Type == zk.EventNodeDeleted, e.Type == zk.EventNodeCreated:
		s.dirty[e.Path] = true
	case e.Type == zk.EventNotWatching, e.State == zk.StateExpired:
		s.lost = true
	default:
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// workers is how many requests are in progress at a time.
const workers = 64

// Scan reads everything below a root. With watch it also sets watches, for Next; then the
// root need not exist yet. If ctx ends before, Scan closes the connection.
func (s *Scanner) Scan(ctx context.Context, root string, watch bool) error {
	s.root = s.Full(root)
	s.mu.Lock()
	clear(s.dirty)
	s.lost = false
	s.mu.Unlock()
	clear(s.dirs)
	clear(s.unreadable)
	if err := s.read(ctx, watch, s.roots()...); err != nil {
		return err
	}
	if s.dirs[s.root] == nil && !s.unreadable[s.root] && !watch {
		return fmt.Errorf("%s does not exist", root)
	}
	return nil
}

// Watched returns the paths that a session watches, as locks have them. It is known if w knows it.
func (s *Scanner) Watched(w *Words, session int64) (paths []string, known bool) {
	all, known := w.Watched(session)
	for _, at := range all {
		paths = append(paths, s.local(at))
	}
	return paths, known
}

// roots returns the znodes to begin with: the queue of a kazoo semaphore is beside it.
func (s *Scanner) roots() []string {
	if s.local(s.root) == "/" {
		return []string{s.root}
	}
	return []string{s.root, s.root + locks.KazooQueue}
}

// Next waits for a change and reads it. Scan must have been called with watch set. If ctx
// ends while Next reads, it closes the connection.
func (s *Scanner) Next(ctx context.Context) error {
	select {
	case <-s.wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	var dirty []string
	for at := range s.dirty {
		if s.dirs[at] != nil || slices.Contains(s.roots(), at) {
			dirty = append(dirty, at)
		}
	}
	clear(s.dirty)
	lost := s.lost
	s.mu.Unlock()
	if lost {
		return s.Scan(ctx, s.local(s.root), true)
	}
	slices.Sort(dirty)
	return s.read(ctx, true, dirty...)
}

// listing is what was read of a znode.
type listing struct {
	at         string
	dir        *directory // nil if it does not exist
	unreadable bool
}

// each calls do for all items, with at most [workers] calls at a time, and returns the results in the same order. After an error,
// which it returns, no more calls begin.
func each[T, R any](items []T, do func(T) (R, error)) ([]R, error) {
	results, errs := make([]R, len(items)), make([]error, len(items))
	var next atomic.Int64
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(workers, len(items)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(items) && !failed.Load(); i = int(next.Add(1)) - 1 {
				if results[i], errs[i] = do(items[i]); errs[i] != nil {
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return results, cmp.Or(errs...)
}

// read lists these znodes, and those below them that are not known yet, level by level.
func (s *Scanner) read(ctx context.Context, watch bool, todo ...string) error {
	stop := context.AfterFunc(ctx, s.conn.Close) // which ends requests that wait for a connection
	defer stop()
	for len(todo) > 0 {
		all, err := each(todo, func(at string) (listing, error) {
			l, err := s.list(ctx, at, s.dirs[at], watch)
			if err != nil {
				err = fmt.Errorf("%s: %w", s.local(at), err)
			}
			return l, err
		})
		if err != nil {
			return cmp.Or(ctx.Err(), err)
		}
		todo = nil
		for _, l := range all {
			todo = append(todo, s.take(l)...)
		}
	}
	return ctx.Err()
}

// take stores a listing and returns the directories below that are new.
func (s *Scanner) take(l listing) (fresh []string) {
	delete(s.unreadable, l.at)
	before := s.dirs[l.at]
	if l.dir == nil {
		s.forget(l.at)
	}
	if l.unreadable {
		s.unreadable[l.at] = true
	}
	if l.dir == nil {
		return nil
	}
	s.dirs[l.at] = l.dir
	for _, name := range l.dir.below {
		if before == nil || !slices.Contains(before.below, name) {
			fresh = append(fresh, path.Join(l.at, name))
		}
	}
	if before != nil {
		for _, name := range before.below {
			if !slices.Contains(l.dir.below, name) {
				s.forget(path.Join(l.at, name))
			}
		}
	}
	return fresh
}

func (s *Scanner) forget(at string) {
	dir := s.dirs[at]
	delete(s.dirs, at)
	delete(s.unreadable, at)
	if dir != nil {
		for _, name := range dir.below {
			s.forget(path.Join(at, name))
		}
	}
}

// list reads the children of a znode, and those of their Stats that matter and that are
// not known from before.
func (s *Scanner) list(ctx context.Context, at string, before *directory, watch bool) (listing, error) {
	l := listing{at: at}
	var names []string
	var stat *zk.Stat
	err := s.retry(ctx, func() (err error) {
		if watch {
			names, stat, _, err = s.conn.ChildrenW(at)
		} else {
			names, stat, err = s.conn.Children(at)
		}
		if errors.Is(err, zk.ErrNoNode) && watch && slices.Contains(s.roots(), at) {
			_, _, _, err = s.conn.ExistsW(at)
			stat = nil
		}
		return err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return l, nil
	case errors.Is(err, zk.ErrNoAuth):
		l.unreadable = true
		return l, nil
	case err != nil || stat == nil:
		return l, err
	}
	l.dir = &directory{czxid: stat.Czxid}
	known := map[string]locks.Node{}
	if before != nil && before.czxid == stat.Czxid {
		for _, n := range before.Nodes { // a sequential name, or a UUID, is never used again
			known[n.Name] = n
		}
	}
	slices.Sort(names)
	var unknown []string
	for _, name := range names {
		n, ok := known[name]
		switch {
		case ok:
			l.dir.Nodes = append(l.dir.Nodes, n)
			if slices.Contains(before.below, name) {
				l.dir.below = append(l.dir.below, name)
			}
		case at == "/" && name == "zookeeper":
		case locks.Interesting(name):
			unknown = append(unknown, name)
		default:
			l.dir.below = append(l.dir.below, name)
		}
	}
	if stat.DataLength > 0 && slices.ContainsFunc(names, locks.Lease) {
		l.dir.Data, _, _ = s.conn.Get(at) // without it, the number of slots is unknown
	}
	var refused atomic.Bool
	stats, err := each(unknown, func(name string) (stat *zk.Stat, err error) {
		err = s.retry(ctx, func() error {
			exists, x, err := s.conn.Exists(path.Join(at, name))
			if exists && err == nil { // the stock client says that it exists, whatever the error
				stat = x
			}
			return err
		})
		if errors.Is(err, zk.ErrNoAuth) {
			refused.Store(true)
			err = nil
		}
		return stat, err
	})
	l.unreadable = refused.Load()
	for i, x := range stats {
		if name := unknown[i]; x != nil {
			l.dir.Nodes = append(l.dir.Nodes, locks.Node{Name: name, Owner: x.EphemeralOwner, Czxid: x.Czxid, Ctime: x.Ctime, Version: x.Version, Length: x.DataLength})
			if x.NumChildren > 0 {
				l.dir.below = append(l.dir.below, name)
			}
		}
	}
	return l, err
}

// retry repeats a read whose answer was lost with its connection.
func (s *Scanner) retry(ctx context.Context, read func() error) error {
	for {
		err := read()
		again := errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved)
		if !again || ctx.Err() != nil {
			return err
		}
	}
}

// Locks returns the locks that the last Scan or Next has found. See [locks.Find].
func (s *Scanner) Locks(any bool) []locks.Lock {
	dirs := make(map[string]*locks.Directory, len(s.dirs))
	for at, dir := range s.dirs {
		dirs[s.local(at)] = &dir.Directory
	}
	return locks.Find(dirs, any)
}

// Describe reads the data of the holders of locks. What it has read before, or may not be read, is
// not read again.
func (s *Scanner) Describe(ctx context.Context, found []locks.Lock) error {
	var all []*locks.Contender
	for i := range found {
		for j := range found[i].Holders {
			all = append(all, &found[i].Holders[j])
		}
	}
	texts, err := each(all, func(c *locks.Contender) (string, error) {
		if old, ok := s.data[holder{c.Path, c.Token}]; ok || c.Length == 0 {
			return old, nil
		}
		var data []byte
		if c.Length <= locks.MaxData {
			err := s.retry(ctx, func() (err error) {
				data, _, err = s.conn.Get(s.Full(c.Path))
				return err
			})
			switch {
			case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNoAuth):
				return "", nil
			case err != nil:
				return "", fmt.Errorf("%s: %w", c.Path, err)
			}
		}
		return locks.DataText(data, max(c.Length, int32(len(data)))), nil
	})
	if err != nil {
		return err
	}
	s.data = map[holder]string{} // without those that are gone
	for i, c := range all {
		c.Data = texts[i]
		s.data[holder{c.Path, c.Token}] = texts[i]
	}
	return nil
}

// Unreadable returns the paths that the client may not read, in order.
func (s *Scanner) Unreadable() (paths []string) {
	for at := range s.unreadable {
		paths = append(paths, s.local(at))
	}
	slices.Sort(paths)
	return paths
}
