package znode

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Restore builds a tree from records.
func Restore(records []Record) (*Tree, error) {
	x := NewRestorer()
	for i := range records {
		if err := x.Add(&records[i]); err != nil {
			return nil, err
		}
	}
	return x.Tree()
}

// model is a simple implementation of the tree: a map of records, which it searches
// completely for each question.
type model map[string]Record

func newModel() model {
	m := model{}
	for _, r := range decodeAll(encodeAll(New().Snapshot())) {
		m[r.Path] = r
	}
	return m
}

func (m model) parent(path string) string {
	i := strings.LastIndex(path, "/")
	return path[:max(i, 1)]
}

func (m model) children(path string) (paths []string) {
	for p := range m {
		if p != "/" && m.parent(p) == path {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// permits reports whether one of the identities has the permission perm. The test uses only the
// schemes world and digest.
func (m model) permits(path string, perm int32, ids []proto.ID) bool {
	for _, a := range m[path].ACL {
		if a.Perms&perm != 0 && (a.Scheme == "world" || slices.Contains(ids, a.ID)) {
			return true
		}
	}
	return false
}

// updateParent updates the parent of a znode that was created or deleted.
func (m model) updateParent(path string, zxid int64, created bool) {
	p := m[m.parent(path)]
	p.Pzxid = zxid
	if created {
		p.Creates++
	}
	m[p.Path] = p
}

func (m model) create(x *Txn, op proto.OpCode, r *proto.CreateRequest, ttl int64) (string, proto.Code) {
	parent, ok := m[m.parent(r.Path)]
	switch {
	case !ok:
		return "", proto.NoNode
	case !m.permits(parent.Path, proto.PermCreate, x.IDs):
		return "", proto.NoAuth
	}
	path := r.Path
	if r.Flags == 2 || r.Flags == 3 || r.Flags == 6 {
		path += fmt.Sprintf("%010d", parent.Creates)
	}
	if _, ok := m[path]; ok {
		return "", proto.NodeExists
	}
	if parent.Kind == Ephemeral || seemingEphemeral[parent.Path] {
		return "", proto.NoChildrenForEphemerals
	}
	if m.exceeds(x, path, 1, len(r.Data)) {
		return "", proto.QuotaExceeded
	}
	n := Record{Path: path, Data: r.Data, ACL: r.ACL, Czxid: x.Zxid, Mzxid: x.Zxid, Pzxid: x.Zxid, Ctime: x.Time, Mtime: x.Time}
	switch {
	case op == proto.OpCreateContainer:
		n.Kind = Container
	case op == proto.OpCreateTTL:
		n.Kind, n.Owner = TTL, ttl
	case r.Flags == 1 || r.Flags == 3:
		n.Kind, n.Owner = Ephemeral, x.Session
	}
	m[path] = n
	if seemingEphemeral != nil {
		seemingEphemeral[path] = n.Kind == Container && (r.Flags == 1 || r.Flags == 3)
	}
	m.updateParent(path, x.Zxid, true)
	if of, ok := strings.CutSuffix(path, "/zookeeper_stats"); ok && strings.HasPrefix(path, "/zookeeper/quota") {
		m.recount(strings.TrimPrefix(of, "/zookeeper/quota"))
	}
	m.count(path, 1, len(r.Data))
	return path, proto.OK
}

func (m model) remove(x *Txn, path string) {
	size := len(m[path].Data)
	delete(m, path)
	m.updateParent(path, x.Zxid, false)
	m.count(path, -1, -size)
}

func (m model) set(x *Txn, path string, data []byte, version int32) proto.Code {
	c := m.check(x, path, proto.PermWrite, -1, nil)
	n := m[path]
	more := len(data) - len(n.Data)
	switch {
	case c != proto.OK:
		return c
	case m.exceeds(x, path, 0, more):
		return proto.QuotaExceeded
	case version != -1 && version != n.Version:
		return proto.BadVersion
	}
	n.Data, n.Mzxid, n.Mtime = data, x.Zxid, x.Time
	n.Version++
	m[path] = n
	m.count(path, 0, more)
	return proto.OK
}

// quotaOf returns the nearest path at or above path that has limits, or "".
func (m model) quotaOf(path string) string {
	for p := path; p != "/"; p = m.parent(p) {
		if _, ok := m["/zookeeper/quota"+p+"/zookeeper_limits"]; ok {
			return p
		}
	}
	return ""
}

func numbers(format string, data []byte) (a, b int) {
	if _, err := fmt.Sscanf(string(data), format, &a, &b); err != nil {
		panic(err)
	}
	return a, b
}

func (m model) count(path string, nodes, size int) {
	stats := "/zookeeper/quota" + m.quotaOf(path) + "/zookeeper_stats"
	if n, ok := m[stats]; ok && m.quotaOf(path) != "" {
		a, b := numbers("count=%d,bytes=%d", n.Data)
		n.Data = fmt.Appendf(nil, "count=%d,bytes=%d", a+nodes, b+size)
		m[stats] = n
	}
}

// usage returns the stats that a quota on path should have.
func (m model) usage(path string) []byte {
	nodes, size := 0, 0
	for p, n := range m {
		if p == path || strings.HasPrefix(p, path+"/") {
			nodes++
			size += len(n.Data)
		}
	}
	return fmt.Appendf(nil, "count=%d,bytes=%d", nodes, size)
}

func (m model) recount(path string) {
	n := m["/zookeeper/quota"+path+"/zookeeper_stats"]
	n.Data = m.usage(path)
	m[n.Path] = n
}

// beforeMulti is the model before the current multi, by which quotas are checked.
var beforeMulti model

// seemingEphemeral tells which of the znodes that the current multi has created it treats as
// ephemeral: also containers that were created with the flags of an ephemeral.
var seemingEphemeral map[string]bool

func (m model) exceeds(x *Txn, path string, nodes, size int) bool {
	if beforeMulti != nil {
		m = beforeMulti
	}
	at := "/zookeeper/quota" + m.quotaOf(path)
	stats, ok := m[at+"/zookeeper_stats"]
	if !x.EnforceQuota || m.quotaOf(path) == "" || !ok {
		return false
	}
	a, b := numbers("count=%d,bytes=%d", stats.Data)
	maxNodes, maxSize := numbers("countHardLimit=%d;byteHardLimit=%d", m[at+"/zookeeper_limits"].Data)
	return nodes > 0 && maxNodes >= 0 && a+nodes > maxNodes || size != 0 && maxSize >= 0 && b+size > maxSize
}

func (m model) delete(x *Txn, path string, version int32) proto.Code {
	if _, ok := m[m.parent(path)]; !ok {
		return proto.NoNode
	}
	n, ok := m[path]
	switch {
	case !m.permits(m.parent(path), proto.PermDelete, x.IDs):
		return proto.NoAuth
	case !ok:
		return proto.NoNode
	case version != -1 && version != n.Version:
		return proto.BadVersion
	case len(m.children(path)) > 0:
		return proto.NotEmpty
	}
	m.remove(x, path)
	return proto.OK
}

// check returns the error of an operation on path that requires a permission and a version. have
// returns the version to compare.
func (m model) check(x *Txn, path string, perm, version int32, have func(Record) int32) proto.Code {
	n, ok := m[path]
	switch {
	case !ok:
		return proto.NoNode
	case !m.permits(path, perm, x.IDs):
		return proto.NoAuth
	case version != -1 && version != have(n):
		return proto.BadVersion
	}
	return proto.OK
}

func (m model) closeSession(x *Txn) {
	for _, p := range m.ephemerals(x.Session) {
		m.remove(x, p)
	}
}

func (m model) ephemerals(session int64) (paths []string) {
	for p, n := range m {
		if n.Kind == Ephemeral && n.Owner == session {
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths, func(a, b string) int {
		if d := m[a].Czxid - m[b].Czxid; d != 0 {
			return int(d)
		}
		return strings.Compare(a, b)
	})
	return paths
}

func (m model) reapable(now int64) (paths []string) {
	for p, n := range m {
		old := n.Kind == Container && n.Creates > 0 || n.Kind == TTL && now > n.Mtime+n.Owner
		if old && len(m.children(p)) == 0 {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// action is an operation that can be applied to a tree and to a model.
type action struct {
	text  string
	tree  func(*Tree, *Txn) (string, proto.Code)
	model func(model, *Txn) (string, proto.Code)
}

var (
	owner = proto.ID{Scheme: "digest", ID: "u:h"}
	acls  = [][]proto.ACL{
		proto.OpenACL, proto.OpenACL, proto.OpenACL, {{Perms: 31, ID: owner}},
		{{Perms: 31, ID: owner}, {Perms: 1, ID: proto.OpenACL[0].ID}}, {{Perms: 8, ID: proto.OpenACL[0].ID}},
	}
)

func randomPath(r *rand.Rand) string {
	p := ""
	for i := 0; i == 0 || i < 3 && r.IntN(2) == 0; i++ {
		p += "/" + string(rune('a'+r.IntN(3)))
	}
	if r.IntN(6) == 0 {
		p += fmt.Sprintf("/%010d", r.IntN(4))
	}
	return p
}

// randomQuota creates, changes or deletes a znode of a quota. If tidy is set, it neither writes
// numbers into the stats nor creates or deletes limits.
func randomQuota(r *rand.Rand, tidy bool) action {
	at := "/zookeeper/quota" + randomPath(r)
	if tidy {
		at = "/zookeeper/quota/" + string(rune('a'+r.IntN(3)))
	}
	limits := fmt.Appendf(nil, "countHardLimit=%d;byteHardLimit=%d", r.IntN(20)-1, r.IntN(20)-1)
	stats := fmt.Appendf(nil, "count=%d,bytes=%d", r.IntN(9), r.IntN(9))
	switch n := r.IntN(12); {
	case n < 1 && !tidy:
		return remove(at+"/zookeeper_limits", -1)
	case n < 2 && !tidy:
		return setData(at+"/zookeeper_stats", stats, -1)
	case n < 4 && !tidy:
		return create(proto.OpCreate, &proto.CreateRequest{Path: at, ACL: proto.OpenACL}, -1)
	case n < 6 && !tidy:
		return create(proto.OpCreate, &proto.CreateRequest{Path: at + "/zookeeper_limits", Data: limits, ACL: proto.OpenACL}, -1)
	case n < 7:
		return setData(at+"/zookeeper_limits", limits, -1)
	case n < 8:
		return remove(at+"/zookeeper_stats", -1)
	}
	return create(proto.OpCreate2, &proto.CreateRequest{Path: at + "/zookeeper_stats", Data: stats, ACL: proto.OpenACL, Flags: int32(r.IntN(2))}, -1)
}

// code is the result of an action without a path.
func code(c proto.Code) (string, proto.Code) { return "", c }

func create(op proto.OpCode, q *proto.CreateRequest, ttl int64) action {
	return action{fmt.Sprintf("create %d %s flags %d ttl %d", op, q.Path, q.Flags, ttl),
		func(t *Tree, x *Txn) (string, proto.Code) {
			path, n, c := t.Create(x, op, q, ttl)
			if n == nil {
				return "", c
			}
			if s := n.Stat(); s.DataLength != int32(len(q.Data)) {
				return "", proto.SystemError
			}
			return path, c
		},
		func(m model, x *Txn) (string, proto.Code) { return m.create(x, op, q, ttl) }}
}

func remove(path string, version int32) action {
	return action{fmt.Sprintf("delete %s version %d", path, version),
		func(t *Tree, x *Txn) (string, proto.Code) { return code(t.Delete(x, path, version)) },
		func(m model, x *Txn) (string, proto.Code) { return code(m.delete(x, path, version)) }}
}

func setData(path string, data []byte, version int32) action {
	return action{fmt.Sprintf("set %s version %d", path, version),
		func(t *Tree, x *Txn) (string, proto.Code) {
			_, c := t.SetData(x, &proto.SetDataRequest{Path: path, Data: data, Version: version})
			return code(c)
		},
		func(m model, x *Txn) (string, proto.Code) { return code(m.set(x, path, data, version)) }}
}

func randomAction(r *rand.Rand, tidy bool) action {
	if r.IntN(5) == 0 {
		return randomQuota(r, tidy)
	}
	path, version, acl := randomPath(r), int32(max(r.IntN(6)-3, -1)), acls[max(r.IntN(24)-18, 0)]
	data := []byte(strings.Repeat("d", r.IntN(3)))
	if r.IntN(4) == 0 {
		data = nil
	}
	switch n := r.IntN(16); {
	case n < 6:
		op, flags, ttl := proto.OpCreate, int32(r.IntN(4)), int64(-1)
		switch r.IntN(6) {
		case 0:
			op = proto.OpCreateContainer
		case 1:
			op, flags, ttl = proto.OpCreateTTL, 5+int32(r.IntN(2)), 1+r.Int64N(50)
		}
		if flags == 2 || flags == 3 || flags == 6 {
			path += "/"
		}
		return create(op, &proto.CreateRequest{Path: path, Data: data, ACL: acl, Flags: flags}, ttl)
	case n < 10:
		return remove(path, version)
	case n < 13:
		return setData(path, data, version)
	case n < 14:
		return action{fmt.Sprintf("setacl %s version %d", path, version),
			func(t *Tree, x *Txn) (string, proto.Code) {
				_, c := t.SetACL(x, &proto.SetACLRequest{Path: path, ACL: acl, Version: version})
				return code(c)
			},
			func(m model, x *Txn) (string, proto.Code) {
				c := m.check(x, path, proto.PermAdmin, version, func(n Record) int32 { return n.Aversion })
				if n := m[path]; c == proto.OK {
					n.ACL = acl
					n.Aversion++
					m[path] = n
				}
				return code(c)
			}}
	case n < 15:
		return action{fmt.Sprintf("check %s version %d", path, version),
			func(t *Tree, x *Txn) (string, proto.Code) { return code(t.CheckVersion(x, path, version)) },
			func(m model, x *Txn) (string, proto.Code) {
				return code(m.check(x, path, proto.PermRead, version, func(n Record) int32 { return n.Version }))
			}}
	}
	return action{"reap " + path,
		func(t *Tree, x *Txn) (string, proto.Code) { return code(t.Reap(x, path)) },
		func(m model, x *Txn) (string, proto.Code) {
			n, ok := m[path]
			switch {
			case !ok:
				return code(proto.NoNode)
			case n.Kind != Container && n.Kind != TTL:
				return code(proto.BadVersion)
			case !slices.Contains(m.reapable(x.Time), path):
				return code(proto.NotEmpty)
			}
			m.remove(x, path)
			return code(proto.OK)
		}}
}

// TestModel runs random operations on a tree and on the model, and compares the results and the
// states. Snapshots of the tree are read concurrently with operations, and must not change.
func TestModel(t *testing.T) {
	seed := testkit.Seed(t)
	for stream, tidy := range []bool{false, true} {
		t.Run(fmt.Sprintf("tidy=%v", tidy), func(t *testing.T) { testModel(t, rand.New(rand.NewPCG(seed, uint64(stream)+1)), tidy) })
	}
}

// testModel runs one part of TestModel. If tidy is set, it creates quotas as zkCli does, and then
// all stats must be exact. Otherwise it changes their znodes at random.
func testModel(t *testing.T, r *rand.Rand, tidy bool) {
	tree, m := New(), newModel()
	type frozen struct {
		snapshot *Snapshot
		bytes    []byte
	}
	if tidy { // create the limits first
		for _, name := range []string{"/a", "/a/zookeeper_limits", "/b", "/b/zookeeper_limits", "/c", "/c/zookeeper_limits"} {
			s := create(proto.OpCreate, &proto.CreateRequest{Path: "/zookeeper/quota" + name, Data: []byte("countHardLimit=7;byteHardLimit=9"), ACL: proto.OpenACL}, -1)
			s.tree(tree, &Txn{})
			s.model(m, &Txn{})
		}
	}
	var snapshots []frozen
	var readers sync.WaitGroup
	good, exceeded, counted := 0, 0, 0
	for zxid := int64(1); zxid <= 4000 && !t.Failed(); zxid++ {
		txn := func() *Txn {
			x := &Txn{Zxid: zxid, Time: zxid * 3, Session: 1 + zxid%3, EnforceQuota: zxid%3 > 0}
			if zxid%8 != 0 {
				x.IDs = []proto.ID{owner}
			}
			return x
		}
		x, y := txn(), txn()
		var text string
		switch n := r.IntN(100); {
		case n < 1:
			text = fmt.Sprint("close session ", x.Session)
			tree.CloseSession(x, x.Session)
			m.closeSession(y)
		case n < 12:
			text = multiBoth(t, r, tree, m, x, y, tidy)
		default:
			s := randomAction(r, tidy)
			text = s.text
			path, code := s.tree(tree, x)
			wantPath, want := s.model(m, y)
			if path != wantPath || code != want {
				t.Errorf("zxid %d: %s: %q %v, want %q %v", zxid, text, path, code, wantPath, want)
			}
			if code != proto.OK && len(x.Changes) > 0 {
				t.Errorf("zxid %d: %s failed, but changed %v", zxid, text, x.Changes)
			}
			switch code {
			case proto.OK:
				good++
			case proto.QuotaExceeded:
				exceeded++
			}
		}
		for _, at := range []string{"/a", "/b", "/c"} {
			on, q := tree.quotaOf(at, false)
			if !tidy || on != at || !q.stats.exists {
				continue
			}
			counted++
			if want := m.usage(at); q.stats.data != string(want) {
				t.Fatalf("after zxid %d, %s: the stats of %s are %q, want %q", zxid, text, at, q.stats.data, want)
			}
		}
		if zxid%8 == 0 { // not always, since same is slow
			if err := same(tree, m, x.Time); err != nil {
				t.Errorf("after zxid %d, %s: %v", zxid, text, err)
			}
		}
		if r.IntN(30) == 0 {
			s := tree.Snapshot()
			f := frozen{s, encodeAll(s)}
			snapshots = append(snapshots, f)
			readers.Go(func() { // concurrently, so that the race detector can find a race
				if !bytes.Equal(encodeAll(f.snapshot), f.bytes) {
					t.Error("a snapshot changed while it was read")
				}
			})
			if r.IntN(4) == 0 { // continue with a restored tree
				restored, err := Restore(decodeAll(f.bytes))
				if err != nil {
					t.Fatal(err)
				}
				tree = restored
			}
		}
	}
	readers.Wait()
	for i, f := range snapshots {
		if !bytes.Equal(encodeAll(f.snapshot), f.bytes) {
			t.Errorf("snapshot %d of %d changed", i, len(snapshots))
		}
	}
	if exceeded < 5 || tidy && counted < 1000 {
		t.Errorf("quotas refused %d writes, %d stats were compared: the test does not show much", exceeded, counted)
	}
	if good < 250 || len(snapshots) < 20 {
		t.Errorf("%d successful operations and %d snapshots: the test does not show much", good, len(snapshots))
	}
}

// multiBoth runs a random multi on a tree and a model, and returns a description of it. The model
// rolls back by restoring a copy.
func multiBoth(t *testing.T, r *rand.Rand, tree *Tree, m model, x, y *Txn, tidy bool) (text string) {
	before, digest, size := maps.Clone(m), tree.Digest(), tree.DataSize()
	beforeMulti, seemingEphemeral = before, map[string]bool{}
	ok := tree.Multi(x, func() bool {
		for range r.IntN(6) {
			s := randomAction(r, tidy)
			text += "; " + s.text
			path, code := s.tree(tree, x)
			wantPath, want := s.model(m, y)
			if path != wantPath || code != want {
				t.Errorf("zxid %d: multi%s: %q %v, want %q %v", x.Zxid, text, path, code, wantPath, want)
			}
			if code != proto.OK && r.IntN(3) > 0 { // sometimes continue, so that more succeed
				return false
			}
		}
		return r.IntN(3) > 0
	})
	beforeMulti, seemingEphemeral = nil, nil
	if !ok {
		clear(m)
		maps.Copy(m, before)
		if tree.Digest() != digest || tree.DataSize() != size || len(x.Changes) > 0 {
			t.Errorf("zxid %d: multi%s: was not rolled back completely", x.Zxid, text)
		}
	}
	return "multi" + text
}

// same compares everything that both a tree and a model know.
func same(tree *Tree, m model, now int64) error {
	if err := tree.Check(func(s int64) bool { return s >= 1 && s <= 3 }); err != nil {
		return err
	}
	if tree.Len() != len(m) {
		return fmt.Errorf("%d znodes, want %d", tree.Len(), len(m))
	}
	var size int64
	records := make([]Record, 0, len(m))
	below, children := map[string]int{}, map[string][]string{}
	for p := range m {
		if p != "/" {
			children[m.parent(p)] = append(children[m.parent(p)], p)
		}
		for p != "/" {
			p = m.parent(p)
			below[p]++
		}
	}
	for p, want := range m {
		n := tree.Lookup(p)
		if n == nil {
			return fmt.Errorf("%s is missing", p)
		}
		if r := n.Record(); !reflect.DeepEqual(r, want) {
			return fmt.Errorf("%s is %+v, want %+v", p, r, want)
		}
		children := children[p]
		slices.Sort(children)
		var names []string
		for name := range tree.Children(n) {
			names = append(names, strings.TrimSuffix(p, "/")+"/"+name)
		}
		if slices.Sort(names); !slices.Equal(names, children) {
			return fmt.Errorf("the children of %s are %v, want %v", p, names, children)
		}
		if n.Descendants() != below[p] {
			return fmt.Errorf("%d znodes below %s, want %d", n.Descendants(), p, below[p])
		}
		stat := n.Stat()
		if deletes := want.Creates - int64(len(children)); stat.Cversion != int32(want.Creates+deletes) || stat.NumChildren != int32(len(children)) {
			return fmt.Errorf("%s: %d creates and %d children, but the Stat is %+v", p, want.Creates, len(children), stat)
		}
		size += int64(len(p) + len(want.Data))
		records = append(records, want)
	}
	if tree.DataSize() != size {
		return fmt.Errorf("data size %d, want %d", tree.DataSize(), size)
	}
	ephemerals := 0
	for s := range int64(5) {
		want := m.ephemerals(s)
		if ephemerals += len(want); !slices.Equal(tree.EphemeralsOf(s, ""), want) {
			return fmt.Errorf("ephemerals of session %d are %v, want %v", s, tree.EphemeralsOf(s, ""), want)
		}
	}
	if tree.Ephemerals() != ephemerals {
		return fmt.Errorf("%d ephemerals, want %d", tree.Ephemerals(), ephemerals)
	}
	if got, want := reapable(tree, now), m.reapable(now); !slices.Equal(got, want) {
		return fmt.Errorf("reapable znodes are %v, want %v", got, want)
	}
	// An equal tree that was built in another way must have the same digest.
	fresh, err := Restore(records)
	if err != nil {
		return err
	}
	if fresh.Digest() != tree.Digest() {
		return fmt.Errorf("digest %016x, but an equal restored tree has %016x", tree.Digest(), fresh.Digest())
	}
	return nil
}

// TestDigestOfEveryField checks that trees that differ in one field of one record have different
// digests.
func TestDigestOfEveryField(t *testing.T) {
	base := Record{Path: "/a", Data: []byte("x"), ACL: proto.OpenACL, Czxid: 1, Mzxid: 2, Pzxid: 3, Ctime: 4, Mtime: 5, Creates: 6, Owner: 7, Version: 8, Aversion: 9, Kind: TTL}
	build := func(change func(*Record)) uint64 {
		r := base
		change(&r)
		tree, err := Restore([]Record{{Path: "/", ACL: proto.OpenACL}, r})
		if err != nil {
			t.Fatal(err)
		}
		return tree.Digest()
	}
	changes := map[string]func(*Record){
		"nothing": func(*Record) {},
		"path":    func(r *Record) { r.Path = "/b" }, "data": func(r *Record) { r.Data = []byte("y") },
		"null data": func(r *Record) { r.Data = nil }, "empty data": func(r *Record) { r.Data = []byte{} },
		"acl":          func(r *Record) { r.ACL = []proto.ACL{{Perms: 1, ID: proto.OpenACL[0].ID}} },
		"acl order":    func(r *Record) { r.ACL = []proto.ACL{{Perms: 1, ID: owner}, proto.OpenACL[0]} },
		"acl reversed": func(r *Record) { r.ACL = []proto.ACL{proto.OpenACL[0], {Perms: 1, ID: owner}} },
		"czxid":        func(r *Record) { r.Czxid++ }, "mzxid": func(r *Record) { r.Mzxid++ }, "pzxid": func(r *Record) { r.Pzxid++ },
		"ctime": func(r *Record) { r.Ctime++ }, "mtime": func(r *Record) { r.Mtime++ }, "creates": func(r *Record) { r.Creates++ },
		"owner": func(r *Record) { r.Owner++ }, "version": func(r *Record) { r.Version++ }, "aversion": func(r *Record) { r.Aversion++ },
		"kind": func(r *Record) { r.Kind = Container }, "two swapped": func(r *Record) { r.Czxid, r.Mzxid = r.Mzxid, r.Czxid },
	}
	seen := map[uint64]string{}
	for name, change := range changes {
		d := build(change)
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[d] = name
	}
}

// TestRestoreRefuses checks that records that do not form a tree are an error.
func TestRestoreRefuses(t *testing.T) {
	root := Record{Path: "/", ACL: proto.OpenACL}
	node := func(path string) Record { return Record{Path: path, ACL: proto.OpenACL} }
	for name, records := range map[string][]Record{
		"nothing":          nil,
		"no root":          {node("/a")},
		"an orphan":        {root, node("/a/b")},
		"the same twice":   {root, node("/a"), node("/a")},
		"two roots":        {root, root},
		"an invalid path":  {root, node("/a/")},
		"an empty path":    {root, node("")},
		"a relative path":  {root, node("a")},
		"a forbidden name": {root, node("/..")},
	} {
		if _, err := Restore(records); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	tree, err := Restore([]Record{node("/a/b"), node("/a-b"), root, node("/a")}) // in any order
	if err != nil || tree.Len() != 4 {
		t.Errorf("out of order: %v", err)
	}
}

// TestAppendData checks the encoding of data, also of the byte that stands for a null string.
func TestAppendData(t *testing.T) {
	for _, data := range [][]byte{nil, {}, []byte("data"), []byte(jute.Null)} {
		n := newNode(&Record{Path: "/a", Data: data, ACL: proto.OpenACL}, newChildList(""), 0)
		if got, want := n.AppendData(nil), jute.AppendBuffer(nil, data); !bytes.Equal(got, want) {
			t.Errorf("%q is encoded as %x, want %x", data, got, want)
		}
	}
}

// FuzzDecodeRecord decodes random bytes. A record that it gets must be equal after it is encoded
// and decoded again.
func FuzzDecodeRecord(f *testing.F) {
	tree := New()
	x := &Txn{Zxid: 1, Session: 5, IDs: []proto.ID{owner}}
	tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: "/a", Data: []byte("data"), ACL: acls[4], Flags: 1}, -1)
	s := tree.Snapshot()
	for i := range s.Len() {
		f.Add(s.Append(nil, i))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := DecodeRecord(b)
		if err != nil {
			return
		}
		i := strings.LastIndexByte(r.Path, '/')
		if i < 0 {
			return // not the path of a znode
		}
		n := newNode(&r, newChildList(r.Path[:i]), 0)
		again, rest2, err := DecodeRecord(append(appendNode(nil, &n), rest...))
		if err != nil || !bytes.Equal(rest, rest2) || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

// TestLongACL checks that finding the duplicates in a list as long as a frame allows does not take
// long, since that blocks all other operations.
func TestLongACL(t *testing.T) {
	acl := make([]proto.ACL, 80_000)
	for i := range acl {
		acl[i] = proto.ACL{Perms: int32(i % 60_000), ID: proto.OpenACL[0].ID}
	}
	var got []proto.ACL
	var code proto.Code
	if took := testkit.CPU(t, func() { got, code = new(Txn).fixACL(acl) }); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if code != proto.OK || !slices.Equal(got, acl[:60_000]) {
		t.Errorf("%v, %d entries", code, len(got))
	}
}

func reapable(t *Tree, now int64) []string {
	paths := t.Reapable(now, func() {})
	slices.Sort(paths)
	return paths
}

// TestBelow reads the ephemerals of a session, and all znodes, one by one while others come and go, and checks
// that none is missing that was there all the time.
func TestBelow(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	for turn := range 400 {
		tree, next := New(), 0
		x := &Txn{Session: 1}
		there := map[string]bool{} // whether it is there all the time
		change := func() {
			x.Zxid++
			if next < 20 || r.IntN(2) == 0 {
				path := fmt.Sprintf("/%d", next)
				next++
				if _, _, code := tree.Create(x, proto.OpCreate, &proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: proto.FlagEphemeral}, -1); code != proto.OK {
					t.Fatal(code)
				}
				there[path] = true
				return
			}
			for path := range there {
				tree.Delete(x, path, -1)
				delete(there, path)
				return
			}
		}
		for range 20 + r.IntN(20) {
			change()
		}
		old := maps.Clone(there)
		var found []Owned
		for i := 1 << 30; ; {
			var e Owned
			if turn%2 == 0 {
				e, i = tree.EphemeralBelow(1, i)
			} else if n, k := tree.NodeBelow(i); n != nil {
				e, i = Owned{string(n.AppendPath(nil)), n.czxid}, k
			} else {
				i = k
			}
			if i < 0 {
				break
			}
			found = append(found, e)
			for range r.IntN(3) {
				change()
			}
		}
		paths := PathsOf(found)
		for path := range old {
			if n := strings.Count(strings.Join(paths, " ")+" ", path+" "); there[path] && n != 1 {
				t.Errorf("%s was found %d times", path, n)
			}
		}
	}
}

// TestListed compares whether znodes are listed with a search from the root down.
func TestListed(t *testing.T) {
	tree, me := New(), proto.ID{Scheme: proto.SchemeIP, ID: "127.0.0.1"}
	acls := [][]proto.ACL{proto.OpenACL, {{Perms: proto.PermAll, ID: me}}, {{Perms: proto.PermAll &^ proto.PermRead, ID: proto.OpenACL[0].ID}}, {{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeIP, ID: "192.0.2.1"}}}}
	var grow func(at string, depth int)
	grow = func(at string, depth int) {
		for i, acl := range acls {
			path := fmt.Sprintf("%s/%d", at, i)
			if _, _, code := tree.Create(&Txn{IDs: []proto.ID{{Scheme: proto.SchemeSuper}}}, proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl}, -1); code != proto.OK {
				t.Fatal(path, code)
			}
			if depth > 1 {
				grow(path, depth-1)
			}
		}
	}
	grow("", 3)
	ids, listed := []proto.ID{me}, map[string]bool{}
	var walk func(n *Node)
	walk = func(n *Node) {
		path := n.Path()
		if listed[path] = true; n.Access().Permits(proto.PermRead, ids) {
			for name := range tree.Children(n) {
				walk(tree.Lookup(strings.TrimSuffix(path, "/") + "/" + name))
			}
		}
	}
	walk(tree.Lookup(Root))
	if n := len(listed); n < 20 || n > 60 {
		t.Fatalf("%d znodes are listed", n)
	}
	for i := tree.Len(); i > 0; {
		var n *Node
		if n, i = tree.NodeBelow(i); tree.Listed(n, ids) != listed[n.Path()] {
			t.Errorf("%s is listed: %v", n.Path(), !listed[n.Path()])
		}
		if path := string(n.AppendPath([]byte("x"))); path != "x"+n.Path() {
			t.Errorf("%s is appended as %s", n.Path(), path)
		}
	}
}
