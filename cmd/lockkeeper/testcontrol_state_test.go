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

func testControlState(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--cluster", "3"}} {
		c := startControl(t, flags...)
		tree := func(want string) {
			t.Helper()
			if got := c.state().Tree; got != want {
				t.Errorf("%q: tree %q, want %q", flags, got, want)
			}
		}
		c.do("/tree", `{"tree": "/a = \"x\"\n/b/c (container)\n"}`)
		tree("/a = \"x\"\n/b\n/b/c (container)\n")
		client := c.openAt(1)
		_, err := client.Create("/a/mine", nil, proto.FlagEphemeral)
		check1(t, err)
		stat, err := client.Exists("/b", true)
		check1(t, err)
		c.do("/tree", `{"tree": "/a = \"y\"\n/b/d = 0x00ff\n"}`)
		tree("/a = \"y\"\n/a/mine (ephemeral of " + idOf(client) + ")\n/b\n/b/c (container)\n/b/d = 0x00ff\n")
		_, err = client.Call(proto.OpSync, &proto.Path{Path: "/"}, &proto.Path{})
		check1(t, err)
		if a, err := client.Exists("/a", false); err != nil || a.Version != 1 || a.Mzxid <= a.Czxid {
			t.Errorf("/a: %+v, %v", a, err)
		}
		if b, err := client.Exists("/b", false); err != nil || b.Version != stat.Version || b.Mzxid != stat.Mzxid || b.Cversion != stat.Cversion+1 {
			t.Errorf("/b: %+v, was %+v, %v", b, stat, err)
		}

		was := c.state().Tree
		number := asked[struct{ Snapshot int }](c, "/snapshot", "{}").Snapshot
		fault := c.inject(`{"do": "hold", "op": "getData"}`)
		late := c.openAt(1)
		_, err = late.Create("/late", nil, proto.FlagEphemeral)
		check1(t, err)
		if removed := c.restore(fmt.Sprintf(`{"snapshot": %d}`, number)); len(removed) != 1 || fmt.Sprintf(`{"id": %d}`, removed[0].ID) != fault || removed[0].Fired || !strings.Contains(removed[0].Text, "no effect yet") {
			t.Errorf("restored, which removed %+v, and not only %s", removed, fault)
		}
		tree(was)
		if err := late.Ping(); !closedEarly(err) {
			t.Errorf("a session of after the snapshot lives on: %v", err)
		}
		check1(t, client.Ping())
		_, err = client.Get("/a", false) // which is not held
		check1(t, err)
		c.refused("/remove", fault, http.StatusNotFound, "no fault")
		if s := c.state(); len(s.Faults) != 0 || len(s.Sessions) != 1 {
			t.Errorf("restored: %+v", s)
		}
		c.restore("{}")
		tree("")
		if s := c.state().Sessions; len(s) != 0 {
			t.Errorf("the beginning: %+v", s)
		}
		c.restore(fmt.Sprintf(`{"snapshot": %d}`, number))
		tree("/a = \"y\"\n/b\n/b/c (container)\n/b/d = 0x00ff\n") // its session is gone
		c.restore(`{"snapshot": 0}`)
		tree("")
		c.do("/snapshot/remove", fmt.Sprintf(`{"snapshot": %d}`, number))
		for _, path := range []string{"/restore", "/snapshot/remove"} {
			c.refused(path, fmt.Sprintf(`{"snapshot": %d}`, number), http.StatusNotFound, fmt.Sprintf("no snapshot %d", number))
		}
		if next := asked[struct{ Snapshot int }](c, "/snapshot", "{}").Snapshot; next == number {
			t.Errorf("another snapshot is %d, too", next)
		}

		for member := range max(1, len(c.state().Members)) {
			c.do("/kill", fmt.Sprintf(`{"member": %d}`, member+1))
		}
		for path, body := range map[string]string{"/snapshot": "{}", "/restore": "{}", "/tree": `{"tree": "/x"}`} {
			c.refused(path, body, http.StatusConflict, "stopped")
		}
	}
	// Without a majority.
	c := startControl(t, "--cluster", "2")
	c.do("/kill", `{"member": 1}`)
	status, reply := make(chan int, 1), make(chan string, 1)
	go func() {
		s, r := c.send("/snapshot", "{}")
		status <- s
		reply <- r
	}()
	select { // after a minute it would be 503
	case s := <-status:
		t.Errorf("%d %s", s, <-reply)
	case <-time.After(500 * time.Millisecond):
	}
	c.do("/restart", `{"member": 1}`)
	if s, r := <-status, <-reply; s != http.StatusOK {
		t.Errorf("%d %s", s, r)
	}
}

func testControlWaits(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--cluster", "3"}} {
		c := startControl(t, flags...)
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
}

func testControlGuard(t *testing.T) {
	t.Parallel()
	type (
		numbered struct{ Guard int }
		written  struct {
			Accepted bool
			Reason   string
		}
		verdict struct {
			OK         bool
			Violations []string
			Timeline   string
		}
	)
	for _, flags := range [][]string{nil, {"--cluster", "2"}} {
		c := startControl(t, flags...)
		client := c.openAt(1)
		_, err := client.Create("/lock", nil, 0)
		check1(t, err)
		good := asked[numbered](c, "/guard", `{"path": "/lock"}`).Guard
		bad := asked[numbered](c, "/guard", `{"path": "/lock"}`).Guard
		forgotten := asked[numbered](c, "/guard", `{"path": "/lock"}`).Guard
		hold := func(path string) int64 {
			t.Helper()
			mine, err := client.Create(path, nil, ephemeralSequential)
			check1(t, err)
			s, err := client.Exists(mine, false)
			check1(t, err)
			c.do("/wait/held", fmt.Sprintf(`{"path": "/lock", "session": %q}`, idOf(client)))
			return s.Czxid
		}
		write := func(guard int, token int64, more string) written {
			t.Helper()
			return asked[written](c, "/guard/write", fmt.Sprintf(`{"guard": %d, "token": %d%s}`, guard, token, more))
		}
		first := hold("/lock/n-")
		if r := write(good, first, ""); !r.Accepted || r.Reason != "" {
			t.Errorf("the first holder: %+v", r)
		}
		write(bad, first, `, "resource": "file", "unchecked": true`)
		write(forgotten, first+100, "")
		c.do("/expire", fmt.Sprintf(`{"session": %q}`, idOf(client)))
		client = c.openAt(1)
		second := hold("/lock/n-")
		for _, guard := range []int{good, bad} {
			if r := write(guard, second, `, "resource": "file"`); !r.Accepted {
				t.Errorf("the second holder: %+v", r)
			}
		}
		if r := write(good, second, ""); !r.Accepted {
			t.Errorf("the second holder: %+v", r)
		}
		if r := write(good, first, ""); r.Accepted || !strings.HasPrefix(r.Reason, "stale token: ") {
			t.Errorf("a stale token: %+v", r)
		}
		if r := write(good, 0, ""); r.Accepted || !strings.HasPrefix(r.Reason, "invalid token: ") {
			t.Errorf("no token: %+v", r)
		}
		if r := write(bad, first, `, "resource": "file", "unchecked": true`); !r.Accepted {
			t.Errorf("unchecked: %+v", r)
		}
		if v := asked[verdict](c, "/guard/verdict", fmt.Sprintf(`{"guard": %d}`, good)); !v.OK || v.Violations == nil || len(v.Violations) != 0 ||
			!strings.Contains(v.Timeline, fmt.Sprintf("with token %#x: holds the lock", second)) {
			t.Errorf("%+v", v)
		}
		v := asked[verdict](c, "/guard/verdict", fmt.Sprintf(`{"guard": %d}`, bad))
		if v.OK || len(v.Violations) != 2 || !strings.HasPrefix(v.Violations[0], "two holders overlapped in what they did: session ") ||
			!strings.HasPrefix(v.Violations[1], "a stale token was accepted: session ") || strings.Count(v.Timeline, "\n") < 5 {
			t.Errorf("%+v", v)
		}
		c.refused("/guard/write", fmt.Sprintf(`{"guard": %d, "token": 1}`, bad), http.StatusNotFound, "no guard 2, or it has ended")
		c.stop()
	}
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
	for _, flags := range [][]string{nil, {"--cluster", "3"}} {
		c := startControl(t, flags...)
		advance := func(seconds int, more string, wantExpired []*rawclient.Client, wantDeleted ...string) {
			t.Helper()
			r := asked[struct{ Expired, Deleted []string }](c, "/advance", fmt.Sprintf(`{"ms": %d%s}`, 1000*seconds, more))
			want := []string{}
			for _, x := range wantExpired {
				want = append(want, idOf(x))
			}
			slices.Sort(want)
			slices.Sort(r.Expired) // by id, which may have another length as text
			if r.Expired == nil || r.Deleted == nil || !slices.Equal(r.Expired, want) || !slices.Equal(r.Deleted, wantDeleted) {
				t.Errorf("%q: after %d s %+v, want %q %q", flags, seconds, r, want, wantDeleted)
			}
			for _, x := range wantExpired {
				if strings.Contains(c.state().Tree, idOf(x)) {
					t.Errorf("%q: %s is left", flags, idOf(x))
				}
			}
		}
		disconnect := func(x *rawclient.Client) { c.do("/disconnect", fmt.Sprintf(`{"session": %q}`, idOf(x))) }
		member := func() int { return max(1, c.state().leader()%3+1) } // a follower
		if flags == nil {
			member = func() int { return 1 }
		}
		open := func(path string) *rawclient.Client {
			t.Helper()
			x := c.openAt(member())
			_, err := x.Create(path, nil, proto.FlagEphemeral)
			check1(t, err)
			return x
		}
		stays := c.openAt(member())
		gone := open("/gone")
		check1(t, gone.Ping())
		disconnect(gone)
		advance(30, "", nil)
		time.Sleep(1500 * time.Millisecond) // the leader hears of touches of before that only now
		advance(20, "", []*rawclient.Client{gone})
		check1(t, stays.Ping())

		createTTL(t, stays, "/ttl", time.Minute)
		createTTL(t, stays, "/new", 0)
		createTTL(t, stays, "/box", 0)
		advance(40, "", nil)
		inBox := open("/box/e")
		disconnect(inBox)
		advance(60, "", []*rawclient.Client{inBox}, "/box", "/ttl")
		if tree := c.state().Tree; tree != "/new (container)\n" {
			t.Errorf("%q: %q", flags, tree)
		}
		if flags != nil {
			asked[struct{ Leader int }](c, "/step-down", "{}")
			stays = c.openAt(member())
			late := open("/late")
			disconnect(late)
			advance(20, "", nil)
			advance(25, "", []*rawclient.Client{late})
		}

		// The clock has 150 s or more more than the time.
		if _, err := stays.Create("/n", nil, 0); err != nil {
			t.Fatal(err)
		}
		stat, err := stays.Exists("/n", false)
		check1(t, err)
		if ahead := time.Until(time.UnixMilli(stat.Ctime)); ahead < 140*time.Second || ahead > 200*time.Second {
			t.Errorf("%q: the clock is ahead by %v", flags, ahead)
		}
		var others []*rawclient.Client
		for _, s := range c.state().Sessions {
			if s.ID != idOf(stays) { // left from before the change of leader
				c.do("/expire", fmt.Sprintf(`{"session": %q}`, s.ID))
			}
		}
		others = append(others, stays, open("/mine"))
		advance(20, `, "connected": true`, nil)
		advance(41, `, "connected": true`, others)
		if err := stays.Ping(); !closedEarly(err) {
			t.Errorf("%q: expired, but ping: %v", flags, err)
		}

		client := c.openAt(member())
		for _, path := range []string{"/t", "/t2", "/t2/t", "/t3"} {
			createTTL(t, client, path, time.Hour)
		}
		_, err = client.Create("/t3/n", nil, 0)
		check1(t, err)
		if r := asked[struct{ Deleted []string }](c, "/end-ttls", "{}"); !slices.Equal(r.Deleted, []string{"/new", "/t", "/t2", "/t2/t"}) {
			t.Errorf("%q: %q", flags, r)
		}
		if tree := c.state().Tree; tree != "/n\n/t3 (TTL 1h0m0s)\n/t3/n\n" {
			t.Errorf("%q: %q", flags, tree)
		}
		c.restore("{}")
		client = c.openAt(member())
		_, err = client.Create("/n", nil, 0)
		check1(t, err)
		if stat, err = client.Exists("/n", false); err != nil || time.Until(time.UnixMilli(stat.Ctime)) > 10*time.Second {
			t.Errorf("%q: the restored clock: %v, %v", flags, time.UnixMilli(stat.Ctime), err)
		}
		for id := range max(1, len(c.state().Members)) {
			c.do("/kill", fmt.Sprintf(`{"member": %d}`, id+1))
		}
		c.refused("/advance", `{"ms": 1}`, http.StatusConflict, "stopped")
		c.refused("/end-ttls", `{}`, http.StatusConflict, "stopped")
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
