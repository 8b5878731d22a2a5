package znode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Tree is a tree of znodes. Use [New] to create one.
type Tree struct {
	index         map[string]*Node    // by path
	nodes         slots               // the same nodes, for snapshots
	ephemerals    map[int64]*nodeList // by session
	numEphemerals int                 // of all sessions
	reapable      map[string]struct{} // paths of all container and TTL znodes
	quotas        quota               // root of the tree of quotas
	saved         []*quota            // quotas that the current multi has changed
	gen           uint32              // generation: nodes of an older one may be in a snapshot
	digest        uint64
	dataSize      int64
	undo          []undo // steps of the current multi
	inMulti       bool
}

func newTree() *Tree {
	return &Tree{index: map[string]*Node{}, ephemerals: map[int64]*nodeList{}, reapable: map[string]struct{}{}}
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
		t.link(&Node{rec: r})
	}
	return t
}

// Lookup returns the znode at path, or nil if there is none. It does not validate the path. The
// empty path is the root's.
func (t *Tree) Lookup(path string) *Node {
	if path == "" {
		path = Root
	}
	return t.index[path]
}

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
	l := t.ephemerals[session]
	if l == nil {
		return nil
	}
	var nodes []*Node
	for _, n := range l.nodes {
		if strings.HasPrefix(n.rec.Path, prefix) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(a.rec.Czxid, b.rec.Czxid), strings.Compare(a.rec.Path, b.rec.Path))
	})
	paths := make([]string, len(nodes))
	for i, n := range nodes {
		paths[i] = n.rec.Path
	}
	return paths
}

// Reapable returns the sorted paths of the znodes without children that are to be deleted at
// nowMs: containers that have had children, and TTL znodes that were not changed for their TTL
// (ContainerManager).
func (t *Tree) Reapable(nowMs int64) []string {
	var paths []string
	for p := range t.reapable {
		if n := t.index[p]; n.NumChildren() == 0 && n.overdue(nowMs) {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// overdue reports whether a container or TTL znode without children is to be deleted.
func (n *Node) overdue(nowMs int64) bool {
	if n.rec.Kind == Container {
		return n.rec.Creates > 0
	}
	return nowMs-n.rec.Mtime > n.rec.Owner
}

// add adds a node, and sets *index to its index in the list.
func (l *nodeList) add(n *Node, index *int32) {
	*index = int32(len(l.nodes))
	l.nodes = append(l.nodes, n)
}

// remove removes the node at the index at. It moves the last node there; index returns the
// field of a node that has its index in this list.
func (l *nodeList) remove(at int32, index func(*Node) *int32) {
	last := len(l.nodes) - 1
	moved := l.nodes[last]
	l.nodes[at] = moved
	*index(moved) = at
	l.nodes[last] = nil
	l.nodes = l.nodes[:last]
}

func siblingIndex(n *Node) *int32 { return &n.siblingIndex }
func ownedIndex(n *Node) *int32   { return &n.ownedIndex }

// link adds a new node to the tree, which must contain its parent.
func (t *Tree) link(n *Node) {
	r := &n.rec
	n.gen = t.gen
	if r.Path != Root {
		p := t.Lookup(parentPath(r.Path))
		if p.children == nil {
			p.children = &childList{up: p.siblings}
		}
		n.siblings = p.children
		n.siblings.add(n, &n.siblingIndex)
		n.siblings.grow(1, len(r.Data))
	}
	if r.Kind == Ephemeral {
		if n.owned = t.ephemerals[r.Owner]; n.owned == nil {
			n.owned = &nodeList{}
			t.ephemerals[r.Owner] = n.owned
		}
		n.owned.add(n, &n.ownedIndex)
		t.numEphemerals++
	}
	if r.Kind == Container || r.Kind == TTL {
		t.reapable[r.Path] = struct{}{}
	}
	n.slot = int32(t.nodes.len)
	t.nodes.push(n, t.gen)
	t.index[r.Path] = n
	t.dataSize += int64(len(r.Path) + len(r.Data))
	if n.acl == nil {
		n.acl = newAccess(r.ACL)
	}
	n.content = contentHash(r)
	n.digest = digestOf(r, n.content, n.acl.hash)
	t.digest += n.digest
	t.trackQuota(r, true)
}

// unlink removes a node without children from the tree.
func (t *Tree) unlink(n *Node) {
	r := &n.rec
	n.siblings.remove(n.siblingIndex, siblingIndex)
	n.siblings.grow(-1, -len(r.Data))
	if n.owned != nil {
		n.owned.remove(n.ownedIndex, ownedIndex)
		t.numEphemerals--
		if len(n.owned.nodes) == 0 {
			delete(t.ephemerals, r.Owner)
		}
	}
	delete(t.reapable, r.Path)
	last := t.nodes.at(t.nodes.len - 1)
	t.nodes.put(int(n.slot), last, t.gen)
	last.slot = n.slot
	t.nodes.pop(t.gen)
	delete(t.index, r.Path)
	t.dataSize -= int64(len(r.Path) + len(r.Data))
	t.digest -= n.digest
	t.trackQuota(r, false)
}

// edit calls change with a node's record, and returns the node. If a snapshot may have the node,
// edit replaces it by a copy first. In a multi, it records how to undo the change.
func (t *Tree) edit(n *Node, change func(*Record)) *Node {
	if t.inMulti {
		t.undo = append(t.undo, undo{edited, n.rec, nil})
	}
	if n.gen != t.gen {
		c := *n
		c.gen = t.gen
		n = &c
		t.index[n.rec.Path] = n
		t.nodes.put(int(n.slot), n, t.gen)
		if n.siblings != nil {
			n.siblings.nodes[n.siblingIndex] = n
		}
		if n.owned != nil {
			n.owned.nodes[n.ownedIndex] = n
		}
	}
	r := &n.rec
	data, acl := r.Data, r.ACL
	change(r)
	if !sameSlice(data, r.Data) {
		t.dataSize += int64(len(r.Data) - len(data))
		n.siblings.grow(0, len(r.Data)-len(data))
		n.content = contentHash(r)
		t.trackQuota(r, true)
	}
	if !sameSlice(acl, r.ACL) {
		n.acl = newAccess(r.ACL)
	}
	t.digest -= n.digest
	n.digest = digestOf(r, n.content, n.acl.hash)
	t.digest += n.digest
	return n
}

// sameSlice reports whether a and b are the same slice, not just equal.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// undo is what is needed to undo one step of a multi.
type undo struct {
	step step
	rec  Record  // before the step, or after it if the node was linked
	acl  *access // of a node that was unlinked, so that it need not be computed again
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
		switch u.step {
		case edited:
			t.edit(t.index[u.rec.Path], func(r *Record) { *r = u.rec })
		case linked:
			t.unlink(t.index[u.rec.Path])
		case unlinked:
			t.link(&Node{rec: u.rec, acl: u.acl})
		}
	}
	for _, q := range t.saved {
		q.exact = q.before.exact
	}
}

// Check verifies the whole tree: that every znode has a parent, that lists, counters, digest and
// quotas agree with the znodes, and that the owner of every ephemeral is alive. It returns the
// first fault.
func (t *Tree) Check(alive func(session int64) bool) error {
	if len(t.index) != t.Len() {
		return fmt.Errorf("znode: %d paths for %d znodes", len(t.index), t.Len())
	}
	var digest uint64
	var size int64
	var children, owned, reapable int
	for i := range t.Len() {
		n := t.nodes.at(i)
		r := &n.rec
		if int(n.slot) != i || t.index[r.Path] != n {
			return fmt.Errorf("znode: %s: not the node in the index", r.Path)
		}
		if !ValidPath(r.Path) {
			return fmt.Errorf("znode: %q: not a valid path", r.Path)
		}
		if n.content != contentHash(r) || n.acl.hash != aclHash(r.ACL) || !sameSlice(n.acl.list, r.ACL) || n.digest != digestOf(r, n.content, n.acl.hash) {
			return fmt.Errorf("znode: %s: outdated digest", r.Path)
		}
		digest += n.digest
		size += int64(len(r.Path) + len(r.Data))
		children += n.NumChildren()
		if n.children != nil {
			sum := usage{}
			for _, c := range n.children.nodes {
				u := c.total()
				sum.count += u.count
				sum.bytes += u.bytes
			}
			if got := n.children.sum; got.count != sum.count || got.bytes != sum.bytes || n.children.up != n.siblings {
				return fmt.Errorf("znode: %s: %d znodes with %d bytes below, should be %d with %d", r.Path, got.count, got.bytes, sum.count, sum.bytes)
			}
		}
		if int64(n.NumChildren()) > r.Creates && !special(r.Path) {
			return fmt.Errorf("znode: %s: %d children, but %d were ever created", r.Path, n.NumChildren(), r.Creates)
		}
		if r.Path != Root {
			p := t.Lookup(parentPath(r.Path))
			if p == nil || p.children == nil || p.children != n.siblings || int(n.siblingIndex) >= len(n.siblings.nodes) || n.siblings.nodes[n.siblingIndex] != n {
				return fmt.Errorf("znode: %s: not among the children of its parent", r.Path)
			}
			if p.rec.Kind == Ephemeral {
				return fmt.Errorf("znode: %s: child of an ephemeral", r.Path)
			}
		}
		switch r.Kind {
		case Ephemeral:
			owned++
			l := t.ephemerals[r.Owner]
			if l == nil || l != n.owned || int(n.ownedIndex) >= len(l.nodes) || l.nodes[n.ownedIndex] != n {
				return fmt.Errorf("znode: %s: not among the ephemerals of session %#x", r.Path, r.Owner)
			}
			if !alive(r.Owner) {
				return fmt.Errorf("znode: %s: its session %#x does not exist", r.Path, r.Owner)
			}
		case Container, TTL:
			reapable++
		}
	}
	switch {
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
