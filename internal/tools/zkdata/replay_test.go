package zkdata_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/testing/zklog"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// show returns the whole state as text.
func show(s *zkdata.State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "zxid %#x, sessions %v\n", s.Zxid, s.Sessions)
	for _, path := range s.Paths() {
		n := s.Get(path)
		fmt.Fprintf(&b, "%s: %q %v c%d m%d p%d %d %d versions %d %d %d owner %#x %v\n", path, n.Data, n.ACL, n.Czxid, n.Mzxid, n.Pzxid,
			n.Ctime, n.Mtime, n.Version, n.Cversion, n.Aversion, uint64(n.Owner), s.Kind(n))
	}
	return b.String()
}

// replay applies the transactions of a log to s. It returns how many there were, and how many bytes
// are at the end that are not a whole transaction.
func replay(s *zkdata.State, log []byte) (n int, torn int64, err error) {
	l, err := zkdata.NewLog(bytes.NewReader(log))
	if err != nil {
		return 0, 0, err
	}
	for {
		t, _, err := l.Next()
		if err == io.EOF {
			return n, l.Torn, nil
		}
		if err == nil {
			err = s.Apply(t)
		}
		if err != nil {
			return n, 0, err
		}
		n++
	}
}

var digestACL = []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "digest", ID: "u:x"}}, {Perms: proto.PermRead, ID: proto.OpenACL[0].ID}}

// everything has each kind of transaction.
var everything = []zkdata.Txn{
	{Op: proto.OpCreateSession, Session: 0x77, Zxid: 1, Timeout: 4000},
	{Op: proto.OpCreateSession, Session: 0x88, Zxid: 2, Timeout: 6000},
	{Op: proto.OpCreate, Session: 0x77, Zxid: 3, Time: 30, Path: "/a", Data: []byte("x"), ACL: proto.OpenACL, ParentCversion: 1},
	{Op: proto.OpCreate2, Session: 0x77, Zxid: 4, Time: 40, Path: "/a/e", ACL: digestACL, Ephemeral: true, ParentCversion: 1},
	{Op: proto.OpCreateContainer, Session: 0x77, Zxid: 5, Time: 50, Path: "/c", Data: []byte{}, ACL: proto.OpenACL, ParentCversion: 2},
	{Op: proto.OpCreateTTL, Session: 0x77, Zxid: 6, Time: 60, Path: "/t", Data: []byte{}, ACL: proto.OpenACL, ParentCversion: 3, TTL: 1234},
	{Op: proto.OpCreate, Session: 0x88, Zxid: 7, Time: 70, Path: "/a/f", ACL: proto.OpenACL, Ephemeral: true, ParentCversion: -1}, // before 3.4
	{Op: proto.OpMulti, Session: 0x77, Zxid: 8, Time: 80, Ops: []zkdata.Txn{
		{Op: proto.OpCheck, Path: "/a", Version: 0},
		{Op: proto.OpCreate, Path: "/m", ACL: proto.OpenACL, ParentCversion: 4},
		{Op: proto.OpSetData, Path: "/a", Data: []byte("yz"), Version: 1},
		{Op: proto.OpCreateContainer, Path: "/m/c", ACL: proto.OpenACL, ParentCversion: 1},
		{Op: proto.OpCreateTTL, Path: "/m/t", ACL: proto.OpenACL, ParentCversion: 2, TTL: 9},
		{Op: proto.OpDelete, Path: "/m/t"},
	}},
	{Op: proto.OpMulti, Session: 0x77, Zxid: 9, Time: 90, Ops: []zkdata.Txn{ // one that failed
		{Op: proto.OpCreate, Path: "/not", ACL: proto.OpenACL, ParentCversion: 5},
		{Op: proto.OpError, Err: -101},
	}},
	{Op: proto.OpError, Session: 0x77, Zxid: 10, Err: -110},
	{Op: proto.OpSetACL, Session: 0x77, Zxid: 11, Path: "/c", ACL: digestACL, Version: 1},
	{Op: proto.OpReconfig, Session: 0x77, Zxid: 12, Time: 120, Path: "/zookeeper/config", Data: []byte("server.1=a"), Version: -1},
	{Op: proto.OpCreateSession, Session: 0x99, Zxid: 13, Timeout: 9000},
	{Op: proto.OpCreate, Session: 0x99, Zxid: 14, Time: 140, Path: "/ggg", ACL: proto.OpenACL, Ephemeral: true, ParentCversion: 5},
	{Op: proto.OpCloseSession, Session: 0x99, Zxid: 15, Paths: []string{"/ggg"}}, // as long as a digest
	{Op: proto.OpCloseSession, Session: 0x88, Zxid: 16},
	{Op: proto.OpDeleteContainer, Zxid: 17, Path: "/m/c"},
}

const afterEverything = `zxid 0x11, sessions map[119:4000]
/: "" [{31 {world anyone}}] c0 m0 p15 0 0 versions 0 5 0 owner 0x0 0
/a: "yz" [{31 {world anyone}}] c3 m8 p16 30 80 versions 1 2 0 owner 0x0 0
/a/e: "" [{31 {digest u:x}} {1 {world anyone}}] c4 m4 p4 40 40 versions 0 0 0 owner 0x77 1
/c: "" [{31 {digest u:x}} {1 {world anyone}}] c5 m5 p5 50 50 versions 0 0 1 owner 0x8000000000000000 2
/m: "" [{31 {world anyone}}] c8 m8 p17 80 80 versions 0 2 0 owner 0x0 0
/t: "" [{31 {world anyone}}] c6 m6 p6 60 60 versions 0 0 0 owner 0xff000000000004d2 3
/zookeeper: "" [{31 {world anyone}}] c0 m0 p0 0 0 versions 0 0 0 owner 0x0 0
/zookeeper/config: "server.1=a" [{1 {world anyone}}] c0 m12 p0 0 120 versions -1 0 -1 owner 0x0 0
/zookeeper/quota: "" [{31 {world anyone}}] c0 m0 p0 0 0 versions 0 0 0 owner 0x0 0
`

func TestTransactions(t *testing.T) {
	s := zkdata.NewState()
	n, torn, err := replay(s, zklog.File(1000, everything...))
	if err != nil || n != len(everything) || torn != 0 {
		t.Fatalf("%d of %d transactions, %d bytes at the end: %v", n, len(everything), torn, err)
	}
	if deleted, err := s.Finish(); err != nil || len(deleted) > 0 {
		t.Fatalf("deleted %v: %v", deleted, err)
	}
	if got := show(s); got != afterEverything {
		t.Errorf("the state is\n%s\nshould be\n%s", got, afterEverything)
	}
	if ttl := s.Get("/t").TTL(); ttl != 1234 {
		t.Errorf("a TTL of %d ms", ttl)
	}
}

// TestReplayTwice: a log that is applied a second time to its own result ends in the same state, as it
// does after a fuzzy snapshot.
func TestReplayTwice(t *testing.T) {
	s := zkdata.NewState()
	for range 2 {
		if _, _, err := replay(s, zklog.File(0, everything...)); err != nil {
			t.Fatal(err)
		}
	}
	// Only what was created without a number for its parent counts twice: that was so before 3.4.
	if got, want := show(s), strings.Replace(afterEverything, "p16 30 80 versions 1 2 0", "p16 30 80 versions 1 3 0", 1); got != want {
		t.Errorf("the state is\n%s\nshould be\n%s", got, want)
	}
}

// live is a ZooKeeper that makes up transactions.
type live struct {
	*zkdata.State
	r    *rand.Rand
	log  []zkdata.Txn
	acls [][]proto.ACL // that it has used
	// fuzzy is set while it writes a snapshot. A closeSession then stores paths, as since 3.6. Without
	// them, ZooKeeper does not learn either that the parent of a znode that the snapshot lacks was changed.
	fuzzy bool
}

// step makes one transaction.
func (l *live) step(t *testing.T) {
	r := l.r
	x := zkdata.Txn{Zxid: l.Zxid + 1, Time: 1000 + l.Zxid, Session: 1 + r.Int64N(4)}
	x.Op = l.choose(&x)
	if x.Op == proto.OpMulti {
		// The operations do not depend on each other.
		first, second := zkdata.Txn{}, zkdata.Txn{}
		first.Op, second.Op = proto.OpSetData, proto.OpCreate2
		first.Path, first.Data, first.Version = "/a", fmt.Append(nil, "multi", x.Zxid), 7
		second.Path, second.ACL, second.ParentCversion = fmt.Sprintf("/m%d", x.Zxid), l.acl(), l.Get("/").Cversion+1
		x.Ops = []zkdata.Txn{first, second}
		if l.Get("/a") == nil {
			x.Ops = x.Ops[1:]
		}
		if r.IntN(4) == 0 {
			x.Ops = append(x.Ops, zkdata.Txn{Op: proto.OpError, Err: -101})
		}
	}
	testkit.Check(t, l.Apply(&x))
	l.log = append(l.log, x)
}

func (l *live) acl() []proto.ACL {
	acl := []proto.ACL{{Perms: 1 + l.r.Int32N(31), ID: proto.ID{Scheme: "digest", ID: fmt.Sprintf("u%d:x", l.r.IntN(30))}}}
	if l.r.IntN(2) == 0 {
		acl = proto.OpenACL
	}
	l.acls = append(l.acls, acl)
	return acl
}

// choose fills in one operation.
func (l *live) choose(x *zkdata.Txn) proto.OpCode {
	r := l.r
	names := []string{"/a", "/b", "/a/c", "/a/d", "/a/c/e"}
	path := names[r.IntN(len(names))]
	up := path[:max(1, strings.LastIndexByte(path, '/'))]
	n, parent := l.Get(path), l.Get(up)
	_, alive := l.Sessions[x.Session]
	switch op := r.IntN(12); {
	case !alive:
		x.Timeout = 1000
		return proto.OpCreateSession
	case op == 0:
		for p, n := range l.All() {
			if n.Owner == x.Session {
				x.Paths = append(x.Paths, p)
			}
		}
		if slices.Sort(x.Paths); !l.fuzzy && r.IntN(2) == 0 {
			x.Paths = nil // as before 3.6
		}
		return proto.OpCloseSession
	case op == 1:
		return proto.OpMulti
	case n == nil && parent != nil && l.Kind(parent) != znode.Ephemeral:
		x.Path, x.Data, x.ACL, x.ParentCversion = path, fmt.Append(nil, x.Zxid), l.acl(), parent.Cversion+1
		switch r.IntN(6) {
		case 0:
			return proto.OpCreateContainer
		case 1:
			x.TTL = 5
			return proto.OpCreateTTL
		case 2, 3:
			x.Ephemeral = true
		}
		return []proto.OpCode{proto.OpCreate, proto.OpCreate2}[r.IntN(2)]
	case n != nil && op < 5 && !slices.ContainsFunc(l.Paths(), func(p string) bool { return strings.HasPrefix(p, path+"/") }):
		x.Path = path
		return proto.OpDelete
	case n != nil && op < 8:
		x.Path, x.Data, x.Version = path, fmt.Append(nil, "set", x.Zxid), n.Version+1
		return proto.OpSetData
	case n != nil:
		x.Path, x.ACL, x.Version = path, l.acl(), n.Aversion+1
		return proto.OpSetACL
	}
	x.Err = -101
	return proto.OpError
}

// TestFuzzySnapshot writes snapshots as ZooKeeper does: each znode as it is when its turn comes,
// while transactions go on, with the sessions and the ACLs of the beginning. A snapshot and the log
// after its zxid must lead to the state that the server has.
func TestFuzzySnapshot(t *testing.T) {
	seed := testkit.Seed(t)
	missing := 0
	for i := range uint64(600) {
		l := &live{State: zkdata.NewState(), r: rand.New(rand.NewPCG(seed, i))}
		for range 20 + l.r.IntN(60) {
			l.step(t)
		}
		from := l.Zxid
		l.fuzzy = true
		w := zkdata.NewFuzzyWriter(l.State, l.acls)
		var walk func(path string)
		walk = func(path string) {
			for l.r.IntN(2) == 0 {
				l.step(t)
			}
			if l.Get(path) == nil {
				return
			}
			var children []string
			for _, p := range l.Paths() {
				if p != "/" && p[:max(1, strings.LastIndexByte(p, '/'))] == path {
					children = append(children, p)
				}
			}
			if !w.Write(path, l.Get(path)) {
				missing++
			}
			for _, p := range children {
				walk(p)
			}
		}
		walk("/")
		digestAt := l.Zxid
		file := w.End(digestAt, l.State)
		for range l.r.IntN(10) {
			l.step(t)
		}
		s := testkit.Must(zkdata.ReadSnapshot(bytes.NewReader(file), from))(t)
		log := l.log[from:]
		for i := range log {
			log[i].HasDigest = false
		}
		if _, _, err := replay(s, zklog.File(100, log...)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Finish(); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if got, want := show(s), show(l.State); got != want {
			t.Fatalf("round %d, snapshot of %#x: the state is\n%s\nshould be\n%s", i, from, got, want)
		}
		if n, wrong := s.Digests(); n == 0 && digestAt > from || wrong != 0 {
			t.Fatalf("round %d: %d digests compared, that of %#x is wrong", i, n, wrong)
		}
	}
	if missing == 0 {
		t.Error("no znode had an ACL that the snapshot lacks: the test does not show much")
	}
}

// TestDigests: digests after transactions are compared, and a wrong one is noticed.
func TestDigests(t *testing.T) {
	log := slices.Clone(everything)
	log[6].ParentCversion = 2 // a create of before 3.4 has no digest
	s := zkdata.NewState()
	for i := range log {
		s.Apply(&log[i])
		log[i].HasDigest, log[i].Digest = true, s.Digest()
	}
	fresh := func(log []zkdata.Txn) (int, int64) {
		s := zkdata.NewState()
		if _, _, err := replay(s, zklog.File(0, log...)); err != nil {
			t.Fatal(err)
		}
		return s.Digests()
	}
	if n, wrong := fresh(log); n != len(log) || wrong != 0 {
		t.Errorf("%d digests compared, that of %d is wrong", n, wrong)
	}
	log[5].Digest++
	if n, wrong := fresh(log); n != len(log) || wrong != 6 {
		t.Errorf("%d digests compared, that of %d is wrong", n, wrong)
	}
}

// TestDigestInFlight: a snapshot may have the changes of a transaction whose digest the server has not
// noted yet. Then the digest before it is not wrong, if that after it is right.
func TestDigestInFlight(t *testing.T) {
	s := zkdata.NewState()
	n := len(everything) - 1
	for i := range n {
		s.Apply(&everything[i])
	}
	zxid, before := s.Zxid, s.Digest()
	next := everything[n]
	s.Apply(&next)
	next.HasDigest, next.Digest = true, s.Digest()
	w := zkdata.NewFuzzyWriter(s, [][]proto.ACL{digestACL})
	for _, path := range s.Paths() {
		w.Write(path, s.Get(path))
	}
	file := w.EndWith(zxid, before)
	for name, x := range map[string]struct {
		log   []zkdata.Txn
		wrong int64
	}{
		"with it":                {[]zkdata.Txn{next}, 0},
		"with another digest":    {[]zkdata.Txn{func(x zkdata.Txn) zkdata.Txn { x.Digest++; return x }(next)}, next.Zxid},
		"without it":             {nil, zxid},
		"with one that has none": {everything[n:], 0},
	} {
		got := testkit.Must(zkdata.ReadSnapshot(bytes.NewReader(file), zxid))(t)
		if _, _, err := replay(got, zklog.File(0, x.log...)); err != nil {
			t.Fatal(err)
		}
		if compared, wrong := got.Digests(); wrong != x.wrong || compared == 0 {
			t.Errorf("%s: %d digests compared, that of %d is wrong, should be that of %d", name, compared, wrong, x.wrong)
		}
	}
}

// TestDeadSessions: ephemerals of sessions that do not exist are deleted at the end.
func TestDeadSessions(t *testing.T) {
	s := zkdata.NewState()
	replay(s, zklog.File(0, everything[:8]...))
	delete(s.Sessions, 0x77)
	deleted, err := s.Finish()
	if err != nil || !reflect.DeepEqual(deleted, []string{"/a/e"}) || s.Get("/a/e") != nil || s.Get("/a").Pzxid != 8 || s.Get("/t") == nil {
		t.Errorf("deleted %v: %v\n%s", deleted, err, show(s))
	}
}

// TestBadTransactions: what cannot be applied is an error that names the offset.
func TestBadTransactions(t *testing.T) {
	good := zklog.Body(&everything[2])
	for name, x := range map[string]struct {
		body []byte
		err  string
	}{
		"unknown type":     {zklog.Body(&zkdata.Txn{Op: 99, Zxid: 1}), "type 99"},
		"unknown in multi": {zklog.Body(&zkdata.Txn{Op: proto.OpMulti, Zxid: 1, Ops: []zkdata.Txn{{Op: proto.OpCreateSession}}}), "a multi with an operation of type -10"},
		"more behind it":   {append(slices.Clone(good), 1, 2, 3), "unknown data"},
		"cut short":        {good[:len(good)-5], "cut short"},
		"bad path":         {zklog.Body(&zkdata.Txn{Op: proto.OpDelete, Zxid: 1, Path: "a"}), "not the path"},
		"empty path":       {zklog.Body(&zkdata.Txn{Op: proto.OpDelete, Zxid: 1}), "\"\" is not the path"},
		"new empty path":   {zklog.Body(&zkdata.Txn{Op: proto.OpCreate, Zxid: 1, ACL: proto.OpenACL}), "\"\" is not the path"},
		"empty in session": {zklog.Body(&zkdata.Txn{Op: proto.OpCloseSession, Zxid: 1, Paths: []string{"/a", ""}}), "\"\" is not the path"},
		"empty in multi":   {zklog.Body(&zkdata.Txn{Op: proto.OpMulti, Zxid: 1, Ops: []zkdata.Txn{{Op: proto.OpDelete}}}), "\"\" is not the path"},
		"no TTL":           {zklog.Body(&zkdata.Txn{Op: proto.OpCreateTTL, Zxid: 1, Path: "/a", ACL: proto.OpenACL}), "TTL of 0 ms"},
	} {
		_, _, err := replay(zkdata.NewState(), append(zklog.File(0), zklog.Entry(x.body)...))
		if err == nil || !strings.Contains(err.Error(), x.err) || !strings.Contains(x.err, "not the path") && (!errors.Is(err, zkdata.ErrDamaged) || !strings.Contains(err.Error(), "offset 16")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCloseSession: the paths of a closeSession and a digest can each be missing, and one path may be
// as long as a digest.
func TestCloseSession(t *testing.T) {
	for _, paths := range [][]string{nil, {}, {"/abc"}, {"/a"}, {"/a", "/b/c"}} {
		for _, digest := range []bool{false, true} {
			want := zkdata.Txn{Op: proto.OpCloseSession, Session: 7, Zxid: 1, Paths: paths, HasDigest: digest}
			if digest {
				want.Digest = 0x0000000400000004
			}
			l := testkit.Must(zkdata.NewLog(bytes.NewReader(zklog.File(0, want))))(t)
			got, _, err := l.Next()
			if err != nil || !slices.Equal(got.Paths, paths) || got.HasDigest != digest || got.Digest != want.Digest {
				t.Errorf("%q, digest %v: %+v, %v", paths, digest, got, err)
			}
		}
	}
}
