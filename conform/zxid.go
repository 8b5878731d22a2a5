package conform

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var zxidChecks = []Check{
	alone(check("zxid/writes", ">=3.5.3",
		"A write that succeeds consumes one zxid, the next one, which its reply and the Stats have.",
		takes(11, func(t *trial, k *conn, root string) {
			last := k.ping().Zxid
			for i, q := range []request{
				opCreate(root, nil, 0),
				opCreate(root+"/e", nil, proto.FlagEphemeral),
				opCreate(root+"/s", nil, proto.FlagSequential),
				opMake(proto.OpCreate2, root+"/2", nil, 0),
				opMake(proto.OpCreateContainer, root+"/c", nil, proto.FlagContainer),
				opSet(root, nil, -1),
				opSetACL(root, proto.OpenACL, -1),
				opDelete(root+"/2", -1),
			} {
				t.equal("the zxid", k.do(q).Zxid, last+int64(i)+1)
			}
			last += 8
			stat := k.stat(root)
			t.equal("mzxid", stat.Mzxid, last-2)
			t.equal("pzxid", stat.Pzxid, last)
			t.equal("czxid", stat.Czxid, last-7)
			k.set(root, nil, -1)
			k.make(root + "/x")
			k.delete(root+"/x", -1)
		}))),
	alone(check("zxid/failed writes", ">=3.5",
		"A write that fails a check consumes one zxid, too, which its reply has.",
		func(t *trial, k *conn) {
			k.make(t.path("p"), t.path("p/x"))
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			k.takes(13, func(string) {
				last := k.ping().Zxid
				for _, f := range []struct {
					code proto.Code
					q    request
				}{
					{proto.NodeExists, opCreate(t.path("p"), nil, 0)},
					{proto.NoNode, opCreate(t.path("a/b"), nil, 0)},
					{proto.BadArguments, opCreate(t.path(".."), nil, 0)},
					{proto.BadArguments, opCreate("none", nil, 0)},
					{proto.InvalidACL, req(proto.OpCreate2, &proto.CreateRequest{Path: t.path("y"), ACL: noACL})},
					{proto.NoChildrenForEphemerals, opCreate(t.path("e/x"), nil, 0)},
					{proto.NoAuth, opCreate(t.path("closed/x"), nil, 0)},
					{proto.NotEmpty, opDelete(t.path("p"), -1)},
					{proto.BadVersion, opDelete(t.path("p/x"), 4)},
					{proto.NoNode, opSet(t.path("y"), nil, -1)},
					{proto.BadVersion, opSet(t.path("p"), nil, 4)},
					{proto.InvalidACL, opSetACL(t.path("p"), noACL, -1)},
					{proto.NoAuth, opSetACL(t.path("closed"), proto.OpenACL, -1)},
				} {
					zxid := k.want(f.code, f.q).Zxid
					t.equal("the zxid", zxid, last+1)
					last = zxid
				}
			})
		})),
	alone(check("zxid/undecodable writes", releases.UnreadableTakesNone,
		"A write whose body cannot be decoded consumes no zxid, except a multi.",
		undisturbed(func(t *trial, k *conn, _ string) {
			last := k.ping().Zxid
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpDelete, proto.OpSetData, proto.OpSetACL} {
				t.equal("the zxid of "+wire.OpName(op), k.want(proto.MarshallingError, req(op, raw{0, 0})).Zxid, last)
			}
			t.equal("the zxid of multi", k.want(proto.MarshallingError, req(proto.OpMulti, raw{0, 0})).Zxid, last+1)
		}))),
	alone(check("zxid/undecodable writes, older versions", releases.UnreadableTakesZxid,
		"A write whose body cannot be decoded consumes a zxid.",
		undisturbed(func(t *trial, k *conn, _ string) {
			last := k.ping().Zxid
			for i, op := range []proto.OpCode{proto.OpCreate, proto.OpDelete, proto.OpSetData, proto.OpSetACL, proto.OpMulti} {
				t.equal("the zxid of "+wire.OpName(op), k.want(proto.MarshallingError, req(op, raw{0, 0})).Zxid, last+int64(i)+1)
			}
		}))),
	alone(check("zxid/reads", ">=3.7",
		"Reads consume no zxid, whether they succeed or not, and return the last one consumed.",
		takes(0, func(t *trial, k *conn, _ string) {
			last := k.ping().Zxid
			for _, p := range []string{t.path(""), t.path("none")} {
				for _, q := range []request{
					watching(opExists(p)), watching(opGet(p)), watching(opChildren(p)), watching(opChildren2(p)), opGetACL(p),
					opPath(proto.OpGetAllChildrenNumber, p), opPath(proto.OpGetEphemerals, p), {Op: proto.OpWhoAmI},
					opMultiRead(opGet(p), opChildren(p)),
				} {
					t.equal("the zxid of "+wire.OpName(q.Op), k.call(q).Zxid, last)
				}
			}
		}))),
	alone(check("zxid/connection's requests", ">=3.6",
		"ping, sync, auth and all requests about watches consume no zxid; the reply to auth has zxid 0.",
		takes(0, func(t *trial, k *conn, _ string) {
			last := k.ping().Zxid
			t.equal("the zxid of sync", k.do(opSync("/")).Zxid, last)
			t.equal("the zxid of auth", k.auth("digest", bob+":"+bob).Zxid, int64(0))
			t.equal("the zxid of addWatch", k.addWatch(t.path("x"), 0).Zxid, last)
			k.want(proto.NoWatcher, opCheckWatches(t.path("none"), 3))
			k.do(opRemoveWatches(t.path("x"), 3))
			t.equal("the zxid of setWatches", k.do(req(proto.OpSetWatches, &proto.SetWatchesRequest{Data: []string{t.path("")}, RelativeZxid: last})).Zxid, last)
			t.equal("the zxid of setWatches2", k.do(req(proto.OpSetWatches2, &proto.SetWatches2Request{Persistent: []string{t.path("")}})).Zxid, last)
			k.do(opRemoveWatches(t.path(""), 3))
		}))),
	alone(check("zxid/multi", ">=3.4",
		"A multi consumes one zxid for all its operations, which its reply and all its changes have, even if it fails or is empty.",
		takes(3, func(t *trial, k *conn, root string) {
			last := k.ping().Zxid
			f := k.do(opMulti(opCreate(root, nil, 0), opSet(root, nil, 0), opCreate(root+"/x", nil, 0), opCheck(root, 1)))
			t.equal("the zxid", f.Zxid, last+1)
			stat := k.stat(root)
			t.equal("czxid, mzxid and pzxid", []int64{stat.Czxid, stat.Mzxid, stat.Pzxid}, []int64{f.Zxid, f.Zxid, f.Zxid})
			f = k.do(opMulti(opSet(root, nil, 1), opDelete(root, -1)))
			t.equal("the zxid of one that fails", f.Zxid, last+2)
			f = k.do(opMulti())
			t.equal("the zxid of an empty one", f.Zxid, last+3)
			t.equal("its number of results", len(f.Body.(*proto.MultiReply).Results), 0)
		}))),
	alone(check("zxid/sessions", ">=3.5",
		"The start of a session consumes one zxid, and its end another, together with the deletion of its ephemeral znodes.",
		takes(2*3+2, func(t *trial, k *conn, root string) {
			k.make(root)
			a := t.connect()
			b := t.connect()
			a.create(root+"/a", nil, proto.FlagEphemeral)
			b.closeSession()
			c := t.connect()
			c.closeSession()
			t.equal("the zxid of closeSession", a.closeSession().Zxid, k.stat(root).Pzxid)
		}))),
	alone(check("zxid/expiry", ">=3.5",
		"The expiry of a session consumes one zxid, together with the deletion of its ephemeral znodes.",
		takes(1+1+5+1, func(t *trial, k *conn, root string) {
			k.make(root)
			began := time.Now()
			a := t.connectFor(short)
			for i := range 5 {
				a.create(fmt.Sprintf("%s/%d", root, i), nil, proto.FlagEphemeral)
			}
			k.watch(opExists(root + "/3"))
			k.expires(a.Session, began, root+"/3")
			t.equal("children left", len(k.children(root)), 0)
		}))),
	alone(check("zxid/resumption", ">=3.5",
		"A resumption consumes no zxid, whether it succeeds or is refused.",
		func(t *trial, k *conn) {
			a := t.connect()
			k.takes(0, func(string) {
				for range 3 {
					a.hangUp()
					a = t.resume(a.Session)
				}
				q := rawclient.Resumption(a.Session)
				q.SessionID = 0x0123456776543210
				t.refused(q)
			})
		})),
	alone(check("zxid/bad frames", ">=3.5",
		"A frame that closes its connection consumes no zxid, and neither does a read that cannot be decoded, an unknown operation or an auth that is refused.",
		func(t *trial, k *conn) {
			var conns []*conn
			for range 3 * 4 {
				conns = append(conns, t.connect())
			}
			k.takes(0, func(string) {
				k.want(proto.MarshallingError, request{Op: proto.OpExists})
				a, b, c := conns[0], conns[1], conns[2]
				conns = conns[3:]
				a.want(proto.Unimplemented, request{Op: 4711})
				a.closed()
				b.sendFrame([]byte{1})
				b.closed()
				c.authRefused(c.tryAuth("nobody", nil))
			})
		})),
}

// takes checks that f consumes n zxids. f may run more than once.
func (k *conn) takes(n int64, f func(root string)) {
	k.t.undisturbed(func(root string) {
		before := k.ping().Zxid
		f(root)
		k.t.equal("the number of zxids consumed", k.ping().Zxid-before, n)
	})
}
