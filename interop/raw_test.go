//go:build interop

package interop

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A minimal client, for tests that must know each byte that they send and receive. It
// shares no code with the server on purpose, so that a common mistake cannot go unnoticed.

const (
	opCreate      = 1
	opExists      = 3
	opGetData     = 4
	opSetData     = 5
	opGetChildren = 8
)

const flagEphemeral = 1

// rawTimeout limits every wait for the server on a raw connection.
const rawTimeout = time.Minute

// rawConn is a connection with a session. One goroutine may send while another
// receives.
type rawConn struct {
	net.Conn
	in      *bufio.Reader
	session int64
	passwd  []byte
}

// rawSession is what a client needs to resume its session.
type rawSession struct {
	id     int64
	passwd []byte
}

// dialRaw connects and opens a session, or resumes the given one. lastZxid is the highest
// zxid that the client has seen: a server that is behind it must close the connection.
func dialRaw(addr string, timeout time.Duration, lastZxid int64, resume rawSession) (*rawConn, error) {
	conn, err := net.DialTimeout("tcp", addr, rawTimeout)
	if err != nil {
		return nil, err
	}
	if resume.id == 0 {
		resume.passwd = make([]byte, 16)
	}
	c := &rawConn{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	c.SetDeadline(time.Now().Add(rawTimeout))
	var hello message
	hello.int(0).long(lastZxid).int(int32(timeout.Milliseconds())).long(resume.id).bytes(resume.passwd)
	if err := c.send(hello); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	answer, err := c.frame()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	answer.int() // protocol version
	granted := answer.int()
	c.session, c.passwd = answer.long(), answer.bytes()
	if answer.short || c.session == 0 || granted <= 0 {
		conn.Close()
		return nil, fmt.Errorf("handshake: no session (timeout %d, id %#x)", granted, c.session)
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// dialRawSoon is like dialRaw, but retries, because a cluster member closes the
// connection while it knows no leader or is behind.
func dialRawSoon(t testing.TB, addr string, timeout time.Duration, lastZxid int64) *rawConn {
	t.Helper()
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(5 * time.Millisecond) {
		conn, err := dialRaw(addr, timeout, lastZxid, rawSession{})
		if err == nil {
			return conn
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// send writes one frame.
func (c *rawConn) send(m message) error {
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(m)), uint32(len(m)))
	_, err := c.Write(append(frame, m...))
	return err
}

// frame reads one frame.
func (c *rawConn) frame() (*reader, error) {
	body, err := readFrame(c.in, nil)
	return &reader{rest: body}, err
}

// readFrame reads one frame into buf, which it grows if necessary, and returns its payload.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > 1<<24 {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	buf = slices.Grow(buf[:0], int(n))[:n]
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// reply is the reply to a request.
type reply struct {
	xid  int32
	zxid int64
	code int32
	body *reader
}

func (c *rawConn) receive() (reply, error) {
	f, err := c.frame()
	if err != nil {
		return reply{}, err
	}
	r := reply{f.int(), f.long(), f.int(), f}
	if f.short {
		return r, io.ErrUnexpectedEOF
	}
	return r, nil
}

// call sends one request and receives its reply.
func (c *rawConn) call(m message) (reply, error) {
	c.SetDeadline(time.Now().Add(rawTimeout))
	defer c.SetDeadline(time.Time{})
	if err := c.send(m); err != nil {
		return reply{}, err
	}
	return c.receive()
}

func createRequest(xid int32, path string, data []byte, flags int32) message {
	var m message
	m.int(xid).int(opCreate).text(path).bytes(data)
	m.int(1).int(31).text("world").text("anyone")
	return *m.int(flags)
}

func setDataRequest(xid int32, path string, data []byte) message {
	var m message
	return *m.int(xid).int(opSetData).text(path).bytes(data).int(-1)
}

// readRequest returns a request exists, getData or getChildren without a watch.
func readRequest(xid, op int32, path string) message {
	var m message
	return append(*m.int(xid).int(op).text(path), 0)
}

// stat is the part of a Stat that these tests check.
type stat struct {
	czxid   int64
	version int32
	owner   int64
}

// message is a request under construction.
type message []byte

func (m *message) int(v int32) *message {
	*m = binary.BigEndian.AppendUint32(*m, uint32(v))
	return m
}

func (m *message) long(v int64) *message {
	*m = binary.BigEndian.AppendUint64(*m, uint64(v))
	return m
}

func (m *message) bytes(v []byte) *message {
	m.int(int32(len(v)))
	*m = append(*m, v...)
	return m
}

func (m *message) text(v string) *message { return m.bytes([]byte(v)) }

// reader decodes a reply. After its end, it returns zeros and sets short.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.short, r.rest = true, nil
		return make([]byte, 8) // a zero of any width
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) int() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }

func (r *reader) long() int64 { return int64(binary.BigEndian.Uint64(r.take(8))) }

func (r *reader) bytes() []byte {
	n := r.int()
	if n == -1 {
		return nil
	}
	return r.take(int(n))
}

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) stat() stat {
	s := stat{czxid: r.long()}
	r.take(3 * 8) // mzxid, ctime, mtime
	s.version = r.int()
	r.take(2 * 4) // cversion, aversion
	s.owner = r.long()
	r.take(4 + 4 + 8) // dataLength, numChildren, pzxid
	return s
}

var zxidLine = regexp.MustCompile(`(?m)^Zxid: 0x([0-9a-f]+)$`)

// serverZxid asks the server for its last zxid, with the four-letter word srvr.
func serverZxid(t testing.TB, addr string) int64 {
	t.Helper()
	text, err := fourLetterWord(addr, "srvr", rawTimeout)
	if err != nil {
		t.Fatalf("srvr: %v", err)
	}
	found := zxidLine.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("srvr shows no zxid:\n%s", text)
	}
	zxid, err := strconv.ParseInt(found[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return zxid
}
