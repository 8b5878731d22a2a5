package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestDiffers: a member whose state is not what the log makes of it is found, and it is that
// one which stops, the leader too.
func TestDiffers(t *testing.T) {
	for _, who := range []string{"a follower", "the leader"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				lead := f.all(nil)
				bad := lead
				if who == "a follower" {
					bad = (lead + 1) % 3
				}
				synctest.Wait() // so that nobody reads the state meanwhile
				f.running[bad].replica.View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: 1 << 40}) })
				f.write(lead)
				for i, m := range f.running {
					if i == bad {
						if err := testkit.Receive(t, "its fault", m.Err()); !errors.Is(err, election.ErrDiffers) {
							t.Error(err)
						}
						if s := f.running[lead].membership.Status(); who == "a follower" && (len(s.Differs) != 1 || s.Differs[0].ID != uint64(bad+1) || s.Differs[0].Index == 0) {
							t.Errorf("the leader's status names %v", s.Differs)
						}
					}
				}
				time.Sleep(10 * time.Second)
				for i, m := range f.running {
					select {
					case err := <-m.Err():
						t.Errorf("member %d stops: %v", i+1, err)
					default:
					}
				}
				f.stop(bad)
				f.start(bad)
				f.whole()
				f.check()
				time.Sleep(10 * time.Second)
				for i, m := range f.running {
					select {
					case err := <-m.Err():
						t.Errorf("after the restart, member %d stops: %v", i+1, err)
					default:
					}
				}
			})
		})
	}
}

// TestDifferenceOfOneThatIsDown: a member that has differed and is down does not count against a
// leader whose state is right, nor for it: when the third one differs too, neither of the two ends, and neither serves.
func TestDifferenceOfOneThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		b, c := (lead+1)%3, (lead+2)%3
		f.corrupt(c, 1<<40)
		f.write(lead)
		if err := fault(f.running[c], 10*time.Second); !errors.Is(err, election.ErrDiffers) {
			t.Fatal(err)
		}
		f.stop(c) // left down, as the operations page says
		time.Sleep(time.Minute)
		f.corrupt(b, 1<<41)
		f.write(lead)
		time.Sleep(10 * time.Second)
		for _, i := range []int{lead, b} {
			if err := fault(f.running[i], 0); err != nil {
				t.Errorf("member %d ends: %v", i+1, err)
			}
			if f.running[i].Waiting() == "" {
				t.Errorf("member %d serves", i+1)
			}
		}
	})
}

// TestDifferenceOfAnEarlierTerm: a leader does not show a difference that it has seen when it led
// before.
func TestDifferenceOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		b, c := (lead+1)%3, (lead+2)%3
		f.corrupt(c, 1<<40)
		f.write(lead)
		if err := fault(f.running[c], 10*time.Second); !errors.Is(err, election.ErrDiffers) {
			t.Fatal(err)
		}
		f.stop(c)
		f.running[lead].membership.Change(request.Request{Transfer: ptr(uint64(b + 1))})
		until(t, "the other leader", func() bool { return leadOf(t, f) == b })
		f.lose(c)
		f.start(c)
		f.whole()
		f.stop(c) // maintenance, much later
		f.running[b].membership.Change(request.Request{Transfer: ptr(uint64(lead + 1))})
		until(t, "the first leader", func() bool { return leadOf(t, f) == lead })
		time.Sleep(time.Minute)
		if s := f.running[lead].membership.Status(); s.Differs != nil {
			t.Errorf("differs: %v", s.Differs)
		}
	})
}

// TestDifferenceWhileOneLags: the leader of three has a wrong state. The disk of one of the others is stuck for
// some seconds, but that one answers heartbeats, and can tell later who is wrong. No member whose state is right
// stops.
func TestDifferenceWhileOneLags(t *testing.T) {
	for _, stuck := range []time.Duration{3 * time.Second, 6 * time.Second, 20 * time.Second} {
		t.Run(stuck.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 3)
				lead := leadOf(t, f)
				a, b := (lead+1)%3, (lead+2)%3
				release := make(chan struct{})
				f.disks[b].SetFault(func() error { <-release; return nil })
				f.corrupt(lead, 1<<40)
				if !f.write(a) {
					t.Error("no write")
				}
				began, released := time.Now(), false
				stopped := map[int]error{}
				for time.Since(began) < time.Minute {
					time.Sleep(100 * time.Millisecond)
					for i, m := range f.running {
						if m == nil {
							continue
						}
						select {
						case stopped[i] = <-m.Err():
							f.stop(i)
						default:
						}
					}
					if !released && time.Since(began) > stuck {
						released = true
						f.disks[b].SetFault(nil)
						close(release)
					}
				}
				for _, x := range []int{a, b} {
					if err := stopped[x]; err != nil {
						t.Errorf("stuck for %v: member %d, whose state is right, stops: %v", stuck, x+1, err)
					}
				}
				if stopped[lead] == nil {
					t.Errorf("stuck for %v: the leader, whose state is wrong, goes on", stuck)
				}
			})
		})
	}
}

// TestFailedIsNotStuck: a follower that has failed for another reason does not say that its disk is stuck.
func TestFailedIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		f.running[(lead+1)%3].Fail(election.ErrDiffers)
		until(t, "what it says", func() bool { return f.log.Count("disconnecting clients") > 0 })
		if f.log.Count("the disk is stuck") > 0 || f.log.Count("this member has ended: disconnecting clients") == 0 {
			t.Error(f.log.String())
		}
	})
}
