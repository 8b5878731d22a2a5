package differ

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// kind says what a step does.
type kind int

const (
	open kind = iota // connect, and open the session or resume it
	send             // send requests in one write
	cut              // close the connection; the session lives on
)

// step is one thing that is done to both endpoints. It is pure data, so that a
// sequence can be repeated in part: a step on a connection that is not open does
// nothing.
type step struct {
	Kind    kind
	Conn    int // open makes it
	Session int // of open
	Frames  []frame
	// Ends says that the server closes the connection without a word, which
	// would race with events that it has not written yet.
	Ends bool
	// Alone says of open that a connection that the session has is cut before.
	Alone bool
	// Closes says that the step closes the session, whose ephemerals go in no
	// defined order: their events are kept apart from all others.
	Closes bool
}

// frame is one frame in parts, most of which are literal bytes.
type frame struct {
	Op    proto.OpCode // for the report
	Parts []part
	Cut   int  // so many bytes are missing at the end
	Raw   bool // no length stands before it
	Odd   bool // it creates a container of an ephemeral mode
}

// part is a piece of a frame. What depends on the endpoint or on the run is
// filled in when the frame is sent.
type part struct {
	Kind  partKind
	Bytes []byte // literal
	Path  string // path: "~" at its start is the root of the run, "^" its place under /zookeeper/quota
	N     int    // path "": the last sequential znode but N; zxid: the last one seen plus N; sessionID, password: the session
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

// blanks is what parts are filled in from.
type blanks struct {
	root    string
	newest  []string          // paths of sequential znodes, the last one at the end
	zxid    func(n int) int64 // the highest zxid seen plus n
	session func(n int) (id int64, password []byte)
}

// quotaRoot is where quotas of the run's znodes are.
func quotaRoot(root string) string { return "/zookeeper/quota" + root }

// append encodes the frame.
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
