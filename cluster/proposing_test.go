package cluster

import (
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

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
		testkit.Bubble(t, name, func(t *testing.T) {
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
					m.engine.Propose(fsm.EndEntry(e, &fsm.Envelope{Origin: cfg.ID, Batch: last + 1, Count: 1}), 0)
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
	}
}

// TestNumbers: numbers ascend and do not overflow, whatever the clock says.
func TestNumbers(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, -1, 0, 1, time.Now().UnixMilli(), math.MaxInt64} {
		n := propose.FirstNumber(ms)
		for _, applied := range []uint64{0, n, n + 1, n + 1<<40} {
			if next := propose.NextNumber(n, applied); next <= max(n, applied) {
				t.Errorf("by the clock at %d: %d and %d applied are followed by %d", ms, n, applied, next)
			}
		}
		if n > 1<<63+1<<20 {
			t.Errorf("by the clock at %d a run begins after %d", ms, n)
		}
	}
	if a, b := propose.FirstNumber(1), propose.FirstNumber(1); a == b {
		t.Errorf("two runs begin after %d", a)
	}
	if a, b := propose.NextNumber(1, 9), propose.NextNumber(1, 9); a == b || a < 1000 || b < 1000 {
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
			m.replica.View(func(v *fsm.View) {
				m.proposer.Complete(&fsm.Envelope{Origin: m.cfg.ID, Batch: v.LastBatch(m.cfg.ID) + 1}, -1)
			})
		},
		"in a snapshot": func(m *Member) { observer{m}.Restored() },
		"closed":        func(m *Member) { m.Close() },
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			f := startedFleet(t, 1)
			i := (leadOf(t, f) + 1) % 3
			m := f.running[i]
			f.writes(i, 1)
			f.cutOff(i, true)
			// The first command is under way and the second waits for it. The third is
			// proposed while the first is being lost, and the fourth later.
			p := &eager{m, make(chan struct{}), make(chan bool, 4)}
			m.Propose(someWrite(), p, p.over)
			synctest.Wait()
			second := make(outcome, 1)
			m.Propose(someWrite(), second, p.over)
			lose(m)
			synctest.Wait()
			f.net.Heal()
			fourth := make(outcome, 1)
			m.Propose(someWrite(), fourth, p.over)
			time.Sleep(time.Minute)
			for what, done := range map[string]bool{"the first": <-p.came, "the second": <-second != nil, "the third": <-p.came, "the fourth": <-fourth != nil} {
				if done {
					t.Error(what, "is done")
				}
			}
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
	before := m.engine.LastIndex()
	for range 100 {
		e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		f := m.engine.Propose(fsm.EndEntry(e, &fsm.Envelope{Origin: 9, Batch: 1, Count: 1}), 0)
		answered.Go(func() { f() })
	}
	until(t, "the entries are stored", func() bool { return m.engine.LastIndex() == before+100 })
	closed := make(chan struct{})
	go func() {
		m.Kill()
		close(closed)
	}()
	until(t, "Raft ends", func() bool { return m.engine.Role() == engine.Ended })
	close(stop)
	answered.Wait()
	<-closed
}

// TestCloseAnswersAll: every command proposed while the member closes, or later, gets an answer.
func TestCloseAnswersAll(t *testing.T) {
	for range 60 {
		m := alone(t, nil)
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
		w := make(propose.Result, 1)
		if m.Propose(someWrite(), w, nil); !errors.Is(<-w, lifecycle.ErrClosed) {
			t.Error("a command of a closed member has another outcome")
		}
	}
}

// TestGivenUpWhileStuck: Raft's main goroutine waits for the leader's disk, which is stuck. When the others
// have replaced it, the commands that wait on it are given up, and so are those that clients propose later.
func TestGivenUpWhileStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = true
		lead := f.all(nil)
		m := f.running[lead]
		until(t, "clients", func() bool { return <-m.Serving() })
		release := make(chan struct{})
		defer close(release)
		f.disks[lead].SetFault(func() error { <-release; return nil })
		// Raft writes another member's entry, so it does not take this one's.
		other := f.propose((lead+1)%3, 97)
		until(t, "the disk", func() bool { return m.engine.DiskStall(m.pulse.moment()) > 0 })
		var waits []propose.Result
		for id := range int64(3) {
			waits = append(waits, f.propose(lead, 98+id))
			synctest.Wait()
		}
		until(t, "no clients", func() bool { return !<-m.Serving() })
		time.Sleep(time.Second)
		for i, w := range waits {
			if len(w) == 0 || <-w == nil {
				t.Errorf("command %d is not given up, or was done", i)
			}
		}
		if testkit.Receive[error](t, "the other member's write", other) != nil {
			t.Error("it was lost")
		}
	})
}

// TestDutiesBesideClients: what the leader does by itself comes into the next entry although clients have filled
// their share of it. It has a share of its own, which is limited too.
func TestDutiesBesideClients(t *testing.T) {
	large := fsm.Reap("/" + string(make([]byte, propose.MaxBatchBytes)))
	for fill, command := range map[int]*fsm.Command{propose.MaxBatchCommands: someWrite(), 1: large} {
		testkit.Bubble(t, fmt.Sprint(fill, " fill it"), func(t *testing.T) {
			b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
			p := b.proposer()
			b.replica.Complete(p.Complete)
			over := make(chan struct{})
			var all []propose.Result
			for _, do := range []func(*fsm.Command, fsm.Waiter, <-chan struct{}){p.Propose, p.Do} {
				for i := range fill + 1 {
					waited, proposed := make(propose.Result, 1), make(chan struct{})
					all = append(all, waited)
					go func() {
						do(command, waited, over)
						close(proposed)
					}()
					synctest.Wait()
					select {
					case <-proposed:
						if i == fill {
							t.Fatal("the share has no end")
						}
					default:
						if i < fill {
							t.Fatalf("command %d waits", i)
						}
					}
				}
			}
			b.Running.Go(p.Run)
			for _, waited := range all {
				if err := testkit.Receive[error](t, "the outcome", waited); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestLinkEnds: when a follower's connection to the leader breaks while the leader
// stays the same, the follower connects again: what it sent before is applied, and so
// is what it sends next.
func TestLinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		i := (leadOf(t, f) + 1) % 3
		m := f.running[i]
		did(t, m, someWrite())
		term := m.engine.Term()
		for id := range int64(3) {
			before, err := m.proposer.LinkTo(m.leader.Get())
			if err != nil {
				t.Fatal(err)
			}
			done := f.propose(i, 98+id)
			before.Close()
			written(t, m, time.Second)
			if err := <-done; err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if now, _ := m.proposer.LinkTo(m.leader.Get()); now == before {
				t.Fatal("it still uses a connection that has ended")
			}
		}
		if m.engine.Term() != term {
			t.Error("the leader was replaced meanwhile")
		}
	})
}

// TestForgottenLink: when a follower's connection to the leader is forgotten on its way,
// while the leader stays the same, what waits for the leader is done soon over a new one.
func TestForgottenLink(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, m *Member){
		"entry":    func(t *testing.T, m *Member) { did(t, m, someWrite()) },
		"question": func(t *testing.T, m *Member) { did(t, m, fsm.Nothing()) },
		"touch": func(t *testing.T, m *Member) {
			if !m.Touch(fillsIn(m), nil) {
				t.Error("no session")
			}
		},
	} {
		for _, before := range []bool{true, false} { // the message was sent
			testkit.Bubble(t, fmt.Sprint(name, ", forgotten before ", before), func(t *testing.T) {
				net, leader, m, _ := wired(t, nil)
				fill(t, m, "n", 1, 1)
				time.Sleep(10 * time.Second)
				term := m.engine.Term()
				from := hostOf(m)
				link := func(w *wire) bool { return w.kind == peer.KindForward && w.from == from }
				if !before { // the leader reads the message, and its answer is lost
					net.when(func(w *wire) bool { return link(w) && !w.dialed }, func(*wire) { net.forget(link) })
				} else if net.forget(link) == 0 {
					t.Fatal("there is no connection")
				}
				began := time.Now()
				ask(t, m)
				if took, most := time.Since(began), m.contacts.ElectionTimeout*3/2; took > most {
					t.Errorf("it is done after %v, should be within %v", took, most)
				}
				if m.engine.Term() != term || leader.engine.Role() != engine.Leader {
					t.Error("the leader was replaced meanwhile")
				}
			})
		}
	}
}

// TestForgottenTogether: when a follower's connection to the leader and those over which the
// leader sends entries to it are forgotten together, what waits for the leader is done within
// two and a half election timeouts.
func TestForgottenTogether(t *testing.T) {
	for i := range 10 { // Raft's connections are used every two seconds
		synctest.Test(t, func(t *testing.T) {
			net, leader, m, _ := wired(t, nil)
			fill(t, m, "n", 1, 1)
			time.Sleep(10*time.Second + time.Duration(i)*200*time.Millisecond)
			net.forget(between(leader, m, peer.KindForward, peer.KindRaft))
			if took, most := did(t, m, someWrite()), m.contacts.ElectionTimeout*5/2; took > most {
				t.Errorf("it is done after %v, should be within %v", took, most)
			}
		})
	}
}

// TestAnswersNotRead: when another member sends, but does not read what this one answers, the
// connection ends after an election timeout. Several answers wait for each other meanwhile.
func TestAnswersNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		m := f.running[(leadOf(t, f)+1)%3] // refuses entries
		near, far := net.Pipe()
		defer near.Close()
		served := make(chan struct{})
		go func() {
			m.serveForward(far)
			close(served)
		}()
		e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		e = fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1})
		began := time.Now()
		for range 3 {
			if err := peer.WriteMessage(near, propose.MsgBatch, e); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // the refusals wait to be read
		peer.WriteMessage(near, propose.MsgAlive, nil)
		<-served
		if took := time.Since(began); took > m.contacts.ElectionTimeout {
			t.Errorf("it ends after %v", took)
		}
	})
}

// TestWork: each member counts what it has written, and the one that a command came to
// counts the command.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		time.Sleep(time.Second) // until each member knows of the last commit
		from := (leadOf(t, f) + 1) % 3
		var before [3]report.Work
		for i, m := range f.running {
			before[i] = m.Work()
		}
		const writes = 5
		f.writes(from, writes)
		time.Sleep(time.Second) // likewise
		for i, m := range f.running {
			w, b := m.Work(), before[i]
			// A member that the majority does not need may store several entries at once.
			if n := w.LogWrites.Count - b.LogWrites.Count; n > writes || n < 1 {
				t.Errorf("member %d: %d writes to the log for %d entries", i, n, writes)
			}
			want := int64(0)
			if i == from {
				want = writes
			}
			if w.Entries-b.Entries != want || w.Commands-b.Commands != want || w.Commit != b.Commit+writes {
				t.Errorf("member %d: %d entries with %d commands, want %d; entry %d is committed, after %d and %d more", i, w.Entries-b.Entries, w.Commands-b.Commands, want, w.Commit, b.Commit, writes)
			}
		}
	})
}

// TestCloseWaitsForOwnWord: a member is asked by its own user to form its cluster, and its disk is slow
// to store the id. Close waits for that. Otherwise the id could be written after the storage was closed,
// and in the place of what the next run on it has stored.
func TestCloseWaitsForOwnWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		m := f.start(0)
		f.start(1)
		time.Sleep(5 * time.Second) // they wait for the third
		var writes atomic.Int64
		f.disks[0].SetFault(func() error {
			writes.Add(1)
			defer writes.Add(-1)
			time.Sleep(20 * time.Second)
			return nil
		})
		asked := make(chan error, 1)
		go func() {
			_, err := m.Ask(t.Context(), request.Request{Form: true})
			asked <- err
		}()
		until(t, "it writes the id", func() bool { return writes.Load() > 0 })
		f.running[0] = nil
		m.Close()
		if n := writes.Load(); n > 0 {
			t.Errorf("Close has returned, and %d writes are under way", n)
		}
		if err := <-asked; !errors.Is(err, request.ErrUnknownOutcome) || !errors.Is(err, lifecycle.ErrClosed) {
			t.Errorf("asked: %v", err)
		}
		f.disks[0].SetFault(nil)
	})
}

// TestCloseTwice: a member is closed by two goroutines while its disk takes seconds for a write. Both wait until it is
// closed, and get the same result.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.disks[0].SetFault(func() error { time.Sleep(3 * time.Second); return nil })
		m := f.running[0]
		f.running[0] = nil
		m.Propose(someWrite(), make(propose.Result, 1), nil)
		time.Sleep(time.Second)
		began := time.Now()
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
				if time.Since(began) < time.Second {
					t.Error("it waits for nothing")
				}
			})
		}
		closers.Wait()
	})
}

// TestCloseWithBrokenDisk: a leader whose disk is broken is closed, as its owner does because of the fault. That
// does not wait for the end of handOverTimeout.
func TestCloseWithBrokenDisk(t *testing.T) {
	bothDiskOrders(t, 3, func(t *testing.T, f *fleet, lead int) {
		l := f.running[lead]
		time.Sleep(time.Second)
		f.disks[lead].SetFault(func() error { return errors.New("broken") })
		f.propose(lead, 77)
		<-l.Err()
		began := time.Now()
		f.running[lead] = nil
		l.Close()
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestLinkEndsWithLeader: a member is cut off from the leader while it sends that a long entry, and then another member leads, which it
// reaches. It does not wait until the write to the first one fails.
func TestLinkEndsWithLeader(t *testing.T) {
	for late := range 8 { // within a look at the link
		testkit.Bubble(t, fmt.Sprint(late), func(t *testing.T) {
			f := startedFleet(t, 1)
			f.net.SetDelay(func(from, to string) time.Duration { return 15 * time.Millisecond })
			time.Sleep(20*time.Second + time.Duration(late)*70*time.Millisecond)
			lead := leadOf(t, f)
			m := f.running[(lead+1)%3]
			opened := make(propose.Result, 1)
			m.Propose(fsm.OpenSession(1, 7, 40_000, session.Password{}), opened, nil)
			if err := <-opened; err != nil {
				t.Fatal(err)
			}
			f.cutBetween(lead, (lead+1)%3, true)
			created := make(propose.Result, 1)
			q := proto.CreateRequest{Path: "/n", Data: make([]byte, 900_000), ACL: proto.OpenACL}
			go m.Propose(&fsm.Command{Op: proto.OpCreate, Session: 7, Conn: 1, Body: q.Append(nil)}, created, nil)
			time.Sleep(700 * time.Millisecond)
			f.running[lead].HandOver(t.Context())
			until(t, "another leader", func() bool { l := m.leader.Get().ID; return l != 0 && l != uint64(lead+1) })
			began := time.Now()
			if err := <-created; err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > m.contacts.ElectionTimeout/4 {
				t.Errorf("the entry is in the log %v after the other member leads", took)
			}
		})
	}
}
