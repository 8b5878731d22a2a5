package admin_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// scrape returns the metrics of a server, and fails the test unless promtool's rules accept
// them.
func scrape(t *testing.T, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if kind := w.Header().Get("Content-Type"); w.Code != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Fatalf("status %d, %s: %s", w.Code, kind, w.Body)
	}
	for _, p := range must(promlint.New(bytes.NewReader(w.Body.Bytes())).Lint())(t) {
		t.Errorf("promtool check metrics: %s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return must(parser.TextToMetricFamilies(bytes.NewReader(w.Body.Bytes())))(t)
}

// value returns the value of a metric, and false if it is not there.
func value(all map[string]*dto.MetricFamily, name string, label ...string) (float64, bool) {
	for _, m := range all[name].GetMetric() {
		found := true
		for i := 0; i < len(label); i += 2 {
			found = found && slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == label[i] && l.GetValue() == label[i+1] })
		}
		if found {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue(), true
		}
	}
	return 0, false
}

// TestMetrics compares the metrics with Status and with the word mntr, on every kind of
// server. Each number of mntr must be there.
func TestMetrics(t *testing.T) {
	compare := func(t *testing.T, s *lockkeeper.Server) {
		all := scrape(t, admin.New(s, admin.Options{}))
		for key, text := range rawtest.Counts(t, rawtest.Word(t, inMemory(s), "mntr")) {
			want, err := strconv.ParseFloat(text, 64)
			if err != nil {
				continue
			}
			labels := []string(nil)
			if namespace, rest, ok := strings.Cut(key, "_quota_"); ok {
				key, labels = "quota_"+rest, []string{"key", namespace}
			}
			if rest, ok := strings.CutPrefix(key, "cnt_"); ok {
				key = rest + "_count"
			} else if rest, ok := strings.CutPrefix(key, "sum_"); ok {
				key = rest + "_sum"
			}
			got, ok := value(all, key, labels...)
			switch {
			case !ok && slices.Contains([]string{"avg_election_time", "avg_fsynctime", "avg_snapshottime"}, key): // ZooKeeper's provider has a summary
			case !ok:
				t.Errorf("%s: there is no %s%v", s.Role(), key, labels)
			case slices.Contains([]string{"uptime", "leader_uptime", "connection_drop_count", "non_mtls_local_conn_count", "open_file_descriptor_count", "packets_received", "bytes_received_count"}, key):
				// Time, the process, and what words count themselves.
			case key == "num_alive_connections" && got == want-1: // without the one that sent the word
			case got != want:
				t.Errorf("%s: %s%v is %v, not %v", s.Role(), key, labels, got, want)
			}
		}
		st := s.Status()
		want := map[string]float64{
			"lockkeeper_serving": 1, "lockkeeper_read_only": 0, "lockkeeper_mntr_answered": 1,
			"lockkeeper_raft_term": float64(st.State.Term), "lockkeeper_raft_applied_index": float64(st.State.Index), "lockkeeper_sessions_expired_total": float64(st.Clients.Expired),
		}
		if st.Role != lockkeeper.RoleStandalone {
			want["lockkeeper_leader_id"] = float64(st.Cluster.Leader)
		}
		for name, w := range want {
			if got, ok := value(all, name); !ok || got != w {
				t.Errorf("%s: %s is %v %v, not %v", st.Role, name, got, ok, w)
			}
		}
		if got, ok := value(all, "lockkeeper_cluster_info", "id", st.Cluster.ID); !ok || got != 1 || len(all["lockkeeper_cluster_info"].Metric) != 1 {
			t.Errorf("%s: lockkeeper_cluster_info of %q is %v %v", st.Role, st.Cluster.ID, got, ok)
		}
		for _, m := range st.Cluster.Members {
			if got, ok := value(all, "lockkeeper_member_differs_index", "member", fmt.Sprint(m.ID)); ok != (st.Role == lockkeeper.RoleLeader && m.ID != st.ID) || got != 0 {
				t.Errorf("%s %d: lockkeeper_member_differs_index of %d is %v %v", st.Role, st.ID, m.ID, got, ok)
			}
		}
		for _, role := range []string{"standalone", "leader", "follower", "observer", "looking"} {
			if got, ok := value(all, "lockkeeper_role", "role", role); !ok || (got == 1) != (role == st.Role.String()) {
				t.Errorf("%s: lockkeeper_role of %s is %v %v", st.Role, role, got, ok)
			}
		}
		if got, ok := value(all, "lockkeeper_leader_contacts", "type", "voter"); ok != (st.Role == lockkeeper.RoleLeader) || ok && got != 2 {
			t.Errorf("%s: in contact with %v voters, %v", st.Role, got, ok)
		}
		if got, ok := value(all, "lockkeeper_members", "type", "voter"); ok != (st.Role != lockkeeper.RoleStandalone) || ok && got != 3 {
			t.Errorf("%s: %v voters, %v", st.Role, got, ok)
		}
		if _, ok := value(all, "go_goroutines"); !ok {
			t.Error("no metrics of the process")
		}
	}
	t.Run("standalone", func(t *testing.T) {
		s := open(t, lockkeeper.Config{DataDir: t.TempDir(), Features: lockkeeper.Features{EnforceQuota: true}})
		c := rawtest.Connect(t, inMemory(s))
		must(c.Create("/app_quota_x", nil, 0))(t)
		rawtest.SetQuota(t, c, "countHardLimit=1,bytes=1000")
		must(c.Get("/", true))(t)
		compare(t, s)
		if got, ok := value(scrape(t, admin.New(s, admin.Options{})), "lockkeeper_store_size_bytes"); !ok || got == 0 {
			t.Errorf("the data directory has %v bytes, %v", got, ok)
		}
		free, there := value(scrape(t, admin.New(s, admin.Options{})), "lockkeeper_data_disk_free_bytes")
		total, _ := value(scrape(t, admin.New(s, admin.Options{})), "lockkeeper_data_disk_size_bytes")
		if known := slices.Contains([]string{"linux", "darwin", "windows"}, runtime.GOOS); there != known || known && (free <= 0 || free > total) {
			t.Errorf("%v bytes of %v are free, %v", free, total, there)
		}
		if _, there := value(scrape(t, admin.New(open(t, lockkeeper.Config{}), admin.Options{})), "lockkeeper_data_disk_free_bytes"); there {
			t.Error("a server without a data directory says how much room there is")
		}
		h := admin.New(s, admin.Options{})
		scrape(t, h) // opens a session
		before := s.Stats()
		for i := range 3 {
			must(c.Create(fmt.Sprintf("/work-%d", i), nil, 0))(t)
		}
		all, w := scrape(t, h), s.Stats()
		for name, want := range map[string]int64{"lockkeeper_proposed_entries_total": before.Entries + 3, "lockkeeper_proposed_commands_total": before.Commands + 3, "lockkeeper_raft_commit_index": int64(before.Commit) + 3} {
			if got, ok := value(all, name); !ok || got != float64(want) {
				t.Errorf("%s is %v %v, not %d", name, got, ok, want)
			}
		}
		writes := all["lockkeeper_log_write_seconds"].GetMetric()[0].GetHistogram()
		if n := before.LogWrites.Count + 3; writes.GetSampleCount() != uint64(n) || writes.GetSampleSum() != w.LogWrites.Sum.Seconds() || len(writes.GetBucket()) != len(w.LogWrites.Buckets)+1 { // and one without a bound
			t.Errorf("writes to the log: %v, want %d in %v", writes, n, w.LogWrites.Sum)
		}
		waiter := rawtest.Connect(t, inMemory(s))
		must(c.Create("/lock-0000000001", nil, 0))(t)
		must(waiter.Exists("/lock-0000000001", true))(t)
		if err := c.Delete("/lock-0000000001"); err != nil {
			t.Fatal(err)
		}
		must(waiter.Get("/", false))(t)
		if h := scrape(t, admin.New(s, admin.Options{}))["lockkeeper_handover_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 {
			t.Errorf("handovers: %v, want 1", h)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, nil)
			m.roles(t)
			for _, s := range m.servers {
				c := rawtest.Connect(t, inMemory(s))
				must(c.Create(fmt.Sprintf("/of-%d", s.Status().ID), nil, proto.FlagEphemeral))(t)
				synctest.Wait()
				compare(t, s)
			}
		})
	})
}

// TestMetricsWithoutCluster: a server that is in no cluster yet has no id.
func TestMetricsWithoutCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := lockkeeper.Config{ID: 1, Peers: []lockkeeper.Peer{{ID: 1, Addr: host(0) + ":7000"}, {ID: 2, Addr: host(1) + ":7000"}}}
		testhooks.In(&cfg).Network = memnet.New().Host(host(0))
		s := must(lockkeeper.Open(cfg))(t)
		defer s.Close()
		time.Sleep(time.Minute)
		all := scrape(t, admin.New(s, admin.Options{}))
		if _, ok := all["lockkeeper_cluster_info"]; ok || s.Status().Cluster.ID != "" {
			t.Errorf("it is of cluster %q: %v", s.Status().Cluster.ID, all["lockkeeper_cluster_info"])
		}
	})
}

// TestTwoServers checks that the handlers of two servers in one process do not share
// metrics.
func TestTwoServers(t *testing.T) {
	a, b := open(t, lockkeeper.Config{}), open(t, lockkeeper.Config{})
	must(rawtest.Connect(t, inMemory(a)).Create("/a", nil, 0))(t)
	inA, _ := value(scrape(t, admin.New(a, admin.Options{})), "znode_count")
	inB, _ := value(scrape(t, admin.New(b, admin.Options{})), "znode_count")
	if inA != inB+1 {
		t.Errorf("%v and %v znodes", inA, inB)
	}
}

// TestReaders reads mntr and srvr as tools do that are often pointed at ZooKeeper: the
// receiver "zookeeper" of the OpenTelemetry Collector, Telegraf's input of that name, Zabbix' template "Zookeeper by HTTP", and the
// fields of srvr that scripts cut out.
func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, _ := m.roles(t)
		for _, s := range m.servers {
			c := rawtest.Connect(t, inMemory(s))
			must(c.Create(fmt.Sprintf("/of-%d", s.Status().ID), []byte("x"), proto.FlagEphemeral))(t)
			must(c.Get("/", true))(t)
			synctest.Wait()
			collector(t, s, s == leader)
			telegraf(t, s)
			zabbix(t, s, s == leader)
			srvr(t, s)
		}
	})
}

// sent sends a word and a newline, as both tools do, and returns the lines of the answer
// when the server does not count the connection any more.
func sent(t *testing.T, s *lockkeeper.Server, word string) (lines []string) {
	t.Helper()
	nc := must(inMemory(s)())(t)
	defer nc.Close()
	go fmt.Fprintf(nc, "%s\n", word) // ends with the connection
	for r := bufio.NewScanner(nc); r.Scan(); {
		lines = append(lines, r.Text())
	}
	synctest.Wait()
	return lines
}

// collector reads mntr with the receiver's pattern, and ruok. Values that are not whole
// numbers are skipped, as the receiver does.
func collector(t *testing.T, s *lockkeeper.Server, leader bool) {
	t.Helper()
	form := regexp.MustCompile(`(^zk_\w+)\s+([\w\.\-]+)`)
	values := map[string]int64{}
	texts := map[string]string{}
	for _, line := range sent(t, s, "mntr") {
		parts := form.FindStringSubmatch(line)
		if len(parts) != 3 {
			t.Errorf("the collector would log an unexpected line: %q", line)
			continue
		}
		if n, err := strconv.ParseInt(parts[2], 10, 64); err == nil {
			values[parts[1]] = n
		} else {
			texts[parts[1]] = parts[2]
		}
	}
	st := s.Status()
	want := map[string]int64{
		"zk_znode_count": int64(st.State.Znodes) + 1, "zk_ephemerals_count": int64(st.State.Ephemerals), "zk_watch_count": int64(st.Clients.Watches),
		"zk_approximate_data_size": st.State.DataBytes, "zk_outstanding_requests": 0, "zk_num_alive_connections": int64(st.Clients.Connections) + 1,
		"zk_packets_received": st.Clients.Requests, "zk_packets_sent": st.Clients.Replies,
	}
	present := []string{"zk_min_latency", "zk_max_latency", "zk_open_file_descriptor_count", "zk_max_file_descriptor_count"}
	if leader {
		want["zk_synced_followers"], want["zk_pending_syncs"] = 2, 0
	}
	for key, w := range want {
		if got, ok := values[key]; !ok || got != w {
			t.Errorf("the collector reads %s as %d, %v, not %d", key, got, ok, w)
		}
	}
	for _, key := range present {
		if _, ok := values[key]; !ok {
			t.Errorf("the collector finds no whole number in %s", key)
		}
	}
	if texts["zk_server_state"] != st.Role.String() || !strings.HasPrefix(texts["zk_version"], "3.9.") {
		t.Errorf("the collector reads server.state %q, zk.version %q", texts["zk_server_state"], texts["zk_version"])
	}
	if _, ok := texts["zk_avg_latency"]; !ok { // a decimal number since ZooKeeper 3.6, which the collector skips
		t.Errorf("zk_avg_latency is not a decimal number")
	}
	if got := sent(t, s, "ruok"); len(got) == 0 || got[0] != "imok" {
		t.Errorf("the collector reads ruok as %q", got)
	}
}

// telegraf reads mntr with Telegraf's pattern. A line that does not match makes Telegraf
// drop the whole answer.
func telegraf(t *testing.T, s *lockkeeper.Server) {
	t.Helper()
	form := regexp.MustCompile(`^zk_(\w[\w\.\-]*)\s+([\w\.\-]+)`)
	fields, state := map[string]any{}, ""
	for _, line := range sent(t, s, "mntr") {
		parts := form.FindStringSubmatch(line)
		if len(parts) != 3 {
			t.Errorf("Telegraf would drop the answer because of %q", line)
			continue
		}
		n, err := strconv.ParseInt(parts[2], 10, 64)
		switch {
		case parts[1] == "server_state":
			state = parts[2]
		case err == nil:
			fields[parts[1]] = n
		default:
			fields[parts[1]] = parts[2]
		}
	}
	if state != s.Role().String() {
		t.Errorf("Telegraf's tag state is %q", state)
	}
	// InfluxDB refuses a field that is sometimes a number and sometimes a text.
	for name := range fields {
		_, whole := fields[name].(int64)
		if text := slices.Contains([]string{"version", "peer_state", "avg_latency", "connection_drop_probability", "avg_election_time", "avg_fsynctime", "avg_snapshottime"}, name); whole == text {
			t.Errorf("Telegraf's field %s is %v", name, fields[name])
		}
	}
	if fields["znode_count"] != int64(s.Status().State.Znodes)+1 {
		t.Errorf("Telegraf reads znode_count as %v", fields["znode_count"])
	}
}

// zabbix reads the command monitor as Zabbix's template "Zookeeper by HTTP" does. Its items for diff_count, snap_count
// and revalidate_count stay without a value.
func zabbix(t *testing.T, s *lockkeeper.Server, leader bool) {
	t.Helper()
	all := command(t, admin.New(s, admin.Options{}), "monitor")
	numbers := []string{
		"uptime", "approximate_data_size", "max_file_descriptor_count", "open_file_descriptor_count", "outstanding_requests", "commit_count",
		"looking_count", "num_alive_connections", "global_sessions", "local_sessions", "connection_drop_count", "connection_rejected",
		"connection_revalidate_count", "max_latency", "min_latency", "avg_latency", "znode_count", "ephemerals_count", "watch_count",
		"packets_sent", "packets_received", "bytes_received_count", "avg_election_time", "cnt_election_time", "avg_fsynctime", "cnt_fsynctime",
		"avg_snapshottime", "cnt_snapshottime",
	}
	if leader {
		numbers = append(numbers, "pending_syncs", "quorum_size", "synced_followers", "synced_non_voting_followers", "synced_observers", "learners")
	}
	for _, key := range numbers {
		if _, ok := all[key].(json.Number); !ok {
			t.Errorf("Zabbix finds no number in %s, but %v", key, all[key])
		}
	}
	if all["server_state"] != s.Role().String() {
		t.Errorf("Zabbix reads server_state as %v", all["server_state"])
	}
	st, one := s.Stats(), json.Number("1")
	if count := all["cnt_fsynctime"]; count != json.Number(strconv.FormatInt(st.LogWrites.Count, 10)) || count == json.Number("0") {
		t.Errorf("Zabbix reads %v writes of the log", count)
	}
	if s.Role() != lockkeeper.RoleStandalone && (all["cnt_election_time"] != one || all["looking_count"] != one) {
		t.Errorf("Zabbix reads %v elections", all["cnt_election_time"])
	}
}

// srvr reads the lines "Key: value" of srvr.
func srvr(t *testing.T, s *lockkeeper.Server) {
	t.Helper()
	fields := map[string]string{}
	for _, line := range sent(t, s, "srvr") {
		key, value, ok := strings.Cut(line, ": ")
		if !ok {
			t.Errorf("srvr has the line %q", line)
		}
		fields[key] = value
	}
	st := s.Status()
	for key, want := range map[string]string{
		"Mode": st.Role.String(), "Zxid": fmt.Sprintf("0x%x", st.State.Zxid), "Node count": fmt.Sprint(st.State.Znodes + 1), "Outstanding": "0",
		"Connections": fmt.Sprint(st.Clients.Connections + 1), "Received": fmt.Sprint(st.Clients.Requests), "Sent": fmt.Sprint(st.Clients.Replies),
	} {
		if fields[key] != want {
			t.Errorf("srvr: %s is %q, not %q", key, fields[key], want)
		}
	}
	if n := strings.Count(fields["Latency min/avg/max"], "/"); n != 2 {
		t.Errorf("srvr: latency %q", fields["Latency min/avg/max"])
	}
}
