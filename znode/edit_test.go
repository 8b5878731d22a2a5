package znode

import (
	"fmt"
	"testing"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestQuotaTotalsWhileTreeChanges: each namespace is there once, also if its quotas are deleted and made
// again meanwhile. Prometheus refuses all metrics if one is there twice.
func TestQuotaTotalsWhileTreeChanges(t *testing.T) {
	tree, x := New(), &Txn{}
	put := func(paths ...string) {
		var records []Record
		for _, path := range paths {
			records = append(records, Record{Path: path, Data: []byte("count=1,bytes=-1"), ACL: proto.OpenACL})
		}
		tree.Edit(x, nil, false, records)
	}
	of := func(i int) string { return fmt.Sprintf("%s/%d", QuotaPath, i) }
	const namespaces = 300
	for i := range namespaces {
		put(of(i), of(i)+"/"+limitsName)
	}
	for range 500 { // the order of a map is random
		steps := 0
		all := tree.QuotaTotals(func() {
			if steps++; steps == namespaces*3/4 {
				for i := range namespaces / 5 {
					tree.Edit(x, []string{of(5*i) + "/" + limitsName}, false, nil)
				}
				for i := range namespaces / 5 {
					put(of(namespaces-5-5*i) + "/" + limitsName)
				}
			}
		})
		found := map[string]bool{}
		for _, total := range all {
			if found[total.Namespace] {
				t.Fatalf("the namespace %q is there twice", total.Namespace)
			}
			found[total.Namespace] = true
		}
	}
}

// TestEditCounts: what an edit adds, changes and deletes is counted in the stats of quotas.
func TestEditCounts(t *testing.T) {
	tree, x := New(), &Txn{}
	at := func(path, data string) Record {
		return Record{Path: path, Data: []byte(data), ACL: proto.OpenACL}
	}
	check := func(want string) {
		t.Helper()
		if got := string(tree.Lookup(QuotaPath + "/q/" + statsName).Record().Data); got != want {
			t.Errorf("the stats are %q, should be %q", got, want)
		}
		if err := tree.Check(func(int64) bool { return true }); err != nil {
			t.Error(err)
		}
	}
	tree.Edit(x, nil, false, []Record{
		at("/q", ""), at(QuotaPath+"/q", ""), at(QuotaPath+"/q/"+limitsName, "count=9,bytes=-1"), at(QuotaPath+"/q/"+statsName, "count=1,bytes=0"),
	})
	tree.Edit(x, nil, false, []Record{at("/q/a", "12"), at("/q/b", "345")})
	check("count=3,bytes=5")
	tree.Edit(x, nil, false, []Record{at("/q/a", "1")})
	check("count=3,bytes=4")
	tree.Edit(x, []string{"/q/b"}, false, nil)
	check("count=2,bytes=1")
}
