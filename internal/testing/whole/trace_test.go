package whole

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// traces are the audit logs, and the logs, of members by their ids.
type traces struct {
	t      *testing.T
	audits [10]auditLines
	logs   [10]testkit.Log
}

// add configures a member.
func (x *traces) add(c *lockkeeper.Config) {
	c.Audit, c.Logger = x.audits[c.ID].add, x.logs[c.ID].Logger(slog.LevelWarn)
	c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest
}

// reset forgets what there is so far.
func (x *traces) reset() {
	for i := range x.logs {
		x.logs[i].Reset()
		x.audits[i].reset()
	}
}

// want compares the lines of reconfig in all audit logs, "ID: LINE", and looks for a warning with each of the words in
// each log that has such a line. Then it forgets both.
func (x *traces) want(what string, lines []string, words ...string) {
	x.t.Helper()
	lines = slices.Sorted(slices.Values(lines))
	var got []string
	eventually(x.t, what, func() bool {
		got = nil
		for id := range x.audits {
			for _, line := range x.audits[id].all() {
				if strings.Contains(line, "operation=reconfig") {
					got = append(got, fmt.Sprintf("%d: %s", id, line))
				}
			}
		}
		return len(got) >= len(lines)
	})
	synctest.Wait() // until it is logged
	for id := range x.logs {
		if slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, fmt.Sprint(id, ": ")) }) &&
			len(x.logs[id].Matching(append([]string{"level=WARN"}, words...)...)) == 0 {
			x.t.Errorf("%s: member %d logs nothing with %q: %q", what, id, words, x.logs[id].String())
		}
	}
	if !slices.Equal(got, lines) {
		x.t.Errorf("%s: the audit logs have\n%s\nnot\n%s", what, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	x.reset()
}

// TestTraceOfChanges: whichever way the members are changed, or somebody tries, the audit log has a line, and the log a
// warning, with the address that asked.
func TestTraceOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &traces{t: t}
		m := startMembers(t, 3, x.add)
		const changed, refused = "operation=reconfig znode=/zookeeper/config result=success", "operation=reconfig result=failure"
		lead := m.leader()
		other := (lead + 1) % 3
		x.reset()

		// By the peer port, as lockkeeper cluster does, also if another member than the leader is asked.
		operator := func(at int, q request.Request) {
			request.Ask(t.Context(), m.net.Host("operator"), host(at)+":7000", q)
		}
		operator(other, request.Request{Remove: 9})
		x.want("remove nobody", []string{fmt.Sprintf("%d: user=operator ip=operator %s", lead+1, refused)}, "remove server 9", "operator", "server 9 is not a member")
		operator(other, request.Request{Form: true})
		x.want("form", []string{fmt.Sprintf("%d: user=operator ip=operator %s", other+1, refused)}, "form the cluster", "operator")
		operator(other, request.Request{Status: true})
		operator(lead, request.Request{Knows: 1})
		operator(lead, request.Request{Add: &proto.Peer{ID: 1, Addr: host(0) + ":7000"}, Rejoin: true, Run: 7}) // it has its place
		x.want("questions", nil)
		to := uint64(other + 1)
		operator(other, request.Request{Transfer: &to})
		x.want("transfer", []string{fmt.Sprintf("%d: user=operator ip=operator operation=reconfig result=success", lead+1)}, fmt.Sprintf("make server %d the leader", to), "operator")
		lead = m.leader()
		other = (lead + 1) % 3

		// A server that joins by itself: first it has no vote.
		m.add(4, x.add)
		asks := fmt.Sprintf("%d: user=%s ip=%[2]s %s", lead+1, host(3), changed)
		x.want("join", []string{asks, asks}, "add server 4", "which asks for it itself", host(3))

		// A member that has lost its disk.
		m.kill(3)
		m.wipe(3)
		time.Sleep(10 * time.Second)
		m.start(3)
		eventually(t, "its vote", func() bool { return m.servers[3].Role() == "follower" })
		x.want("back", []string{asks, asks}, "add server 4", "which asks for it itself", host(3))

		// By a client of another member, which asks the leader.
		c := superUser(t, m.connect(other, 10*time.Second))
		must(reconfig(c, "", "4", "", -1))(t)
		m.removed(3)
		client := fmt.Sprintf("%d: session=0x%x user=127.0.0.1,super ip=127.0.0.1", other+1, uint64(c.Session.SessionID))
		x.want("reconfig", []string{client + " " + changed, fmt.Sprintf("%d: user=%s ip=%[2]s %s", lead+1, host(other), changed)}, "members were changed on request")
		if _, err := reconfig(c, "", "4", "", 7); err == nil {
			t.Error("with another version of the list")
		}
		x.want("reconfig of another version", []string{client + " " + refused}, "refused", "leaving=4", "user=127.0.0.1,super")

		// By the program of a member.
		program := func(at int, result string) string { return fmt.Sprintf("%d: ip=127.0.0.1 %s", at+1, result) }
		check(t, m.servers[lead].Transfer(t.Context(), uint64(lead+1)))
		x.want("by the program", []string{program(lead, "operation=reconfig result=success")}, "this program")
		m.servers[other].RemoveMember(t.Context(), 9)
		x.want("by a program elsewhere", []string{program(other, refused), fmt.Sprintf("%d: user=%s ip=%[2]s %s", lead+1, host(other), refused)}, "remove server 9")
	})
}

// TestTraceOfServersThatAsk: a server that asks in vain for a place of its own, as often as it likes, fills no log.
func TestTraceOfServersThatAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &traces{t: t}
		m := startMembers(t, 3, x.add)
		lead := m.leader()
		x.reset()
		for range 100 {
			request.Ask(t.Context(), m.net.Host("somewhere"), host(lead)+":7000", request.Request{Add: &proto.Peer{ID: 7, Addr: "somewhere:7000"}, Run: 7})
		}
		x.want("asks 100 times", []string{fmt.Sprintf("%d: user=somewhere ip=somewhere operation=reconfig result=failure", lead+1)}, "add server 7", "somewhere", "asks for it itself")
	})
}
