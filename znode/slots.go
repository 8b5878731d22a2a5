package znode

// slots has a tree's nodes, which are identified by the number of their slot, from 0. It can
// be copied fast, for a snapshot: it consists of chunks, which a copy shares. A chunk is
// copied before its first change in each generation of the tree.
//
// It also finds nodes by the hashes of their paths. Those with the same hash form a list.
type slots struct {
	chunks []*chunk
	gens   []uint32 // of each chunk, the tree's generation when this copy was made
	places []*[chunkLen]place
	len    int
	heads  map[uint32]uint32 // of each list, by hash, the slot of the first node plus 1
}

// chunkLen is small, since right after a snapshot the many writes of one entry each copy another
// chunk, of about 2 KB.
const chunkLen = 32

type chunk [chunkLen]Node

// place is what identifies a node in other parts of the tree. Snapshots do not have it.
type place struct {
	hash    uint32 // of the path
	next    uint32 // in the list of those with the same hash: its slot plus 1, or 0
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

// find returns the node with a path that has this hash, and its slot.
func (s *slots) find(path string, hash uint32) (id uint32, n *Node) {
	for next := s.heads[hash]; next != 0; next = s.place(id).next {
		id = next - 1
		if n = s.at(id); n.is(path) {
			return id, n
		}
	}
	return 0, nil
}

// index has find find the node in a slot, whose place has its hash.
func (s *slots) index(id uint32) {
	p := s.place(id)
	p.next, s.heads[p.hash] = s.heads[p.hash], id+1
}

// replace puts what is at next, a slot plus 1 or 0, where the node in the slot id is in its list.
func (s *slots) replace(id, next uint32) {
	hash := s.place(id).hash
	before := s.heads[hash]
	switch {
	case before != id+1:
		for s.place(before-1).next != id+1 {
			before = s.place(before - 1).next
		}
		s.place(before - 1).next = next
	case next == 0:
		delete(s.heads, hash)
	default:
		s.heads[hash] = next
	}
}
