package whole

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestReaping: a leader deletes many containers on a slow disk. Sessions expire meanwhile, and when it
// hands over to another member and leads again, clients are answered.
func TestReaping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const containers, write = 40_000, 500 * time.Millisecond
		m := startMembers(t, 3, nil)
		lead := m.leader()
		r := m.connect(lead, 40*time.Second)
		for made := 0; made < containers; {
			var q proto.MultiRequest
			for range 1000 {
				path := fmt.Sprint("/c", made)
				made++
				q.Ops = append(q.Ops,
					proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: proto.FlagContainer}},
					proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: path + "/x", ACL: proto.OpenACL}},
					proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: path + "/x", Version: -1}})
			}
			must(r.Call(proto.OpMulti, &q, nil))(t)
		}
		var slow atomic.Bool
		slow.Store(true)
		for i := range m.configs {
			testhooks.In(&m.configs[i]).Memory.SetFault(func() error {
				if slow.Load() {
					time.Sleep(write)
				}
				return nil
			})
		}
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if _, err := r.Exists("/c0", false); err == proto.NoNode {
				break // it has begun
			}
			if time.Now().After(end) {
				t.Fatal("nothing is deleted")
			}
		}
		const timeout = 4 * time.Second
		other := (lead + 1) % 3
		dead := m.connect(other, timeout)
		check(t, dead.Ping())
		id, began := dead.Session.SessionID, time.Now()
		for alive := true; alive; time.Sleep(50 * time.Millisecond) {
			testhooks.Of(m.servers[lead]).View(func(v *fsm.View) { alive = v.Sessions().Get(id) != nil })
			if took := time.Since(began); took > timeout+5*time.Second {
				t.Fatalf("the session of a dead client goes on for %v", took)
			}
		}
		if _, err := r.Exists(fmt.Sprint("/c", containers-1), false); err != nil {
			t.Fatalf("all is deleted already: %v", err)
		}
		for _, x := range [][2]int{{lead, other}, {other, lead}} {
			// It is refused while no other member has nearly all of the log.
			testkit.Eventually(t, "the handover", func() bool { return m.servers[x[0]].Transfer(t.Context(), uint64(x[1]+1)) == nil })
		}
		again := time.Now()
		for done := false; !done; time.Sleep(100 * time.Millisecond) {
			if nc, err := m.servers[other].Dial("", "", time.Second); err == nil {
				w, err := rawclient.Open(nc, 10*time.Second)
				if err == nil {
					_, err = w.Create("/after", nil, 0)
				}
				nc.Close()
				done = err == nil
			}
			if took := time.Since(again); took > 8*time.Second {
				t.Fatalf("no write is answered %v after it leads again", took)
			}
		}
		slow.Store(false)
	})
}
