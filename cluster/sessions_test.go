package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestResumedWhileLate resumes a session before it is found late, but the resume is
// applied only afterwards: the session must live on, with its full timeout, and expire
// when its client is silent again.
func TestResumedWhileLate(t *testing.T) {
	t.Parallel() // it waits in real time
	const timeout = 3000
	m := loneMember(t)
	resumed := make(outcome, 1)
	must(t, m, fsm.OpenSession(1, 7, timeout, session.Password{}))
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
		m := alone(t, nil)
		late, tracker := lateSession(t, m)
		m.Propose(fsm.ExpireSession(late, m.engine.Term()+1), m.expiry(tracker, late), nil)
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
	synctest.Test(t, func(t *testing.T) {
		m := loneMember(t)
		late, tracker := lateSession(t, m)
		m.expiry(tracker, late).Lost()
		if m.Touch(7, nil) {
			t.Error("the session was touched")
		}
		until(t, "the end of the session", func() bool { return !m.hasSession(7) })
	})
}

// TestExpire: Expire ends a session even if a client resumes it at that moment, and
// returns ErrNoSession if there is none.
func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := alone(t, nil)
		if err := m.Expire(t.Context(), 7); !errors.Is(err, ErrNoSession) {
			t.Errorf("a session that does not exist: %v", err)
		}
		must(t, m, fsm.OpenSession(1, 7, 60_000, session.Password{}))
		// The resume comes first in the log, and Expire has not seen it.
		write, resumed, expired := make(chan struct{}), make(outcome, 1), make(chan error, 1)
		m.cfg.Memory.SetFault(func() error { <-write; return nil })
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

// TestOnlySureLeaderConfirms: a member confirms a touch only if it is sure to lead.
// A follower never does, and a leader that is cut off stops after its lease,
// although Raft still calls it the leader: another member may have been elected, and may
// end the session. This holds for touches reported by other members and for its own.
func TestOnlySureLeaderConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		m, follower := f.running[lead], f.running[(lead+1)%3]
		openSession(t, m, 7, 30*time.Second, f.running)
		confirms := func(m *Member) bool { return bytes.Equal(m.takeTouches(alive.TouchesNow([]int64{7})), []byte{1}) }
		if !confirms(m) {
			t.Error("the leader does not confirm a touch")
		}
		if confirms(follower) {
			t.Error("a follower confirms a touch")
		}
		f.cutOff(lead, true)
		time.Sleep(m.contacts.Lease + 100*time.Millisecond)
		if m.Role() != "leader" || m.leader.Get().ID != m.cfg.ID {
			t.Fatalf("it is a %s, with leader %d: it must not have noticed yet that it lost the others", m.Role(), m.leader.Get().ID)
		}
		if confirms(m) {
			t.Error("a leader that is cut off confirms a touch of another member")
		}
		over, touched := make(chan struct{}), make(chan bool, 1)
		go func() { touched <- m.Touch(7, over) }()
		time.Sleep(m.contacts.ElectionTimeout / 2)
		if len(touched) > 0 {
			t.Errorf("a leader that is cut off answers a client of its own: %v", <-touched)
		}
		close(over)
		if m.leader.Get().ID != m.cfg.ID {
			t.Fatalf("its leader is %d: it should have waited as the leader", m.leader.Get().ID)
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
		f := newFleet(t, 5)
		was := f.all(func(c *Config) { c.Tick = 10 * time.Millisecond })
		members := f.running
		next, far := (was+1)%5, (was+2)%5
		host := func(i int) string { return string(rune('a' + i)) }
		openSession(t, members[far], 7, timeout, members)
		time.Sleep(time.Second)

		// The old leader does not learn of the election, and the far member learns of it
		// late. Heartbeats answered before keep the old leader sure for a while.
		f.net.SetDelay(func(from, to string) time.Duration {
			switch {
			case from != host(far) && to == host(was):
				return time.Minute
			case from == host(next) && to == host(far):
				return 900 * time.Millisecond // less than a member waits for a connection
			}
			return 0
		})
		synctest.Wait()
		members[next].engine.Campaign(members[next].contacts.Lease)
		until(t, "the new leader is sure", members[next].pulse.holdsLease)
		time.Sleep(100 * time.Millisecond)
		heard, atFar := members[next].nowMs(), members[far].nowMs()
		if !members[far].Touch(7, nil) {
			t.Fatal("the session is not alive")
		}
		until(t, "an answer of the old leader", func() bool {
			return members[far].liveness.Safe(7, atFar, timeout.Milliseconds()) // confirmed since then
		})
		if id := members[far].leader.Get().ID; id != uint64(was+1) {
			t.Fatalf("the far member already knows that %d leads", id)
		}
		if due := members[next].liveness.Deadlines()[0].Deadline; due >= heard+timeout.Milliseconds() {
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
		f := startedFleet(t, 1)
		m := f.running[(leadOf(t, f)+1)%3]
		f.net.SetDelay(func(string, string) time.Duration { return 5 * time.Millisecond })
		var wg sync.WaitGroup
		for id, timeout := range map[int64]time.Duration{7: 100 * time.Millisecond, 8: 300 * time.Millisecond, 9: 900 * time.Millisecond} {
			if timeout >= m.cfg.Tick {
				t.Fatal("the tick is shorter")
			}
			openSession(t, m, id, timeout, nil)
			wg.Go(func() {
				for began := time.Now(); time.Since(began) < 20*time.Second; {
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

// TestTouchBesideLongEntry: while a member sends the leader a long entry over a slow link, its
// clients' touches get there too and are confirmed, so their sessions do not expire. In the
// second case, what was written before a touch is on its way for longer than the member waits
// for an answer, which has to count all the same.
func TestTouchBesideLongEntry(t *testing.T) {
	for _, x := range []struct {
		name  string
		slow  func(n *wires, from, to string)
		entry int
		most  time.Duration // for a touch
	}{
		{"slow writes", func(n *wires, _, _ string) { n.rate.Store(1 << 20) }, 8 << 20, 200 * time.Millisecond},
		{"long buffers", func(n *wires, from, to string) { n.SetBandwidth(from, to, 150<<10) }, 4 << 20, 4 * time.Second},
	} {
		testkit.Bubble(t, x.name, func(t *testing.T) {
			net, leader, m, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			openSession(t, m, 7, 4*time.Second, []*Member{leader, m})
			fill(t, m, "first", 1, 1) // opens its session
			x.slow(net, hostOf(m), hostOf(leader))
			done := make(chan struct{})
			go func() {
				defer close(done)
				fill(t, m, "long", 1, x.entry)
			}()
			for began, over := time.Now(), false; !over; {
				asked := time.Now()
				if !m.Touch(7, nil) {
					t.Errorf("the session has expired after %v", time.Since(began))
					<-done
					return
				}
				if took := time.Since(asked); took > x.most {
					t.Errorf("a touch is confirmed after %v", took)
				}
				select {
				case <-done:
					if took := time.Since(began); took < 8*time.Second {
						t.Errorf("the entry took only %v", took)
					}
					over = true
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
}

// TestPauseAtBegin: the process of a standalone server is paused for 10 s while it gives all sessions their timeouts.
func TestPauseAtBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := storage.NewMemory()
		var pause atomic.Int64
		for _, again := range []bool{false, true} {
			cfg := testConfig("")
			cfg.Memory = disk
			cfg.Trace = &pausedAtBegin{pause: func() {
				if again {
					pause.Store(int64(10 * time.Second))
				}
			}}
			m := New(cfg, fsm.NewReplica())
			mono := m.clock.mono
			m.clock.mono = func() time.Duration { return mono() + time.Duration(pause.Load()) }
			if err := m.Start(); err != nil {
				t.Fatal(err)
			}
			<-m.Ready()
			if !again {
				must(t, m, fsm.OpenSession(1, 7, 4000, session.Password{}))
				must(t, m, fsm.OpenSession(2, 8, 4000, session.Password{}))
			}
			time.Sleep(100 * time.Millisecond)
			if (pause.Load() != 0) != again || !m.hasSession(7) || !m.hasSession(8) {
				t.Errorf("after a pause of %v, in which no client could be heard: session 7 exists: %v, 8: %v", time.Duration(pause.Load()), m.hasSession(7), m.hasSession(8))
			}
			m.Close()
		}
	})
}

// pausedAtBegin is the Trace of a member that is paused when it begins to lead, and one of two sessions has its timeout.
type pausedAtBegin struct {
	untraced
	left  int // sessions that have no timeout yet
	pause func()
}

func (p *pausedAtBegin) Leads(uint64) { p.left = 2 }

func (p *pausedAtBegin) Session(step alive.SessionStep, _ int64, _, _ time.Duration) {
	if step == alive.Restarts && p.left > 0 {
		if p.left--; p.left == 0 {
			p.pause()
		}
	}
}

// lateSession opens session 7 on a member, and has it be found late.
func lateSession(t *testing.T, m *Member) (late *session.Session, tracker *session.Tracker) {
	t.Helper()
	must(t, m, fsm.OpenSession(1, 7, 60_000, session.Password{}))
	all, tracker := m.liveness.LateAt(m.nowMs() + 120_000)
	if len(all) != 1 || m.Touch(7, nil) {
		t.Fatalf("late: %v", all)
	}
	return all[0], tracker
}

// stillClock is a member's clock that stands still, and goes on later. Then the time is as if the machine had been suspended or, if
// jumps is true, as if the process had been paused.
type stillClock struct {
	jumps       bool
	mono        func() time.Duration
	at, skipped atomic.Int64 // at is 0 while it goes
}

func (c *stillClock) now() time.Duration {
	if at := c.at.Load(); at != 0 {
		return time.Duration(at)
	}
	return c.mono() - time.Duration(c.skipped.Load())
}

func (c *stillClock) stop() { c.at.Store(int64(c.now())) }

func (c *stillClock) goOn() {
	if !c.jumps {
		c.skipped.Store(int64(c.mono()) - c.at.Load())
	}
	c.at.Store(0)
}

// TestClockStoodStill: the monotonic clock of a member stands still while nothing reaches it, and meanwhile its client's session
// ends. When it goes on, the member does not know that time has passed. If it can reach the others, it learns it at once. If not, it
// goes on serving clients whose sessions may have ended, as long as it counts on what the leader has heard of them, which is less than
// a third of their timeout, but for no longer than an election timeout. It answers no write and no sync as if the session still lived.
// A member whose process was only paused does not serve them at all.
func TestClockStoodStill(t *testing.T) {
	for n := range 8 {
		who, jumps, cut := []string{"the leader", "a follower"}[n%2], n/2%2 == 1, n/4 == 1 // cut: nor can it reach the others afterwards
		testkit.Bubble(t, fmt.Sprint(who, ", jumps ", jumps, ", cut off ", cut), func(t *testing.T) {
			timeout := 4 * time.Second
			if who == "a follower" {
				timeout = 30 * time.Second
			}
			f, clocks := newFleet(t, 3), make([]stillClock, 3)
			for i := range 3 {
				m := New(f.config(i), fsm.NewReplica())
				clocks[i].mono, clocks[i].jumps = m.clock.mono, jumps
				if m.clock.mono = clocks[i].now; m.Start() != nil {
					t.Fatal("not started")
				}
				f.running[i] = m
			}
			f.whole()
			lead := leadOf(t, f)
			still, other := lead, f.running[(lead+2)%3]
			if who == "a follower" {
				still = (lead + 1) % 3
			}
			const id = 1 << 40
			m := f.running[still]
			most := -time.Nanosecond // how long it serves the client
			switch l := m.contacts.Times; {
			case !jumps && cut:
				most = min(timeout/3, l.ElectionTimeout+160*time.Millisecond)
			case !jumps:
				most = l.Lease
			}
			timeouts := func(m *Member, d time.Duration) {
				m.engine.Configure(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = d, d })
			}
			openSession(t, m, id, timeout, f.running)
			serves := served(m)
			time.Sleep(time.Second)
			if !m.Touch(id, nil) || !serves.Load() {
				t.Fatal("the session is not alive")
			}
			clocks[still].stop()
			f.cutOff(still, cut)
			f.net.Pause(hostOf(m), true)
			if who == "a follower" {
				timeouts(m, time.Hour*1e4) // Raft has its own clock
			}
			began := time.Now()
			until(t, "the session's end", func() bool { return !other.hasSession(id) })
			if took := time.Since(began); took < timeout-m.contacts.Lease {
				t.Errorf("the session has ended after %v", took)
			}
			ended := <-other.proposeRead()
			f.net.Pause(hostOf(m), false)
			clocks[still].goOn()
			timeouts(m, 10*time.Second)
			read := m.proposeRead()
			synctest.Wait() // so that they are not in one entry
			write := m.proposeWrite()
			began = time.Now()
			for time.Since(began) < 10*time.Second {
				over := make(chan struct{})
				time.AfterFunc(time.Millisecond, func() { close(over) })
				if m.Touch(id, over) && serves.Load() && time.Since(began) > most {
					t.Fatalf("it serves the client %v after its clock has gone on", time.Since(began))
				}
				time.Sleep(time.Millisecond)
			}
			f.cutOff(still, false)
			for what, c := range map[string]<-chan int64{"sync": read, "write": write} {
				if zxid := testkit.Receive(t, what, c); zxid != -1 && zxid < ended {
					t.Errorf("a %s was answered from zxid %x; the session has ended with %x", what, zxid, ended)
				}
			}
		})
	}
}

// countedTouches is a leader's Trace that counts the touches that are reported to it.
type countedTouches struct {
	untraced
	heard atomic.Int64
}

func (c *countedTouches) Session(step alive.SessionStep, _ int64, _, _ time.Duration) {
	if step == alive.Heard {
		c.heard.Add(1)
	}
}

// TestPingsOfMany: the clients of very many sessions of one follower ping as seldom as stock clients do, beside others that write
// over a slow link to the leader. No ping waits long, no session expires, and no touch is reported twice.
func TestPingsOfMany(t *testing.T) {
	const timeout, pings = 12 * time.Second, 4
	sessions := 2_500
	if testkit.Thorough {
		sessions = 25_000
	}
	synctest.Test(t, func(t *testing.T) {
		counts := make([]countedTouches, 3)
		f := newFleet(t, 3)
		lead := f.all(func(c *Config) { c.Trace = &counts[c.ID-1] })
		m := f.running[(lead+1)%3]
		f.net.SetBandwidth(hostOf(m), hostOf(f.running[lead]), 1<<20)
		opened := make(propose.Result, sessions)
		for i := range sessions {
			m.Propose(fsm.OpenSession(1, 1<<40+int64(i), int32(timeout.Milliseconds()), session.Password{}), opened, nil)
		}
		for range sessions {
			if err := <-opened; err != nil {
				t.Fatal(err)
			}
		}
		stop, before := make(chan struct{}), counts[lead].heard.Load()
		wait := keepWriting(m, 3, 20*time.Millisecond, stop)
		var clients sync.WaitGroup
		for i := range sessions {
			clients.Go(func() {
				time.Sleep(timeout / 3 * time.Duration(i) / time.Duration(sessions))
				for range pings {
					asked := time.Now()
					if !m.Touch(1<<40+int64(i), nil) || time.Since(asked) > 300*time.Millisecond {
						t.Errorf("a session has expired, or waited for %v", time.Since(asked))
						return
					}
					time.Sleep(timeout / 3)
				}
			})
		}
		clients.Wait()
		close(stop)
		wait()
		if n := counts[lead].heard.Load() - before; n > int64(sessions*pings) {
			t.Errorf("%d touches were reported, of %d", n, sessions*pings)
		}
	})
}

// TestPauseOfAll: all members stand still for 10 s, while touches are on their way. None disconnects its clients for that.
func TestPauseOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paused atomic.Int64
		f := newFleet(t, 3)
		f.net.SetDelay(func(string, string) time.Duration { return time.Millisecond })
		for i := range 3 {
			m := New(f.config(i), fsm.NewReplica())
			mono := m.clock.mono
			m.clock.mono = func() time.Duration { return mono() + time.Duration(paused.Load()) }
			if err := m.Start(); err != nil {
				t.Fatal(err)
			}
			f.running[i] = m
		}
		for _, m := range f.running {
			<-m.Ready()
		}
		m := f.running[(leadOf(t, f)+1)%3]
		must(t, m, fsm.OpenSession(1, 7, 40_000, session.Password{}))
		time.Sleep(5 * time.Second)
		stops := make([]atomic.Int64, 3)
		f.sees(stops)
		for range 2 { // the second one need not wait for the leader
			time.Sleep(time.Second)
			if !m.Touch(7, nil) {
				t.Fatal("the session has expired")
			}
		}
		time.Sleep(60 * time.Millisecond)
		paused.Store(int64(10 * time.Second))
		time.Sleep(5 * time.Second)
		for i := range stops {
			if stops[i].Load() > 0 {
				t.Errorf("member %d has disconnected its clients", i+1)
			}
		}
	})
}

// held breaks each connection over which a member reports touches of these sessions, until the times given.
type held struct {
	peer.Network
	until map[int64]*atomic.Int64 // ns of Unix time
}

func (h held) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := h.Network.Dial(ctx, addr)
	return &heldConn{c, h}, err
}

type heldConn struct {
	net.Conn
	held
}

func (c *heldConn) Write(b []byte) (int, error) {
	for id, until := range c.until {
		if time.Now().UnixNano() < until.Load() && bytes.Contains(b, binary.BigEndian.AppendUint64(nil, uint64(id))) {
			c.Conn.Close()
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(b)
}

// TestSecondReport: two reports of touches take long, together for longer than a follower may wait before it disconnects its
// clients. A touch that comes just after the first report was sent waits for both, so the follower must disconnect. One that comes
// at the end of the first report waits for the second only.
func TestSecondReport(t *testing.T) {
	for _, late := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprint("at the end ", late), func(t *testing.T) { secondReport(t, late) })
	}
}

func secondReport(t *testing.T, late bool) {
	const a, b = 0x7111111111111107, 0x7111111111111108
	f, until := newFleet(t, 3), map[int64]*atomic.Int64{a: {}, b: {}}
	lead := f.all(func(c *Config) { c.Network = held{c.Network, until} })
	i := (lead + 1) % 3
	m := f.running[i]
	for id := range int64(2) {
		must(t, m, fsm.OpenSession(1, a+id, 40_000, session.Password{}))
		m.Touch(a+id, nil)
	}
	time.Sleep(10 * time.Second)
	stops := make([]atomic.Int64, 3)
	f.sees(stops)
	limit := timing.UnheardLimit * m.contacts.ElectionTimeout
	report, then := limit*9/10, 200*time.Millisecond
	if late {
		report = limit * 6 / 10
		then = report - 100*time.Millisecond
	}
	until[a].Store(time.Now().Add(report).UnixNano())
	until[b].Store(time.Now().Add(2 * report).UnixNano())
	m.Touch(a, nil)
	time.Sleep(then)
	m.Touch(b, nil)
	if time.Sleep(limit + 50*time.Millisecond); stops[i].Load() == 0 != late {
		t.Errorf("a follower whose leader does not receive a touch for %v stops serving %d times; the limit is %v", 2*report-then, stops[i].Load(), limit)
	}
}
