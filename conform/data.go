package conform

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// sloppy returns invalid paths. Reads look them up as they are and do not find them.
// The check must have created "x".
func (t *trial) sloppy() []string {
	return []string{"conform", "//", t.path("x/"), t.path("/x"), t.path("."), t.path("x/../x"), t.path("x\n"), t.path("\xff")}
}

var dataChecks = []Check{
	check("data/any bytes", ">=3.0",
		"Data may consist of any bytes and is returned unchanged by getData, with the same Stat as by exists.",
		func(t *trial) {
			all := make([]byte, 1024)
			for i := range all {
				all[i] = byte(i * 7)
			}
			k := t.connect()
			k.create(t.path("x"), all, 0)
			data, stat := k.get(t.path("x"))
			t.equal("the data", data, all)
			t.equal("dataLength", stat.DataLength, int32(1024))
			t.equal("the Stat", stat, k.stat(t.path("x")))
			k.set(t.path("x"), all[3:300], -1)
			data, _ = k.get(t.path("x"))
			t.equal("the data", data, all[3:300])
		}),
	check("data/null and empty in create", ">=3.0",
		"Null data is stored as null, and empty data as empty, both with length 0.",
		func(t *trial, k *conn) {
			for name, want := range map[string][]byte{"null": nil, "empty": {}} {
				k.create(t.path(name), want, 0)
				data, stat := k.get(t.path(name))
				t.equal("the data", data, want)
				t.equal("dataLength", stat.DataLength, int32(0))
			}
		}),
	check("data/null and empty in setData", ">=3.0",
		"setData stores null and empty data as given, and both count as changes.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("data"), 0)
			for i, want := range [][]byte{nil, {}, nil, []byte("x"), {}} {
				stat := k.set(t.path("x"), want, -1)
				t.equal("version", stat.Version, int32(i+1))
				t.equal("dataLength", stat.DataLength, int32(len(want)))
				data, _ := k.get(t.path("x"))
				t.equal("the data", data, want)
			}
		}),
	check("data/set's Stat", ">=3.0",
		"setData increments the version and sets mzxid, mtime and dataLength; nothing else changes, and the reply has the new Stat.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("data"), 0)
			k.make(t.path("x/y"))
			k.setACL(t.path("x"), proto.OpenACL, -1)
			want := k.stat(t.path("x"))
			for i := range 3 {
				f := k.do(opSet(t.path("x"), repeat(10*i), -1))
				got := *f.Body.(*proto.Stat)
				t.ensure(got.Mtime >= want.Mtime, "mtime went back, from %d to %d", want.Mtime, got.Mtime)
				want.Version, want.Mzxid, want.Mtime, want.DataLength = int32(i+1), f.Zxid, got.Mtime, int32(10*i)
				t.equal("the Stat", got, want)
				t.equal("the Stat of exists", k.stat(t.path("x")), want)
			}
		}),
	check("data/set the same", ">=3.0",
		"setData counts as a change even if the data is the same.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("same"), 0)
			before := k.stat(t.path("x"))
			after := k.set(t.path("x"), []byte("same"), 0)
			t.equal("version", after.Version, int32(1))
			t.ensure(after.Mzxid > before.Mzxid, "mzxid is %#x, was %#x", after.Mzxid, before.Mzxid)
		}),
	check("data/set leaves parent and children", ">=3.0",
		"setData changes the Stat of neither the parent nor the children.",
		func(t *trial, k *conn) {
			k.make(t.path("x"), t.path("x/y"))
			parent, child := k.stat(t.path("")), k.stat(t.path("x/y"))
			k.set(t.path("x"), []byte("new"), -1)
			t.equal("the parent's Stat", k.stat(t.path("")), parent)
			t.equal("the child's Stat", k.stat(t.path("x/y")), child)
		}),
	check("data/version", ">=3.0",
		"setData with the znode's version, or with -1, succeeds; with another version, also a negative one, it fails with BadVersion.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for i := range int32(3) {
				k.want(proto.BadVersion, opSet(t.path("x"), nil, i+1), opSet(t.path("x"), nil, -2), opSet(t.path("x"), nil, -1<<31))
				t.equal("version", k.set(t.path("x"), fmt.Append(nil, i), i).Version, i+1)
				k.want(proto.BadVersion, opSet(t.path("x"), nil, i))
			}
			k.hasData(t.path("x"), "2")
			t.equal("version", k.set(t.path("x"), nil, -1).Version, int32(4))
		}),
	check("data/set a missing znode", ">=3.0",
		"setData of a znode that does not exist fails with NoNode, whatever the version.",
		func(t *trial, k *conn) {
			for _, version := range []int32{-1, 0, 4} {
				k.want(proto.NoNode, opSet(t.path("x"), nil, version), opSet(t.path("a/b"), nil, version))
			}
			k.missing(t.path("x"))
		}),
	check("data/set's path", ">=3.5",
		"setData of a path that no znode can have fails with BadArguments.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for _, p := range append(t.sloppy(), "", t.path("x\x00")) {
				f := k.call(opSet(p, nil, -1))
				t.ensure(f.Code == proto.BadArguments, "setData of %q is answered %s, expected BadArguments", p, f.Code)
			}
			t.equal("version", k.stat(t.path("x")).Version, int32(0))
		}),
	check("data/a failed set", ">=3.0",
		"A setData that fails changes nothing.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("old"), 0)
			want := k.stat(t.path("x"))
			k.want(proto.BadVersion, opSet(t.path("x"), []byte("new"), 1))
			data, stat := k.get(t.path("x"))
			t.equal("the data", string(data), "old")
			t.equal("the Stat", stat, want)
		}),
	check("data/get a missing znode", ">=3.0",
		"getData of a znode that does not exist fails with NoNode.",
		func(t *trial, k *conn) {
			k.want(proto.NoNode, opGet(t.path("x")), watching(opGet(t.path("a/b"))))
		}),
	check("data/exists", ">=3.5",
		"exists returns the Stat, or fails with NoNode and without a body.",
		func(t *trial, k *conn) {
			k.missing(t.path("x"))
			_, stat := k.create2(t.path("x"), []byte("abc"), 0)
			t.equal("the Stat", k.stat(t.path("x")), stat)
			k.delete(t.path("x"), -1)
			k.missing(t.path("x"), t.path("x/y"))
		}),
	check("data/sloppy paths", ">=3.0",
		"Reads look up any path as it is: one that no znode can have fails with NoNode.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for _, p := range t.sloppy() {
				k.want(proto.NoNode, opExists(p), opGet(p), opGetACL(p))
			}
		}),
	check("data/NUL", ">=3.5",
		"For a path with NUL, exists fails with BadArguments, and getData with NoNode.",
		func(t *trial, k *conn) {
			k.want(proto.BadArguments, opExists(t.path("x\x00")))
			k.want(proto.NoNode, opGet(t.path("x\x00")))
		}),
	check("data/times", ">=3.0",
		"ctime and mtime are in milliseconds of the server's clock; setData changes mtime but not ctime.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			first := k.stat(t.path("x"))
			t.wait(15 * time.Millisecond)
			second := k.set(t.path("x"), nil, -1)
			t.equal("ctime", second.Ctime, first.Ctime)
			moved := second.Mtime - first.Mtime
			t.ensure(moved >= 10, "mtime moved by %d ms, expected about 15 or more", moved)
			// The bounds are 2000 and 3015 in ms. A time in s would be below, one in µs above.
			t.ensure(first.Ctime > 946_684_800_000 && first.Ctime < 33_000_000_000_000, "ctime %d is not a time in milliseconds", first.Ctime)
		}),
	check("data/ephemerals", ">=3.0",
		"The data of an ephemeral znode can be read and set by every session, and the znode keeps its owner.",
		func(t *trial, a, b *conn) {
			a.create(t.path("x"), []byte("a"), proto.FlagEphemeral)
			stat := b.set(t.path("x"), []byte("b"), 0)
			t.equal("the owner", stat.EphemeralOwner, a.Session.SessionID)
			a.hasData(t.path("x"), "b")
			a.closeSession()
			b.missing(t.path("x"))
		}),
}
