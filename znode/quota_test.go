package znode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

func TestParseUsage(t *testing.T) {
	for data, want := range map[string]string{
		"count=01,bytes=000000000000000000000000000000012": "count=1,bytes=12",
		"count=999999999999999999,bytes=-3":                "count=999999999999999999,bytes=-3",
		"count=9223372036854775807,bytes=5":                "count=9223372036854775807,bytes=5",
		"count=,bytes=5":                                   "", "count=5,bytes=": "", "count=5,bytes": "",
		"":                            "count=-1,bytes=-1",
		",":                           "count=-1,bytes=-1",
		";,;":                         "count=-1,bytes=-1",
		"count=1,bytes=2":             "count=1,bytes=2",
		"bytes=2;;count=+1,":          "count=1,bytes=2",
		"count==5":                    "count=-1,bytes=-1",
		"count=5=6":                   "count=5,bytes=-1",
		"bytes=5====":                 "count=-1,bytes=5",
		"=5":                          "count=-1,bytes=-1=;=5",
		"zz=1;countHardLimit=-7;aa=3": "count=-1,bytes=-1=;aa=3;countHardLimit=-7;zz=1",
		"count=1;count=2":             "count=2,bytes=-1",
		"count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=3": "count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=3",
		"x": "", "count": "", "count=": "", "=": "", "count= 1": "", "count=1 ": "", "count=x": "", "count=1,x": "", ",count=1": "",
		"count=9223372036854775808": "", "count=1_0": "", "count=0x1": "", "count===": "", "count=+": "", "=,count=1": "",
	} {
		u, ok := parseUsage([]byte(data))
		if got := string(u.text()); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", data, got, ok, want)
		}
	}
	if _, ok := parseUsage(nil); ok {
		t.Error("null should be invalid")
	}
}

// quotaTree returns a tree with a few znodes at /q and a quota on it, and a function that carries
// out an operation with the quota enforced.
func quotaTree(t *testing.T, limits string) (tree *Tree, do func(op proto.OpCode, path, data string) proto.Code) {
	tree = New()
	x := &Txn{EnforceQuota: true}
	do = func(op proto.OpCode, path, data string) (code proto.Code) {
		x.Zxid++
		switch op {
		case proto.OpSetData:
			_, code = tree.SetData(x, &proto.SetDataRequest{Path: path, Data: []byte(data), Version: -1})
		case proto.OpDelete:
			code = tree.Delete(x, path, -1)
		default:
			_, _, code = tree.Create(x, op, &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL}, -1)
		}
		return code
	}
	for _, n := range [][2]string{{"/q", "1234"}, {"/q/a", "12"}, {"/zookeeper/quota/q", ""}, {"/zookeeper/quota/q/zookeeper_limits", limits}, {"/zookeeper/quota/q/zookeeper_stats", ""}} {
		if code := do(proto.OpCreate, n[0], n[1]); code != proto.OK {
			t.Fatal(n[0], code)
		}
	}
	return tree, do
}

const qStats = "/zookeeper/quota/q/zookeeper_stats"

// text returns the data of the znode at path.
func (t *Tree) text(path string) string { return t.Lookup(path).data() }

// TestCheckQuotas checks that Check finds quotas that do not agree with the znodes.
func TestCheckQuotas(t *testing.T) {
	alive := func(int64) bool { return true }
	for name, damage := range map[string]func(*Tree){
		"lost":  func(tree *Tree) { delete(tree.quotas.next, "q") },
		"empty": func(tree *Tree) { tree.quotaAt("/r") },
		"another": func(tree *Tree) {
			tree.quotas.next["r"] = tree.quotas.next["q"]
			delete(tree.quotas.next, "q")
		},
		"data": func(tree *Tree) { tree.quotaAt("/q").limits.data = "count=1" },
	} {
		tree, _ := quotaTree(t, "countHardLimit=10")
		if err := tree.Check(alive); err != nil {
			t.Fatal(err)
		}
		damage(tree)
		if err := tree.Check(alive); err == nil || !strings.Contains(err.Error(), "quota") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestQuotaRestored checks that Restore keeps stats even if they are wrong: unlike ZooKeeper, which counts
// again when it starts, all replicas must have the same.
func TestQuotaRestored(t *testing.T) {
	for _, stats := range []string{"", "count=7,bytes=7"} {
		tree, do := quotaTree(t, "countHardLimit=10")
		if stats != "" {
			do(proto.OpSetData, qStats, stats)
		}
		restored, err := Restore(decodeAll(encodeAll(tree.Snapshot())))
		if err != nil {
			t.Fatal(err)
		}
		if restored.Digest() != tree.Digest() || restored.text(qStats) != tree.text(qStats) {
			t.Errorf("%q became %q", tree.text(qStats), restored.text(qStats))
		}
	}
}

// TestBadQuotas checks quotas that would crash ZooKeeper.
func TestBadQuotas(t *testing.T) {
	tree, do := quotaTree(t, "")
	want := func(code proto.Code, op proto.OpCode, path, data string) {
		t.Helper()
		if got := do(op, path, data); got != code {
			t.Errorf("%d %s %q: %v, want %v", op, path, data, got, code)
		}
	}
	// Invalid stats would crash ZooKeeper at the next change that it counts. Here the
	// usage is then counted again.
	for _, invalid := range []string{"x", "count=", "count=1,bytes=9223372036854775808"} {
		want(proto.OK, proto.OpSetData, qStats, invalid)
		want(proto.OK, proto.OpCreate, "/q/b", "123")
		if got := tree.text(qStats); got != "count=3,bytes=9" {
			t.Errorf("after %q the stats are %q", invalid, got)
		}
		want(proto.OK, proto.OpDelete, "/q/b", "")
	}
	// Limits for the root would crash ZooKeeper at once. Limits elsewhere below
	// /zookeeper would crash it or become a quota on another path, since it removes a
	// prefix of fixed length. Here they have no effect.
	for _, path := range []string{"/zookeeper/quota", "/zookeeper", "/zookeeper/quotas", "/zookeeper/quotas/q", "/zookeeper/abcde", "/zookeeper/abcde/q"} {
		do(proto.OpCreate, path, "")
		want(proto.OK, proto.OpCreate, path+"/zookeeper_limits", "countHardLimit=0")
	}
	want(proto.OK, proto.OpCreate, "/free", "")
	want(proto.OK, proto.OpCreate, "/q/b", "")
	if got := tree.text(qStats); got != "count=3,bytes=6" {
		t.Errorf("the stats are %q", got)
	}
	for _, path := range []string{"/zookeeper/quota", "/zookeeper", "/zookeeper/quotas", "/zookeeper/quotas/q", "/zookeeper/abcde", "/zookeeper/abcde/q"} {
		want(proto.OK, proto.OpDelete, path+"/zookeeper_limits", "")
	}
	want(proto.OK, proto.OpDelete, "/q/b", "")
	if got := tree.text(qStats); got != "count=2,bytes=6" {
		t.Errorf("the stats are %q", got)
	}
	if err := tree.Check(func(int64) bool { return true }); err != nil {
		t.Error(err)
	}
}

// TestQuotaExceeded checks which limits are exceeded, and the messages that ZooKeeper logs.
func TestQuotaExceeded(t *testing.T) {
	for limits, want := range map[string]string{
		"count=2":                   "Quota exceeded: /q [current count=3, softCountLimit=2]",
		"count=9,bytes=6":           "Quota exceeded: /q [current bytes=9, softByteLimit=6]",
		"countHardLimit=2":          "Quota exceeded: /q [current count=3, hardCountLimit=2]",
		"bytes=5=;byteHardLimit=8":  "Quota exceeded: /q [current bytes=9, hardByteLimit=8]",
		"count=2,bytes=6":           "Quota exceeded: /q [current count=3, softCountLimit=2] Quota exceeded: /q [current bytes=9, softByteLimit=6]",
		"count=2=;countHardLimit=3": "",
	} {
		tree, _ := quotaTree(t, limits)
		var got []string
		x := &Txn{EnforceQuota: true}
		_, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: "/q/b", Data: []byte("123"), ACL: proto.OpenACL}, -1)
		for i := range x.Exceeded {
			got = append(got, x.Exceeded[i].String())
		}
		if strings.Join(got, " ") != want || (code == proto.QuotaExceeded) != strings.Contains(want, "hard") {
			t.Errorf("%s: %q, want %q", limits, got, want)
		}
		tree, _ = quotaTree(t, limits)
		x = &Txn{}
		if _, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: "/q/b", Data: []byte("123"), ACL: proto.OpenACL}, -1); code != proto.OK || len(x.Exceeded) > 0 {
			t.Errorf("%s, not enforced: %v, %v", limits, code, x.Exceeded)
		}
	}
}

// TestUnreadableQuota checks operations whose quota has invalid limits or stats.
func TestUnreadableQuota(t *testing.T) {
	for _, path := range []string{"/zookeeper/quota/q/zookeeper_limits", qStats} {
		for _, data := range [][]byte{nil, []byte("x")} {
			tree, do := quotaTree(t, "countHardLimit=10")
			if _, code := tree.SetData(&Txn{}, &proto.SetDataRequest{Path: path, Data: data, Version: -1}); code != proto.OK {
				t.Fatal(code)
			}
			if code := do(proto.OpCreate, "/q/b", ""); code != proto.MarshallingError {
				t.Errorf("%s is %q: %v", path, data, code)
			}
			if code := do(proto.OpDelete, "/q/a", ""); code != proto.OK {
				t.Errorf("%s is %q: a delete: %v", path, data, code)
			}
		}
	}
}

// TestManyQuotas checks that the time for an operation depends neither on the number of quotas
// nor on the number of earlier operations in the same multi.
func TestManyQuotas(t *testing.T) {
	tree, do := quotaTree(t, "countHardLimit=100000000")
	const many = 20_000
	took := testkit.CPU(t, func() {
		for i := range many {
			at := fmt.Sprintf("/zookeeper/quota/n%d", i)
			do(proto.OpCreate, at, "")
			do(proto.OpCreate, at+"/zookeeper_limits", "countHardLimit=0")
			do(proto.OpCreate, at+"/zookeeper_stats", "")
		}
		x := &Txn{EnforceQuota: true}
		tree.Multi(x, func() bool {
			for i := range many {
				if _, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/q/n%d", i), ACL: proto.OpenACL}, -1); code != proto.OK {
					t.Fatal(code)
				}
			}
			return true
		})
		if want := fmt.Sprintf("count=%d,bytes=6", many+2); tree.text(qStats) != want {
			t.Errorf("the stats are %q, want %q", tree.text(qStats), want)
		}
	})
	if took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestCountsAreKept checks that neither the stats of a quota nor getAllChildrenNumber visit the
// znodes that they count, of which there may be millions. They use the sums in the lists of
// children, which Check verifies.
func TestCountsAreKept(t *testing.T) {
	alive := func(int64) bool { return true }
	tree, do := quotaTree(t, "countHardLimit=1000")
	want := func(count, bytes int64, descendants int) {
		t.Helper()
		for range 2 { // once as they are, and once counted again by creating the stats
			if u := fmt.Sprintf("count=%d,bytes=%d", count, bytes); tree.text(qStats) != u {
				t.Errorf("the stats are %q, want %q", tree.text(qStats), u)
			}
			if code := do(proto.OpDelete, qStats, ""); code != proto.OK {
				t.Fatal(code)
			}
			if code := do(proto.OpCreate, qStats, "x"); code != proto.OK {
				t.Fatal(code)
			}
		}
		if n := tree.Lookup("/q").Descendants(); n != descendants {
			t.Errorf("%d znodes below /q, want %d", n, descendants)
		}
	}
	want(2, 6, 1)
	do(proto.OpCreate, "/q/a/b", "123")
	want(3, 9, 2)
	do(proto.OpSetData, "/q/a/b", "1")
	do(proto.OpSetData, "/q", "")
	want(3, 3, 2)
	do(proto.OpDelete, "/q/a/b", "")
	want(2, 2, 1)
	tree.Multi(&Txn{}, func() bool {
		do(proto.OpCreate, "/q/x", "12345")
		do(proto.OpSetData, "/q/a", "12345")
		do(proto.OpDelete, "/q/x", "")
		do(proto.OpDelete, "/q/a", "")
		return false
	})
	want(2, 2, 1)
	if err := tree.Check(alive); err != nil {
		t.Error(err)
	}

	// With a wrong sum, the results must be wrong as well.
	tree.Lookup("/q").children().sum = usage{count: 1_000_000, bytes: 5_000_000}
	before := tree.text(qStats)
	if do(proto.OpSetData, qStats, "x"); tree.text(qStats) == before {
		t.Fatal("the stats cannot be written")
	}
	do(proto.OpSetData, "/q/a", "12") // is added to the sum, and counts the usage again
	if u := tree.text(qStats); u != "count=1000001,bytes=5000000" {
		t.Errorf("the stats are %q", u)
	}
	if n := tree.Lookup("/q").Descendants(); n != 1_000_000 {
		t.Errorf("%d znodes below /q", n)
	}
	if err := tree.Check(alive); err == nil || !strings.Contains(err.Error(), "below") {
		t.Errorf("Check of a wrong sum: %v", err)
	}
}

// TestLongStats checks that long stats that a client wrote are parsed only once, and that an
// update removes their other keys.
func TestLongStats(t *testing.T) {
	tree, do := quotaTree(t, "countHardLimit=1000")
	short := "count=2,bytes=6=;" + strings.Repeat("k", 200) + "=1"
	do(proto.OpSetData, qStats, short)
	do(proto.OpCreate, "/q/b", "12")
	if want := strings.Replace(short, "2,bytes=6", "3,bytes=8", 1); tree.text(qStats) != want {
		t.Errorf("the stats are %q, want %q", tree.text(qStats), want)
	}
	b := []byte("count=1000,bytes=6")
	for i := range 100_000 {
		b = fmt.Appendf(b, ",k%d=1", i)
	}
	long := string(b)
	do(proto.OpSetData, qStats, long)
	allocated := allocatedBy(func() {
		for range 100 {
			if code := do(proto.OpCreate, "/q/c", ""); code != proto.QuotaExceeded {
				t.Fatal(code)
			}
		}
	})
	if tree.text(qStats) != long || allocated > 1<<20 { // parsing them once allocates about 20 MB
		t.Errorf("allocated %d bytes to refuse 100 writes", allocated)
	}
	do(proto.OpDelete, "/q/b", "")
	if want := "count=999,bytes=4"; tree.text(qStats) != want {
		t.Errorf("the stats are %q, want %q", tree.text(qStats), want)
	}
}

// TestDeepQuotas checks a quota deep in the tree with others above it, before and after it is
// deleted, and after a multi that deletes it but fails.
func TestDeepQuotas(t *testing.T) {
	const depth = 2000
	tree, x := New(), &Txn{}
	do := func(op proto.OpCode, path, data string) {
		t.Helper()
		x.Zxid++
		code := tree.Delete(x, path, -1)
		if op == proto.OpCreate {
			_, _, code = tree.Create(x, op, &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL}, -1)
		}
		if code != proto.OK {
			t.Fatalf("%.40s: %v", path, code)
		}
	}
	for i := range depth {
		path := strings.Repeat("/a", i+1)
		do(proto.OpCreate, path, "1")
		do(proto.OpCreate, QuotaPath+path, "")
	}
	deep := strings.Repeat("/a", depth)
	for _, path := range []string{"/a", deep[:depth], deep} {
		do(proto.OpCreate, QuotaPath+path+"/zookeeper_limits", "count=5000")
		do(proto.OpCreate, QuotaPath+path+"/zookeeper_stats", "")
	}
	check := func(at, stats string) {
		t.Helper()
		if path, q := tree.quotaOf(deep+"/b", false); path != at || string(q.stats.data) != stats {
			t.Errorf("the quota is on %.40s with stats %s, want %.40s with %s", path, q.stats.data, at, stats)
		}
		if err := tree.Check(func(int64) bool { return true }); err != nil {
			t.Error(err)
		}
	}
	check(deep, "count=1,bytes=1")
	for _, ok := range []bool{false, true} {
		tree.Multi(x, func() bool {
			do(proto.OpDelete, QuotaPath+deep+"/zookeeper_stats", "")
			do(proto.OpDelete, QuotaPath+deep+"/zookeeper_limits", "")
			do(proto.OpCreate, deep+"/b", "")
			if before, _ := tree.quotaOf(deep+"/b", true); before != deep {
				t.Errorf("in the multi, the quota is on %.40s, want %.40s", before, deep)
			}
			return ok
		})
		if !ok {
			check(deep, "count=1,bytes=1")
		}
	}
	check(deep[:depth], "count=1002,bytes=1001")
	if n := len(tree.quotaAt(deep[:depth]).next); n != 0 {
		t.Errorf("%d quotas are left below the deleted one's parent", n)
	}
}

// TestDeepQuota checks that restoring a quota on a deep path takes memory, and so time, in
// proportion to the lengths of the paths above it.
func TestDeepQuota(t *testing.T) {
	tree := New()
	path, total := QuotaPath, 0
	create := func(path string) {
		t.Helper()
		total += len(path)
		if _, _, code := tree.Create(&Txn{}, proto.OpCreate, &proto.CreateRequest{Path: path, Data: []byte{}, ACL: proto.OpenACL}, -1); code != proto.OK {
			t.Fatal(code)
		}
	}
	const depth = 1000
	for range depth {
		path += "/d"
		create(path)
	}
	create(path + "/" + limitsName)
	create(path + "/" + statsName)
	var records []Record
	for i := range tree.Len() {
		records = append(records, tree.nodes.at(uint32(i)).Record())
	}
	var restored *Tree
	allocated := allocatedBy(func() {
		var err error
		if restored, err = Restore(records); err != nil {
			t.Fatal(err)
		}
	})
	if restored.Digest() != tree.Digest() || restored.Check(func(int64) bool { return true }) != nil {
		t.Error("the restored tree differs")
	}
	if limit := 10*total + depth*1000; allocated > uint64(limit) {
		t.Errorf("allocated %d bytes for paths of %d bytes, want at most %d", allocated, total, limit)
	}
}
