package admin

import (
	"encoding/json"
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
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/proto"
)

// command is a command of ZooKeeper's AdminServer (class Commands).
type command struct {
	names []string // the first is the one in answers
	// always says that the command is answered even while the server serves no clients.
	always bool
	run    func(h *Handler, q url.Values) (object, error)
}

// commands are all commands, by their first names. ZooKeeper's commands that are missing
// here, except for snapshot (serveZooKeeperSnapshot), are answered like commands that ZooKeeper does not know:
//
//	last_snapshot, restore              ZooKeeper's snapshot files; this server has Raft's
//	observers, observer_connection_stat_reset
//	                                    statistics of ZooKeeper's connections to observers
//	system_properties                   Java's
var commands = []command{
	{[]string{"configuration", "conf", "config"}, false, configuration},
	{[]string{"connection_stat_reset", "crst"}, false, reset(report.Server.ResetConnections)},
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
	{[]string{"ruok"}, false, func(*Handler, url.Values) (object, error) { return nil, nil }},
	{[]string{"server_stats", "srvr"}, false, serverStats},
	{[]string{"set_trace_mask", "stmk"}, true, setTraceMask},
	{[]string{"stat_reset", "srst"}, false, reset(report.Server.ResetCounts)},
	{[]string{"stats", "stat"}, false, stats},
	{[]string{"voting_view"}, false, votingView},
	{[]string{"watch_summary", "wchs"}, false, watchSummary},
	{[]string{"watches", "wchc"}, false, watches},
	{[]string{"watches_by_path", "wchp"}, false, watchesByPath},
	{[]string{"zabstate"}, true, zabState},
}

// index lists the commands as ZooKeeper does.
func (h *Handler) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	for _, c := range commands {
		if !h.report.Persona().KnowsCommand(c.names[0]) {
			continue
		}
		fmt.Fprintf(w, "<a href=\"/commands/%s\">%[1]s</a>\n<br/>\n", c.names[0])
	}
}

// command answers a command. The status is 200 even if the answer reports an error, as in
// ZooKeeper.
func (h *Handler) command(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if (name == "snapshot" || name == "snap") && h.options.Snapshots && h.report.Persona() == nil {
		h.serveZooKeeperSnapshot(w, r)
		return
	}
	answer, err := object(nil), error(nil)
	i := slices.IndexFunc(commands, func(c command) bool { return slices.Contains(c.names, name) })
	switch {
	case i < 0 || !h.report.Persona().KnowsCommand(commands[i].names[0]):
		//lint:ignore ST1005 ZooKeeper's words
		err = fmt.Errorf("Unknown command: %s", name)
	default:
		c, st := commands[i], h.server.Status()
		if name = c.names[0]; !c.always && !st.Serving && !st.ReadOnly {
			err = errNotServing
		} else {
			answer, err = c.run(h, r.URL.Query())
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

// errNotServing is the error that ZooKeeper's commands report while the server does not
// serve clients.
var errNotServing = errors.New("This ZooKeeper instance is not currently serving requests") //lint:ignore ST1005 ZooKeeper's words

// reset returns a command that only resets something.
func reset(do func(report.Server)) func(h *Handler, q url.Values) (object, error) {
	return func(h *Handler, _ url.Values) (object, error) {
		do(h.report)
		return nil, nil
	}
}

func configuration(h *Handler, _ url.Values) (object, error) {
	c := h.report.Config()
	return object{
		{"client_port", c.ClientPort}, {"data_dir", c.DataDir}, {"data_log_dir", c.DataDir}, {"tick_time", c.Tick.Milliseconds()},
		{"max_client_cnxns", c.MaxConnsPerAddr}, {"min_session_timeout", c.MinSessionTimeout.Milliseconds()}, {"max_session_timeout", c.MaxSessionTimeout.Milliseconds()},
		{"client_port_listen_backlog", -1}, {"server_id", c.ID},
	}, nil
}

// clientConnections returns all connections. If brief is true, it leaves out what the command
// stats does not show.
func (h *Handler) clientConnections(brief bool) (all list) {
	for _, c := range h.report.Connections() {
		o := object{
			{"remote_socket_address", c.Addr}, {"interest_ops", 1}, {"outstanding_requests", c.Queued}, {"packets_received", c.Received}, {"packets_sent", c.Sent},
		}
		switch {
		case brief:
		case c.Session == 0:
			o = append(o, object{
				{"session_id", 0}, {"last_operation", "NA"}, {"session_timeout", 0}, {"last_cxid", -1}, {"last_zxid", -1}, {"last_response_time", 0},
				{"last_latency", 0}, {"min_latency", 0}, {"avg_latency", 0}, {"max_latency", 0},
			}...)
		default:
			o = append(o, object{
				{"session_id", c.Session}, {"last_operation", c.Last.Op}, {"established", c.Since.UnixMilli()}, {"session_timeout", c.Timeout.Milliseconds()},
				{"last_cxid", max(-1, c.Last.Cxid)}, {"last_zxid", c.Last.Zxid}, {"last_response_time", c.Last.At.Milliseconds()},
				{"last_latency", c.Last.Latency.Milliseconds()}, {"min_latency", c.MinLatency.Milliseconds()},
				{"avg_latency", c.AvgLatency.Milliseconds()}, {"max_latency", c.MaxLatency.Milliseconds()},
			}...)
		}
		all = append(all, o)
	}
	return all
}

func connections(h *Handler, _ url.Values) (object, error) {
	// ZooKeeper lists the connections with TLS apart from the others.
	return object{{"connections", h.clientConnections(false)}, {"secure_connections", list(nil)}}, nil
}

func dirs(h *Handler, _ url.Values) (object, error) {
	size := h.report.DataSize()
	return object{{"datadir_size", size}, {"logdir_size", size}}, nil
}

// dump lists the sessions by the time when they expire, in milliseconds since the epoch, which
// only the leader knows. ZooKeeper's times begin with Java's clock. Like the word, it knows the
// second.
func dump(h *Handler, _ url.Values) (object, error) {
	all, err := h.report.Sessions()
	if err != nil {
		return nil, err
	}
	expiry, owners := object{}, object{}
	if all.Tracked {
		for _, bucket := range all.Expiring {
			expiry.add(strconv.FormatInt(bucket.Deadline-bucket.Deadline%1000, 10), listOf(bucket.Sessions))
		}
	}
	for _, x := range all.All {
		if len(x.Ephemerals) > 0 {
			owners.add(strconv.FormatInt(x.ID, 10), listOf(x.Ephemerals))
		}
	}
	return object{{"expiry_time_to_session_ids", expiry}, {"session_id_to_ephemeral_paths", owners}}, nil
}

func listOf[T any](all []T) (l list) {
	for _, x := range all {
		l = append(l, x)
	}
	return l
}

func (h *Handler) alive() error {
	if errors.Is(h.server.Err(), lockkeeper.ErrClosed) {
		return errNotServing
	}
	return nil
}

func environment(h *Handler, _ url.Values) (o object, err error) {
	if err := h.alive(); err != nil {
		return nil, err
	}
	for _, l := range h.report.Environment() {
		o.add(l.Key, l.Value)
	}
	return o, nil
}

func traceMask(h *Handler, _ url.Values) (object, error) {
	return object{{"tracemask", h.report.TraceMask()}}, h.alive()
}

func setTraceMask(h *Handler, q url.Values) (object, error) {
	if !q.Has("traceMask") {
		return nil, reported("setTraceMask requires long traceMask argument")
	}
	mask, err := strconv.ParseInt(q.Get("traceMask"), 10, 64)
	if err != nil {
		return nil, reported("setTraceMask requires long traceMask argument, got " + q.Get("traceMask"))
	}
	if err := h.alive(); err != nil {
		return nil, err
	}
	h.report.SetTraceMask(mask)
	return traceMask(h, nil)
}

// hash lists the digests of the tree. They are comparable only between servers of this
// program, so they carry no digest_version, which names ZooKeeper's algorithm.
func hash(h *Handler, _ url.Values) (object, error) {
	digests := list{}
	for _, d := range h.report.Digests() {
		digests = append(digests, object{{"zxid", d.Zxid}, {"digest", int64(d.Digest)}})
	}
	return object{{"digests", digests}}, nil
}

func initialConfiguration(h *Handler, _ url.Values) (object, error) {
	return object{{"initial_configuration", masked(h.options.ZooCfg)}}, nil
}

// secret matches a line of a configuration file, or a comment there, that holds a password
// or the hash of one, with the lines on which it continues. ZooKeeper shows these, too.
var secret = regexp.MustCompile(`(?im)^(.*?(?:password|superDigest)(?:[ \t\f]|\\\r?\n)*[=: \t\f])(?:\\\r\n|\\(?s:.)|[^\\\n])*`)

func masked(zooCfg string) string { return secret.ReplaceAllString(zooCfg, "$1***") }

func isReadOnly(h *Handler, _ url.Values) (object, error) {
	return object{{"read_only", h.server.Status().ReadOnly}}, nil
}

func leader(h *Handler, _ url.Values) (object, error) {
	st := h.server.Status()
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

func monitor(h *Handler, _ url.Values) (o object, err error) {
	for _, l := range h.report.Monitor().Lines() {
		o.add(l.Key, number(l.Value))
	}
	return o, nil
}

func serverStats(h *Handler, _ url.Values) (object, error) {
	m, size := h.report.Monitor(), h.report.DataSize()
	buffers := func(last, least, most int64) object {
		return object{{"last_buffer_size", last}, {"min_buffer_size", least}, {"max_buffer_size", most}}
	}
	responses := buffers(m.LastReply, m.MinReply, m.MaxReply)
	least, mean, greatest := m.Latency()
	// ZooKeeper's fsync_threshold_exceed_count is missing: this server does not count that.
	o := object{
		{"version", m.Version},
		{"read_only", m.ReadOnly},
		{"server_stats", object{
			{"packets_sent", m.Sent},
			{"packets_received", m.Received},
			{"client_response_stats", responses},
			{"server_state", m.Role},
			{"provider_null", false},
			{"uptime", m.Uptime.Milliseconds()},
			{"outstanding_requests", m.Outstanding},
			{"min_latency", least},
			{"avg_latency", json.Number(mean)},
			{"max_latency", greatest},
			{"data_dir_size", size},
			{"log_dir_size", size},
			{"last_processed_zxid", m.Zxid},
			{"num_alive_client_connections", m.Connections},
			{"auth_failed_count", m.AuthFailed},
			{"non_mtlsremote_conn_count", m.Counter("non_mtls_remote_conn_count")},
			{"non_mtlslocal_conn_count", m.Counter("non_mtls_local_conn_count")},
		}},
		{"client_response", responses},
	}
	if q := m.Quorum; m.Role == "leader" && q != nil {
		o.add("proposal_stats", buffers(q.Last, q.Min, q.Max))
	}
	o.add("node_count", m.Znodes)
	return o, nil
}

func stats(h *Handler, q url.Values) (object, error) {
	o, err := serverStats(h, q)
	o.add("connections", h.clientConnections(true))
	o.add("secure_connections", list(nil))
	return o, err
}

func (h *Handler) servers() ([]proto.Peer, error) {
	c := h.report.Config()
	if c.Quorum == nil {
		return nil, nil
	}
	return proto.ParseServers(c.Members)
}

func votingView(h *Handler, _ url.Values) (object, error) {
	all, err := h.servers()
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

func watchSummary(h *Handler, _ url.Values) (object, error) {
	w := h.report.WatchCounts()
	return object{{"num_connections", w.Connections}, {"num_paths", w.Paths}, {"num_total_watches", w.Watches}}, nil
}

func watches(h *Handler, _ url.Values) (object, error) {
	all, err := h.report.Watches()
	sessions := object{}
	for _, g := range all.BySession() {
		sessions.add(strconv.FormatInt(signed(g.Head), 10), listOf(g.Items))
	}
	return object{{"session_id_to_watched_paths", sessions}}, err
}

func watchesByPath(h *Handler, _ url.Values) (object, error) {
	all, err := h.report.Watches()
	paths := object{}
	for _, g := range all.ByPath() {
		ids := list(nil)
		for _, id := range g.Items {
			ids = append(ids, signed(id))
		}
		paths.add(g.Head, ids)
	}
	return object{{"path_to_session_ids", paths}}, err
}

// signed returns the value of a session's id in hexadecimal as Java prints a long.
func signed(hex string) int64 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(hex, "0x"), 16, 64)
	return int64(n)
}

// zabState says in ZooKeeper's words what part this member plays. There is one phase, since
// Raft knows no others: a member that follows nobody has none.
func zabState(h *Handler, _ url.Values) (object, error) {
	st := h.server.Status()
	if st.Role == lockkeeper.RoleStandalone || !st.Serving {
		return object{{"voting", false}, {"zabstate", ""}}, nil
	}
	all, err := h.servers()
	i := slices.IndexFunc(all, func(s proto.Peer) bool { return s.ID == st.ID })
	if err != nil || i < 0 {
		return object{{"voting", false}, {"zabstate", ""}}, err
	}
	self := all[i]
	client := self.ClientAddr
	if addr := h.server.Addr(); addr != nil {
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
