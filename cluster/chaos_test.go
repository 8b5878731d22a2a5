package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestStreamChaos writes through all members while streams are forgotten at one end or both, or
// end, terms change, links are cut, and members are killed and restarted. Nothing acknowledged is
// lost, no connection is left, and the members agree.
func TestStreamChaos(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := uint64(2)
	if testkit.Nightly {
		runs = 10
	}
	for seed := range runs {
		testkit.Bubble(t, fmt.Sprint(seed), func(t *testing.T) {
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(seed, 1))
			rnd := func(k int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(k) }
			n := newWires()
			members, _ := n.open(t, 3, func(c *Config) { c.SnapshotBytes = []int64{1 << 20, 4 << 10}[seed%2] })
			n.SetDelay(func(string, string) time.Duration {
				d := time.Duration(rnd(4000)) * time.Microsecond
				if rnd(200) == 0 {
					d += time.Duration(rnd(900)) * time.Millisecond
				}
				return d
			})
			at := func(i int) *Member { mu.Lock(); defer mu.Unlock(); return members[i] }
			acked := map[int64]bool{}
			stop := make(chan struct{})
			var writers sync.WaitGroup
			for k := range int64(6) {
				writers.Go(func() {
					for id := 1000 * (k + 1) * 100; ; id++ {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(rnd(30)) * time.Millisecond):
						}
						w := make(propose.Result, 1)
						at(int(k)%3).Propose(fsm.OpenSession(uint64(id), id, 1<<30, session.Password{}), w, nil)
						if testkit.Receive(t, "the outcome", w) == nil {
							mu.Lock()
							acked[id] = true
							mu.Unlock()
						}
					}
				})
			}
			for range 40 {
				time.Sleep(time.Duration(rnd(1500)) * time.Millisecond)
				switch rnd(6) {
				case 0, 1:
					half := rnd(3)
					n.forget(func(w *wire) bool {
						return w.kind == peer.KindRaft && (half == 2 || w.dialed == (half == 0)) && rnd(2) == 0
					})
				case 2:
					n.end(func(w *wire) bool { return w.stream && rnd(2) == 0 })
				case 3:
					x := at(rnd(3))
					x.beginTerm(x.engine.Term() + 1)
				case 4:
					i := rnd(3)
					m := at(i)
					m.Kill()
					time.Sleep(time.Duration(rnd(600)) * time.Millisecond)
					x, err := openMember(m.cfg, fsm.NewReplica())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { x.Close() })
					mu.Lock()
					members[i] = x
					mu.Unlock()
				case 5:
					a, b := string(rune('a'+rnd(3))), string(rune('a'+rnd(3)))
					n.Cut(a, b, true)
					time.Sleep(time.Duration(rnd(1800)) * time.Millisecond)
					n.Cut(a, b, false)
				}
			}
			close(stop)
			writers.Wait()
			time.Sleep(3 * time.Minute)
			for i, m := range members {
				missing := 0
				for id := range acked {
					if !m.hasSession(id) {
						missing++
					}
				}
				if missing > 0 || m.engine.StateIndex() != members[0].engine.StateIndex() {
					t.Errorf("member %d misses %d of %d, applied %d", i, missing, len(acked), m.engine.StateIndex())
				}
				if n := m.engine.CountConns(); n > 12 {
					t.Errorf("member %d has %d connections", i, n)
				}
			}
		})
	}
}

// TestFailedMembers has a minority of members fail, with full disks or for other reasons, while disks are slow, snapshots are
// taken, and leaders change. Nobody closes the failed ones. The others go on, under one leader, and when the
// failed ones are started again, they get what they have missed.
func TestFailedMembers(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 4
	if testkit.Nightly {
		runs = 150
	}
	seed := testkit.Seed(t)
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			size := 3 + 2*r.IntN(2)
			f := newFleet(t, size)
			full, slow := make([]atomic.Bool, size), make([]atomic.Int64, size)
			for i := range size {
				f.disks[i].SetFault(func() error {
					time.Sleep(time.Duration(slow[i].Load()))
					if full[i].Load() {
						return errors.New("disk full")
					}
					return nil
				})
				f.start(i)
			}
			f.whole()
			again := func(i int) {
				full[i].Store(false)
				slow[i].Store(0)
				f.stop(i)
				f.start(i)
			}
			var did []string
			for range 30 {
				bad := 0
				for i := range size {
					if full[i].Load() || f.running[i].Failed.Load() {
						bad++
					}
				}
				i, may := r.IntN(size), bad < (size-1)/2
				m := f.running[i]
				what := ""
				switch n := r.IntN(12); {
				case n < 2 && may:
					what = "full"
					full[i].Store(true)
				case n == 2 && may:
					what = "fail"
					m.Fail(errors.New("failed"))
				case n == 3:
					d := []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, 1200 * time.Millisecond, 2500 * time.Millisecond}[r.IntN(5)]
					what = fmt.Sprint("slow ", d)
					slow[i].Store(int64(d))
				case n == 4 && (may || m.Failed.Load()):
					what = "start again"
					again(i)
				case n == 5:
					what = "transfer"
					id := uint64(r.IntN(size))
					go m.Ask(t.Context(), request.Request{Transfer: &id})
				case n == 6:
					what = "snapshot"
					go m.engine.TakeSnapshot()
				default:
					what = "write"
					f.write(i)
				}
				did = append(did, fmt.Sprint(what, " ", i+1))
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(12))) * time.Millisecond)
			}
			for i := range size {
				slow[i].Store(0)
			}
			time.Sleep(30 * time.Second)
			lead := f.running[leadOf(t, f)]
			term := lead.engine.Term()
			if lead.Failed.Load() || !f.write(leadOf(t, f)) {
				t.Error("a leader that has failed leads, or one that has not writes nothing")
			}
			time.Sleep(time.Minute)
			if now := lead.engine.Term(); now > term+1 { // a write may have met another full disk
				t.Errorf("from term %d to %d", term, now)
			}
			for i := range size {
				full[i].Store(false)
				if f.running[i].Failed.Load() {
					again(i)
				}
			}
			defer func() { // also if whole ends the test
				if t.Failed() {
					t.Errorf("run %d: %v", run, did)
				}
			}()
			f.whole()
			f.check()
		})
	}
}
