package znode

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Kind is the kind of a znode (EphemeralType).
type Kind uint8

// The kinds of znode.
const (
	Persistent Kind = iota
	Ephemeral       // deleted when its session ends
	Container       // deleted when it has no children any more
	TTL             // deleted when it has no children and was not changed for its TTL
)

// Record is the persistent state of a znode, as a snapshot stores it.
type Record struct {
	Path                string
	Data                []byte // nil for null, which is different from empty
	ACL                 []proto.ACL
	Czxid, Mzxid, Pzxid int64
	Ctime, Mtime        int64 // ms since the epoch
	Creates             int64 // number of children ever created; numbers sequential ones
	Owner               int64 // of an ephemeral its session, of a TTL znode the TTL in ms
	Version, Aversion   int32
	Kind                Kind
}

// Node is a znode in a tree. Its methods do not change it.
type Node struct {
	rec Record

	// The node's place in the tree. These fields may change while a snapshot has the
	// node, since a snapshot reads only rec.
	children     *childList // nil until the first child is created; kept when the node is copied
	siblings     *childList // the parent's children; nil for the root
	owned        *nodeList  // the owner's ephemerals; nil if the node is not ephemeral
	siblingIndex int32      // index in siblings
	ownedIndex   int32      // index in owned
	slot         int32      // index in Tree.nodes
	gen          uint32     // the tree's generation when this copy was made

	acl     *access // of rec.ACL
	content uint64  // hash of path and data
	digest  uint64  // this znode's part of the tree's digest
}

// nodeList is a set of nodes. Each node knows its index, so that it can be removed in
// constant time. The order is arbitrary, but the same on every replica.
type nodeList struct{ nodes []*Node }

// childList is the children of a znode, with the usage of all its descendants.
type childList struct {
	nodeList
	up  *childList // the list that contains the znode itself; nil for the root
	sum usage
}

// grow adds to the sum of l and of the lists above it.
func (l *childList) grow(znodes int, bytes int) {
	for ; l != nil; l = l.up {
		l.sum.count += int64(znodes)
		l.sum.bytes += int64(bytes)
	}
}

// total returns the usage of this znode and all its descendants.
func (n *Node) total() usage {
	u := usage{count: 1, bytes: int64(len(n.rec.Data))}
	if n.children != nil {
		u.count += n.children.sum.count
		u.bytes += n.children.sum.bytes
	}
	return u
}

// Record returns the znode's persistent state. The caller must not change it.
func (n *Node) Record() *Record { return &n.rec }

// Access returns the znode's ACL for checks.
func (n *Node) Access() proto.Access { return n.acl }

// replyCopy returns n, or a copy of it if n is the stats of a quota. The reply to an
// operation must have the data from before the operation is counted, which may change
// that znode (DataTree.createNode, setData).
func (n *Node) replyCopy() *Node {
	if _, name, ok := splitQuotaPath(n.rec.Path); ok && name == statsName {
		c := *n
		return &c
	}
	return n
}

// NumChildren returns the number of children.
func (n *Node) NumChildren() int {
	if n.children == nil {
		return 0
	}
	return len(n.children.nodes)
}

// Children calls yield with the name of each child, in no particular order, until yield
// returns false.
func (n *Node) Children(yield func(name string) bool) {
	if n.children == nil {
		return
	}
	cut := len(n.rec.Path) + 1
	if n.rec.Path == Root {
		cut = 1
	}
	for _, c := range n.children.nodes {
		if !yield(c.rec.Path[cut:]) {
			return
		}
	}
}

// Descendants returns the number of znodes below this one.
func (n *Node) Descendants() int { return int(n.total().count) - 1 }

// Stat returns the znode's metadata as clients see it (DataNode.copyStat).
func (n *Node) Stat() proto.Stat {
	r, children := &n.rec, n.NumChildren()
	s := proto.Stat{
		Czxid: r.Czxid, Mzxid: r.Mzxid, Pzxid: r.Pzxid, Ctime: r.Ctime, Mtime: r.Mtime,
		Version: r.Version, Aversion: r.Aversion, DataLength: int32(len(r.Data)), NumChildren: int32(children),
		Cversion: int32(2*r.Creates - int64(children)), // number of creates and deletes of children
	}
	if r.Kind == Ephemeral {
		s.EphemeralOwner = r.Owner
	}
	return s
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func contentHash(r *Record) uint64 {
	h := uint64(crc32.Checksum([]byte(r.Path), castagnoli)) << 32
	if r.Data != nil {
		h |= uint64(^crc32.Checksum(r.Data, castagnoli))
	}
	return h
}

// aclHash returns a hash of an ACL, which is 0 for the open one that most znodes have.
func aclHash(acl []proto.ACL) uint64 {
	if isOpen(acl) {
		return 0
	}
	return 1<<32 | uint64(crc32.Checksum(proto.AppendACL(nil, acl), castagnoli))
}

// digestOf returns a znode's part of the tree's digest, a hash of its whole record. content
// and acl are the hashes of the parts that may be long, so that they need not be computed
// for each change.
func digestOf(r *Record, content, acl uint64) uint64 {
	h := content
	for _, v := range [...]int64{r.Czxid, r.Mzxid, r.Pzxid, r.Ctime, r.Mtime, r.Creates, r.Owner,
		int64(r.Version)<<32 | int64(uint32(r.Aversion)), int64(r.Kind)} {
		h = mix(h ^ uint64(v))
	}
	return mix(h ^ acl)
}

// mix is the finalizer of SplitMix64.
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func isOpen(acl []proto.ACL) bool { return len(acl) == 1 && acl[0] == proto.OpenACL[0] }

// appendRecord appends the encoding of a znode in a snapshot to b. [DecodeRecord] decodes it.
func appendRecord(b []byte, r *Record) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.Path)))
	b = append(b, r.Path...)
	if r.Data == nil {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(r.Data))+1)
		b = append(b, r.Data...)
	}
	if isOpen(r.ACL) {
		b = append(b, 0)
	} else {
		b = append(b, 1)
		b = proto.AppendACL(b, r.ACL)
	}
	for _, v := range [...]int64{r.Czxid, r.Mzxid, r.Pzxid, r.Ctime, r.Mtime, r.Creates, r.Owner, int64(r.Version), int64(r.Aversion)} {
		b = binary.AppendVarint(b, v)
	}
	return append(b, byte(r.Kind))
}
