package conform

import (
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// life creates a znode, sets it, creates and sets a child, and deletes both.
func (k *conn) life(path string) {
	k.create(path, nil, 0)
	k.set(path, nil, -1)
	k.create(path+"/c", nil, 0)
	k.set(path+"/c", nil, -1)
	k.delete(path+"/c", -1)
	k.delete(path, -1)
}

var persistentChecks = []Check{
	{
		Name: "persistent watches/reply",
		Says: "addWatch is answered with the number 0, whether the znode exists or not.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{t.path(""), t.path("missing")} {
				for _, mode := range []int32{modePersistent, modeRecursive} {
					t.equal("the reply", k.addWatch(p, mode).Body.(*proto.IntReply).N, int32(0))
				}
			}
		},
	},
	{
		Name: "persistent watches/wrong modes",
		Says: "addWatch with a mode other than 0 and 1 fails with MarshallingError and adds nothing.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			for _, mode := range []int32{-1, 2, 3, 1000} {
				k.want(proto.MarshallingError, proto.OpAddWatch, &proto.PathType{Path: t.path(""), Type: mode})
			}
			k.set(t.path(""), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/mode 0",
		Says: "A persistent watch reports changes of the znode's existence, data and children, again and again, but not changes of its children's data.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.addWatch(n, modePersistent)
			for range 2 {
				t.connect().life(n)
				k.event(proto.EventNodeCreated, n)
				k.event(proto.EventNodeDataChanged, n)
				k.event(proto.EventNodeChildrenChanged, n)
				k.event(proto.EventNodeChildrenChanged, n)
				k.event(proto.EventNodeDeleted, n)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/mode 1",
		Says: "A recursive watch reports changes of the existence and data of the znode and of all znodes below it, and never NodeChildrenChanged.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.addWatch(n, modeRecursive)
			for range 2 {
				t.connect().life(n)
				k.event(proto.EventNodeCreated, n)
				k.event(proto.EventNodeDataChanged, n)
				k.event(proto.EventNodeCreated, n+"/c")
				k.event(proto.EventNodeDataChanged, n+"/c")
				k.event(proto.EventNodeDeleted, n+"/c")
				k.event(proto.EventNodeDeleted, n)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/depth",
		Says: "A recursive watch covers any depth, but not a sibling whose name merely starts with the same characters.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.create(t.path("nn"), nil, 0)
			k.addWatch(n, modeRecursive)
			k.create(t.path("nn/x"), nil, 0)
			k.set(t.path("nn"), nil, -1)
			k.noEvent()
			p := n
			for _, name := range []string{"a", "b", "c", "d"} {
				p += "/" + name
				k.create(p, nil, 0)
				k.event(proto.EventNodeCreated, p)
			}
			k.noEvent()
		},
	},
	{
		Name:  "persistent watches/root",
		Says:  "A recursive watch on the root reports changes of every znode.",
		In:    ">=3.6",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			k.addWatch("/", modeRecursive)
			w := t.connect()
			n := w.create(t.path("n"), nil, 0)
			w.create(n+"/c", nil, proto.FlagEphemeral)
			w.closeSession()
			k.event(proto.EventNodeCreated, n)
			k.event(proto.EventNodeCreated, n+"/c")
			k.event(proto.EventNodeDeleted, n+"/c")
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/overlap",
		Says: "If several watches of a connection match a change, the connection gets one event.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.addWatch(t.path(""), modeRecursive)
			k.addWatch(n, modeRecursive)
			k.addWatch(n+"/c", modePersistent)
			k.watchExists(n + "/d")
			k.create(n, nil, 0)
			k.event(proto.EventNodeCreated, n)
			k.create(n+"/c", nil, 0)
			k.event(proto.EventNodeCreated, n+"/c")
			k.create(n+"/d", nil, 0)
			k.event(proto.EventNodeCreated, n+"/d")
			k.set(n+"/c", nil, -1)
			k.event(proto.EventNodeDataChanged, n+"/c")
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/added twice",
		Says: "Adding a watch again changes nothing.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.addWatch(t.path(""), modePersistent)
			k.addWatch(t.path(""), modePersistent)
			k.set(t.path(""), nil, -1)
			k.create(t.path("c"), nil, 0)
			k.event(proto.EventNodeDataChanged, t.path(""))
			k.event(proto.EventNodeChildrenChanged, t.path(""))
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/setACL",
		Says: "setACL does not fire persistent watches.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.addWatch(t.path(""), modePersistent)
			k.addWatch(t.path(""), modeRecursive)
			k.setACL(t.path(""), proto.OpenACL, -1)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/before the own reply",
		Says: "The events of persistent watches, too, come before the reply to the connection's own write.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.addWatch(t.path(""), modeRecursive)
			xid := k.send(proto.OpCreate, &proto.CreateRequest{Path: t.path("n"), ACL: proto.OpenACL})
			t.equal("the kind of the first frame", k.next().Kind, wire.Event)
			t.equal("the xid of the second", k.next().Xid, xid)
		},
	},
	{
		Name: "persistent watches/multi",
		Says: "A persistent watch reports each change in a multi, in order.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.addWatch(t.path(""), modeRecursive)
			k.multi(opCreate(n, nil, 0), opSet(n, nil, -1), opSet(n, nil, -1), opDelete(n, -1))
			for _, e := range []proto.EventType{proto.EventNodeCreated, proto.EventNodeDataChanged, proto.EventNodeDataChanged, proto.EventNodeDeleted} {
				k.event(e, n)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/side by side",
		Says: "A persistent watch and one-shot watches of the same znode coexist: a change gives one event, and the persistent watch stays.",
		In:   releases.WatchesSideBySide,
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.addWatch(n, modePersistent)
			k.watchExists(n)
			k.watchChildren(n)
			for range 3 {
				k.set(n, nil, -1)
				k.event(proto.EventNodeDataChanged, n)
			}
			for range 2 {
				k.create(n+"/c", nil, 0)
				k.event(proto.EventNodeChildrenChanged, n)
				k.delete(n+"/c", -1)
				k.event(proto.EventNodeChildrenChanged, n)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/overwritten by one-shot",
		Says: "A one-shot watch on a znode replaces the connection's persistent one, and is then used up.",
		In:   releases.WatchesOverwrite,
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.addWatch(n, modePersistent)
			k.watchData(n)
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.set(n, nil, -1)
			k.noEvent()
			k.create(n+"/c", nil, 0) // the watch on the children remains
			k.event(proto.EventNodeChildrenChanged, n)
			k.delete(n+"/c", -1)
			k.event(proto.EventNodeChildrenChanged, n)
		},
	},
	{
		Name: "persistent watches/overwrites one-shot",
		Says: "A persistent watch replaces the connection's one-shot watches on the znode.",
		In:   releases.WatchesOverwrite,
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.watchData(n)
			k.addWatch(n, modePersistent)
			for range 3 {
				k.set(n, nil, -1)
				k.event(proto.EventNodeDataChanged, n)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/both modes",
		Says: "A persistent and a recursive watch on one znode coexist: each change gives one event, a child's change also NodeChildrenChanged, and each watch can be removed on its own.",
		In:   releases.WatchesSideBySide,
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.addWatch(n, modePersistent)
			k.addWatch(n, modeRecursive)
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.create(n+"/c", nil, 0)
			k.event(proto.EventNodeCreated, n+"/c")
			k.event(proto.EventNodeChildrenChanged, n)
			k.removeWatches(n, watcherRecursive)
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.delete(n+"/c", -1)
			k.event(proto.EventNodeChildrenChanged, n)
			k.addWatch(n, modeRecursive)
			k.removeWatches(n, watcherPersistent)
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.create(n+"/c", nil, 0)
			k.event(proto.EventNodeCreated, n+"/c")
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/types",
		Says: "In checkWatches and removeWatches, type 4 is a persistent and type 5 a recursive watch; types 1 and 2 are only one-shot watches, and 3 is any watch.",
		In:   releases.PersistentTypes,
		run: func(t *trial) {
			k := t.connect()
			a, b := t.path("a"), t.path("b")
			k.addWatch(a, modePersistent)
			k.addWatch(b, modeRecursive)
			k.watchExists(t.path("c"))
			for _, x := range []struct {
				path string
				want [5]bool
			}{
				{a, [5]bool{false, false, true, true, false}},
				{b, [5]bool{false, false, true, false, true}},
				{t.path("c"), [5]bool{false, true, true, false, false}},
			} {
				var got [5]bool
				for i := range got {
					got[i] = k.watches(x.path, int32(i+1))
					if !x.want[i] {
						k.want(proto.NoWatcher, proto.OpRemoveWatches, &proto.PathType{Path: x.path, Type: int32(i + 1)})
					}
				}
				t.equal("what checkWatches of 1 to 5 finds on "+x.path, got, x.want)
			}
			k.removeWatches(a, watcherPersistent)
			k.removeWatches(b, watcherRecursive)
			k.create(a, nil, 0)
			k.create(b, nil, 0)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/no types",
		Says: "checkWatches and removeWatches of types 4 and 5 fail with MarshallingError.",
		In:   releases.NoPersistentTypes,
		run: func(t *trial) {
			k := t.connect()
			k.addWatch(t.path(""), modePersistent)
			for _, watcher := range []int32{watcherPersistent, watcherRecursive} {
				k.want(proto.MarshallingError, proto.OpCheckWatches, &proto.PathType{Path: t.path(""), Type: watcher})
				k.want(proto.MarshallingError, proto.OpRemoveWatches, &proto.PathType{Path: t.path(""), Type: watcher})
			}
		},
	},
	{
		Name: "persistent watches/removed by halves",
		Says: "removeWatches of type 1 removes the children events of a persistent watch, and that of type 2 the others.",
		In:   releases.NoPersistentTypes,
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.addWatch(n, modePersistent)
			k.removeWatches(n, watcherChildren)
			k.create(n+"/c", nil, 0)
			k.noEvent()
			k.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			k.removeWatches(n, watcherData)
			k.set(n, nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/removed by any",
		Says: "removeWatches of type 3 removes persistent watches as well as one-shot ones.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := t.path("n")
			k.create(n, nil, 0)
			k.addWatch(n, modePersistent)
			k.watchData(n)
			k.removeWatches(n, watcherAny)
			k.set(n, nil, -1)
			k.create(n+"/c", nil, 0)
			k.addWatch(n, modeRecursive)
			k.removeWatches(n, watcherAny)
			k.set(n+"/c", nil, -1)
			k.noEvent()
			k.want(proto.NoWatcher, proto.OpRemoveWatches, &proto.PathType{Path: n, Type: watcherAny})
		},
	},
	{
		Name: "persistent watches/lost with the connection",
		Says: "Persistent watches, too, end with the connection and not with the session.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.addWatch(t.path(""), modePersistent)
			k.addWatch(t.path(""), modeRecursive)
			k.hangUp()
			k = t.resume(k.Session)
			k.set(t.path(""), nil, -1)
			k.create(t.path("n"), nil, 0)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/setWatches2",
		Says: "setWatches2 sets persistent and recursive watches again, without events for changes in the meantime.",
		In:   ">=3.6",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			a, b := t.path("a"), t.path("b")
			w.create(a, nil, 0)
			w.create(b, nil, 0)
			k.restored(proto.OpSetWatches2, &proto.SetWatches2Request{Persistent: []string{a, t.path("gone")}, Recursive: []string{b, t.path("new")}})
			k.noEvent()
			for range 2 {
				w.set(a, nil, -1)
				k.event(proto.EventNodeDataChanged, a)
				w.create(a+"/c", nil, 0)
				k.event(proto.EventNodeChildrenChanged, a)
				w.create(b+"/c", nil, 0)
				k.event(proto.EventNodeCreated, b+"/c")
				w.delete(b+"/c", -1)
				k.event(proto.EventNodeDeleted, b+"/c")
				w.delete(a+"/c", -1)
				k.event(proto.EventNodeChildrenChanged, a)
			}
			w.create(t.path("gone"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("gone"))
			w.create(t.path("new"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("new"))
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/setWatches2, one-shot lists",
		Says: "setWatches2 handles the lists of one-shot watches as setWatches does.",
		In:   ">=3.6",
		run: func(t *trial) {
			k, w := t.connect(), t.connect()
			for _, name := range []string{"set", "same", "child"} {
				w.create(t.path(name), nil, 0)
			}
			seen := w.ping().Zxid
			w.set(t.path("set"), nil, -1)
			w.create(t.path("child/c"), nil, 0)
			k.restored(proto.OpSetWatches2, &proto.SetWatches2Request{SetWatchesRequest: proto.SetWatchesRequest{
				RelativeZxid: seen, Data: []string{t.path("set"), t.path("gone"), t.path("same")},
				Exist: []string{t.path("set"), t.path("missing")}, Child: []string{t.path("child"), t.path("same")}}})
			k.event(proto.EventNodeDataChanged, t.path("set"))
			k.event(proto.EventNodeDeleted, t.path("gone"))
			k.event(proto.EventNodeCreated, t.path("set"))
			k.event(proto.EventNodeChildrenChanged, t.path("child"))
			k.noEvent()
			w.create(t.path("same/c"), nil, 0)
			k.event(proto.EventNodeChildrenChanged, t.path("same"))
			w.set(t.path("same"), nil, -1)
			k.event(proto.EventNodeDataChanged, t.path("same"))
			w.create(t.path("missing"), nil, 0)
			k.event(proto.EventNodeCreated, t.path("missing"))
			w.set(t.path("same"), nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/end of a session",
		Says: "A recursive watch reports every ephemeral znode that is deleted with its session.",
		In:   ">=3.6",
		run: func(t *trial) {
			k, owner := t.connect(), t.connect()
			k.addWatch(t.path(""), modeRecursive)
			want := map[string]bool{}
			for _, name := range []string{"a", "b", "c"} {
				p := owner.create(t.path(name), nil, proto.FlagEphemeral)
				k.event(proto.EventNodeCreated, p)
				want[p] = true
			}
			owner.closeSession()
			for len(want) > 0 {
				e := k.next().Body.(*proto.WatcherEvent)
				t.equal("the event of "+e.Path, e.Type, proto.EventNodeDeleted)
				t.ensure(want[e.Path], "an event of a wrong path, or a second one: %s", e.Path)
				delete(want, e.Path)
			}
			k.noEvent()
		},
	},
	{
		Name: "persistent watches/own connection",
		Says: "Persistent watches belong to their connection: removing those of another connection does not affect them.",
		In:   ">=3.6",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			a.addWatch(t.path(""), modeRecursive)
			b.addWatch(t.path(""), modeRecursive)
			b.removeWatches(t.path(""), watcherAny)
			a.create(t.path("n"), nil, 0)
			a.event(proto.EventNodeCreated, t.path("n"))
			b.noEvent()
		},
	},
}
