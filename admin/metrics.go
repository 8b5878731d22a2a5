package admin

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// handler returns the handler of /metrics, which has a registry of its own: a program may
// have several servers and metrics of its own.
func (c *Collector) handler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// zooMetric is a metric of ZooKeeper that the word mntr shows (ServerMetrics, and
// registerMetrics of the classes of servers).
type zooMetric struct {
	kind prometheus.ValueType // in ZooKeeper: a gauge or a counter
	help string
}

// zooMetrics are ZooKeeper's metrics under the names of its PrometheusMetricsProvider,
// which are those of the word mntr without zk_. Times are in milliseconds, as in ZooKeeper.
var zooMetrics = map[string]zooMetric{
	"quorum_size":                           {gauge, "Voting members of the cluster."},
	"learners":                              {gauge, "Members that follow this leader."},
	"synced_followers":                      {gauge, "Voting members that follow this leader."},
	"synced_non_voting_followers":           {gauge, "Always 0: only observers do not vote."},
	"synced_observers":                      {gauge, "Observers that follow this leader."},
	"pending_syncs":                         {gauge, "Always 0: a sync waits in the log."},
	"leader_uptime":                         {gauge, "How long this member has been the leader, in milliseconds."},
	"last_proposal_size":                    {gauge, "Bytes of the last entry that this leader proposed; -1 if there is none."},
	"min_proposal_size":                     {gauge, "Bytes of the smallest entry that this leader proposed; -1 if there is none."},
	"max_proposal_size":                     {gauge, "Bytes of the largest entry that this leader proposed; -1 if there is none."},
	"ephemerals_count":                      {gauge, "Ephemeral znodes."},
	"num_alive_connections":                 {gauge, "Connections of clients to this server."},
	"avg_latency":                           {gauge, "Mean time to answer a request since the last reset, in milliseconds."},
	"min_latency":                           {gauge, "Shortest time to answer a request since the last reset, in milliseconds."},
	"max_latency":                           {gauge, "Longest time to answer a request since the last reset, in milliseconds."},
	"outstanding_requests":                  {gauge, "Requests to this server that are not answered yet."},
	"znode_count":                           {gauge, "Znodes; ZooKeeper counts the root twice."},
	"global_sessions":                       {gauge, "Sessions in the whole cluster."},
	"local_sessions":                        {gauge, "Always 0: there are no local sessions."},
	"last_client_response_size":             {gauge, "Bytes of the last reply; -1 if there is none."},
	"min_client_response_size":              {gauge, "Bytes of the smallest reply; -1 if there is none."},
	"max_client_response_size":              {gauge, "Bytes of the largest reply; -1 if there is none."},
	"packets_sent":                          {gauge, "Replies and watch events sent since the last reset."},
	"packets_received":                      {gauge, "Requests received since the last reset."},
	"watch_count":                           {gauge, "Watches of this server's clients."},
	"auth_failed_count":                     {gauge, "Authentications that failed."},
	"max_file_descriptor_count":             {gauge, "File descriptors that the process may have."},
	"open_file_descriptor_count":            {gauge, "File descriptors that the process has open."},
	"approximate_data_size":                 {gauge, "Bytes of all paths and data."},
	"uptime":                                {gauge, "How long this server has been running, in milliseconds."},
	"connection_request_count":              {counter, "Requests for a session, new or resumed."},
	"connection_revalidate_count":           {counter, "Requests to resume a session."},
	"connection_rejected":                   {counter, "Connections refused because of a limit."},
	"connection_drop_count":                 {counter, "Connections that have ended, also those of four-letter words."},
	"sessionless_connections_expired":       {counter, "Connections closed because their handshake took too long."},
	"cnxn_closed_without_zk_server_running": {counter, "Connections closed because this server was not serving."},
	"bytes_received_count":                  {counter, "Bytes of requests."},
	"response_bytes":                        {counter, "Bytes of replies."},
	"watch_bytes":                           {counter, "Bytes of watch events."},
	"non_mtls_local_conn_count":             {gauge, "Connections without TLS from this machine since the last reset."},
	"non_mtls_remote_conn_count":            {gauge, "Connections without TLS from other machines since the last reset."},
	"throttled_ops":                         {counter, "Requests answered with ThrottledOp."},
	"unsuccessful_handshake":                {counter, "TLS handshakes that failed."},
	"tls_handshake_exceeded":                {counter, "TLS handshakes ended because of the limit on them."},
	"commit_count":                          {counter, "Index of the last log entry that this server knows to be committed."},
	"looking_count":                         {counter, "Times that this server had no leader or a new one."},
	"election_time_count":                   {counter, "Times that this server had no leader or a new one."},
	"election_time_sum":                     {counter, "How long this server had no leader, in milliseconds."},
	"fsynctime_count":                       {counter, "Writes to the log."},
	"fsynctime_sum":                         {counter, "Time to write entries to the log until they are durable, in milliseconds."},
	"snapshottime_count":                    {counter, "Snapshots written."},
	"snapshottime_sum":                      {counter, "Time to write snapshots, in milliseconds."},
	"stale_sessions_expired":                {counter, "Sessions that this server has expired since the last reset."},
	"outstanding_tls_handshake":             {gauge, "TLS handshakes in progress."},
	"connection_drop_probability":           {gauge, "Always 0: connections are not dropped at random."},
	"quota_count_limit_per_namespace":       {gauge, "Quota on znodes, by top-level znode."},
	"quota_bytes_limit_per_namespace":       {gauge, "Quota on bytes, by top-level znode."},
	"quota_count_usage_per_namespace":       {gauge, "Znodes below a quota, by top-level znode."},
	"quota_bytes_usage_per_namespace":       {gauge, "Bytes below a quota, by top-level znode."},
	"quota_exceeded_error_per_namespace":    {counter, "Writes that a quota refused, by top-level znode."},
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// exposedAs returns the type with which a metric of ZooKeeper is exposed: its own, unless its
// name then breaks Prometheus' naming rules, on which promtool insists. Counters end in
// _total, and only parts of histograms and summaries end in _count.
func (m zooMetric) exposedAs(name string) prometheus.ValueType {
	if m.kind == counter || strings.HasSuffix(name, "_count") {
		return prometheus.UntypedValue
	}
	return m.kind
}

// Metrics of lockkeeper itself.
var (
	buildInfo = desc("build_info", "The version of lockkeeper and of Go; the value is 1.", "version", "goversion")
	ofCluster = desc("cluster_info", "The id of the cluster that this server is in; the value is 1.", "id")
	serving   = desc("serving", "Whether this server serves clients that read and write.")
	readOnly  = desc("read_only", "Whether this server serves only clients that accept read-only mode.")
	role      = desc("role", "The role of this server: 1 for the role that it has.", "role")
	leaderID  = desc("leader_id", "The id of the leader; 0 if this server knows of none.")
	members   = desc("members", "Members of the cluster, as this server knows them.", "type")
	contacts  = desc("leader_contacts", "On the leader: other members with which it is in contact.", "type")
	differs   = desc("member_differs_index", "On the leader: the index of the first log entry at which the state of a member was seen to differ from the leader's; 0 if it does not differ.", "member")
	term      = desc("raft_term", "Raft's term.")
	applied   = desc("raft_applied_index", "The index of the last log entry that this server has applied.")
	committed = desc("raft_commit_index", "The index of the last log entry that this server knows to be committed.")
	logWrites = desc("log_write_seconds", "Time to write entries to the log until they are durable.")
	snapshots = desc("snapshot_write_seconds", "Time to write a snapshot, of this server or received from the leader.")
	handovers = desc("handover_seconds", "Time from the event that tells a client that the znode before its own in the queue of a lock is gone, until the client reads the queue.")
	proposed  = desc("proposed_entries_total", "Log entries that this server has proposed for its clients.")
	batched   = desc("proposed_commands_total", "Commands in those entries.")
	storeSize = desc("store_size_bytes", "Total size of the files in the data directory.")
	diskFree  = desc("data_disk_free_bytes", "Bytes that this server may still write to the file system of the data directory.")
	diskSize  = desc("data_disk_size_bytes", "Size of the file system of the data directory.")
	expired   = desc("sessions_expired_total", "Sessions that this server, as the leader, has expired since it started.")
	upSeconds = desc("uptime_seconds", "How long this server has been running.")
	tlsEnd    = desc("tls_certificate_seconds", "Time until the first of the certificates ends that this server presents; negative after that.", "for")
	tlsCRL    = desc("tls_crl_seconds", "Time until the first list of revoked certificates ends; negative after that.", "for")
	fileReads = desc("file_reloads_total", "Times that changed files were put to use.", "for")
	fileFails = desc("file_reload_failures_total", "Times that changed files could not be used.", "for")
	filesBad  = desc("files_refused", "Whether the files as they are now cannot be used: what was read before stays in use.", "for")
	auditRows = desc("audit_lines_total", "Lines of the audit log that were written.")
	auditLost = desc("audit_lines_dropped_total", "Lines of the audit log that were dropped: the disk was too slow, or could not be written.")
	answered  = desc("mntr_answered", "Whether the server answers the word mntr; otherwise ZooKeeper's metrics are missing.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lockkeeper_"+name, help, labels, nil)
}

// Collector is a [prometheus.Collector] with the metrics of a server, for a registry that has
// metrics of the program, too: those of docs/admin.md, apart from the metrics of Go and of the
// process, whose names begin with go_ and process_. ZooKeeper's metrics have ZooKeeper's names,
// such as znode_count. For several servers in one registry, or for a prefix, register each with
// prometheus.WrapRegistererWith or WrapRegistererWithPrefix.
//
// It is safe for concurrent use. It measures how long locks are waited for and held from its
// first scrape on, until there was no scrape for ten minutes, and has one goroutine meanwhile,
// which ends with the server, or when the Collector is closed. A [Handler] has its own.
type Collector struct {
	server *lockkeeper.Server
	report report.Server
	locks  *lockMeter
	files  func() []FileState  // Options.Files, or nil
	audit  func() *AuditCounts // Options.Audit, or nil
}

// NewCollector returns a Collector of the metrics of a server.
func NewCollector(s *lockkeeper.Server) *Collector {
	r := report.Of(s)
	return &Collector{server: s, report: r, locks: newLockMeter(r)}
}

// Close ends the measurement of locks. The Collector may still be used; the gauges of locks are
// missing then. It may be called more than once.
func (c *Collector) Close() { c.locks.close() }

// Describe implements [prometheus.Collector]. It sends nothing, since the metrics of ZooKeeper
// depend on the role and on quotas.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector]. It sends nothing to other servers, and also works
// after the server was closed.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	m := c.report.Monitor()
	running := m.Serving || m.ReadOnly
	if running {
		c.zooKeeper(m.Lines(), send)
	}
	send(answered, gauge, one(running))

	st := c.server.Status()
	send(buildInfo, gauge, 1, lockkeeper.Version, runtime.Version())
	if st.Cluster.ID != "" {
		send(ofCluster, gauge, 1, st.Cluster.ID)
	}
	send(serving, gauge, one(st.Serving))
	send(readOnly, gauge, one(st.ReadOnly))
	for _, r := range []lockkeeper.Role{lockkeeper.RoleStandalone, lockkeeper.RoleLeader, lockkeeper.RoleFollower, lockkeeper.RoleObserver, lockkeeper.RoleLooking} {
		send(role, gauge, one(st.Role == r), r.String())
	}
	send(upSeconds, gauge, st.Uptime.Seconds())
	send(term, gauge, float64(st.State.Term))
	send(applied, gauge, float64(st.State.Index))
	send(expired, counter, float64(st.Clients.Expired))
	w := c.server.Stats()
	send(committed, gauge, float64(w.Commit))
	send(proposed, counter, float64(w.Entries))
	send(batched, counter, float64(w.Commands))
	to <- histogram(logWrites, w.LogWrites)
	to <- histogram(snapshots, w.Snapshots)
	to <- histogram(handovers, w.Handovers)
	c.locks.collect(to)
	if c.audit != nil {
		if n := c.audit(); n != nil {
			send(auditRows, counter, float64(n.Lines))
			send(auditLost, counter, float64(n.Dropped))
		}
	}
	if c.files != nil {
		for _, f := range c.files() {
			if !f.End.IsZero() {
				send(tlsEnd, gauge, time.Until(f.End).Seconds(), f.Use)
			}
			if !f.CRLEnd.IsZero() {
				send(tlsCRL, gauge, time.Until(f.CRLEnd).Seconds(), f.Use)
			}
			send(fileReads, counter, float64(f.Reloads), f.Use)
			send(fileFails, counter, float64(f.Failures), f.Use)
			send(filesBad, gauge, one(f.Refused), f.Use)
		}
	}
	if running {
		send(storeSize, gauge, float64(c.report.DataSize()))
	}
	if free, total, ok := c.report.DataDisk(); ok {
		send(diskFree, gauge, float64(free))
		send(diskSize, gauge, float64(total))
	}
	if st.Role == lockkeeper.RoleStandalone {
		return
	}
	send(leaderID, gauge, float64(st.Cluster.Leader))
	voters, observers := 0, 0
	for _, m := range st.Cluster.Members {
		if m.Observer {
			observers++
		} else {
			voters++
		}
	}
	send(members, gauge, float64(voters), "voter")
	send(members, gauge, float64(observers), "observer")
	if st.Role == lockkeeper.RoleLeader {
		send(contacts, gauge, float64(st.Cluster.Followers), "voter")
		send(contacts, gauge, float64(st.Cluster.Observers), "observer")
		for _, m := range st.Cluster.Members {
			if m.ID != st.ID {
				send(differs, gauge, float64(differsAt(st.Cluster.Differs, m.ID)), strconv.FormatUint(m.ID, 10))
			}
		}
	}
}

// zooKeeper sends ZooKeeper's metrics. A line of mntr about a quota begins with the
// namespace, which ZooKeeper's provider has as the label "key".
func (c *Collector) zooKeeper(mntr []report.Line, send func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	for _, l := range mntr {
		value, err := strconv.ParseFloat(l.Value, 64)
		if err != nil {
			continue // a text, such as the version
		}
		name, labels, values := l.Key, []string(nil), []string(nil)
		if strings.HasSuffix(name, "_per_namespace") {
			i := strings.LastIndex(name, "_quota_")
			if i < 0 {
				continue
			}
			labels, values, name = []string{"key"}, []string{strings.ToValidUTF8(name[:i], "\uFFFD")}, name[i+1:]
		}
		for prefix, suffix := range map[string]string{"cnt_": "_count", "sum_": "_sum"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok { // a summary in ZooKeeper's provider
				name = rest + suffix
			}
		}
		m, ok := zooMetrics[name]
		if !ok {
			continue // TestMetricsOfMntr finds such lines
		}
		send(prometheus.NewDesc(name, m.help, labels, nil), m.exposedAs(name), value, values...)
	}
}

func histogram(d *prometheus.Desc, times lockkeeper.Durations) prometheus.Metric {
	buckets := map[float64]uint64{}
	for most, n := range times.Buckets {
		buckets[float64(most)/float64(time.Second)] = uint64(n)
	}
	return prometheus.MustNewConstHistogram(d, uint64(times.Count), times.Sum.Seconds(), buckets)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
