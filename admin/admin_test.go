package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

var check = testkit.Check

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

// open starts a server, waits until it serves, and closes it at the end of the test.
func open(t testing.TB, cfg lockkeeper.Config) *lockkeeper.Server {
	t.Helper()
	s := must(lockkeeper.Open(cfg))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	await(t, s)
	return s
}

func await(t testing.TB, s *lockkeeper.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(t, s.Wait(ctx))
}

func inMemory(s *lockkeeper.Server) rawtest.Dialer {
	return func() (net.Conn, error) { return s.Dial("", "", time.Minute) }
}

// ask sends a request to a handler.
func ask(h http.Handler, path string) (status int, body string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// command returns the answer to a command.
func command(t testing.TB, h http.Handler, name string) (answer map[string]any) {
	t.Helper()
	status, body := ask(h, "/commands/"+name)
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil || status != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", name, status, err, body)
	}
	return answer
}

// TestCommands compares the answers to commands with what clients did.
func TestCommands(t *testing.T) {
	testkit.NoGoroutineLeft(t)
	dir := t.TempDir()
	s := open(t, lockkeeper.Config{ID: 7, DataDir: dir, TickTime: 500 * time.Millisecond, Limits: lockkeeper.Limits{MaxConnectionsPerAddress: 50}, ClientAddr: "127.0.0.1:0"})
	h := admin.New(s, admin.Options{ZooCfg: "tickTime=500\nssl.keyStore.password=hushpassword=hush\r\n#ssl.trustStore.password : hush\nssl.keyStore.passwordPath=/p\n DigestAuthenticationProvider.superDigest: super:x\n"})
	dial := func() (net.Conn, error) { return net.Dial("tcp", s.Addr().String()) }
	c, other := rawtest.Connect(t, dial), rawtest.Connect(t, inMemory(s))
	must(c.Create("/a", []byte("data"), 0))(t)
	must(other.Create("/a/e", nil, proto.FlagEphemeral))(t)
	must(c.Get("/a", true))(t)
	must(other.Get("/a", true))(t)
	zxid := must(other.Call(proto.OpPing, nil, nil))(t).Zxid
	mine, others := strconv.FormatInt(c.Session.SessionID, 10), strconv.FormatInt(other.Session.SessionID, 10)

	has := func(answer map[string]any, want map[string]any) {
		t.Helper()
		for name, w := range want {
			if got := answer[name]; fmt.Sprint(got) != fmt.Sprint(w) {
				t.Errorf("%v: %s is %v, not %v", answer["command"], name, got, w)
			}
		}
	}
	_, port, _ := net.SplitHostPort(s.Addr().String())
	has(command(t, h, "conf"), map[string]any{
		"command": "configuration", "error": nil, "client_port": port, "data_dir": dir, "data_log_dir": dir, "tick_time": 500,
		"max_client_cnxns": 50, "min_session_timeout": 1000, "max_session_timeout": 10000, "server_id": 7, "client_port_listen_backlog": -1,
	})
	answer := command(t, h, "connections")
	all := answer["connections"].([]any)
	if len(all) != 2 || len(answer["secure_connections"].([]any)) != 0 {
		t.Fatalf("connections: %v", answer)
	}
	has(all[0].(map[string]any), map[string]any{
		"remote_socket_address": c.Conn.LocalAddr(), "interest_ops": 1, "outstanding_requests": 0, "packets_received": 3, "packets_sent": 3,
		"session_id": mine, "last_operation": "GETD", "session_timeout": c.Session.Timeout, "last_cxid": 2,
	})
	has(all[1].(map[string]any), map[string]any{"session_id": others, "remote_socket_address": "pipe", "last_operation": "PING"})
	if brief := command(t, h, "stat")["connections"].([]any); len(brief) != 2 || len(brief[0].(map[string]any)) != 5 {
		t.Errorf("stats: %v", brief)
	}

	answer = command(t, h, "dump")
	has(answer, map[string]any{"session_id_to_ephemeral_paths": map[string]any{others: "[/a/e]"}})
	n := 0
	for at, ids := range answer["expiry_time_to_session_ids"].(map[string]any) {
		ms, err := strconv.ParseInt(at, 10, 64)
		if left := time.Until(time.UnixMilli(ms)); err != nil || left < -time.Minute || left > time.Minute {
			t.Errorf("a session expires at %q: %v", at, err)
		}
		n += len(ids.([]any))
	}
	if n != 2 {
		t.Errorf("dump: %v", answer)
	}
	both := []any{json.Number(mine), json.Number(others)}
	has(command(t, h, "wchc"), map[string]any{"session_id_to_watched_paths": map[string]any{mine: "[/a]", others: "[/a]"}})
	if got := command(t, h, "wchp")["path_to_session_ids"].(map[string]any)["/a"].([]any); len(got) != 2 || !slices.Contains(got, both[0]) || !slices.Contains(got, both[1]) {
		t.Errorf("watches by path: %v", got)
	}
	has(command(t, h, "wchs"), map[string]any{"num_connections": 2, "num_paths": 1, "num_total_watches": 2})
	if got := command(t, h, "dirs"); got["datadir_size"].(json.Number) == "0" {
		t.Errorf("dirs: %v", got)
	}
	answer = command(t, h, "srvr")
	has(answer, map[string]any{"command": "server_stats", "read_only": false, "node_count": 7, "proposal_stats": nil})
	has(answer["server_stats"].(map[string]any), map[string]any{
		"server_state": "standalone", "num_alive_client_connections": 2, "last_processed_zxid": zxid, "outstanding_requests": 0, "provider_null": false,
		"packets_sent": 7,
	})
	has(command(t, h, "mntr"), map[string]any{
		"server_state": "standalone", "num_alive_connections": 2, "znode_count": 7, "ephemerals_count": 1, "watch_count": 2, "global_sessions": 2,
	})
	has(command(t, h, "icfg"), map[string]any{
		"initial_configuration": "tickTime=500\nssl.keyStore.password=***\n#ssl.trustStore.password :***\nssl.keyStore.passwordPath=/p\n DigestAuthenticationProvider.superDigest:***\n",
	})
	has(command(t, h, "stmk?traceMask=500"), map[string]any{"command": "set_trace_mask", "tracemask": 500, "error": nil})
	has(command(t, h, "gtmk"), map[string]any{"command": "get_trace_mask", "tracemask": 500})
	has(command(t, h, "stmk?traceMask=x"), map[string]any{"error": "setTraceMask requires long traceMask argument, got x"})
	has(command(t, h, "isro"), map[string]any{"command": "is_read_only", "read_only": false})
	has(command(t, h, "lead"), map[string]any{"command": "leader", "error": "server is not initialized"})
	has(command(t, h, "env"), map[string]any{"command": "environment", "zookeeper.version": command(t, h, "mntr")["version"]})
	has(command(t, h, "ruok"), map[string]any{"command": "ruok", "error": nil})
	has(command(t, h, "voting_view"), map[string]any{"current_config": "map[]"})
	has(command(t, h, "zabstate"), map[string]any{"voting": false, "zabstate": ""})
	has(command(t, h, "hash"), map[string]any{"digests": "[]"})
	for i := range 130 {
		must(c.Create(fmt.Sprintf("/many%d", i), nil, 0))(t)
	}
	if digests := command(t, h, "hash")["digests"].([]any); len(digests) != 1 {
		t.Errorf("hash: %v", digests)
	}
	command(t, h, "crst")
	has(command(t, h, "cons")["connections"].([]any)[0].(map[string]any), map[string]any{"packets_received": 0, "last_operation": "NA", "last_cxid": -1})
	command(t, h, "srst")
	has(command(t, h, "mntr"), map[string]any{"packets_received": 0, "packets_sent": 0})
	for _, name := range []string{"nosuch", "snapshot", "restore", "last_snapshot", "observers", "system_properties", "conf/x"} {
		has(command(t, h, name), map[string]any{"command": name, "error": "Unknown command: " + name})
	}
	c.Close()
	other.Close()
}

// TestOlderLines: a line has only its own commands, and 3.4 none.
func TestOlderLines(t *testing.T) {
	for line, want := range map[string]map[string]bool{
		"3.4": {"ruok": false, "hash": false, "leader": false},
		"3.5": {"ruok": true, "stats": true, "hash": false, "leader": false},
		"3.6": {"ruok": true, "hash": true, "leader": true},
	} {
		h := admin.New(open(t, lockkeeper.Config{Features: lockkeeper.Features{BehaveAs: line}}), admin.Options{})
		_, index := ask(h, "/commands")
		for name, knows := range want {
			_, got := ask(h, "/commands/"+name)
			if strings.Contains(got, "Unknown command") == knows || strings.Contains(index, ">"+name+"<") != knows {
				t.Errorf("%s: %s: %s, in the list: %v", line, name, got, !knows)
			}
		}
	}
}

// TestLayout compares the text of answers with that of ZooKeeper 3.9.
func TestLayout(t *testing.T) {
	h := admin.New(open(t, lockkeeper.Config{}), admin.Options{})
	for path, want := range map[string]string{
		"/commands/leader":           "{\n  \"error\" : \"server is not initialized\",\n  \"command\" : \"leader\"\n}",
		"/commands/nosuch":           "{\n  \"command\" : \"nosuch\",\n  \"error\" : \"Unknown command: nosuch\"\n}",
		"/commands/cons":             "{\n  \"connections\" : [ ],\n  \"secure_connections\" : [ ],\n  \"command\" : \"connections\",\n  \"error\" : null\n}",
		"/commands/voting_view":      "{\n  \"current_config\" : { },\n  \"command\" : \"voting_view\",\n  \"error\" : null\n}",
		"/commands/get_trace_mask":   "{\n  \"tracemask\" : 306,\n  \"command\" : \"get_trace_mask\",\n  \"error\" : null\n}",
		"/commands/%22%3Cb%3E%0A%22": "{\n  \"command\" : \"\\\"<b>\\n\\\"\",\n  \"error\" : \"Unknown command: \\\"<b>\\n\\\"\"\n}",
	} {
		if _, got := ask(h, path); got != want {
			t.Errorf("%s: %s, not %s", path, got, want)
		}
	}
	for _, path := range []string{"/commands", "/commands/"} {
		if _, index := ask(h, path); !strings.HasPrefix(index, "<a href=\"/commands/configuration\">configuration</a>\n<br/>\n<a href=\"/commands/connection_stat_reset\">") {
			t.Errorf("%s: %s", path, index)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/commands/srst", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", w.Code)
	}
}

// members is a cluster in memory.
type members struct {
	net     *memnet.Network
	servers []*lockkeeper.Server
}

func host(i int) string { return fmt.Sprintf("host%d", i+1) }

func startMembers(t *testing.T, n int, change func(c *lockkeeper.Config)) *members {
	t.Helper()
	m := &members{net: memnet.New()}
	var peers []lockkeeper.Peer
	for i := range n {
		peers = append(peers, lockkeeper.Peer{ID: uint64(i + 1), Addr: host(i) + ":7000"})
	}
	for i := range n {
		c := lockkeeper.Config{ID: uint64(i + 1), Peers: peers, TickTime: 500 * time.Millisecond}
		*testhooks.In(&c) = testhooks.Hooks{Network: m.net.Host(host(i)), Memory: storage.NewMemory()}
		if change != nil {
			change(&c)
		}
		s := must(lockkeeper.Open(c))(t)
		t.Cleanup(func() { check(t, s.Close()) })
		m.servers = append(m.servers, s)
	}
	for _, s := range m.servers {
		await(t, s)
		testkit.Eventually(t, "vote of every member", func() bool {
			return !slices.ContainsFunc(s.Members(), func(p lockkeeper.Peer) bool { return p.Observer }) && len(s.Members()) == n
		})
	}
	return m
}

// roles returns the leader, and another member.
func (m *members) roles(t *testing.T) (leader, follower *lockkeeper.Server) {
	t.Helper()
	testkit.Eventually(t, "a leader with two followers", func() bool {
		for _, s := range m.servers {
			switch st := s.Status(); {
			case st.Role == lockkeeper.RoleLeader && st.Cluster.Followers == len(m.servers)-1:
				leader = s
			default:
				follower = s
			}
		}
		return leader != nil && follower != nil
	})
	return leader, follower
}

// TestCluster checks the answers that concern a cluster.
func TestCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, follower := m.roles(t)
		c := rawtest.Connect(t, inMemory(follower))
		must(c.Create("/e", nil, proto.FlagEphemeral))(t)
		must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
		lead := leader.Status()
		for _, s := range m.servers {
			testkit.Eventually(t, "leader's last entry", func() bool { return s.Status().State.Zxid == lead.State.Zxid })
			h, st := admin.New(s, admin.Options{}), s.Status()
			is := s == leader
			if got, want := command(t, h, "leader"), map[string]any{
				"is_leader": is, "leader_id": json.Number(fmt.Sprint(lead.ID)), "leader_ip": host(int(lead.ID) - 1), "command": "leader", "error": nil,
			}; !reflect.DeepEqual(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
			got := command(t, h, "zabstate")
			for name, want := range map[string]any{
				"myid": st.ID, "is_leader": is, "voting": true, "zabstate": "broadcast", "last_zxid": fmt.Sprintf("0x%x", st.State.Zxid),
				"zab_epoch": st.State.Zxid >> 32, "zab_counter": st.State.Zxid & 0xffffffff,
			} {
				if fmt.Sprint(got[name]) != fmt.Sprint(want) {
					t.Errorf("zabstate: %s is %v, not %v", name, got[name], want)
				}
			}
			if addr := got["quorum_address"].(map[string]any)["one"]; addr != host(int(st.ID)-1)+":7000" {
				t.Errorf("quorum_address: %v", addr)
			}
			view := command(t, h, "voting_view")["current_config"].(map[string]any)
			if len(view) != 3 || fmt.Sprint(view["2"].(map[string]any)["server_addresses"]) != "[host2:7000]" {
				t.Errorf("voting_view: %v", view)
			}
			if _, has := command(t, h, "srvr")["proposal_stats"]; has != is {
				t.Errorf("proposal_stats of leader %v: %v", is, has)
			}
			if n := len(command(t, h, "dump")["expiry_time_to_session_ids"].(map[string]any)); (n > 0) != is {
				t.Errorf("%d times of expiry on leader %v", n, is)
			}
		}
	})
}

// TestProbes follows a member through its life: alone, serving, cut off, closed.
func TestProbes(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, func(c *lockkeeper.Config) { c.Features.ReadOnly = readOnly })
			leader, _ := m.roles(t)
			h := admin.New(leader, admin.Options{})
			probes := func(live, ready int, says string) {
				t.Helper()
				status, body := ask(h, "/healthz")
				readyStatus, readyBody := ask(h, "/readyz")
				if status != live || readyStatus != ready || !strings.Contains(body+readyBody, says) {
					t.Errorf("healthz %d %q, readyz %d %q", status, body, readyStatus, readyBody)
				}
			}
			probes(200, 200, "ok")
			m.net.Cut(host(int(leader.Status().ID)-1), host(int(leader.Status().ID)%3), true)
			m.net.Cut(host(int(leader.Status().ID)-1), host(int(leader.Status().ID+1)%3), true)
			m.net.Cut(host(int(leader.Status().ID)%3), host(int(leader.Status().ID)-1), true)
			m.net.Cut(host(int(leader.Status().ID+1)%3), host(int(leader.Status().ID)-1), true)
			time.Sleep(time.Minute)
			if readOnly {
				probes(200, 503, "read-only")
				if got := command(t, h, "isro"); got["read_only"] != true {
					t.Errorf("%v", got)
				}
			} else {
				probes(200, 503, "not serving")
				for name, want := range map[string]any{
					"srvr": "This ZooKeeper instance is not currently serving requests", "mntr": "This ZooKeeper instance is not currently serving requests",
					"isro": "This ZooKeeper instance is not currently serving requests", "gtmk": nil, "zabstate": nil, "env": nil,
				} {
					if got := command(t, h, name)["error"]; got != want {
						t.Errorf("%s without a majority: %v", name, got)
					}
				}
			}
			check(t, leader.Close())
			probes(503, 503, "closed")
			for _, name := range []string{"srvr", "gtmk"} {
				if got := command(t, h, name)["error"]; got != "This ZooKeeper instance is not currently serving requests" {
					t.Errorf("%s of a closed server: %v", name, got)
				}
			}
		})
	}
}

// TestForbiddenWords: what the configuration allows to clients does not limit operators.
func TestForbiddenWords(t *testing.T) {
	s := open(t, lockkeeper.Config{Features: lockkeeper.Features{FourLetterWords: []string{"srvr"}}})
	h := admin.New(s, admin.Options{})
	if got := command(t, h, "monitor"); got["error"] != nil || got["znode_count"] == nil {
		t.Errorf("%v", got)
	}
	if status, text := ask(h, "/metrics"); status != 200 || !strings.Contains(text, "\nlockkeeper_mntr_answered 1\n") || !strings.Contains(text, "\nznode_count ") {
		t.Errorf("%d, %s", status, text)
	}
	if text := rawtest.Word(t, inMemory(s), "mntr"); !strings.Contains(text, "not in the whitelist") {
		t.Errorf("a client gets %q", text)
	}
}

// TestNoRoom checks that operators see a server that is at its limits, and that what they see
// does not count them.
func TestNoRoom(t *testing.T) {
	s := open(t, lockkeeper.Config{Limits: lockkeeper.Limits{MaxConnections: 1, MaxSessions: 1}})
	rawtest.Connect(t, inMemory(s))
	h := admin.New(s, admin.Options{})
	defer h.Close()
	before := s.Status()
	for _, c := range []string{"conf", "cons", "dump", "mntr", "srvr", "stat", "wchs", "wchc", "wchp"} {
		if got := command(t, h, c); got["error"] != nil {
			t.Errorf("%s: %v", c, got)
		}
	}
	if complete, _ := value(scrape(t, h), "lockkeeper_lock_metrics_complete"); complete != 1 {
		t.Error("locks are not measured")
	}
	browse(t, h).until("the client's session", func(s *consoleState) bool { return len(s.Sessions) == 1 })
	ask(h, "/console/znode?path=/")
	after := s.Status()
	if after.Clients.Requests != before.Clients.Requests || after.Clients.Connections != 1 || after.State.Sessions != 1 || after.Clients.Watches != 0 {
		t.Errorf("%+v", after)
	}
}

// goroutines returns how many goroutines package admin and its test run. Those of the server come and
// go by themselves.
func goroutines() int {
	synctest.Wait()
	buf := make([]byte, 1<<20)
	n := 0
	for stack := range bytes.SplitSeq(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
		if bytes.Contains(stack, []byte("lockkeeper/admin")) {
			n++
		}
	}
	return n
}

// TestClose checks that a handler leaves nothing behind although its server goes on, and that its
// streams end.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(lockkeeper.Open(lockkeeper.Config{}))(t)
		await(t, s)
		h := admin.New(s, admin.Options{})
		unused := admin.New(s, admin.Options{})
		unused.Close()
		before := goroutines()
		scrape(t, h)
		c := admin.NewCollector(s)
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		must(registry.Gather())(t)
		b := browse(t, h)
		b.next()
		if n := goroutines(); n < before+4 { // two meters, the stream, and the browser
			t.Errorf("%d goroutines, %d at first", n, before)
		}
		for range 2 {
			h.Close()
			c.Close()
		}
		for {
			if _, err := b.body.ReadString('\n'); err != nil {
				break // the stream has ended
			}
		}
		b.stop()
		if n := goroutines(); n > before {
			buf := make([]byte, 1<<16)
			t.Errorf("%d goroutines, %d at first:\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
		for _, path := range []string{"/metrics", "/console/events", "/healthz", "/"} {
			if status, _ := ask(h, path); status != http.StatusServiceUnavailable {
				t.Errorf("%s of a closed handler: %d", path, status)
			}
		}
		for _, f := range must(registry.Gather())(t) { // without the gauges of locks
			if f.GetName() == "lockkeeper_locks_held" {
				t.Error("a closed collector measures locks")
			}
		}
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines, %d at first", n, before)
		}
		check(t, s.Close())
	})
}

// TestProtect checks who is let in.
func TestProtect(t *testing.T) {
	inner := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") })
	open, closed := admin.Protect(inner, ""), admin.Protect(inner, "s3cret")
	at := func(addr string) context.Context {
		return context.WithValue(context.Background(), http.LocalAddrContextKey, must(net.ResolveTCPAddr("tcp", addr))(t))
	}
	local, public := at("127.0.0.1:80"), at("192.0.2.1:80")
	for _, x := range []struct {
		h      http.Handler
		ctx    context.Context
		path   string
		host   string
		header [2]string
		want   int
	}{
		{closed, public, "/metrics", "a", [2]string{"Authorization", "Bearer s3cret"}, 200},
		{closed, public, "/metrics", "a", [2]string{}, 401},
		{closed, local, "/metrics", "localhost", [2]string{}, 401},
		{closed, public, "/metrics", "a", [2]string{"Authorization", "Bearer "}, 401},
		{closed, public, "/metrics", "a", [2]string{"Authorization", "Bearer s3cre"}, 401},
		{closed, public, "/metrics", "a", [2]string{"Authorization", "s3cret"}, 401},
		{closed, public, "/healthz", "a", [2]string{}, 200},
		{closed, public, "/readyz", "a", [2]string{}, 200},
		{closed, public, "/readyz/", "a", [2]string{}, 401},
		{open, local, "/metrics", "127.0.0.1:8080", [2]string{}, 200},
		{open, local, "/metrics", "[::1]:8080", [2]string{}, 200},
		{open, local, "/metrics", "::1", [2]string{}, 200},
		{open, local, "/metrics", "LocalHost:8080", [2]string{}, 200},
		{open, local, "/metrics", "x.localhost", [2]string{}, 200},
		{open, local, "/metrics", "evil.example:8080", [2]string{}, 403},
		{open, local, "/metrics", "localhost.evil.example", [2]string{}, 403},
		{open, local, "/healthz", "evil.example", [2]string{}, 200},
		{open, local, "/metrics", "", [2]string{}, 200}, // HTTP/1.0
		{open, public, "/metrics", "lockkeeper-0.lockkeeper", [2]string{}, 200},
		{open, local, "/commands/srst", "127.0.0.1:8080", [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Sec-Fetch-Site", "same-site"}, 403},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Sec-Fetch-Site", "same-origin"}, 200},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Sec-Fetch-Site", "none"}, 200},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Origin", "https://evil.example"}, 403}, // an old browser
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Origin", "http://localhost:9"}, 403},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Origin", "null"}, 403},
		{open, local, "/commands/srst", "localhost:8080", [2]string{"Origin", "http://localhost:8080"}, 200},
		{open, public, "/metrics", "lockkeeper-0.lockkeeper", [2]string{"Origin", "https://evil.example"}, 403},
	} {
		r := httptest.NewRequestWithContext(x.ctx, http.MethodGet, x.path, nil)
		if r.Host = x.host; x.header[0] != "" {
			r.Header.Set(x.header[0], x.header[1])
		}
		w := httptest.NewRecorder()
		x.h.ServeHTTP(w, r)
		if w.Code != x.want || (w.Body.String() == "in") != (x.want == 200) {
			t.Errorf("%s at %s with %v: %d %s", x.path, x.host, x.header, w.Code, w.Body)
		}
	}
}
