package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/watch"
	"github.com/lockkeeper/lockkeeper/znode"
)

// readable returns a replica with session 5 and a few znodes. User u has all permissions on
// them; others have these:
//
//	/a         all; it has ephemeral children /a/e and /a/f, and /a/p with child /a/p/q
//	/private   none
//	/admin     ADMIN
//	/masked    READ
func readable(t *testing.T) *Replica {
	t.Helper()
	r := NewReplica()
	owner := AppendIDs(nil, someIDs[:2])
	do := func(path string, flags int32, acl []proto.ACL) {
		t.Helper()
		q := proto.CreateRequest{Path: path, Data: []byte("of " + path), ACL: acl, Flags: flags}
		if res, _ := one(t, r.m, 1, &Command{Op: proto.OpCreate, Session: 5, Conn: 1, IDs: owner, Body: q.Append(nil)}); res[0].Code != proto.OK {
			t.Fatalf("%s: %v", path, res[0].Code)
		}
	}
	world := func(perms int32) []proto.ACL {
		return []proto.ACL{{Perms: proto.PermAll, ID: someIDs[1]}, {Perms: perms, ID: proto.OpenACL[0].ID}}
	}
	one(t, r.m, 1, OpenSession(1, 5, 1000, session.Password{}))
	for _, path := range []string{"/a", "/a/p", "/a/p/q"} {
		do(path, 0, proto.OpenACL)
	}
	do("/a/e", proto.FlagEphemeral, proto.OpenACL)
	do("/a/f", proto.FlagEphemeral, proto.OpenACL)
	do("/private", 0, world(0))
	do("/admin", 0, world(proto.PermAdmin))
	do("/masked", 0, world(proto.PermRead))
	return r
}

// TestReads checks the code of each read, and how many watches it sets.
func TestReads(t *testing.T) {
	r := readable(t)
	stranger, owner := someIDs[:1], someIDs[:2]
	q := func(path string) proto.Record { return &proto.PathWatch{Path: path, Watch: true} }
	p := func(path string) proto.Record { return &proto.Path{Path: path} }
	typ := func(path string, n int32) proto.Record { return &proto.PathType{Path: path, Type: n} }
	null := &proto.Path{Path: jute.Null}
	tests := []struct {
		op      proto.OpCode
		request proto.Record
		ids     []proto.ID
		want    proto.Code
		watches int
	}{
		{proto.OpExists, q("/a"), stranger, proto.OK, 1},
		{proto.OpExists, q("/nothere"), stranger, proto.NoNode, 1}, // only exists sets a watch on a missing znode
		{proto.OpExists, q("/private"), stranger, proto.NoAuth, 0},
		{proto.OpExists, q("/private"), owner, proto.OK, 1},
		{proto.OpExists, q("/a\x00"), stranger, proto.BadArguments, 0},
		{proto.OpExists, q("nope"), stranger, proto.NoNode, 1},
		{proto.OpExists, q(""), stranger, proto.OK, 1}, // the root
		{proto.OpExists, &proto.PathWatch{Path: "/a"}, stranger, proto.OK, 0},
		{proto.OpGetData, q("/a"), stranger, proto.OK, 1},
		{proto.OpGetData, q("/nothere"), stranger, proto.NoNode, 0},
		{proto.OpGetData, q("/a\x00"), stranger, proto.NoNode, 0},
		{proto.OpGetData, q("/a/"), stranger, proto.NoNode, 0},
		{proto.OpGetData, q("//a"), stranger, proto.NoNode, 0},
		{proto.OpGetData, q("/private"), stranger, proto.NoAuth, 0},
		{proto.OpGetData, q("/private"), someIDs[3:], proto.OK, 1}, // super
		{proto.OpGetData, q("/zookeeper/config"), stranger, proto.OK, 1},
		{proto.OpGetChildren, q("/a"), stranger, proto.OK, 1},
		{proto.OpGetChildren, q("/nothere"), stranger, proto.NoNode, 0},
		{proto.OpGetChildren, q("/private"), stranger, proto.NoAuth, 0},
		{proto.OpGetChildren2, q("/a"), stranger, proto.OK, 1},
		{proto.OpGetChildren2, q("/private"), stranger, proto.NoAuth, 0},
		{proto.OpGetACL, p("/a"), stranger, proto.OK, 0},
		{proto.OpGetACL, p("/nothere"), stranger, proto.NoNode, 0},
		{proto.OpGetACL, p("/private"), stranger, proto.NoAuth, 0},
		{proto.OpGetACL, p("/admin"), stranger, proto.OK, 0}, // READ or ADMIN
		{proto.OpGetData, q("/admin"), stranger, proto.NoAuth, 0},
		{proto.OpGetACL, null, stranger, proto.MarshallingError, 0},
		{proto.OpGetAllChildrenNumber, p("/a"), stranger, proto.OK, 0},
		{proto.OpGetAllChildrenNumber, p("/nothere"), stranger, proto.NoNode, 0},
		{proto.OpGetAllChildrenNumber, p("/private"), stranger, proto.NoAuth, 0},
		{proto.OpGetAllChildrenNumber, null, stranger, proto.MarshallingError, 0},
		{proto.OpGetEphemerals, p("/private"), stranger, proto.OK, 0},
		{proto.OpGetEphemerals, null, stranger, proto.OK, 0},
		{proto.OpWhoAmI, &proto.Empty{}, stranger, proto.OK, 0},
		{proto.OpAddWatch, typ("/private", 0), stranger, proto.OK, 2}, // of both kinds, without a check of the ACL
		{proto.OpAddWatch, typ("not a path", 1), stranger, proto.OK, 1},
		{proto.OpAddWatch, typ("/a", 2), stranger, proto.MarshallingError, 0},
		{proto.OpAddWatch, typ("/a", -1), stranger, proto.MarshallingError, 0},
		{proto.OpCheckWatches, typ("/a", 3), stranger, proto.NoWatcher, 0},
		{proto.OpCheckWatches, typ("/a", 0), stranger, proto.MarshallingError, 0},
		{proto.OpRemoveWatches, typ("/a", 6), stranger, proto.MarshallingError, 0},
		{proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: 1 << 62, Data: []string{"/private"}}, stranger, proto.OK, 1},
		{proto.OpPing, &proto.Empty{}, stranger, proto.Unimplemented, 0}, // not a read
	}
	for _, test := range tests {
		w := &watcher{name: "C", ids: test.ids}
		r.View(func(v *View) {
			if _, code := readBy(w, v, test.op, test.request); code != test.want {
				t.Errorf("%d %+v: %v, want %v", test.op, test.request, code, test.want)
			}
			if _, _, n := v.WatchCounts(); n != test.watches {
				t.Errorf("%d %+v: set %d watches, want %d", test.op, test.request, n, test.watches)
			}
		})
		r.DropWatches(w)
	}
	// Each read with a truncated body is a MarshallingError and sets no watch.
	r.View(func(v *View) {
		for op := range reads {
			if _, code := v.Read(&Reader{Watcher: &watcher{}, IDs: stranger}, op, []byte{0, 0}, nil); code != proto.MarshallingError && op != proto.OpWhoAmI {
				t.Errorf("%d with two bytes: %v", op, code)
			}
		}
		if _, _, n := v.WatchCounts(); n != 0 {
			t.Errorf("reads with two bytes set %d watches", n)
		}
	})
}

// answer returns the reply to a read that must succeed.
func answer[R proto.Record](t *testing.T, r *Replica, ids []proto.ID, op proto.OpCode, request proto.Record, reply R) R {
	t.Helper()
	r.View(func(v *View) {
		body, code := readBy(&watcher{ids: ids}, v, op, request)
		d := jute.NewDecoder(body)
		if reply.Decode(&d); code != proto.OK || d.Err() != nil || len(d.Rest()) > 0 {
			t.Errorf("%d %+v: %v, %v", op, request, code, d.Err())
		}
	})
	return reply
}

// TestReadReplies checks the replies to successful reads.
func TestReadReplies(t *testing.T) {
	r := readable(t)
	stranger, owner := someIDs[:1], someIDs[:2]
	a := r.m.Tree().Lookup("/a").Stat()

	if got := answer(t, r, stranger, proto.OpExists, &proto.PathWatch{Path: "/a"}, &proto.Stat{}); *got != a {
		t.Errorf("exists: %+v, want %+v", *got, a)
	}
	if got := answer(t, r, stranger, proto.OpGetData, &proto.PathWatch{Path: "/a"}, &proto.DataReply{}); string(got.Data) != "of /a" || got.Stat != a {
		t.Errorf("getData: %+v", got)
	}
	got := answer(t, r, stranger, proto.OpGetChildren2, &proto.PathWatch{Path: "/a"}, &proto.Children2Reply{})
	if slices.Sort(got.Names); !slices.Equal(got.Names, []string{"e", "f", "p"}) || got.Stat != a {
		t.Errorf("getChildren2: %+v", got)
	}
	for path, want := range map[string]int32{"/a": 4, "/a/e": 0, "/": int32(r.m.Tree().Len() - 1), "/zookeeper": 2} {
		if got := answer(t, r, stranger, proto.OpGetAllChildrenNumber, &proto.Path{Path: path}, &proto.IntReply{}); got.N != want {
			t.Errorf("getAllChildrenNumber of %s: %d, want %d", path, got.N, want)
		}
	}
	for prefix, want := range map[string]string{"/": "/a/e /a/f", "": "/a/e /a/f", " ": "/a/e /a/f", "/a/e": "/a/e", "/a/": "/a/e /a/f", "/b": "", "/a/ee": ""} {
		if got := answer(t, r, stranger, proto.OpGetEphemerals, &proto.Path{Path: prefix}, &proto.ChildrenReply{}); strings.Join(got.Names, " ") != want {
			t.Errorf("getEphemerals of %q: %v, want %s", prefix, got.Names, want)
		}
	}
	for _, test := range []struct {
		path string
		ids  []proto.ID
		want string
	}{{"/masked", stranger, "u:x"}, {"/masked", owner, someIDs[1].ID}, {"/admin", stranger, someIDs[1].ID}} {
		if got := answer(t, r, test.ids, proto.OpGetACL, &proto.Path{Path: test.path}, &proto.ACLReply{}); got.ACL[0].ID.ID != test.want {
			t.Errorf("getACL of %s: %+v, want %s", test.path, got.ACL, test.want)
		}
	}
	who := answer(t, r, someIDs, proto.OpWhoAmI, &proto.Empty{}, &proto.WhoAmIReply{})
	if want := []proto.ID{{Scheme: "digest", ID: "u"}, {Scheme: "digest", ID: "bob"}, {Scheme: "super"}, {Scheme: "x509", ID: "CN=ann"}, {Scheme: "sasl", ID: "super"}, someIDs[0]}; !slices.Equal(who.IDs, want) {
		t.Errorf("whoAmI: %v, want %v", who.IDs, want)
	}
	if someIDs[1].ID != "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=" {
		t.Error("whoAmI changed the connection's identities")
	}
	multi := proto.MultiReadRequest{}
	for _, op := range []struct {
		op   proto.OpCode
		path string
	}{{proto.OpGetData, "/a"}, {proto.OpGetData, "/nothere"}, {proto.OpGetChildren, "/a/p"}, {proto.OpGetChildren, "/private"}} {
		multi.Ops = append(multi.Ops, proto.MultiOp{Op: op.op, Request: &proto.PathWatch{Path: op.path, Watch: true}})
	}
	results := answer(t, r, stranger, proto.OpMultiRead, &multi, &proto.MultiReply{}).Results
	if len(results) != 4 || results[0].Op != proto.OpGetData || results[1].Code != proto.NoNode || results[3].Code != proto.NoAuth ||
		!slices.Equal(results[2].Reply.(*proto.ChildrenReply).Names, []string{"q"}) {
		t.Errorf("multiRead: %+v", results)
	}
	r.View(func(v *View) {
		if _, _, n := v.WatchCounts(); n != 0 {
			t.Errorf("multiRead set %d watches", n)
		}
	})
}

// TestSetWatches checks that setWatches sends an event at once for each znode that has
// changed since the given zxid, and sets the other watches.
func TestSetWatches(t *testing.T) {
	r := readable(t)
	last := r.m.Zxid()
	set := &proto.SetDataRequest{Path: "/a/p", Version: -1}
	one(t, r.m, 1, &Command{Op: proto.OpSetData, Session: 5, Conn: 1, Body: set.Append(nil)}, createCommand(5, "/a/new", 0))
	var sent []string
	w := &watcher{name: "C", sent: &sent}
	q := proto.SetWatches2Request{
		SetWatchesRequest: proto.SetWatchesRequest{
			RelativeZxid: last,
			Data:         []string{"/a", "/a/p", "/gone"},
			Exist:        []string{"/a/new", "/a/p/q", "/coming"}, // /a/p/q is not new, but still causes an event
			Child:        []string{"/a/p", "/a", "/gone"},
		},
		Persistent: []string{"/a/p", "/any"}, Recursive: []string{"/a/new"},
	}
	r.View(func(v *View) {
		if out, code := readBy(w, v, proto.OpSetWatches2, &q); code != proto.OK || len(out) > 0 {
			t.Errorf("%v, %x", code, out)
		}
	})
	expect(t, &sent,
		"C: event NodeDataChanged /a/p zxid 65535", "C: event NodeDeleted /gone zxid 65535", // zxid -1
		"C: event NodeCreated /a/new zxid 65535", "C: event NodeCreated /a/p/q zxid 65535",
		"C: event NodeChildrenChanged /a zxid 65535", "C: event NodeDeleted /gone zxid 65535")
	type place struct {
		kind  watch.Kind
		path  string
		modes watch.Mode
	}
	for _, p := range []place{
		{watch.Data, "/a", watch.Standard}, {watch.Data, "/coming", watch.Standard}, {watch.Child, "/a/p", watch.Standard},
		{watch.Data, "/a/p", watch.Persistent}, {watch.Child, "/a/p", watch.Persistent}, {watch.Data, "/any", watch.Persistent},
		{watch.Data, "/a/new", watch.Recursive},
	} {
		if !r.watches.Has(w, p.kind, p.path, p.modes) {
			t.Errorf("watch %+v is missing", p)
		}
	}
	for _, p := range []place{
		{watch.Data, "/a/p", watch.Standard}, {watch.Data, "/gone", watch.Standard}, {watch.Data, "/a/new", watch.Standard},
		{watch.Child, "/a", watch.Standard}, {watch.Child, "/gone", watch.Standard}, {watch.Child, "/a/new", watch.Recursive},
	} {
		if r.watches.Has(w, p.kind, p.path, p.modes) {
			t.Errorf("unexpected watch %+v", p)
		}
	}
}

// TestFindWatches checks which watches checkWatches and removeWatches find by which
// WatcherType of ZooKeeper 3.9.
func TestFindWatches(t *testing.T) {
	add := map[string]func(*watch.Table[Watcher], Watcher){
		"child": func(t *watch.Table[Watcher], w Watcher) { t.Add(w, watch.Child, "/a", watch.Standard) },
		"data":  func(t *watch.Table[Watcher], w Watcher) { t.Add(w, watch.Data, "/a", watch.Standard) },
		"persistent": func(t *watch.Table[Watcher], w Watcher) {
			t.Add(w, watch.Data, "/a", watch.Persistent)
			t.Add(w, watch.Child, "/a", watch.Persistent)
		},
		"recursive": func(t *watch.Table[Watcher], w Watcher) { t.Add(w, watch.Data, "/a", watch.Recursive) },
	}
	finds := map[string][]int32{"child": {1, 3}, "data": {2, 3}, "persistent": {3, 4}, "recursive": {3, 5}}
	for what, types := range finds {
		for n := int32(1); n <= 5; n++ {
			r := NewReplica()
			mine, other := &watcher{name: "mine"}, &watcher{name: "other"}
			add[what](r.watches, mine)
			add[what](r.watches, other)
			want := proto.NoWatcher
			if slices.Contains(types, n) {
				want = proto.OK
			}
			r.View(func(v *View) {
				q := &proto.PathType{Path: "/a", Type: n}
				for _, step := range []struct {
					op   proto.OpCode
					want proto.Code
				}{{proto.OpCheckWatches, want}, {proto.OpCheckWatches, want}, {proto.OpRemoveWatches, want}, {proto.OpRemoveWatches, proto.NoWatcher}} {
					if _, code := readBy(mine, v, step.op, q); code != step.want {
						t.Errorf("%s watch, operation %d with type %d: %v, want %v", what, step.op, n, code, step.want)
					}
				}
			})
			if left := r.watches.LenOf(mine); (left == 0) != (want == proto.OK) {
				t.Errorf("%s watch, removed with type %d: %d left", what, n, left)
			}
			if r.watches.LenOf(other) == 0 {
				t.Errorf("type %d removed another connection's %s watch", n, what)
			}
		}
	}
}

// TestReplyIsBounded checks that a reply of exactly MaxReply bytes is allowed, that a longer
// one is ReplyTooLong, and that a read stops soon after the limit.
func TestReplyIsBounded(t *testing.T) {
	r := NewReplica()
	r.Load(small(t))
	var creates proto.MultiRequest
	for i := range 2000 {
		name := fmt.Sprintf("/a/%04d%s", i, strings.Repeat("n", 100))
		creates.Ops = append(creates.Ops, proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: name, ACL: proto.OpenACL, Flags: proto.FlagEphemeral}})
	}
	set := proto.SetDataRequest{Path: "/b", Data: make([]byte, 100<<10), Version: -1}
	one(t, r.m, 3, &Command{Op: proto.OpMulti, Session: 5, Conn: 1, Body: creates.Append(nil)}, &Command{Op: proto.OpSetData, Session: 5, Conn: 1, Body: set.Append(nil)})
	r.m.tree.SetACL(&znode.Txn{}, &proto.SetACLRequest{Path: "/ttl", ACL: longACL(), Version: -1})

	reads := 50
	if testkit.Thorough {
		reads = 400
	}
	many := func(ops ...proto.MultiOp) *proto.MultiReadRequest {
		q := &proto.MultiReadRequest{}
		for range reads {
			q.Ops = append(q.Ops, ops...)
		}
		return q
	}
	list := proto.MultiOp{Op: proto.OpGetChildren, Request: &proto.PathWatch{Path: "/a"}}
	data := proto.MultiOp{Op: proto.OpGetData, Request: &proto.PathWatch{Path: "/b"}}
	none := proto.MultiOp{Op: proto.OpGetData, Request: &proto.PathWatch{Path: "/none"}}
	for name, q := range map[string]struct {
		op   proto.OpCode
		body proto.Record
	}{
		"getData": {proto.OpGetData, &proto.PathWatch{Path: "/b"}}, "exists": {proto.OpExists, &proto.PathWatch{Path: "/b"}},
		"getChildren": {proto.OpGetChildren, &proto.PathWatch{Path: "/a"}}, "getChildren2": {proto.OpGetChildren2, &proto.PathWatch{Path: "/a"}},
		"getACL": {proto.OpGetACL, &proto.Path{Path: "/ttl"}}, "getEphemerals": {proto.OpGetEphemerals, &proto.Path{Path: "/"}},
		"multiRead of lists": {proto.OpMultiRead, many(list)}, "multiRead of data": {proto.OpMultiRead, many(data, none)},
	} {
		body := q.body.Append(nil)
		r.View(func(v *View) {
			read := func(maxReply int) (int, proto.Code) {
				out, code := v.Read(&Reader{Watcher: &watcher{}, Session: 5, IDs: someIDs[:2], MaxReply: maxReply}, q.op, body, nil)
				return len(out), code
			}
			whole, code := read(0)
			if code != proto.OK {
				t.Fatalf("%s: %v", name, code)
			}
			if n, code := read(whole); n != whole || code != proto.OK {
				t.Errorf("%s: %v and %d bytes, want OK and all %d", name, code, n, whole)
			}
			if _, code := read(whole - 1); code != ReplyTooLong {
				t.Errorf("%s: %v for a reply that is one byte too long", name, code)
			}
			if n, code := read(10); code != ReplyTooLong || n > 210<<10 { // about one znode
				t.Errorf("%s: %v after %d of %d bytes, with a limit of 10", name, code, n, whole)
			}
		})
	}
}

func longACL() (acl []proto.ACL) {
	for i := range 1000 {
		acl = append(acl, proto.ACL{Perms: int32(i)<<5 | proto.PermAll, ID: proto.OpenACL[0].ID})
	}
	return acl
}
