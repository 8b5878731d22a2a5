package server

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/znode"
)

// searchPace is after how many znodes a search asks whether to go on.
const searchPace = 256

// longPath is how much of a path, in bytes, counts as one step of a search.
const longPath = 256

// Search implements report.Server. It goes through the znodes in the order in which the tree stores
// them, not from parents to children, so that a znode with very many children makes no longer step than others.
func (s *Server) Search(q report.Search) (x report.Found, err error) {
	if err := s.readable(); err != nil {
		return x, err
	}
	f := finder{text: []byte(strings.ToLower(q.Text)), most: q.Most, mostBytes: cmp.Or(q.MostBytes, math.MaxInt)}
	s.cfg.Replica.Browse(func(v *fsm.View, step func()) {
		tree := v.Tree()
		x.Znodes = tree.Len()
		for i := math.MaxInt; v.Tree() == tree; { // until a snapshot replaces it, in which the order is another one
			if x.Looked%searchPace == 0 && !q.Continue(x.Looked) {
				return
			}
			var n *znode.Node
			if n, i = tree.NodeBelow(i); n == nil {
				x.Complete = true
				return
			}
			f.look(tree, n)
			x.Looked++
			for range 1 + len(f.path)/longPath {
				step()
			}
		}
	})
	f.cut()
	x.Paths, x.Matching = f.found, f.matching
	return x, nil
}

// finder finds the first paths that contain a text.
type finder struct {
	text      []byte // in lower case
	most      int
	mostBytes int
	found     []string // the first ones are among them
	size      int      // of these, in bytes
	matching  int
	last      string // of the first ones, once there are so many
	path      []byte // of the znode that it looks at
}

func (f *finder) look(t *znode.Tree, n *znode.Node) {
	f.path = n.AppendPath(f.path[:0])
	if !bytes.Contains(bytes.ToLower(f.path), f.text) || !t.Listed(n, inProcess) {
		return
	}
	f.matching++
	if f.last != "" && string(f.path) >= f.last {
		return
	}
	f.found = append(f.found, string(f.path))
	if f.size += len(f.path); len(f.found) == 2*f.most || f.size/2 > f.mostBytes {
		f.cut()
	}
}

// cut leaves only the first ones.
func (f *finder) cut() {
	slices.Sort(f.found)
	f.found = slices.Compact(f.found) // a znode may have been looked at twice
	n := 0
	for f.size = 0; n < min(len(f.found), f.most) && (n == 0 || f.size+len(f.found[n]) <= f.mostBytes); n++ {
		f.size += len(f.found[n])
	}
	if n == f.most || n < len(f.found) {
		clear(f.found[n:])
		f.found, f.last = f.found[:n], f.found[n-1]
	}
}
