package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// started is the reply of POST /servers.
type started struct {
	Server       int
	URL, Connect string
}

// startServer has the process start another server.
func (c *tested) startServer(body string) (*tested, started) {
	c.t.Helper()
	s := asked[started](c, "/servers", body)
	return &tested{&process{Cmd: c.Cmd, t: c.t, addr: s.Connect}, s.URL}, s
}

func testControlServers(t *testing.T) {
	t.Parallel()
	c := startControl(t)
	_, err := c.openAt(1).Create("/first", nil, 0)
	check1(t, err)
	second, at := c.startServer(`{"tree": "/a = \"x\"\n", "behaveAs": "3.5"}`)
	nc, err := net.Dial("tcp", second.addr)
	check1(t, err)
	version, err := rawclient.Word(nc, "srvr", time.Minute)
	check1(t, err)
	if !strings.HasPrefix(version, "Zookeeper version: 3.5.") {
		t.Errorf("the server that behaves as 3.5 says %q", version)
	}
	if at.Server != 2 || at.URL != c.url+"/servers/2" {
		t.Errorf("%+v", at)
	}
	_, err = second.openAt(1).Create("/second", nil, 0)
	check1(t, err)
	third, _ := c.startServer(`{"cluster": 3, "electionTimeoutMs": 300}`)
	if s := third.state(); len(s.Members) != 3 || s.Connect != third.addr || s.Tree != "" {
		t.Errorf("the cluster: %+v", s)
	}
	next := asked[struct{ Leader int }](third, "/step-down", "{}").Leader
	if lead := third.state().leader(); lead != next {
		t.Errorf("member %d leads, and not %d", lead, next)
	}
	c.refused("/step-down", "{}", http.StatusBadRequest, `"cluster"`)
	if tree := c.state().Tree; tree != "/first\n" {
		t.Errorf("server 1: %q", tree)
	}
	if tree := (&tested{c.process, c.url + "/servers/1"}).state().Tree; tree != "/first\n" {
		t.Errorf("server 1: %q", tree)
	}
	if tree := second.state().Tree; tree != "/a = \"x\"\n/second\n" {
		t.Errorf("server 2: %q", tree)
	}
	second.restore("{}")
	if tree := second.state().Tree; tree != "/a = \"x\"\n" {
		t.Errorf("server 2 in the beginning: %q", tree)
	}
	list := func() (all []string) {
		for _, s := range asked[struct{ Servers []started }](c, "/servers", "").Servers {
			all = append(all, fmt.Sprintf("%d %s %s", s.Server, s.URL, s.Connect))
		}
		return all
	}
	if got := list(); !slices.Equal(got, []string{"1 " + c.url + "/servers/1 " + c.addr, "2 " + second.url + " " + second.addr, "3 " + third.url + " " + third.addr}) {
		t.Errorf("%q", got)
	}

	// What waits when its server is stopped ends.
	waits := make(chan int, 1)
	go func() {
		status, _ := third.send("/wait/exists", `{"path": "/x"}`)
		waits <- status
	}()
	time.Sleep(50 * time.Millisecond)
	third.do("/stop", "{}")
	select {
	case status := <-waits:
		if status != http.StatusGatewayTimeout && status != http.StatusNotFound { // it came too late
			t.Errorf("it waited: %d", status)
		}
	case <-time.After(30 * time.Second):
		t.Error("it still waits")
	}
	for _, addr := range strings.Split(third.addr, ",") {
		waitFor(t, "the port "+addr, func() bool { // a connection of another test may have it for a moment
			l, err := net.Listen("tcp", addr)
			if err == nil {
				l.Close()
			} else if !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	third.refused("/state", "", http.StatusNotFound, "no server 3, or it was stopped")
	third.refused("/stop", "{}", http.StatusNotFound, "no server 3")
	if fourth, at := c.startServer("{}"); at.Server != 4 { // no number is used again
		t.Errorf("%+v", at)
	} else {
		fourth.do("/kill", "{}")
		fourth.do("/stop", "{}")
	}
	if got := list(); len(got) != 2 {
		t.Errorf("%q", got)
	}
	c.refused("/stop", "{}", http.StatusConflict, "server 1")
	if c.stop(); len(c.lines()) != 2 {
		t.Errorf("it says %q", c.lines())
	}
}

// TestTestControlManyServers starts and stops servers, which must leave nothing behind.
func TestTestControlManyServers(t *testing.T) {
	const clients, each = 4, 50
	c := startControl(t)
	files := func() int {
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Process.Pid)) // none without /proc
		return len(all)
	}
	one := func(body string) (start, stop time.Duration) {
		began := time.Now()
		s, _ := c.startServer(body)
		start = time.Since(began)
		nc, err := net.Dial("tcp", strings.Split(s.addr, ",")[0])
		check1(t, err)
		defer nc.Close()
		began = time.Now()
		s.do("/stop", "{}")
		return start, time.Since(began)
	}
	one("{}")
	before := files()
	var mu sync.Mutex
	var starts, stops []time.Duration
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range each {
				body := "{}"
				if i%10 == 0 {
					body = `{"cluster": 3}`
				}
				start, stop := one(body)
				mu.Lock()
				if body == "{}" {
					starts, stops = append(starts, start), append(stops, stop)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(starts)
	slices.Sort(stops)
	t.Logf("with %d clients at a time, a start takes %v (median; at most %v), and a stop %v (%v)", clients, starts[len(starts)/2], starts[len(starts)-1], stops[len(stops)/2], stops[len(stops)-1])
	start, stop := one("{}")
	t.Logf("alone, a start takes %v, and a stop %v", start, stop)
	waitFor(t, "the files of the servers to be closed", func() bool { return files() <= before+clients })
	if runtime.GOOS == "windows" {
		return
	}
	check1(t, c.Process.Signal(syscall.SIGQUIT)) // which prints all goroutines
	c.exit()
	goroutines := 0
	for _, line := range c.lines() {
		if strings.HasPrefix(line, "goroutine ") {
			goroutines++
		}
	}
	if goroutines < 5 || goroutines > 80 {
		t.Errorf("%d goroutines after %d servers:\n%s", goroutines, clients*each, strings.Join(c.lines(), "\n"))
	}
}

func testControlNamespaces(t *testing.T) {
	t.Parallel()
	type named struct{ Path, Connect string }
	for _, flags := range [][]string{nil, {"--cluster", "3"}} {
		c := startControl(t, flags...)
		client := c.openAt(1)
		_, err := client.Create("/test-0000000002", nil, 0)
		check1(t, err)
		for _, x := range []struct{ body, want string }{
			{"{}", "/test-0000000001"}, {"{}", "/test-0000000003"}, {`{"name": "mine"}`, "/mine"}, {`{"name": "/my/own"}`, "/my/own"},
		} {
			if n := asked[named](c, "/namespace", x.body); n.Path != x.want || n.Connect != c.addr+x.want {
				t.Errorf("%s: %+v, want %s", x.body, n, x.want)
			}
		}
		c.refused("/namespace", `{"name": "mine"}`, http.StatusConflict, "/mine")
		c.refused("/namespace", `{"name": "/my"}`, http.StatusConflict, "/my")
		_, err = client.Call(proto.OpSync, &proto.Path{Path: "/"}, &proto.Path{})
		check1(t, err)
		for _, path := range []string{"/mine/a", "/mine/a/b"} {
			_, err := client.Create(path, nil, 0)
			check1(t, err)
		}
		_, err = client.Create("/mine/a/e", nil, proto.FlagEphemeral)
		check1(t, err)
		c.do("/namespace/remove", `{"path": "/mine"}`)
		if tree := c.state().Tree; tree != "/my\n/my/own\n/test-0000000001\n/test-0000000002\n/test-0000000003\n" {
			t.Errorf("%q", tree)
		}
		check1(t, client.Ping())
		c.refused("/namespace/remove", `{"path": "/mine"}`, http.StatusNotFound, "/mine")
		asked[named](c, "/namespace", `{"name": "mine"}`)

		// Requests at the same time get namespaces of their own.
		var wg sync.WaitGroup
		paths := make([]string, 20)
		for i := range paths {
			wg.Go(func() { paths[i] = asked[named](c, "/namespace", "{}").Path })
		}
		wg.Wait()
		if slices.Sort(paths); len(slices.Compact(paths)) != 20 {
			t.Errorf("%q", paths)
		}
		for member := range c.state().Members {
			c.do("/kill", fmt.Sprintf(`{"member": %d}`, member+1))
		}
		c.refused("/namespace", "{}", http.StatusConflict, "stopped")
		c.refused("/namespace/remove", `{"path": "/mine"}`, http.StatusConflict, "stopped")
	}
}
