package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// stuckAtFirst blocks the disk of the first member that has begun to lead, from its first command on,
// until release is closed. It returns the member's index when that has happened.
func (f *fleet) stuckAtFirst(release chan struct{}) (lead int) {
	var first atomic.Int64
	for i, m := range f.running {
		writes := 0
		f.disks[i].SetFault(func() error {
			time.Sleep(5 * time.Millisecond)
			// The first two are Raft's own entry, and the one that shows it what earlier leaders have left.
			if _, leads := m.engine.LeaderTerm(); leads {
				writes++
			}
			if writes > 2 && (first.CompareAndSwap(0, int64(i+1)) || first.Load() == int64(i+1)) {
				<-release
			}
			return nil
		})
	}
	until(f.t, "a leader", func() bool { return first.Load() != 0 })
	return int(first.Load() - 1)
}

// TestNothingBeforeRestored: the first leader of restored servers has a disk that gets stuck as it
// begins, so another one is elected. What a client of that one had sent meanwhile is not done
// before the zxid was raised by the time of day.
func TestNothingBeforeRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		for i := range 3 {
			m := fsm.NewMachine()
			m.Restart(9, fsm.Members(storage.Configuration(ptr(f.config(i)).First())))
			f.restoredAt(i, m)
			f.start(i)
		}
		release := make(chan struct{})
		lead := f.stuckAtFirst(release)
		defer close(release)
		began, day := time.Now(), time.Now().UnixMilli()/2000
		low := func(what string, r *fsm.Result) {
			if r == nil {
				t.Errorf("%s: lost", what)
			} else if r.Zxid>>32 < day {
				t.Errorf("after %v a client's %s got zxid %#x, whose epoch is %d; by the time of day it should be at least %d", time.Since(began), what, r.Zxid, r.Zxid>>32, day)
			}
		}
		var wg sync.WaitGroup
		for i, m := range f.running {
			if i == lead {
				continue
			}
			<-m.Ready() // so it serves clients
			wg.Go(func() {
				opened, locked := make(outcome, 1), make(outcome, 1)
				m.Propose(fsm.OpenSession(1, int64(i+1), 10_000, session.Password{}), opened, nil)
				r := <-opened
				low("session", r)
				if r == nil {
					return
				}
				create := proto.CreateRequest{Path: "/lock", ACL: proto.OpenACL, Flags: proto.FlagEphemeral | proto.FlagSequential}
				m.Propose(&fsm.Command{Op: proto.OpCreate, Session: int64(i + 1), Conn: 1, Body: create.Append(nil)}, locked, nil)
				low("lock", <-locked)
			})
		}
		wg.Wait()
	})
}

// TestIdentifiedAfterAll: the first leader of a new cluster is lost when it has just begun. While the
// second one's disk is slow for a moment, the third member is restarted, so a majority refuses
// connections for that long. Later all are up, and acknowledge writes.
func TestIdentifiedAfterAll(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			for i := range 3 {
				f.start(i)
			}
			release := make(chan struct{})
			lead := f.stuckAtFirst(release)
			for i, m := range f.running {
				if i != lead {
					<-m.Ready() // so it serves clients
					m.Propose(fsm.OpenSession(uint64(100+i), int64(100+i), 1<<30, session.Password{}), make(propose.Result, 1), nil)
				}
			}
			// The second leader.
			slow := make(chan struct{})
			var second, writes atomic.Int64
			for i, m := range f.running {
				if i == lead {
					continue
				}
				f.disks[i].SetFault(func() error {
					// As in stuckAtFirst.
					if m.engine.Role() == engine.Leader && writes.Add(1) > 2 {
						second.Store(int64(i + 1))
						<-slow
					}
					return nil
				})
			}
			for deadline := time.Now().Add(20 * time.Second); second.Load() == 0 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond)
			if second.Load() == 0 { // the writes were others
				close(release)
				close(slow)
				return
			}
			x := int(second.Load() - 1)
			y := 3 - lead - x
			close(release)
			f.stop(lead)
			f.stop(y)
			time.Sleep(600 * time.Millisecond)
			f.disks[lead].SetFault(nil)
			f.disks[y].SetFault(nil)
			f.start(lead)
			f.start(y)
			time.Sleep(600 * time.Millisecond)
			close(slow)
			f.disks[x].SetFault(nil)
			time.Sleep(time.Minute)
			for i := range f.running {
				if !f.write(i) {
					t.Errorf("a minute later, with all members up, server %d acknowledges no write", i+1)
				}
			}
		})
	}
}

// TestAddRestored: an operator adds a server that was restored from a snapshot to a cluster, as a new member or after it was removed.
// It is refused like one of another cluster, since it never joins, and the list of members stays as it was. Emptied, it joins.
func TestAddRestored(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, how := range []string{"list", "join", "address"} {
			t.Run(fmt.Sprintf("removed before %v, %s", again, how), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x, all := 3, addresses(4)
					if again {
						x, all = 2, addresses(3)
					}
					f := newFleet(t, 4)
					f.asked, f.peers = 100, addresses(3)
					for i := range 3 {
						f.restored(i, 9, 1)
						f.start(i)
					}
					until(t, "a write", func() bool { return f.write(0) })
					ask := func(q request.Request) error {
						ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
						defer cancel()
						_, err := request.Ask(ctx, f.net.Host("operator"), all[1], q)
						return err
					}
					if again {
						if err := ask(request.Request{Remove: 3}); err != nil {
							t.Fatal(err)
						}
						f.lose(2)
					}
					before := fmt.Sprint(f.running[0].Members())
					f.peers = all
					f.restored(x, 9, 1)
					config := func() Config {
						cfg := f.config(x)
						switch how {
						case "join":
							cfg.Addr, cfg.Join, cfg.Peers = all[uint64(x+1)], all[1], nil
						case "address":
							cfg.Addr, cfg.Peers = all[uint64(x+1)], nil
						}
						return cfg
					}
					m := f.open(x, config())
					added := proto.Peer{ID: uint64(x + 1), Addr: all[uint64(x+1)]}
					began := time.Now()
					for _, observer := range []bool{false, true} {
						added.Observer = observer
						if err := ask(request.Request{Add: &added}); err == nil || !strings.Contains(err.Error(), "empty its directory") {
							t.Errorf("added as an observer %v, after %v: %v", observer, time.Since(began), err)
						}
						if err := ask(request.Request{Reconfig: &request.Reconfig{Version: -1, Joining: []proto.Peer{added}}}); err == nil || !strings.Contains(err.Error(), "empty its directory") {
							t.Errorf("reconfigured as an observer %v, after %v: %v", observer, time.Since(began), err)
						}
					}
					if now := fmt.Sprint(f.running[0].Members()); now != before {
						t.Errorf("the members are %v, were %v", now, before)
					}
					if m.pulse.gate.IsOpen() || f.write(x) {
						t.Error("it takes part")
					}
					f.lose(x)
					cfg := config()
					cfg.Addr, cfg.Join, cfg.Peers = all[uint64(x+1)], all[1], nil
					f.open(x, cfg)
					until(t, "it joins", func() bool { return f.write(x) })
					time.Sleep(time.Second) // the others, too, apply it
					f.check()
					for _, i := range []int{0, 1, x} {
						if err := fault(f.running[i], 0); err != nil {
							t.Errorf("server %d: %v", i+1, err)
						}
					}
				})
			})
		}
	}
}

// TestAddRestoredFarAhead: the same, with a snapshot that ends after the cluster's log. It has not caught up, and gets no vote.
func TestAddRestoredFarAhead(t *testing.T) {
	for size := 1; size <= 3; size++ {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, size+1)
			f.found(size)
			until(t, "a write", func() bool { return f.write(0) })
			x := size
			f.restored(x, 1000)
			f.start(x)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := request.Ask(ctx, f.net.Host("operator"), f.peers[1], request.Request{Add: &proto.Peer{ID: uint64(x + 1), Addr: f.peers[uint64(x+1)]}})
			time.Sleep(10 * time.Second)
			if s := election.Find(f.running[0].Members(), uint64(x+1)); s != nil && !s.Observer {
				t.Errorf("beside %d members, it has a vote: %v", size, err)
			}
			if !f.write(0) {
				t.Errorf("beside %d members, no write is acknowledged any more", size)
			}
		})
	}
}
