package whole

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// restores is an fsm.Observer that counts the snapshots that replace the state.
type restores struct{ n *atomic.Int64 }

func (restores) Changed(*fsm.View, []proto.Change) {}
func (restores) Applied(uint64, uint64, int)       {}
func (restores) Answered()                         {}
func (r restores) Restoring()                      { r.n.Add(1) }
func (restores) Restored()                         {}
func (restores) Failed(error)                      {}

// TestWatchesAcrossSnapshot: a client watches znodes on a member that lags, serves all the time, and gets the changes in the leader's
// snapshot instead of entries. The client sets its watches again, there or on a member that was started again and whose log begins after
// the changes. It gets each event once.
func TestWatchesAcrossSnapshot(t *testing.T) {
	for _, there := range []bool{true, false} {
		var restored [3]atomic.Int64
		inCluster(t, 3, func(c *lockkeeper.Config) {
			c.Limits.SnapshotBytes = 8 << 10
			testhooks.In(c).Observer = restores{&restored[c.ID-1]}
		}, func(t *testing.T, m *members) {
			lead := m.leader()
			late, other := (lead+1)%3, (lead+2)%3
			writer, c := m.connect(lead, 40*time.Second), m.connect(late, 40*time.Second)
			for _, path := range []string{"/data", "/gone", "/parent", "/fill"} {
				must(writer.Create(path, nil, 0))(t)
			}
			must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			must(c.Get("/data", true))(t)
			must(c.Exists("/gone", true))(t)
			if _, err := c.Exists("/new", true); err != proto.NoNode {
				t.Fatal(err)
			}
			must(c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/parent", Watch: true}, nil))(t)
			seen := must(c.Call(proto.OpPing, nil, nil))(t).Zxid
			before := restored[late].Load()

			memory := testhooks.In(&m.configs[late]).Memory
			memory.SetFault(func() error { time.Sleep(1500 * time.Millisecond); return nil })
			must(writer.Set("/fill", nil))(t) // the disk is busy from here on
			time.Sleep(100 * time.Millisecond)
			must(writer.Set("/data", []byte("new")))(t)
			check(t, writer.Delete("/gone"))
			must(writer.Create("/new", nil, 0))(t)
			must(writer.Create("/parent/child", nil, 0))(t)
			for range 100 {
				must(writer.Set("/fill", make([]byte, 1<<10)))(t)
			}
			eventually(t, "the snapshot", func() bool { return restored[late].Load() > before })
			memory.SetFault(nil)

			var events []rawclient.Event
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
				f, err := c.Call(proto.OpPing, nil, nil)
				events = append(events, c.Events...)
				if c.Events = nil; err == nil {
					seen = f.Zxid
					continue
				}
				at := late
				if !there {
					m.stop(other)
					m.start(other)
					at = other
				}
				m.ready(m.servers[at])
				c = must(rawclient.Resume(must(m.servers[at].Dial("", "", time.Minute))(t), c.Session))(t)
				must(c.Call(proto.OpSetWatches, &proto.SetWatchesRequest{
					RelativeZxid: seen, Data: []string{"/data", "/gone"}, Exist: []string{"/new"}, Child: []string{"/parent"},
				}, nil))(t)
			}
			got, want := rawtest.Names(events), []string{"NodeChildrenChanged /parent", "NodeCreated /new", "NodeDataChanged /data", "NodeDeleted /gone"}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("there %v: %v, not %v", there, got, want)
			}
		})
	}
}
