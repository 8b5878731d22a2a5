// Package report is what a server says about itself: to those who send it four-letter words,
// and, as Go values, to package admin. Each number is computed once, by the methods of
// [Server]. Words, the commands and metrics of package admin and its console only show it.
//
// It is not part of the public API: most of it has ZooKeeper's shape and ZooKeeper's oddities,
// which may change with the release that lockkeeper follows. lockkeeper.Server promises what
// embedders need.
//
// A lockkeeper.Server embeds [InServer], so that only whoever can import this package can ask it:
//
//	report.Of(server).Connections() // server is a *lockkeeper.Server
package report

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Server is a server that reports. Its methods are safe for concurrent use, send nothing over
// a network, except for Sync, and may be called at any time, also while the server serves no
// clients. Those that list something let changes be applied meanwhile: a list of many sessions or
// watches does not show one moment, but has everything that was there all the time, unless a
// snapshot has replaced the state or a multi has failed meanwhile.
type Server interface {
	Monitor() *Monitor
	Config() *Config
	Environment() []Line
	// Persona returns the older line of ZooKeeper that clients see; nil is the newest.
	Persona() *persona.Persona
	// DataSize returns the total size of the files in the data directory in bytes, 0 if
	// there is none.
	DataSize() int64
	// DataDisk returns how many bytes this server may still write to the file system of the data
	// directory, and how many that holds in all; false if there is no directory or they are not known.
	DataDisk() (free, total uint64, ok bool)
	// Digests returns digests of the tree after transactions. They are comparable only between servers that run the same
	// version of this program.
	Digests() []fsm.TreeDigest

	// Connections returns all connections, the oldest first.
	Connections() []Connection
	// Clients returns the oldest connections in short. If there are more than [MaxClients], those
	// come first that one of the first [MaxFind] texts in find matches.
	Clients(find []string) ClientList
	// Sessions returns the sessions of the whole cluster with their ephemeral znodes. It
	// fails with [ErrTooLong].
	Sessions() (*Sessions, error)
	// Ephemerals returns the paths of all ephemeral znodes, in no particular order; some may be there
	// twice. It returns false if there are more than most.
	Ephemerals(most int) (paths []string, ok bool)
	WatchCounts() WatchCounts
	// Watches returns every pair of a session that is connected to this server and a path
	// that it watches, in no particular order. One that goes and comes back meanwhile may be there
	// twice. It fails with [ErrTooLong].
	Watches() (Watches, error)

	// EndConnections ends all connections whose clients have an identity, SCHEME:ID as in an ACL; of scheme digest also only
	// the name. It also ends those whose clients are proving one. The sessions go on. It fails if the text is none.
	EndConnections(identity string) (Ended, error)

	// ResetConnections resets the counts of all connections, and ResetCounts those of the
	// server.
	ResetConnections()
	ResetCounts()
	// TraceMask returns ZooKeeper's trace mask, which this server stores and does not use.
	TraceMask() int64
	SetTraceMask(int64)

	// Read carries out a read as a client in this process would that has not authenticated:
	// the ACLs decide what it gets, and it gets nothing while the server serves no clients, or
	// only those that authenticate. It must not set a watch. The error is a proto.Code,
	// [ErrNotServing] or [ErrTooLong].
	Read(op proto.OpCode, q, reply proto.Record) error
	// Search looks for znodes by their paths, for the same client as Read, and with its errors. It
	// finds a znode if this client may read all znodes above it.
	Search(Search) (Found, error)
	// Sync returns when this server has applied all that the cluster had acknowledged when
	// Sync was called. It waits at most for timeout, and then fails.
	Sync(timeout time.Duration) error
	// View calls f with the children of the state's znodes. Nothing is applied until f returns, so f must not take long.
	View(f func(Children))
	// Snapshot returns the state as it is now, whatever ACLs say. It is fast; nothing is copied unless it changes later. It
	// fails before the server first serves clients, and with the error with which the server has failed.
	Snapshot() (*fsm.Snapshot, error)
	// Follow tells f of all changes from now on until stop is called, or until f.Lost was
	// called. It returns false if the server does not serve clients that read and write. When
	// stop has returned, f is not called any more. stop must not be called from f.
	Follow(f Follower) (stop func(), ok bool)
}

// Children returns the names of a znode's children, whatever ACLs say, in no particular order. It returns
// false if the znode does not exist. The names are missing if there are more than most. They
// share memory with the data of the znodes, so that whoever keeps them copies them.
type Children func(path string, most int) (names []string, n int, ok bool)

// Follower is told of changes as they are applied. Its methods are called while the state is
// locked, so that they must neither block nor take long nor call [Server].
type Follower interface {
	// Changed is told what a command has changed. It must not keep the slice.
	Changed([]proto.Change)
	// Lost is called at most once, when changes may be missing or late from now on: the server
	// does not serve clients any more, or a snapshot has replaced the state.
	Lost()
}

// ErrTooLong is the error if a list would be longer than what the server may queue for a
// client.
var ErrTooLong = errors.New("the list is too long")

// ErrNotServing is the error of a read while the server serves no clients.
var ErrNotServing = errors.New("this server does not serve clients")

// Ended says which connections were ended.
type Ended struct {
	Connections int     // of clients with the identity
	Sessions    []int64 // theirs, sorted by id
}

// Line is a name with its value, as text.
type Line struct{ Key, Value string }

// Quorum describes a cluster.
type Quorum struct {
	Voters    int           // number of voting members
	Observer  bool          // this server is an observer
	PeerPort  int           // of this server
	Followers int           // on the leader: voting members that it is in contact with
	Observers int           // on the leader: observers that it is in contact with
	Leads     time.Duration // how long this server has been the leader; 0 if it is not
	// Lengths in bytes of the log entries that this server proposed as the leader: the last,
	// the shortest and the longest; -1 if it proposed none.
	Last, Min, Max int64
}

// Monitor has the numbers of the words srvr and mntr. Counts are since the server started or
// was last reset.
type Monitor struct {
	Version           string
	Serving, ReadOnly bool   // at most one is true
	Role              string // in the form that words use
	Quorum            *Quorum
	Uptime            time.Duration
	Applied
	Clients
	Work Work

	OpenFiles, MaxFiles int // file descriptors of this process; both 0 if they are not known

	Persona *persona.Persona // whose form the text has
}

// Work is what the replication of a server has done since the server started.
type Work struct {
	LogWrites stopwatch.Durations // writes of entries to the log, until they were durable
	Snapshots stopwatch.Durations // snapshots written, of its own or received from the leader
	Elections stopwatch.Durations // times without a leader, as far as this member knew; empty if it is standalone
	Commit    uint64              // index of the last log entry that it knows to be committed
	// Entries is how many log entries it has proposed for its own clients, and Commands how many
	// commands were in them.
	Entries, Commands int64
}

// Applied is the state that a server has applied, in numbers.
type Applied struct {
	Zxid       int64
	Znodes     int // ZooKeeper counts the root twice, and so does this
	Ephemerals int
	Sessions   int
	DataBytes  int64
	Quotas     []znode.QuotaTotal
}

// Clients has the numbers about the clients of a server.
type Clients struct {
	Connections, Watches               int
	Outstanding                        int64 // requests not answered yet
	Received, Sent                     int64 // requests; replies and watch events
	AuthFailed                         int64
	MinLatency, AvgLatency, MaxLatency time.Duration
	LastReply, MinReply, MaxReply      int64 // bytes; -1 if there was none
	TLSHandshakes                      int   // in progress
	Counters                           []Counter
	Exceeded                           []Counter // writes that a hard quota refused, by namespace
	StaleSessions                      int64     // that this server has expired
}

// Counter is one of ZooKeeper's ServerMetrics with its name in the word mntr, or another
// number with a name.
type Counter struct {
	Key   string
	Value int64
}

// Latency returns the smallest, mean and greatest latency in milliseconds. As in ZooKeeper,
// only the mean has decimal places; the others are rounded so that they enclose it.
func (m *Monitor) Latency() (least int64, mean string, greatest int64) {
	mean = decimal(float64(m.AvgLatency) / float64(time.Millisecond))
	if !m.Persona.Does(persona.DecimalLatency) {
		mean, _, _ = strings.Cut(mean, ".")
	}
	return m.MinLatency.Milliseconds(), mean,
		(m.MaxLatency + time.Millisecond - 1).Milliseconds()
}

// decimal formats a number as ZooKeeper does, with one to four decimal places.
func decimal(v float64) string {
	t := strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64)
	if !strings.Contains(t, ".") {
		t += ".0"
	}
	return t
}

// Lines returns the lines of the word mntr without the prefix zk_.
func (m *Monitor) Lines() (all []Line) {
	text := func(key, value string) {
		if key, ok := m.Persona.MonitorKey(key); ok {
			all = append(all, Line{key, value})
		}
	}
	number := func(key string, value int64) { text(key, strconv.FormatInt(value, 10)) }
	text("version", m.Version)
	text("server_state", m.Role)
	if doing := map[string]string{"leader": "leading", "follower": "following", "observer": "observing"}[m.Role]; doing != "" {
		text("peer_state", doing+" - broadcast")
	}
	switch q := m.Quorum; {
	case q == nil:
	case m.Role == "leader":
		number("quorum_size", int64(q.Voters))
		number("learners", int64(q.Followers+q.Observers))
		number("synced_followers", int64(q.Followers))
		number("synced_non_voting_followers", 0) // only observers do not vote
		number("synced_observers", int64(q.Observers))
		number("pending_syncs", 0) // the leader keeps no queue of syncs
		number("leader_uptime", q.Leads.Milliseconds())
		number("last_proposal_size", q.Last)
		number("min_proposal_size", q.Min)
		number("max_proposal_size", q.Max)
	default:
		number("quorum_size", int64(q.Voters))
		number("synced_observers", 0) // observers follow only the leader
	}
	least, mean, greatest := m.Latency()
	number("ephemerals_count", int64(m.Ephemerals))
	number("num_alive_connections", int64(m.Connections))
	text("avg_latency", mean)
	number("outstanding_requests", m.Outstanding)
	number("znode_count", int64(m.Znodes))
	number("global_sessions", int64(m.Sessions))
	number("last_client_response_size", m.LastReply)
	number("packets_sent", m.Sent)
	number("packets_received", m.Received)
	number("max_client_response_size", m.MaxReply)
	number("watch_count", int64(m.Watches))
	number("auth_failed_count", m.AuthFailed)
	number("min_latency", least)
	if m.MaxFiles != 0 || m.OpenFiles != 0 {
		number("max_file_descriptor_count", int64(m.MaxFiles))
		number("open_file_descriptor_count", int64(m.OpenFiles))
	}
	number("approximate_data_size", m.DataBytes)
	number("local_sessions", 0)
	number("uptime", m.Uptime.Milliseconds())
	number("max_latency", greatest)
	number("min_client_response_size", m.MinReply)
	for _, c := range m.Counters {
		number(c.Key, c.Value)
	}
	number("commit_count", int64(m.Work.Commit))
	number("looking_count", m.Work.Elections.Count)
	for _, x := range []struct {
		key string
		d   stopwatch.Durations
	}{{"election_time", m.Work.Elections}, {"fsynctime", m.Work.LogWrites}, {"snapshottime", m.Work.Snapshots}} {
		text("avg_"+x.key, decimal(float64(x.d.Sum)/float64(time.Millisecond)/float64(max(x.d.Count, 1))))
		number("cnt_"+x.key, x.d.Count)
		number("sum_"+x.key, x.d.Sum.Milliseconds())
	}
	number("stale_sessions_expired", m.StaleSessions)
	number("outstanding_tls_handshake", int64(m.TLSHandshakes))
	text("connection_drop_probability", "0.0") // connections are never dropped at random
	for _, q := range m.Quotas {
		for _, x := range []struct {
			key   string
			value *int64
		}{
			{"count_limit", q.CountLimit}, {"bytes_limit", q.BytesLimit}, {"count_usage", q.CountUsage}, {"bytes_usage", q.BytesUsage},
		} {
			if x.value != nil {
				number(q.Namespace+"_quota_"+x.key+"_per_namespace", *x.value)
			}
		}
	}
	for _, c := range m.Exceeded {
		number(c.Key+"_quota_exceeded_error_per_namespace", c.Value)
	}
	return all
}

// Counter returns the value of one of m.Counters.
func (m *Monitor) Counter(key string) int64 {
	i := slices.IndexFunc(m.Counters, func(c Counter) bool { return c.Key == key })
	return m.Counters[i].Value
}

// Config is what the word conf shows of a configuration.
type Config struct {
	ID                                   uint64
	ClientPort, SecurePort               int // -1 if there is none
	DataDir                              string
	DataSize                             int64 // bytes
	Tick                                 time.Duration
	MaxConnsPerAddr                      int
	MinSessionTimeout, MaxSessionTimeout time.Duration
	Quorum                               *Quorum // nil if the server is standalone
	ElectionPort                         int     // of this server; 0 if it is no member yet or any more
	Members                              string  // of the cluster, in ZooKeeper's form
}

// Connection is a connection of a client.
type Connection struct {
	Number   uint64 // no other connection of this server has it
	Addr     string // of the client, as ZooKeeper's words show it
	Since    time.Time
	Session  int64 // 0 if it has none yet
	Timeout  time.Duration
	Deadline time.Time // if it has no session: when it is closed unless it gets one

	// Since it was made or last reset.
	Queued         int // requests
	Received, Sent int64
	Answered       int64 // requests of which the latency is known
	Last           Request
	MinLatency     time.Duration
	AvgLatency     time.Duration
	MaxLatency     time.Duration
}

// Request is the request of a connection that was answered last.
type Request struct {
	Op      string // as proto.Op.Short; NA if there was none
	Cxid    int32  // -1 if there was none
	Zxid    int64
	At      time.Duration // when it was answered, since the server was started
	Latency time.Duration
}

// Session is a session of the cluster.
type Session struct {
	ID         int64
	Timeout    time.Duration
	Owner      uint64   // id of the server to which its client is connected, or was last
	Ephemerals []string // paths
}

// Sessions are the sessions of the cluster.
type Sessions struct {
	// Tracked says that this server decides when sessions expire: it is the leader, or
	// standalone.
	Tracked bool
	// Expiring has the sessions by the time when they expire unless their clients are heard
	// from, as far as this server knows, the earliest first.
	Expiring []session.Bucket
	All      []Session // in order of their ids
}

// WatchCounts are how many connections have watches, how many paths are watched, and how
// many watches there are.
type WatchCounts struct{ Connections, Paths, Watches int }

// Watch is a path that a session watches.
type Watch struct {
	Session int64
	Path    string
}

// Watches are watches in any order.
type Watches []Watch

// Group has the paths that a session watches, or the sessions that watch a path.
type Group struct {
	Head  string
	Items []string
}

// BySession returns the paths that each session watches, in the order of the word wchc.
func (w Watches) BySession() []Group {
	return w.group(func(id, path string) (string, string) { return id, path })
}

// ByPath returns the sessions that watch each path, in the order of the word wchp.
func (w Watches) ByPath() []Group {
	return w.group(func(id, path string) (string, string) { return path, id })
}

func (w Watches) group(order func(id, path string) (head, item string)) (all []Group) {
	lists := map[string]int{}
	for _, x := range w {
		head, item := order(session.FormatID(x.Session), x.Path)
		i, ok := lists[head]
		if !ok {
			i = len(all)
			lists[head] = i
			all = append(all, Group{Head: head})
		}
		all[i].Items = append(all[i].Items, item)
	}
	slices.SortFunc(all, func(a, b Group) int { return cmp.Compare(a.Head, b.Head) })
	for i := range all {
		slices.Sort(all[i].Items)
		all[i].Items = slices.Compact(all[i].Items)
	}
	return all
}

// InServer leads to what a lockkeeper.Server reports.
type InServer struct {
	server Server
	ask    AskClients
}

// New returns what Of and Beside find.
func New(s Server, ask AskClients) InServer { return InServer{s, ask} }

func (s *InServer) of() Server         { return s.server }
func (s *InServer) beside() AskClients { return s.ask }

// Of returns what a *lockkeeper.Server says about itself.
func Of(server interface{ of() Server }) Server { return server.of() }

// Beside returns what asks the other members of the cluster of a *lockkeeper.Server.
func Beside(server interface{ beside() AskClients }) AskClients { return server.beside() }
