package conform

import (
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// life creates a znode, sets it, creates and sets a child, and deletes both.
func (k *conn) life(path string) {
	k.make(path)
	k.set(path, nil, -1)
	k.make(path + "/c")
	k.set(path+"/c", nil, -1)
	k.delete(path+"/c", -1)
	k.delete(path, -1)
}

var persistentChecks = []Check{
	check("persistent watches/reply", ">=3.6",
		"addWatch is answered with the number 0, whether the znode exists or not.",
		func(t *trial, k *conn) {
			for _, p := range []string{t.path(""), t.path("missing")} {
				for _, mode := range []int32{modePersistent, modeRecursive} {
					t.equal("the reply", k.addWatch(p, mode).Body.(*proto.IntReply).N, int32(0))
				}
			}
		}),
	check("persistent watches/wrong modes", ">=3.6",
		"addWatch with a mode other than 0 and 1 fails with MarshallingError and adds nothing.",
		func(t *trial, k *conn) {
			for _, mode := range []int32{-1, 2, 3, 1000} {
				k.want(proto.MarshallingError, opAddWatch(t.path(""), mode))
			}
			k.set(t.path(""), nil, -1)
			k.noEvent()
		}),
	check("persistent watches/mode 0", ">=3.6",
		"A persistent watch reports changes of the znode's existence, data and children, again and again, but not changes of its children's data.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.addWatch(n, modePersistent)
			for range 2 {
				t.connect().life(n)
				k.event(created(n), dataChanged(n), childrenChanged(n), childrenChanged(n), deleted(n))
			}
			k.noEvent()
		}),
	check("persistent watches/mode 1", ">=3.6",
		"A recursive watch reports changes of the existence and data of the znode and of all znodes below it, and never NodeChildrenChanged.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.addWatch(n, modeRecursive)
			for range 2 {
				t.connect().life(n)
				k.event(created(n), dataChanged(n), created(n+"/c"), dataChanged(n+"/c"), deleted(n+"/c"))
				k.event(deleted(n))
			}
			k.noEvent()
		}),
	check("persistent watches/depth", ">=3.6",
		"A recursive watch covers any depth, but not a sibling whose name merely starts with the same characters.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.make(n, t.path("nn"))
			k.addWatch(n, modeRecursive)
			k.make(t.path("nn/x"))
			k.set(t.path("nn"), nil, -1)
			k.noEvent()
			p := n
			for _, name := range []string{"a", "b", "c", "d"} {
				p += "/" + name
				k.make(p)
				k.event(created(p))
			}
			k.noEvent()
		}),
	alone(check("persistent watches/root", ">=3.6",
		"A recursive watch on the root reports changes of every znode.",
		func(t *trial, k *conn) {
			k.addWatch("/", modeRecursive)
			w := t.connect()
			n := w.create(t.path("n"), nil, 0)
			w.create(n+"/c", nil, proto.FlagEphemeral)
			w.closeSession()
			k.onlyEvents(created(n), created(n+"/c"), deleted(n+"/c"))
		})),
	check("persistent watches/overlap", ">=3.6",
		"If several watches of a connection match a change, also the same one added twice, the connection gets one event.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.addWatch(t.path(""), modeRecursive)
			k.addWatch(n, modeRecursive)
			k.addWatch(n+"/c", modePersistent)
			k.addWatch(n+"/c", modePersistent)
			k.watch(opExists(n + "/d"))
			k.make(n)
			k.event(created(n))
			k.make(n + "/c")
			k.event(created(n + "/c"))
			k.make(n + "/d")
			k.event(created(n + "/d"))
			k.set(n+"/c", nil, -1)
			k.onlyEvents(dataChanged(n + "/c"))
		}),
	check("persistent watches/setACL", ">=3.6",
		"setACL does not fire persistent watches.",
		func(t *trial, k *conn) {
			k.addWatch(t.path(""), modePersistent)
			k.addWatch(t.path(""), modeRecursive)
			k.setACL(t.path(""), proto.OpenACL, -1)
			k.noEvent()
		}),
	check("persistent watches/before the own reply", ">=3.6",
		"The events of persistent watches, too, come before the reply to the connection's own write.",
		func(t *trial, k *conn) {
			k.addWatch(t.path(""), modeRecursive)
			xid := k.send(opCreate(t.path("n"), nil, 0))
			t.equal("the kind of the first frame", k.next().Kind, wire.Event)
			t.equal("the xid of the second", k.next().Xid, xid)
		}),
	check("persistent watches/multi", ">=3.6",
		"A persistent watch reports each change in a multi, in order.",
		func(t *trial, k *conn) {
			n := t.path("n")
			k.addWatch(t.path(""), modeRecursive)
			k.multi(opCreate(n, nil, 0), opSet(n, nil, -1), opSet(n, nil, -1), opDelete(n, -1))
			k.onlyEvents(created(n), dataChanged(n), dataChanged(n), deleted(n))
		}),
	check("persistent watches/side by side", releases.WatchesSideBySide,
		"A persistent watch and one-shot watches of the same znode coexist: a change gives one event, and the persistent watch stays.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n))
			k.addWatch(n, modePersistent)
			k.watch(opExists(n), opChildren(n))
			for range 3 {
				k.set(n, nil, -1)
				k.event(dataChanged(n))
			}
			for range 2 {
				k.make(n + "/c")
				k.event(childrenChanged(n))
				k.delete(n+"/c", -1)
				k.event(childrenChanged(n))
			}
			k.noEvent()
		}),
	check("persistent watches/overwritten by one-shot", releases.WatchesOverwrite,
		"A one-shot watch on a znode replaces the connection's persistent one, and is then used up.",
		func(t *trial, k *conn, n string) {
			k.addWatch(n, modePersistent)
			k.watch(opGet(n))
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.set(n, nil, -1)
			k.noEvent()
			k.create(n+"/c", nil, 0) // the watch on the children remains
			k.event(childrenChanged(n))
			k.delete(n+"/c", -1)
			k.event(childrenChanged(n))
		}),
	check("persistent watches/overwrites one-shot", releases.WatchesOverwrite,
		"A persistent watch replaces the connection's one-shot watches on the znode.",
		func(t *trial, k *conn, n string) {
			k.watch(opGet(n))
			k.addWatch(n, modePersistent)
			for range 3 {
				k.set(n, nil, -1)
				k.event(dataChanged(n))
			}
			k.noEvent()
		}),
	check("persistent watches/both modes", releases.WatchesSideBySide,
		"A persistent and a recursive watch on one znode coexist: each change gives one event, a child's change also NodeChildrenChanged, and each watch can be removed on its own.",
		func(t *trial, k *conn, n string) {
			k.addWatch(n, modePersistent)
			k.addWatch(n, modeRecursive)
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.make(n + "/c")
			k.event(created(n+"/c"), childrenChanged(n))
			k.removeWatches(n, watcherRecursive)
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.delete(n+"/c", -1)
			k.event(childrenChanged(n))
			k.addWatch(n, modeRecursive)
			k.removeWatches(n, watcherPersistent)
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.make(n + "/c")
			k.onlyEvents(created(n + "/c"))
		}),
	check("persistent watches/types", releases.PersistentTypes,
		"In checkWatches and removeWatches, type 4 is a persistent and type 5 a recursive watch; types 1 and 2 are only one-shot watches, and 3 is any watch.",
		func(t *trial, k *conn) {
			a, b := t.path("a"), t.path("b")
			k.addWatch(a, modePersistent)
			k.addWatch(b, modeRecursive)
			k.watch(opExists(t.path("c")))
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
						k.want(proto.NoWatcher, opRemoveWatches(x.path, int32(i+1)))
					}
				}
				t.equal("what checkWatches of 1 to 5 finds on "+x.path, got, x.want)
			}
			k.removeWatches(a, watcherPersistent)
			k.removeWatches(b, watcherRecursive)
			k.make(a, b)
			k.noEvent()
		}),
	check("persistent watches/no types", releases.NoPersistentTypes,
		"checkWatches and removeWatches of types 4 and 5 fail with MarshallingError.",
		func(t *trial, k *conn) {
			k.addWatch(t.path(""), modePersistent)
			for _, watcher := range []int32{watcherPersistent, watcherRecursive} {
				k.want(proto.MarshallingError, opCheckWatches(t.path(""), watcher))
				k.want(proto.MarshallingError, opRemoveWatches(t.path(""), watcher))
			}
		}),
	check("persistent watches/removed by halves", releases.NoPersistentTypes,
		"removeWatches of type 1 removes the children events of a persistent watch, and that of type 2 the others.",
		func(t *trial, k *conn, n string) {
			k.addWatch(n, modePersistent)
			k.removeWatches(n, watcherChildren)
			k.make(n + "/c")
			k.noEvent()
			k.set(n, nil, -1)
			k.event(dataChanged(n))
			k.removeWatches(n, watcherData)
			k.set(n, nil, -1)
			k.noEvent()
		}),
	check("persistent watches/removed by any", ">=3.6",
		"removeWatches of type 3 removes persistent watches as well as one-shot ones.",
		func(t *trial, k *conn, n string) {
			k.addWatch(n, modePersistent)
			k.watch(opGet(n))
			k.removeWatches(n, watcherAny)
			k.set(n, nil, -1)
			k.make(n + "/c")
			k.addWatch(n, modeRecursive)
			k.removeWatches(n, watcherAny)
			k.set(n+"/c", nil, -1)
			k.noEvent()
			k.want(proto.NoWatcher, opRemoveWatches(n, watcherAny))
		}),
	check("persistent watches/lost with the connection", ">=3.6",
		"Persistent watches, too, end with the connection and not with the session.",
		func(t *trial, k *conn) {
			k.addWatch(t.path(""), modePersistent)
			k.addWatch(t.path(""), modeRecursive)
			k.hangUp()
			k = t.resume(k.Session)
			k.set(t.path(""), nil, -1)
			k.make(t.path("n"))
			k.noEvent()
		}),
	check("persistent watches/setWatches2", ">=3.6",
		"setWatches2 sets persistent and recursive watches again, without events for changes in the meantime.",
		func(t *trial, k, w *conn) {
			a, b := t.path("a"), t.path("b")
			w.make(a, b)
			k.restored(proto.OpSetWatches2, &proto.SetWatches2Request{Persistent: []string{a, t.path("gone")}, Recursive: []string{b, t.path("new")}})
			k.noEvent()
			for range 2 {
				w.set(a, nil, -1)
				k.event(dataChanged(a))
				w.make(a + "/c")
				k.event(childrenChanged(a))
				w.make(b + "/c")
				k.event(created(b + "/c"))
				w.delete(b+"/c", -1)
				k.event(deleted(b + "/c"))
				w.delete(a+"/c", -1)
				k.event(childrenChanged(a))
			}
			w.make(t.path("gone"))
			k.event(created(t.path("gone")))
			w.make(t.path("new"))
			k.onlyEvents(created(t.path("new")))
		}),
	check("persistent watches/setWatches2, one-shot lists", ">=3.6",
		"setWatches2 handles the lists of one-shot watches as setWatches does.",
		func(t *trial, k, w *conn) {
			for _, name := range []string{"set", "same", "child"} {
				w.make(t.path(name))
			}
			seen := w.ping().Zxid
			w.set(t.path("set"), nil, -1)
			w.make(t.path("child/c"))
			k.restored(proto.OpSetWatches2, &proto.SetWatches2Request{SetWatchesRequest: proto.SetWatchesRequest{
				RelativeZxid: seen, Data: []string{t.path("set"), t.path("gone"), t.path("same")},
				Exist: []string{t.path("set"), t.path("missing")}, Child: []string{t.path("child"), t.path("same")}}})
			k.event(dataChanged(t.path("set")), deleted(t.path("gone")), created(t.path("set")))
			k.onlyEvents(childrenChanged(t.path("child")))
			w.make(t.path("same/c"))
			k.event(childrenChanged(t.path("same")))
			w.set(t.path("same"), nil, -1)
			k.event(dataChanged(t.path("same")))
			w.make(t.path("missing"))
			k.event(created(t.path("missing")))
			w.set(t.path("same"), nil, -1)
			k.noEvent()
		}),
	check("persistent watches/end of a session", ">=3.6",
		"A recursive watch reports every ephemeral znode that is deleted with its session.",
		func(t *trial, k, owner *conn) {
			k.addWatch(t.path(""), modeRecursive)
			want := map[string]bool{}
			for _, name := range []string{"a", "b", "c"} {
				p := owner.create(t.path(name), nil, proto.FlagEphemeral)
				k.event(created(p))
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
		}),
	check("persistent watches/own connection", ">=3.6",
		"Persistent watches belong to their connection: removing those of another connection does not affect them.",
		func(t *trial, a, b *conn) {
			a.addWatch(t.path(""), modeRecursive)
			b.addWatch(t.path(""), modeRecursive)
			b.removeWatches(t.path(""), watcherAny)
			a.make(t.path("n"))
			a.event(created(t.path("n")))
			b.noEvent()
		}),
}
