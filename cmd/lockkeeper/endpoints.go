package main

import (
	"cmp"
	"context"
	"errors"
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
	all     controlled               // the cluster, or else the server
	run     *runOfServe
	ended   <-chan struct{} // closed when the server is about to end
	port    *testPort
	number  int // of the server in this process

	mu        sync.Mutex
	faults    []*lockkeepertest.Injection // the one with the number i is at i-1; nil if Restore has removed it
	snapshots []snapshot                  // the first one is of the beginning; zero if it was removed
	guards    []*guard                    // the one with the number i is at i-1; nil once it has ended
}

// controlled is a server or a cluster.
type controlled interface {
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

// controlRequest is one for an endpoint, which is a method of it: it returns what is replied, and ends
// as lockkeepertest ends a test if it cannot do that. deny gives the reply a status of its own.
type controlRequest struct {
	*control
	r *http.Request
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
	serve        func(c controlRequest) any
	status       int  // of the reply if lockkeepertest fails
	clustered    bool // needs a cluster
	ofProcess    bool // is not below the url of a server
}

// endpoints lists all endpoints. The table in docs/test-control.md is generated from it.
var endpoints = []endpoint{
	get("/state", "member=1", "The state: who leads, the znodes as text, the sessions, watches and locks, and the faults that were injected.",
		controlRequest.state),
	get("/znode", "path=/locks/a&member=1", "The data, in base64, and the Stat of a znode.",
		controlRequest.znode),
	get("/requests", "op=create*&member=1", "The requests that the clients have sent, the oldest first, without pings. `op` selects some of them as in `/inject`; without `member` they are those to all members.",
		controlRequest.requests).failsWith(http.StatusBadRequest),
	post("/expire", `{"session": "0x1000a01c3e20000"}`, "End a session as if its client had been silent for its timeout. The reply comes when it has ended.",
		controlRequest.expire).failsWith(http.StatusServiceUnavailable),
	post("/disconnect", `{"session": "0x1000a01c3e20000"}`, "Close the connection of a session.",
		controlRequest.disconnect),
	post("/inject", `{"do": "closeAfter", "op": "create*", "path": "/locks/*", "nth": 2}`, "Inject a fault, see [below](#faults). The reply has its number, `id`.",
		controlRequest.inject),
	post("/remove", `{"id": 1}`, "End a fault, and release what waits because of it. The reply says whether it has taken effect.",
		controlRequest.remove),
	post("/snapshot", ``, "Take a snapshot of the state. The reply has its number, `snapshot`.",
		controlRequest.snapshot).failsWith(http.StatusServiceUnavailable),
	post("/restore", `{"snapshot": 1}`, "Put back the state of a snapshot, see [below](#sharing-a-server); without a number, or with 0, the state with which the server began. The reply has the `faults` that this has removed, as `/state` has them: one that has not `fired` has tested nothing.",
		controlRequest.restore).failsWith(http.StatusServiceUnavailable),
	post("/snapshot/remove", `{"snapshot": 1}`, "Forget a snapshot, which takes about as much memory as the state.",
		controlRequest.removeSnapshot),
	post("/tree", `{"tree": "/a = \"x\"\n/b\n"}`, "Add znodes, in the format of `/state` and of `--tree`. Those that exist get this data, and missing parents are created.",
		controlRequest.tree).failsWith(http.StatusServiceUnavailable),
	post("/namespace", `{"name": "mine"}`, "Create a persistent znode, by default with a new name such as /test-0000000001. The reply has its `path`, and as `connect` the addresses for a client with that chroot.",
		controlRequest.namespace).failsWith(http.StatusServiceUnavailable),
	post("/namespace/remove", `{"path": "/test-0000000001"}`, "Delete a znode with all that is below it, also ephemerals.",
		controlRequest.removeNamespace).failsWith(http.StatusServiceUnavailable),
	post("/wait/fired", `{"id": 1, "timeoutMs": 5000}`, "Wait until a fault takes effect for the first time.",
		controlRequest.waitFired),
	wait("/wait/held", `{"path": "/locks/a", "session": "0x1000a01c3e20000", "member": 1}`, "Wait until a session holds a lock: it has the first of the ephemeral and sequential children of `path`, or `path` itself is an ephemeral of the session.",
		waitHeld),
	wait("/wait/waiters", `{"path": "/locks/a", "waiters": 2, "member": 1}`, "Wait until this many sessions wait behind the holder of a lock.",
		waitWaiters),
	wait("/wait/gone", `{"path": "/locks/a", "member": 1}`, "Wait until a znode does not exist.",
		func(w lockkeepertest.Waits, b awaited) { w.WaitGone(b.Path) }),
	wait("/wait/exists", `{"path": "/a", "member": 1}`, "Wait until a znode exists.",
		func(w lockkeepertest.Waits, b awaited) { w.WaitExists(b.Path) }),
	wait("/wait/data", `{"path": "/a", "text": "x", "member": 1}`, "Wait until a znode has this data: `text`, or `data` in base64.",
		waitData),
	wait("/wait/children", `{"path": "/a", "children": 3, "member": 1}`, "Wait until a znode has exactly this many children.",
		waitChildren),
	wait("/wait/requests", `{"op": "create*", "path": "/x*", "count": 2, "member": 1}`, "Wait until `/requests` has at least this many requests of which a path matches `path`, as in `/inject`. Without `member`, those to all members count.",
		waitRequests),
	wait("/wait/watch", `{"path": "/a", "session": "0x1000a01c3e20000", "member": 1}`, "Wait until a session, or any one, watches a znode. A watch that fires at once may be missed. Without `member`, watches at all members count.",
		func(w lockkeepertest.Waits, b ofLock) { w.WaitWatched(b.Path, int64(b.Session)) }),
	post("/wait/leader", `{"among": [2, 3]}`, "Wait until a member leads, or one of `among`, such as the others when a partition has cut the leader off. The reply names it as `leader`. A server that is no cluster leads itself.",
		controlRequest.waitLeader).failsWith(http.StatusGatewayTimeout),
	post("/guard", `{"path": "/locks/a"}`, "Watch a lock from now on, see [below](#a-lock-under-guard). The reply has the number, `guard`.",
		controlRequest.guardLock),
	post("/guard/write", `{"guard": 1, "token": 12, "resource": "file", "unchecked": false}`, "Report that a client writes to what the lock protects. The reply says whether it is `accepted`, and if not, the `reason`.",
		controlRequest.guardWrite),
	post("/guard/verdict", `{"guard": 1}`, "End a guard. The reply says whether all is `ok`, and has the `violations`, one line each, and a `timeline`.",
		controlRequest.guardVerdict),
	post("/servers", `{"cluster": 3, "tree": "/a = \"x\"\n", "electionTimeoutMs": 500, "behaveAs": "3.8"}`, "Start another server in this process, or a cluster, see [below](#several-servers). The reply has its number, `server`, its `url`, and what clients `connect` to.",
		controlRequest.startServer).failsWith(http.StatusInternalServerError).perProcess(),
	get("/servers", "", "The servers in this process.",
		controlRequest.listServers).perProcess(),
	post("/stop", ``, "Stop a server that `/servers` has started, and free its ports.",
		controlRequest.stopServer).failsWith(http.StatusInternalServerError),
	post("/kill", `{"member": 1}`, "Stop a member as abruptly as if its process had been killed. It keeps its state.",
		onRunning((*lockkeepertest.Server).Kill)),
	post("/restart", `{"member": 1}`, "Start a member that was killed, with the state that it had.",
		func(c controlRequest, b ofMember) any { c.member(b.Member).Restart(); return nil }).failsWith(http.StatusConflict),
	post("/disk", `{"member": 1, "delayMs": 100, "full": true}`, "Make each write to a member's disk slow, or fail. What is omitted ends.",
		controlRequest.disk),
	post("/pause", `{"member": 1}`, "Keep a member from sending, receiving and writing to its disk.",
		onRunning((*lockkeepertest.Server).Pause)),
	post("/resume", `{"member": 1}`, "Continue a paused member.",
		onRunning((*lockkeepertest.Server).Resume)),
	post("/clock", `{"member": 1, "skewMs": -3600000}`, "Make a member's clock wrong. While it leads or is alone, the times of znodes come from this clock.",
		controlRequest.clock),
	post("/advance", `{"ms": 3600000, "connected": false}`, "Set the server's clock forward, see [below](#time). The reply has what has ended: the sessions `expired`, and the paths of TTL znodes and containers `deleted`.",
		controlRequest.advance).failsWith(http.StatusServiceUnavailable),
	post("/end-ttls", ``, "Delete TTL znodes and containers without children now, whatever their time. The reply has the paths `deleted`.",
		controlRequest.endTTLs).failsWith(http.StatusServiceUnavailable),
	post("/partition", `{"groups": [[1], [2, 3]]}`, "Cut the network so that only members of the same group can reach each other. A member in no group can reach nobody. Clients can reach all members.",
		controlRequest.partition).inCluster(),
	post("/heal", ``, "End all partitions and faults of links.",
		func(c controlRequest, _ struct{}) any { c.cluster.Heal(); return nil }).inCluster(),
	post("/link", `{"from": 1, "to": 2, "cut": true, "delayMs": 100, "loss": 0.1}`, "Set the faults of the network from one member to another, in this direction only. Those that are omitted end.",
		controlRequest.link).inCluster(),
	post("/step-down", ``, "Make the leader hand over. The reply names the new leader.",
		controlRequest.stepDown).failsWith(http.StatusServiceUnavailable).inCluster(),
}

func (c *control) server(id int) *lockkeepertest.Server {
	if id < 1 || id > len(c.servers) {
		badRequest("there is no member %d, only 1 to %d", id, len(c.servers))
	}
	return c.servers[id-1]
}

// member returns a member. It may be omitted if there is only one.
func (c *control) member(id *int) *lockkeepertest.Server {
	switch {
	case id != nil:
		return c.server(*id)
	case len(c.servers) > 1:
		badRequest("\"member\" is missing: an id from 1 to %d", len(c.servers))
	}
	return c.servers[0]
}

// running is member for one that is not stopped.
func (c *control) running(id *int) *lockkeepertest.Server {
	s := c.member(id)
	if s.Role() == "" {
		deny(http.StatusConflict, "member %d is stopped", slices.Index(c.servers, s)+1)
	}
	return s
}

// onRunning makes an endpoint of what can be done to a member that is not stopped.
func onRunning(do func(*lockkeepertest.Server)) func(controlRequest, ofMember) any {
	return func(c controlRequest, b ofMember) any { do(c.running(b.Member)); return nil }
}

type ofMember struct {
	Member *int `json:"member"`
}

// of returns a member or, if that was omitted, the whole cluster.
func (c *control) of(member *int) controlled {
	if member == nil {
		return c.all
	}
	return c.server(*member)
}

// works denies the request if nothing can be applied, since all members are stopped or have failed.
func (c *control) works() {
	switch {
	case slices.ContainsFunc(c.servers, func(s *lockkeepertest.Server) bool { return s.Role() != "" && s.Err() == nil }):
	case len(c.servers) > 1:
		deny(http.StatusConflict, "all members are stopped or have failed")
	default:
		deny(http.StatusConflict, "the server has failed, and must be killed and restarted: %w", c.running(nil).Err())
	}
}

// memberIn returns the member that a query names, or nil.
func memberIn(q url.Values) *int {
	if !q.Has("member") {
		return nil
	}
	id, err := strconv.Atoi(q.Get("member"))
	if err != nil {
		badRequest("%q is not the id of a member", q.Get("member"))
	}
	return &id
}

// shown returns the member to look at, and its id. If the query names none, that is the leader, or if
// there is none another running member.
func (c *control) shown(q url.Values) (*lockkeepertest.Server, int) {
	if id := memberIn(q); id != nil {
		return c.server(*id), *id
	}
	best := 0
	for i, s := range c.servers {
		if role := s.Role(); role == lockkeeper.RoleLeader {
			return s, i + 1
		} else if role != "" && c.servers[best].Role() == "" {
			best = i
		}
	}
	return c.servers[best], best + 1
}

// connect returns the addresses of all members for clients.
func (c *control) connect() string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.Addr())
	}
	return strings.Join(all, ",")
}

type object = map[string]any

// orNull returns the id of a session, or null for 0.
func orNull(id int64) any {
	if id == 0 {
		return nil
	}
	return sessionID(id)
}

func sessionIDs(ids []int64) []sessionID {
	all := []sessionID{}
	for _, id := range ids {
		all = append(all, sessionID(id))
	}
	return all
}

func (c controlRequest) state(q url.Values) any {
	shown, id := c.shown(q)
	members, sessions, watches, locks := []object{}, []object{}, []object{}, []object{}
	connected := map[int64]bool{} // to any member
	for i, s := range c.servers {
		role := string(s.Role())
		if role == "" {
			role = "stopped"
		} else if s.Err() != nil {
			role = "failed"
		}
		members = append(members, object{"member": i + 1, "address": s.Addr(), "role": role})
		for _, x := range s.Sessions() {
			connected[x.ID] = connected[x.ID] || x.Connected
		}
		for _, x := range s.Watches() {
			watches = append(watches, object{"session": sessionID(x.Session), "path": x.Path})
		}
	}
	for _, x := range shown.Sessions() {
		sessions = append(sessions, object{"id": sessionID(x.ID), "timeoutMs": x.Timeout.Milliseconds(), "connected": connected[x.ID], "ephemerals": notNull(x.Ephemerals)})
	}
	for _, x := range shown.Locks() {
		locks = append(locks, object{"path": x.Path, "holder": sessionID(x.Holder), "token": x.Token, "since": x.Since, "queue": sessionIDs(x.Queue)})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return object{"connect": c.connect(), "members": members, "shown": id, "tree": shown.Tree(), "sessions": sessions, "watches": watches, "locks": locks,
		"faults": statesOf(c.faults, 0)}
}

func (c controlRequest) znode(q url.Values) any {
	shown, _ := c.shown(q)
	at := q.Get("path")
	need("path", at != "")
	data, x, err := shown.Get(at)
	if err != nil {
		deny(http.StatusNotFound, "there is no znode %s", at)
	}
	return object{"data": notNull(data), "stat": object{
		"czxid": x.Czxid, "mzxid": x.Mzxid, "ctime": x.Ctime, "mtime": x.Mtime, "version": x.Version, "cversion": x.Cversion, "aversion": x.Aversion,
		"ephemeralOwner": orNull(x.EphemeralOwner), "dataLength": x.DataLength, "numChildren": x.NumChildren, "pzxid": x.Pzxid,
	}}
}

func (c controlRequest) requests(q url.Values) any {
	all := []object{}
	for _, r := range c.of(memberIn(q)).Requests(q.Get("op")) {
		all = append(all, object{"time": r.Time, "session": orNull(r.Session), "op": r.Op, "path": r.Path, "text": r.String()})
	}
	return object{"requests": all}
}

type ofSession struct {
	Session sessionID `json:"session"`
}

func (c controlRequest) expire(b ofSession) any {
	need("session", b.Session != 0)
	leader := 1
	if c.cluster != nil {
		leader = c.cluster.Leader()
	}
	err := c.running(&leader).ExpireSession(int64(b.Session))
	if errors.Is(err, lockkeeper.ErrNoSession) {
		deny(http.StatusNotFound, "session %v does not exist", b.Session)
	}
	orFail(err)
	return nil
}

func (c controlRequest) disconnect(b ofSession) any {
	need("session", b.Session != 0)
	found := false
	for _, s := range c.servers {
		found = s.Disconnect(int64(b.Session)) || found
	}
	if !found {
		deny(http.StatusNotFound, "session %v is not connected", b.Session)
	}
	return nil
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

func (b *injected) action() lockkeepertest.Action {
	var names []string
	for _, a := range actions {
		if a.name != b.Do {
			names = append(names, a.name)
			continue
		}
		for arg, given := range map[string]bool{"ms": b.Ms != nil, "error": b.Error != nil} {
			if given && arg != a.arg {
				badRequest("%s has no %q", a.name, arg)
			} else if !given && arg == a.arg {
				badRequest("%s needs %q", a.name, arg)
			}
		}
		return a.make(b)
	}
	badRequest("\"do\" is %q, but must be one of %s", b.Do, strings.Join(names, ", "))
	return lockkeepertest.Action{}
}

func (c controlRequest) inject(b injected) any {
	i := c.of(b.Member).Inject(lockkeepertest.Fault{
		Op: b.Op, Path: b.Path, Session: int64(b.Session), Nth: b.Nth, Times: b.Times, Do: b.action(),
		Optional: true, // it is for the test to say that it did not fire
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, i)
	return stateOf(len(c.faults), i)
}

func stateOf(id int, i *lockkeepertest.Injection) object {
	return object{"id": id, "fired": i.HasFired(), "matched": i.Matched(), "text": i.String()}
}

// statesOf returns the states of those faults that were not removed. Their ids begin after a number.
func statesOf(faults []*lockkeepertest.Injection, after int) []object {
	all := []object{}
	for i, f := range faults {
		if f != nil {
			all = append(all, stateOf(after+i+1, f))
		}
	}
	return all
}

type numbered struct {
	ID int `json:"id"`
}

func (c *control) fault(id int) *lockkeepertest.Injection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < 1 || id > len(c.faults) || c.faults[id-1] == nil {
		deny(http.StatusNotFound, "there is no fault with the id %d", id)
	}
	return c.faults[id-1]
}

func (c controlRequest) remove(b numbered) any {
	i := c.fault(b.ID)
	i.Remove()
	return stateOf(b.ID, i)
}

// limited has the limit of an endpoint that waits.
type limited struct {
	TimeoutMs *millis `json:"timeoutMs"`
}

// within returns the limit, and 0 for the default.
func (b limited) within() time.Duration {
	if b.TimeoutMs == nil {
		return 0
	}
	if *b.TimeoutMs <= 0 {
		badRequest("\"timeoutMs\" must be more than 0")
	}
	return time.Duration(*b.TimeoutMs)
}

// firesWithin is how long /wait/fired waits by default.
const firesWithin = time.Minute

func (c controlRequest) waitFired(b struct {
	numbered
	limited
}) any {
	within, i := cmp.Or(b.within(), firesWithin), c.fault(b.ID)
	ctx, cancel := context.WithTimeout(c.r.Context(), within)
	defer cancel()
	select {
	case <-i.Fired():
	case <-c.ended:
		deny(http.StatusGatewayTimeout, "%v", i)
	case <-ctx.Done():
		deny(http.StatusGatewayTimeout, "%v (waited %v)", i, within)
	}
	return stateOf(b.ID, i)
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
func (b awaited) waits(c controlRequest) lockkeepertest.Waits {
	needPath(b.Path)
	return b.anywhere.waits(c)
}

func (b anywhere) waits(c controlRequest) lockkeepertest.Waits {
	return c.of(b.Member).Within(b.within()).WithContext(c.r.Context())
}

// wait returns an endpoint that waits until something has happened.
func wait[B interface {
	waits(controlRequest) lockkeepertest.Waits
}](path, example, does string, until func(w lockkeepertest.Waits, body B)) endpoint {
	return post(path, example, does, func(c controlRequest, body B) any {
		until(body.waits(c), body)
		return nil
	}).failsWith(http.StatusGatewayTimeout)
}

// need denies a request without something in its query or body.
func need(name string, there bool) {
	if !there {
		badRequest("%q is missing", name)
	}
}

func needPath(path string) {
	need("path", path != "")
	if !znode.ValidPath(path) {
		badRequest("%q is not a path", path)
	}
}

// number returns a number that must be there.
func number(name string, n *int) int {
	if n == nil || *n < 0 {
		badRequest("%q must be a number, 0 or more", name)
	}
	return *n
}

type ofLock struct {
	awaited
	Session sessionID `json:"session"`
}

func waitHeld(w lockkeepertest.Waits, b ofLock) {
	need("session", b.Session != 0)
	w.WaitHeld(b.Path, int64(b.Session))
}

func waitWaiters(w lockkeepertest.Waits, b struct {
	awaited
	Waiters *int `json:"waiters"`
}) {
	w.WaitWaiters(b.Path, number("waiters", b.Waiters))
}

func waitData(w lockkeepertest.Waits, b struct {
	awaited
	Data *[]byte `json:"data"`
	Text *string `json:"text"`
}) {
	switch {
	case (b.Data == nil) == (b.Text == nil):
		badRequest("either \"text\" or \"data\", in base64, must be there")
	case b.Text != nil:
		w.WaitData(b.Path, []byte(*b.Text))
	default:
		w.WaitData(b.Path, *b.Data)
	}
}

func waitChildren(w lockkeepertest.Waits, b struct {
	awaited
	Children *int `json:"children"`
}) {
	w.WaitChildren(b.Path, number("children", b.Children))
}

func waitRequests(w lockkeepertest.Waits, b struct {
	anywhere
	Op    string `json:"op"`
	Count *int   `json:"count"`
}) {
	count := number("count", b.Count)
	if wrong := attempt(func() { w.WaitRequests(b.Op, b.Path, 0) }); wrong != nil { // with the names, since there are none to wait for
		badRequest("%w", wrong)
	}
	w.WaitRequests(b.Op, b.Path, count)
}

func (c controlRequest) waitLeader(b struct {
	Among []int `json:"among"`
	limited
}) any {
	for _, id := range b.Among {
		c.server(id)
	}
	return object{"leader": c.all.Within(b.within()).WithContext(c.r.Context()).Leader(b.Among...)}
}

func (c controlRequest) snapshot(struct{}) any {
	c.works()
	return object{"snapshot": c.takeSnapshot()}
}

func (c *control) takeSnapshot() (number int) {
	x := c.all.Snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = append(c.snapshots, snapshot{x, len(c.faults)})
	return len(c.snapshots) - 1
}

// known returns a snapshot that was not removed. The caller holds c.mu.
func (c *control) known(number int) snapshot {
	if number < 0 || number >= len(c.snapshots) || c.snapshots[number].Snapshot == nil {
		deny(http.StatusNotFound, "there is no snapshot %d, or it was removed", number)
	}
	return c.snapshots[number]
}

type ofSnapshot struct {
	Snapshot int `json:"snapshot"`
}

func (c controlRequest) removeSnapshot(b ofSnapshot) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known(b.Snapshot)
	if b.Snapshot == 0 {
		badRequest("\"snapshot\" must be a number from /snapshot: the state of the beginning is kept")
	}
	c.snapshots[b.Snapshot] = snapshot{}
	return nil
}

func (c controlRequest) restore(b ofSnapshot) any {
	c.works()
	x, faults := func() (snapshot, int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.known(b.Snapshot), len(c.faults)
	}()
	orFail(c.run.attemptAll(func() { c.all.Restore(x.Snapshot) }))
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.faults[x.faults:faults]
	removed := statesOf(since, x.faults)
	clear(since)
	return object{"faults": removed}
}

func (c controlRequest) tree(b struct {
	Tree *string `json:"tree"`
}) any {
	need("tree", b.Tree != nil)
	c.works()
	c.all.AddTree(*b.Tree)
	return nil
}

func (c controlRequest) guardLock(b struct {
	Path string `json:"path"`
}) any {
	needPath(b.Path)
	// A guard that is not asked for its verdict is no error when the process ends.
	g := &guard{c.all.GuardLock(&runOfServe{}, b.Path), map[string]*lockkeepertest.Resource{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guards = append(c.guards, g)
	return object{"guard": len(c.guards)}
}

// guarded returns a guard that has not ended. The caller holds c.mu.
func (c *control) guarded(number int) *guard {
	if number < 1 || number > len(c.guards) || c.guards[number-1] == nil {
		deny(http.StatusNotFound, "there is no guard %d, or it has ended", number)
	}
	return c.guards[number-1]
}

// resource returns what a lock protects, by its name.
func (c *control) resource(guard int, name string) *lockkeepertest.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.guarded(guard)
	if g.resources[name] == nil {
		g.resources[name] = g.Resource()
	}
	return g.resources[name]
}

func (c controlRequest) guardWrite(b struct {
	Guard     int    `json:"guard"`
	Token     *int64 `json:"token"`
	Resource  string `json:"resource"`
	Unchecked bool   `json:"unchecked"`
}) any {
	need("token", b.Token != nil)
	to := c.resource(b.Guard, b.Resource)
	if b.Unchecked {
		to.WriteUnchecked(*b.Token)
	} else if err := to.Write(*b.Token); err != nil {
		return object{"accepted": false, "reason": strings.TrimPrefix(err.Error(), "fence: ")}
	}
	return object{"accepted": true}
}

func (c controlRequest) guardVerdict(b struct {
	Guard int `json:"guard"`
}) any {
	take := func() *guard {
		c.mu.Lock()
		defer c.mu.Unlock()
		g := c.guarded(b.Guard)
		c.guards[b.Guard-1] = nil
		return g
	}
	v := take().Verdict()
	return object{"ok": len(v.Violations) == 0, "violations": notNull(v.Violations), "timeline": v.Timeline}
}

func (c controlRequest) partition(b struct {
	Groups [][]int `json:"groups"`
}) any {
	if b.Groups == nil {
		badRequest("\"groups\" is missing: lists of members, such as [[1], [2, 3]]")
	}
	seen := map[int]bool{}
	for _, id := range slices.Concat(b.Groups...) {
		if c.server(id); seen[id] {
			badRequest("member %d is in more than one group", id)
		}
		seen[id] = true
	}
	c.cluster.Partition(b.Groups...)
	return nil
}

func (c controlRequest) link(b struct {
	From    *int    `json:"from"`
	To      *int    `json:"to"`
	Cut     bool    `json:"cut"`
	DelayMs millis  `json:"delayMs"`
	Loss    float64 `json:"loss"`
}) any {
	if b.From == nil || b.To == nil || *b.From == *b.To {
		badRequest("\"from\" and \"to\" must be two members")
	}
	c.server(*b.From)
	c.server(*b.To)
	c.cluster.SetLink(*b.From, *b.To, lockkeepertest.Link{Cut: b.Cut, Delay: time.Duration(b.DelayMs), Loss: b.Loss})
	return nil
}

func (c controlRequest) disk(b struct {
	Member  *int   `json:"member"`
	DelayMs millis `json:"delayMs"`
	Full    bool   `json:"full"`
}) any {
	c.member(b.Member).SetDisk(lockkeepertest.Disk{Delay: time.Duration(b.DelayMs), Full: b.Full})
	return nil
}

func (c controlRequest) clock(b struct {
	Member *int   `json:"member"`
	SkewMs millis `json:"skewMs"`
}) any {
	c.member(b.Member).SetClock(time.Duration(b.SkewMs))
	return nil
}

// mostAdvance is the most that /advance takes, 100 years.
const mostAdvance = millis(100 * 365 * 24 * time.Hour)

func (c controlRequest) advance(b struct {
	Ms        *millis `json:"ms"`
	Connected bool    `json:"connected"`
}) any {
	if b.Ms == nil || *b.Ms < 0 || *b.Ms > mostAdvance {
		badRequest("\"ms\" must be a number of milliseconds, from 0 to 100 years")
	}
	c.works()
	by := c.all.Advance
	if b.Connected {
		by = c.all.AdvanceSilent
	}
	ended := by(time.Duration(*b.Ms))
	return object{"expired": sessionIDs(ended.Expired), "deleted": notNull(ended.Deleted)}
}

func (c controlRequest) endTTLs(struct{}) any {
	c.works()
	return object{"deleted": notNull(c.all.EndTTLs())}
}

func (c controlRequest) stepDown(struct{}) any {
	if len(c.servers) == 1 {
		deny(http.StatusConflict, "there is no other member")
	}
	return object{"leader": c.cluster.StepDown()}
}
