package election

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// three is a cluster of three members. The tests are about the contacts of the first.
var three = []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}}

// look calls Look at now for a member whose state is own.
func look(c *Contacts, now int64, own State) (v Verdict, stand bool) {
	v, _, stand, _ = c.Look(now, three, own)
	return v, stand
}

// following returns the contacts of a member that has just got a heartbeat of member
// 3, the leader of term 5.
func following() (c *Contacts, conn *int) {
	c = NewContacts(1, timing.For(2*time.Second))
	look(c, 1000, State{Term: 5})
	conn = new(int)
	c.Heard(1000, Heartbeat{ID: 3, Term: 5, Conn: conn}, 0, 5)
	return c, conn
}

// TestSilence: a leader is lost when it has been silent for the election timeout, in
// running time.
func TestSilence(t *testing.T) {
	c, _ := following()
	for now := int64(1000); ; now += 100 {
		v, _ := look(c, now, State{Term: 5})
		if v.NoLeader {
			if now != 3000 {
				t.Errorf("lost after %d ms", now-1000)
			}
			break
		}
	}
	c, _ = following()
	if v, _ := look(c, 60_000, State{Term: 5}); v.NoLeader || v.NoMajority {
		t.Error("a member that was paused for a minute has lost the others")
	}
}

// TestSeenLoss: a leader is lost at once when its connection has ended and it refuses
// a new one, or says that it does not lead.
func TestSeenLoss(t *testing.T) {
	for _, x := range []struct {
		name string
		then func(c *Contacts)
		lost bool
	}{
		{"only the connection", func(c *Contacts) {}, false},
		{"refused", func(c *Contacts) { c.Refused(3) }, true},
		{"does not lead", func(c *Contacts) { c.Answered(3, timing.Moment{Real: 1020, Running: 0}, 1020, &State{Term: 5}) }, true},
		{"did not lead at that time", func(c *Contacts) { c.Answered(3, timing.Moment{Real: 1010, Running: 0}, 1020, &State{Term: 5}) }, true},
		{"did not lead before", func(c *Contacts) { c.Answered(3, timing.Moment{Real: 1009, Running: 0}, 1020, &State{Term: 5}) }, false},
		{"leads", func(c *Contacts) {
			c.Answered(3, timing.Moment{Real: 1020, Running: 0}, 1020, &State{Term: 5, Leads: true})
		}, false},
		{"heard again", func(c *Contacts) {
			c.Refused(3)
			c.Heard(1020, Heartbeat{ID: 3, Term: 5, Conn: new(int)}, 0, 5)
		}, false},
	} {
		c, conn := following()
		if c.HungUp(new(int), 1010) {
			t.Errorf("%s: the end of another connection counts", x.name)
		}
		c.Refused(3) // while its connection is still open
		if v, _ := look(c, 1005, State{Term: 5}); v.NoLeader {
			t.Errorf("%s: lost by a refused connection while another one is open", x.name)
		}
		if !c.HungUp(conn, 1010) {
			t.Errorf("%s: the end of its connection does not count", x.name)
		}
		look(c, 1010, State{Term: 5})
		x.then(c)
		if v, _ := look(c, 1030, State{Term: 5}); v.NoLeader != x.lost {
			t.Errorf("%s: NoLeader is %v", x.name, v.NoLeader)
		}
	}
}

// TestBehind: a member is behind when it is not known to have applied everything that
// the leader had applied two election timeouts ago.
func TestBehind(t *testing.T) {
	const limit = 4000
	for _, x := range []struct {
		name    string
		applied func(now int64) uint64 // by this member; the leader applies one entry in a ms
		behind  int64                  // when it is; 0 is never
	}{
		{"up to date", func(now int64) uint64 { return uint64(now) }, 0},
		{"a second behind", func(now int64) uint64 { return uint64(max(0, now-1000)) }, 0},
		{"five seconds behind", func(now int64) uint64 { return uint64(max(1000, now-5000)) }, 1000 + limit},
		{"applies nothing more", func(now int64) uint64 { return uint64(min(now, 3050)) }, 3000 + limit},
		{"more and more slowly", func(now int64) uint64 { return uint64(min(now, 1000+(now-1000)/4)) }, 1300 + limit}, // the last time at which it is known to be up to date is 1300
	} {
		t.Run(x.name, func(t *testing.T) {
			c, conn := following()
			asked := c.Moment(1000).Running
			for now := int64(1000); now < 20_000; now += 50 {
				if now%100 == 0 {
					m := c.Moment(now)
					c.Heard(now, Heartbeat{ID: 3, Term: 5, Conn: conn, Applied: uint64(now), AsOf: asked}, 0, 5)
					asked = m.Running
				}
				v, _ := look(c, now, State{Term: 5, Applied: x.applied(now)})
				if v.Behind != c.Behind(now) {
					t.Fatalf("at %d: behind is %v by look, and %v by itself", now, v.Behind, c.Behind(now))
				}
				if !v.Behind {
					continue
				}
				if x.behind == 0 || now < x.behind-150 || now > x.behind+50 {
					t.Fatalf("it is behind at %d", now)
				}
				if c.CaughtUp(c.Moment(now).Running); c.Behind(now) {
					t.Error("it is behind although it caught up")
				}
				return
			}
			if x.behind != 0 {
				t.Error("it is never behind")
			}
		})
	}
}

const ms = time.Millisecond

// TestMajority: majority returns the latest time that a majority of the voters has
// reached. The member itself, if it is a voter, counts as having reached any time.
func TestMajority(t *testing.T) {
	vote := func(ids ...uint64) (members []proto.Peer) {
		for _, id := range ids {
			members = append(members, proto.Peer{ID: id})
		}
		return members
	}
	observer := func(id uint64) proto.Peer { return proto.Peer{ID: id, Observer: true} }
	for _, x := range []struct {
		name    string
		members []proto.Peer
		times   []int64 // of the members 2, 3 and so on
		want    int64
	}{
		{"nobody", nil, nil, timing.Never},
		{"only itself", vote(1), nil, math.MaxInt64},
		{"two", vote(1, 2), []int64{10}, 10},
		{"three", vote(1, 2, 3), []int64{10, 20}, 20},
		{"four", vote(1, 2, 3, 4), []int64{30, 10, 20}, 20},
		{"five", vote(1, 2, 3, 4, 5), []int64{40, 10, 30, 20}, 30},
		{"an observer beside three", append(vote(1, 2, 3), observer(4)), []int64{10, 20, 99}, 20},
		{"it is an observer beside three", append(vote(2, 3, 4), observer(1)), []int64{10, 20, 30}, 20},
		{"it is not one of three", vote(2, 3, 4), []int64{10, 20, 30}, 20},
	} {
		c := NewContacts(1, timing.For(2*time.Second))
		c.setMembers(x.members)
		for i, at := range x.times {
			c.peers[uint64(i+2)].reached = at
		}
		if got := c.majority(func(p *peer) int64 { return p.reached }); got != x.want {
			t.Errorf("%s: %d, want %d", x.name, got, x.want)
		}
	}
}

// TestRemovedPeer: what is known about a member is forgotten when it is removed.
func TestRemovedPeer(t *testing.T) {
	c, _ := following()
	c.Accepted(2, c.Moment(1000), 0)
	c.setMembers(three[:1])
	if len(c.peers) != 0 {
		t.Errorf("%d peers are left", len(c.peers))
	}
	c.setMembers(three)
	if at := c.peers[2].accepted; at != (timing.Moment{Real: timing.Never, Running: timing.Never}) {
		t.Errorf("a member that was added again has accepted at %v", at)
	}
}

// TestLatestCounts: a delayed answer does not replace a newer one.
func TestLatestCounts(t *testing.T) {
	c := NewContacts(1, timing.For(2*time.Second))
	look(c, 0, State{Term: 5, Leads: true})
	c.Accepted(2, timing.Moment{Real: 200, Running: 190}, 0)
	c.Accepted(2, timing.Moment{Real: 100, Running: 90}, 0)
	c.Answered(3, timing.Moment{Real: 200, Running: 190}, 230, &State{NeedsLeader: true})
	c.Answered(3, timing.Moment{Real: 100, Running: 90}, 240, &State{})
	if p := c.peers[2]; p.accepted != (timing.Moment{Real: 200, Running: 190}) || p.reached != 190 {
		t.Errorf("accepted at %v, reached at %d", p.accepted, p.reached)
	}
	if p := c.peers[3]; p.saidAt != 200 || p.answeredAt != 240 || p.reached != 190 {
		t.Errorf("said at %d, came at %d, reached at %d", p.saidAt, p.answeredAt, p.reached)
	}
	if at := c.LeaseStart(150, three); at != 150 {
		t.Errorf("the lease starts at %d, which is in the future", at)
	}
}

// TestHeartbeats: which heartbeats count, and for which Hear reports a change.
func TestHeartbeats(t *testing.T) {
	other := new(int)
	for _, x := range []struct {
		name   string
		h      Heartbeat
		newest uint64
		counts bool
		news   bool
	}{
		{"the next one", Heartbeat{ID: 3, Term: 5}, 5, true, false},
		{"another connection", Heartbeat{ID: 3, Term: 5, Conn: other}, 5, true, true},
		{"another leader", Heartbeat{ID: 2, Term: 6}, 6, true, true},
		{"a leader of a term that is over", Heartbeat{ID: 2, Term: 5, Conn: other}, 6, false, false},
		{"an earlier leader than the one that it hears", Heartbeat{ID: 2, Term: 4, Conn: other}, 4, false, false},
		{"a leader that waits for its disk", Heartbeat{ID: 3, Term: 5, Stalled: 1999 * ms}, 5, true, false},
		{"a leader whose disk is stuck", Heartbeat{ID: 3, Term: 5, Stalled: 2000 * ms}, 5, true, true},
	} {
		c, conn := following()
		if x.h.Conn == nil {
			x.h.Conn = conn
		}
		if news := c.Heard(1100, x.h, 30*ms, x.newest); news != x.news {
			t.Errorf("%s: hear reports a change: %v", x.name, news)
		}
		ran := c.Moment(1100).Running
		h := c.heard
		if counts := h.cameRan == ran; counts != x.counts {
			t.Errorf("%s: counts is %v", x.name, counts)
		}
		if x.counts && (h.ID != x.h.ID || h.Term != x.h.Term || h.leaseStart != ran-30 || c.peers[x.h.ID].reached != ran) {
			t.Errorf("%s: %+v", x.name, h)
		}
		if x.h.Stalled >= 2*time.Second && !c.Heard(1200, Heartbeat{ID: 3, Term: 5, Conn: conn}, 0, 5) {
			t.Errorf("%s: hear does not report that the disk works again", x.name)
		}
	}
}

// TestReportedState: the state that a member with a leader in term 5 reports to others.
func TestReportedState(t *testing.T) {
	for _, x := range []struct {
		name      string
		own, want State
	}{
		{"it follows", State{Term: 5}, State{Term: 5}},
		{"a later term has begun", State{Term: 6}, State{Term: 6, NeedsLeader: true}},
		{"it leads a later term", State{Term: 6, Leads: true}, State{Term: 6, Leads: true}},
		{"it leads that term", State{Term: 5, Leads: true}, State{Term: 5, Leads: true}},
		{"it led an earlier term", State{Term: 4, Leads: true}, State{Term: 4}},
		{"it stands in that term", State{Term: 5, Candidate: true}, State{Term: 5}},
		{"it stands in a later term", State{Term: 6, Candidate: true}, State{Term: 6, Candidate: true, NeedsLeader: true}},
	} {
		c, _ := following()
		if got := c.CompleteState(x.own); got != x.want {
			t.Errorf("%s: it reports %+v, want %+v", x.name, got, x.want)
		}
	}
	c := NewContacts(1, timing.For(2*time.Second))
	if got := c.CompleteState(State{}); !got.NeedsLeader {
		t.Error("a member that never heard a leader does not report it as lost")
	}
	c, conn := following()
	c.Heard(1000, Heartbeat{ID: 3, Term: 5, Conn: conn, Stalled: 2 * time.Second}, 0, 5)
	if got := c.CompleteState(State{Term: 5}); !got.NeedsLeader {
		t.Error("a member whose leader cannot write does not report it as lost")
	}
}

var five = append(slices.Clone(three), proto.Peer{ID: 4}, proto.Peer{ID: 5})

// standing is a situation in which a member may stand for election: self is one of
// members, and member 3, the leader of term 5, refuses connections from 1010 on.
type standing struct {
	self    uint64
	members []proto.Peer
	own     State
	says    map[uint64]State // what the others answer, at once each time
	refused []uint64         // likewise, beside member 3
}

// after returns after how many ms the member first stands, or -1 if it does not
// within two seconds.
func (x *standing) after(t *testing.T) int64 {
	t.Helper()
	c := NewContacts(x.self, timing.For(2*time.Second))
	c.Look(1000, x.members, x.own)
	conn := new(int)
	c.Heard(1000, Heartbeat{ID: 3, Term: 5, Conn: conn}, 0, 5)
	c.HungUp(conn, 1010)
	c.Look(1010, x.members, x.own)
	for _, id := range append(x.refused, 3) {
		c.Refused(id)
	}
	for now := int64(1010); now < 3000; now++ {
		for id, s := range x.says {
			c.Answered(id, timing.Moment{Real: now, Running: 0}, now, &s)
		}
		if _, _, stand, _ := c.Look(now, x.members, x.own); stand {
			return now - 1010
		}
	}
	return -1
}

// TestWhenItStands: when a member stands for election, for each rule on its own and
// at its limit.
func TestWhenItStands(t *testing.T) {
	own := State{Term: 5, LastTerm: 5, LastIndex: 10}
	lost := own
	lost.NeedsLeader = true
	with := func(s State, change func(s *State)) State {
		change(&s)
		return s
	}
	const never = -1
	for _, x := range []struct {
		name string
		standing
		want int64
	}{
		{"it is the first of two", standing{1, three, own, map[uint64]State{2: lost}, nil}, 0},
		{"it is the second of two", standing{2, three, own, map[uint64]State{1: lost}, nil}, 150},
		{"it is the second, but has one entry more", standing{2, three, own, map[uint64]State{1: with(lost, func(s *State) { s.LastIndex = 9 })}, nil}, 0},
		{"it is the second, but has a later last entry", standing{2, three, own, map[uint64]State{1: with(lost, func(s *State) { s.LastTerm, s.LastIndex = 4, 11 })}, nil}, 0},
		{"it is the third of three", standing{4, five, own, map[uint64]State{1: lost, 2: lost}, []uint64{5}}, 300},
		{"two of five are not a majority", standing{1, five, own, map[uint64]State{2: lost}, []uint64{4, 5}}, never},
		{"one of five has not answered", standing{1, five, own, map[uint64]State{2: lost, 4: lost}, nil}, 100},
		{"one of five has an election", standing{1, five, own, map[uint64]State{2: lost, 4: with(lost, func(s *State) { s.Candidate = true })}, []uint64{5}}, 300},
		{"one of five knows a later term", standing{1, five, own, map[uint64]State{2: lost, 4: with(lost, func(s *State) { s.Term = 6 })}, []uint64{5}}, 300},
		{"one of five leads this term", standing{1, five, own, map[uint64]State{2: lost, 4: lost, 5: {Leads: true, Term: 5}}, nil}, never},
		{"one of five led a term before", standing{1, five, own, map[uint64]State{2: lost, 4: lost, 5: {Leads: true, Term: 4}}, nil}, 0},
		{"one of five leads and almost cannot write", standing{1, five, own, map[uint64]State{2: lost, 4: lost, 5: {Leads: true, Term: 5, Stalled: 1999 * ms}}, nil}, never},
		{"one of five leads and cannot write", standing{1, five, own, map[uint64]State{2: lost, 4: lost, 5: {Leads: true, Term: 5, Stalled: 2000 * ms}}, nil}, 0},
		{"its disk is slow", standing{1, three, with(own, func(s *State) { s.Stalled = 999 * ms }), map[uint64]State{2: lost}, nil}, 0},
		{"its disk is too slow", standing{1, three, with(own, func(s *State) { s.Stalled = 1000 * ms }), map[uint64]State{2: lost}, nil}, never},
		{"the other's disk is slow", standing{1, three, own, map[uint64]State{2: with(lost, func(s *State) { s.Stalled = 999 * ms })}, nil}, 0},
		{"the other's disk is too slow", standing{1, three, own, map[uint64]State{2: with(lost, func(s *State) { s.Stalled = 1000 * ms })}, nil}, never},
		{"it does not vote", standing{4, append(slices.Clone(three), proto.Peer{ID: 4, Observer: true}), own, map[uint64]State{1: lost, 2: lost}, nil}, never},
		{"it is not a member", standing{4, three, own, map[uint64]State{1: lost, 2: lost}, nil}, never},
		{"observers do not count", standing{1, append(slices.Clone(three), proto.Peer{ID: 4, Observer: true}), own, map[uint64]State{4: lost}, []uint64{2}}, never},
	} {
		if got := x.after(t); got != x.want {
			t.Errorf("%s: it stands after %d ms, want %d", x.name, got, x.want)
		}
	}
}

// TestStandsAgain: how long a member waits for the result of its own previous
// election, or another member's, before it stands again.
func TestStandsAgain(t *testing.T) {
	c, _ := following()
	own, lost := State{Term: 6}, State{Term: 6, NeedsLeader: true}
	c.Refused(3)
	var stood []int64
	run := func(from, to int64) {
		for now := from; now < to; now++ {
			c.Answered(2, timing.Moment{Real: now, Running: 0}, now, &lost)
			if _, stand := look(c, now, own); stand {
				stood = append(stood, now)
			}
		}
	}
	run(1010, 40_000)
	if len(stood) < 8 {
		t.Fatalf("it stood at %v", stood)
	}
	// Half of the election timeout and up to 75 ms, then more and more, and up to half of it.
	for i, want := range []int64{1000, 2000, 3000, 4000, 5000, 5000, 5000} {
		most := int64(1000)
		if i == 0 {
			most = 75
		}
		if gap := stood[i+1] - stood[i]; gap < want || gap > want+most {
			t.Errorf("it stood %d ms after the last time, want %d", gap, want)
		}
	}

	// After another member was elected and lost, the waits begin again.
	c.Heard(40_000, Heartbeat{ID: 2, Term: 6, Conn: new(int)}, 0, 6)
	look(c, 40_000, own)
	stood = nil
	own.Term, lost.Term = 7, 7
	look(c, 40_100, own) // a new term: somebody may be standing in it
	run(40_100, 43_000)
	if len(stood) != 2 || stood[0] < 41_100 || stood[0] > 41_175 || stood[1]-stood[0] > 1075 {
		t.Errorf("it stood at %v, in a term that began at 40100", stood)
	}
}

// TestLossesApart: when a member loses the leader a second time, it gives the members that
// should stand first their full time again, counted from the second loss.
func TestLossesApart(t *testing.T) {
	c := NewContacts(2, timing.For(2*time.Second))
	own, lost := State{Term: 5}, State{Term: 5, NeedsLeader: true}
	first := int64(-1)
	for now := int64(1000); now < 2000 && first < 0; now++ {
		if now < 1010 || now >= 1100 && now < 1110 {
			c.Heard(now, Heartbeat{ID: 3, Term: 5, Conn: new(int)}, 0, 5)
		} else if now == 1010 || now == 1110 {
			c.HungUp(c.heard.Conn, now)
			look(c, now, own)
			c.Refused(3)
		}
		c.Answered(1, timing.Moment{Real: now, Running: 0}, now, &lost)
		if _, stand := look(c, now, own); stand {
			first = now
		}
	}
	if first != 1110+150 {
		t.Errorf("it stands at %d", first)
	}
}

// TestWaitsAgain: after a moment in which a member may not stand, it gives the members
// that should stand first their full time again.
func TestWaitsAgain(t *testing.T) {
	for name, between := range map[string]func(c *Contacts, now int64, own *State){
		"its disk is slow": func(_ *Contacts, _ int64, own *State) { own.Stalled = time.Second },
		"another leads": func(c *Contacts, now int64, _ *State) {
			c.Answered(4, timing.Moment{Real: now, Running: 0}, now, &State{Leads: true, Term: 5})
		},
		"the others have a leader": func(c *Contacts, now int64, _ *State) {
			c.Answered(1, timing.Moment{Real: now, Running: 0}, now, &State{Term: 5})
		},
	} {
		c := NewContacts(2, timing.For(2*time.Second))
		lost := State{Term: 5, NeedsLeader: true}
		c.Heard(1000, Heartbeat{ID: 3, Term: 5, Conn: t}, 0, 5)
		c.HungUp(t, 1005)
		stood := int64(-1)
		for now := int64(1010); now < 2000 && stood < 0; now++ {
			own := State{Term: 5}
			for _, id := range []uint64{1, 4} {
				c.Answered(id, timing.Moment{Real: now, Running: 0}, now, &lost)
			}
			c.Refused(3)
			c.Refused(5)
			if now >= 1100 && now < 1110 {
				between(c, now, &own)
			}
			if _, _, stand, _ := c.Look(now, five, own); stand {
				stood = now
			}
		}
		if stood != 1110+150 {
			t.Errorf("%s: it stands at %d", name, stood)
		}
	}
}

// TestTrouble: trouble begins when no majority has answered for half of the election
// timeout. A member that refused a connection before that may be back.
func TestTrouble(t *testing.T) {
	c, _ := following()
	c.Refused(2)
	for now := int64(1000); now <= 2000; now += 10 {
		look(c, now, State{Term: 5})
		if c.Troubled() != (now == 2000) || c.peers[2].refused == (now == 2000) {
			t.Errorf("after %d ms: troubled %v, member 2 refused %v", now-1000, c.Troubled(), c.peers[2].refused)
		}
	}

	c = NewContacts(1, timing.For(2*time.Second))
	leads := State{Term: 5, Leads: true}
	look(c, 1000, leads)
	c.Refused(2)
	for now := int64(1000); now <= 2000; now += 10 {
		look(c, now, leads)
	}
	if !c.Troubled() || !c.peers[2].refused {
		t.Errorf("a leader: troubled %v, member 2 refused %v", c.Troubled(), c.peers[2].refused)
	}
}

// TestStuck: a member whose disk has been stuck for the election timeout while the
// leader keeps working.
func TestStuck(t *testing.T) {
	for _, x := range []struct {
		own  State
		want bool
	}{
		{State{Term: 5, Stalled: 1999 * ms}, false},
		{State{Term: 5, Stalled: 2000 * ms}, true},
		{State{Term: 6, Stalled: 2000 * ms}, false},              // it has no leader
		{State{Term: 6, Stalled: 2000 * ms, Leads: true}, false}, // the other members replace it
	} {
		c, _ := following()
		if v, _ := look(c, 1010, x.own); v.Stuck != x.want {
			t.Errorf("%+v: stuck is %v", x.own, v.Stuck)
		}
	}
}

// TestRefusedByThree: when a member of a cluster of five considers the majority lost
// because connections are refused.
func TestRefusedByThree(t *testing.T) {
	for _, x := range []struct {
		name    string
		leads   bool
		refused []uint64
		want    bool
	}{
		{"a leader that two refuse", true, []uint64{2, 4}, false},
		{"a leader that three refuse", true, []uint64{2, 4, 5}, true},
		{"a follower that three refuse, but not the leader", false, []uint64{2, 4, 5}, false},
	} {
		c := NewContacts(1, timing.For(2*time.Second))
		own := State{Term: 5, Leads: x.leads}
		c.Look(1000, five, own)
		if !x.leads {
			c.Heard(1000, Heartbeat{ID: 3, Term: 5, Conn: t}, 0, 5)
			c.Look(1000, five, own)
		}
		for _, id := range x.refused {
			c.Refused(id)
		}
		c.Look(1010, five, own)
		if v, _, _, _ := c.Look(1310, five, own); v.NoMajority != x.want {
			t.Errorf("%s: without a majority is %v", x.name, v.NoMajority)
		}
	}

	c := NewContacts(1, timing.For(2*time.Second))
	own := State{Term: 5, Leads: true}
	at := func(now int64) bool {
		v, _, _, _ := c.Look(now, five, own)
		return v.NoMajority
	}
	for now := int64(1000); now < 1200; now += 100 {
		for _, id := range []uint64{2, 4, 5} {
			c.Refused(id)
		}
		at(now)
	}
	c.Accepted(2, c.Moment(1200), 0)
	at(1200)
	c.Refused(2)
	if at(1250) || at(1549) || !at(1550) {
		t.Error("it does not wait again for a member that came back for a moment")
	}
}

// TestOldAnswers: an answer counts for 300 ms, if the question was sent after trouble
// began.
func TestOldAnswers(t *testing.T) {
	for _, x := range []struct {
		asked, came, now int64
		want             bool
	}{
		{1010, 1010, 1310, true},
		{1010, 1010, 1311, false},
		{1009, 1010, 1020, false},
		{1010, 1300, 1600, true},
	} {
		c, conn := following()
		own := State{Term: 5, LastTerm: 5, LastIndex: 10}
		look(c, 1005, own)
		c.HungUp(conn, 1010)
		look(c, 1010, own)
		c.Refused(3)
		c.Answered(2, timing.Moment{Real: x.asked, Running: 0}, x.came, &State{NeedsLeader: true, Term: 5, LastTerm: 5, LastIndex: 9})
		if _, stand := look(c, x.now, own); stand != x.want {
			t.Errorf("asked at %d and answered at %d: it stands at %d: %v", x.asked, x.came, x.now, stand)
		}
		if _, stand := look(c, x.now+200, own); stand {
			t.Errorf("asked at %d and answered at %d: it stands at %d", x.asked, x.came, x.now+200)
		}
	}
}

// TestNoMajority: a leader has lost the majority when none has followed it for the
// election timeout; a follower has lost it when its leader has.
func TestNoMajority(t *testing.T) {
	for _, x := range []struct {
		name  string
		leads bool
		ago   func(now int64) time.Duration // when the leader that it hears had a majority
		want  func(now int64) bool
	}{
		{"a leader that nobody follows", true, nil, func(now int64) bool { return now >= 3000 }},
		{"a follower of a leader with a majority", false, func(int64) time.Duration { return 0 }, func(int64) bool { return false }},
		{"a follower of a leader without one", false, func(now int64) time.Duration { return time.Duration(now-1000) * ms }, func(now int64) bool { return now >= 3000 }},
	} {
		c := NewContacts(1, timing.For(2*time.Second))
		own := State{Term: 5, Leads: x.leads}
		c.Look(1000, five, own)
		conn := new(int)
		for now := int64(1000); now <= 3100; now += 10 {
			if x.ago != nil {
				c.Heard(now, Heartbeat{ID: 3, Term: 5, Conn: conn}, x.ago(now), 5)
			}
			if v, _, _, _ := c.Look(now, five, own); v.NoMajority != x.want(now) {
				t.Errorf("%s: without a majority after %d ms: %v", x.name, now-1000, v.NoMajority)
			}
		}
	}
}

// TestTimes: a member's time limits are derived from the election timeout, and a
// pause of the process counts as at most a quarter of it.
func TestTimes(t *testing.T) {
	for election, want := range map[time.Duration]timing.Times{
		2 * time.Second: {ElectionTimeout: 2 * time.Second, Lease: 300 * ms, Beat: 100 * ms},
		300 * ms:        {ElectionTimeout: 300 * ms, Lease: 150 * ms, Beat: 75 * ms},
		2 * ms:          {ElectionTimeout: 2 * ms, Lease: 1 * ms, Beat: 1 * ms},
	} {
		if got := timing.For(election); got != want {
			t.Errorf("%v: %v, want %v", election, got, want)
		}
	}
	c, _ := following()
	at := c.Moment(1000).Running
	for now, want := range map[int64]int64{900: 0, 1499: 499, 1500: 500, 60_000: 500} {
		if got := c.Moment(now); got.Real != now || got.Running-at != want {
			t.Errorf("at %d it ran for %d ms, want %d", now, got.Running-at, want)
		}
	}
}

// TestSpread: the times of two members differ enough in most terms, and stay within the limit.
func TestSpread(t *testing.T) {
	const most = 1000
	for a := uint64(1); a < 6; a++ {
		for b := uint64(1); b < a; b++ {
			near := 0
			for term := range uint64(1000) {
				x, y := spread(a, term, most), spread(b, term, most)
				if x < 0 || x > most || y < 0 || y > most {
					t.Fatalf("members %d and %d, term %d: %d and %d", a, b, term, x, y)
				}
				if x-y < most/10 && y-x < most/10 {
					near++
				}
			}
			if near > 300 { // 190 are expected
				t.Errorf("members %d and %d are near each other in %d of 1,000 terms", a, b, near)
			}
		}
	}
}

// TestKnowsWhatIsCommitted: a leader tells others what is committed only while nothing says that it
// was replaced. A pause of its process counts, although in running time a majority accepted it a
// moment ago.
func TestKnowsWhatIsCommitted(t *testing.T) {
	c := NewContacts(1, timing.For(2*time.Second))
	knows := func(now int64, term uint64, want bool) {
		t.Helper()
		if _, is := c.LeaseAge(now, term); is != want {
			t.Errorf("at %d, in term %d, it knows: %v", now, term, !want)
		}
	}
	look(c, 1000, State{Leads: true, Term: 5})
	c.Accepted(2, c.Moment(1000), 0)
	for now := int64(1000); now < 5000; now += 100 {
		look(c, now, State{Leads: true, Term: 5})
		knows(now, 5, true)
	}
	c.Accepted(2, c.Moment(4900), 0)
	look(c, 9000, State{Leads: true, Term: 5})
	if ago, _ := c.LeaseAge(9000, 5); ago >= time.Second {
		t.Errorf("it was accepted %v ago in running time", ago)
	}
	knows(9000, 5, false)
	c.Accepted(2, c.Moment(9000), 0)
	knows(9000, 5, true)
	c.SawLaterTerm(6)
	knows(9000, 5, false)
	knows(9000, 6, true)
}
