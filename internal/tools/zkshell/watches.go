package zkshell

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// watchKind is a kind of watch that the Java client tells apart (ZKWatchManager).
type watchKind int

const (
	watchData watchKind = iota
	watchExist
	watchChild
	watchPersistent
	watchRecursive
)

// watches are the paths that the client has watches on, by kind. The server forgets them
// with the connection.
type watches [5]map[string]bool

func (w *watches) add(kind watchKind, path string) {
	if w[kind] == nil {
		w[kind] = map[string]bool{}
	}
	w[kind][path] = true
}

// take removes a watch and reports whether there was one.
func (w *watches) take(kind watchKind, path string) bool {
	had := w[kind][path]
	delete(w[kind], path)
	return had
}

// fire removes the watches that an event uses up, and reports whether any watch wants the
// event (ZKWatchManager.materialize).
func (w *watches) fire(t proto.EventType, path string) bool {
	wanted := w[watchPersistent][path]
	var used []watchKind
	switch t {
	case proto.EventNodeDataChanged, proto.EventNodeCreated:
		used = []watchKind{watchData, watchExist}
	case proto.EventNodeDeleted:
		used = []watchKind{watchData, watchExist, watchChild}
	case proto.EventNodeChildrenChanged:
		used = []watchKind{watchChild}
	}
	for _, kind := range used {
		if w.take(kind, path) {
			wanted = true
		}
	}
	if t == proto.EventNodeChildrenChanged {
		return wanted // a recursive watch gets an event of the child instead
	}
	for p := path; ; p = p[:max(strings.LastIndexByte(p, '/'), 1)] {
		if w[watchRecursive][p] {
			return true
		}
		if len(p) <= 1 {
			return wanted
		}
	}
}

// watcherType is a kind of watch as removeWatches names it (Watcher.WatcherType).
type watcherType int32

const (
	watcherChildren   watcherType = 1
	watcherData       watcherType = 2
	watcherAny        watcherType = 3
	watcherPersistent watcherType = 4
	watcherRecursive  watcherType = 5
)

// removed lists, for each event that tells of a removal, the kinds of watches whose
// removal it reports, for each watcherType.
var removed = []struct {
	event string
	kinds map[watcherType][]watchKind
}{
	{"ChildWatchRemoved", map[watcherType][]watchKind{watcherChildren: {watchChild}, watcherAny: {watchChild}}},
	{"DataWatchRemoved", map[watcherType][]watchKind{watcherData: {watchData, watchExist}, watcherAny: {watchData, watchExist}}},
	{"PersistentWatchRemoved", map[watcherType][]watchKind{
		watcherPersistent: {watchPersistent}, watcherRecursive: {watchRecursive}, watcherAny: {watchPersistent, watchRecursive},
	}},
}

// has reports whether there is a watch of the type on the path.
func (w *watches) has(t watcherType, path string) bool {
	for _, r := range removed {
		if slices.ContainsFunc(r.kinds[t], func(k watchKind) bool { return w[k][path] }) {
			return true
		}
	}
	return false
}

// remove removes the watches of the type on the path and returns the types of the events
// that report it.
func (w *watches) remove(t watcherType, path string) (events []string) {
	for _, r := range removed {
		had := false
		for _, k := range r.kinds[t] {
			had = w.take(k, path) || had
		}
		if had {
			events = append(events, r.event)
		}
	}
	return events
}

// maxSetWatches is about how many bytes of paths one setWatches has, so that it fits into
// the frame that servers accept.
const maxSetWatches = 128 << 10

// requests yields the requests that set all watches again. server turns a path into that
// of the server.
func (w *watches) requests(zxid int64, server func(string) string) iter.Seq[*proto.SetWatches2Request] {
	return func(yield func(*proto.SetWatches2Request) bool) {
		var q *proto.SetWatches2Request
		size := 0
		for kind, paths := range w {
			for _, path := range slices.Sorted(maps.Keys(paths)) {
				if q == nil {
					q, size = &proto.SetWatches2Request{}, 0
					q.RelativeZxid = zxid
				}
				list := []*[]string{&q.Data, &q.Exist, &q.Child, &q.Persistent, &q.Recursive}[kind]
				*list = append(*list, server(path))
				if size += len(path); size >= maxSetWatches {
					if !yield(q) {
						return
					}
					q = nil
				}
			}
		}
		if q != nil {
			yield(q)
		}
	}
}
