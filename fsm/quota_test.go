package fsm

import (
	"bytes"
	"testing"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// TestQuotaSetting checks that the entry's settings decide whether quotas are enforced, that
// the result lists exceeded quotas, and that a snapshot keeps wrong stats that a client wrote.
func TestQuotaSetting(t *testing.T) {
	m := NewMachine()
	one(t, m, 1, OpenSession(1, 1, 1000, session.Password{}))
	apply := func(settings Settings, op proto.OpCode, r proto.Record) (results []Result) {
		t.Helper()
		b := AppendCommand(BeginEntry(nil), &Command{Op: op, Session: 1, Conn: 1, Body: r.Append(nil)})
		b = EndEntry(b, &Envelope{Origin: 1, Batch: m.Index() + 1, Time: 1000, Settings: settings, Count: 1})
		if err := m.Apply(m.Index()+1, 1, b, func(_ *Envelope, _ int, r *Result, changes []proto.Change) {
			r.Body = bytes.Clone(r.Body)
			results = append(results, *r)
			if r.Code != proto.OK && len(changes) > 0 {
				t.Errorf("failed with %v, but has changes %v", r.Code, changes)
			}
		}); err != nil {
			t.Fatal(err)
		}
		return results
	}
	node := func(path, data string) *proto.CreateRequest {
		return &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL}
	}
	const at = "/zookeeper/quota/q"
	for _, n := range []*proto.CreateRequest{node("/q", ""), node(at, ""), node(at+"/zookeeper_limits", "countHardLimit=1,bytes=0"), node(at+"/zookeeper_stats", "")} {
		if r := apply(0, proto.OpCreate, n); r[0].Code != proto.OK {
			t.Fatal(n.Path, r[0].Code)
		}
	}
	over := znode.QuotaExceeded{Path: "/q", Unit: "count", Value: 2, Limit: 1, Hard: true}
	r := apply(EnforceQuota, proto.OpCreate, node("/q/a", "x"))
	if r[0].Code != proto.QuotaExceeded || len(r[0].Exceeded) != 1 || r[0].Exceeded[0] != over {
		t.Errorf("enforced: %+v", r[0])
	}
	multi := &proto.MultiRequest{Ops: []proto.MultiOp{{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: "/q", Data: []byte("x"), Version: -1}}, {Op: proto.OpCreate, Request: node("/q/a", "x")}}}
	r = apply(EnforceQuota, proto.OpMulti, multi)
	var reply proto.MultiReply
	decode(t, r[0].Body, &reply)
	if len(r[0].Exceeded) != 2 || r[0].Exceeded[0].Hard || len(reply.Results) != 2 || reply.Results[1].Code != proto.QuotaExceeded {
		t.Errorf("in a multi whose first operation exceeds a soft limit: %+v, %+v", r[0], reply)
	}
	r = apply(0, proto.OpCreate, node("/q/a", "x"))
	if r[0].Code != proto.OK || len(r[0].Exceeded) > 0 {
		t.Errorf("not enforced: %+v", r[0])
	}

	stats := func(m *Machine) string { return string(m.Tree().Lookup(at + "/zookeeper_stats").Record().Data) }
	if stats(m) != "count=2,bytes=1" {
		t.Errorf("the stats are %q", stats(m))
	}
	apply(0, proto.OpSetData, &proto.SetDataRequest{Path: at + "/zookeeper_stats", Data: []byte("count=70,bytes=70"), Version: -1})
	restored, err := ReadSnapshot(bytes.NewReader(encode(t, m)))
	if err != nil {
		t.Fatal(err)
	}
	for _, machine := range []*Machine{m, restored} {
		m = machine
		apply(0, proto.OpCreate, node("/q/b", "xy"))
		if err := m.Check(); err != nil || stats(m) != "count=71,bytes=72" {
			t.Errorf("after the snapshot the stats are %q, %v", stats(m), err)
		}
	}

	// With unreadable limits a whole multi fails, as in ZooKeeper.
	apply(0, proto.OpSetData, &proto.SetDataRequest{Path: at + "/zookeeper_limits", Data: []byte("x"), Version: -1})
	if r := apply(EnforceQuota, proto.OpMulti, multi); r[0].Code != proto.MarshallingError || len(r[0].Body) > 0 {
		t.Errorf("unreadable limits: %+v", r[0])
	}
}

func decode(t *testing.T, b []byte, r proto.Record) {
	t.Helper()
	d := jute.NewDecoder(b)
	if r.Decode(&d); d.Err() != nil {
		t.Fatal(d.Err())
	}
}
