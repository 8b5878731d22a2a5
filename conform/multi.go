package conform

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// rolledBack checks that a multi failed: its results must have those codes and no
// replies.
func (t *trial) rolledBack(results []proto.MultiResult, codes ...proto.Code) {
	var got []proto.Code
	for _, r := range results {
		t.ensure(r.Op == proto.OpError, "a failed multi has the result of %s", wire.OpName(r.Op))
		got = append(got, r.Code)
	}
	t.equal("the codes of the results", got, codes)
}

// applied checks that a multi succeeded, with results of those types.
func (t *trial) applied(results []proto.MultiResult, types ...proto.OpCode) {
	var got []proto.OpCode
	for _, r := range results {
		t.equal("a result's code", r.Code, proto.OK)
		got = append(got, r.Op)
	}
	t.equal("the types of the results", got, types)
}

// made checks that a multi has created a znode, with the result of a create2.
func (k *conn) made(results []proto.MultiResult, path string) {
	k.t.applied(results, proto.OpCreate2)
	k.t.equal("the reply", results[0].Reply, proto.Record(&proto.PathStatReply{Path: path, Stat: k.stat(path)}))
}

// sequence returns the number of the next sequential child of the znode with that Stat.
func sequence(s proto.Stat) string { return fmt.Sprintf("%010d", (s.Cversion+s.NumChildren)/2) }

var multiChecks = []Check{
	check("multi/results", ">=3.4",
		"The results of a successful multi have the types of its operations; that of create has the path, that of setData the Stat, and those of check and delete nothing.",
		func(t *trial, k *conn) {
			a := t.path("a")
			k.make(a, t.path("b"))
			r := k.multi(opCheck(a, 0), opSet(a, []byte("xyz"), 0), opCreate(t.path("c"), nil, 0), opDelete(t.path("b"), 0))
			t.applied(r, proto.OpCheck, proto.OpSetData, proto.OpCreate, proto.OpDelete)
			t.equal("setData's Stat", *r[1].Reply.(*proto.Stat), k.stat(a))
			t.equal("create's path", r[2].Reply.(*proto.PathReply).Path, t.path("c"))
			k.missing(t.path("b"))
		}),
	check("multi/create2", releases.Create2InMulti,
		"create2 in a multi has a result of type create2, with the path and the Stat.",
		func(t *trial, k *conn) {
			k.made(k.multi(opMake(proto.OpCreate2, t.path("a"), []byte("xy"), 0)), t.path("a"))
		}),
	check("multi/create2 as create", releases.Create2AsCreate,
		"create2 in a multi has a result of type create, with only the path.",
		func(t *trial) {
			r := t.connect().multi(opMake(proto.OpCreate2, t.path("a"), nil, 0))
			t.applied(r, proto.OpCreate)
			t.equal("the path", r[0].Reply.(*proto.PathReply).Path, t.path("a"))
		}),
	check("multi/createContainer", ">=3.6",
		"createContainer in a multi has a result of type create2, with the path and the Stat.",
		func(t *trial, k *conn) {
			k.made(k.multi(opMake(proto.OpCreateContainer, t.path("a"), nil, proto.FlagContainer)), t.path("a"))
		}),
	requires(TTL, check("multi/createTTL", ">=3.6",
		"createTTL in a multi has a result of type create2, with the path and the Stat.",
		func(t *trial, k *conn) {
			k.made(k.multi(opTTL(t.path("a-"), proto.FlagTTLSequential, 1e6)), t.path("a-0000000000"))
		})),
	check("multi/fails in the middle", ">=3.4",
		"If an operation of a multi fails, the reply's header has no error. The result of that operation has its code, those before it have Ok and those after it RuntimeInconsistency, all without a reply.",
		func(t *trial) {
			r := t.connect().multi(opCreate(t.path("a"), nil, 0), opCheck(t.path("a"), 0), opDelete(t.path("nope"), -1), opCreate(t.path("b"), nil, 0), opDelete(t.path("also"), -1))
			t.rolledBack(r, proto.OK, proto.OK, proto.NoNode, proto.RuntimeInconsistency, proto.RuntimeInconsistency)
		}),
	check("multi/fails at the ends", ">=3.4",
		"Only the first failure counts, even if it is that of the first or the last operation.",
		func(t *trial, k *conn) {
			good, bad := opCreate(t.path("a"), nil, 0), opSet(t.path("nope"), nil, -1)
			t.rolledBack(k.multi(bad, good, good), proto.NoNode, proto.RuntimeInconsistency, proto.RuntimeInconsistency)
			t.rolledBack(k.multi(good, opCreate(t.path("b"), nil, 0), bad), proto.OK, proto.OK, proto.NoNode)
			t.rolledBack(k.multi(bad), proto.NoNode)
		}),
	check("multi/nothing applied", ">=3.4",
		"A multi that fails changes nothing.",
		func(t *trial, k *conn) {
			k.create(t.path("a"), []byte("old"), 0)
			k.make(t.path("b"))
			parent, a, b := k.stat(t.path("")), k.stat(t.path("a")), k.stat(t.path("b"))
			r := k.multi(opSet(t.path("a"), []byte("new"), 0), opCreate(t.path("a/x"), nil, proto.FlagEphemeral), opDelete(t.path("b"), 0), opCheck(t.path("a"), 0))
			t.rolledBack(r, proto.OK, proto.OK, proto.OK, proto.BadVersion)
			t.equal("the parent's Stat", k.stat(t.path("")), parent)
			t.equal("the Stat of b", k.stat(t.path("b")), b)
			data, s := k.get(t.path("a"))
			t.equal("the data", string(data), "old")
			t.equal("the Stat of a", s, a)
			k.missing(t.path("a/x"))
		}),
	check("multi/undecodable", ">=3.4",
		"A multi that cannot be decoded fails with MarshallingError as a whole, changes nothing, and leaves the connection open.",
		func(t *trial, k *conn) {
			whole := (&proto.MultiRequest{Ops: []request{opCreate(t.path("a"), nil, 0), opCreate(t.path("b"), nil, 0)}}).Append(nil)
			for _, cut := range []int{0, 3, 8, 9, 20, len(whole) / 2, len(whole) - 9, len(whole) - 1} {
				k.want(proto.MarshallingError, req(proto.OpMulti, raw(whole[:cut])))
			}
			k.missing(t.path("a"))
		}),
	check("multi/operations not allowed", ">=3.6",
		"A multi with an operation that is not allowed in it, such as exists, setACL, another multi or an unknown one, or a read among writes, fails with MarshallingError as a whole.",
		func(t *trial, k *conn) {
			p := &proto.PathWatch{Path: t.path("")}
			for _, op := range []request{
				{Op: proto.OpExists, Request: p}, {Op: proto.OpGetChildren2, Request: p}, {Op: proto.OpSync, Request: &proto.Path{Path: "/"}},
				{Op: proto.OpSetACL, Request: &proto.SetACLRequest{Path: t.path(""), ACL: proto.OpenACL, Version: -1}},
				{Op: proto.OpMulti, Request: &proto.MultiRequest{}}, {Op: 77, Request: &proto.Empty{}},
				opGet(t.path("")), opChildren(t.path("")),
			} {
				k.want(proto.MarshallingError, opMulti(opCreate(t.path("a"), nil, 0), op), opMulti(op, opCreate(t.path("a"), nil, 0)))
			}
			k.missing(t.path("a"))
		}),
	check("multi/header's error", ">=3.4",
		"The error in the header of a request's operation is ignored, and so is everything after the end of the list.",
		func(t *trial, k *conn) {
			f := k.do(req(proto.OpMulti, body(int(proto.OpCreate), false, 4711, opCreate(t.path("a"), nil, 0).Request, 17, true, 0, "behind it")))
			t.applied(f.Body.(*proto.MultiReply).Results, proto.OpCreate)
		}),
	check("multi/sees itself", ">=3.4",
		"An operation of a multi sees the effects of the operations before it.",
		func(t *trial, k *conn) {
			before := k.stat(t.path(""))
			a := t.path("a")
			r := k.multi(opCreate(a, nil, 0), opCreate(a+"/b", nil, 0), opSet(a, []byte("1"), 0), opSet(a, []byte("22"), 1),
				opCheck(a, 2), opDelete(a+"/b", 0), opDelete(a, 2), opCreate(a, []byte("333"), 0))
			t.applied(r, proto.OpCreate, proto.OpCreate, proto.OpSetData, proto.OpSetData, proto.OpCheck, proto.OpDelete, proto.OpDelete, proto.OpCreate)
			first, second := r[2].Reply.(*proto.Stat), r[3].Reply.(*proto.Stat)
			t.equal("the versions and lengths of the two Stats", []int32{first.Version, first.DataLength, second.Version, second.DataLength}, []int32{1, 1, 2, 2})
			s := k.stat(a)
			t.equal("version, cversion, length", []int32{s.Version, s.Cversion, s.DataLength}, []int32{0, 0, 3})
			after := k.stat(t.path(""))
			t.equal("the parent's cversion", after.Cversion, before.Cversion+3)
			t.equal("the parent's number of children", after.NumChildren, before.NumChildren+1)
		}),
	check("multi/sequence numbers", ">=3.4",
		"Sequential znodes of one multi get consecutive numbers, and the other creates in it count too.",
		func(t *trial, k *conn) {
			p := t.path("n-")
			r := k.multi(opCreate(p, nil, proto.FlagSequential), opCreate(p, nil, proto.FlagEphemeralSeq), opCreate(t.path("plain"), nil, 0),
				opDelete(t.path("plain"), 0), opCreate(p, nil, proto.FlagSequential))
			t.applied(r, proto.OpCreate, proto.OpCreate, proto.OpCreate, proto.OpDelete, proto.OpCreate)
			for i, want := range map[int]string{0: "0000000000", 1: "0000000001", 4: "0000000003"} {
				t.equal("the path", r[i].Reply.(*proto.PathReply).Path, p+want)
			}
			t.equal("the owner of the ephemeral one", k.stat(p+"0000000001").EphemeralOwner, k.Session.SessionID)
		}),
	check("multi/sequence numbers of a failed one", ">=3.4",
		"A multi that fails uses up no sequence numbers.",
		func(t *trial, k *conn) {
			p := t.path("n-")
			k.create(p, nil, proto.FlagSequential)
			t.rolledBack(k.multi(opCreate(p, nil, proto.FlagSequential), opCreate(p, nil, proto.FlagSequential), opCheck(t.path("nope"), -1)), proto.OK, proto.OK, proto.NoNode)
			t.equal("the next path", k.create(p, nil, proto.FlagSequential), p+"0000000001")
		}),
	check("multi/check", ">=3.4",
		"check compares the version of the data; -1 matches every version, but the znode must exist.",
		func(t *trial, k *conn) {
			a := k.create(t.path("a"), nil, 0)
			k.set(a, nil, 0)
			k.setACL(a, proto.OpenACL, 0)
			k.setACL(a, proto.OpenACL, 1)
			t.applied(k.multi(opCheck(a, 1), opCheck(a, -1)), proto.OpCheck, proto.OpCheck)
			for _, v := range []int32{0, 2, -2} {
				t.rolledBack(k.multi(opCheck(a, v)), proto.BadVersion)
			}
			t.rolledBack(k.multi(opCheck(t.path("nope"), -1)), proto.NoNode)
			t.rolledBack(k.multi(opCheck("nope", -1)), proto.BadArguments)
		}),
	check("multi/check changes nothing", ">=3.4",
		"check changes nothing in the znode and fires no watch.",
		func(t *trial, k *conn) {
			k.make(t.path("a"))
			s := k.stat(t.path("a"))
			k.watch(opGet(t.path("a")))
			k.multi(opCheck(t.path("a"), 0))
			k.noEvent()
			t.equal("the Stat", k.stat(t.path("a")), s)
		}),
	check("multi/check's permission", ">=3.4.11",
		"check needs READ on the znode.",
		func(t *trial, k *conn) {
			k.createACL(t.path("hidden"), nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			t.rolledBack(k.multi(opCheck(t.path("hidden"), 0)), proto.NoAuth)
			k.createACL(t.path("shown"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			t.applied(k.multi(opCheck(t.path("shown"), 0)), proto.OpCheck)
		}),
	check("multi/codes", ">=3.4",
		"An operation in a multi fails with the same code as on its own.",
		func(t *trial, k *conn) {
			a := t.path("a")
			k.make(a, a+"/child")
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			k.createACL(t.path("locked"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			noACL := request{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: t.path("x"), ACL: []proto.ACL{}}}
			for _, x := range []struct {
				op   request
				code proto.Code
			}{
				{opCreate(a, nil, 0), proto.NodeExists},
				{opCreate(t.path("no/parent"), nil, 0), proto.NoNode},
				{opCreate(t.path("e/x"), nil, 0), proto.NoChildrenForEphemerals},
				{opCreate("relative", nil, 0), proto.BadArguments},
				{noACL, proto.InvalidACL},
				{opCreate(t.path("locked/x"), nil, 0), proto.NoAuth},
				{opDelete(a, 0), proto.NotEmpty},
				{opDelete(a+"/child", 5), proto.BadVersion},
				{opDelete("/zookeeper", -1), proto.BadArguments},
				{opSet(t.path("locked"), nil, -1), proto.NoAuth},
				{opSet(a, nil, 5), proto.BadVersion},
				{opSet("relative", nil, -1), proto.BadArguments},
			} {
				t.rolledBack(k.multi(opCheck(a, 0), x.op, opCheck(a, 0)), proto.OK, x.code, proto.RuntimeInconsistency)
			}
		}),
	check("multi/flags decide", releases.MultiReadsModes,
		"In a multi the flags decide what kind of znode a create makes: create with the flag of a container makes a container and has a result of type create2, and createTTL with flag 0 is a create.",
		func(t *trial, k *conn) {
			r := k.multi(opCreate(t.path("container"), nil, proto.FlagContainer), opTTL(t.path("plain"), 0, 1e6), opMake(proto.OpCreateContainer, t.path("c"), nil, 0))
			t.applied(r, proto.OpCreate2, proto.OpCreate, proto.OpCreate2)
		}),
	check("multi/container with an ephemeral's flag", releases.MultiReadsModes,
		"createContainer with the flag of an ephemeral znode makes a container. But the rest of the multi treats it as ephemeral: it can have no children.",
		func(t *trial, k *conn) {
			for _, flags := range []int32{proto.FlagEphemeral, proto.FlagEphemeralSeq} {
				c := opMake(proto.OpCreateContainer, t.path("c"), nil, flags)
				path := t.path("c")
				if flags == proto.FlagEphemeralSeq {
					path += sequence(k.stat(t.path("")))
				}
				t.rolledBack(k.multi(c, opCreate(path+"/x", nil, 0)), proto.OK, proto.NoChildrenForEphemerals)
				r := k.multi(c, opDelete(path, 0), opMake(proto.OpCreateContainer, t.path("c"), nil, 0), opCreate(t.path("c/x"), nil, 0), opDelete(t.path("c/x"), 0), opDelete(t.path("c"), 0))
				t.applied(r, proto.OpCreate2, proto.OpDelete, proto.OpCreate2, proto.OpCreate, proto.OpDelete, proto.OpDelete)
			}
			k.multi(opMake(proto.OpCreateContainer, t.path("c"), nil, proto.FlagEphemeral))
			k.make(t.path("c/x"))
		}),
	check("multi/unknown flags", releases.MultiReadsModes,
		"A create in a multi with unknown flags, or with those of a TTL znode, makes the whole multi fail with MarshallingError.",
		func(t *trial, k *conn) {
			for _, flags := range []int32{-1, 7, 77, proto.FlagTTL, proto.FlagTTLSequential} {
				for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
					k.want(proto.MarshallingError, opMulti(opCreate(t.path("a"), nil, 0), opMake(op, t.path("x"), nil, flags)))
				}
			}
			k.missing(t.path("a"))
			t.rolledBack(k.multi(opTTL(t.path("x"), 77, 1e6)), proto.BadArguments)
		}),
	alone(check("multi/null ACL's zxid", releases.UnreadableTakesNone,
		"A create with a null ACL makes the whole multi fail with MarshallingError, without consuming a zxid unless its flags are unknown.",
		undisturbed(func(t *trial, k *conn, _ string) {
			zxid := k.ping().Zxid
			for _, x := range []struct {
				flags int32
				takes int64
			}{{0, 0}, {proto.FlagContainer, 0}, {proto.FlagTTL, 0}, {proto.FlagTTLSequential, 0}, {7, 1}, {-1, 1}} {
				zxid += x.takes
				f := k.want(proto.MarshallingError, req(proto.OpMulti, body(int(proto.OpCreate), false, -1, t.path("x"), -1, -1, int(x.flags), -1, true, -1)))
				t.equal(fmt.Sprintf("the zxid of a multi with flags %d", x.flags), f.Zxid, zxid)
			}
		}))),
	check("multi/unknown flags fail one operation", releases.MultiChecksModes,
		"A create in a multi with unknown flags fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, flags := range []int32{-1, 7, 77} {
				t.rolledBack(k.multi(opCreate(t.path("a"), nil, 0), opCreate(t.path("x"), nil, flags)), proto.OK, proto.BadArguments)
			}
		}),
	check("multi/ACL", ">=3.4",
		"The connection's identities decide about permissions inside a multi, including those on znodes that the multi itself created.",
		func(t *trial, k *conn) {
			closed := request{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: t.path("a"), ACL: []proto.ACL{allow(alice, proto.PermAll)}}}
			ops := []request{closed, opCreate(t.path("a/x"), nil, 0)}
			t.rolledBack(k.multi(ops...), proto.OK, proto.NoAuth)
			k.auth("digest", alice+":"+alice)
			t.applied(k.multi(ops...), proto.OpCreate, proto.OpCreate)
			t.rolledBack(t.connect().multi(opDelete(t.path("a/x"), -1)), proto.NoAuth)
		}),
	check("multi/auth scheme", ">=3.4",
		"The ACL auth:: of a create in a multi stands for the connection's identities, and fails with InvalidACL if there are none.",
		func(t *trial, k *conn) {
			own := request{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: t.path("a"), ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}}}}
			t.rolledBack(k.multi(own), proto.InvalidACL)
			k.auth("digest", alice+":"+alice)
			t.applied(k.multi(own), proto.OpCreate)
			k.hasACL(t.path("a"), []proto.ACL{allow(alice, proto.PermAll)})
		}),
	check("multi/events", ">=3.6",
		"A multi fires its watches in the order of its operations, for each of them the znode's before its parent's, and all before the reply.",
		func(t *trial, k *conn) {
			k.make(t.path("a"), t.path("b"))
			k.watch(opGet(t.path("b")), opExists(t.path("c")), opChildren(t.path("")), opGet(t.path("a")))
			k.send(opMulti(opSet(t.path("b"), nil, -1), opCreate(t.path("c"), nil, 0), opDelete(t.path("a"), -1)))
			k.event(dataChanged(t.path("b")), created(t.path("c")), childrenChanged(t.path("")))
			k.event(deleted(t.path("a")))
			k.answer()
			k.noEvent()
		}),
	check("multi/one-shot watches", ">=3.4",
		"A one-shot watch fires once in a multi, whatever later operations do to its znode.",
		func(t *trial, k *conn) {
			k.make(t.path("a"))
			k.watch(opGet(t.path("a")))
			k.multi(opSet(t.path("a"), nil, -1), opSet(t.path("a"), nil, -1), opDelete(t.path("a"), -1), opCreate(t.path("a"), nil, 0))
			k.onlyEvents(dataChanged(t.path("a")))
		}),
	check("multi/events of a failed one", ">=3.4",
		"A multi that fails fires no watch and uses none up.",
		func(t *trial, k *conn) {
			k.make(t.path("a"))
			k.watch(opGet(t.path("a")), opChildren(t.path("")))
			k.multi(opSet(t.path("a"), nil, -1), opDelete(t.path("a"), -1), opCheck(t.path("nope"), -1))
			k.noEvent()
			k.delete(t.path("a"), -1)
			k.event(deleted(t.path("a")), childrenChanged(t.path("")))
		}),
	check("multi/seen at once", ">=3.4",
		"Other connections see either all changes of a multi or none.",
		func(t *trial, w, r *conn) {
			a, b := t.path("a"), t.path("b")
			w.make(a, b)
			const rounds = 40
			for range rounds {
				w.queue(opMulti(opSet(a, nil, -1), opSet(b, nil, -1)))
			}
			w.flush()
			// Whichever znode is read first, the other must not have a lower version.
			var last int32
			began := time.Now()
			for turn := 0; last < rounds; turn++ {
				t.ensure(time.Since(began) < t.s.o.Timeout, "not all %d multis are applied", rounds)
				if turn > 1000 {
					t.wait(time.Millisecond) // in virtual time the server's clock moves only while every goroutine waits
				}
				for _, p := range []string{a, b, a} {
					r.queue(opExists(p))
				}
				r.flush()
				for range 3 {
					f := r.reply()
					r.judge(f, proto.OK)
					v := f.Body.(*proto.Stat).Version
					t.ensure(v >= last, "version %d was seen of one znode and then %d of the other, which the same multis set", last, v)
					last = v
				}
			}
			for range rounds {
				w.judge(w.reply(), proto.OK)
			}
		}),
	check("multi/event after all of it", ">=3.4",
		"A client that receives the event of a multi's first change sees the last change, too.",
		func(t *trial, w, r *conn) {
			w.make(t.path("a"))
			r.watch(opGet(t.path("a")))
			ops := []request{opSet(t.path("a"), nil, -1)}
			for i := range 100 {
				ops = append(ops, opCreate(t.path(fmt.Sprintf("n%d", i)), nil, 0))
			}
			w.send(opMulti(ops...))
			r.event(dataChanged(t.path("a")))
			r.stat(t.path("n99"))
			t.equal("the number of results", len(w.reply().Body.(*proto.MultiReply).Results), 101)
		}),
	check("multi/in order with others", ">=3.4",
		"A multi is processed in its turn among the requests of its connection.",
		func(t *trial, k *conn) {
			a := t.path("a")
			k.send(opCreate(a, nil, 0), opMulti(opCheck(a, 0), opSet(a, []byte("m"), 0)), opGet(a), opSet(a, nil, 1))
			f := k.answers(proto.OK, proto.OK, proto.OK)
			t.equal("the data", string(f.Body.(*proto.DataReply).Data), "m")
			k.answers(proto.OK)
		}),
	check("multi/ephemerals", ">=3.5",
		"Ephemeral znodes that a multi creates belong to its session and are deleted with it.",
		func(t *trial, k *conn) {
			k.multi(opCreate(t.path("a"), nil, proto.FlagEphemeral), opMake(proto.OpCreate2, t.path("b"), nil, proto.FlagEphemeral))
			for _, p := range []string{t.path("a"), t.path("b")} {
				t.equal("the owner", k.stat(p).EphemeralOwner, k.Session.SessionID)
			}
			k.closeSession()
			t.equal("the children left", len(t.connect().children(t.path(""))), 0)
		}),
}

var multiReadChecks = []Check{
	check("multi/multiRead, results", ">=3.6",
		"multiRead returns data and Stat for getData and the names for getChildren, in the order of the request.",
		func(t *trial, k *conn) {
			k.create(t.path("a"), []byte("data"), 0)
			k.make(t.path("b"))
			r := k.do(opMultiRead(opChildren(t.path("")), opGet(t.path("a")), opChildren(t.path("a")))).Body.(*proto.MultiReply).Results
			t.applied(r, proto.OpGetChildren, proto.OpGetData, proto.OpGetChildren)
			names := r[0].Reply.(*proto.ChildrenReply).Names
			slices.Sort(names)
			t.equal("the names", names, []string{"a", "b"})
			got := r[1].Reply.(*proto.DataReply)
			t.equal("the data", string(got.Data), "data")
			t.equal("the Stat", got.Stat, k.stat(t.path("a")))
			t.equal("the number of names", len(r[2].Reply.(*proto.ChildrenReply).Names), 0)
		}),
	check("multi/multiRead, failures", ">=3.6",
		"Each read of a multiRead fails on its own: its result has its code, the other results are unaffected, and the header has no error.",
		func(t *trial, k *conn) {
			k.createACL(t.path("hidden"), nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			r := k.do(opMultiRead(opGet(t.path("nope")), opGet(t.path("")), opChildren(t.path("hidden")), opChildren(t.path("nope")), opGet(t.path("hidden")), opGet(t.path("")))).Body.(*proto.MultiReply).Results
			var types []proto.OpCode
			var codes []proto.Code
			for _, x := range r {
				types, codes = append(types, x.Op), append(codes, x.Code)
			}
			t.equal("the types", types, []proto.OpCode{proto.OpError, proto.OpGetData, proto.OpError, proto.OpError, proto.OpError, proto.OpGetData})
			t.equal("the codes", codes, []proto.Code{proto.NoNode, proto.OK, proto.NoAuth, proto.NoNode, proto.NoAuth, proto.OK})
		}),
	check("multi/multiRead, watches", ">=3.6",
		"A multiRead sets no watches, even if its reads ask for them.",
		func(t *trial, k *conn) {
			k.make(t.path("a"))
			get, children := opGet(t.path("a")), opChildren(t.path(""))
			get.Request.(*proto.PathWatch).Watch = true
			children.Request.(*proto.PathWatch).Watch = true
			k.do(opMultiRead(get, children))
			k.set(t.path("a"), nil, -1)
			k.delete(t.path("a"), -1)
			k.noEvent()
		}),
	check("multi/multiRead, empty", ">=3.6",
		"A multiRead without operations succeeds and has no results.",
		func(t *trial) {
			f := t.connect().do(opMultiRead())
			t.equal("the number of results", len(f.Body.(*proto.MultiReply).Results), 0)
		}),
	check("multi/multiRead, operations not allowed", ">=3.6",
		"A multiRead with a write, or with a read other than getData and getChildren, fails with MarshallingError and changes nothing.",
		func(t *trial, k *conn) {
			k.want(proto.MarshallingError, opMultiRead(opGet(t.path("")), opCreate(t.path("a"), nil, 0)))
			k.want(proto.MarshallingError, opMultiRead(opExists("/")), opMultiRead(request{Op: 77, Request: &proto.Empty{}}))
			k.missing(t.path("a"))
		}),
	check("multi/multiRead, same order", ">=3.6",
		"A multiRead sees the earlier writes of its connection, and not the later ones.",
		func(t *trial, k *conn) {
			k.make(t.path("a"))
			k.send(opSet(t.path("a"), nil, -1), opMultiRead(opGet(t.path("a"))), opSet(t.path("a"), nil, -1))
			k.judge(k.reply(), proto.OK)
			r := k.reply().Body.(*proto.MultiReply).Results
			t.equal("the version", r[0].Reply.(*proto.DataReply).Stat.Version, int32(1))
			k.judge(k.reply(), proto.OK)
		}),
}
