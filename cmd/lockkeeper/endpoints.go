package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// control is a server, or a cluster, that tests control.
type control struct {
	cluster *lockkeepertest.Cluster  // nil without --cluster
	servers []*lockkeepertest.Server // the member with the id 1 first
	all     interface {              // the cluster, or else the server
		Inject(lockkeepertest.Fault) *lockkeepertest.Injection
		Requests(op string) []lockkeepertest.Request
		Snapshot() *lockkeepertest.Snapshot
		Restore(*lockkeepertest.Snapshot)
		AddTree(text string)
		RemoveTree(path string) bool
		Namespace(name string) string
		Advance(time.Duration) lockkeepertest.Advanced
		AdvanceSilent(time.Duration) lockkeepertest.Advanced
		EndTTLs() []string
		GuardLock(testing.TB, string) *lockkeepertest.Guard
		Within(time.Duration) lockkeepertest.Waits
	}
	run    *runOfServe
	ended  <-chan struct{} // closed when the server is about to end
	port   *testPort
	number int // of the server in this process

	mu        sync.Mutex
	faults    []*lockkeepertest.Injection // the one with the number i is at i-1; nil if Restore has removed it
	snapshots []snapshot                  // the first one is of the beginning; zero if it was removed
	guards    []*guard                    // the one with the number i is at i-1; nil once it has ended
}

// guard is a lock under guard, with the resources that were named.
type guard struct {
	*lockkeepertest.Guard
	resources map[string]*lockkeepertest.Resource
}

// snapshot is what /restore puts back.
type snapshot struct {
	*lockkeepertest.Snapshot
	faults int // how many there had been
}

// endpoint is something that tests can ask for.
type endpoint struct {
	method, path string
	example      string // of the query or the body, for the documentation
	does         string // for the documentation
	body         any    // the zero value of what a body is decoded to; nil with GET
	serve        func(c *control, r *http.Request) (any, error)
	status       int  // of the reply if lockkeepertest fails
	clustered    bool // needs a cluster
	ofProcess    bool // is not below the url of a server
}

// endpoints lists all endpoints. The table in docs/test-control.md is generated from it.
var endpoints = []endpoint{
	get("/state", "member=1", "The state: who leads, the znodes as text, the sessions, watches and locks, and the faults that were injected.",
		(*control).state),
	get("/znode", "path=/locks/a&member=1", "The data, in base64, and the Stat of a znode.",
		(*control).znode),
	get("/requests", "op=create*&member=1", "The requests that the clients have sent, the oldest first, without pings. `op` selects some of them as in `/inject`; without `member` they are those to all members.",
		(*control).requests).failsWith(http.StatusBadRequest),
	post("/expire", `{"session": "0x1000a01c3e20000"}`, "End a session as if its client had been silent for its timeout. The reply comes when it has ended.",
		(*control).expire).failsWith(http.StatusServiceUnavailable),
	post("/disconnect", `{"session": "0x1000a01c3e20000"}`, "Close the connection of a session.",
		(*control).disconnect),
	post("/inject", `{"do": "closeAfter", "op": "create*", "path": "/locks/*", "nth": 2}`, "Inject a fault, see [below](#faults). The reply has its number, `id`.",
		(*control).inject),
	post("/remove", `{"id": 1}`, "End a fault, and release what waits because of it. The reply says whether it has taken effect.",
		(*control).remove),
	post("/snapshot", ``, "Take a snapshot of the state. The reply has its number, `snapshot`.",
		(*control).snapshot).failsWith(http.StatusServiceUnavailable),
	post("/restore", `{"snapshot": 1}`, "Put back the state of a snapshot, see [below](#sharing-a-server); without a number, or with 0, the state with which the server began. The reply has the `faults` that this has removed, as `/state` has them: one that has not `fired` has tested nothing.",
		(*control).restore).failsWith(http.StatusServiceUnavailable),
	post("/snapshot/remove", `{"snapshot": 1}`, "Forget a snapshot, which takes about as much memory as the state.",
		(*control).removeSnapshot),
	post("/tree", `{"tree": "/a = \"x\"\n/b\n"}`, "Add znodes, in the format of `/state` and of `--tree`. Those that exist get this data, and missing parents are created.",
		(*control).tree).failsWith(http.StatusServiceUnavailable),
	post("/namespace", `{"name": "mine"}`, "Create a persistent znode, by default with a new name such as /test-0000000001. The reply has its `path`, and as `connect` the addresses for a client with that chroot.",
		(*control).namespace),
	post("/namespace/remove", `{"path": "/test-0000000001"}`, "Delete a znode with all that is below it, also ephemerals.",
		(*control).removeNamespace),
	postFrom("/wait/fired", `{"id": 1, "timeoutMs": 5000}`, "Wait until a fault takes effect for the first time.",
		(*control).waitFired),
	wait("/wait/held", `{"path": "/locks/a", "session": "0x1000a01c3e20000", "member": 1}`, "Wait until a session holds a lock: it has the first of the ephemeral and sequential children of `path`, or `path` itself is an ephemeral of the session.",
		waitHeld),
	wait("/wait/waiters", `{"path": "/locks/a", "waiters": 2, "member": 1}`, "Wait until this many sessions wait behind the holder of a lock.",
		waitWaiters),
	wait("/wait/gone", `{"path": "/locks/a", "member": 1}`, "Wait until a znode does not exist.",
		func(w lockkeepertest.Waits, b awaited) error { w.WaitGone(b.Path); return nil }),
	wait("/wait/exists", `{"path": "/a", "member": 1}`, "Wait until a znode exists.",
		func(w lockkeepertest.Waits, b awaited) error { w.WaitExists(b.Path); return nil }),
	wait("/wait/data", `{"path": "/a", "text": "x", "member": 1}`, "Wait until a znode has this data: `text`, or `data` in base64.",
		waitData),
	wait("/wait/children", `{"path": "/a", "children": 3, "member": 1}`, "Wait until a znode has exactly this many children.",
		waitChildren),
	wait("/wait/requests", `{"op": "create*", "path": "/x*", "count": 2, "member": 1}`, "Wait until `/requests` has at least this many requests of which a path matches `path`, as in `/inject`. Without `member`, those to all members count.",
		waitRequests),
	wait("/wait/watch", `{"path": "/a", "session": "0x1000a01c3e20000", "member": 1}`, "Wait until a session, or any one, watches a znode. A watch that fires at once may be missed. Without `member`, watches at all members count.",
		func(w lockkeepertest.Waits, b ofLock) error { w.WaitWatched(b.Path, int64(b.Session)); return nil }),
	postFrom("/wait/leader", `{"among": [2, 3]}`, "Wait until a member leads, or one of `among`, such as the others when a partition has cut the leader off. The reply names it as `leader`. A server that is no cluster leads itself.",
		(*control).waitLeader).failsWith(http.StatusGatewayTimeout),
	post("/guard", `{"path": "/locks/a"}`, "Watch a lock from now on, see [below](#a-lock-under-guard). The reply has the number, `guard`.",
		(*control).guardLock),
	post("/guard/write", `{"guard": 1, "token": 12, "resource": "file", "unchecked": false}`, "Report that a client writes to what the lock protects. The reply says whether it is `accepted`, and if not, the `reason`.",
		(*control).guardWrite),
	post("/guard/verdict", `{"guard": 1}`, "End a guard. The reply says whether all is `ok`, and has the `violations`, one line each, and a `timeline`.",
		(*control).guardVerdict),
	postFrom("/servers", `{"cluster": 3, "tree": "/a = \"x\"\n", "electionTimeoutMs": 500, "behaveAs": "3.8"}`, "Start another server in this process, or a cluster, see [below](#several-servers). The reply has its number, `server`, its `url`, and what clients `connect` to.",
		(*control).startServer).failsWith(http.StatusInternalServerError).perProcess(),
	getFrom("/servers", "", "The servers in this process.",
		(*control).listServers).perProcess(),
	post("/stop", ``, "Stop a server that `/servers` has started, and free its ports.",
		(*control).stopServer),
	post("/kill", `{"member": 1}`, "Stop a member as abruptly as if its process had been killed. It keeps its state.",
		onMember((*control).kill)),
	post("/restart", `{"member": 1}`, "Start a member that was killed, with the state that it had.",
		onMember((*control).restart)).failsWith(http.StatusConflict),
	post("/disk", `{"member": 1, "delayMs": 100, "full": true}`, "Make each write to a member's disk slow, or fail. What is omitted ends.",
		(*control).disk),
	post("/pause", `{"member": 1}`, "Keep a member from sending, receiving and writing to its disk.",
		onMember((*control).pause)),
	post("/resume", `{"member": 1}`, "Continue a paused member.",
		onMember((*control).resume)),
	post("/clock", `{"member": 1, "skewMs": -3600000}`, "Make a member's clock wrong. While it leads or is alone, the times of znodes come from this clock.",
		(*control).clock),
	post("/advance", `{"ms": 3600000, "connected": false}`, "Set the server's clock forward, see [below](#time). The reply has what has ended: the sessions `expired`, and the paths of TTL znodes and containers `deleted`.",
		(*control).advance).failsWith(http.StatusServiceUnavailable),
	post("/end-ttls", ``, "Delete TTL znodes and containers without children now, whatever their time. The reply has the paths `deleted`.",
		(*control).endTTLs).failsWith(http.StatusServiceUnavailable),
	post("/partition", `{"groups": [[1], [2, 3]]}`, "Cut the network so that only members of the same group can reach each other. A member in no group can reach nobody. Clients can reach all members.",
		(*control).partition).inCluster(),
	post("/heal", ``, "End all partitions and faults of links.",
		(*control).heal).inCluster(),
	post("/link", `{"from": 1, "to": 2, "cut": true, "delayMs": 100, "loss": 0.1}`, "Set the faults of the network from one member to another, in this direction only. Those that are omitted end.",
		(*control).link).inCluster(),
	post("/step-down", ``, "Make the leader hand over. The reply names the new leader.",
		(*control).stepDown).failsWith(http.StatusServiceUnavailable).inCluster(),
}

// id returns the id of a member. It may be omitted if there is only one.
func (c *control) id(member *int) (int, error) {
	switch {
	case member == nil && len(c.servers) == 1:
		return 1, nil
	case member == nil:
		return 0, badRequest("\"member\" is missing: an id from 1 to %d", len(c.servers))
	}
	return *member, c.check(*member)
}

func (c *control) check(id int) error {
	if id < 1 || id > len(c.servers) {
		return badRequest("there is no member %d, only 1 to %d", id, len(c.servers))
	}
	return nil
}

// server returns a member that exists.
func (c *control) server(id int) *lockkeepertest.Server { return c.servers[id-1] }

// runs returns an error if a member is stopped.
func (c *control) runs(id int) error {
	if c.server(id).Role() == "" {
		return refusal{http.StatusConflict, fmt.Errorf("member %d is stopped", id)}
	}
	return nil
}

// shown returns the id of the member to look at. If it was omitted, that is the leader, or if
// there is none another running member.
func (c *control) shown(member *int) (int, error) {
	if member != nil {
		return *member, c.check(*member)
	}
	best := 1
	for i, s := range c.servers {
		if role := s.Role(); role == lockkeeper.RoleLeader {
			return i + 1, nil
		} else if role != "" && c.server(best).Role() == "" {
			best = i + 1
		}
	}
	return best, nil
}

// queried is like shown, for the member that a query names.
func (c *control) queried(q url.Values) (int, error) {
	if !q.Has("member") {
		return c.shown(nil)
	}
	id, err := strconv.Atoi(q.Get("member"))
	if err != nil {
		return 0, badRequest("%q is not the id of a member", q.Get("member"))
	}
	return c.shown(&id)
}

// connect returns the addresses of all members for clients.
func (c *control) connect() string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.Addr())
	}
	return strings.Join(all, ",")
}

func (c *control) state(q url.Values) (any, error) {
	type member struct {
		Member  int    `json:"member"`
		Address string `json:"address"`
		Role    string `json:"role"`
	}
	type sessionState struct {
		ID         sessionID `json:"id"`
		TimeoutMs  int64     `json:"timeoutMs"`
		Connected  bool      `json:"connected"`
		Ephemerals []string  `json:"ephemerals"`
	}
	type watch struct {
		Session sessionID `json:"session"`
		Path    string    `json:"path"`
	}
	type lock struct {
		Path   string      `json:"path"`
		Holder sessionID   `json:"holder"`
		Token  int64       `json:"token"`
		Since  time.Time   `json:"since"`
		Queue  []sessionID `json:"queue"`
	}
	var state struct {
		Connect  string         `json:"connect"`
		Members  []member       `json:"members"`
		Shown    int            `json:"shown"`
		Tree     string         `json:"tree"`
		Sessions []sessionState `json:"sessions"`
		Watches  []watch        `json:"watches"`
		Locks    []lock         `json:"locks"`
		Faults   []faultState   `json:"faults"`
	}
	shown, err := c.queried(q)
	if err != nil {
		return nil, err
	}
	state.Connect, state.Shown, state.Tree = c.connect(), shown, c.server(shown).Tree()
	state.Sessions, state.Watches, state.Locks, state.Faults = []sessionState{}, []watch{}, []lock{}, []faultState{}
	connected := map[int64]bool{} // to any member
	for i, s := range c.servers {
		role := string(s.Role())
		if role == "" {
			role = "stopped"
		} else if s.Err() != nil {
			role = "failed"
		}
		state.Members = append(state.Members, member{i + 1, s.Addr(), role})
		for _, x := range s.Sessions() {
			connected[x.ID] = connected[x.ID] || x.Connected
		}
		for _, x := range s.Watches() {
			state.Watches = append(state.Watches, watch{sessionID(x.Session), x.Path})
		}
	}
	for _, x := range c.server(shown).Sessions() {
		state.Sessions = append(state.Sessions, sessionState{sessionID(x.ID), x.Timeout.Milliseconds(), connected[x.ID], notNull(x.Ephemerals)})
	}
	for _, x := range c.server(shown).Locks() {
		queue := []sessionID{}
		for _, id := range x.Queue {
			queue = append(queue, sessionID(id))
		}
		state.Locks = append(state.Locks, lock{x.Path, sessionID(x.Holder), x.Token, x.Since, queue})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.faults {
		if f != nil {
			state.Faults = append(state.Faults, stateOf(i+1, f))
		}
	}
	return state, nil
}

func (c *control) znode(q url.Values) (any, error) {
	id, err := c.queried(q)
	if err != nil {
		return nil, err
	}
	at := q.Get("path")
	if at == "" {
		return nil, badRequest("\"path\" is missing")
	}
	data, x, err := c.server(id).Get(at)
	if err != nil {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no znode %s", at)}
	}
	var owner any // null if it is not ephemeral
	if x.EphemeralOwner != 0 {
		owner = sessionID(x.EphemeralOwner)
	}
	return map[string]any{"data": notNull(data), "stat": map[string]any{
		"czxid": x.Czxid, "mzxid": x.Mzxid, "ctime": x.Ctime, "mtime": x.Mtime, "version": x.Version, "cversion": x.Cversion, "aversion": x.Aversion,
		"ephemeralOwner": owner, "dataLength": x.DataLength, "numChildren": x.NumChildren, "pzxid": x.Pzxid,
	}}, nil
}

func (c *control) requests(q url.Values) (any, error) {
	type request struct {
		Time    time.Time `json:"time"`
		Session any       `json:"session"`
		Op      string    `json:"op"`
		Path    string    `json:"path"`
		Text    string    `json:"text"`
	}
	from := c.all
	if q.Has("member") {
		id, err := c.queried(q)
		if err != nil {
			return nil, err
		}
		from = c.server(id)
	}
	all := []request{}
	for _, r := range from.Requests(q.Get("op")) {
		x := request{r.Time, nil, r.Op, r.Path, r.String()}
		if r.Session != 0 {
			x.Session = sessionID(r.Session)
		}
		all = append(all, x)
	}
	return map[string]any{"requests": all}, nil
}

type ofSession struct {
	Session sessionID `json:"session"`
}

func (b ofSession) check() error {
	if b.Session == 0 {
		return badRequest("\"session\" is missing")
	}
	return nil
}

func (c *control) expire(b ofSession) (any, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	at := 1
	if c.cluster != nil {
		at = c.cluster.Leader()
	}
	if err := c.runs(at); err != nil {
		return nil, err
	}
	err := c.server(at).ExpireSession(int64(b.Session))
	switch {
	case errors.Is(err, lockkeeper.ErrNoSession):
		return nil, refusal{http.StatusNotFound, fmt.Errorf("session %v does not exist", b.Session)}
	case err != nil:
		return nil, refusal{http.StatusServiceUnavailable, err}
	}
	return nil, nil
}

func (c *control) disconnect(b ofSession) (any, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	found := false
	for _, s := range c.servers {
		found = s.Disconnect(int64(b.Session)) || found
	}
	if !found {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("session %v is not connected", b.Session)}
	}
	return nil, nil
}

// injected is the body of /inject.
type injected struct {
	Do      string    `json:"do"`
	Ms      *millis   `json:"ms"`
	Error   *code     `json:"error"`
	Op      string    `json:"op"`
	Path    string    `json:"path"`
	Session sessionID `json:"session"`
	Nth     int       `json:"nth"`
	Times   int       `json:"times"`
	Member  *int      `json:"member"`
}

// actions are the values of "do". The table in docs/test-control.md is generated from it.
var actions = []struct {
	name string
	arg  string // the name of the argument, or empty
	does string // for the documentation
	make func(b *injected) lockkeepertest.Action
}{
	{"delay", "ms", "The server receives the request, and all later ones of its connection, only after this time. A watch event, and what follows it, is sent later by this time.",
		func(b *injected) lockkeepertest.Action { return lockkeepertest.Delay(time.Duration(*b.Ms)) }},
	{"hold", "", "The same, until the fault is removed.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.Hold() }},
	{"answer", "error", "The request is answered with an error, ZooKeeper's name or number, instead of being executed.",
		func(b *injected) lockkeepertest.Action { return lockkeepertest.Answer(proto.Code(*b.Error)) }},
	{"drop", "", "The server never receives the request. A watch event is lost.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.Drop() }},
	{"dropReply", "", "The request is executed, and the reply is discarded.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.DropReply() }},
	{"closeBefore", "", "The connection is closed instead of executing the request, or of sending the watch event.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.CloseBefore() }},
	{"closeAfter", "", "The request is executed, and the connection is closed instead of sending the reply. A watch event is sent first.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.CloseAfter() }},
	{"refuse", "", "New connections are refused. `op` must be `connect`.",
		func(*injected) lockkeepertest.Action { return lockkeepertest.Refuse() }},
	{"trickle", "ms", "The reply, or the watch event, is sent byte by byte, with a pause of this length after each.",
		func(b *injected) lockkeepertest.Action { return lockkeepertest.Trickle(time.Duration(*b.Ms)) }},
}

func (b *injected) action() (lockkeepertest.Action, error) {
	var names []string
	for _, a := range actions {
		if a.name != b.Do {
			names = append(names, a.name)
			continue
		}
		for arg, given := range map[string]bool{"ms": b.Ms != nil, "error": b.Error != nil} {
			if given && arg != a.arg {
				return lockkeepertest.Action{}, badRequest("%s has no %q", a.name, arg)
			} else if !given && arg == a.arg {
				return lockkeepertest.Action{}, badRequest("%s needs %q", a.name, arg)
			}
		}
		return a.make(b), nil
	}
	return lockkeepertest.Action{}, badRequest("\"do\" is %q, but must be one of %s", b.Do, strings.Join(names, ", "))
}

func (c *control) inject(b injected) (any, error) {
	do, err := b.action()
	if err != nil {
		return nil, err
	}
	f := lockkeepertest.Fault{
		Op: b.Op, Path: b.Path, Session: int64(b.Session), Nth: b.Nth, Times: b.Times, Do: do,
		Optional: true, // it is for the test to say that it did not fire
	}
	into := c.all
	if b.Member != nil {
		if err := c.check(*b.Member); err != nil {
			return nil, err
		}
		into = c.server(*b.Member)
	}
	i := into.Inject(f)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, i)
	return stateOf(len(c.faults), i), nil
}

type faultState struct {
	ID      int    `json:"id"`
	Fired   bool   `json:"fired"`
	Matched int    `json:"matched"`
	Text    string `json:"text"`
}

func stateOf(id int, i *lockkeepertest.Injection) faultState {
	return faultState{id, i.HasFired(), i.Matched(), i.String()}
}

type numbered struct {
	ID int `json:"id"`
}

func (c *control) fault(id int) (*lockkeepertest.Injection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < 1 || id > len(c.faults) || c.faults[id-1] == nil {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no fault with the id %d", id)}
	}
	return c.faults[id-1], nil
}

func (c *control) remove(b numbered) (any, error) {
	i, err := c.fault(b.ID)
	if err != nil {
		return nil, err
	}
	i.Remove()
	return stateOf(b.ID, i), nil
}

// limited has the limit of an endpoint that waits.
type limited struct {
	TimeoutMs *millis `json:"timeoutMs"`
}

// within returns the limit, and 0 for the default.
func (b limited) within() (time.Duration, error) {
	switch {
	case b.TimeoutMs == nil:
		return 0, nil
	case *b.TimeoutMs <= 0:
		return 0, badRequest("\"timeoutMs\" must be more than 0")
	}
	return time.Duration(*b.TimeoutMs), nil
}

// firesWithin is how long /wait/fired waits by default.
const firesWithin = time.Minute

func (c *control) waitFired(r *http.Request, b struct {
	numbered
	limited
}) (any, error) {
	within, err := b.within()
	if err != nil {
		return nil, err
	}
	i, err := c.fault(b.ID)
	if err != nil {
		return nil, err
	}
	within = cmp.Or(within, firesWithin)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-i.Fired():
		return stateOf(b.ID, i), nil
	case <-timer.C:
		return nil, refusal{http.StatusGatewayTimeout, fmt.Errorf("%v (waited %v)", i, within)}
	case <-r.Context().Done():
	case <-c.ended:
	}
	return nil, refusal{http.StatusGatewayTimeout, errors.New(i.String())}
}

// anywhere is in the bodies of endpoints that wait for a znode, or for clients.
type anywhere struct {
	Path   string `json:"path"`
	Member *int   `json:"member"`
	limited
}

// awaited is anywhere with a path that must be there.
type awaited struct{ anywhere }

// waits returns what waits for that, as long as the client of a request does.
func (b awaited) waits(c *control, r *http.Request) (w lockkeepertest.Waits, err error) {
	if err := checkPath(b.Path); err != nil {
		return w, err
	}
	return b.anywhere.waits(c, r)
}

func (b anywhere) waits(c *control, r *http.Request) (w lockkeepertest.Waits, err error) {
	within, err := b.within()
	if err == nil && b.Member != nil {
		err = c.check(*b.Member)
	}
	switch {
	case err != nil:
		return w, err
	case b.Member != nil:
		w = c.server(*b.Member).Within(within)
	default:
		w = c.all.Within(within)
	}
	return w.WithContext(r.Context()), nil
}

// wait returns an endpoint that waits until something has happened.
func wait[B interface {
	waits(*control, *http.Request) (lockkeepertest.Waits, error)
}](path, example, does string, until func(w lockkeepertest.Waits, body B) error) endpoint {
	return postFrom(path, example, does, func(c *control, r *http.Request, body B) (any, error) {
		w, err := body.waits(c, r)
		if err == nil {
			err = until(w, body)
		}
		return nil, err
	}).failsWith(http.StatusGatewayTimeout)
}

func checkPath(path string) error {
	switch {
	case path == "":
		return badRequest("\"path\" is missing")
	case !znode.ValidPath(path):
		return badRequest("%q is not a path", path)
	}
	return nil
}

type ofLock struct {
	awaited
	Session sessionID `json:"session"`
}

func waitHeld(w lockkeepertest.Waits, b ofLock) error {
	if err := (ofSession{b.Session}).check(); err != nil {
		return err
	}
	w.WaitHeld(b.Path, int64(b.Session))
	return nil
}

func waitWaiters(w lockkeepertest.Waits, b struct {
	awaited
	Waiters *int `json:"waiters"`
}) error {
	if err := checkNumber("waiters", b.Waiters); err != nil {
		return err
	}
	w.WaitWaiters(b.Path, *b.Waiters)
	return nil
}

func checkNumber(name string, n *int) error {
	if n == nil || *n < 0 {
		return badRequest("%q must be a number, 0 or more", name)
	}
	return nil
}

func waitData(w lockkeepertest.Waits, b struct {
	awaited
	Data *[]byte `json:"data"`
	Text *string `json:"text"`
}) error {
	switch {
	case (b.Data == nil) == (b.Text == nil):
		return badRequest("either \"text\" or \"data\", in base64, must be there")
	case b.Text != nil:
		w.WaitData(b.Path, []byte(*b.Text))
	default:
		w.WaitData(b.Path, *b.Data)
	}
	return nil
}

func waitChildren(w lockkeepertest.Waits, b struct {
	awaited
	Children *int `json:"children"`
}) error {
	if err := checkNumber("children", b.Children); err != nil {
		return err
	}
	w.WaitChildren(b.Path, *b.Children)
	return nil
}

func waitRequests(w lockkeepertest.Waits, b struct {
	anywhere
	Op    string `json:"op"`
	Count *int   `json:"count"`
}) error {
	if err := checkNumber("count", b.Count); err != nil {
		return err
	}
	if wrong := attempt(func() { w.WaitRequests(b.Op, b.Path, 0) }); wrong != nil { // with the names, since there are none to wait for
		return refusal{http.StatusBadRequest, wrong}
	}
	w.WaitRequests(b.Op, b.Path, *b.Count)
	return nil
}

func (c *control) waitLeader(r *http.Request, b struct {
	Among []int `json:"among"`
	limited
}) (any, error) {
	for _, id := range b.Among {
		if err := c.check(id); err != nil {
			return nil, err
		}
	}
	within, err := b.within()
	if err != nil {
		return nil, err
	}
	return map[string]int{"leader": c.all.Within(within).WithContext(r.Context()).Leader(b.Among...)}, nil
}

// works returns an error if nothing can be applied, since all members are stopped or have failed.
func (c *control) works() error {
	for _, s := range c.servers {
		if s.Role() != "" && s.Err() == nil {
			return nil
		}
	}
	if err := c.runs(1); len(c.servers) == 1 && err != nil {
		return err
	} else if len(c.servers) == 1 {
		return refusal{http.StatusConflict, fmt.Errorf("the server has failed, and must be killed and restarted: %w", c.server(1).Err())}
	}
	return refusal{http.StatusConflict, errors.New("all members are stopped or have failed")}
}

func (c *control) snapshot(struct{}) (any, error) {
	number, err := c.takeSnapshot()
	return map[string]int{"snapshot": number}, err
}

func (c *control) takeSnapshot() (number int, err error) {
	if err := c.works(); err != nil {
		return 0, err
	}
	x := c.all.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = append(c.snapshots, snapshot{x, len(c.faults)})
	return len(c.snapshots) - 1, nil
}

// known returns a snapshot that was not removed. The caller holds c.mu.
func (c *control) known(number int) (snapshot, error) {
	if number < 0 || number >= len(c.snapshots) || c.snapshots[number].Snapshot == nil {
		return snapshot{}, refusal{http.StatusNotFound, fmt.Errorf("there is no snapshot %d, or it was removed", number)}
	}
	return c.snapshots[number], nil
}

type ofSnapshot struct {
	Snapshot int `json:"snapshot"`
}

func (c *control) removeSnapshot(b ofSnapshot) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.known(b.Snapshot); err != nil {
		return nil, err
	}
	if b.Snapshot == 0 {
		return nil, badRequest("\"snapshot\" must be a number from /snapshot: the state of the beginning is kept")
	}
	c.snapshots[b.Snapshot] = snapshot{}
	return nil, nil
}

func (c *control) restore(b ofSnapshot) (any, error) {
	if err := c.works(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	x, err := c.known(b.Snapshot)
	faults := len(c.faults)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.run.attemptAll(func() { c.all.Restore(x.Snapshot) }); err != nil {
		return nil, refusal{http.StatusServiceUnavailable, err}
	}
	removed := []faultState{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := x.faults; i < faults; i++ {
		if f := c.faults[i]; f != nil {
			removed = append(removed, stateOf(i+1, f))
			c.faults[i] = nil
		}
	}
	return map[string]any{"faults": removed}, nil
}

func (c *control) tree(b struct {
	Tree *string `json:"tree"`
}) (any, error) {
	if b.Tree == nil {
		return nil, badRequest("\"tree\" is missing")
	}
	if err := c.works(); err != nil {
		return nil, err
	}
	if err := attempt(func() { c.all.AddTree(*b.Tree) }); err != nil {
		return nil, refusedTree(err)
	}
	return nil, nil
}

func (c *control) guardLock(b struct {
	Path string `json:"path"`
}) (any, error) {
	if err := checkPath(b.Path); err != nil {
		return nil, err
	}
	// A guard that is not asked for its verdict is no error when the process ends.
	g := &guard{c.all.GuardLock(&runOfServe{}, b.Path), map[string]*lockkeepertest.Resource{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guards = append(c.guards, g)
	return map[string]int{"guard": len(c.guards)}, nil
}

// guarded returns a guard that has not ended. The caller holds c.mu.
func (c *control) guarded(number int) (*guard, error) {
	if number < 1 || number > len(c.guards) || c.guards[number-1] == nil {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no guard %d, or it has ended", number)}
	}
	return c.guards[number-1], nil
}

// resource returns what a lock protects, by its name.
func (c *control) resource(guard int, name string) (*lockkeepertest.Resource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, err := c.guarded(guard)
	if err != nil {
		return nil, err
	}
	if g.resources[name] == nil {
		g.resources[name] = g.Resource()
	}
	return g.resources[name], nil
}

func (c *control) guardWrite(b struct {
	Guard     int    `json:"guard"`
	Token     *int64 `json:"token"`
	Resource  string `json:"resource"`
	Unchecked bool   `json:"unchecked"`
}) (any, error) {
	if b.Token == nil {
		return nil, badRequest("\"token\" is missing")
	}
	to, err := c.resource(b.Guard, b.Resource)
	switch {
	case err != nil:
		return nil, err
	case b.Unchecked:
		to.WriteUnchecked(*b.Token)
	default:
		err = to.Write(*b.Token)
	}
	if err != nil {
		return map[string]any{"accepted": false, "reason": strings.TrimPrefix(err.Error(), "fence: ")}, nil
	}
	return map[string]bool{"accepted": true}, nil
}

func (c *control) guardVerdict(b struct {
	Guard int `json:"guard"`
}) (any, error) {
	c.mu.Lock()
	g, err := c.guarded(b.Guard)
	if err == nil {
		c.guards[b.Guard-1] = nil
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	v := g.Verdict()
	return map[string]any{"ok": len(v.Violations) == 0, "violations": notNull(v.Violations), "timeline": v.Timeline}, nil
}

type ofMember struct {
	Member *int `json:"member"`
}

// onMember makes an endpoint of what can be done to a member.
func onMember(do func(c *control, id int) error) func(c *control, b ofMember) (any, error) {
	return func(c *control, b ofMember) (any, error) {
		id, err := c.id(b.Member)
		if err == nil {
			err = do(c, id)
		}
		return nil, err
	}
}

func (c *control) kill(id int) error {
	if err := c.runs(id); err != nil {
		return err
	}
	c.server(id).Kill()
	return nil
}

func (c *control) restart(id int) error {
	c.server(id).Restart()
	return nil
}

func (c *control) pause(id int) error {
	if err := c.runs(id); err != nil { // it would be paused when it is restarted
		return err
	}
	c.server(id).Pause()
	return nil
}

func (c *control) resume(id int) error {
	if err := c.runs(id); err != nil {
		return err
	}
	c.server(id).Resume()
	return nil
}

func (c *control) partition(b struct {
	Groups [][]int `json:"groups"`
}) (any, error) {
	if b.Groups == nil {
		return nil, badRequest("\"groups\" is missing: lists of members, such as [[1], [2, 3]]")
	}
	seen := map[int]bool{}
	for _, id := range slices.Concat(b.Groups...) {
		if err := c.check(id); err != nil {
			return nil, err
		}
		if seen[id] {
			return nil, badRequest("member %d is in more than one group", id)
		}
		seen[id] = true
	}
	c.cluster.Partition(b.Groups...)
	return nil, nil
}

func (c *control) heal(struct{}) (any, error) {
	c.cluster.Heal()
	return nil, nil
}

func (c *control) link(b struct {
	From    *int    `json:"from"`
	To      *int    `json:"to"`
	Cut     bool    `json:"cut"`
	DelayMs millis  `json:"delayMs"`
	Loss    float64 `json:"loss"`
}) (any, error) {
	if b.From == nil || b.To == nil || *b.From == *b.To {
		return nil, badRequest("\"from\" and \"to\" must be two members")
	}
	if err := errors.Join(c.check(*b.From), c.check(*b.To)); err != nil {
		return nil, err
	}
	c.cluster.SetLink(*b.From, *b.To, lockkeepertest.Link{Cut: b.Cut, Delay: time.Duration(b.DelayMs), Loss: b.Loss})
	return nil, nil
}

func (c *control) disk(b struct {
	Member  *int   `json:"member"`
	DelayMs millis `json:"delayMs"`
	Full    bool   `json:"full"`
}) (any, error) {
	id, err := c.id(b.Member)
	if err == nil {
		c.server(id).SetDisk(lockkeepertest.Disk{Delay: time.Duration(b.DelayMs), Full: b.Full})
	}
	return nil, err
}

func (c *control) clock(b struct {
	Member *int   `json:"member"`
	SkewMs millis `json:"skewMs"`
}) (any, error) {
	id, err := c.id(b.Member)
	if err == nil {
		c.server(id).SetClock(time.Duration(b.SkewMs))
	}
	return nil, err
}

// mostAdvance is the most that /advance takes, 100 years.
const mostAdvance = millis(100 * 365 * 24 * time.Hour)

func (c *control) advance(b struct {
	Ms        *millis `json:"ms"`
	Connected bool    `json:"connected"`
}) (any, error) {
	if b.Ms == nil || *b.Ms < 0 || *b.Ms > mostAdvance {
		return nil, badRequest("\"ms\" must be a number of milliseconds, from 0 to 100 years")
	}
	if err := c.works(); err != nil {
		return nil, err
	}
	by := c.all.Advance
	if b.Connected {
		by = c.all.AdvanceSilent
	}
	ended := by(time.Duration(*b.Ms))
	expired := []sessionID{}
	for _, id := range ended.Expired {
		expired = append(expired, sessionID(id))
	}
	return map[string]any{"expired": expired, "deleted": notNull(ended.Deleted)}, nil
}

func (c *control) endTTLs(struct{}) (any, error) {
	if err := c.works(); err != nil {
		return nil, err
	}
	return map[string]any{"deleted": notNull(c.all.EndTTLs())}, nil
}

func (c *control) stepDown(struct{}) (any, error) {
	if len(c.servers) == 1 {
		return nil, refusal{http.StatusConflict, errors.New("there is no other member")}
	}
	return map[string]int{"leader": c.cluster.StepDown()}, nil
}
