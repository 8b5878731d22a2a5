package cluster

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// Each test in this file runs Raft, and fails without one of the corrections that
// docs/raft.md lists.

// TestFollowerLearnsCommit: a single write through a follower does not wait until Raft
// tells the follower, 50 to 100 ms later, that the entry is committed.
func TestFollowerLearnsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		follower := members[(lead+1)%3]
		for range 10 {
			time.Sleep(time.Second)
			began, done := time.Now(), make(result, 1)
			follower.Propose(someWrite(), done, nil)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 40*time.Millisecond {
				t.Errorf("a write waited %v", took)
			}
		}
	})
}

// TestStandaloneLeadsAtOnce: a member without peers does not wait an election timeout
// before it leads.
func TestStandaloneLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		loneMember(t)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it serves after %v", took)
		}
	})
}

// TestStandsAfterLostElection: a candidate that was not elected can stand again
// before Raft's election timeout, which is long here, is over.
func TestStandsAfterLostElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		members, lead := threeMembers(t, net, new(testkit.Log))
		m := members[(lead+1)%3]
		time.Sleep(time.Second)
		cutOff(net, members, (lead+1)%3)
		term := m.raft.CurrentTerm()
		for range 3 {
			m.pulse.stand()
			synctest.Wait()
			if now := m.raft.CurrentTerm(); now <= term {
				t.Errorf("it stands again in term %d, after term %d", now, term)
			} else {
				term = now
			}
		}
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

// TestLogNotStored: a leader that cannot store an entry stops with that fault. By
// itself, Raft would make it stand for election again.
func TestLogNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		m := members[lead]
		m.cfg.Memory.SetFault(func() error { // only the first write fails
			m.cfg.Memory.SetFault(nil)
			return syscall.ENOSPC
		})
		m.Propose(someWrite(), make(result, 1), nil)
		select {
		case <-m.Err():
		case <-time.After(time.Minute):
			t.Error("no fault")
		}
	})
}

// TestCandidateFollows: a candidate that lost its election to another one in the same
// term does not report that its own is under way. Raft still calls it a candidate until
// its election timeout is over, if it stood as a leader's chosen successor does.
func TestCandidateFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, elected := lostElection(t)
		if m.Leader() != elected.cfg.ID {
			t.Errorf("it believes that server %d leads", m.Leader())
		}
		if s := m.contacts.state(m.pulse.state()); s.candidate || s.lost {
			t.Errorf("it reports %+v; Raft has it as a %s", s, m.raft.State())
		}
	})
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

// lostElection starts three members, of which one, loser, has lost an election to another
// in the same term, and has followed it since.
func lostElection(t *testing.T) (loser, elected *Member) {
	t.Helper()
	var net *memnet.Network
	for won := false; !won; { // now and then the old leader wins the next election
		net = memnet.New()
		members, lead := threeMembers(t, net, new(testkit.Log))
		loser, elected = members[(lead+1)%3], members[(lead+2)%3]
		old := members[lead]
		time.Sleep(time.Second) // so that all have the whole log
		cutOff(net, members, (lead+1)%3)
		loser.pulse.stand()
		elected.pulse.stand()
		until(t, "another leader", func() bool {
			won = elected.raft.State() == raft.Leader
			return won || old.raft.State() == raft.Leader && old.raft.CurrentTerm() > loser.raft.CurrentTerm()
		})
	}
	if a, b := loser.raft.CurrentTerm(), elected.raft.CurrentTerm(); a != b {
		t.Fatalf("they stood in terms %d and %d", a, b)
	}
	net.Heal()
	time.Sleep(3 * time.Second)
	return loser, elected
}
