package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestNotifier: a notifier tells another member what was committed when it began, and then
// of each entry that is applied here, again if that member does not have it yet. It stops
// with this member's leadership.
func TestNotifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, MemberInfo{1, "a:1", true}, MemberInfo{2, "b:1", false})
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
