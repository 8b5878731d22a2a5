package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// testControlState adds znodes, and takes, restores and removes snapshots.
func testControlState(t *testing.T) {
	t.Parallel()
	c := startControl(t, "--cluster", "2")
	tree := func(want string) {
		t.Helper()
		if got := c.state().Tree; got != want {
			t.Errorf("tree %q, want %q", got, want)
		}
	}
	c.do("/tree", `{"tree": "/a = \"x\"\n/b/c (container)\n"}`)
	const was = "/a = \"x\"\n/b\n/b/c (container)\n"
	tree(was)
	number := fmt.Sprintf(`{"snapshot": %d}`, asked[struct{ Snapshot int }](c, "/snapshot", "{}").Snapshot)
	fault := c.inject(`{"do": "hold", "op": "getData"}`)
	c.do("/tree", `{"tree": "/late"}`)
	if removed := c.restore(number); len(removed) != 1 || fmt.Sprintf(`{"id": %d}`, removed[0].ID) != fault || removed[0].Fired || !strings.Contains(removed[0].Text, "no effect yet") {
		t.Errorf("restored, which removed %+v, and not only %s", removed, fault)
	}
	tree(was)
	c.refused("/remove", fault, http.StatusNotFound, "no fault")
	for _, x := range [][2]string{{"{}", ""}, {number, was}, {`{"snapshot": 0}`, ""}} {
		c.restore(x[0])
		tree(x[1])
	}
	c.do("/snapshot/remove", number)
	for _, path := range []string{"/restore", "/snapshot/remove"} {
		c.refused(path, number, http.StatusNotFound, "no snapshot ")
	}
	if next := asked[struct{ Snapshot int }](c, "/snapshot", "{}").Snapshot; fmt.Sprintf(`{"snapshot": %d}`, next) == number {
		t.Errorf("another snapshot is %d, too", next)
	}

	c.do("/kill", `{"member": 1}`) // there is no majority
	status := make(chan int, 1)
	go func() {
		s, _ := c.send("/snapshot", "{}")
		status <- s
	}()
	select { // after a minute it would be 503
	case s := <-status:
		t.Errorf("without a majority: %d", s)
	case <-time.After(200 * time.Millisecond):
	}
	c.do("/restart", `{"member": 1}`)
	if s := <-status; s != http.StatusOK {
		t.Errorf("with a majority: %d", s)
	}
	c.do("/kill", `{"member": 1}`)
	c.do("/kill", `{"member": 2}`)
	for path, body := range map[string]string{
		"/snapshot": "{}", "/restore": "{}", "/tree": `{"tree": "/x"}`, "/advance": `{"ms": 1}`, "/end-ttls": "{}", "/namespace": "{}", "/namespace/remove": `{"path": "/a"}`,
	} {
		c.refused(path, body, http.StatusConflict, "stopped")
	}
}

func testControlWaits(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	client := c.openAt(1)
	for _, x := range []struct {
		path, body string
		do         func() error
		says       string // while it has not happened
	}{
		{"/wait/exists", `{"path": "/a"`, func() error { _, err := client.Create("/a", nil, 0); return err }, "/a is not created"},
		{"/wait/data", `{"path": "/a", "text": "x\u00e9"`, func() error { _, err := client.Set("/a", []byte("x\u00e9")); return err }, `the data of /a is ""`},
		{"/wait/data", `{"path": "/a", "data": "AP8="`, func() error { _, err := client.Set("/a", []byte{0, 255}); return err }, "the data of /a is"},
		{"/wait/data", `{"path": "/a", "text": ""`, func() error { _, err := client.Set("/a", nil); return err }, "the data of /a is"},
		{"/wait/children", `{"path": "/a", "children": 2`, func() error {
			if _, err := client.Create("/a/1", nil, 0); err != nil {
				return err
			}
			_, err := client.Create("/a/2", nil, 0)
			return err
		}, "/a has 0 children"},
		{"/wait/requests", `{"op": "create*", "path": "/a/*", "count": 3`, func() error { _, err := client.Create("/a/3", nil, 0); return err }, "there are 2 such requests"},
		{"/wait/requests", `{"op": "create*", "count": 5`, func() error { _, err := client.Create("/b", nil, 0); return err }, "there are 4 such requests"},
		{"/wait/requests", `{"path": "/c", "count": 1`, func() error { client.Exists("/c", false); return nil }, "there are 0 such requests"},
		{"/wait/watch", `{"path": "/c"`, func() error { client.Exists("/c", true); return nil }, "/c is not watched by any client"},
		{"/wait/watch", `{"path": "/a", "session": "` + idOf(client) + `"`, func() error { _, err := client.Exists("/a", true); return err }, "/a is not watched by session " + idOf(client)},
		{"/wait/gone", `{"path": "/a/3"`, func() error { return client.Delete("/a/3") }, "the znode is not deleted"},
	} {
		c.refused(x.path, x.body+`, "timeoutMs": 30}`, http.StatusGatewayTimeout, x.says, "(waited 30ms)")
		replied := make(chan string, 1)
		go func() {
			status, reply := c.send(x.path, x.body+"}")
			replied <- fmt.Sprint(status, reply)
		}()
		select {
		case r := <-replied:
			t.Errorf("%s %s: at once %s", x.path, x.body, r)
		case <-time.After(20 * time.Millisecond):
		}
		check1(t, x.do())
		select {
		case r := <-replied:
			if r != "200{}\n" {
				t.Errorf("%s %s: %s", x.path, x.body, r)
			}
		case <-time.After(30 * time.Second): // less than the limit
			t.Errorf("%s %s: no reply", x.path, x.body)
		}
		c.do(x.path, x.body+`, "timeoutMs": 60000}`)
	}
	fault := c.inject(`{"do": "drop", "op": "delete"}`)
	c.refused("/wait/fired", fault[:len(fault)-1]+`, "timeoutMs": 30}`, http.StatusGatewayTimeout, "no effect yet", "(waited 30ms)")
	c.refused("/wait/held", `{"path": "/a", "session": 5, "timeoutMs": 30}`, http.StatusGatewayTimeout, "does not get the lock")
	c.refused("/wait/waiters", `{"path": "/a", "waiters": 1, "timeoutMs": 30}`, http.StatusGatewayTimeout, "does not have 1 waiters")
	c.refused("/wait/data", `{"path": "/none", "text": "x", "timeoutMs": 30}`, http.StatusGatewayTimeout, "/none does not exist")
	c.refused("/wait/children", `{"path": "/none", "children": 0, "timeoutMs": 30}`, http.StatusGatewayTimeout, "/none does not exist")
	c.refused("/wait/watch", `{"path": "/a", "session": 5, "timeoutMs": 30}`, http.StatusGatewayTimeout, "by session 0x5")
	lead := asked[leads](c, "/wait/leader", "{}").Leader
	if role := c.state().Members[lead-1].Role; role != "leader" && role != "standalone" {
		t.Errorf("member %d leads: %+v", lead, c.state().Members)
	}
	c.do("/kill", fmt.Sprintf(`{"member": %d}`, lead))
	c.refused("/wait/leader", fmt.Sprintf(`{"among": [%d], "timeoutMs": 30}`, lead), http.StatusGatewayTimeout, "none of the members", "(waited 30ms)")
}

func testControlGuard(t *testing.T) {
	t.Parallel()
	type written struct {
		Accepted bool
		Reason   string
	}
	type verdict struct {
		OK         bool
		Violations []string
		Timeline   string
	}
	c := startControl(t)
	client := c.openAt(1)
	_, err := client.Create("/lock", nil, 0)
	check1(t, err)
	guard := func() int { return asked[struct{ Guard int }](c, "/guard", `{"path": "/lock"}`).Guard }
	good, bad, forgotten := guard(), guard(), guard()
	mine, err := client.Create("/lock/n-", nil, ephemeralSequential)
	check1(t, err)
	c.do("/wait/held", fmt.Sprintf(`{"path": "/lock", "session": %q}`, idOf(client)))
	stat, err := client.Exists(mine, false)
	check1(t, err)
	token := stat.Czxid
	for _, x := range []struct {
		guard  int
		token  int64
		more   string
		reason string // how it begins, if the write is not accepted
	}{
		{good, token, "", ""},
		{bad, token + 1, `, "resource": "file"`, ""},
		{bad, token, `, "resource": "file", "unchecked": true`, ""},
		{forgotten, token + 100, "", ""},
		{good, token - 1, "", "stale token: "},
		{good, 0, "", "invalid token: "},
	} {
		r := asked[written](c, "/guard/write", fmt.Sprintf(`{"guard": %d, "token": %d%s}`, x.guard, x.token, x.more))
		if r.Accepted != (x.reason == "") || !strings.HasPrefix(r.Reason, x.reason) {
			t.Errorf("%+v: %+v", x, r)
		}
	}
	if v := asked[verdict](c, "/guard/verdict", fmt.Sprintf(`{"guard": %d}`, good)); !v.OK || v.Violations == nil || len(v.Violations) != 0 || !strings.Contains(v.Timeline, "holds the lock") {
		t.Errorf("%+v", v)
	}
	v := asked[verdict](c, "/guard/verdict", fmt.Sprintf(`{"guard": %d}`, bad))
	if v.OK || !strings.Contains(strings.Join(v.Violations, "\n"), "a stale token was accepted: session ") || v.Timeline == "" {
		t.Errorf("%+v", v)
	}
	c.refused("/guard/write", fmt.Sprintf(`{"guard": %d, "token": 1}`, bad), http.StatusNotFound, "no guard 2, or it has ended")
	c.stop() // although one was forgotten
}

// createTTL creates a TTL znode or, if ttl is 0, a container.
func createTTL(t *testing.T, c *rawclient.Client, path string, ttl time.Duration) {
	t.Helper()
	q := proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: proto.FlagTTL}, TTL: ttl.Milliseconds()}
	var err error
	if ttl > 0 {
		_, err = c.Call(proto.OpCreateTTL, &q, nil)
	} else {
		q.Flags = proto.FlagContainer
		_, err = c.Call(proto.OpCreateContainer, &q.CreateRequest, nil)
	}
	check1(t, err)
}

// testControlAdvance has sessions of 40 s.
func testControlAdvance(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	advance := func(body string, wantExpired string, wantDeleted ...string) {
		t.Helper()
		r := asked[struct{ Expired, Deleted []string }](c, "/advance", body)
		if r.Expired == nil || r.Deleted == nil || strings.Join(r.Expired, " ") != wantExpired || !slices.Equal(r.Deleted, wantDeleted) {
			t.Errorf("%s: %+v, want %q %q", body, r, wantExpired, wantDeleted)
		}
	}
	stays, gone := c.openAt(1), c.openAt(1)
	c.do("/disconnect", fmt.Sprintf(`{"session": %q}`, idOf(gone)))
	createTTL(t, stays, "/ttl", time.Minute)
	advance(`{"ms": 30000}`, "")
	advance(`{"ms": 20000}`, idOf(gone))
	advance(`{"ms": 20000}`, "", "/ttl")
	check1(t, stays.Ping())
	createTTL(t, stays, "/box", 0)
	createTTL(t, stays, "/hour", time.Hour)
	if r := asked[struct{ Deleted []string }](c, "/end-ttls", "{}"); !slices.Equal(r.Deleted, []string{"/box", "/hour"}) {
		t.Errorf("%q", r)
	}
	advance(`{"ms": 61000, "connected": true}`, idOf(stays))
	if err := stays.Ping(); !closedEarly(err) {
		t.Errorf("expired, but ping: %v", err)
	}
}

// testControlStandalone uses faults of members without a cluster.
func testControlStandalone(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	client := c.openAt(1)
	c.do("/clock", `{"skewMs": -86400000}`)
	_, err := client.Create("/n", nil, 0)
	check1(t, err)
	stat, err := client.Exists("/n", false)
	check1(t, err)
	if d := time.Since(time.UnixMilli(stat.Ctime)) - 24*time.Hour; d.Abs() > time.Hour {
		t.Errorf("the clock is off by another %v", d)
	}
	c.do("/pause", "{}")
	got := make(chan error, 1)
	go func() { got <- client.Ping() }()
	select {
	case err := <-got:
		t.Errorf("an answer during the pause: %v", err)
		got <- err
	case <-time.After(100 * time.Millisecond):
	}
	c.do("/resume", "{}")
	check1(t, <-got)
	c.do("/disk", `{"delayMs": 300}`)
	began := time.Now()
	_, err = client.Create("/slow", nil, 0)
	check1(t, err)
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("a write took %v", d)
	}
	c.do("/disk", `{"full": true}`)
	if _, err := client.Create("/full", nil, 0); err == nil {
		t.Error("a write to a full disk was acknowledged")
	}
	waitFor(t, "the server to fail", func() bool { return c.state().Members[0].Role == "failed" })
	for path, body := range map[string]string{"/tree": `{"tree": "/x"}`, "/snapshot": "{}", "/restore": "{}"} {
		c.refused(path, body, http.StatusConflict, "no space left", "restarted")
	}
	c.do("/disk", `{}`)
	c.do("/kill", `{}`)
	c.refused("/pause", "{}", http.StatusConflict, "stopped")
	c.refused("/resume", "{}", http.StatusConflict, "stopped")
	c.do("/restart", `{}`)
	_, err = c.openAt(1).Create("/again", nil, 0)
	check1(t, err)
	c.stop()
}

// TestWaitsOfGoneClients: a request that waits ends with its client, or with its server.
func TestWaitsOfGoneClients(t *testing.T) {
	t.Parallel()
	port := &testPort{config: lockkeeper.Config{ClientAddr: "127.0.0.1:0"}}
	t.Cleanup(func() { check1(t, port.end()) })
	_, err := port.start(port.config, 0, lockkeepertest.Option{})
	check1(t, err)
	// send returns a channel with the reply.
	send := func(ctx context.Context, path, body string) <-chan string {
		replied := make(chan string, 1)
		go func() {
			w := httptest.NewRecorder()
			port.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body)))
			replied <- w.Body.String()
		}()
		return replied
	}
	reply := func(replied <-chan string) string {
		t.Helper()
		select {
		case r := <-replied:
			return r
		case <-time.After(30 * time.Second): // less than the limit
			t.Fatal("it waits on")
			return ""
		}
	}
	const fault = `{"do": "drop", "op": "delete"}`
	reply(send(t.Context(), "/inject", fault))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for path, body := range map[string]string{"/wait/exists": `{"path": "/never"}`, "/wait/watch": `{"path": "/never"}`, "/wait/fired": `{"id": 1}`} {
		if r := reply(send(gone, path, body)); !strings.Contains(r, "error") {
			t.Errorf("%s: %s", path, r)
		}
	}
	reply(send(t.Context(), "/servers", "{}"))
	reply(send(t.Context(), "/servers/2/inject", fault))
	waits := send(t.Context(), "/servers/2/wait/fired", `{"id": 1}`)
	reply(send(t.Context(), "/servers/2/stop", "{}"))
	reply(waits) // says that there is no such server, if it came too late
}
