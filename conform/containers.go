package conform

import (
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

func (k *conn) container(path string) proto.Stat {
	f := k.do(opMake(proto.OpCreateContainer, path, nil, proto.FlagContainer))
	return f.Body.(*proto.PathStatReply).Stat
}

// ttl creates a TTL znode. The TTL is rounded down to milliseconds.
func (k *conn) ttl(path string, flags int32, ttl time.Duration) (string, proto.Stat) {
	r := k.do(opTTL(path, flags, ttl.Milliseconds())).Body.(*proto.PathStatReply)
	return r.Path, r.Stat
}

// used creates and deletes a child of a container, so that the container can be reaped.
func (k *conn) used(path string) {
	k.make(path + "/child")
	k.delete(path+"/child", -1)
}

// reaped waits until a znode is deleted, for at most d plus the time of the reaper.
func (k *conn) reaped(path string, d time.Duration) {
	if f := k.call(watching(opExists(path))); f.Code == proto.NoNode {
		return // already
	}
	was := k.timeout
	k.timeout += d + k.t.s.o.ReapWithin
	k.event(deleted(path))
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
	check("containers and ttl/container", ">=3.5.3",
		"createContainer returns the path and the Stat, which is that of a persistent znode, without an owner.",
		func(t *trial, k *conn) {
			k.isNew(k.do(opMake(proto.OpCreateContainer, t.path("n"), repeat(3), proto.FlagContainer)), t.path("n"), 3)
		}),
	check("containers and ttl/container's flags", ">=3.5.3",
		"createContainer creates a container whatever its flags are; a sequential flag adds a number, and an ephemeral flag has no effect.",
		func(t *trial, k *conn) {
			for flags, want := range map[int32]string{0: "n0", proto.FlagEphemeral: "n1", proto.FlagContainer: "n4"} {
				f := k.do(opMake(proto.OpCreateContainer, t.path(want), nil, flags))
				t.equal("the path", f.Body.(*proto.PathStatReply).Path, t.path(want))
				t.equal("the owner", f.Body.(*proto.PathStatReply).Stat.EphemeralOwner, int64(0))
			}
			for _, flags := range []int32{proto.FlagSequential, proto.FlagEphemeralSeq} {
				number := sequence(k.stat(t.path("")))
				f := k.do(opMake(proto.OpCreateContainer, t.path("s-"), nil, flags))
				t.equal("the path", f.Body.(*proto.PathStatReply).Path, t.path("s-"+number))
				t.equal("the owner", f.Body.(*proto.PathStatReply).Stat.EphemeralOwner, int64(0))
			}
			k.closeSession()
			t.equal("the number of children after the session", t.connect().stat(t.path("")).NumChildren, int32(5))
		}),
	check("containers and ttl/container's children", ">=3.5.3",
		"A container may have children of every kind, including containers and ephemeral znodes.",
		func(t *trial, k *conn) {
			k.container(t.path("n"))
			k.container(t.path("n/c"))
			k.create(t.path("n/e"), nil, proto.FlagEphemeral)
			t.equal("the path", k.create(t.path("n/s-"), nil, proto.FlagEphemeralSeq), t.path("n/s-0000000002"))
			k.make(t.path("n/c/p"))
			t.equal("the children", k.children(t.path("n")), []string{"c", "e", "s-0000000002"})
		}),
	requires(TTL, check("containers and ttl/TTL znode", ">=3.5.3",
		"createTTL returns the path and the Stat, which is that of a persistent znode, without an owner.",
		func(t *trial, k *conn) {
			q := opTTL(t.path("n"), proto.FlagTTL, 1e6)
			q.Request.(*proto.CreateTTLRequest).Data = repeat(3)
			k.isNew(k.do(q), t.path("n"), 3)
		})),
	requires(TTL, check("containers and ttl/sequential TTL znode", ">=3.5.3",
		"createTTL with flag 6 adds a number to the name.",
		func(t *trial, k *conn) {
			k.make(t.path("n"))
			for _, want := range []string{"n/s-0000000000", "n/s-0000000001"} {
				p, s := k.ttl(t.path("n/s-"), proto.FlagTTLSequential, time.Hour)
				t.equal("the path", p, t.path(want))
				t.equal("the owner", s.EphemeralOwner, int64(0))
			}
			k.ttl(t.path("n/s-"), proto.FlagTTL, time.Hour)
			t.equal("the next path", k.create(t.path("n/s-"), nil, proto.FlagSequential), t.path("n/s-0000000003"))
		})),
	requires(TTL, check("containers and ttl/TTL bounds", ">=3.5.4",
		"A TTL is between 1 and 2^40-1 milliseconds; anything else fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, ttl := range []int64{0, -1, -1 << 63, 1 << 40, 1<<63 - 1} {
				k.want(proto.BadArguments, opTTL(t.path("n"), proto.FlagTTL, ttl))
			}
			k.missing(t.path("n"))
			k.do(opTTL(t.path("n"), proto.FlagTTL, 1))
			k.call(opDelete(t.path("n"), -1)) // unless the reaper was faster
			k.do(opTTL(t.path("m"), proto.FlagTTL, 1<<40-1))
		})),
	requires(TTL, check("containers and ttl/TTL without the flag", ">=3.5.3",
		"createTTL with a TTL but with flags other than 5 and 6 fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, flags := range []int32{-1, 0, 1, 2, 3, 4, 7} { // with a TTL of -1, ZooKeeper would accept some, and then crash
				k.want(proto.BadArguments, opTTL(t.path("n"), flags, 1000))
			}
			k.missing(t.path("n"))
		})),
	requires(TTL, check("containers and ttl/flag without the TTL", ">=3.5.3",
		"create and create2 with flag 5 or 6 fail with BadArguments, because they carry no TTL.",
		func(t *trial, k *conn) {
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.BadArguments, opMake(op, t.path("x"), nil, proto.FlagTTL))
				k.want(proto.BadArguments, opMake(op, t.path("x"), nil, proto.FlagTTLSequential))
			}
		})),
	requires(TTL, check("containers and ttl/other refusals", ">=3.5.3",
		"createContainer and createTTL are refused for the same reasons as create.",
		func(t *trial, k *conn) {
			k.make(t.path("n"))
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			k.protect("locked", allowAll(proto.PermRead))
			for _, x := range []struct {
				path string
				code proto.Code
			}{
				{t.path("n"), proto.NodeExists}, {t.path("no/parent"), proto.NoNode}, {t.path("e/c"), proto.NoChildrenForEphemerals},
				{t.path("locked/c"), proto.NoAuth}, {"relative", proto.BadArguments}, {t.path("n/"), proto.BadArguments},
			} {
				k.want(x.code, opMake(proto.OpCreateContainer, x.path, nil, proto.FlagContainer))
				k.want(x.code, opTTL(x.path, proto.FlagTTL, 1e6))
			}
			k.want(proto.InvalidACL, req(proto.OpCreateContainer, &proto.CreateRequest{Path: t.path("x"), ACL: noACL, Flags: proto.FlagContainer}))
		})),
	requires(Reaper, check("containers and ttl/reaped", ">=3.5.3",
		"A container whose last child is deleted is itself deleted after a while, with NodeDeleted and with NodeChildrenChanged for its parent.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.container(n)
			k.make(n + "/c")
			before := k.stat(t.path(""))
			k.watch(opGet(n), opChildren(t.path("")))
			k.delete(n+"/c", -1)
			k.timeout += t.s.o.ReapWithin
			k.onlyEvents(deleted(n), childrenChanged(t.path("")))
			after := k.stat(t.path(""))
			t.equal("the parent's number of children", after.NumChildren, before.NumChildren-1)
			t.equal("the parent's cversion", after.Cversion, before.Cversion+1)
			t.ensure(after.Pzxid > before.Pzxid, "the parent's pzxid did not rise")
			k.want(proto.NoNode, opCreate(n+"/c", nil, 0))
		})),
	requires(Reaper, check("containers and ttl/never used", ">=3.5.3",
		"A container that never had a child stays, and so does one that has children.",
		func(t *trial, k *conn) {
			k.container(t.path("unused"))
			k.container(t.path("in use"))
			k.create(t.path("in use/c"), nil, 0) // first: without a child, it may be deleted at once
			k.used(t.path("in use"))
			k.sweep()
			k.stat(t.path("unused"))
			k.stat(t.path("in use"))
		})),
	requires(Reaper, check("containers and ttl/only containers", ">=3.5.3",
		"Other znodes stay when their last child is deleted, even one made by create with the flag of a container.",
		func(t *trial, k *conn) {
			k.make(t.path("plain"))
			k.create(t.path("flag"), nil, proto.FlagContainer)
			k.used(t.path("plain"))
			k.used(t.path("flag"))
			k.sweep()
			k.stat(t.path("plain"))
			k.stat(t.path("flag"))
		})),
	requires(Reaper, check("containers and ttl/reaped by layers", ">=3.5.3",
		"Nested containers are deleted one after the other. A container that is emptied by the end of a session is deleted too.",
		func(t *trial, k, owner *conn) {
			outer, inner := t.path("outer"), t.path("outer/inner")
			k.container(outer)
			k.container(inner)
			owner.create(inner+"/lock-", nil, proto.FlagEphemeralSeq)
			k.watch(opExists(inner), opExists(outer))
			owner.closeSession()
			k.timeout += 2 * t.s.o.ReapWithin
			k.event(deleted(inner), deleted(outer))
		})),
	requires(Reaper, check("containers and ttl/reaped without permission", ">=3.5.3",
		"The reaper needs no permission on the parent.",
		func(t *trial) {
			k := t.as(alice)
			p := k.create(t.path("p"), nil, 0)
			k.container(p + "/n")
			k.make(p + "/n/c")
			k.setACL(p, []proto.ACL{allow(alice, proto.PermRead|proto.PermAdmin)}, -1)
			k.delete(p+"/n/c", -1)
			k.reaped(p+"/n", 0)
			k.setACL(p, proto.OpenACL, -1)
		})),
	requires(Reaper, requires(TTL, check("containers and ttl/TTL by mtime", ">=3.5.4",
		"A TTL znode without children is deleted when its TTL has passed since its data was last set, and not earlier.",
		func(t *trial) {
			const ttl = 600 * time.Millisecond
			k := t.connect()
			n, s := k.ttl(t.path("n"), proto.FlagTTL, ttl)
			t.wait(ttl / 2)
			// On a slow machine it may have been deleted already, which is correct.
			f := k.call(opSet(n, nil, -1))
			if f.Code == proto.OK {
				s = *f.Body.(*proto.Stat)
				k.reaped(n, ttl)
			} else {
				k.judge(f, proto.NoNode)
			}
			now := k.container(t.path("now")).Ctime
			t.ensure(now-s.Mtime > ttl.Milliseconds(), "it was deleted %d ms after it was set, with a TTL of %v", now-s.Mtime, ttl)
		}))),
	requires(Reaper, requires(TTL, check("containers and ttl/TTL and children", ">=3.5.4",
		"A TTL znode with children stays; without them it is deleted, however recently the last child was deleted.",
		func(t *trial) {
			const ttl = 10 * time.Millisecond
			k := t.connect()
			n := t.path("n")
			t.applied(k.multi(opTTL(n, proto.FlagTTL, ttl.Milliseconds()), opCreate(n+"/c", nil, 0)), proto.OpCreate2, proto.OpCreate)
			t.wait(ttl)
			k.sweep()
			k.stat(n)
			k.delete(n+"/c", -1)
			k.reaped(n, ttl)
		}))),
	requires(Reaper, requires(TTL, check("containers and ttl/TTL not yet", ">=3.5.4",
		"A TTL znode whose TTL has not passed stays.",
		func(t *trial, k *conn) {
			n, _ := k.ttl(t.path("n"), proto.FlagTTL, time.Hour)
			k.used(n)
			k.sweep()
			k.stat(n)
		}))),
}
