// Package wire decodes the frames on a connection that speaks ZooKeeper's protocol, and
// formats them as text.
package wire

import (
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/tools/xid"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Kind is the kind of a frame.
type Kind int

// The kinds of frames.
const (
	ConnectRequest Kind = iota + 1
	ConnectReply
	Request
	Reply
	Event
)

// Frame is one frame, decoded as far as it can be.
type Frame struct {
	Kind    Kind
	Xid     int32        // of all but the handshake
	Op      proto.OpCode // of a Request, and of a Reply whose request was seen
	Known   bool         // a Reply's request was seen
	Zxid    int64        // of a Reply and an Event
	Code    proto.Code   // of a Reply and an Event
	Body    proto.Record // nil if there is none, or if Err is set
	Err     error        // why the frame, or its body, cannot be decoded
	Rest    []byte       // bytes after the record, or a body that cannot be decoded
	Payload []byte       // the whole frame without its length
}

// FromClient reports whether the client sent the frame.
func (f *Frame) FromClient() bool { return f.Kind == ConnectRequest || f.Kind == Request }

// UnknownOps are numbers that no operation has, here or in ZooKeeper.
var UnknownOps = []proto.OpCode{0, 10, 23, 50, 99, 108, 200, 500, 1000, math.MaxInt32, -2, -12, -100, math.MinInt32}

// Conversation follows both directions of one connection from its start. It needs both
// because only the request says how to decode its reply. The zero value is a new
// connection. A Conversation is not safe for concurrent use.
type Conversation struct {
	asked, answered bool // the handshake
	waiting         xid.Waiting
}

// FromClient decodes the next frame that the client sent. It keeps payload.
func (c *Conversation) FromClient(payload []byte) Frame {
	f := Frame{Payload: payload}
	d := jute.NewDecoder(payload)
	if !c.asked {
		c.asked = true
		f.Kind = ConnectRequest
		f.decode(&d, new(proto.ConnectRequest))
		return f
	}
	f.Kind = Request
	var h proto.RequestHeader
	if h.Decode(&d); d.Err() != nil {
		f.Err, f.Rest = d.Err(), payload
		return f
	}
	f.Xid, f.Op = h.Xid, h.Op
	c.waiting.Asked(h.Xid, int32(h.Op))
	if row := proto.OpByCode(h.Op); row != nil {
		f.decode(&d, row.Request())
	} else {
		f.Rest = d.Rest()
	}
	return f
}

// FromServer decodes the next frame that the server sent. It keeps payload.
func (c *Conversation) FromServer(payload []byte) Frame {
	f := Frame{Payload: payload}
	d := jute.NewDecoder(payload)
	if !c.answered {
		c.answered = true
		f.Kind = ConnectReply
		f.decode(&d, new(proto.ConnectReply))
		return f
	}
	f.Kind = Reply
	var h proto.ReplyHeader
	if h.Decode(&d); d.Err() != nil {
		f.Err, f.Rest = d.Err(), payload
		return f
	}
	f.Xid, f.Zxid, f.Code = h.Xid, h.Zxid, h.Code
	if h.Xid == proto.XidEvent {
		f.Kind = Event
		f.decode(&d, new(proto.WatcherEvent))
		return f
	}
	op, known := c.waiting.Answered(h.Xid)
	f.Op, f.Known = proto.OpCode(op), known
	row := proto.OpByCode(f.Op)
	if f.Known && f.Code == proto.OK && row != nil && row.Reply != nil {
		f.decode(&d, row.Reply())
	} else {
		f.Rest = d.Rest()
	}
	return f
}

func (f *Frame) decode(d *jute.Decoder, r proto.Record) {
	body := d.Rest()
	if r.Decode(d); d.Err() != nil {
		f.Err, f.Rest = d.Err(), body
		return
	}
	f.Rest = d.Rest()
	if _, empty := r.(*proto.Empty); !empty {
		f.Body = r
	}
}

// OpName returns ZooKeeper's name of an opcode, or its number.
func OpName(op proto.OpCode) string {
	if row := proto.OpByCode(op); row != nil {
		return row.Name
	}
	switch op {
	case proto.OpDeleteContainer:
		return "deleteContainer"
	case proto.OpCreateSession:
		return "createSession"
	}
	return "op " + strconv.Itoa(int(op))
}

// String formats the frame as one line.
func (f *Frame) String() string {
	var b strings.Builder
	switch f.Kind {
	case ConnectRequest, ConnectReply:
		b.WriteString("connect")
	case Request:
		fmt.Fprintf(&b, "%s xid=%d", OpName(f.Op), f.Xid)
	case Reply:
		name := "reply"
		if f.Known {
			name = OpName(f.Op)
		}
		fmt.Fprintf(&b, "%s xid=%d zxid=%s %s", name, f.Xid, Zxid(f.Zxid), f.Code)
	case Event:
		fmt.Fprintf(&b, "event zxid=%s", Zxid(f.Zxid))
		if f.Code != proto.OK {
			fmt.Fprintf(&b, " %s", f.Code)
		}
	}
	if f.Body != nil {
		b.WriteByte(' ')
		b.WriteString(Text(f.Body))
	}
	if f.Err != nil {
		fmt.Fprintf(&b, " UNREADABLE (%v)", f.Err)
	}
	if len(f.Rest) > 0 {
		fmt.Fprintf(&b, " +%d bytes %s", len(f.Rest), cut(hex.EncodeToString(f.Rest), 64))
	}
	return b.String()
}

// Zxid formats a zxid in hex, but -1, which means none, in decimal.
func Zxid(z int64) string {
	if z == -1 {
		return "-1"
	}
	return fmt.Sprintf("%#x", uint64(z))
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Text formats a record as its fields with their names, nested.
func Text(r any) string { return named(r, "") }

// named formats a value. name is the name of its field, if any.
func named(r any, name string) string {
	var b strings.Builder
	text(&b, reflect.ValueOf(r), name)
	return b.String()
}

// text writes one value. name is the name of its field.
func text(b *strings.Builder, v reflect.Value, name string) {
	switch x := v.Interface().(type) {
	case proto.ACL:
		fmt.Fprintf(b, "%d %s:%s", x.Perms, x.Scheme, x.ID.ID)
		return
	case proto.ID:
		fmt.Fprintf(b, "%s:%s", x.Scheme, x.ID)
		return
	case proto.Path:
		if x.Path == jute.Null {
			b.WriteString("null")
		} else {
			b.WriteString(cut(strconv.Quote(x.Path), 400))
		}
		return
	case proto.MultiOp:
		b.WriteString(OpName(x.Op))
		text(b, reflect.ValueOf(x.Request), "")
		return
	case proto.MultiResult:
		if x.Op == proto.OpError {
			b.WriteString(x.Code.String())
			return
		}
		b.WriteString(OpName(x.Op))
		if x.Reply != nil {
			text(b, reflect.ValueOf(x.Reply), "")
		}
		return
	case proto.OpCode:
		b.WriteString(OpName(x))
		return
	case fmt.Stringer:
		b.WriteString(x.String())
		return
	case []byte:
		data(b, x)
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		text(b, v.Elem(), name)
	case reflect.Struct:
		sep := "{"
		for field, x := range members(v) {
			b.WriteString(sep + field + "=")
			text(b, x, field)
			sep = " "
		}
		b.WriteByte('}')
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(' ')
			}
			if i == 100 {
				fmt.Fprintf(b, "… %d more", v.Len()-i)
				break
			}
			text(b, v.Index(i), "")
		}
		b.WriteByte(']')
	case reflect.String:
		if v.String() == jute.Null {
			b.WriteString("null")
			return
		}
		b.WriteString(cut(strconv.Quote(v.String()), 400))
	case reflect.Int64:
		switch {
		case isZxid(name):
			b.WriteString(Zxid(v.Int()))
			return
		case isSession(name):
			fmt.Fprintf(b, "%#x", uint64(v.Int()))
			return
		}
		fmt.Fprint(b, v.Int())
	default:
		fmt.Fprint(b, v.Interface())
	}
}

// isZxid and isSession decide by its name what a 64-bit field holds.
func isZxid(name string) bool    { return strings.Contains(strings.ToLower(name), "zxid") }
func isSession(name string) bool { return name == "sessionID" || name == "ephemeralOwner" }

// members yields the fields of a struct and of the structs embedded in it, with their names in text and JSON.
func members(v reflect.Value) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) { visit(v, yield) }
}

func visit(v reflect.Value, yield func(string, reflect.Value) bool) bool {
	for f, x := range v.Fields() {
		name := strings.ToLower(f.Name[:1]) + f.Name[1:]
		switch f.Name {
		case "ACL", "IDs", "ID", "TTL":
			name = strings.ToLower(f.Name)
		}
		if f.Anonymous && !visit(x, yield) || !f.Anonymous && !yield(name, x) {
			return false
		}
	}
	return true
}

// data writes bytes as a quoted string if they are text, and otherwise in hex.
func data(b *strings.Builder, v []byte) {
	switch {
	case v == nil:
		b.WriteString("null")
	case utf8.Valid(v) && !strings.ContainsFunc(string(v), unicode.IsControl):
		b.WriteString(cut(strconv.Quote(string(v)), 200))
		if len(v) > 200 {
			fmt.Fprintf(b, "(%d bytes)", len(v))
		}
	default:
		b.WriteString("0x" + cut(hex.EncodeToString(v), 64))
		if len(v) > 32 {
			fmt.Fprintf(b, "(%d bytes)", len(v))
		}
	}
}
