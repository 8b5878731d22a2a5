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

// Snapshot is a tree as it was when the snapshot was taken. It never changes
// and may be read beside the tree.
type Snapshot struct {
	nodes  slots
	digest uint64
}

// Snapshot takes a snapshot. It takes as long as copying a pointer for every
// few hundred znodes; from then on the first change of each znode copies it.
func (t *Tree) Snapshot() *Snapshot {
	t.gen++
	return &Snapshot{t.nodes.frozen(), t.digest}
}

// Len is the number of znodes in the snapshot.
func (s *Snapshot) Len() int { return s.nodes.len }

// Digest is the tree's digest at the time of the snapshot.
func (s *Snapshot) Digest() uint64 { return s.digest }

// Append appends the encoding of the i-th znode to b.
func (s *Snapshot) Append(b []byte, i int) []byte { return appendRecord(b, &s.nodes.at(i).rec) }

// ErrRecord marks an encoded znode that cannot be read.
var ErrRecord = errors.New("znode: bad record")

// DecodeRecord reads what [Snapshot.Append] wrote and returns what follows it.
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

// Restore builds a tree from the records of a snapshot, in any order.
func Restore(records []Record) (*Tree, error) {
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Path, b.Path) }) // parents first
	t := newTree()
	for i := range records {
		r := &records[i]
		if !ValidPath(r.Path) || t.index[r.Path] != nil || r.Path != Root && t.Lookup(parentPath(r.Path)) == nil {
			return nil, fmt.Errorf("%w: %q is invalid, twice there or without a parent", ErrRecord, r.Path)
		}
		t.link(&Node{rec: *r})
	}
	if t.index[Root] == nil {
		return nil, fmt.Errorf("%w: no root", ErrRecord)
	}
	t.restoreQuotas()
	return t, nil
}
