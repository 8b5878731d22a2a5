package zkdata

import (
	"hash/adler32"
	"maps"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Digest returns the digest of the tree.
func (s *State) Digest() uint64 { return s.digest }

// FuzzyWriter writes a snapshot znode by znode, while the state changes.
type FuzzyWriter struct {
	b       []byte
	numbers map[string]int64
}

// NewFuzzyWriter writes the sessions of a state, and the ACLs that it knows.
func NewFuzzyWriter(s *State, acls [][]proto.ACL) *FuzzyWriter {
	w := &FuzzyWriter{numbers: map[string]int64{}}
	w.b = jute.AppendLong(jute.AppendInt(jute.AppendInt(nil, snapshotMagic), fileVersion), -1)
	w.b = jute.AppendInt(w.b, int32(len(s.Sessions)))
	for _, id := range slices.Sorted(maps.Keys(s.Sessions)) {
		w.b = jute.AppendInt(jute.AppendLong(w.b, id), s.Sessions[id])
	}
	var lists []byte
	for _, acl := range append(acls, []proto.ACL{{Perms: proto.PermRead, ID: proto.OpenACL[0].ID}}) {
		if key := string(proto.AppendACL(nil, acl)); w.numbers[key] == 0 {
			w.numbers[key] = int64(len(w.numbers)) + 1
			lists = proto.AppendACL(jute.AppendLong(lists, w.numbers[key]), acl)
		}
	}
	w.b = append(jute.AppendInt(w.b, int32(len(w.numbers))), lists...)
	return w
}

// Write writes a znode. It reports false if the snapshot lacks its ACL.
func (w *FuzzyWriter) Write(path string, n *Node) bool {
	if path == "/" {
		path = ""
	}
	number := int64(openACL)
	if !slices.Equal(n.ACL, proto.OpenACL) {
		if number = w.numbers[string(proto.AppendACL(nil, n.ACL))]; number == 0 {
			number = 1000
		}
	}
	w.b = jute.AppendLong(jute.AppendBuffer(jute.AppendString(w.b, path), n.Data), number)
	for _, v := range [...]int64{n.Czxid, n.Mzxid, n.Ctime, n.Mtime} {
		w.b = jute.AppendLong(w.b, v)
	}
	for _, v := range [...]int32{n.Version, n.Cversion, n.Aversion} {
		w.b = jute.AppendInt(w.b, v)
	}
	w.b = jute.AppendLong(jute.AppendLong(w.b, n.Owner), n.Pzxid)
	return number != 1000
}

func (w *FuzzyWriter) seal() {
	w.b = jute.AppendString(jute.AppendLong(w.b, int64(adler32.Checksum(w.b))), "/")
}

// End writes the end with the digest that the state has now, and the zxid of the last transaction.
func (w *FuzzyWriter) End(zxid int64, s *State) []byte { return w.EndWith(zxid, s.digest) }

// EndWith writes the end with a digest.
func (w *FuzzyWriter) EndWith(zxid int64, digest uint64) []byte {
	w.b = jute.AppendString(w.b, "/")
	w.seal()
	w.b = jute.AppendLong(jute.AppendInt(jute.AppendLong(w.b, zxid), digestVersion), int64(digest))
	w.seal()
	w.b = jute.AppendLong(w.b, zxid)
	w.seal()
	return w.b
}
