package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// world is the tree as commits make it.
type world struct {
	nodes    map[string]Chg // data, version and session
	children map[string]map[string]bool
	owners   map[string]string // of znodes that only one user may use
	wanted   map[string]string // owners by the data that a znode was created with
	quotas   map[string]quota  // by path
	enforced map[string]quota  // those that a write is held to; nil if to none
}

// quota is that of a path: the znodes at and below it which count for no other
// one further down.
type quota struct {
	limits       string // "" if there are none, and then nothing is counted
	stats        bool
	count, bytes int // by the stats, if there are any
}

func (q quota) text() string { return fmt.Sprintf("count=%d,bytes=%d", q.count, q.bytes) }

// quotaOf is the path of the quota that a znode counts for, "" if there is none.
func (w *world) quotaOf(quotas map[string]quota, path string) string {
	if strings.HasPrefix(path, "/quota") {
		for ; path != "/"; path, _ = parentOf(path) {
			if quotas[path].limits != "" {
				return path
			}
		}
	}
	return ""
}

// count adds to the stats of the quota that a znode counts for.
func (w *world) count(path string, nodes, bytes int) {
	if of := w.quotaOf(w.quotas, path); of != "" && w.quotas[of].stats {
		q := w.quotas[of]
		q.count, q.bytes = q.count+nodes, q.bytes+bytes
		w.quotas[of] = q
	}
}

// total counts the znodes at and below a path.
func (w *world) total(path string) (q quota) {
	for p, n := range w.nodes {
		if p == path || strings.HasPrefix(p, path+"/") {
			q.count, q.bytes = q.count+1, q.bytes+len(n.Data)
		}
	}
	return q
}

// track notes what a znode says of a quota, if it does: its data, or that it is not there.
func (w *world) track(path, data string, there bool) {
	of, ok := strings.CutPrefix(path, "/zookeeper/quota")
	if !ok {
		return
	}
	of, name := parentOf(of)
	q := w.quotas[of]
	switch name {
	case "zookeeper_limits":
		q.limits = data
	case "zookeeper_stats":
		if q.stats = there; there {
			n := w.total(of)
			q.count, q.bytes = n.count, n.bytes
		}
	}
	w.quotas[of] = q
}

// exceeds says whether a write that adds so much goes over a hard limit. The stats
// are consulted once there is a limit, even a soft one.
func (w *world) exceeds(path string, nodes, bytes int) bool {
	q := w.enforced[w.quotaOf(w.enforced, path)]
	if !q.stats {
		return false
	}
	limit := map[string]int{}
	for _, pair := range strings.FieldsFunc(q.limits, func(r rune) bool { return r == ',' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		limit[key], _ = strconv.Atoi(value)
	}
	over := func(more, now, most int) bool { return more != 0 && most >= 0 && now+more > most }
	return over(nodes, q.count, limit["countHardLimit"]) || over(bytes, q.bytes, limit["byteHardLimit"])
}

// newWorld returns a tree without znodes, which knows what requests say of owners.
func (c *checker) newWorld() *world {
	w := &world{
		nodes: map[string]Chg{"/zookeeper": {}, "/zookeeper/quota": {}}, children: map[string]map[string]bool{},
		owners: map[string]string{}, wanted: map[string]string{}, quotas: map[string]quota{},
	}
	if c.s.opts.EnforceQuota {
		w.enforced = w.quotas
	}
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
			w.set(g)
		case proto.NodeDeleted:
			w.remove(g.Path)
		}
	}
}

func (w *world) set(g Chg) {
	more := len(g.Data) - len(w.nodes[g.Path].Data)
	w.nodes[g.Path] = g
	w.track(g.Path, g.Data, true)
	w.count(g.Path, 0, more)
}

func (w *world) create(g Chg) {
	dir, name := parentOf(g.Path)
	w.nodes[g.Path] = g
	w.track(g.Path, g.Data, true)
	w.count(g.Path, 1, len(g.Data))
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
	was := len(w.nodes[path].Data)
	delete(w.nodes, path)
	w.track(path, "", false)
	w.count(path, -1, -was)
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
		if w.exceeds(p.Path, 1, len(p.Tag)) {
			return proto.QuotaExceeded
		}
	case !w.has(p.Path):
		return proto.NoNode
	case p.Code == proto.OpSetData && w.exceeds(p.Path, 0, len(p.Tag)-len(n.Data)):
		return proto.QuotaExceeded
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
	quotas := w.quotas // all parts are held to these
	w.quotas = maps.Clone(quotas)
	defer func() { w.quotas = quotas }()
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
			w.set(Chg{Path: p.Path, Data: p.Tag, Version: was.Version + 1, Session: was.Session})
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
// before it, by the versions, the owners, the quotas and the znodes that there were: none is
// refused without a reason, or done with one. In the end the stats of quotas say
// what is there.
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
	next, compared := 0, false
	apply := func(commit *Commit) {
		if !compared && commit.Zxid > c.h.StatsZxid {
			compared = true
			c.stats(w)
		}
		w.apply(commit)
	}
	for _, o := range known {
		for ; next < len(c.h.Commits) && c.h.Commits[next].Zxid < o.Zxid; next++ {
			apply(&c.h.Commits[next])
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
		if want == proto.QuotaExceeded {
			c.n.Refused++
		}
		if o.Err != want {
			c.fail("outcomes", "op %d (%d of %s, version %d, parts %+v, as %q) was answered %v at zxid %x, should be %v", o.ID, o.Code, o.Path, o.Version, o.More, o.User, o.Err, o.Zxid, want)
		}
	}
	for ; next < len(c.h.Commits); next++ {
		apply(&c.h.Commits[next])
	}
	if !compared {
		c.stats(w)
	}
}

// stats compares what the quotas of a member said with the model at the same zxid.
func (c *checker) stats(w *world) {
	if c.h.Stats == nil {
		return
	}
	for _, path := range quotaPaths {
		if q := w.quotas[path]; q.stats && c.h.Stats[path] != q.text() {
			c.fail("quotas", "the stats of %s are %q at the end, should be %q", path, c.h.Stats[path], q.text())
		}
	}
	if n := w.total(quotaPaths[0]); c.h.Stats[quotaPaths[0]] != n.text() {
		c.fail("quotas", "the stats of %s are %q at the end, and it has %q", quotaPaths[0], c.h.Stats[quotaPaths[0]], n.text())
	}
}
