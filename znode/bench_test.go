package znode

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

const million = 1_000_000

// bigTree returns a tree with a million znodes of 100 bytes, a thousand below each of a thousand
// parents, and the paths of the leaves in random order.
var bigTree = sync.OnceValues(func() (*Tree, []string) { return newBigTree(true) })

// newBigTree returns the tree of bigTree, and its paths if they are wanted.
func newBigTree(wantPaths bool) (*Tree, []string) {
	tree := New()
	x := &Txn{}
	var paths []string
	data := make([]byte, 100)
	create := func(path string) {
		x.Zxid++
		x.Changes = x.Changes[:0]
		if _, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL}, -1); code != proto.OK {
			panic(code)
		}
	}
	for i := range 1000 {
		parent := fmt.Sprintf("/locks/%04d", i)
		if i == 0 {
			create("/locks")
		}
		create(parent)
		for j := range million/1000 - 1 {
			path := fmt.Sprintf("%s/lock-%010d", parent, j)
			create(path)
			if wantPaths {
				paths = append(paths, path)
			}
		}
	}
	rand.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	return tree, paths
}

// BenchmarkMemory measures how much memory a tree of a million znodes of 100 bytes takes, by
// what is in use after a garbage collection.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		tree, _ := newBigTree(false)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(tree.Len()), "B/znode")
	}
}

func BenchmarkLookup(b *testing.B) {
	tree, paths := bigTree()
	i := 0
	for b.Loop() {
		if tree.Lookup(paths[i%len(paths)]) == nil {
			b.Fatal("missing")
		}
		i++
	}
}

// BenchmarkCreateDelete creates and deletes a sequential ephemeral znode, as a lock does.
func BenchmarkCreateDelete(b *testing.B) {
	tree, _ := bigTree()
	x := &Txn{Zxid: 2 * million, Session: 7}
	q := &proto.CreateRequest{Path: "/locks/0007/lock-", ACL: proto.OpenACL, Flags: proto.FlagEphemeralSeq}
	b.ReportAllocs()
	for b.Loop() {
		x.Zxid++
		x.Changes = x.Changes[:0]
		path, _, code := tree.Create(x, proto.OpCreate, q, -1)
		if code != proto.OK {
			b.Fatal(code)
		}
		if code := tree.Delete(x, path, -1); code != proto.OK {
			b.Fatal(code)
		}
	}
}

// BenchmarkSetData also measures the first change of a znode after a snapshot, which copies it.
func BenchmarkSetData(b *testing.B) {
	tree, paths := bigTree()
	x := &Txn{Zxid: 3 * million}
	q := &proto.SetDataRequest{Data: make([]byte, 100), Version: -1}
	for _, after := range []bool{false, true} {
		b.Run(fmt.Sprint("after a snapshot ", after), func(b *testing.B) {
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if after && i%len(paths) == 0 {
					tree.Snapshot()
				}
				x.Zxid++
				x.Changes = x.Changes[:0]
				q.Path = paths[i%len(paths)]
				if _, code := tree.SetData(x, q); code != proto.OK {
					b.Fatal(code)
				}
				i++
			}
		})
	}
}

// BenchmarkSnapshot measures how long taking a snapshot of a million znodes blocks the tree. It
// should be less than 5 ms.
func BenchmarkSnapshot(b *testing.B) {
	tree, _ := bigTree()
	var worst time.Duration
	for b.Loop() {
		start := time.Now()
		tree.Snapshot()
		worst = max(worst, time.Since(start))
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
}

// BenchmarkEncode measures encoding one znode of a snapshot.
func BenchmarkEncode(b *testing.B) {
	tree, _ := bigTree()
	s := tree.Snapshot()
	buf, i := make([]byte, 0, 1024), 0
	for b.Loop() {
		buf = s.Append(buf[:0], i%s.Len())
		i++
	}
	b.SetBytes(int64(len(buf)))
}

// BenchmarkMultiRollback measures a multi of ten creates that fails.
func BenchmarkMultiRollback(b *testing.B) {
	tree, _ := bigTree()
	x := &Txn{Zxid: 5 * million}
	q := &proto.CreateRequest{Path: "/locks/0009/m-", ACL: proto.OpenACL, Flags: proto.FlagSequential}
	for b.Loop() {
		x.Zxid++
		tree.Multi(x, func() bool {
			for range 10 {
				tree.Create(x, proto.OpCreate, q, -1)
			}
			return false
		})
	}
}

// BenchmarkQuota creates and deletes a lock's znode on a tree without quotas, on one with a
// thousand quotas on other paths, and below a quota.
func BenchmarkQuota(b *testing.B) {
	for _, where := range []string{"none", "beside", "below"} {
		b.Run(where, func(b *testing.B) {
			tree, x := New(), &Txn{Session: 7, EnforceQuota: true}
			create := func(path, data string, flags int32) string {
				x.Zxid++
				x.Changes = x.Changes[:0]
				path, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL, Flags: flags}, -1)
				if code != proto.OK {
					b.Fatal(path, code)
				}
				return path
			}
			for _, path := range []string{"/locks", "/locks/a", "/locks/a/b"} {
				create(path, "", 0)
			}
			quota := func(path string) {
				create(QuotaPath+path, "", 0)
				create(QuotaPath+path+"/"+limitsName, "countHardLimit=1000000", 0)
				create(QuotaPath+path+"/"+statsName, "", 0)
			}
			if where != "none" {
				create(QuotaPath+"/n", "", 0)
				for i := range 1000 {
					quota(fmt.Sprintf("/n/n%d", i))
				}
			}
			if where == "below" {
				quota("/locks")
			}
			b.ReportAllocs()
			for b.Loop() {
				path := create("/locks/a/b/lock-", "", proto.FlagEphemeralSeq)
				x.Changes = x.Changes[:0]
				if code := tree.Delete(x, path, -1); code != proto.OK {
					b.Fatal(code)
				}
			}
		})
	}
}
