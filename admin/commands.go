package admin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/proto"
)

// command is a command of ZooKeeper's AdminServer (class Commands).
type command struct {
	names []string // the first is the one in answers
	// always says that the command is answered even while the server serves no clients.
	always bool
	run    func(ctx context.Context, a *admin, q url.Values) (object, error)
}

// commands are all commands, by their first names. ZooKeeper's commands that are missing
// here are answered like commands that ZooKeeper does not know:
//
//	last_snapshot, snapshot, restore    ZooKeeper's snapshot files; this server has Raft's
//	observers, observer_connection_stat_reset
//	                                    statistics of ZooKeeper's connections to observers
//	system_properties                   Java's
var commands = []command{
	{[]string{"configuration", "conf", "config"}, false, configuration},
	{[]string{"connection_stat_reset", "crst"}, false, resets("crst")},
	{[]string{"connections", "cons"}, false, connections},
	{[]string{"dirs"}, false, dirs},
	{[]string{"dump"}, false, dump},
	{[]string{"environment", "env", "envi"}, true, environment},
	{[]string{"get_trace_mask", "gtmk"}, true, traceMask},
	{[]string{"hash"}, false, hash},
	{[]string{"initial_configuration", "icfg"}, false, initialConfiguration},
	{[]string{"is_read_only", "isro"}, false, isReadOnly},
	{[]string{"leader", "lead"}, false, leader},
	{[]string{"monitor", "mntr"}, false, monitor},
	{[]string{"ruok"}, false, func(context.Context, *admin, url.Values) (object, error) { return nil, nil }},
	{[]string{"server_stats", "srvr"}, false, serverStats},
	{[]string{"set_trace_mask", "stmk"}, true, setTraceMask},
	{[]string{"stat_reset", "srst"}, false, resets("srst")},
	{[]string{"stats", "stat"}, false, stats},
	{[]string{"voting_view"}, false, votingView},
	{[]string{"watch_summary", "wchs"}, false, watchSummary},
	{[]string{"watches", "wchc"}, false, watches},
	{[]string{"watches_by_path", "wchp"}, false, watchesByPath},
	{[]string{"zabstate"}, true, zabState},
}

// index lists the commands as ZooKeeper does.
func (a *admin) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	for _, c := range commands {
		fmt.Fprintf(w, "<a href=\"/commands/%s\">%[1]s</a>\n<br/>\n", c.names[0])
	}
}

// command answers a command. The status is 200 even if the answer reports an error, as in
// ZooKeeper.
func (a *admin) command(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	answer, err := object(nil), error(nil)
	i := slices.IndexFunc(commands, func(c command) bool { return slices.Contains(c.names, name) })
	switch {
	case i < 0:
		//lint:ignore ST1005 ZooKeeper's words
		err = fmt.Errorf("Unknown command: %s", name)
	default:
		c := commands[i]
		if name = c.names[0]; !c.always && !a.running() {
			err = errNotServing
		} else {
			answer, err = c.run(r.Context(), a, r.URL.Query())
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(appendJSON(nil, complete(name, answer, err), 0)) // an error means that the client is gone
}

// complete adds to an answer the members that all answers have. An error that a command
// reports itself comes first (CommandResponse.toMap).
func complete(name string, answer object, err error) object {
	switch {
	case err != nil && errors.As(err, new(reported)):
		return object{{"error", err.Error()}, {"command", name}}
	case err != nil:
		return object{{"command", name}, {"error", err.Error()}}
	}
	answer.add("command", name)
	answer.add("error", nil)
	return answer
}

// reported is an error that ZooKeeper's command reports as part of its answer.
type reported string

func (r reported) Error() string { return string(r) }

// running reports whether the server serves clients, even if only to read.
func (a *admin) running() bool {
	st := a.server.Status()
	return st.Serving || st.ReadOnly
}

// resets returns a command that only sends a word.
func resets(word string) func(ctx context.Context, a *admin, q url.Values) (object, error) {
	return func(ctx context.Context, a *admin, _ url.Values) (object, error) {
		_, err := a.words.ask(ctx, word)
		return nil, err
	}
}

// confNames maps the keys of the word conf to those of the command.
var confNames = map[string]string{
	"clientPort": "client_port", "dataDir": "data_dir", "dataLogDir": "data_log_dir", "tickTime": "tick_time",
	"maxClientCnxns": "max_client_cnxns", "minSessionTimeout": "min_session_timeout", "maxSessionTimeout": "max_session_timeout",
	"serverId": "server_id", "clientPortListenBacklog": "client_port_listen_backlog",
}

func configuration(ctx context.Context, a *admin, _ url.Values) (o object, err error) {
	text, err := a.words.ask(ctx, "conf")
	for _, p := range pairs(text, "=") {
		if name := confNames[p.key]; name != "" {
			value := number(p.value)
			if strings.HasPrefix(p.key, "data") {
				value = p.value // a path, even if it looks like a number
			}
			o.add(name, value)
		}
	}
	return o, err
}

// connection is a line of the word cons:
//
//	/ADDRESS[INTEREST](KEY=VALUE,…)
var connection = regexp.MustCompile(`^ /(.*)\[(\d+)\]\((.*)\)$`)

// connectionFields are the members of a connection with the keys of the word cons. Only the
// first five are in the answer to the command stats. A connection without a session has no
// others.
var connectionFields = []struct {
	name, key string
	missing   any
}{
	{"remote_socket_address", "address", nil},
	{"interest_ops", "interest", nil},
	{"outstanding_requests", "queued", nil},
	{"packets_received", "recved", nil},
	{"packets_sent", "sent", nil},
	{"session_id", "sid", 0},
	{"last_operation", "lop", "NA"},
	{"established", "est", nil},
	{"session_timeout", "to", 0},
	{"last_cxid", "lcxid", -1},
	{"last_zxid", "lzxid", -1},
	{"last_response_time", "lresp", 0},
	{"last_latency", "llat", 0},
	{"min_latency", "minlat", 0},
	{"avg_latency", "avglat", 0},
	{"max_latency", "maxlat", 0},
}

// clientConnections returns all connections except the one that asks, with the first n of
// their fields.
func (a *admin) clientConnections(ctx context.Context, n int) (all list, err error) {
	text, err := a.words.ask(ctx, "cons")
	for _, line := range lines(text) {
		m := connection.FindStringSubmatch(line)
		if m == nil || m[2] == "0" {
			continue
		}
		values := map[string]string{"address": m[1], "interest": m[2]}
		for p := range strings.SplitSeq(m[3], ",") {
			key, value, _ := strings.Cut(p, "=")
			values[key] = value
		}
		o := object{}
		for _, f := range connectionFields[:n] {
			value, ok := values[f.key]
			switch {
			case !ok && f.missing != nil:
				o.add(f.name, f.missing)
			case !ok:
			case f.key == "address" || f.key == "lop":
				o.add(f.name, value)
			case strings.HasPrefix(value, "0x"):
				o.add(f.name, signed(value))
			default:
				o.add(f.name, number(value))
			}
		}
		all = append(all, o)
	}
	return all, err
}

// signed returns the value of a hexadecimal number as Java prints a long.
func signed(hex string) int64 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(hex, "0x"), 16, 64)
	return int64(n)
}

func connections(ctx context.Context, a *admin, _ url.Values) (object, error) {
	all, err := a.clientConnections(ctx, len(connectionFields))
	// The word does not say which connections use TLS, so all are in the first list.
	return object{{"connections", all}, {"secure_connections", list(nil)}}, err
}

func dirs(ctx context.Context, a *admin, _ url.Values) (o object, err error) {
	text, err := a.words.ask(ctx, "dirs")
	for _, p := range pairs(text, ": ") {
		o.add(p.key, number(p.value))
	}
	return o, err
}

// dump takes the word dump apart:
//
//	SessionTracker dump:
//	Session Sets (1)/(2):
//	2 expire at Mon Jan 02 15:04:05 MST 2006:
//		0x1…
//		0x2…
//	ephemeral nodes dump:
//	Sessions with Ephemerals (1):
//	0x1…:
//		/path
//	Connections dump:
//	…
//
// Only the leader knows when sessions expire. Times are in milliseconds since the epoch;
// ZooKeeper's begin with Java's clock.
func dump(ctx context.Context, a *admin, _ url.Values) (object, error) {
	text, err := a.words.ask(ctx, "dump")
	sessions, rest, _ := strings.Cut(text, "ephemeral nodes dump:\n")
	ephemerals, _, _ := strings.Cut(rest, "Connections dump:\n")
	expiry, owners := object{}, object{}
	for _, line := range lines(sessions) {
		if at, ok := expiryOf(line); ok {
			expiry.add(strconv.FormatInt(at.UnixMilli(), 10), list(nil))
		} else if id, ok := strings.CutPrefix(line, "\t"); ok && len(expiry) > 0 {
			last := &expiry[len(expiry)-1]
			last.value = append(last.value.(list), signed(id))
		}
	}
	for _, line := range lines(ephemerals) {
		if path, ok := strings.CutPrefix(line, "\t"); ok && len(owners) > 0 {
			last := &owners[len(owners)-1]
			last.value = append(last.value.(list), path)
		} else if strings.HasPrefix(line, "0x") {
			owners.add(strconv.FormatInt(signed(strings.TrimSuffix(line, ":")), 10), list(nil))
		}
	}
	return object{{"expiry_time_to_session_ids", expiry}, {"session_id_to_ephemeral_paths", owners}}, err
}

func environment(ctx context.Context, a *admin, _ url.Values) (o object, err error) {
	text, err := a.words.ask(ctx, "envi")
	for _, p := range pairs(text, "=") {
		o.add(p.key, p.value)
	}
	return o, err
}

func traceMask(ctx context.Context, a *admin, _ url.Values) (object, error) {
	text, err := a.words.ask(ctx, "gtmk")
	return object{{"tracemask", number(text)}}, err
}

func setTraceMask(ctx context.Context, a *admin, q url.Values) (object, error) {
	if !q.Has("traceMask") {
		return nil, reported("setTraceMask requires long traceMask argument")
	}
	mask, err := strconv.ParseInt(q.Get("traceMask"), 10, 64)
	if err != nil {
		return nil, reported("setTraceMask requires long traceMask argument, got " + q.Get("traceMask"))
	}
	text, err := a.words.ask(ctx, "stmk", binary.BigEndian.AppendUint64(nil, uint64(mask))...)
	return object{{"tracemask", number(text)}}, err
}

// hash lists the digests of the tree. They are comparable only between servers of this
// program, so they carry no digest_version, which names ZooKeeper's algorithm.
func hash(ctx context.Context, a *admin, _ url.Values) (object, error) {
	text, err := a.words.ask(ctx, "hash")
	if errors.Is(err, errEmpty) { // no digests, if the server answers at all
		_, err = a.words.ask(ctx, "srvr")
	}
	digests := list{}
	for _, p := range pairs(text, ": ") {
		digests = append(digests, object{{"zxid", signed(p.key)}, {"digest", number(p.value)}})
	}
	return object{{"digests", digests}}, err
}

func initialConfiguration(_ context.Context, a *admin, _ url.Values) (object, error) {
	return object{{"initial_configuration", a.zooCfg}}, nil
}

// secret matches a line of a configuration file, or a comment there, that holds a password
// or the hash of one. ZooKeeper shows these, too.
var secret = regexp.MustCompile(`(?im)^(.*?(?:password|superDigest)[ \t]*[=:]).*$`)

// masked returns the text of a configuration file without its secrets.
func masked(zooCfg string) string { return secret.ReplaceAllString(zooCfg, "$1***") }

func isReadOnly(_ context.Context, a *admin, _ url.Values) (object, error) {
	return object{{"read_only", a.server.Status().ReadOnly}}, nil
}

func leader(_ context.Context, a *admin, _ url.Values) (object, error) {
	st := a.server.Status()
	if st.Role == lockkeeper.RoleStandalone {
		return nil, reported("server is not initialized")
	}
	host := ""
	for _, m := range st.Cluster.Members {
		if m.ID == st.Cluster.Leader {
			host, _, _ = net.SplitHostPort(m.Addr)
		}
	}
	return object{{"is_leader", st.Role == lockkeeper.RoleLeader}, {"leader_id", st.Cluster.Leader}, {"leader_ip", host}}, nil
}

func monitor(ctx context.Context, a *admin, _ url.Values) (o object, err error) {
	all, err := a.words.monitor(ctx)
	for _, p := range all {
		o.add(p.key, number(p.value))
	}
	return o, err
}

func serverStats(ctx context.Context, a *admin, _ url.Values) (object, error) {
	all, err := a.words.monitor(ctx)
	if err != nil {
		return nil, err
	}
	sizes, err := a.words.ask(ctx, "dirs")
	if err != nil {
		return nil, err
	}
	st, mntr, size := a.server.Status(), byKey(all), byKey(pairs(sizes, ": "))
	buffers := func(of string) object {
		return object{
			{"last_buffer_size", number(mntr["last_"+of])}, {"min_buffer_size", number(mntr["min_"+of])}, {"max_buffer_size", number(mntr["max_"+of])},
		}
	}
	responses := buffers("client_response_size")
	// ZooKeeper's fsync_threshold_exceed_count is missing: this server does not count that.
	o := object{
		{"version", mntr["version"]},
		{"read_only", st.ReadOnly},
		{"server_stats", object{
			{"packets_sent", number(mntr["packets_sent"])},
			{"packets_received", number(mntr["packets_received"])},
			{"client_response_stats", responses},
			{"server_state", mntr["server_state"]},
			{"provider_null", false},
			{"uptime", number(mntr["uptime"])},
			{"outstanding_requests", number(mntr["outstanding_requests"])},
			{"min_latency", number(mntr["min_latency"])},
			{"avg_latency", number(mntr["avg_latency"])},
			{"max_latency", number(mntr["max_latency"])},
			{"data_dir_size", number(size["datadir_size"])},
			{"log_dir_size", number(size["logdir_size"])},
			{"last_processed_zxid", st.State.Zxid},
			{"num_alive_client_connections", number(mntr["num_alive_connections"])},
			{"auth_failed_count", number(mntr["auth_failed_count"])},
			{"non_mtlsremote_conn_count", number(mntr["non_mtls_remote_conn_count"])},
			{"non_mtlslocal_conn_count", number(mntr["non_mtls_local_conn_count"])},
		}},
		{"client_response", responses},
	}
	if _, ok := mntr["last_proposal_size"]; ok {
		o.add("proposal_stats", buffers("proposal_size"))
	}
	o.add("node_count", number(mntr["znode_count"]))
	return o, nil
}

func stats(ctx context.Context, a *admin, q url.Values) (object, error) {
	o, err := serverStats(ctx, a, q)
	if err != nil {
		return nil, err
	}
	all, err := a.clientConnections(ctx, 5)
	o.add("connections", all)
	o.add("secure_connections", list(nil))
	return o, err
}

// servers returns the members of the cluster with their addresses for clients, from the
// word conf.
func (a *admin) servers(ctx context.Context) ([]proto.Peer, error) {
	text, err := a.words.ask(ctx, "conf")
	if err != nil {
		return nil, err
	}
	_, members, ok := strings.Cut(text, "membership: \n")
	if !ok {
		return nil, nil
	}
	return proto.ParseServers(members)
}

func votingView(ctx context.Context, a *admin, _ url.Values) (object, error) {
	all, err := a.servers(ctx)
	view := object{}
	for _, s := range all {
		if s.Observer {
			continue
		}
		client := s.ClientAddr
		if strings.HasPrefix(client, ":") {
			client = "0.0.0.0" + client
		}
		view.add(strconv.FormatUint(s.ID, 10), object{
			{"server_addresses", list{s.Addr}}, {"election_addresses", list{election(s)}}, {"client_address", client}, {"learner_type", "participant"},
		})
	}
	return object{{"current_config", view}}, err
}

func election(s proto.Peer) string {
	host, _, _ := net.SplitHostPort(s.Addr)
	return net.JoinHostPort(host, strconv.Itoa(s.ElectionPort))
}

func watchSummary(ctx context.Context, a *admin, _ url.Values) (o object, err error) {
	text, err := a.words.ask(ctx, "wchs")
	var connections, paths, all int
	if err == nil {
		_, err = fmt.Sscanf(text, "%d connections watching %d paths\nTotal watches:%d", &connections, &paths, &all)
	}
	return object{{"num_connections", connections}, {"num_paths", paths}, {"num_total_watches", all}}, err
}

func watches(ctx context.Context, a *admin, _ url.Values) (object, error) {
	text, err := a.words.ask(ctx, "wchc")
	sessions := object{}
	for _, line := range lines(text) {
		if path, ok := strings.CutPrefix(line, "\t"); ok && len(sessions) > 0 {
			last := &sessions[len(sessions)-1]
			last.value = append(last.value.(list), path)
		} else if line != "" {
			sessions.add(strconv.FormatInt(signed(line), 10), list(nil))
		}
	}
	return object{{"session_id_to_watched_paths", sessions}}, err
}

func watchesByPath(ctx context.Context, a *admin, _ url.Values) (object, error) {
	text, err := a.words.ask(ctx, "wchp")
	paths := object{}
	for _, line := range lines(text) {
		if id, ok := strings.CutPrefix(line, "\t"); ok && len(paths) > 0 {
			last := &paths[len(paths)-1]
			last.value = append(last.value.(list), signed(id))
		} else if line != "" {
			paths.add(line, list(nil))
		}
	}
	return object{{"path_to_session_ids", paths}}, err
}

// zabState says in ZooKeeper's words what part this member plays. There is one phase, since
// Raft knows no others: a member that follows nobody has none.
func zabState(ctx context.Context, a *admin, _ url.Values) (object, error) {
	st := a.server.Status()
	if st.Role == lockkeeper.RoleStandalone || !st.Serving {
		return object{{"voting", false}, {"zabstate", ""}}, nil
	}
	all, err := a.servers(ctx)
	i := slices.IndexFunc(all, func(s proto.Peer) bool { return s.ID == st.ID })
	if err != nil || i < 0 {
		return object{{"voting", false}, {"zabstate", ""}}, err
	}
	self := all[i]
	client := self.ClientAddr
	if addr := a.server.Addr(); addr != nil {
		client = addr.String()
	}
	return object{
		{"myid", st.ID},
		{"is_leader", st.Role == lockkeeper.RoleLeader},
		{"quorum_address", addresses(self.Addr)},
		{"election_address", addresses(election(self))},
		{"client_address", client},
		{"voting", !self.Observer},
		{"last_zxid", fmt.Sprintf("0x%x", uint64(st.State.Zxid))},
		{"zab_epoch", uint64(st.State.Zxid) >> 32},
		{"zab_counter", uint64(st.State.Zxid) & (1<<32 - 1)},
		{"zabstate", "broadcast"},
	}, nil
}

// addresses returns an address as ZooKeeper shows a set of them (MultipleAddresses). It is
// this server's own, so it can be reached.
func addresses(addr string) object {
	host, port, _ := net.SplitHostPort(addr)
	one := list{addr}
	return object{
		{"empty", false},
		{"all_addresses", one},
		{"wildcard_addresses", list{"0.0.0.0:" + port}},
		{"all_ports", list{number(port)}},
		{"all_host_strings", list{host}},
		{"reachable_address", addr},
		{"all_reachable_addresses", one},
		{"all_reachable_addresses_or_all", one},
		{"reachable_or_one", addr},
		{"one", addr},
	}
}
