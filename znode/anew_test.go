package znode

import (
	"testing"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPartsAnew flips bits in all that a snapshot writes of a znode. The parts must not add up to the digest any more: nobody can
// read such a snapshot.
func TestPartsAnew(t *testing.T) {
	flip := func(text string) { *unsafe.StringData(text) ^= 1 }
	for what, damage := range map[string]func(n *Node){
		"name and data": func(n *Node) { flip(n.text) },
		"version":       func(n *Node) { n.version ^= 1 },
		"creates":       func(n *Node) { n.more.creates ^= 1 },
		"permissions":   func(n *Node) { n.more.acl.list[0].Perms ^= 1 },
		"identity":      func(n *Node) { flip(n.more.acl.list[0].ID.ID) },
		"parent's path": func(n *Node) { flip(n.siblings.path[1:]) },
	} {
		x := NewRestorer()
		acl := []proto.ACL{{Perms: proto.PermRead, ID: proto.ID{Scheme: "ip", ID: string([]byte("10.0.0.1"))}}}
		for _, r := range []Record{
			{Path: "/", ACL: proto.OpenACL}, {Path: "/a", ACL: proto.OpenACL}, {Path: "/a/b", Data: []byte("data"), ACL: acl},
		} {
			if err := x.Add(&r); err != nil {
				t.Fatal(err)
			}
		}
		tree, err := x.Tree()
		if err != nil {
			t.Fatal(err)
		}
		sum := func() (sum uint64) {
			s := tree.Snapshot()
			part := s.Parts()
			for i := range s.Len() {
				sum += part(i)
			}
			return sum
		}
		if sum() != tree.Digest() {
			t.Errorf("%s: the parts of an undamaged tree do not add up to its digest", what)
		}
		damage(tree.Lookup("/a/b"))
		if sum() == tree.Digest() {
			t.Errorf("%s: the damage does not show", what)
		}
	}
}
