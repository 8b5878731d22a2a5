package znode

import (
	"fmt"
	"math"
	"testing"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestSequencePastInt32 creates sequential znodes where ZooKeeper's counter overflows: here the
// numbers continue.
func TestSequencePastInt32(t *testing.T) {
	tree := New()
	create := func(name string, flags int32) string {
		path, _, code := tree.Create(&Txn{Zxid: 1}, proto.OpCreate, &proto.CreateRequest{Path: name, ACL: proto.OpenACL, Flags: flags}, -1)
		if code != proto.OK {
			t.Fatalf("create %s: %v", name, code)
		}
		return path
	}
	create("/dir", proto.FlagPersistent)
	id, _ := tree.find("/dir")
	tree.edit(id, func(n *Node) { tree.extra(n).creates = math.MaxInt32 - 2 })
	for i := range int64(5) {
		if got, want := create("/dir/n-", proto.FlagSequential), fmt.Sprintf("/dir/n-%010d", math.MaxInt32-2+i); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	again, err := Restore(decodeAll(encodeAll(tree.Snapshot())))
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Lookup("/dir").Record().Creates; got != math.MaxInt32+3 {
		t.Errorf("after a snapshot the counter is %d, want %d", got, int64(math.MaxInt32+3))
	}
}
