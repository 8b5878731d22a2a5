package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	created  = proto.NodeCreated
	deleted  = proto.NodeDeleted
	data     = proto.NodeDataChanged
	anyModes = Standard | Persistent | Recursive
)

// fire returns the events of a change, "connection type path", in the order in
// which each connection gets them; connections are in order of their names.
func fire(t *Table[string], kind proto.ChangeKind, path string) []string {
	var events []string
	t.Fire(&proto.Change{Kind: kind, Path: path}, func(c string, e Event) {
		events = append(events, fmt.Sprintf("%s %v %s", c, e.Type, e.Path))
	})
	slices.SortStableFunc(events, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
	return events
}

// add registers a watch: "data" (as exists too), "child", "persistent" or "recursive".
func add(t *Table[string], c, what, path string) {
	switch what {
	case "data":
		t.Add(c, Data, path, Standard)
	case "child":
		t.Add(c, Child, path, Standard)
	case "persistent":
		t.AddPersistent(c, path, false)
	case "recursive":
		t.AddPersistent(c, path, true)
	default:
		panic(what)
	}
}

// TestModes: which change of which znode fires which watch, and whether the
// watch is still there afterwards.
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
		{"persistent", "/a", deleted, "/a", isDeleted + "/a", true}, // once, though it is in both tables
		{"persistent", "/a", created, "/a/b", isChildren + "/a", true},
		{"persistent", "/a", deleted, "/a/b", isChildren + "/a", true},
		{"persistent", "/a", data, "/a/b", "", true},
		{"persistent", "/a", created, "/a/b/c", "", true},
		{"persistent", "/", created, "/a", isChildren + "/", true},
		// recursive
		{"recursive", "/a", created, "/a", isCreated + "/a", true},
		{"recursive", "/a", data, "/a", isData + "/a", true},
		{"recursive", "/a", deleted, "/a", isDeleted + "/a", true},
		{"recursive", "/a", created, "/a/b", isCreated + "/a/b", true}, // and no children event
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
		add(w, "C", test.what, test.on) // twice is once
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
			t.Errorf("%s: stays %v, should be %v", name, stays, test.stays)
		}
		if w.Drop("C"); !empty(w) {
			t.Errorf("%s: something is left after Drop: %+v", name, w)
		}
	}
}

func empty(w *Table[string]) bool {
	return w.Len() == 0 && w.Paths() == 0 && w.Connections() == 0 && len(w.recursive) == 0 &&
		len(w.watchers[Data])+len(w.watchers[Child])+len(w.paths) == 0
}

// TestTogether: several watches that one change concerns.
func TestTogether(t *testing.T) {
	tests := []struct {
		name  string
		adds  []string // connection, what, path
		kind  proto.ChangeKind
		path  string
		want  []string
		after int // watches left
	}{
		{"a deletion is told once to data and child watches, and both are gone", []string{"A data /a", "A child /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 0},
		{"each connection for itself", []string{"A data /a", "B child /a", "C data /a", "C child /a"},
			deleted, "/a", []string{"A NodeDeleted /a", "B NodeDeleted /a", "C NodeDeleted /a"}, 0},
		{"own event first, then the parent's", []string{"A data /a/b", "A child /a", "A child /a/b"},
			deleted, "/a/b", []string{"A NodeDeleted /a/b", "A NodeChildrenChanged /a"}, 0},
		{"created, then the parent's children", []string{"A child /a", "A data /a/b"},
			created, "/a/b", []string{"A NodeCreated /a/b", "A NodeChildrenChanged /a"}, 0},
		{"standard beside persistent: one event, the persistent one stays", []string{"A data /a", "A persistent /a"},
			data, "/a", []string{"A NodeDataChanged /a"}, 2},
		{"standard beside persistent on a deletion", []string{"A data /a", "A child /a", "A persistent /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 2},
		{"recursive beside standard: one event, the standard one is used up", []string{"A recursive /", "A data /a"},
			data, "/a", []string{"A NodeDataChanged /a"}, 1},
		{"recursive beside a child watch on a deletion", []string{"A recursive /", "A child /a"},
			deleted, "/a", []string{"A NodeDeleted /a"}, 1},
		{"recursive at three heights: one event", []string{"A recursive /", "A recursive /a", "A recursive /a/b", "A persistent /a/b"},
			data, "/a/b", []string{"A NodeDataChanged /a/b"}, 4},
		{"recursive and persistent on the parent", []string{"A recursive /a", "A persistent /a"},
			created, "/a/b", []string{"A NodeCreated /a/b", "A NodeChildrenChanged /a"}, 2},
		{"another's recursive watch leaves mine", []string{"A recursive /", "B data /b"},
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
			t.Errorf("%s: %d watches left, should be %d", test.name, w.Len(), test.after)
		}
	}
}

// access is a proto.Access that permits nothing; tests tell them apart.
type access string

func (access) Permits(int32, []proto.ID) bool { return false }

// TestEventsCarryAccess: the event says by whose ACL it may be seen.
func TestEventsCarryAccess(t *testing.T) {
	for _, kind := range []proto.ChangeKind{created, deleted, data} {
		w := New[string]()
		w.AddPersistent("A", "/a", false)
		w.AddPersistent("A", "/a/b", false)
		w.Fire(&proto.Change{Kind: kind, Path: "/a/b", Access: access("/a/b"), ParentAccess: access("/a")}, func(_ string, e Event) {
			if e.Access != access(e.Path) {
				t.Errorf("%v of %s carries that of %v", e.Type, e.Path, e.Access)
			}
		})
	}
}

// TestHasAndRemove: modes stand side by side, and each goes by itself.
func TestHasAndRemove(t *testing.T) {
	w := New[string]()
	w.Add("A", Data, "/a", Standard)
	w.AddPersistent("A", "/a", false)
	w.AddPersistent("A", "/a", true)
	w.Add("B", Data, "/a", Standard)
	has := func(c string, kind Kind, modes Mode, want bool) {
		t.Helper()
		if got := w.Has(c, kind, "/a", modes); got != want {
			t.Errorf("has %v", got)
		}
	}
	has("A", Data, Standard, true)
	has("A", Child, Standard, false)
	has("A", Child, Persistent, true)
	has("A", Child, Recursive, false)
	has("B", Data, Persistent|Recursive, false)
	has("C", Data, anyModes, false)
	if w.Of("A") != 2 || w.Of("B") != 1 || w.Of("C") != 0 || w.Paths() != 1 || w.Connections() != 2 || w.Len() != 3 {
		t.Errorf("counts: %d, %d, %d, %d, %d, %d", w.Of("A"), w.Of("B"), w.Of("C"), w.Paths(), w.Connections(), w.Len())
	}

	w.Remove("A", Data, "/a", Persistent)
	has("A", Data, Standard, true)
	has("A", Data, Persistent, false)
	has("A", Data, Recursive, true)
	has("A", Child, Persistent, true)
	w.Remove("A", Data, "/a", Recursive)
	w.Remove("A", Data, "/a", Recursive) // is not there any more
	w.Remove("C", Data, "/a", anyModes)  // never was
	w.Remove("A", Data, "/b", anyModes)
	if got := fire(w, data, "/a/x"); got != nil {
		t.Errorf("the recursive watch is gone, but fired %q", got)
	}
	w.Remove("A", Data, "/a", Standard)
	w.Remove("A", Child, "/a", anyModes)
	has("B", Data, Standard, true)
	if w.Of("A") != 0 || w.Connections() != 1 {
		t.Errorf("A still has %d watches", w.Of("A"))
	}
	if w.Drop("B"); !empty(w) {
		t.Errorf("something is left: %+v", w)
	}
}

// model keeps watches in a list, and looks through all of it for every event.
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

func (m *model) remove(gone func(watched) bool) { *m = slices.DeleteFunc(*m, gone) }

// tell returns whether c has a watch for an event of path in a table, and uses its standard one up.
func (m *model) tell(c string, kind Kind, path string) (told bool) {
	m.remove(func(w watched) bool {
		if w.c != c || w.kind != kind {
			return false
		}
		told = told || w.path == path || w.mode == Recursive && (w.path == "/" || strings.HasPrefix(path, w.path+"/"))
		return w.mode == Standard && w.path == path
	})
	return told
}

func (m *model) fire(kind proto.ChangeKind, path string) (events []string) {
	parent := path[:max(strings.LastIndex(path, "/"), 1)]
	for _, c := range []string{"A", "B", "C"} {
		say := func(e proto.EventType, path string) { events = append(events, fmt.Sprintf("%s %v %s", c, e, path)) }
		switch kind {
		case created:
			if m.tell(c, Data, path) {
				say(proto.EventNodeCreated, path)
			}
		case data:
			if m.tell(c, Data, path) {
				say(proto.EventNodeDataChanged, path)
			}
		case deleted:
			inData, inChild := m.tell(c, Data, path), m.tell(c, Child, path)
			if inData || inChild {
				say(proto.EventNodeDeleted, path)
			}
		}
		if (kind == created || kind == deleted) && m.tell(c, Child, parent) {
			say(proto.EventNodeChildrenChanged, parent)
		}
	}
	return events
}

// TestModel does random things to a table and to the model.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	path := func() string {
		return []string{"/", "/a", "/b", "/a/a", "/a/b", "/ab", "/a/b/c", "/a/b/c/d"}[r.IntN(8)]
	}
	w, slow, fired := New[string](), model{}, 0
	for i := range 20000 {
		c, kind, p, mode := string(rune('A'+r.IntN(3))), Kind(r.IntN(2)), path(), Mode(1<<r.IntN(3))
		var what string
		switch r.IntN(12) {
		case 0, 1, 2:
			what = "add"
			w.Add(c, kind, p, Standard)
			slow.add(watched{c, kind, p, Standard})
		case 3:
			what = "add persistent"
			w.AddPersistent(c, p, mode == Recursive)
			if mode == Recursive {
				slow.add(watched{c, Data, p, Recursive})
			} else {
				slow.add(watched{c, Data, p, Persistent})
				slow.add(watched{c, Child, p, Persistent})
			}
		case 4:
			what = "has"
			if got, want := w.Has(c, kind, p, mode), slices.Contains(slow, watched{c, kind, p, mode}); got != want {
				t.Errorf("step %d: has %v, should be %v", i, got, want)
			}
		case 5:
			what = "remove"
			modes := Mode(r.IntN(8))
			w.Remove(c, kind, p, modes)
			slow.remove(func(x watched) bool { return x.c == c && x.kind == kind && x.path == p && x.mode&modes != 0 })
		case 6:
			if what = "drop"; r.IntN(8) == 0 {
				w.Drop(c)
				slow.remove(func(x watched) bool { return x.c == c })
			}
		default:
			change := []proto.ChangeKind{created, deleted, data, proto.NodeACLChanged, proto.SessionClosed}[r.IntN(5)]
			if p == "/" && change != data {
				continue // the root is not created or deleted
			}
			what = fmt.Sprint("fire ", change)
			got, want := fire(w, change, p), slow.fire(change, p)
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: change %v of %s fired %q, should be %q", i, change, p, got, want)
			}
			fired += len(want)
		}
		if err := same(w, slow); err != nil {
			t.Fatalf("step %d, %s of %s on %s: %v", i, what, c, p, err)
		}
	}
	if fired < 1000 {
		t.Errorf("only %d events", fired)
	}
	for _, c := range []string{"A", "B", "C"} {
		w.Drop(c)
	}
	if !empty(w) {
		t.Errorf("something is left: %+v", w)
	}
}

// same compares what the table tells of itself with the model.
func same(t *Table[string], slow model) error {
	type place struct {
		c    string
		kind Kind
		path string
	}
	places, paths, connections, recursive := map[place]bool{}, map[string]bool{}, map[string]bool{}, map[int]int{}
	for _, w := range slow {
		places[place{w.c, w.kind, w.path}] = true
		paths[w.path] = true
		connections[w.c] = true
		if w.mode == Recursive {
			recursive[len(w.path)]++
		}
	}
	if t.Len() != len(places) || t.Paths() != len(paths) || t.Connections() != len(connections) || !maps.Equal(t.recursive, recursive) {
		return fmt.Errorf("%d watches on %d paths by %d connections, recursive ones by length %v; should be %d, %d, %d, %v",
			t.Len(), t.Paths(), t.Connections(), t.recursive, len(places), len(paths), len(connections), recursive)
	}
	return nil
}
