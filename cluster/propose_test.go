package cluster

import (
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// outcome is a Waiter that sends the result of a command; nil means Lost.
type outcome chan *fsm.Result

func (o outcome) Done(_ *fsm.View, r *fsm.Result) { c := *r; o <- &c }
func (o outcome) Lost()                           { o <- nil }

// TestClockWentBack: an entry that an earlier run left in the log and that is applied
// only now is not mistaken for one of this run, whatever the clocks say.
func TestClockWentBack(t *testing.T) {
	for name, ahead := range map[string][]time.Duration{ // the clock in each run
		"back":                        {0, -time.Hour},
		"back before 1970":            {0, -100 * 365 * 24 * time.Hour},
		"back from far in the future": {200 * 365 * 24 * time.Hour, 0},
		"back twice":                  {0, -time.Hour, -2 * time.Hour},
		"the same":                    {0, 0},
		"forward":                     {0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig("")
				cfg.Memory = storage.NewMemory()
				began := time.Now()
				for run, d := range ahead {
					cfg.TimeOfDay = func() time.Time { return began.Add(d) } // it does not move
					replica := fsm.NewReplica()
					m, err := openMember(cfg, replica)
					if err != nil {
						t.Fatal(err)
					}
					<-m.Ready()
					if run > 0 {
						// The earlier run wrote one more entry than was applied.
						var last uint64
						replica.View(func(v *fsm.View) { last = v.LastBatch(cfg.ID) })
						write := make(chan struct{})
						cfg.Memory.SetFault(func() error { <-write; return nil })
						e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
						m.raft.Apply(fsm.EndEntry(e, &fsm.Envelope{Origin: cfg.ID, Batch: last + 1, Count: 1}), 0)
						synctest.Wait()
						mine := make(outcome, 1)
						m.Propose(fsm.ExpireSession(&session.Session{ID: 1}, 0), mine, nil)
						synctest.Wait()
						close(write)
						cfg.Memory.SetFault(nil)
						if r := <-mine; r != nil && r.Code != proto.SessionMoved {
							t.Errorf("run %d: the result is %+v, which is another command's", run, r)
						}
					}
					for range 5 {
						mine := make(outcome, 1)
						m.Propose(fsm.ExpireSession(&session.Session{ID: 1}, 0), mine, nil)
						if r := <-mine; r == nil || r.Code != proto.SessionMoved {
							t.Errorf("run %d: the result is %+v", run, r)
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

// TestNumbers: numbers ascend and do not overflow, whatever the clock says.
func TestNumbers(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, -1, 0, 1, time.Now().UnixMilli(), math.MaxInt64} {
		n := firstNumber(ms)
		for _, applied := range []uint64{0, n, n + 1, n + 1<<40} {
			if next := nextNumber(n, applied); next <= max(n, applied) {
				t.Errorf("by the clock at %d: %d and %d applied are followed by %d", ms, n, applied, next)
			}
		}
		if n > 1<<63+1<<20 {
			t.Errorf("by the clock at %d a run begins after %d", ms, n)
		}
	}
	if a, b := firstNumber(1), firstNumber(1); a == b {
		t.Errorf("two runs begin after %d", a)
	}
	if a, b := nextNumber(1, 9), nextNumber(1, 9); a == b || a < 1000 || b < 1000 {
		t.Errorf("9 is followed by %d and %d", a, b)
	}
}

// eager is a caller that proposes a command while it is being told that its first one
// is lost, as another of its goroutines could.
type eager struct {
	m    *Member
	over chan struct{}
	came chan bool // whether a command was done
}

func (p *eager) Done(*fsm.View, *fsm.Result) { p.came <- true }
func (p *eager) Lost() {
	select {
	case <-p.over:
	default:
		late := make(outcome, 1)
		p.m.Propose(someWrite(), late, p.over)
		close(p.over)
		go func() { p.came <- <-late != nil }()
	}
	p.came <- false
}

// TestLossLeavesNoGap: once a command of a caller is lost, none that it proposed later
// is reported as done, whatever the member learns.
func TestLossLeavesNoGap(t *testing.T) {
	for name, lose := range map[string]func(m *Member){
		"no leader": func(*Member) { time.Sleep(time.Minute) },
		"skipped": func(m *Member) {
			m.proposer.complete(&fsm.Envelope{Origin: m.cfg.ID, Batch: m.proposer.pending.number}, -1)
		},
		"in a snapshot": func(m *Member) { observer{m}.Restored() },
		"closed":        func(m *Member) { m.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := memnet.New()
				members, lead := threeMembers(t, net, new(testkit.Log))
				m := members[(lead+1)%3]
				hosts := []string{"a", "b", "c"}
				for _, other := range hosts {
					net.Cut(hosts[m.cfg.ID-1], other, true)
				}
				// The first command is under way and the second waits for it. The third is
				// proposed while the first is being lost, and the fourth later.
				p := &eager{m, make(chan struct{}), make(chan bool, 4)}
				m.Propose(someWrite(), p, p.over)
				synctest.Wait()
				second := make(outcome, 1)
				m.Propose(someWrite(), second, p.over)
				lose(m)
				synctest.Wait()
				net.Heal()
				fourth := make(outcome, 1)
				m.Propose(someWrite(), fourth, p.over)
				time.Sleep(time.Minute)
				for what, done := range map[string]bool{"the first": <-p.came, "the second": <-second != nil, "the third": <-p.came, "the fourth": <-fourth != nil} {
					if done {
						t.Error(what, "is done")
					}
				}
			})
		})
	}
}

// TestCloseWhileApplying closes a member that has committed more than it has applied:
// Raft never completes those futures, and nothing may wait for them.
func TestCloseWhileApplying(t *testing.T) {
	m := loneMember(t)
	looking, stop := make(chan struct{}), make(chan struct{})
	go m.replica.View(func(*fsm.View) { // blocks the applier
		close(looking)
		<-stop
	})
	<-looking
	var answered sync.WaitGroup
	before := m.raft.LastIndex()
	for range 100 {
		e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		f := m.raft.Apply(fsm.EndEntry(e, &fsm.Envelope{Origin: 9, Batch: 1, Count: 1}), 0)
		answered.Go(func() { m.raft.answer(f) })
	}
	until(t, "the entries are stored", func() bool { return m.raft.LastIndex() == before+100 })
	closed := make(chan struct{})
	go func() {
		m.Kill()
		close(closed)
	}()
	until(t, "Raft ends", func() bool { return m.raft.State() == raft.Shutdown })
	close(stop)
	answered.Wait()
	<-closed
}

// TestCloseAnswersAll: every command proposed while the member closes gets an answer.
func TestCloseAnswersAll(t *testing.T) {
	for range 200 {
		cfg := testConfig("")
		cfg.Memory = storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		<-m.Ready()
		var told sync.WaitGroup
		for range 4 {
			told.Go(func() {
				for w := make(outcome, 1); ; {
					if m.Propose(someWrite(), w, nil); <-w == nil {
						return
					}
				}
			})
		}
		runtime.Gosched()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		told.Wait()
	}
}

// TestProposeAfterClose: a command proposed after Close is reported as lost.
func TestProposeAfterClose(t *testing.T) {
	m, err := openMember(testConfig(""), fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	w := make(result, 1)
	m.Propose(&fsm.Command{Op: proto.OpSync}, w, nil)
	if err := <-w; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestGivenUpWhileStuck: Raft's main goroutine waits for the leader's disk, which is stuck. When the others
// have replaced it, the commands that wait on it are given up, and so are those that clients propose later.
func TestGivenUpWhileStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = true
		for i := range f.running {
			f.start(i)
		}
		f.whole()
		lead := leadOf(t, f)
		m := f.running[lead]
		until(t, "clients", func() bool { return <-m.Serving() })
		release := make(chan struct{})
		defer close(release)
		f.disks[lead].SetFault(func() error { <-release; return nil })
		// Raft writes another member's entry, so it does not take this one's.
		other := make(result, 1)
		f.running[(lead+1)%3].Propose(someWrite(), other, nil)
		until(t, "the disk", func() bool { return m.raft.stall.length(m.pulse.moment()) > 0 })
		var waits [3]result
		for i := range waits {
			waits[i] = make(result, 1)
			m.Propose(someWrite(), waits[i], nil)
			synctest.Wait()
		}
		until(t, "no clients", func() bool { return !<-m.Serving() })
		for i, w := range waits {
			select {
			case err := <-w:
				if err == nil {
					t.Errorf("command %d was done", i)
				}
			case <-time.After(time.Second):
				t.Errorf("command %d is not given up", i)
			}
		}
		if receive[error](t, "the other member's write", other) != nil {
			t.Error("it was lost")
		}
	})
}

// TestDutiesBesideClients: what the leader does by itself comes into the next entry although clients have filled
// their share of it. It has a share of its own, which is limited too.
func TestDutiesBesideClients(t *testing.T) {
	large := fsm.Reap("/" + string(make([]byte, maxBatchBytes)))
	for what, c := range map[string]struct {
		command *fsm.Command
		fill    int
	}{"commands": {someWrite(), maxBatchCommands}, "bytes": {large, 1}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
				p := b.proposer()
				b.replica.Complete(p.complete)
				over := make(chan struct{})
				waits := func(propose func(*fsm.Command, fsm.Waiter, <-chan struct{})) (waits bool, waited result) {
					waited = make(result, 1)
					proposed := make(chan struct{})
					go func() {
						propose(c.command, waited, over)
						close(proposed)
					}()
					synctest.Wait()
					select {
					case <-proposed:
						return false, waited
					default:
						return true, waited
					}
				}
				var all []result
				for _, propose := range []func(*fsm.Command, fsm.Waiter, <-chan struct{}){p.propose, p.do} {
					for i := range c.fill {
						is, waited := waits(propose)
						if all = append(all, waited); is {
							t.Fatalf("command %d waits", i)
						}
					}
					is, waited := waits(propose)
					if all = append(all, waited); !is {
						t.Fatal("the share has no end")
					}
				}
				b.wg.Go(p.run)
				for _, waited := range all {
					if err := receive[error](t, "the outcome", waited); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}
