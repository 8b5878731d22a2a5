package cluster

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// three is a cluster of three members. The tests are about the contacts of the first.
var three = []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}}

// look calls contacts.look at now for a member whose state is own.
func look(c *contacts, now int64, own state) (v verdict, stand bool) {
	v, _, stand, _ = c.look(now, three, own)
	return v, stand
}

// following returns the contacts of a member that has just got a heartbeat of member
// 3, the leader of term 5.
func following() (c *contacts, conn *int) {
	c = newContacts(1, timesFor(2*time.Second))
	look(c, 1000, state{term: 5})
	conn = new(int)
	c.hear(1000, heard{id: 3, term: 5, conn: conn}, 0, 5)
	return c, conn
}

// TestSilence: a leader is lost when it has been silent for the election timeout, in
// running time.
func TestSilence(t *testing.T) {
	c, _ := following()
	for now := int64(1000); ; now += 100 {
		v, _ := look(c, now, state{term: 5})
		if v.lost {
			if now != 3000 {
				t.Errorf("lost after %d ms", now-1000)
			}
			break
		}
	}
	c, _ = following()
	if v, _ := look(c, 60_000, state{term: 5}); v.lost || v.noMajority {
		t.Error("a member that was paused for a minute has lost the others")
	}
}

// TestPausedLeader: a leader that was paused keeps its followers, but is not sure that
// it leads until they confirm it again.
func TestPausedLeader(t *testing.T) {
	c := newContacts(1, timesFor(2*time.Second))
	look(c, 0, state{term: 5, leads: true})
	c.followed(2, c.moment(50))
	if v, _ := look(c, 60_000, state{term: 5, leads: true}); v.lost || v.noMajority || !v.leads {
		t.Errorf("%+v after a minute", v)
	}
	if at := c.lastFollowed(60_000, three); at != 50 {
		t.Errorf("it was followed at %d", at)
	}
}

// TestSeenLoss: a leader is lost at once when its connection has ended and it refuses
// a new one, or says that it does not lead.
func TestSeenLoss(t *testing.T) {
	for _, x := range []struct {
		name string
		then func(c *contacts)
		lost bool
	}{
		{"only the connection", func(c *contacts) {}, false},
		{"refused", func(c *contacts) { c.refused(3) }, true},
		{"does not lead", func(c *contacts) { c.answered(3, moment{1020, 0}, 1020, state{term: 5}) }, true},
		{"did not lead at that time", func(c *contacts) { c.answered(3, moment{1010, 0}, 1020, state{term: 5}) }, true},
		{"did not lead before", func(c *contacts) { c.answered(3, moment{1009, 0}, 1020, state{term: 5}) }, false},
		{"leads", func(c *contacts) { c.answered(3, moment{1020, 0}, 1020, state{term: 5, leads: true}) }, false},
		{"heard again", func(c *contacts) {
			c.refused(3)
			c.hear(1020, heard{id: 3, term: 5, conn: new(int)}, 0, 5)
		}, false},
	} {
		c, conn := following()
		if c.hungUp(new(int), 1010) {
			t.Errorf("%s: the end of another connection counts", x.name)
		}
		c.refused(3) // while its connection is still open
		if v, _ := look(c, 1005, state{term: 5}); v.lost {
			t.Errorf("%s: lost by a refused connection while another one is open", x.name)
		}
		if !c.hungUp(conn, 1010) {
			t.Errorf("%s: the end of its connection does not count", x.name)
		}
		look(c, 1010, state{term: 5})
		x.then(c)
		if v, _ := look(c, 1030, state{term: 5}); v.lost != x.lost {
			t.Errorf("%s: lost is %v", x.name, v.lost)
		}
	}
}

// TestWhoStands: the member with the longest log stands first. None stands while the
// others still have the leader, one of them leads, or their disks are stuck.
func TestWhoStands(t *testing.T) {
	own := state{term: 5, lastTerm: 5, lastIndex: 10}
	for _, x := range []struct {
		name  string
		says  *state // what member 2 answers; nil if it does not
		after int64  // ms until this member stands; -1 is never
	}{
		{"agrees", &state{lost: true, term: 5, lastTerm: 5, lastIndex: 10}, 0},
		{"has a longer log", &state{lost: true, term: 5, lastTerm: 5, lastIndex: 11}, 150},
		{"has a later term in its log", &state{lost: true, term: 5, lastTerm: 6, lastIndex: 1}, 150},
		{"is about to be elected", &state{lost: true, candidate: true, term: 6, lastTerm: 5, lastIndex: 10}, 300},
		{"hears the leader", &state{term: 5, lastTerm: 5, lastIndex: 10}, -1},
		{"leads", &state{leads: true, term: 6, lastTerm: 5, lastIndex: 10}, -1},
		{"cannot write", &state{lost: true, term: 5, stalled: time.Second}, -1},
		{"does not answer", nil, -1},
	} {
		c, conn := following()
		c.hungUp(conn, 1010)
		look(c, 1010, own)
		c.refused(3)
		stood := int64(-1)
		for now := int64(1010); now < 1900; now += 10 {
			if x.says != nil {
				c.answered(2, moment{now, 0}, now, *x.says)
			}
			if _, stand := look(c, now, own); stand {
				stood = now - 1010
				break
			}
		}
		if stood < x.after || x.after < 0 && stood >= 0 || stood > x.after+20 {
			t.Errorf("the other one %s: it stands after %d ms, should be %d", x.name, stood, x.after)
		}
	}
}

// TestRefusedByMost: a member has lost the majority when connections have been refused
// for a moment, but not while the others are only being restarted.
func TestRefusedByMost(t *testing.T) {
	c := newContacts(1, timesFor(2*time.Second))
	own := state{term: 5, leads: true}
	look(c, 1000, own)
	for _, id := range []uint64{2, 3} {
		c.followed(id, c.moment(1000))
		c.refused(id)
	}
	for now := int64(1000); now <= 1400; now += 20 {
		if v, _ := look(c, now, own); v.noMajority != (now >= 1300) {
			t.Errorf("without a majority after %d ms: %v", now-1000, v.noMajority)
		}
	}
	c.followed(2, c.moment(1400))
	if v, _ := look(c, 1410, own); v.noMajority {
		t.Error("without a majority although one member follows")
	}
}

// TestStalledLeader: a leader whose disk is stuck is replaced if a majority has
// working disks, and otherwise remains the leader.
func TestStalledLeader(t *testing.T) {
	for others, want := range map[time.Duration]bool{0: true, 3 * time.Second: false} {
		c, conn := following()
		stood := false
		for now := int64(1000); now < 6000; now += 50 {
			leader := time.Duration(now-1000) * time.Millisecond
			own := state{term: 5, stalled: min(others, leader)}
			c.hear(now, heard{id: 3, term: 5, conn: conn, stalled: leader}, 0, 5)
			c.answered(2, moment{now, 0}, now, state{term: 5, lost: true, stalled: own.stalled})
			v, stand := look(c, now, own)
			if v.lost || v.stuck {
				t.Fatalf("after %d ms: %+v", now-1000, v)
			}
			if stand && now < 3000 {
				t.Errorf("it stands after %d ms", now-1000)
			}
			stood = stood || stand
		}
		if stood != want {
			t.Errorf("if the others stall for %v, it stands: %v", others, stood)
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
			asked := c.moment(1000).ran
			for now := int64(1000); now < 20_000; now += 50 {
				if now%100 == 0 {
					m := c.moment(now)
					c.hear(now, heard{id: 3, term: 5, conn: conn, applied: uint64(now), asked: asked}, 0, 5)
					asked = m.ran
				}
				v, _ := look(c, now, state{term: 5, applied: x.applied(now)})
				if v.behind != c.behind(now) {
					t.Fatalf("at %d: behind is %v by look, and %v by itself", now, v.behind, c.behind(now))
				}
				if !v.behind {
					continue
				}
				if x.behind == 0 || now < x.behind-150 || now > x.behind+50 {
					t.Fatalf("it is behind at %d", now)
				}
				if c.caughtUp(c.moment(now).ran); c.behind(now) {
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

// TestPausedWrite: a pause of the process during a disk write does not count as a
// stuck disk.
func TestPausedWrite(t *testing.T) {
	c, _ := following()
	var s stall
	s.write(c.moment(1000), func() error {
		if d := s.length(c.moment(1400)); d != 400*time.Millisecond {
			t.Errorf("it has been waiting for %v", d)
		}
		if d := s.length(c.moment(60_000)); d > 500*time.Millisecond {
			t.Errorf("it has been waiting for %v after a pause", d)
		}
		return nil
	})
	if d := s.length(c.moment(61_000)); d != 0 {
		t.Errorf("it has been waiting for %v, but nothing is being written", d)
	}
}
