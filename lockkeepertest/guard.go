package lockkeepertest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/lock/fence"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Guard records what happens to a lock, for the verdict at the end of the test. Its
// methods may be called from any goroutine.
type Guard struct {
	t      testing.TB
	path   string
	report *report
	start  time.Time
	where  string // GuardLock was called, FILE:LINE

	mu        *sync.Mutex // of guards
	checked   bool        // by Check
	zxid      int64       // of the newest state that was seen
	queue     []*claim
	held      []*claim         // all that have held the lock, in order
	tokens    map[int64]*claim // all that were ever in the queue
	events    []event
	wrong     []problem
	resources []*Resource
	verdict   Verdict
}

// Verdict is what a [Guard] has found.
type Verdict struct {
	Violations []string // what is wrong, each in one line; none if the lock protected
	Timeline   string   // what happened to the znodes that explain it, or to all if nothing is wrong
}

// GuardLock watches a lock from now on. When the test ends, it fails the test if the lock
// did not protect what it should protect, or if a client has left something behind. path is the
// znode whose children are the queue of the lock:
// ephemeral, sequential znodes with names like those of go-zookeeper, kazoo and Curator.
// The session of the first child holds the lock. If that child is shared, because its name
// contains kazoo's __rlock__ or Curator's __READ__, then so do the sessions of the shared
// children that follow it.
//
// The test fails, with a timeline, in each of these cases:
//
//   - Two holders overlapped in what they did. What a holder does to a [Resource] lasts from
//     the first to the last write with its token that the Resource accepts. It does not
//     matter that a client still believes in a lock that it has lost, as long as it writes
//     nothing or the Resource refuses it. Sessions that share the lock may overlap.
//   - A stale token was accepted: one that is less than another one accepted before. A late
//     write of the previous holder is harmless if the next holder has not written yet.
//   - A write was accepted from a client that did not hold the lock then or earlier.
//   - A lock znode is left whose client is gone: it has closed the connection, or an [Answer]
//     told it that its session has expired, and it did not come back. A client that lost its
//     connection otherwise, as through [Server.Disconnect], may come back and is not gone.
//   - A lock znode is left whose client does not know of it, since the reply to the create
//     was never sent. A client may still find its znode if the name contains a UUID, as the
//     libraries above make it. It knows the znode if it has listed the children since, and
//     has not created another one in between. Requests in progress do not count.
//
// A znode is left if it exists when the test ends, that is, right before the first client
// is closed that Connect returned for the same t, or else when GuardLock's own cleanup
// runs. The clients of znodes are not known if they use TLS, since their messages cannot
// be seen. A client that forgets a znode after it has received the reply is not noticed.
func (c *common) GuardLock(t testing.TB, path string) *Guard {
	t.Helper()
	report := c.report
	g := &Guard{t: t, path: path, report: report, start: time.Now(), where: callSite(), mu: &report.guards.mu, tokens: map[int64]*claim{}}
	g.mu.Lock()
	report.guards.all = append(report.guards.all, g)
	g.mu.Unlock()
	g.look()
	g.mu.Lock()
	for _, c := range g.queue {
		c.known = true
	}
	g.mu.Unlock()
	t.Cleanup(func() {
		t.Helper()
		g.Check()
	})
	return g
}

// Holding is a time during which a session held a lock.
type Holding struct {
	Session             int64
	Token               int64 // fencing token: the czxid of the session's znode
	Shared              bool
	From, Until         time.Time // Until is zero as long as it has not ended
	FromZxid, UntilZxid int64     // of the changes that began and ended it
}

// Holders returns who has held the lock, in order, since [Server.GuardLock] was called. Who held it
// then is listed as holding it from that moment.
func (g *Guard) Holders() (all []Holding) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.held {
		all = append(all, c.Holding)
	}
	return all
}

// Token returns the fencing token with which a session got the lock last, or 0 if it never
// had the lock. Clients that can know their znode use its czxid.
func (g *Guard) Token(sessionID int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range slices.Backward(g.held) {
		if c.Session == sessionID {
			return c.Token
		}
	}
	return 0
}

// Resource stands for what a lock protects, such as a file or a row in a database. Its methods
// may be called from any goroutine.
type Resource struct {
	g      *Guard
	writes int     // accepted so far
	spans  []*span // in the order of their first writes
}

// span is what a holder did to a resource: the numbers and times of its first and last
// write.
type span struct {
	*claim
	first, last int
	from, until time.Time
}

// Resource returns a new resource that the lock protects.
func (g *Guard) Resource() *Resource {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := &Resource{g: g}
	g.resources = append(g.resources, r)
	return r
}

// Write does something to the resource that only a holder of the lock may do. It returns
// [fence.ErrStale], and does nothing, if a greater token was accepted before: that is how a
// resource protects itself with fencing tokens, for example with a [fence.Checker]. Of two
// sessions that share the lock, neither makes the other's token stale. For a number below 1,
// which is no token, it returns [fence.ErrInvalid] and does nothing.
func (r *Resource) Write(token int64) error { return r.write(token, true) }

// WriteUnchecked is [Resource.Write] for a resource that ignores tokens. It also tells the
// guard what a resource of the test's own has accepted.
func (r *Resource) WriteUnchecked(token int64) { r.write(token, false) }

func (r *Resource) write(token int64, check bool) error {
	g := r.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if check && token < 1 {
		return fmt.Errorf("%w: %d", fence.ErrInvalid, token)
	}
	c := g.tokens[token]
	if c == nil { // nobody's
		c = &claim{Holding: Holding{Token: token}}
		g.tokens[token] = c
	}
	var own *span
	for _, s := range r.spans {
		if s.claim == c {
			own = s
		}
		if check && s.Token > token && !s.shares(c) {
			g.note(c, 0, "a write is refused, since the token is stale")
			return fmt.Errorf("%w: %#x, after %#x", fence.ErrStale, token, s.Token)
		}
	}
	g.note(c, 0, "writes")
	now := time.Now()
	r.writes++
	if own == nil {
		own = &span{claim: c, first: r.writes, from: now}
		r.spans = append(r.spans, own)
		if c.FromZxid == 0 {
			g.wrong = append(g.wrong, problem{"a client wrote without the lock", fmt.Sprintf("%v wrote at %s", c, g.at(now)), []int64{token}})
		}
	}
	own.last, own.until = r.writes, now
	return nil
}

// problems returns what is wrong with the accepted writes.
func (r *Resource) problems() (all []problem) {
	for i, a := range r.spans {
		for _, b := range r.spans[i+1:] { // b began later
			if a.shares(b.claim) {
				continue
			}
			less, greater := a, b
			if b.Token < a.Token {
				less, greater = b, a
			}
			tokens := []int64{a.Token, b.Token}
			overlap := b.first < a.last
			if overlap {
				all = append(all, problem{"two holders overlapped in what they did", fmt.Sprintf("%v wrote from %s to %s, %v from %s to %s",
					a.claim, r.g.at(a.from), r.g.at(a.until), b.claim, r.g.at(b.from), r.g.at(b.until)), tokens})
			}
			if overlap || less == b {
				all = append(all, problem{"a stale token was accepted", fmt.Sprintf("%v wrote at %s, after %v, which wrote first at %s",
					less.claim, r.g.at(less.until), greater.claim, r.g.at(greater.from)), tokens})
			}
		}
	}
	return all
}

// claim is a znode in the queue of a lock.
type claim struct {
	Holding // FromZxid is 0 until it has held the lock
	path    string
	known   bool // its client knows of it
	dropped bool // its client did not know of it, and has created another one
}

func (c *claim) shares(other *claim) bool { return c.Shared && other.Shared }

func (c *claim) String() string {
	if c.Session == 0 {
		return fmt.Sprintf("somebody with token %#x", c.Token)
	}
	return fmt.Sprintf("session %s with token %#x", session.FormatID(c.Session), c.Token)
}

// event is a line of the timeline.
type event struct {
	claim *claim
	at    time.Time
	zxid  int64 // 0 if it is not a transaction
	text  string
	again int       // how often it has happened once more,
	last  time.Time // the last time
}

// problem is why the test is to fail.
type problem struct {
	kind, detail string
	tokens       []int64 // whose events explain it
}

func (g *Guard) note(c *claim, zxid int64, text string) {
	now := time.Now()
	if n := len(g.events); n > 0 && g.events[n-1].claim == c && g.events[n-1].text == text {
		g.events[n-1].again++
		g.events[n-1].last = now
		return
	}
	g.events = append(g.events, event{claim: c, at: now, zxid: zxid, text: text})
}

func (g *Guard) at(t time.Time) string { return fmt.Sprintf("%.3f s", t.Sub(g.start).Seconds()) }

// look brings the guard up to date.
func (g *Guard) look() {
	for _, s := range g.report.servers {
		s.view(func(v *fsm.View) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.follow(v)
		})
	}
}

// follow records how the queue has changed, unless another member has shown this state or
// a newer one already.
func (g *Guard) follow(v *fsm.View) {
	now, zxid := time.Now(), v.Zxid()
	if zxid <= g.zxid {
		return
	}
	g.zxid = zxid
	before := g.queue
	g.queue = nil
	for _, x := range queue(v, g.path) {
		if i := slices.IndexFunc(before, func(c *claim) bool { return c.path == x.path && c.Token == x.czxid }); i >= 0 {
			g.queue = append(g.queue, before[i])
			continue
		}
		c := &claim{Holding: Holding{Session: x.session, Token: x.czxid, Shared: locks.Shared(x.path)}, path: x.path}
		g.tokens[c.Token] = c
		g.queue = append(g.queue, c)
		g.note(c, zxid, "is queued as "+path.Base(c.path))
	}
	for _, c := range before {
		if slices.Contains(g.queue, c) {
			continue
		}
		if v.Sessions().Get(c.Session) == nil {
			g.note(c, zxid, "its session ends, and its znode with it")
		} else {
			g.note(c, zxid, "its znode is deleted")
		}
		c.Until, c.UntilZxid = now, zxid
	}
	for i, c := range g.queue {
		if i > 0 && !c.shares(g.queue[0]) {
			break
		}
		if c.FromZxid == 0 {
			c.From, c.FromZxid = now, zxid
			g.held = append(g.held, c)
			g.note(c, zxid, "holds the lock")
		}
	}
}

// Check gives the verdict now instead of at the end of the test. A test that closes its
// clients itself calls it before that, since a client's znodes go with its session.
func (g *Guard) Check() {
	g.t.Helper()
	if found := g.find(); found != "" {
		g.t.Errorf("lockkeepertest: %s", found)
		g.report.log(g.t)
	}
}

// Verdict gives the verdict now, as [Guard.Check] does, and returns it instead of failing the
// test. The guard then ends.
func (g *Guard) Verdict() Verdict {
	g.find()
	g.mu.Lock()
	defer g.mu.Unlock()
	all := &g.report.guards.all
	*all = slices.DeleteFunc(*all, func(other *Guard) bool { return other == g })
	return g.verdict
}

// find reaches the verdict, if there is none yet, and returns why the test is to fail, or "".
func (g *Guard) find() string {
	g.look()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.checked {
		return ""
	}
	g.checked = true
	var all []problem
	for _, r := range g.resources {
		all = append(all, r.problems()...)
	}
	all = append(all, g.wrong...)
	for _, c := range g.queue {
		client := g.report.guards.clients[c.Session]
		switch {
		case client == nil: // nothing is known of it
		case client.gone != "":
			all = append(all, problem{"a lock znode is left whose client is gone", fmt.Sprintf("%s of %v: %s", c.path, c, client.gone), []int64{c.Token}})
		case !c.known && len(client.creating) == 0:
			all = append(all, problem{"a lock znode is left whose client does not know of it", fmt.Sprintf("%s of %v: its client did not get the reply to the create", c.path, c), []int64{c.Token}})
		}
	}
	if len(all) == 0 {
		g.verdict.Timeline = strings.Join(g.timeline(nil), "\n")
		return ""
	}
	var kinds, details []string
	var tokens []int64
	for _, p := range all {
		g.verdict.Violations = append(g.verdict.Violations, p.kind+": "+p.detail)
		if !slices.Contains(kinds, p.kind) {
			kinds = append(kinds, p.kind)
		}
		details = append(details, p.detail)
		tokens = append(tokens, p.tokens...)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the lock %s: %s\n  guarded since %s\n", g.path, strings.Join(kinds, "; "), g.where)
	section(&b, "what is wrong", details, false)
	timeline := g.timeline(tokens)
	g.verdict.Timeline = strings.Join(timeline, "\n")
	section(&b, "timeline", timeline, false)
	return strings.TrimSuffix(b.String(), "\n")
}

// timeline returns the events of the znodes with these tokens, or of all if tokens is nil.
func (g *Guard) timeline(tokens []int64) (lines []string) {
	for _, e := range g.events {
		if tokens != nil && !slices.Contains(tokens, e.claim.Token) {
			continue
		}
		line := fmt.Sprintf("%11s  %v: %s", g.at(e.at), e.claim, e.text)
		if e.zxid != 0 {
			line += fmt.Sprintf(" (zxid %#x)", e.zxid)
		}
		if e.again > 0 {
			line += fmt.Sprintf(", and %d times more until %s", e.again, g.at(e.last))
		}
		lines = append(lines, line)
	}
	return lines
}

// guards are the guards of a server, or of a cluster, and what they know of its clients.
type guards struct {
	mu      sync.Mutex // may be taken while a replica is locked, not the other way round
	all     []*Guard
	clients map[int64]*client // by session, each with its newest connection
}

// client is what is known of a client on one connection. It is protected by guards.mu.
type client struct {
	session  int64          // 0 before the handshake
	creating map[int32]bool // the xids of creates whose replies are still to be sent
	ended    bool           // the connection
	gone     string         // why it will not come back, or ""
}

// end gives the verdicts for t, whose clients are about to be closed.
func (x *guards) end(t testing.TB) {
	t.Helper()
	x.mu.Lock()
	all := slices.Clone(x.all)
	x.mu.Unlock()
	for _, g := range all {
		if g.t == t {
			g.Check()
		}
	}
}

// changed is called with what a member has applied.
func (x *guards) changed(v *fsm.View) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, g := range x.all {
		g.follow(v)
	}
}

// each calls f for each lock znode of a session.
func (x *guards) each(session int64, f func(g *Guard, c *claim)) {
	for _, g := range x.all {
		for _, c := range g.queue {
			if c.Session == session {
				f(g, c)
			}
		}
	}
}

// creates reports whether a request can create sequential znodes.
func creates(op proto.OpCode) bool {
	return op == proto.OpCreate || op == proto.OpCreate2 || op == proto.OpMulti
}

// asked is called before the server sees a request.
func (x *guards) asked(by *client, f *wire.Frame) {
	if !creates(f.Op) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if by.ended {
		return
	}
	if len(by.creating) == 0 { // otherwise the znodes may still become known
		by.creating = map[int32]bool{}
		to := paths(f)
		x.each(by.session, func(g *Guard, c *claim) {
			if !c.known && slices.ContainsFunc(to, func(p string) bool { return path.Dir(p) == g.path }) {
				c.dropped = true
			}
		})
	}
	by.creating[f.Xid] = true
}

// uuid is what a client can recognize its znode by.
var uuid = regexp.MustCompile(`[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}`)

// told is called with a frame before it is sent, or when it is not sent.
func (x *guards) told(to *client, f *wire.Frame, sent bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sent = sent && !to.ended
	var names, made []string
	switch body := f.Body.(type) {
	case *proto.ConnectReply:
		if sent && body.SessionID != 0 {
			if x.clients == nil {
				x.clients = map[int64]*client{}
			}
			to.session = body.SessionID
			x.clients[to.session] = to
		}
		return
	case *proto.ChildrenReply:
		names = body.Names
	case *proto.Children2Reply:
		names = body.Names
	default:
		if !creates(f.Op) {
			return
		}
		delete(to.creating, f.Xid)
		made = paths(f)
	}
	x.each(to.session, func(g *Guard, c *claim) {
		name := path.Base(c.path)
		switch {
		case slices.Contains(made, c.path):
			if c.known = sent; !sent {
				g.note(c, 0, "the reply to the create is lost")
			}
		case sent && !c.known && !c.dropped && uuid.MatchString(name) && slices.Contains(names, name):
			c.known = true
			g.note(c, 0, "its client finds its znode among the children")
		}
	})
}

// closed is called when a connection has ended, at first with who ended it.
func (x *guards) closed(client *client, byClient bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if client.ended {
		return
	}
	if len(client.creating) > 0 {
		x.each(client.session, func(g *Guard, c *claim) {
			if !c.known {
				g.note(c, 0, "the reply to the create is lost with the connection")
			}
		})
	}
	client.ended, client.creating = true, nil
	if byClient {
		x.gone(client, "its client hangs up")
	}
}

// expired is called when a client was told, by a fault, that its session has expired.
func (x *guards) expired(session int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.clients[session]; c != nil {
		x.gone(c, "its client is told that the session has expired")
	}
}

// gone notes that a client will not come back.
func (x *guards) gone(client *client, why string) {
	client.gone = why
	x.each(client.session, func(g *Guard, c *claim) { g.note(c, 0, why) })
}
