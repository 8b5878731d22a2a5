package znode

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testkit"
)

// TestSlots compares slots with a slice, with several chunks, and checks that clones do not
// change.
func TestSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	var s slots
	var want []*Node
	var gen uint32
	type copied struct {
		slots slots
		nodes []*Node
	}
	var copies []copied
	all := func(s *slots) (nodes []*Node) {
		for i := range s.len {
			nodes = append(nodes, s.at(i))
		}
		return nodes
	}
	for up := range 6 {
		for range 4 * chunkLen {
			n := &Node{}
			switch k := r.IntN(10); {
			case k < 6 && up%2 == 0, k < 1:
				s.push(n, gen)
				want = append(want, n)
			case len(want) == 0:
			case k < 8:
				s.pop(gen)
				want = want[:len(want)-1]
			default:
				i := r.IntN(len(want))
				s.put(i, n, gen)
				want[i] = n
			}
			if r.IntN(100) == 0 {
				gen++
				copies = append(copies, copied{s.clone(), slices.Clone(want)})
			}
		}
		if !slices.Equal(all(&s), want) {
			t.Fatalf("%d nodes, which differ from the %d expected ones", s.len, len(want))
		}
		if n := len(s.chunks); n > len(want)/chunkLen+2 {
			t.Errorf("%d chunks for %d nodes", n, len(want))
		}
	}
	for i, c := range copies {
		if !slices.Equal(all(&c.slots), c.nodes) {
			t.Errorf("copy %d of %d changed", i, len(copies))
		}
	}
}
