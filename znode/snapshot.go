package znode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Snapshot is the state of a tree at one point in time. It never changes, and may be read
// concurrently with operations on the tree.
type Snapshot struct {
	nodes  slots
	digest uint64
}

// Snapshot takes a snapshot. It is fast: it copies one pointer for every few hundred znodes.
// Afterwards, the first change of each znode makes a copy of it.
func (t *Tree) Snapshot() *Snapshot {
	t.gen++
	return &Snapshot{t.nodes.clone(), t.digest}
}

// Len returns the number of znodes.
func (s *Snapshot) Len() int { return s.nodes.len }

// Digest returns the tree's digest.
func (s *Snapshot) Digest() uint64 { return s.digest }

// Append appends the encoding of the i-th znode to b. The order of the znodes is arbitrary.
func (s *Snapshot) Append(b []byte, i int) []byte { return appendRecord(b, &s.nodes.at(i).rec) }

// ErrRecord means that an encoded znode cannot be decoded, or that records do not form a tree.
var ErrRecord = errors.New("znode: bad record")

// DecodeRecord decodes a znode that [Snapshot.Append] has encoded, and returns the rest of b.
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
		r.Data = append([]byte{}, bytesOf(n-1)...)
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

// Restore builds a tree from the records of a snapshot. They may be in any order; Restore
// sorts them.
func Restore(records []Record) (*Tree, error) {
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Path, b.Path) }) // parents first
	t := newTree()
	for i := range records {
		r := &records[i]
		if !ValidPath(r.Path) || t.index[r.Path] != nil || r.Path != Root && t.Lookup(parentPath(r.Path)) == nil {
			return nil, fmt.Errorf("%w: %q is invalid, occurs twice or has no parent", ErrRecord, r.Path)
		}
		t.link(&Node{rec: *r})
	}
	if t.index[Root] == nil {
		return nil, fmt.Errorf("%w: no root", ErrRecord)
	}
	t.restoreQuotas()
	return t, nil
}
