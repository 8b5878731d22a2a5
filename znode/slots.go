package znode

import "slices"

// slots holds the nodes of a tree by number, in chunks, so that copying them
// all for a snapshot is copying the chunks' addresses. A chunk is copied before
// its first change after that.
type slots struct {
	chunks []*chunk
	len    int
}

const chunkLen = 256

type chunk struct {
	nodes [chunkLen]*Node
	gen   uint32 // of the tree when this copy was made
}

func (s *slots) at(i int) *Node { return s.chunks[i/chunkLen].nodes[i%chunkLen] }

// put, push and pop need the tree's generation.
func (s *slots) put(i int, n *Node, gen uint32) {
	c := s.chunks[i/chunkLen]
	if c.gen != gen { // a snapshot may hold it
		c = &chunk{c.nodes, gen}
		s.chunks[i/chunkLen] = c
	}
	c.nodes[i%chunkLen] = n
}

func (s *slots) push(n *Node, gen uint32) {
	if s.len == len(s.chunks)*chunkLen {
		s.chunks = append(s.chunks, &chunk{gen: gen})
	}
	s.put(s.len, n, gen)
	s.len++
}

func (s *slots) pop(gen uint32) {
	s.len--
	s.put(s.len, nil, gen)
	if spare := len(s.chunks) - 1; s.len <= (spare-1)*chunkLen { // one empty chunk stays, for the next push
		s.chunks[spare] = nil
		s.chunks = s.chunks[:spare]
	}
}

// frozen is a copy that stays as it is, if the tree's generation rises.
func (s *slots) frozen() slots { return slots{slices.Clone(s.chunks), s.len} }
