// Package watch keeps the watches of one server: which connection waits for
// what, and which change fires which event. A one-shot watch fires at most
// once, and nothing here is replicated.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package watch

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Mode is how long a watch stays and what it covers (WatcherMode). One
// connection can have several on a path, side by side, as in ZooKeeper 3.9.
type Mode uint8

// The modes.
const (
	Standard   Mode = 1 << iota // fires once
	Persistent                  // stays
	Recursive                   // stays, and covers all that is below
)

// Kind is which of a server's two tables a watch is in.
type Kind uint8

// The tables: Data has the watches of getData and exists, Child those of
// getChildren. Persistent watches are in both, recursive ones in Data.
const (
	Data Kind = iota
	Child
)

// Event is what a watch tells its connection. The connection may see it only
// if Access grants it READ.
type Event struct {
	Type   proto.EventType
	Path   string
	Access proto.Access
}

type key struct {
	kind Kind
	path string
}

// Table holds watches of connections of type C. It needs a lock around it.
type Table[C comparable] struct {
	watchers [2]map[string]map[C]Mode
	paths    map[C]map[key]struct{}
	total    int // elements of paths
	watched  int // paths in at least one of the two watchers
	// recursive counts the recursive watches by the length of their paths. Mostly
	// there are none, and then ancestors need no look; with it, an ancestor
	// costs no hash of its path unless somebody watches one of that length.
	recursive map[int]int
}

// New returns an empty table.
func New[C comparable]() *Table[C] {
	return &Table[C]{
		watchers: [2]map[string]map[C]Mode{{}, {}},
		paths:    map[C]map[key]struct{}{}, recursive: map[int]int{},
	}
}

// Add registers a watch. Doing so twice is doing it once.
func (t *Table[C]) Add(c C, kind Kind, path string, mode Mode) {
	w := t.watchers[kind][path]
	if w == nil {
		w = map[C]Mode{}
		t.watchers[kind][path] = w
		if t.watchers[1-kind][path] == nil {
			t.watched++
		}
	}
	if mode&Recursive != 0 && w[c]&Recursive == 0 {
		t.recursive[len(path)]++
	}
	w[c] |= mode
	p := t.paths[c]
	if p == nil {
		p = map[key]struct{}{}
		t.paths[c] = p
	}
	t.total -= len(p)
	p[key{kind, path}] = struct{}{}
	t.total += len(p)
}

// AddPersistent registers what addWatch asks for.
func (t *Table[C]) AddPersistent(c C, path string, recursive bool) {
	if recursive {
		t.Add(c, Data, path, Recursive)
		return
	}
	t.Add(c, Data, path, Persistent)
	t.Add(c, Child, path, Persistent)
}

// Has reports whether the connection has a watch of one of the modes on path.
func (t *Table[C]) Has(c C, kind Kind, path string, modes Mode) bool {
	return t.watchers[kind][path][c]&modes != 0
}

// Remove drops the connection's watches of the modes on path.
func (t *Table[C]) Remove(c C, kind Kind, path string, modes Mode) {
	w := t.watchers[kind][path]
	had := w[c]
	if had == 0 {
		return
	}
	if had&modes&Recursive != 0 {
		if t.recursive[len(path)]--; t.recursive[len(path)] == 0 {
			delete(t.recursive, len(path))
		}
	}
	if had &^= modes; had != 0 {
		w[c] = had
		return
	}
	if delete(w, c); len(w) == 0 {
		delete(t.watchers[kind], path)
		if t.watchers[1-kind][path] == nil {
			t.watched--
		}
	}
	p := t.paths[c]
	t.total -= len(p)
	delete(p, key{kind, path})
	if t.total += len(p); len(p) == 0 {
		delete(t.paths, c)
	}
}

// Drop removes all watches of a connection, which has ended.
func (t *Table[C]) Drop(c C) {
	for k := range t.paths[c] {
		t.Remove(c, k.kind, k.path, Standard|Persistent|Recursive)
	}
}

// Of is the number of (table, path) pairs that the connection watches.
func (t *Table[C]) Of(c C) int { return len(t.paths[c]) }

// Len is the number of watches in both tables.
func (t *Table[C]) Len() int { return t.total }

// Each calls f for every path that a connection watches, in no order, until it
// returns false.
func (t *Table[C]) Each(f func(c C, path string) bool) {
	for c, keys := range t.paths {
		for k := range keys {
			if _, both := keys[key{Data, k.path}]; (k.kind == Data || !both) && !f(c, k.path) {
				return
			}
		}
	}
}

// Connections is the number of connections that watch something.
func (t *Table[C]) Connections() int { return len(t.paths) }

// Paths is the number of paths with a watch on their data or on their children.
func (t *Table[C]) Paths() int { return t.watched }

// Fire calls emit for every event that a change causes, in ZooKeeper's order:
// the data watches of the znode, its child watches, then its parent's child
// watches. Standard watches that fire are gone.
func (t *Table[C]) Fire(c *proto.Change, emit func(C, Event)) {
	switch c.Kind {
	case proto.NodeCreated:
		t.fire(Data, Event{proto.EventNodeCreated, c.Path, c.Access}, emit, nil)
		t.fire(Child, Event{proto.EventNodeChildrenChanged, parent(c.Path), c.ParentAccess}, emit, nil)
	case proto.NodeDataChanged:
		t.fire(Data, Event{proto.EventNodeDataChanged, c.Path, c.Access}, emit, nil)
	case proto.NodeDeleted:
		deleted := Event{proto.EventNodeDeleted, c.Path, c.Access}
		var told map[C]bool // a connection learns of a deletion once
		if t.watchers[Child][c.Path] != nil {
			told = map[C]bool{}
		}
		t.fire(Data, deleted, emit, told)
		t.fire(Child, deleted, emit, told)
		t.fire(Child, Event{proto.EventNodeChildrenChanged, parent(c.Path), c.ParentAccess}, emit, nil)
	}
}

// fire tells the watchers of e's path, and for the data table those who watch
// an ancestor recursively. told, if not nil, holds who knows already.
func (t *Table[C]) fire(kind Kind, e Event, emit func(C, Event), told map[C]bool) {
	if kind == Data && len(t.recursive) > 0 {
		if told == nil {
			told = map[C]bool{}
		}
		for path := e.Path; ; path = parent(path) {
			if t.recursive[len(path)] > 0 {
				for c, mode := range t.watchers[Data][path] {
					if mode&Recursive != 0 && !told[c] {
						told[c] = true
						emit(c, e)
					}
				}
			}
			if path == "/" || path == "" {
				break
			}
		}
	}
	for c, mode := range t.watchers[kind][e.Path] {
		if mode&(Standard|Persistent) == 0 {
			continue
		}
		if !told[c] {
			if told != nil {
				told[c] = true
			}
			emit(c, e)
		}
		if mode&Standard != 0 {
			t.Remove(c, kind, e.Path, Standard)
		}
	}
}

func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}
