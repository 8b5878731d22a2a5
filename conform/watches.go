package conform

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The types of watchers, for checkWatches and removeWatches.
const (
	watcherChildren   int32 = 1
	watcherData       int32 = 2
	watcherAny        int32 = 3
	watcherPersistent int32 = 4
	watcherRecursive  int32 = 5
)

// The modes of addWatch.
const (
	modePersistent int32 = 0
	modeRecursive  int32 = 1
)

// restored sends setWatches with xid -8, as clients do when they reconnect, and waits
// for its reply. It keeps the events before the reply for event.
func (k *conn) restored(op proto.OpCode, q proto.Record) {
	k.queueXid(proto.XidSetWatches, op, q)
	k.flush()
	k.judge(k.answer(proto.XidSetWatches, op), proto.OK)
}

// watches reports whether checkWatches finds a watch.
func (k *conn) watches(path string, watcher int32) bool {
	f := k.call(proto.OpCheckWatches, &proto.PathType{Path: path, Type: watcher})
	if f.Code != proto.NoWatcher {
		k.judge(f, proto.OK)
	}
	return f.Code == proto.OK
}

func (k *conn) removeWatches(path string, watcher int32) {
	k.do(proto.OpRemoveWatches, &proto.PathType{Path: path, Type: watcher})
}

// fired is a check of the events that a change gives. It creates the znode t.path("n"),
// sets a watch on it and changes it from another connection.
type fired struct {
	watch func(k *conn, path string)
	do    func(k *conn, path string)
	want  []proto.EventType
}

func (x fired) run(t *trial) {
	k, w := t.connect(), t.connect()
	n := t.path("n")
	k.create(n, []byte("1"), 0)
	x.watch(k, n)
	x.do(w, n)
	for _, e := range x.want {
		k.event(e, n)
	}
	k.noEvent()
}

// Changes of a znode.
func doSet(k *conn, p string)    { k.set(p, []byte("2"), -1) }
func doSame(k *conn, p string)   { k.set(p, []byte("1"), -1) }
func doDelete(k *conn, p string) { k.delete(p, -1) }
func doSetACL(k *conn, p string) { k.setACL(p, proto.OpenACL, -1) }
func doChild(k *conn, p string)  { k.create(p+"/c", nil, 0) }

var (
	dataChanged     = []proto.EventType{proto.EventNodeDataChanged}
	deleted         = []proto.EventType{proto.EventNodeDeleted}
	childrenChanged = []proto.EventType{proto.EventNodeChildrenChanged}
)

var watchChecks = []Check{
	{
		Name: "watches/data, setData",
		Says: "A watch of getData fires NodeDataChanged when the data is set.",
		In:   ">=3.0",
		run:  fired{(*conn).watchData, doSet, dataChanged}.run,
	},
	{
		Name: "watches/data, same data",
		Says: "Setting the same data again counts as a change and fires the watch.",
		In:   ">=3.0",
		run:  fired{(*conn).watchData, doSame, dataChanged}.run,
	},
	{
		Name: "watches/data, delete",
		Says: "A watch of getData fires NodeDeleted when the znode is deleted.",
		In:   ">=3.0",
		run:  fired{(*conn).watchData, doDelete, deleted}.run,
	},
	{
		Name: "watches/data, children",
		Says: "Changes of the znode's children do not fire a watch of getData.",
		In:   ">=3.0",
		run: fired{(*conn).watchData, func(k *conn, p string) {
			k.create(p+"/c", nil, 0)
			k.set(p+"/c", nil, -1)
			k.delete(p+"/c", -1)
		}, nil}.run,
	},
	{
		Name: "watches/exists, setData",
		Says: "A watch of exists on an existing znode fires NodeDataChanged when the data is set.",
		In:   ">=3.0",
		run:  fired{(*conn).watchExists, doSet, dataChanged}.run,
	},
	{
		Name: "watches/exists, delete",
		Says: "A watch of exists fires NodeDeleted when the znode is deleted.",
		In:   ">=3.0",
		run:  fired{(*conn).watchExists, doDelete, deleted}.run,
	},
	{
		Name: "watches/exists, create",
		Says: "exists of a missing znode fails with NoNode but sets a watch, which fires NodeCreated when the znode is created.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			k.want(proto.NoNode, proto.OpExists, &proto.PathWatch{Path: t.path("n"), Watch: true})
			w.create(t.path("other"), nil, 0)
			w.create(t.path("n"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("n"))
			w.set(t.path("n"), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/exists, sequential create",
		Says: "A watch of exists matches only the full name of a sequential znode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			k.watchExists(t.path("n-"))
			k.watchExists(t.path("n-0000000001"))
			w.create(t.path("n-"), nil, proto.FlagSequential)
			k.noEvent()
			w.create(t.path("n-"), nil, proto.FlagEphemeralSeq)
			k.event(proto.EventNodeCreated, t.path("n-0000000001"))
			k.noEvent()
		},
	},
	{
		Name: "watches/children, create",
		Says: "A watch of getChildren fires NodeChildrenChanged, with the parent's path, when a child is created.",
		In:   ">=3.0",
		run:  fired{(*conn).watchChildren, doChild, childrenChanged}.run,
	},
	{
		Name: "watches/children, delete of a child",
		Says: "A watch of getChildren fires NodeChildrenChanged when a child is deleted.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("c"), nil, 0)
			k.watchChildren(t.path(""))
			t.connect().delete(t.path("c"), -1)
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.noEvent()
		},
	},
	{
		Name: "watches/children, delete",
		Says: "A watch of getChildren fires NodeDeleted when the znode itself is deleted.",
		In:   ">=3.0",
		run:  fired{(*conn).watchChildren, doDelete, deleted}.run,
	},
	{
		Name: "watches/children, data",
		Says: "Changes of data, the znode's own or a child's, and of grandchildren do not fire a watch of getChildren.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			k.create(t.path("c"), nil, 0)
			k.watchChildren(t.path(""))
			w.set(t.path(""), nil, -1)
			w.set(t.path("c"), nil, -1)
			w.create(t.path("c/cc"), nil, 0)
			w.delete(t.path("c/cc"), -1)
			k.noEvent()
			w.delete(t.path("c"), -1)
			k.event(proto.EventNodeChildrenChanged, t.path(""))
		},
	},
	{
		Name: "watches/getChildren2",
		Says: "getChildren2 sets the same watch as getChildren.",
		In:   ">=3.3",
		run: fired{func(k *conn, p string) {
			k.do(proto.OpGetChildren2, &proto.PathWatch{Path: p, Watch: true})
		}, doChild, childrenChanged}.run,
	},
	{
		Name: "watches/setACL",
		Says: "setACL fires no watch.",
		In:   ">=3.0",
		run: fired{func(k *conn, p string) {
			k.watchData(p)
			k.watchExists(p)
			k.watchChildren(p)
		}, doSetACL, nil}.run,
	},
	{
		Name: "watches/failed writes",
		Says: "A write that fails fires no watch and uses none up.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.create(n+"/c", nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: n, Version: 7})
			k.want(proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: n, Version: -1})
			k.want(proto.NodeExists, proto.OpCreate, &proto.CreateRequest{Path: n + "/c", ACL: proto.OpenACL})
			k.noEvent()
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.delete(n+"/c", -1)
			k.event(proto.EventNodeChildrenChanged, n)
		},
	},
	{
		Name: "watches/one-shot",
		Says: "A watch fires once; a second change fires it only if it was set again.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.set(n, nil, -1)
			k.create(n+"/c", nil, 0)
			k.event(proto.EventNodeDataChanged, n)
			k.event(proto.EventNodeChildrenChanged, n)
			k.set(n, nil, -1)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.watchData(n)
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
		},
	},
	{
		Name: "watches/set twice",
		Says: "Watches of the same kind that one connection sets on one znode are one watch: getData and exists, each called twice, give one event.",
		In:   ">=3.0",
		run: fired{func(k *conn, p string) {
			k.watchData(p)
			k.watchExists(p)
			k.watchData(p)
			k.watchExists(p)
		}, doSet, dataChanged}.run,
	},
	{
		Name: "watches/two connections",
		Says: "Every connection that watches gets the event, whichever connection made the change.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			n := t.path("n")
			a.create(n, nil, 0)
			a.watchData(n)
			b.watchExists(n)
			a.set(n, nil, -1)
			a.event(proto.EventNodeDataChanged, n)
			b.event(proto.EventNodeDataChanged, n)
			a.noEvent()
			b.noEvent()
		},
	},
	{
		Name: "watches/data and children, delete",
		Says: "A connection that watches both data and children of a znode gets one event when it is deleted, and both watches are used up.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.delete(n, -1)
			k.event(proto.EventNodeDeleted, n)
			k.create(n, nil, 0)
			k.create(n+"/c", nil, 0)
			k.set(n, nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/node before parent",
		Says: "The event of a znode comes before that of its parent's children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.watchChildren(t.path(""))
			k.watchExists(t.path("n"))
			k.create(t.path("n"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("n"))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.watchChildren(t.path(""))
			k.watchExists(t.path("n"))
			k.delete(t.path("n"), -1)
			k.event(proto.EventNodeDeleted, t.path("n"))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.noEvent()
		},
	},
	{
		Name: "watches/without the flag",
		Says: "A read without the watch flag sets no watch.",
		In:   ">=3.0",
		run: fired{func(k *conn, p string) {
			k.stat(p)
			k.get(p)
			k.children(p)
		}, doSet, nil}.run,
	},
	{
		Name: "watches/failed getData",
		Says: "getData of a missing znode sets no watch.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("n"), Watch: true})
			k.create(t.path("n"), nil, 0)
			k.set(t.path("n"), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/failed getChildren",
		Says: "getChildren of a missing znode sets no watch.",
		In:   ">=3.3",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpGetChildren, &proto.PathWatch{Path: t.path("n"), Watch: true})
			k.want(proto.NoNode, proto.OpGetChildren2, &proto.PathWatch{Path: t.path("n"), Watch: true})
			k.create(t.path("n"), nil, 0)
			k.create(t.path("n/c"), nil, 0)
			k.delete(t.path("n/c"), -1)
			k.delete(t.path("n"), -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/no permission",
		Says: "getData and getChildren that fail with NoAuth set no watch.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.createACL(n, nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n, Watch: true})
			k.want(proto.NoAuth, proto.OpGetChildren, &proto.PathWatch{Path: n, Watch: true})
			k.setACL(n, proto.OpenACL, -1)
			k.set(n, nil, -1)
			k.create(n+"/c", nil, 0)
			k.noEvent()
		},
	},
	{
		Name: "watches/before the own reply",
		Says: "The event of a connection's own write comes before the write's reply.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			xid := k.send(proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
			t.equal("the kind of the first frame", k.next().Kind, wire.Event)
			t.equal("the xid of the second", k.next().Xid, xid)
		},
	},
	{
		Name: "watches/before the change is visible",
		Says: "A connection that watches gets the event of a change before it can read the change.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			for round := int32(1); round <= 20; round++ {
				k.watchData(n)
				w.send(proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
				late := time.Now().Add(t.s.o.Timeout)
				for seen := false; !seen; t.wait(20 * time.Microsecond) {
					t.ensure(time.Now().Before(late), "version %d is never read", round)
					f := k.call(proto.OpExists, &proto.PathWatch{Path: n})
					k.judge(f, proto.OK)
					seen = f.Body.(*proto.Stat).Version == round
					t.ensure(!seen || len(k.events) == 1, "version %d was read before its event came", round)
				}
				k.event(proto.EventNodeDataChanged, n)
				w.judge(w.reply(), proto.OK)
			}
		},
	},
	{
		Name: "watches/header",
		Says: "An event has xid -1, error 0 and zxid -1.",
		In:   releases.NoEventZxid,
		run:  func(t *trial) { eventHeader(t, func(*wire.Frame) int64 { return -1 }) },
	},
	{
		Name: "watches/header with zxid",
		Says: "An event has xid -1, error 0 and the zxid of the change that it reports.",
		In:   releases.EventZxid,
		run:  func(t *trial) { eventHeader(t, func(change *wire.Frame) int64 { return change.Zxid }) },
	},
	{
		Name: "watches/lost with the connection",
		Says: "Watches belong to the connection and not to the session: after a reconnect there are none.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.hangUp()
			k = t.resume(k.Session)
			w.set(n, nil, -1)
			w.delete(n, -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/kept while others go",
		Says: "A watch stays when another connection that has the same watch ends.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			n := t.path("n")
			a.create(n, nil, 0)
			a.watchData(n)
			b.watchData(n)
			b.closeSession()
			a.set(n, nil, -1)
			a.event(proto.EventNodeDataChanged, n)
		},
	},
	{
		Name: "watches/end of a session",
		Says: "The end of a session fires the watches on its ephemeral znodes: NodeDeleted for each, and NodeChildrenChanged for the parent once.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, owner := t.connect(), t.connect()
			want := map[string]bool{}
			for _, name := range []string{"a", "b", "c"} {
				owner.create(t.path(name), nil, proto.FlagEphemeral)
				k.watchExists(t.path(name))
				want[t.path(name)] = true
			}
			k.watchChildren(t.path(""))
			owner.closeSession()
			for range 4 {
				e := k.next().Body.(*proto.WatcherEvent)
				if e.Type == proto.EventNodeChildrenChanged {
					t.equal("the path", e.Path, t.path(""))
					t.ensure(len(want) == 2, "the parent's event must come after that of the first child that was deleted")
					continue
				}
				t.equal("the event of "+e.Path, e.Type, proto.EventNodeDeleted)
				t.ensure(want[e.Path], "a second event, or one of a wrong path: %s", e.Path)
				delete(want, e.Path)
			}
			k.noEvent()
		},
	},
	{
		Name: "watches/own end",
		Says: "A session that closes gets the events of its own ephemeral znodes before the reply.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("n"), nil, proto.FlagEphemeral)
			k.watchData(t.path("n"))
			k.closeSession()
			k.event(proto.EventNodeDeleted, t.path("n"))
		},
	},
	{
		Name: "watches/expiry",
		Says: "The expiry of a session fires the watches on its ephemeral znodes.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, owner := t.connect(), t.connectFor(time.Millisecond)
			owner.create(t.path("n"), nil, proto.FlagEphemeral)
			k.watchData(t.path("n"))
			k.watchChildren(t.path(""))
			owner.hangUp()
			k.timeout += 10 * time.Duration(owner.Session.Timeout) * time.Millisecond
			k.event(proto.EventNodeDeleted, t.path("n"))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.missing(t.path("n"))
		},
	},
	{
		Name:  "watches/root",
		Says:  "The root's children can be watched like those of any other znode.",
		In:    ">=3.0",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.watchChildren("/")
			p := k.create(t.s.root+"-watched", nil, 0)
			k.delete(p, -1)
			k.event(proto.EventNodeChildrenChanged, "/")
			k.noEvent()
		},
	},
	{
		Name: "watches/setWatches, data",
		Says: "For each znode in the data list that is gone (NodeDeleted) or was set after the zxid (NodeDataChanged), setWatches sends an event at once; for the others it sets a watch.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			for _, name := range []string{"same", "set", "gone", "child"} {
				w.create(t.path(name), nil, 0)
			}
			seen := w.ping().Zxid
			w.set(t.path("set"), nil, -1)
			w.delete(t.path("gone"), -1)
			w.create(t.path("child/c"), nil, 0)
			w.setACL(t.path("same"), proto.OpenACL, -1)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: []string{t.path("same"), t.path("set"), t.path("gone"), t.path("child")}})
			k.event(proto.EventNodeDataChanged, t.path("set"))
			k.event(proto.EventNodeDeleted, t.path("gone"))
			k.noEvent()
			w.set(t.path("set"), nil, -1)
			w.create(t.path("gone"), nil, 0)
			k.noEvent()
			w.set(t.path("same"), nil, -1)
			w.delete(t.path("child/c"), -1)
			w.delete(t.path("child"), -1)
			k.event(proto.EventNodeDataChanged, t.path("same"))
			k.event(proto.EventNodeDeleted, t.path("child"))
			w.set(t.path("same"), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "watches/setWatches, exist",
		Says: "For each znode in the exist list that exists, even if it did before the zxid, setWatches sends NodeCreated; for the others it sets a watch.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			w.create(t.path("old"), nil, 0)
			seen := w.ping().Zxid
			w.create(t.path("new"), nil, 0)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Exist: []string{t.path("missing"), t.path("old"), t.path("new")}})
			k.event(proto.EventNodeCreated, t.path("old"))
			k.event(proto.EventNodeCreated, t.path("new"))
			w.set(t.path("old"), nil, -1)
			k.noEvent()
			w.create(t.path("missing"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("missing"))
			k.noEvent()
		},
	},
	{
		Name: "watches/setWatches, children",
		Says: "For each znode in the children list that is gone (NodeDeleted) or whose children changed after the zxid (NodeChildrenChanged), setWatches sends an event at once; for the others it sets a watch.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			for _, name := range []string{"same", "more", "less", "less/c", "gone", "set"} {
				w.create(t.path(name), nil, 0)
			}
			seen := w.ping().Zxid
			w.create(t.path("more/c"), nil, 0)
			w.delete(t.path("less/c"), -1)
			w.delete(t.path("gone"), -1)
			w.set(t.path("set"), nil, -1)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Child: []string{t.path("same"), t.path("more"), t.path("less"), t.path("gone"), t.path("set")}})
			k.event(proto.EventNodeChildrenChanged, t.path("more"))
			k.event(proto.EventNodeChildrenChanged, t.path("less"))
			k.event(proto.EventNodeDeleted, t.path("gone"))
			k.noEvent()
			w.create(t.path("more/d"), nil, 0)
			k.noEvent()
			w.create(t.path("same/c"), nil, 0)
			w.delete(t.path("set"), -1)
			k.event(proto.EventNodeChildrenChanged, t.path("same"))
			k.event(proto.EventNodeDeleted, t.path("set"))
		},
	},
	{
		Name: "watches/setWatches, order",
		Says: "The events of setWatches come before its reply, in the order of the lists data, exist and children, and have zxid -1.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("b"), nil, 0)
			k.queueXid(proto.XidSetWatches, proto.OpSetWatches, &proto.SetWatchesRequest{
				Child: []string{t.path(""), t.path("no")}, Exist: []string{t.path("b")}, Data: []string{t.path("nope"), t.path("b")}})
			k.flush()
			for _, want := range []proto.WatcherEvent{
				{Type: proto.EventNodeDeleted, Path: t.path("nope")}, {Type: proto.EventNodeDataChanged, Path: t.path("b")},
				{Type: proto.EventNodeCreated, Path: t.path("b")},
				{Type: proto.EventNodeChildrenChanged, Path: t.path("")}, {Type: proto.EventNodeDeleted, Path: t.path("no")},
			} {
				t.equal("the event's zxid", k.event(want.Type, want.Path).Zxid, int64(-1))
			}
			f := k.next()
			t.equal("the reply's xid", f.Xid, proto.XidSetWatches)
			k.judge(f, proto.OK)
			t.equal("the reply's body", len(f.Rest), 0)
		},
	},
	{
		Name: "watches/setWatches, frames",
		Says: "Several setWatches in a row, all with xid -8 or with xids of their own, are answered in turn, and their watches add up.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			var paths []string
			for _, name := range []string{"a", "b", "c"} {
				paths = append(paths, k.create(t.path(name), nil, 0))
			}
			seen := k.ping().Zxid
			k.queueXid(proto.XidSetWatches, proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[:1]})
			k.queueXid(proto.XidSetWatches, proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[1:2]})
			own := k.queue(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[2:]})
			k.flush()
			for _, xid := range []int32{proto.XidSetWatches, proto.XidSetWatches, own} {
				k.judge(k.answer(xid, proto.OpSetWatches), proto.OK)
			}
			for _, p := range paths {
				k.set(p, nil, -1)
				k.event(proto.EventNodeDataChanged, p)
			}
			k.noEvent()
		},
	},
	{
		Name: "watches/setWatches, undecodable",
		Says: "A setWatches that cannot be decoded fails with MarshallingError, and the connection stays open.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.wantRaw(proto.MarshallingError, proto.OpSetWatches, []byte{1, 2, 3})
			k.ping()
		},
	},
	{
		Name: "watches/checkWatches",
		Says: "checkWatches of type 1 finds a watch of children, of type 2 one of data or existence, and of type 3 any; if there is none it fails with NoWatcher. It changes nothing.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.watchData(t.path(""))
			k.watchExists(t.path("missing"))
			k.create(t.path("n"), nil, 0)
			k.watchChildren(t.path("n"))
			for _, x := range []struct {
				path string
				want [3]bool
			}{
				{t.path(""), [3]bool{false, true, true}},
				{t.path("missing"), [3]bool{false, true, true}},
				{t.path("n"), [3]bool{true, false, true}},
				{t.path("nothing"), [3]bool{}},
			} {
				for range 2 {
					got := [3]bool{k.watches(x.path, watcherChildren), k.watches(x.path, watcherData), k.watches(x.path, watcherAny)}
					t.equal("what checkWatches of 1, 2 and 3 finds on "+x.path, got, x.want)
				}
			}
			k.create(t.path("n/c"), nil, 0)
			k.event(proto.EventNodeChildrenChanged, t.path("n"))
			t.equal("whether checkWatches finds the watch that fired", k.watches(t.path("n"), watcherAny), false)
		},
	},
	{
		Name: "watches/checkWatches, others'",
		Says: "checkWatches finds only the watches of its own connection.",
		In:   releases.CheckOwnWatches,
		run:  func(t *trial) { checkOthers(t, false) },
	},
	{
		Name: "watches/checkWatches, all connections'",
		Says: "checkWatches finds the watches of other connections too.",
		In:   releases.CheckAnyWatches,
		run:  func(t *trial) { checkOthers(t, true) },
	},
	{
		Name: "watches/removeWatches",
		Says: "removeWatches of type 1 removes a watch of children, and of type 2 one of data or existence, without an event.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.removeWatches(n, watcherData)
			k.want(proto.NoWatcher, proto.OpRemoveWatches, &proto.PathType{Path: n, Type: watcherData})
			k.set(n, nil, -1)
			k.noEvent()
			k.create(n+"/c", nil, 0)
			k.event(proto.EventNodeChildrenChanged, n)
			k.watchData(n)
			k.watchChildren(n)
			k.removeWatches(n, watcherChildren)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.watchExists(t.path("m"))
			k.removeWatches(t.path("m"), watcherData)
			k.create(t.path("m"), nil, 0)
			k.noEvent()
		},
	},
	{
		Name: "watches/removeWatches, any",
		Says: "removeWatches of type 3 removes the watches of both kinds, or the only one.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.watchChildren(n)
			k.removeWatches(n, watcherAny)
			k.create(n+"/c", nil, 0)
			k.set(n, nil, -1)
			k.noEvent()
			k.watchChildren(n)
			k.removeWatches(n, watcherAny)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.want(proto.NoWatcher, proto.OpRemoveWatches, &proto.PathType{Path: n, Type: watcherAny})
		},
	},
	{
		Name: "watches/removeWatches, others'",
		Says: "removeWatches does not affect the watches of other connections.",
		In:   ">=3.5",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			n := t.path("n")
			a.create(n, nil, 0)
			a.watchData(n)
			b.watchData(n)
			b.removeWatches(n, watcherData)
			a.set(n, nil, -1)
			a.event(proto.EventNodeDataChanged, n)
			b.noEvent()
		},
	},
	{
		Name: "watches/wrong types",
		Says: "checkWatches and removeWatches of a type that does not exist fail with MarshallingError.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, watcher := range []int32{0, -1, 6, 1000} {
				k.want(proto.MarshallingError, proto.OpCheckWatches, &proto.PathType{Path: t.path(""), Type: watcher})
				k.want(proto.MarshallingError, proto.OpRemoveWatches, &proto.PathType{Path: t.path(""), Type: watcher})
			}
		},
	},
}

func eventHeader(t *trial, zxid func(change *wire.Frame) int64) {
	k, w := t.connect(), t.connect()
	n := t.path("n")
	k.create(n, nil, 0)
	k.watchData(n)
	change := w.do(proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
	e := k.event(proto.EventNodeDataChanged, n)
	t.equal("the xid", e.Xid, proto.XidEvent)
	t.equal("the error", e.Code, proto.OK)
	t.equal("the zxid", e.Zxid, zxid(change))
	t.equal("the bytes after the record", len(e.Rest), 0)
}

func checkOthers(t *trial, found bool) {
	a, b := t.connect(), t.connect()
	a.watchData(t.path(""))
	a.watchChildren(t.path(""))
	for _, watcher := range []int32{watcherChildren, watcherData, watcherAny} {
		t.equal("whether the watch is found", b.watches(t.path(""), watcher), found)
	}
	b.want(proto.NoWatcher, proto.OpRemoveWatches, &proto.PathType{Path: t.path(""), Type: watcherAny})
}
