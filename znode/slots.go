package znode

import (
	"math/bits"
	"slices"
)

// slots has a tree's nodes, which are identified by the number of their slot, from 0. It can
// be copied fast, for a snapshot: it consists of chunks, which a copy shares. A chunk is
// copied before its first change in each generation of the tree.
type slots struct {
	chunks []*chunk
	gens   []uint32 // of each chunk, the tree's generation when this copy was made
	places []*[chunkLen]place
	len    int
}

// chunkLen is small, since right after a snapshot the many writes of one entry each copy another
// chunk, of about 2 KB.
const chunkLen = 32

type chunk [chunkLen]Node

// place is what identifies a node in other parts of the tree. Snapshots do not have it.
type place struct {
	hash    uint32 // of the path, in the index
	next    uint32 // in the same bucket of the index: its slot plus 1, or 0
	sibling uint32 // index in the list of siblings
}

func (s *slots) at(id uint32) *Node     { return &s.chunks[id/chunkLen][id%chunkLen] }
func (s *slots) place(id uint32) *place { return &s.places[id/chunkLen][id%chunkLen] }

// writable returns a node for a change. gen is the tree's generation.
func (s *slots) writable(id, gen uint32) *Node {
	i := id / chunkLen
	if s.gens[i] != gen { // a snapshot may share it
		c := *s.chunks[i]
		s.chunks[i], s.gens[i] = &c, gen
	}
	return &s.chunks[i][id%chunkLen]
}

// push adds a node and returns its slot.
func (s *slots) push(n Node, gen uint32) uint32 {
	if s.len == len(s.chunks)*chunkLen {
		s.chunks = append(s.chunks, new(chunk))
		s.gens = append(s.gens, gen)
		s.places = append(s.places, new([chunkLen]place))
	}
	id := uint32(s.len)
	s.len++
	*s.writable(id, gen) = n
	return id
}

// pop removes the node in the last slot.
func (s *slots) pop(gen uint32) {
	s.len--
	*s.writable(uint32(s.len), gen) = Node{}
	if last := len(s.chunks) - 1; s.len <= (last-1)*chunkLen { // keep one empty chunk for the next push
		s.chunks[last], s.places[last] = nil, nil
		s.chunks, s.gens, s.places = s.chunks[:last], s.gens[:last], s.places[:last]
	}
}

// clone returns the chunks for a snapshot. The tree's generation must be increased as well.
func (s *slots) clone() []*chunk { return slices.Clone(s.chunks) }

// pathIndex finds nodes by the hashes of their paths. The nodes of a bucket form a list. The
// number of buckets follows that of the nodes: with each new node the next bucket is split
// in two (linear hashing), so that no operation has to move many nodes.
type pathIndex struct {
	nodes *slots
	heads []*[headsLen]uint32 // of each bucket, the slot of the first node plus 1, or 0
	len   uint32              // number of buckets
}

const headsLen = 1024

func newPathIndex(nodes *slots) pathIndex {
	return pathIndex{nodes: nodes, heads: []*[headsLen]uint32{new([headsLen]uint32)}, len: 1}
}

func (x *pathIndex) head(bucket uint32) *uint32 { return &x.heads[bucket/headsLen][bucket%headsLen] }

// bucket returns the bucket of a hash.
func (x *pathIndex) bucket(hash uint32) uint32 {
	mask := uint32(1)<<bits.Len32(x.len-1) - 1
	if b := hash & mask; b < x.len {
		return b
	}
	return hash & (mask >> 1) // the bucket that has not been split yet
}

// origin returns the bucket that was split to get this one.
func origin(bucket uint32) uint32 { return bucket &^ (1 << (bits.Len32(bucket) - 1)) }

// find returns the slot of the node with a path that has this hash.
func (x *pathIndex) find(path string, hash uint32) (id uint32, n *Node) {
	for next := *x.head(x.bucket(hash)); next != 0; {
		id = next - 1
		p := x.nodes.place(id)
		if p.hash == hash {
			if n = x.nodes.at(id); n.is(path) {
				return id, n
			}
		}
		next = p.next
	}
	return 0, nil
}

// link returns the field that refers to the node in the slot: a head, or next in the place
// of another node.
func (x *pathIndex) link(id uint32) *uint32 {
	l := x.head(x.bucket(x.nodes.place(id).hash))
	for *l != id+1 {
		l = &x.nodes.place(*l - 1).next
	}
	return l
}

// add adds a node whose place has its hash.
func (x *pathIndex) add(id uint32) {
	if x.nodes.len > int(x.len) {
		x.split()
	}
	p := x.nodes.place(id)
	head := x.head(x.bucket(p.hash))
	p.next, *head = *head, id+1
}

func (x *pathIndex) remove(id uint32) {
	*x.link(id) = x.nodes.place(id).next
	if x.nodes.len < int(x.len) {
		x.join()
	}
}

// split adds a bucket.
func (x *pathIndex) split() {
	added := x.len
	if x.len++; added%headsLen == 0 {
		x.heads = append(x.heads, new([headsLen]uint32))
	}
	from, to := x.head(origin(added)), x.head(added)
	for *from != 0 {
		p := x.nodes.place(*from - 1)
		if x.bucket(p.hash) == added {
			*to, *from = *from, p.next
			to = &p.next
			*to = 0
		} else {
			from = &p.next
		}
	}
}

// join removes the last bucket.
func (x *pathIndex) join() {
	x.len--
	l := x.head(origin(x.len))
	for *l != 0 {
		l = &x.nodes.place(*l - 1).next
	}
	last := x.head(x.len)
	*l, *last = *last, 0
	if x.len%headsLen == 0 {
		x.heads = x.heads[:x.len/headsLen]
	}
}
