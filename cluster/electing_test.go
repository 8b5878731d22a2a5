package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestLogEndsAtSnapshot: a member whose log ends before its snapshot reports the
// snapshot's end as the end of its log, which decides who stands for election first.
func TestLogEndsAtSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.snapshot(3)
		for i := range 3 {
			f.stop(i)
		}
		log := f.disks[0].Open().Log
		first, _ := log.FirstIndex()
		last, _ := log.LastIndex()
		if err := log.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}
		m := f.start(0)
		newest, err := m.engine.Storage().NewestSnapshot()
		if err != nil || newest.Index == 0 {
			t.Fatalf("snapshot %+v, %v", newest, err)
		}
		if index, term := m.engine.LogEnd(); index != newest.Index || term != newest.Term {
			t.Errorf("its log ends at %d in term %d, its snapshot at %d in term %d", index, term, newest.Index, newest.Term)
		}
	})
}

// TestElectionBesideStuckSnapshot: of three members, the leader ends while another one's disk is stuck in a snapshot.
// That member's log and its vote can be written, so there is a majority for the third one.
func TestElectionBesideStuckSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, reached := make(chan struct{}), make(chan struct{}, 100)
		defer close(release)
		f, lead := holding(t, 1, func(step string, _ int) {
			if step == "write" {
				reached <- struct{}{}
				<-release
			}
		})
		stop := make(chan struct{})
		wait := keepWriting(f.running[lead], 3, 10*time.Millisecond, stop)
		testkit.Receive(t, "the snapshot", reached)
		close(stop)
		wait()
		time.Sleep(3 * time.Second)
		f.stop(lead)
		if took := f.anotherLeads(lead, 5*time.Minute); took > 10*time.Second {
			t.Errorf("nobody led after %v, although two of three logs can be written", took)
		}
	})
}

// TestStandsAfterLostElection: a candidate that was not elected can stand again
// before Raft's election timeout, which is long here, is over.
func TestStandsAfterLostElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		i := (leadOf(t, f) + 1) % 3
		m := f.running[i]
		time.Sleep(time.Second)
		f.cutOff(i, true)
		term := m.engine.Term()
		for range 3 {
			m.engine.Campaign(m.contacts.Lease)
			synctest.Wait()
			now := m.engine.Term()
			if now <= term {
				t.Errorf("it stands again in term %d, after term %d", now, term)
			}
			term = now
		}
	})
}

// TestCandidateFollows: a candidate that lost its election to another one in the same
// term does not report that its own is under way. Raft still calls it a candidate until
// its election timeout is over, if it stood as a leader's chosen successor does.
func TestCandidateFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, elected := lostElection(t)
		if m.leader.Get().ID != elected.cfg.ID {
			t.Errorf("it believes that server %d leads", m.leader.Get().ID)
		}
		if s := m.contacts.CompleteState(m.pulse.state()); s.Candidate || s.NeedsLeader {
			t.Errorf("it reports %+v; Raft has it as a %s", s, m.engine.Role())
		}
	})
}

// lostElection starts three members, of which one, loser, has lost an election to another
// in the same term, and has followed it since.
func lostElection(t *testing.T) (loser, elected *Member) {
	t.Helper()
	var f *fleet
	for won := false; !won; { // now and then the old leader wins the next election
		f = startedFleet(t, 1)
		lead := leadOf(t, f)
		old := f.running[lead]
		loser, elected = f.running[(lead+1)%3], f.running[(lead+2)%3]
		time.Sleep(time.Second) // so that all have the whole log
		f.cutOff((lead+1)%3, true)
		loser.engine.Campaign(loser.contacts.Lease)
		elected.engine.Campaign(elected.contacts.Lease)
		until(t, "another leader", func() bool {
			won = elected.engine.Role() == engine.Leader
			return won || old.engine.Role() == engine.Leader && old.engine.Term() > loser.engine.Term()
		})
	}
	if a, b := loser.engine.Term(), elected.engine.Term(); a != b {
		t.Fatalf("they stood in terms %d and %d", a, b)
	}
	f.net.Heal()
	time.Sleep(3 * time.Second)
	return loser, elected
}

// TestElectionOnSlowDisks: disks take some hundred milliseconds for each write, as those of virtual machines
// do whose credit is used up. Writes are acknowledged, slowly. When the leader is lost, the two others elect
// a new one.
func TestElectionOnSlowDisks(t *testing.T) {
	for _, x := range []struct{ timeout, slow time.Duration }{{2000, 100}, {2000, 700}, {2000, 800}, {500, 150}, {500, 200}, {200, 50}, {200, 80}} {
		for _, l := range []int{0, 2} {
			testkit.Bubble(t, fmt.Sprint("timeout ", int(x.timeout), " write ", int(x.slow), " leader ", l+1), func(t *testing.T) {
				f := newFleet(t, 3)
				f.all(func(c *Config) { c.ElectionTimeout = x.timeout * time.Millisecond })
				f.handTo(l)
				time.Sleep(5 * time.Second)
				for i := range f.disks {
					f.disks[i].SetFault(func() error { time.Sleep(x.slow * time.Millisecond); return nil })
				}
				for range 10 {
					if !f.write(l) {
						t.Fatal("no write is acknowledged")
					}
				}
				f.stop(l)
				lost := time.Now()
				for time.Since(lost) < 20*x.timeout*time.Millisecond { // two candidates may split the votes more than once
					for i, m := range f.running {
						if m != nil && m.leader.Get().ID == uint64(i+1) && m.pulse.leader.ReadyTerm.Load() != 0 {
							return
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Errorf("no leader after %v", time.Since(lost))
			})
		}
	}
}

// TestTermThatNobodyBegins: the leader's disk is stuck for somewhat more than the election timeout. The member
// that stands for election gets stuck itself when it stores the new term (the two may share a disk), and has
// told the leader that term with the answer to a heartbeat. The leader's disk works again, and the third
// member follows it on: a majority is up, connected, with working disks. It goes on serving, and expires
// sessions, also if the stuck member is ended for good.
func TestTermThatNobodyBegins(t *testing.T) {
	for run := range 8 { // in about half of them, the third member stands first
		testkit.Bubble(t, fmt.Sprint(run), func(t *testing.T) {
			f := startedFleet(t, 5)
			lead := leadOf(t, f)
			l := f.running[lead]
			first, third := (lead+1)%3, (lead+2)%3
			if first > third { // of equals, the one with the lowest id stands first
				first, third = third, first
			}
			f.whole()
			term := l.engine.Term()
			x := f.running[first]
			var once sync.Once
			works, end := make(chan struct{}), make(chan struct{})
			defer close(end)
			f.disks[first].SetFault(func() error {
				if x.engine.NewestTerm() > term {
					once.Do(func() { close(works) })
					<-end
				}
				return nil
			})
			f.disks[lead].SetFault(func() error { <-works; return nil })
			l.Propose(fsm.OpenSession(99, 99, 4000, session.Password{}), make(propose.Result, 1), nil)
			<-works
			time.Sleep(5 * time.Second)
			if run%2 == 1 {
				f.running[first] = nil
				go x.Kill()
			}
			time.Sleep(time.Minute)
			for _, i := range []int{lead, third} {
				if !f.write(i) {
					t.Errorf("server %d acknowledges no write after a minute", i+1)
				}
				if f.running[i].hasSession(99) {
					t.Errorf("server %d: a session of 4 s whose client has been silent for a minute has not expired", i+1)
				}
			}
		})
	}
}

// TestElectedAsObserver: a voter stands for election while its disk writes the list in which it has no vote.
// It is elected, and that must not be the end of its Raft.
func TestElectedAsObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 4)
		const x, lead = 0, 3
		f.handTo(lead)
		time.Sleep(10 * time.Second)
		leader, m := f.running[lead], f.running[x]
		last := leader.engine.LastIndex()
		var release, writing atomic.Bool
		crash := f.crashAtList(leader, last, 1, 2)
		f.disks[x].SetFault(func() error {
			for listed(leader, last) && !release.Load() {
				writing.Store(true)
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		go request.Ask(t.Context(), f.net.Host("operator"), "d:1", request.Request{Add: &proto.Peer{ID: 1, Addr: "a:1", Observer: true}})
		until(t, "the list", writing.Load)
		crash.Store(true)
		f.stop(lead)
		for i := 1; i < 3; i++ {
			f.stop(i)
			f.disks[i].SetFault(nil)
			f.start(i)
		}
		for began := time.Now(); !m.stands() && time.Since(began) < 900*time.Millisecond; {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
		release.Store(true)
		time.Sleep(time.Minute)
		if m.engine.Role() == engine.Ended {
			t.Errorf("its Raft has shut down; its fault: %v", fault(m, 0))
		}
		f.start(lead)
		time.Sleep(10 * time.Minute)
		f.acknowledges(1, 2, 3)
		until(t, "its state", func() bool { return m.engine.StateIndex() == f.running[1].engine.StateIndex() })
	})
}

// TestAllUpAfterRestart: a cluster has grown from one server, whose snapshot is of the time before the others were added. All
// lose power, and elect a leader, and the others crash once more while they write the leader's first entry (or the leader's
// connections break just then, and are refused for 200 ms), and come back at once. The leader sends them no heartbeats, since it has
// not applied the entries that added them, and Raft no entries, since it waits for the answer to a heartbeat. All three are
// up and connected at the end.
func TestAllUpAfterRestart(t *testing.T) {
	for _, how := range []string{"crash", "link"} {
		testkit.Bubble(t, how, func(t *testing.T) {
			f := newFleet(t, 3)
			alone := f.found(1)(0)
			until(t, "a leader", func() bool { return f.running[0].Role() == "leader" })
			f.writes(0, 20)
			f.snapshot(1)
			config := func(i int) Config {
				if i == 0 {
					return alone
				}
				cfg := f.config(i)
				cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(i+1)], "a:1"
				return cfg
			}
			f.open(1, config(1))
			f.open(2, config(2))
			f.whole()
			time.Sleep(10 * time.Second)
			for i := range 3 {
				f.stop(i)
			}
			var known atomic.Pointer[Member]
			var writing [3]atomic.Bool
			var crash, no atomic.Bool
			for i := 1; i < 3; i++ {
				f.disks[i].SetFault(func() error {
					for m := known.Load(); m != nil && known.Load() != nil && m.engine.Role() == engine.Leader; {
						writing[i].Store(true)
						if crash.Load() {
							return errors.New("crashed")
						}
						time.Sleep(time.Millisecond)
					}
					return nil
				})
			}
			alone.Network = refusing{refusing{alone.Network, "b:1", &no}, "c:1", &no}
			f.ledBy(0, &known, config)
			until(t, "the first entry", func() bool { return writing[1].Load() && writing[2].Load() })
			if how == "crash" {
				crash.Store(true)
				f.stop(1)
				f.stop(2)
			} else {
				no.Store(true)
				f.net.HangUp(hostOf(known.Load()), "")
			}
			time.Sleep(200 * time.Millisecond)
			no.Store(false)
			known.Store(nil) // the disks are fast again
			for i := 1; i < 3; i++ {
				f.disks[i].SetFault(nil)
				if how == "crash" {
					f.open(i, config(i))
				}
			}
			time.Sleep(10 * time.Minute)
			f.acknowledges(0, 1, 2)
		})
	}
}

// TestObserverDoesNotStand: three voters, and an observer with a lower id, lose power. Their logs have no
// snapshot, and a write to their disks takes 20 or 80 ms. Two of the voters and the observer come back. The
// observer never had a vote, and does not stand in the way of the voters' election.
func TestObserverDoesNotStand(t *testing.T) {
	for write, starts := range map[time.Duration]int{20 * time.Millisecond: 15, 80 * time.Millisecond: 3} {
		testkit.Bubble(t, write.String(), func(t *testing.T) {
			f := newFleet(t, 4)
			open := func(which ...int) {
				for _, i := range which {
					cfg := f.config(i)
					observe(&cfg, 1)
					f.open(i, cfg)
				}
			}
			open(0, 1, 2, 3)
			f.writes(leadOf(t, f), 20)
			time.Sleep(10 * time.Second)
			for n := range starts + 1 {
				if n > 0 {
					began := time.Now()
					open(0, 1, 2)
					for !f.write(1) && !f.write(2) && time.Since(began) < 10*time.Minute {
					}
					if took := time.Since(began); took > 10*time.Second {
						t.Errorf("two of three voters are up and connected, and nothing is acknowledged for %v", took)
					}
				}
				for i := range 4 {
					f.stop(i)
					f.disks[i].SetFault(func() error { time.Sleep(write); return nil })
				}
			}
		})
	}
}

// TestLaterTermWhileQuiet: when a follower begins a later term while nothing is written, the
// leader learns that with the next heartbeat, and steps down soon after.
func TestLaterTermWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		for range 5 {
			time.Sleep(time.Minute)
			lead := leadOf(t, f)
			leader := f.running[lead]
			term, _ := leader.engine.LeaderTerm()
			leads := func() bool {
				now, leads := leader.engine.LeaderTerm()
				return leads && now == term
			}
			f.running[(lead+1)%3].beginTerm(term + 1)
			time.Sleep(leader.contacts.Beat + time.Millisecond)
			time.Sleep(100 * time.Millisecond) // Raft's time until the next message without entries
			if leads() {
				t.Error("the leader has not stepped down")
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

// TestElectedKnowsTooLittle: a new leader confirms no session before it has applied the
// entries of the previous leader, which may close that session. This one is cut off
// right after its election, so it cannot know which entries were committed.
func TestElectedKnowsTooLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		to := (lead + 1) % 3
		elected := f.running[to]
		won := make(chan struct{})
		// The first that Raft does as the leader is to write an entry.
		f.disks[to].SetFault(func() error {
			if elected.engine.Role() == engine.Leader {
				f.cutOff(to, true)
				close(won)
				f.disks[to].SetFault(nil)
			}
			return nil
		})
		go f.running[lead].membership.Change(request.Request{Transfer: &elected.cfg.ID})
		<-won
		synctest.Wait()
		if state := elected.engine.Role(); state != engine.Leader {
			t.Fatalf("it is a %v", state)
		}
		if elected.pulse.holdsLease() {
			t.Error("it surely leads before it knows what was committed")
		}
		f.net.Heal()
		until(t, "a leader that knows enough", func() bool {
			return slices.ContainsFunc(f.running, func(m *Member) bool { return m.pulse.holdsLease() })
		})
	})
}

// TestLeadsAgainWhileExpiring: a leader is about to expire a session, and waits for room in the next entry,
// which is full. A sync is under way, and has not been answered, since the others were silent for a moment.
// Then it leads again. It must begin its term.
func TestLeadsAgainWhileExpiring(t *testing.T) {
	came := false
	for range 10 {
		if synctest.Test(t, func(t *testing.T) { came = leadsAgainWhileExpiring(t) }); came || t.Failed() {
			return
		}
	}
	t.Error("the situation does not come about")
}

// leadsAgainWhileExpiring returns false if the situation does not come about: the leader leads no more before the session is
// late; or another member leads then.
func leadsAgainWhileExpiring(t *testing.T) bool {
	f := startedFleet(t, 5)
	a := f.running[0]
	f.handTo(0)
	until(t, "its term", func() bool { return a.pulse.leader.ReadyTerm.Load() != 0 })
	time.Sleep(3 * time.Second)
	did(t, a, fsm.OpenSession(99, 99, 4000, session.Password{}))
	time.Sleep(3800 * time.Millisecond)
	term := a.engine.Term()
	f.cutOff(0, true)
	go a.Propose(fsm.Nothing(), make(propose.Result, 1), nil)
	synctest.Wait()
	for range 2 {
		go a.Propose(fsm.Reap("/"+strings.Repeat("x", 600_000)), make(propose.Result, 1), nil)
	}
	until(t, "the session is late", func() bool { return a.foundLate(99) || a.engine.Role() != engine.Leader })
	if a.engine.Role() != engine.Leader {
		return false
	}
	time.Sleep(10 * time.Millisecond)
	f.cutOff(0, false)
	if state := a.engine.Role(); state != engine.Leader {
		t.Fatal(state)
	}
	a.engine.StepDown(a.contacts.Lease)
	until(t, "another term", func() bool { return a.engine.Term() > term })
	time.Sleep(2 * time.Minute)
	if a.engine.Role() != engine.Leader {
		return false
	}
	if a.pulse.leader.ReadyTerm.Load() == 0 {
		t.Errorf("the leader has not begun its term two minutes later")
	}
	for i, m := range f.running {
		for what, c := range map[string]*fsm.Command{"write": someWrite(), "sync": fsm.Nothing()} {
			done := make(propose.Result, 1)
			go m.Propose(c, done, nil) // it may wait for room
			if err := testkit.Receive(t, what, done); err != nil {
				t.Errorf("server %d: %s: %v", i+1, what, err)
			}
		}
	}
	if f.running[2].hasSession(99) {
		t.Error("the session has not expired")
	}
	return true
}

// TestFailoverKeepsClients: the leader is cut off. Clients of the other members keep their
// connections if the first election elects a leader.
func TestFailoverKeepsClients(t *testing.T) {
	for _, x := range []struct {
		timeout, trip time.Duration // in ms
	}{
		{400, 2}, {400, 10}, {200, 2}, {600, 40}, {2000, 98},
	} {
		split := 0
		for k := range 4 {
			testkit.Bubble(t, fmt.Sprint("timeout ", int(x.timeout), " trip ", int(x.trip), " run ", k), func(t *testing.T) {
				f := newFleet(t, 3)
				timeout := x.timeout * time.Millisecond
				f.all(func(c *Config) { c.ElectionTimeout = timeout })
				f.net.SetDelay(func(from, to string) time.Duration { return x.trip * time.Millisecond / 2 })
				stops := make([]atomic.Int64, 3)
				f.sees(stops)
				for i := range f.disks {
					f.disks[i].SetFault(func() error { time.Sleep(2 * time.Millisecond); return nil })
				}
				time.Sleep(10*time.Second + time.Duration(k)*timeout/13)
				lead := leadOf(t, f)
				term := f.running[lead].engine.Term()
				f.cutOff(lead, true)
				time.Sleep(10 * timeout)
				if f.running[(lead+1)%3].engine.Term() > term+1 { // both stood for election at once
					split++
					return
				}
				for i := range stops {
					if i != lead && stops[i].Load() > 0 {
						t.Errorf("server %d has disconnected its clients", i+1)
					}
				}
			})
		}
		if split > 3 {
			t.Error("the first election never elected anybody")
		}
	}
}

// TestStartsSoon: members of a new cluster that start at the same time soon serve clients
// and have their votes.
func TestStartsSoon(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			newFleet(t, 3).all(nil)
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("they are ready after %v", took)
			}
		})
	}
}

// TestObserverRefusesVotes: a leader makes an observer a voter, and stops when only its own disk has the list. The next
// leader's first entry is only on its own disk and the observer's when it stops, for good. Three of four members are up: two of
// the three voters of the list that is committed, and three of the four of the newer one. With slow disks, which seem stuck during
// each attempt of another member, it takes longer, as any election does.
func TestObserverRefusesVotes(t *testing.T) {
	for _, slow := range []time.Duration{0, 1200 * time.Millisecond} {
		testkit.Bubble(t, fmt.Sprintf("each write takes %v", slow), func(t *testing.T) {
			const lead, next, other, observer = 0, 1, 2, 3
			f := newFleet(t, 4)
			f.change = func(c *Config) { observe(c, 4) }
			for i := range 4 {
				f.start(i)
			}
			led := leadOf(t, f)
			f.writes(led, 20)
			time.Sleep(10 * time.Second)
			for i := range 4 {
				f.stop((led + 1 + i) % 4) // the leader last: another one would begin a term
			}
			end, term := uint64(0), uint64(0)
			for i := range 4 {
				s := f.disks[i].Open()
				last, _ := s.LastIndex()
				now, _ := s.Term()
				end, term = max(end, last), max(term, now)
				s.Close()
			}
			all := raft.Configuration{}
			for id := range uint64(4) {
				all.Servers = append(all.Servers, raft.Server{ID: storage.ServerID(id + 1), Address: raft.ServerAddress(f.peers[id+1])})
			}
			list := &raft.Log{Index: end + 1, Term: term + 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(all)}
			first := &raft.Log{Index: end + 1, Term: term + 2, Type: raft.LogNoop}
			for i, x := range []struct {
				term  uint64
				entry *raft.Log
			}{lead: {term + 1, list}, next: {term + 2, first}, other: {term + 2, nil}, observer: {term + 2, first}} {
				s := f.disks[i].Open()
				if last, _ := s.LastIndex(); last != end {
					t.Fatalf("server %d has %d entries, not %d", i+1, last, end)
				}
				if err := s.Stable.SetUint64([]byte("CurrentTerm"), x.term); err != nil {
					t.Fatal(err)
				}
				if x.entry != nil {
					if err := s.Log.StoreLogs([]*raft.Log{x.entry}); err != nil {
						t.Fatal(err)
					}
				}
				s.Close()
			}
			for _, i := range []int{lead, other, observer} {
				f.disks[i].SetFault(func() error { time.Sleep(slow); return nil })
				f.start(i)
			}
			time.Sleep(10 * time.Minute)
			f.acknowledges(lead, other)
		})
	}
}
