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
	{
		Name: "bad frames/empty",
		Says: "An empty frame closes the connection without a reply; the session continues.",
		In:   ">=3.0",
		run:  closesOn(nil),
	},
	{
		Name: "bad frames/half a header",
		Says: "A frame that is shorter than a header closes the connection without a reply; the session continues.",
		In:   ">=3.0",
		run: func(t *trial) {
			for _, n := range []int{1, 4, 7} {
				closesOn(body(1, int(proto.OpExists))[:n])(t)
			}
		},
	},
	{
		Name: "bad frames/truncated auth",
		Says: "An auth request that cannot be decoded closes the connection without a reply; the session continues.",
		In:   ">=3.0",
		run: func(t *trial) {
			whole := body(-4, int(proto.OpAuth), &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:b")})
			for _, n := range []int{8, 11, 12, 15, 20, 22, 25, len(whole) - 1} {
				closesOn(whole[:n])(t)
			}
		},
	},
	{
		Name: "bad frames/unknown operation",
		Says: "A request of an unknown type is answered Unimplemented with zxid -1, and the connection is closed; the session continues.",
		In:   ">=3.5",
		run: func(t *trial) {
			for _, op := range wire.UnknownOps {
				k := t.connect()
				k.create(t.path("e"), nil, proto.FlagEphemeral)
				f := k.wantRaw(proto.Unimplemented, op, nil)
				t.equal("the reply's zxid", f.Zxid, int64(-1))
				k.closed()
				b := t.resume(k.Session)
				t.equal("the owner", b.stat(t.path("e")).EphemeralOwner, k.Session.SessionID)
				b.closeSession()
			}
		},
	},
	{
		Name: "bad frames/unknown operation with a body",
		Says: "The body of a request of an unknown type is ignored.",
		In:   ">=3.5",
		run: func(t *trial) {
			for _, b := range [][]byte{{1}, body(t.path("x"), true), repeat(1000)} {
				k := t.connect()
				k.wantRaw(proto.Unimplemented, 4711, b)
				k.closed()
			}
		},
	},
	{
		Name: "bad frames/check alone",
		Says: "check is allowed only in a multi: on its own it is answered Unimplemented, and the connection is closed.",
		In:   releases.CheckAloneRefused,
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.Unimplemented, proto.OpCheck, &proto.PathVersion{Path: t.path(""), Version: -1})
			k.closed()
		},
	},
	{
		Name: "bad frames/null path of setData",
		Says: "A null path in setData or setACL fails with BadArguments, as an empty path does.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for range 2 {
				k.wantRaw(proto.BadArguments, proto.OpSetData, body(-1, -1, -1))
				k.wantRaw(proto.BadArguments, proto.OpSetACL, body(-1, 1, &proto.OpenACL[0], -1))
				k.wantRaw(proto.BadArguments, proto.OpSetACL, body(-1, 0, 8))
			}
		},
	},
	{
		Name: "bad frames/null path of a write",
		Says: "A null path in a create or a delete fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.wantRaw(proto.MarshallingError, proto.OpCreate, body(-1, -1, 1, &proto.OpenACL[0], 0))
			k.wantRaw(proto.MarshallingError, proto.OpCreate2, body(-1, -1, 1, &proto.OpenACL[0], 0))
			k.wantRaw(proto.MarshallingError, proto.OpCreateContainer, body(-1, -1, 1, &proto.OpenACL[0], 4))
			k.wantRaw(proto.MarshallingError, proto.OpDelete, body(-1, -1))
			k.ping()
		},
	},
	{
		Name: "bad frames/null path of a read",
		Says: "A null path in a read fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, op := range []proto.OpCode{proto.OpExists, proto.OpGetData, proto.OpGetChildren, proto.OpGetChildren2} {
				k.wantRaw(proto.MarshallingError, op, body(-1, false))
				k.wantRaw(proto.MarshallingError, op, body(-1, true))
			}
			k.wantRaw(proto.MarshallingError, proto.OpGetACL, body(-1))
			k.ping()
		},
	},
	{
		Name: "bad frames/string length",
		Says: "A string whose length is below -1 or exceeds the frame fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, n := range []int{-2, math.MinInt32, 100, 1 << 22, math.MaxInt32} {
				k.wantRaw(proto.MarshallingError, proto.OpExists, body(n, []byte("/x"), false))
				k.wantRaw(proto.MarshallingError, proto.OpDelete, body(n, []byte("/x"), -1))
				k.wantRaw(proto.MarshallingError, proto.OpCreate, body(n, []byte("/x"), -1, 1, &proto.OpenACL[0], 0))
			}
			k.ping()
		},
	},
	{
		Name: "bad frames/buffer length",
		Says: "Data whose length is below -1 or exceeds the frame fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("old"), 0)
			for _, n := range []int{-2, math.MinInt32, 100, 1 << 22, math.MaxInt32} {
				k.wantRaw(proto.MarshallingError, proto.OpSetData, body(t.path("x"), n, []byte("new"), -1))
				k.wantRaw(proto.MarshallingError, proto.OpCreate, body(t.path("y"), n, []byte("new"), 1, &proto.OpenACL[0], 0))
			}
			t.equal("version", k.stat(t.path("x")).Version, int32(0))
			k.missing(t.path("y"))
		},
	},
	{
		Name: "bad frames/list length",
		Says: "A list whose length exceeds the frame fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, n := range []int{2, 1000, math.MaxInt32} {
				k.wantRaw(proto.MarshallingError, proto.OpCreate, body(t.path("x"), -1, n, &proto.OpenACL[0], 0))
				k.wantRaw(proto.MarshallingError, proto.OpSetACL, body(t.path(""), n, &proto.OpenACL[0], -1))
				k.wantRaw(proto.MarshallingError, proto.OpSetWatches, body(int64(0), n, "/x", 0, 0))
			}
			k.missing(t.path("x"))
		},
	},
	{
		Name: "bad frames/negative list length",
		Says: "A list with a length below -1 is treated as empty, and so is a null ACL, whose length is -1.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			for _, n := range []int{-1, -2, math.MinInt32} {
				k.wantRaw(proto.InvalidACL, proto.OpCreate, body(t.path("x"), -1, n, 0))
				k.wantRaw(proto.InvalidACL, proto.OpSetACL, body(t.path(""), n, -1))
			}
			k.wantRaw(proto.OK, proto.OpSetWatches, body(int64(0), -2, math.MinInt32, 0))
		},
	},
	{
		Name: "bad frames/null list",
		Says: "A null list of paths in setWatches fails with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.wantRaw(proto.MarshallingError, proto.OpSetWatches, body(int64(0), -1, -1, -1))
			k.wantRaw(proto.MarshallingError, proto.OpSetWatches, body(int64(0), 0, -1, 0))
			k.wantRaw(proto.MarshallingError, proto.OpSetWatches, body(int64(0), 0, 0, -1))
			k.ping()
		},
	},
	{
		Name: "bad frames/multi",
		Says: "A multi that contains an operation that is not allowed in it, or that lacks its end, fails with MarshallingError as a whole and changes nothing.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			header := func(op proto.OpCode) []byte { return body(int(op), false, -1) }
			create := newZnode(t.path("x"), 0)
			end := body(-1, true, -1)
			for _, b := range [][]byte{
				body(header(proto.OpCreate), create), // no end
				body(header(proto.OpCreate), create, header(proto.OpCreate), end),
				body(header(proto.OpCreate), create, header(proto.OpExists), t.path(""), false, end),
				body(header(proto.OpCreate), create, header(proto.OpGetData), t.path(""), false, end),
				body(header(proto.OpCreate), create, header(4711), end),
				body(header(proto.OpCreate), create, header(proto.OpMulti), end, end),
				{},
				{0},
			} {
				k.wantRaw(proto.MarshallingError, proto.OpMulti, b)
			}
			k.missing(t.path("x"))
			k.ping()
		},
	},
	{
		Name: "bad frames/multiRead",
		Says: "A multiRead that contains an operation that is not allowed in it, or that lacks its end, fails with MarshallingError.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			header := func(op proto.OpCode) []byte { return body(int(op), false, -1) }
			for _, b := range [][]byte{
				body(header(proto.OpGetData), t.path(""), false),
				body(header(4711), body(-1, true, -1)),
				body(header(proto.OpExists), t.path(""), false, body(-1, true, -1)),
			} {
				k.wantRaw(proto.MarshallingError, proto.OpMultiRead, b)
			}
			k.ping()
		},
	},
	{
		Name: "bad frames/trailing bytes",
		Says: "Bytes after a request's record are ignored, in writes, reads and pings.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			more := []byte("more")
			k.wantRaw(proto.OK, proto.OpCreate, body(newZnode(t.path("x"), 0), more))
			k.wantRaw(proto.OK, proto.OpSetData, body(t.path("x"), 3, []byte("abc"), -1, more))
			k.wantRaw(proto.OK, proto.OpExists, body(t.path("x"), false, more))
			k.wantRaw(proto.OK, proto.OpGetChildren, body(t.path("x"), false, more))
			k.wantRaw(proto.OK, proto.OpGetACL, body(t.path("x"), more))
			k.wantRaw(proto.OK, proto.OpSync, body(t.path("x"), more))
			k.wantRaw(proto.OK, proto.OpPing, more)
			k.wantRaw(proto.OK, proto.OpMulti, body(&proto.MultiRequest{Ops: []proto.MultiOp{opSet(t.path("x"), nil, 1)}}, more))
			k.wantRaw(proto.OK, proto.OpDelete, body(t.path("x"), 2, more))
			k.wantRaw(proto.OK, proto.OpCloseSession, more)
			k.closed()
		},
	},
	{
		Name: "bad frames/boolean",
		Says: "Any byte other than 0 is true.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for _, b := range []byte{1, 2, 0x80, 0xff} {
				k.wantRaw(proto.OK, proto.OpGetData, body(t.path("x"), []byte{b}))
				k.set(t.path("x"), nil, -1)
				k.event(proto.EventNodeDataChanged, t.path("x"))
			}
			k.wantRaw(proto.OK, proto.OpGetData, body(t.path("x"), []byte{0}))
			k.set(t.path("x"), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "bad frames/not UTF-8",
		Says: "A path that is not valid UTF-8 can still be decoded: reads find no znode there, and setData refuses the path.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, name := range []string{"\xff\xfe", "a\xc3", "\xe2\x82", "\xc0\x80"} {
				k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path(name)})
				k.want(proto.NoNode, proto.OpGetChildren, &proto.PathWatch{Path: t.path(name)})
				k.want(proto.BadArguments, proto.OpSetData, &proto.SetDataRequest{Path: t.path(name), Version: -1})
			}
		},
	},
	{
		Name: "bad frames/xids",
		Says: "An xid may be any number, and the reply repeats it: 0, negative and large numbers, and the same number again.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, xid := range []int32{0, 0, 7, 7, 3, -3, -100, math.MaxInt32, math.MinInt32} {
				k.queueXid(xid, proto.OpExists, &proto.PathWatch{Path: t.path("")})
				k.flush()
				k.judge(k.answer(xid, proto.OpExists), proto.OK)
				k.queueXid(xid, proto.OpSetData, &proto.SetDataRequest{Path: t.path(""), Version: -1})
				k.flush()
				k.judge(k.answer(xid, proto.OpSetData), proto.OK)
			}
		},
	},
	{
		Name: "bad frames/among good ones",
		Says: "A request whose body cannot be decoded is answered in its turn, and affects neither the request before it nor the one after it.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			first := k.queue(proto.OpCreate, newZnode(t.path("x"), 0))
			second := k.queueRaw(proto.OpCreate, []byte{0, 0})
			third := k.queueRaw(proto.OpGetData, nil)
			fourth := k.queue(proto.OpExists, &proto.PathWatch{Path: t.path("x")})
			k.flush()
			k.judge(k.answer(first, proto.OpCreate), proto.OK)
			k.judge(k.answer(second, proto.OpCreate), proto.MarshallingError)
			k.judge(k.answer(third, proto.OpGetData), proto.MarshallingError)
			k.judge(k.answer(fourth, proto.OpExists), proto.OK)
		},
	},
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
		op proto.OpCode
		in string
		q  func(*trial) proto.Record
	}{
		{proto.OpCreate, ">=3.5", func(t *trial) proto.Record { return newZnode(t.path("x"), 0) }},
		{proto.OpDelete, ">=3.5", func(t *trial) proto.Record { return &proto.PathVersion{Path: t.path("y"), Version: -1} }},
		{proto.OpExists, ">=3.5", func(t *trial) proto.Record { return &proto.PathWatch{Path: t.path("y"), Watch: true} }},
		{proto.OpGetData, ">=3.5", func(t *trial) proto.Record { return &proto.PathWatch{Path: t.path("y"), Watch: true} }},
		{proto.OpSetData, ">=3.5", func(t *trial) proto.Record {
			return &proto.SetDataRequest{Path: t.path("y"), Data: []byte("new"), Version: -1}
		}},
		{proto.OpGetACL, ">=3.5", func(t *trial) proto.Record { return &proto.Path{Path: t.path("y")} }},
		{proto.OpSetACL, ">=3.5", func(t *trial) proto.Record {
			return &proto.SetACLRequest{Path: t.path("y"), ACL: []proto.ACL{allowAll(proto.PermRead)}, Version: -1}
		}},
		{proto.OpGetChildren, ">=3.5", func(t *trial) proto.Record { return &proto.PathWatch{Path: t.path("y"), Watch: true} }},
		{proto.OpGetChildren2, ">=3.5", func(t *trial) proto.Record { return &proto.PathWatch{Path: t.path("y"), Watch: true} }},
		{proto.OpSync, ">=3.5", func(t *trial) proto.Record { return &proto.Path{Path: t.path("y")} }},
		{proto.OpMulti, ">=3.5", func(t *trial) proto.Record {
			return &proto.MultiRequest{Ops: []proto.MultiOp{opCheck(t.path("y"), 0), opCreate(t.path("x"), []byte("x"), 0), opDelete(t.path("y"), 0)}}
		}},
		{proto.OpCreate2, ">=3.5", func(t *trial) proto.Record { return newZnode(t.path("x"), 0) }},
		{proto.OpCheckWatches, ">=3.5", func(t *trial) proto.Record { return &proto.PathType{Path: t.path("y"), Type: 3} }},
		{proto.OpRemoveWatches, ">=3.5", func(t *trial) proto.Record { return &proto.PathType{Path: t.path("y"), Type: 3} }},
		{proto.OpCreateContainer, ">=3.5.3", func(t *trial) proto.Record { return newZnode(t.path("x"), proto.FlagContainer) }},
		{proto.OpCreateTTL, ">=3.5.4", func(t *trial) proto.Record { return newTTL(t.path("x"), proto.FlagTTL, 1e6) }},
		{proto.OpMultiRead, ">=3.6", func(t *trial) proto.Record {
			return &proto.MultiReadRequest{Ops: []proto.MultiOp{{Op: proto.OpGetData, Request: &proto.PathWatch{Path: t.path("y")}}}}
		}},
		{proto.OpSetWatches, ">=3.5", func(t *trial) proto.Record {
			return &proto.SetWatchesRequest{Data: []string{t.path("y")}, Exist: []string{t.path("x")}, Child: []string{t.path("y")}}
		}},
		{proto.OpSetWatches2, ">=3.6", func(t *trial) proto.Record {
			return &proto.SetWatches2Request{Persistent: []string{t.path("y")}, Recursive: []string{t.path("y")}}
		}},
		{proto.OpGetEphemerals, ">=3.6", func(t *trial) proto.Record { return &proto.Path{Path: t.path("y")} }},
		{proto.OpGetAllChildrenNumber, ">=3.6", func(t *trial) proto.Record { return &proto.Path{Path: t.path("y")} }},
		{proto.OpAddWatch, ">=3.6", func(t *trial) proto.Record { return &proto.PathType{Path: t.path("y"), Type: 1} }},
	} {
		name := wire.OpName(x.op)
		checks = append(checks, Check{
			Name: "bad frames/truncated " + name,
			Says: fmt.Sprintf("%s with a body that is cut off anywhere fails with MarshallingError and changes nothing, and the connection stays open.", name),
			In:   x.in,
			run: func(t *trial) {
				k := t.connect()
				k.create(t.path("y"), []byte("old"), 0)
				before := k.stat(t.path("y"))
				whole := x.q(t).Append(nil)
				first := k.xid + 1
				for n := range whole {
					k.queueRaw(x.op, whole[:n])
				}
				k.flush()
				for n := range whole {
					f := k.answer(first+int32(n), x.op)
					t.ensure(f.Code == proto.MarshallingError, "the first %d bytes of %d are answered %s, expected MarshallingError", n, len(whole), f.Code)
				}
				t.equal("the Stat of a znode", k.stat(t.path("y")), before)
				t.equal("the children", k.children(t.path("")), []string{"y"})
				k.noEvent()
			},
		})
	}
	return checks
}
