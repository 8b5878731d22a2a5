package server

import (
	"bytes"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// request is one request in a connection's queue.
type request struct {
	xid   int32
	op    *proto.Op   // nil if the opcode is unknown
	body  []byte      // of a parked read; a write's body is in the log
	who   *identity   // at the time of arrival: a later auth does not apply to it
	fixed *fixedReply // nil if the reply is read from the tree, or comes from the log
	start time.Time
	slots int    // number of slots that it takes in the queue
	path  string // of a write, for the log; "" without Config.SlowRequest
}

// fixedReply is a reply that is decided when its request arrives. It is sent in its
// turn, like every other reply.
type fixedReply struct {
	header proto.ReplyHeader
	body   []byte
	now    bool // the header gets the last zxid at the time when it is sent
	none   bool // nothing is sent
	end    bool // the connection ends after it
}

// handle starts one request. It returns false if the connection is to end: at once
// if there is an error, and otherwise after everything queued is sent.
func (c *conn) handle(frame []byte) (bool, error) {
	d := jute.NewDecoder(frame)
	var h proto.RequestHeader
	if h.Decode(&d); d.Err() != nil {
		return false, d.Err()
	}
	c.received(len(frame))
	q := request{xid: h.Xid, op: proto.OpByCode(h.Op), body: d.Rest(), who: c.identity.Load(), start: time.Now()}
	// Newer ZooKeeper servers do not know a check outside of a multi.
	if q.op != nil && (q.op.Class == proto.Part || !c.s.cfg.Persona.KnowsOp(h.Op)) {
		q.op = nil
	}
	if q.op != nil && q.op.Class == proto.Read {
		c.reads()
	}
	switch {
	case !isAuth(frame) && c.refuseUnauthenticated(&q):
		return false, nil
	case q.op == nil:
		c.warn("closing a connection: unknown operation", "op", int32(h.Op))
		q.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid, Zxid: -1, Code: proto.Unimplemented}, end: true}
	case c.readOnly && q.op.Class == proto.Write:
		q.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid, Code: proto.NotReadOnly}, now: true}
		if q.op.Code == proto.OpCloseSession {
			q.fixed.header.Code, q.fixed.end = proto.OK, true
		}
	case q.op.Code == proto.OpReconfig:
		return c.reconfig(q)
	case q.op.Class == proto.Write:
		return c.write(q) && q.op.Code != proto.OpCloseSession, nil
	case q.op.Code == proto.OpPing:
		q.fixed = &fixedReply{header: proto.ReplyHeader{Xid: proto.XidPing}, now: true}
	case q.op.Code == proto.OpAuth:
		code, err := c.auth(q.body)
		if err != nil {
			return false, err
		}
		q.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid, Code: code}, end: code != proto.OK}
	case q.op.Code == proto.OpSASL:
		code, token, err := c.authSASL(q.body)
		if err != nil {
			return false, err
		}
		q.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid, Code: code}, body: (&proto.SASLReply{Token: token}).Append(nil), end: code != proto.OK}
	}
	end := q.fixed != nil && q.fixed.end
	if end {
		c.stopped.Store(true)
	}
	c.local(q)
	return !end, nil
}

// write queues and proposes a write. It queues first, because the write may be
// applied before Propose returns. It returns false if the connection has ended;
// then later requests must not be run either.
func (c *conn) write(q request) bool {
	cmd := fsm.Command{Session: c.session, Conn: c.number, Cxid: q.xid, IDs: q.who.encoded}
	cmd.Op, cmd.Body = c.s.cfg.Persona.Write(q.op.Code, q.body)
	if q.op.Code == proto.OpCloseSession {
		c.closing.Store(true)
		c.stopped.Store(true)
	}
	if c.s.cfg.SlowRequest > 0 {
		q.path = pathOf(&q)
	}
	w := c.waiter(q.op.Code, q.body, q.who)
	q.body = nil
	c.out.waitRoom()
	if !c.reserve(&q, 1) {
		return false
	}
	c.push(q, false)
	c.s.cfg.Proposer.Propose(&cmd, w, c.gone)
	return true
}

// reconfig handles a reconfig in two steps. A command in the log, behind all earlier
// requests, checks whether the change is allowed. Then the leader makes the change,
// which takes several log entries. The reader blocks until that is done.
func (c *conn) reconfig(q request) (bool, error) {
	h := proto.ReplyHeader{Xid: q.xid}
	drop := false
	cmd := &fsm.Command{Op: q.op.Code, Session: c.session, Conn: c.number, Cxid: q.xid, IDs: q.who.encoded, Body: q.body}
	if !c.s.await(cmd, c.gone, func(_ *fsm.View, r *fsm.Result) { drop, h.Code = r.Drop, r.Code }) || drop {
		c.auditReconfig(&q, 0, false)
		return false, errEnd
	}
	if h.Code == proto.OK {
		var ok bool
		// The client's pings wait too, and it gives up after two thirds of its timeout.
		if h.Code, ok = c.s.cfg.Proposer.Reconfigure(q.body, time.Duration(c.timeout)*time.Millisecond/3); !ok {
			c.auditReconfig(&q, 0, false)
			return false, errEnd
		}
	}
	c.auditReconfig(&q, h.Code, true)
	c.unsent = true
	c.s.cfg.Replica.View(func(v *fsm.View) {
		var body []byte
		h.Zxid = v.Zxid() // not that of the check: later events may have been sent meanwhile
		if h.Code == proto.OK {
			body = v.Config(nil)
		}
		c.reply(&q, &h, body)
	})
	return true, nil
}

// reserve blocks until the queue has that many slots free, and takes them for q. A
// write takes one slot. A parked read takes more, according to slotsParked, which
// limits the bytes of parked requests and their replies. It returns false if the
// connection ends first.
func (c *conn) reserve(q *request, slots int) bool {
	q.slots = min(cap(c.slots), slots)
	for range q.slots {
		select {
		case c.slots <- struct{}{}:
		case <-c.gone:
			return false
		}
	}
	return true
}

// slotsParked returns how many slots a parked read takes. When the write before them
// is applied, all parked reads are answered at once, and their replies should fit
// into the outbox even if each is as long as a znode can be.
func (c *conn) slotsParked(q *request) int {
	most := max(1, (c.s.cfg.OutboxBytes-MinOutbox)/c.s.cfg.MaxFrame)
	return 1 + max(cap(c.slots)/most, len(q.body)>>10)
}

// release gives back the slots that reserve took for q.
func (r *requestQueue) release(q *request) {
	for range q.slots {
		<-r.slots
	}
}

// push appends to the queue. If onlyBehind is set and the queue is empty, it does
// nothing and returns false.
func (c *conn) push(q request, onlyBehind bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if onlyBehind && len(c.queue) == 0 {
		return false
	}
	if c.first > len(c.queue)/2 && len(c.queue) == cap(c.queue) {
		rest := copy(c.queue, c.queue[c.first:])
		clear(c.queue[rest:])
		c.queue, c.first = c.queue[:rest], 0
	}
	c.queue = append(c.queue, q)
	c.s.stats.outstanding.Add(1)
	return true
}

// local answers a request that does not go through the log: at once if the queue is
// empty, otherwise by parking it in the queue.
func (c *conn) local(q request) {
	c.out.waitRoom()
	c.mu.Lock()
	waits := len(c.queue) > 0
	c.mu.Unlock()
	if waits {
		if !c.reserve(&q, c.slotsParked(&q)) {
			return
		}
		parked := q
		parked.body = bytes.Clone(q.body)
		if c.push(parked, true) {
			return
		}
		c.release(&q)
	}
	// Only this goroutine adds to the queue, so it stays empty here.
	c.unsent = true
	c.s.cfg.Replica.View(func(v *fsm.View) { c.scratch = c.run(v, &q, c.scratch[:0]) })
	if cap(c.scratch) > 64<<10 {
		c.scratch = nil
	}
}

// run answers a request that does not go through the log. The tree stays locked from
// the lookup until the watch is set and the reply queued, so that no event comes
// between them. If the connection is ending, run does nothing. It returns scratch for
// reuse.
func (c *conn) run(v *fsm.View, q *request, scratch []byte) []byte {
	space, open := c.out.space()
	if !open {
		return scratch
	}
	if f := q.fixed; f != nil {
		h := f.header
		if f.now {
			h.Zxid = v.Zxid()
		}
		if !f.none {
			c.reply(q, &h, f.body)
		}
		if f.end {
			c.end()
		}
		return scratch
	}
	// Nothing else is queued before the reply, except events of a setWatches.
	r := fsm.Reader{Watcher: c, Session: c.session, IDs: q.who.ids, MaxWatches: c.s.cfg.MaxWatches,
		MaxReply: max(1, space-frameHeader), Older: c.s.older}
	h := proto.ReplyHeader{Xid: q.xid, Zxid: v.Zxid()}
	scratch, h.Code = v.Read(&r, q.op.Code, q.body, scratch)
	if h.Code == fsm.ReplyTooLong {
		c.warn("closing a connection: a reply does not fit into its outbox", "op", q.op.Name, "limit", c.s.cfg.OutboxBytes)
		c.end()
		return nil
	}
	if h.Code != proto.OK {
		scratch = scratch[:0]
	}
	end := false
	if h.Code == proto.ThrottledOp {
		c.s.stats.throttled.Add(1)
		// Clients ignore the answer to setWatches, and would wait for events that never
		// come.
		end = q.op.Code == proto.OpSetWatches || q.op.Code == proto.OpSetWatches2
	}
	c.reply(q, &h, scratch)
	if end {
		c.end()
	}
	return scratch
}

// frameHeader is the length in bytes of a reply without its body.
const frameHeader = 4 + 16

// reply queues a reply. The connection ends instead if the persona does not have the code. The
// results in a multi need no such check: the only newer code that they could have is
// QuotaExceeded, and a server as a line without it enforces no quota on its clients.
func (c *conn) reply(q *request, h *proto.ReplyHeader, body []byte) {
	if !c.s.cfg.Persona.KnowsCode(h.Code) {
		c.end()
		return
	}
	c.answered(q, h, len(body))
	c.frame(h, func(b []byte) []byte { return append(b, body...) })
}

// Done implements fsm.Waiter: the write at the head of the queue has been applied.
// It queues the reply and then runs the parked reads up to the next write.
func (c *conn) Done(v *fsm.View, r *fsm.Result) {
	for i := range r.Exceeded {
		e := &r.Exceeded[i]
		if e.Hard {
			c.s.stats.quotaExceeded(e.Namespace())
		}
		c.s.warn("quota exceeded", e.String(), c.named(nil))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || len(c.queue) == 0 {
		return
	}
	if r.Drop {
		c.kill()
		return
	}
	q := c.pop()
	h := proto.ReplyHeader{Xid: q.xid, Zxid: r.Zxid, Code: r.Code}
	body := r.Body
	if r.Code != proto.OK {
		body = nil
	}
	c.reply(&q, &h, body)
	if q.op.Code == proto.OpCloseSession {
		c.end()
	}
	for len(c.queue) > 0 && (c.queue[c.first].fixed != nil || c.queue[c.first].op.Class != proto.Write) {
		q := c.pop()
		c.s.scratch = c.run(v, &q, c.s.scratch[:0])
		if cap(c.s.scratch) > softLimit {
			c.s.scratch = nil
		}
	}
	c.markDirty()
}

// queued returns the length of the queue. The caller holds mu.
func (r *requestQueue) queued() int { return len(r.queue) - r.first }

// pop removes and returns the head of the queue. The caller holds mu.
func (c *conn) pop() request {
	q := c.queue[c.first]
	c.queue[c.first] = request{}
	if c.first++; c.first == len(c.queue) {
		c.queue, c.first = c.queue[:0], 0
	}
	c.s.stats.outstanding.Add(-1)
	c.release(&q)
	return q
}

// Lost implements fsm.Waiter: the outcome of a write is unknown. Closing the
// connection tells the client so, and stops later requests from being proposed.
func (c *conn) Lost() { c.kill() }

var (
	errAuth = errors.New("malformed auth request")
	errSASL = errors.New("malformed sasl request")
)
