package conform

import (
	"regexp"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
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
	alone(check("system nodes/root", ">=3.0",
		"The root always exists, with czxid 0 and ctime 0, is open to everyone, and has the child zookeeper.",
		func(t *trial, k *conn) {
			t.ensure(slices.Contains(builtIn(t, k, "/"), "zookeeper"), "/ has no child zookeeper")
		})),
	alone(check("system nodes/root's numbers", ">=3.0",
		"The child that the root starts with was never counted: the next sequential znode in the root gets half the sum of cversion and numChildren as its number.",
		func(t *trial) { numbersIn(t, "/", "") })),
	alone(check("system nodes/zookeeper", ">=3.5",
		"/zookeeper always exists, was never set, is open to everyone, and has the children config and quota.",
		func(t *trial, k *conn) {
			names := builtIn(t, k, "/zookeeper")
			t.ensure(slices.Contains(names, "config") && slices.Contains(names, "quota"), "/zookeeper has the children %v", names)
			data, s := k.get("/zookeeper")
			t.equal("the data's length", len(data), 0)
			t.equal("mzxid, mtime", []int64{s.Mzxid, s.Mtime}, []int64{0, 0})
			t.equal("version, aversion", []int32{s.Version, s.Aversion}, []int32{0, 0})
		})),
	alone(check("system nodes/zookeeper's numbers", ">=3.5",
		"Everyone may create znodes in /zookeeper. The two children that it starts with were never counted, so its cversion starts at -2.",
		func(t *trial) { numbersIn(t, "/zookeeper", "/zookeeper") })),
	alone(check("system nodes/quota", ">=3.0",
		"/zookeeper/quota always exists, without data and open to everyone.",
		func(t *trial, k *conn) {
			builtIn(t, k, "/zookeeper/quota")
			data, _ := k.get("/zookeeper/quota")
			t.equal("the data's length", len(data), 0)
			numbersIn(t, "/zookeeper/quota", "/zookeeper/quota")
		})),
	check("system nodes/config", ">=3.5",
		"/zookeeper/config has the members' addresses, or no data on a standalone server; everyone may read and watch it, and its aversion is -1.",
		func(t *trial, k *conn) {
			r := k.do(watching(opGet("/zookeeper/config"))).Body.(*proto.DataReply)
			t.ensure(regexp.MustCompile(`^((server\.\d+=.*\n)+version=[0-9a-f]+)?$`).Match(r.Data), "the data is %q", r.Data)
			t.equal("the length in the Stat", int(r.Stat.DataLength), len(r.Data))
			t.equal("czxid, ctime, owner", []int64{r.Stat.Czxid, r.Stat.Ctime, r.Stat.EphemeralOwner}, []int64{0, 0, 0})
			t.equal("cversion, aversion and number of children", []int32{r.Stat.Cversion, r.Stat.Aversion, r.Stat.NumChildren}, []int32{0, -1, 0})
			acl, s := k.getACL("/zookeeper/config")
			t.equal("the ACL", acl, []proto.ACL{allowAll(proto.PermRead)})
			t.equal("the Stat in getACL", s, r.Stat)
		}),
	check("system nodes/config is read-only", ">=3.5",
		"setData and setACL of /zookeeper/config, and create below it, fail with NoAuth.",
		func(t *trial, k *conn) {
			const p = "/zookeeper/config"
			k.want(proto.NoAuth, opSet(p, nil, -1), opSetACL(p, proto.OpenACL, -1), opCreate(p+"/x", nil, 0))
		}),
	check("system nodes/cannot be deleted", ">=3.5",
		"delete of the root, /zookeeper, /zookeeper/quota or /zookeeper/config fails with BadArguments, whatever the version, and in a multi too.",
		func(t *trial, k *conn) {
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
				k.want(proto.BadArguments, opDelete(p, -1), opDelete(p, 77))
				t.rolledBack(k.multi(opDelete(p, -1)), proto.BadArguments)
			}
		}),
	check("system nodes/cannot be created", ">=3.5",
		"create of a system znode fails with NodeExists.",
		func(t *trial, k *conn) {
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota"} {
				k.want(proto.NodeExists, opCreate(p, nil, 0))
			}
		}),
	check("system nodes/empty path", ">=3.6",
		"The empty path means the root in reads and is invalid in writes.",
		func(t *trial, k *conn) {
			t.equal("czxid", k.stat("").Czxid, int64(0))
			t.ensure(slices.Contains(k.children(""), "zookeeper"), "the empty path has no child zookeeper")
			data, _ := k.get("")
			want, _ := k.get("/")
			t.equal("the data", data, want)
			k.want(proto.BadArguments, opSet("", nil, -1), opDelete("", -1), opCreate("", nil, 0))
		}),
	with(NoReconfig, check("system nodes/reconfig", ">=3.5.3",
		"Without reconfigEnabled, reconfig fails with ReconfigDisabled before its servers are checked.",
		func(t *trial, k *conn) {
			for _, members := range []string{"server.1=localhost:2888:3888;2181", "nonsense", ""} {
				k.want(proto.ReconfigDisabled, req(proto.OpReconfig, &proto.ReconfigRequest{
					Joining: proto.Path{Path: jute.Null}, Leaving: proto.Path{Path: "7"}, NewMembers: proto.Path{Path: members}, ConfigID: -1}))
			}
			k.ping()
		})),
	alone(with(NoReconfig, check("system nodes/reconfig's zxid", ">=3.5.3",
		"A reconfig that is refused consumes a zxid.",
		undisturbed(func(t *trial, k *conn, _ string) {
			before := k.ping().Zxid
			f := k.want(proto.ReconfigDisabled, req(proto.OpReconfig, &proto.ReconfigRequest{ConfigID: -1}))
			t.equal("its zxid", f.Zxid, before+1)
		})))),
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
