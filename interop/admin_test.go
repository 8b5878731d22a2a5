//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// adminCommands are all commands of ZooKeeper 3.9's AdminServer, without those that
// adminNotHere lists, and requests that are wrong.
var adminCommands = []string{
	"configuration", "conf", "config", "connections", "cons", "dirs", "dump", "environment", "env", "envi", "get_trace_mask", "gtmk", "hash",
	"initial_configuration", "icfg", "is_read_only", "isro", "leader", "lead", "monitor", "mntr", "ruok", "server_stats", "srvr", "stats", "stat",
	"set_trace_mask?traceMask=500", "stmk?traceMask=306", "stmk", "stmk?traceMask=x", "voting_view", "watches", "wchc", "watches_by_path", "wchp",
	"watch_summary", "wchs", "zabstate", "connection_stat_reset", "crst", "stat_reset", "srst", "nosuch", "conf/x",
}

// adminNotHere are ZooKeeper's commands that lockkeeper answers like unknown ones.
var adminNotHere = []string{
	"last_snapshot", "lsnp", "snapshot", "snap", "restore", "rest", "observers", "obsr", "observer_connection_stat_reset", "orst", "system_properties", "sysp",
}

// adminOmitted matches fields of ZooKeeper's answers that lockkeeper omits on purpose,
// adminAdded those that only lockkeeper has.
var (
	adminOmitted = regexp.MustCompile(`^(` + strings.Join([]string{
		`environment\.(java\.|os\.version|os\.memory\.).*`,
		`(server_stats|stats)\.server_stats\.fsync_threshold_exceed_count`,
		`hash\.digests\[\]\.digest_version`,
		`monitor\.(` + strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(notHere["mntr"].zookeeper.String(), `^zk_(`), `)\t`), `pN`, `p\d+`) + `)`,
	}, "|") + `)$`)
	adminAdded = regexp.MustCompile(`^environment\.(go\.version|lockkeeper\.peer)$`)
)

// adminOwn matches fields whose values belong to one server: times, sizes, ids, ports,
// and what connections of words count.
var adminOwn = regexp.MustCompile(`(^|[._])(` + strings.Join([]string{
	`version`, `session_id`, `last_zxid`, `last_processed_zxid`, `established`, `\w*latency`, `last_response_time`, `uptime`, `remote_socket_address`, `#`, `zxid`, `digest`,
	`client_port`, `data_dir`, `data_log_dir`, `server_id`, `datadir_size`, `logdir_size`, `data_dir_size`, `log_dir_size`, `\w*file_descriptor_count`,
	`initial_configuration`, `packets_received`, `packets_sent`, `approximate_data_size`, `bytes_received_count`, `response_bytes`, `connection_drop_count`,
	`non_mtls_?local_conn_count`, `\w*(response|buffer|proposal)_size`, `zab_epoch`, `zab_counter`, `leader_id`, `\w*address(es)?\w*`, `all_ports`, `reachable_or_one`, `one`,
	`(avg|cnt|sum)_(fsynctime|snapshottime|election_time)`, `commit_count`, `looking_count`, `path_to_session_ids\..*`, `myid`, `host\.name`, `user\.\w+`, `os\.\w+`, `max_client_cnxns`,
}, "|") + `)(\[\])?$`)

// flatten adds the fields of an answer to all, by their paths. Keys that are numbers become #.
func flatten(all map[string][]any, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			all[path] = append(all[path], "an empty object")
		}
		for key, item := range v {
			if _, err := strconv.ParseInt(key, 10, 64); err == nil {
				key = "#"
			}
			flatten(all, path+"."+key, item)
		}
	case []any:
		if len(v) == 0 {
			all[path] = append(all[path], "an empty list")
		}
		for _, item := range v {
			flatten(all, path+"[]", item)
		}
	default:
		all[path] = append(all[path], v)
	}
}

// kinds returns the types of values in JSON.
func kinds(values []any) string {
	seen := map[string]bool{}
	for _, v := range values {
		kind := fmt.Sprintf("%T", v)
		if text, ok := v.(string); ok && strings.HasPrefix(text, "an empty ") {
			kind = text
		}
		seen[kind] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " and ")
}

// adminAnswer fetches the answer to a command and returns its fields.
func adminAnswer(t *testing.T, url, command string) (status int, fields map[string][]any) {
	t.Helper()
	reply := must(http.Get(url + "/commands/" + command))(t)
	defer reply.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		t.Fatalf("%s of %s: %v", command, url, err)
	}
	if kind := reply.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("%s of %s has the type %s", command, url, kind)
	}
	// ZooKeeper also shows times at which no session expires any more.
	if expiry, ok := answer["expiry_time_to_session_ids"].(map[string]any); ok {
		maps.DeleteFunc(expiry, func(_ string, ids any) bool { return len(ids.([]any)) == 0 })
	}
	fields = map[string][]any{}
	flatten(fields, fmt.Sprint(answer["command"]), answer)
	for _, values := range fields { // ZooKeeper's lists of connections are in no order
		slices.SortFunc(values, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return reply.StatusCode, fields
}

// compareAdmin sends a command to both and compares the answers.
func compareAdmin(t *testing.T, theirs, ours, command string) {
	t.Helper()
	wantStatus, want := adminAnswer(t, theirs, command)
	gotStatus, got := adminAnswer(t, ours, command)
	if gotStatus != wantStatus {
		t.Errorf("%s: status %d, ZooKeeper %d", command, gotStatus, wantStatus)
	}
	for _, field := range slices.Sorted(maps.Keys(want)) {
		w, g := want[field], got[field]
		switch {
		case g == nil && adminOmitted.MatchString(field):
		case g == nil:
			t.Errorf("%s: there is no %s; ZooKeeper has %v", command, field, w)
		case kinds(g) != kinds(w):
			t.Errorf("%s: %s is %v, ZooKeeper %v", command, field, g, w)
		case !adminOwn.MatchString(field) && !slices.Equal(g, w):
			t.Errorf("%s: %s is %v, ZooKeeper %v", command, field, g, w)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(got)) {
		if want[field] == nil && !adminAdded.MatchString(field) {
			t.Errorf("%s: ZooKeeper has no %s; lockkeeper has %v", command, field, got[field])
		}
	}
}

// TestAdminSnapshot moves the state with the commands snapshot and restore of ZooKeeper 3.9's
// AdminServer: from lockkeeper to a running ZooKeeper, and to one that starts with the file, and
// from ZooKeeper to lockkeeper.
func TestAdminSnapshot(t *testing.T) {
	t.Parallel()
	get := func(url, auth string) (zxid string, body []byte) {
		t.Helper()
		r := must(http.NewRequest(http.MethodGet, url+"/commands/snapshot", nil))(t)
		r.Header.Set("Authorization", auth)
		reply, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		if body, err = io.ReadAll(reply.Body); err != nil || reply.StatusCode != http.StatusOK {
			t.Fatalf("%s %.300q %v", reply.Status, body, err)
		}
		if size := reply.Header.Get("snapshot_size"); size != strconv.Itoa(len(body)) {
			t.Errorf("%d bytes, announced %s", len(body), size)
		}
		return strings.TrimPrefix(reply.Header.Get("last_zxid"), "0x"), body
	}
	const super = "digest super:secret"
	port := freeAddr(t)
	lockkeeper := startLockkeeper(t, "--zookeeper-passwords", "--admin", port, "--admin-write=snapshots").addr
	describable(t, lockkeeper, 150)
	before := takeCensus(t, lockkeeper)
	zxid, file := get("http://"+port, "")

	url, cfg := adminConfig(t)
	real := startZooKeeper(t, zk39Admin, merged(withTTL, withSuper), cfg)
	awaitAdmin(t, url)
	r := must(http.NewRequest(http.MethodPost, url+"/commands/restore", bytes.NewReader(file)))(t)
	r.Header.Set("Authorization", super)
	reply := must(http.DefaultClient.Do(r))(t)
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	want, _ := strconv.ParseInt(zxid, 16, 64)
	if reply.StatusCode != http.StatusOK || !strings.Contains(string(text), fmt.Sprintf(`"last_zxid" : %d`, want)) {
		t.Fatalf("restore: %s %s, zxid %d", reply.Status, text, want)
	}
	before.same(t, takeCensus(t, real.addr))

	start := func(name string, body []byte) (dir string, cfg map[string]string) {
		dir = t.TempDir()
		check(t, os.Mkdir(filepath.Join(dir, "version-2"), 0o700))
		check(t, os.WriteFile(filepath.Join(dir, "version-2", "snapshot."+name), body, 0o600))
		return dir, map[string]string{"dataDir": dir}
	}
	for _, version := range []zkVersion{zk38, zk39} {
		_, cfg := start(zxid, file)
		trust := map[string]string{"zookeeper.snapshot.trust.empty": "true"} // there is no log
		before.same(t, takeCensus(t, startZooKeeper(t, version, merged(withTTL, trust), cfg).addr))
	}

	must(connect(t, real.addr, 20*time.Second).Create("/later", []byte("x"), 0, openACL))(t)
	before = takeCensus(t, real.addr)
	zxid, file = get(url, super)
	dir, _ := start(zxid, file)
	data := filepath.Join(t.TempDir(), "data")
	migrateCommand(t, &migrated{}, "from", dir, "--without-log", "--data", data)
	before.same(t, takeCensus(t, startLockkeeper(t, "--data", data, "--zookeeper-passwords").addr))
}

// adminConfig makes ZooKeeper's AdminServer listen on a port, and returns its URL.
func adminConfig(t *testing.T) (url string, cfg map[string]string) {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	return "http://" + addr, map[string]string{
		"admin.enableServer": "true", "admin.serverAddress": "127.0.0.1", "admin.serverPort": port, "4lw.commands.whitelist": "*", "tickTime": "2000",
	}
}

// awaitAdmin waits until a server answers commands.
func awaitAdmin(t *testing.T, url string) {
	t.Helper()
	var last error
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var reply *http.Response
		if reply, last = http.Get(url + "/commands/ruok"); last == nil {
			text, _ := io.ReadAll(reply.Body)
			reply.Body.Close()
			if strings.Contains(string(text), `"error" : null`) {
				return
			}
			last = fmt.Errorf("%s", text)
		}
	}
	t.Fatalf("%s does not answer: %v", url, last)
}

// TestAdmin sends every command to ZooKeeper's AdminServer and to lockkeeper, after the same
// requests to both servers. Field by field, names, types and values must be the same, or the
// difference must be in the lists above.
func TestAdmin(t *testing.T) {
	t.Parallel()
	theirs, cfg := adminConfig(t)
	zookeeper := startZooKeeper(t, zk39Admin, withTTL, cfg).addr
	awaitAdmin(t, theirs)
	port := freeAddr(t)
	ours := "http://" + port
	file := filepath.Join(t.TempDir(), "zoo.cfg")
	check(t, os.WriteFile(file, []byte("tickTime=2000\n"), 0o600))
	lockkeeper := startLockkeeper(t, "--config", file, "--admin", port).addr
	before := []string{"configuration", "connections", "dump", "hash", "watches", "watches_by_path", "watch_summary", "stats"}
	for _, command := range before {
		compareAdmin(t, theirs, ours, command)
	}
	for _, addr := range []string{zookeeper, lockkeeper} {
		describable(t, addr, 150)
	}
	for _, command := range adminCommands {
		compareAdmin(t, theirs, ours, command)
	}
	for _, command := range adminNotHere {
		name, _, _ := strings.Cut(command, "?")
		if status, got := adminAnswer(t, ours, command); status != http.StatusOK || !slices.Equal(got[name+".error"], []any{"Unknown command: " + name}) {
			t.Errorf("%s: %d %v", command, status, got)
		}
	}

	// Together, the two lists have all commands.
	links := func(url string) (names []string) {
		reply := must(http.Get(url + "/commands"))(t)
		defer reply.Body.Close()
		for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
			names = append(names, lines.Text())
		}
		return names
	}
	got := links(ours)
	for _, line := range links(theirs) {
		name := regexp.MustCompile(`>(\w+)<`).FindStringSubmatch(line)
		if name != nil && slices.Contains(got, line) == slices.Contains(adminNotHere, name[1]) {
			t.Errorf("the command %s: listed %v", name[1], slices.Contains(got, line))
		}
		if name != nil && !slices.Contains(adminNotHere, name[1]) && !slices.ContainsFunc(adminCommands, func(c string) bool { return strings.HasPrefix(c, name[1]) }) {
			t.Errorf("the command %s is not compared", name[1])
		}
	}
}

// TestAdminCluster compares what the leader and a follower of three servers answer, and
// their metrics with those of ZooKeeper's PrometheusMetricsProvider.
func TestAdminCluster(t *testing.T) {
	t.Parallel()
	const n = 3
	shared := merged(withWords, map[string]string{
		"initLimit": "10", "syncLimit": "5", "metricsProvider.httpHost": "127.0.0.1",
		"metricsProvider.className": "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
	})
	var theirs, theirMetrics []string
	var theirAddrs []string
	var configs []map[string]string
	for i := range n {
		url, cfg := adminConfig(t)
		peer, election, metrics, client := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
		_, electionPort, _ := net.SplitHostPort(election)
		shared[fmt.Sprintf("server.%d", i+1)] = peer + ":" + electionPort + ":participant;" + client
		_, cfg["metricsProvider.httpPort"], _ = net.SplitHostPort(metrics)
		cfg["dataDir"] = t.TempDir()
		_, cfg["clientPort"], _ = net.SplitHostPort(client)
		check(t, os.WriteFile(filepath.Join(cfg["dataDir"], "myid"), fmt.Append(nil, i+1), 0o600))
		theirs, theirMetrics, theirAddrs, configs = append(theirs, url), append(theirMetrics, "http://"+metrics+"/metrics"), append(theirAddrs, client), append(configs, cfg)
	}
	for _, cfg := range configs {
		launchZooKeeper(t, zk39Admin, nil, merged(shared, cfg))
	}
	e := newEnsemble(t, n)
	var ours []string
	for i := range n {
		port := freeAddr(t)
		ours = append(ours, "http://"+port)
		e.args = []string{"--admin", port}
		e.launch(i)
	}
	e.await()
	for i := range n {
		waitZooKeeper(t, theirAddrs[i], nil)
		awaitAdmin(t, theirs[i])
	}
	leads := func(url string) bool {
		_, fields := adminAnswer(t, url, "leader")
		return slices.Equal(fields["leader.is_leader"], []any{true})
	}
	// byRole returns the leader that has both followers, and a follower.
	byRole := func(urls []string) (leader, follower int) {
		for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			leader = slices.IndexFunc(urls, leads)
			if leader < 0 {
				continue
			}
			_, fields := adminAnswer(t, urls[leader], "monitor")
			if slices.Equal(fields["monitor.synced_followers"], []any{2.0}) {
				return leader, (leader + 1) % n
			}
		}
		t.Fatal("no leader with two followers")
		return
	}
	theirLeader, theirFollower := byRole(theirs)
	ourLeader, ourFollower := byRole(ours)
	for _, pair := range [][2]int{{theirLeader, ourLeader}, {theirFollower, ourFollower}} {
		for _, command := range []string{"leader", "zabstate", "voting_view", "server_stats", "stats", "dump", "is_read_only", "configuration"} {
			compareAdmin(t, theirs[pair[0]], ours[pair[1]], command)
		}
		compareMetrics(t, theirMetrics[pair[0]], ours[pair[1]]+"/metrics")
	}
}

// compareMetrics checks that every metric of lockkeeper without a prefix of its own is one of
// ZooKeeper's, with the same type or none, and that the metrics of mntr are not missing.
func compareMetrics(t *testing.T, theirs, ours string) {
	t.Helper()
	types := func(url string) map[string]string {
		reply := must(http.Get(url))(t)
		defer reply.Body.Close()
		all := map[string]string{}
		for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
			if f := strings.Fields(lines.Text()); len(f) == 4 && f[1] == "TYPE" {
				all[f[2]] = f[3]
			}
		}
		return all
	}
	want, got := types(theirs), types(ours)
	foreign, common := regexp.MustCompile(`^(lockkeeper|go|process)_`), 0
	for name, kind := range got {
		switch {
		case foreign.MatchString(name):
		case want[strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_sum")] == "summary": // a part of it
		case want[name] == "":
			t.Errorf("ZooKeeper has no metric %s", name)
		case kind != want[name] && kind != "untyped":
			t.Errorf("%s is a %s, in ZooKeeper a %s", name, kind, want[name])
		default:
			common++
		}
	}
	for name := range want {
		if got[name] == "" && want[name] == "gauge" && !strings.HasPrefix(name, "jvm_") && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "quota_") {
			t.Errorf("there is no metric %s", name)
		}
	}
	t.Logf("%d metrics are ZooKeeper's", common)
}
