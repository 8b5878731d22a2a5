package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestFailedMembers has a minority of members fail, with full disks or for other reasons, while disks are slow, snapshots are
// taken, and leaders change. Nobody closes the failed ones. The others go on, under one leader, and when the
// failed ones are started again, they get what they have missed.
func TestFailedMembers(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 12
	if testkit.Thorough && !testkit.Race {
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
					if full[i].Load() || f.running[i].over.Load() {
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
					m.fail(errors.New("failed"))
				case n == 3:
					d := []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, 1200 * time.Millisecond, 2500 * time.Millisecond}[r.IntN(5)]
					what = fmt.Sprint("slow ", d)
					slow[i].Store(int64(d))
				case n == 4 && (may || m.over.Load()):
					what = "start again"
					again(i)
				case n == 5:
					what = "transfer"
					id := uint64(r.IntN(size))
					go m.Ask(t.Context(), Request{Transfer: &id})
				case n == 6:
					what = "snapshot"
					go m.raft.Snapshot()
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
			term := lead.raft.CurrentTerm()
			if lead.over.Load() || !f.write(leadOf(t, f)) {
				t.Error("a leader that has failed leads, or one that has not writes nothing")
			}
			time.Sleep(time.Minute)
			if now := lead.raft.CurrentTerm(); now > term+1 { // a write may have met another full disk
				t.Errorf("from term %d to %d", term, now)
			}
			for i := range size {
				full[i].Store(false)
				if f.running[i].over.Load() {
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
