package znode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Snapshot is the state of a tree at one point in time. It never changes, and may be read
// concurrently with operations on the tree.
type Snapshot struct {
	chunks []*chunk
	len    int
	digest uint64
}

// Snapshot takes a snapshot. It is fast: it copies one pointer for every few dozen znodes.
// Afterwards, the first change of each few dozen znodes makes a copy of them.
func (t *Tree) Snapshot() *Snapshot {
	t.gen++
	return &Snapshot{slices.Clone(t.nodes.chunks), t.nodes.len, t.digest}
}

// Len returns the number of znodes.
func (s *Snapshot) Len() int { return s.len }

// Digest returns the tree's digest.
func (s *Snapshot) Digest() uint64 { return s.digest }

// Parts returns a function that computes the part of the i-th znode in the digest, which is the sum of all parts,
// anew from all that Append appends.
func (s *Snapshot) Parts() func(i int) uint64 {
	d := &digester{anew: true}
	return func(i int) uint64 { return d.of(&s.chunks[i/chunkLen][i%chunkLen]) }
}

// Append appends the encoding of the i-th znode to b. The order of the znodes is arbitrary.
func (s *Snapshot) Append(b []byte, i int) []byte {
	return appendNode(b, &s.chunks[i/chunkLen][i%chunkLen])
}

// ErrRecord means that an encoded znode cannot be decoded, or that records do not form a tree.
var ErrRecord = errors.New("znode: bad record")

// DecodeRecord decodes a znode that [Snapshot.Append] has encoded, and returns the rest of b. The
// record's data aliases b.
func DecodeRecord(b []byte) (r Record, rest []byte, err error) {
	bytesOf := func(n uint64) []byte {
		if err != nil || n > uint64(len(b)) {
			err = ErrRecord
			return nil
		}
		v := b[:n]
		b = b[n:]
		return v
	}
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = ErrRecord
			return 0
		}
		b = b[n:]
		return v
	}
	varint := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			err = ErrRecord
			return 0
		}
		b = b[n:]
		return v
	}
	r.Path = string(bytesOf(uvarint()))
	if n := uvarint(); n > 0 {
		r.Data = bytesOf(n - 1)
	}
	if open := bytesOf(1); err == nil && open[0] == 0 {
		r.ACL = proto.OpenACL
	} else if err == nil {
		d := jute.NewDecoder(b)
		if r.ACL = proto.DecodeACL(&d); d.Err() != nil {
			return r, nil, ErrRecord
		}
		b = d.Rest()
	}
	for _, p := range [...]*int64{&r.Czxid, &r.Mzxid, &r.Pzxid, &r.Ctime, &r.Mtime, &r.Creates, &r.Owner} {
		*p = varint()
	}
	r.Version, r.Aversion = int32(varint()), int32(varint())
	if kind := bytesOf(1); err == nil {
		r.Kind = Kind(kind[0])
	}
	if err != nil || r.Kind > TTL {
		return r, nil, ErrRecord
	}
	return r, b, nil
}

// Restorer builds a tree from the records of a snapshot, which may be in any order. Use
// [NewRestorer] to create one.
type Restorer struct {
	t      *Tree
	byPath map[string]*childList // by the parent's path
	lists  []*childList          // the same, in order of their first records
	last   *childList            // of the last record
}

// NewRestorer returns a Restorer without records.
func NewRestorer() *Restorer {
	return &Restorer{t: newTree(), byPath: map[string]*childList{}}
}

// Add adds a record. It does not keep it.
func (x *Restorer) Add(r *Record) error {
	if !ValidPath(r.Path) || x.t.Lookup(r.Path) != nil {
		return fmt.Errorf("%w: %q is invalid or occurs twice", ErrRecord, r.Path)
	}
	var siblings *childList
	if r.Path != Root {
		siblings = x.childrenOf(parentPath(r.Path))
	}
	x.t.link(r.Path, newNode(r, siblings, x.t.gen))
	return nil
}

func (x *Restorer) childrenOf(path string) *childList {
	if x.last != nil && x.last.path == path {
		return x.last
	}
	l := x.byPath[path]
	if l == nil {
		l = newChildList(path)
		x.byPath[l.path] = l
		x.lists = append(x.lists, l)
	}
	x.last = l
	return l
}

// Len returns the number of records.
func (x *Restorer) Len() int { return x.t.Len() }

// Tree returns the tree when all records have been added. The Restorer must not be used
// afterwards.
func (x *Restorer) Tree() (*Tree, error) {
	t := x.t
	for _, l := range x.lists {
		id, n := t.find(l.path)
		if n == nil {
			return nil, fmt.Errorf("%w: %q has no parent", ErrRecord, l.path+"/"+t.nodes.at(l.ids[0]).basename())
		}
		t.adopt(id, l)
	}
	if t.Lookup(Root) == nil {
		return nil, fmt.Errorf("%w: no root", ErrRecord)
	}
	own := make([]usage, len(x.lists)) // without what is further below
	for i, l := range x.lists {
		own[i] = l.sum
	}
	for i, l := range x.lists {
		l.up.grow(int(own[i].count), int(own[i].bytes))
	}
	return t, nil
}
