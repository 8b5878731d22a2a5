package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	created  = proto.NodeCreated
	deleted  = proto.NodeDeleted
	data     = proto.NodeDataChanged
	anyModes = Standard | Persistent | Recursive
)

// fire returns the events that a change causes, as "connection type path". They are in
// order of the connections' names, and the events of each connection in the order in
// which it gets them.
func fire(t *Table[string], kind proto.ChangeKind, path string) []string {
	var events []string
	t.Fire(&proto.Change{Kind: kind, Path: path}, func(c string, e Event) {
		events = append(events, fmt.Sprintf("%s %v %s", c, e.Type, e.Path))
	})
	slices.SortStableFunc(events, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
	return events
}

// add adds a watch. what is "data" (for getData and exists), "child", "persistent" or
// "recursive".
func add(t *Table[string], c, what, path string) {
	switch what {
	case "data":
		t.Add(c, Data, path, Standard)
	case "child":
		t.Add(c, Child, path, Standard)
	case "persistent":
		t.Add(c, Data, path, Persistent)
		t.Add(c, Child, path, Persistent)
	case "recursive":
		t.Add(c, Data, path, Recursive)
	default:
		panic(what)
	}
}

// TestModes checks which change of which znode fires which watch, and whether the watch
// stays.
func TestModes(t *testing.T) {
	const (
		isCreated  = "C NodeCreated "
		isDeleted  = "C NodeDeleted "
		isData     = "C NodeDataChanged "
		isChildren = "C NodeChildrenChanged "
	)
	tests := []struct {
		what, on string
		kind     proto.ChangeKind
		path     string
		want     string // "" for none
		stays    bool
	}{
		// data and exists
		{"data", "/a", created, "/a", isCreated + "/a", false},
		{"data", "/a", data, "/a", isData + "/a", false},
		{"data", "/a", deleted, "/a", isDeleted + "/a", false},
		{"data", "/a", created, "/a/b", "", true},
		{"data", "/a", deleted, "/a/b", "", true},
		{"data", "/a", data, "/a/b", "", true},
		{"data", "/a", data, "/ab", "", true},
		{"data", "/a/b", data, "/a", "", true},
		{"data", "/a", proto.NodeACLChanged, "/a", "", true},
		{"data", "/a", proto.SessionClosed, "", "", true},
		// children
		{"child", "/a", created, "/a/b", isChildren + "/a", false},
		{"child", "/a", deleted, "/a/b", isChildren + "/a", false},
		{"child", "/a", deleted, "/a", isDeleted + "/a", false},
		{"child", "/a", created, "/a", "", true},
		{"child", "/a", data, "/a", "", true},
		{"child", "/a", data, "/a/b", "", true},
		{"child", "/a", created, "/a/b/c", "", true},
		{"child", "/", created, "/a", isChildren + "/", false},
		{"child", "/", created, "/a/b", "", true},
		{"child", "/a", proto.NodeACLChanged, "/a/b", "", true},
		// persistent
		{"persistent", "/a", created, "/a", isCreated + "/a", true},
		{"persistent", "/a", data, "/a", isData + "/a", true},
		{"persistent", "/a", deleted, "/a", isDeleted + "/a", true}, // one event, although the watch has both kinds
		{"persistent", "/a", created, "/a/b", isChildren + "/a", true},
		{"persistent", "/a", deleted, "/a/b", isChildren + "/a", true},
		{"persistent", "/a", data, "/a/b", "", true},
		{"persistent", "/a", created, "/a/b/c", "", true},
		{"persistent", "/", created, "/a", isChildren + "/", true},
		// recursive
		{"recursive", "/a", created, "/a", isCreated + "/a", true},
		{"recursive", "/a", data, "/a", isData + "/a", true},
		{"recursive", "/a", deleted, "/a", isDeleted + "/a", true},
		{"recursive", "/a", created, "/a/b", isCreated + "/a/b", true}, // but no NodeChildrenChanged
		{"recursive", "/a", data, "/a/b/c/d", isData + "/a/b/c/d", true},
		{"recursive", "/a", deleted, "/a/b/c", isDeleted + "/a/b/c", true},
		{"recursive", "/a", data, "/ab", "", true},
		{"recursive", "/a", data, "/", "", true},
		{"recursive", "/a/b", data, "/a", "", true},
		{"recursive", "/", data, "/", isData + "/", true},
		{"recursive", "/", created, "/a/b", isCreated + "/a/b", true},
	}
	for _, test := range tests {
		name := fmt.Sprintf("%s watch on %s, %v of %s", test.what, test.on, test.kind, test.path)
		w := New[string]()
		add(w, "C", test.what, test.on)
		add(w, "C", test.what, test.on) // has no effect
		for round := range 2 {
			want := []string{test.want}
			if test.want == "" || round == 1 && !test.stays {
				want = nil
			}
			if got := fire(w, test.kind, test.path); !slices.Equal(got, want) {
				t.Errorf("%s, round %d: %q, want %q", name, round, got, want)
			}
		}
		if stays := w.Len() > 0; stays != test.stays {
			t.Errorf("%s: stays is %v, want %v", name, stays, test.stays)
		}
		if w.Drop("C"); !empty(w) {
			t.Errorf("%s: the table is not empty after Drop: %+v", name, w)
		}
	}
}

func empty(w *Table[string]) bool {
	return w.Len() == 0 && w.Paths() == 0 && w.Connections() == 0 && len(w.recursive) == 0 &&
		len(w.watchers[Data])+len(w.watchers[Child])+len(w.keys) == 0
}

// TestSeveralWatches checks the events of a change that concerns several watches.
func TestSeveralWatches(t *testing.T) {
	tests := []struct {
		name  string
		adds  []string // connection, what, path
		kind  proto.ChangeKind
		path  string
		want  []string
		after int // number of watches that stay
	}{
		{"data and child watch: one event for a deletion, and both are removed", []string{"A data /a", "A child /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 0},
		{"each connection gets its own event", []string{"A data /a", "B child /a", "C data /a", "C child /a"},
			deleted, "/a", []string{"A NodeDeleted /a", "B NodeDeleted /a", "C NodeDeleted /a"}, 0},
		{"deleted, then the parent's children", []string{"A data /a/b", "A child /a", "A child /a/b"},
			deleted, "/a/b", []string{"A NodeDeleted /a/b", "A NodeChildrenChanged /a"}, 0},
		{"created, then the parent's children", []string{"A child /a", "A data /a/b"},
			created, "/a/b", []string{"A NodeCreated /a/b", "A NodeChildrenChanged /a"}, 0},
		{"standard and persistent: one event, and only the persistent watch stays", []string{"A data /a", "A persistent /a"},
			data, "/a", []string{"A NodeDataChanged /a"}, 2},
		{"standard and persistent: one event for a deletion", []string{"A data /a", "A child /a", "A persistent /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 2},
		{"recursive and standard: one event, and the standard watch is removed", []string{"A recursive /", "A data /a"},
			data, "/a", []string{"A NodeDataChanged /a"}, 1},
		{"recursive and child watch: one event for a deletion", []string{"A recursive /", "A child /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 1},
		{"recursive on three ancestors: one event", []string{"A recursive /", "A recursive /a", "A recursive /a/b", "A persistent /a/b"},
			data, "/a/b", []string{"A NodeDataChanged /a/b"}, 4},
		{"recursive and persistent on the parent: two events", []string{"A recursive /a", "A persistent /a"},
			created, "/a/b", []string{"A NodeCreated /a/b", "A NodeChildrenChanged /a"}, 2},
		{"another connection's recursive watch leaves a standard watch alone", []string{"A recursive /", "B data /b"},
			data, "/a", []string{"A NodeDataChanged /a"}, 2},
	}
	for _, test := range tests {
		w := New[string]()
		for _, a := range test.adds {
			f := strings.Fields(a)
			add(w, f[0], f[1], f[2])
		}
		if got := fire(w, test.kind, test.path); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if w.Len() != test.after {
			t.Errorf("%s: %d watches left, want %d", test.name, w.Len(), test.after)
		}
	}
}

// access is a proto.Access that a test can recognize. It permits nothing.
type access string

func (access) Permits(int32, []proto.ID) bool { return false }

// TestEventAccess checks that the Access of an event is that of the event's path, which is
// the znode or its parent.
func TestEventAccess(t *testing.T) {
	for _, kind := range []proto.ChangeKind{created, deleted, data} {
		w := New[string]()
		add(w, "A", "persistent", "/a")
		add(w, "A", "persistent", "/a/b")
		w.Fire(&proto.Change{Kind: kind, Path: "/a/b", Access: access("/a/b"), ParentAccess: access("/a")}, func(_ string, e Event) {
			if e.Access != access(e.Path) {
				t.Errorf("event %v of %s has the Access of %v", e.Type, e.Path, e.Access)
			}
		})
	}
}

// TestHasAndRemove checks that a connection's watches of different modes on a path are
// found and removed independently.
func TestHasAndRemove(t *testing.T) {
	w := New[string]()
	w.Add("A", Data, "/a", Standard)
	add(w, "A", "persistent", "/a")
	add(w, "A", "recursive", "/a")
	w.Add("B", Data, "/a", Standard)
	has := func(c string, kind Kind, modes Mode, want bool) {
		t.Helper()
		if got := w.Has(c, kind, "/a", modes); got != want {
			t.Errorf("Has = %v, want %v", got, want)
		}
	}
	has("A", Data, Standard, true)
	has("A", Child, Standard, false)
	has("A", Child, Persistent, true)
	has("A", Child, Recursive, false)
	has("B", Data, Persistent|Recursive, false)
	has("C", Data, anyModes, false)
	if w.LenOf("A") != 2 || w.LenOf("B") != 1 || w.LenOf("C") != 0 || w.Paths() != 1 || w.Connections() != 2 || w.Len() != 3 {
		t.Errorf("counts: %d, %d, %d, %d, %d, %d", w.LenOf("A"), w.LenOf("B"), w.LenOf("C"), w.Paths(), w.Connections(), w.Len())
	}

	w.Remove("A", Data, "/a", Persistent)
	has("A", Data, Standard, true)
	has("A", Data, Persistent, false)
	has("A", Data, Recursive, true)
	has("A", Child, Persistent, true)
	w.Remove("A", Data, "/a", Recursive)
	w.Remove("A", Data, "/a", Recursive) // already removed
	w.Remove("C", Data, "/a", anyModes)  // does not exist
	w.Remove("A", Data, "/b", anyModes)
	if got := fire(w, data, "/a/x"); got != nil {
		t.Errorf("the recursive watch was removed, but fired %q", got)
	}
	w.Remove("A", Data, "/a", Standard)
	w.Remove("A", Child, "/a", anyModes)
	has("B", Data, Standard, true)
	if w.LenOf("A") != 0 || w.Connections() != 1 {
		t.Errorf("A still has %d watches", w.LenOf("A"))
	}
	if w.Drop("B"); !empty(w) {
		t.Errorf("the table is not empty: %+v", w)
	}
}

// model is a simple implementation of a table: it keeps the watches in a list and
// searches all of it for each event.
type model []watched

type watched struct {
	c    string
	kind Kind
	path string
	mode Mode
}

func (m *model) add(w watched) {
	if !slices.Contains(*m, w) {
		*m = append(*m, w)
	}
}

func (m *model) remove(f func(watched) bool) { *m = slices.DeleteFunc(*m, f) }

// fires reports whether c has a watch of this kind that an event of path fires, and
// removes it if it is a standard one.
func (m *model) fires(c string, kind Kind, path string) (yes bool) {
	m.remove(func(w watched) bool {
		if w.c != c || w.kind != kind {
			return false
		}
		yes = yes || w.path == path || w.mode == Recursive && (w.path == "/" || strings.HasPrefix(path, w.path+"/"))
		return w.mode == Standard && w.path == path
	})
	return yes
}

func (m *model) fire(kind proto.ChangeKind, path string) (events []string) {
	parent := path[:max(strings.LastIndex(path, "/"), 1)]
	for _, c := range []string{"A", "B", "C"} {
		add := func(e proto.EventType, path string) { events = append(events, fmt.Sprintf("%s %v %s", c, e, path)) }
		switch kind {
		case created:
			if m.fires(c, Data, path) {
				add(proto.EventNodeCreated, path)
			}
		case data:
			if m.fires(c, Data, path) {
				add(proto.EventNodeDataChanged, path)
			}
		case deleted:
			data, child := m.fires(c, Data, path), m.fires(c, Child, path)
			if data || child {
				add(proto.EventNodeDeleted, path)
			}
		}
		if (kind == created || kind == deleted) && m.fires(c, Child, parent) {
			add(proto.EventNodeChildrenChanged, parent)
		}
	}
	return events
}

// TestModel runs random operations on a table and on the model, and compares the events
// and what remains.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	path := func() string {
		return []string{"/", "/a", "/b", "/a/a", "/a/b", "/ab", "/a/b/c", "/a/b/c/d"}[r.IntN(8)]
	}
	w, m, fired := New[string](), model{}, 0
	for i := range 20000 {
		c, kind, p, mode := string(rune('A'+r.IntN(3))), Kind(r.IntN(2)), path(), Mode(1<<r.IntN(3))
		var what string
		switch r.IntN(12) {
		case 0, 1, 2:
			what = "add"
			w.Add(c, kind, p, Standard)
			m.add(watched{c, kind, p, Standard})
		case 3:
			what = "add persistent"
			if mode == Recursive {
				add(w, c, "recursive", p)
				m.add(watched{c, Data, p, Recursive})
			} else {
				add(w, c, "persistent", p)
				m.add(watched{c, Data, p, Persistent})
				m.add(watched{c, Child, p, Persistent})
			}
		case 4:
			what = "has"
			if got, want := w.Has(c, kind, p, mode), slices.Contains(m, watched{c, kind, p, mode}); got != want {
				t.Errorf("step %d: Has = %v, want %v", i, got, want)
			}
		case 5:
			what = "remove"
			modes := Mode(r.IntN(8))
			w.Remove(c, kind, p, modes)
			m.remove(func(x watched) bool { return x.c == c && x.kind == kind && x.path == p && x.mode&modes != 0 })
		case 6:
			if what = "drop"; r.IntN(8) == 0 {
				w.Drop(c)
				m.remove(func(x watched) bool { return x.c == c })
			}
		default:
			change := []proto.ChangeKind{created, deleted, data, proto.NodeACLChanged, proto.SessionClosed}[r.IntN(5)]
			if p == "/" && change != data {
				continue // the root is never created or deleted
			}
			what = fmt.Sprint("fire ", change)
			got, want := fire(w, change, p), m.fire(change, p)
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: change %v of %s fired %q, want %q", i, change, p, got, want)
			}
			fired += len(want)
		}
		if err := same(w, m); err != nil {
			t.Fatalf("step %d, %s of %s on %s: %v", i, what, c, p, err)
		}
	}
	if fired < 1000 {
		t.Errorf("only %d events: the test does not show much", fired)
	}
	for _, c := range []string{"A", "B", "C"} {
		w.Drop(c)
	}
	if !empty(w) {
		t.Errorf("the table is not empty: %+v", w)
	}
}

// same compares the table's counts with the model.
func same(t *Table[string], m model) error {
	type place struct {
		c    string
		kind Kind
		path string
	}
	places, paths, connections, recursive := map[place]bool{}, map[string]bool{}, map[string]bool{}, map[int]int{}
	for _, w := range m {
		places[place{w.c, w.kind, w.path}] = true
		paths[w.path] = true
		connections[w.c] = true
		if w.mode == Recursive {
			recursive[len(w.path)]++
		}
	}
	if t.Len() != len(places) || t.Paths() != len(paths) || t.Connections() != len(connections) || !maps.Equal(t.recursive, recursive) {
		return fmt.Errorf("%d watches on %d paths by %d connections, recursive ones by length %v; want %d, %d, %d, %v",
			t.Len(), t.Paths(), t.Connections(), t.recursive, len(places), len(paths), len(connections), recursive)
	}
	return nil
}

// TestRecursiveInBothSets: as before ZooKeeper 3.9, a recursive watch may be in the set Child too.
// There it reports only deletions, and none twice.
func TestRecursiveInBothSets(t *testing.T) {
	fired := func(w *Table[int], kind proto.ChangeKind, path string) (events []string) {
		w.Fire(&proto.Change{Kind: kind, Path: path}, func(_ int, e Event) { events = append(events, e.Type.String()+" "+e.Path) })
		return events
	}
	both := func() *Table[int] {
		w := New[int]()
		w.Add(1, Data, "/a", Recursive)
		w.Add(1, Child, "/a", Recursive)
		return w
	}
	w := both()
	for _, x := range []struct {
		kind proto.ChangeKind
		n    int
	}{{proto.NodeCreated, 1}, {proto.NodeDataChanged, 1}, {proto.NodeDeleted, 1}} {
		if got := fired(w, x.kind, "/a/b"); len(got) != x.n {
			t.Errorf("change %d: %v", x.kind, got)
		}
	}
	w.Remove(1, Data, "/a", Recursive)
	w.Add(1, Data, "/a", Standard)
	for _, x := range []struct {
		kind proto.ChangeKind
		n    int
	}{{proto.NodeCreated, 0}, {proto.NodeDataChanged, 0}, {proto.NodeDeleted, 1}} {
		if got := fired(w, x.kind, "/a/b"); len(got) != x.n {
			t.Errorf("change %d without the one in Data: %v", x.kind, got)
		}
	}
	if w.Remove(1, Child, "/a", Recursive); len(fired(w, proto.NodeDeleted, "/a/b")) != 0 {
		t.Error("it fires although it was removed")
	}
}
