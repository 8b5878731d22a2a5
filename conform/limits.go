package conform

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

var limitChecks = []Check{
	check("limits/frame too large", ">=3.0",
		"A frame that is one byte longer closes the connection without a reply and without any effect; the session continues.",
		func(t *trial, a, b *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			data := fill(&proto.SetDataRequest{Path: t.path("x"), Version: -1}, maxFrame+1)
			a.send(opSet(t.path("x"), data, -1))
			a.closed()
			t.equal("version", b.stat(t.path("x")).Version, int32(0))
			t.resume(a.Session).ping()
		}),
	check("limits/frame length", ">=3.0",
		"A frame length that is negative or above the limit closes the connection at once, before the rest of the frame arrives.",
		func(t *trial) {
			for _, n := range []int32{-1, -2, math.MinInt32, maxFrame + 1, math.MaxInt32} {
				k := t.connect()
				k.write(jute.AppendInt(nil, n), fmt.Sprintf("a frame's length of %d", n))
				k.closed()
				t.resume(k.Session).ping()
			}
		}),
	check("limits/largest frame", ">=3.0",
		"A frame of 1,048,575 bytes, the default of jute.maxbuffer, is accepted. A reply may be longer: the data of that frame is returned together with its Stat.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			data := fill(&proto.SetDataRequest{Path: t.path("x"), Version: -1}, maxFrame)
			for i := range data {
				data[i] = byte(i % 251)
			}
			stat := k.set(t.path("x"), data, -1)
			f := k.do(opGet(t.path("x")))
			r := f.Body.(*proto.DataReply)
			t.ensure(bytes.Equal(r.Data, data), "the data came back changed, %d bytes", len(r.Data))
			t.equal("the Stat", r.Stat, stat)
			t.equal("the frame's length", len(f.Payload), 16+4+len(data)+68)
			k.delete(t.path("x"), -1)
		}),
	check("limits/many children", ">=3.4",
		"A znode may have thousands of children, and one reply returns all their names.",
		func(t *trial) {
			const n = 3000
			k := t.connect()
			var want []string
			var ops []request
			for i := range n {
				name := fmt.Sprintf("child-%05d", i)
				want = append(want, name)
				if ops = append(ops, opCreate(t.path(name), nil, 0)); len(ops) == n/3 {
					k.multi(ops...)
					ops = nil
				}
			}
			t.ensure(slices.Equal(k.children(t.path("")), want), "the names are not the %d that were created", n)
			stat := k.stat(t.path(""))
			t.equal("numChildren", stat.NumChildren, int32(n))
			t.equal("cversion", stat.Cversion, int32(n))
		}),
	check("limits/large multi", ">=3.4",
		"A multi may have thousands of operations, which all share its zxid.",
		func(t *trial) {
			const n = 2000
			k := t.connect()
			var ops []request
			for i := range n {
				ops = append(ops, opCreate(t.path("s-"), nil, proto.FlagSequential), opDelete(fmt.Sprintf("%s%010d", t.path("s-"), i), 0))
			}
			f := k.do(opMulti(ops...))
			results := f.Body.(*proto.MultiReply).Results
			t.equal("the number of results", len(results), 2*n)
			t.equal("the last path", results[2*n-2].Reply, proto.Record(&proto.PathReply{Path: fmt.Sprintf("%s%010d", t.path("s-"), n-1)}))
			stat := k.stat(t.path(""))
			t.equal("pzxid", stat.Pzxid, f.Zxid)
			t.equal("cversion", stat.Cversion, int32(2*n))
		}),
	check("limits/deep tree", ">=3.4",
		"Znodes may be nested hundreds of levels deep.",
		func(t *trial) {
			const n = 300
			k := t.connect()
			var ops []request
			p := t.path("d")
			for range n {
				ops = append(ops, opCreate(p, nil, 0))
				p += "/d"
			}
			k.multi(ops...)
			deepest := strings.TrimSuffix(p, "/d")
			k.stat(deepest)
			k.missing(p)
			ops = nil
			for range n {
				ops = append(ops, opDelete(deepest, -1))
				deepest = strings.TrimSuffix(deepest, "/d")
			}
			k.multi(ops...)
			k.missing(t.path("d"))
		}),
	check("limits/long path", ">=3.0",
		"Only the length of a frame limits that of a path, in reads too.",
		func(t *trial, k *conn) {
			name := strings.Repeat("n", 500_000)
			k.make(t.path(name))
			k.stat(t.path(name))
			k.missing(t.path(name + "x"))
			k.delete(t.path(name), 0)
		}),
	check("limits/frames in pieces", ">=3.0",
		"A packet may contain several frames or a part of one.",
		func(t *trial, k *conn) {
			const n = 20
			for range n {
				k.queue(opCreate(t.path("s-"), nil, proto.FlagSequential))
			}
			all := k.out
			k.out, k.outLog = nil, nil
			for size := 1; len(all) > 0; size = size*2 + 1 {
				cut := min(size, len(all))
				k.write(all[:cut], fmt.Sprintf("%d bytes", cut))
				all = all[cut:]
			}
			for i := range int32(n) {
				f := k.answer()
				t.equal("the path", f.Body, proto.Record(&proto.PathReply{Path: fmt.Sprintf("%s%010d", t.path("s-"), i)}))
			}
		}),
	check("limits/many requests", ">=3.0",
		"A client may send thousands of requests before it reads a reply.",
		func(t *trial) {
			const n = 3000
			k := t.connect()
			for range n {
				k.queue(opExists(t.path("")))
			}
			k.flush()
			for range n {
				k.answers(proto.OK)
			}
		}),
}

// fill returns the data that makes a setData request n bytes long.
func fill(q *proto.SetDataRequest, n int) []byte {
	q.Data = []byte{}
	return repeat(n - 8 - len(q.Append(nil)))
}
