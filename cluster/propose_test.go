package cluster

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestRestoredLosesPending: what is in a snapshot is never applied here, so who
// waits for it must not wait on, nor what waits behind it.
func TestRestoredLosesPending(t *testing.T) {
	m := &Member{replica: fsm.NewReplica()}
	m.pending.init()
	w := make(result, 1)
	done := m.pending.add(1, []fsm.Waiter{w})
	observer{m}.Restored()
	select {
	case <-done:
	default:
		t.Error("the entry is still on its way")
	}
	select {
	case err := <-w:
		if err == nil {
			t.Error("it is said to be done")
		}
	default:
		t.Error("who waits is not told")
	}
	if left := m.pending.take(1); left != nil {
		t.Errorf("%d wait still", len(left))
	}
}

// outcome waits for what a command came to; nil is Lost.
type outcome chan *fsm.Result

func (o outcome) Done(_ *fsm.View, r *fsm.Result) { c := *r; o <- &c }
func (o outcome) Lost()                           { o <- nil }

// TestClockWentBack: an entry of an earlier run that is still on its way is not
// taken for one of this run, whatever the clocks said.
func TestClockWentBack(t *testing.T) {
	for name, ahead := range map[string][]time.Duration{ // the clock in each run
		"back":             {0, -time.Hour},
		"back before 1970": {0, -100 * 365 * 24 * time.Hour},
		"back from afar":   {200 * 365 * 24 * time.Hour, 0},
		"back twice":       {0, -time.Hour, -2 * time.Hour},
		"the same":         {0, 0},
		"on":               {0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig("")
				cfg.Memory = NewMemory()
				began := time.Now()
				for run, d := range ahead {
					cfg.TimeOfDay = func() time.Time { return began.Add(d) } // it stands
					replica := fsm.NewReplica()
					m, err := Open(cfg, replica)
					if err != nil {
						t.Fatal(err)
					}
					<-m.Ready()
					if run > 0 {
						// Behind the last entry that is applied here, the earlier run has written one more.
						var last uint64
						replica.View(func(v *fsm.View) { last = v.LastBatch(cfg.ID) })
						write := make(chan struct{})
						cfg.Memory.SetFault(func() error { <-write; return nil })
						e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
						m.raft.Apply(fsm.EndEntry(e, &fsm.Envelope{Origin: cfg.ID, Batch: last + 1, Count: 1}), 0)
						synctest.Wait()
						mine := make(outcome, 1)
						m.Propose(fsm.ExpireSession(&session.Session{ID: 1}, 0), mine)
						synctest.Wait()
						close(write)
						cfg.Memory.SetFault(nil)
						if r := <-mine; r != nil && r.Code != proto.SessionMoved {
							t.Errorf("run %d: it came to %+v, which is another command's result", run, r)
						}
					}
					for range 5 {
						mine := make(outcome, 1)
						m.Propose(fsm.ExpireSession(&session.Session{ID: 1}, 0), mine)
						if r := <-mine; r == nil || r.Code != proto.SessionMoved {
							t.Errorf("run %d: it came to %+v", run, r)
						}
					}
					if err := m.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// TestNumbers: numbers rise, and have room above them for any clock.
func TestNumbers(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, -1, 0, 1, time.Now().UnixMilli(), math.MaxInt64} {
		n := firstNumber(ms)
		for _, applied := range []uint64{0, n, n + 1, n + 1<<40} {
			if next := nextNumber(n, applied); next <= max(n, applied) {
				t.Errorf("by the clock at %d, behind %d, with %d applied, follows %d", ms, n, applied, next)
			}
		}
		if n > 1<<63+1<<20 {
			t.Errorf("by the clock at %d it begins behind %d", ms, n)
		}
	}
	if a, b := firstNumber(1), firstNumber(1); a == b {
		t.Errorf("two runs begin behind %d", a)
	}
	if a, b := nextNumber(1, 9), nextNumber(1, 9); a == b || a < 1000 || b < 1000 {
		t.Errorf("behind 9 follow %d and %d", a, b)
	}
}
