package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestLeaves: what a change of the members leaves of a cluster. The servers 1 to n are its members, and server 1 leads.
func TestLeaves(t *testing.T) {
	remove := func(id uint64) request.Request { return request.Request{Remove: id} }
	add := func(id uint64, observer bool) request.Request {
		return request.Request{Add: &proto.Peer{ID: id, Observer: observer}}
	}
	for name, c := range map[string]struct {
		voters, observers int
		down              []uint64
		q                 request.Request
		want              remainder
		taken             bool
	}{
		"one of five":                 {5, 0, nil, remove(5), remainder{4, 4, 3, 1}, true},
		"one of three":                {3, 0, nil, remove(3), remainder{2, 2, 2, 0}, true},
		"the leader of three":         {3, 0, nil, remove(1), remainder{2, 2, 2, 0}, true},
		"one of three that is down":   {3, 0, []uint64{2}, remove(2), remainder{2, 2, 2, 0}, true},
		"one of four, another down":   {4, 0, []uint64{2}, remove(3), remainder{3, 2, 2, 0}, true},
		"one of four that is down":    {4, 0, []uint64{4}, remove(4), remainder{3, 3, 2, 1}, true},
		"one of five, two are down":   {5, 0, []uint64{4, 5}, remove(3), remainder{4, 2, 3, -1}, true},
		"one of two":                  {2, 0, nil, remove(2), remainder{1, 1, 1, 0}, true},
		"the only one":                {1, 0, nil, remove(1), remainder{0, 0, 1, -1}, true},
		"an observer":                 {3, 1, nil, remove(4), remainder{3, 3, 2, 1}, false},
		"an observer, one is down":    {3, 1, []uint64{2}, remove(4), remainder{3, 2, 2, 0}, false},
		"no member":                   {3, 0, nil, remove(9), remainder{3, 3, 2, 1}, false},
		"a voter becomes an observer": {3, 0, nil, add(3, true), remainder{2, 2, 2, 0}, true},
		"an observer gets a vote":     {3, 1, nil, add(4, false), remainder{4, 4, 3, 1}, false},
		"a voter moves":               {3, 0, []uint64{3}, add(3, false), remainder{3, 3, 2, 1}, false},
		"a new observer":              {3, 0, nil, add(4, true), remainder{3, 3, 2, 1}, false},
	} {
		s := request.Status{Cluster: 1, Leader: 1}
		x := clusterStatus{Status: &s}
		for id := uint64(1); id <= uint64(c.voters+c.observers); id++ {
			s.Members = append(s.Members, proto.Peer{ID: id, Observer: int(id) > c.voters})
			x.Answers = append(x.Answers, memberStatus{ID: id, Cluster: 1, Leader: 1})
		}
		for _, id := range c.down {
			x.Answers[id-1] = memberStatus{ID: id, Cluster: 1} // it knows no leader
		}
		if got, taken := x.leaves(c.q); got != c.want || taken != c.taken {
			t.Errorf("%s: %+v %v", name, got, taken)
		}
	}
}

// TestRemoveWithoutSpare: a change that leaves no voting member to lose is made only with --yes or after a question, and
// --dry-run makes none.
func TestRemoveWithoutSpare(t *testing.T) {
	t.Parallel()
	peers := startMembers(t, 4)
	run := func(args ...string) (code int, stdout, stderr string) {
		return call(nil, append([]string{"cluster", "--peer", peers[0]}, args...)...)
	}
	members := func() int { return len(ask(t, "status", "--peer", peers[0]).Members) }

	const safe = "The cluster would have 3 voting members, of which 3 answer; it needs 2, so it can lose 1. Nothing was changed.\n"
	if code, stdout, stderr := run("remove", "4", "--dry-run"); code != exitOK || stdout != safe || stderr != "" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	if code, stdout, stderr := run("remove", "4", "--dry-run", "--json"); code != exitOK || stdout != `{"voters":3,"answer":3,"majority":2,"spare":1}`+"\n" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	code, _, stderr := run("remove", "9", "--dry-run")
	if oneError(t, stderr, "server 9 is not a member"); code != exitFault || members() != 4 {
		t.Errorf("exit code %d, %d members", code, members())
	}
	if code, _, stderr := run("remove", "4"); code != exitOK || stderr != "" || members() != 3 { // which leaves one
		t.Errorf("%d %q, %d members", code, stderr, members())
	}

	const spare = "2 voting members, of which 2 answer; it needs 2, so it stops when it loses one more"
	for _, change := range [][]string{{"remove", "3"}, {"add", "3=" + peers[2], "--observer"}} {
		code, stdout, stderr := run(change...) // a test has no terminal
		if oneError(t, stderr, "the cluster would have "+spare, "--yes"); code != exitUsage || stdout != "" {
			t.Errorf("%v: %d %q", change, code, stdout)
		}
		if code, stdout, _ := run(append(change, "--dry-run", "--yes")...); code != exitOK || !strings.Contains(stdout, spare) {
			t.Errorf("%v: %d %q", change, code, stdout)
		}
	}
	if members() != 3 {
		t.Errorf("%d members", members())
	}
	if code, stdout, stderr := run("remove", "3", "--yes"); code != exitOK || stderr != "" || members() != 2 {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// startMembers starts the servers 1 to n of a cluster in processes, waits until all vote, and returns their peer ports.
func startMembers(t *testing.T, n int) (peers []string) {
	t.Helper()
	peers = freeAddrs(t, n)
	for id := 1; id <= n; id++ {
		start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--id", fmt.Sprint(id), "--peers", peersAt(peers...))
	}
	waitFor(t, "a healthy cluster of voters", func() bool {
		code, _, _ := call(nil, "cluster", "status", "--peer", peers[0])
		return code == exitOK && !slices.ContainsFunc(ask(t, "status", "--peer", peers[0]).Members, func(m proto.Peer) bool { return m.Observer })
	})
	return peers
}
