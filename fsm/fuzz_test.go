package fsm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// captured calls f with the body of every request that was recorded from real clients.
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

// checkApplied checks a machine and the error after it has applied a random entry.
func checkApplied(t *testing.T, m *Machine, before int64, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrEntry) && !errors.Is(err, ErrVersion) {
		t.Errorf("error %v is neither ErrEntry nor ErrVersion", err)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	if m.Zxid() < before {
		t.Errorf("zxid went backwards from %#x to %#x", before, m.Zxid())
	}
}

// FuzzApply applies random bytes as an entry, which must succeed or fail but not panic. With
// repair, the entry first gets a correct version, envelope and checksum.
func FuzzApply(f *testing.F) {
	h := newHistory(1)
	for range 20 {
		f.Add(h.next().bytes, true)
	}
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		m := small(t)
		before := m.Zxid()
		if repair && len(b) >= headerLen+trailerLen {
			e := Envelope{Origin: 1, Batch: 1 << 60, Time: 2000, Count: int(b[32])}
			b = EndEntry(slices.Clone(b[:len(b)-trailerLen]), &e)
		}
		checkApplied(t, m, before, m.Apply(m.Index()+1, 3, b, nil))
	})
}

// FuzzCommand applies a command with a random body. Every write of an existing session must
// have exactly one result, and applying a command to equal machines must leave them equal.
func FuzzCommand(f *testing.F) {
	captured(f, func(op int32, body []byte) { f.Add(op, body) })
	for _, c := range []*Command{OpenSession(1, 9, 5, [16]byte{}), ResumeSession(1, 5, 5, make([]byte, 16)), Reap("/ttl"), PutBack([]int64{5}, znode.New().AppendNodes(nil))} {
		f.Add(int32(c.Op), c.Body)
	}
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		entry := AppendCommand(BeginEntry(nil), &Command{Op: proto.OpCode(op), Session: 5, Conn: 1, IDs: AppendIDs(nil, someIDs[:2]), Body: body})
		entry = EndEntry(entry, &Envelope{Origin: 1, Batch: 1 << 60, Time: 2000, Count: 1})
		var digests []uint64
		for range 2 {
			m := small(t)
			before, results := m.Zxid(), 0
			err := m.Apply(m.Index()+1, 3, entry, func(_ *Envelope, _ int, r *Result, _ []proto.Change) { results++ })
			checkApplied(t, m, before, err)
			if row := proto.OpByCode(proto.OpCode(op)); row != nil && row.Class == proto.Write && (err != nil || results != 1) {
				t.Errorf("%s: %v, %d results, want 1", row.Name, err, results)
			}
			digests = append(digests, m.Digest())
		}
		if digests[0] != digests[1] {
			t.Error("the same command led to two different states")
		}
	})
}

// manyIDs returns n identities of scheme digest.
func manyIDs(n int) (ids []proto.ID) {
	for i := range n {
		ids = append(ids, proto.ID{Scheme: proto.SchemeDigest, ID: fmt.Sprintf("%d:%028d", i, i)})
	}
	return ids
}

// auths returns an ACL of n different entries of scheme auth, each of which stands for all
// identities of the connection.
func auths(n int) (acl []proto.ACL) {
	for i := range n {
		acl = append(acl, proto.ACL{Perms: proto.PermAll | int32(i)<<5, ID: proto.ID{Scheme: proto.SchemeAuth}})
	}
	return acl
}

// FuzzSurvives makes a state with random requests, identities, ACLs, lengths and settings.
// Its snapshot must restore the same state, and what is then applied to both must have the
// same results.
func FuzzSurvives(f *testing.F) {
	captured(f, func(op int32, body []byte) {
		f.Add(uint64(op), uint8(3), op, body, uint16(3), uint16(2), uint16(0), uint8(EnforceQuota))
	})
	for seed := range uint64(20) {
		f.Add(seed, uint8(255), int32(proto.OpSync), []byte{}, uint16(1), uint16(1), uint16(1), uint8(seed)<<1)
	}
	for _, c := range []*Command{
		OpenSession(1, 9, 5, [16]byte{}), ResumeSession(1, 5, 5, make([]byte, 16)), Reap("/ttl"), Nothing(), {Op: proto.OpCloseSession},
		ExpireSession(&session.Session{ID: 5, Owner: session.Conn{Server: 1, Number: 1}}, 0),
		Describe([]proto.Peer{{ID: 7, Addr: "b:7000", ElectionPort: 9, ClientAddr: "c:1"}}, 0),
	} {
		f.Add(uint64(1), uint8(40), int32(c.Op), c.Body, uint16(3), uint16(2), uint16(9), uint8(0))
	}
	f.Add(uint64(1), uint8(0), int32(proto.OpSync), []byte{}, uint16(1500), uint16(1200), uint16(1<<14), uint8(0)) // 1 MiB of data
	f.Add(uint64(1), uint8(0), int32(proto.OpSync), []byte{}, uint16(1), uint16(1), uint16(1<<16-1), uint8(0))
	var creates proto.MultiRequest
	for i := range 2000 {
		creates.Ops = append(creates.Ops, proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: fmt.Sprint("/n", i), ACL: auths(1)}})
	}
	f.Add(uint64(1), uint8(0), int32(proto.OpMulti), creates.Append(nil), uint16(1500), uint16(1), uint16(0), uint8(0))
	creates.Ops = append(creates.Ops[:100], proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/none"}})
	f.Add(uint64(1), uint8(0), int32(proto.OpMulti), creates.Append(nil), uint16(50), uint16(1), uint16(0), uint8(X509))
	limits := proto.CreateRequest{Path: "/zookeeper/quota/zookeeper_limits", Data: []byte("countHardLimit=1"), ACL: proto.OpenACL}
	f.Add(uint64(2), uint8(100), int32(proto.OpCreate), limits.Append(nil), uint16(1), uint16(1), uint16(0), uint8(EnforceQuota))

	f.Fuzz(func(t *testing.T, seed uint64, entries uint8, op int32, body []byte, ids, list, size uint16, settings uint8) {
		m := small(t)
		h := newHistory(seed)
		h.index, h.term, h.batch = m.Index(), 3, m.Index()
		random := func(n int) (log []entry) {
			for range n {
				log = append(log, h.next())
			}
			return log
		}
		for i, e := range random(int(entries)) {
			if apply(t, m, &e); i%16 == 15 { // change the members
				h.index++
				m.SetMembers(h.index, []proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 8000}, {ID: 7, Addr: fmt.Sprintf("b:%d", 1+h.IntN(9)), ElectionPort: 8000, Observer: i%32 == 15}})
			}
		}

		encoded := AppendIDs(nil, manyIDs(int(ids%2000)))
		set := proto.SetACLRequest{Path: "/a", ACL: auths(int(list % 2000)), Version: -1}
		data := proto.SetDataRequest{Path: "/b", Data: make([]byte, int(size)*(MaxRequest/(1<<16))), Version: -1}
		config := proto.SetDataRequest{Path: znode.ConfigPath, Data: body, Version: -1} // a client may overwrite this znode
		sent := 0
		for _, c := range []*Command{
			{Op: proto.OpSetData, Session: 5, Conn: 1, IDs: AppendIDs(nil, []proto.ID{{Scheme: proto.SchemeSuper}}), Body: config.Append(nil)},
			{Op: proto.OpSetACL, Session: 5, Conn: 1, IDs: encoded, Body: set.Append(nil)},
			{Op: proto.OpSetData, Session: 5, Conn: 1, IDs: encoded, Body: data.Append(nil)},
			{Op: proto.OpCode(op), Session: 5, Conn: 1, IDs: encoded, Body: body},
		} {
			h.index, h.batch, sent = h.index+1, h.batch+1, sent+len(c.Body)
			entry := EndEntry(AppendCommand(BeginEntry(nil), c), &Envelope{Origin: 1, Batch: h.batch, Time: h.time, Settings: Settings(settings) & knownSettings, Count: 1})
			checkApplied(t, m, m.Zxid(), m.Apply(h.index, h.term, entry, nil))
		}

		restored := throughSnapshot(t, m, nil)
		s, r := m.Snapshot().tree, restored.Snapshot().tree
		records := map[string]string{}
		for i := range s.Len() {
			b := s.Append(nil, i)
			if len(b) > 1<<20+5*sent+200 {
				t.Fatalf("a znode of %d bytes after requests of %d bytes", len(b), sent)
			}
			n, _, err := znode.DecodeRecord(b)
			if err != nil {
				t.Fatal(err)
			}
			records[n.Path] = string(b)
		}
		for i := range r.Len() {
			b := r.Append(nil, i)
			if n, _, err := znode.DecodeRecord(b); err != nil || records[n.Path] != string(b) {
				t.Fatalf("the restored znode %q differs: %v", n.Path, err)
			}
		}
		for _, e := range random(10) {
			want, got := apply(t, m, &e), apply(t, restored, &e)
			compare(t, "after a restore", []entry{e}, []outcome{want}, []outcome{got})
		}
	})
}

// FuzzRead carries out a read with a random body.
func FuzzRead(f *testing.F) {
	captured(f, func(op int32, body []byte) { f.Add(op, body) })
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		r := NewReplica()
		r.Load(small(t))
		digest := r.m.Digest()
		r.View(func(v *View) {
			prefix := []byte("prefix")
			out, _ := v.Read(&Reader{Watcher: &watcher{}, Session: 5, IDs: someIDs[:2]}, proto.OpCode(op), body, prefix)
			if string(out[:6]) != "prefix" {
				t.Error("Read overwrote what out contained")
			}
		})
		if r.m.Digest() != digest {
			t.Error("a read changed the state")
		}
	})
}
