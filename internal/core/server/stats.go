package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// stats are a server's counts since its start or the last reset.
type stats struct {
	received, sent, outstanding, authFailed atomic.Int64

	latencySum, latencyCount atomic.Int64 // µs
	latencyMin, latencyMax   atomic.Int64 // µs
	lastReply, minReply      atomic.Int64 // bytes
	maxReply                 atomic.Int64

	shown
	staleBase atomic.Int64 // Proposer.Expired at the last reset

	handovers stopwatch.Stopwatch // see conn.reads; srst does not reset it

	mu       sync.Mutex
	exceeded map[string]int64 // writes that a hard quota refused, by namespace
}

// shown are the counts that the word mntr shows unchanged; counters has their names.
type shown struct {
	handshakes, resumes    atomic.Int64 // all ConnectRequests, and those that name a session
	refused, ended         atomic.Int64 // connections refused because of a limit, and connections that have ended
	silent, unserved       atomic.Int64 // connections whose handshake took too long, or came while not serving
	bytesIn, bytesOut      atomic.Int64 // of requests with length prefixes; of replies without
	eventBytes             atomic.Int64 // of events, without length prefixes
	plainNear, plainFar    atomic.Int64 // connections without TLS: from loopback addresses and from others
	throttled              atomic.Int64 // requests answered ThrottledOp
	tlsFailed, tlsExceeded atomic.Int64 // TLS handshakes that failed, and that the limit ended
}

type counter struct {
	key string // in the word mntr
	v   *atomic.Int64
}

// counters returns the counts with ZooKeeper's names (ServerMetrics).
func (s *shown) counters() []counter {
	return []counter{
		{"connection_request_count", &s.handshakes},
		{"connection_revalidate_count", &s.resumes},
		{"connection_rejected", &s.refused},
		{"connection_drop_count", &s.ended},
		{"sessionless_connections_expired", &s.silent},
		{"cnxn_closed_without_zk_server_running", &s.unserved},
		{"bytes_received_count", &s.bytesIn},
		{"response_bytes", &s.bytesOut},
		{"watch_bytes", &s.eventBytes},
		{"non_mtls_local_conn_count", &s.plainNear},
		{"non_mtls_remote_conn_count", &s.plainFar},
		{"throttled_ops", &s.throttled},
		{"unsuccessful_handshake", &s.tlsFailed},
		{"tls_handshake_exceeded", &s.tlsExceeded},
	}
}

// maxNamespaces limits the number of namespaces in stats.exceeded.
const maxNamespaces = 1000

func (s *stats) quotaExceeded(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exceeded == nil {
		s.exceeded = map[string]int64{}
	}
	if _, ok := s.exceeded[namespace]; ok || len(s.exceeded) < maxNamespaces {
		s.exceeded[namespace]++
	}
}

func (s *stats) reset() {
	s.latencyMin.Store(-1)
	s.minReply.Store(-1)
	s.lastReply.Store(-1)
	s.maxReply.Store(-1)
}

// resetAll resets the counts, for the word srst.
func (s *stats) resetAll() {
	for _, v := range []*atomic.Int64{&s.received, &s.sent, &s.latencySum, &s.latencyCount, &s.latencyMax} {
		v.Store(0)
	}
	for _, c := range s.counters() {
		c.v.Store(0)
	}
	s.reset()
}

// raise and lower update a maximum and a minimum; -1 means that there is none yet.

func raise(v *atomic.Int64, x int64) {
	for old := v.Load(); x > old && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

func lower(v *atomic.Int64, x int64) {
	for old := v.Load(); (old < 0 || x < old) && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

// latency returns the smallest, mean and greatest latency. A request that is being counted
// meanwhile does not bring them out of order.
func (s *stats) latency() (least, mean, greatest time.Duration) {
	if n := s.latencyCount.Load(); n > 0 {
		mean = time.Duration(s.latencySum.Load()) * time.Microsecond / time.Duration(n)
	}
	least = time.Duration(max(0, s.latencyMin.Load())) * time.Microsecond
	greatest = time.Duration(s.latencyMax.Load()) * time.Microsecond
	return least, min(max(mean, least), greatest), greatest
}

// Handovers returns how long handovers of locks to clients of this server took, since it started: from the
// event that tells a client that the znode before its own is gone, until it reads again.
func (s *Server) Handovers() stopwatch.Durations { return s.stats.handovers.Durations() }

// connStats are a connection's counts since its start or the last reset.
type connStats struct {
	received, sent atomic.Int64

	mu   sync.Mutex
	last lastRequest
	sum  int64 // of the latencies, µs
	n    int64
	min  int64 // µs; meaningless if n is 0
	max  int64
}

// lastRequest describes the request that was answered last, for the word cons.
type lastRequest struct {
	op      string // proto.Op.Short
	cxid    int32
	zxid    int64
	at      time.Time
	latency int64 // µs
}

func (s *connStats) answered(r lastRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 || r.latency < s.min {
		s.min = r.latency
	}
	s.last, s.sum, s.max, s.n = r, s.sum+r.latency, max(s.max, r.latency), s.n+1
}

// reset resets the counts, for the word crst.
func (s *connStats) reset() {
	s.received.Store(0)
	s.sent.Store(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.sum, s.max, s.n = lastRequest{}, 0, 0, 0
}

// received counts a frame with a payload of n bytes.
func (c *conn) received(n int) {
	c.stats.received.Add(1)
	c.s.stats.received.Add(1)
	c.s.stats.bytesIn.Add(int64(4 + n))
}

// answered records the latency of a request and the length of its reply.
func (c *conn) answered(q *request, h *proto.ReplyHeader, body int) {
	s := &c.s.stats
	us := time.Since(q.start).Microseconds()
	s.latencySum.Add(us)
	s.latencyCount.Add(1)
	raise(&s.latencyMax, us)
	lower(&s.latencyMin, us)
	size := int64(16 + body)
	s.bytesOut.Add(size)
	s.lastReply.Store(size)
	raise(&s.maxReply, size)
	lower(&s.minReply, size)
	op := "NA"
	if q.op != nil {
		op = q.op.Short
	}
	c.stats.answered(lastRequest{op, q.xid, h.Zxid, q.start.Add(time.Duration(us) * time.Microsecond), us})
	if took := time.Duration(us) * time.Microsecond; c.s.cfg.SlowRequest > 0 && took > c.s.cfg.SlowRequest && q.op != nil {
		path := q.path
		if q.op.Class == proto.Read {
			path = pathOf(q)
		}
		c.warn("slow request", "op", q.op.Name, "path", path, "xid", q.xid, "zxid", fmt.Sprintf("0x%x", h.Zxid), "code", int32(h.Code), "took", took)
	}
}

// pathOf returns the path of a request, or "" if it has none or more than one.
func pathOf(q *request) string {
	switch q.op.Code {
	case proto.OpCloseSession, proto.OpMulti, proto.OpMultiRead, proto.OpReconfig, proto.OpSetWatches, proto.OpSetWatches2, proto.OpWhoAmI:
		return ""
	}
	d := jute.NewDecoder(q.body)
	path := d.String()
	if d.Err() != nil {
		return ""
	}
	return path
}
