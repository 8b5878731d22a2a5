package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestOrder keeps thousands of mixed requests in flight on several connections.
// Each connection has a subtree that only it changes, so each of its replies and
// events is known in advance. All of them also change and watch a shared subtree,
// where events and zxids must fit together.
func TestOrder(t *testing.T) {
	s := testkit.Seed(t)
	requests := 3000
	if testing.Short() {
		requests = 500
	}
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		first := connect(t, dial)
		must(first.Create("/shared", nil, 0))(t)
		const connections = 4
		workers := make([]*worker, connections)
		var wg sync.WaitGroup
		for i := range workers {
			w := newWorker(t, i, connect(t, dial), rand.New(rand.NewPCG(s, uint64(i))), requests)
			workers[i] = w
			wg.Go(w.send)
			wg.Go(func() {
				if err := w.receive(); err != nil {
					w.c.Close() // and with it the sender
					t.Errorf("connection %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		var shared []sharedChange
		for _, w := range workers {
			shared = append(shared, w.changes...)
		}
		slices.SortFunc(shared, func(a, b sharedChange) int { return int(a.zxid - b.zxid) })
		for i, w := range workers {
			if err := w.checkShared(shared); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		t.Logf("%d changes to the shared subtree", len(shared))
	})
}

// worker is one connection of TestOrder.
type worker struct {
	t        *testing.T
	number   int
	c        *rawclient.Client
	rand     *rand.Rand
	model    *model
	requests []request

	// What the receiver has seen.
	zxids      []int64 // of the replies, by request
	lastZxid   int64   // the greatest of an ordinary reply
	changes    []sharedChange
	persistent int64 // zxid when the recursive watch was set; -1 before
	stream     []rawclient.Event
	armed      map[string]int64 // one-shot watches on shared paths -> zxid when set
	fired      []firing
}

// request is one request and the expected answer.
type request struct {
	xid    int32 // of the reply
	op     proto.OpCode
	body   proto.Record
	code   proto.Code
	events []rawclient.Event // before the reply; zxid 0 stands for that of the reply
	verify func(w *worker, f *rawclient.Frame) error
	shared bool // its outcome is not known beforehand
}

type sharedChange struct {
	zxid int64
	t    proto.EventType
	path string
}

type firing struct {
	path        string
	armed, zxid int64
	kind        proto.EventType
}

func newWorker(t *testing.T, number int, c *rawclient.Client, r *rand.Rand, n int) *worker {
	w := &worker{t: t, number: number, c: c, rand: r, zxids: make([]int64, n), persistent: -1, armed: map[string]int64{}}
	w.model = newModel(fmt.Sprintf("/c%d", number))
	w.requests = append(w.requests, request{
		op: proto.OpCreate, body: &proto.CreateRequest{Path: w.model.root, ACL: proto.OpenACL},
		verify: func(*worker, *rawclient.Frame) error { return nil },
	})
	for len(w.requests) < n {
		w.requests = append(w.requests, w.next(len(w.requests)))
	}
	for i := range w.requests {
		q := &w.requests[i]
		if q.xid = int32(i + 1); q.op == proto.OpPing {
			q.xid = proto.XidPing
		}
	}
	return w
}

// send sends all requests without waiting for anything.
func (w *worker) send() {
	for i := range w.requests {
		w.c.Queue(w.requests[i].op, w.requests[i].body)
		if w.c.Queued() > w.rand.IntN(8<<10) || i == len(w.requests)-1 {
			if w.c.Flush() != nil {
				return // the receiver reports why
			}
		}
	}
}

// receive checks every frame up to the last reply.
func (w *worker) receive() error {
	for i := range w.requests {
		q := &w.requests[i]
		var own []rawclient.Event
		var f rawclient.Frame
		for {
			var err error
			if f, err = w.c.Read(); err != nil {
				return fmt.Errorf("before the reply to request %d (op %d): %w", i, q.op, err)
			}
			e, ok := f.Event()
			if !ok {
				break
			}
			if e.Zxid >= 0 && e.Zxid <= w.lastZxid {
				return fmt.Errorf("event %+v comes after a reply of zxid %d", e, w.lastZxid)
			}
			if strings.HasPrefix(e.Path, w.model.root) {
				own = append(own, e)
			} else if err := w.sharedEvent(e); err != nil {
				return err
			}
		}
		if f.Xid != q.xid {
			return fmt.Errorf("reply %d to request %d (op %d)", f.Xid, q.xid, q.op)
		}
		if !q.shared && f.Code != q.code {
			return fmt.Errorf("request %d (op %d %+v): %v, not %v", i, q.op, q.body, f.Code, q.code)
		}
		switch auth := q.op == proto.OpAuth || q.op == proto.OpSASL; {
		case auth && f.Zxid != 0:
			return fmt.Errorf("reply to op %d with zxid %d", q.op, f.Zxid)
		case !auth && f.Zxid < w.lastZxid:
			return fmt.Errorf("request %d (op %d): zxid %d after %d", i, q.op, f.Zxid, w.lastZxid)
		case !auth:
			w.lastZxid = f.Zxid
		}
		w.zxids[i] = f.Zxid
		for j := range q.events {
			if q.events[j].Zxid == 0 {
				q.events[j].Zxid = f.Zxid
			}
		}
		if !slices.Equal(own, q.events) {
			return fmt.Errorf("before the reply to request %d (op %d %+v) the events\n%+v, not\n%+v", i, q.op, q.body, own, q.events)
		}
		if f.Code != proto.OK && len(f.Body) > 0 {
			return fmt.Errorf("request %d: %v with a body of %d bytes", i, f.Code, len(f.Body))
		}
		if q.verify != nil && (f.Code == proto.OK || q.shared) {
			if err := q.verify(w, &f); err != nil {
				return fmt.Errorf("request %d (op %d %+v): %w", i, q.op, q.body, err)
			}
		}
	}
	return nil
}

// model is the expected state of a connection's own subtree and the watches on it.
type model struct {
	root        string
	nodes       map[string]modelNode // children of root, by name
	creates     int                  // ever, under root
	deletes     int
	data, child map[string]bool // standard watches, by path
}

type modelNode struct {
	data    string
	version int32
	setBy   int // request that wrote the data
	madeBy  int
}

func newModel(root string) *model {
	return &model{root: root, nodes: map[string]modelNode{}, data: map[string]bool{}, child: map[string]bool{}}
}

// fire removes the watches that a change triggers and returns their events.
func (m *model) fire(t proto.EventType, path string) (events []rawclient.Event) {
	event := func(t proto.EventType, path string) {
		events = append(events, rawclient.Event{WatcherEvent: proto.WatcherEvent{Type: t, State: proto.EventStateConnected, Path: path}})
	}
	if m.data[path] {
		event(t, path)
		delete(m.data, path)
	}
	if t == proto.EventNodeDeleted && m.child[path] {
		if len(events) == 0 {
			event(t, path)
		}
		delete(m.child, path)
	}
	if t != proto.EventNodeDataChanged && m.child[m.root] {
		event(proto.EventNodeChildrenChanged, m.root)
		delete(m.child, m.root)
	}
	return events
}

func (m *model) create(name, data string, i int) (proto.Code, []rawclient.Event) {
	if _, ok := m.nodes[name]; ok {
		return proto.NodeExists, nil
	}
	m.nodes[name] = modelNode{data: data, setBy: i, madeBy: i}
	m.creates++
	return proto.OK, m.fire(proto.EventNodeCreated, m.root+"/"+name)
}

func (m *model) delete(name string, version int32) (proto.Code, []rawclient.Event) {
	n, ok := m.nodes[name]
	switch {
	case !ok:
		return proto.NoNode, nil
	case version != -1 && version != n.version:
		return proto.BadVersion, nil
	}
	delete(m.nodes, name)
	m.deletes++
	return proto.OK, m.fire(proto.EventNodeDeleted, m.root+"/"+name)
}

func (m *model) set(name, data string, version int32, i int) (proto.Code, []rawclient.Event) {
	n, ok := m.nodes[name]
	switch {
	case !ok:
		return proto.NoNode, nil
	case version != -1 && version != n.version:
		return proto.BadVersion, nil
	}
	m.nodes[name] = modelNode{data: data, version: n.version + 1, setBy: i, madeBy: n.madeBy}
	return proto.OK, m.fire(proto.EventNodeDataChanged, m.root+"/"+name)
}

func (m *model) clone() *model {
	c := *m
	c.nodes, c.data, c.child = maps.Clone(m.nodes), maps.Clone(m.data), maps.Clone(m.child)
	return &c
}

func (m *model) names() []string { return slices.Sorted(maps.Keys(m.nodes)) }

// matches compares a Stat with the model.
func (w *worker) matches(n modelNode, s *proto.Stat, self int) error {
	want := [2]int64{w.zxids[n.madeBy], w.zxids[n.setBy]}
	if got := [2]int64{s.Czxid, s.Mzxid}; got != want {
		return fmt.Errorf("czxid and mzxid are %d, should be %d (requests %d and %d, this is %d)", got, want, n.madeBy, n.setBy, self)
	}
	if s.Version != n.version || int(s.DataLength) != len(n.data) {
		return fmt.Errorf("version %d with %d bytes, should be %d with %d", s.Version, s.DataLength, n.version, len(n.data))
	}
	return nil
}

// next makes the i-th request and its expected answer.
func (w *worker) next(i int) request {
	m, r := w.model, w.rand
	name := string(rune('a' + r.IntN(6)))
	path := m.root + "/" + name
	node, there := m.nodes[name]
	version := []int32{-1, -1, node.version, node.version + 1}[r.IntN(4)]
	data := strings.Repeat("x", r.IntN(200)) + fmt.Sprint(i)
	watch := r.IntN(3) == 0
	missing := func(code proto.Code) proto.Code {
		if there {
			return code
		}
		return proto.NoNode
	}
	switch k := r.IntN(100); {
	case k < 10: // create
		code, events := m.create(name, data, i)
		return request{op: proto.OpCreate, body: &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL}, code: code, events: events,
			verify: func(_ *worker, f *rawclient.Frame) error { return wantPath(f, path) }}
	case k < 14: // create2, ephemeral
		code, events := m.create(name, data, i)
		return request{op: proto.OpCreate2, body: &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL, Flags: proto.FlagEphemeral}, code: code, events: events,
			verify: func(w *worker, f *rawclient.Frame) error {
				var reply proto.PathStatReply
				if err := f.Decode(&reply); err != nil {
					return err
				}
				if reply.Path != path || reply.Stat.Czxid != f.Zxid || reply.Stat.EphemeralOwner != w.c.Session.SessionID {
					return fmt.Errorf("created %+v", reply)
				}
				return nil
			}}
	case k < 18: // sequential
		seq := fmt.Sprintf("s%010d", m.creates)
		code, events := m.create(seq, data, i)
		return request{op: proto.OpCreate, body: &proto.CreateRequest{Path: m.root + "/s", Data: []byte(data), ACL: proto.OpenACL, Flags: proto.FlagSequential}, code: code, events: events,
			verify: func(_ *worker, f *rawclient.Frame) error { return wantPath(f, m.root+"/"+seq) }}
	case k < 28: // delete
		if names := m.names(); r.IntN(2) == 0 && len(names) > 0 {
			name, version = names[len(names)-1], -1
			path = m.root + "/" + name
		}
		code, events := m.delete(name, version)
		return request{op: proto.OpDelete, body: &proto.PathVersion{Path: path, Version: version}, code: code, events: events}
	case k < 38: // set
		code, events := m.set(name, data, version, i)
		return request{op: proto.OpSetData, body: &proto.SetDataRequest{Path: path, Data: []byte(data), Version: version}, code: code, events: events,
			verify: func(w *worker, f *rawclient.Frame) error {
				var s proto.Stat
				if err := f.Decode(&s); err != nil {
					return err
				}
				if s.Mzxid != f.Zxid || s.Version != node.version+1 {
					return fmt.Errorf("set, but %+v", s)
				}
				return nil
			}}
	case k < 52: // get
		if watch && there {
			m.data[path] = true
		}
		return request{op: proto.OpGetData, body: &proto.PathWatch{Path: path, Watch: watch}, code: missing(proto.OK),
			verify: func(w *worker, f *rawclient.Frame) error {
				var reply proto.DataReply
				if err := f.Decode(&reply); err != nil {
					return err
				}
				if string(reply.Data) != node.data {
					return fmt.Errorf("data %q, should be %q", reply.Data, node.data)
				}
				return w.matches(node, &reply.Stat, i)
			}}
	case k < 60: // exists
		if watch {
			m.data[path] = true
		}
		return request{op: proto.OpExists, body: &proto.PathWatch{Path: path, Watch: watch}, code: missing(proto.OK),
			verify: func(w *worker, f *rawclient.Frame) error {
				var s proto.Stat
				if err := f.Decode(&s); err != nil {
					return err
				}
				return w.matches(node, &s, i)
			}}
	case k < 68: // children, sometimes those of a leaf
		op, names, cversion := proto.OpGetChildren, m.names(), m.creates+m.deletes
		if r.IntN(2) == 0 {
			op = proto.OpGetChildren2
		}
		if r.IntN(4) == 0 {
			if watch && there {
				m.child[path] = true
			}
			return request{op: proto.OpGetChildren, body: &proto.PathWatch{Path: path, Watch: watch}, code: missing(proto.OK),
				verify: func(_ *worker, f *rawclient.Frame) error { return wantNames(f, nil) }}
		}
		if watch {
			m.child[m.root] = true
		}
		return request{op: op, body: &proto.PathWatch{Path: m.root, Watch: watch},
			verify: func(_ *worker, f *rawclient.Frame) error {
				if op == proto.OpGetChildren {
					return wantNames(f, names)
				}
				var reply proto.Children2Reply
				if err := f.Decode(&reply); err != nil {
					return err
				}
				slices.Sort(reply.Names)
				if !slices.Equal(reply.Names, names) || int(reply.Stat.Cversion) != cversion || int(reply.Stat.NumChildren) != len(names) {
					return fmt.Errorf("children %q of %+v, should be %q, cversion %d", reply.Names, reply.Stat, names, cversion)
				}
				return nil
			}}
	case k < 76:
		return w.multi(i)
	case k < 80: // multiRead
		names := m.names()
		return request{op: proto.OpMultiRead, body: &proto.MultiReadRequest{Ops: []proto.MultiOp{
			{Op: proto.OpGetData, Request: &proto.PathWatch{Path: path, Watch: true}}, // the flag is ignored
			{Op: proto.OpGetChildren, Request: &proto.PathWatch{Path: m.root}},
		}}, verify: func(w *worker, f *rawclient.Frame) error {
			var reply proto.MultiReply
			if err := f.Decode(&reply); err != nil {
				return err
			}
			if len(reply.Results) != 2 || reply.Results[0].Code != missing(proto.OK) {
				return fmt.Errorf("results %+v", reply.Results)
			}
			if there {
				data := reply.Results[0].Reply.(*proto.DataReply)
				if string(data.Data) != node.data {
					return fmt.Errorf("data %q, should be %q", data.Data, node.data)
				}
			}
			children := reply.Results[1].Reply.(*proto.ChildrenReply)
			slices.Sort(children.Names)
			if !slices.Equal(children.Names, names) {
				return fmt.Errorf("children %q, should be %q", children.Names, names)
			}
			return nil
		}}
	case k < 83:
		return request{op: proto.OpSync, body: &proto.Path{Path: path}, verify: func(_ *worker, f *rawclient.Frame) error { return wantPath(f, path) }}
	case k < 86:
		return request{op: proto.OpPing}
	case k < 87:
		return request{op: proto.OpSASL, body: &proto.SASLRequest{Token: []byte("t")}}
	case k < 88:
		return request{op: proto.OpAuth, body: &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}}
	case k < 91:
		return w.setWatches()
	default:
		return w.sharedRequest(i)
	}
}

func wantPath(f *rawclient.Frame, path string) error {
	var r proto.PathReply
	if err := f.Decode(&r); err != nil {
		return err
	}
	if r.Path != path {
		return fmt.Errorf("path %q, should be %q", r.Path, path)
	}
	return nil
}

func wantNames(f *rawclient.Frame, names []string) error {
	var r proto.ChildrenReply
	if err := f.Decode(&r); err != nil {
		return err
	}
	slices.Sort(r.Names)
	if !slices.Equal(r.Names, names) {
		return fmt.Errorf("children %q, should be %q", r.Names, names)
	}
	return nil
}

// multi makes a multi of a few writes, of which all are applied or none.
func (w *worker) multi(i int) request {
	r, tried := w.rand, w.model.clone()
	var ops []proto.MultiOp
	var want []proto.Code
	var events []rawclient.Event
	failed := false
	for range 1 + r.IntN(4) {
		name := string(rune('a' + r.IntN(6)))
		path, data := tried.root+"/"+name, fmt.Sprint("m", i)
		var code proto.Code
		var fired []rawclient.Event
		step := tried // operations after the failed one have no effect
		if failed {
			step = tried.clone()
		}
		switch r.IntN(4) {
		case 0:
			ops = append(ops, proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: path, Data: []byte(data), ACL: proto.OpenACL}})
			code, fired = step.create(name, data, i)
		case 1:
			ops = append(ops, proto.MultiOp{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: path, Data: []byte(data), Version: -1}})
			code, fired = step.set(name, data, -1, i)
		case 2:
			ops = append(ops, proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: path, Version: -1}})
			code, fired = step.delete(name, -1)
		default:
			ops = append(ops, proto.MultiOp{Op: proto.OpCheck, Request: &proto.PathVersion{Path: path, Version: -1}})
			if _, ok := step.nodes[name]; !ok {
				code = proto.NoNode
			}
		}
		switch {
		case failed:
			code = proto.RuntimeInconsistency
		case code != proto.OK:
			failed = true
		}
		want, events = append(want, code), append(events, fired...)
	}
	if failed {
		events = nil
		for j, code := range want {
			if code != proto.OK {
				break
			}
			want[j] = proto.OK // rolled back: an error result with code OK
		}
	} else {
		*w.model = *tried
	}
	return request{op: proto.OpMulti, body: &proto.MultiRequest{Ops: ops}, events: events,
		verify: func(_ *worker, f *rawclient.Frame) error {
			var reply proto.MultiReply
			if err := f.Decode(&reply); err != nil {
				return err
			}
			if len(reply.Results) != len(want) {
				return fmt.Errorf("%d results to %d operations", len(reply.Results), len(want))
			}
			for j, res := range reply.Results {
				if res.Code != want[j] || (res.Op == proto.OpError) != failed {
					return fmt.Errorf("result %d is %v of type %d, should be %v (failed: %v)", j, res.Code, res.Op, want[j], failed)
				}
			}
			return nil
		}}
}

// setWatches sets watches again as a client does that has reconnected, and that has
// seen either all changes or none.
func (w *worker) setWatches() request {
	m, r := w.model, w.rand
	q := &proto.SetWatchesRequest{RelativeZxid: math.MaxInt64}
	if r.IntN(2) == 0 {
		q.RelativeZxid = 0
	}
	var events []rawclient.Event
	event := func(t proto.EventType, path string) {
		events = append(events, rawclient.Event{Zxid: -1, WatcherEvent: proto.WatcherEvent{Type: t, State: proto.EventStateConnected, Path: path}})
	}
	path := func() (string, bool) {
		name := string(rune('a' + r.IntN(6)))
		_, there := m.nodes[name]
		return m.root + "/" + name, there
	}
	some := func(list *[]string, changed proto.EventType, watched map[string]bool) {
		for range r.IntN(3) {
			p, there := path()
			switch *list = append(*list, p); {
			case !there:
				event(proto.EventNodeDeleted, p)
			case q.RelativeZxid == 0:
				event(changed, p)
			default:
				watched[p] = true
			}
		}
	}
	some(&q.Data, proto.EventNodeDataChanged, m.data)
	for range r.IntN(3) {
		p, there := path()
		if q.Exist = append(q.Exist, p); there {
			event(proto.EventNodeCreated, p)
		} else {
			m.data[p] = true
		}
	}
	some(&q.Child, proto.EventNodeChildrenChanged, m.child)
	return request{op: proto.OpSetWatches, body: q, events: events}
}

// sharedRequest makes a request on the subtree that all connections change.
// Even connections have a recursive watch on it; odd ones set watches that fire once.
func (w *worker) sharedRequest(i int) request {
	r := w.rand
	path := "/shared/" + string(rune('a'+r.IntN(3)))
	note := func(t proto.EventType) func(*worker, *rawclient.Frame) error {
		return func(w *worker, f *rawclient.Frame) error {
			switch f.Code {
			case proto.OK:
				w.changes = append(w.changes, sharedChange{f.Zxid, t, path})
			case proto.NodeExists, proto.NoNode:
			default:
				return f.Code
			}
			return nil
		}
	}
	switch r.IntN(5) {
	case 0:
		return request{shared: true, op: proto.OpCreate, body: &proto.CreateRequest{Path: path, ACL: proto.OpenACL}, verify: note(proto.EventNodeCreated)}
	case 1:
		return request{shared: true, op: proto.OpDelete, body: &proto.PathVersion{Path: path, Version: -1}, verify: note(proto.EventNodeDeleted)}
	case 2, 3:
		return request{shared: true, op: proto.OpSetData, body: &proto.SetDataRequest{Path: path, Data: fmt.Append(nil, i), Version: -1}, verify: note(proto.EventNodeDataChanged)}
	}
	if w.number%2 == 0 {
		return request{shared: true, op: proto.OpAddWatch, body: &proto.PathType{Path: "/shared", Type: 1},
			verify: func(w *worker, f *rawclient.Frame) error {
				if w.persistent < 0 {
					w.persistent = f.Zxid
				}
				return nil
			}}
	}
	return request{shared: true, op: proto.OpExists, body: &proto.PathWatch{Path: path, Watch: true},
		verify: func(w *worker, f *rawclient.Frame) error {
			var s proto.Stat
			switch {
			case f.Code == proto.NoNode:
			case f.Code != proto.OK:
				return f.Code
			case f.Decode(&s) != nil || s.Mzxid > f.Zxid:
				return fmt.Errorf("mzxid %d in a reply of zxid %d", s.Mzxid, f.Zxid)
			}
			if _, ok := w.armed[path]; !ok {
				w.armed[path] = f.Zxid
			}
			return nil
		}}
}

// sharedEvent records an event of the shared subtree.
func (w *worker) sharedEvent(e rawclient.Event) error {
	w.stream = append(w.stream, e)
	if w.number%2 == 0 {
		if w.persistent < 0 {
			return fmt.Errorf("event %+v before the reply that sets the watch", e)
		}
		return nil
	}
	armed, ok := w.armed[e.Path]
	if !ok {
		return fmt.Errorf("event %+v, but no watch is set", e)
	}
	delete(w.armed, e.Path)
	w.fired = append(w.fired, firing{path: e.Path, armed: armed, zxid: e.Zxid, kind: e.Type})
	return nil
}

// checkShared compares the events of the shared subtree with its changes, by zxid.
func (w *worker) checkShared(changes []sharedChange) error {
	if w.number%2 == 0 {
		i := 0
		for _, c := range changes {
			if w.persistent < 0 || c.zxid <= w.persistent {
				continue
			}
			if i == len(w.stream) {
				if c.zxid > w.lastZxid {
					return nil // it came after the last reply
				}
				return fmt.Errorf("no event for %+v", c)
			}
			if e := w.stream[i]; e.Zxid != c.zxid || e.Type != c.t || e.Path != c.path {
				return fmt.Errorf("event %+v for change %+v", e, c)
			}
			i++
		}
		if i < len(w.stream) {
			return fmt.Errorf("events %+v without a change", w.stream[i:])
		}
		return nil
	}
	first := func(path string, after int64) (sharedChange, bool) {
		for _, c := range changes {
			if c.path == path && c.zxid > after {
				return c, true
			}
		}
		return sharedChange{}, false
	}
	for _, f := range w.fired {
		if c, ok := first(f.path, f.armed); !ok || c.zxid != f.zxid || c.t != f.kind {
			return fmt.Errorf("%+v, but the first change after the watch was set is %+v", f, c)
		}
	}
	for path, armed := range w.armed {
		if c, ok := first(path, armed); ok && c.zxid <= w.lastZxid {
			return fmt.Errorf("the watch of %s, set at %d, missed %+v", path, armed, c)
		}
	}
	return nil
}

// TestPipelinedLargeReads: a client that sends many reads at once, and reads the
// replies, gets all of them, although together they exceed the outbox by far.
func TestPipelinedLargeReads(t *testing.T) {
	overAll(t, server.Config{Limits: server.Limits{OutboxBytes: 8 << 20}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		c := connect(t, dial)
		data := bytes.Repeat([]byte("0123456789abcdef"), 16<<10) // 256 KiB
		must(c.Create("/large", data, 0))(t)
		const reads = 50 // with 12 MiB of replies
		for _, behindWrite := range []bool{false, true} {
			t.Run(fmt.Sprint("behind a write: ", behindWrite), func(t *testing.T) {
				want := 0
				if behindWrite {
					c.Queue(proto.OpSync, &proto.Path{Path: "/large"})
					want++
				}
				for range reads {
					c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/large"})
				}
				sent := make(chan error, 1)
				go func() { sent <- c.Flush() }()
				for i := range want + reads {
					f, err := c.Read()
					if err != nil {
						t.Fatalf("reply %d: %v", i, err)
					}
					var r proto.DataReply
					if i >= want {
						if err := f.Decode(&r); err != nil || !bytes.Equal(r.Data, data) {
							t.Fatalf("reply %d: %v with %d bytes, %v", i, f.Code, len(r.Data), err)
						}
					}
				}
				check(t, <-sent)
			})
		}
	})
}

// TestCloseSessionEndsThePipeline: requests sent before closeSession are answered;
// those sent after it are not, and have no effect.
func TestCloseSessionEndsThePipeline(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		c, other := connect(t, dial), connect(t, dial)
		c.Queue(proto.OpCreate, &proto.CreateRequest{Path: "/before", ACL: proto.OpenACL})
		c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/before"})
		c.Queue(proto.OpCreate, &proto.CreateRequest{Path: "/e", ACL: proto.OpenACL, Flags: proto.FlagEphemeral})
		last := c.Queue(proto.OpCloseSession, nil)
		c.Queue(proto.OpCreate, &proto.CreateRequest{Path: "/behind", ACL: proto.OpenACL})
		c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/before"})
		go c.Flush() // it blocks: the server does not read all of it from a pipe
		for xid := int32(1); xid <= last; xid++ {
			f, err := c.Read()
			if err != nil || f.Xid != xid || f.Code != proto.OK {
				t.Fatalf("reply %d: %+v, %v", xid, f.ReplyHeader, err)
			}
		}
		if f, err := c.Read(); err == nil {
			t.Fatalf("a reply behind that of closeSession: %+v", f.ReplyHeader)
		}
		if _, err := other.Exists("/before", false); err != nil {
			t.Errorf("/before: %v", err)
		}
		for _, path := range []string{"/e", "/behind"} {
			if _, err := other.Exists(path, false); !errors.Is(err, proto.NoNode) {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
}

// TestCutPipeline: if a connection that has sent many writes is cut, the writes that
// are applied are the first ones, without a gap.
func TestCutPipeline(t *testing.T) {
	s := testkit.Seed(t)
	rounds, writes := 60, 300
	if !testkit.Thorough {
		rounds = 20
	}
	overAll(t, server.Config{Limits: server.Limits{MaxOutstanding: 10}}, func(t *testing.T, p *port, dial rawtest.Dialer) {
		r := rand.New(rand.NewPCG(s, 0))
		for round := range rounds {
			c := connect(t, dial)
			dir := fmt.Sprintf("/round%d", round)
			must(c.Create(dir, nil, 0))(t)
			var all []string
			for i := range writes {
				all = append(all, fmt.Sprintf("%03d", i))
				c.Queue(proto.OpCreate, &proto.CreateRequest{Path: dir + "/" + all[i], ACL: proto.OpenACL})
			}
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				c.Flush() // fails when the connection is cut
			}()
			for range r.IntN(writes) {
				must(c.Read())(t)
			}
			if r.IntN(2) == 0 {
				p.Disconnect(c.Session.SessionID)
			} else {
				c.Close()
			}
			<-sent
			c.Close()
			nc := must(dial())(t)
			again := must(rawclient.Resume(nc, c.Session))(t) // from now on, no write of the old connection is applied
			var children proto.ChildrenReply
			must(again.Call(proto.OpGetChildren, &proto.PathWatch{Path: dir}, &children))(t)
			again.Close()
			slices.Sort(children.Names)
			if n := len(children.Names); n > writes || !slices.Equal(children.Names, all[:n]) {
				t.Fatalf("round %d: done are %v", round, children.Names)
			}
		}
	})
}

// TestLostWrite: when a write is lost, the server closes the connection, and applies none
// of the writes that the client sent after it. It also closes the connections of clients
// that want to open or resume a session, without telling them that theirs has expired.
func TestLostWrite(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, p *port, dial rawtest.Dialer) {
		const accepted, sent = 10, 100
		c := connect(t, dial)
		must(c.Create("/dir", nil, 0))(t)
		p.loop.accept(accepted)
		var all []string
		for i := range sent {
			all = append(all, fmt.Sprintf("%03d", i))
			c.Queue(proto.OpCreate, &proto.CreateRequest{Path: "/dir/" + all[i], ACL: proto.OpenACL})
		}
		go c.Flush() // fails when the connection is closed
		for answered := 0; ; answered++ {
			f, err := c.Read()
			if os.IsTimeout(err) || answered > accepted {
				t.Fatalf("after %d replies: %+v, %v", answered, f.ReplyHeader, err)
			}
			if err != nil {
				break
			}
		}
		open := func() (*rawclient.Client, error) { return rawclient.Open(must(dial())(t), 10*time.Second) }
		resume := func() (*rawclient.Client, error) { return rawclient.Resume(must(dial())(t), c.Session) }
		for what, try := range map[string]func() (*rawclient.Client, error){"open": open, "resume": resume} {
			if _, err := try(); err == nil || err == rawclient.ErrRefused || os.IsTimeout(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		p.loop.accept(math.MaxInt)
		again := must(resume())(t)
		var children proto.ChildrenReply
		must(again.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/dir"}, &children))(t)
		again.Close()
		slices.Sort(children.Names)
		if !slices.Equal(children.Names, all[:accepted]) {
			t.Errorf("applied are %v", children.Names)
		}
	})
}
