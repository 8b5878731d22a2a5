package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// client is a client with a session of its own, which it moves from server to server.
// Only one goroutine uses it.
type client struct {
	s               *sim
	id              int
	rng             *rand.Rand
	host            memnet.Host
	timeout         time.Duration
	lazy            bool  // pings as rarely as the timeout allows
	mute            bool  // does not ping
	version         int64 // of the members, when it last read them
	acceptsReadOnly bool  // accepts read-only connections
	tags            int

	conn    *conn              // nil if there is none
	session proto.ConnectReply // id 0 if there is none

	mu   sync.Mutex
	last int64 // last zxid that the session has seen

	// The session's watches, as far as the client knows, and the connection that it
	// is on; guarded by h.mu.
	newest *conn // nil while the client looks for another one
	left   int   // when it left its last connection
	knownWatches
}

// knownWatches are the watches that a client knows to be set.
type knownWatches struct {
	watching   map[oneShot]bool // whether the znode did not exist
	persistent map[persistentWatch]bool
}

func (k knownWatches) clone() knownWatches {
	return knownWatches{maps.Clone(k.watching), maps.Clone(k.persistent)}
}

func (k knownWatches) empty() bool { return len(k.watching)+len(k.persistent) == 0 }

func (k knownWatches) clear() {
	clear(k.watching)
	clear(k.persistent)
}

// oneShot is a one-shot watch of a znode, or of its children.
type oneShot struct {
	child bool
	path  string
}

type persistentWatch struct {
	recursive bool
	path      string
}

type conn struct {
	c      *client
	nc     net.Conn
	raw    *rawclient.Client
	log    *ConnLog
	gone   chan struct{} // closed when the connection has ended
	events chan struct{} // has an element when an event has come
	turn   chan struct{} // full while requests are being sent, which may have to wait for the server to read

	mu      sync.Mutex
	pending []*Op // in the order in which they were sent
	xids    []int32
	xid     int32
	lazy    bool   // the client's, when it connected
	user    string // whose identity it has; "" for nobody's
	over    bool
	last    int64 // last zxid seen, here or before on another connection
}

func (s *sim) newClient(timeout time.Duration) *client {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	id := len(s.clients) + 1
	c := &client{
		s: s, id: id, rng: s.stream(1000 + id), host: s.net.Host(clientHost(id)), timeout: timeout,
		knownWatches: knownWatches{map[oneShot]bool{}, map[persistentWatch]bool{}},
	}
	s.clients = append(s.clients, c)
	return c
}

// watchersAt counts the clients connected to a member that have watches. h.mu must be
// held.
func (s *sim) watchersAt(member uint64) (n int) {
	for _, c := range s.clients {
		if k := c.newest; k != nil && k.log.Server == int(member) && !k.dead() && !c.empty() {
			n++
		}
	}
	return n
}

func clientHost(id int) string { return fmt.Sprintf("client%d", id) }

// tag returns data that nobody else writes.
func (c *client) tag() string {
	c.tags++
	return fmt.Sprintf("c%d-%d", c.id, c.tags)
}

// errExpired is what a client gets when it tries to resume a session that has ended.
var errExpired = errors.New("sim: session expired")

// connect connects the client, unless it is connected, and tries until it succeeds or
// the run is over. It resumes the client's session if there is one. If the session has
// ended, connect forgets it and returns errExpired.
func (c *client) connect() error {
	if c.conn != nil && !c.conn.dead() {
		return nil
	}
	c.conn = nil
	for !c.s.over() {
		err := c.try(1 + c.rng.IntN(len(c.s.members)))
		if err == nil || errors.Is(err, errExpired) {
			return err
		}
		c.s.sleep(time.Duration(10+c.rng.IntN(200)) * time.Millisecond)
	}
	return errOver
}

var errOver = errors.New("sim: the run is over")

func (c *client) dial(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.host.Dial(ctx, addr)
}

func (c *client) try(server int) error {
	nc, err := c.dial(clientAddr(server), min(c.timeout/3, 3*time.Second))
	h := c.s.h
	failed := func() {
		h.mu.Lock()
		h.Failed = append(h.Failed, Moment{h.now(), uint64(server)})
		h.mu.Unlock()
	}
	if err != nil {
		failed()
		return err
	}
	raw := rawclient.New(nc)
	raw.Timeout = min(c.timeout*2/3, 10*time.Second)
	h.mu.Lock()
	if c.newest != nil {
		c.newest, c.left = nil, h.next()
	}
	if c.session.SessionID == 0 { // there was none, or only one of a read-only server, which ends with its connection
		c.left = 0
		c.clear()
	}
	h.mu.Unlock()
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	q := rawclient.NewSession(c.timeout)
	q.LastZxidSeen, q.ReadOnly = last, c.acceptsReadOnly
	resumes := c.session.SessionID
	if resumes != 0 {
		q.SessionID, q.Password = resumes, c.session.Password
	}
	called := h.now()
	if err := raw.Handshake(q); err != nil {
		nc.Close()
		if errors.Is(err, rawclient.ErrRefused) {
			c.forget()
			return errExpired
		}
		failed()
		h.mu.Lock()
		h.FailedResumes[resumes] = h.now()
		h.mu.Unlock()
		return err
	}
	if resumes != 0 && raw.Session.SessionID != resumes {
		c.s.h.violate("session", "client %d resumes session %x and gets %x", c.id, resumes, raw.Session.SessionID)
	}
	if raw.Session.Timeout != q.Timeout {
		c.s.h.violate("session", "client %d asks for a timeout of %d ms and gets %d", c.id, q.Timeout, raw.Session.Timeout)
	}
	readOnly := raw.Session.ReadOnly
	if readOnly && !(c.acceptsReadOnly && c.s.opts.ReadOnly) {
		c.s.h.violate("read-only", "client %d gets a read-only connection to member %d, which it did not ask for", c.id, server)
	}
	if !readOnly {
		c.session = raw.Session
	}
	if c.lazy || c.mute {
		raw.Timeout = 2 * c.timeout
	}
	k := &conn{c: c, last: last, lazy: c.lazy, nc: nc, raw: raw, gone: make(chan struct{}), events: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	h.mu.Lock()
	k.log = &ConnLog{
		ID: len(h.Conns), Seq: h.next(), CallAt: called, At: h.now(), Client: c.id, Server: server, Left: c.left,
		Session: raw.Session.SessionID, Timeout: time.Duration(raw.Session.Timeout) * time.Millisecond, ReadOnly: readOnly,
	}
	h.Conns = append(h.Conns, k.log)
	c.newest = k
	again := c.setWatches()
	h.mu.Unlock()
	if again != nil {
		k.start(again)
	}
	c.conn = k
	c.s.wg.Go(k.read)
	if !c.mute {
		c.s.wg.Go(k.ping)
	}
	return nil
}

// setWatches returns the request that stock clients begin a connection with: it sets the
// session's watches again, and reports what has changed since the client's last zxid.
// It returns nil if the session has no watches. h.mu must be held.
func (c *client) setWatches() *Op {
	if c.empty() {
		return nil
	}
	c.mu.Lock()
	q := &proto.SetWatches2Request{SetWatchesRequest: proto.SetWatchesRequest{RelativeZxid: c.last}}
	c.mu.Unlock()
	for w, absent := range c.watching {
		switch {
		case w.child:
			q.Child = append(q.Child, w.path)
		case absent:
			q.Exist = append(q.Exist, w.path)
		default:
			q.Data = append(q.Data, w.path)
		}
	}
	for w := range c.persistent {
		if w.recursive {
			q.Recursive = append(q.Recursive, w.path)
		} else {
			q.Persistent = append(q.Persistent, w.path)
		}
	}
	for _, list := range [][]string{q.Data, q.Exist, q.Child, q.Persistent, q.Recursive} {
		slices.Sort(list)
	}
	o := &Op{Code: proto.OpSetWatches, Origin: Origin{Client: c.id}, Set: q, Unsynced: true}
	if len(c.persistent) > 0 || c.newest.log.ID%2 == 0 {
		o.Code = proto.OpSetWatches2
	}
	return o
}

// note records the watch that a request has set, if it has.
func (k knownWatches) note(o *Op) {
	absent := o.Code == proto.OpExists && o.Err == proto.NoNode
	switch {
	case o.Code == proto.OpAddWatch && o.Err == proto.OK:
		k.persistent[persistentWatch{o.Recursive, o.Path}] = true
	case o.Watch && (o.Err == proto.OK || absent):
		w := oneShot{o.Code == proto.OpGetChildren, o.Path}
		if _, ok := k.watching[w]; !ok {
			k.watching[w] = absent
		}
	}
}

// fired removes the one-shot watches that an event uses up.
func (k knownWatches) fired(e proto.EventType, path string) {
	if e != proto.EventNodeChildrenChanged {
		delete(k.watching, oneShot{false, path})
	}
	if e == proto.EventNodeChildrenChanged || e == proto.EventNodeDeleted {
		delete(k.watching, oneShot{true, path})
	}
}

// forget drops the session and its connection.
func (c *client) forget() {
	c.drop()
	c.s.h.mu.Lock()
	c.s.h.KnownEnded[c.session.SessionID] = c.s.h.now()
	c.newest, c.left = nil, 0
	c.clear()
	c.s.h.mu.Unlock()
	c.session = proto.ConnectReply{}
	c.mu.Lock()
	c.last = 0
	c.mu.Unlock()
}

func (c *client) drop() {
	if c.conn != nil {
		c.conn.end()
		c.conn = nil
	}
}

func (k *conn) dead() bool {
	select {
	case <-k.gone:
		return true
	default:
		return false
	}
}

// end closes the connection. The outcome of pending requests stays unknown.
func (k *conn) end() {
	k.nc.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.over = true
	k.c.s.h.mu.Lock()
	k.log.Ended = k.c.s.h.now()
	k.c.s.h.mu.Unlock()
	for _, o := range k.pending {
		close(o.done)
	}
	k.pending = nil
	close(k.gone)
}

func (k *conn) ping() {
	for {
		every := k.c.timeout / 3
		if k.lazy {
			every = k.c.timeout * time.Duration(50+k.c.s.shared.IntN(45)) / 100
		}
		select {
		case <-time.After(every):
		case <-k.gone:
			return
		}
		k.start(&Op{Code: proto.OpPing, Origin: Origin{Client: k.c.id}, Unsynced: true})
	}
}

// start sends requests in one write. An op's done is closed when its reply has come or
// the connection has ended.
func (k *conn) start(ops ...*Op) {
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	if b := k.queue(ops); len(b) > 0 {
		k.nc.SetWriteDeadline(time.Now().Add(k.c.timeout))
		k.nc.Write(b) // after an error, read fails too
	}
}

// queue notes requests as sent, and returns their bytes.
func (k *conn) queue(ops []*Op) (b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.c.s.h
	for _, o := range ops {
		o.done = make(chan struct{})
		if k.over {
			close(o.done)
			continue
		}
		h.mu.Lock()
		o.ID, o.Conn, o.Server, o.Session, o.ReadOnly = len(h.Ops), k.log.ID, k.log.Server, k.log.Session, k.log.ReadOnly
		o.Call, o.CallAt = h.next(), h.now()
		h.Ops = append(h.Ops, o)
		h.mu.Unlock()
		if o.Code != proto.OpAuth {
			o.User = k.user
		}
		var xid int32
		switch o.Code {
		case proto.OpPing:
			xid = proto.XidPing
		case proto.OpSetWatches, proto.OpSetWatches2:
			xid = proto.XidSetWatches
		case proto.OpAuth:
			xid, k.user = proto.XidAuth, o.User
		default:
			k.xid++
			xid = k.xid
		}
		k.pending, k.xids = append(k.pending, o), append(k.xids, xid)
		b = append(b, rawclient.Request(nil, xid, o.Code, o.body())...)
	}
	return b
}

// data is what the op writes. To keep the history small, it does not have the padding.
func (o *Op) data() []byte { return append([]byte(o.Tag), bytes.Repeat([]byte{padding}, o.Pad)...) }

const padding = '~'

func unpadded(data []byte) string { return string(bytes.TrimRight(data, string(padding))) }

func (o *Op) body() proto.Record {
	switch o.Code {
	case proto.OpCreate, proto.OpCreateContainer, proto.OpCreateTTL:
		q := &proto.CreateRequest{Path: o.Path, Data: o.data(), ACL: o.acl(), Flags: o.Flags}
		if o.Code == proto.OpCreateTTL {
			return &proto.CreateTTLRequest{CreateRequest: *q, TTL: o.TTL.Milliseconds()}
		}
		return q
	case proto.OpSetData:
		return &proto.SetDataRequest{Path: o.Path, Data: o.data(), Version: o.Version}
	case proto.OpDelete:
		return &proto.PathVersion{Path: o.Path, Version: o.Version}
	case proto.OpGetData, proto.OpExists, proto.OpGetChildren:
		return &proto.PathWatch{Path: o.Path, Watch: o.Watch}
	case proto.OpAddWatch:
		q := &proto.PathType{Path: o.Path}
		if o.Recursive {
			q.Type = 1
		}
		return q
	case proto.OpSetWatches:
		return &o.Set.SetWatchesRequest
	case proto.OpSetWatches2:
		return o.Set
	case proto.OpReconfig:
		return &proto.ReconfigRequest{Joining: proto.Path{Path: o.Path}, Leaving: proto.Path{Path: jute.Null}, NewMembers: proto.Path{Path: jute.Null}, ConfigID: o.Version64}
	case proto.OpSync:
		return &proto.Path{Path: o.Path}
	case proto.OpAuth:
		return &proto.AuthRequest{Scheme: "digest", Auth: []byte(o.User + ":" + secretOf(o.User))}
	case proto.OpMulti:
		q := &proto.MultiRequest{}
		for _, p := range o.More {
			var r proto.Record
			switch p.Code {
			case proto.OpSetData:
				r = &proto.SetDataRequest{Path: p.Path, Data: []byte(p.Tag), Version: p.Version}
			case proto.OpCheck:
				r = &proto.PathVersion{Path: p.Path, Version: p.Version}
			case proto.OpCreate:
				r = &proto.CreateRequest{Path: p.Path, Data: []byte(p.Tag), ACL: proto.OpenACL}
			case proto.OpDelete:
				r = &proto.PathVersion{Path: p.Path, Version: p.Version}
			}
			q.Ops = append(q.Ops, proto.MultiOp{Op: p.Code, Request: r})
		}
		return q
	}
	return nil
}

// superUser may do everything.
const superUser = "super"

func secretOf(user string) string { return "secret of " + user }

// acl is the ACL of the znode that the op creates.
func (o *Op) acl() []proto.ACL {
	if o.Owner == "" {
		return proto.OpenACL
	}
	x := zk.DigestACL(zk.PermAll, o.Owner, secretOf(o.Owner))[0]
	return []proto.ACL{{Perms: x.Perms, ID: proto.ID{Scheme: x.Scheme, ID: x.ID}}}
}

func (k *conn) read() {
	defer k.end()
	h := k.c.s.h
	for {
		f, err := k.raw.Read()
		if err != nil {
			h.mu.Lock()
			k.log.ByServer = !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed)
			h.mu.Unlock()
			return
		}
		if !k.take(h, &f) {
			return
		}
	}
}

func (k *conn) take(h *History, f *rawclient.Frame) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return false // the client has left the connection
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	x := Frame{Seq: h.next(), At: h.now(), Zxid: f.Zxid, OpID: -1}
	if f.Zxid > 0 {
		if f.Zxid < k.last {
			h.violateLocked("session order", "client %d, session %x, connection %d: zxid %x after %x", k.c.id, k.log.Session, k.log.ID, f.Zxid, k.last)
		}
		k.last = f.Zxid
		if k == k.c.newest { // otherwise the session has moved on
			k.c.mu.Lock()
			k.c.last = max(k.c.last, k.last)
			k.c.mu.Unlock()
		}
	}
	if e, ok := f.Event(); ok {
		x.Event, x.Path = e.Type, e.Path
		k.log.Frames = append(k.log.Frames, x)
		if k == k.c.newest {
			k.c.fired(e.Type, e.Path)
		}
		select {
		case k.events <- struct{}{}:
		default:
		}
		return true
	}
	if len(k.pending) == 0 || k.xids[0] != f.Xid {
		h.violateLocked("session order", "client %d, connection %d: reply with xid %d while %v are pending", k.c.id, k.log.ID, f.Xid, k.xids)
		return false
	}
	o := k.pending[0]
	k.pending, k.xids = k.pending[1:], k.xids[1:]
	o.Ret, o.RetAt, o.Zxid, o.Err = x.Seq, x.At, f.Zxid, f.Code
	if f.Code == proto.OK {
		if err := o.decode(f); err != nil {
			h.violateLocked("protocol", "client %d, connection %d, op %d: %v", k.c.id, k.log.ID, o.ID, err)
		}
	}
	x.Op, x.OpID = o, o.ID
	k.log.Frames = append(k.log.Frames, x)
	if k == k.c.newest {
		k.c.note(o)
	}
	close(o.done)
	return true
}

func (o *Op) decode(f *rawclient.Frame) error {
	var path proto.PathReply
	var made proto.PathStatReply
	var data proto.DataReply
	var children proto.ChildrenReply
	var multi proto.MultiReply
	var r proto.Record
	switch o.Code {
	case proto.OpCreate:
		r = &path
	case proto.OpCreateContainer, proto.OpCreateTTL:
		r = &made
	case proto.OpSetData, proto.OpExists:
		r = &data.Stat
	case proto.OpGetData, proto.OpReconfig:
		r = &data
	case proto.OpGetChildren:
		r = &children
	case proto.OpMulti:
		r = &multi
	default:
		return nil
	}
	err := f.Decode(r)
	o.GotPath, o.GotData, o.GotChildren = path.Path+made.Path, unpadded(data.Data), children.Names
	o.GotVersion, o.GotCzxid = data.Stat.Version, data.Stat.Czxid
	for _, x := range multi.Results { // the reply's own code is OK even if one failed
		o.Err = cmp.Or(o.Err, x.Code)
	}
	return err
}

// do sends a request and waits for its reply. The op is not Known if the connection
// was lost first.
func (c *client) do(o *Op) *Op {
	c.send(o)
	<-o.done
	return o
}

func (c *client) send(o *Op) *Op {
	c.sendAll(o)
	return o
}

func (c *client) sendAll(ops ...*Op) {
	for _, o := range ops {
		o.Client = c.id
		if c.conn == nil {
			o.done = make(chan struct{})
			close(o.done)
		}
	}
	if c.conn != nil {
		c.conn.start(ops...)
	}
}

// awaitEvent waits for an event and reports whether one came before the connection
// ended or the given time was over.
func (c *client) awaitEvent(most time.Duration) bool {
	if c.conn == nil {
		return false
	}
	select {
	case <-c.conn.events:
		return true
	case <-c.conn.gone:
	case <-time.After(most):
	case <-c.s.done:
	}
	return false
}
