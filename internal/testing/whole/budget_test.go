//go:build unix

package whole

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The tree of TestBudget.
const (
	budgetChildren   = 100_000 // of /big
	budgetEphemerals = 50_000  // of one session
	budgetDepth      = 1500    // of the deepest znode
	budgetWatchers   = 200     // connections that watch /watched
	budgetDeep       = 5       // connections that watch every znode down to the deepest
	budgetOutbox     = 8 << 20
)

// budgetCase is a request that costs as much as a client can make it.
type budgetCase struct {
	name string
	op   proto.OpCode
	body proto.Record
	many bool  // sent by a client with as many identities as possible
	want error // io.EOF means that the server closes the connection
	more int   // bytes of memory that it may allocate beyond what every request may
	n    int   // how often it is sent before the answer is awaited, if more than once
}

// TestBudget sends the most expensive single requests of every kind, as long as a frame
// may be by default, and every four-letter word to a server with a large tree. The memory
// that a request allocates must be in proportion to its length and its reply's. Its CPU
// time must be at most 2 s; most take less than a tenth of a second per megabyte. Neither
// depends much on what else the machine does.
func TestBudget(t *testing.T) {
	s := open(t, lockkeeper.Config{Features: lockkeeper.Features{EnforceQuota: true, Reconfig: true}, Limits: lockkeeper.Limits{MaxFrameBytes: 4 << 20, MaxOutboxBytes: budgetOutbox, SnapshotBytes: 1 << 40, MaxSessionTimeout: time.Hour}})
	dial := inMemory(s)
	b := budget{t: t, plain: connectFor(t, dial, time.Hour), many: connectFor(t, dial, time.Hour), owner: connectFor(t, dial, time.Hour)}
	b.populate(dial)

	seen := map[proto.OpCode]bool{}
	for _, c := range b.cases() {
		seen[c.op] = true
		if m, ok := c.body.(*proto.MultiRequest); ok {
			for _, op := range m.Ops {
				seen[op.Op] = true
			}
		}
		t.Run(fmt.Sprintf("%s, %s", proto.OpByCode(c.op).Name, c.name), func(t *testing.T) { b.run(t, dial, &c) })
	}
	for _, op := range proto.Ops {
		if !seen[op.Code] {
			t.Errorf("no request of type %s", op.Name)
		}
	}
	for _, word := range allWords {
		t.Run(word, func(t *testing.T) { b.word(t, dial, word) })
	}
	alive(t, b.plain)
}

type budget struct {
	t                  *testing.T
	plain, many, owner *rawclient.Client // owner has the ephemerals
}

// fill sends the n operations that add returns, in multis that fit into a frame.
func (b *budget) fill(c *rawclient.Client, n int, add func(i int) proto.MultiOp) {
	b.t.Helper()
	var m proto.MultiRequest
	size := 0
	for i := range n {
		op := add(i)
		m.Ops = append(m.Ops, op)
		if size += len(op.Request.Append(nil)) + 9; size > 900<<10 || i == n-1 {
			must(c.Call(proto.OpMulti, &m, nil))(b.t)
			m.Ops, size = m.Ops[:0], 0
		}
	}
}

func createOp(path string, flags int32) proto.MultiOp {
	return proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: path, Data: []byte{}, ACL: proto.OpenACL, Flags: flags}}
}

// longest is the length of a frame, less some room for headers.
const longest = jute.DefaultMaxFrame - 200

// longMask is a valid IP address in an ACL, since leading zeros are ignored.
func longMask() string { return "1.2.3." + strings.Repeat("0", longest-100) + "4" }

// longACL has as many short entries as fit. Only the last one gives the test permissions.
func longACL() (acl []proto.ACL) {
	for size := 0; size < longest-100; size += 12 + len(acl[len(acl)-1].Scheme) + len(acl[len(acl)-1].ID.ID) {
		n := len(acl)
		acl = append(acl, proto.ACL{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeIP, ID: fmt.Sprintf("%d.%d.%d.7", n>>16, n>>8&255, n&255)}})
	}
	acl[len(acl)-1].ID = proto.OpenACL[0].ID
	return acl
}

func deep(depth int) string { return strings.Repeat("/d", depth) }

func (b *budget) populate(dial dialer) {
	t := b.t
	for _, path := range []string{"/big", "/eph", "/watched", "/mask", "/acl", "/q", "/full", "/zookeeper/quota/q", "/zookeeper/quota/big"} {
		must(b.plain.Create(path, []byte{}, 0))(t)
	}
	b.fill(b.plain, budgetChildren, func(i int) proto.MultiOp { return createOp(fmt.Sprintf("/big/n%06d", i), 0) })
	b.fill(b.owner, budgetEphemerals, func(i int) proto.MultiOp {
		return createOp(fmt.Sprintf("/eph/n%06d", i), proto.FlagEphemeral)
	})
	b.fill(b.plain, budgetDepth, func(i int) proto.MultiOp { return createOp(deep(i+1), 0) })
	for _, q := range []string{"/zookeeper/quota/q", "/zookeeper/quota/big"} {
		must(b.plain.Create(q+"/zookeeper_limits", []byte("count=1,bytes=1"), 0))(t) // soft, and exceeded
		must(b.plain.Create(q+"/zookeeper_stats", []byte{}, 0))(t)
	}
	must(b.plain.Set("/full", make([]byte, longest)))(t)
	for path, acl := range map[string][]proto.ACL{
		"/mask": {{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeIP, ID: longMask()}}, proto.OpenACL[0]},
		"/acl":  longACL(),
	} {
		must(b.plain.Call(proto.OpSetACL, &proto.SetACLRequest{Path: path, ACL: acl, Version: -1}, nil))(t)
	}
	identify := func(c *rawclient.Client, i int) error {
		_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: fmt.Append(nil, i, ":p")}, nil)
		return err
	}
	most, full := 0, connect(t, dial)
	for most < 5000 && identify(full, most) == nil { // until the server refuses one and closes the connection
		most++
	}
	for i := range most {
		check(t, identify(b.many, i))
	}
	for range budgetWatchers {
		c := connect(t, dial)
		must(c.Get("/watched", true))(t)
		go io.Copy(io.Discard, c.Conn)
	}
	watches := &proto.SetWatches2Request{SetWatchesRequest: proto.SetWatchesRequest{RelativeZxid: 1 << 60}}
	for range budgetDeep {
		c := connect(t, dial)
		go io.Copy(io.Discard, c.Conn)
		for i, size := 1, 0; i <= budgetDepth; i++ {
			watches.Recursive = append(watches.Recursive, deep(i))
			if size += 2 * i; size > 900<<10 || i == budgetDepth {
				must(c.Send(proto.OpSetWatches2, watches))(t)
				watches.Recursive, size = nil, 0
			}
		}
	}
}

func (b *budget) cases() []budgetCase {
	long := strings.Repeat("n", longest-100)
	data := make([]byte, longest-100)
	auth := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}}
	var auths []proto.ACL
	for i := range longest / 20 {
		auths = append(auths, proto.ACL{Perms: proto.PermAll | int32(i)<<5, ID: proto.ID{Scheme: proto.SchemeAuth}})
	}
	multi := func(each int, op func(i int) proto.MultiOp) *proto.MultiRequest {
		m := &proto.MultiRequest{}
		for i := range longest / each {
			m.Ops = append(m.Ops, op(i))
		}
		return m
	}
	read := func(op proto.OpCode, path string) *proto.MultiReadRequest {
		m := &proto.MultiReadRequest{}
		for range longest / (9 + 4 + len(path) + 1) {
			m.Ops = append(m.Ops, proto.MultiOp{Op: op, Request: &proto.PathWatch{Path: path}})
		}
		return m
	}
	checks := func(path string) *proto.MultiRequest {
		return multi(9+8+len(path), func(int) proto.MultiOp {
			return proto.MultiOp{Op: proto.OpCheck, Request: &proto.PathVersion{Path: path, Version: -1}}
		})
	}
	set := func(path string) *proto.MultiRequest {
		return multi(9+12+len(path), func(int) proto.MultiOp {
			return proto.MultiOp{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: path, Version: -1}}
		})
	}
	fails := func(m *proto.MultiRequest) *proto.MultiRequest {
		m.Ops = append(m.Ops, proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/none", Version: -1}})
		return m
	}
	creates := func(op proto.OpCode, dir string, acl []proto.ACL) *proto.MultiRequest {
		return multi(80, func(i int) proto.MultiOp {
			q := &proto.CreateRequest{Path: fmt.Sprintf("%s/c%d", dir, i), Data: []byte{}, ACL: acl, Flags: proto.FlagEphemeralSeq}
			if op == proto.OpCreateTTL {
				q.Flags = proto.FlagTTL
				return proto.MultiOp{Op: op, Request: &proto.CreateTTLRequest{CreateRequest: *q, TTL: 1}}
			} else if op == proto.OpCreateContainer {
				q.Flags = proto.FlagContainer
			}
			return proto.MultiOp{Op: op, Request: q}
		})
	}
	// The stats of a quota on a znode with many children, created and deleted in turns.
	stats := multi(70, func(i int) proto.MultiOp {
		const path = "/zookeeper/quota/big/zookeeper_stats"
		if i%2 == 0 {
			return proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: path, Version: -1}}
		}
		return createOp(path, 0)
	})
	var keys []byte // of limits
	for i := 0; len(keys) < longest-100; i++ {
		keys = fmt.Appendf(keys, "%x=1;", i)
	}
	var servers []string
	for i, size := 0, 0; size < 4*longest; i++ { // this parser was quadratic
		servers = append(servers, fmt.Sprintf("server.%d=h%d:1:1", i, i))
		size += len(servers[i]) + 1
	}
	var watches proto.SetWatchesRequest
	for i := range longest / 9 {
		watches.Exist = append(watches.Exist, fmt.Sprintf("%x", 0x10000+i))
	}
	watches2 := proto.SetWatches2Request{Persistent: watches.Exist}
	told := proto.SetWatchesRequest{Data: watches.Exist} // the answer is an event for each
	watch := func(path string) *proto.PathWatch { return &proto.PathWatch{Path: path, Watch: true} }
	create := func(path string, data []byte, acl []proto.ACL, flags int32) *proto.CreateRequest {
		return &proto.CreateRequest{Path: path, Data: data, ACL: acl, Flags: flags}
	}
	const perWatch = 1000
	return []budgetCase{
		{name: "a long path", op: proto.OpCreate, body: create("/"+long, nil, proto.OpenACL, 0)},
		{name: "much data", op: proto.OpCreate, body: create("/big/data", data, proto.OpenACL, 0)},
		{name: "many parents", op: proto.OpCreate, body: create(deep(longest/2-100), nil, proto.OpenACL, 0), want: proto.NoNode},
		{name: "a long list", op: proto.OpCreate2, body: create("/big/list", nil, longACL()[:30_000], proto.FlagEphemeralSeq)},
		{name: "a list of auth", op: proto.OpCreate2, body: create("/auth", nil, auths[:200], 0), many: true, more: 16 << 20},
		{name: "too long a list of auth", op: proto.OpCreate2, body: create("/auths", nil, auths, 0), many: true, want: proto.InvalidACL},
		{name: "a long path", op: proto.OpCreateContainer, body: create("/c"+long, nil, proto.OpenACL, proto.FlagContainer)},
		{name: "much data", op: proto.OpCreateTTL, body: &proto.CreateTTLRequest{CreateRequest: *create("/big/ttl", data, proto.OpenACL, proto.FlagTTL), TTL: 1 << 30}},
		{name: "among many", op: proto.OpDelete, body: &proto.PathVersion{Path: "/big/n050000", Version: -1}},
		{name: "a long path", op: proto.OpDelete, body: &proto.PathVersion{Path: "/" + long, Version: -1}},
		{name: "much data", op: proto.OpSetData, body: &proto.SetDataRequest{Path: "/full", Data: data, Version: -1}},
		{name: "many watchers", op: proto.OpSetData, body: &proto.SetDataRequest{Path: "/watched", Version: -1}, more: budgetWatchers * 10_000},
		{name: "limits of many keys", op: proto.OpSetData, body: &proto.SetDataRequest{Path: "/zookeeper/quota/q/zookeeper_limits", Data: keys, Version: -1}},
		{name: "stats of many keys", op: proto.OpSetData, body: &proto.SetDataRequest{Path: "/zookeeper/quota/q/zookeeper_stats", Data: keys, Version: -1}},
		{name: "by many identities, often", op: proto.OpSetData, body: &proto.SetDataRequest{Path: "/eph", Version: -1}, many: true, n: 2000, more: 2000 * 32 << 10}, // each has 4 KiB of identities, in the log and before that
		{name: "a deep path", op: proto.OpSetData, body: &proto.SetDataRequest{Path: deep(budgetDepth), Version: -1}},
		{name: "a long list", op: proto.OpSetACL, body: &proto.SetACLRequest{Path: "/q", ACL: longACL(), Version: -1}},
		{name: "a list of auth", op: proto.OpSetACL, body: &proto.SetACLRequest{Path: "/auth", ACL: auths[:200], Version: -1}, many: true, more: 16 << 20},
		{name: "a long mask", op: proto.OpSetACL, body: &proto.SetACLRequest{Path: "/auth", ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeIP, ID: longMask()}}}, Version: -1}, many: true},
		{name: "a long path", op: proto.OpSync, body: &proto.Path{Path: "/" + long}},

		{name: "checks", op: proto.OpMulti, body: checks("/")},
		{name: "checks of a list with a long mask", op: proto.OpMulti, body: checks("/mask")},
		{name: "checks of a long list", op: proto.OpMulti, body: checks("/acl"), many: true},
		{name: "writes", op: proto.OpMulti, body: set("/q")},
		{name: "writes below quotas that fail late", op: proto.OpMulti, body: fails(set("/big/n000001"))},
		{name: "writes of a deep znode", op: proto.OpMulti, body: set(deep(budgetDepth))},
		{name: "writes where many watch", op: proto.OpMulti, body: set("/watched")},
		{name: "creates that fail late", op: proto.OpMulti, body: fails(creates(proto.OpCreate, "/big", proto.OpenACL))},
		{name: "creates with auth", op: proto.OpMulti, body: creates(proto.OpCreate2, "/q", auth), many: true},
		{name: "creates of containers", op: proto.OpMulti, body: fails(creates(proto.OpCreateContainer, "/big", proto.OpenACL))},
		{name: "creates with a TTL", op: proto.OpMulti, body: fails(creates(proto.OpCreateTTL, "/big", proto.OpenACL))},
		{name: "stats of a quota", op: proto.OpMulti, body: stats},
		{name: "many servers", op: proto.OpReconfig, body: &proto.ReconfigRequest{Joining: proto.Path{Path: strings.Join(servers, ",")}, Leaving: proto.Path{Path: jute.Null}, NewMembers: proto.Path{Path: jute.Null}, ConfigID: -1}, want: proto.Unimplemented},

		{name: "a long path", op: proto.OpExists, body: watch("/e" + long), want: proto.NoNode},
		{name: "a list with a long mask", op: proto.OpExists, body: watch("/mask")},
		{name: "much data", op: proto.OpGetData, body: watch("/full")},
		{name: "a long list, masked", op: proto.OpGetACL, body: &proto.Path{Path: "/acl"}},
		{name: "many", op: proto.OpGetChildren, body: watch("/big")},
		{name: "many", op: proto.OpGetChildren2, body: watch("/big")},
		{name: "data, often", op: proto.OpMultiRead, body: read(proto.OpGetData, "/")},
		{name: "many children, often", op: proto.OpMultiRead, body: read(proto.OpGetChildren, "/big"), want: io.EOF, more: 64 << 20},
		{name: "much data, often", op: proto.OpMultiRead, body: read(proto.OpGetData, "/full"), want: io.EOF, more: 64 << 20},
		{name: "a list with a long mask, often", op: proto.OpMultiRead, body: read(proto.OpGetData, "/mask")},
		{name: "all", op: proto.OpGetEphemerals, body: &proto.Path{Path: "/"}},
		{name: "none", op: proto.OpGetEphemerals, body: &proto.Path{Path: "/x"}},
		{name: "many", op: proto.OpGetAllChildrenNumber, body: &proto.Path{Path: "/big"}},
		{name: "many", op: proto.OpSetWatches, body: &watches, more: perWatch * len(watches.Exist)},
		{name: "events", op: proto.OpSetWatches, body: &told},
		{name: "many", op: proto.OpSetWatches2, body: &watches2, more: 2 * perWatch * len(watches.Exist)},
		{name: "a long path", op: proto.OpAddWatch, body: &proto.PathType{Path: "/" + long, Type: 1}},
		{name: "a long path", op: proto.OpCheckWatches, body: &proto.PathType{Path: "/" + long, Type: 5}},
		{name: "a long path", op: proto.OpRemoveWatches, body: &proto.PathType{Path: "/" + long, Type: 5}},
		{name: "many identities", op: proto.OpWhoAmI, many: true},
		{name: "a long body", op: proto.OpPing, body: &proto.SASLRequest{Token: data}},
		{name: "a long user", op: proto.OpAuth, body: &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: data}, want: io.EOF},
		{name: "a long token", op: proto.OpSASL, body: &proto.SASLRequest{Token: data}},
		{name: "many ephemerals", op: proto.OpCloseSession, more: budgetEphemerals * 2000},
	}
}

// word sends a four-letter word, whose answer must fit into the outbox.
func (b *budget) word(t *testing.T, dial dialer, word string) {
	c := must(dial())(t)
	defer c.Close()
	bytes, used := allocated(), cpu()
	must(io.WriteString(c, word+"\x00\x00\x00\x00\x00\x00\x00\x00"))(t) // for stmk
	received, err := io.Copy(io.Discard, c)
	bytes, used = allocated()-bytes, cpu()-used
	t.Logf("%d bytes received, %d allocated, %v of CPU, %v", received, bytes, used, err)
	if received > budgetOutbox || bytes > 8*budgetOutbox || used > mostCPU() {
		t.Errorf("%d bytes received, %d MiB allocated, %v of CPU", received, bytes>>20, used)
	}
}

// mostCPU is the CPU time that a request may take.
func mostCPU() time.Duration {
	if testkit.Race {
		return 40 * time.Second
	}
	return time.Second
}

// cpu returns the CPU time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// run sends a request, and checks its result and what it cost.
func (b *budget) run(t *testing.T, dial dialer, q *budgetCase) {
	client := b.plain
	switch {
	case q.many:
		client = b.many
	case q.op == proto.OpGetEphemerals || q.op == proto.OpCloseSession:
		client = b.owner
	case q.want == io.EOF || q.op == proto.OpSetWatches || q.op == proto.OpSetWatches2 || q.op == proto.OpAuth:
		client = connect(t, dial) // which may be closed, and whose watches end with the test
	}
	xid := client.Queue(q.op, q.body)
	for range q.n - 1 {
		xid = client.Queue(q.op, q.body)
	}
	if q.op == proto.OpPing {
		xid = proto.XidPing
	}
	sent := client.Queued()
	if sent > jute.DefaultMaxFrame+4 && q.op != proto.OpReconfig {
		t.Fatalf("the request has %d bytes", sent)
	}
	bytes, used, received := allocated(), cpu(), 0
	wrote := make(chan error, 1)
	go func() { wrote <- client.Flush() }()
	var err error
	for {
		f, failed := client.Read()
		if err = failed; failed != nil {
			break
		}
		if received += len(f.Body) + 20; f.Xid == xid || q.op == proto.OpAuth && f.Xid != proto.XidEvent {
			if f.Code != proto.OK {
				err = f.Code
			}
			break
		}
	}
	<-wrote
	bytes, used = allocated()-bytes, cpu()-used
	t.Logf("%d bytes sent, %d received, %d allocated, %v of CPU", sent, received, bytes, used)
	if err != q.want && !(q.op == proto.OpAuth && slices.Contains([]error{proto.AuthFailed, io.EOF}, err)) {
		t.Errorf("the result is %v, should be %v", err, q.want)
	}
	if most := 2<<20 + 64*(sent+received) + q.more; bytes > uint64(most) {
		t.Errorf("%d MiB allocated, should be at most %d", bytes>>20, most>>20)
	}
	if used > mostCPU() {
		t.Errorf("%v of CPU time", used)
	}
}
