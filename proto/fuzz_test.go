package proto

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/golden"
	"github.com/lockkeeper/lockkeeper/internal/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
)

// roundTrip reads b as a record. If it can be read, it is written and read
// again, and must be the same; and memory is bounded by the bytes.
func roundTrip(t *testing.T, row func() Record, b []byte) Record {
	t.Helper()
	first, d := row(), jute.NewDecoder(b)
	if n := testkit.Allocated(func() { first.Decode(&d) }); n > uint64(64<<10+32*len(b)) {
		t.Fatalf("%T: %d bytes allocated to read %d", first, n, len(b))
	}
	if d.Err() != nil {
		return nil
	}
	written := first.Append([]byte("prefix"))
	if !bytes.HasPrefix(written, []byte("prefix")) {
		t.Fatalf("%T: Append must append", first)
	}
	second, d2 := row(), jute.NewDecoder(written[6:])
	if second.Decode(&d2); d2.Err() != nil || len(d2.Rest()) > 0 {
		t.Fatalf("%T: %+v was written as %x, which cannot be read: %v", first, first, written[6:], d2.Err())
	}
	if !reflect.DeepEqual(first, second) {
		t.Fatalf("%T: %+v became %+v", first, first, second)
	}
	return first
}

// FuzzRecord reads any bytes as the request, and as the reply, of any operation.
func FuzzRecord(f *testing.F) {
	captured(f, func(_ string, frame golden.Frame) {
		if frame.Handshake || frame.Op == 0 {
			return
		}
		for i := range Ops {
			if int32(Ops[i].Code) != frame.Op {
				continue
			}
			if frame.FromClient && len(frame.Bytes) >= 12 {
				f.Add(byte(i), frame.Bytes[12:])
			} else if !frame.FromClient && len(frame.Bytes) >= 20 {
				f.Add(byte(i), frame.Bytes[20:])
			}
		}
	})
	f.Fuzz(func(t *testing.T, op byte, body []byte) {
		row := &Ops[int(op)%len(Ops)]
		roundTrip(t, row.Request, body)
		if row.Reply != nil && row.Code != OpMulti && row.Code != OpMultiRead {
			roundTrip(t, row.Reply, body)
		}
	})
}

// FuzzMulti reads any bytes as a multi, a multiRead and their reply.
func FuzzMulti(f *testing.F) {
	captured(f, func(_ string, frame golden.Frame) {
		if op := OpCode(frame.Op); op == OpMulti || op == OpMultiRead {
			f.Add(frame.Bytes[min(len(frame.Bytes), map[bool]int{true: 12, false: 20}[frame.FromClient]):])
		}
	})
	f.Fuzz(func(t *testing.T, body []byte) {
		if r := roundTrip(t, rec[MultiRequest](), body); r != nil {
			for _, op := range r.(*MultiRequest).Ops {
				if OpByCode(op.Op).InMulti != OpMulti {
					t.Fatalf("a multi with %v", op.Op)
				}
			}
		}
		roundTrip(t, rec[MultiReadRequest](), body)
		// Of a reply's two codes for one operation only one is kept: it is
		// the same from the second writing on.
		var reply MultiReply
		d := jute.NewDecoder(body)
		if n := testkit.Allocated(func() { reply.Decode(&d) }); n > uint64(64<<10+64*len(body)) {
			t.Fatalf("%d bytes allocated to read a reply of %d", n, len(body))
		}
		if d.Err() == nil {
			roundTrip(t, rec[MultiReply](), reply.Append(nil))
		}
	})
}

// FuzzConnect reads any bytes as a handshake.
func FuzzConnect(f *testing.F) {
	captured(f, func(_ string, frame golden.Frame) {
		if frame.Handshake {
			f.Add(frame.Bytes[4:])
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := roundTrip(t, rec[ConnectRequest](), b); r != nil {
			if q := r.(*ConnectRequest); q.ReadOnly && !q.HasReadOnly {
				t.Fatalf("read-only without the byte that says so: %+v", q)
			}
		}
		roundTrip(t, rec[ConnectReply](), b)
		roundTrip(t, rec[RequestHeader](), b)
		roundTrip(t, rec[ReplyHeader](), b)
		roundTrip(t, rec[WatcherEvent](), b)
	})
}
