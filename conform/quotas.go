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

// usage checks the stats of a quota.
func (k *conn) usage(path string, count, bytes int) {
	data, _ := k.get("/zookeeper/quota" + path + "/zookeeper_stats")
	k.t.equal("the stats of the quota", string(data), soft(count, bytes))
}

// tryCreate and trySet check the code of a create and a setData with that much data.
func (k *conn) tryCreate(code proto.Code, path string, bytes int) {
	k.want(code, proto.OpCreate, &proto.CreateRequest{Path: path, Data: repeat(bytes), ACL: proto.OpenACL})
}
func (k *conn) trySet(code proto.Code, path string, bytes int) {
	k.want(code, proto.OpSetData, &proto.SetDataRequest{Path: path, Data: repeat(bytes), Version: -1})
}

var quotaChecks = []Check{
	{
		Name: "quotas/first stats",
		Says: "When the znode zookeeper_stats of a quota is created, it gets the true numbers, whatever data was given: the number of znodes, including the one with the quota, and the total size of their data.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), repeat(3), 0)
			k.create(n+"/a", repeat(10), 0)
			k.create(n+"/a/b", nil, 0)
			k.quota(n, soft(-1, -1))
			k.usage(n, 3, 13)
		},
	},
	{
		Name: "quotas/stats follow",
		Says: "create, setData and delete of any znode below the quota update the stats.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, soft(-1, -1))
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
		},
	},
	{
		Name: "quotas/stats and sessions",
		Says: "When a session ends, its ephemeral znodes are subtracted from the stats.",
		In:   ">=3.4",
		run: func(t *trial) {
			k, owner := t.connect(), t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, soft(-1, -1))
			owner.create(n+"/a", repeat(5), proto.FlagEphemeral)
			owner.create(n+"/b-", repeat(6), proto.FlagEphemeralSeq)
			k.usage(n, 3, 11)
			owner.closeSession()
			k.usage(n, 1, 0)
		},
	},
	{
		Name: "quotas/stats and multi",
		Says: "A multi changes the stats as its operations would; one that fails does not change them.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, soft(-1, -1))
			k.multi(opCreate(n+"/a", repeat(5), 0), opCreate(n+"/b", repeat(6), 0), opSet(n+"/a", repeat(1), -1), opDelete(n+"/b", -1))
			k.usage(n, 2, 1)
			t.rolledBack(k.multi(opCreate(n+"/c", repeat(5), 0), opDelete(n+"/a", -1), opCheck(n, 77)), proto.OK, proto.OK, proto.BadVersion)
			k.usage(n, 2, 1)
		},
	},
	{
		Name: "quotas/stats fire nothing",
		Says: "Updates of the stats fire no watch, and change no version, time or zxid of zookeeper_stats.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, soft(-1, -1))
			stats := "/zookeeper/quota" + n + "/zookeeper_stats"
			k.watchData(stats)
			before := k.stat(stats)
			for i := range 12 {
				k.create(fmt.Sprintf("%s/%d", n, i), repeat(10), 0)
			}
			k.usage(n, 13, 120)
			k.noEvent()
			after := k.stat(stats)
			before.DataLength = int32(len(soft(13, 120)))
			t.equal("the Stat of zookeeper_stats", after, before)
		},
	},
	{
		Name: "quotas/nearest",
		Says: "If a znode is below several quotas, only the nearest one counts it.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.create(n+"/in", nil, 0)
			k.quota(n, soft(-1, -1))
			k.quota(n+"/in", soft(-1, -1))
			k.usage(n, 2, 0)
			k.create(n+"/in/a", repeat(5), 0)
			k.usage(n+"/in", 2, 5)
			k.usage(n, 2, 0)
			k.create(n+"/out", repeat(7), 0)
			k.usage(n, 3, 7)
			k.usage(n+"/in", 2, 5)
		},
	},
	{
		Name: "quotas/soft limits",
		Says: "A soft limit refuses no request.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, soft(1, 1))
			k.tryCreate(proto.OK, n+"/a", 10)
			k.trySet(proto.OK, n, 10)
			k.usage(n, 2, 20)
		},
	},
	{
		Name:  "quotas/hard count",
		Says:  "A create that would exceed countHardLimit fails with QuotaExceeded; after a delete there is room again.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, hard(3, -1))
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
		},
	},
	{
		Name:  "quotas/hard bytes, create",
		Says:  "A create whose data would exceed byteHardLimit fails with QuotaExceeded; one that just reaches the limit, or has no data, succeeds.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), repeat(4), 0)
			k.quota(n, hard(-1, 10))
			k.tryCreate(proto.QuotaExceeded, n+"/a", 7)
			k.tryCreate(proto.OK, n+"/a", 6)
			k.tryCreate(proto.QuotaExceeded, n+"/b", 1)
			k.tryCreate(proto.OK, n+"/b", 0)
			k.usage(n, 3, 10)
		},
	},
	{
		Name:  "quotas/hard bytes, setData",
		Says:  "A setData that would exceed byteHardLimit fails with QuotaExceeded and changes nothing.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), repeat(4), 0)
			k.create(n+"/a", repeat(4), 0)
			k.quota(n, hard(-1, 10))
			before := k.stat(n)
			k.trySet(proto.QuotaExceeded, n, 7)
			t.equal("the Stat", k.stat(n), before)
			k.trySet(proto.OK, n, 6)
			k.trySet(proto.OK, n, 6)
			k.trySet(proto.OK, n+"/a", 1)
			k.trySet(proto.OK, n, 9)
			k.trySet(proto.QuotaExceeded, n+"/a", 2)
			k.usage(n, 2, 10)
		},
	},
	{
		Name:  "quotas/above the limit",
		Says:  "Data that already exceeds byteHardLimit may be set to the same size, but to any other only within the limit.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), repeat(100), 0)
			k.quota(n, hard(1, 10))
			k.trySet(proto.OK, n, 100)
			k.trySet(proto.QuotaExceeded, n, 50)
			k.tryCreate(proto.QuotaExceeded, n+"/a", 0)
			k.trySet(proto.OK, n, 10)
		},
	},
	{
		Name:  "quotas/precedence",
		Says:  "create reports QuotaExceeded after all other errors; setData reports it before a wrong version, but after all others.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.create(n+"/a", nil, 0)
			k.create(n+"/e", nil, proto.FlagEphemeral)
			k.create(n+"/locked", nil, 0)
			k.quota(n, hard(1, 1))
			k.setACL(n+"/locked", []proto.ACL{allowAll(proto.PermRead)}, -1)
			k.tryCreate(proto.NodeExists, n+"/a", 10)
			k.tryCreate(proto.NoNode, n+"/no/parent", 10)
			k.tryCreate(proto.NoAuth, n+"/locked/x", 10)
			k.tryCreate(proto.NoChildrenForEphemerals, n+"/e/x", 10)
			k.tryCreate(proto.BadArguments, n+"/", 10)
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: n + "/x", Data: repeat(10)})
			k.trySet(proto.NoAuth, n+"/locked", 10)
			k.trySet(proto.NoNode, n+"/missing", 10)
			k.want(proto.QuotaExceeded, proto.OpSetData, &proto.SetDataRequest{Path: n, Data: repeat(10), Version: 77})
			k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: n, Data: repeat(1), Version: 77})
		},
	},
	{
		Name:  "quotas/in multi",
		Says:  "A hard limit applies to create and setData in a multi, too, and makes the whole multi fail.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, hard(1, 5))
			t.rolledBack(k.multi(opCreate(t.path("m"), nil, 0), opCreate(n+"/a", nil, 0), opCheck(n, 0)), proto.OK, proto.QuotaExceeded, proto.RuntimeInconsistency)
			t.rolledBack(k.multi(opSet(n, repeat(6), -1)), proto.QuotaExceeded)
			k.missing(t.path("m"))
			k.usage(n, 1, 0)
		},
	},
	{
		Name:  "quotas/every create",
		Says:  "A hard limit applies to every kind of create.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, hard(1, -1))
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.QuotaExceeded, op, &proto.CreateRequest{Path: n + "/a", ACL: proto.OpenACL})
			}
			for _, flags := range []int32{proto.FlagEphemeral, proto.FlagSequential, proto.FlagEphemeralSeq} {
				k.want(proto.QuotaExceeded, proto.OpCreate, &proto.CreateRequest{Path: n + "/a", ACL: proto.OpenACL, Flags: flags})
			}
			t.equal("the number of children", k.stat(n).NumChildren, int32(0))
		},
	},
	{
		Name:  "quotas/new limits",
		Says:  "New limits in zookeeper_limits apply at once, and deleting it removes them.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.quota(n, hard(1, -1))
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
		},
	},
	{
		Name:  "quotas/zxid",
		Says:  "A write that fails with QuotaExceeded consumes a zxid, like one that fails for another reason.",
		In:    ">=3.7",
		Needs: []Feature{Quotas},
		Alone: true,
		run: func(t *trial) {
			t.undisturbed(func(root string) {
				k := t.connect()
				n := k.create(root, nil, 0)
				k.quota(n, hard(1, -1))
				before := k.ping().Zxid
				f := k.want(proto.QuotaExceeded, proto.OpCreate, &proto.CreateRequest{Path: n + "/a", ACL: proto.OpenACL})
				t.equal("the zxid", f.Zxid, before+1)
			})
		},
	},
}
