package cluster

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestNotifier: a notifier tells another member what was committed when it began, and then
// of each entry that is applied here, again if that member does not have it yet. It stops
// with this member's leadership.
func TestNotifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		p := b.pulse
		other := openTransport(t, b.net, "b")
		told := func(index uint64, has bool) {
			t.Helper()
			select {
			case rpc := <-other.transport.Consumer():
				q := rpc.Command.(*raft.AppendEntriesRequest)
				if q.Term != 2 || q.LeaderCommitIndex != index || q.PrevLogEntry != index || len(q.Entries) > 0 {
					t.Errorf("%+v, want entry %d", q, index)
				}
				rpc.Respond(&raft.AppendEntriesResponse{Success: has}, nil)
			case <-time.After(time.Second):
				t.Errorf("it is not told of entry %d", index)
			}
		}
		quiet := func() {
			t.Helper()
			select {
			case rpc := <-other.transport.Consumer():
				t.Errorf("it is told %+v", rpc.Command)
			case <-time.After(time.Second):
			}
		}
		n := newNotifier(b.lifecycle, p.raft, p.transport, p.commits)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			n.run(2, stop)
			close(stopped)
		}()
		told(p.raft.CommitIndex(), true)
		quiet()
		p.commits.set(7, 2)
		told(7, false)
		told(7, true)
		quiet()
		p.commits.set(8, 2)
		told(8, true)
		n.changed.raise() // the members have changed, so each is told anew
		told(8, true)
		quiet()
		close(stop)
		receive(t, "its end", stopped)
		p.commits.set(9, 2)
		quiet()
		closeTransport(other)
	})
}

// slowObserver is slow after each entry, so the next one is applied that much later.
type slowObserver struct {
	committing
	each atomic.Int64
}

func (o *slowObserver) Applied(uint64, uint64, int) { time.Sleep(time.Duration(o.each.Load())) }

// TestOthersKnowFirst: the leader tells the others that an entry is committed before it applies the
// entry, and a request that comes to one of them waits for what it has been told, but not for long.
func TestOthersKnowFirst(t *testing.T) {
	has := func(m *Member, id int64) (yes bool) {
		m.replica.View(func(v *fsm.View) { yes = v.Sessions().Get(id) != nil })
		return yes
	}
	start := func(t *testing.T) (f *fleet, leader, follower *Member, slow *slowObserver) {
		f, slow = startedFleet(t, 5), new(slowObserver)
		lead := leadOf(t, f)
		one := (lead + 1) % 3
		f.stop(one)
		replica := fsm.NewReplica()
		replica.Observe(slow)
		m, err := openMember(f.config(one), replica)
		if err != nil {
			t.Fatal(err)
		}
		f.running[one] = m
		f.whole()
		until(t, "a touch", func() bool { return m.Touch(f.acked[0], nil) })
		f.net.SetDelay(func(string, string) time.Duration { return 100 * time.Microsecond })
		time.Sleep(time.Second)
		return f, f.running[lead], m, slow
	}
	t.Run("before the leader applies it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, leader, _, _ := start(t)
			known := uint64(0)
			w := make(result, 1)
			leader.Propose(fsm.OpenSession(98, 98, 1<<30, session.Password{}), cutWhenDone{w, func() { known = leader.known.applied() }}, nil)
			if err := <-w; err != nil {
				t.Fatal(err)
			}
			if last := leader.commits.applied(); known != last {
				t.Errorf("when entry %d was answered, the others were told of %d", last, known)
			}
		})
	})
	for _, x := range []struct {
		each time.Duration
		want bool
	}{{toldWait / 2, true}, {10 * toldWait, false}} {
		t.Run("a follower is slow by "+x.each.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, leader, follower, slow := start(t)
				slow.each.Store(int64(x.each))
				for id := range int64(2) {
					if err := <-f.propose(int(leader.cfg.ID)-1, 98+id); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(400 * time.Microsecond) // until the follower has been told of both
				began := time.Now()
				if !follower.Touch(f.acked[0], nil) {
					t.Fatal("no session")
				}
				if took := time.Since(began); took > toldWait || has(follower, 99) != x.want {
					t.Errorf("after %v the follower has the write: %v", took, !x.want)
				}
				began = time.Now()
				follower.Touch(f.acked[0], nil)
				if took := time.Since(began); took > 0 {
					t.Errorf("the next request waits too, for %v", took)
				}
			})
		})
	}
}
