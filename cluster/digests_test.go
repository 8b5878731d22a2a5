package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// doubt is a fleet some of whose members have wrong states.
type doubt struct {
	*fleet
	lead   int
	serves map[*Member]bool // what Serving has said last
}

// doubtIn starts a fleet whose members all serve.
func doubtIn(t *testing.T, size int) *doubt {
	f, lead := fleetOf(t, size)
	d := &doubt{f, lead, map[*Member]bool{}}
	d.all(true)
	return d
}

// all waits until all members that run serve, or none does.
func (d *doubt) all(serve bool) {
	d.t.Helper()
	until(d.t, fmt.Sprint("all members: serves ", serve), func() bool {
		return !slices.ContainsFunc(d.running, func(m *Member) bool { return m != nil && d.now(m) != serve })
	})
}

func (d *doubt) now(m *Member) bool {
	select {
	case d.serves[m] = <-m.Serving():
	default:
	}
	return d.serves[m]
}

// wrong makes the state of a member wrong; those with the same number get the same state.
func (d *doubt) wrong(i int, number int64) { d.corrupt(i, 1<<40+number) }

// undecided checks that members serve for no longer than a little more than an election timeout, do not serve for the next three
// minutes, and do not end.
func (d *doubt) undecided() {
	d.t.Helper()
	time.Sleep(d.running[d.lead].contacts.ElectionTimeout + time.Second)
	for range 180 {
		for i, m := range d.running {
			if m == nil {
				continue
			}
			if d.now(m) {
				d.t.Fatalf("member %d serves", i+1)
			}
			select {
			case err := <-m.Err():
				d.t.Fatalf("member %d ends: %v", i+1, err)
			default:
			}
		}
		time.Sleep(time.Second)
	}
}

// end checks that these members end because of their states. Then it waits until the others serve, and checks that none of them
// ends.
func (d *doubt) end(which ...int) {
	d.t.Helper()
	for _, i := range which {
		if err := fault(d.running[i], time.Minute); !errors.Is(err, election.ErrDiffers) {
			d.t.Errorf("the fault of member %d is %v", i+1, err)
		}
		d.stop(i) // as its owner does
	}
	d.all(true)
	time.Sleep(time.Minute)
	d.unharmed()
	d.check()
}

// TestDiffersBesideStuckDisk: the states of two members of three differ, and the third one's disk is stuck. Nobody knows which
// of the two is wrong: nobody ends, and soon nobody serves, but no session expires meanwhile. The third one decides it when its
// disk works again.
func TestDiffersBesideStuckDisk(t *testing.T) {
	for far, wrong := range []string{"the leader", "a follower"} {
		testkit.Bubble(t, wrong, func(t *testing.T) {
			d := doubtIn(t, 3)
			third, bad := (d.lead+2)%3, (d.lead+far)%3
			const id = 77
			did(t, d.running[d.lead], fsm.OpenSession(id, id, 30_000, session.Password{}))
			end := d.stuck(third)
			t.Cleanup(func() { end(nil) })
			d.wrong(bad, 1)
			d.write(d.lead)
			d.undecided()
			if !d.running[(d.lead+1)%3].hasSession(id) {
				t.Error("a session has expired, and no member has served its client")
			}
			time.Sleep(40 * time.Second) // the session's timeout does not go on from here
			end(nil)
			until(t, "a member that serves", func() bool { return d.now(d.running[third]) })
			time.Sleep(time.Second)
			lead := d.running[leadOf(t, d.fleet)]
			deadline := int64(math.MaxInt64)
			for _, b := range lead.Deadlines() {
				deadline = min(deadline, b.Deadline)
			}
			if left := deadline - lead.timeOfDay(); left < 28_000 {
				t.Errorf("the session has %d ms left", left)
			}
			d.end(bad)
		})
	}
}

// TestDiffersWithoutThird: the states of two members differ, and there is no third one, or it is down for good. Nobody ends, and
// soon nobody serves. The two serve again when an operator has restarted the one that was wrong, or the other one does when
// the operator has removed that one, after the third one.
func TestDiffersWithoutThird(t *testing.T) {
	for _, x := range []struct {
		size, far int // how far the member that is wrong is from the leader
		remove    bool
	}{{2, 1, false}, {2, 0, false}, {3, 1, false}, {3, 0, false}, {2, 1, true}, {3, 1, true}} {
		testkit.Bubble(t, fmt.Sprintf("%+v", x), func(t *testing.T) {
			d := doubtIn(t, x.size)
			bad, third := (d.lead+x.far)%x.size, (d.lead+2)%3
			if x.size == 3 {
				d.stop(third)
			}
			d.wrong(bad, 1)
			d.write(d.lead)
			d.undecided()
			if !x.remove {
				d.stop(bad)
				d.start(bad)
				d.end()
				return
			}
			remove := func(i int) {
				if _, err := request.Ask(t.Context(), d.net.Host("operator"), d.peers[uint64(d.lead+1)], request.Request{Remove: uint64(i + 1)}); err != nil {
					t.Fatal(err)
				}
			}
			if x.size == 3 {
				remove(third)
			}
			remove(bad)
			if err := fault(d.running[bad], time.Minute); !errors.Is(err, request.ErrRemoved) {
				t.Errorf("its fault is %v", err)
			}
			d.stop(bad)
			d.end()
		})
	}
}

// TestDiffersOfFive: members of five have states that differ from each other's. Those end that a majority with one state
// differs from. If there is no such majority, nobody ends, and nobody serves, until there is one.
func TestDiffersOfFive(t *testing.T) {
	for name, states := range map[string][5]int64{ // wrong ones, by how far the member is from the leader; 0 is right
		"3:1:1":                      {0, 0, 1, 2, 0},
		"3:2, the leader is wrong":   {1, 0, 1, 0, 0},
		"2:2:1, the leader is alone": {2, 0, 1, 0, 1},
		"1:1:1:1:1":                  {0, 1, 2, 3, 4},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			d := doubtIn(t, 5)
			var bad []int
			for i, state := range states {
				if state != 0 {
					i = (d.lead + i) % 5
					d.wrong(i, state)
					bad = append(bad, i)
				}
			}
			d.write(d.lead)
			for len(bad) > 2 {
				d.undecided()
				d.stop(bad[0]) // it makes its state anew
				d.start(bad[0])
				bad = bad[1:]
			}
			d.end(bad...)
		})
	}
}

// TestDiffersFromCopy: the leader of three is wrong, and one of the others has missed what it has done since then: it gets
// a snapshot of the leader's state. That does not make two against one.
func TestDiffersFromCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		d.cutOff((d.lead+2)%3, true)
		d.wrong(d.lead, 1)
		d.snapshotTo((d.lead + 2) % 3)
		d.undecided()
	})
}

// TestDiffersNextLeader: no majority of five has the same state. Nobody serves, not for a moment, when the leader is lost and
// another one leads, when that one hands over, or when a member is started again, until there is a majority.
func TestDiffersNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 5)
		d.level = slog.LevelInfo
		for i, state := range []int64{0, 0, 1, 1, 2} {
			if state != 0 {
				d.wrong((d.lead+i)%5, state)
			}
		}
		d.write(d.lead)
		d.undecided()
		served := d.log.Count("serving clients")
		quiet := func(what string) {
			t.Helper()
			time.Sleep(time.Minute)
			if n := d.log.Count("serving clients"); n != served {
				t.Fatalf("%s: %d members have served\n%s", what, n-served, d.log.String())
			}
		}
		first := d.lead
		d.stop(first)
		d.lead = leadOf(t, d.fleet)
		quiet("the next leader")
		d.start(first)
		quiet("a member that was started again")
		d.handTo((first + 1) % 5)
		quiet("a leader that was handed over to")
		again := (first + 2) % 5
		d.stop(again)
		d.start(again)
		d.end((first+3)%5, (first+4)%5)
	})
}

// TestDiffersAmongCopies: two members of three have once lagged, and got the leader's snapshot. Their states were right at later
// entries. So they count, also when another one leads, and the one that goes wrong then ends.
func TestDiffersAmongCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		first := d.lead
		for i := 1; i < 3; i++ {
			d.snapshotTo((first + i) % 3)
			d.all(true)
			d.write(first)
			time.Sleep(5 * time.Second)
		}
		d.lead = (first + 1) % 3
		d.handTo(d.lead)
		d.all(true)
		d.write(d.lead)
		time.Sleep(5 * time.Second)
		d.wrong(first, 1)
		d.write(d.lead)
		d.end(first)
	})
}

// TestDiffersLeaderForgets: of three members, the third one is down, and another one is wrong. The right one is started again, and
// leads. It hears of the dispute with the answers to its first heartbeats.
func TestDiffersLeaderForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		first, other := d.lead, (d.lead+1)%3
		d.stop((d.lead + 2) % 3)
		d.wrong(other, 1)
		d.write(first)
		d.undecided()
		d.stop(first)
		d.start(first)
		until(t, "a leader", func() bool {
			return d.running[first].pulse.leader.ReadyTerm.Load() != 0 || d.running[other].pulse.leader.ReadyTerm.Load() != 0
		})
		if d.running[first].Role() != "leader" {
			d.handTo(first)
		}
		began := time.Now()
		d.all(false)
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("a member serves for %v", took)
		}
		d.undecided()
	})
}

// snapshotTo gives a member the leader's snapshot, which has missed some entries.
func (d *doubt) snapshotTo(i int) {
	d.t.Helper()
	d.cutOff(i, true)
	d.writes(d.lead, 20)
	if err := d.running[d.lead].engine.TakeSnapshot(); err != nil {
		d.t.Fatal(err)
	}
	d.cutOff(i, false)
	until(d.t, "the snapshot", func() bool { return d.running[i].pulse.digests.Answer(0).Copied != 0 })
}
