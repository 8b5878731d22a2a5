package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

func testControlState(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--cluster", "3", "--election-timeout", "300ms"}} {
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
		c.do("/restore", fmt.Sprintf(`{"snapshot": %d}`, number))
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
		c.do("/restore", "{}")
		tree("")
		if s := c.state().Sessions; len(s) != 0 {
			t.Errorf("the beginning: %+v", s)
		}
		c.do("/restore", fmt.Sprintf(`{"snapshot": %d}`, number))
		tree("/a = \"y\"\n/b\n/b/c (container)\n/b/d = 0x00ff\n") // its session is gone
		c.do("/restore", `{"snapshot": 0}`)
		tree("")

		for member := range max(1, len(c.state().Members)) {
			c.do("/kill", fmt.Sprintf(`{"member": %d}`, member+1))
		}
		for path, body := range map[string]string{"/snapshot": "{}", "/restore": "{}", "/tree": `{"tree": "/x"}`} {
			c.refused(path, body, http.StatusConflict, "stopped")
		}
	}
	// Without a majority.
	c := startControl(t, "--cluster", "2", "--election-timeout", "300ms")
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
	for _, flags := range [][]string{nil, {"--cluster", "3", "--election-timeout", "300ms"}} {
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
			c.refused(x.path, x.body+`, "timeoutMs": 30}`, http.StatusGatewayTimeout, x.says)
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
		c.refused("/wait/fired", fault[:len(fault)-1]+`, "timeoutMs": 30}`, http.StatusGatewayTimeout, "no effect yet")
		c.refused("/wait/held", `{"path": "/a", "session": 5, "timeoutMs": 30}`, http.StatusGatewayTimeout, "does not get the lock")
		c.refused("/wait/waiters", `{"path": "/a", "waiters": 1, "timeoutMs": 30}`, http.StatusGatewayTimeout, "does not have 1 waiters")
		c.refused("/wait/data", `{"path": "/none", "text": "x", "timeoutMs": 30}`, http.StatusGatewayTimeout, "/none does not exist")
		c.refused("/wait/children", `{"path": "/none", "children": 0, "timeoutMs": 30}`, http.StatusGatewayTimeout, "/none does not exist")
		c.refused("/wait/watch", `{"path": "/a", "session": 5, "timeoutMs": 30}`, http.StatusGatewayTimeout, "by session 0x5")
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
		check1(t, c.Process.Signal(syscall.SIGTERM))
		if code := c.exit(); code != exitOK {
			t.Errorf("exit code %d: %q", code, c.lines())
		}
	}
}
