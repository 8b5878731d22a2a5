package server

import (
	"net"
	"sync"
	"time"
)

// outbox holds the frames that wait to be sent on a connection, in order. Any
// goroutine may add frames; flush gives the outbox to a writer, which sends them.
type outbox struct {
	mu      sync.Mutex
	room    sync.Cond // on mu; signalled when at most softLimit bytes are queued, on close, and when ended
	buf     []byte
	spare   []byte // the writer's other buffer, swapped with buf
	conn    *conn  // whose outbox it is; nil until a writer may have it
	writing bool   // the outbox waits for a writer, or has one
	idle    bool   // the client is idle, so empty buffers are not kept
	last    bool   // nothing more will be added; the connection ends when all is sent
	closed  bool   // the connection has ended; queued frames are discarded
	ended   bool   // the last writer has ended the connection
	half    bool   // ended, but for what the client still sends

	limit int // maximum bytes queued; the server closes a connection that exceeds it
}

// softLimit is the number of queued bytes beyond which the server runs no further
// requests of a connection until its client has read some of them.
const softLimit = 1 << 20

// smallOutbox is the first size of a buffer. Most events and replies fit into it.
const smallOutbox = 128

// MinOutbox is how much larger than the longest request an outbox must be, so that
// every znode that can be written can also be read.
const MinOutbox = 2 << 20

func (o *outbox) init(limit int) {
	o.limit = limit
	o.room.L = &o.mu
}

// begin allows writers. The connection must wait for awaitEnd from now on.
func (o *outbox) begin(c *conn) {
	o.mu.Lock()
	o.conn = c
	o.mu.Unlock()
	o.flush() // it may be closed already
}

// add lets frame append to the buffer. It returns false if more than the limit is
// queued then. If the outbox is finished or closed, add does nothing.
func (o *outbox) add(frame func(b []byte) []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.last {
		return true
	}
	if o.buf == nil {
		o.buf = make([]byte, 0, smallOutbox)
	}
	o.buf = frame(o.buf)
	return len(o.buf) <= o.limit
}

// space returns how many bytes may still be added. open is false if the outbox is
// finished or closed.
func (o *outbox) space() (n int, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(0, o.limit-len(o.buf)), !o.last && !o.closed
}

// finish makes the connection end once everything queued is sent.
func (o *outbox) finish() {
	o.mu.Lock()
	o.last = true
	o.mu.Unlock()
	o.flush()
}

// flush gives the outbox to a writer if there is something to do and it has none.
func (o *outbox) flush() {
	o.mu.Lock()
	starts := o.conn != nil && !o.writing && !o.ended && (len(o.buf) > 0 || o.last || o.closed)
	if starts {
		o.writing = true
	}
	o.mu.Unlock()
	if starts {
		o.conn.s.writers.add(o)
	}
}

// waitRoom blocks while more than softLimit bytes are queued. It calls flush, which the
// caller does itself only before it reads from the network.
func (o *outbox) waitRoom() {
	o.mu.Lock()
	if len(o.buf) > softLimit {
		o.mu.Unlock()
		o.flush() // from now on it has a writer until there is room
		o.mu.Lock()
	}
	if len(o.buf) > softLimit && !o.closed && o.conn.readOnly {
		// Other connections end with their sessions, whose clients are not heard meanwhile.
		defer time.AfterFunc(time.Duration(o.conn.timeout)*time.Millisecond, o.conn.kill).Stop()
	}
	for len(o.buf) > softLimit && !o.closed {
		o.room.Wait()
	}
	o.mu.Unlock()
}

// close discards what is queued and has the writer end the connection.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.buf, o.spare = nil, nil
	o.room.Broadcast()
	o.mu.Unlock()
	o.flush()
}

// setIdle says whether the client is idle.
func (o *outbox) setIdle(idle bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.idle = idle; idle && !o.writing && len(o.buf) == 0 {
		o.buf, o.spare = nil, nil
	}
}

// awaitEnd returns when the last writer has ended the connection. It reports whether only one
// half of it is closed.
func (o *outbox) awaitEnd() (half bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.ended {
		o.room.Wait()
	}
	return o.half
}

// write sends what is queued, and ends the connection if it is to end. A writer calls it.
func (o *outbox) write() {
	c := o.conn
	if o.send(c.nc) {
		return
	}
	c.s.forget(c) // before the client sees the end: if it reconnects at once, this one must not count
	o.mu.Lock()
	half := o.last && !o.closed && len(o.buf) == 0 && c.stopped.Load()
	o.mu.Unlock()
	if half = half && c.halfClose(); !half {
		c.goodbye()
		c.kill() // also unblocks the reader
	}
	o.mu.Lock()
	o.ended, o.half = true, half
	o.room.Broadcast()
	o.mu.Unlock()
}

// send sends what is queued. It returns false if the connection is to end: the last
// frame is sent, the outbox is closed, or a write has failed.
func (o *outbox) send(to net.Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && len(o.buf) > 0 {
		out := o.buf
		o.buf, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		_, err := to.Write(out)
		o.mu.Lock()
		if err != nil {
			return false
		}
		if cap(out) <= 64<<10 { // do not keep a large buffer
			o.spare = out[:0]
		}
		if len(o.buf) <= softLimit {
			o.room.Broadcast()
		}
	}
	if o.closed || o.last {
		return false
	}
	if o.idle {
		o.buf, o.spare = nil, nil
	}
	o.writing = false
	return true
}

// writers are the goroutines that send what is in outboxes. A writer sends one outbox
// after another, so that not every event needs a goroutine of its own. A client that does
// not read blocks only the writer that sends to it: as long as outboxes wait, there is a
// writer that has been started and has not taken one yet.
type writers struct {
	wg *sync.WaitGroup // the writers count in it

	mu     sync.Mutex
	queue  []*outbox // those that wait for a writer, in order
	first  int       // index in queue of the first one; the elements before it are unused
	coming bool      // a writer has been started and has not taken an outbox yet
}

// add has a writer send what is in o. The connection must not have ended.
func (w *writers) add(o *outbox) {
	w.mu.Lock()
	if w.first > len(w.queue)/2 && len(w.queue) == cap(w.queue) {
		rest := copy(w.queue, w.queue[w.first:])
		clear(w.queue[rest:])
		w.queue, w.first = w.queue[:rest], 0
	}
	w.queue = append(w.queue, o)
	starts := !w.coming
	w.coming = true
	w.mu.Unlock()
	if starts {
		w.wg.Go(w.run)
	}
}

func (w *writers) run() {
	w.mu.Lock()
	w.coming = false
	for w.first < len(w.queue) {
		o := w.queue[w.first]
		w.queue[w.first] = nil
		if w.first++; w.first == len(w.queue) {
			w.queue, w.first = w.queue[:0], 0
		}
		starts := !w.coming && len(w.queue) > 0
		w.coming = w.coming || starts
		w.mu.Unlock()
		if starts {
			w.wg.Go(w.run)
		}
		o.write()
		w.mu.Lock()
	}
	w.mu.Unlock()
}
