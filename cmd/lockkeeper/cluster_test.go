package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// freePorts reserves ports for servers that the test starts.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		ports = append(ports, testkit.Port(t))
	}
	return ports
}

// freeAddrs reserves addresses on this machine.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for _, port := range freePorts(t, n) {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addrs
}

// peersAt is the value of --peers for the servers 1, 2 and so on with peer ports at these addresses.
func peersAt(addrs ...string) string {
	var list []string
	for i, addr := range addrs {
		list = append(list, fmt.Sprintf("%d=%s", i+1, addr))
	}
	return strings.Join(list, ",")
}

// waitFor waits until ok returns true.
var waitFor = testkit.Eventually

// ask runs a cluster command with --json, which must get an answer, however well the cluster is.
func ask(t *testing.T, args ...string) request.Status {
	t.Helper()
	code, stdout, stderr := call(nil, append([]string{"cluster", "--json"}, args...)...)
	var s request.Status
	if code != exitOK && args[0] != "status" || stderr != "" {
		t.Fatalf("cluster %v: %d %q", args, code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &s); err != nil {
		t.Fatalf("%v: %q", err, stdout)
	}
	return s
}

// transfer has another member lead. It tries again, since a leader tries for 1.5 s only, for which a machine may be too busy.
func transfer(t *testing.T, to uint64, flags ...string) (s clusterStatus) {
	t.Helper()
	waitFor(t, fmt.Sprint("server ", to, " to lead"), func() bool {
		code, stdout, stderr := call(nil, append([]string{"cluster", "--json", "transfer", fmt.Sprint(to)}, flags...)...)
		if code != exitOK {
			t.Log(stderr)
			return false
		}
		s = clusterStatus{}
		check1(t, json.Unmarshal([]byte(stdout), &s))
		return true
	})
	return s
}

// TestWithoutMajority: without a majority, commands say what is wrong with each server, and which peer ports to ask.
func TestWithoutMajority(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 4)
	peer, at, down := addrs[0], addrs[2], addrs[3]
	p := start(t, nil, "serve", "--memory", "--listen", at, "--peers", peersAt(addrs[:2]...))
	waitFor(t, "the client port", func() bool {
		nc, err := net.Dial("tcp", at)
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	var wg sync.WaitGroup
	for _, args := range []string{
		"cluster status --timeout 1s --server %s,%s", "cluster transfer --timeout 1s --server %[2]s,%[1]s", "lock run --connect-timeout 3s --server %s,%s /a -- true", "lock ls --timeout 3s --server %s,%s", "zk --timeout 3s --server %s,%s ls /",
	} {
		wg.Go(func() {
			code, stderr := 0, ""
			waitFor(t, args, func() bool { // a busy machine may not get all answers in so short a time
				code, _, stderr = call(nil, strings.Fields(fmt.Sprintf(args, at, down))...)
				lacks := slices.DeleteFunc([]string{at + " serves no clients at the moment", "lockkeeper cluster status --peer " + peer, "cannot connect to " + down, "connection refused"}, func(says string) bool {
					return strings.Contains(stderr, says)
				})
				if len(lacks) > 0 {
					t.Logf("%s: exit code %d, without %q: %s", args, code, lacks, stderr)
				}
				return len(lacks) == 0
			})
			if code == exitOK || strings.HasPrefix(args, "cluster") && strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s: exit code %d: %s", args, code, stderr)
			}
		})
	}
	wg.Wait()
	if s := ask(t, "status", "--peer", peer); s.Formed || !strings.Contains(s.Waiting, "waiting for server 2") {
		t.Errorf("%+v, %q", s, p.lines())
	}
}

// TestClusterStatusTLS: cluster status says why TLS with a member fails, and so does a member that waits for it.
func TestClusterStatusTLS(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authorities := ca.WriteCA(t, dir, "ca.pem")
	cert, _ := testkit.WritePair(t, ca.Named(t, "localhost"), dir, "good.pem", "good.pem")
	bad, _ := testkit.WritePair(t, ca.Bad(t, false), dir, "bad.pem", "bad.pem")
	ports := freePorts(t, 2)
	first, second := fmt.Sprintf("localhost:%d", ports[0]), fmt.Sprintf("localhost:%d", ports[1])
	for i, own := range []string{cert, bad} {
		start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--id", fmt.Sprint(i+1), "--peers", "1="+first+",2="+second, "--peer-tls-cert", own, "--peer-tls-ca", authorities)
	}
	const why = "its certificate (CN=localhost) is not accepted here: x509: certificate relies on legacy Common Name field"
	waitFor(t, "the reasons", func() bool {
		code, stdout, _ := call(nil, "cluster", "status", "--peer", first, "--peer-tls-cert", cert, "--peer-tls-ca", authorities)
		return code == exitFault && strings.Contains(stdout, "reason: server 2 at "+second+": "+why) && strings.Contains(stdout, "server 2 at "+second+": cannot be asked: "+why) && !strings.Contains(stdout, "cluster form")
	})
	refuses(t, exitFault, []string{"cluster", "status", "--peer", second, "--peer-tls-cert", cert, "--peer-tls-ca", authorities}, second+": "+why)
}

// TestClusterOfNewServer: the command asks again where a server has just been started, which serves no clients yet.
func TestClusterOfNewServer(t *testing.T) {
	t.Parallel()
	said := make(chan string, 1)
	s := lockkeepertest.StartCluster(t, 1, lockkeepertest.WithTCP()).Server(1)
	l := value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() { // until the listener is closed
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if len(said) == 0 {
				client.Read(make([]byte, 1024)) // otherwise it would be told that the connection was reset
				client.Close()
				continue
			}
			server, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Error(err)
				client.Close()
				continue
			}
			go func() {
				defer client.Close()
				io.Copy(client, server)
			}()
			go func() {
				defer server.Close()
				io.Copy(server, client)
			}()
		}
	}()
	peers, err := peersOf(t.Context(), &connect.Dialer{}, []string{l.Addr().String()}, func(why error) { said <- why.Error() })
	if err != nil || len(peers) != 1 {
		t.Errorf("the members are %q, %v", peers, err)
	}
	if why := <-said; !strings.HasPrefix(why, l.Addr().String()+" serves no clients at the moment") {
		t.Errorf("it said %q", why)
	}
}

// TestClusterStarting: cluster status waits for members that have just been started, and for no others.
func TestClusterStarting(t *testing.T) {
	for name, c := range map[string]struct {
		leader  uint64
		id      request.ClusterID
		serving bool
		differs []election.Difference
		waits   bool
	}{
		"serves":                 {leader: 1, id: 7, serving: true},
		"not yet":                {leader: 1, id: 7, waits: true},
		"not in the cluster yet": {leader: 1, waits: true},
		"of another cluster":     {leader: 1, id: 8},
		"without a leader":       {id: 7},
		"with another state":     {leader: 1, id: 7, differs: []election.Difference{{ID: 2, Index: 1}}},
	} {
		x := clusterStatus{Status: &request.Status{ID: 1, Leader: c.leader, Cluster: 7, Differs: c.differs}}
		x.Answers = []memberStatus{{ID: 1, Cluster: 7, About: request.About{Serving: c.leader != 0}}, {ID: 2, Cluster: c.id, About: request.About{Serving: c.serving}}}
		if x.started() == c.waits {
			t.Errorf("%s: started is %v", name, x.started())
		}
	}
}

// TestClusterByClientPort runs the cluster commands with the client ports of members.
func TestClusterByClientPort(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 7)
	clients, peers := addrs[3:], peersAt(addrs[:3]...)
	var procs []*process
	for i := range 3 {
		procs = append(procs, start(t, nil, "serve", "--memory", "--read-only", "--listen", clients[i], "--id", fmt.Sprint(i+1), "--peers", peers))
	}
	for _, p := range procs {
		p.waitReady()
	}
	waitFor(t, "every member's vote", func() bool { // one that starts late joins the others
		return !slices.ContainsFunc(ask(t, "status", "--server", clients[0]).Members, func(m proto.Peer) bool { return m.Observer })
	})
	for i, addr := range clients[:3] {
		if s := ask(t, "status", "--server", addr); s.ID != uint64(i+1) || len(s.Members) != 3 {
			t.Errorf("%+v", s)
		}
	}
	closed := clients[3]
	all := closed + ", " + strings.Join(clients[:3], ",")
	to := ask(t, "status", "--server", all).Leader%3 + 1
	transfer(t, to, "--server", all)
	waitFor(t, "another leader", func() bool { return ask(t, "status", "--server", all).Leader == to })
	// The answer to a change shows what it has made of each member.
	var own clusterStatus
	answer := func(args ...string) {
		t.Helper()
		code, stdout, _ := call(nil, append([]string{"cluster", "--json", "--server", all}, args...)...)
		own = clusterStatus{}
		if err := json.Unmarshal([]byte(stdout), &own); code != exitOK || err != nil || len(own.Answers) != 3 {
			t.Fatalf("%v: %d %v %q", args, code, err, stdout)
		}
	}
	for range 3 {
		if answer("add", "2="+addrs[1]); own.Answers[1].Role == "observer" {
			t.Errorf("a new voter: %+v", own.Answers)
		}
		if answer("add", "2="+addrs[1], "--observer", "--yes"); own.Answers[1].Role != "observer" {
			t.Errorf("a new observer: %+v", own.Answers)
		}
	}
	to = 4 - own.Leader // 1 or 3
	own = transfer(t, to, "--server", all)
	if len(own.Answers) != 3 || own.Leader != to || own.Answers[to-1].Role != "leader" || own.Answers[3-to].Role != "follower" || own.Answers[1].Leader != to {
		t.Errorf("new leader %d: server %d says that %d leads, %+v", to, own.ID, own.Leader, own.Answers)
	}
	old := *own.Status // of a moment before the members answered
	old.Leader = 4 - to
	own.Status = &old
	if own.settle(t.Context(), peer.TCP{}, own.changed); own.Leader != to {
		t.Errorf("the server that was asked still says that %d leads", own.Leader)
	}
	if s := ask(t, "remove", "3", "--server", all, "--yes"); len(s.Members) != 2 || !s.Members[1].Observer {
		t.Errorf("%+v", s)
	}

	waitFor(t, "the observer to know that server 3 is gone", func() bool { return len(ask(t, "status", "--peer", addrs[1]).Members) == 2 })

	// Without the only voter, the observer still knows the members.
	check1(t, procs[0].Process.Kill())
	<-procs[0].done
	waitFor(t, "read-only mode", func() bool {
		code, stdout, _ := call(map[string]string{"LOCKKEEPER_SERVER": clients[1]}, "cluster", "status")
		return code == exitFault && strings.HasPrefix(stdout, "server 2 is ")
	})
	_, stdout, _ := call(nil, "cluster", "status", "--server", clients[1])
	if lines := strings.Split(stdout, "\n"); len(lines) != 6 || !strings.HasSuffix(lines[2], " does not answer") || !strings.Contains(lines[3], " "+clients[1]+" ") || !strings.HasPrefix(lines[4], "health: no majority: server 1 at ") {
		t.Errorf("without server 1: %q", stdout)
	}
	alone := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0").waitReady()
	refuses(t, exitFault, []string{"cluster", "status", "--timeout", "1s", "--server", closed}, closed, "refused; name a member's client port with --server")
	for server, says := range map[string]string{alone.addr: "standalone", addrs[1]: "cannot get the members"} {
		refuses(t, exitFault, []string{"cluster", "status", "--server", server}, server, says)
	}
}

// TestCluster grows a server to a cluster of three and an observer, hands leadership
// over, and removes members one after the other, while a client works.
func TestCluster(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 4)
	dir := t.TempDir()
	data := func(id int) string { return filepath.Join(dir, fmt.Sprint(id)) }
	soon := []string{"LOCKKEEPER_ELECTION_TIMEOUT=1s"} // a member that is removed learns of it after that time
	one := start(t, soon, "serve", "--listen", "127.0.0.1:0", "--data", data(1), "--peers", "1="+addrs[0]).waitReady()
	c := one.connect()
	write := func(path string) {
		t.Helper()
		waitFor(t, path, func() bool {
			_, err := c.Create(path, nil, 0)
			if closedEarly(err) { // there is no leader; the write may have been stored
				c = one.connect()
				return false
			}
			if err != proto.NodeExists {
				check1(t, err)
			}
			return true
		})
	}
	write("/alone")
	joined := func(id int, more ...string) *process {
		t.Helper()
		args := append([]string{"serve", "--listen", "127.0.0.1:0", "--id", fmt.Sprint(id), "--data", data(id), "--peer-listen", addrs[id-1]}, more...)
		return start(t, soon, args...)
	}
	two := joined(2, "--join", addrs[0]).waitReady()
	three := joined(3, "--join", addrs[1]).waitReady()
	four := joined(4, "--join", addrs[0], "--observer").waitReady()
	waitFor(t, "three votes", func() bool {
		n := 0
		for _, m := range ask(t, "status", "--peer", addrs[3]).Members {
			if !m.Observer {
				n++
			}
		}
		return n == 3
	})
	write("/four")
	if _, err := four.connect().Exists("/alone", false); err != nil {
		t.Error(err)
	}
	waitFor(t, "the status with server 1 as the leader", func() bool {
		code, stdout, _ := call(map[string]string{"LOCKKEEPER_CLUSTER_PEER": addrs[2]}, "cluster", "status")
		if lines := strings.Split(stdout, "\n"); code == exitOK && len(lines) == 8 && strings.HasPrefix(lines[0], "server 3 is follower, in term ") &&
			strings.HasPrefix(strings.Join(strings.Fields(lines[2]), " "), "1 "+addrs[0]+" "+one.addr+" leader ") &&
			strings.HasPrefix(strings.Join(strings.Fields(lines[5]), " "), "4 "+addrs[3]+" "+four.addr+" observer ") &&
			strings.HasSuffix(strings.Join(strings.Fields(lines[5]), " "), " "+lockkeeper.Version+" ok") && lines[6] == "health: ok" {
			return true
		}
		t.Logf("%d %q", code, stdout)
		call(nil, "cluster", "transfer", "1", "--peer", addrs[0]) // in case an election has made another one the leader
		return false
	})

	if s := transfer(t, 2, "--peer", addrs[2]); s.ID > 2 || len(s.Members) != 4 { // the old leader, or at another attempt the new one
		t.Errorf("%+v", s)
	}
	waitFor(t, "another leader", func() bool { return ask(t, "status", "--peer", addrs[3]).Leader == 2 })
	write("/by-two")
	refuses(t, exitFault, []string{"cluster", "remove", "9", "--peer", addrs[0]}, "server 9 is not a member")
	ask(t, "remove", "2", "--peer", addrs[0], "--yes") // the leader
	fails2 := func(p *process, id int) {
		t.Helper()
		code := p.exit()
		lines := p.lines()
		if last := lines[len(lines)-1]; code != exitFault || !strings.HasPrefix(last, fmt.Sprintf("lockkeeper: server %d was removed from its cluster; ", id)) {
			t.Errorf("exit code %d, %q", code, lines)
		}
	}
	fails2(two, 2)
	write("/without-two")
	check1(t, three.Process.Kill())
	<-three.done
	if code, _, stderr := call(nil, "cluster", "status", "--peer", addrs[2]); code != exitFault {
		t.Errorf("a member that is down: %d %q", code, stderr)
	} else {
		oneError(t, stderr, addrs[2])
	}
	joined(3, "--join", addrs[0]).waitReady() // with the same flags as before
	four.connect()
	ask(t, "remove", "4", "--peer", addrs[0])
	fails2(four, 4)
	fails2(joined(4), 4)
	if s := ask(t, "status", "--peer", addrs[2]); len(s.Members) != 2 {
		t.Errorf("%+v", s)
	}
	write("/at-last")

	// A server without --join is added by hand.
	check1(t, os.RemoveAll(data(4)))
	four = joined(4)
	waitFor(t, "the server to be added", func() bool {
		code, _, _ := call(nil, "cluster", "add", "4="+addrs[3], "--observer", "--peer", addrs[0])
		return code == exitOK
	})
	four.waitReady()
}

// TestClusterSameFlags: of servers whose flags differ only by the id and the own address, those in the list
// form the cluster, and another one joins it.
func TestClusterSameFlags(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 4)
	begin := func(id int) *process {
		t.Helper()
		return start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--id", fmt.Sprint(id), "--peer-listen", addrs[id-1]+";c:"+fmt.Sprint(id),
			"--peers", peersAt(addrs[:3]...), "--join-peers")
	}
	four := begin(4) // waits for the others
	var first []*process
	for id := range 3 {
		first = append(first, begin(id+1))
	}
	for _, p := range append(first, four) {
		p.waitReady()
	}
	waitFor(t, "four votes", func() bool {
		s := ask(t, "status", "--peer", addrs[0])
		return len(s.Members) == 4 && !slices.ContainsFunc(s.Members, func(m proto.Peer) bool { return m.Observer })
	})
	waitFor(t, "the addresses for clients", func() bool {
		_, stdout, _ := call(nil, "zk", "--server", four.addr, "config", "-c")
		return strings.HasSuffix(stdout, " c:1,c:2,c:3,c:4\n")
	})
}

// TestClusterForm: two of three servers say what they wait for, form the cluster when an
// operator says so, and the third joins them.
func TestClusterForm(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 6)
	client, peers := func(id int) string { return addrs[2+id] }, peersAt(addrs[:3]...)
	dir := t.TempDir()
	serve := func(id int) *process {
		return start(t, nil, "serve", "--memory", "--listen", client(id), "--id", fmt.Sprint(id), "--peers", peers, "--audit-log", filepath.Join(dir, fmt.Sprint(id)))
	}
	status := func(id int) string {
		_, stdout, _ := call(nil, "cluster", "status", "--peer", addrs[id-1])
		return strings.Join(strings.Fields(strings.ReplaceAll(stdout, "\n", " | ")), " ")
	}
	procs := []*process{serve(1), serve(2)}
	v := lockkeeper.Version
	want := fmt.Sprintf("server 1 is in no cluster yet | ID PEER PORT CLIENT PORT ROLE ENTRY PEER TLS VERSION STATE | 1 %[1]s %[4]s looking 0 no %[6]s in no cluster yet | 2 %[2]s %[5]s looking 0 no %[6]s in no cluster yet | 3 %[3]s - - - - - does not answer | reason: waiting for server 3 at %[3]s: a cluster is formed when all of its voting servers have been started; if one can never be, see \"lockkeeper cluster form\" or Server.FormCluster | health: no majority: server 1 at %[1]s: in no cluster yet; server 2 at %[2]s: in no cluster yet; server 3 at %[3]s: does not answer |", addrs[0], addrs[1], addrs[2], client(1), client(2), v)
	waitFor(t, want, func() bool { return status(1) == want })
	waiting := ask(t, "status", "--peer", addrs[0])
	if waiting.Formed || waiting.Cluster != 0 || len(waiting.Configured) != 3 || len(waiting.Members) != 0 || !strings.HasPrefix(waiting.Waiting, "waiting for server 3") {
		t.Errorf("%+v", waiting)
	}
	refuses(t, exitUsage, []string{"cluster", "form"}, "--peer", "client port serves nobody")
	var stdout, stderr string
	waitFor(t, "what to do with a server that is in no cluster yet", func() bool { // a busy machine may not get an answer in 1 s
		var code int
		code, stdout, stderr = call(nil, "cluster", "status", "--timeout", "1s", "--server", client(1))
		return code == exitFault && strings.Contains(stderr, "in no cluster yet")
	})
	if oneError(t, stderr, "--peer"); stdout != "" {
		t.Errorf("cluster status: %q", stdout)
	}
	formed := ask(t, "form", "--peer", addrs[1])
	if len(formed.Cluster.String()) != 16 || !formed.Formed || len(formed.Members) != 3 || formed.Waiting != "" {
		t.Errorf("%+v", formed)
	}
	for _, p := range procs {
		p.waitReady()
	}
	for id := 1; id <= 2; id++ {
		refuses(t, exitFault, []string{"cluster", "form", "--peer", addrs[id-1]}, fmt.Sprintf("server %d belongs to cluster %v already", id, formed.Cluster))
	}
	if line, _, _ := strings.Cut(status(1), " | "); !strings.HasSuffix(line, ", cluster "+formed.Cluster.String()) {
		t.Errorf("%q", line)
	}
	serve(3).waitReady()
	waitFor(t, "the third one's vote", func() bool {
		s := ask(t, "status", "--peer", addrs[0])
		return s.Cluster == formed.Cluster && len(s.Members) == 3 && !s.Members[2].Observer
	})

	// All of that has left traces, and so does what is asked by way of a client port.
	lead := ask(t, "status", "--peer", addrs[0]).Leader
	ask(t, "remove", "3", "--server", client(1), "--yes")
	traced := func(id uint64, change, result string) {
		t.Helper()
		waitFor(t, result, func() bool { // the writer of the audit log may be slow
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(id)))
			check1(t, err)
			return strings.Contains(string(text), "user=127.0.0.1\tip=127.0.0.1\toperation=reconfig\t"+result)
		})
		said := regexp.MustCompile(`level=WARN msg=".*members.*" change="` + change + `" from=127\.0\.0\.1:\d+ user=127\.0\.0\.1`)
		if lines := procs[id-1].lines(); !slices.ContainsFunc(lines, said.MatchString) {
			t.Errorf("member %d does not say %q: %q", id, change, lines)
		}
	}
	traced(1, "form the cluster", "result=failure")
	traced(2, "form the cluster", "znode=/zookeeper/config\tresult=success")
	traced(lead, "remove server 3", "znode=/zookeeper/config\tresult=success")
}

// TestClusterStatusOfOthers: cluster status says which members belong to another cluster, and
// which have another state than the leader, whichever member is asked.
func TestClusterStatusOfOthers(t *testing.T) {
	t.Parallel()
	peers, list := map[uint64]string{}, []lockkeeper.Peer{}
	for i, port := range freePorts(t, 3) {
		peers[uint64(i+1)] = fmt.Sprintf("127.0.0.1:%d", port)
		list = append(list, lockkeeper.Peer{ID: uint64(i + 1), Addr: peers[uint64(i+1)]})
	}
	open := func(id uint64, list []lockkeeper.Peer) *lockkeeper.Server {
		var s *lockkeeper.Server
		waitFor(t, "the port", func() bool { // a process that another test is starting may have a copy of its listener
			var err error
			if s, err = lockkeeper.Open(lockkeeper.Config{ID: id, Peers: list}); !errors.Is(err, syscall.EADDRINUSE) {
				check1(t, err)
			}
			return err == nil
		})
		t.Cleanup(func() { check1(t, s.Close()) })
		return s
	}
	servers := map[uint64]*lockkeeper.Server{}
	for id := range uint64(3) {
		servers[id+1] = open(id+1, list)
	}
	var lead uint64
	waitFor(t, "a leader with two followers", func() bool {
		lead = servers[1].Status().Cluster.Leader
		return lead != 0 && servers[lead].Status().Cluster.Followers == 2
	})
	bad := lead%3 + 1
	good := 6 - lead - bad
	line := func(id, by uint64) string {
		_, stdout, _ := call(nil, "cluster", "status", "--peer", peers[by])
		if lines := strings.Split(stdout, "\n"); len(lines) == 7 {
			return lines[id+1]
		}
		return stdout
	}
	testhooks.Of(servers[bad]).View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: 1 << 40}) })
	c := rawtest.Connect(t, func() (net.Conn, error) { return servers[lead].Dial("", "", time.Minute) })
	_, err := c.Create("/x", nil, 0)
	check1(t, err)
	<-servers[bad].Done()
	if err := servers[bad].Err(); !errors.Is(err, lockkeeper.ErrDiffers) {
		t.Error(err)
	}
	wrong := func() string { // what of the answers is wrong
		lead := servers[good].Status().Cluster.Leader // another one may lead by now, and have seen it at another entry
		if lead == 0 {
			return "nobody leads"
		}
		differs := servers[lead].Status().Cluster.Differs
		if len(differs) != 1 || differs[0].ID != bad {
			return fmt.Sprintf("the leader says %+v", differs)
		}
		says := fmt.Sprintf("its state differs at entry %d", differs[0].Index)
		for _, by := range []uint64{6 - bad - good, good} {
			if s := ask(t, "status", "--peer", peers[by]); len(s.Differs) != 1 || s.Differs[0] != (election.Difference{ID: bad, Index: differs[0].Index}) {
				return fmt.Sprintf("asked server %d: %+v", by, s.Differs)
			}
			for id := range peers {
				if got := line(id, by); strings.HasSuffix(got, says) != (id == bad) {
					return fmt.Sprintf("asked server %d: %q", by, got)
				}
			}
		}
		return ""
	}
	waitFor(t, "what differs", func() bool {
		why := wrong()
		if why != "" {
			t.Log(why)
			time.Sleep(100 * time.Millisecond)
		}
		return why == ""
	})

	check1(t, servers[bad].Close())
	other := open(bad, []lockkeeper.Peer{{ID: bad, Addr: peers[bad]}})
	waitFor(t, "the other cluster's leader", func() bool { return other.Status().Role == lockkeeper.RoleLeader })
	for _, by := range []uint64{lead, good} {
		if got, of := line(bad, by), servers[by].Status().Cluster.ID; !strings.Contains(got, "belongs to cluster "+other.Status().Cluster.ID) || other.Status().Cluster.ID == of {
			t.Errorf("asked server %d: %q", by, got)
		}
		if got := line(good, by); strings.Contains(got, "cluster") {
			t.Errorf("asked server %d: %q", by, got)
		}
	}
}

// TestClusterZooCfg configures a cluster with three zoo.cfg files and TLS between the
// members. One of the files has its servers in a dynamic configuration file.
func TestClusterZooCfg(t *testing.T) {
	t.Parallel()
	dir, ports, ca := t.TempDir(), freePorts(t, 6), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	pem, _ := testkit.WritePair(t, ca.Peer(t), dir, "peer.pem", "peer.pem")
	var servers []string
	for i, role := range []string{"", ":participant;127.0.0.1:" + fmt.Sprint(ports[4]), ":observer"} {
		servers = append(servers, fmt.Sprintf("server.%d=127.0.0.1:%d:3888%s", i+1, ports[i], role))
	}
	dynamic := filepath.Join(dir, "zoo.cfg.dynamic")
	check1(t, os.WriteFile(dynamic, []byte(strings.Join(append(servers, "version=100000000"), "\n")), 0o600))
	var members []*process
	for i := range 3 {
		data := filepath.Join(dir, fmt.Sprint(i+1))
		check1(t, os.Mkdir(data, 0o700))
		check1(t, os.WriteFile(filepath.Join(data, "myid"), fmt.Appendf(nil, "%d\n", i+1), 0o600))
		lines := append([]string{"tickTime=500", "initLimit=10", "syncLimit=5", "dataDir=" + data, "sslQuorum=true",
			"ssl.quorum.keyStore.location=" + pem, "ssl.quorum.trustStore.location=" + authority}, servers...)
		switch i {
		case 0:
			lines = append(lines[:len(lines)-3], "dynamicConfigFile="+dynamic, "clientPort="+fmt.Sprint(ports[3]), "clientPortAddress=127.0.0.1", "quorumListenOnAllIPs=true")
		case 2:
			lines = append(lines, "peerType=observer", "clientPort="+fmt.Sprint(ports[5]), "clientPortAddress=127.0.0.1")
		}
		path := zooCfg(t, lines...)
		code, _, stderr := call(nil, "serve", "--config", path, "--join", "a:1")
		if oneError(t, stderr, "--join: not together with server.N in "); code != exitUsage {
			t.Errorf("with --join: exit code %d", code)
		}
		members = append(members, start(t, nil, "serve", "--config", path))
	}
	for i, p := range members {
		p.waitReady()
		if _, err := p.connect().Create(fmt.Sprintf("/by%d", i), nil, 0); err != nil {
			t.Error(err)
		}
		for _, l := range p.lines() {
			if strings.Contains(l, "unknown key") {
				t.Errorf("every key is known, but: %s", l)
			}
		}
	}
	if want := fmt.Sprintf("127.0.0.1:%d", ports[4]); members[1].addr != want {
		t.Errorf("server 2 serves clients on %s, not %s", members[1].addr, want)
	}
	s := ask(t, "status", "--peer", fmt.Sprintf("127.0.0.1:%d", ports[2]), "--peer-tls-cert", pem, "--peer-tls-ca", authority)
	if s.Role != "observer" || len(s.Members) != 3 || s.Members[0].Observer || !s.Members[2].Observer {
		t.Errorf("%+v", s)
	}
	c := members[2].connect()
	if _, err := c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf("server.1=127.0.0.1:%d:3888:participant\nserver.2=127.0.0.1:%d:3888:participant;127.0.0.1:%d\nserver.3=127.0.0.1:%d:3888:observer\nversion=", ports[0], ports[1], ports[4], ports[2])
	waitFor(t, "the servers as the files describe them", func() bool {
		r, err := c.Get("/zookeeper/config", false)
		return err == nil && strings.HasPrefix(string(r.Data), want)
	})
	status := []string{"cluster", "status", "--peer", fmt.Sprintf("127.0.0.1:%d", ports[0])}
	refuses(t, exitFault, status, fmt.Sprintf("127.0.0.1:%d speaks TLS: ask it with --peer-tls-cert and --peer-tls-ca\n", ports[0]))
	refuses(t, exitFault, append(status, "--peer-tls-cert", pem, "--peer-tls-ca", testkit.NewCA(t).WriteCA(t, dir, "other.pem")), "127.0.0.1")
}

// TestPeerPortWithoutTLS: the command says so if a peer port does not speak TLS.
func TestPeerPortWithoutTLS(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	pem, _ := testkit.WritePair(t, ca.Peer(t), dir, "peer.pem", "peer.pem")
	peer := freeAddrs(t, 1)[0]
	start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--peers", "1="+peer).waitReady()
	refuses(t, exitFault, []string{"cluster", "status", "--peer", peer, "--peer-tls-cert", pem, "--peer-tls-ca", ca.WriteCA(t, dir, "ca.pem")}, peer+" does not speak TLS: ask it without --peer-tls-cert")
}

// TestClusterClientAddrs: the flags --peers and --peer-listen name addresses for clients, which
// /zookeeper/config shows.
func TestClusterClientAddrs(t *testing.T) {
	t.Parallel()
	ports := freePorts(t, 5)
	peer := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	peers := fmt.Sprintf("1=%s;2181,2=%s:observer;lock.example:2182", peer(0), peer(1))
	voter := start(t, nil, "serve", "--memory", "--listen", peer(3), "--id", "1", "--peers", peers)
	start(t, nil, "serve", "--memory", "--listen", peer(4), "--id", "2", "--peers", peers)
	voter.waitReady()
	start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--id", "3", "--observer", "--join", peer(0), "--peer-listen", peer(2)+";[::1]:2183").waitReady()
	waitFor(t, "the addresses", func() bool {
		_, stdout, _ := call(nil, "zk", "--server", peer(4), "config", "-c")
		return strings.HasSuffix(stdout, " 0.0.0.0:2181,lock.example:2182,[::1]:2183\n")
	})
	for _, args := range [][]string{
		{"serve", "--peers", "1=a:7000;"}, {"serve", "--peers", "1=a:7000;b"}, {"serve", "--peers", "1=a:7000;b:0"},
		{"serve", "--peer-listen", "a:7000;x:y"}, {"serve", "--join", "a:7000;2181"}, {"cluster", "add", "4=a:7000;2181"},
	} {
		refuses(t, exitUsage, args)
	}
}

// TestPrintStatus: each member has a line with what is wrong with it.
func TestPrintStatus(t *testing.T) {
	members := []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1", Observer: true}, {ID: 3, Addr: "c:1", Observer: true}, {ID: 4, Addr: "d:1", Observer: true}, {ID: 5, Addr: "e:1", Observer: true}, {ID: 6, Addr: "f:1", Observer: true}}
	for want, s := range map[string]*request.Status{
		`server 1 is leader, in term 3 at entry 9, zxid 0x5, digest d, cluster 00000000000000aa
ID  PEER PORT  CLIENT PORT  ROLE      ENTRY  PEER TLS  VERSION  STATE
1   a:1        a:2          leader    9      use       0.2      ok
2   b:1        b:2          looking   0      accept    0.2      in no cluster yet
3   c:1        -            follower  7      -         -        belongs to cluster 00000000000000bb
4   d:1        -            -         -      -         -        does not answer, its state differs at entry 8
5   e:1        -            follower  8      -         0.2      serves no clients
6   f:1        f:2          observer  9      -         0.2      waits for its vote
health: degraded: server 2 at b:1: in no cluster yet; server 3 at c:1: belongs to cluster 00000000000000bb; server 4 at d:1: does not answer, its state differs at entry 8; server 5 at e:1: serves no clients; server 6 at f:1: waits for its vote
`: {ID: 1, Role: "leader", Leader: 1, Term: 3, Index: 9, Zxid: 5, Digest: "d", Cluster: 0xaa, Formed: true, Data: true, Members: members, Differs: []election.Difference{{ID: 4, Index: 8}}},
		`server 2 is in no cluster yet, and has data without the id of a cluster
ID  PEER PORT  CLIENT PORT  ROLE      ENTRY  PEER TLS  VERSION  STATE
1   a:1        a:2          leader    9      use       0.2      belongs to cluster 00000000000000aa
2   b:1        b:2          looking   0      accept    0.2      in no cluster yet
3   c:1        -            follower  7      -         -        belongs to cluster 00000000000000bb
4   d:1        -            -         -      -         -        does not answer
5   e:1        -            follower  8      -         0.2      belongs to cluster 00000000000000aa
reason: one; two
health: no majority: server 1 at a:1: belongs to cluster 00000000000000aa; server 2 at b:1: in no cluster yet; server 3 at c:1: belongs to cluster 00000000000000bb; server 4 at d:1: does not answer; server 5 at e:1: belongs to cluster 00000000000000aa
`: {ID: 2, Role: "looking", Data: true, Configured: members[:5], Members: members[:1], Waiting: "one\ntwo"},
	} {
		x := clusterStatus{Status: s, Answers: []memberStatus{
			{ID: 1, Role: "leader", Leader: 1, Cluster: 0xaa, Index: 9, About: request.About{Version: "0.2", Serving: true, ClientPort: "a:2", SecurePort: "a:3", PeerTLS: "use"}},
			{ID: 2, Role: "looking", About: request.About{Version: "0.2", SecurePort: "b:2", PeerTLS: "accept"}},
			{ID: 3, Role: "follower", Leader: 1, Cluster: 0xbb, Index: 7},
			{ID: 5, Role: "follower", Leader: 1, Cluster: 0xaa, Index: 8, About: request.About{Version: "0.2"}},
			{ID: 6, Role: "observer", Leader: 1, Cluster: 0xaa, Index: 9, NoVote: "waits for its vote", About: request.About{Version: "0.2", Serving: true, ClientPort: "f:2"}},
		}}
		x.judge()
		var b strings.Builder
		check1(t, x.print(&b))
		if b.String() != want {
			t.Errorf("%s\nnot\n%s", b.String(), want)
		}
	}
}

// TestHealth: a cluster is well if all members are, and has a majority if enough voters follow
// the same leader, whether that one answers or not.
func TestHealth(t *testing.T) {
	members := []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1"}, {ID: 4, Addr: "d:1", Observer: true}}
	follows := func(id, leader uint64) memberStatus {
		return memberStatus{ID: id, Leader: leader, Cluster: 1, About: request.About{Serving: leader != 0}}
	}
	for name, x := range map[string]struct {
		answers []memberStatus
		want    health
	}{
		"all":                      {[]memberStatus{follows(1, 1), follows(2, 1), follows(3, 1), follows(4, 1)}, healthy},
		"without the observer":     {[]memberStatus{follows(1, 1), follows(2, 1), follows(3, 1)}, degraded},
		"without a follower":       {[]memberStatus{follows(1, 1), follows(2, 1), follows(4, 1)}, degraded},
		"without the leader":       {[]memberStatus{follows(2, 1), follows(3, 1), follows(4, 1)}, degraded},
		"one does not follow":      {[]memberStatus{follows(1, 1), follows(2, 1), follows(3, 0), follows(4, 1)}, degraded},
		"a voter and the observer": {[]memberStatus{follows(1, 1), follows(4, 1)}, noMajority},
		"two leaders":              {[]memberStatus{follows(1, 1), follows(2, 3), follows(4, 1)}, noMajority},
		"no leader":                {[]memberStatus{follows(1, 0), follows(2, 0), follows(3, 0), follows(4, 0)}, noMajority},
		"nobody":                   {nil, noMajority},
	} {
		s := clusterStatus{Status: &request.Status{Cluster: 1, Formed: true, Members: members}, Answers: x.answers}
		s.judge()
		if s.Health != x.want || (len(s.Problems) == 0) != (x.want == healthy) {
			t.Errorf("%s: %s, %q", name, s.Health, s.Problems)
		}
	}
}

// TestStatusFields: the help of cluster status names every field of its JSON.
func TestStatusFields(t *testing.T) {
	b, err := json.Marshal(&clusterStatus{
		Status:  &request.Status{Members: []proto.Peer{{}}, Configured: []proto.Peer{{}}, Waiting: "x", Differs: []election.Difference{{}}},
		Answers: []memberStatus{{}},
	})
	check1(t, err)
	fields := regexp.MustCompile(`"(\w+)":`).FindAllSubmatch(b, -1)
	if len(fields) < 30 {
		t.Errorf("%s", b)
	}
	for _, f := range fields {
		if !regexp.MustCompile(`\b` + string(f[1]) + `\b`).MatchString(statusHelp[strings.Index(statusHelp, "The JSON"):]) {
			t.Errorf("the help does not name %s", f[1])
		}
	}
}

// TestStatusOfPorts: a client port that is open on all addresses has the host of the peer port
// in the status, so that other machines can use it.
func TestStatusOfPorts(t *testing.T) {
	t.Parallel()
	peer := fmt.Sprintf("localhost:%d", testkit.Port(t))
	all := start(t, nil, "serve", "--memory", "--listen", ":0", "--peers", "1="+peer).waitReady()
	_, port, err := net.SplitHostPort(all.addr)
	check1(t, err)
	s := ask(t, "status", "--peer", peer)
	if want := (request.About{Version: lockkeeper.Version, Serving: true, ClientPort: "localhost:" + port, PeerTLS: "no"}); s.About != want {
		t.Errorf("%+v, not %+v", s.About, want)
	}
}
