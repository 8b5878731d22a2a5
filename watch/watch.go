// Package watch keeps the watches of the connections of one server, and finds out which
// events a change causes. Watches are not replicated: a client that connects to another
// server sets them again.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package watch

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Mode is a set of modes of watches (WatcherMode). As in ZooKeeper 3.9, a connection can
// have watches of several modes on the same path.
type Mode uint8

// The modes.
const (
	Standard   Mode = 1 << iota // removed when it fires
	Persistent                  // stays when it fires
	Recursive                   // stays, and includes all descendants of the path
)

// Kind says which of the two sets of watches a watch belongs to: Data for watches set by
// getData and exists, Child for those set by getChildren. A persistent watch is in both
// sets, a recursive one only in Data.
type Kind uint8

// The kinds of watch.
const (
	Data Kind = iota
	Child
)

// Event is an event for one connection. It must not be sent unless Access grants READ to
// the connection.
type Event struct {
	Type   proto.EventType
	Path   string
	Access proto.Access
}

type key struct {
	kind Kind
	path string
}

// Table holds the watches of connections of type C. It is not safe for concurrent use.
type Table[C comparable] struct {
	watchers [2]map[string]map[C]Mode // by kind and path
	keys     map[C]map[key]struct{}   // what each connection watches
	total    int                      // number of all keys
	paths    int                      // number of different paths
	// recursive is the number of recursive watches by the length of their paths. With
	// it, an event looks up only those ancestors of its path that have such a length;
	// usually there are no recursive watches at all.
	recursive map[int]int
	// both is whether there has been a recursive watch in the set Child too. ZooKeeper before
	// 3.9 has them in both sets. There they fire only for deletions, and only matter if the
	// connection has replaced the one in Data.
	both bool
}

// New returns an empty table.
func New[C comparable]() *Table[C] {
	return &Table[C]{
		watchers: [2]map[string]map[C]Mode{{}, {}},
		keys:     map[C]map[key]struct{}{}, recursive: map[int]int{},
	}
}

// Add adds a watch. It has no effect if the connection already has this watch.
func (t *Table[C]) Add(c C, kind Kind, path string, mode Mode) {
	w := t.watchers[kind][path]
	if w == nil {
		w = map[C]Mode{}
		t.watchers[kind][path] = w
		if t.watchers[1-kind][path] == nil {
			t.paths++
		}
	}
	if mode&Recursive != 0 && w[c]&Recursive == 0 {
		t.recursive[len(path)]++
		t.both = t.both || kind == Child
	}
	w[c] |= mode
	keys := t.keys[c]
	if keys == nil {
		keys = map[key]struct{}{}
		t.keys[c] = keys
	}
	t.total -= len(keys)
	keys[key{kind, path}] = struct{}{}
	t.total += len(keys)
}

// Has reports whether the connection has a watch of any of the given modes on path.
func (t *Table[C]) Has(c C, kind Kind, path string, modes Mode) bool {
	return t.watchers[kind][path][c]&modes != 0
}

// Watched reports whether any connection has a watch of the kind on path.
func (t *Table[C]) Watched(kind Kind, path string) bool { return t.watchers[kind][path] != nil }

// Remove removes the connection's watches of the given modes on path.
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
			t.paths--
		}
	}
	keys := t.keys[c]
	t.total -= len(keys)
	delete(keys, key{kind, path})
	if t.total += len(keys); len(keys) == 0 {
		delete(t.keys, c)
	}
}

// Drop removes all watches of a connection.
func (t *Table[C]) Drop(c C) {
	for k := range t.keys[c] {
		t.Remove(c, k.kind, k.path, Standard|Persistent|Recursive)
	}
}

// LenOf returns the number of watches of a connection, counted as by [Table.Len].
func (t *Table[C]) LenOf(c C) int { return len(t.keys[c]) }

// Len returns the number of watches. A connection's watches of the same kind on the same
// path count as one, whatever their modes.
func (t *Table[C]) Len() int { return t.total }

// Each calls f for every pair of a connection and a path that it watches, in no
// particular order, until f returns false. The table may change meanwhile: a pair that is there all
// the time is found, and one that goes and comes back may be found twice.
func (t *Table[C]) Each(f func(c C, path string) bool) {
	for c, keys := range t.keys {
		found := map[string]bool{} // paths with watches of both kinds, either of which may go first
		for k := range keys {
			if _, both := keys[key{1 - k.kind, k.path}]; both {
				if found[k.path] {
					continue
				}
				found[k.path] = true
			}
			if !f(c, k.path) {
				return
			}
		}
	}
}

// Connections returns the number of connections that have watches.
func (t *Table[C]) Connections() int { return len(t.keys) }

// Paths returns the number of paths with at least one watch of either kind.
func (t *Table[C]) Paths() int { return t.paths }

// Fire calls emit for every event that a change causes, in ZooKeeper's order: for the
// data watches of the znode, for its child watches, then for its parent's child watches.
// It removes the standard watches that fire.
func (t *Table[C]) Fire(c *proto.Change, emit func(C, Event)) {
	switch c.Kind {
	case proto.NodeCreated:
		t.fire(Data, Event{proto.EventNodeCreated, c.Path, c.Access}, emit, nil)
		t.fire(Child, Event{proto.EventNodeChildrenChanged, parent(c.Path), c.ParentAccess}, emit, nil)
	case proto.NodeDataChanged:
		t.fire(Data, Event{proto.EventNodeDataChanged, c.Path, c.Access}, emit, nil)
	case proto.NodeDeleted:
		deleted := Event{proto.EventNodeDeleted, c.Path, c.Access}
		var notified map[C]bool // so that a connection gets only one event for the deletion
		if t.watchers[Child][c.Path] != nil || t.both {
			notified = map[C]bool{}
		}
		t.fire(Data, deleted, emit, notified)
		t.fire(Child, deleted, emit, notified)
		t.fire(Child, Event{proto.EventNodeChildrenChanged, parent(c.Path), c.ParentAccess}, emit, nil)
	}
}

// fire calls emit for the connections with a watch of this kind on e's path and, if kind
// is Data or e is a deletion, for those with a recursive watch on the path or an ancestor. It leaves out the
// connections in notified and adds the others to it, unless it is nil.
func (t *Table[C]) fire(kind Kind, e Event, emit func(C, Event), notified map[C]bool) {
	if len(t.recursive) > 0 && (kind == Data || t.both && e.Type == proto.EventNodeDeleted) {
		if notified == nil {
			notified = map[C]bool{}
		}
		for path := e.Path; ; path = parent(path) {
			if t.recursive[len(path)] > 0 {
				for c, mode := range t.watchers[kind][path] {
					if mode&Recursive != 0 && !notified[c] {
						notified[c] = true
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
		if !notified[c] {
			if notified != nil {
				notified[c] = true
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
