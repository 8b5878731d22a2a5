// Package rawclient is a client that hides nothing of ZooKeeper's protocol: the caller
// decides when frames are sent, can send several without waiting for replies, and reads
// the server's frames one by one. It is for tests that an ordinary client does not
// allow, and for the command and the console, which need no more.
//
// Three packages have connections of their own instead. conform ends a check at the
// first unexpected reply and keeps all frames for its report, differ sends bytes that
// are not requests and reads frames of any kind, and golden compares bytes, even of
// truncated frames. They share package wire, which decodes frames, and jute.ReadFrame.
//
// The package starts no goroutines. One goroutine may write to a [Client] while another
// reads from it.
package rawclient

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxFrame is the length of the longest frame that a Client accepts.
const maxFrame = 64 << 20

// ErrRefused means that the server answered a handshake with session 0.
var ErrRefused = errors.New("rawclient: session refused")

// Client is one connection.
type Client struct {
	Conn    net.Conn
	Session proto.ConnectReply // the answer to the handshake
	Events  []Event            // the events that Call has read, in order
	Timeout time.Duration      // of every read and write; 0 is a minute

	r       *bufio.Reader
	lastXid int32
	out     []byte // frames that wait for Flush
	in      []byte // the last frame that Pipeline has read
}

// Event is a watch event with the zxid of its header.
type Event struct {
	Zxid int64
	proto.WatcherEvent
}

// Frame is a reply or an event.
type Frame struct {
	proto.ReplyHeader
	Body []byte
}

// New wraps a connection on which nothing has been sent yet.
func New(nc net.Conn) *Client { return &Client{Conn: nc, r: bufio.NewReader(nc)} }

// Open wraps a connection and opens a session.
func Open(nc net.Conn, timeout time.Duration) (*Client, error) {
	return OpenWithin(nc, timeout, 0)
}

// OpenWithin is Open with a Client that has the given Timeout.
func OpenWithin(nc net.Conn, timeout, limit time.Duration) (*Client, error) {
	return connect(nc, NewSession(timeout), limit)
}

// Resume wraps a connection and resumes a session on it.
func Resume(nc net.Conn, session proto.ConnectReply) (*Client, error) {
	return connect(nc, Resumption(session), 0)
}

// NewSession returns the request for a new session, as the Java client sends it.
func NewSession(timeout time.Duration) *proto.ConnectRequest {
	return &proto.ConnectRequest{Timeout: int32(timeout.Milliseconds()), Password: make([]byte, proto.PasswordLen), HasReadOnly: true}
}

// Resumption returns the request to resume a session.
func Resumption(session proto.ConnectReply) *proto.ConnectRequest {
	return &proto.ConnectRequest{Timeout: session.Timeout, SessionID: session.SessionID, Password: session.Password, HasReadOnly: true}
}

func connect(nc net.Conn, q *proto.ConnectRequest, limit time.Duration) (*Client, error) {
	c := New(nc)
	c.Timeout = limit
	if err := c.Handshake(q); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// Handshake sends q and reads the answer into c.Session. It returns ErrRefused if the server refuses the session.
func (c *Client) Handshake(q *proto.ConnectRequest) error {
	if err := c.Write(Framed(q)); err != nil {
		return err
	}
	payload, err := c.payload()
	if err != nil {
		return err
	}
	d := jute.NewDecoder(payload)
	if c.Session.Decode(&d); d.Err() == nil && c.Session.SessionID == 0 {
		return ErrRefused
	}
	return d.Err()
}

func (c *Client) deadline() time.Time {
	if c.Timeout > 0 {
		return time.Now().Add(c.Timeout)
	}
	return time.Now().Add(time.Minute)
}

// Write sends bytes as they are.
func (c *Client) Write(b []byte) error {
	c.Conn.SetWriteDeadline(c.deadline())
	_, err := c.Conn.Write(b)
	return err
}

func (c *Client) payload() ([]byte, error) {
	c.Conn.SetReadDeadline(c.deadline())
	return jute.ReadFrame(c.r, maxFrame, nil)
}

// Framed returns records as one frame.
func Framed(records ...proto.Record) []byte {
	b, start := jute.BeginFrame(nil)
	for _, r := range records {
		b = r.Append(b)
	}
	jute.EndFrame(b, start)
	return b
}

// Request appends a request's frame to b. A nil body is empty.
func Request(b []byte, xid int32, op proto.OpCode, body proto.Record) []byte {
	b, start := jute.BeginFrame(b)
	h := proto.RequestHeader{Xid: xid, Op: op}
	if b = h.Append(b); body != nil {
		b = body.Append(b)
	}
	jute.EndFrame(b, start)
	return b
}

// Queue queues a request for the next Flush and returns its xid.
func (c *Client) Queue(op proto.OpCode, body proto.Record) int32 {
	c.lastXid++
	c.out = Request(c.out, c.lastXid, op, body)
	return c.lastXid
}

// Queued returns the number of bytes that wait for Flush.
func (c *Client) Queued() int { return len(c.out) }

// Flush sends everything queued in one write.
func (c *Client) Flush() error {
	err := c.Write(c.out)
	c.out = c.out[:0]
	return err
}

// Send sends a request without waiting for its reply.
func (c *Client) Send(op proto.OpCode, body proto.Record) (xid int32, err error) {
	xid = c.Queue(op, body)
	return xid, c.Flush()
}

// Read reads the next frame, a reply or an event. It returns io.EOF if the server has closed the connection.
func (c *Client) Read() (Frame, error) {
	payload, err := c.payload()
	if err != nil {
		return Frame{}, err
	}
	return parse(payload)
}

func parse(payload []byte) (f Frame, err error) {
	d := jute.NewDecoder(payload)
	f.ReplyHeader.Decode(&d)
	f.Body = d.Rest()
	return f, d.Err()
}

// Event decodes the frame as an event; ok is false if it is a reply.
func (f *Frame) Event() (e Event, ok bool) {
	if f.Xid != proto.XidEvent {
		return e, false
	}
	d := jute.NewDecoder(f.Body)
	e.Zxid = f.Zxid
	e.WatcherEvent.Decode(&d)
	return e, d.Err() == nil
}

// Decode decodes the body into r. It is an error if bytes are left.
func (f *Frame) Decode(r proto.Record) error {
	d := jute.NewDecoder(f.Body)
	if r.Decode(&d); d.Err() != nil {
		return d.Err()
	}
	if n := len(d.Rest()); n > 0 {
		return fmt.Errorf("%d bytes after the record", n)
	}
	return nil
}

// Call sends a request and reads up to its reply. It appends events that come before
// the reply to c.Events. If the reply's code is not OK, the code is the error.
// Otherwise Call decodes the body into reply, unless reply is nil.
func (c *Client) Call(op proto.OpCode, body, reply proto.Record) (Frame, error) {
	xid, err := c.Send(op, body)
	if err != nil {
		return Frame{}, err
	}
	if op == proto.OpPing {
		xid = proto.XidPing
	}
	for {
		f, err := c.Read()
		if err != nil {
			return f, err
		}
		if e, ok := f.Event(); ok {
			c.Events = append(c.Events, e)
			continue
		}
		switch {
		case f.Xid != xid:
			return f, fmt.Errorf("reply to request %d, expected one to %d", f.Xid, xid)
		case f.Code != proto.OK:
			return f, f.Code
		case reply != nil:
			return f, f.Decode(reply)
		}
		return f, nil
	}
}

// Create creates a znode with an open ACL and returns its path.
func (c *Client) Create(path string, data []byte, flags int32) (string, error) {
	var r proto.PathReply
	_, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL, Flags: flags}, &r)
	return r.Path, err
}

// Set replaces a znode's data, whatever its version.
func (c *Client) Set(path string, data []byte) (proto.Stat, error) {
	var s proto.Stat
	_, err := c.Call(proto.OpSetData, &proto.SetDataRequest{Path: path, Data: data, Version: proto.AnyVersion}, &s)
	return s, err
}

// Get reads a znode.
func (c *Client) Get(path string, watch bool) (proto.DataReply, error) {
	var r proto.DataReply
	_, err := c.Call(proto.OpGetData, &proto.PathWatch{Path: path, Watch: watch}, &r)
	return r, err
}

// Exists reads a znode's Stat.
func (c *Client) Exists(path string, watch bool) (proto.Stat, error) {
	var s proto.Stat
	_, err := c.Call(proto.OpExists, &proto.PathWatch{Path: path, Watch: watch}, &s)
	return s, err
}

// Delete deletes a znode, whatever its version.
func (c *Client) Delete(path string) error {
	_, err := c.Call(proto.OpDelete, &proto.PathVersion{Path: path, Version: proto.AnyVersion}, nil)
	return err
}

// Ping sends a ping and waits for its reply.
func (c *Client) Ping() error {
	_, err := c.Call(proto.OpPing, nil, nil)
	return err
}

// Close closes the connection. It does not close the session.
func (c *Client) Close() error { return c.Conn.Close() }

// Word asks a four-letter word on a new connection, which it closes, and returns the whole
// answer, or as much of it as came before the error.
func Word(nc net.Conn, word string, limit time.Duration) (string, error) {
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(nc, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(nc, maxFrame))
	return string(answer), err
}
