package conform

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/proto"
)

// soft and hard return the data of zookeeper_limits as zkCli writes it.
func soft(count, bytes int) string { return fmt.Sprintf("count=%d,bytes=%d", count, bytes) }
func hard(count, bytes int) string {
	return fmt.Sprintf("count=-1,bytes=-1=;byteHardLimit=%d;countHardLimit=%d", bytes, count)
}

// limited creates the check's znode n with that much data, sets a quota on it, and returns its path.
func (k *conn) limited(bytes int, limits string) string {
	n := k.create(k.t.path("n"), repeat(bytes), 0)
	k.quota(n, limits)
	return n
}

func (k *conn) usage(path string, count, bytes int) {
	data, _ := k.get("/zookeeper/quota" + path + "/zookeeper_stats")
	k.t.equal("the stats of the quota", string(data), soft(count, bytes))
}

// tryCreate and trySet check the code of a create and a setData with that much data.
func (k *conn) tryCreate(code proto.Code, path string, bytes int) {
	k.want(code, opCreate(path, repeat(bytes), 0))
}
func (k *conn) trySet(code proto.Code, path string, bytes int) {
	k.want(code, opSet(path, repeat(bytes), -1))
}

var quotaChecks = []Check{
	check("quotas/first stats", ">=3.4",
		"When the znode zookeeper_stats of a quota is created, it gets the true numbers, whatever data was given: the number of znodes, including the one with the quota, and the total size of their data.",
		func(t *trial, k *conn) {
			n := k.create(t.path("n"), repeat(3), 0)
			k.create(n+"/a", repeat(10), 0)
			k.make(n + "/a/b")
			k.quota(n, soft(-1, -1))
			k.usage(n, 3, 13)
		}),
	check("quotas/stats follow", ">=3.4",
		"create, setData and delete of any znode below the quota update the stats.",
		func(t *trial, k *conn) {
			n := k.limited(0, soft(-1, -1))
			k.usage(n, 1, 0)
			k.create(n+"/a", repeat(5), 0)
			k.usage(n, 2, 5)
			k.create(n+"/a/b", repeat(7), 0)
			k.usage(n, 3, 12)
			k.set(n, repeat(100), -1)
			k.usage(n, 3, 112)
			k.set(n+"/a/b", repeat(2), -1)
			k.usage(n, 3, 107)
			k.delete(n+"/a/b", -1)
			k.usage(n, 2, 105)
			k.delete(n+"/a", -1)
			k.usage(n, 1, 100)
			k.create(t.path("nn"), repeat(9), 0)
			k.usage(n, 1, 100)
		}),
	check("quotas/stats and sessions", ">=3.4",
		"When a session ends, its ephemeral znodes are subtracted from the stats.",
		func(t *trial, k, owner *conn) {
			n := k.limited(0, soft(-1, -1))
			owner.create(n+"/a", repeat(5), proto.FlagEphemeral)
			owner.create(n+"/b-", repeat(6), proto.FlagEphemeralSeq)
			k.usage(n, 3, 11)
			owner.closeSession()
			k.usage(n, 1, 0)
		}),
	check("quotas/stats and multi", ">=3.4",
		"A multi changes the stats as its operations would; one that fails does not change them.",
		func(t *trial, k *conn) {
			n := k.limited(0, soft(-1, -1))
			k.multi(opCreate(n+"/a", repeat(5), 0), opCreate(n+"/b", repeat(6), 0), opSet(n+"/a", repeat(1), -1), opDelete(n+"/b", -1))
			k.usage(n, 2, 1)
			t.rolledBack(k.multi(opCreate(n+"/c", repeat(5), 0), opDelete(n+"/a", -1), opCheck(n, 77)), proto.OK, proto.OK, proto.BadVersion)
			k.usage(n, 2, 1)
		}),
	check("quotas/stats fire nothing", ">=3.4",
		"Updates of the stats fire no watch, and change no version, time or zxid of zookeeper_stats.",
		func(t *trial, k *conn) {
			n := k.limited(0, soft(-1, -1))
			stats := "/zookeeper/quota" + n + "/zookeeper_stats"
			k.watch(opGet(stats))
			before := k.stat(stats)
			for i := range 12 {
				k.create(fmt.Sprintf("%s/%d", n, i), repeat(10), 0)
			}
			k.usage(n, 13, 120)
			k.noEvent()
			after := k.stat(stats)
			before.DataLength = int32(len(soft(13, 120)))
			t.equal("the Stat of zookeeper_stats", after, before)
		}),
	check("quotas/nearest", ">=3.4",
		"If a znode is below several quotas, only the nearest one counts it.",
		func(t *trial, k *conn) {
			n := k.limited(0, soft(-1, -1))
			k.make(n + "/in")
			k.quota(n+"/in", soft(-1, -1))
			k.usage(n, 2, 0)
			k.create(n+"/in/a", repeat(5), 0)
			k.usage(n+"/in", 2, 5)
			k.usage(n, 2, 0)
			k.create(n+"/out", repeat(7), 0)
			k.usage(n, 3, 7)
			k.usage(n+"/in", 2, 5)
		}),
	check("quotas/soft limits", ">=3.4",
		"A soft limit refuses no request.",
		func(t *trial, k *conn) {
			n := k.limited(0, soft(1, 1))
			k.tryCreate(proto.OK, n+"/a", 10)
			k.trySet(proto.OK, n, 10)
			k.usage(n, 2, 20)
		}),
	requires(Quotas, check("quotas/hard count", ">=3.7",
		"A create that would exceed countHardLimit fails with QuotaExceeded; after a delete there is room again.",
		func(t *trial, k *conn) {
			n := k.limited(0, hard(3, -1))
			k.tryCreate(proto.OK, n+"/a", 1000)
			k.tryCreate(proto.OK, n+"/a/b", 0)
			k.tryCreate(proto.QuotaExceeded, n+"/c", 0)
			k.tryCreate(proto.QuotaExceeded, n+"/a/b/c", 0)
			k.missing(n + "/c")
			t.equal("the number of children", k.stat(n).NumChildren, int32(1))
			k.trySet(proto.OK, n, 1000)
			k.usage(n, 3, 2000)
			k.delete(n+"/a/b", -1)
			k.tryCreate(proto.OK, n+"/c", 0)
		})),
	requires(Quotas, check("quotas/hard bytes, create", ">=3.7",
		"A create whose data would exceed byteHardLimit fails with QuotaExceeded; one that just reaches the limit, or has no data, succeeds.",
		func(t *trial, k *conn) {
			n := k.limited(4, hard(-1, 10))
			k.tryCreate(proto.QuotaExceeded, n+"/a", 7)
			k.tryCreate(proto.OK, n+"/a", 6)
			k.tryCreate(proto.QuotaExceeded, n+"/b", 1)
			k.tryCreate(proto.OK, n+"/b", 0)
			k.usage(n, 3, 10)
		})),
	requires(Quotas, check("quotas/hard bytes, setData", ">=3.7",
		"A setData that would exceed byteHardLimit fails with QuotaExceeded and changes nothing.",
		func(t *trial, k *conn) {
			n := k.limited(4, hard(-1, 10))
			k.create(n+"/a", repeat(4), 0)
			before := k.stat(n)
			k.trySet(proto.QuotaExceeded, n, 7)
			t.equal("the Stat", k.stat(n), before)
			k.trySet(proto.OK, n, 6)
			k.trySet(proto.OK, n, 6)
			k.trySet(proto.OK, n+"/a", 1)
			k.trySet(proto.OK, n, 9)
			k.trySet(proto.QuotaExceeded, n+"/a", 2)
			k.usage(n, 2, 10)
		})),
	requires(Quotas, check("quotas/above the limit", ">=3.7",
		"Data that already exceeds byteHardLimit may be set to the same size, but to any other only within the limit.",
		func(t *trial, k *conn) {
			n := k.limited(100, hard(1, 10))
			k.trySet(proto.OK, n, 100)
			k.trySet(proto.QuotaExceeded, n, 50)
			k.tryCreate(proto.QuotaExceeded, n+"/a", 0)
			k.trySet(proto.OK, n, 10)
		})),
	requires(Quotas, check("quotas/precedence", ">=3.7",
		"create reports QuotaExceeded after all other errors; setData reports it before a wrong version, but after all others.",
		func(t *trial, k *conn, n string) {
			k.make(n + "/a")
			k.create(n+"/e", nil, proto.FlagEphemeral)
			k.make(n + "/locked")
			k.quota(n, hard(1, 1))
			k.setACL(n+"/locked", []proto.ACL{allowAll(proto.PermRead)}, -1)
			k.tryCreate(proto.NodeExists, n+"/a", 10)
			k.tryCreate(proto.NoNode, n+"/no/parent", 10)
			k.tryCreate(proto.NoAuth, n+"/locked/x", 10)
			k.tryCreate(proto.NoChildrenForEphemerals, n+"/e/x", 10)
			k.tryCreate(proto.BadArguments, n+"/", 10)
			k.want(proto.InvalidACL, opCreateACL(n+"/x", repeat(10), nil, 0))
			k.trySet(proto.NoAuth, n+"/locked", 10)
			k.trySet(proto.NoNode, n+"/missing", 10)
			k.want(proto.QuotaExceeded, opSet(n, repeat(10), 77))
			k.want(proto.BadVersion, opSet(n, repeat(1), 77))
		})),
	requires(Quotas, check("quotas/in multi", ">=3.7",
		"A hard limit applies to create and setData in a multi, too, and makes the whole multi fail.",
		func(t *trial, k *conn) {
			n := k.limited(0, hard(1, 5))
			t.rolledBack(k.multi(opCreate(t.path("m"), nil, 0), opCreate(n+"/a", nil, 0), opCheck(n, 0)), proto.OK, proto.QuotaExceeded, proto.RuntimeInconsistency)
			t.rolledBack(k.multi(opSet(n, repeat(6), -1)), proto.QuotaExceeded)
			k.missing(t.path("m"))
			k.usage(n, 1, 0)
		})),
	requires(Quotas, check("quotas/every create", ">=3.7",
		"A hard limit applies to every kind of create.",
		func(t *trial, k *conn) {
			n := k.limited(0, hard(1, -1))
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.QuotaExceeded, opMake(op, n+"/a", nil, 0))
			}
			for _, flags := range []int32{proto.FlagEphemeral, proto.FlagSequential, proto.FlagEphemeralSeq} {
				k.want(proto.QuotaExceeded, opCreate(n+"/a", nil, flags))
			}
			t.equal("the number of children", k.stat(n).NumChildren, int32(0))
		})),
	requires(Quotas, check("quotas/new limits", ">=3.7",
		"New limits in zookeeper_limits apply at once, and deleting it removes them.",
		func(t *trial, k *conn) {
			n := k.limited(0, hard(1, -1))
			limits := "/zookeeper/quota" + n + "/zookeeper_limits"
			k.tryCreate(proto.QuotaExceeded, n+"/a", 0)
			k.set(limits, []byte(hard(2, -1)), -1)
			k.tryCreate(proto.OK, n+"/a", 0)
			k.tryCreate(proto.QuotaExceeded, n+"/b", 0)
			k.set(limits, []byte(hard(-1, -1)), -1)
			k.tryCreate(proto.OK, n+"/b", 0)
			k.set(limits, []byte(hard(1, -1)), -1)
			k.tryCreate(proto.QuotaExceeded, n+"/c", 0)
			k.delete(limits, -1)
			k.tryCreate(proto.OK, n+"/c", 0)
		})),
	alone(requires(Quotas, check("quotas/zxid", ">=3.7",
		"A write that fails with QuotaExceeded consumes a zxid, like one that fails for another reason.",
		undisturbed(func(t *trial, k *conn, root string) {
			n := k.create(root, nil, 0)
			k.quota(n, hard(1, -1))
			before := k.ping().Zxid
			f := k.want(proto.QuotaExceeded, opCreate(n+"/a", nil, 0))
			t.equal("the zxid", f.Zxid, before+1)
		})))),
}
