package conform

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

var badFrameChecks = slices.Concat(truncatedChecks(), []Check{
	check("bad frames/half a header", ">=3.0",
		"A frame that is empty, or shorter than a header, closes the connection without a reply; the session continues.",
		func(t *trial) {
			for _, n := range []int{0, 1, 4, 7} {
				closesOn(body(1, int(proto.OpExists))[:n])(t)
			}
		}),
	check("bad frames/truncated auth", ">=3.0",
		"An auth request that cannot be decoded closes the connection without a reply; the session continues.",
		func(t *trial) {
			whole := body(-4, int(proto.OpAuth), &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:b")})
			for _, n := range []int{8, 11, 12, 15, 20, 22, 25, len(whole) - 1} {
				closesOn(whole[:n])(t)
			}
		}),
	check("bad frames/unknown operation", ">=3.5",
		"A request of an unknown type is answered Unimplemented with zxid -1, and the connection is closed; the session continues.",
		func(t *trial) {
			for _, op := range wire.UnknownOps {
				k := t.connect()
				k.create(t.path("e"), nil, proto.FlagEphemeral)
				f := k.want(proto.Unimplemented, request{Op: op})
				t.equal("the reply's zxid", f.Zxid, int64(-1))
				k.closed()
				b := t.resume(k.Session)
				t.equal("the owner", b.stat(t.path("e")).EphemeralOwner, k.Session.SessionID)
				b.closeSession()
			}
		}),
	check("bad frames/unknown operation with a body", ">=3.5",
		"The body of a request of an unknown type is ignored.",
		func(t *trial) {
			for _, b := range []raw{{1}, body(t.path("x"), true), repeat(1000)} {
				k := t.connect()
				k.want(proto.Unimplemented, req(4711, b))
				k.closed()
			}
		}),
	check("bad frames/check alone", releases.CheckAloneRefused,
		"check is allowed only in a multi: on its own it is answered Unimplemented, and the connection is closed.",
		func(t *trial, k *conn) {
			k.want(proto.Unimplemented, opCheck(t.path(""), -1))
			k.closed()
		}),
	check("bad frames/null path of setData", ">=3.5",
		"A null path in setData or setACL fails with BadArguments, as an empty path does.",
		func(t *trial, k *conn) {
			for range 2 {
				k.want(proto.BadArguments, req(proto.OpSetData, body(-1, -1, -1)))
				k.want(proto.BadArguments, req(proto.OpSetACL, body(-1, 1, &proto.OpenACL[0], -1)))
				k.want(proto.BadArguments, req(proto.OpSetACL, body(-1, 0, 8)))
			}
		}),
	check("bad frames/null path of a write", ">=3.5",
		"A null path in a create or a delete fails with MarshallingError.",
		func(t *trial, k *conn) {
			k.want(proto.MarshallingError, req(proto.OpCreate, body(-1, -1, 1, &proto.OpenACL[0], 0)))
			k.want(proto.MarshallingError, req(proto.OpCreate2, body(-1, -1, 1, &proto.OpenACL[0], 0)))
			k.want(proto.MarshallingError, req(proto.OpCreateContainer, body(-1, -1, 1, &proto.OpenACL[0], 4)))
			k.want(proto.MarshallingError, req(proto.OpDelete, body(-1, -1)))
			k.ping()
		}),
	check("bad frames/null path of a read", ">=3.5",
		"A null path in a read fails with MarshallingError.",
		func(t *trial, k *conn) {
			for _, op := range []proto.OpCode{proto.OpExists, proto.OpGetData, proto.OpGetChildren, proto.OpGetChildren2} {
				k.want(proto.MarshallingError, req(op, body(-1, false)), req(op, body(-1, true)))
			}
			k.want(proto.MarshallingError, req(proto.OpGetACL, body(-1)))
			k.ping()
		}),
	check("bad frames/string length", ">=3.5",
		"A string whose length is below -1 or exceeds the frame fails with MarshallingError.",
		func(t *trial, k *conn) {
			for _, n := range []int{-2, math.MinInt32, 100, 1 << 22, math.MaxInt32} {
				k.want(proto.MarshallingError, req(proto.OpExists, body(n, []byte("/x"), false)))
				k.want(proto.MarshallingError, req(proto.OpDelete, body(n, []byte("/x"), -1)))
				k.want(proto.MarshallingError, req(proto.OpCreate, body(n, []byte("/x"), -1, 1, &proto.OpenACL[0], 0)))
			}
			k.ping()
		}),
	check("bad frames/buffer length", ">=3.5",
		"Data whose length is below -1 or exceeds the frame fails with MarshallingError.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("old"), 0)
			for _, n := range []int{-2, math.MinInt32, 100, 1 << 22, math.MaxInt32} {
				k.want(proto.MarshallingError, req(proto.OpSetData, body(t.path("x"), n, []byte("new"), -1)))
				k.want(proto.MarshallingError, req(proto.OpCreate, body(t.path("y"), n, []byte("new"), 1, &proto.OpenACL[0], 0)))
			}
			t.equal("version", k.stat(t.path("x")).Version, int32(0))
			k.missing(t.path("y"))
		}),
	check("bad frames/list length", ">=3.5",
		"A list whose length exceeds the frame fails with MarshallingError.",
		func(t *trial, k *conn) {
			for _, n := range []int{2, 1000, math.MaxInt32} {
				k.want(proto.MarshallingError, req(proto.OpCreate, body(t.path("x"), -1, n, &proto.OpenACL[0], 0)))
				k.want(proto.MarshallingError, req(proto.OpSetACL, body(t.path(""), n, &proto.OpenACL[0], -1)))
				k.want(proto.MarshallingError, req(proto.OpSetWatches, body(int64(0), n, "/x", 0, 0)))
			}
			k.missing(t.path("x"))
		}),
	check("bad frames/negative list length", ">=3.6",
		"A list with a length below -1 is treated as empty, and so is a null ACL, whose length is -1.",
		func(t *trial, k *conn) {
			for _, n := range []int{-1, -2, math.MinInt32} {
				k.want(proto.InvalidACL, req(proto.OpCreate, body(t.path("x"), -1, n, 0)))
				k.want(proto.InvalidACL, req(proto.OpSetACL, body(t.path(""), n, -1)))
			}
			k.do(req(proto.OpSetWatches, body(int64(0), -2, math.MinInt32, 0)))
		}),
	check("bad frames/null list", ">=3.5",
		"A null list of paths in setWatches fails with MarshallingError.",
		func(t *trial, k *conn) {
			k.want(proto.MarshallingError, req(proto.OpSetWatches, body(int64(0), -1, -1, -1)))
			k.want(proto.MarshallingError, req(proto.OpSetWatches, body(int64(0), 0, -1, 0)))
			k.want(proto.MarshallingError, req(proto.OpSetWatches, body(int64(0), 0, 0, -1)))
			k.ping()
		}),
	check("bad frames/trailing bytes", ">=3.5",
		"Bytes after a request's record are ignored, in writes, reads and pings.",
		func(t *trial, k *conn) {
			more := []byte("more")
			k.do(req(proto.OpCreate, body(opCreate(t.path("x"), nil, 0).Request, more)))
			k.do(req(proto.OpSetData, body(t.path("x"), 3, []byte("abc"), -1, more)))
			k.do(req(proto.OpExists, body(t.path("x"), false, more)))
			k.do(req(proto.OpGetChildren, body(t.path("x"), false, more)))
			k.do(req(proto.OpGetACL, body(t.path("x"), more)), req(proto.OpSync, body(t.path("x"), more)))
			k.do(req(proto.OpPing, raw(more)))
			k.do(req(proto.OpMulti, body(opMulti(opSet(t.path("x"), nil, 1)).Request, more)))
			k.do(req(proto.OpDelete, body(t.path("x"), 2, more)), req(proto.OpCloseSession, raw(more)))
			k.closed()
		}),
	check("bad frames/boolean", ">=3.0",
		"Any byte other than 0 is true.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for _, b := range []byte{1, 2, 0x80, 0xff} {
				k.do(req(proto.OpGetData, body(t.path("x"), []byte{b})))
				k.set(t.path("x"), nil, -1)
				k.event(dataChanged(t.path("x")))
			}
			k.do(req(proto.OpGetData, body(t.path("x"), []byte{0})))
			k.set(t.path("x"), nil, -1)
			k.noEvent()
		}),
	check("bad frames/xids", ">=3.0",
		"An xid may be any number, and the reply repeats it: 0, negative and large numbers, and the same number again.",
		func(t *trial, k *conn) {
			for _, xid := range []int32{0, 0, 7, 7, 3, -3, -100, math.MaxInt32, math.MinInt32} {
				k.sendXid(xid, opExists(t.path("")))
				k.answers(proto.OK)
				k.sendXid(xid, opSet(t.path(""), nil, -1))
				k.answers(proto.OK)
			}
		}),
	check("bad frames/among good ones", ">=3.5",
		"A request whose body cannot be decoded is answered in its turn, and affects neither the request before it nor the one after it.",
		func(t *trial, k *conn) {
			k.queue(opCreate(t.path("x"), nil, 0), req(proto.OpCreate, raw{0, 0}), request{Op: proto.OpGetData})
			k.send(opExists(t.path("x")))
			k.answers(proto.OK, proto.MarshallingError, proto.MarshallingError, proto.OK)
		}),
})

// closesOn returns a check that a frame closes the connection without a reply and that
// the session can then be resumed.
func closesOn(payload []byte) func(*trial) {
	return func(t *trial) {
		k := t.connect()
		k.write(append(jute.AppendInt(nil, int32(len(payload))), payload...), fmt.Sprintf("the frame %x", payload))
		k.closed()
		t.resume(k.Session).closeSession()
	}
}

// truncatedChecks returns a check for each operation that has a body.
func truncatedChecks() (checks []Check) {
	for _, x := range []struct {
		in string
		q  func(x, y string) request // for a path that is missing, and for a znode
	}{
		{">=3.5", func(x, _ string) request { return opCreate(x, nil, 0) }},
		{">=3.5", func(_, y string) request { return opDelete(y, -1) }},
		{">=3.5", func(_, y string) request { return watching(opExists(y)) }},
		{">=3.5", func(_, y string) request { return watching(opGet(y)) }},
		{">=3.5", func(_, y string) request { return opSet(y, []byte("new"), -1) }},
		{">=3.5", func(_, y string) request { return opGetACL(y) }},
		{">=3.5", func(_, y string) request { return opSetACL(y, []proto.ACL{allowAll(proto.PermRead)}, -1) }},
		{">=3.5", func(_, y string) request { return watching(opChildren(y)) }},
		{">=3.5", func(_, y string) request { return watching(opChildren2(y)) }},
		{">=3.5", func(_, y string) request { return opSync(y) }},
		{">=3.5", func(x, y string) request {
			return opMulti(opCheck(y, 0), opCreate(x, []byte("x"), 0), opDelete(y, 0))
		}},
		{">=3.5", func(x, _ string) request { return opMake(proto.OpCreate2, x, nil, 0) }},
		{">=3.5", func(_, y string) request { return opCheckWatches(y, watcherAny) }},
		{">=3.5", func(_, y string) request { return opRemoveWatches(y, watcherAny) }},
		{">=3.5.3", func(x, _ string) request { return opMake(proto.OpCreateContainer, x, nil, proto.FlagContainer) }},
		{">=3.5.4", func(x, _ string) request { return opTTL(x, proto.FlagTTL, 1e6) }},
		{">=3.6", func(_, y string) request { return opMultiRead(opGet(y)) }},
		{">=3.5", func(x, y string) request {
			return req(proto.OpSetWatches, &proto.SetWatchesRequest{Data: []string{y}, Exist: []string{x}, Child: []string{y}})
		}},
		{">=3.6", func(_, y string) request {
			return req(proto.OpSetWatches2, &proto.SetWatches2Request{Persistent: []string{y}, Recursive: []string{y}})
		}},
		{">=3.6", func(_, y string) request { return opPath(proto.OpGetEphemerals, y) }},
		{">=3.6", func(_, y string) request { return opPath(proto.OpGetAllChildrenNumber, y) }},
		{">=3.6", func(_, y string) request { return opAddWatch(y, modeRecursive) }},
	} {
		name := wire.OpName(x.q("", "").Op)
		checks = append(checks, check("bad frames/truncated "+name, x.in,
			fmt.Sprintf("%s with a body that is cut off anywhere fails with MarshallingError and changes nothing, and the connection stays open.", name),
			truncated(x.q)))
	}
	return checks
}

// truncated is a script that sends a request, for a path that is missing and a znode, cut off anywhere.
func truncated(of func(x, y string) request) func(*trial, *conn) {
	return func(t *trial, k *conn) {
		y := k.create(t.path("y"), []byte("old"), 0)
		before := k.stat(y)
		q := of(t.path("x"), y)
		whole := q.Request.Append(nil)
		for n := range whole {
			k.queue(req(q.Op, raw(whole[:n])))
		}
		k.flush()
		for n := range whole {
			f := k.answer()
			t.ensure(f.Code == proto.MarshallingError, "the first %d bytes of %d are answered %s, expected MarshallingError", n, len(whole), f.Code)
		}
		t.equal("the Stat of a znode", k.stat(y), before)
		t.equal("the children", k.children(t.path("")), []string{"y"})
		k.noEvent()
	}
}
