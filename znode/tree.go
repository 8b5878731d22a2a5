package znode

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Tree is a tree of znodes. Use [New] to create one.
type Tree struct {
	nodes         slots
	seed          maphash.Seed
	root          uint32              // slot of the root, which is not found by its path
	ephemerals    map[int64][]uint32  // slots, by session; the order is arbitrary
	numEphemerals int                 // of all sessions
	reapable      map[string]struct{} // paths of all container and TTL znodes
	quotas        quota               // root of the tree of quotas
	saved         []*quota            // quotas that the current multi has changed
	gen           uint32              // generation: nodes of an older one may be in a snapshot
	digest        uint64
	digester      digester // for changes
	dataSize      int64
	undo          []undo // steps of the current multi
	inMulti       bool
	seeming       map[string]bool // paths of containers that the current multi has created, and treats as ephemeral
}

func newTree() *Tree {
	return &Tree{
		nodes: slots{heads: map[uint32]uint32{}}, seed: maphash.MakeSeed(),
		ephemerals: map[int64][]uint32{}, reapable: map[string]struct{}{},
	}
}

// New returns a tree with the znodes that every server has: the root, /zookeeper,
// /zookeeper/config (which everybody may read) and /zookeeper/quota.
func New() *Tree {
	t := newTree()
	readOnly := []proto.ACL{{Perms: proto.PermRead, ID: proto.OpenACL[0].ID}}
	for _, r := range []Record{
		{Path: Root, Data: []byte{}, ACL: proto.OpenACL},
		{Path: SystemPath, Data: []byte{}, ACL: proto.OpenACL},
		{Path: ConfigPath, Data: []byte{}, ACL: readOnly, Aversion: -1},
		{Path: QuotaPath, Data: []byte{}, ACL: proto.OpenACL},
	} {
		var siblings *childList
		if r.Path != Root {
			parent, _ := t.find(parentPath(r.Path))
			siblings = t.childrenOf(parent)
		}
		t.link(r.Path, newNode(&r, siblings, t.gen))
	}
	return t
}

// Lookup returns the znode at path, or nil if there is none. It does not validate the path. The
// empty path is the root's.
func (t *Tree) Lookup(path string) *Node {
	_, n := t.find(path)
	return n
}

// find is like Lookup, but also returns the node's slot.
func (t *Tree) find(path string) (id uint32, n *Node) {
	if path != "" && path != Root {
		return t.nodes.find(path, t.hash(path))
	}
	if t.nodes.len > 0 {
		n = t.nodes.at(t.root)
	}
	if n == nil || n.siblings != nil { // a Restorer has not added the root yet
		return 0, nil
	}
	return t.root, n
}

// hash returns the hash of a path for the index. The seed is random, so that clients cannot choose
// paths with equal hashes. Nothing that is replicated depends on it.
func (t *Tree) hash(path string) uint32 { return uint32(maphash.String(t.seed, path)) }

// Len returns the number of znodes, including the root.
func (t *Tree) Len() int { return t.nodes.len }

// Digest returns a hash of the whole tree. It does not depend on the operations that led to the
// tree.
func (t *Tree) Digest() uint64 { return t.digest }

// DataSize returns the total length of all paths and data, in bytes.
func (t *Tree) DataSize() int64 { return t.dataSize }

// Ephemerals returns the number of ephemeral znodes.
func (t *Tree) Ephemerals() int { return t.numEphemerals }

// EphemeralsOf returns the paths of a session's ephemerals that begin with prefix, in the order
// of their creation. Those created by the same multi are in order of their paths.
func (t *Tree) EphemeralsOf(session int64, prefix string) []string {
	var all []Owned
	for _, id := range t.ephemerals[session] {
		if e := ownedOf(t.nodes.at(id)); strings.HasPrefix(e.Path, prefix) {
			all = append(all, e)
		}
	}
	return PathsOf(all)
}

// Owned is an ephemeral znode of a session.
type Owned struct {
	Path  string
	czxid int64
}

func ownedOf(n *Node) Owned { return Owned{n.Path(), n.czxid} }

// EphemeralBelow returns one of a session's ephemerals, that with the highest number below a given
// one, and its number, which is negative if there is none. So a reader can go through all of them from the
// last to the first while the tree changes. One that exists all the time is found at least once: when
// one is deleted, the last takes its number, and the reader has seen the last already. Only one that a
// multi has deleted may be missed if the multi then fails.
func (t *Tree) EphemeralBelow(session int64, below int) (e Owned, number int) {
	owned := t.ephemerals[session]
	if number = min(below, len(owned)) - 1; number >= 0 {
		e = ownedOf(t.nodes.at(owned[number]))
	}
	return e, number
}

// NodeBelow returns one of the znodes, that with the highest number below a given one, and its number, which
// is negative if there is none. So a reader can go through all of them from the last to the first while the
// tree changes, and finds those that [Tree.EphemeralBelow] would: when one is deleted, the last takes its number.
func (t *Tree) NodeBelow(below int) (n *Node, number int) {
	if number = min(below, t.nodes.len) - 1; number >= 0 {
		n = t.nodes.at(uint32(number))
	}
	return n, number
}

// Listed reports whether a client with these identities can find n by listing children from the root
// down, that is, whether it may read every znode above n. Whether it may read n itself does not matter.
func (t *Tree) Listed(n *Node, ids []proto.ID) bool {
	for l := n.siblings; l != nil; l = l.up {
		if !t.nodes.at(l.parent).acl().Permits(proto.PermRead, ids) {
			return false
		}
	}
	return true
}

// PathsOf returns the paths of ephemerals in the order of their creation, those with the same zxid in
// order of their paths. A path that is in the list twice is returned once. It sorts the list.
func PathsOf(all []Owned) []string {
	slices.SortFunc(all, func(a, b Owned) int {
		return cmp.Or(cmp.Compare(a.czxid, b.czxid), strings.Compare(a.Path, b.Path))
	})
	all = slices.Compact(all)
	paths := make([]string, len(all))
	for i, e := range all {
		paths[i] = e.Path
	}
	return paths
}

// Children returns the names of n's children, in no particular order. The tree must not change
// meanwhile.
func (t *Tree) Children(n *Node) iter.Seq[string] {
	return func(yield func(name string) bool) {
		l := n.children()
		if l == nil {
			return
		}
		for _, id := range l.ids {
			if !yield(t.nodes.at(id).basename()) {
				return
			}
		}
	}
}

// Reapable returns the paths of the znodes without children that are to be deleted at
// nowMs: containers that have had children, and TTL znodes that were not changed for their TTL
// (ContainerManager). It calls step after each container and TTL znode, and the tree may change in that call.
func (t *Tree) Reapable(nowMs int64, step func()) (paths []string) {
	for p := range t.reapable {
		if n := t.Lookup(p); n.NumChildren() == 0 && n.overdue(nowMs) {
			paths = append(paths, p)
		}
		step()
	}
	return paths
}

// overdue reports whether a container or TTL znode without children is to be deleted.
func (n *Node) overdue(nowMs int64) bool {
	if n.kind() == Container {
		return n.creates() > 0
	}
	return nowMs-n.mtime > n.more.owner
}

// extra returns a node's more for a change. The node must be writable.
func (t *Tree) extra(n *Node) *more {
	switch m := n.more; {
	case m == nil:
		n.more = &more{gen: t.gen, acl: openAccess, pzxid: n.czxid}
	case m.gen != t.gen: // a snapshot may have it
		c := *m
		c.gen = t.gen
		n.more = &c
	}
	return n.more
}

// childrenOf returns the list of children of the node in a slot.
func (t *Tree) childrenOf(id uint32) *childList {
	n := t.nodes.at(id)
	if l := n.children(); l != nil {
		return l
	}
	l := newChildList("")
	if n.siblings != nil {
		l = newChildList(n.Path())
	}
	t.adopt(id, l)
	return l
}

// adopt makes l the children of the node in a slot.
func (t *Tree) adopt(id uint32, l *childList) {
	n := t.nodes.writable(id, t.gen)
	t.extra(n).children = l
	l.parent, l.up = id, n.siblings
}

// link adds a new node to the tree, whose n.siblings are the children of its parent. It returns
// the node's slot.
func (t *Tree) link(path string, n Node) uint32 {
	id := t.nodes.push(n, t.gen)
	p := t.nodes.place(id)
	if l := n.siblings; l != nil {
		p.hash, p.sibling = t.hash(path), uint32(len(l.ids))
		t.nodes.index(id)
		l.ids = append(l.ids, id)
		l.grow(1, len(n.data()))
	} else {
		t.root = id
	}
	switch m := n.more; n.kind() {
	case Ephemeral:
		owned := t.ephemerals[m.owner]
		m.owned = uint32(len(owned))
		t.ephemerals[m.owner] = append(owned, id)
		t.numEphemerals++
	case Container, TTL:
		t.reapable[path] = struct{}{}
	}
	if l := n.children(); l != nil {
		l.parent = id
	}
	t.dataSize += int64(len(path) + len(n.data()))
	t.digest += t.digester.of(&n)
	t.trackQuota(&n, true)
	return id
}

// unlink removes the node in a slot, which has no children, from the tree.
func (t *Tree) unlink(id uint32) {
	n, p := *t.nodes.at(id), t.nodes.place(id)
	l := n.siblings
	last := len(l.ids) - 1
	l.ids[p.sibling] = l.ids[last]
	t.nodes.place(l.ids[last]).sibling = p.sibling
	l.ids = l.ids[:last]
	l.grow(-1, -len(n.data()))
	switch m := n.more; n.kind() {
	case Ephemeral:
		owned := t.ephemerals[m.owner]
		last := len(owned) - 1
		owned[m.owned] = owned[last]
		t.nodes.at(owned[last]).more.owned = m.owned
		t.ephemerals[m.owner] = owned[:last]
		t.numEphemerals--
		if last == 0 {
			delete(t.ephemerals, m.owner)
		}
	case Container, TTL:
		delete(t.reapable, n.Path())
	}
	t.nodes.replace(id, t.nodes.place(id).next)
	t.vacate(id)
	t.dataSize -= int64(n.pathLen() + len(n.data()))
	t.digest -= t.digester.of(&n)
	t.trackQuota(&n, false)
}

// vacate moves the node in the last slot to the slot id, and removes the last slot.
func (t *Tree) vacate(id uint32) {
	last := uint32(t.nodes.len - 1)
	if id != last {
		n, p := t.nodes.writable(id, t.gen), t.nodes.place(id)
		*n = *t.nodes.at(last)
		if l := n.siblings; l != nil {
			t.nodes.replace(last, id+1)
			l.ids[t.nodes.place(last).sibling] = id
		} else {
			t.root = id
		}
		*p = *t.nodes.place(last)
		if n.kind() == Ephemeral {
			t.ephemerals[n.more.owner][n.more.owned] = id
		}
		if l := n.children(); l != nil {
			l.parent = id
		}
	}
	t.nodes.pop(t.gen)
}

// edit calls change with the node in a slot, and returns the node. If a snapshot may have the
// node, the tree has a copy of it from then on. In a multi, edit records how to undo the change.
func (t *Tree) edit(id uint32, change func(*Node)) *Node {
	n := t.nodes.writable(id, t.gen)
	if t.inMulti {
		t.undo = append(t.undo, undo{edited, *n, n.rest()})
	}
	before := *n
	t.digest -= t.digester.ofRest(n)
	change(n)
	t.digest += t.digester.ofRest(n)
	if n.text != before.text || n.name != before.name { // the data
		more := len(n.text) - len(before.text)
		t.dataSize += int64(more)
		n.siblings.grow(0, more)
		t.digest += t.digester.ofData(n) - t.digester.ofData(&before)
		t.trackQuota(n, true)
	}
	return n
}

// undo is what is needed to undo one step of a multi.
type undo struct {
	step step
	node Node // before the step, or after it if the node was linked
	more more // a copy of what node.more had
}

type step uint8

const (
	edited step = iota
	linked
	unlinked
)

// rollback undoes all steps of the current multi, the last one first.
func (t *Tree) rollback() {
	steps := t.undo
	t.undo, t.inMulti = nil, false
	for _, u := range slices.Backward(steps) {
		path := u.node.Path()
		switch u.step {
		case edited:
			id, _ := t.find(path)
			t.edit(id, func(n *Node) { t.reset(n, &u) })
		case linked:
			id, _ := t.find(path)
			t.unlink(id)
		case unlinked:
			t.link(path, u.node)
		}
	}
}

// reset gives a node that was edited the content that it had before. Its place in the tree does
// not change.
func (t *Tree) reset(n *Node, u *undo) {
	if n.more != nil {
		m := t.extra(n)
		owned, children := m.owned, m.children
		*m = u.more
		m.gen, m.owned, m.children = t.gen, owned, children
	}
	more := n.more
	*n = u.node
	n.more = more
}

// Check verifies the whole tree: that every znode has a parent, that lists, counters, digest and
// quotas agree with the znodes, and that the owner of every ephemeral is alive. It returns the
// first fault.
func (t *Tree) Check(alive func(session int64) bool) error {
	var digest uint64
	var digester digester // another one, since several goroutines may check a tree
	var size int64
	var children, owned, reapable, indexed int
	for i := range t.Len() {
		id := uint32(i)
		n, p := t.nodes.at(id), t.nodes.place(id)
		path, m := n.Path(), n.rest()
		if found, _ := t.find(path); found != id {
			return fmt.Errorf("znode: %s: not the node in the index", path)
		}
		if !ValidPath(path) {
			return fmt.Errorf("znode: %q: not a valid path", path)
		}
		if m.acl.hash != digester.aclHash(m.acl.list) {
			return fmt.Errorf("znode: %s: outdated hash of the ACL", path)
		}
		digest += digester.of(n)
		size += int64(len(path) + len(n.data()))
		children += n.NumChildren()
		if l := m.children; l != nil {
			sum := usage{}
			for _, id := range l.ids {
				u := t.nodes.at(id).total()
				sum.count += u.count
				sum.bytes += u.bytes
			}
			if got := l.sum; got.count != sum.count || got.bytes != sum.bytes || l.up != n.siblings || l.parent != id {
				return fmt.Errorf("znode: %s: %d znodes with %d bytes below, should be %d with %d", path, got.count, got.bytes, sum.count, sum.bytes)
			}
		}
		if int64(n.NumChildren()) > m.creates && !special(path) {
			return fmt.Errorf("znode: %s: %d children, but %d were ever created", path, n.NumChildren(), m.creates)
		}
		if path != Root {
			indexed++
			l := n.siblings
			parent := t.Lookup(parentPath(path))
			if parent == nil || parent.children() != l || int(p.sibling) >= len(l.ids) || l.ids[p.sibling] != id {
				return fmt.Errorf("znode: %s: not among the children of its parent", path)
			}
			if parent.kind() == Ephemeral {
				return fmt.Errorf("znode: %s: child of an ephemeral", path)
			}
		}
		switch m.kind {
		case Ephemeral:
			owned++
			l := t.ephemerals[m.owner]
			if int(m.owned) >= len(l) || l[m.owned] != id {
				return fmt.Errorf("znode: %s: not among the ephemerals of session %#x", path, m.owner)
			}
			if !alive(m.owner) {
				return fmt.Errorf("znode: %s: its session %#x does not exist", path, m.owner)
			}
		case Container, TTL:
			reapable++
		}
	}
	for _, next := range t.nodes.heads {
		for ; next != 0; next = t.nodes.place(next - 1).next {
			indexed--
		}
	}
	switch {
	case indexed != 0:
		return fmt.Errorf("znode: the index has %d znodes too few", indexed)
	case children != t.Len()-1:
		return fmt.Errorf("znode: %d children listed for %d znodes below the root", children, t.Len()-1)
	case owned != t.Ephemerals():
		return fmt.Errorf("znode: %d ephemerals listed, %d in the tree", t.Ephemerals(), owned)
	case reapable != len(t.reapable):
		return fmt.Errorf("znode: %d container and TTL znodes listed, %d in the tree", len(t.reapable), reapable)
	case digest != t.digest:
		return fmt.Errorf("znode: digest %016x, should be %016x", t.digest, digest)
	case size != t.dataSize:
		return fmt.Errorf("znode: data size %d, should be %d", t.dataSize, size)
	}
	return t.checkQuotas()
}
