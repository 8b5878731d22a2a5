package server

import (
	"net"
	"sync"
)

// outbox holds the frames that wait to be sent on a connection, in order. Any
// goroutine may add frames; the writer goroutine sends them.
type outbox struct {
	mu     sync.Mutex
	room   sync.Cond // on mu; signalled when at most softLimit bytes are queued, or on close
	buf    []byte
	spare  []byte // the writer's other buffer, swapped with buf
	last   bool   // nothing more will be added; the writer ends when all is sent
	closed bool   // the connection has ended; queued frames are discarded

	limit int           // maximum bytes queued; beyond it, the client is taken not to be reading
	wake  chan struct{} // has room for one element; holds one when the writer has work
}

// softLimit is the number of queued bytes beyond which the server runs no further
// requests of a connection until its client has read some of them.
const softLimit = 1 << 20

// MinOutbox is how much larger than the longest request an outbox must be, so that
// every znode that can be written can also be read.
const MinOutbox = 2 << 20

func (o *outbox) init(limit int) {
	o.limit = limit
	o.room.L = &o.mu
	o.wake = make(chan struct{}, 1)
}

// add lets frame append to the buffer. It returns false if more than the limit is
// queued then. If the outbox is finished or closed, add does nothing.
func (o *outbox) add(frame func(b []byte) []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.last {
		return true
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

// finish makes the writer end once everything queued is sent.
func (o *outbox) finish() {
	o.mu.Lock()
	o.last = true
	o.mu.Unlock()
	o.flush()
}

// flush wakes the writer.
func (o *outbox) flush() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// waitRoom blocks while more than softLimit bytes are queued. It wakes the writer,
// because the caller does so itself only before it reads from the network.
func (o *outbox) waitRoom() {
	o.mu.Lock()
	for len(o.buf) > softLimit && !o.closed {
		o.flush()
		o.room.Wait()
	}
	o.mu.Unlock()
}

// close discards what is queued and ends the writer.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.buf, o.spare = nil, nil
	o.room.Broadcast()
	o.mu.Unlock()
	o.flush()
}

// run is the writer goroutine. It returns when the last frame is sent, when the
// outbox is closed, or when a write fails.
func (o *outbox) run(to net.Conn) {
	for range o.wake {
		for {
			o.mu.Lock()
			out, last, closed := o.buf, o.last, o.closed
			o.buf, o.spare = o.spare[:0], nil
			o.mu.Unlock()
			if closed {
				return
			}
			if len(out) > 0 {
				if _, err := to.Write(out); err != nil {
					return
				}
			}
			o.mu.Lock()
			if cap(out) <= 64<<10 { // do not keep a large buffer for an idle connection
				o.spare = out[:0]
			}
			more := len(o.buf) > 0
			if len(o.buf) <= softLimit {
				o.room.Broadcast()
			}
			o.mu.Unlock()
			if last && !more {
				return
			}
			if !more {
				break
			}
		}
	}
}
