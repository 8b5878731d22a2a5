package lockkeepertest

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Fault names requests of clients and says what happens to them. Op, Path and Session
// must all match. The matching requests are counted in the order in which they arrive;
// Nth and Times say which of them the fault hits. If several clients send such requests at
// the same time, only Session makes it certain which one is hit.
type Fault struct {
	// Op is ZooKeeper's name of an operation, such as create, getChildren2, multi or
	// setWatches2, or a pattern of [path.Match], such as create*. There are two more
	// names: connect is the handshake that opens or resumes a session, and event is a
	// watch event, which is a message of the server. Empty matches all requests except
	// connect and ping.
	Op string
	// Path is a path or a pattern of [path.Match], in which * does not match a slash.
	// It begins with a slash. If a request has several paths, as a multi has, one of them must match. Empty
	// also matches requests without a path.
	Path string
	// Session is the session's id; 0 is any.
	Session int64
	// Nth is the first matching request that is hit, counted from 1, which is the
	// default.
	Nth int
	// Times is how many requests are hit, the Nth and those that follow. The default is
	// 1, and a negative number means all.
	Times int
	// Do is what happens to a request that is hit. If several faults match a request,
	// all of them count it, but only the one that was injected first does something. There
	// is no default.
	Do Action
	// Optional faults need not take effect. If any other fault has not taken effect
	// when the test ends, the test fails.
	Optional bool
}

// Action is what a [Fault] does.
type Action struct {
	kind kind
	d    time.Duration
	code proto.Code
	err  error // to be reported by Inject
}

type kind int

const (
	delay kind = iota + 1
	hold
	answer
	drop
	dropReply
	closeBefore
	closeAfter
	refuse
	trickle
)

var kindNames = [...]string{"nothing", "Delay", "Hold", "Answer", "Drop", "DropReply", "CloseBefore", "CloseAfter", "Refuse", "Trickle"}

// String returns the name of the function that made the action, and its argument.
func (a Action) String() string {
	switch a.kind {
	case delay, trickle:
		return fmt.Sprintf("%s(%v)", kindNames[a.kind], a.d)
	case answer:
		return fmt.Sprintf("%s(%v)", kindNames[a.kind], a.code)
	}
	return kindNames[a.kind]
}

// Delay lets a request wait for d before the server receives it, and with it all later
// requests of its connection, also pings. A watch event is delayed as by [Hold].
func Delay(d time.Duration) Action { return Action{kind: delay, d: d} }

// Hold is like [Delay] until [Injection.Remove]. A watch event is sent after that, and
// with it everything that the server has to say on the same connection after the event,
// except answers to pings. So the client sees a server that lags behind the others, and
// never a change before its event.
func Hold() Action { return Action{kind: hold} }

// Answer answers a request with an error instead of executing it, in its turn after the
// requests before it. err is one of go-zookeeper's errors that servers send, such as
// zk.ErrNoNode. For connect it is zk.ErrSessionExpired.
func Answer(err error) Action {
	var code proto.Code
	if errors.As(err, &code) && code != proto.OK {
		return Action{kind: answer, code: code}
	}
	for code, known := range codes {
		if errors.Is(err, known) {
			return Action{kind: answer, code: code}
		}
	}
	return Action{kind: answer, err: fmt.Errorf("no server answers %v", err)}
}

// codes are the codes that go-zookeeper has errors for.
var codes = map[proto.Code]error{
	proto.BadArguments: zk.ErrBadArguments, -100: zk.ErrAPIError, proto.NoNode: zk.ErrNoNode, proto.NoAuth: zk.ErrNoAuth,
	proto.BadVersion: zk.ErrBadVersion, proto.NoChildrenForEphemerals: zk.ErrNoChildrenForEphemerals,
	proto.NodeExists: zk.ErrNodeExists, proto.NotEmpty: zk.ErrNotEmpty, proto.SessionExpired: zk.ErrSessionExpired,
	proto.InvalidACL: zk.ErrInvalidACL, proto.AuthFailed: zk.ErrAuthFailed, -116: zk.ErrClosing, -117: zk.ErrNothing,
	proto.SessionMoved: zk.ErrSessionMoved, proto.ReconfigDisabled: zk.ErrReconfigDisabled,
}

// Drop keeps a request from the server, which neither executes nor answers it. A watch
// event is lost.
func Drop() Action { return Action{kind: drop} }

// DropReply lets the server execute a request, and discards the reply. The connection
// stays. Most clients wait for a reply as long as their connection lasts; see
// [CloseAfter].
func DropReply() Action { return Action{kind: dropReply} }

// CloseBefore closes the connection instead of executing a request, or instead of
// sending a watch event.
func CloseBefore() Action { return Action{kind: closeBefore} }

// CloseAfter executes a request and closes the connection instead of sending the reply.
// The client cannot know whether the request was executed: a create that ends like this
// is what leaves znodes of locks behind. A watch event is sent before the connection is
// closed.
func CloseAfter() Action { return Action{kind: closeAfter} }

// Refuse refuses connections. A Fault that does this has the Op connect, and neither
// Path nor Session, since they are not known yet.
func Refuse() Action { return Action{kind: refuse} }

// Trickle sends the reply, or the watch event, byte by byte, with a pause of d after each
// byte. What the server sends next on the same connection has to wait.
func Trickle(d time.Duration) Action { return Action{kind: trickle, d: d} }

// String formats the fields that are set.
func (f Fault) String() string {
	var set []string
	add := func(isSet bool, name string, v any) {
		if isSet {
			set = append(set, fmt.Sprintf("%s: %v", name, v))
		}
	}
	add(f.Op != "", "Op", f.Op)
	add(f.Path != "", "Path", f.Path)
	add(f.Session != 0, "Session", fmt.Sprintf("%#x", uint64(f.Session)))
	add(f.Nth != 0, "Nth", f.Nth)
	add(f.Times != 0, "Times", f.Times)
	add(true, "Do", f.Do)
	return "Fault{" + strings.Join(set, ", ") + "}"
}

// check returns an error if the fault can never take effect.
func (f *Fault) check() error {
	_, badOp := path.Match(f.Op, "")
	switch {
	case f.Do.kind == 0:
		return errors.New("it does not say what to Do")
	case f.Do.err != nil:
		return f.Do.err
	case f.Do.d < 0:
		return fmt.Errorf("the duration %v is negative", f.Do.d)
	case badOp != nil:
		return fmt.Errorf("%q is not a pattern", f.Op)
	case f.Nth < 0:
		return fmt.Errorf("its Nth is %d", f.Nth)
	case f.Op == opEvent && slices.Contains([]kind{answer, dropReply, refuse}, f.Do.kind):
		return fmt.Errorf("%v is not possible with events", f.Do)
	case f.Op == opConnect && f.Do.kind == answer && f.Do.code != proto.SessionExpired:
		return fmt.Errorf("the answer to %s can only be zk.ErrSessionExpired", f.Op)
	case f.Do.kind == refuse && (f.Op != opConnect || f.Path != "" || f.Session != 0):
		return fmt.Errorf("%v needs Op %s and neither Path nor Session", f.Do, opConnect)
	}
	return cmp.Or(checkOp(f.Op), checkPath(f.Path))
}

// checkPath returns an error if no path of a request can match a pattern.
func checkPath(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("%q is not a pattern", pattern)
	}
	if pattern != "" && !strings.ContainsAny(pattern[:1], `/[\`) {
		return fmt.Errorf("no path matches %q, which does not begin with a slash", pattern)
	}
	return nil
}

// checkOp returns an error if op is neither a pattern nor the name of messages.
func checkOp(op string) error {
	if op == "" || strings.ContainsAny(op, `*?[\`) {
		return nil
	}
	names := []string{opConnect, opEvent}
	for _, x := range proto.Ops {
		if x.Class != proto.Part {
			names = append(names, x.Name)
		}
	}
	if slices.Contains(names, op) {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("there are no requests of type %q, only %s", op, strings.Join(names, ", "))
}

// The names of messages that are not requests with a header.
const (
	opConnect = "connect"
	opEvent   = "event"
)

// message is what faults are matched with.
type message struct {
	op      string
	paths   []string
	session int64
}

func (f *Fault) matches(m *message) bool {
	if f.Op == "" && (m.op == opConnect || m.op == opEvent || m.op == "ping") || f.Session != 0 && f.Session != m.session {
		return false
	}
	if f.Op != "" {
		if ok, _ := path.Match(f.Op, m.op); !ok {
			return false
		}
	}
	if m.op == opEvent && slices.Contains([]kind{answer, dropReply}, f.Do.kind) || m.op == opConnect && f.Do.kind == answer && f.Do.code != proto.SessionExpired {
		return false // the pattern matches more than the action can do
	}
	return f.Path == "" || slices.ContainsFunc(m.paths, func(p string) bool {
		ok, _ := path.Match(f.Path, p)
		return ok
	})
}

// Injection is a [Fault] that was injected. Its methods may be called from any
// goroutine.
type Injection struct {
	s     *Server // one of those that it was injected into
	fault Fault
	where string        // it was injected, FILE:LINE
	fired chan struct{} // closed when the fault first takes effect
	once  sync.Once     // closes it
	off   chan struct{} // closed by Remove

	mu      sync.Mutex
	matched int
	begun   bool // something was done to a message
	removed bool
	told    bool // that it never took effect
}

// Fired returns a channel that is closed when the fault takes effect for the first
// time: when a request begins to wait, when a reply has been discarded, when a
// connection has been closed.
func (i *Injection) Fired() <-chan struct{} { return i.fired }

// HasFired reports whether the fault has taken effect, or is just doing so: a client may notice
// that its connection is closed before [Injection.Fired] tells.
func (i *Injection) HasFired() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.begun
}

// Matched returns how many requests the fault's Op, Path and Session have matched so far. If that is
// less than its Nth, the fault has not taken effect.
func (i *Injection) Matched() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.matched
}

// Wait blocks until the fault takes effect for the first time, as [Injection.Fired] says. It
// fails the test if that takes longer than a minute, and must be called from the goroutine that
// runs the test.
func (i *Injection) Wait() {
	i.s.t.Helper()
	i.s.here(i.s.t)
	select {
	case <-i.fired:
	case <-time.After(patience):
		i.mu.Lock()
		i.told = true
		i.mu.Unlock()
		i.s.t.Fatalf("lockkeepertest: waited for a fault, injected at %s: %v", i.where, i)
	}
}

// Remove ends the fault, and releases the messages that wait because of it. It may be
// called more than once.
func (i *Injection) Remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.removed {
		i.removed = true
		close(i.off)
	}
}

// begin is called before a client can notice what the fault does, since the test may end
// right then, before fire is called.
func (i *Injection) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begun = true
}

func (i *Injection) fire() {
	i.begin()
	i.once.Do(func() { close(i.fired) })
}

// wait waits as long as a message that was hit at the time since has to. It returns false
// if done is closed first.
func (i *Injection) wait(since time.Time, done <-chan struct{}) bool {
	var late <-chan time.Time
	if i.fault.Do.kind == delay {
		late = time.After(time.Until(since.Add(i.fault.Do.d)))
	}
	select {
	case <-late:
	case <-i.off:
	case <-done:
		return false
	}
	return true
}

// hits counts a message that may match, and reports whether it is hit.
func (i *Injection) hits(m *message) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.removed || !i.fault.matches(m) {
		return false
	}
	i.matched++
	first, times := max(i.fault.Nth, 1), cmp.Or(i.fault.Times, 1)
	return i.matched >= first && (times < 0 || i.matched-first < times)
}

// unused returns why the test is to fail, or "" if it is not, or has been told already.
func (i *Injection) unused() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.begun || i.fault.Optional || i.told {
		return ""
	}
	i.told = true
	return fmt.Sprintf("%v, injected at %s, never took effect; requests that it matched: %d", i.fault, i.where, i.matched)
}

// String formats the fault and how often it matched.
func (i *Injection) String() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	state := "no effect yet"
	if i.begun {
		state = "took effect"
	}
	if i.removed {
		state += ", removed"
	}
	return fmt.Sprintf("%v: %s; requests that it matched: %d", i.fault, state, i.matched)
}

// faults are the faults of a server, in the order of their injection.
type faults struct {
	mu  sync.Mutex
	all []*Injection
}

// hit returns the fault that hits a message, or nil. Faults that refuse connections are
// asked only for connections, before there is a message, and others only for messages.
func (f *faults) hit(m *message, refuses bool) (by *Injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.all {
		if refuses == (i.fault.Do.kind == refuse) && i.hits(m) && by == nil {
			by = i
		}
	}
	return by
}

// refuses reports whether a new connection is to be refused.
func (f *faults) refuses() bool {
	i := f.hit(&message{op: opConnect}, true)
	if i == nil {
		return false
	}
	i.fire()
	return true
}

func (f *faults) add(i *Injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, i)
}

func (f *faults) list() []*Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// unused returns why the test is to fail because of faults that did nothing.
func (f *faults) unused() (all []string) {
	for _, i := range f.list() {
		if why := i.unused(); why != "" {
			all = append(all, why)
		}
	}
	return all
}

// Inject makes requests fail as f says, from now on, also after a restart, until
// [Injection.Remove]. It does not see connections that use TLS. Inject must be called from the
// goroutine that runs the test, which it fails if f is invalid.
func (c *common) Inject(f Fault) *Injection {
	c.t.Helper()
	c.here(c.t)
	if err := f.check(); err != nil {
		c.t.Fatalf("lockkeepertest: %v: %v", f, err)
	}
	i := &Injection{s: c.servers[0], fault: f, where: callSite(), fired: make(chan struct{}), off: make(chan struct{})}
	for _, s := range c.servers {
		s.faults.add(i)
	}
	return i
}
