package znode

import "slices"

// slots is an array of a tree's nodes that can be copied fast, for a snapshot: it consists of
// chunks, which a copy shares. A chunk is copied before its first change in each generation of
// the tree.
type slots struct {
	chunks []*chunk
	len    int
}

const chunkLen = 256

type chunk struct {
	nodes [chunkLen]*Node
	gen   uint32 // the tree's generation when this copy was made
}

func (s *slots) at(i int) *Node { return s.chunks[i/chunkLen].nodes[i%chunkLen] }

// put sets the i-th node. gen is the tree's generation.
func (s *slots) put(i int, n *Node, gen uint32) {
	c := s.chunks[i/chunkLen]
	if c.gen != gen { // a snapshot may share it
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
	if last := len(s.chunks) - 1; s.len <= (last-1)*chunkLen { // keep one empty chunk for the next push
		s.chunks[last] = nil
		s.chunks = s.chunks[:last]
	}
}

// clone returns a copy for a snapshot. The tree's generation must be increased as well.
func (s *slots) clone() slots { return slots{slices.Clone(s.chunks), s.len} }
