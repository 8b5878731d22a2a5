package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/session"
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
		s.ResetConnections()
		b.WriteString("Connection stats reset.\n")
	},
	"srst": func(s *Server, _ *conn, b *text) {
		s.ResetCounts()
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

func (t *text) WriteString(s string) { t.Write([]byte(s)) }

// alwaysAnswered are the words that a server answers even while it serves no clients.
var alwaysAnswered = []string{"ruok", "isro", "envi", "gtmk", "stmk"}

func (s *Server) knows(word string) bool { return words[word] != nil && s.cfg.Persona.KnowsWord(word) }

// allows reports whether the configuration allows a word. srvr is always allowed. So
// is isro if read-only mode is enabled, because clients in read-only mode use it to
// find a server that accepts writes.
func (s *Server) allows(word string) bool {
	allowed := s.cfg.FourLetterWords
	return word == "srvr" || word == "isro" && s.cfg.ReadOnly || slices.Contains(allowed, word) || slices.Contains(allowed, "*")
}

func (s *Server) answer(c *conn, word string) {
	b := text{limit: s.cfg.OutboxBytes}
	switch {
	case !s.allows(word):
		fmt.Fprintf(&b, "%s is not executed because it is not in the whitelist.\n", word)
	case !s.Serving() && !s.isReadOnly() && !slices.Contains(alwaysAnswered, word):
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
	case s.Serving():
		b.WriteString("rw")
	case s.isReadOnly():
		b.WriteString("ro")
	default:
		b.WriteString("null")
	}
}

// heading writes the first lines of srvr and stat.
func heading(b *text, m *report.Monitor) {
	fmt.Fprintf(b, "Zookeeper version: %s\n", m.Version)
	if m.ReadOnly {
		b.WriteString("READ-ONLY mode; serving only read-only clients\n")
	}
}

func srvr(s *Server, _ *conn, b *text) {
	m := s.Summary()
	heading(b, m)
	counts(b, m)
}

func stat(s *Server, self *conn, b *text) {
	m, all := s.Summary(), s.Connections()
	m.Connections = len(all) // one may have ended meanwhile
	heading(b, m)
	b.WriteString("Clients:\n")
	for _, c := range all {
		brief(b, &c, self)
		b.WriteString(")\n")
	}
	b.WriteString("\n")
	counts(b, m)
}

// counts writes the last lines of srvr and stat.
func counts(b *text, m *report.Monitor) {
	least, mean, greatest := m.Latency()
	fmt.Fprintf(b, "Latency min/avg/max: %d/%s/%d\n", least, mean, greatest)
	fmt.Fprintf(b, "Received: %d\nSent: %d\nConnections: %d\n", m.Received, m.Sent, m.Connections)
	fmt.Fprintf(b, "Outstanding: %d\nZxid: 0x%x\nMode: %s\nNode count: %d\n", m.Outstanding, m.Zxid, m.Role, m.Znodes)
	if m.Role == "leader" && m.Quorum != nil {
		fmt.Fprintf(b, "Proposal sizes last/min/max: %d/%d/%d\n", m.Quorum.Last, m.Quorum.Min, m.Quorum.Max)
	}
}

// brief writes what stat and cons both show of a connection, without the closing
// parenthesis. self is the connection that sent the word.
func brief(b *text, c *report.Connection, self *conn) {
	interest := 1
	if c.Number == self.number {
		interest = 0
	}
	fmt.Fprintf(b, " /%s[%d](queued=%d,recved=%d,sent=%d", c.Addr, interest, c.Queued, c.Received, c.Sent)
}

func cons(s *Server, self *conn, b *text) {
	for _, c := range s.Connections() {
		brief(b, &c, self)
		if c.Session != 0 {
			fmt.Fprintf(b, ",sid=%s,lop=%s,est=%d,to=%d", session.FormatID(c.Session), c.Last.Op, c.Since.UnixMilli(), c.Timeout.Milliseconds())
			if c.Last.Cxid >= 0 {
				fmt.Fprintf(b, ",lcxid=0x%x", c.Last.Cxid)
			}
			fmt.Fprintf(b, ",lzxid=0x%x,lresp=%d,llat=%d,minlat=%d,avglat=%d,maxlat=%d", uint64(c.Last.Zxid),
				c.Last.At.Milliseconds(), c.Last.Latency.Milliseconds(), c.MinLatency.Milliseconds(), c.AvgLatency.Milliseconds(), c.MaxLatency.Milliseconds())
		}
		b.WriteString(")\n")
	}
	b.WriteString("\n")
}

func wchs(s *Server, _ *conn, b *text) {
	w := s.WatchCounts()
	fmt.Fprintf(b, "%d connections watching %d paths\nTotal watches:%d\n", w.Connections, w.Paths, w.Watches)
}

// wchc lists the paths that each session watches, and wchp the sessions that watch
// each path. Both include watches on children, which ZooKeeper omits.

func wchc(s *Server, _ *conn, b *text) { s.watches(b, report.Watches.BySession) }

func wchp(s *Server, _ *conn, b *text) { s.watches(b, report.Watches.ByPath) }

func (s *Server) watches(b *text, groups func(report.Watches) []report.Group) {
	all, err := s.Watches()
	if b.full = err != nil; b.full {
		return
	}
	for _, g := range groups(all) {
		fmt.Fprintf(b, "%s\n", g.Head)
		for _, item := range g.Items {
			fmt.Fprintf(b, "\t%s\n", item)
		}
	}
	b.WriteString("\n")
}

// dump lists the sessions by the time at which they will expire, the ephemeral znodes
// of each session, and the connections by the time at which they will be closed: with
// their session, or, without a session, when the time for the handshake is over.
func dump(s *Server, _ *conn, b *text) {
	all, err := s.Sessions()
	if b.full = err != nil; b.full {
		return
	}
	ends := map[int64]int64{} // deadline by session id, in ms
	for _, bucket := range all.Expiring {
		for _, id := range bucket.Sessions {
			ends[id] = bucket.Deadline
		}
	}
	whole := s.cfg.Persona.Does(persona.DumpConnections)
	b.WriteString("SessionTracker dump:\n")
	if all.Tracked {
		fmt.Fprintf(b, "Session Sets (%d)", len(all.Expiring))
		if whole {
			fmt.Fprintf(b, "/(%d)", len(ends))
		}
		b.WriteString(":\n")
		for _, bucket := range all.Expiring {
			expireAt(b, len(bucket.Sessions), bucket.Deadline)
			for _, id := range bucket.Sessions {
				fmt.Fprintf(b, "\t%s\n", session.FormatID(id))
			}
		}
	} else { // only the leader knows when sessions expire (LearnerSessionTracker)
		fmt.Fprintf(b, "Global Sessions(%d):\n", len(all.All))
		for _, x := range all.All {
			fmt.Fprintf(b, "%s\t%dms\n", session.FormatID(x.ID), x.Timeout.Milliseconds())
		}
	}

	owners := slices.DeleteFunc(all.All, func(x report.Session) bool { return len(x.Ephemerals) == 0 })
	fmt.Fprintf(b, "ephemeral nodes dump:\nSessions with Ephemerals (%d):\n", len(owners))
	for _, x := range owners {
		fmt.Fprintf(b, "%s:\n", session.FormatID(x.ID))
		for _, path := range x.Ephemerals {
			fmt.Fprintf(b, "\t%s\n", path)
		}
	}

	if !whole {
		return
	}
	b.WriteString("Connections dump:\n")
	conns := s.Connections()
	lines := map[int64][]string{} // by deadline, rounded down to a second
	for _, c := range conns {
		end, ok := ends[c.Session]
		switch {
		case c.Session == 0:
			end = c.Deadline.UnixMilli()
		case !ok: // the session has just ended
			end = s.cfg.TimeOfDay().UnixMilli()
		}
		end -= end % 1000
		lines[end] = append(lines[end], fmt.Sprintf("\tip: /%s sessionId: %s\n", c.Addr, session.FormatID(c.Session)))
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
	for _, d := range s.Digests() {
		fmt.Fprintf(b, "%x: %d\n", uint64(d.Zxid), int64(d.Digest))
	}
}

// gtmk and stmk get and set ZooKeeper's trace mask. This server stores the mask but
// traces nothing.

func gtmk(s *Server, _ *conn, b *text) { fmt.Fprint(b, s.TraceMask()) }

func stmk(s *Server, c *conn, b *text) {
	var mask [8]byte
	if _, err := io.ReadFull(c.r, mask[:]); err != nil {
		return // no answer, as from ZooKeeper
	}
	s.SetTraceMask(int64(binary.BigEndian.Uint64(mask[:])))
	gtmk(s, c, b)
}

// defaultTraceMask is the default in ZooKeeper's class ZooTrace.
const defaultTraceMask = 306

func dirs(s *Server, _ *conn, b *text) {
	size := s.DataSize()
	fmt.Fprintf(b, "datadir_size: %d\nlogdir_size: %d\n", size, size)
}

func envi(s *Server, _ *conn, b *text) {
	b.WriteString("Environment:\n")
	for _, l := range s.Environment() {
		fmt.Fprintf(b, "%s=%s\n", l.Key, l.Value)
	}
}

func mntr(s *Server, _ *conn, b *text) {
	for _, l := range s.Monitor().Lines() {
		fmt.Fprintf(b, "zk_%s\t%s\n", l.Key, l.Value)
	}
}

func conf(s *Server, _ *conn, b *text) {
	c := s.Config()
	sizes, backlog := s.cfg.Persona.Does(persona.ConfSizes), s.cfg.Persona.Does(persona.Backlog)
	fmt.Fprintf(b, "clientPort=%d\n", c.ClientPort)
	if sizes {
		fmt.Fprintf(b, "secureClientPort=%d\n", c.SecurePort)
		fmt.Fprintf(b, "dataDir=%s\ndataDirSize=%d\ndataLogDir=%s\ndataLogSize=%d\n", c.DataDir, c.DataSize, c.DataDir, c.DataSize)
	} else {
		fmt.Fprintf(b, "dataDir=%s\ndataLogDir=%s\n", c.DataDir, c.DataDir)
	}
	fmt.Fprintf(b, "tickTime=%d\nmaxClientCnxns=%d\n", c.Tick.Milliseconds(), c.MaxConnsPerAddr)
	fmt.Fprintf(b, "minSessionTimeout=%d\nmaxSessionTimeout=%d\n", c.MinSessionTimeout.Milliseconds(), c.MaxSessionTimeout.Milliseconds())
	if backlog {
		b.WriteString("clientPortListenBacklog=-1\n")
	}
	fmt.Fprintf(b, "serverId=%d\n", c.ID)
	if c.Quorum != nil {
		peerType := 0
		if c.Quorum.Observer {
			peerType = 1
		}
		// No limit here is a number of ticks, and members use one port for everything.
		fmt.Fprintf(b, "initLimit=0\nsyncLimit=0\nelectionAlg=3\nelectionPort=%d\nquorumPort=%d\npeerType=%d\n", c.ElectionPort, c.Quorum.PeerPort, peerType)
		if sizes {
			fmt.Fprintf(b, "membership: \n%s", c.Members)
		}
	}
}
