package conform

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var orderChecks = []Check{
	check("order/replies", ">=3.0",
		"Replies come in the order of the requests: reads and writes, successful and failed ones.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			ops := []struct {
				q    request
				code proto.Code
			}{
				{opSet(t.path("x"), nil, -1), proto.OK},
				{opExists(t.path("x")), proto.OK},
				{opCreate(t.path("x"), nil, 0), proto.NodeExists},
				{opGet(t.path("none")), proto.NoNode},
				{opCreate(t.path("s"), nil, proto.FlagSequential), proto.OK},
				{opChildren(t.path("x")), proto.OK},
				{opSync(t.path("x")), proto.OK},
				{opDelete(t.path("none"), -1), proto.NoNode},
			}
			const n = 400
			for i := range n {
				k.queue(ops[i%len(ops)].q)
			}
			k.flush()
			for i := range n {
				want := ops[i%len(ops)]
				k.answers(want.code)
			}
		}),
	check("order/pings", ">=3.0",
		"A ping between other requests is answered between them.",
		func(t *trial, k *conn) {
			for range 20 {
				k.queue(opCreate(t.path("s"), nil, proto.FlagSequential))
				k.queueXid(proto.XidPing, request{Op: proto.OpPing})
				k.queue(opExists(t.path("")))
				k.queueXid(proto.XidPing, request{Op: proto.OpPing})
			}
			k.flush()
			for range 2 * 20 {
				k.answers(proto.OK)
				k.answer()
			}
		}),
	check("order/read your writes", ">=3.0",
		"A read sent after a write, without waiting for its reply, sees that write and no later one.",
		func(t *trial, k *conn) {
			const n = 50
			k.queue(opCreate(t.path("x"), nil, 0))
			for i := range n {
				k.queue(opSet(t.path("x"), fmt.Append(nil, i), int32(i)), opGet(t.path("x")))
			}
			k.send(opDelete(t.path("x"), n), opExists(t.path("x")))
			k.answers(proto.OK)
			for i := range int32(n) {
				set := k.answers(proto.OK)
				get := k.answers(proto.OK)
				r := get.Body.(*proto.DataReply)
				t.equal("the data", string(r.Data), fmt.Sprint(i))
				t.equal("the Stat", proto.Record(&r.Stat), set.Body)
			}
			k.answers(proto.OK, proto.NoNode)
		}),
	check("order/children of pipelined creates", ">=3.0",
		"Each list of children shows the creates sent before it, and no others.",
		func(t *trial, k *conn) {
			const n = 20
			for i := range n {
				k.queue(opCreate(t.path(fmt.Sprint(i)), nil, 0), opChildren(t.path("")))
			}
			k.flush()
			for i := range int32(n) {
				k.answers(proto.OK)
				f := k.answers(proto.OK)
				t.equal("the number of children", len(f.Body.(*proto.ChildrenReply).Names), int(i+1))
			}
		}),
	check("order/event before the own reply", ">=3.0",
		"The event of a connection's own write comes right before the write's reply.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for range 5 {
				k.watch(opGet(t.path("x")))
				k.send(opSet(t.path("x"), nil, -1))
				k.event(dataChanged(t.path("x")))
				k.answers(proto.OK)
			}
			k.noEvent()
		}),
	check("order/event after the watch's reply", ">=3.0",
		"An event comes after the reply to the read that set the watch and before the reply to the write that fired it, even if both requests were sent at once.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			const n = 20
			for range n {
				k.queue(watching(opGet(t.path("x"))), opSet(t.path("x"), nil, -1))
			}
			k.flush()
			for range n {
				k.reads()
				k.event(dataChanged(t.path("x")))
				k.reads()
			}
			k.noEvent()
		}),
	check("order/event before new data", ">=3.0",
		"A client receives the event of a change before it can see anything that another session changed later.",
		func(t *trial, a, b *conn) {
			b.make(t.path("x"), t.path("y"))
			for i := range int32(20) {
				a.watch(opGet(t.path("x")))
				b.set(t.path("x"), nil, -1)
				b.set(t.path("y"), nil, -1)
				t.eventually(0, fmt.Sprintf("y has version %d", i+1), func() bool {
					a.send(opSync(t.path("y")), opExists(t.path("y")))
					return a.answers(proto.OK, proto.OK).Body.(*proto.Stat).Version == i+1
				})
				t.equal("the number of events before it", len(a.events), 1)
				a.event(dataChanged(t.path("x")))
			}
		}),
	check("order/events", ">=3.0",
		"Events come in the order of the changes, whichever sessions made them.",
		func(t *trial) {
			watcher, a, b := t.connect(), t.connect(), t.connect()
			var order []string
			for i := range 20 {
				order = append(order, t.path(fmt.Sprintf("n%d", i*7%20)))
				watcher.watch(opExists(t.path(fmt.Sprintf("n%d", i))))
			}
			for i, p := range order {
				k := a
				if i%2 == 1 {
					k = b
				}
				k.make(p)
			}
			for _, p := range order {
				watcher.event(created(p))
			}
			watcher.noEvent()
		}),
	check("order/zxids of writes", ">=3.0",
		"The zxids of a connection's writes increase from one to the next, including those of failed writes.",
		func(t *trial, k, other *conn) {
			const n = 50
			for i := range n {
				k.queue(opCreate(t.path(fmt.Sprint(i/2)), nil, 0)) // every other one exists
			}
			k.flush()
			other.make(t.path("other"))
			last := int64(0)
			for i := range int32(n) {
				f := k.answer()
				t.ensure((f.Code == proto.NodeExists) == (i%2 == 1), "create %d is answered %s", i, f.Code)
				t.ensure(f.Zxid > last, "zxid %#x comes after %#x", f.Zxid, last)
				last = f.Zxid
			}
		}),
	check("order/zxids of replies", ">=3.0",
		"The zxids in a connection's replies never decrease, and a read's is at least that of the data that it returns.",
		func(t *trial, a, b *conn) {
			last := int64(0)
			after := func(f *wire.Frame) {
				t.ensure(f.Zxid >= last, "zxid %#x comes after %#x", f.Zxid, last)
				last = f.Zxid
			}
			a.make(t.path("x"))
			for range 10 {
				after(a.do(opSet(t.path("x"), nil, -1)))
				b.set(t.path("x"), nil, -1)
				f := a.do(opGet(t.path("x")))
				after(f)
				t.ensure(f.Zxid >= f.Body.(*proto.DataReply).Stat.Mzxid, "a read of zxid %#x shows mzxid %#x", f.Zxid, f.Body.(*proto.DataReply).Stat.Mzxid)
				after(a.ping())
				after(a.want(proto.NoNode, opExists(t.path("none"))))
				after(a.do(opSync("/")))
			}
		}),
	check("order/identities", ">=3.6",
		"An identity applies to the requests after the auth request and not to those before it, even if all are sent at once.",
		func(t *trial, owner *conn) {
			owner.auth("digest", alice+":"+alice)
			owner.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k := t.connect()
			before := k.queue(opGet(t.path("x")))
			write := k.queue(opSet(t.path("x"), nil, -1))
			k.queueXid(proto.XidAuth, req(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(alice + ":" + alice)}))
			after := k.queue(opGet(t.path("x")))
			last := k.queue(opSet(t.path("x"), nil, 0))
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
		}),
}

// reads is like answers with code OK, but no event may come before the reply.
func (k *conn) reads() {
	before := len(k.events)
	f := k.answers(proto.OK)
	if len(k.events) > before {
		k.t.failf("%s: received an event before the reply to %s, expected it later", k.name, wire.OpName(f.Op))
	}
}
