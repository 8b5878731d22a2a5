package znode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Tree is the znode tree. The zero value is not usable; see [New].
type Tree struct {
	index      map[string]*Node
	nodes      slots               // the same nodes, dense, for snapshots
	ephemerals map[int64]*nodeList // by owner
	owned      int                 // ephemerals of all owners
	reapable   map[string]struct{} // container and TTL znodes
	quotas     quota               // of the root, with all others below it
	noted      []*quota            // those that the running multi changed
	gen        uint32              // nodes of an older generation may be held by a snapshot
	digest     uint64
	dataSize   int64
	undo       []undo // of the running multi
	inMulti    bool
}

func newTree() *Tree {
	return &Tree{index: map[string]*Node{}, ephemerals: map[int64]*nodeList{}, reapable: map[string]struct{}{}}
}

// New returns a tree with the znodes that every server has: the root,
// /zookeeper, and its config (which anybody may read) and quota.
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

// Lookup returns the znode at path, or nil. It validates nothing; "" is the root.
func (t *Tree) Lookup(path string) *Node {
	if path == "" {
		path = Root
	}
	return t.index[path]
}

// Len is the number of znodes, the root included.
func (t *Tree) Len() int { return t.nodes.len }

// Digest is a hash of the whole tree. Equal trees have equal digests, whatever
// way led to them.
func (t *Tree) Digest() uint64 { return t.digest }

// DataSize is the sum of the lengths of all paths and data, in bytes.
func (t *Tree) DataSize() int64 { return t.dataSize }

// Ephemerals is the number of ephemeral znodes.
func (t *Tree) Ephemerals() int { return t.owned }

// EphemeralsOf returns those paths of a session's ephemerals that begin with
// prefix, in the order of their creation.
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

// Reapable returns the container and TTL znodes that ContainerManager would
// delete at nowMs, sorted: no children, and for a container that it had some,
// for a TTL znode that it was not changed for its TTL.
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

// overdue reports whether a container or TTL znode without children is to be reaped.
func (n *Node) overdue(nowMs int64) bool {
	if n.rec.Kind == Container {
		return n.rec.Creates > 0
	}
	return nowMs-n.rec.Mtime > n.rec.Owner
}

// add and remove keep a node's index in one of its lists, which at points to.

func (l *nodeList) add(n *Node, at *int32) {
	*at = int32(len(l.nodes))
	l.nodes = append(l.nodes, n)
}

func (l *nodeList) remove(at int32, index func(*Node) *int32) {
	last := len(l.nodes) - 1
	moved := l.nodes[last]
	l.nodes[at] = moved
	*index(moved) = at
	l.nodes[last] = nil
	l.nodes = l.nodes[:last]
}

func siblingIndex(n *Node) *int32 { return &n.sibling }
func ownIndex(n *Node) *int32     { return &n.own }

// link puts a new node into its place. Its parent must be there.
func (t *Tree) link(n *Node) {
	r := &n.rec
	n.gen = t.gen
	if r.Path != Root {
		p := t.Lookup(parentPath(r.Path))
		if p.children == nil {
			p.children = &family{above: p.siblings}
		}
		n.siblings = p.children
		n.siblings.add(n, &n.sibling)
		n.siblings.grow(1, len(r.Data))
	}
	if r.Kind == Ephemeral {
		if n.owned = t.ephemerals[r.Owner]; n.owned == nil {
			n.owned = &nodeList{}
			t.ephemerals[r.Owner] = n.owned
		}
		n.owned.add(n, &n.own)
		t.owned++
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

// unlink takes a node without children out of the tree.
func (t *Tree) unlink(n *Node) {
	r := &n.rec
	n.siblings.remove(n.sibling, siblingIndex)
	n.siblings.grow(-1, -len(r.Data))
	if n.owned != nil {
		n.owned.remove(n.own, ownIndex)
		t.owned--
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

// edit changes a node's record by change, on a copy if a snapshot may hold the
// node, and notes how to take it back if a multi is running.
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
			n.siblings.nodes[n.sibling] = n
		}
		if n.owned != nil {
			n.owned.nodes[n.own] = n
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

// sameSlice reports whether a and b are the very same slice.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// undo is how to take back one step of a multi.
type undo struct {
	step step
	rec  Record  // before the step
	acl  *access // of a node that was unlinked
}

type step uint8

const (
	edited step = iota
	linked
	unlinked
)

// rollback takes back all steps of the running multi, the last one first.
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
	for _, q := range t.noted {
		q.exact = q.before.exact
	}
}

// Check verifies the whole tree: that every znode has its parent, that lists,
// counters, digest and quotas are what the znodes say, and that the owner of
// every ephemeral is alive. It returns the first fault found.
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
			return fmt.Errorf("znode: %s: not where the index says", r.Path)
		}
		if !ValidPath(r.Path) {
			return fmt.Errorf("znode: %q: not a valid path", r.Path)
		}
		if n.content != contentHash(r) || n.acl.hash != aclHash(r.ACL) || !sameSlice(n.acl.list, r.ACL) || n.digest != digestOf(r, n.content, n.acl.hash) {
			return fmt.Errorf("znode: %s: stale digest", r.Path)
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
			if got := n.children.sum; got.count != sum.count || got.bytes != sum.bytes || n.children.above != n.siblings {
				return fmt.Errorf("znode: %s: %d znodes with %d bytes below, should be %d with %d", r.Path, got.count, got.bytes, sum.count, sum.bytes)
			}
		}
		if int64(n.NumChildren()) > r.Creates && !special(r.Path) {
			return fmt.Errorf("znode: %s: %d children, but %d were ever created", r.Path, n.NumChildren(), r.Creates)
		}
		if r.Path != Root {
			p := t.Lookup(parentPath(r.Path))
			if p == nil || p.children == nil || p.children != n.siblings || int(n.sibling) >= len(n.siblings.nodes) || n.siblings.nodes[n.sibling] != n {
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
			if l == nil || l != n.owned || int(n.own) >= len(l.nodes) || l.nodes[n.own] != n {
				return fmt.Errorf("znode: %s: not among the ephemerals of session %#x", r.Path, r.Owner)
			}
			if !alive(r.Owner) {
				return fmt.Errorf("znode: %s: its session %#x is gone", r.Path, r.Owner)
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
