package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestCompleteLive: the words that a shell offers come from the servers: locks that are held,
// paths of znodes, and members. Without a server there are none, and no error.
func TestCompleteLive(t *testing.T) {
	t.Parallel()
	s := lockServer(t)
	a, b := client(t, s.Addr()), client(t, s.Addr())
	_, held := contend(a, "/app/one")
	check1(t, <-held)
	contend(b, "/app/one")
	s.WaitWaiters("/app/one", 1)
	node(t, b, "/app/other", 0)
	ports := freePorts(t, 2)
	var members []string
	for i, port := range ports {
		members = append(members, fmt.Sprintf("%d=127.0.0.1:%d", i+1, port))
	}
	var both []*process
	for i := range 2 {
		both = append(both, start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--id", fmt.Sprint(i+1), "--peers", strings.Join(members, ",")))
	}
	addr := both[1].waitReady().addr
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
	peer := func(i int) string { return strings.TrimPrefix(members[i], fmt.Sprintf("%d=", i+1)) }
	slow := 0 // times that the servers did not answer in time
	for _, x := range []struct {
		args []string // the last one is the word to complete
		want []string
	}{
		{[]string{"lock", "break", "--server", s.Addr(), ""}, []string{"/app/one\tmutex, 1 hold it, 1 wait"}},
		{[]string{"lock", "break", "--server", s.Addr(), "/x"}, nil},
		{[]string{"lock", "break", "--server", s.Addr(), "/app/one", ""}, nil},
		{[]string{"lock", "ls", "--server", s.Addr(), ""}, []string{"/app", "/zookeeper"}},
		{[]string{"lock", "check", "--server", s.Addr(), "/app/"}, []string{"/app/one", "/app/other"}},
		{[]string{"lock", "run", "--server", s.Addr(), "/app/ot"}, []string{"/app/other"}},
		{[]string{"lock", "run", "--server", s.Addr(), "/app/one", "--", "/"}, nil},
		{[]string{"zk", "--server", s.Addr(), "ls", ""}, []string{"/app", "/zookeeper"}},
		{[]string{"zk", "--server", s.Addr(), "get", "/app/o"}, []string{"/app/one", "/app/other"}},
		{[]string{"cluster", "remove", "--server", addr, ""}, []string{"1\t" + peer(0), "2\t" + peer(1)}},
		{[]string{"cluster", "transfer", "--peer", peer(0), "2"}, []string{"2\t" + peer(1)}},
		{[]string{"cluster", "remove", "--server", addr, "1", ""}, nil},
		{[]string{"cluster", "remove", "--server", closed, ""}, nil},
		{[]string{"lock", "break", "--server", closed, ""}, nil},
	} {
	again:
		began := time.Now()
		code, stdout, stderr := call(nil, append([]string{"__complete"}, x.args...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		got := lines[:len(lines)-1]                                              // the last one says how to complete
		if len(got) == 0 && len(x.want) > 0 && time.Since(began) >= completing { // nothing was known in time
			if slow++; slow < 20 {
				goto again
			}
		}
		if code != exitOK || strings.Join(got, "\n") != strings.Join(x.want, "\n") || strings.Contains(stderr, "rror") {
			t.Errorf("%q: %d %q, not %q; %s", x.args, code, got, x.want, stderr)
		}
		if took := time.Since(began); took > completing+5*time.Second {
			t.Errorf("%q takes %v", x.args, took)
		}
	}
}
