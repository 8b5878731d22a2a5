package conform

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/proto"
)

// sloppy returns invalid paths. Reads look them up as they are and do not find them.
// The check must have created "x".
func (t *trial) sloppy() []string {
	return []string{"conform", "//", t.path("x/"), t.path("/x"), t.path("."), t.path("x/../x"), t.path("x\n"), t.path("\xff")}
}

var dataChecks = []Check{
	{
		Name: "data/get",
		Says: "getData returns the data, and the same Stat as exists.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("some data"), 0)
			data, stat := k.get(t.path("x"))
			t.equal("the data", string(data), "some data")
			t.equal("dataLength", stat.DataLength, int32(9))
			t.equal("the Stat", stat, k.stat(t.path("x")))
		},
	},
	{
		Name: "data/any bytes",
		Says: "Data may consist of any bytes and is returned unchanged.",
		In:   ">=3.0",
		run: func(t *trial) {
			all := make([]byte, 1024)
			for i := range all {
				all[i] = byte(i * 7)
			}
			k := t.connect()
			k.create(t.path("x"), all, 0)
			data, stat := k.get(t.path("x"))
			t.equal("the data", data, all)
			t.equal("dataLength", stat.DataLength, int32(1024))
			k.set(t.path("x"), all[3:300], -1)
			data, _ = k.get(t.path("x"))
			t.equal("the data", data, all[3:300])
		},
	},
	{
		Name: "data/null in create",
		Says: "Null data is stored as null, with length 0.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			data, stat := k.get(t.path("x"))
			t.equal("the data", data, []byte(nil))
			t.equal("dataLength", stat.DataLength, int32(0))
		},
	},
	{
		Name: "data/empty in create",
		Says: "Empty data is stored as empty, not as null.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte{}, 0)
			data, stat := k.get(t.path("x"))
			t.equal("the data", data, []byte{})
			t.equal("dataLength", stat.DataLength, int32(0))
		},
	},
	{
		Name: "data/null and empty in setData",
		Says: "setData stores null and empty data as given, and both count as changes.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("data"), 0)
			for i, want := range [][]byte{nil, {}, nil, []byte("x"), {}} {
				stat := k.set(t.path("x"), want, -1)
				t.equal("version", stat.Version, int32(i+1))
				t.equal("dataLength", stat.DataLength, int32(len(want)))
				data, _ := k.get(t.path("x"))
				t.equal("the data", data, want)
			}
		},
	},
	{
		Name: "data/set's Stat",
		Says: "setData increments the version and sets mzxid, mtime and dataLength; nothing else changes, and the reply has the new Stat.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("data"), 0)
			k.create(t.path("x/y"), nil, 0)
			k.setACL(t.path("x"), proto.OpenACL, -1)
			want := k.stat(t.path("x"))
			for i := range 3 {
				f := k.do(proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Data: repeat(10 * i), Version: -1})
				got := *f.Body.(*proto.Stat)
				t.ensure(got.Mtime >= want.Mtime, "mtime went back, from %d to %d", want.Mtime, got.Mtime)
				want.Version, want.Mzxid, want.Mtime, want.DataLength = int32(i+1), f.Zxid, got.Mtime, int32(10*i)
				t.equal("the Stat", got, want)
				t.equal("the Stat of exists", k.stat(t.path("x")), want)
			}
		},
	},
	{
		Name: "data/set the same",
		Says: "setData counts as a change even if the data is the same.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("same"), 0)
			before := k.stat(t.path("x"))
			after := k.set(t.path("x"), []byte("same"), 0)
			t.equal("version", after.Version, int32(1))
			t.ensure(after.Mzxid > before.Mzxid, "mzxid is %#x, was %#x", after.Mzxid, before.Mzxid)
		},
	},
	{
		Name: "data/set leaves parent and children",
		Says: "setData changes the Stat of neither the parent nor the children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			k.create(t.path("x/y"), nil, 0)
			parent, child := k.stat(t.path("")), k.stat(t.path("x/y"))
			k.set(t.path("x"), []byte("new"), -1)
			t.equal("the parent's Stat", k.stat(t.path("")), parent)
			t.equal("the child's Stat", k.stat(t.path("x/y")), child)
		},
	},
	{
		Name: "data/version",
		Says: "setData with the znode's version succeeds, once; with another version it fails with BadVersion.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for i := range int32(3) {
				k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: i + 1})
				t.equal("version", k.set(t.path("x"), fmt.Append(nil, i), i).Version, i+1)
				k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: i})
			}
			data, _ := k.get(t.path("x"))
			t.equal("the data", string(data), "2")
		},
	},
	{
		Name: "data/version -2",
		Says: "-1 stands for any version; other negative numbers match none.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for range 3 {
				for _, version := range []int32{-2, -3, -1 << 31} {
					k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: version})
				}
				k.set(t.path("x"), nil, -1)
			}
			t.equal("version", k.stat(t.path("x")).Version, int32(3))
		},
	},
	{
		Name: "data/set a missing znode",
		Says: "setData of a znode that does not exist fails with NoNode, whatever the version.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, version := range []int32{-1, 0, 4} {
				k.want(proto.NoNode, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: version})
				k.want(proto.NoNode, proto.OpSetData, &proto.SetDataRequest{Path: t.path("a/b"), Version: version})
			}
			k.missing(t.path("x"))
		},
	},
	{
		Name: "data/set's path",
		Says: "setData of a path that no znode can have fails with BadArguments.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for _, p := range append(t.sloppy(), "", t.path("x\x00")) {
				f := k.call(proto.OpSetData, &proto.SetDataRequest{Path: p, Version: -1})
				t.ensure(f.Code == proto.BadArguments, "setData of %q is answered %s, expected BadArguments", p, f.Code)
			}
			t.equal("version", k.stat(t.path("x")).Version, int32(0))
		},
	},
	{
		Name: "data/permission to set",
		Says: "setData needs WRITE on the znode, which is checked before the version.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermWrite)}, 0)
			k.createACL(t.path("w"), nil, []proto.ACL{allowAll(proto.PermWrite)}, 0)
			for _, version := range []int32{-1, 0, 8} {
				k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Version: version})
			}
			k.set(t.path("w"), nil, 0)
		},
	},
	{
		Name: "data/permission to get",
		Says: "getData needs READ on the znode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.createACL(t.path("r"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
			k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("x/none")})
			k.get(t.path("r"))
		},
	},
	{
		Name: "data/a failed set",
		Says: "A setData that fails changes nothing.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("old"), 0)
			want := k.stat(t.path("x"))
			k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: t.path("x"), Data: []byte("new"), Version: 1})
			data, stat := k.get(t.path("x"))
			t.equal("the data", string(data), "old")
			t.equal("the Stat", stat, want)
		},
	},
	{
		Name: "data/get a missing znode",
		Says: "getData of a znode that does not exist fails with NoNode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
			k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("a/b"), Watch: true})
		},
	},
	{
		Name: "data/exists",
		Says: "exists returns the Stat, or fails with NoNode and without a body.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.missing(t.path("x"))
			_, stat := k.create2(t.path("x"), []byte("abc"), 0)
			t.equal("the Stat", k.stat(t.path("x")), stat)
			k.delete(t.path("x"), -1)
			k.missing(t.path("x"))
			k.missing(t.path("x/y"))
		},
	},
	{
		Name: "data/exists without permission",
		Says: "exists needs no permission.",
		In:   releases.ExistsNeedsNothing,
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.stat(t.path("x"))
		},
	},
	{
		Name: "data/exists needs READ",
		Says: "exists needs READ on a znode that exists.",
		In:   releases.ExistsNeedsRead,
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.want(proto.NoAuth, proto.OpExists, &proto.PathWatch{Path: t.path("x")})
			k.want(proto.NoAuth, proto.OpExists, &proto.PathWatch{Path: t.path("x"), Watch: true})
			k.missing(t.path("x/y"))
			k.auth("digest", alice+":"+alice)
			k.stat(t.path("x"))
		},
	},
	{
		Name: "data/sloppy paths",
		Says: "Reads look up any path as it is: one that no znode can have fails with NoNode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for _, p := range t.sloppy() {
				k.want(proto.NoNode, proto.OpExists, &proto.PathWatch{Path: p})
				k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: p})
				k.want(proto.NoNode, proto.OpGetACL, &proto.Path{Path: p})
			}
		},
	},
	{
		Name: "data/empty path",
		Says: "In reads, the empty path means the root.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			t.ensure(k.stat("").NumChildren >= 2, "the root has no children")
			t.equal("czxid of the root", k.stat("").Czxid, k.stat("/").Czxid)
			data, _ := k.get("")
			want, _ := k.get("/")
			t.equal("the data", data, want)
		},
	},
	{
		Name: "data/NUL",
		Says: "For a path with NUL, exists fails with BadArguments, and getData with NoNode.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.BadArguments, proto.OpExists, &proto.PathWatch{Path: t.path("x\x00")})
			k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("x\x00")})
		},
	},
	{
		Name: "data/times",
		Says: "ctime and mtime are in milliseconds of the server's clock; setData changes mtime but not ctime.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			first := k.stat(t.path("x"))
			t.wait(15 * time.Millisecond)
			second := k.set(t.path("x"), nil, -1)
			t.equal("ctime", second.Ctime, first.Ctime)
			moved := second.Mtime - first.Mtime
			t.ensure(moved >= 10, "mtime moved by %d ms, expected about 15 or more", moved)
			// The bounds are 2000 and 3015 in ms. A time in s would be below, one in µs above.
			t.ensure(first.Ctime > 946_684_800_000 && first.Ctime < 33_000_000_000_000, "ctime %d is not a time in milliseconds", first.Ctime)
		},
	},
	{
		Name: "data/system znodes",
		Says: "/zookeeper, /zookeeper/quota and /zookeeper/config always exist and can be read by everyone; config can be written by no one.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
				k.stat(p)
				k.get(p)
			}
			k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: "/zookeeper/config", Version: -1})
		},
	},
	{
		Name: "data/ephemerals",
		Says: "The data of an ephemeral znode can be read and set by every session, and the znode keeps its owner.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			a.create(t.path("x"), []byte("a"), proto.FlagEphemeral)
			stat := b.set(t.path("x"), []byte("b"), 0)
			t.equal("the owner", stat.EphemeralOwner, a.Session.SessionID)
			data, _ := a.get(t.path("x"))
			t.equal("the data", string(data), "b")
			a.closeSession()
			b.missing(t.path("x"))
		},
	},
}
