package proto

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/jute"
)

// captured calls f for every frame that was recorded from real servers.
func captured(t testing.TB, f func(scenario string, frame golden.Frame)) {
	t.Helper()
	scenarios, err := golden.LoadAll(os.DirFS("../testdata/golden"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		for _, frame := range s.Frames() {
			f(s.Name, frame)
		}
	}
}

// malformed has the scenarios all of whose requests may have bodies that cannot be
// decoded.
var malformed = map[string]bool{"10-bad-frames": true, "54-malformed-body": true}

// unreadable has the frames of other scenarios that cannot be decoded, by scenario and
// line, with the reason.
var unreadable = map[string]string{
	"30-multi-edge:17":     "setACL is not allowed in a multi",
	"30-multi-edge:22":     "it is truncated",
	"30-multi-edge:47":     "it has a create with an unknown mode",
	"32-multi-read:38":     "exists is not allowed in a multiRead",
	"59-sasl:44":           "its token is null",
	"59-sasl:54":           "it has no token",
	"62-connect-edges:337": "it is truncated before the password",
	"62-connect-edges:341": "it is truncated in the password's length",
	"62-connect-edges:345": "it is truncated in the password",
	"62-connect-edges:349": "the password has a negative length",
	"62-connect-edges:353": "the password is shorter than its length says",
}

// rewritten has the frames whose encoding differs from the bytes that were sent, with the
// reason.
var rewritten = map[string]string{
	"63-sasl-digest-md5:75": "an error has a body, a null token",
	"63-sasl-digest-md5:92": "an error has a body, a null token",
	"62-connect-edges:43":   "any byte except 0 is decoded as true",
	"62-connect-edges:61":   "bytes after the record are ignored",
	"62-connect-edges:263":  "bytes after the record are ignored",
}

// TestWire decodes every recorded frame and encodes it again, which must give the same
// bytes.
func TestWire(t *testing.T) {
	requests, replies, handshakes, events := 0, 0, 0, 0
	captured(t, func(scenario string, f golden.Frame) {
		place := fmt.Sprintf("%s:%d", scenario, f.Line)
		bad := func(what string, err error) {
			t.Errorf("%s: %s: %v\n%s", place, what, err, f.Comment)
		}
		payload := f.Bytes[4:]
		d := jute.NewDecoder(payload)
		check := func(b []byte) {
			switch {
			case unreadable[place] != "":
				if d.Err() == nil {
					t.Errorf("%s was decoded, although %s", place, unreadable[place])
				}
			case d.Err() != nil:
				bad("cannot be decoded", d.Err())
			case rewritten[place] != "":
				if bytes.Equal(b, payload) {
					t.Errorf("%s was encoded to the same bytes, although %s", place, rewritten[place])
				}
			case len(d.Rest()) > 0:
				t.Errorf("%s: %d bytes follow the record\n%s", place, len(d.Rest()), f.Comment)
			case !bytes.Equal(b, payload):
				t.Errorf("%s: encoded as\n%x, want\n%x\n%s", place, b, payload, f.Comment)
			}
		}
		switch {
		case malformed[scenario] && f.FromClient:
		case f.Handshake && f.FromClient:
			var r ConnectRequest
			r.Decode(&d)
			check(r.Append(nil))
			handshakes++
		case f.Handshake:
			var r ConnectReply
			r.Decode(&d)
			check(r.Append(nil))
			handshakes++
		case f.FromClient:
			var h RequestHeader
			h.Decode(&d)
			b := h.Append(nil)
			row := OpByCode(h.Op)
			if row == nil {
				return // an opcode that the server does not know
			}
			r := row.Request()
			r.Decode(&d)
			check(r.Append(b))
			requests++
		default:
			var h ReplyHeader
			h.Decode(&d)
			b := h.Append(nil)
			row := OpByCode(OpCode(f.Op))
			switch {
			case h.Xid == XidEvent:
				var e WatcherEvent
				e.Decode(&d)
				b = e.Append(b)
				events++
			case h.Code == OK && row != nil && row.Reply != nil:
				r := row.Reply()
				r.Decode(&d)
				b = r.Append(b)
				replies++
			}
			check(b)
		}
	})
	t.Logf("%d handshakes, %d requests, %d replies, %d events", handshakes, requests, replies, events)
	if handshakes < 100 || requests < 280 || replies < 150 || events < 20 {
		t.Errorf("compared only %d handshakes, %d requests, %d replies and %d events", handshakes, requests, replies, events)
	}
}

// TestOps checks that the rows of Ops are complete, in order, consistent, and found by
// OpByCode.
func TestOps(t *testing.T) {
	for i := range Ops {
		op := &Ops[i]
		if OpByCode(op.Code) != op {
			t.Errorf("OpByCode does not find %s (%d)", op.Name, op.Code)
		}
		if i > 0 && Ops[i-1].Code >= op.Code {
			t.Errorf("%s (%d) is out of order", op.Name, op.Code)
		}
		if op.Name == "" || op.Short == "" || op.Class < Write || op.Class > Part || op.Request == nil {
			t.Errorf("the row of opcode %d is incomplete: %+v", op.Code, op)
		}
		want := map[OpCode]Class{OpMulti: Write, OpMultiRead: Read}[op.InMulti]
		if op.InMulti != 0 && op.Class != want && op.Class != Part {
			t.Errorf("%s has class %v, but is allowed in multi %d", op.Name, op.Class, op.InMulti)
		}
	}
	for _, code := range []OpCode{0, -1, 10, 20, 99, 127, 128, 1 << 30, -1 << 31, OpCreateSession, -12, -1001, -1002} {
		if op := OpByCode(code); op != nil {
			t.Errorf("opcode %d is %s, but clients must not send it", code, op.Name)
		}
	}
}

// TestTruncatedRecords checks that every proper prefix of a record's encoding is an
// error.
func TestTruncatedRecords(t *testing.T) {
	acl := []ACL{{31, ID{"digest", "u:h"}}, {1, ID{"world", "anyone"}}}
	create := CreateRequest{"/a", []byte("data"), acl, 2}
	for _, r := range []Record{
		&create, &CreateTTLRequest{create, 5}, &PathVersion{"/a", 1}, &PathType{"/a", 1}, &PathWatch{"/a", true}, &Path{Path: "/a"},
		&SetDataRequest{"/a", []byte("x"), 1}, &SetACLRequest{"/a", acl, 1}, &AuthRequest{0, "digest", []byte("u:p")}, &SASLRequest{[]byte("t")}, &SASLReply{[]byte("t")},
		&SetWatchesRequest{1, []string{"/a"}, []string{"/b", "/c"}, []string{"/d"}},
		&SetWatches2Request{SetWatchesRequest{1, nil, nil, []string{"/d"}}, []string{"/p"}, []string{"/r", "/s"}},
		&MultiRequest{[]MultiOp{{OpCreate, &create}, {OpCheck, &PathVersion{"/a", 1}}}},
		&MultiReadRequest{[]MultiOp{{OpGetData, &PathWatch{"/a", false}}}},
		&MultiReply{[]MultiResult{{OpCreate, OK, &PathReply{"/a"}}, {OpError, NoNode, nil}, {OpSetData, OK, &Stat{Czxid: 1}}, {OpDelete, OK, nil}}},
		&PathReply{"/a"}, &PathStatReply{"/a", Stat{Czxid: 1}}, &DataReply{[]byte("x"), Stat{Mzxid: 2}}, &ACLReply{acl, Stat{}},
		&ChildrenReply{[]string{"a", "b"}}, &Children2Reply{[]string{"a"}, Stat{}}, &IntReply{7}, &WhoAmIReply{[]ID{{"ip", "10.0.0.1"}}},
		&WatcherEvent{EventNodeCreated, 3, "/a"}, &RequestHeader{1, OpCreate}, &ReplyHeader{1, 2, NoNode},
		&ConnectRequest{0, 1, 2, 3, []byte("pass"), true, true},
	} {
		b := r.Append(nil)
		fresh := reflect.New(reflect.TypeOf(r).Elem()).Interface().(Record)
		d := jute.NewDecoder(b)
		if fresh.Decode(&d); d.Err() != nil || len(d.Rest()) > 0 || !reflect.DeepEqual(fresh, r) {
			t.Errorf("%T %+v was decoded as %+v, %v", r, r, fresh, d.Err())
		}
		for n := range b {
			if _, ok := r.(*ConnectRequest); ok && n == len(b)-1 {
				continue // the last byte is optional
			}
			d := jute.NewDecoder(b[:n])
			if fresh.Decode(&d); d.Err() == nil {
				t.Errorf("%T: no error for the first %d of its %d bytes", r, n, len(b))
			}
		}
	}
}

// TestNulls checks which fields may be null and how null is decoded.
func TestNulls(t *testing.T) {
	null := jute.AppendInt(nil, -1)
	zero := jute.AppendInt(nil, 0)
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	path := jute.AppendString(nil, "/a")
	tests := []struct {
		name string
		into Record
		body []byte
		want Record // nil for an error
	}{
		{"create without path", &CreateRequest{}, cat(null, null, zero, zero), &CreateRequest{Path: jute.Null, ACL: []ACL{}}},
		{"create with null data and ACL", &CreateRequest{}, cat(path, null, null, zero), &CreateRequest{Path: "/a"}},
		{"create with empty data", &CreateRequest{}, cat(path, zero, zero, zero), &CreateRequest{Path: "/a", Data: []byte{}, ACL: []ACL{}}},
		{"getData without path", &PathWatch{}, cat(null, []byte{0}), nil},
		{"delete without path", &PathVersion{}, cat(null, zero), &PathVersion{Path: jute.Null}},
		{"sync without path", &Path{}, null, &Path{Path: jute.Null}},
		{"sync with an empty path", &Path{}, zero, &Path{}},
		{"auth without scheme", &AuthRequest{}, cat(zero, null, null), &AuthRequest{}},
		{"setData without path", &SetDataRequest{}, cat(null, null, zero), &SetDataRequest{Path: jute.Null}},
		{"setACL without path", &SetACLRequest{}, cat(null, null, zero), &SetACLRequest{Path: jute.Null}},
		{"setWatches with empty lists", &SetWatchesRequest{}, cat(zero, zero, zero, zero, zero), &SetWatchesRequest{}},
		{"setWatches with a null list", &SetWatchesRequest{}, cat(zero, zero, zero, null, zero), nil},
		{"setWatches with a null path", &SetWatchesRequest{}, cat(zero, zero, jute.AppendInt(nil, 1), null, zero, zero), nil},
		{"ACL entry with a null scheme", &SetACLRequest{}, cat(path, jute.AppendInt(nil, 1), zero, null, zero, zero), &SetACLRequest{Path: "/a", ACL: []ACL{{ID: ID{Scheme: jute.Null}}}}},
		{"ACL entry of scheme world with a null id", &SetACLRequest{}, cat(path, jute.AppendInt(nil, 1), zero, jute.AppendString(nil, "world"), null, zero), &SetACLRequest{Path: "/a", ACL: []ACL{{ID: ID{"world", jute.Null}}}}},
		{"ACL entry of scheme auth with a null id", &SetACLRequest{}, cat(path, jute.AppendInt(nil, 1), zero, jute.AppendString(nil, "auth"), null, zero), &SetACLRequest{Path: "/a", ACL: []ACL{{ID: ID{"auth", jute.Null}}}}},
		{"count below -1", &SetACLRequest{}, cat(path, jute.AppendInt(nil, -7), zero), &SetACLRequest{Path: "/a", ACL: []ACL{}}},
		{"length of a path below -1", &Path{}, jute.AppendInt(nil, -2), nil},
	}
	for _, test := range tests {
		d := jute.NewDecoder(test.body)
		test.into.Decode(&d)
		switch {
		case test.want == nil && d.Err() == nil:
			t.Errorf("%s: decoded as %+v, want an error", test.name, test.into)
		case test.want != nil && (d.Err() != nil || !reflect.DeepEqual(test.into, test.want)):
			t.Errorf("%s: decoded as %+v, %v, want %+v", test.name, test.into, d.Err(), test.want)
		}
	}
}

// TestNames checks the names of error codes and event types.
func TestNames(t *testing.T) {
	for c, want := range map[Code]string{OK: "Ok", NoNode: "NoNode", -999: "-999"} {
		if c.String() != want || c.Error() != want {
			t.Errorf("code %d has name %q, want %q", int32(c), c, want)
		}
	}
	for e, want := range map[EventType]string{1: "NodeCreated", 2: "NodeDeleted", 3: "NodeDataChanged", 4: "NodeChildrenChanged", 0: "None", -1: "None"} {
		if e.String() != want {
			t.Errorf("event %d has name %q, want %q", int32(e), e, want)
		}
	}
}

// TestFalseCounts checks that a count that is larger than the input can hold does not
// cost memory.
func TestFalseCounts(t *testing.T) {
	for _, count := range []uint32{1 << 30, 1<<31 - 1, 1 << 20, 1000} {
		body := jute.AppendString(nil, "/a")
		body = binary.BigEndian.AppendUint32(body, count)
		body = append(body, make([]byte, 100)...)
		watches := binary.BigEndian.AppendUint32(make([]byte, 8), count)
		watches = append(watches, make([]byte, 100)...)
		for _, test := range []struct {
			into Record
			body []byte
		}{
			{&SetACLRequest{}, body}, {&CreateRequest{}, append(jute.AppendString(nil, "/a"), body[2:]...)},
			{&SetWatchesRequest{}, watches}, {&SetWatches2Request{}, watches}, {&WhoAmIReply{}, watches[8:]}, {&ChildrenReply{}, watches[8:]},
		} {
			n := testkit.Allocated(func() {
				d := jute.NewDecoder(test.body)
				if test.into.Decode(&d); d.Err() == nil {
					t.Errorf("%T: no error for a count of %d in %d bytes", test.into, count, len(test.body))
				}
			})
			if n > 64<<10 {
				t.Errorf("%T: a count of %d in %d bytes allocated %d bytes", test.into, count, len(test.body), n)
			}
		}
	}
}

// TestMultiInMulti checks that the reply to a multi cannot contain another one, so that
// decoding does not recurse deeply.
func TestMultiInMulti(t *testing.T) {
	var b []byte
	for range 1000 {
		b = AppendMultiResult(b, OpMulti)
	}
	for range 1001 {
		b = AppendMultiEnd(b)
	}
	var r MultiReply
	d := jute.NewDecoder(b)
	if r.Decode(&d); d.Err() == nil {
		t.Error("no error")
	}
}
