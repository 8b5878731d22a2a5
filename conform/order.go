package conform

import (
	"bytes"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var orderChecks = []Check{
	{
		Name: "order/replies",
		Says: "Replies come in the order of the requests: reads and writes, successful and failed ones.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			ops := []struct {
				op   proto.OpCode
				body proto.Record
				code proto.Code
			}{
				{proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: -1}, proto.OK},
				{proto.OpExists, &proto.PathWatch{Path: t.path("x")}, proto.OK},
				{proto.OpCreate, newZnode(t.path("x"), 0), proto.NodeExists},
				{proto.OpGetData, &proto.PathWatch{Path: t.path("none")}, proto.NoNode},
				{proto.OpCreate, newZnode(t.path("s"), proto.FlagSequential), proto.OK},
				{proto.OpGetChildren, &proto.PathWatch{Path: t.path("x")}, proto.OK},
				{proto.OpSync, &proto.Path{Path: t.path("x")}, proto.OK},
				{proto.OpDelete, &proto.PathVersion{Path: t.path("none"), Version: -1}, proto.NoNode},
			}
			first := k.xid + 1
			const n = 400
			for i := range n {
				k.queue(ops[i%len(ops)].op, ops[i%len(ops)].body)
			}
			k.flush()
			for i := range n {
				want := ops[i%len(ops)]
				k.judge(k.answer(first+int32(i), want.op), want.code)
			}
		},
	},
	{
		Name: "order/pings",
		Says: "A ping between other requests is answered between them.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for range 20 {
				k.queue(proto.OpCreate, newZnode(t.path("s"), proto.FlagSequential))
				k.queueXid(proto.XidPing, proto.OpPing, nil)
				k.queue(proto.OpExists, &proto.PathWatch{Path: t.path("")})
				k.queueXid(proto.XidPing, proto.OpPing, nil)
			}
			k.flush()
			first := k.xid - 39
			for i := range int32(20) {
				k.judge(k.answer(first+2*i, proto.OpCreate), proto.OK)
				k.answer(proto.XidPing, proto.OpPing)
				k.judge(k.answer(first+2*i+1, proto.OpExists), proto.OK)
				k.answer(proto.XidPing, proto.OpPing)
			}
		},
	},
	{
		Name: "order/read your writes",
		Says: "A read sent after a write, without waiting for its reply, sees that write and no later one.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			const n = 50
			k.queue(proto.OpCreate, newZnode(t.path("x"), 0))
			for i := range n {
				k.queue(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Data: fmt.Append(nil, i), Version: int32(i)})
				k.queue(proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
			}
			k.queue(proto.OpDelete, &proto.PathVersion{Path: t.path("x"), Version: n})
			k.queue(proto.OpExists, &proto.PathWatch{Path: t.path("x")})
			k.flush()
			k.judge(k.answer(1, proto.OpCreate), proto.OK)
			for i := range int32(n) {
				set := k.answer(2+2*i, proto.OpSetData)
				k.judge(set, proto.OK)
				get := k.answer(3+2*i, proto.OpGetData)
				k.judge(get, proto.OK)
				r := get.Body.(*proto.DataReply)
				t.equal("the data", string(r.Data), fmt.Sprint(i))
				t.equal("the Stat", proto.Record(&r.Stat), set.Body)
			}
			k.judge(k.answer(2*n+2, proto.OpDelete), proto.OK)
			k.judge(k.answer(2*n+3, proto.OpExists), proto.NoNode)
		},
	},
	{
		Name: "order/children of pipelined creates",
		Says: "Each list of children shows the creates sent before it, and no others.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			const n = 20
			for i := range n {
				k.queue(proto.OpCreate, newZnode(t.path(fmt.Sprint(i)), 0))
				k.queue(proto.OpGetChildren, &proto.PathWatch{Path: t.path("")})
			}
			k.flush()
			for i := range int32(n) {
				k.judge(k.answer(2*i+1, proto.OpCreate), proto.OK)
				f := k.answer(2*i+2, proto.OpGetChildren)
				k.judge(f, proto.OK)
				t.equal("the number of children", len(f.Body.(*proto.ChildrenReply).Names), int(i+1))
			}
		},
	},
	{
		Name: "order/sequential creates",
		Says: "Sequential creates sent without waiting for replies are numbered in the order in which they were sent.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			const n = 100
			for range n {
				k.queue(proto.OpCreate, newZnode(t.path("s"), proto.FlagEphemeralSeq))
			}
			k.flush()
			for i := range int32(n) {
				f := k.answer(i+1, proto.OpCreate)
				k.judge(f, proto.OK)
				t.equal("the path", f.Body, proto.Record(&proto.PathReply{Path: fmt.Sprintf("%s%010d", t.path("s"), i)}))
			}
		},
	},
	{
		Name: "order/event before the own reply",
		Says: "The event of a connection's own write comes right before the write's reply.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for range 5 {
				k.watchData(t.path("x"))
				k.send(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: -1})
				k.event(proto.EventNodeDataChanged, t.path("x"))
				k.judge(k.answer(k.xid, proto.OpSetData), proto.OK)
			}
			k.noEvent()
		},
	},
	{
		Name: "order/event after the watch's reply",
		Says: "An event comes after the reply to the read that set the watch and before the reply to the write that fired it, even if both requests were sent at once.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			first := k.xid + 1
			const n = 20
			for range n {
				k.queue(proto.OpGetData, &proto.PathWatch{Path: t.path("x"), Watch: true})
				k.queue(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: -1})
			}
			k.flush()
			for i := range int32(n) {
				k.reads(first+2*i, proto.OpGetData)
				k.event(proto.EventNodeDataChanged, t.path("x"))
				k.reads(first+2*i+1, proto.OpSetData)
			}
			k.noEvent()
		},
	},
	{
		Name: "order/event before new data",
		Says: "A client receives the event of a change before it can see anything that another session changed later.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			b.create(t.path("x"), nil, 0)
			b.create(t.path("y"), nil, 0)
			for i := range int32(20) {
				a.watchData(t.path("x"))
				b.set(t.path("x"), nil, -1)
				b.set(t.path("y"), nil, -1)
				for version := int32(-1); version != i+1; {
					a.queue(proto.OpSync, &proto.Path{Path: t.path("y")})
					a.queue(proto.OpExists, &proto.PathWatch{Path: t.path("y")})
					a.flush()
					a.judge(a.answer(a.xid-1, proto.OpSync), proto.OK)
					f := a.answer(a.xid, proto.OpExists)
					a.judge(f, proto.OK)
					version = f.Body.(*proto.Stat).Version
				}
				t.equal("the number of events before it", len(a.events), 1)
				a.event(proto.EventNodeDataChanged, t.path("x"))
			}
		},
	},
	{
		Name: "order/events",
		Says: "Events come in the order of the changes, whichever sessions made them.",
		In:   ">=3.0",
		run: func(t *trial) {
			watcher, a, b := t.connect(), t.connect(), t.connect()
			var order []string
			for i := range 20 {
				order = append(order, t.path(fmt.Sprintf("n%d", i*7%20)))
				watcher.watchExists(t.path(fmt.Sprintf("n%d", i)))
			}
			for i, p := range order {
				k := a
				if i%2 == 1 {
					k = b
				}
				k.create(p, nil, 0)
			}
			for _, p := range order {
				watcher.event(proto.EventNodeCreated, p)
			}
			watcher.noEvent()
		},
	},
	{
		Name: "order/events of one change",
		Says: "For one create or delete, the event of the znode comes before that of its parent's children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, other := t.connect(), t.connect()
			k.watchExists(t.path("x"))
			k.watchChildren(t.path(""))
			other.create(t.path("x"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("x"))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.watchData(t.path("x"))
			k.watchChildren(t.path(""))
			other.delete(t.path("x"), -1)
			k.event(proto.EventNodeDeleted, t.path("x"))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.noEvent()
		},
	},
	{
		Name: "order/zxids of writes",
		Says: "The zxids of a connection's writes increase from one to the next, including those of failed writes.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, other := t.connect(), t.connect()
			const n = 50
			for i := range n {
				k.queue(proto.OpCreate, newZnode(t.path(fmt.Sprint(i/2)), 0)) // every other one exists
			}
			k.flush()
			other.create(t.path("other"), nil, 0)
			last := int64(0)
			for i := range int32(n) {
				f := k.answer(i+1, proto.OpCreate)
				t.ensure((f.Code == proto.NodeExists) == (i%2 == 1), "create %d is answered %s", i, f.Code)
				t.ensure(f.Zxid > last, "zxid %#x comes after %#x", f.Zxid, last)
				last = f.Zxid
			}
		},
	},
	{
		Name: "order/zxids of replies",
		Says: "The zxids in a connection's replies never decrease, and a read's is at least that of the data that it returns.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			last := int64(0)
			after := func(f *wire.Frame) {
				t.ensure(f.Zxid >= last, "zxid %#x comes after %#x", f.Zxid, last)
				last = f.Zxid
			}
			a.create(t.path("x"), nil, 0)
			for range 10 {
				after(a.do(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: -1}))
				b.set(t.path("x"), nil, -1)
				f := a.do(proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
				after(f)
				t.ensure(f.Zxid >= f.Body.(*proto.DataReply).Stat.Mzxid, "a read of zxid %#x shows mzxid %#x", f.Zxid, f.Body.(*proto.DataReply).Stat.Mzxid)
				after(a.ping())
				after(a.want(proto.NoNode, proto.OpExists, &proto.PathWatch{Path: t.path("none")}))
				after(a.do(proto.OpSync, &proto.Path{Path: "/"}))
			}
		},
	},
	{
		Name: "order/identities",
		Says: "An identity applies to the requests after the auth request and not to those before it, even if all are sent at once.",
		In:   ">=3.6",
		run: func(t *trial) {
			owner := t.connect()
			owner.auth("digest", alice+":"+alice)
			owner.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k := t.connect()
			before := k.queue(proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
			write := k.queue(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: -1})
			k.queueXid(proto.XidAuth, proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(alice + ":" + alice)})
			after := k.queue(proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
			last := k.queue(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: 0})
			k.flush()
			// The reply to auth may come before those of earlier requests.
			codes := map[int32]proto.Code{}
			for range 5 {
				f := k.reply()
				codes[f.Xid] = f.Code
			}
			t.equal("the codes by xid", codes, map[int32]proto.Code{
				before: proto.NoAuth, write: proto.NoAuth, proto.XidAuth: proto.OK, after: proto.OK, last: proto.OK,
			})
		},
	},
	{
		Name: "order/two connections",
		Says: "A read that follows the reply of another session's write, and a sync, sees that write.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			a.create(t.path("x"), nil, 0)
			for i := range 20 {
				data := fmt.Append(nil, i)
				a.set(t.path("x"), data, -1)
				b.do(proto.OpSync, &proto.Path{Path: t.path("x")})
				got, _ := b.get(t.path("x"))
				t.ensure(bytes.Equal(got, data), "%q is read after %q was written", got, data)
			}
		},
	},
}

// reads is like answer, but no event may come before the reply.
func (k *conn) reads(xid int32, op proto.OpCode) {
	before := len(k.events)
	k.judge(k.answer(xid, op), proto.OK)
	if len(k.events) > before {
		k.t.failf("%s: received an event before the reply to %s, expected it later", k.name, wire.OpName(op))
	}
}
