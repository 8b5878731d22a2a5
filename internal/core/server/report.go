package server

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/diskspace"
	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// This file computes what four-letter words and package admin show: it implements
// report.Server.

var _ report.Server = (*Server)(nil)

// version returns the version with the date in the form of the line whose clients parse it.
func (s *Server) version() string {
	built, _ := time.Parse("2006-01-02 15:04", s.cfg.Built)
	return s.cfg.Version + ", built on " + built.Format(s.cfg.Persona.DateLayout())
}

// quorum describes the cluster. It returns nil if this server is standalone.
func (s *Server) quorum() *report.Quorum {
	if q, ok := s.cfg.Proposer.Quorum(); ok {
		return &q
	}
	return nil
}

func (s *Server) Snapshot() (*fsm.Snapshot, error) {
	if !s.opened.Load() {
		return nil, errors.New("the server is not ready")
	}
	return s.cfg.Replica.State()
}

func (s *Server) Monitor() *report.Monitor {
	m := s.Summary()
	s.cfg.Replica.Browse(func(v *fsm.View, step func()) { m.Quotas = v.Tree().QuotaTotals(step) })
	slices.SortFunc(m.Quotas, func(a, b znode.QuotaTotal) int { return cmp.Compare(a.Namespace, b.Namespace) })
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil { // otherwise the system does not say
		m.OpenFiles, m.MaxFiles = len(fds), fdlimit.Most(math.MaxInt)
	}
	m.Work = s.cfg.Proposer.Work()
	return m
}

// Summary is Monitor without what takes longer: quotas, and file descriptors.
func (s *Server) Summary() *report.Monitor {
	x := &s.stats
	m := &report.Monitor{
		Version: s.version(), Persona: s.cfg.Persona, Serving: s.Serving(), ReadOnly: s.isReadOnly(), Role: s.role(), Quorum: s.quorum(), Uptime: time.Since(s.start),
		Clients: report.Clients{
			Connections: len(s.connections()), Outstanding: x.outstanding.Load(), Received: x.received.Load(), Sent: x.sent.Load(),
			AuthFailed: x.authFailed.Load(), LastReply: x.lastReply.Load(), MinReply: x.minReply.Load(), MaxReply: x.maxReply.Load(),
			TLSHandshakes: s.tlsHandshakes.count(), StaleSessions: s.cfg.Proposer.Expired() - x.staleBase.Load(),
		},
	}
	m.MinLatency, m.AvgLatency, m.MaxLatency = x.latency()
	s.cfg.Replica.View(func(v *fsm.View) {
		t := v.Tree()
		m.Zxid, m.DataBytes, m.Znodes, m.Ephemerals, m.Sessions = v.Zxid(), t.DataSize(), t.Len()+1, t.Ephemerals(), v.Sessions().Len()
		_, _, m.Watches = v.WatchCounts()
	})
	for _, c := range x.counters() {
		m.Counters = append(m.Counters, report.Counter{Key: c.key, Value: c.v.Load()})
	}
	x.mu.Lock()
	for _, namespace := range slices.Sorted(maps.Keys(x.exceeded)) {
		m.Exceeded = append(m.Exceeded, report.Counter{Key: namespace, Value: x.exceeded[namespace]})
	}
	x.mu.Unlock()
	return m
}

func (s *Server) Persona() *persona.Persona { return s.cfg.Persona }

func (s *Server) Config() *report.Config {
	port := func(a net.Addr) int {
		if a, ok := a.(*net.TCPAddr); ok {
			return a.Port
		}
		return -1
	}
	s.mu.Lock()
	plain, secure := port(s.ports.plain), port(s.ports.secure)
	s.mu.Unlock()
	c := &report.Config{
		ID: s.cfg.ID, ClientPort: plain, SecurePort: secure, DataDir: s.cfg.DataDir, DataSize: s.DataSize(), Tick: s.cfg.Tick,
		MaxConnsPerAddr: s.cfg.MaxConnsPerAddr, MinSessionTimeout: s.cfg.MinSessionTimeout, MaxSessionTimeout: s.cfg.MaxSessionTimeout, Quorum: s.quorum(),
	}
	s.cfg.Replica.View(func(v *fsm.View) {
		self, _ := v.Member(s.cfg.ID)
		c.ElectionPort, c.Members = self.ElectionPort, string(v.Members())
	})
	return c
}

// Environment implements report.Server: the properties that ZooKeeper lists, except those of
// Java.
func (s *Server) Environment() []report.Line {
	host, _ := os.Hostname()
	home, _ := os.UserHomeDir()
	dir, _ := os.Getwd()
	name := "<NA>"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	all := []report.Line{
		{Key: "zookeeper.version", Value: s.version()}, {Key: "host.name", Value: host}, {Key: "go.version", Value: runtime.Version()},
		{Key: "os.name", Value: runtime.GOOS}, {Key: "os.arch", Value: runtime.GOARCH},
		{Key: "user.name", Value: name}, {Key: "user.home", Value: home}, {Key: "user.dir", Value: dir},
	}
	if s.cfg.PeerAddr != "" { // whom to ask while this server serves no clients: envi is answered then, too
		all = append(all, report.Line{Key: "lockkeeper.peer", Value: s.cfg.PeerAddr})
	}
	return all
}

func (s *Server) DataSize() (size int64) {
	if s.cfg.DataDir == "" {
		return 0
	}
	filepath.WalkDir(s.cfg.DataDir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

func (s *Server) DataDisk() (free, total uint64, ok bool) {
	if s.cfg.DataDir == "" {
		return 0, 0, false
	}
	return diskspace.Of(s.cfg.DataDir)
}

func (s *Server) Digests() (all []fsm.TreeDigest) {
	s.cfg.Replica.View(func(v *fsm.View) { all = v.Digests() })
	return all
}

// connections returns all connections, the oldest first.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	slices.SortFunc(all, byNumber)
	return all
}

func (s *Server) Connections() (all []report.Connection) {
	for _, c := range s.connections() {
		all = append(all, c.report())
	}
	return all
}

func (s *Server) Clients(find []string) report.ClientList {
	all := s.connections()
	list := report.ClientList{Total: len(all), Some: make([]report.Client, 0, min(len(all), report.MaxClients))}
	for _, c := range oldest(all, report.MaxClients, find[:min(len(find), report.MaxFind)]) {
		list.Some = append(list.Some, c.client())
	}
	return list
}

// oldest returns up to most of the connections, in their order: first those that a text in find
// matches, then others.
func oldest(all []*conn, most int, find []string) []*conn {
	if len(all) <= most {
		return all
	}
	if len(find) == 0 {
		return all[:most]
	}
	matching, others := make([]*conn, 0, most), make([]*conn, 0, most)
	for _, c := range all {
		c.s.mu.Lock()
		x := report.Client{Session: c.session}
		c.s.mu.Unlock()
		x.Addr = c.shown()
		switch {
		case len(matching) < most && slices.ContainsFunc(find, x.Matches):
			matching = append(matching, c)
		case len(others) < most:
			others = append(others, c)
		}
	}
	chosen := append(matching, others[:min(len(others), most-len(matching))]...)
	slices.SortFunc(chosen, byNumber)
	return chosen
}

func byNumber(a, b *conn) int { return int(int64(a.number - b.number)) }

// client is report in short.
func (c *conn) client() report.Client {
	r := c.report()
	x := report.Client{Number: r.Number, Session: r.Session, Addr: r.Addr, Age: time.Since(r.Since), Timeout: r.Timeout, Requests: r.Received}
	if r.Answered > 0 {
		x.Op, x.OpAge = r.Last.Op, time.Since(c.s.start.Add(r.Last.At))
	}
	return x
}

func (c *conn) report() report.Connection {
	const us = time.Microsecond
	x := report.Connection{
		Number: c.number, Addr: c.shown(), Since: c.since, Deadline: c.since.Add(c.s.cfg.HandshakeTimeout),
		Received: c.stats.received.Load(), Sent: c.stats.sent.Load(),
	}
	c.s.mu.Lock()
	x.Session, x.Timeout = c.session, time.Duration(c.timeout)*time.Millisecond
	c.s.mu.Unlock()
	c.mu.Lock()
	x.Queued = c.queued()
	c.mu.Unlock()
	c.stats.mu.Lock()
	last, n, sum, least, most := c.stats.last, c.stats.n, c.stats.sum, c.stats.min, c.stats.max
	c.stats.mu.Unlock()
	if x.Answered = n; n == 0 {
		x.Last = report.Request{Op: "NA", Cxid: -1}
		return x
	}
	x.Last = report.Request{Op: last.op, Cxid: last.cxid, Zxid: last.zxid, At: last.at.Sub(c.s.start), Latency: time.Duration(last.latency) * us}
	x.MinLatency, x.AvgLatency, x.MaxLatency = time.Duration(least)*us, time.Duration(sum/n)*us, time.Duration(most)*us
	return x
}

func (s *Server) Sessions() (*report.Sessions, error) {
	x := &report.Sessions{Expiring: s.cfg.Proposer.Deadlines()}
	role := s.cfg.Proposer.Role()
	x.Tracked = role == "leader" || role == "standalone"
	var all session.List
	s.cfg.Replica.View(func(v *fsm.View) { all = v.Sessions().List() })
	x.All = make([]report.Session, 0, all.Len())
	owned := make([][]znode.Owned, 0, all.Len()) // of each session
	room := s.cfg.OutboxBytes
	s.cfg.Replica.Browse(func(v *fsm.View, step func()) {
		for a := range all.All() {
			step()
			now := v.Sessions().Get(a.ID)
			if now == nil {
				continue // it has ended
			}
			ephemerals := v.Ephemerals(a.ID, step)
			for _, e := range ephemerals {
				room -= len(e.Path) + len("\t\n")
			}
			if room < 0 {
				return
			}
			x.All = append(x.All, report.Session{ID: a.ID, Timeout: time.Duration(a.Timeout) * time.Millisecond, Owner: now.Owner.Server})
			owned = append(owned, ephemerals)
		}
	})
	if room < 0 {
		return nil, report.ErrTooLong
	}
	for i := range x.All {
		x.All[i].Ephemerals = znode.PathsOf(owned[i])
	}
	return x, nil
}

func (s *Server) Ephemerals(most int) (paths []string, ok bool) {
	var all session.List
	n := 0
	s.cfg.Replica.View(func(v *fsm.View) { n, all = v.Tree().Ephemerals(), v.Sessions().List() })
	if n > most {
		return nil, false
	}
	paths = make([]string, 0, n)
	s.cfg.Replica.Browse(func(v *fsm.View, step func()) {
		for a := range all.All() {
			step()
			for _, e := range v.Ephemerals(a.ID, step) {
				paths = append(paths, e.Path)
			}
		}
	})
	return paths, true
}

func (s *Server) WatchCounts() (w report.WatchCounts) {
	s.cfg.Replica.View(func(v *fsm.View) { w.Connections, w.Paths, w.Watches = v.WatchCounts() })
	return w
}

// EachWatch calls f for every pair of a session and a path that it watches, in no
// particular order, until f returns false, as [fsm.Replica.Watches] does.
func (s *Server) EachWatch(f func(session int64, path string) bool) {
	s.cfg.Replica.Watches(func(w fsm.Watcher, path string) bool { return f(w.(*conn).session, path) })
}

func (s *Server) Watches() (report.Watches, error) {
	all := make(report.Watches, 0, s.WatchCounts().Watches)
	room := s.cfg.OutboxBytes
	s.EachWatch(func(id int64, path string) bool {
		all = append(all, report.Watch{Session: id, Path: path})
		room -= min(len(path), len(session.FormatID(id))) + len("\t\n")
		return room >= 0
	})
	if room < 0 {
		return nil, report.ErrTooLong
	}
	return all, nil
}

func (s *Server) ResetConnections() {
	for _, c := range s.connections() {
		c.stats.reset()
	}
}

func (s *Server) ResetCounts() {
	s.stats.resetAll()
	s.stats.staleBase.Store(s.cfg.Proposer.Expired())
	s.cfg.Proposer.ResetProposals()
}

func (s *Server) TraceMask() int64 { return s.traceMask.Load() }

func (s *Server) SetTraceMask(mask int64) { s.traceMask.Store(mask) }

func (s *Server) Read(op proto.OpCode, q, reply proto.Record) error {
	if w, ok := q.(*proto.PathWatch); ok && w.Watch {
		return proto.BadArguments // there is nobody to tell
	}
	if err := s.readable(); err != nil {
		return err
	}
	var out []byte
	var code proto.Code
	s.cfg.Replica.View(func(v *fsm.View) {
		out, code = v.Read(&fsm.Reader{IDs: inProcess, MaxReply: s.cfg.OutboxBytes}, op, q.Append(nil), nil)
	})
	switch code {
	case proto.OK:
		d := jute.NewDecoder(out)
		reply.Decode(&d)
		return d.Err()
	case fsm.ReplyTooLong:
		return report.ErrTooLong
	}
	return code
}

// readable returns why a client in this process that has not authenticated cannot read; nil if it can.
func (s *Server) readable() error {
	switch {
	case !s.Serving() && !s.isReadOnly():
		return report.ErrNotServing
	case !s.authenticated(inProcess):
		return proto.SessionClosedRequireSASLAuth
	}
	return nil
}

func (s *Server) Sync(timeout time.Duration) error {
	w, over := awaited{func(*fsm.View, *fsm.Result) {}, make(chan bool, 1)}, make(chan struct{})
	defer close(over)
	go s.cfg.Proposer.Propose(fsm.Nothing(), w, over) // it may block
	select {
	case ok := <-w.over:
		if !ok {
			return errors.New("the outcome is unknown")
		}
		return nil
	case <-time.After(timeout):
		return errors.New("there was no answer")
	}
}

func (s *Server) View(f func(report.Children)) {
	s.cfg.Replica.View(func(v *fsm.View) {
		f(func(path string, most int) (names []string, n int, ok bool) {
			z := v.Tree().Lookup(path)
			if z == nil {
				return nil, 0, false
			}
			if n = z.NumChildren(); n <= most {
				names = make([]string, 0, n)
				for name := range v.Tree().Children(z) {
					names = append(names, name)
				}
			}
			return names, n, true
		})
	})
}

func (s *Server) Follow(f report.Follower) (stop func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return nil, false
	}
	s.followers.Store(f, nil)
	return func() {
		s.mu.Lock()
		s.followers.Delete(f)
		s.mu.Unlock()
		s.cfg.Replica.View(func(*fsm.View) {}) // until a call of Changed that has begun has returned
	}, true
}

// loseFollowers tells all followers that changes may be missing from now on, and forgets them. The
// caller must hold s.mu.
func (s *Server) loseFollowers() {
	for f := range s.followers.Range {
		f.(report.Follower).Lost()
	}
	s.followers.Clear()
}
