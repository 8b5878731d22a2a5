package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// loneMember opens a standalone member without a disk that expires sessions within
// 10 ms after their timeout.
func loneMember(t *testing.T) *Member {
	t.Helper()
	cfg := testConfig("")
	cfg.Tick = 10 * time.Millisecond
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	<-m.Ready()
	until(t, "the entry with the cluster's id", func() bool { return m.identified() != 0 })
	return m
}

func (m *Member) hasSession(id int64) (has bool) {
	m.replica.View(func(v *fsm.View) { has = v.Sessions().Get(id) != nil })
	return has
}

// foundLate reports whether a session that exists was reported late.
func (m *Member) foundLate(id int64) bool {
	return !slices.ContainsFunc(m.Deadlines(), func(b session.Bucket) bool { return slices.Contains(b.Sessions, id) })
}

// TestResumedWhileLate resumes a session before it is found late, but the resume is
// applied only afterwards: the session must live on, with its full timeout, and expire
// when its client is silent again.
func TestResumedWhileLate(t *testing.T) {
	t.Parallel() // it waits in real time
	const timeout = 300
	m := loneMember(t)
	opened, resumed := make(outcome, 1), make(outcome, 1)
	m.Propose(fsm.OpenSession(1, 7, timeout, session.Password{}), opened, nil)
	<-opened

	// Nothing is applied while somebody looks at the state.
	looking, stop := make(chan struct{}), make(chan struct{})
	go m.replica.View(func(*fsm.View) {
		close(looking)
		<-stop
	})
	<-looking
	var none session.Password
	m.Propose(fsm.ResumeSession(2, 7, timeout, none[:]), resumed, nil)
	until(t, "the session is late", func() bool { return m.foundLate(7) })
	time.Sleep(20 * time.Millisecond) // for what the leader does about it
	close(stop)
	if r := <-resumed; r == nil || r.Code != proto.OK {
		t.Fatalf("resumed: %+v", r)
	}
	began := time.Now()
	for time.Since(began) < timeout/2*time.Millisecond {
		if !m.hasSession(7) {
			t.Fatalf("the session was ended %v after it was resumed", time.Since(began))
		}
		time.Sleep(time.Millisecond)
	}
	if !m.Touch(7, nil) {
		t.Fatal("the resumed session counts as late")
	}
	until(t, "the end of the session, whose client is silent again", func() bool { return !m.hasSession(7) })
	if d := time.Since(began); d < 3*timeout/2*time.Millisecond {
		t.Errorf("it ended %v after it was resumed, although it was touched after half of its timeout", d)
	}
}

// TestRefusedExpiry: the expiry of a late session is refused because the term in which
// it was found late is over. The session can then be touched again.
func TestRefusedExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig("")
		cfg.Memory = storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		<-m.Ready()
		opened := make(outcome, 1)
		m.Propose(fsm.OpenSession(1, 7, 60_000, session.Password{}), opened, nil)
		<-opened
		m.liveness.mu.Lock()
		late, tracker := m.liveness.tracker.Late(m.nowMs()+120_000), m.liveness.tracker
		m.liveness.mu.Unlock()
		if len(late) != 1 || m.Touch(7, nil) {
			t.Fatalf("late: %v", late)
		}
		m.Propose(fsm.ExpireSession(late[0], m.raft.CurrentTerm()+1), expiry{m, tracker, late[0]}, nil)
		synctest.Wait()
		if !m.Touch(7, nil) {
			t.Error("the session cannot be touched again")
		}
		if !m.hasSession(7) || m.Expired() != 0 {
			t.Error("the session has ended")
		}
	})
}

// TestLostExpiry: the expiry of a late session is lost, but may still be applied. The
// session cannot be touched again, and is found late again.
func TestLostExpiry(t *testing.T) {
	m := loneMember(t)
	opened := make(outcome, 1)
	m.Propose(fsm.OpenSession(1, 7, 60_000, session.Password{}), opened, nil)
	<-opened
	m.liveness.mu.Lock()
	late, tracker := m.liveness.tracker.Late(m.nowMs()+120_000), m.liveness.tracker
	m.liveness.mu.Unlock()
	expiry{m, tracker, late[0]}.Lost()
	if m.Touch(7, nil) {
		t.Error("the session was touched")
	}
	until(t, "the end of the session", func() bool { return !m.hasSession(7) })
}

// TestExpire: Expire ends a session even if a client resumes it at that moment, and
// returns ErrNoSession if there is none.
func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig("")
		cfg.Memory = storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		<-m.Ready()
		if err := m.Expire(t.Context(), 7); !errors.Is(err, ErrNoSession) {
			t.Errorf("a session that does not exist: %v", err)
		}
		opened, resumed, expired := make(outcome, 1), make(outcome, 1), make(chan error, 1)
		m.Propose(fsm.OpenSession(1, 7, 60_000, session.Password{}), opened, nil)
		<-opened

		// The resume comes first in the log, and Expire has not seen it.
		write := make(chan struct{})
		cfg.Memory.SetFault(func() error { <-write; return nil })
		var none session.Password
		m.Propose(fsm.ResumeSession(2, 7, 60_000, none[:]), resumed, nil)
		synctest.Wait()
		go func() { expired <- m.Expire(t.Context(), 7) }()
		synctest.Wait()
		close(write)
		if r := <-resumed; r.Code != proto.OK {
			t.Errorf("resumed: %v", r.Code)
		}
		if err := <-expired; err != nil || m.hasSession(7) {
			t.Errorf("Expire returned %v, and the session exists: %v", err, m.hasSession(7))
		}
		if err := m.Expire(t.Context(), 7); !errors.Is(err, ErrNoSession) || m.Expired() != 1 {
			t.Errorf("once more: %v, with %d sessions expired", err, m.Expired())
		}
	})
}

// TestResumeNearTimeout resumes many sessions just when they are found late: a client
// whose session was resumed keeps it.
func TestResumeNearTimeout(t *testing.T) {
	t.Parallel() // it waits in real time
	m := loneMember(t)
	for first, timeout := int64(1), int32(600); ; first, timeout = first+nearTimeout, 2*timeout {
		if resumeNearTimeout(t, m, first, timeout) {
			return
		}
	}
}

// nearTimeout is how many sessions resumeNearTimeout opens.
const nearTimeout = 3000

// resumeNearTimeout opens sessions with a timeout in ms, and resumes them just when they are found late. It returns
// false if the machine was so slow that the resumed sessions could end again.
func resumeNearTimeout(t *testing.T, m *Member, first int64, timeout int32) bool {
	const sessions = nearTimeout
	all := make(outcome, sessions)
	for id := range int64(sessions) {
		m.Propose(fsm.OpenSession(1, first+id, timeout, session.Password{}), all, nil)
	}
	for range sessions {
		<-all
	}
	until(t, "most sessions are about to be late", func() bool {
		m.liveness.mu.Lock()
		defer m.liveness.mu.Unlock()
		next, ok := m.liveness.tracker.Next()
		return !ok || next-m.nowMs() < 5
	})
	began := time.Now()
	done := make(chan int64, sessions)
	for id := first; id < first+sessions; id++ {
		var none session.Password
		m.Propose(fsm.ResumeSession(2, id, timeout, none[:]), resumption{id, done}, nil)
	}
	var back []int64
	for range sessions {
		if id := <-done; id != 0 {
			back = append(back, id)
		}
	}
	time.Sleep(time.Duration(timeout) * time.Millisecond / 2) // half of the timeout is left
	var lost []int64
	for _, id := range back {
		if !m.hasSession(id) {
			lost = append(lost, id)
		}
	}
	took := time.Since(began)
	t.Logf("%d of %d sessions of %d ms were resumed, %d ended within %v", len(back), sessions, timeout, len(lost), took)
	if took >= time.Duration(timeout)*time.Millisecond {
		return false
	}
	if len(lost) > 0 {
		t.Errorf("%d of %d resumed sessions were ended", len(lost), len(back))
	}
	return true
}

// resumption reports the id of a session that was resumed, or 0.
type resumption struct {
	id   int64
	done chan int64
}

func (r resumption) Done(_ *fsm.View, res *fsm.Result) {
	if res.Code != proto.OK {
		r.id = 0
	}
	r.done <- r.id
}
func (r resumption) Lost() { r.done <- 0 }

// TestElectedKnowsTooLittle: a new leader confirms no session before it has applied the
// entries of the previous leader, which may close that session. This one is cut off
// right after its election, so it cannot know which entries were committed.
func TestElectedKnowsTooLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		members, lead := threeMembers(t, network, new(testkit.Log))
		to := (lead + 1) % 3
		elected := members[to]
		hosts := []string{"a", "b", "c"}
		won := make(chan struct{})
		// Raft calls the filter itself, before it does anything as the leader.
		o := raft.NewObserver(nil, false, func(o *raft.Observation) bool {
			if state, ok := o.Data.(raft.RaftState); ok && state == raft.Leader {
				for i, h := range hosts {
					if i != to {
						network.Cut(hosts[to], h, true)
						network.Cut(h, hosts[to], true)
					}
				}
				close(won)
			}
			return false
		})
		elected.raft.RegisterObserver(o)
		go members[lead].Change(Request{Transfer: &elected.cfg.ID})
		<-won
		elected.raft.DeregisterObserver(o)
		synctest.Wait()
		if state := elected.raft.State(); state != raft.Leader {
			t.Fatalf("it is a %v", state)
		}
		if elected.lease.surelyLeads() {
			t.Error("it surely leads before it knows what was committed")
		}
		network.Heal()
		until(t, "a leader that knows enough", func() bool {
			return slices.ContainsFunc(members, func(m *Member) bool { return m.lease.surelyLeads() })
		})
	})
}

// TestLeadsAgainWhileExpiring: a leader is about to expire a session, and waits for room in the next entry,
// which is full. A sync is under way, and has not been answered, since the others were silent for a moment.
// Then it leads again. It must begin its term.
func TestLeadsAgainWhileExpiring(t *testing.T) {
	for _, how := range []string{"steps down", "fails to hand over"} {
		t.Run(how, func(t *testing.T) {
			came := false
			for range 10 {
				if synctest.Test(t, func(t *testing.T) { came = leadsAgainWhileExpiring(t, how) }); came || t.Failed() {
					return
				}
			}
			t.Error("the situation does not come about")
		})
	}
}

// leadsAgainWhileExpiring returns false if the situation does not come about: the leader hears of the new term, and
// leads no more, before the session is late; or another member leads then.
func leadsAgainWhileExpiring(t *testing.T, how string) bool {
	f := startedFleet(t, 5)
	a, b := f.running[0], f.running[1]
	until(t, "the first leads", func() bool {
		if f.running[leadOf(t, f)] != a {
			f.running[leadOf(t, f)].membership.handover.to(t.Context(), 1)
		}
		return a.Leader() == 1 && a.raft.begun.Load() != 0
	})
	time.Sleep(3 * time.Second)
	w := make(result, 1)
	a.Propose(fsm.OpenSession(99, 99, 4000, session.Password{}), w, nil)
	if err := <-w; err != nil {
		t.Fatal(err)
	}
	time.Sleep(3800 * time.Millisecond)
	term := a.raft.CurrentTerm()
	switch how {
	case "steps down":
		f.cutBetween(0, 1, true)
	case "fails to hand over": // the other loses its power when it stores the new term
		end := make(chan struct{})
		defer close(end)
		f.disks[1].SetFault(func() error {
			if b.raft.terms.newest.Load() > term {
				f.cutOff(1, true) // before it can tell anyone of the term
				<-end
			}
			return nil
		})
		go a.membership.handover.to(a.peers.ctx, 2)
		until(t, "a new term", func() bool { return b.raft.terms.newest.Load() > term })
	}
	f.cutBetween(0, 2, true)
	cut := time.Now()
	go a.Propose(fsm.Nothing(), make(result, 1), nil)
	synctest.Wait()
	for range 2 {
		go a.Propose(fsm.Reap("/"+strings.Repeat("x", 600_000)), make(result, 1), nil)
	}
	until(t, "the session is late", func() bool { return a.foundLate(99) || a.raft.State() != raft.Leader })
	if a.raft.State() != raft.Leader {
		t.Logf("it leads no more after %v", time.Since(cut))
		return false
	}
	t.Logf("late after %v", time.Since(cut))
	time.Sleep(10 * time.Millisecond)
	if how == "fails to hand over" {
		until(t, "it gives up", func() bool { return a.raft.State() != raft.Leader })
	}
	t.Logf("healed after %v", time.Since(cut))
	f.cutBetween(0, 2, false)
	if how == "steps down" {
		f.cutBetween(0, 1, false)
		if state := a.raft.State(); state != raft.Leader {
			t.Fatal(state)
		}
		a.pulse.stepDown()
	}
	until(t, "another term", func() bool { return a.raft.CurrentTerm() > term })
	time.Sleep(2 * time.Minute)
	t.Logf("leader %d, state %v, term %d, begun %d", a.Leader(), a.raft.State(), a.raft.CurrentTerm(), a.raft.begun.Load())
	if a.raft.State() != raft.Leader {
		return false
	}
	if a.raft.begun.Load() == 0 {
		t.Errorf("the leader has not begun its term two minutes later")
	}
	for _, i := range []int{0, 2} {
		m := f.running[i]
		for what, c := range map[string]*fsm.Command{"write": fsm.OpenSession(uint64(2000+i), int64(2000+i), 1<<30, session.Password{}), "sync": fsm.Nothing()} {
			done := make(result, 1)
			go m.Propose(c, done, nil) // it may wait for room
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("server %d: %s: %v", i+1, what, err)
				}
			case <-time.After(time.Minute):
				t.Errorf("server %d answers no %s", i+1, what)
			}
		}
		select {
		case yes := <-m.Serving():
			if !yes {
				t.Errorf("server %d serves no clients", i+1)
			}
		default:
		}
	}
	if f.running[2].hasSession(99) {
		t.Error("the session has not expired")
	}
	return true
}
