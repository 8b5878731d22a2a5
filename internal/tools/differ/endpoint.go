package differ

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxReply is the length of the longest reply that is accepted.
const maxReply = 64 << 20

// Dial connects to an endpoint.
type Dial func(ctx context.Context) (net.Conn, error)

// Version is the version that an endpoint reports in its answer to srvr.
type Version struct {
	Text string // as reported; "" if the endpoint did not report any
	releases.Version
	Lockkeeper bool
}

// line returns the line of the release; the newest if the version is not known.
func (v Version) line() persona.Line {
	if v.Text == "" || v.Major != 3 || v.Minor > int(persona.Newest) {
		return persona.Newest
	}
	return max(persona.Oldest, persona.Line(v.Minor))
}

func parseVersion(srvr string) (v Version) {
	line, _, _ := strings.Cut(srvr, "\n")
	text, ok := strings.CutPrefix(line, "Zookeeper version: ")
	if !ok {
		return v
	}
	text, _, _ = strings.Cut(text, ",")
	number, err := releases.Parse(text)
	if err != nil {
		return v
	}
	return Version{text, number, strings.Contains(text, "lockkeeper")}
}

// endpoint is the state of one of the two servers during a run.
type endpoint struct {
	dial     Dial
	patience time.Duration
	conns    map[int]*conn
	sessions map[int]proto.ConnectReply
	numbers  map[int64]int   // numbers of the sessions, by id
	base     int64           // the zxid at the start of the run
	skipped  []int64         // zxids that only this endpoint consumed, which a mask allows
	last     int64           // the highest zxid in a reply so far
	times    map[int64]int64 // times in Stats, by the zxid of the transaction
	buf      []byte
}

// conn is one connection of an endpoint. It is not a rawclient.Client, because it sends
// bytes that are not requests and reads frames of any kind.
type conn struct {
	nc   net.Conn
	r    *bufio.Reader
	talk wire.Conversation
	end  string // how the connection ended; "" while it is open
}

const (
	closed = "the connection is closed"
	silent = "no answer"
)

func (e *endpoint) blanks(r *run) *blanks {
	return &blanks{root: r.root, newest: r.newest, zxid: func(n int) int64 { return e.zxid(e.step(e.last) + int64(n)) }, session: func(n int) (int64, []byte) {
		s, ok := e.sessions[n]
		if !ok {
			return 0x7fff<<40 + int64(n), make([]byte, proto.PasswordLen)
		}
		return s.SessionID, s.Password
	}}
}

// send sends frames in one write and returns them decoded.
func (e *endpoint) send(c *conn, frames []frame, b *blanks) (sent []wire.Frame) {
	e.buf = e.buf[:0]
	for i := range frames {
		start := len(e.buf)
		e.buf = frames[i].append(e.buf, b)
		if !frames[i].Raw {
			sent = append(sent, c.talk.FromClient(slices.Clone(e.buf[start+4:])))
		}
	}
	c.nc.SetWriteDeadline(time.Now().Add(e.patience))
	c.nc.Write(e.buf) // receive notices errors
	return sent
}

// receive reads frames until it has read that many replies or, if want is negative, until
// the server closes the connection.
func (e *endpoint) receive(c *conn, want int) (frames []wire.Frame) {
	c.nc.SetReadDeadline(time.Now().Add(e.patience))
	for want != 0 && c.end == "" {
		payload, err := jute.ReadFrame(c.r, maxReply, nil)
		if err != nil {
			c.end = closed
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				c.end = silent
			} else if errors.Is(err, jute.ErrFrame) {
				c.end = err.Error()
			}
			c.nc.Close()
			break
		}
		f := c.talk.FromServer(payload)
		frames = append(frames, f)
		if f.Kind == wire.Event {
			continue
		}
		want--
		if over(&f) {
			want = -1
		}
	}
	return frames
}

// over reports whether the server closes the connection after a reply.
func over(f *wire.Frame) bool {
	switch {
	case f.Kind == wire.ConnectReply:
		r, ok := f.Body.(*proto.ConnectReply)
		return ok && r.SessionID == 0
	case f.Code == proto.OK:
		return f.Known && f.Op == proto.OpCloseSession
	}
	return f.Code == proto.AuthFailed || f.Code == proto.Unimplemented && f.Zxid == -1
}

// note remembers zxids and sessions, on which later steps depend.
func (e *endpoint) note(session int, frames []wire.Frame) {
	for i := range frames {
		f := &frames[i]
		if f.Kind == wire.Reply {
			e.last = max(e.last, f.Zxid)
		}
		if r, ok := f.Body.(*proto.ConnectReply); ok && r.SessionID != 0 {
			if _, known := e.numbers[r.SessionID]; !known {
				e.numbers[r.SessionID] = len(e.numbers) + 1
			}
			e.sessions[session] = *r
		}
	}
}

// step converts a zxid to the number of transactions since the start of the run.
func (e *endpoint) step(z int64) int64 {
	switch {
	case z <= 0:
		return z
	case z < e.base:
		return -1 << 40
	}
	return z - e.base + 1 - int64(sort.Search(len(e.skipped), func(i int) bool { return e.skipped[i] > z }))
}

func (e *endpoint) zxid(step int64) int64 {
	z := e.base - 1 + step
	for _, s := range e.skipped {
		if s <= z {
			z++
		}
	}
	return z
}

// stat makes a Stat comparable: it converts zxids to steps, and replaces times with 0 if
// they are plausible and with -1 otherwise.
func (e *endpoint) stat(s *proto.Stat) {
	ctime, mtime := int64(0), int64(0)
	if !e.sameTime(s.Czxid, s.Ctime) {
		ctime = -1
	}
	if !e.sameTime(s.Mzxid, s.Mtime) || s.Mtime < s.Ctime {
		mtime = -1
	}
	s.Ctime, s.Mtime = ctime, mtime
	s.Czxid, s.Mzxid, s.Pzxid = e.step(s.Czxid), e.step(s.Mzxid), e.step(s.Pzxid)
	if s.EphemeralOwner != 0 {
		s.EphemeralOwner = e.number(s.EphemeralOwner)
	}
}

func (e *endpoint) number(id int64) int64 {
	if n, ok := e.numbers[id]; ok {
		return int64(n)
	}
	return -1
}

// sameTime reports whether a transaction has the same time as in earlier Stats.
func (e *endpoint) sameTime(z, ms int64) bool {
	if z < e.base {
		return true
	}
	was, ok := e.times[z]
	if !ok {
		e.times[z] = ms
	}
	return !ok && ms > 0 || was == ms
}

// errOdd marks a body that has other bytes when it is encoded again, for example because
// its text is not valid UTF-8.
var errOdd = errors.New("encoded unusually")

// comparable replaces everything in a frame that must differ between servers: ids,
// passwords, times and absolute zxids. It modifies the frame's body.
func (e *endpoint) comparable(f wire.Frame) wire.Frame {
	f.Zxid = e.step(f.Zxid)
	if f.Body != nil && f.Err == nil && f.Payload != nil && !bytes.HasSuffix(f.Payload, append(f.Body.Append(nil), f.Rest...)) {
		f.Err = errOdd
	}
	switch r := f.Body.(type) {
	case *proto.ConnectReply:
		if r.SessionID != 0 {
			r.SessionID = e.number(r.SessionID)
			r.Password = fmt.Appendf(nil, "%d bytes", len(r.Password))
		}
	case *proto.Stat:
		e.stat(r)
	case *proto.PathStatReply:
		e.stat(&r.Stat)
	case *proto.DataReply:
		e.stat(&r.Stat)
	case *proto.ACLReply:
		e.stat(&r.Stat)
	case *proto.Children2Reply:
		e.stat(&r.Stat)
	case *proto.MultiReply:
		for i := range r.Results {
			g := e.comparable(wire.Frame{Body: r.Results[i].Reply})
			r.Results[i].Reply = g.Body
		}
	}
	return f
}
