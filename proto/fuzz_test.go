package proto

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/jute"
)

// roundTrip decodes b as a record, and checks that this allocates memory only in
// proportion to b. If it succeeds, roundTrip encodes and decodes the record again, which
// must give an equal one, and returns it.
func roundTrip(t *testing.T, newRecord func() Record, b []byte) Record {
	t.Helper()
	first, d := newRecord(), jute.NewDecoder(b)
	if n := testkit.Allocated(func() { first.Decode(&d) }); n > uint64(64<<10+32*len(b)) {
		t.Fatalf("%T: allocated %d bytes to decode %d", first, n, len(b))
	}
	if d.Err() != nil {
		return nil
	}
	written := first.Append([]byte("prefix"))
	if !bytes.HasPrefix(written, []byte("prefix")) {
		t.Fatalf("%T: Append overwrote what b contained", first)
	}
	second, d2 := newRecord(), jute.NewDecoder(written[6:])
	if second.Decode(&d2); d2.Err() != nil || len(d2.Rest()) > 0 {
		t.Fatalf("%T: %+v was encoded as %x, which cannot be decoded: %v", first, first, written[6:], d2.Err())
	}
	if !reflect.DeepEqual(first, second) {
		t.Fatalf("%T: %+v became %+v", first, first, second)
	}
	return first
}

// FuzzRecord decodes random bytes as the request and the reply of each operation.
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

// FuzzMulti decodes random bytes as a multi, a multiRead and their reply.
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
					t.Fatalf("decoded a multi with operation %v, which is not allowed in it", op.Op)
				}
			}
		}
		roundTrip(t, rec[MultiReadRequest](), body)
		// A failed result has its code twice, but Decode keeps only one of them. So
		// the round trip starts with a reply that was encoded here.
		var reply MultiReply
		d := jute.NewDecoder(body)
		if n := testkit.Allocated(func() { reply.Decode(&d) }); n > uint64(64<<10+64*len(body)) {
			t.Fatalf("allocated %d bytes to decode a reply of %d", n, len(body))
		}
		if d.Err() == nil {
			roundTrip(t, rec[MultiReply](), reply.Append(nil))
		}
	})
}

// FuzzConnect decodes random bytes as the records of a handshake, as headers and as an
// event.
func FuzzConnect(f *testing.F) {
	captured(f, func(_ string, frame golden.Frame) {
		if frame.Handshake {
			f.Add(frame.Bytes[4:])
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := roundTrip(t, rec[ConnectRequest](), b); r != nil {
			if q := r.(*ConnectRequest); q.ReadOnly && !q.HasReadOnly {
				t.Fatalf("ReadOnly is set, but the request has no such byte: %+v", q)
			}
		}
		roundTrip(t, rec[ConnectReply](), b)
		roundTrip(t, rec[RequestHeader](), b)
		roundTrip(t, rec[ReplyHeader](), b)
		roundTrip(t, rec[WatcherEvent](), b)
	})
}
