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
// It returns false if the connection is to end: at once if there is an error, and
// otherwise after the queued refusal is sent.
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
	if q.LastZxidSeen > last && c.s.Serving() && c.s.cfg.Proposer.Role() != "standalone" {
		// The client comes from a server that was slightly ahead: catch up first.
		c.s.await(fsm.Nothing(), nil, func(v *fsm.View, _ *fsm.Result) { now(v) })
	}
	if q.LastZxidSeen > last {
		// This server is still behind the client. A refusal would tell the client that its
		// session has expired; after a closed connection it tries another server.
		c.warn("refusing a client that has seen a later zxid", "seen", q.LastZxidSeen, "here", last)
		return false, errEnd
	}
	if c.s.isReadOnly() {
		return c.handshakeReadOnly(&q)
	}
	timeout := c.negotiate(q.Timeout)
	start := time.Now()
	var cmd *fsm.Command
	if q.SessionID == 0 {
		if !c.s.roomForSession() {
			// Close without an answer, as ZooKeeper's connection throttle does. A refusal
			// would mean an expired session, and the client would ask again at once.
			c.s.stats.refused.Add(1)
			c.warn("refusing a session: too many", "sessions", c.s.cfg.MaxSessions)
			return false, errEnd
		}
		id := c.newID()
		cmd = fsm.OpenSession(c.number, id, timeout, c.newPassword(id))
	} else {
		c.s.stats.resumes.Add(1)
		cmd = fsm.ResumeSession(c.number, q.SessionID, timeout, q.Password)
	}
	unreserve := func() {
		if q.SessionID == 0 {
			c.s.opening.Add(-1)
		}
	}
	// The reply is queued while the tree is locked, so that it precedes any event for this
	// connection and anything that shows the session to others.
	ok := c.s.await(cmd, nil, func(_ *fsm.View, r *fsm.Result) {
		unreserve()
		reply := proto.ConnectReply{Password: make([]byte, proto.PasswordLen), HasReadOnly: q.HasReadOnly}
		if s := r.Session; s != nil {
			reply.SessionID, reply.Timeout, reply.Password = s.ID, s.Timeout, s.Password[:]
			c.s.attach(c, s.ID, s.Timeout)
		}
		now := time.Now()
		c.stats.answered(lastRequest{"SESS", 0, r.Zxid, now, now.Sub(start).Microseconds()})
		c.queueFrame(reply.Append)
		c.markDirty()
	})
	if !ok {
		unreserve()
		return false, errEnd
	}
	if c.session == 0 {
		c.stopped.Store(true)
		c.end()
		return false, nil
	}
	return true, nil
}

// handshakeReadOnly admits a client that accepts read-only mode. A client that has a
// session keeps its id and password, which it needs to resume the session later;
// whether the session still exists cannot be known here. A client without a session
// gets an id that no other server knows.
func (c *conn) handshakeReadOnly(q *proto.ConnectRequest) (bool, error) {
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
		if !known { // a refusal would tell the client that the session has expired
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
	c.queueFrame(reply.Append)
	c.unsent = true
	return true, nil
}

// roomForSession reserves a place for one more session; it returns false at the
// limit. The reservation is given back when the session is opened or the attempt is
// lost. That happens while the tree is locked, so under the View each session is
// counted once: either as opening or in the table.
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

func (c *conn) newPassword(id int64) (p session.Password) {
	if c.s.cfg.ZooKeeperPasswords {
		return session.ZooKeeperPassword(id)
	}
	rand.Read(p[:])
	return p
}

// newID returns a new session id: the server's id in the high byte, and random
// bytes, which cannot be guessed, below it.
func (c *conn) newID() int64 {
	var b [8]byte
	rand.Read(b[:])
	b[0] = byte(c.s.cfg.ID)
	return int64(binary.BigEndian.Uint64(b[:]))
}

// await proposes a command for which nobody waits in a queue, calls done with its result while the tree
// is locked, and then returns true. It returns false if the outcome is unknown.
func (s *Server) await(cmd *fsm.Command, over <-chan struct{}, done func(*fsm.View, *fsm.Result)) bool {
	w := awaited{done, make(chan bool, 1)}
	s.cfg.Proposer.Propose(cmd, w, over)
	return <-w.over
}

// awaited is the fsm.Waiter of await.
type awaited struct {
	done func(*fsm.View, *fsm.Result)
	over chan bool
}

func (w awaited) Done(v *fsm.View, r *fsm.Result) {
	w.done(v, r)
	w.over <- true
}

func (w awaited) Lost() { w.over <- false }
