package conform

import (
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// container creates a container and returns its Stat.
func (k *conn) container(path string) proto.Stat {
	f := k.do(proto.OpCreateContainer, &proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: proto.FlagContainer})
	return f.Body.(*proto.PathStatReply).Stat
}

// ttl creates a TTL znode. The TTL is rounded down to milliseconds.
func (k *conn) ttl(path string, flags int32, ttl time.Duration) (string, proto.Stat) {
	r := k.do(proto.OpCreateTTL, ttlRequest(path, flags, ttl.Milliseconds())).Body.(*proto.PathStatReply)
	return r.Path, r.Stat
}

// used creates and deletes a child of a container, so that the container can be reaped.
func (k *conn) used(path string) {
	k.create(path+"/child", nil, 0)
	k.delete(path+"/child", -1)
}

// reaped waits until a znode is deleted, for at most d plus the time of the reaper.
func (k *conn) reaped(path string, d time.Duration) {
	if f := k.call(proto.OpExists, &proto.PathWatch{Path: path, Watch: true}); f.Code == proto.NoNode {
		return // already
	}
	was := k.timeout
	k.timeout += d + k.t.s.o.ReapWithin
	k.event(proto.EventNodeDeleted, path)
	k.timeout = was
	k.missing(path)
}

// sweep waits for a run of the reaper. Afterwards every container that was empty when
// sweep was called is gone.
func (k *conn) sweep() {
	k.container(k.t.path("swept"))
	k.used(k.t.path("swept"))
	k.reaped(k.t.path("swept"), 0)
}

var containerChecks = []Check{
	{
		Name: "containers and ttl/container",
		Says: "createContainer returns the path and the Stat, which is that of a persistent znode, without an owner.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			f := k.do(proto.OpCreateContainer, &proto.CreateRequest{Path: t.path("n"), Data: repeat(3), ACL: proto.OpenACL, Flags: proto.FlagContainer})
			r := f.Body.(*proto.PathStatReply)
			t.equal("the path", r.Path, t.path("n"))
			want := proto.Stat{Czxid: f.Zxid, Mzxid: f.Zxid, Pzxid: f.Zxid, Ctime: r.Stat.Ctime, Mtime: r.Stat.Ctime, DataLength: 3}
			t.equal("the Stat", r.Stat, want)
			t.equal("the Stat later", k.stat(t.path("n")), want)
		},
	},
	{
		Name: "containers and ttl/container's flags",
		Says: "createContainer creates a container whatever its flags are; a sequential flag adds a number, and an ephemeral flag has no effect.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			for flags, want := range map[int32]string{0: "n0", proto.FlagEphemeral: "n1", proto.FlagContainer: "n4"} {
				f := k.do(proto.OpCreateContainer, &proto.CreateRequest{Path: t.path(want), ACL: proto.OpenACL, Flags: flags})
				t.equal("the path", f.Body.(*proto.PathStatReply).Path, t.path(want))
				t.equal("the owner", f.Body.(*proto.PathStatReply).Stat.EphemeralOwner, int64(0))
			}
			for _, flags := range []int32{proto.FlagSequential, proto.FlagEphemeralSeq} {
				number := sequence(k.stat(t.path("")))
				f := k.do(proto.OpCreateContainer, &proto.CreateRequest{Path: t.path("s-"), ACL: proto.OpenACL, Flags: flags})
				t.equal("the path", f.Body.(*proto.PathStatReply).Path, t.path("s-"+number))
				t.equal("the owner", f.Body.(*proto.PathStatReply).Stat.EphemeralOwner, int64(0))
			}
			k.closeSession()
			t.equal("the number of children after the session", t.connect().stat(t.path("")).NumChildren, int32(5))
		},
	},
	{
		Name: "containers and ttl/container's children",
		Says: "A container may have children of every kind, including containers and ephemeral znodes.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			k.container(t.path("n"))
			k.container(t.path("n/c"))
			k.create(t.path("n/e"), nil, proto.FlagEphemeral)
			t.equal("the path", k.create(t.path("n/s-"), nil, proto.FlagEphemeralSeq), t.path("n/s-0000000002"))
			k.create(t.path("n/c/p"), nil, 0)
			t.equal("the children", k.children(t.path("n")), []string{"c", "e", "s-0000000002"})
		},
	},
	{
		Name:  "containers and ttl/unknown flags",
		Says:  "createContainer with unknown flags, or with those of a TTL znode, fails with BadArguments.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, flags := range []int32{-1, proto.FlagTTL, proto.FlagTTLSequential, 7} {
				k.want(proto.BadArguments, proto.OpCreateContainer, &proto.CreateRequest{Path: t.path("n"), ACL: proto.OpenACL, Flags: flags})
			}
		},
	},
	{
		Name:  "containers and ttl/TTL znode",
		Says:  "createTTL returns the path and the Stat, which is that of a persistent znode, without an owner.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			q := ttlRequest(t.path("n"), proto.FlagTTL, 1e6)
			q.Data = repeat(3)
			f := k.do(proto.OpCreateTTL, q)
			r := f.Body.(*proto.PathStatReply)
			t.equal("the path", r.Path, t.path("n"))
			want := proto.Stat{Czxid: f.Zxid, Mzxid: f.Zxid, Pzxid: f.Zxid, Ctime: r.Stat.Ctime, Mtime: r.Stat.Ctime, DataLength: 3}
			t.equal("the Stat", r.Stat, want)
			t.equal("the Stat later", k.stat(t.path("n")), want)
		},
	},
	{
		Name:  "containers and ttl/sequential TTL znode",
		Says:  "createTTL with flag 6 adds a number to the name.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("n"), nil, 0)
			for _, want := range []string{"n/s-0000000000", "n/s-0000000001"} {
				p, s := k.ttl(t.path("n/s-"), proto.FlagTTLSequential, time.Hour)
				t.equal("the path", p, t.path(want))
				t.equal("the owner", s.EphemeralOwner, int64(0))
			}
			k.ttl(t.path("n/s-"), proto.FlagTTL, time.Hour)
			t.equal("the next path", k.create(t.path("n/s-"), nil, proto.FlagSequential), t.path("n/s-0000000003"))
		},
	},
	{
		Name:  "containers and ttl/TTL bounds",
		Says:  "A TTL is between 1 and 2^40-1 milliseconds; anything else fails with BadArguments.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, ttl := range []int64{0, -1, -1 << 63, 1 << 40, 1<<63 - 1} {
				k.want(proto.BadArguments, proto.OpCreateTTL, ttlRequest(t.path("n"), proto.FlagTTL, ttl))
			}
			k.missing(t.path("n"))
			k.do(proto.OpCreateTTL, ttlRequest(t.path("n"), proto.FlagTTL, 1))
			k.call(proto.OpDelete, &proto.PathVersion{Path: t.path("n"), Version: -1}) // unless the reaper was faster
			k.do(proto.OpCreateTTL, ttlRequest(t.path("m"), proto.FlagTTL, 1<<40-1))
		},
	},
	{
		Name:  "containers and ttl/TTL without the flag",
		Says:  "createTTL with a TTL but with flags other than 5 and 6 fails with BadArguments.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, flags := range []int32{-1, 0, 1, 2, 3, 4, 7} {
				k.want(proto.BadArguments, proto.OpCreateTTL, ttlRequest(t.path("n"), flags, 1000))
			}
			k.missing(t.path("n"))
		},
	},
	{
		Name:  "containers and ttl/flag without the TTL",
		Says:  "create and create2 with flag 5 or 6 fail with BadArguments, because they carry no TTL.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2} {
				for _, flags := range []int32{proto.FlagTTL, proto.FlagTTLSequential} {
					k.want(proto.BadArguments, op, &proto.CreateRequest{Path: t.path("n"), ACL: proto.OpenACL, Flags: flags})
				}
			}
		},
	},
	{
		Name:  "containers and ttl/other refusals",
		Says:  "createContainer and createTTL are refused for the same reasons as create.",
		In:    ">=3.5.3",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("n"), nil, 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			k.protect("locked", allowAll(proto.PermRead))
			for _, x := range []struct {
				path string
				code proto.Code
			}{
				{t.path("n"), proto.NodeExists}, {t.path("no/parent"), proto.NoNode}, {t.path("e/c"), proto.NoChildrenForEphemerals},
				{t.path("locked/c"), proto.NoAuth}, {"relative", proto.BadArguments}, {t.path("n/"), proto.BadArguments},
			} {
				k.want(x.code, proto.OpCreateContainer, &proto.CreateRequest{Path: x.path, ACL: proto.OpenACL, Flags: proto.FlagContainer})
				k.want(x.code, proto.OpCreateTTL, ttlRequest(x.path, proto.FlagTTL, 1e6))
			}
			k.want(proto.InvalidACL, proto.OpCreateContainer, &proto.CreateRequest{Path: t.path("x"), ACL: noACL, Flags: proto.FlagContainer})
		},
	},
	{
		Name:  "containers and ttl/reaped",
		Says:  "A container whose last child is deleted is itself deleted after a while, with NodeDeleted and with NodeChildrenChanged for its parent.",
		In:    ">=3.5.3",
		Needs: []Feature{Reaper},
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.container(n)
			k.create(n+"/c", nil, 0)
			before := k.stat(t.path(""))
			k.watchData(n)
			k.watchChildren(t.path(""))
			k.delete(n+"/c", -1)
			k.timeout += t.s.o.ReapWithin
			k.event(proto.EventNodeDeleted, n)
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.noEvent()
			after := k.stat(t.path(""))
			t.equal("the parent's number of children", after.NumChildren, before.NumChildren-1)
			t.equal("the parent's cversion", after.Cversion, before.Cversion+1)
			t.ensure(after.Pzxid > before.Pzxid, "the parent's pzxid did not rise")
			k.want(proto.NoNode, proto.OpCreate, &proto.CreateRequest{Path: n + "/c", ACL: proto.OpenACL})
		},
	},
	{
		Name:  "containers and ttl/never used",
		Says:  "A container that never had a child stays, and so does one that has children.",
		In:    ">=3.5.3",
		Needs: []Feature{Reaper},
		run: func(t *trial) {
			k := t.connect()
			k.container(t.path("unused"))
			k.container(t.path("in use"))
			k.create(t.path("in use/c"), nil, 0) // first: without a child, it may be deleted at once
			k.used(t.path("in use"))
			k.sweep()
			k.stat(t.path("unused"))
			k.stat(t.path("in use"))
		},
	},
	{
		Name:  "containers and ttl/only containers",
		Says:  "Other znodes stay when their last child is deleted, even one made by create with the flag of a container.",
		In:    ">=3.5.3",
		Needs: []Feature{Reaper},
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("plain"), nil, 0)
			k.create(t.path("flag"), nil, proto.FlagContainer)
			k.used(t.path("plain"))
			k.used(t.path("flag"))
			k.sweep()
			k.stat(t.path("plain"))
			k.stat(t.path("flag"))
		},
	},
	{
		Name:  "containers and ttl/reaped by layers",
		Says:  "Nested containers are deleted one after the other. A container that is emptied by the end of a session is deleted too.",
		In:    ">=3.5.3",
		Needs: []Feature{Reaper},
		run: func(t *trial) {
			k, owner := t.connect(), t.connect()
			outer, inner := t.path("outer"), t.path("outer/inner")
			k.container(outer)
			k.container(inner)
			owner.create(inner+"/lock-", nil, proto.FlagEphemeralSeq)
			k.watchExists(inner)
			k.watchExists(outer)
			owner.closeSession()
			k.timeout += 2 * t.s.o.ReapWithin
			k.event(proto.EventNodeDeleted, inner)
			k.event(proto.EventNodeDeleted, outer)
		},
	},
	{
		Name:  "containers and ttl/reaped without permission",
		Says:  "The reaper needs no permission on the parent.",
		In:    ">=3.5.3",
		Needs: []Feature{Reaper},
		run: func(t *trial) {
			k := t.as(alice)
			p := k.create(t.path("p"), nil, 0)
			k.container(p + "/n")
			k.create(p+"/n/c", nil, 0)
			k.setACL(p, []proto.ACL{allow(alice, proto.PermRead|proto.PermAdmin)}, -1)
			k.delete(p+"/n/c", -1)
			k.reaped(p+"/n", 0)
			k.setACL(p, proto.OpenACL, -1)
		},
	},
	{
		Name:  "containers and ttl/TTL by mtime",
		Says:  "A TTL znode without children is deleted when its TTL has passed since its data was last set, and not earlier.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL, Reaper},
		run: func(t *trial) {
			const ttl = 600 * time.Millisecond
			k := t.connect()
			n, s := k.ttl(t.path("n"), proto.FlagTTL, ttl)
			t.wait(ttl / 2)
			// On a slow machine it may have been deleted already, which is correct.
			f := k.call(proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
			if f.Code == proto.OK {
				s = *f.Body.(*proto.Stat)
				k.reaped(n, ttl)
			} else {
				k.judge(f, proto.NoNode)
			}
			now := k.container(t.path("now")).Ctime
			t.ensure(now-s.Mtime > ttl.Milliseconds(), "it was deleted %d ms after it was set, with a TTL of %v", now-s.Mtime, ttl)
		},
	},
	{
		Name:  "containers and ttl/TTL and children",
		Says:  "A TTL znode with children stays; without them it is deleted, however recently the last child was deleted.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL, Reaper},
		run: func(t *trial) {
			const ttl = 10 * time.Millisecond
			k := t.connect()
			n := t.path("n")
			t.applied(k.multi(opTTL(n, proto.FlagTTL, ttl.Milliseconds()), opCreate(n+"/c", nil, 0)), proto.OpCreate2, proto.OpCreate)
			t.wait(ttl)
			k.sweep()
			k.stat(n)
			k.delete(n+"/c", -1)
			k.reaped(n, ttl)
		},
	},
	{
		Name:  "containers and ttl/TTL not yet",
		Says:  "A TTL znode whose TTL has not passed stays.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL, Reaper},
		run: func(t *trial) {
			k := t.connect()
			n, _ := k.ttl(t.path("n"), proto.FlagTTL, time.Hour)
			k.used(n)
			k.sweep()
			k.stat(n)
		},
	},
}
