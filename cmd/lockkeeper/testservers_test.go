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
	c.do("/tree", `{"tree": "/first\n"}`)
	second, at := c.startServer(`{"tree": "/a = \"x\"\n", "behaveAs": "3.5"}`)
	nc, err := net.Dial("tcp", second.addr)
	check1(t, err)
	version, err := rawclient.Word(nc, "srvr", time.Minute)
	check1(t, err)
	if !strings.HasPrefix(version, "Zookeeper version: 3.5.") || at.Server != 2 || at.URL != c.url+"/servers/2" {
		t.Errorf("%+v, which says %q", at, version)
	}
	third, _ := c.startServer(`{"cluster": 3, "electionTimeoutMs": 300}`)
	next := asked[leads](third, "/step-down", "{}").Leader
	if s := third.state(); len(s.Members) != 3 || s.Connect != third.addr || s.Tree != "" || s.leader() != next {
		t.Errorf("the cluster, where member %d is to lead: %+v", next, s)
	}
	c.refused("/step-down", "{}", http.StatusBadRequest, `"cluster"`)
	second.do("/tree", `{"tree": "/second\n"}`)
	tree := func(c *tested, want string) {
		t.Helper()
		if got := c.state().Tree; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	tree(c, "/first\n")
	tree(&tested{c.process, c.url + "/servers/1"}, "/first\n")
	tree(second, "/a = \"x\"\n/second\n")
	second.restore("{}")
	tree(second, "/a = \"x\"\n")
	list := func() (all []string) {
		for _, s := range asked[struct{ Servers []started }](c, "/servers", "").Servers {
			all = append(all, fmt.Sprintf("%d %s %s", s.Server, s.URL, s.Connect))
		}
		return all
	}
	if got := list(); !slices.Equal(got, []string{"1 " + c.url + "/servers/1 " + c.addr, "2 " + second.url + " " + second.addr, "3 " + third.url + " " + third.addr}) {
		t.Errorf("%q", got)
	}
	third.do("/stop", "{}")
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
	if fourth, at := c.startServer("{}"); at.Server != 4 { // no number is used again
		t.Errorf("%+v", at)
	} else {
		fourth.do("/kill", "{}")
		fourth.do("/stop", "{}")
	}
	if got := list(); len(got) != 2 {
		t.Errorf("%q", got)
	}
	if c.stop(); len(c.lines()) != 2 {
		t.Errorf("it says %q", c.lines())
	}
}

// TestTestControlManyServers starts and stops servers, which must leave nothing behind.
func TestTestControlManyServers(t *testing.T) {
	const clients, each = 4, 20
	c := startControl(t)
	files := func() int {
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Process.Pid)) // none without /proc
		return len(all)
	}
	one := func(body string) {
		s, _ := c.startServer(body)
		nc, err := net.Dial("tcp", strings.Split(s.addr, ",")[0])
		check1(t, err)
		defer nc.Close()
		s.do("/stop", "{}")
	}
	one("{}")
	before := files()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			one(`{"cluster": 3}`)
			for range each {
				one("{}")
			}
		})
	}
	wg.Wait()
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
	if goroutines < 5 || goroutines > clients*each-10 {
		t.Errorf("%d goroutines after %d servers:\n%s", goroutines, clients*each, strings.Join(c.lines(), "\n"))
	}
}

func testControlNamespaces(t *testing.T) {
	t.Parallel()
	type named struct{ Path, Connect string }
	c := startControl(t, "--cluster", "2")
	c.do("/tree", `{"tree": "/test-0000000002\n"}`)
	for _, x := range []struct{ body, want string }{
		{"{}", "/test-0000000001"}, {"{}", "/test-0000000003"}, {`{"name": "mine"}`, "/mine"}, {`{"name": "/my/own"}`, "/my/own"},
	} {
		if n := asked[named](c, "/namespace", x.body); n.Path != x.want || n.Connect != c.addr+x.want {
			t.Errorf("%s: %+v, want %s", x.body, n, x.want)
		}
	}
	c.refused("/namespace", `{"name": "mine"}`, http.StatusConflict, "/mine")
	c.do("/tree", `{"tree": "/mine/a/b\n"}`)
	c.do("/namespace/remove", `{"path": "/mine"}`)
	c.refused("/namespace/remove", `{"path": "/mine"}`, http.StatusNotFound, "/mine")
	if tree := c.state().Tree; tree != "/my\n/my/own\n/test-0000000001\n/test-0000000002\n/test-0000000003\n" {
		t.Errorf("%q", tree)
	}

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
}
