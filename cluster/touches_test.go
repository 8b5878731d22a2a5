package cluster

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// openSession opens a session through m and waits until the other members have it.
func openSession(t *testing.T, m *Member, id int64, timeout time.Duration, others []*Member) {
	t.Helper()
	opened := make(outcome, 1)
	m.Propose(fsm.OpenSession(1, id, int32(timeout.Milliseconds()), session.Password{}), opened, nil)
	if r := <-opened; r == nil || r.Code != proto.OK {
		t.Fatalf("open session: %+v", r)
	}
	for _, o := range others {
		until(t, "the session on every member", func() bool { return o.hasSession(id) })
	}
}

// cutOff cuts all links from and to one member.
func cutOff(n *memnet.Network, members []*Member, which int) {
	host := func(i int) string { return string(rune('a' + i)) }
	for i := range members {
		if i != which {
			n.Cut(host(i), host(which), true)
			n.Cut(host(which), host(i), true)
		}
	}
}

// touchMessage is what a member sends the leader about one session.
func touchMessage(number uint64, id int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, number)
	b = binary.BigEndian.AppendUint64(b, uint64(id))
	return binary.BigEndian.AppendUint32(b, 0)
}

// TestOnlySureLeaderConfirms: a member confirms a touch only if it is sure to lead.
// A follower never does, and a leader that is cut off stops after contacts.sure,
// although Raft still calls it the leader: another member may have been elected, and may
// end the session. This holds for touches reported by other members and for its own.
func TestOnlySureLeaderConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		members, lead := threeMembers(t, network, new(testkit.Log))
		m, follower := members[lead], members[(lead+1)%3]
		openSession(t, m, 7, 30*time.Second, members)
		confirms := func(m *Member) bool {
			answer := binary.BigEndian.Uint64(m.takeTouches(touchMessage(5, 7)))
			if answer != 5 && answer != unheardTouches {
				t.Fatalf("the answer is to message %d", answer)
			}
			return answer == 5
		}
		if !confirms(m) {
			t.Error("the leader does not confirm a touch")
		}
		if confirms(follower) {
			t.Error("a follower confirms a touch")
		}
		cutOff(network, members, lead)
		time.Sleep(m.contacts.sure + 100*time.Millisecond)
		if m.Role() != "leader" || m.Leader() != m.cfg.ID {
			t.Fatalf("it is a %s, with leader %d: it must not have noticed yet that it lost the others", m.Role(), m.Leader())
		}
		if confirms(m) {
			t.Error("a leader that is cut off confirms a touch of another member")
		}
		over, touched := make(chan struct{}), make(chan bool, 1)
		go func() { touched <- m.Touch(7, over) }()
		time.Sleep(m.contacts.silence / 2)
		select {
		case ok := <-touched:
			t.Errorf("a leader that is cut off answers a client of its own: %v", ok)
		default:
			close(over)
			<-touched
		}
		if m.Leader() != m.cfg.ID {
			t.Fatalf("its leader is %d: it should have waited as the leader", m.Leader())
		}
	})
}

// TestTouchReportedAgain: a member reports a touch to the old leader, which
// confirms it, after another member was elected and has started its timeouts. When it
// learns of the new leader, it must report the touch again, or the session would
// expire too early.
func TestTouchReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 4 * time.Second
		network := memnet.New()
		members, was := startMembers(t, network, new(testkit.Log), 5, 10*time.Millisecond)
		next, far := (was+1)%5, (was+2)%5
		host := func(i int) string { return string(rune('a' + i)) }
		openSession(t, members[far], 7, timeout, members)
		time.Sleep(time.Second)

		// The old leader does not learn of the election, and the far member learns of it
		// late. Heartbeats answered before keep the old leader sure for a while.
		network.SetDelay(func(from, to string) time.Duration {
			switch {
			case from != host(far) && to == host(was):
				return time.Minute
			case from == host(next) && to == host(far):
				return 900 * time.Millisecond // less than a member waits for a connection
			}
			return 0
		})
		synctest.Wait()
		members[next].pulse.stand()
		until(t, "the new leader is sure", members[next].lease.surelyLeads)
		time.Sleep(100 * time.Millisecond)
		heard, atFar := members[next].nowMs(), members[far].nowMs()
		if !members[far].Touch(7, nil) {
			t.Fatal("the session is not alive")
		}
		until(t, "an answer of the old leader", func() bool {
			members[far].liveness.mu.Lock()
			defer members[far].liveness.mu.Unlock()
			return members[far].liveness.tracker.Safe(7, atFar, timeout.Milliseconds()) // confirmed since then
		})
		if id := members[far].Leader(); id != uint64(was+1) {
			t.Fatalf("the far member already knows that %d leads", id)
		}
		members[next].liveness.mu.Lock()
		due, _ := members[next].liveness.tracker.Next()
		members[next].liveness.mu.Unlock()
		if due >= heard+timeout.Milliseconds() {
			t.Fatal("the new leader has heard of the session already")
		}

		until(t, "the end of the session", func() bool { return !members[next].hasSession(7) })
		if lived := time.Duration(members[next].nowMs()-heard) * time.Millisecond; lived < timeout || lived > timeout+50*time.Millisecond {
			t.Errorf("the session ended %v after it was touched, its timeout is %v", lived, timeout)
		}
	})
}

// TestRecent: touches are kept for the time that they must be, and not for more than twice that.
func TestRecent(t *testing.T) {
	const keep = 4 * time.Second
	var r recent
	for now := int64(0); now < 100_000; now += 250 {
		r.add(map[int64]int64{now: now}, now, keep)
		all := r.with(map[int64]int64{-1: now})
		for at := max(0, now-keep.Milliseconds()); at <= now; at += 250 {
			if all[at] != at {
				t.Fatalf("at %d, the touch of %d is forgotten", now, at)
			}
		}
		if most := 2*keep.Milliseconds()/250 + 4; int64(len(all)) > most || r.empty() || all[-1] != now {
			t.Fatalf("at %d there are %d touches, should be at most %d", now, len(all), most)
		}
	}
}

// TestShortSessions: sessions with timeouts far below a tick, of clients of a follower, do not expire while the clients send
// something three times in a timeout: the follower tells the leader in time. It does so before it answers.
func TestShortSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		members, lead := threeMembers(t, network, new(testkit.Log))
		m := members[(lead+1)%3]
		network.SetDelay(func(string, string) time.Duration { return 5 * time.Millisecond })
		var wg sync.WaitGroup
		for id, timeout := range map[int64]time.Duration{7: 100 * time.Millisecond, 8: 300 * time.Millisecond, 9: 900 * time.Millisecond} {
			if timeout >= m.cfg.Tick {
				t.Fatal("the tick is shorter")
			}
			openSession(t, m, id, timeout, nil)
			wg.Go(func() {
				for began := time.Now(); time.Since(began) < time.Minute; {
					sent := time.Now()
					if !m.Touch(id, nil) {
						t.Errorf("the session of %v has ended", timeout)
						return
					}
					if took := time.Since(sent); took > timeout/3 {
						t.Errorf("with %v an answer takes %v", timeout, took)
						return
					}
					time.Sleep(timeout/3 - time.Since(sent))
				}
			})
		}
		wg.Wait()
	})
}
