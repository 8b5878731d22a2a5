package differ

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

type kind int

const (
	open kind = iota // connect, and open the session or resume it
	send             // send requests in one write
	cut              // close the connection without closing the session
)

// step is an action on both endpoints. It is pure data, so that a part of a sequence can
// be repeated; a step on a connection that is not open does nothing.
type step struct {
	Kind    kind
	Conn    int // open makes it
	Session int // of open
	Frames  []frame
	// Ends means that the server closes the connection without a reply. Pending events
	// must be received first, because the server might not send them any more.
	Ends bool
	// Alone, which is for open, means that the session's current connection is closed first.
	Alone bool
	// Closes means that the step closes the session. The order in which its ephemerals
	// are deleted is undefined, so their events are kept apart from all others.
	Closes bool
}

// frame is a frame as a list of parts, most of which are literal bytes.
type frame struct {
	Op    proto.OpCode // for the report
	Parts []part
	Cut   int  // number of bytes to remove at the end
	Raw   bool // without a length prefix
	Odd   bool // a createContainer with the ephemeral flag
}

// part is a part of a frame. Values that depend on the endpoint or the run are filled in
// when the frame is sent.
type part struct {
	Kind  partKind
	Bytes []byte // literal
	Path  string // path: "~" at its start is the root of the run, "^" its place under /zookeeper/quota
	N     int    // newest: how many sequential znodes before the last; zxid: the last one seen plus N; sessionID, password: the session
	Off   bool   // password: a wrong one
}

type partKind int

const (
	literal partKind = iota
	path             // a ustring
	newest           // a ustring, the path of a sequential znode
	zxid             // a long
	sessionID
	password
)

func (f *frame) bytes(b []byte) *frame {
	if n := len(f.Parts); n > 0 && f.Parts[n-1].Kind == literal {
		f.Parts[n-1].Bytes = append(f.Parts[n-1].Bytes, b...)
	} else {
		f.Parts = append(f.Parts, part{Bytes: bytes.Clone(b)})
	}
	return f
}

func (f *frame) int(v int32) *frame     { return f.bytes(jute.AppendInt(nil, v)) }
func (f *frame) long(v int64) *frame    { return f.bytes(jute.AppendLong(nil, v)) }
func (f *frame) bool(v bool) *frame     { return f.bytes(jute.AppendBool(nil, v)) }
func (f *frame) str(v string) *frame    { return f.bytes(jute.AppendString(nil, v)) }
func (f *frame) buffer(v []byte) *frame { return f.bytes(jute.AppendBuffer(nil, v)) }
func (f *frame) part(p part) *frame     { f.Parts = append(f.Parts, p); return f }

// literals returns how many bytes of the frame are known before it is sent.
func (f *frame) literals() int {
	n := 0
	for i := range f.Parts {
		n += len(f.Parts[i].Bytes)
	}
	return n
}

type blanks struct {
	root    string
	newest  []string          // paths of sequential znodes, the latest last
	zxid    func(n int) int64 // the highest zxid seen plus n
	session func(n int) (id int64, password []byte)
}

func quotaRoot(root string) string { return "/zookeeper/quota" + root }

func (f *frame) append(b []byte, c *blanks) []byte {
	start := len(b)
	if !f.Raw {
		b, _ = jute.BeginFrame(b)
	}
	for i := range f.Parts {
		switch p := &f.Parts[i]; p.Kind {
		case literal:
			b = append(b, p.Bytes...)
		case path:
			s := p.Path
			if rest, ok := strings.CutPrefix(s, "~"); ok {
				s = c.root + rest
			} else if rest, ok := strings.CutPrefix(s, "^"); ok {
				s = quotaRoot(c.root) + rest
			}
			b = jute.AppendString(b, s)
		case newest:
			s := c.root + "/none"
			if i := len(c.newest) - 1 - p.N; i >= 0 {
				s = c.newest[i]
			}
			b = jute.AppendString(b, s)
		case zxid:
			b = jute.AppendLong(b, c.zxid(p.N))
		case sessionID:
			id, _ := c.session(p.N)
			b = jute.AppendLong(b, id)
		case password:
			_, pw := c.session(p.N)
			if p.Off {
				pw = bytes.Clone(pw)
				pw[3] ^= 0x55
			}
			b = jute.AppendBuffer(b, pw)
		}
	}
	if !f.Raw {
		keep := 4 // the length, and a request's header: without one the connection ends
		if f.Op != 0 && f.Op != proto.OpAuth {
			keep = 12
		}
		b = b[:max(start+keep, len(b)-f.Cut)]
		binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	}
	return b
}
