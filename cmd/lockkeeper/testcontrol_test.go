package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// tested is a process with --test-control.
type tested struct {
	*process
	url string
}

// succeeded has the methods and paths of the endpoints that have replied with 200.
var succeeded sync.Map

var controlLine = regexp.MustCompile(`^lockkeeper: test control on (http://127\.0\.0\.1:[1-9]\d*)$`)

func startControl(t *testing.T, flags ...string) *tested {
	t.Helper()
	args := append([]string{"serve", "--memory", "--listen", "127.0.0.1:0", "--test-control", ":0", "--log-level", "error"}, flags...)
	p := start(t, nil, args...).waitReady()
	for _, line := range p.lines() {
		if m := controlLine.FindStringSubmatch(line); m != nil {
			c := &tested{p, m[1]}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("standard error: %s", strings.Join(p.lines(), "\n"))
				}
			})
			return c
		}
	}
	t.Fatalf("no address of the test control: %q", p.lines())
	return nil
}

// send sends a request. If body is empty, it is a GET.
func (c *tested) send(path, body string) (status int, reply string) {
	c.t.Helper()
	do := func() (*http.Response, error) { return http.Get(c.url + path) }
	if body != "" {
		do = func() (*http.Response, error) {
			return http.Post(c.url+path, "application/json", strings.NewReader(body))
		}
	}
	r, err := do()
	check1(c.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	check1(c.t, err)
	if kind := r.Header.Get("Content-Type"); kind != "application/json" {
		c.t.Errorf("%s: Content-Type %q", path, kind)
	}
	return r.StatusCode, string(b)
}

// ask sends a request, which must succeed, and decodes the reply into a T.
func asked[T any](c *tested, path, body string) (reply T) {
	c.t.Helper()
	status, text := c.send(path, body)
	if status != http.StatusOK {
		c.t.Fatalf("%s %s: %d %s", path, body, status, text)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&reply); err != nil {
		c.t.Fatalf("%s %s: %v in %s", path, body, err, text)
	}
	endpoint, _, _ := strings.Cut(path, "?")
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	succeeded.Store(method+endpoint, true)
	return reply
}

func (c *tested) do(path, body string) {
	c.t.Helper()
	asked[struct{}](c, path, body)
}

// restore puts a snapshot back, and returns the faults that this has removed.
func (c *tested) restore(body string) []faultReply {
	c.t.Helper()
	return asked[struct{ Faults []faultReply }](c, "/restore", body).Faults
}

// refused checks the status and the text of an error.
func (c *tested) refused(path, body string, want int, says ...string) {
	c.t.Helper()
	status, reply := c.send(path, body)
	var e struct{ Error string }
	if err := json.Unmarshal([]byte(reply), &e); status != want || err != nil || e.Error == "" || strings.Count(reply, "\n") != 1 {
		c.t.Errorf("%s %s: %d %q, want %d and a line", path, body, status, reply, want)
	}
	for _, s := range says {
		if !strings.Contains(e.Error, s) {
			c.t.Errorf("%s %s: %q does not say %q", path, body, e.Error, s)
		}
	}
}

// The replies, as a client in another language would know them.
type (
	stateReply struct {
		Connect  string
		Members  []memberReply
		Shown    int
		Tree     string
		Sessions []struct {
			ID         string
			TimeoutMs  int64
			Connected  bool
			Ephemerals []string
		}
		Watches []struct{ Session, Path string }
		Locks   []struct {
			Path, Holder string
			Token        int64
			Since        time.Time
			Queue        []string
		}
		Faults []faultReply
	}
	memberReply struct {
		Member        int
		Address, Role string
	}
	faultReply struct {
		ID      int
		Fired   bool
		Matched int
		Text    string
	}
	requestsReply struct {
		Requests []struct {
			Time     time.Time
			Session  *string
			Op, Path string
			Text     string
		}
	}
)

func (c *tested) state() stateReply {
	c.t.Helper()
	return asked[stateReply](c, "/state", "")
}

// inject injects a fault and returns its body for /remove and /wait/fired.
func (c *tested) inject(body string) (id string) {
	c.t.Helper()
	return fmt.Sprintf(`{"id": %d}`, asked[faultReply](c, "/inject", body).ID)
}

// openAt opens a session at the member with an id, and retries while the member refuses.
func (c *tested) openAt(id int) (client *rawclient.Client) {
	c.t.Helper()
	waitFor(c.t, fmt.Sprintf("a session at member %d", id), func() bool {
		nc, err := net.DialTimeout("tcp", strings.Split(c.addr, ",")[id-1], time.Minute)
		if err != nil {
			return false
		}
		c.t.Cleanup(func() { nc.Close() })
		client, err = rawclient.Open(nc, 40*time.Second)
		return err == nil
	})
	return client
}

func idOf(c *rawclient.Client) string { return fmt.Sprintf("0x%x", c.Session.SessionID) }

const ephemeralSequential = proto.FlagEphemeral | proto.FlagSequential

// TestTestControl uses all endpoints.
func TestTestControl(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		t.Run("Sessions", testControlSessions)
		t.Run("Inside", testControlInside)
		t.Run("Faults", testControlFaults)
		t.Run("Restart", testControlRestart)
		t.Run("Cluster", testControlCluster)
		t.Run("Network", testControlNetwork)
		t.Run("State", testControlState)
		t.Run("Waits", testControlWaits)
		t.Run("Guard", testControlGuard)
		t.Run("Advance", testControlAdvance)
		t.Run("Standalone", testControlStandalone)
		t.Run("Servers", testControlServers)
		t.Run("Namespaces", testControlNamespaces)
	})
	for _, e := range endpoints {
		if _, ok := succeeded.Load(e.method + e.path); !ok {
			t.Errorf("%s %s was not used with success", e.method, e.path)
		}
	}
}

func testControlSessions(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	holder := c.openAt(1)
	_, err := holder.Create("/mine", nil, proto.FlagEphemeral)
	check1(t, err)
	c.do("/disconnect", fmt.Sprintf(`{"session": "%016x"}`, holder.Session.SessionID)) // the form of Node clients
	if err := holder.Ping(); !closedEarly(err) {
		t.Errorf("disconnected, but ping: %v", err)
	}
	c.refused("/disconnect", fmt.Sprintf(`{"session": %q}`, idOf(holder)), http.StatusNotFound, idOf(holder), "not connected")
	if s := c.state().Sessions; len(s) != 1 || s[0].Connected || s[0].ID != idOf(holder) || !slices.Equal(s[0].Ephemerals, []string{"/mine"}) {
		t.Errorf("disconnected: %+v", s)
	}
	// A number is accepted, too.
	c.do("/expire", fmt.Sprintf(`{"session": %d}`, holder.Session.SessionID))
	c.do("/wait/gone", `{"path": "/mine"}`)
	if s := c.state(); len(s.Sessions) != 0 || s.Tree != "" {
		t.Errorf("expired: %+v", s)
	}
	c.refused("/expire", fmt.Sprintf(`{"session": %q}`, idOf(holder)), http.StatusNotFound, idOf(holder), "does not exist")
	if c.stop(); len(c.lines()) != 2 {
		t.Errorf("it says %q", c.lines())
	}
}

func testControlInside(t *testing.T) {
	t.Parallel()
	c := startControl(t, "--tick-time", "1s")
	a, b := c.openAt(1), c.openAt(1)
	_, err := a.Create("/lock", []byte("who"), 0)
	check1(t, err)
	mine, err := a.Create("/lock/n-", nil, ephemeralSequential)
	check1(t, err)
	c.do("/wait/held", fmt.Sprintf(`{"path": "/lock", "session": %q}`, idOf(a)))
	_, err = b.Create("/lock/n-", nil, ephemeralSequential)
	check1(t, err)
	stat, err := b.Exists(mine, true)
	check1(t, err)
	c.do("/wait/waiters", `{"path": "/lock", "waiters": 1}`)

	s := c.state()
	if s.Connect != c.addr || s.Shown != 1 || len(s.Members) != 1 || s.Members[0].Address != c.addr || s.Members[0].Role != "standalone" {
		t.Errorf("members: %+v", s)
	}
	if want := "/lock = \"who\"\n" + mine + " (ephemeral of " + idOf(a) + ")\n"; !strings.HasPrefix(s.Tree, want) {
		t.Errorf("tree: %q, want %q first", s.Tree, want)
	}
	if len(s.Sessions) != 2 || s.Sessions[0].TimeoutMs != 20_000 || !s.Sessions[1].Connected {
		t.Errorf("sessions: %+v", s.Sessions)
	}
	if len(s.Watches) != 1 || s.Watches[0].Session != idOf(b) || s.Watches[0].Path != mine {
		t.Errorf("watches: %+v", s.Watches)
	}
	if l := s.Locks; len(l) != 1 || l[0].Path != "/lock" || l[0].Holder != idOf(a) || l[0].Token != stat.Czxid ||
		time.Since(l[0].Since).Abs() > time.Hour || !slices.Equal(l[0].Queue, []string{idOf(b)}) {
		t.Errorf("locks: %+v", l)
	}
	if s.Faults == nil || len(s.Faults) != 0 {
		t.Errorf("faults: %+v", s.Faults)
	}

	type znode struct {
		Data []byte
		Stat struct {
			Czxid, Mzxid, Ctime, Mtime, Pzxid                    int64
			Version, Cversion, Aversion, DataLength, NumChildren int32
			EphemeralOwner                                       *string
		}
	}
	if n := asked[znode](c, "/znode?path=/lock", ""); string(n.Data) != "who" || n.Stat.NumChildren != 2 || n.Stat.EphemeralOwner != nil {
		t.Errorf("/lock: %+v", n)
	}
	if n := asked[znode](c, "/znode?path="+url.QueryEscape(mine), ""); n.Data == nil || len(n.Data) != 0 || n.Stat.Czxid != stat.Czxid || *n.Stat.EphemeralOwner != idOf(a) {
		t.Errorf("%s: %+v", mine, n)
	}
	c.refused("/znode?path=/none", "", http.StatusNotFound, "/none")

	all := asked[requestsReply](c, "/requests", "").Requests
	if len(all) != 6 || all[0].Op != "connect" || all[0].Session != nil {
		t.Errorf("requests: %+v", all)
	}
	creates := asked[requestsReply](c, "/requests?op=create*&member=1", "").Requests
	if len(creates) != 3 || creates[0].Op != "create" || creates[0].Path != "/lock" || *creates[2].Session != idOf(b) ||
		!strings.Contains(creates[0].Text, `data="who"`) || creates[0].Time.IsZero() {
		t.Errorf("creates: %+v", creates)
	}
}

func testControlFaults(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	first := c.openAt(1)

	// The request is executed, and the client does not learn it.
	lost := c.inject(`{"do": "closeAfter", "op": "create*", "path": "/lock/*", "nth": 2}`)
	_, err := first.Create("/lock", nil, 0)
	check1(t, err)
	_, err = first.Create("/lock/a", nil, 0)
	check1(t, err)
	if f := c.state().Faults; len(f) != 1 || f[0].Fired || !strings.Contains(f[0].Text, "requests that it matched: 1") {
		t.Errorf("before: %+v", f)
	}
	if _, err = first.Create("/lock/b", nil, 0); !closedEarly(err) {
		t.Errorf("the second create: %v", err)
	}
	if f := asked[faultReply](c, "/wait/fired", lost); !f.Fired || f.Matched == 0 || !strings.Contains(f.Text, "took effect") {
		t.Errorf("after: %+v", f)
	}
	if tree := c.state().Tree; tree != "/lock\n/lock/a\n/lock/b\n" {
		t.Errorf("tree: %q", tree)
	}

	other := c.openAt(1)
	held := c.inject(`{"do": "hold", "op": "getData", "times": -1}`)
	if f := asked[faultReply](c, "/remove", held); !strings.Contains(f.Text, "removed") {
		t.Errorf("removed: %+v", f)
	}
	_, err = other.Get("/lock", false)
	check1(t, err)
	for _, code := range []string{`"NoNode"`, `-101`} {
		c.inject(`{"do": "answer", "error": ` + code + `, "op": "exists"}`)
		if _, err := other.Exists("/lock", false); !errors.Is(err, proto.NoNode) {
			t.Errorf("answer %s: %v", code, err)
		}
	}
	// The other actions are lockkeepertest's. Only their names and arguments are checked.
	for body, says := range map[string]string{
		`{"do": "delay", "ms": 5}`:                               "Do: Delay(5ms)",
		`{"do": "trickle", "ms": 1, "op": "event", "times": 3}`:  "Fault{Op: event, Times: 3, Do: Trickle(1ms)}",
		`{"do": "drop", "path": "/x/*", "member": 1}`:            "Fault{Path: /x/*, Do: Drop}",
		`{"do": "dropReply"}`:                                    "Do: DropReply",
		`{"do": "closeBefore", "session": 1}`:                    "Fault{Session: 0x1, Do: CloseBefore}",
		`{"do": "refuse", "op": "connect"}`:                      "Do: Refuse",
		`{"do": "closeBefore", "session": "0xff00000000000001"}`: "Session: 0xff00000000000001",
	} {
		f := asked[faultReply](c, "/inject", body)
		if f.Fired || !strings.Contains(f.Text, says) {
			t.Errorf("%s: %+v, want %s", body, f, says)
		}
		asked[faultReply](c, "/remove", fmt.Sprintf(`{"id": %d}`, f.ID))
	}
	if n := len(c.state().Faults); n != 11 {
		t.Errorf("%d faults", n)
	}
	c.inject(`{"do": "drop", "op": "delete"}`) // it is not an error that it never fires
	c.stop()
}

func testControlRestart(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	_, err := c.openAt(1).Create("/kept", nil, 0)
	check1(t, err)
	c.refused("/restart", "{}", http.StatusConflict, "running")
	c.do("/kill", "{}")
	if nc, err := net.Dial("tcp", c.addr); err == nil {
		nc.Close()
		t.Error("it accepts a connection while it is stopped")
	}
	if s := c.state(); s.Members[0].Role != "stopped" || s.Tree != "/kept\n" {
		t.Errorf("stopped: %+v", s)
	}
	c.refused("/kill", "{}", http.StatusConflict, "stopped")
	c.refused("/expire", `{"session": "0x1"}`, http.StatusConflict, "stopped")
	c.do("/restart", `{"member": 1}`)
	_, err = c.openAt(1).Exists("/kept", false)
	check1(t, err)
	for _, path := range []string{"/heal", "/step-down"} {
		c.refused(path, "{}", http.StatusBadRequest, "--cluster")
	}
	c.refused("/partition", `{"groups": []}`, http.StatusBadRequest, "needs a cluster", "--cluster")
	c.refused("/link", `{"from": 1, "to": 2}`, http.StatusBadRequest, "--cluster")
}

// leader returns the id of the leader, or 0.
func (s stateReply) leader() int {
	return 1 + slices.IndexFunc(s.Members, func(m memberReply) bool { return m.Role == "leader" })
}

func testControlCluster(t *testing.T) {
	t.Parallel()
	c := startControl(t, "--cluster", "3")
	s := c.state()
	lead := s.leader()
	if len(s.Members) != 3 || lead == 0 || s.Members[lead-1].Member != lead || s.Shown != lead || s.Connect != c.addr || strings.Count(c.addr, ",") != 2 {
		t.Fatalf("%+v", s)
	}
	client := c.openAt(lead%3 + 1)
	_, err := client.Create("/n", nil, 0)
	check1(t, err)
	if n := len(asked[requestsReply](c, "/requests?op=create", "").Requests); n != 1 {
		t.Errorf("%d creates", n)
	}
	if n := len(asked[requestsReply](c, fmt.Sprintf("/requests?op=create&member=%d", lead), "").Requests); n != 0 {
		t.Errorf("%d creates at the leader", n)
	}
	if s := c.state().Sessions; len(s) != 1 || !s[0].Connected { // to a member that is not shown
		t.Errorf("%+v", s)
	}
	// A fault at one member, and one at all of them.
	for body, hit := range map[string]bool{
		fmt.Sprintf(`{"do": "answer", "error": "NoNode", "op": "exists", "member": %d}`, lead): false,
		`{"do": "answer", "error": "NoNode", "op": "exists"}`:                                  true,
	} {
		id := c.inject(body)
		if _, err := client.Exists("/n", false); errors.Is(err, proto.NoNode) != hit {
			t.Errorf("%s: %v", body, err)
		}
		asked[faultReply](c, "/remove", id)
	}

	next := asked[leads](c, "/step-down", "{}").Leader
	if s := c.state(); next == lead || s.leader() != next {
		t.Errorf("after member %d, member %d leads: %+v", lead, next, s.Members)
	}
	member := fmt.Sprintf(`{"member": %d}`, next)
	c.do("/pause", member)
	waitFor(t, "a leader beside the paused one", func() bool {
		return slices.ContainsFunc(c.state().Members, func(m memberReply) bool { return m.Member != next && m.Role == "leader" })
	})
	c.do("/resume", member)
	c.do("/kill", member)
	if role := c.state().Members[next-1].Role; role != "stopped" {
		t.Errorf("the killed member is %s", role)
	}
	for _, path := range []string{"/pause", "/resume", "/kill"} {
		c.refused(path, member, http.StatusConflict, "stopped")
	}
	c.do("/restart", member)
	_, err = c.openAt(next).Exists("/n", false)
	check1(t, err)
	c.stop()
}

// leads is the reply of what names a leader.
type leads struct{ Leader int }

func testControlNetwork(t *testing.T) {
	t.Parallel()
	port := testkit.Ports(t, 3)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	c := startControl(t, "--cluster", "3", "--listen", addr(0))
	if want := addr(0) + "," + addr(1) + "," + addr(2); c.addr != want {
		t.Errorf("addresses %s, want %s", c.addr, want)
	}
	lead := c.state().leader()
	rest := []int{lead%3 + 1, (lead+1)%3 + 1}
	c.do("/partition", fmt.Sprintf(`{"groups": [[%d], [%d, %d]]}`, lead, rest[0], rest[1]))
	if r := asked[leads](c, "/wait/leader", fmt.Sprintf(`{"among": [%d, %d]}`, rest[0], rest[1])); !slices.Contains(rest, r.Leader) {
		t.Errorf("member %d leads, and not one of %v", r.Leader, rest)
	}
	c.do("/heal", "{}")
	waitFor(t, "the old leader to follow", func() bool { return c.state().Members[lead-1].Role == "follower" })

	lead = c.state().leader()
	rest = []int{lead%3 + 1, (lead+1)%3 + 1}
	for _, to := range rest { // the leader hears the others, but they do not hear it
		c.do("/link", fmt.Sprintf(`{"from": %d, "to": %d, "cut": true, "delayMs": 1, "loss": 0.01}`, lead, to))
	}
	asked[leads](c, "/wait/leader", fmt.Sprintf(`{"among": [%d, %d]}`, rest[0], rest[1]))
	for _, to := range rest {
		c.do("/link", fmt.Sprintf(`{"from": %d, "to": %d}`, lead, to))
	}
	waitFor(t, "the old leader to follow", func() bool { return c.state().Members[lead-1].Role == "follower" })
}

// TestTestControlRefuses sends requests that are wrong.
func TestTestControlRefuses(t *testing.T) {
	t.Parallel()
	c := startControl(t, "--cluster", "2")
	for _, r := range []struct {
		path, body string
		status     int
		says       []string
	}{
		{"/", "", 404, []string{"there is no /,", "/state", "/step-down"}},
		{"/nonsense", "{}", 404, []string{"/nonsense"}},
		{"/expire", "", 405, []string{"POST"}},
		{"/state", "{}", 405, []string{"GET"}},
		{"/state?member=3", "", 400, []string{"no member 3", "1 to 2"}},
		{"/state?member=0", "", 400, []string{"no member 0", "1 to 2"}},
		{"/state?member=x", "", 400, []string{`"x"`}},
		{"/state?member=", "", 400, []string{`""`}},
		{"/state?mebmer=0", "", 400, []string{`"mebmer"`, "member"}},
		{"/state?member=1&member=2", "", 400, []string{"more than once"}},
		{"/state?%zz", "", 400, []string{"query"}},
		{"/znode", "", 400, []string{`"path" is missing`}},
		{"/expire?session=1", "{}", 400, []string{"body"}},
		{"/expire", "{}", 400, []string{`"session" is missing`}},
		{"/expire", "nonsense", 400, []string{"the body: ", "invalid character"}},
		{"/expire", `{"session": "0x1"`, 400, []string{"the body: ", "unexpected EOF"}},
		{"/expire", `{"session": "0x1"} {}`, 400, []string{"more than one"}},
		{"/expire", `["0x1"]`, 400, []string{"object", "array"}},
		{"/expire", `{"sesion": "0x1"}`, 400, []string{`"sesion"`}},
		{"/expire", `{"session": "x"}`, 400, []string{`"x"`, "session"}},
		{"/expire", `{"session": 0}`, 400, []string{`"0" is not the id of a session: the client has not connected yet`}},
		{"/expire", `{"session": "0x0"}`, 400, []string{`"0x0" is not the id of a session: the client has not connected yet`}},
		{"/wait/held", `{"path": "/a", "session": "0000000000000000"}`, 400, []string{"the client has not connected yet"}},
		{"/expire", `{"session": "0x1"}`, 404, []string{"0x1", "does not exist"}},
		{"/expire", strings.Repeat(" ", maxBody+1), 413, []string{"longer"}},
		{"/disconnect", "{}", 400, []string{`"session" is missing`}},
		{"/inject", "{}", 400, []string{`"do" is ""`, "closeAfter"}},
		{"/inject", `{"do": "delay"}`, 400, []string{`delay needs "ms"`}},
		{"/inject", `{"do": "delay", "ms": -1}`, 400, []string{"negative"}},
		{"/inject", `{"do": "delay", "ms": "1s"}`, 400, []string{`"1s"`, "milliseconds"}},
		{"/inject", `{"do": "delay", "ms": 9223372036855}`, 400, []string{"milliseconds"}},
		{"/inject", `{"do": "drop", "ms": 1}`, 400, []string{`drop has no "ms"`}},
		{"/inject", `{"do": "drop", "error": "NoNode"}`, 400, []string{`drop has no "error"`}},
		{"/inject", `{"do": "answer"}`, 400, []string{`answer needs "error"`}},
		{"/inject", `{"do": "answer", "error": "Ok"}`, 400, []string{`"Ok"`}},
		{"/inject", `{"do": "answer", "error": 5}`, 400, []string{"5"}},
		{"/inject", `{"do": "drop", "op": "craete"}`, 400, []string{`"craete"`}},
		{"/inject", `{"do": "drop", "op": "Create"}`, 400, []string{`"Create"`, "create2"}},
		{"/requests?op=Create", "", 400, []string{`"Create"`, "create2"}},
		{"/requests?op=craete&member=1", "", 400, []string{`"craete"`, "getChildren2"}},
		{"/inject", `{"do": "drop", "path": "locks/*"}`, 400, []string{`"locks/*"`, "slash"}},
		{"/inject", `{"do": "drop", "op": "["}`, 400, []string{"pattern"}},
		{"/inject", `{"do": "drop", "nth": "2"}`, 400, []string{`"nth"`, "string"}},
		{"/inject", `{"do": "drop", "nth": -2}`, 400, []string{"-2"}},
		{"/inject", `{"do": "drop", "member": 3}`, 400, []string{"no member 3"}},
		{"/inject", `{"do": "refuse"}`, 400, []string{"connect"}},
		{"/remove", `{"id": 0}`, 404, []string{"id 0"}},
		{"/remove", `{"id": 1}`, 404, []string{"id 1"}},
		{"/wait/fired", `{}`, 404, []string{"id 0"}},
		{"/wait/held", `{"path": "/x"}`, 400, []string{`"session" is missing`}},
		{"/wait/held", `{"session": "0x1"}`, 400, []string{`"path" is missing`}},
		{"/wait/waiters", `{"path": "/x", "waiters": -1}`, 400, []string{`"waiters"`}},
		{"/wait/gone", `{}`, 400, []string{`"path" is missing`}},
		{"/wait/gone", `{"path": "x"}`, 400, []string{`"x" is not a path`}},
		{"/wait/gone", `{"path": "/x", "member": 3}`, 400, []string{"no member 3"}},
		{"/wait/gone", `{"path": "/x", "timeoutMs": 0}`, 400, []string{`"timeoutMs" must be more than 0`}},
		{"/wait/gone", `{"path": 5}`, 400, []string{`"path" has the wrong type`}},
		{"/wait/fired", `{"id": 1, "timeoutMs": -5}`, 400, []string{`"timeoutMs" must be more than 0`}},
		{"/wait/data", `{"path": "/x"}`, 400, []string{`"text"`, `"data"`}},
		{"/wait/data", `{"path": "/x", "text": "", "data": ""}`, 400, []string{`"text"`, `"data"`}},
		{"/wait/children", `{"path": "/x", "children": -1}`, 400, []string{`"children"`}},
		{"/wait/requests", `{"op": "create"}`, 400, []string{`"count"`}},
		{"/wait/requests", `{"op": "craete", "count": 1}`, 400, []string{`"craete"`}},
		{"/wait/requests", `{"path": "[", "count": 1}`, 400, []string{`"["`, "pattern"}},
		{"/wait/requests", `{"path": "*", "count": 1}`, 400, []string{`"*"`, "slash"}},
		{"/wait/leader", `{"among": [3]}`, 400, []string{"no member 3"}},
		{"/restore", `{"snapshot": 1}`, 404, []string{"no snapshot 1"}},
		{"/snapshot/remove", "{}", 400, []string{"beginning"}},
		{"/tree", `{}`, 400, []string{`"tree" is missing`}},
		{"/tree", `{"tree": "/a\nb"}`, 400, []string{`"b" is not a path`}},
		{"/tree", `{"tree": "/a = x"}`, 400, []string{"tree:1"}},
		{"/guard", `{"path": "/x/"}`, 400, []string{`"/x/" is not a path`}},
		{"/guard/write", `{"guard": 1}`, 400, []string{`"token" is missing`}},
		{"/guard/write", `{"token": 1}`, 404, []string{"no guard 0"}},
		{"/guard/verdict", `{"guard": 7}`, 404, []string{"no guard 7"}},
		{"/servers", `{"cluster": 10}`, 400, []string{"10", "1 to 9"}},
		{"/servers", `{"cluster": 0}`, 400, []string{"0", "1 to 9"}},
		{"/servers", `{"tree": "/a\nb"}`, 400, []string{`"b" is not a path`}},
		{"/servers", `{"electionTimeoutMs": 5, "cluster": 3}`, 400, []string{"ElectionTimeout"}},
		{"/servers", `{"electionTimeoutMs": 0}`, 400, []string{`"electionTimeoutMs"`}},
		{"/servers", `{"behaveAs": "2.0"}`, 400, []string{`3.9`, `2.0`}},
		{"/servers?x=1", "", 400, []string{`"x"`}},
		{"/servers/2/state", "", 404, []string{"no server 2"}},
		{"/servers/x/state", "", 404, []string{"no server x"}},
		{"/servers/1/servers", "", 404, []string{"/servers/1/servers"}},
		{"/stop", "{}", 409, []string{"server 1"}},
		{"/namespace", `{"name": "/a//b"}`, 400, []string{"/a//b"}},
		{"/namespace", `{"name": "/"}`, 400, []string{"server itself"}},
		{"/namespace", `{"name": "zookeeper"}`, 400, []string{"server itself"}},
		{"/namespace/remove", `{}`, 400, []string{`"path" is missing`}},
		{"/namespace/remove", `{"path": "/"}`, 400, []string{"server itself"}},
		{"/namespace/remove", `{"path": "/none"}`, 404, []string{"/none"}},
		{"/advance", `{}`, 400, []string{`"ms"`}},
		{"/advance", `{"ms": -1}`, 400, []string{`"ms"`}},
		{"/advance", `{"ms": 3153600000001}`, 400, []string{`"ms"`, "100 years"}},
		{"/end-ttls", `{"ms": 1}`, 400, []string{`"ms"`}},
		{"/kill", "{}", 400, []string{`"member" is missing`, "1 to 2"}},
		{"/kill", `{"member": 3}`, 400, []string{"no member 3"}},
		{"/kill", `{"member": 1.5}`, 400, []string{`"member"`, "1.5"}},
		{"/restart", `{"member": 1}`, 409, []string{"running"}},
		{"/partition", "{}", 400, []string{`"groups" is missing`}},
		{"/partition", `{"groups": [[1], [3]]}`, 400, []string{"no member 3"}},
		{"/partition", `{"groups": [[1], [1]]}`, 400, []string{"member 1", "more than one"}},
		{"/partition", `{"groups": "all"}`, 400, []string{`"groups"`, "string"}},
		{"/heal", `{"all": true}`, 400, []string{`"all"`}},
		{"/link", `{"from": 1}`, 400, []string{"two members"}},
		{"/link", `{"from": 1, "to": 1}`, 400, []string{"two members"}},
		{"/link", `{"from": 1, "to": 7}`, 400, []string{"no member 7"}},
		{"/link", `{"from": 1, "to": 2, "loss": 1}`, 400, []string{"Loss"}},
		{"/link", `{"from": 1, "to": 2, "delayMs": -1}`, 400, []string{"Delay"}},
		{"/link", `{"from": 1, "to": 2, "cut": "yes"}`, 400, []string{`"cut"`, "string"}},
		{"/disk", `{"member": 1, "delayMs": -1}`, 400, []string{"Delay"}},
		{"/clock", `{"member": 1, "skewMs": "1h"}`, 400, []string{"1h", "milliseconds"}},
	} {
		c.refused(r.path, r.body, r.status, r.says...)
	}
	if s := c.state(); len(s.Faults) != 0 || s.leader() < 0 {
		t.Errorf("something was done: %+v", s)
	}
}

// TestTestControlBrowser sends what the page of another site could have a browser send, which
// must do nothing and show nothing.
func TestTestControlBrowser(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	ask := func(path, body, host string, headers ...string) (status int, reply string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, c.url+path, nil)
		if body != "" {
			r, err = http.NewRequest(http.MethodPost, c.url+path, strings.NewReader(body))
		}
		check1(t, err)
		if host != "" {
			r.Host = host
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		answer, err := httpClient(t, nil).Do(r)
		check1(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		check1(t, err)
		return answer.StatusCode, string(text)
	}
	const inject = `{"do": "drop", "op": "create"}`
	for _, x := range []struct {
		path, body, host string
		headers          []string
		want             int
	}{
		{"/state", "", "evil.example", nil, 403},
		{"/", "", "evil.example", nil, 403},
		{"/inject", inject, "evil.example", []string{"Sec-Fetch-Site", "same-origin"}, 403},
		{"/inject", inject, "", []string{"Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}, 403},
		{"/inject", inject, "", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"/inject", inject, "", []string{"Origin", "https://evil.example", "Content-Type", "text/plain"}, 403},
		{"/inject", inject, "", []string{"Origin", "null"}, 403},
		{"/state", "", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"/state", "", "", []string{"Origin", "https://evil.example"}, 403},
		{"/znode?path=/", "", "", []string{"Origin", "null"}, 403},
		{"/state", "", "", []string{"Origin", c.url}, 200},
		{"/state", "", "localhost", []string{"Sec-Fetch-Site", "none"}, 200},
		{"/heal", "", "", nil, 405},
	} {
		if status, reply := ask(x.path, x.body, x.host, x.headers...); status != x.want {
			t.Errorf("%s for %q with %q: %d %s", x.path, x.host, x.headers, status, reply)
		}
	}
	if s := asked[stateReply](c, "/state", ""); len(s.Faults) != 0 {
		t.Errorf("a fault was injected: %+v", s.Faults)
	}
	if status, reply := ask("/inject", inject, "localhost", "Content-Type", "text/plain"); status != 200 {
		t.Errorf("from a test: %d %s", status, reply)
	}
}

func TestTestControlTree(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tree")
	const tree = "/a = \"x\"\n/b\n/b/c (container)\n"
	check1(t, os.WriteFile(file, []byte(tree), 0o600))
	for _, flags := range [][]string{{"--tree", file}, {"--tree", file, "--cluster", "2"}} {
		if got := startControl(t, flags...).state().Tree; got != tree {
			t.Errorf("%q: %q", flags, got)
		}
	}
	check1(t, os.WriteFile(file, []byte("/a\nb\n"), 0o600))
	refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--test-control", ":0", "--tree", file}, "--tree: "+file, `"b" is not a path`)
}

// TestTestControlEnds checks what keeps a server with a test control from starting.
func TestTestControlEnds(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	defer l.Close()
	refuses(t, exitFault, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--test-control", l.Addr().String()}, l.Addr().String(), "in use")
	refuses(t, exitFault, []string{"serve", "--memory", "--listen", l.Addr().String(), "--test-control", ":0"}, l.Addr().String(), "in use")
	refuses(t, exitFault, []string{"serve", "--memory", "--listen", l.Addr().String(), "--test-control", ":0", "--cluster", "3"}, l.Addr().String(), "in use")
}

// TestEndpointExamples decodes the examples of bodies in the documentation.
func TestEndpointExamples(t *testing.T) {
	for _, e := range endpoints {
		if e.body == nil {
			continue // get takes the names of the parameters from the example
		}
		if err := attempt(func() { decode(strings.NewReader(e.example), reflect.New(reflect.TypeOf(e.body)).Interface()) }); err != nil {
			t.Errorf("%s: %v", e.path, err)
		}
	}
}
