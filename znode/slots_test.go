package znode

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestWriteAfterSnapshot: the first change of a znode after a snapshot copies little, since an
// entry may change thousands of them.
func TestWriteAfterSnapshot(t *testing.T) {
	tree := New()
	const n = 4096
	for i := range n {
		if _, _, code := tree.Create(&Txn{}, proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprint("/", i), ACL: proto.OpenACL}, -1); code != proto.OK {
			t.Fatal(code)
		}
	}
	tree.Snapshot()
	copied := testkit.Allocated(func() {
		for id := uint32(0); id < n; id += n / 16 {
			tree.nodes.writable(id, tree.gen)
		}
	})
	if copied/16 > 4<<10 {
		t.Errorf("%d bytes for each write", copied/16)
	}
}

// TestSlots compares slots with a slice, with several chunks, and checks that clones do not
// change.
func TestSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	var s slots
	var want []Node
	var gen uint32
	type copied struct {
		chunks []*chunk
		nodes  []Node
	}
	var copies []copied
	all := func(chunks []*chunk, n int) (nodes []Node) {
		for i := range n {
			nodes = append(nodes, chunks[i/chunkLen][i%chunkLen])
		}
		return nodes
	}
	for up := range 6 {
		for range 4 * chunkLen {
			n := Node{czxid: r.Int64()}
			switch k := r.IntN(10); {
			case k < 6 && up%2 == 0, k < 1:
				if id := s.push(n, gen); int(id) != len(want) {
					t.Fatalf("slot %d, want %d", id, len(want))
				}
				want = append(want, n)
			case len(want) == 0:
			case k < 8:
				s.pop(gen)
				want = want[:len(want)-1]
			default:
				i := r.IntN(len(want))
				*s.writable(uint32(i), gen) = n
				want[i] = n
			}
			if r.IntN(100) == 0 {
				gen++
				copies = append(copies, copied{slices.Clone(s.chunks), slices.Clone(want)})
			}
		}
		if !slices.Equal(all(s.chunks, s.len), want) {
			t.Fatalf("%d nodes, which differ from the %d expected ones", s.len, len(want))
		}
		if n := len(s.chunks); n > len(want)/chunkLen+2 {
			t.Errorf("%d chunks for %d nodes", n, len(want))
		}
	}
	for i, c := range copies {
		if !slices.Equal(all(c.chunks, len(c.nodes)), c.nodes) {
			t.Errorf("copy %d of %d changed", i, len(copies))
		}
	}
}

// TestFind adds and removes nodes at random, some with equal hashes, and looks for all of them and
// for nodes that are not there.
func TestFind(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	root := newChildList("")
	s := slots{heads: map[uint32]uint32{}}
	in := make([]bool, 1000) // by slot
	path := func(id int) string { return fmt.Sprintf("/n%d", id) }
	hash := func(id int) uint32 { return uint32(id) / 8 }
	for id := range in {
		s.push(newNode(&Record{Path: path(id), ACL: proto.OpenACL}, root, 0), 0)
		s.place(uint32(id)).hash = hash(id)
	}
	for round := range 4 {
		for range in {
			id := r.IntN(len(in))
			if add := r.IntN(8) > 0 == (round%2 == 0); add == in[id] {
				continue
			}
			if in[id] {
				s.replace(uint32(id), s.place(uint32(id)).next)
			} else {
				s.index(uint32(id))
			}
			in[id] = !in[id]
		}
		for id, want := range in {
			found, n := s.find(path(id), hash(id))
			if want != (n != nil) || want && int(found) != id {
				t.Fatalf("round %d: %s is there: %v, found in slot %d: %v", round, path(id), want, found, n != nil)
			}
		}
	}
}
