package server

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// handshake opens or resumes a session (ZooKeeperServer.processConnectRequest).
// It reports false if the connection is to end: with nil once the refusal that
// is queued is sent, with an error at once.
func (c *conn) handshake(frame []byte) (bool, error) {
	var q proto.ConnectRequest
	d := jute.NewDecoder(frame)
	if q.Decode(&d); d.Err() != nil {
		return false, d.Err()
	}
	c.received(len(frame))
	c.s.stats.handshakes.Add(1)
	var last int64
	now := func(v *fsm.View) { last = v.Zxid() }
	c.s.cfg.Replica.View(now)
	if q.LastZxidSeen > last && c.s.isServing() && c.s.cfg.Proposer.Role() != "standalone" {
		// A moment ago it was the client of a server that was a little ahead.
		w := &caughtUp{now, make(chan struct{})}
		c.s.cfg.Proposer.Propose(fsm.Nothing(), w, nil)
		<-w.done
	}
	if q.LastZxidSeen > last {
		// This server is behind what the client saw elsewhere. A refusal would
		// expire its session; a closed socket sends it to another server.
		c.warn("refusing a client that has seen a later zxid", "seen", q.LastZxidSeen, "here", last)
		return false, errEnd
	}
	if c.s.isReadOnly() {
		return c.shakeReadOnly(&q)
	}
	timeout := c.negotiate(q.Timeout)
	w := &opening{c: c, hasReadOnly: q.HasReadOnly, start: time.Now(), done: make(chan struct{})}
	var cmd *fsm.Command
	if q.SessionID == 0 {
		if w.opens = c.s.roomForSession(); !w.opens {
			// As ZooKeeper does when its connection throttle says no. A refusal
			// would mean an expired session, and the client would ask again at once.
			c.s.stats.refused.Add(1)
			c.warn("refusing a session: too many", "sessions", c.s.cfg.MaxSessions)
			return false, errEnd
		}
		var password session.Password
		rand.Read(password[:])
		cmd = fsm.OpenSession(c.number, c.newID(), timeout, password)
	} else {
		c.s.stats.resumes.Add(1)
		cmd = fsm.ResumeSession(c.number, q.SessionID, timeout, q.Password)
	}
	c.s.cfg.Proposer.Propose(cmd, w, nil)
	<-w.done
	if w.lost {
		return false, errEnd
	}
	if c.session == 0 {
		c.end()
		return false, nil
	}
	return true, nil
}

// shakeReadOnly lets a client in who asked for no more than reads. One who has a
// session keeps its id and password, which it needs when it can be resumed;
// whether it still exists nobody here knows. One who has none gets an id that
// no other server knows.
func (c *conn) shakeReadOnly(q *proto.ConnectRequest) (bool, error) {
	if !q.ReadOnly {
		return false, errEnd
	}
	reply := proto.ConnectReply{
		Timeout: c.negotiate(q.Timeout), SessionID: q.SessionID, Password: q.Password, HasReadOnly: true, ReadOnly: true,
	}
	if q.SessionID == 0 {
		reply.SessionID, reply.Password = c.newID(), make([]byte, proto.PasswordLen)
		rand.Read(reply.Password)
	} else {
		known := false
		c.s.cfg.Replica.View(func(v *fsm.View) {
			s := v.Sessions().Get(q.SessionID)
			known = s != nil && subtle.ConstantTimeCompare(s.Password[:], q.Password) == 1
		})
		if !known { // a refusal would mean that it has expired
			return false, errEnd
		}
	}
	c.s.mu.Lock()
	ok := c.s.readOnly
	if ok {
		c.session, c.timeout, c.readOnly = reply.SessionID, reply.Timeout, true
	}
	c.s.mu.Unlock()
	if !ok {
		return false, errEnd
	}
	c.welcome(&reply)
	c.unsent = true
	return true, nil
}

// welcome queues the answer to a handshake, and counts it before.
func (c *conn) welcome(reply *proto.ConnectReply) {
	c.stats.sent.Add(1)
	c.s.stats.sent.Add(1)
	c.out.add(func(b []byte) []byte {
		b, start := jute.BeginFrame(b)
		b = reply.Append(b)
		jute.EndFrame(b, start)
		return b
	})
}

// roomForSession reserves a place for one more session, if there is one. An
// opening that is done or lost gives it back: in the view, a session is either
// opening or there, so none counts twice and keeps another out.
func (s *Server) roomForSession() (ok bool) {
	s.cfg.Replica.View(func(v *fsm.View) {
		there := int64(v.Sessions().Len())
		for !ok {
			n := s.opening.Load()
			if s.cfg.MaxSessions > 0 && there+n >= int64(s.cfg.MaxSessions) {
				return
			}
			ok = s.opening.CompareAndSwap(n, n+1)
		}
	})
	return ok
}

func (c *conn) negotiate(ms int32) int32 {
	asked := time.Duration(ms) * time.Millisecond
	return int32(max(c.s.cfg.MinSessionTimeout, min(c.s.cfg.MaxSessionTimeout, asked)) / time.Millisecond)
}

// newID draws a session's id: this server's in the high byte, and below it
// what nobody can guess.
func (c *conn) newID() int64 {
	var b [8]byte
	rand.Read(b[:])
	b[0] = byte(c.s.cfg.ID)
	return int64(binary.BigEndian.Uint64(b[:]))
}

// caughtUp waits until all that was committed is applied here.
type caughtUp struct {
	now  func(*fsm.View)
	done chan struct{}
}

func (w *caughtUp) Done(v *fsm.View, _ *fsm.Result) {
	w.now(v)
	close(w.done)
}

func (w *caughtUp) Lost() { close(w.done) }

// opening waits for the session that a handshake asked for.
type opening struct {
	c           *conn
	hasReadOnly bool
	opens       bool // a session, and so has a place reserved
	start       time.Time
	lost        bool
	done        chan struct{}
}

// Done queues the reply while the tree is locked, so that it comes before any
// event of the new connection's watches and before anybody else learns of it.
func (w *opening) Done(_ *fsm.View, r *fsm.Result) {
	c := w.c
	w.giveBack()
	reply := proto.ConnectReply{Password: make([]byte, proto.PasswordLen), HasReadOnly: w.hasReadOnly}
	if s := r.Session; s != nil {
		reply.SessionID, reply.Timeout, reply.Password = s.ID, s.Timeout, s.Password[:]
		c.s.own(c, s.ID, s.Timeout)
	}
	now := time.Now()
	c.stats.answered(lastRequest{"SESS", 0, r.Zxid, now, now.Sub(w.start).Microseconds()})
	c.welcome(&reply)
	c.markDirty()
	close(w.done)
}

func (w *opening) giveBack() {
	if w.opens {
		w.c.s.opening.Add(-1)
	}
}

func (w *opening) Lost() {
	w.giveBack()
	w.lost = true
	close(w.done)
}
