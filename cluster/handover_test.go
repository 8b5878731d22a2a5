package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
