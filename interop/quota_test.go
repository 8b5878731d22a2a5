//go:build interop

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	opDelete       = 2
	opMulti        = 14
	opCreate2      = 15
	opCloseSession = -11
)

// quotaStep is one request of a sequence about quotas.
type quotaStep struct {
	op    int32
	path  string
	data  string // "<null>" means null
	flags int32  // of a create; for setData and delete the version
	parts []quotaStep
}

func (s quotaStep) String() string {
	return fmt.Sprintf("op %d %s %.80q %d %v", s.op, s.path, s.data, s.flags, s.parts)
}

func (s quotaStep) body(m message) message {
	data := func() {
		if s.data == "<null>" {
			m.int(-1)
		} else {
			m.text(s.data)
		}
	}
	switch s.op {
	case opCreate, opCreate2:
		m.text(s.path)
		data()
		m.int(1).int(31).text("world").text("anyone").int(s.flags)
	case opSetData:
		m.text(s.path)
		data()
		m.int(s.flags)
	case opDelete:
		m.text(s.path).int(s.flags)
	case opGetData:
		m.text(s.path)
		m = append(m, 0)
	case opMulti:
		for _, p := range s.parts {
			m.int(p.op)
			m = append(m, 0)
			m.int(-1)
			m = p.body(m)
		}
		m.int(-1)
		m = append(m, 1)
		m.int(-1)
	}
	return m
}

// quotaPlayer sends steps to one server. It returns the replies without values that
// differ between servers: zxids are relative to that of the first session, and times are
// zero.
type quotaPlayer struct {
	t    *testing.T
	addr string
	conn *rawConn
	base int64
	xid  int32
}

// play returns the bytes of a reply. After a closeSession it opens a new session.
func (p *quotaPlayer) play(s quotaStep) []byte {
	p.t.Helper()
	if p.conn == nil {
		conn, err := dialRaw(p.addr, 20*time.Second, 0, rawSession{})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { conn.Close() })
		p.conn, p.xid = conn, 0
		if p.base == 0 {
			// The reply to a first read has the zxid of the session.
			r, err := conn.call(readRequest(1, opExists, "/"))
			if err != nil {
				p.t.Fatal(err)
			}
			p.base, p.xid = r.zxid, 1
		}
	}
	p.xid++
	var m message
	m.int(p.xid).int(s.op)
	m = s.body(m)
	r, err := p.conn.call(m)
	if err != nil {
		p.t.Fatalf("%s: %v: %v", p.addr, s, err)
	}
	out := new(message).int(r.xid).long(p.zxid(r.zxid)).int(r.code)
	b := r.body
	p.result(out, s, b, r.code)
	if len(b.rest) > 0 || b.short {
		p.t.Fatalf("%s: %v: an answer of another form: code %d, %d bytes left", p.addr, s, r.code, len(b.rest))
	}
	if s.op == opCloseSession {
		p.conn = nil
	}
	return *out
}

func (p *quotaPlayer) result(out *message, s quotaStep, b *reader, code int32) {
	if code != 0 {
		return
	}
	switch s.op {
	case opCreate:
		out.text(b.text())
	case opCreate2:
		out.text(b.text())
		p.stat(out, b)
	case opSetData:
		p.stat(out, b)
	case opGetData:
		out.bytes(b.bytes())
		p.stat(out, b)
	case opMulti:
		for i := 0; ; i++ {
			op, done, err := b.int(), b.take(1)[0], b.int()
			out.int(op).int(int32(done)).int(err)
			switch {
			case done != 0 || b.short || i >= len(s.parts):
				return
			case op == -1:
				out.int(b.int())
			default:
				part := s.parts[i]
				if part.op == opCreate2 && op == opCreate { // as early releases of 3.8 reply
					part.op = opCreate
				}
				p.result(out, part, b, 0)
			}
		}
	}
}

func (p *quotaPlayer) zxid(z int64) int64 {
	if z <= 0 {
		return z
	}
	return z - p.base
}

// stat copies a Stat without its times.
func (p *quotaPlayer) stat(out *message, b *reader) {
	out.long(p.zxid(b.long())).long(p.zxid(b.long()))
	b.take(16)
	for range 3 {
		out.int(b.int())
	}
	if owner := b.long(); owner != 0 { // a session id
		owner = 1
		out.long(owner)
	} else {
		out.long(0)
	}
	out.int(b.int()).int(b.int()).long(p.zxid(b.long()))
}

// TestQuotaAgainstZooKeeper sends the same requests to ZooKeeper and to lockkeeper, both
// with enforceQuota: first a fixed sequence, then random requests. All replies must have
// the same bytes.
func TestQuotaAgainstZooKeeper(t *testing.T) {
	t.Parallel()
	for _, version := range []zkVersion{zk38, zk39} {
		t.Run(string(version), func(t *testing.T) { quotaAgainst(t, version) })
	}
}

func quotaAgainst(t *testing.T, version zkVersion) {
	zk := &quotaPlayer{t: t, addr: startZooKeeper(t, version, nil, withQuotas).addr}
	ours := &quotaPlayer{t: t, addr: startLockkeeper(t, "--memory", "--enforce-quota").addr}
	refused, counts := 0, map[string]bool{}
	both := func(s quotaStep) {
		t.Helper()
		want, got := zk.play(s), ours.play(s)
		if !bytes.Equal(want, got) {
			t.Fatalf("%v:\nZooKeeper  %q\nlockkeeper %q", s, want, got)
		}
		if int32(binary.BigEndian.Uint32(want[12:])) == -125 {
			refused++
		}
		if strings.HasSuffix(s.path, "/zookeeper_stats") && s.op == opGetData {
			counts[string(want[16:])] = true
		}
	}
	for _, s := range quotaStory() {
		both(s)
	}
	if t.Failed() || refused < 8 {
		t.Fatalf("%d refusals in the fixed sequence", refused)
	}
	r := seeded(t)
	refused = 0
	clear(counts)
	for range 4000 {
		both(randomQuotaStep(r, true))
		both(quotaStep{op: opGetData, path: "/zookeeper/quota" + randomQuotaPath(r) + "/zookeeper_stats"})
	}
	if refused < 20 || len(counts) < 50 {
		t.Errorf("%d refusals and %d different counts: the random part tests too little", refused, len(counts))
	}
}

func randomQuotaPath(r *rand.Rand) string {
	p := "/r"
	for range r.IntN(4) {
		p += "/" + string(rune('a'+r.IntN(2)))
	}
	return p
}

func randomQuotaStep(r *rand.Rand, whole bool) quotaStep {
	at, path := "/zookeeper/quota"+randomQuotaPath(r), randomQuotaPath(r)
	limits := fmt.Sprintf("count=%d,bytes=%d=;byteHardLimit=%d;countHardLimit=%d", r.IntN(9)-1, r.IntN(30)-1, r.IntN(40)-1, r.IntN(9)-1)
	stats := fmt.Sprintf("count=%d,bytes=%d", r.IntN(8), r.IntN(8))
	data := strings.Repeat("d", r.IntN(8))
	if r.IntN(6) == 0 {
		data = "<null>"
	}
	version := int32(r.IntN(4)/3*2 - 1) // mostly -1, any version
	switch n := r.IntN(34); {
	case n < 8:
		return quotaStep{op: opCreate, path: path, data: data, flags: int32(r.IntN(4) / 3)}
	case n < 10:
		return quotaStep{op: opCreate2, path: path, data: data, flags: int32(r.IntN(4) / 3)}
	case n < 15:
		return quotaStep{op: opSetData, path: path, data: data, flags: version}
	case n < 19:
		return quotaStep{op: opDelete, path: path, flags: version}
	case n < 22:
		return quotaStep{op: opCreate, path: at}
	case n < 24:
		return quotaStep{op: opCreate, path: at + "/zookeeper_limits", data: limits}
	case n < 26:
		return quotaStep{op: opCreate2, path: at + "/zookeeper_stats", data: stats}
	case n < 27:
		return quotaStep{op: opSetData, path: at + "/zookeeper_limits", data: limits, flags: version}
	case n < 28:
		return quotaStep{op: opSetData, path: at + "/zookeeper_stats", data: stats, flags: version}
	case n < 29:
		return quotaStep{op: opDelete, path: at + "/zookeeper_" + []string{"limits", "stats"}[r.IntN(2)], flags: -1}
	case n < 30:
		return quotaStep{op: opDelete, path: at, flags: -1}
	case !whole:
		return quotaStep{op: opSetData, path: path, data: data, flags: -1}
	case n < 31:
		return quotaStep{op: opCloseSession}
	}
	var parts []quotaStep
	for range r.IntN(5) {
		s := randomQuotaStep(r, false)
		if s.op == opCreate2 {
			s.op = opCreate // 3.8.0 replies to create2 differently from later releases
		}
		parts = append(parts, s)
	}
	return quotaStep{op: opMulti, parts: parts}
}

// quotaStory returns a sequence of correct and incorrect uses of quotas. It omits
// requests that crash ZooKeeper.
func quotaStory() (steps []quotaStep) {
	const q = "/zookeeper/quota"
	do := func(op int32, path, data string, flags int32) {
		steps = append(steps, quotaStep{op: op, path: path, data: data, flags: flags})
	}
	get := func(path string) { do(opGetData, path, "", 0) }
	multi := func(parts ...quotaStep) { steps = append(steps, quotaStep{op: opMulti, parts: parts}) }
	create := func(path, data string) { do(opCreate, path, data, 0) }
	set := func(path, data string) { do(opSetData, path, data, -1) }
	del := func(path string) { do(opDelete, path, "", -1) }
	quota := func(path, limits string) {
		at := q
		for name := range strings.SplitSeq(path[1:], "/") {
			at += "/" + name
			create(at, "<null>")
		}
		create(at+"/zookeeper_limits", limits)
		do(opCreate2, at+"/zookeeper_stats", "count=0,bytes=0", 0)
		get(at + "/zookeeper_stats")
	}

	// System znodes.
	for _, path := range []string{"/", "/zookeeper", q, "/zookeeper/config"} {
		get(path)
		del(path)
	}
	create("/zookeeper/mine", "x")
	set("/zookeeper/mine", "yy")
	del("/zookeeper/mine")
	set("/zookeeper", "system")
	set(q, "quotas")
	set(q, "")
	set("/zookeeper/config", "no")

	// Hard limits, as zkCli sets them.
	create("/a", "1234")
	create("/a/b", "12")
	quota("/a", "count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=4")
	stats := q + "/a/zookeeper_stats"
	create("/a/c", "1")
	do(opCreate, "/a/e", "", 1)
	create("/a/d", "")                 // the count
	create("/a/c", "")                 // exists, which comes first
	create("/a/e/f", "")               // below an ephemeral, which comes first, too
	create("/a/none/f", "")            // no parent
	do(opCreate, "/a/s-", "", 2)       // sequential
	set("/a", "12345678")              // the bytes
	do(opSetData, "/a", "12345678", 7) // the quota before the version
	do(opSetData, "/a", "123", 7)      // within it, the version
	set("/a", "1234567")               // exactly the limit
	set("/a", "7654321")               // no more bytes than before
	set("/a", "<null>")
	get(stats)
	do(opCloseSession, "", "", 0) // deletes /a/e
	get(stats)
	get("/a")
	del("/a/b")
	get(stats)

	// The limits in a multi are checked against the state before it.
	part := func(op int32, path, data string, flags int32) quotaStep {
		return quotaStep{op: op, path: path, data: data, flags: flags}
	}
	multi(part(opCreate, "/a/m1", "1", 0), part(opCreate, "/a/m2", "1", 0), part(opCreate, "/a/m3", "1", 0), part(opCreate, "/a/m4", "1", 0))
	get(stats)
	multi(part(opDelete, "/a/m1", "", -1), part(opDelete, "/a/m2", "", -1), part(opDelete, "/a/m3", "", -1), part(opCreate, "/a/m5", "1", 0))
	get(stats)
	multi(part(opDelete, "/a/m1", "", -1), part(opDelete, "/a/m2", "", -1), part(opDelete, "/a/m3", "", -1))
	get(stats)
	multi(part(opSetData, "/a", "1234", -1), part(opSetData, "/a", "12345678", -1), part(opSetData, "/a", "", -1))
	get(stats)
	multi(part(opSetData, "/a", "1234", -1), part(opDelete, "/a/none", "", -1))
	get(stats)
	multi(part(opSetData, "/a", "123456789012345", -1))
	multi(part(opCreate, q+"/multi", "", 0), part(opCreate, q+"/multi/zookeeper_limits", "countHardLimit=1", 0),
		part(opCreate, "/multi", "abc", 0), part(opCreate, q+"/multi/zookeeper_stats", "", 0),
		part(opCreate, "/multi/x", "abc", 0), part(opCreate, "/multi/y", "abc", 0))
	get(q + "/multi/zookeeper_stats")
	create("/multi/z", "")

	// Other limits, and no limits.
	set(q+"/a/zookeeper_limits", "count=1,bytes=1") // soft
	create("/a/soft", "soft")
	set(q+"/a/zookeeper_limits", "")
	create("/a/softer", "soft")
	for _, broken := range []string{"x", "count", "count=", "count=x", "=", "=5", ",count=9", ",", "count==5", "count=9=", "count=9=x", "countHardLimit=0,,;", "countHardLimit=+3",
		"count= 3", "countHardLimit=9223372036854775808", "countHardLimit=-9", "countHardLimit=1;countHardLimit=99", "<null>", "countHardLimit==", "countHardLimit===1", ";;", "countHardLimit=0"} {
		set(q+"/a/zookeeper_limits", broken)
		create("/a/l", "data")
		do(opCreate2, "/a/l2", "", 0)
		set("/a/l", "")
		multi(part(opCreate, "/a/l3", "", 0))
		get(stats)
		del("/a/l")
		del("/a/l2")
		del("/a/l3")
	}
	del(q + "/a/zookeeper_limits")
	create("/a/uncounted", "1")
	get(stats)
	create(q+"/a/zookeeper_limits", "countHardLimit=100")
	get(stats)
	create("/a/counted", "1")
	get(stats)
	del(stats)
	create("/a/nowhere", "1")
	do(opCreate2, stats, "<null>", 0)
	get(stats)

	// Stats written by a client.
	for _, odd := range []string{"count=99,bytes=5", "", "bytes=1", "zzz=1;count=5;aaa=7", "count=5,bytes=6=;countHardLimit=3", "count=-100,bytes=-100", "count=9223372036854775807"} {
		set(stats, odd)
		get(stats)
		create("/a/odd", "123")
		get(stats)
		set("/a/odd", "1")
		get(stats)
		del("/a/odd")
		get(stats)
	}
	del(stats)
	create(stats, "x")
	get(stats)

	// Quotas on znodes that do not exist, on nested znodes and on adjacent ones.
	quota("/none/x", "count=1,bytes=1")
	create("/none", "1")
	create("/none/x", "12")
	create("/none/xy", "12")
	get(q + "/none/x/zookeeper_stats")
	quota("/a/b", "count=5,bytes=5=;countHardLimit=2")
	create("/a/b", "in both")
	create("/a/b/c", "in both")
	create("/a/b/d", "in both")
	get(q + "/a/b/zookeeper_stats")
	get(stats)
	del(q + "/a/b/zookeeper_limits")
	create("/a/b/d", "in one")
	get(q + "/a/b/zookeeper_stats")
	get(stats)

	// Stats without limits, the names of quota znodes in other places, the whole tree.
	create(q+"/a/b/c", "")
	create(q+"/a/b/c/zookeeper_stats", "")
	get(q + "/a/b/c/zookeeper_stats")
	create("/a/b/d/zookeeper_stats", "text")
	get("/a/b/d/zookeeper_stats")
	create("/zookeeper_limits", "text")
	create(q+"/zookeeper_stats", "")
	get(q + "/zookeeper_stats")
	del(q + "/zookeeper_stats")

	// A quota on quotas.
	quota("/zookeeper", "countHardLimit=1000")
	self := q + "/zookeeper/zookeeper_stats"
	create("/zookeeper/mine", "12345")
	get(self)
	set(self, "count=1,bytes=1")
	get(self)
	create(q+"/zookeeper/quota", "")
	create(q+"/zookeeper/quota/zookeeper_limits", "countHardLimit=1000")
	get(self)
	create(q+"/zookeeper/quota/zookeeper_stats", "")
	get(q + "/zookeeper/quota/zookeeper_stats")
	get(self)
	del(self)
	get(q + "/zookeeper/quota/zookeeper_stats")
	del(q + "/zookeeper/quota/zookeeper_limits")
	del(q + "/zookeeper/zookeeper_limits")

	// The znodes of limits and stats may be of any kind.
	create(q+"/k", "")
	do(opCreate2, q+"/k/zookeeper_limits", "countHardLimit=1", 1)
	do(opCreate2, q+"/k/zookeeper_stats", "countHardLimit=1", 1)
	create("/k", "1")
	create("/k/l", "1")
	get(q + "/k/zookeeper_stats")
	do(opCloseSession, "", "", 0)
	create("/k/l", "1")
	create(q+"/k/zookeeper_limits", "countHardLimit=1")
	create("/k/m", "1") // there are no stats
	create(q+"/k/zookeeper_limits/below", "1")
	do(opCreate, q+"/k/zookeeper_limits", "1", 2)
	return steps
}
