package lockkeepertest

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/internal/tools/wiretap"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Request is a request that a client has sent.
type Request struct {
	Time    time.Time // when it arrived
	Session int64     // of connect: the session to be resumed, or 0
	Op      string    // ZooKeeper's name of the operation, or connect
	Path    string    // the first path in it; empty if there is none

	server *Server
	frame  *wire.Frame
}

// String formats the request with all its fields, as a line of 'lockkeeper wire' does.
func (r Request) String() string { return r.frame.String() }

// Field returns a field of the request, by the name that String shows: "version",
// "data", "flags". The elements of lists have an index, as "acl[0].perms", "data[1]" of a
// setWatches, or "ops[2].path" of a multi. It returns nil if there is no such field. A
// null string is returned as an empty one, and an operation by its name.
func (r Request) Field(name string) any {
	for _, f := range r.frame.Fields() {
		if f.Name != name {
			continue
		}
		switch v := f.Value.(type) {
		case proto.Path:
			return v.Text()
		case proto.OpCode:
			return wire.OpName(v)
		case string:
			if v == jute.Null {
				return ""
			}
		}
		return f.Value
	}
	return nil
}

// Requests returns the requests that the servers have received from their clients, in the
// order in which they arrived, except pings. op selects operations as in a [Fault]; empty
// is all, also connect. An op that no request has fails the test. Requests that were kept from a server by a Fault are among them,
// and those of connections that use TLS are not. The latest 16 MB of requests are kept.
func (c *common) Requests(op string) []Request {
	c.t.Helper()
	if err := checkOp(op); err != nil {
		c.t.Fatalf("lockkeepertest: %v", err)
	}
	return c.report.messages.find(func(r *Request) bool { return slices.Contains(c.servers, r.server) && r.has(op) })
}

func (r *Request) has(op string) bool {
	ok, _ := path.Match(op, r.Op)
	return ok || op == ""
}

// messages are what the clients of a server, or of a cluster, and the server have said.
type messages struct {
	start time.Time

	mu       sync.Mutex
	conns    int
	requests []Request
	size     int // of requests, in bytes
	dropped  int // requests that are not kept any more
	last     [lastMessages]said
	said     int           // the next one is last[said%lastMessages]
	next     chan struct{} // closed and forgotten at the next message; nil if nobody waits
}

const (
	maxRequests  = 16 << 20
	lastMessages = 25
)

// said is an event on a connection, and the fault that hit it.
type said struct {
	wiretap.Event
	fault *Injection // may be nil
}

// opened returns the number of a new connection.
func (m *messages) opened() int {
	m.mu.Lock()
	m.conns++
	number := m.conns
	m.mu.Unlock()
	m.say(said{Event: wiretap.Event{Time: time.Now(), Conn: number, Kind: wiretap.Opened, FromClient: true}})
	return number
}

// say keeps an event for a report.
func (m *messages) say(e said) {
	if f := e.Frame; f != nil && (f.Xid == proto.XidPing || f.Kind == wire.Request && f.Op == proto.OpPing) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[m.said%lastMessages] = e
	m.said++
	m.wake()
}

// awaitNext returns a channel that is closed at the next message, when the server has carried out
// what it answers.
func (m *messages) awaitNext() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next == nil {
		m.next = make(chan struct{})
	}
	return m.next
}

// wake wakes those who wait for the next message. The caller holds mu.
func (m *messages) wake() {
	if m.next != nil {
		close(m.next)
		m.next = nil
	}
}

func (m *messages) ask(r Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.wake()
	m.requests = append(m.requests, r)
	m.size += len(r.frame.Payload)
	for m.size > maxRequests {
		m.size -= len(m.requests[0].frame.Payload)
		m.requests[0] = Request{}
		m.requests = m.requests[1:]
		m.dropped++
	}
}

func (m *messages) find(wanted func(*Request) bool) (all []Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.requests {
		if wanted(&m.requests[i]) {
			all = append(all, m.requests[i])
		}
	}
	return all
}

// lines returns the last messages as 'lockkeeper wire' prints them.
func (m *messages) lines() (lines []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := max(0, m.said-lastMessages); i < m.said; i++ {
		e := m.last[i%lastMessages]
		var b bytes.Buffer
		printer := wiretap.Printer{W: &b, Start: m.start}
		printer.Handle(e.Event)
		line := strings.TrimSuffix(b.String(), "\n")
		if e.fault != nil {
			line += " [" + e.fault.fault.Do.String() + "]"
		}
		lines = append(lines, line)
	}
	return lines
}
