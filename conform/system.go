package conform

import (
	"regexp"
	"slices"

	"github.com/lockkeeper/lockkeeper/proto"
)

// builtIn checks a znode that every server starts with: it was never created and is
// open to everyone. It does not check the fields of its Stat that change with use.
func builtIn(t *trial, k *conn, path string) (children []string) {
	s := k.stat(path)
	t.equal("czxid, ctime and owner of "+path, []int64{s.Czxid, s.Ctime, s.EphemeralOwner}, []int64{0, 0, 0})
	acl, _ := k.getACL(path)
	t.equal("the ACL of "+path, acl, proto.OpenACL)
	children = k.children(path)
	t.equal("the number of children in the Stat of "+path, int(s.NumChildren), len(children))
	return children
}

var systemChecks = []Check{
	{
		Name:  "system nodes/root",
		Says:  "The root always exists, with czxid 0 and ctime 0, is open to everyone, and has the child zookeeper.",
		In:    ">=3.0",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			t.ensure(slices.Contains(builtIn(t, k, "/"), "zookeeper"), "/ has no child zookeeper")
		},
	},
	{
		Name:  "system nodes/root's numbers",
		Says:  "The child that the root starts with was never counted: the next sequential znode in the root gets half the sum of cversion and numChildren as its number.",
		In:    ">=3.0",
		Alone: true,
		run:   func(t *trial) { numbersIn(t, "/", "") },
	},
	{
		Name:  "system nodes/zookeeper",
		Says:  "/zookeeper always exists, was never set, is open to everyone, and has the children config and quota.",
		In:    ">=3.5",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			names := builtIn(t, k, "/zookeeper")
			t.ensure(slices.Contains(names, "config") && slices.Contains(names, "quota"), "/zookeeper has the children %v", names)
			data, s := k.get("/zookeeper")
			t.equal("the data's length", len(data), 0)
			t.equal("mzxid, mtime", []int64{s.Mzxid, s.Mtime}, []int64{0, 0})
			t.equal("version, aversion", []int32{s.Version, s.Aversion}, []int32{0, 0})
		},
	},
	{
		Name:  "system nodes/zookeeper's numbers",
		Says:  "Everyone may create znodes in /zookeeper. The two children that it starts with were never counted, so its cversion starts at -2.",
		In:    ">=3.5",
		Alone: true,
		run:   func(t *trial) { numbersIn(t, "/zookeeper", "/zookeeper") },
	},
	{
		Name:  "system nodes/quota",
		Says:  "/zookeeper/quota always exists, without data and open to everyone.",
		In:    ">=3.0",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			builtIn(t, k, "/zookeeper/quota")
			data, _ := k.get("/zookeeper/quota")
			t.equal("the data's length", len(data), 0)
			numbersIn(t, "/zookeeper/quota", "/zookeeper/quota")
		},
	},
	{
		Name: "system nodes/config",
		Says: "/zookeeper/config has the members' addresses, or no data on a standalone server; everyone may read and watch it, and its aversion is -1.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			r := k.do(proto.OpGetData, &proto.PathWatch{Path: "/zookeeper/config", Watch: true}).Body.(*proto.DataReply)
			t.ensure(regexp.MustCompile(`^((server\.\d+=.*\n)+version=[0-9a-f]+)?$`).Match(r.Data), "the data is %q", r.Data)
			t.equal("the length in the Stat", int(r.Stat.DataLength), len(r.Data))
			t.equal("czxid, ctime, owner", []int64{r.Stat.Czxid, r.Stat.Ctime, r.Stat.EphemeralOwner}, []int64{0, 0, 0})
			t.equal("cversion, aversion and number of children", []int32{r.Stat.Cversion, r.Stat.Aversion, r.Stat.NumChildren}, []int32{0, -1, 0})
			acl, s := k.getACL("/zookeeper/config")
			t.equal("the ACL", acl, []proto.ACL{allowAll(proto.PermRead)})
			t.equal("the Stat in getACL", s, r.Stat)
		},
	},
	{
		Name: "system nodes/config is read-only",
		Says: "setData and setACL of /zookeeper/config, and create below it, fail with NoAuth.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			const p = "/zookeeper/config"
			k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: p, Version: -1})
			k.want(proto.NoAuth, proto.OpSetACL, &proto.SetACLRequest{Path: p, ACL: proto.OpenACL, Version: -1})
			k.want(proto.NoAuth, proto.OpCreate, &proto.CreateRequest{Path: p + "/x", ACL: proto.OpenACL})
		},
	},
	{
		Name: "system nodes/cannot be deleted",
		Says: "delete of the root, /zookeeper, /zookeeper/quota or /zookeeper/config fails with BadArguments, whatever the version, and in a multi too.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
				k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: -1})
				k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: 77})
				t.rolledBack(k.multi(opDelete(p, -1)), proto.BadArguments)
			}
		},
	},
	{
		Name: "system nodes/cannot be created",
		Says: "create of a system znode fails with NodeExists.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota"} {
				k.want(proto.NodeExists, proto.OpCreate, &proto.CreateRequest{Path: p, ACL: proto.OpenACL})
			}
		},
	},
	{
		Name: "system nodes/empty path",
		Says: "The empty path means the root in reads and is invalid in writes.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			t.equal("czxid", k.stat("").Czxid, int64(0))
			t.ensure(slices.Contains(k.children(""), "zookeeper"), "the empty path has no child zookeeper")
			k.want(proto.BadArguments, proto.OpSetData, &proto.SetDataRequest{Version: -1})
			k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Version: -1})
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{ACL: proto.OpenACL})
		},
	},
	{
		Name: "system nodes/reconfig",
		Says: "Without reconfigEnabled, reconfig fails with ReconfigDisabled before its servers are checked.",
		In:   ">=3.5.3",
		With: NoReconfig,
		run: func(t *trial) {
			k := t.connect()
			for _, members := range []string{"server.1=localhost:2888:3888;2181", "nonsense", ""} {
				k.want(proto.ReconfigDisabled, proto.OpReconfig, &proto.ReconfigRequest{
					Joining: proto.Path{Null: true}, Leaving: proto.Path{Path: "7"}, NewMembers: proto.Path{Path: members}, ConfigID: -1})
			}
			k.ping()
		},
	},
	{
		Name:  "system nodes/reconfig's zxid",
		Says:  "A reconfig that is refused consumes a zxid.",
		In:    ">=3.5.3",
		With:  NoReconfig,
		Alone: true,
		run: func(t *trial) {
			t.undisturbed(func(string) {
				k := t.connect()
				before := k.ping().Zxid
				f := k.want(proto.ReconfigDisabled, proto.OpReconfig, &proto.ReconfigRequest{ConfigID: -1})
				t.equal("its zxid", f.Zxid, before+1)
			})
		},
	},
}

// numbersIn creates a sequential znode in one that had children from the start.
func numbersIn(t *trial, path, prefix string) {
	k := t.connect()
	s := k.stat(path)
	made := k.create(prefix+t.s.root+"-numbered-", nil, proto.FlagSequential)
	after := k.stat(path)
	k.delete(made, -1)
	t.equal("the path", made, prefix+t.s.root+"-numbered-"+sequence(s))
	t.equal("cversion with one child more", after.Cversion, s.Cversion+1)
	t.equal("the number of children with one more", after.NumChildren, s.NumChildren+1)
}
