package server

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// stats are a server's counts since its start or the last reset.
type stats struct {
	received, sent, outstanding, authFailed atomic.Int64

	latencySum, latencyCount atomic.Int64 // µs
	latencyMin, latencyMax   atomic.Int64 // µs
	lastReply, minReply      atomic.Int64 // bytes
	maxReply                 atomic.Int64
}

func (s *stats) reset() {
	s.latencyMin.Store(-1)
	s.minReply.Store(-1)
	s.lastReply.Store(-1)
	s.maxReply.Store(-1)
}

// resetAll is what the word srst does.
func (s *stats) resetAll() {
	for _, v := range []*atomic.Int64{&s.received, &s.sent, &s.latencySum, &s.latencyCount, &s.latencyMax} {
		v.Store(0)
	}
	s.reset()
}

// raise and lower keep a maximum and a minimum; -1 is none yet.

func raise(v *atomic.Int64, x int64) {
	for old := v.Load(); x > old && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

func lower(v *atomic.Int64, x int64) {
	for old := v.Load(); (old < 0 || x < old) && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

// latency in milliseconds: the least, the mean and the greatest.
func (s *stats) latency() (least, mean, greatest float64) {
	if n := s.latencyCount.Load(); n > 0 {
		mean = float64(s.latencySum.Load()) / float64(n) / 1000
	}
	return float64(max(0, s.latencyMin.Load())) / 1000, mean, float64(s.latencyMax.Load()) / 1000
}

// connStats are a connection's counts.
type connStats struct{ received, sent atomic.Int64 }

func (c *conn) received() {
	c.stats.received.Add(1)
	c.s.stats.received.Add(1)
}

// answered notes how long a request took and how long its reply is.
func (c *conn) answered(q *request, h *proto.ReplyHeader, body int) {
	s := &c.s.stats
	us := time.Since(q.start).Microseconds()
	s.latencySum.Add(us)
	s.latencyCount.Add(1)
	raise(&s.latencyMax, us)
	lower(&s.latencyMin, us)
	size := int64(16 + body)
	s.lastReply.Store(size)
	raise(&s.maxReply, size)
	lower(&s.minReply, size)
}

// sessionID shows a session's id as ZooKeeper does.
type sessionID int64

func (id sessionID) String() string { return fmt.Sprintf("0x%x", uint64(id)) }

// LogValue makes it a string in JSON too, where such a number is not exact.
func (id sessionID) LogValue() slog.Value { return slog.StringValue(id.String()) }
