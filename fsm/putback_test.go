package fsm

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// saved returns the command that puts back the present state.
func saved(m *Machine) *Command {
	var sessions []int64
	for s := range m.Sessions().All() {
		sessions = append(sessions, s.ID)
	}
	return PutBack(sessions, m.Tree().AppendNodes(nil))
}

// records returns the znodes of a machine, except /zookeeper/config.
func records(t *testing.T, m *Machine) map[string]znode.Record {
	t.Helper()
	all := map[string]znode.Record{}
	for b := m.Tree().AppendNodes(nil); len(b) > 0; {
		var r znode.Record
		var err error
		if r, b, err = znode.DecodeRecord(b); err != nil {
			t.Fatal(err)
		}
		all[r.Path] = r
	}
	if len(all) != m.Tree().Len() {
		t.Errorf("AppendNodes has %d znodes of %d", len(all), m.Tree().Len())
	}
	delete(all, znode.ConfigPath)
	return all
}

// withoutZxids returns a record without zxids.
func withoutZxids(r znode.Record) znode.Record {
	r.Czxid, r.Mzxid, r.Pzxid = 0, 0, 0
	return r
}

// TestPutBackRandom puts back random states. Afterwards everything but the zxids must be as
// it was, except sessions that have ended and their ephemerals, on every replica.
func TestPutBackRandom(t *testing.T) {
	seed := testkit.Seed(t)
	kept, changed := 0, 0
	for i := range uint64(20) {
		h, m := newHistory(seed+i), NewMachine()
		run := func(entries int) {
			for range entries {
				e := h.next()
				apply(t, m, &e)
			}
		}
		run(100 + h.IntN(100))
		c, was, sessions := saved(m), records(t, m), slices.Collect(m.Sessions().All())
		run(h.IntN(100))
		before, zxid := records(t, m), m.Zxid()
		other := throughSnapshot(t, m, nil)
		r, _ := one(t, m, m.term, c)
		one(t, other, other.term, c)
		if m.Digest() != other.Digest() {
			t.Fatalf("seed %d: different results on two replicas", seed+i)
		}
		if r[0].Code != proto.OK || r[0].Zxid != zxid+1 {
			t.Errorf("seed %d: %v, zxid %x after %x", seed+i, r[0].Code, r[0].Zxid, zxid)
		}
		if err := m.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed+i, err)
		}
		now := records(t, m)
		for path, want := range was {
			if want.Kind == znode.Ephemeral && m.Sessions().Get(want.Owner) == nil {
				if _, ok := now[path]; ok {
					t.Errorf("seed %d: %s is there, but its session is not", seed+i, path)
				}
				continue
			}
			got, old := now[path], before[path]
			if !reflect.DeepEqual(withoutZxids(got), withoutZxids(want)) {
				t.Errorf("seed %d: %s is %+v, was %+v", seed+i, path, got, want)
			}
			if reflect.DeepEqual(withoutZxids(old), withoutZxids(want)) {
				kept++
				old.Pzxid, got.Pzxid = 0, 0 // its children may have changed
				if !reflect.DeepEqual(got, old) {
					t.Errorf("seed %d: %s, which did not differ, has changed from %+v to %+v", seed+i, path, old, got)
				}
			} else {
				changed++
			}
			if got.Mzxid < old.Mzxid || got.Czxid < old.Czxid {
				t.Errorf("seed %d: the zxids of %s went back: %+v after %+v", seed+i, path, got, old)
			}
		}
		for path := range now {
			if _, ok := was[path]; !ok {
				t.Errorf("seed %d: %s was not there", seed+i, path)
			}
		}
		existed := map[int64]bool{}
		for _, s := range sessions {
			existed[s.ID] = true
		}
		for s := range m.Sessions().All() {
			if !existed[s.ID] {
				t.Errorf("seed %d: session %d is later than the state", seed+i, s.ID)
			}
		}
		if _, changes := one(t, m, m.term, c); len(changes) > 0 {
			t.Errorf("seed %d: the second time there were changes: %+v", seed+i, changes)
		}
		// The machine goes on as usual.
		h.index, h.term, h.batch = m.Index(), m.term, m.Index()
		run(50)
		if err := m.Check(); err != nil {
			t.Errorf("seed %d: %v", seed+i, err)
		}
	}
	if kept < 20 || changed < 20 {
		t.Errorf("%d znodes stayed as they were, and %d were changed: too few", kept, changed)
	}
}

// TestPutBackChanges checks which changes are reported, and so which watches fire.
func TestPutBackChanges(t *testing.T) {
	m := small(t)
	c := saved(m)
	set := proto.SetDataRequest{Path: "/b", Data: []byte("other"), Version: -1}
	one(t, m, 3, OpenSession(2, 7, 1000, session.Password{7}))
	one(t, m, 3,
		&Command{Op: proto.OpSetData, Session: 5, Conn: 1, Body: set.Append(nil)},
		&Command{Op: proto.OpDelete, Session: 5, Conn: 1, Body: (&proto.PathVersion{Path: "/a/e-0000000000", Version: -1}).Append(nil)},
		createCommand(5, "/new", 0))
	_, changes := one(t, m, 3, c)
	var got []proto.Change
	for _, x := range changes {
		got = append(got, proto.Change{Kind: x.Kind, Path: x.Path, Session: x.Session})
	}
	want := []proto.Change{
		{Kind: proto.NodeDeleted, Path: "/new"}, {Kind: proto.NodeCreated, Path: "/a/e-0000000000", Session: 5},
		{Kind: proto.NodeDataChanged, Path: "/b"}, {Kind: proto.SessionClosed, Session: 7},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if r := m.Tree().Lookup("/b").Record(); r.Mzxid != m.Zxid() || r.Version != 1 || string(r.Data) != "data" {
		t.Errorf("got %+v", r)
	}
	one(t, m, 3, createCommand(5, "/a/e-", proto.FlagSequential))
	if m.Tree().Lookup("/a/e-0000000001") == nil {
		t.Error("the number of the next sequential child is wrong")
	}
}

// TestPutBackDamaged applies commands that are cut short. They must be refused and change nothing.
func TestPutBackDamaged(t *testing.T) {
	a := znode.AppendRecord(nil, &znode.Record{Path: "/a", ACL: proto.OpenACL})
	for name, c := range map[string]*Command{
		"sessions": {Op: OpPutBack, Body: []byte{0, 0, 0, 1}},
		"a record": PutBack(nil, a[:len(a)-1]),
	} {
		m := small(t)
		tree, sessions := m.Tree().Digest(), m.Sessions().Len()
		if err := apply1(m, c, 2000); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
		if m.Tree().Digest() != tree || m.Sessions().Len() != sessions {
			t.Errorf("%s: changed the state", name)
		}
	}
}

// TestPutBackLeavesOut applies a command with records that do not form a tree.
func TestPutBackLeavesOut(t *testing.T) {
	m := small(t)
	var b []byte
	for _, r := range []znode.Record{
		{Path: "/a/b"}, {Path: "/a"}, {Path: "/a"}, {Path: "/a//b"}, {Path: "/x/y"},
		{Path: "/e", Kind: znode.Ephemeral, Owner: 5}, {Path: "/e/y"},
	} {
		r.ACL, r.Data = proto.OpenACL, []byte{}
		b = znode.AppendRecord(b, &r)
	}
	if err := errors.Join(apply1(m, PutBack([]int64{5}, b), 2000), m.Check()); err != nil {
		t.Fatal(err)
	}
	all := records(t, m)
	for _, path := range []string{znode.Root, znode.SystemPath, znode.QuotaPath} {
		delete(all, path)
	}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"/a", "/a/b", "/e"}) {
		t.Errorf("there are %v", got)
	}
}
