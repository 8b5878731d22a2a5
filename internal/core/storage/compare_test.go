package storage

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestCompare compares directories that were copied from one and went on differently.
func TestCompare(t *testing.T) {
	disk := testWAL(32 << 10)
	base, intact := sample(t, disk)
	last := intact.LastIndex
	grow := func(change func(m *member)) string {
		dir := copyDir(t, base)
		m := start(t, disk.mustOpen(t, dir))
		change(m)
		m.stop()
		return dir
	}
	more := grow(func(m *member) { m.create(2, "/more", 0) })
	snapshot := grow(func(m *member) { m.create(2, "/more", 0); m.create(2, "/later", 0); m.snapshot() })
	placeholder := grow(func(m *member) {
		m.snapshot()
		check(t, m.s.Log.DeleteRange(1, m.index))
		m.index--
		m.store(raft.LogNoop, nil)
	})
	later := func(m *member) {
		m.term += 3
		check(t, m.s.Stable.SetUint64([]byte(TermKey), m.term))
	}
	// Its state has another znode than the log says.
	wrong := grow(func(m *member) {
		entry := func(path string) []byte {
			body := (&proto.CreateRequest{Path: path, Data: []byte{}, ACL: proto.OpenACL}).Append(nil)
			c := &fsm.Command{Op: proto.OpCreate, Session: 2, Conn: 1, Body: body}
			return fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), c), &fsm.Envelope{Origin: 1, Batch: m.index + 1, Count: 1})
		}
		right, other := entry("/more"), entry("/round1/other")
		m.store(raft.LogCommand, right)
		check(t, m.machine.Apply(m.index, m.term, other, nil))
		m.snapshot()
	})
	of := func(id ClusterID) string {
		return grow(func(m *member) { check(t, m.s.SetIdentity(Identity{Cluster: id, Agreed: true})) })
	}
	expired := grow(func(m *member) { m.create(2, "/more", 0); m.openSession(77) })
	for _, x := range []struct {
		name, a, b string
		tail       uint64
		state      uint64
		different  string
	}{
		{"itself", base, copyDir(t, base), 0, last, ""},
		{"longer", base, more, 0, last, ""},
		{"of two clusters", of(7), of(8), 0, 0, "they belong to cluster 0000000000000007 and to cluster 0000000000000008"},
		{"longer, the other way", more, base, 0, last, ""},
		{"an uncommitted entry of another term", more, grow(func(m *member) { later(m); m.create(2, "/other", 0) }), last + 2, last + 1, ""},
		{"another entry of the same term", more, grow(func(m *member) { m.create(2, "/other", 0) }), 0, 0, fmt.Sprintf("entry %d of term 4 has another content", last+2)},
		{"the same term after another one", grow(func(m *member) { m.create(2, "/x", 0); later(m); m.create(2, "/y", 0) }), grow(func(m *member) {
			later(m)
			m.create(2, "/x", 0)
			m.create(2, "/y", 0)
		}), last + 2, 0, fmt.Sprintf("entry %d is of term 4 and of term 7, but entry %d is of term 7 in both", last+2, last+3)},
		{"a snapshot of a later entry", more, snapshot, 0, 0, ""},
		{"an entry in the place of one in the snapshot", base, placeholder, 0, 0, ""},
		{"an entry in the place of one in the snapshot, which both have", more, placeholder, 0, last + 1, ""},
		{"a znode that is only in one state", more, wrong, 0, last + 2, "znode /more"},
		{"the same after more entries", expired, wrong, 0, last + 2, "znode /more"},
	} {
		c, err := Compare(x.a, x.b)
		if err != nil || c.Tail != x.tail || c.StateIndex != x.state || c.Different != x.different {
			t.Errorf("%s: %+v, %v", x.name, c, err)
		}
	}
	one, other := fsm.NewMachine(), fsm.NewMachine()
	for i, m := range []*fsm.Machine{one, other} {
		entry := fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), fsm.OpenSession(1, 5, int32(1000+i), session.Password{1})), &fsm.Envelope{Origin: 1, Batch: 1, Count: 1})
		check(t, m.Apply(1, 1, entry, nil))
	}
	if got := differentStates(one, other); got != "session "+session.FormatID(5) {
		t.Errorf("a session with another timeout: %q", got)
	}
	if _, err := Compare(base, filepath.Join(base, "none")); err == nil {
		t.Error("a directory that does not exist was compared")
	}
}
