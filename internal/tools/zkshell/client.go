package zkshell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// State is the state of the session, with ZooKeeper's names (ZooKeeper.States).
type State string

// The states of a session. AuthFailed and Closed are final.
const (
	Connecting        State = "CONNECTING"
	Connected         State = "CONNECTED"
	ConnectedReadOnly State = "CONNECTEDREADONLY"
	AuthFailed        State = "AUTH_FAILED"
	Closed            State = "CLOSED"
)

func (s State) alive() bool     { return s != AuthFailed && s != Closed }
func (s State) connected() bool { return s == Connected || s == ConnectedReadOnly }

// codeConnectionLoss is a code that only clients use (KeeperException.Code).
const codeConnectionLoss proto.Code = -4

// Auth is a proof of identity, as addauth takes it.
type Auth struct {
	Scheme string
	Auth   []byte
}

// Event is a watch event or a change of the session's state, with ZooKeeper's names.
type Event struct {
	State string `json:"state"`
	Type  string `json:"type"`
	Path  string `json:"path,omitempty"` // "" if Type is None
	Zxid  int64  `json:"zxid"`           // -1 unless the server sent the event
}

// client is a session. It survives the loss of its connection as ZooKeeper's Java client
// does (ClientCnxn): it tries one server after another, presents its identities, and sets
// its watches again. Requests in progress then fail with codeConnectionLoss, since nobody
// knows whether the server has executed them.
//
// It is safe for concurrent use. Its goroutine, run, starts one more for each connection,
// which sends pings and ends with the connection.
type client struct {
	hosts  []string // HOST:PORT
	chroot string   // "" or a path; the user's paths are relative to it
	cfg    *Config
	events func(Event) // called by run, in order
	note   func(error) // called by run with an error that it cannot mend

	cancel context.CancelFunc // ends run
	done   chan struct{}      // closed when run has ended

	writing sync.Mutex // held while a request is written; locked before mu

	link
	progress
}

// link is the connection of a client, and what goes over it: its requests, and the
// identities and watches that the next connection gets too. mu guards it.
type link struct {
	mu       sync.Mutex
	state    State
	changed  chan struct{} // closed and replaced when state or attempts changes
	attempts int           // failed attempts to connect, and connections lost
	conn     *rawclient.Client
	pending  []*call // sent, in the order of their replies
	sent     time.Time
	xid      int32 // of the last request
	closing  bool
	auths    []Auth
	watches  watches
}

// progress is how far the session has come from server to server. Only run uses it.
type progress struct {
	next       int // index in hosts
	session    proto.ConnectReply
	lastZxid   int64
	lastHeard  time.Time
	eventState string // of the last event of type None
}

type call struct {
	xid    int32
	frame  rawclient.Frame
	err    error            // a proto.Code, or nil
	finish func(proto.Code) // runs before later frames are read; may be nil
	done   chan struct{}
}

// parseServers parses a connect string (ConnectStringParser), with ZooKeeper's words for errors.
func parseServers(s string) (hosts []string, chroot string, err error) {
	hosts, chroot, err = connect.Parse(s)
	if errors.Is(err, connect.ErrNone) {
		err = errors.New("A HostProvider may not be empty!") //lint:ignore ST1005 ZooKeeper's words
	}
	if err == nil && chroot != "" {
		err = checked(chroot)
	}
	return hosts, chroot, err
}

// open starts a session. Connecting happens in the background, until ctx ends or close is
// called.
func open(ctx context.Context, cfg *Config, servers string, auths []Auth, events func(Event), note func(error)) (*client, error) {
	hosts, chroot, err := parseServers(servers)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	c := &client{
		hosts: hosts, chroot: chroot, cfg: cfg, events: events, note: note,
		done:     make(chan struct{}),
		link:     link{state: Connecting, changed: make(chan struct{}), auths: slices.Clone(auths), watches: watches{}},
		progress: progress{lastHeard: time.Now(), eventState: "Disconnected"},
	}
	ctx, c.cancel = context.WithCancel(ctx)
	go c.run(ctx)
	return c, nil
}

// run keeps the session connected until it ends.
func (c *client) run(ctx context.Context) {
	defer close(c.done)
	was := false    // connected before
	var why []error // what was wrong with each server, before that
	for round := 0; ctx.Err() == nil && c.current().alive(); round++ {
		wait := time.Duration(0)
		if was { // so that the clients of a failed server do not all come at once
			wait = rand.N(time.Second)
		} else if round > 0 && round%len(c.hosts) == 0 {
			wait = time.Second
		}
		if sleep(ctx, wait) != nil {
			break
		}
		conn, err := c.connect(ctx)
		switch {
		case errors.As(err, &connect.Hopeless{}):
			c.note(err)
		case err != nil && !was && round < len(c.hosts) && ctx.Err() == nil:
			addr := c.hosts[round]
			if why = append(why, fmt.Errorf("cannot connect to %s: %w", addr, err)); errors.Is(err, io.EOF) {
				why[round] = &connect.NotServing{Server: addr}
			}
			if len(why) == len(c.hosts) {
				c.note(errors.New(strings.ReplaceAll(errors.Join(c.cfg.Explain(ctx, why)...).Error(), "\n", "; ")))
			}
		}
		if err == nil {
			c.serve(ctx, conn)
			round, was = -1, true
		}
		switch {
		case errors.Is(err, rawclient.ErrRefused),
			c.session.SessionID != 0 && time.Since(c.lastHeard) > c.negotiated()*4/3:
			c.fail(Closed)
			c.tell("Expired")
		case c.current().alive() && ctx.Err() == nil:
			if c.fail(Connecting) {
				c.tell("Disconnected")
			}
		}
	}
	if c.current().alive() {
		c.fail(Closed)
		c.tell("Closed")
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (c *client) negotiated() time.Duration {
	if t := time.Duration(c.session.Timeout) * time.Millisecond; t > 0 {
		return t
	}
	return c.cfg.Timeout
}

func (c *client) tell(state string) {
	if c.eventState != state {
		c.eventState = state
		c.events(Event{State: state, Type: "None", Zxid: -1})
	}
}

func (c *client) current() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// fail makes s the state of a session without a connection, and ends the requests in
// progress. It reports whether nobody has called close.
func (c *client) fail(s State) bool {
	c.mu.Lock()
	c.state = s
	c.attempts++
	c.conn = nil
	lost, calls, open := c.lost(), c.pending, !c.closing
	c.pending = nil
	c.wake()
	c.mu.Unlock()
	for _, q := range calls {
		q.err = lost
		q.end()
	}
	return open
}

// lost returns the code with which requests fail that cannot be sent.
func (c *client) lost() proto.Code {
	switch c.state {
	case AuthFailed:
		return proto.AuthFailed
	case Closed:
		return proto.SessionExpired
	}
	return codeConnectionLoss
}

// wake wakes those who wait for a change. c.mu is held.
func (c *client) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (q *call) end() {
	if q.finish != nil {
		if code, ok := q.err.(proto.Code); ok || q.err == nil {
			q.finish(code)
		}
	}
	close(q.done)
}

// connect makes one attempt to connect to a server.
func (c *client) connect(ctx context.Context) (*rawclient.Client, error) {
	addr := c.hosts[c.next%len(c.hosts)]
	c.next++
	limit := c.negotiated() / time.Duration(len(c.hosts))
	dialing, cancel := context.WithTimeout(ctx, limit)
	nc, err := c.cfg.Dial(dialing, "tcp", addr)
	cancel()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	conn := rawclient.New(nc)
	conn.Timeout = limit
	q := rawclient.NewSession(c.cfg.Timeout)
	q.LastZxidSeen, q.ReadOnly = c.lastZxid, c.cfg.ReadOnly
	if c.session.Password != nil {
		q.SessionID, q.Password = c.session.SessionID, c.session.Password
	}
	if err := conn.Handshake(q); err != nil {
		nc.Close()
		return nil, err
	}
	conn.Timeout = time.Duration(conn.Session.Timeout) * time.Millisecond * 2 / 3
	c.lastHeard = time.Now()
	if c.session = conn.Session; conn.Session.ReadOnly {
		c.session.SessionID = 0 // only servers with a majority know sessions
	}
	return conn, nil
}

// serve reads a connection until it ends.
func (c *client) serve(ctx context.Context, conn *rawclient.Client) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	state, event := Connected, "SyncConnected"
	if conn.Session.ReadOnly {
		state, event = ConnectedReadOnly, "ConnectedReadOnly"
	}
	if c.prime(conn) == nil {
		c.tell(event)
		c.mu.Lock()
		c.conn, c.state, c.sent = conn, state, time.Now()
		c.wake()
		c.mu.Unlock()
		pinging := make(chan struct{})
		go func() {
			defer close(pinging)
			c.ping(ctx, conn)
		}()
		for c.read(conn) == nil {
		}
		cancel()
		<-pinging
	}
	cancel()
	stop()
	conn.Close()
}

// prime presents the identities and sets the watches on a new connection. The replies are
// read like others.
func (c *client) prime(conn *rawclient.Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b []byte
	for _, a := range c.auths {
		b = rawclient.Request(b, proto.XidAuth, proto.OpAuth, &proto.AuthRequest{Scheme: a.Scheme, Auth: a.Auth})
		c.pending = append(c.pending, &call{xid: proto.XidAuth, done: make(chan struct{})})
	}
	for q := range c.watches.requests(c.lastZxid, c.server) {
		op := proto.OpSetWatches2
		var body proto.Record = q
		if len(q.Persistent)+len(q.Recursive) == 0 { // servers before 3.6 know only this one
			op, body = proto.OpSetWatches, &q.SetWatchesRequest
		}
		b = rawclient.Request(b, proto.XidSetWatches, op, body)
		c.pending = append(c.pending, &call{xid: proto.XidSetWatches, done: make(chan struct{})})
	}
	if len(b) == 0 {
		return nil
	}
	return conn.Write(b)
}

// ping keeps a connection alive while nothing else is sent.
func (c *client) ping(ctx context.Context, conn *rawclient.Client) {
	every := min(conn.Timeout/2, 10*time.Second)
	for wait := every; sleep(ctx, wait) == nil; {
		c.mu.Lock()
		wait = every - time.Since(c.sent)
		if wait <= 0 {
			c.sent = time.Now()
		}
		c.mu.Unlock()
		if wait <= 0 {
			c.writing.Lock()
			conn.Write(rawclient.Request(nil, proto.XidPing, proto.OpPing, nil)) // read notices an error
			c.writing.Unlock()
			wait = every
		}
	}
}

// read reads one frame and does what follows from it.
func (c *client) read(conn *rawclient.Client) error {
	f, err := conn.Read()
	if err != nil {
		return err
	}
	c.lastHeard = time.Now()
	if e, ok := f.Event(); ok {
		c.happened(e)
		return nil
	}
	if f.Xid == proto.XidPing {
		return nil
	}
	if f.Zxid > 0 {
		c.lastZxid = f.Zxid
	}
	c.mu.Lock()
	if len(c.pending) == 0 || c.pending[0].xid != f.Xid {
		c.mu.Unlock()
		return fmt.Errorf("a reply to request %d, which was not sent", f.Xid)
	}
	q := c.pending[0]
	c.pending = c.pending[1:]
	c.mu.Unlock()
	q.frame = f
	if f.Code != proto.OK {
		q.err = f.Code
	}
	if f.Xid == proto.XidAuth && f.Code == proto.AuthFailed {
		c.fail(AuthFailed)
		c.tell("AuthFailed")
	}
	q.end()
	return nil
}

// happened delivers a watch event if there still is a watch for it.
func (c *client) happened(e rawclient.Event) {
	path := c.local(e.Path)
	c.mu.Lock()
	watched := c.watches.fire(e.Type, path)
	c.mu.Unlock()
	if watched {
		c.events(Event{State: "SyncConnected", Type: e.Type.String(), Path: path, Zxid: e.Zxid})
	}
}

// server returns the server's path of a znode.
func (c *client) server(path string) string {
	switch {
	case c.chroot == "":
		return path
	case path == "/":
		return c.chroot
	}
	return c.chroot + path
}

// local is the reverse of server. The paths of system znodes stay as they are.
func (c *client) local(path string) string {
	rest, below := strings.CutPrefix(path, c.chroot)
	if !below {
		return path
	}
	return cmp.Or(rest, "/")
}

// start sends a request as soon as there is a connection. It gives up when every server
// was tried since, or when ctx ends. finish, unless it is nil, is called with the reply's
// code before the next frame is read.
func (c *client) start(ctx context.Context, op proto.OpCode, body proto.Record, finish func(proto.Code)) *call {
	q := &call{finish: finish, done: make(chan struct{})}
	c.writing.Lock()
	defer c.writing.Unlock()
	conn, err := c.await(ctx)
	if err != nil {
		q.err = err
		q.end()
		return q
	}
	c.mu.Lock()
	if c.conn != conn { // lost since
		q.err = c.lost()
		c.mu.Unlock()
		q.end()
		return q
	}
	if q.xid = proto.XidAuth; op != proto.OpAuth {
		c.xid++
		q.xid = c.xid
	}
	c.pending = append(c.pending, q)
	c.sent = time.Now()
	c.mu.Unlock()
	if conn.Write(rawclient.Request(nil, q.xid, op, body)) != nil {
		conn.Close() // the call fails when run notices
	}
	return q
}

// await returns the connection as soon as there is one. c.writing is held.
func (c *client) await(ctx context.Context) (*rawclient.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := c.attempts; c.conn == nil; {
		if !c.state.alive() || c.attempts >= first+len(c.hosts) {
			return nil, c.lost()
		}
		changed := c.changed
		c.mu.Unlock()
		c.writing.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		c.writing.Lock()
		c.mu.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return c.conn, nil
}

// wait waits for the reply to a request and decodes it into reply unless that is nil.
func (q *call) wait(ctx context.Context, reply proto.Record) error {
	select {
	case <-q.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if q.err != nil || reply == nil {
		return q.err
	}
	d := jute.NewDecoder(q.frame.Body)
	reply.Decode(&d)
	return d.Err()
}

func (c *client) do(ctx context.Context, op proto.OpCode, body, reply proto.Record) error {
	return c.start(ctx, op, body, nil).wait(ctx, reply)
}

// authenticate presents an identity now and on every later connection.
func (c *client) authenticate(ctx context.Context, a Auth) error {
	c.mu.Lock()
	c.auths = append(c.auths, a)
	connected := c.conn != nil
	c.mu.Unlock()
	if !connected {
		return nil // prime will present it
	}
	return c.do(ctx, proto.OpAuth, &proto.AuthRequest{Scheme: a.Scheme, Auth: a.Auth}, nil)
}

// watch returns a function for start that notes a watch if the request succeeds. Of a
// missing znode only exists leaves a watch.
func (c *client) watch(op proto.OpCode, kind watchKind, path string) func(proto.Code) {
	return func(code proto.Code) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case code == proto.OK:
			c.watches.add(kind, path)
		case code == proto.NoNode && op == proto.OpExists:
			c.watches.add(watchExist, path)
		}
	}
}

// close ends the session, at the server too if it is connected, and waits for run.
func (c *client) close(ctx context.Context) {
	c.mu.Lock()
	send := c.conn != nil && !c.closing
	c.closing = true
	c.mu.Unlock()
	if send {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		c.do(ctx, proto.OpCloseSession, nil, nil) // the session ends even if nobody says so
		cancel()
	}
	c.cancel()
	<-c.done
}
