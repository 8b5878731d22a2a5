package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// stuck makes the disk of member i write nothing until the returned function is called, after which
// what waits for it is written, or is lost.
func (f *fleet) stuck(i int) (end func(lost error)) {
	over := make(chan error)
	f.disks[i].SetFault(func() error { return <-over })
	return func(lost error) {
		if lost == nil {
			f.disks[i].SetFault(nil)
		}
		for {
			select {
			case over <- lost:
				synctest.Wait()
			default:
				return
			}
		}
	}
}

// propose proposes a session through a member. The channel gets nil when it is acknowledged.
func (f *fleet) propose(i int, id int64) result {
	w := make(result, 1)
	f.running[i].Propose(fsm.OpenSession(uint64(id), id, 1<<30, session.Password{}), w, nil)
	return w
}

// TestUnwrittenIsNotShown: the leader's disk is stuck, and one of the two others has got the entries
// that it has sent. For Raft that is a majority. Neither acknowledges them, nor applies them. The
// leader is killed, and leads again without them, while that other is down.
func TestUnwrittenIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 5)
		lead := leadOf(t, f)
		has, lacks := (lead+1)%3, (lead+2)%3
		time.Sleep(time.Second)
		f.cutBetween(lead, lacks, true)
		f.cutBetween(has, lacks, true)
		end := f.stuck(lead)
		last := f.running[lead].raft.LastIndex()
		at := []result{f.propose(lead, 98), f.propose(has, 99)}
		time.Sleep(f.running[lead].contacts.silence / 2)
		for _, i := range []int{lead, has} {
			if now := f.running[i].raft.LastIndex(); now != last+2 {
				t.Fatalf("the log of member %d ends at %d, and not at %d", i+1, now, last+2)
			}
			if applied := f.running[i].commits.applied(); applied > last {
				t.Errorf("member %d has applied entry %d", i+1, applied)
			}
		}
		for i, w := range at {
			select {
			case <-w:
				t.Errorf("the %d. write is answered", i+1)
			default:
			}
		}
		f.running[lead].killed.Store(true)
		end(errors.New("killed"))
		f.stop(lead)
		f.stop(has)
		f.cutBetween(lead, lacks, false)
		f.cutBetween(has, lacks, false)
		f.disks[lead].SetFault(nil)
		f.start(lead)
		if n := f.running[lead].raft.LastIndex(); n > last {
			t.Fatalf("its log ends at %d", n)
		}
		f.writes(lacks, 1)
		f.start(has)
		f.whole()
		f.check()
		for i, m := range f.running {
			if err := fault(m, 0); err != nil {
				t.Errorf("member %d: %v", i+1, err)
			}
		}
	})
}

// TestWithoutLeadersDisk: while the leader's disk is stuck, writes are acknowledged as soon as a
// majority of the voters without the leader has them.
func TestWithoutLeadersDisk(t *testing.T) {
	for _, x := range []struct{ size, down int }{{3, 0}, {3, 1}, {5, 0}, {5, 1}, {5, 2}} {
		t.Run(fmt.Sprintf("%d members, %d down", x.size, x.down), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, x.size)
				for i := range x.size {
					f.start(i)
				}
				f.whole()
				f.writes(0, 1)
				lead := leadOf(t, f)
				for i := range x.down {
					f.stop((lead + 1 + i) % x.size)
				}
				time.Sleep(time.Second)
				end := f.stuck(lead)
				at := []result{f.propose(lead, 98), f.propose((lead+x.size-1)%x.size, 99)}
				time.Sleep(100 * time.Millisecond)
				for i, w := range at {
					acked := false
					select {
					case err := <-w:
						acked = err == nil
					default:
					}
					if want := x.size-1-x.down > x.size/2; acked != want {
						t.Errorf("the %d. write is acknowledged: %v, want %v", i+1, acked, want)
					}
				}
				end(nil)
			})
		})
	}
}

// TestFollowerWritesFirst: a follower acknowledges no entry that its disk has not.
func TestFollowerWritesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 5)
		lead := leadOf(t, f)
		f.stop((lead + 1) % 3)
		time.Sleep(time.Second)
		end := f.stuck((lead + 2) % 3)
		w := f.propose(lead, 98)
		time.Sleep(f.running[lead].contacts.silence / 2)
		select {
		case <-w:
			end(nil)
			t.Fatal("the write is answered")
		default:
		}
		end(nil)
		if err := <-w; err != nil {
			t.Error(err)
		}
	})
}

// TestUnwrittenBeforeTerm: a term, a vote, an entry without a command, and a deletion wait until all
// entries that are pending have been written.
func TestUnwrittenBeforeTerm(t *testing.T) {
	for name, store := range map[string]func(l *asyncLog, last uint64) error{
		"term":     func(l *asyncLog, _ uint64) error { return l.SetUint64([]byte(storage.TermKey), 7) },
		"vote":     func(l *asyncLog, _ uint64) error { return l.Set([]byte("any"), []byte("value")) },
		"no-op":    func(l *asyncLog, last uint64) error { return l.StoreLogs(noops(last+1, last+1, 2)) },
		"deletion": func(l *asyncLog, last uint64) error { return l.DeleteRange(last, last) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, end, term, written := heldLeader(t)
				command := func(i uint64) []*raft.Log {
					return []*raft.Log{{Index: i, Term: term, Type: raft.LogCommand, Data: []byte{1}}}
				}
				for i := range uint64(3) {
					if err := l.StoreLogs(command(end + 1 + i)); err != nil {
						t.Fatal(err)
					}
				}
				var got raft.Log
				if last, err := l.LastIndex(); last != end+3 || err != nil {
					t.Errorf("the log ends at %d, %v", last, err)
				}
				if err := l.GetLog(end+2, &got); err != nil || got.Index != end+2 {
					t.Errorf("a pending entry is %v, %v", got, err)
				}
				if err := l.GetLog(end+4, &got); err != raft.ErrLogNotFound {
					t.Errorf("the entry after the last: %v", err)
				}
				done := make(chan error, 1)
				go func() { done <- store(l, end+3) }()
				time.Sleep(time.Second)
				select {
				case err := <-done:
					t.Fatalf("it did not wait: %v", err)
				default:
				}
				if n, _ := l.guardedStore.LastIndex(); n != end {
					t.Fatalf("the disk has entry %d", n)
				}
				close(written)
				if err := <-done; err != nil {
					t.Error(err)
				}
				l.off = true
			})
		})
	}
}

// TestVotersChangeWhileAsked: all that is pending is written, and then the list of voters changes, while it
// is asked what is committed. The answer is not less than what was acknowledged before.
func TestVotersChangeWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end, term, written := heldLeader(t)
		if err := l.StoreLogs([]*raft.Log{{Index: end + 1, Term: term, Type: raft.LogCommand}}); err != nil {
			t.Fatal(err)
		}
		l.acks.accepted("2", &raft.AppendEntriesRequest{Term: term, PrevLogEntry: end + 1})
		l.acks.accepted("3", &raft.AppendEntriesRequest{Term: term, PrevLogEntry: end + 1})
		voters := []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}}
		l.servers = func() []raft.Server { return voters }
		if got := l.committed(end + 1); got != end+1 || !l.await(end+1) {
			t.Fatalf("entry %d is committed, want %d", got, end+1)
		}
		l.servers = func() []raft.Server {
			close(written)
			if err := l.flush(); err != nil {
				t.Error(err)
			}
			return voters[:2]
		}
		if got := l.committed(end + 1); got != end+1 {
			t.Errorf("entry %d is committed, want %d", got, end+1)
		}
		l.off = true
	})
}

// heldLeader returns the log of a leader, where it ends and in which term, and what to close so that its
// disk writes.
func heldLeader(t *testing.T) (l *asyncLog, end, term uint64, written chan struct{}) {
	b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
	l, written = b.pulse.raft.log, make(chan struct{})
	l.guardedStore.LogStore = heldLog{l.guardedStore.LogStore, written}
	b.wg.Go(l.run)
	l.off = false
	end, err := l.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return l, end, b.pulse.raft.CurrentTerm(), written
}

// heldLog stores nothing until written is closed.
type heldLog struct {
	raft.LogStore
	written chan struct{}
}

func (l heldLog) StoreLogs(logs []*raft.Log) error {
	<-l.written
	return l.LogStore.StoreLogs(logs)
}

// TestAcks: what a member has accepted in an earlier term, or as an observer, does not count.
func TestAcks(t *testing.T) {
	var a acks
	servers := []raft.Server{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4", Suffrage: raft.Nonvoter}}
	expect := func(term, want uint64) {
		t.Helper()
		if got := a.majority(term, servers); got != want {
			t.Errorf("term %d: %d, want %d", term, got, want)
		}
	}
	accept := func(id raft.ServerID, term, prev uint64, entries ...*raft.Log) {
		a.accepted(id, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev, Entries: entries})
	}
	expect(2, 0)
	accept("2", 2, 10)
	accept("4", 2, 10)
	expect(2, 0)
	news := a.wait()
	accept("3", 2, 7, &raft.Log{Index: 8}, &raft.Log{Index: 9})
	select {
	case <-news:
	default:
		t.Error("nobody is told")
	}
	expect(2, 9)
	accept("3", 2, 4)
	expect(2, 9)
	expect(3, 0)
	accept("3", 3, 9)
	expect(3, 0)
	expect(2, 0)
	accept("2", 2, 20)
	expect(3, 0)
	accept("2", 3, 12)
	expect(3, 9)
}

// byteSlowLog is a disk that takes time for each byte.
type byteSlowLog struct {
	raft.LogStore
	perMB time.Duration
	most  *atomic.Int64 // bytes written at once
}

func (l byteSlowLog) StoreLogs(logs []*raft.Log) error {
	n := 0
	for _, x := range logs {
		n += len(x.Data)
	}
	l.most.Store(max(l.most.Load(), int64(n)))
	time.Sleep(l.perMB * time.Duration(n) / 1e6)
	return l.LogStore.StoreLogs(logs)
}

// TestSlowLeaderIsNotReplaced: one client writes 1 MB at a time through the leader, whose disk takes less than
// half an election timeout for each; those of the others are faster. The leader is merely slow: it is not replaced,
// no write is lost, and none waits for more than an election timeout.
func TestSlowLeaderIsNotReplaced(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("disk first: ", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				f.first = first
				for i := range f.running {
					f.start(i)
				}
				f.whole()
				lead := leadOf(t, f)
				l := f.running[lead]
				w := make(outcome, 1)
				l.Propose(fsm.OpenSession(1, 1, 1<<30, session.Password{}), w, nil)
				<-w
				time.Sleep(time.Second)
				term := l.raft.CurrentTerm()
				var most atomic.Int64
				log := l.raft.log
				log.mu.Lock() // nothing is pending
				log.guardedStore.LogStore = byteSlowLog{log.guardedStore.LogStore, 900 * time.Millisecond, &most}
				log.mu.Unlock()
				for i := range f.disks {
					if i != lead {
						f.disks[i].SetFault(func() error { time.Sleep(20 * time.Millisecond); return nil })
					}
				}
				data := make([]byte, 1000_000) // at random
				rand.NewChaCha8([32]byte{}).Read(data)
				for n := range 20 {
					began := time.Now()
					q := proto.CreateRequest{Path: fmt.Sprint("/n", n), Data: data, ACL: proto.OpenACL}
					l.Propose(&fsm.Command{Op: proto.OpCreate, Session: 1, Conn: 1, Body: q.Append(nil)}, w, nil)
					r := <-w
					if took := time.Since(began); r == nil || took > l.contacts.silence {
						t.Errorf("write %d took %v; acknowledged: %v", n, took, r != nil)
					}
					if now := l.raft.CurrentTerm(); now != term || l.raft.State() != raft.Leader {
						t.Fatalf("the leader was replaced at write %d; its disk got %d bytes at once", n, most.Load())
					}
				}
			})
		})
	}
}

// TestCloseWithBrokenDisk: a leader whose disk is broken is closed, as its owner does because of the fault. That
// does not wait for the end of handOverTimeout.
func TestCloseWithBrokenDisk(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("disk first: ", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 3)
				f.first = first
				for i := range f.running {
					f.start(i)
				}
				f.whole()
				lead := leadOf(t, f)
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
		})
	}
}
