package cluster

import (
	"context"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestHandOverTooLate: handover.to on a leader that has not noticed yet that it was
// replaced returns when it notices.
func TestHandOverTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		members, lead := threeMembers(t, net, new(testkit.Log))
		m, other := members[lead], members[(lead+1)%3]
		write := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-write; return nil })
		m.Propose(someWrite(), make(result, 1), nil) // holds Raft up there
		hosts := []string{"a", "b", "c"}
		for _, host := range hosts {
			net.Cut(hosts[lead], host, true)
		}
		for l := other.leader.get(); l.id == 0 || l.id == m.cfg.ID; l = other.leader.get() {
			<-l.changed
		}
		net.Heal()
		time.AfterFunc(m.contacts.sure, func() { close(write) })
		if err := m.membership.handover.to(m.peers.ctx, 0); err != nil {
			t.Error(err)
		}
		if _, l := m.raft.LeaderWithID(); l == "" || l == serverID(m.cfg.ID) {
			t.Errorf("%q leads", l)
		}
	})
}

// TestHandOverBesideStuckRaft: Raft's main goroutine waits for the leader's disk, and so does every transfer
// that it is asked for. Who hands over does not.
func TestHandOverBesideStuckRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = true
		for i := range 3 {
			f.start(i)
		}
		f.whole()
		lead := leadOf(t, f)
		m := f.running[lead]
		stuck := make(chan struct{})
		f.disks[lead].SetFault(func() error { <-stuck; return nil })
		m.Propose(someWrite(), make(result, 1), nil)
		time.Sleep(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- m.membership.handover.to(ctx, 0) }()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Error("it hands over for ever")
		}
		close(stuck)
	})
}

// TestHandOverFails: if the chosen member cannot become the leader, since it is stuck when it stores
// its term, and cut off then, the old leader or the third member accepts entries again soon, and
// not only after Raft's own timeout.
func TestHandOverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		members, lead := threeMembers(t, net, new(testkit.Log))
		m, successor := members[lead], members[(lead+1)%3]
		stuck := make(chan struct{})
		successor.cfg.Memory.SetFault(func() error {
			time.Sleep(time.Millisecond) // it has said that it will stand
			hosts := []string{"a", "b", "c"}
			for _, host := range hosts {
				net.Cut(hosts[(lead+1)%3], host, true)
				net.Cut(host, hosts[(lead+1)%3], true)
			}
			<-stuck
			return nil
		})
		began := time.Now()
		if err := m.membership.handover.to(m.peers.ctx, successor.cfg.ID); err == nil {
			t.Error("a member whose disk is stuck has become the leader")
		}
		for done := false; !done; {
			w := make(result, 1)
			m.Propose(someWrite(), w, nil)
			done = <-w == nil
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("an entry waited %v", took)
		}
		close(stuck)
	})
}

// TestHandOverToLiveMember: a leader does not hand over to a member that is down,
// although its log is as long as the others'.
func TestHandOverToLiveMember(t *testing.T) {
	for _, down := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			net := memnet.New()
			members, lead := threeMembers(t, net, new(testkit.Log))
			m, dead := members[lead], members[(lead+down)%3]
			time.Sleep(time.Second) // so that all have the whole log
			net.Kill(string(rune('a' + (lead+down)%3)))
			if err := dead.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := m.membership.handover.to(m.peers.ctx, 0); err != nil {
				t.Errorf("server %d does not hand over while server %d is down: %v", m.cfg.ID, dead.cfg.ID, err)
			}
		})
	}
}

// TestHandOverToCandidate: a leader hands over to a member that Raft still calls a
// candidate in the election which this leader won.
func TestHandOverToCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, elected := lostElection(t)
		if s := m.raft.State(); s != raft.Candidate {
			t.Fatalf("Raft has the loser as a %s", s)
		}
		if err := elected.membership.handover.to(elected.peers.ctx, m.cfg.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestTimeoutNowUnanswered: a transfer of the leadership to a member that hangs soon fails,
// so that Raft accepts entries again.
func TestTimeoutNowUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader := openTransport(t, net, "leader")
		l, err := net.Host("follower").Listen("follower:1")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(io.Discard, c) // and no answer
				c.Close()
			}
		}()
		began := time.Now()
		var r raft.TimeoutNowResponse
		if err := leader.transport.TimeoutNow("2", "follower:1", new(raft.TimeoutNowRequest), &r); err == nil {
			t.Error("it was not answered, and did not fail")
		}
		if took := time.Since(began); took > leader.contacts.sure {
			t.Errorf("it fails after %v", took)
		}
		l.Close()
	})
}

// TestAwaitReturnEnds: nothing waits for an absent member after a change of the leader, the
// removal of the member, or the end of the leader.
func TestAwaitReturnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := startMembers(t, memnet.New(), new(testkit.Log), 4, time.Second)
		waiting := func(want int) {
			t.Helper()
			time.Sleep(tellAgain + time.Second) // so that Raft has noticed
			synctest.Wait()
			stacks := make([]byte, 4<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if n := strings.Count(string(stacks), "(*transport).awaitReturn("); n != want {
				t.Errorf("%d goroutines wait, want %d", n, want)
			}
		}
		waiting(0)
		absent, other := (lead+1)%4, (lead+2)%4
		if err := members[absent].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(1)
		for range 3 {
			if err := members[lead].membership.handover.to(members[lead].peers.ctx, members[other].cfg.ID); err != nil {
				t.Fatal(err)
			}
			lead, other = other, lead
			waiting(1)
		}
		if _, err := members[lead].Change(Request{Remove: members[absent].cfg.ID}); err != nil {
			t.Fatal(err)
		}
		waiting(0)
		if err := members[other].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(1)
		if err := members[lead].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(0)
	})
}
