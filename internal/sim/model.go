package sim

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// world is the tree as commits make it.
type world struct {
	nodes    map[string]Chg // data, version and session
	children map[string]map[string]bool
	owners   map[string]string // of znodes that only one user may use
	wanted   map[string]string // owners by the data that a znode was created with
}

// newWorld returns a tree without znodes, which knows what requests say of owners.
func (c *checker) newWorld() *world {
	w := &world{map[string]Chg{}, map[string]map[string]bool{}, map[string]string{}, map[string]string{}}
	for _, o := range c.h.Ops {
		if o.Owner != "" {
			w.wanted[o.Tag] = o.Owner
		}
	}
	return w
}

func parentOf(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 1)], path[i+1:]
}

func (w *world) apply(x *Commit) {
	for _, g := range x.Changes {
		switch g.Kind {
		case proto.NodeCreated:
			w.create(g)
		case proto.NodeDataChanged:
			g.Session = w.nodes[g.Path].Session
			w.nodes[g.Path] = g
		case proto.NodeDeleted:
			w.remove(g.Path)
		}
	}
}

func (w *world) create(g Chg) {
	dir, name := parentOf(g.Path)
	w.nodes[g.Path] = g
	if w.children[dir] == nil {
		w.children[dir] = map[string]bool{}
	}
	w.children[dir][name] = true
	if owner := w.wanted[g.Data]; owner != "" {
		w.owners[g.Path] = owner
	}
}

func (w *world) remove(path string) {
	dir, name := parentOf(path)
	delete(w.nodes, path)
	delete(w.children[dir], name)
	delete(w.owners, path)
}

func (w *world) has(path string) bool {
	_, ok := w.nodes[path]
	return ok || path == "/"
}

// permits says whether a user may use a znode. Nobody else's is meant by "".
func (w *world) permits(path, user string) bool {
	owner := w.owners[path]
	return owner == "" || owner == user
}

// outcome is how a write, or one of a multi, must be answered. The order of the
// reasons is ZooKeeper's.
func (w *world) outcome(p Part, sequential bool, user string) proto.Code {
	dir, _ := parentOf(p.Path)
	about := p.Path // whose permission it takes
	if p.Code == proto.OpCreate || p.Code == proto.OpDelete {
		about = dir
	}
	n := w.nodes[p.Path]
	switch {
	case !w.has(about):
		return proto.NoNode
	case !w.permits(about, user):
		return proto.NoAuth
	case p.Code == proto.OpCreate:
		if w.has(p.Path) && !sequential {
			return proto.NodeExists
		}
	case !w.has(p.Path):
		return proto.NoNode
	case p.Version != -1 && p.Version != n.Version:
		return proto.BadVersion
	case p.Code == proto.OpDelete && len(w.children[p.Path]) > 0:
		return proto.NotEmpty
	}
	return proto.OK
}

// multi is how a multi must be answered: as the first of its parts that fails is.
// The world is as before afterwards.
func (w *world) multi(o *Op) (code proto.Code) {
	var undo []func()
	for _, p := range o.More {
		if code = w.outcome(p, false, o.User); code != proto.OK {
			break
		}
		was, owner := w.nodes[p.Path], w.owners[p.Path]
		switch p.Code {
		case proto.OpCreate:
			w.create(Chg{Path: p.Path, Data: p.Tag})
			undo = append(undo, func() { w.remove(p.Path) })
		case proto.OpSetData:
			w.nodes[p.Path] = Chg{Path: p.Path, Data: p.Tag, Version: was.Version + 1, Session: was.Session}
			undo = append(undo, func() { w.nodes[p.Path] = was })
		case proto.OpDelete:
			w.remove(p.Path)
			undo = append(undo, func() {
				if w.create(was); owner != "" {
					w.owners[p.Path] = owner
				}
			})
		}
	}
	for _, back := range slices.Backward(undo) {
		back()
	}
	return code
}

// outcomes compares the answer to each write with what the tree allowed right
// before it, by the versions, the owners and the znodes that there were: none is
// refused without a reason, or done with one.
func (c *checker) outcomes() {
	var known []*Op
	for _, o := range c.h.Ops {
		if isWrite(o.Code) && o.Known() && !o.ReadOnly && o.Err != proto.SessionMoved && o.Err != proto.SessionExpired {
			known = append(known, o)
		}
	}
	c.n.Outcomes = len(known)
	slices.SortStableFunc(known, func(a, b *Op) int { return cmp.Compare(a.Zxid, b.Zxid) })
	w := c.newWorld()
	next := 0
	for _, o := range known {
		for ; next < len(c.h.Commits) && c.h.Commits[next].Zxid < o.Zxid; next++ {
			w.apply(&c.h.Commits[next])
		}
		var want proto.Code
		switch o.Code {
		case proto.OpMulti:
			want = w.multi(o)
		case proto.OpSetData, proto.OpDelete:
			want = w.outcome(Part{o.Code, o.Path, o.Tag, o.Version}, false, o.User)
		default:
			sequential := o.Flags == proto.FlagSequential || o.Flags == proto.FlagEphemeralSeq || o.Flags == proto.FlagTTLSequential
			want = w.outcome(Part{proto.OpCreate, o.Path, o.Tag, 0}, sequential, o.User)
		}
		if o.Err != want {
			c.fail("outcomes", "op %d (%d of %s, version %d, parts %+v, as %q) was answered %v at zxid %x, should be %v", o.ID, o.Code, o.Path, o.Version, o.More, o.User, o.Err, o.Zxid, want)
		}
	}
}
