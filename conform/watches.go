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
	k.sendXid(proto.XidSetWatches, req(op, q))
	k.answers(proto.OK)
}

func (k *conn) watches(path string, watcher int32) bool {
	f := k.call(opCheckWatches(path, watcher))
	if f.Code != proto.NoWatcher {
		k.judge(f, proto.OK)
	}
	return f.Code == proto.OK
}

func (k *conn) removeWatches(path string, watcher int32) {
	k.do(opRemoveWatches(path, watcher))
}

// reads make the requests that set watches.
type reads []func(path string) request

// fired is a check of the event that a change gives. It creates the znode t.path("n"),
// sets watches on it and changes it from another connection.
type fired struct {
	watch reads
	do    func(k *conn, path string)
	want  func(path string) event // or nil if there is none
}

func (x fired) run(t *trial) {
	k, w := t.connect(), t.connect()
	n := k.create(t.path("n"), []byte("1"), 0)
	for _, read := range x.watch {
		k.watch(read(n))
	}
	x.do(w, n)
	if x.want != nil {
		k.event(x.want(n))
	}
	k.noEvent()
}

func doSet(k *conn, p string)    { k.set(p, []byte("2"), -1) }
func doSame(k *conn, p string)   { k.set(p, []byte("1"), -1) }
func doDelete(k *conn, p string) { k.delete(p, -1) }
func doChild(k *conn, p string)  { k.create(p+"/c", nil, 0) }

var watchChecks = []Check{
	check("watches/data, setData", ">=3.0",
		"A watch of getData fires NodeDataChanged when the data is set.",
		fired{reads{opGet}, doSet, dataChanged}.run),
	check("watches/data, same data", ">=3.0",
		"Setting the same data again counts as a change and fires the watch.",
		fired{reads{opGet}, doSame, dataChanged}.run),
	check("watches/data, delete", ">=3.0",
		"A watch of getData fires NodeDeleted when the znode is deleted.",
		fired{reads{opGet}, doDelete, deleted}.run),
	check("watches/data, children", ">=3.0",
		"Changes of the znode's children do not fire a watch of getData.",
		fired{reads{opGet}, func(k *conn, p string) {
			k.make(p + "/c")
			k.set(p+"/c", nil, -1)
			k.delete(p+"/c", -1)
		}, nil}.run),
	check("watches/exists, setData", ">=3.0",
		"A watch of exists on an existing znode fires NodeDataChanged when the data is set.",
		fired{reads{opExists}, doSet, dataChanged}.run),
	check("watches/exists, delete", ">=3.0",
		"A watch of exists fires NodeDeleted when the znode is deleted.",
		fired{reads{opExists}, doDelete, deleted}.run),
	check("watches/exists, create", ">=3.0",
		"exists of a missing znode fails with NoNode but sets a watch, which fires NodeCreated when the znode is created.",
		func(t *trial, k, w *conn) {
			k.want(proto.NoNode, watching(opExists(t.path("n"))))
			w.make(t.path("other"), t.path("n"))
			k.event(created(t.path("n")))
			w.set(t.path("n"), nil, -1)
			k.noEvent()
		}),
	check("watches/exists, sequential create", ">=3.0",
		"A watch of exists matches only the full name of a sequential znode.",
		func(t *trial, k, w *conn) {
			k.watch(opExists(t.path("n-")), opExists(t.path("n-0000000001")))
			w.create(t.path("n-"), nil, proto.FlagSequential)
			k.noEvent()
			w.create(t.path("n-"), nil, proto.FlagEphemeralSeq)
			k.onlyEvents(created(t.path("n-0000000001")))
		}),
	check("watches/children, create", ">=3.0",
		"A watch of getChildren fires NodeChildrenChanged, with the parent's path, when a child is created.",
		fired{reads{opChildren}, doChild, childrenChanged}.run),
	check("watches/children, delete of a child", ">=3.0",
		"A watch of getChildren fires NodeChildrenChanged when a child is deleted.",
		func(t *trial, k *conn) {
			k.make(t.path("c"))
			k.watch(opChildren(t.path("")))
			t.connect().delete(t.path("c"), -1)
			k.onlyEvents(childrenChanged(t.path("")))
		}),
	check("watches/children, delete", ">=3.0",
		"A watch of getChildren fires NodeDeleted when the znode itself is deleted.",
		fired{reads{opChildren}, doDelete, deleted}.run),
	check("watches/children, data", ">=3.0",
		"Changes of data, the znode's own or a child's, and of grandchildren do not fire a watch of getChildren.",
		func(t *trial, k, w *conn) {
			k.make(t.path("c"))
			k.watch(opChildren(t.path("")))
			w.set(t.path(""), nil, -1)
			w.set(t.path("c"), nil, -1)
			w.make(t.path("c/cc"))
			w.delete(t.path("c/cc"), -1)
			k.noEvent()
			w.delete(t.path("c"), -1)
			k.event(childrenChanged(t.path("")))
		}),
	check("watches/getChildren2", ">=3.3",
		"getChildren2 sets the same watch as getChildren.",
		fired{reads{opChildren2}, doChild, childrenChanged}.run),
	check("watches/setACL", ">=3.0",
		"setACL fires no watch.",
		fired{reads{opGet, opExists, opChildren}, func(k *conn, p string) { k.setACL(p, proto.OpenACL, -1) }, nil}.run),
	check("watches/failed writes", ">=3.0",
		"A write that fails fires no watch and uses none up.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.make(n, n+"/c")
			k.watch(opGet(n), opChildren(n))
			k.want(proto.BadVersion, opSet(n, nil, 7))
			k.want(proto.NotEmpty, opDelete(n, -1))
			k.want(proto.NodeExists, opCreate(n+"/c", nil, 0))
			k.noEvent()
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.delete(n+"/c", -1)
			k.event(childrenChanged(n))
		}),
	check("watches/one-shot", ">=3.0",
		"A watch fires once; a second change fires it only if it was set again.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n), opChildren(n))
			k.set(n, nil, -1)
			k.make(n + "/c")
			k.event(dataChanged(n), childrenChanged(n))
			k.set(n, nil, -1)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.watch(opGet(n))
			k.set(n, nil, -1)
			k.event(dataChanged(n))
		}),
	check("watches/set twice", ">=3.0",
		"Watches of the same kind that one connection sets on one znode are one watch: getData and exists, each called twice, give one event.",
		fired{reads{opGet, opExists, opGet, opExists}, doSet, dataChanged}.run),
	check("watches/two connections", ">=3.0",
		"Every connection that watches gets the event, whichever connection made the change.",
		func(t *trial, a, b *conn) {
			n := a.create(t.path("n"), nil, 0)
			a.watch(opGet(n))
			b.watch(opExists(n))
			a.set(n, nil, -1)
			a.event(dataChanged(n))
			b.event(dataChanged(n))
			a.noEvent()
			b.noEvent()
		}),
	check("watches/data and children, delete", ">=3.0",
		"A connection that watches both data and children of a znode gets one event when it is deleted, and both watches are used up.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n), opChildren(n))
			k.delete(n, -1)
			k.event(deleted(n))
			k.make(n, n+"/c")
			k.set(n, nil, -1)
			k.noEvent()
		}),
	check("watches/node before parent", ">=3.0",
		"The event of a znode comes before that of its parent's children.",
		func(t *trial, k, other *conn) {
			k.watch(opExists(t.path("x")), opChildren(t.path("")))
			other.make(t.path("x"))
			k.event(created(t.path("x")), childrenChanged(t.path("")))
			k.watch(opGet(t.path("x")), opChildren(t.path("")))
			other.delete(t.path("x"), -1)
			k.onlyEvents(deleted(t.path("x")), childrenChanged(t.path("")))
		}),
	check("watches/without the flag", ">=3.0",
		"A read without the watch flag sets no watch.",
		func(t *trial, k, w *conn) {
			n := k.create(t.path("n"), []byte("1"), 0)
			k.do(opExists(n), opGet(n), opChildren(n))
			doSet(w, n)
			k.noEvent()
		}),
	check("watches/failed reads", ">=3.3",
		"getData and getChildren of a missing znode set no watch.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.want(proto.NoNode, watching(opGet(n)), watching(opChildren(n)), watching(opChildren2(n)))
			k.make(n, n+"/c")
			k.set(n, nil, -1)
			k.delete(n+"/c", -1)
			k.delete(n, -1)
			k.noEvent()
		}),
	check("watches/no permission", ">=3.0",
		"getData and getChildren that fail with NoAuth set no watch.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.createACL(n, nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.want(proto.NoAuth, watching(opGet(n)), watching(opChildren(n)))
			k.setACL(n, proto.OpenACL, -1)
			k.set(n, nil, -1)
			k.make(n + "/c")
			k.noEvent()
		}),
	check("watches/before the change is visible", ">=3.0",
		"A connection that watches gets the event of a change before it can read the change.",
		func(t *trial, k, w *conn) {
			n := k.create(t.path("n"), nil, 0)
			for round := int32(1); round <= 20; round++ {
				k.watch(opGet(n))
				w.send(opSet(n, nil, -1))
				late := time.Now().Add(t.s.o.Timeout)
				for seen := false; !seen; t.wait(20 * time.Microsecond) {
					t.ensure(time.Now().Before(late), "version %d is never read", round)
					f := k.call(opExists(n))
					k.judge(f, proto.OK)
					seen = f.Body.(*proto.Stat).Version == round
					t.ensure(!seen || len(k.events) == 1, "version %d was read before its event came", round)
				}
				k.event(dataChanged(n))
				w.judge(w.reply(), proto.OK)
			}
		}),
	check("watches/header", releases.NoEventZxid,
		"An event has xid -1, error 0 and zxid -1.",
		func(t *trial) { eventHeader(t, func(*wire.Frame) int64 { return -1 }) }),
	check("watches/header with zxid", releases.EventZxid,
		"An event has xid -1, error 0 and the zxid of the change that it reports.",
		func(t *trial) { eventHeader(t, func(change *wire.Frame) int64 { return change.Zxid }) }),
	check("watches/kept while others go", ">=3.0",
		"A watch stays when another connection that has the same watch ends.",
		func(t *trial, a, b *conn) {
			n := a.create(t.path("n"), nil, 0)
			a.watch(opGet(n))
			b.watch(opGet(n))
			b.closeSession()
			a.set(n, nil, -1)
			a.event(dataChanged(n))
		}),
	check("watches/end of a session", ">=3.0",
		"The end of a session fires the watches on its ephemeral znodes: NodeDeleted for each, and NodeChildrenChanged for the parent once.",
		func(t *trial, k, owner *conn) {
			want := map[string]bool{}
			for _, name := range []string{"a", "b", "c"} {
				owner.create(t.path(name), nil, proto.FlagEphemeral)
				k.watch(opExists(t.path(name)))
				want[t.path(name)] = true
			}
			k.watch(opChildren(t.path("")))
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
		}),
	check("watches/own end", ">=3.0",
		"A session that closes gets the events of its own ephemeral znodes before the reply.",
		func(t *trial, k *conn) {
			k.create(t.path("n"), nil, proto.FlagEphemeral)
			k.watch(opGet(t.path("n")))
			k.closeSession()
			k.event(deleted(t.path("n")))
		}),
	alone(check("watches/root", ">=3.0",
		"The root's children can be watched like those of any other znode.",
		func(t *trial, k *conn) {
			k.watch(opChildren("/"))
			p := k.create(t.s.root+"-watched", nil, 0)
			k.delete(p, -1)
			k.onlyEvents(childrenChanged("/"))
		})),
	check("watches/setWatches, data", ">=3.0",
		"For each znode in the data list that is gone (NodeDeleted) or was set after the zxid (NodeDataChanged), setWatches sends an event at once; for the others it sets a watch.",
		func(t *trial, k, w *conn) {
			for _, name := range []string{"same", "set", "gone", "child"} {
				w.make(t.path(name))
			}
			seen := w.ping().Zxid
			w.set(t.path("set"), nil, -1)
			w.delete(t.path("gone"), -1)
			w.make(t.path("child/c"))
			w.setACL(t.path("same"), proto.OpenACL, -1)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: []string{t.path("same"), t.path("set"), t.path("gone"), t.path("child")}})
			k.onlyEvents(dataChanged(t.path("set")), deleted(t.path("gone")))
			w.set(t.path("set"), nil, -1)
			w.make(t.path("gone"))
			k.noEvent()
			w.set(t.path("same"), nil, -1)
			w.delete(t.path("child/c"), -1)
			w.delete(t.path("child"), -1)
			k.event(dataChanged(t.path("same")), deleted(t.path("child")))
			w.set(t.path("same"), nil, -1)
			k.noEvent()
		}),
	check("watches/setWatches, exist", ">=3.0",
		"For each znode in the exist list that exists, even if it did before the zxid, setWatches sends NodeCreated; for the others it sets a watch.",
		func(t *trial, k, w *conn) {
			w.make(t.path("old"))
			seen := w.ping().Zxid
			w.make(t.path("new"))
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Exist: []string{t.path("missing"), t.path("old"), t.path("new")}})
			k.event(created(t.path("old")), created(t.path("new")))
			w.set(t.path("old"), nil, -1)
			k.noEvent()
			w.make(t.path("missing"))
			k.onlyEvents(created(t.path("missing")))
		}),
	check("watches/setWatches, children", ">=3.0",
		"For each znode in the children list that is gone (NodeDeleted) or whose children changed after the zxid (NodeChildrenChanged), setWatches sends an event at once; for the others it sets a watch.",
		func(t *trial, k, w *conn) {
			for _, name := range []string{"same", "more", "less", "less/c", "gone", "set"} {
				w.make(t.path(name))
			}
			seen := w.ping().Zxid
			w.make(t.path("more/c"))
			w.delete(t.path("less/c"), -1)
			w.delete(t.path("gone"), -1)
			w.set(t.path("set"), nil, -1)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Child: []string{t.path("same"), t.path("more"), t.path("less"), t.path("gone"), t.path("set")}})
			k.onlyEvents(childrenChanged(t.path("more")), childrenChanged(t.path("less")), deleted(t.path("gone")))
			w.make(t.path("more/d"))
			k.noEvent()
			w.make(t.path("same/c"))
			w.delete(t.path("set"), -1)
			k.event(childrenChanged(t.path("same")), deleted(t.path("set")))
		}),
	check("watches/setWatches, order", ">=3.0",
		"The events of setWatches come before its reply, in the order of the lists data, exist and children, and have zxid -1.",
		func(t *trial, k *conn) {
			k.make(t.path("b"))
			k.sendXid(proto.XidSetWatches, req(proto.OpSetWatches, &proto.SetWatchesRequest{
				Child: []string{t.path(""), t.path("no")}, Exist: []string{t.path("b")}, Data: []string{t.path("nope"), t.path("b")}}))
			for _, want := range []event{
				deleted(t.path("nope")), dataChanged(t.path("b")), created(t.path("b")),
				childrenChanged(t.path("")), deleted(t.path("no")),
			} {
				t.equal("the event's zxid", k.event(want).Zxid, int64(-1))
			}
			f := k.next()
			t.equal("the reply's xid", f.Xid, proto.XidSetWatches)
			k.judge(f, proto.OK)
			t.equal("the reply's body", len(f.Rest), 0)
		}),
	check("watches/setWatches, frames", ">=3.0",
		"Several setWatches in a row, all with xid -8 or with xids of their own, are answered in turn, and their watches add up.",
		func(t *trial, k *conn) {
			var paths []string
			for _, name := range []string{"a", "b", "c"} {
				paths = append(paths, k.create(t.path(name), nil, 0))
			}
			seen := k.ping().Zxid
			k.queueXid(proto.XidSetWatches, req(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[:1]}))
			k.queueXid(proto.XidSetWatches, req(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[1:2]}))
			k.send(req(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: seen, Data: paths[2:]}))
			k.answers(proto.OK, proto.OK, proto.OK)
			for _, p := range paths {
				k.set(p, nil, -1)
				k.event(dataChanged(p))
			}
			k.noEvent()
		}),
	check("watches/checkWatches", ">=3.5",
		"checkWatches of type 1 finds a watch of children, of type 2 one of data or existence, and of type 3 any; if there is none it fails with NoWatcher. It changes nothing.",
		func(t *trial, k *conn) {
			k.watch(opGet(t.path("")), opExists(t.path("missing")))
			k.make(t.path("n"))
			k.watch(opChildren(t.path("n")))
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
			k.make(t.path("n/c"))
			k.event(childrenChanged(t.path("n")))
			t.equal("whether checkWatches finds the watch that fired", k.watches(t.path("n"), watcherAny), false)
		}),
	check("watches/checkWatches, others'", releases.CheckOwnWatches,
		"checkWatches finds only the watches of its own connection.",
		func(t *trial) { checkOthers(t, false) }),
	check("watches/checkWatches, all connections'", releases.CheckAnyWatches,
		"checkWatches finds the watches of other connections too.",
		func(t *trial) { checkOthers(t, true) }),
	check("watches/removeWatches", ">=3.5",
		"removeWatches of type 1 removes a watch of children, and of type 2 one of data or existence, without an event.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n), opChildren(n))
			k.removeWatches(n, watcherData)
			k.want(proto.NoWatcher, opRemoveWatches(n, watcherData))
			k.set(n, nil, -1)
			k.noEvent()
			k.make(n + "/c")
			k.event(childrenChanged(n))
			k.watch(opGet(n), opChildren(n))
			k.removeWatches(n, watcherChildren)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.watch(opExists(t.path("m")))
			k.removeWatches(t.path("m"), watcherData)
			k.make(t.path("m"))
			k.noEvent()
		}),
	check("watches/removeWatches, any", ">=3.5",
		"removeWatches of type 3 removes the watches of both kinds, or the only one.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n), opChildren(n))
			k.removeWatches(n, watcherAny)
			k.make(n + "/c")
			k.set(n, nil, -1)
			k.noEvent()
			k.watch(opChildren(n))
			k.removeWatches(n, watcherAny)
			k.delete(n+"/c", -1)
			k.noEvent()
			k.want(proto.NoWatcher, opRemoveWatches(n, watcherAny))
		}),
	check("watches/removeWatches, others'", ">=3.5",
		"removeWatches does not affect the watches of other connections.",
		func(t *trial, a, b *conn) {
			n := a.create(t.path("n"), nil, 0)
			a.watch(opGet(n))
			b.watch(opGet(n))
			b.removeWatches(n, watcherData)
			a.set(n, nil, -1)
			a.event(dataChanged(n))
			b.noEvent()
		}),
	check("watches/wrong types", ">=3.5",
		"checkWatches and removeWatches of a type that does not exist fail with MarshallingError.",
		func(t *trial, k *conn) {
			for _, watcher := range []int32{0, -1, 6, 1000} {
				k.want(proto.MarshallingError, opCheckWatches(t.path(""), watcher))
				k.want(proto.MarshallingError, opRemoveWatches(t.path(""), watcher))
			}
		}),
}

func eventHeader(t *trial, zxid func(change *wire.Frame) int64) {
	k, w := t.connect(), t.connect()
	n := k.create(t.path("n"), nil, 0)
	k.watch(opGet(n))
	change := w.do(opSet(n, nil, -1))
	e := k.event(dataChanged(n))
	t.equal("the xid", e.Xid, proto.XidEvent)
	t.equal("the error", e.Code, proto.OK)
	t.equal("the zxid", e.Zxid, zxid(change))
	t.equal("the bytes after the record", len(e.Rest), 0)
}

func checkOthers(t *trial, found bool) {
	a, b := t.connect(), t.connect()
	a.watch(opGet(t.path("")), opChildren(t.path("")))
	for _, watcher := range []int32{watcherChildren, watcherData, watcherAny} {
		t.equal("whether the watch is found", b.watches(t.path(""), watcher), found)
	}
	b.want(proto.NoWatcher, opRemoveWatches(t.path(""), watcherAny))
}
