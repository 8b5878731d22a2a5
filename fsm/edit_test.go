package fsm

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// apply1 applies a command at a time, as an entry of its own.
func apply1(m *Machine, c *Command, at int64) error {
	entry := EndEntry(AppendCommand(BeginEntry(nil), c), &Envelope{Origin: 1, Batch: uint64(1<<60 + at), Time: at, Count: 1})
	return m.Apply(m.Index()+1, 3, entry, nil)
}

func TestEdit(t *testing.T) {
	m := NewMachine()
	check := func(want ...string) map[string]znode.Record {
		t.Helper()
		all := records(t, m)
		got := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(p string) bool { return p == "/" || len(p) > 9 && p[:10] == "/zookeeper" })
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if err := m.Tree().Check(func(int64) bool { return true }); err != nil {
			t.Error(err)
		}
		return all
	}
	edit := func(at int64, remove []string, below bool, nodes ...znode.Record) {
		t.Helper()
		var b []byte
		for _, r := range nodes {
			r.ACL, r.Ctime, r.Mtime = proto.OpenACL, at, at
			b = znode.AppendRecord(b, &r)
		}
		if err := apply1(m, Edit(remove, below, b), at); err != nil {
			t.Fatal(err)
		}
	}
	node := func(path, data string) znode.Record { return znode.Record{Path: path, Data: []byte(data)} }
	edit(5, nil, false, node("/a", "1"), znode.Record{Path: "/a/b"}, node("/a/b/c", ""), znode.Record{Path: "/t", Kind: znode.TTL, Owner: 7, Data: []byte("t")})
	was := check("/a", "/a/b", "/a/b/c", "/t")
	if a, b := was["/a"], was["/a/b"]; a.Version != 0 || a.Ctime != 5 || a.Creates != 1 || b.Data == nil || len(b.Data) != 0 || b.Creates != 1 || was["/t"].Owner != 7 {
		t.Errorf("%+v", was)
	}
	// Znodes that exist keep all but their data; without data they stay as they are.
	edit(6, nil, false, node("/a", "2"), znode.Record{Path: "/a/b"}, node("/a/b/d", ""), node("/t", "u"))
	is := check("/a", "/a/b", "/a/b/c", "/a/b/d", "/t")
	if a, b, x := is["/a"], is["/a/b"], is["/t"]; string(a.Data) != "2" || a.Version != 1 || a.Ctime != 5 || a.Mtime != 6 || a.Czxid != was["/a"].Czxid || a.Mzxid <= a.Czxid ||
		b.Mzxid != was["/a/b"].Mzxid || b.Creates != 2 || b.Version != 0 || x.Kind != znode.TTL || x.Owner != 7 || string(x.Data) != "u" {
		t.Errorf("%+v", is)
	}
	// What cannot be added or removed is left out.
	edit(7, []string{"/a", "/none", "/zookeeper", "/zookeeper/quota", "/"}, false, node("/x/y", ""), node("/", "x"), node("/zookeeper/config", "x"), node("/z", ""))
	check("/a", "/a/b", "/a/b/c", "/a/b/d", "/t", "/z")
	edit(8, []string{"/a/b/c", "/a/b"}, false)
	check("/a", "/a/b", "/a/b/d", "/t", "/z")
	edit(9, []string{"/a", "/t"}, true)
	check("/z")

	at := int64(9)
	for name, c := range map[string]*Command{
		"cut short":        {Op: OpPutBack, Body: []byte{255, 255, 255, 255}},
		"removal missing":  {Op: OpPutBack, Body: []byte{255, 255, 255, 255, 0, 0, 0, 0, 1}},
		"record cut short": {Op: OpPutBack, Body: append(Edit(nil, false, nil).Body, 1, 2, 3)},
	} {
		at++
		if err := apply1(m, c, at); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
