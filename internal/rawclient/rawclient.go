// Package rawclient speaks ZooKeeper's protocol with nothing hidden: frames go
// out when the caller says, many at once without waiting, and come back one by
// one as they were sent. It is for tests that a well-mannered client cannot make,
// and for the command, which needs no more.
//
// Three packages have a connection of their own, each for what this one hides or
// does not do: conform ends a check at the first surprise and keeps all frames for its
// report, differ sends bytes that are no requests and reads frames of any kind, and
// golden compares bytes, of frames that are cut short too. They share package wire,
// which tells what a frame is, and jute.ReadFrame.
//
// It starts no goroutine. A [Client] may be written by one and read by another.
package rawclient

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxFrame is the longest frame that is taken for one.
const maxFrame = 64 << 20

// ErrRefused says that the server answered a handshake with session 0.
var ErrRefused = errors.New("rawclient: session refused")

// Client is one connection.
type Client struct {
	Conn    net.Conn
	Session proto.ConnectReply // what the handshake came to
	Events  []Event            // those that Call met, in order
	Timeout time.Duration      // of every read and write; 0 is a minute

	r       *bufio.Reader
	lastXid int32
	out     []byte // frames that wait for Flush
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

// New wraps a connection, on which nothing has been sent.
func New(nc net.Conn) *Client { return &Client{Conn: nc, r: bufio.NewReader(nc)} }

// Open wraps a connection and opens a session.
func Open(nc net.Conn, timeout time.Duration) (*Client, error) {
	return shake(nc, &proto.ConnectRequest{Timeout: int32(timeout.Milliseconds()), Password: make([]byte, proto.PasswordLen), HasReadOnly: true})
}

// Resume wraps a connection and resumes a session on it.
func Resume(nc net.Conn, session proto.ConnectReply) (*Client, error) {
	return shake(nc, &proto.ConnectRequest{Timeout: session.Timeout, SessionID: session.SessionID, Password: session.Password, HasReadOnly: true})
}

func shake(nc net.Conn, q *proto.ConnectRequest) (*Client, error) {
	c := New(nc)
	if err := c.Handshake(q); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// Handshake sends q and reads the answer into c.Session. A refusal is ErrRefused.
func (c *Client) Handshake(q *proto.ConnectRequest) error {
	b, start := jute.BeginFrame(nil)
	b = q.Append(b)
	jute.EndFrame(b, start)
	if err := c.Write(b); err != nil {
		return err
	}
	if err := c.ReadHandshake(); err != nil {
		return err
	}
	if c.Session.SessionID == 0 {
		return ErrRefused
	}
	return nil
}

// ReadHandshake reads the answer to a ConnectRequest into c.Session.
func (c *Client) ReadHandshake() error {
	payload, err := c.payload()
	if err != nil {
		return err
	}
	d := jute.NewDecoder(payload)
	c.Session.Decode(&d)
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

// Queue adds a request to what the next Flush sends, and returns its xid.
func (c *Client) Queue(op proto.OpCode, body proto.Record) int32 {
	c.lastXid++
	c.out = Request(c.out, c.lastXid, op, body)
	return c.lastXid
}

// Queued is the number of bytes that wait for Flush.
func (c *Client) Queued() int { return len(c.out) }

// Flush sends what is queued, in one write.
func (c *Client) Flush() error {
	err := c.Write(c.out)
	c.out = c.out[:0]
	return err
}

// Send sends a request and does not wait for its reply.
func (c *Client) Send(op proto.OpCode, body proto.Record) (xid int32, err error) {
	xid = c.Queue(op, body)
	return xid, c.Flush()
}

// Read reads the next frame, reply or event. io.EOF is the server's end of the connection.
func (c *Client) Read() (Frame, error) {
	payload, err := c.payload()
	if err != nil {
		return Frame{}, err
	}
	var f Frame
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

// Decode decodes the body, all of it, into r.
func (f *Frame) Decode(r proto.Record) error {
	d := jute.NewDecoder(f.Body)
	if r.Decode(&d); d.Err() != nil {
		return d.Err()
	}
	if n := len(d.Rest()); n > 0 {
		return fmt.Errorf("%d bytes behind the record", n)
	}
	return nil
}

// Call sends a request and reads up to its reply. Events on the way go to
// c.Events. The error is the reply's code, if that is not OK; a reply body is
// decoded into reply unless that is nil.
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
			return f, fmt.Errorf("reply to request %d while %d was awaited", f.Xid, xid)
		case f.Code != proto.OK:
			return f, f.Code
		case reply != nil:
			return f, f.Decode(reply)
		}
		return f, nil
	}
}

// Create creates a znode that anybody may do anything with, and returns its path.
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

// Ping asks for a sign of life.
func (c *Client) Ping() error {
	_, err := c.Call(proto.OpPing, nil, nil)
	return err
}

// Close closes the connection; the session lives on.
func (c *Client) Close() error { return c.Conn.Close() }
