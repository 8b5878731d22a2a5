package znode

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/proto"
)

// identities returns n identities of scheme digest, as short as they can be.
func identities(n int) (ids []proto.ID) {
	for i := range n {
		ids = append(ids, proto.ID{Scheme: proto.SchemeDigest, ID: fmt.Sprintf("%d:%s", i, strings.Repeat("h", 28))})
	}
	return ids
}

// auths returns an ACL of n different entries of scheme auth, each of which stands for all
// identities of the client.
func auths(n int) (acl []proto.ACL) {
	for i := range n {
		acl = append(acl, proto.ACL{Perms: int32(i), ID: proto.ID{Scheme: proto.SchemeAuth}})
	}
	return acl
}

// allocatedBy returns how many bytes f allocates.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func encodedLens(acl []proto.ACL) int { return len(proto.AppendACL(nil, acl)) - 4 }

// TestAuthIsBounded checks that scheme auth is replaced as in ZooKeeper, up to a limit far above
// what ordinary clients need, and that neither one list nor a transaction with many lists can
// store or allocate more.
func TestAuthIsBounded(t *testing.T) {
	ids := identities(1500)
	x := &Txn{IDs: ids}
	acl, code := x.fixACL(append(auths(2), proto.OpenACL[0]))
	var want []proto.ACL
	for perms := range int32(2) {
		for _, id := range ids {
			want = append(want, proto.ACL{Perms: perms, ID: id})
		}
	}
	if want = append(want, proto.OpenACL[0]); code != proto.OK || !slices.Equal(acl, want) {
		t.Errorf("%v, %d entries, want %d", code, len(acl), len(want))
	}

	var longest int
	for n := range 100 {
		acl, code := (&Txn{IDs: ids}).fixACL(auths(n + 1))
		if code == proto.OK {
			longest = encodedLens(acl)
		} else if code != proto.InvalidACL {
			t.Fatal(code)
		}
	}
	if longest > maxACL || longest < maxACL-encodedLens(want) {
		t.Errorf("the longest list has %d bytes, the limit is %d", longest, maxACL)
	}
	allocated := allocatedBy(func() { (&Txn{IDs: ids}).fixACL(auths(1200)) })
	if allocated > 16<<20 { // the whole list would have 1.8 million entries
		t.Errorf("allocated %d bytes to refuse a list", allocated)
	}

	// A list without auth is never refused because of its length.
	long := auths(100_000)
	for i := range long {
		long[i].ID = proto.OpenACL[0].ID
	}
	if acl, code := (&Txn{IDs: ids}).fixACL(long); code != proto.OK || len(acl) != len(long) {
		t.Errorf("%v, %d entries, want %d", code, len(acl), len(long))
	}

	// A multi with as many creates as fit into a frame, by a client with a few identities.
	few := &Txn{IDs: identities(4)}
	for range 22_000 {
		if _, code := few.fixACL(auths(1)); code != proto.OK {
			t.Fatal("an ordinary multi was refused: ", code)
		}
	}
	many, stored := &Txn{IDs: ids}, 0
	for range 22_000 {
		acl, code := many.fixACL(auths(1))
		if code != proto.OK {
			break
		}
		stored += encodedLens(acl)
	}
	if _, code := many.fixACL(proto.OpenACL); code != proto.OK {
		t.Error(code)
	}
	if _, code := many.fixACL(long); code != proto.OK {
		t.Error("a list without auth was refused: ", code)
	}
	if stored > 2<<20 || stored < 512<<10 {
		t.Errorf("one multi stored %d bytes of ACLs", stored)
	}
}

// TestLongLists checks that a list with an index permits the same as a search of its entries.
func TestLongLists(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	pick := func(n int) (ids []proto.ID) {
		for range n {
			ids = append(ids, [...]proto.ID{
				{Scheme: proto.SchemeIP, ID: "10.0.0.1"}, {Scheme: proto.SchemeIP, ID: "10.0.0.0/24"}, {Scheme: proto.SchemeIP, ID: "::1"},
				{Scheme: proto.SchemeIP, ID: "fe80::1%eth0"}, {Scheme: proto.SchemeIP, ID: "fe80::/10"}, {Scheme: proto.SchemeIP, ID: "odd"},
				{Scheme: proto.SchemeDigest, ID: "a:1"}, {Scheme: proto.SchemeDigest, ID: "b:1"}, {Scheme: proto.SchemeX509, ID: "CN=a"},
				{Scheme: proto.SchemeSASL, ID: "a"}, {Scheme: proto.SchemeSASL, ID: "super"}, {Scheme: proto.SchemeDigest, ID: "super"},
				proto.OpenACL[0].ID, {Scheme: proto.SchemeWorld, ID: "other"}, {Scheme: proto.SchemeSuper},
			}[r.IntN(14+r.IntN(20)/19)])
		}
		return ids
	}
	var others []proto.ACL // that match nobody
	for i := range 100 {
		others = append(others, proto.ACL{Perms: 31, ID: proto.ID{Scheme: proto.SchemeDigest, ID: fmt.Sprint("nobody:", i)}})
	}
	seen := map[bool]int{}
	for range 20_000 {
		var acl []proto.ACL
		for _, id := range pick(r.IntN(6)) {
			acl = append(acl, proto.ACL{Perms: 1 << r.IntN(5) & r.Int32N(32), ID: id})
		}
		ids, perms := pick(1+r.IntN(8)), int32(1<<r.IntN(5))
		want := permits(acl, perms, ids)
		seen[want]++
		if got := newAccess(acl).Permits(perms, ids); got != want {
			t.Fatalf("permissions %v for %v by %v: %v, want %v", perms, ids, acl, got, want)
		}
		if len(acl) == 0 {
			continue
		}
		// The same entries among many others that do not match.
		acl = append(acl, others...)
		r.Shuffle(len(acl), func(i, j int) { acl[i], acl[j] = acl[j], acl[i] })
		a, c := newAccess(acl), Checker{}
		if a.index == nil || a.Permits(perms, ids) != want || c.Permits(a, perms, ids) != want || c.Permits(a, perms, ids) != want {
			t.Fatalf("permissions %v for %v by the long list %v: want %v", perms, ids, acl, want)
		}
	}
	if seen[true] < 1000 || seen[false] < 1000 {
		t.Errorf("the test does not show much: %v", seen)
	}
}

// TestMasksAreParsedOnce checks that Permits does not parse the addresses in a list. Since a
// number in them may have leading zeros, an address may be as long as a request.
func TestMasksAreParsedOnce(t *testing.T) {
	mask := "10.0.0." + strings.Repeat("0", 1<<20) + "7"
	a := newAccess([]proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeIP, ID: mask}}})
	for addr, want := range map[string]bool{"10.0.0.7": true, "10.0.0.8": false} {
		ids := []proto.ID{{Scheme: proto.SchemeIP, ID: addr}}
		if allocs := testing.AllocsPerRun(10, func() {
			if a.Permits(proto.PermRead, ids) != want {
				t.Errorf("%s: want %v", addr, want)
			}
		}); allocs > 0 {
			t.Errorf("%s: a check allocates %v times, so it may parse the list", addr, allocs)
		}
	}
}

// TestChecksAreRemembered checks that a transaction of a client with many identities checks each
// list only once.
func TestChecksAreRemembered(t *testing.T) {
	tree, x := New(), &Txn{IDs: identities(1500)}
	counted := &counting{}
	for range 100 {
		if x.checker.Permits(counted, proto.PermRead, x.IDs) {
			t.Error("permitted")
		}
	}
	if counted.calls != 1 {
		t.Errorf("%d checks, want 1", counted.calls)
	}
	if x.checker.Permits(counted, proto.PermRead, identities(5)); counted.calls != 2 {
		t.Error("the cached result was used for another client")
	}
	if x.checker.Permits(counted, proto.PermAdmin, x.IDs); counted.calls != 3 {
		t.Error("the cached result was used for another permission")
	}
	for range 100 {
		tree.CheckVersion(x, "/", -1)
		tree.CheckVersion(x, "/zookeeper", -1)
	}
	if n := len(x.checker.known); n != 4 { // / and /zookeeper have the same list
		t.Errorf("%d cached results, want 4", n)
	}
}

// counting is a proto.Access that counts the checks.
type counting struct{ calls int }

func (c *counting) Permits(int32, []proto.ID) bool { c.calls++; return false }

// TestACLHashIsKept checks that an operation that does not change a znode's ACL does not compute
// its hash or index again.
func TestACLHashIsKept(t *testing.T) {
	tree := New()
	long := make([]proto.ACL, 10_000)
	for i := range long {
		long[i] = proto.ACL{Perms: int32(i)<<5 | proto.PermAll, ID: proto.OpenACL[0].ID}
	}
	if _, code := tree.SetACL(&Txn{}, &proto.SetACLRequest{Path: "/", ACL: long, Version: -1}); code != proto.OK {
		t.Fatal(code)
	}
	allocated := allocatedBy(func() {
		for i := range 100 {
			tree.Create(&Txn{}, proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprint("/n", i), ACL: proto.OpenACL}, -1)
		}
	})
	if tree.Len() != 104 || allocated > 1<<20 { // a hash allocates 230 kB
		t.Errorf("%d znodes, allocated %d bytes to create 100", tree.Len(), allocated)
	}
	// The same is true of a rollback that restores a deleted znode.
	if _, _, code := tree.Create(&Txn{}, proto.OpCreate, &proto.CreateRequest{Path: "/long", ACL: long}, -1); code != proto.OK {
		t.Fatal(code)
	}
	acl := tree.Lookup("/long").acl()
	allocated = allocatedBy(func() {
		tree.Multi(&Txn{}, func() bool { return tree.Delete(&Txn{}, "/long", -1) != proto.OK })
	})
	if tree.Lookup("/long").acl() != acl || allocated > 100<<10 {
		t.Errorf("allocated %d bytes to roll back", allocated)
	}
	if err := tree.Check(func(int64) bool { return true }); err != nil {
		t.Error(err)
	}
}
