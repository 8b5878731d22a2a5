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
	{
		Name:  "zxid/writes",
		Says:  "A write that succeeds consumes one zxid, the next one, which its reply and the Stats have.",
		In:    ">=3.5.3",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(11, func(root string) {
				last := k.ping().Zxid
				for i, f := range []struct {
					op   proto.OpCode
					body proto.Record
				}{
					{proto.OpCreate, newZnode(root, 0)},
					{proto.OpCreate, newZnode(root+"/e", proto.FlagEphemeral)},
					{proto.OpCreate, newZnode(root+"/s", proto.FlagSequential)},
					{proto.OpCreate2, newZnode(root+"/2", 0)},
					{proto.OpCreateContainer, newZnode(root+"/c", proto.FlagContainer)},
					{proto.OpSetData, &proto.SetDataRequest{Path: root, Version: -1}},
					{proto.OpSetACL, &proto.SetACLRequest{Path: root, ACL: proto.OpenACL, Version: -1}},
					{proto.OpDelete, &proto.PathVersion{Path: root + "/2", Version: -1}},
				} {
					t.equal("the zxid", k.do(f.op, f.body).Zxid, last+int64(i)+1)
				}
				last += 8
				stat := k.stat(root)
				t.equal("mzxid", stat.Mzxid, last-2)
				t.equal("pzxid", stat.Pzxid, last)
				t.equal("czxid", stat.Czxid, last-7)
				k.set(root, nil, -1)
				k.create(root+"/x", nil, 0)
				k.delete(root+"/x", -1)
			})
		},
	},
	{
		Name:  "zxid/failed writes",
		Says:  "A write that fails a check consumes one zxid, too, which its reply has.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			k.create(t.path("p/x"), nil, 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			k.takes(13, func(string) {
				last := k.ping().Zxid
				for _, f := range []struct {
					code proto.Code
					op   proto.OpCode
					body proto.Record
				}{
					{proto.NodeExists, proto.OpCreate, newZnode(t.path("p"), 0)},
					{proto.NoNode, proto.OpCreate, newZnode(t.path("a/b"), 0)},
					{proto.BadArguments, proto.OpCreate, newZnode(t.path(".."), 0)},
					{proto.BadArguments, proto.OpCreate, newZnode("none", 0)},
					{proto.InvalidACL, proto.OpCreate2, &proto.CreateRequest{Path: t.path("y"), ACL: noACL}},
					{proto.NoChildrenForEphemerals, proto.OpCreate, newZnode(t.path("e/x"), 0)},
					{proto.NoAuth, proto.OpCreate, newZnode(t.path("closed/x"), 0)},
					{proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: t.path("p"), Version: -1}},
					{proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("p/x"), Version: 4}},
					{proto.NoNode, proto.OpSetData, &proto.SetDataRequest{Path: t.path("y"), Version: -1}},
					{proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: t.path("p"), Version: 4}},
					{proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: t.path("p"), ACL: noACL, Version: -1}},
					{proto.NoAuth, proto.OpSetACL, &proto.SetACLRequest{Path: t.path("closed"), ACL: proto.OpenACL, Version: -1}},
				} {
					zxid := k.want(f.code, f.op, f.body).Zxid
					t.equal("the zxid", zxid, last+1)
					last = zxid
				}
			})
		},
	},
	{
		Name:  "zxid/undecodable writes",
		Says:  "A write whose body cannot be decoded consumes no zxid, except a multi.",
		In:    releases.UnreadableTakesNone,
		Alone: true,
		run: func(t *trial) {
			t.undisturbed(func(string) {
				k := t.connect()
				last := k.ping().Zxid
				for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpDelete, proto.OpSetData, proto.OpSetACL} {
					t.equal("the zxid of "+wire.OpName(op), k.wantRaw(proto.MarshallingError, op, []byte{0, 0}).Zxid, last)
				}
				t.equal("the zxid of multi", k.wantRaw(proto.MarshallingError, proto.OpMulti, []byte{0, 0}).Zxid, last+1)
			})
		},
	},
	{
		Name:  "zxid/undecodable writes, older versions",
		Says:  "A write whose body cannot be decoded consumes a zxid.",
		In:    releases.UnreadableTakesZxid,
		Alone: true,
		run: func(t *trial) {
			t.undisturbed(func(string) {
				k := t.connect()
				last := k.ping().Zxid
				for i, op := range []proto.OpCode{proto.OpCreate, proto.OpDelete, proto.OpSetData, proto.OpSetACL, proto.OpMulti} {
					t.equal("the zxid of "+wire.OpName(op), k.wantRaw(proto.MarshallingError, op, []byte{0, 0}).Zxid, last+int64(i)+1)
				}
			})
		},
	},
	{
		Name:  "zxid/reads",
		Says:  "Reads consume no zxid, whether they succeed or not, and return the last one consumed.",
		In:    ">=3.7",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(0, func(string) {
				last := k.ping().Zxid
				for _, p := range []string{t.path(""), t.path("none")} {
					for op, body := range map[proto.OpCode]proto.Record{
						proto.OpExists:               &proto.PathWatch{Path: p, Watch: true},
						proto.OpGetData:              &proto.PathWatch{Path: p, Watch: true},
						proto.OpGetChildren:          &proto.PathWatch{Path: p, Watch: true},
						proto.OpGetChildren2:         &proto.PathWatch{Path: p, Watch: true},
						proto.OpGetACL:               &proto.Path{Path: p},
						proto.OpGetAllChildrenNumber: &proto.Path{Path: p},
						proto.OpGetEphemerals:        &proto.Path{Path: p},
						proto.OpWhoAmI:               nil,
						proto.OpMultiRead: &proto.MultiReadRequest{Ops: []proto.MultiOp{
							{Op: proto.OpGetData, Request: &proto.PathWatch{Path: p}},
							{Op: proto.OpGetChildren, Request: &proto.PathWatch{Path: p}}}},
					} {
						t.equal("the zxid of "+wire.OpName(op), k.call(op, body).Zxid, last)
					}
				}
			})
		},
	},
	{
		Name:  "zxid/connection's requests",
		Says:  "ping, sync, auth and all requests about watches consume no zxid; the reply to auth has zxid 0.",
		In:    ">=3.6",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(0, func(string) {
				last := k.ping().Zxid
				t.equal("the zxid of sync", k.do(proto.OpSync, &proto.Path{Path: "/"}).Zxid, last)
				t.equal("the zxid of auth", k.auth("digest", bob+":"+bob).Zxid, int64(0))
				t.equal("the zxid of addWatch", k.addWatch(t.path("x"), 0).Zxid, last)
				k.want(proto.NoWatcher, proto.OpCheckWatches, &proto.PathType{Path: t.path("none"), Type: 3})
				k.want(proto.OK, proto.OpRemoveWatches, &proto.PathType{Path: t.path("x"), Type: 3})
				t.equal("the zxid of setWatches", k.do(proto.OpSetWatches, &proto.SetWatchesRequest{Data: []string{t.path("")}, RelativeZxid: last}).Zxid, last)
				t.equal("the zxid of setWatches2", k.do(proto.OpSetWatches2, &proto.SetWatches2Request{Persistent: []string{t.path("")}}).Zxid, last)
				k.do(proto.OpRemoveWatches, &proto.PathType{Path: t.path(""), Type: 3})
			})
		},
	},
	{
		Name:  "zxid/multi",
		Says:  "A multi consumes one zxid for all its operations, even if it fails or is empty.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(3, func(root string) {
				last := k.ping().Zxid
				f := k.do(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{
					opCreate(root, nil, 0), opSet(root, nil, 0), opCreate(root+"/x", nil, 0), opCheck(root, 1)}})
				t.equal("the zxid", f.Zxid, last+1)
				stat := k.stat(root)
				t.equal("czxid, mzxid and pzxid", []int64{stat.Czxid, stat.Mzxid, stat.Pzxid}, []int64{f.Zxid, f.Zxid, f.Zxid})
				f = k.do(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{opSet(root, nil, 1), opDelete(root, -1)}})
				t.equal("the zxid of one that fails", f.Zxid, last+2)
				f = k.do(proto.OpMulti, &proto.MultiRequest{})
				t.equal("the zxid of an empty one", f.Zxid, last+3)
			})
		},
	},
	{
		Name:  "zxid/sessions",
		Says:  "The start of a session consumes one zxid, and its end another, together with the deletion of its ephemeral znodes.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(2*3+2, func(root string) {
				k.create(root, nil, 0)
				a := t.connect()
				b := t.connect()
				a.create(root+"/a", nil, proto.FlagEphemeral)
				b.closeSession()
				c := t.connect()
				c.closeSession()
				t.equal("the zxid of closeSession", a.closeSession().Zxid, k.stat(root).Pzxid)
			})
		},
	},
	{
		Name:  "zxid/expiry",
		Says:  "The expiry of a session consumes one zxid, together with the deletion of its ephemeral znodes.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.takes(1+1+5+1, func(root string) {
				k.create(root, nil, 0)
				began := time.Now()
				a := t.connectFor(short)
				for i := range 5 {
					a.create(fmt.Sprintf("%s/%d", root, i), nil, proto.FlagEphemeral)
				}
				k.watchExists(root + "/3")
				k.expires(a.Session, began, root+"/3")
				t.equal("children left", len(k.children(root)), 0)
			})
		},
	},
	{
		Name:  "zxid/resumption",
		Says:  "A resumption consumes no zxid, whether it succeeds or is refused.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
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
		},
	},
	{
		Name:  "zxid/bad frames",
		Says:  "A frame that closes its connection consumes no zxid, and neither does a read that cannot be decoded or an unknown operation.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			var conns []*conn
			for range 2 * 4 {
				conns = append(conns, t.connect())
			}
			k.takes(0, func(string) {
				k.wantRaw(proto.MarshallingError, proto.OpExists, nil)
				a, b := conns[0], conns[1]
				conns = conns[2:]
				a.wantRaw(proto.Unimplemented, 4711, nil)
				a.closed()
				b.sendFrame([]byte{1})
				b.closed()
			})
		},
	},
}

// takes checks that f consumes n zxids. f may run more than once.
func (k *conn) takes(n int64, f func(root string)) {
	k.t.undisturbed(func(root string) {
		before := k.ping().Zxid
		f(root)
		k.t.equal("the number of zxids consumed", k.ping().Zxid-before, n)
	})
}
