package fsm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/golden"
	"github.com/lockkeeper/lockkeeper/proto"
)

// captured calls f with the body of every captured request.
func captured(t testing.TB, f func(op int32, body []byte)) {
	t.Helper()
	scenarios, err := golden.LoadAll(os.DirFS("../testdata/golden"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		for _, frame := range s.Frames() {
			if frame.FromClient && !frame.Handshake && len(frame.Bytes) >= 12 {
				f(frame.Op, frame.Bytes[12:])
			}
		}
	}
}

// applied checks a machine after an entry that came from nowhere.
func applied(t *testing.T, m *Machine, before int64, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrEntry) && !errors.Is(err, ErrVersion) {
		t.Errorf("%v is not one of the package's errors", err)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	if m.Zxid() < before {
		t.Errorf("zxid went back from %#x to %#x", before, m.Zxid())
	}
}

// FuzzApply applies any bytes: that is an error or works, but never a panic.
// With mend, the checksum and version are put right first.
func FuzzApply(f *testing.F) {
	h := newHistory(1)
	for range 20 {
		f.Add(h.next().bytes, true)
	}
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		m := small(t)
		before := m.Zxid()
		if mend && len(b) >= headerLen+trailerLen {
			e := Envelope{Origin: 1, Batch: 1 << 60, Time: 2000, Count: int(b[32])}
			b = EndEntry(slices.Clone(b[:len(b)-trailerLen]), &e)
		}
		applied(t, m, before, m.Apply(m.Index()+1, 3, b, nil))
	})
}

// FuzzCommand applies one command with any body on a live session: whatever a
// client sends, there is a reply, and it is the same the second time.
func FuzzCommand(f *testing.F) {
	captured(f, func(op int32, body []byte) { f.Add(op, body) })
	for _, c := range []*Command{OpenSession(1, 9, 5, [16]byte{}), ResumeSession(1, 5, 5, make([]byte, 16)), Reap("/ttl")} {
		f.Add(int32(c.Op), c.Body)
	}
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		entry := AppendCommand(BeginEntry(nil), &Command{Op: proto.OpCode(op), Session: 5, Conn: 1, IDs: AppendIDs(nil, someIDs[:2]), Body: body})
		entry = EndEntry(entry, &Envelope{Origin: 1, Batch: 1 << 60, Time: 2000, Count: 1})
		var digests []uint64
		for range 2 {
			m := small(t)
			before, replies := m.Zxid(), 0
			err := m.Apply(m.Index()+1, 3, entry, func(_ *Envelope, _ int, r *Result, _ []proto.Change) { replies++ })
			applied(t, m, before, err)
			if row := proto.OpByCode(proto.OpCode(op)); row != nil && row.Class == proto.Write && (err != nil || replies != 1) {
				t.Errorf("%s: %v, %d replies", row.Name, err, replies)
			}
			digests = append(digests, m.Digest())
		}
		if digests[0] != digests[1] {
			t.Error("the same command made two states")
		}
	})
}

// manyIDs are identities of a connection, and auths a list of as many entries
// that each stand for all of them.
func manyIDs(n int) (ids []proto.ID) {
	for i := range n {
		ids = append(ids, proto.ID{Scheme: proto.SchemeDigest, ID: fmt.Sprintf("%d:%028d", i, i)})
	}
	return ids
}

func auths(n int) (acl []proto.ACL) {
	for i := range n {
		acl = append(acl, proto.ACL{Perms: proto.PermAll | int32(i)<<5, ID: proto.ID{Scheme: proto.SchemeAuth}})
	}
	return acl
}

// FuzzSurvives: whatever state a client's requests make, with however many
// identities, its snapshot can be read, and is the same state.
func FuzzSurvives(f *testing.F) {
	captured(f, func(op int32, body []byte) { f.Add(op, body, uint16(3), uint16(2)) })
	large := proto.SetDataRequest{Path: "/a", Data: make([]byte, 1<<20), Version: -1}
	f.Add(int32(proto.OpSetData), large.Append(nil), uint16(1500), uint16(1200))
	var creates proto.MultiRequest
	for i := range 2000 {
		creates.Ops = append(creates.Ops, proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: fmt.Sprint("/n", i), ACL: auths(1)}})
	}
	f.Add(int32(proto.OpMulti), creates.Append(nil), uint16(1500), uint16(1))
	f.Fuzz(func(t *testing.T, op int32, body []byte, ids, entries uint16) {
		m := small(t)
		encoded := AppendIDs(nil, manyIDs(int(ids%2000)))
		set := proto.SetACLRequest{Path: "/a", ACL: auths(int(entries % 2000)), Version: -1}
		for _, c := range []*Command{
			{Op: proto.OpSetACL, Session: 5, Conn: 1, IDs: encoded, Body: set.Append(nil)},
			{Op: proto.OpCode(op), Session: 5, Conn: 1, IDs: encoded, Body: body},
		} {
			entry := EndEntry(AppendCommand(BeginEntry(nil), c), &Envelope{Origin: 1, Batch: m.Index() + 1, Time: 2000, Count: 1})
			applied(t, m, m.Zxid(), m.Apply(m.Index()+1, 3, entry, nil))
		}
		applied(t, throughSnapshot(t, m, nil), m.Zxid(), nil)
		sent := len(set.Append(nil)) + len(body)
		s := m.Snapshot().tree
		for i := range s.Len() {
			if n := len(s.Append(nil, i)); n > 1<<20+5*sent+200 {
				t.Fatalf("a znode of %d bytes, of requests of %d", n, sent)
			}
		}
	})
}

// FuzzRead answers one read with any body.
func FuzzRead(f *testing.F) {
	captured(f, func(op int32, body []byte) { f.Add(op, body) })
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		r := NewReplica()
		r.m = small(t)
		digest := r.m.Digest()
		r.View(func(v *View) {
			prefix := []byte("prefix")
			out, _ := v.Read(&Reader{Watcher: &watcher{}, Session: 5, IDs: someIDs[:2]}, proto.OpCode(op), body, prefix)
			if string(out[:6]) != "prefix" {
				t.Error("a read must append")
			}
		})
		if r.m.Digest() != digest {
			t.Error("a read changed the state")
		}
	})
}
