package znode

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Kind is what sort of znode it is (EphemeralType).
type Kind uint8

// The kinds of znode.
const (
	Persistent Kind = iota
	Ephemeral       // goes with its session
	Container       // reaped once it had children and has none
	TTL             // reaped when it has no children and was not changed for its TTL
)

// Record is what a znode is apart from its place in the tree: what a snapshot holds.
type Record struct {
	Path                string
	Data                []byte // nil is null, which is not empty
	ACL                 []proto.ACL
	Czxid, Mzxid, Pzxid int64
	Ctime, Mtime        int64 // ms since the epoch
	Creates             int64 // children ever created: the sequence counter
	Owner               int64 // the session of an ephemeral, the ms of a TTL znode
	Version, Aversion   int32
	Kind                Kind
}

// Node is a znode in a tree. Its methods are look-ups.
type Node struct {
	rec Record

	// Where it stands. These may change while a snapshot holds the node: a
	// snapshot reads rec alone.
	children *family   // nil until the first child; stays with the path when the node is copied
	siblings *family   // the parent's children; nil for the root
	owned    *nodeList // the ephemerals of the owner; nil if not ephemeral
	sibling  int32     // index in siblings
	own      int32     // index in owned
	slot     int32     // index in Tree.nodes
	gen      uint32    // of the tree when this copy was made

	acl     *access // what rec.ACL says
	content uint64  // hash of path and data
	digest  uint64  // this znode's part of the tree's digest
}

// nodeList is an unordered set of nodes, each of which knows its index, so that
// taking one out is cheap. Its order depends on the operations alone.
type nodeList struct{ nodes []*Node }

// family is the children of a znode, and how much is in them and below.
type family struct {
	nodeList
	above *family // that the parent belongs to; nil if the parent is the root
	sum   usage
}

// grow adds to the sums of a family and of all above it.
func (f *family) grow(znodes int, bytes int) {
	for ; f != nil; f = f.above {
		f.sum.count += int64(znodes)
		f.sum.bytes += int64(bytes)
	}
}

// total is the number of znodes at and below this one and the bytes of their data.
func (n *Node) total() usage {
	u := usage{count: 1, bytes: int64(len(n.rec.Data))}
	if n.children != nil {
		u.count += n.children.sum.count
		u.bytes += n.children.sum.bytes
	}
	return u
}

// Record returns the znode's values. Data and ACL must not be changed.
func (n *Node) Record() *Record { return &n.rec }

// Access is who may do what with the znode.
func (n *Node) Access() proto.Access { return n.acl }

// apart is n, or a copy of it if n may be the stats of a quota: an operation
// answers with its own data, and counts afterwards (DataTree.createNode, setData).
func (n *Node) apart() *Node {
	if _, name, ok := quotaNode(n.rec.Path); ok && name == statsName {
		c := *n
		return &c
	}
	return n
}

// NumChildren is the number of direct children.
func (n *Node) NumChildren() int {
	if n.children == nil {
		return 0
	}
	return len(n.children.nodes)
}

// Children calls yield with the name of each direct child.
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

// Descendants is the number of znodes below this one.
func (n *Node) Descendants() int { return int(n.total().count) - 1 }

// Stat is the znode's metadata as a client sees it (DataNode.copyStat).
func (n *Node) Stat() proto.Stat {
	r, children := &n.rec, n.NumChildren()
	s := proto.Stat{
		Czxid: r.Czxid, Mzxid: r.Mzxid, Pzxid: r.Pzxid, Ctime: r.Ctime, Mtime: r.Mtime,
		Version: r.Version, Aversion: r.Aversion, DataLength: int32(len(r.Data)), NumChildren: int32(children),
		Cversion: int32(2*r.Creates - int64(children)), // creates + deletes of children
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

// aclHash is 0 for the ACL that nearly every znode has.
func aclHash(acl []proto.ACL) uint64 {
	if isOpen(acl) {
		return 0
	}
	return 1<<32 | uint64(crc32.Checksum(proto.AppendACL(nil, acl), castagnoli))
}

// digestOf mixes everything a client can learn of a znode but its children's
// names, which are parts of their own digests. It takes the hashes of what may
// be long.
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

// appendRecord and decodeRecord are the form of a znode in a snapshot.
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
