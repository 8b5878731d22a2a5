package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// control is the HTTP handler of --test-control.
type control struct {
	cluster *lockkeepertest.Cluster // nil without --cluster
	servers []*lockkeepertest.Server

	mu     sync.Mutex
	faults []*lockkeepertest.Injection // the one with the number i is at i-1
}

// endpoint is something that tests can ask for.
type endpoint struct {
	method, path string
	example      string // of the query or the body, for the documentation
	does         string // for the documentation
	body         any    // the zero value of what a body is decoded to; nil with GET
	serve        func(c *control, r *http.Request) (any, error)
}

// endpoints lists all endpoints. The table in docs/test-control.md is generated from it.
var endpoints = []endpoint{
	get("/state", "member=0", "The state: who leads, the znodes as text, the sessions, watches and locks, and the faults that were injected.",
		(*control).state),
	get("/znode", "path=/locks/a&member=0", "The data, in base64, and the Stat of a znode.",
		(*control).znode),
	get("/requests", "op=create*&member=0", "The requests that the clients have sent, the oldest first, without pings. `op` selects some of them as in `/inject`; without `member` they are those to all members.",
		(*control).requests),
	post("/expire", `{"session": "0x1000a01c3e20000"}`, "End a session as if its client had been silent for its timeout. The reply comes when it has ended.",
		http.StatusServiceUnavailable, (*control).expire),
	post("/disconnect", `{"session": "0x1000a01c3e20000"}`, "Close the connection of a session.",
		http.StatusBadRequest, (*control).disconnect),
	post("/inject", `{"do": "closeAfter", "op": "create*", "path": "/locks/*", "nth": 2}`, "Inject a fault, see [below](#faults). The reply has its number, `id`.",
		http.StatusBadRequest, (*control).inject),
	post("/remove", `{"id": 1}`, "End a fault, and release what waits because of it. The reply says whether it has taken effect.",
		http.StatusBadRequest, (*control).remove),
	post("/wait/fired", `{"id": 1}`, "Wait until a fault takes effect for the first time.",
		http.StatusBadRequest, (*control).waitFired),
	post("/wait/held", `{"path": "/locks/a", "session": "0x1000a01c3e20000", "member": 0}`, "Wait until a session holds a lock: it has the first of the ephemeral and sequential children of `path`, or `path` itself is an ephemeral of the session.",
		http.StatusGatewayTimeout, (*control).waitHeld),
	post("/wait/waiters", `{"path": "/locks/a", "waiters": 2, "member": 0}`, "Wait until so many sessions wait behind the holder of a lock.",
		http.StatusGatewayTimeout, (*control).waitWaiters),
	post("/wait/gone", `{"path": "/locks/a", "member": 0}`, "Wait until a znode does not exist.",
		http.StatusGatewayTimeout, (*control).waitGone),
	post("/kill", `{"member": 0}`, "Stop a member as abruptly as if its process had been killed. It keeps its state.",
		http.StatusInternalServerError, (*control).kill),
	post("/restart", `{"member": 0}`, "Start a member that was killed, with the state that it had.",
		http.StatusConflict, (*control).restart),
	post("/partition", `{"groups": [[0], [1, 2]]}`, "Cut the network so that only members of the same group can reach each other. A member in no group can reach nobody. Clients can reach all members.",
		http.StatusBadRequest, (*control).partition),
	post("/heal", ``, "End all partitions and faults of links.",
		http.StatusBadRequest, (*control).heal),
	post("/link", `{"from": 0, "to": 1, "cut": true, "delayMs": 100, "loss": 0.1}`, "Set the faults of the network from one member to another, in this direction only. Those that are omitted end.",
		http.StatusBadRequest, (*control).link),
	post("/disk", `{"member": 0, "delayMs": 100, "full": true}`, "Make each write to a member's disk slow, or fail. What is omitted ends.",
		http.StatusBadRequest, (*control).disk),
	post("/pause", `{"member": 0}`, "Keep a member from sending, receiving and writing to its disk.",
		http.StatusBadRequest, (*control).pause),
	post("/resume", `{"member": 0}`, "Continue a paused member.",
		http.StatusBadRequest, (*control).resume),
	post("/clock", `{"member": 0, "skewMs": -3600000}`, "Make a member's clock wrong. While it leads, the times of znodes come from this clock.",
		http.StatusBadRequest, (*control).clock),
	post("/step-down", ``, "Make the leader hand over. The reply names the new leader.",
		http.StatusServiceUnavailable, (*control).stepDown),
}

// refusal is an error with the status of the reply.
type refusal struct {
	status int
	error
}

func badRequest(format string, args ...any) error {
	return refusal{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// get is an endpoint that changes nothing. Its parameters are those of the example, all of
// which may be omitted.
func get(path, example, does string, serve func(c *control, q url.Values) (any, error)) endpoint {
	known, err := url.ParseQuery(example)
	must(err)
	return endpoint{http.MethodGet, path, example, does, nil, func(c *control, r *http.Request) (any, error) {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return nil, badRequest("the query is not valid: %w", err)
		}
		for name, values := range q {
			if known[name] == nil {
				return nil, badRequest("there is no parameter %q; %s has %s", name, path, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			}
			if len(values) > 1 {
				return nil, badRequest("the parameter %q is given more than once", name)
			}
		}
		return serve(c, q)
	}}
}

// post is an endpoint with a JSON object as body. status is that of the reply if
// lockkeepertest fails.
func post[B any](path, example, does string, status int, serve func(c *control, ctx context.Context, body B) (any, error)) endpoint {
	return endpoint{http.MethodPost, path, example, does, *new(B), func(c *control, r *http.Request) (reply any, err error) {
		if r.URL.RawQuery != "" {
			return nil, badRequest("%s takes its parameters as JSON in the body, not in the query", path)
		}
		var body B
		if err := decode(r.Body, &body); err != nil {
			return nil, err
		}
		failed := attempt(func() { reply, err = serve(c, r.Context(), body) })
		if failed != nil {
			return nil, refusal{status, failed}
		}
		return reply, err
	}}
}

const maxBody = 1 << 20

// decode decodes a body. An empty one counts as an empty object.
func decode(r io.Reader, to any) error {
	text, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	switch {
	case err != nil:
		return badRequest("the body cannot be read: %w", err)
	case len(text) > maxBody:
		return refusal{http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", maxBody)}
	case len(bytes.TrimSpace(text)) == 0:
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(to)
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return badRequest("the body: a JSON object is needed, not %s", kind.Value)
	case errors.As(err, &kind):
		return badRequest("%q: %s is needed, not %s", kind.Field, kindName(kind.Type), kind.Value)
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("the body is not JSON: %w", err)
	case err != nil:
		return badRequest("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("the body has more than one JSON object")
	}
	return nil
}

// kindName names what JSON must have for a value of a type.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply, err := c.answer(w, r)
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		if refused := (refusal{}); errors.As(err, &refused) {
			status = refused.status
		}
		reply = map[string]string{"error": oneLine(err)}
	}
	if reply == nil {
		reply = struct{}{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.Encode(reply) // an error means that the client is gone
}

func (c *control) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	var paths []string
	for _, e := range endpoints {
		if e.path != r.URL.Path {
			paths = append(paths, e.path)
			continue
		}
		if e.method != r.Method {
			w.Header().Set("Allow", e.method)
			return nil, refusal{http.StatusMethodNotAllowed, fmt.Errorf("%s needs %s, not %s", e.path, e.method, r.Method)}
		}
		return e.serve(c, r)
	}
	return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no %s, only %s", r.URL.Path, strings.Join(paths, " "))}
}

// The following types have their own form in JSON.

// sessionID is a session's id: a string, as lockkeeper prints it everywhere, or also a
// number in what is received.
type sessionID int64

func (s sessionID) MarshalJSON() ([]byte, error) { return json.Marshal(session.FormatID(int64(s))) }

func (s *sessionID) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil { // the id of a server above 127 makes it negative as a Go int64
		var u uint64
		u, err = strconv.ParseUint(text, 0, 64)
		n = int64(u)
	}
	if *s = sessionID(n); err != nil || n == 0 {
		return fmt.Errorf("%s is not the id of a session, such as \"0x1000a01c3e20000\"", b)
	}
	return nil
}

func sessionIDs(ids []int64) []sessionID {
	all := []sessionID{}
	for _, id := range ids {
		all = append(all, sessionID(id))
	}
	return all
}

// millis is a whole number of milliseconds.
type millis time.Duration

func (m millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

func (m *millis) UnmarshalJSON(b []byte) error {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n > most || n < -most {
		return fmt.Errorf("%s is not a whole number of milliseconds", b)
	}
	*m = millis(time.Duration(n) * time.Millisecond)
	return nil
}

// code is an error code: ZooKeeper's name or its number.
type code proto.Code

func (c *code) UnmarshalJSON(b []byte) error {
	for known := proto.Code(-1); known > -1000; known-- {
		if string(b) == strconv.Itoa(int(known)) || string(b) == strconv.Quote(known.String()) {
			*c = code(known)
			return nil
		}
	}
	return fmt.Errorf("%s is not an error of ZooKeeper, such as \"NoNode\" or -101", b)
}

// notNull returns a slice that is [] in JSON if it is empty.
func notNull[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// number returns the number of a member. It may be omitted if there is only one.
func (c *control) number(member *int) (int, error) {
	switch {
	case member == nil && len(c.servers) == 1:
		return 0, nil
	case member == nil:
		return 0, badRequest("\"member\" is missing: a number from 0 to %d", len(c.servers)-1)
	}
	return *member, c.check(*member)
}

func (c *control) check(member int) error {
	if member < 0 || member >= len(c.servers) {
		return badRequest("there is no member %d, only 0 to %d", member, len(c.servers)-1)
	}
	return nil
}

// at returns the server to look at: a member, or if it is nil the leader, or if there is
// none another running server.
func (c *control) at(member *int) (int, *lockkeepertest.Server, error) {
	if member != nil {
		if err := c.check(*member); err != nil {
			return 0, nil, err
		}
		return *member, c.servers[*member], nil
	}
	best := 0
	for i, s := range c.servers {
		if role := s.Role(); role == lockkeeper.RoleLeader {
			return i, s, nil
		} else if role != "" && c.servers[best].Role() == "" {
			best = i
		}
	}
	return best, c.servers[best], nil
}

// queried is at for the parameter member of a query.
func (c *control) queried(q url.Values) (int, *lockkeepertest.Server, error) {
	if !q.Has("member") {
		return c.at(nil)
	}
	n, err := strconv.Atoi(q.Get("member"))
	if err != nil {
		return 0, nil, badRequest("%q is not the number of a member", q.Get("member"))
	}
	return c.at(&n)
}

// clustered returns the cluster. Many faults are only for clusters.
func (c *control) clustered() (*lockkeepertest.Cluster, error) {
	if c.cluster == nil {
		return nil, badRequest("this is possible only with --cluster; --cluster 1 is a cluster of one member")
	}
	return c.cluster, nil
}

// member returns the cluster and the number of a member.
func (c *control) member(member *int) (*lockkeepertest.Cluster, int, error) {
	cluster, err := c.clustered()
	if err != nil {
		return nil, 0, err
	}
	i, err := c.number(member)
	return cluster, i, err
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
		TimeoutMs  millis    `json:"timeoutMs"`
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
	n, shown, err := c.queried(q)
	if err != nil {
		return nil, err
	}
	state.Connect, state.Shown, state.Tree = c.connect(), n, shown.Tree()
	connected := map[int64]bool{} // to any member
	watches := []watch{}
	for i, s := range c.servers {
		role := string(s.Role())
		if role == "" {
			role = "stopped"
		}
		state.Members = append(state.Members, member{i, s.Addr(), role})
		for _, x := range s.Sessions() {
			connected[x.ID] = connected[x.ID] || x.Connected
		}
		for _, x := range s.Watches() {
			watches = append(watches, watch{sessionID(x.Session), x.Path})
		}
	}
	state.Watches = watches
	state.Sessions, state.Locks = []sessionState{}, []lock{}
	for _, x := range shown.Sessions() {
		state.Sessions = append(state.Sessions, sessionState{sessionID(x.ID), millis(x.Timeout), connected[x.ID], notNull(x.Ephemerals)})
	}
	for _, x := range shown.Locks() {
		state.Locks = append(state.Locks, lock{x.Path, sessionID(x.Holder), x.Token, x.Since, sessionIDs(x.Queue)})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	state.Faults = []faultState{}
	for i := range c.faults {
		state.Faults = append(state.Faults, c.faultState(i+1))
	}
	return state, nil
}

func (c *control) znode(q url.Values) (any, error) {
	_, s, err := c.queried(q)
	if err != nil {
		return nil, err
	}
	path := q.Get("path")
	if path == "" {
		return nil, badRequest("\"path\" is missing")
	}
	data, x, err := s.Get(path)
	if err != nil {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no znode %s", path)}
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
	_, s, err := c.queried(q)
	if err != nil {
		return nil, err
	}
	found := s.Requests
	if c.cluster != nil && !q.Has("member") {
		found = c.cluster.Requests
	}
	all := []request{}
	for _, r := range found(q.Get("op")) {
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

// missing returns the error for a session that does not exist, or is not connected.
func (b ofSession) missing(what string) error {
	return refusal{http.StatusNotFound, fmt.Errorf("session %s %s", session.FormatID(int64(b.Session)), what)}
}

func (c *control) expire(_ context.Context, b ofSession) (any, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	s := c.servers[0]
	if c.cluster != nil {
		s = c.servers[c.cluster.Leader()]
	}
	err := s.ExpireSession(int64(b.Session))
	switch {
	case errors.Is(err, lockkeepertest.ErrNoSession):
		return nil, b.missing("does not exist")
	case err != nil:
		return nil, refusal{http.StatusServiceUnavailable, err}
	}
	return nil, nil
}

func (c *control) disconnect(_ context.Context, b ofSession) (any, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	found := false
	for _, s := range c.servers {
		found = s.Disconnect(int64(b.Session)) || found
	}
	if !found {
		return nil, b.missing("is not connected")
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
	{"delay", "ms", "The request waits for so long before the server receives it, and with it all later ones of its connection. A watch event is sent later, and with it what follows it.",
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
	{"trickle", "ms", "The reply, or the watch event, is sent byte by byte, with so long a pause after each.",
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

func (c *control) inject(_ context.Context, b injected) (any, error) {
	do, err := b.action()
	if err != nil {
		return nil, err
	}
	f := lockkeepertest.Fault{
		Op: b.Op, Path: b.Path, Session: int64(b.Session), Nth: b.Nth, Times: b.Times, Do: do,
		Optional: true, // it is for the test to say that it did not fire
	}
	var i *lockkeepertest.Injection
	switch {
	case b.Member != nil:
		if err := c.check(*b.Member); err != nil {
			return nil, err
		}
		i = c.servers[*b.Member].Inject(f)
	case c.cluster != nil:
		i = c.cluster.Inject(f)
	default:
		i = c.servers[0].Inject(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, i)
	return c.faultState(len(c.faults)), nil
}

type faultState struct {
	ID    int    `json:"id"`
	Fired bool   `json:"fired"`
	Text  string `json:"text"`
}

// faultState returns the state of a fault. The caller holds mu.
func (c *control) faultState(id int) faultState {
	i := c.faults[id-1]
	fired := false
	select {
	case <-i.Fired():
		fired = true
	default:
	}
	return faultState{id, fired, i.String()}
}

type numbered struct {
	ID int `json:"id"`
}

func (c *control) fault(id int) (*lockkeepertest.Injection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < 1 || id > len(c.faults) {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no fault with the id %d", id)}
	}
	return c.faults[id-1], nil
}

func (c *control) remove(_ context.Context, b numbered) (any, error) {
	i, err := c.fault(b.ID)
	if err != nil {
		return nil, err
	}
	i.Remove()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faultState(b.ID), nil
}

// firesWithin is how long /wait/fired waits.
const firesWithin = time.Minute

func (c *control) waitFired(ctx context.Context, b numbered) (any, error) {
	i, err := c.fault(b.ID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, firesWithin)
	defer cancel()
	select {
	case <-i.Fired():
	case <-ctx.Done():
		return nil, refusal{http.StatusGatewayTimeout, fmt.Errorf("%v", i)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faultState(b.ID), nil
}

type ofLock struct {
	Path    string    `json:"path"`
	Session sessionID `json:"session"`
	Member  *int      `json:"member"`
}

// awaited returns the server that a /wait looks at.
func (c *control) awaited(path string, member *int) (*lockkeepertest.Server, error) {
	if path == "" {
		return nil, badRequest("\"path\" is missing")
	}
	_, s, err := c.at(member)
	return s, err
}

func (c *control) waitHeld(_ context.Context, b ofLock) (any, error) {
	if err := (ofSession{b.Session}).check(); err != nil {
		return nil, err
	}
	s, err := c.awaited(b.Path, b.Member)
	if err == nil {
		s.WaitHeld(b.Path, int64(b.Session))
	}
	return nil, err
}

type ofWaiters struct {
	Path    string `json:"path"`
	Waiters *int   `json:"waiters"`
	Member  *int   `json:"member"`
}

func (c *control) waitWaiters(_ context.Context, b ofWaiters) (any, error) {
	if b.Waiters == nil || *b.Waiters < 0 {
		return nil, badRequest("\"waiters\" must be a number, 0 or more")
	}
	s, err := c.awaited(b.Path, b.Member)
	if err == nil {
		s.WaitWaiters(b.Path, *b.Waiters)
	}
	return nil, err
}

type ofPath struct {
	Path   string `json:"path"`
	Member *int   `json:"member"`
}

func (c *control) waitGone(_ context.Context, b ofPath) (any, error) {
	s, err := c.awaited(b.Path, b.Member)
	if err == nil {
		s.WaitGone(b.Path)
	}
	return nil, err
}

type ofMember struct {
	Member *int `json:"member"`
}

func (c *control) kill(_ context.Context, b ofMember) (any, error) {
	i, err := c.number(b.Member)
	switch {
	case err != nil:
		return nil, err
	case c.cluster != nil:
		c.cluster.Kill(i)
	default:
		c.servers[i].Stop()
	}
	return nil, nil
}

func (c *control) restart(_ context.Context, b ofMember) (any, error) {
	i, err := c.number(b.Member)
	switch {
	case err != nil:
		return nil, err
	case c.cluster != nil:
		c.cluster.Restart(i)
	default:
		c.servers[i].Restart()
	}
	return nil, nil
}

func (c *control) partition(_ context.Context, b struct {
	Groups [][]int `json:"groups"`
}) (any, error) {
	cluster, err := c.clustered()
	if err != nil {
		return nil, err
	}
	if b.Groups == nil {
		return nil, badRequest("\"groups\" is missing: lists of members, such as [[0], [1, 2]]")
	}
	seen := map[int]bool{}
	for _, i := range slices.Concat(b.Groups...) {
		if err := c.check(i); err != nil {
			return nil, err
		}
		if seen[i] {
			return nil, badRequest("member %d is in more than one group", i)
		}
		seen[i] = true
	}
	cluster.Partition(b.Groups...)
	return nil, nil
}

func (c *control) heal(context.Context, struct{}) (any, error) {
	cluster, err := c.clustered()
	if err == nil {
		cluster.Heal()
	}
	return nil, err
}

func (c *control) link(_ context.Context, b struct {
	From    *int    `json:"from"`
	To      *int    `json:"to"`
	Cut     bool    `json:"cut"`
	DelayMs millis  `json:"delayMs"`
	Loss    float64 `json:"loss"`
}) (any, error) {
	cluster, err := c.clustered()
	if err != nil {
		return nil, err
	}
	if b.From == nil || b.To == nil || *b.From == *b.To {
		return nil, badRequest("\"from\" and \"to\" must be two members")
	}
	if err := errors.Join(c.check(*b.From), c.check(*b.To)); err != nil {
		return nil, err
	}
	if b.DelayMs < 0 || b.Loss < 0 || b.Loss >= 1 {
		return nil, badRequest("\"delayMs\" must not be negative, and \"loss\" must be at least 0 and less than 1")
	}
	cluster.SetLink(*b.From, *b.To, lockkeepertest.Link{Cut: b.Cut, Delay: time.Duration(b.DelayMs), Loss: b.Loss})
	return nil, nil
}

func (c *control) disk(_ context.Context, b struct {
	Member  *int   `json:"member"`
	DelayMs millis `json:"delayMs"`
	Full    bool   `json:"full"`
}) (any, error) {
	cluster, i, err := c.member(b.Member)
	if err != nil {
		return nil, err
	}
	if b.DelayMs < 0 {
		return nil, badRequest("\"delayMs\" must not be negative")
	}
	cluster.SetDisk(i, lockkeepertest.Disk{Delay: time.Duration(b.DelayMs), Full: b.Full})
	return nil, nil
}

func (c *control) pause(_ context.Context, b ofMember) (any, error) {
	cluster, i, err := c.member(b.Member)
	if err != nil {
		return nil, err
	}
	if c.servers[i].Role() == "" { // it would be paused when it is restarted
		return nil, refusal{http.StatusConflict, fmt.Errorf("member %d is stopped", i)}
	}
	cluster.Pause(i)
	return nil, nil
}

func (c *control) resume(_ context.Context, b ofMember) (any, error) {
	cluster, i, err := c.member(b.Member)
	if err == nil {
		cluster.Resume(i)
	}
	return nil, err
}

func (c *control) clock(_ context.Context, b struct {
	Member *int   `json:"member"`
	SkewMs millis `json:"skewMs"`
}) (any, error) {
	cluster, i, err := c.member(b.Member)
	if err == nil {
		cluster.ClockSkew(i, time.Duration(b.SkewMs))
	}
	return nil, err
}

func (c *control) stepDown(context.Context, struct{}) (any, error) {
	cluster, err := c.clustered()
	if err != nil {
		return nil, err
	}
	if len(c.servers) == 1 {
		return nil, refusal{http.StatusConflict, errors.New("there is no other member")}
	}
	return map[string]int{"leader": cluster.StepDown()}, nil
}
