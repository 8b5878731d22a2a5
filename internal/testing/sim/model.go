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

// world is a model of the tree, built from the commits.
type world struct {
	nodes    map[string]Change // data, version and session
	children map[string]map[string]bool
	owners   map[string]string // users by the path of a znode that only they may use
	wanted   map[string]string // owners by the data that a znode was created with
	quotas   map[string]quota  // by path
	enforced map[string]quota  // the quotas that limit writes; nil if quotas are not enforced
}

// quota is the quota of a path. It counts the znodes at and below the path that belong
// to no deeper quota.
type quota struct {
	limits       string // data of the limits znode; "" if there is none, and then nothing is counted
	stats        bool   // there is a stats znode
	count, bytes int    // what the stats say, if there are any
}

func (q quota) text() string { return fmt.Sprintf("count=%d,bytes=%d", q.count, q.bytes) }

// quotaOf returns the path of the quota that a znode counts for, "" if there is none.
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

// track updates a quota after its limits or stats were written or deleted. It ignores
// other paths.
func (w *world) track(path, data string, exists bool) {
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
		if q.stats = exists; exists {
			n := w.total(of)
			q.count, q.bytes = n.count, n.bytes
		}
	}
	w.quotas[of] = q
}

// exceeds reports whether a write that adds that many znodes and bytes exceeds a hard
// limit.
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

// newWorld returns the model of a new tree. It knows from the requests who will own
// which znode.
func (c *checker) newWorld() *world {
	w := &world{
		nodes: map[string]Change{"/zookeeper": {}, "/zookeeper/quota": {}}, children: map[string]map[string]bool{},
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

func (w *world) set(g Change) {
	more := len(g.Data) - len(w.nodes[g.Path].Data)
	w.nodes[g.Path] = g
	w.track(g.Path, g.Data, true)
	w.count(g.Path, 0, more)
}

func (w *world) create(g Change) {
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

// permits reports whether a user may use a znode. User "" is somebody who has not
// authenticated.
func (w *world) permits(path, user string) bool {
	owner := w.owners[path]
	return owner == "" || owner == user
}

// outcome returns how a write, or an operation of a multi, must be answered. If there
// are several reasons to refuse it, ZooKeeper's order decides.
func (w *world) outcome(p Part, sequential bool, user string) proto.Code {
	dir, _ := parentOf(p.Path)
	guard := p.Path // the znode whose ACL must permit it
	if p.Code == proto.OpCreate || p.Code == proto.OpDelete {
		guard = dir
	}
	n := w.nodes[p.Path]
	switch {
	case !w.has(guard):
		return proto.NoNode
	case !w.permits(guard, user):
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

// multi returns how a multi must be answered: like the first of its operations that
// fails. It leaves the world unchanged.
func (w *world) multi(o *Op) (code proto.Code) {
	var undo []func()
	quotas := w.quotas // the quotas before the multi limit all of its operations
	w.quotas = maps.Clone(quotas)
	defer func() { w.quotas = quotas }()
	for _, p := range o.More {
		if code = w.outcome(p, false, o.User); code != proto.OK {
			break
		}
		was, owner := w.nodes[p.Path], w.owners[p.Path]
		switch p.Code {
		case proto.OpCreate:
			w.create(Change{Path: p.Path, Data: p.Tag})
			undo = append(undo, func() { w.remove(p.Path) })
		case proto.OpSetData:
			w.set(Change{Path: p.Path, Data: p.Tag, Version: was.Version + 1, Session: was.Session})
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

// outcomes checks that each write got the answer that follows from the znodes, versions,
// owners and quotas right before it: none was refused without a reason, or done in
// spite of one. It also compares the stats of quotas at the end.
func (c *checker) outcomes() {
	var known []*Op
	for _, o := range c.h.Ops {
		if isWrite(o.Code) && o.Known() && !o.ReadOnly && o.Err != proto.SessionMoved && o.Err != proto.SessionExpired {
			known = append(known, o)
		}
	}
	c.n["outcomes"] = len(known)
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
			c.n["writes over a quota"]++
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

// stats compares the stats of quotas on a member with the model at the same zxid.
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
		c.fail("quotas", "the stats of %s are %q at the end, but the znodes add up to %q", quotaPaths[0], c.h.Stats[quotaPaths[0]], n.text())
	}
}
