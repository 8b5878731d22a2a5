package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// words are the four-letter words. A client sends one where the length of the first
// frame is expected. The server answers with text and closes the connection
// (ZooKeeper's package server.command).
var words = map[string]func(s *Server, c *conn, b *text){
	"ruok": func(_ *Server, _ *conn, b *text) { b.WriteString("imok") },
	"isro": isro,
	"srvr": srvr,
	"stat": stat,
	"mntr": mntr,
	"conf": conf,
	"cons": cons,
	"dirs": dirs,
	"envi": envi,
	"wchs": wchs,
	"wchc": wchc,
	"wchp": wchp,
	"dump": dump,
	"hash": hash,
	"gtmk": gtmk,
	"stmk": stmk,
	"crst": func(s *Server, _ *conn, b *text) {
		for _, c := range s.connections() {
			c.stats.reset()
		}
		b.WriteString("Connection stats reset.\n")
	},
	"srst": func(s *Server, _ *conn, b *text) {
		s.stats.resetAll()
		s.stats.staleBase.Store(s.cfg.Proposer.Expired())
		s.cfg.Proposer.ResetProposals()
		b.WriteString("Server stats reset.\n")
	},
}

// text is the answer to a word. A write that would make it longer than limit sets
// full instead; from then on nothing is added.
type text struct {
	b     []byte
	limit int
	full  bool
}

func (t *text) Write(p []byte) (int, error) {
	if t.full = t.full || len(t.b)+len(p) > t.limit; !t.full {
		t.b = append(t.b, p...)
	}
	return len(p), nil
}

func (t *text) WriteString(s string) {
	if t.full = t.full || len(t.b)+len(s) > t.limit; !t.full {
		t.b = append(t.b, s...)
	}
}

// alwaysAnswered are the words that a server answers even while it serves no clients.
var alwaysAnswered = []string{"ruok", "isro", "envi", "gtmk", "stmk"}

func fourLetters(length uint32) string {
	return string(binary.BigEndian.AppendUint32(nil, length))
}

func (s *Server) knows(word string) bool { return words[word] != nil }

// allows reports whether the configuration allows a word. srvr is always allowed. So
// is isro if read-only mode is enabled, because clients in read-only mode use it to
// find a server that accepts writes.
func (s *Server) allows(word string) bool {
	allowed := s.cfg.FourLetterWords
	return word == "srvr" || word == "isro" && s.cfg.ReadOnly || slices.Contains(allowed, word) || slices.Contains(allowed, "*")
}

// operators is implemented by a connection of the program itself, over which package admin asks
// for its operators. It gets every word, as ZooKeeper's AdminServer has every command whatever
// 4lw.commands.whitelist says.
type operators interface{ ForOperators() }

func (s *Server) answer(c *conn, word string) {
	b := text{limit: s.cfg.OutboxBytes}
	_, operator := c.nc.(operators)
	switch {
	case !operator && !s.allows(word):
		fmt.Fprintf(&b, "%s is not executed because it is not in the whitelist.\n", word)
	case !s.isServing() && !s.isReadOnly() && !slices.Contains(alwaysAnswered, word):
		b.WriteString("This ZooKeeper instance is not currently serving requests\n")
	default:
		c.stats.received.Add(1)
		words[word](s, c, &b)
	}
	if b.full {
		c.warn("closing a connection: the answer to its word is too long", "word", word, "limit", b.limit)
		return
	}
	c.nc.SetWriteDeadline(time.Now().Add(s.cfg.HandshakeTimeout))
	c.nc.Write(b.b)
	if c.halfClose() {
		c.discard() // at least the newline that many programs send after the word
	}
}

func isro(s *Server, _ *conn, b *text) {
	switch {
	case s.isServing():
		b.WriteString("rw")
	case s.isReadOnly():
		b.WriteString("ro")
	default:
		b.WriteString("null")
	}
}

func (s *Server) version() string { return s.cfg.Version + ", built on " + s.cfg.Built + " UTC" }

// heading writes the first lines of srvr and stat.
func (s *Server) heading(b *text) {
	fmt.Fprintf(b, "Zookeeper version: %s\n", s.version())
	if s.isReadOnly() {
		b.WriteString("READ-ONLY mode; serving only read-only clients\n")
	}
}

func srvr(s *Server, _ *conn, b *text) {
	s.heading(b)
	s.counts(b)
}

func stat(s *Server, self *conn, b *text) {
	s.heading(b)
	b.WriteString("Clients:\n")
	for _, c := range s.connections() {
		c.brief(b, self)
		b.WriteString(")\n")
	}
	b.WriteString("\n")
	s.counts(b)
}

// brief writes what stat and cons both show of a connection, without the closing
// parenthesis. self is the connection that sent the word.
func (c *conn) brief(b *text, self *conn) {
	interest := 1
	if c == self {
		interest = 0
	}
	c.mu.Lock()
	queued := c.queued()
	c.mu.Unlock()
	fmt.Fprintf(b, " /%s[%d](queued=%d,recved=%d,sent=%d", c.shown(), interest, queued, c.stats.received.Load(), c.stats.sent.Load())
}

func cons(s *Server, self *conn, b *text) {
	for _, c := range s.connections() {
		c.brief(b, self)
		if id, timeout := s.sessionOf(c); id != 0 {
			c.stats.mu.Lock()
			last, n, sum, least, most := c.stats.last, c.stats.n, c.stats.sum, c.stats.min, c.stats.max
			c.stats.mu.Unlock()
			if n == 0 {
				last, least, n = lastRequest{op: "NA", cxid: -1, at: s.start}, 0, 1
			}
			fmt.Fprintf(b, ",sid=%s,lop=%s,est=%d,to=%d", session.FormatID(id), last.op, c.since.UnixMilli(), timeout)
			if last.cxid >= 0 {
				fmt.Fprintf(b, ",lcxid=0x%x", last.cxid)
			}
			fmt.Fprintf(b, ",lzxid=0x%x,lresp=%d,llat=%d,minlat=%d,avglat=%d,maxlat=%d", uint64(last.zxid),
				last.at.Sub(s.start).Milliseconds(), last.latency/1000, least/1000, sum/n/1000, most/1000)
		}
		b.WriteString(")\n")
	}
	b.WriteString("\n")
}

// sessionOf returns a connection's session, 0 if it has none yet, and its timeout in ms.
func (s *Server) sessionOf(c *conn) (id int64, timeout int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.session, c.timeout
}

func wchs(s *Server, _ *conn, b *text) {
	s.cfg.Replica.View(func(v *fsm.View) {
		connections, paths, watches := v.WatchCounts()
		fmt.Fprintf(b, "%d connections watching %d paths\nTotal watches:%d\n", connections, paths, watches)
	})
}

// wchc lists the paths that each session watches, and wchp the sessions that watch
// each path. Both include watches on children, which ZooKeeper omits.

func wchc(s *Server, _ *conn, b *text) {
	s.watches(b, func(id, path string) (string, string) { return id, path })
}

func wchp(s *Server, _ *conn, b *text) {
	s.watches(b, func(id, path string) (string, string) { return path, id })
}

// Watches calls f for every pair of a session and a path that it watches, in no
// particular order, until f returns false.
func (s *Server) Watches(v *fsm.View, f func(session int64, path string) bool) {
	v.Watches(func(w fsm.Watcher, path string) bool { return f(w.(*conn).session, path) })
}

func (s *Server) watches(b *text, order func(id, path string) (head, item string)) {
	lists := map[string][]string{}
	room := b.limit
	s.cfg.Replica.View(func(v *fsm.View) {
		s.Watches(v, func(id int64, path string) bool {
			head, item := order(session.FormatID(id), path)
			lists[head] = append(lists[head], item)
			room -= len(item) + len("\t\n")
			return room >= 0
		})
	})
	if b.full = room < 0; b.full {
		return
	}
	for _, head := range slices.Sorted(maps.Keys(lists)) {
		fmt.Fprintf(b, "%s\n", head)
		slices.Sort(lists[head])
		for _, item := range lists[head] {
			fmt.Fprintf(b, "\t%s\n", item)
		}
	}
	b.WriteString("\n")
}

// dump lists the sessions by the time at which they will expire, the ephemeral znodes
// of each session, and the connections by the time at which they will be closed: with
// their session, or, without a session, when the time for the handshake is over.
func dump(s *Server, _ *conn, b *text) {
	ends := map[int64]int64{} // deadline by session id, in ms
	sessions := s.cfg.Proposer.Deadlines()
	for _, bucket := range sessions {
		for _, id := range bucket.Sessions {
			ends[id] = bucket.Deadline
		}
	}
	b.WriteString("SessionTracker dump:\n")
	switch s.cfg.Proposer.Role() {
	case "leader", "standalone":
		fmt.Fprintf(b, "Session Sets (%d)/(%d):\n", len(sessions), len(ends))
		for _, bucket := range sessions {
			expireAt(b, len(bucket.Sessions), bucket.Deadline)
			for _, id := range bucket.Sessions {
				fmt.Fprintf(b, "\t%s\n", session.FormatID(id))
			}
		}
	default: // only the leader knows when sessions expire (LearnerSessionTracker)
		s.cfg.Replica.View(func(v *fsm.View) {
			all := v.Sessions().All()
			fmt.Fprintf(b, "Global Sessions(%d):\n", len(all))
			for _, x := range all {
				fmt.Fprintf(b, "%s\t%dms\n", session.FormatID(x.ID), x.Timeout)
			}
		})
	}

	b.WriteString("ephemeral nodes dump:\n")
	s.cfg.Replica.View(func(v *fsm.View) {
		lists := text{limit: b.limit - len(b.b)}
		owners := 0
		for _, owner := range v.Sessions().All() {
			paths := v.Tree().EphemeralsOf(owner.ID, "")
			if len(paths) == 0 {
				continue
			}
			owners++
			fmt.Fprintf(&lists, "%s:\n", session.FormatID(owner.ID))
			for _, path := range paths {
				fmt.Fprintf(&lists, "\t%s\n", path)
			}
			if b.full = b.full || lists.full; b.full {
				return
			}
		}
		fmt.Fprintf(b, "Sessions with Ephemerals (%d):\n%s", owners, lists.b)
	})

	if b.full {
		return
	}
	b.WriteString("Connections dump:\n")
	conns := s.connections()
	lines := map[int64][]string{} // by deadline, rounded down to a second
	for _, c := range conns {
		id, _ := s.sessionOf(c)
		end, ok := ends[id]
		switch {
		case id == 0:
			end = c.since.Add(s.cfg.HandshakeTimeout).UnixMilli()
		case !ok: // the session has just ended
			end = s.cfg.TimeOfDay().UnixMilli()
		}
		end -= end % 1000
		lines[end] = append(lines[end], fmt.Sprintf("\tip: /%s sessionId: %s\n", c.shown(), session.FormatID(id)))
	}
	fmt.Fprintf(b, "Connections Sets (%d)/(%d):\n", len(lines), len(conns))
	for _, end := range slices.Sorted(maps.Keys(lines)) {
		expireAt(b, len(lines[end]), end)
		b.WriteString(strings.Join(lines[end], ""))
	}
}

// expireAt writes the heading of n entries that expire at a time in ms since the
// epoch, with the date in Java's format, as ExpiryQueue.dump does.
func expireAt(b *text, n int, end int64) {
	fmt.Fprintf(b, "%d expire at %s:\n", n, time.UnixMilli(end).Format("Mon Jan 02 15:04:05 MST 2006"))
}

// hash lists digests of the tree, one after every 128th transaction. Digests are
// comparable only between servers that run the same version of this program.
func hash(s *Server, _ *conn, b *text) {
	var digests []fsm.TreeDigest
	s.cfg.Replica.View(func(v *fsm.View) { digests = v.Digests() })
	for _, d := range digests {
		fmt.Fprintf(b, "%x: %d\n", uint64(d.Zxid), int64(d.Digest))
	}
}

// gtmk and stmk get and set ZooKeeper's trace mask. This server stores the mask but
// traces nothing.

func gtmk(s *Server, _ *conn, b *text) { fmt.Fprint(b, s.traceMask.Load()) }

func stmk(s *Server, c *conn, b *text) {
	var mask [8]byte
	if _, err := io.ReadFull(c.r, mask[:]); err != nil {
		return // no answer, as from ZooKeeper
	}
	s.traceMask.Store(int64(binary.BigEndian.Uint64(mask[:])))
	gtmk(s, c, b)
}

// defaultTraceMask is the default in ZooKeeper's class ZooTrace.
const defaultTraceMask = 306

func dirs(s *Server, _ *conn, b *text) {
	size := dirSize(s.cfg.DataDir)
	fmt.Fprintf(b, "datadir_size: %d\nlogdir_size: %d\n", size, size)
}

// envi lists the properties that ZooKeeper lists, except those of Java.
func envi(s *Server, _ *conn, b *text) {
	host, _ := os.Hostname()
	home, _ := os.UserHomeDir()
	dir, _ := os.Getwd()
	name := "<NA>"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	fmt.Fprintf(b, "Environment:\nzookeeper.version=%s\nhost.name=%s\ngo.version=%s\nos.name=%s\nos.arch=%s\nuser.name=%s\nuser.home=%s\nuser.dir=%s\n",
		s.version(), host, runtime.Version(), runtime.GOOS, runtime.GOARCH, name, home, dir)
}

// connections returns all connections, the oldest first.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *conn) int { return int(int64(a.number - b.number)) })
	return all
}

// state holds the numbers about the replicated state that words show.
type state struct {
	zxid, dataSize               int64
	znodes, ephemerals, sessions int
	watches                      int
}

func (s *Server) state() (st state) {
	s.cfg.Replica.View(func(v *fsm.View) {
		t := v.Tree()
		st.zxid, st.dataSize = v.Zxid(), t.DataSize()
		st.znodes = t.Len() + 1 // ZooKeeper counts the root twice
		st.ephemerals, st.sessions = t.Ephemerals(), v.Sessions().Len()
		_, _, st.watches = v.WatchCounts()
	})
	return st
}

func (s *Server) counts(b *text) {
	st := s.state()
	least, mean, greatest := s.latency()
	fmt.Fprintf(b, "Latency min/avg/max: %d/%s/%d\n", least, mean, greatest)
	fmt.Fprintf(b, "Received: %d\nSent: %d\nConnections: %d\n", s.stats.received.Load(), s.stats.sent.Load(), len(s.connections()))
	role := s.role()
	fmt.Fprintf(b, "Outstanding: %d\nZxid: 0x%x\nMode: %s\nNode count: %d\n", s.stats.outstanding.Load(), st.zxid, role, st.znodes)
	if q, _ := s.cfg.Proposer.Quorum(); role == "leader" {
		fmt.Fprintf(b, "Proposal sizes last/min/max: %d/%d/%d\n", q.Last, q.Min, q.Max)
	}
}

// latency returns the smallest, mean and greatest latency in milliseconds. As in ZooKeeper,
// only the mean has decimal places; the others are rounded so that they enclose it.
func (s *Server) latency() (least int64, mean string, greatest int64) {
	a, b, c := s.stats.latency()
	return a.Milliseconds(), decimal(float64(b) / float64(time.Millisecond)), (c + time.Millisecond - 1).Milliseconds()
}

// decimal formats a number as ZooKeeper does, with one to four decimal places.
func decimal(v float64) string {
	t := strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64)
	if !strings.Contains(t, ".") {
		t += ".0"
	}
	return t
}

func mntr(s *Server, _ *conn, b *text) {
	st := s.state()
	least, mean, greatest := s.latency()
	line := func(key string, value any) { fmt.Fprintf(b, "zk_%s\t%v\n", key, value) }
	line("version", s.version())
	role := s.role()
	line("server_state", role)
	quorum, clustered := s.cfg.Proposer.Quorum()
	if doing := map[string]string{"leader": "leading", "follower": "following", "observer": "observing"}[role]; doing != "" {
		line("peer_state", doing+" - broadcast")
	}
	switch {
	case role == "leader":
		line("quorum_size", quorum.Voters)
		line("learners", quorum.Followers+quorum.Observers)
		line("synced_followers", quorum.Followers)
		line("synced_non_voting_followers", 0) // only observers do not vote
		line("synced_observers", quorum.Observers)
		line("pending_syncs", 0) // the leader keeps no queue of syncs
		line("leader_uptime", quorum.Leads.Milliseconds())
		line("last_proposal_size", quorum.Last)
		line("min_proposal_size", quorum.Min)
		line("max_proposal_size", quorum.Max)
	case clustered:
		line("quorum_size", quorum.Voters)
		line("synced_observers", 0) // observers follow only the leader
	}
	line("ephemerals_count", st.ephemerals)
	line("num_alive_connections", len(s.connections()))
	line("avg_latency", mean)
	line("outstanding_requests", s.stats.outstanding.Load())
	line("znode_count", st.znodes)
	line("global_sessions", st.sessions)
	line("last_client_response_size", s.stats.lastReply.Load())
	line("packets_sent", s.stats.sent.Load())
	line("packets_received", s.stats.received.Load())
	line("max_client_response_size", s.stats.maxReply.Load())
	line("watch_count", st.watches)
	line("auth_failed_count", s.stats.authFailed.Load())
	line("min_latency", least)
	if open, limit, ok := fileDescriptors(); ok {
		line("max_file_descriptor_count", limit)
		line("open_file_descriptor_count", open)
	}
	line("approximate_data_size", st.dataSize)
	line("local_sessions", 0)
	line("uptime", time.Since(s.start).Milliseconds())
	line("max_latency", greatest)
	line("min_client_response_size", s.stats.minReply.Load())
	for _, c := range s.stats.counters() {
		line(c.key, c.v.Load())
	}
	line("stale_sessions_expired", s.cfg.Proposer.Expired()-s.stats.staleBase.Load())
	line("outstanding_tls_handshake", s.tlsHandshakes.count())
	line("connection_drop_probability", "0.0") // connections are never dropped at random
	var quotas []znode.QuotaTotal
	s.cfg.Replica.View(func(v *fsm.View) { quotas = v.Tree().QuotaTotals() })
	for _, q := range quotas {
		for _, m := range []struct {
			key   string
			value *int64
		}{
			{"count_limit", q.CountLimit}, {"bytes_limit", q.BytesLimit}, {"count_usage", q.CountUsage}, {"bytes_usage", q.BytesUsage},
		} {
			if m.value != nil {
				line(q.Namespace+"_quota_"+m.key+"_per_namespace", *m.value)
			}
		}
	}
	s.stats.mu.Lock()
	exceeded := maps.Clone(s.stats.exceeded)
	s.stats.mu.Unlock()
	for _, namespace := range slices.Sorted(maps.Keys(exceeded)) {
		line(namespace+"_quota_exceeded_error_per_namespace", exceeded[namespace])
	}
}

func conf(s *Server, _ *conn, b *text) {
	port := func(a net.Addr) int {
		if a, ok := a.(*net.TCPAddr); ok {
			return a.Port
		}
		return -1
	}
	s.mu.Lock()
	plain, secure := port(s.ports.plain), port(s.ports.secure)
	s.mu.Unlock()
	size := dirSize(s.cfg.DataDir)
	fmt.Fprintf(b, "clientPort=%d\nsecureClientPort=%d\n", plain, secure)
	fmt.Fprintf(b, "dataDir=%s\ndataDirSize=%d\ndataLogDir=%s\ndataLogSize=%d\n", s.cfg.DataDir, size, s.cfg.DataDir, size)
	fmt.Fprintf(b, "tickTime=%d\nmaxClientCnxns=%d\n", s.cfg.Tick.Milliseconds(), s.cfg.MaxConnsPerAddr)
	fmt.Fprintf(b, "minSessionTimeout=%d\nmaxSessionTimeout=%d\n", s.cfg.MinSessionTimeout.Milliseconds(), s.cfg.MaxSessionTimeout.Milliseconds())
	fmt.Fprintf(b, "clientPortListenBacklog=-1\nserverId=%d\n", s.cfg.ID)
	if q, ok := s.cfg.Proposer.Quorum(); ok {
		peerType := 0
		if q.Observer {
			peerType = 1
		}
		var members []byte
		var self proto.Peer // without an election port, if it is no member yet or any more
		s.cfg.Replica.View(func(v *fsm.View) {
			members = v.Members()
			self, _ = v.Member(s.cfg.ID)
		})
		// No limit here is a number of ticks, and members use one port for everything.
		fmt.Fprintf(b, "initLimit=0\nsyncLimit=0\nelectionAlg=3\nelectionPort=%d\nquorumPort=%d\npeerType=%d\nmembership: \n%s", self.ElectionPort, q.PeerPort, peerType, members)
	}
}

// dirSize returns the total size of the files below dir, or 0 if dir is empty.
func dirSize(dir string) (size int64) {
	if dir == "" {
		return 0
	}
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// fileDescriptors returns how many file descriptors this process has open and how
// many it may have. It returns ok false if the system does not provide /proc.
func fileDescriptors() (open, limit int, ok bool) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, false
	}
	limits, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(limits)) {
		if rest, found := strings.CutPrefix(line, "Max open files"); found {
			if f := strings.Fields(rest); len(f) > 0 {
				limit, _ = strconv.Atoi(f[0])
			}
		}
	}
	return len(fds), limit, true
}
