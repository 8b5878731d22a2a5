package znode

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
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

// Node is a znode in a tree, and valid until the tree changes. Its methods do not change it.
//
// A tree may have millions of nodes, so a Node is small, and its name and data share one
// allocation.
type Node struct {
	text                       string // name, then data
	name                       uint32 // length of the name, plus nullData if the data is null
	version                    int32
	siblings                   *childList // the parent's children; nil for the root
	more                       *more      // nil if the znode needs none of its fields
	czxid, mzxid, ctime, mtime int64
}

const nullData = 1 << 31

// more has the fields that most znodes do not need. A snapshot may read it while the tree
// changes owned and children, the fields that say where the node is in the tree.
type more struct {
	gen      uint32 // the tree's generation when this copy was made
	owned    uint32 // index in the list of the owner's ephemerals
	aversion int32
	kind     Kind
	acl      *access
	pzxid    int64 // without more, it is the czxid
	creates  int64
	owner    int64
	children *childList // nil until the first child is created; kept when more is copied
}

// childList is the children of a znode, with the usage of all its descendants.
type childList struct {
	ids    []uint32 // their slots; the order is arbitrary
	up     *childList
	sum    usage
	path   string // of the znode, except that it is empty for the root
	hash   uint32 // CRC of the path with a slash at the end
	parent uint32 // slot of the znode
}

func newChildList(path string) *childList {
	path = strings.Clone(path)
	return &childList{path: path, hash: crc32.Checksum([]byte(path+"/"), castagnoli)}
}

// grow adds to the sum of l and of the lists above it.
func (l *childList) grow(znodes int, bytes int) {
	for ; l != nil; l = l.up {
		l.sum.count += int64(znodes)
		l.sum.bytes += int64(bytes)
	}
}

// newNode returns the node of a record, for a tree of generation gen.
func newNode(r *Record, siblings *childList, gen uint32) Node {
	n := Node{
		version: r.Version, siblings: siblings,
		czxid: r.Czxid, mzxid: r.Mzxid, ctime: r.Ctime, mtime: r.Mtime,
	}
	name := ""
	if siblings != nil {
		name = r.Path[len(siblings.path)+1:]
	}
	n.setText(name, r.Data)
	m := more{
		gen: gen, aversion: r.Aversion, kind: r.Kind, acl: newAccess(r.ACL), pzxid: r.Pzxid, creates: r.Creates, owner: r.Owner,
	}
	if m != (more{gen: gen, acl: openAccess, pzxid: r.Czxid}) {
		c := m // so that m need not be allocated
		n.more = &c
	}
	return n
}

func (n *Node) setText(name string, data []byte) {
	n.text, n.name = name+string(data), uint32(len(name))
	if data == nil {
		n.name |= nullData
	}
}

func (n *Node) setData(data []byte) { n.setText(n.basename(), data) }

// basename returns the last part of the path, "" for the root.
func (n *Node) basename() string { return n.text[:n.name&^nullData] }
func (n *Node) data() string     { return n.text[n.name&^nullData:] }
func (n *Node) null() bool       { return n.name&nullData != 0 }

// rest returns *n.more or, if n.more is nil, the values that its fields stand for.
func (n *Node) rest() more {
	if n.more == nil {
		return more{acl: openAccess, pzxid: n.czxid}
	}
	return *n.more
}

// plain is what the znodes without more have, except for pzxid.
var plain = &more{acl: openAccess}

// extended is rest without a copy, and without pzxid.
func (n *Node) extended() *more {
	if n.more == nil {
		return plain
	}
	return n.more
}

func (n *Node) kind() Kind           { return n.extended().kind }
func (n *Node) acl() *access         { return n.extended().acl }
func (n *Node) creates() int64       { return n.extended().creates }
func (n *Node) aversion() int32      { return n.extended().aversion }
func (n *Node) children() *childList { return n.extended().children }

func (n *Node) pzxid() int64 {
	if n.more == nil {
		return n.czxid
	}
	return n.more.pzxid
}

// owner returns the session of an ephemeral, and 0 for other znodes.
func (n *Node) owner() int64 {
	if n.kind() != Ephemeral {
		return 0
	}
	return n.more.owner
}

// Path returns the znode's path.
func (n *Node) Path() string {
	if n.siblings == nil {
		return Root
	}
	return n.siblings.path + "/" + n.basename()
}

// AppendPath appends the znode's path to b.
func (n *Node) AppendPath(b []byte) []byte {
	if n.siblings == nil {
		return append(b, Root...)
	}
	return append(append(append(b, n.siblings.path...), '/'), n.basename()...)
}

func (n *Node) pathLen() int {
	if n.siblings == nil {
		return len(Root)
	}
	return len(n.siblings.path) + 1 + len(n.basename())
}

// is reports whether the node's path is path.
func (n *Node) is(path string) bool {
	if n.siblings == nil || len(path) != n.pathLen() {
		return false
	}
	dir := n.siblings.path
	return path[len(dir)] == '/' && path[len(dir)+1:] == n.basename() && path[:len(dir)] == dir
}

// total returns the usage of this znode and all its descendants.
func (n *Node) total() usage {
	u := usage{count: 1, bytes: int64(len(n.data()))}
	if l := n.children(); l != nil {
		u.count += l.sum.count
		u.bytes += l.sum.bytes
	}
	return u
}

// Record returns a copy of the znode's persistent state.
func (n *Node) Record() Record {
	m := n.rest()
	r := Record{
		Path: n.Path(), ACL: m.acl.list, Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: m.pzxid, Ctime: n.ctime, Mtime: n.mtime,
		Creates: m.creates, Owner: m.owner, Version: n.version, Aversion: m.aversion, Kind: m.kind,
	}
	if !n.null() {
		r.Data = []byte(n.data())
	}
	return r
}

// AppendData appends the znode's data to b, encoded as a buffer.
func (n *Node) AppendData(b []byte) []byte {
	if n.null() {
		return jute.AppendBuffer(b, nil)
	}
	return append(jute.AppendInt(b, int32(len(n.data()))), n.data()...)
}

// Access returns the znode's ACL for checks.
func (n *Node) Access() proto.Access { return n.acl() }

// replyCopy returns n, or a copy of it if n is the stats of a quota. The reply to an
// operation must have the data from before the operation is counted, because counting it
// may change that znode (DataTree.createNode, setData).
func (n *Node) replyCopy() *Node {
	if _, name, ok := n.quotaPart(); ok && name == statsName {
		c := *n
		return &c
	}
	return n
}

// NumChildren returns the number of children.
func (n *Node) NumChildren() int {
	if l := n.children(); l != nil {
		return len(l.ids)
	}
	return 0
}

// Descendants returns the number of znodes below this one.
func (n *Node) Descendants() int { return int(n.total().count) - 1 }

// Stat returns the znode's metadata as clients see it (DataNode.copyStat).
func (n *Node) Stat() proto.Stat {
	children := n.NumChildren()
	return proto.Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: n.pzxid(), Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version, Aversion: n.aversion(), DataLength: int32(len(n.data())), NumChildren: int32(children),
		Cversion:       int32(2*n.creates() - int64(children)), // number of creates and deletes of children
		EphemeralOwner: n.owner(),
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digester computes the digests of nodes.
type digester struct {
	buf  [512]byte // since crc32 does not read strings
	anew bool      // take no hash that is kept, of a path or an ACL, for granted
	acl  []byte    // the last ACL that was encoded, to be used again
}

func (d *digester) update(crc uint32, s string) uint32 {
	for len(s) > 0 {
		n := copy(d.buf[:], s)
		crc = crc32.Update(crc, castagnoli, d.buf[:n])
		s = s[n:]
	}
	return crc
}

func (d *digester) pathHash(n *Node) uint64 {
	if n.siblings == nil {
		return 0
	}
	return uint64(d.update(d.dirHash(n.siblings), n.basename())) << 32
}

func (d *digester) dirHash(l *childList) uint32 {
	if d.anew {
		return d.update(d.update(0, l.path), "/")
	}
	return l.hash
}

// ofData returns the part of a node's digest that depends on its data, and ofRest the
// other part, so that a change of a znode with much data need not read all of it. Both
// depend on the path.
func (d *digester) ofData(n *Node) uint64 {
	h := d.pathHash(n)
	if !n.null() {
		h |= uint64(^d.update(0, n.data()))
	}
	return mix(h)
}

func (d *digester) ofRest(n *Node) uint64 {
	h, m := d.pathHash(n), n.extended() // not a copy: see more
	for _, v := range [...]int64{n.czxid, n.mzxid, n.pzxid(), n.ctime, n.mtime, m.creates, m.owner,
		int64(n.version)<<32 | int64(uint32(m.aversion)), int64(m.kind)} {
		h = mix(h ^ uint64(v))
	}
	if d.anew {
		return mix(h ^ d.aclHash(m.acl.list))
	}
	return mix(h ^ m.acl.hash)
}

// of returns a node's part of the tree's digest, which is a hash of its whole record.
func (d *digester) of(n *Node) uint64 { return d.ofData(n) + d.ofRest(n) }

// aclHash returns a hash of an ACL, which is 0 for the open one that most znodes have.
func (d *digester) aclHash(acl []proto.ACL) uint64 {
	if isOpen(acl) {
		return 0
	}
	d.acl = proto.AppendACL(d.acl[:0], acl)
	return 1<<32 | uint64(crc32.Checksum(d.acl, castagnoli))
}

// mix is the finalizer of SplitMix64.
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func isOpen(acl []proto.ACL) bool { return len(acl) == 1 && acl[0] == proto.OpenACL[0] }

// appendNode appends the encoding of a znode in a snapshot to b. [DecodeRecord] decodes it.
func appendNode(b []byte, n *Node) []byte {
	b = n.AppendPath(binary.AppendUvarint(b, uint64(n.pathLen())))
	if n.null() {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(n.data()))+1)
		b = append(b, n.data()...)
	}
	if acl := n.acl().list; isOpen(acl) {
		b = append(b, 0)
	} else {
		b = proto.AppendACL(append(b, 1), acl)
	}
	for _, v := range [...]int64{n.czxid, n.mzxid, n.pzxid(), n.ctime, n.mtime, n.creates(), n.extended().owner, int64(n.version), int64(n.aversion())} {
		b = binary.AppendVarint(b, v)
	}
	return append(b, byte(n.kind()))
}
