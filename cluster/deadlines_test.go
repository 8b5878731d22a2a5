package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestSilentDuringSnapshot: a leader that falls silent while it sends a snapshot, or whose
// disk gets stuck then, is replaced like any other, with the vote of the member that
// receives the snapshot.
func TestSilentDuringSnapshot(t *testing.T) {
	for name, stuck := range map[string]bool{"silent": false, "disk stuck": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, nil)
				leader, other, late := members[lead], members[(lead+1)%3], members[(lead+2)%3]
				again := stopUntilSnapshot(t, late, leader)
				half := make(chan struct{})
				release := make(chan struct{})
				defer close(release)
				var once sync.Once
				from, to := hostOf(leader), hostOf(late)
				came := func(w *wire) {
					if w.dialed || w.from != from || w.to != to {
						return
					}
					w.mu.Lock()
					kind, read := w.kind, w.read
					w.mu.Unlock()
					if kind != kindRaft || read < 2<<20 {
						return
					}
					once.Do(func() {
						if stuck {
							leader.cfg.Memory.SetFault(func() error { <-release; return nil })
							leader.Propose(someWrite(), make(result, 1), nil)
						} else {
							net.Pause(hostOf(leader), true)
						}
						close(half)
					})
					if stuck { // nor does the snapshot come any further
						select {
						case <-release:
						case <-w.gone:
						}
					}
				}
				net.came.Store(&came)
				late = again()
				<-half
				began := time.Now()
				for other.raft.State() != raft.Leader {
					if time.Sleep(10 * time.Millisecond); time.Since(began) > time.Minute {
						break
					}
				}
				if took, most := time.Since(began), leader.contacts.silence+time.Second; took > most {
					t.Fatalf("another member leads after %v, should within %v", took, most)
				}
				select {
				case <-late.Ready():
				case <-time.After(3 * late.contacts.silence):
					t.Error("the late member does not catch up with the next leader")
				}
			})
		})
	}
}

// TestSnapshotBeforeRaft: Raft is given a snapshot only when all of it is here, and while it
// installs it, this member counts as one whose disk is stuck.
func TestSnapshotBeforeRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		follower.raft.storage = storage.NewMemory().Open()
		data := make([]byte, 3_000_000)
		rand.Read(data)
		there, more := io.Pipe()
		sent := make(chan error, 1)
		var r raft.InstallSnapshotResponse
		go func() {
			sent <- leader.transport.NetworkTransport.InstallSnapshot("2", "follower:1", &raft.InstallSnapshotRequest{Size: int64(len(data))}, &r, there)
		}()
		for rest := data; len(rest) > 0; rest = rest[len(data)/30:] { // it takes longer than an election timeout
			select {
			case <-follower.transport.Consumer():
				t.Fatal("Raft is given a part")
			case <-time.After(leader.silence / 5):
			}
			more.Write(rest[:len(data)/30])
		}
		more.Close()
		rpc := <-follower.transport.Consumer()
		if b, err := io.ReadAll(rpc.Reader); err != nil || !bytes.Equal(b, data) {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		for range 50 { // a slow disk, and a leader that waits for it
			time.Sleep(leader.silence / 10)
			follower.contacts.tick(follower.now().now)
		}
		if stalled := follower.raft.stall.length(follower.now()); stalled < 4*leader.silence {
			t.Errorf("it counts as stuck for %v", stalled)
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		if err := <-sent; err != nil || !r.Success {
			t.Errorf("%+v, %v", r, err)
		}
		synctest.Wait()
		if stalled := follower.raft.stall.length(follower.now()); stalled != 0 {
			t.Errorf("it counts as stuck for %v afterwards", stalled)
		}
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStuckFollower: a member whose disk is stuck for long does not collect the leader's
// messages, and has everything soon after its disk works again.
func TestStuckFollower(t *testing.T) {
	testkit.SlowUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		members, lead := net.open(t, 3, nil)
		leader, m := members[lead], members[(lead+1)%3]
		time.Sleep(10 * time.Second)
		held := func() int {
			stacks := make([]byte, 4<<20)
			text := string(stacks[:runtime.Stack(stacks, true)])
			return strings.Count(text, ").handleConn(") + strings.Count(text, ").takeStream(")
		}
		before := held()
		release := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-release; return nil })
		for i := range 60 {
			fill(t, leader, string(rune('A'+i)), 1, 900_000)
			time.Sleep(8 * time.Second)
		}
		if now := held(); now > before+10 {
			t.Errorf("%d connections of Raft are open, %d before", now, before)
		}
		m.cfg.Memory.SetFault(nil)
		close(release)
		began := time.Now()
		last := leader.commits.applied()
		until(t, "all entries", func() bool { return m.commits.applied() >= last })
		if took := time.Since(began); took > m.contacts.silence {
			t.Errorf("it has them after %v", took)
		}
	})
}

// TestLateMemberOnSlowLink: a member that missed long entries, or needs a snapshot, catches up
// over a link that needs long for them. Then a long entry of its own gets over that link.
func TestLateMemberOnSlowLink(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		rate     int64 // bytes a second
		entries  int   // of 900 kB
		snapshot bool
		most     time.Duration
	}{
		{10 << 20, 84, false, 20 * time.Second},
		{150 << 10, 10, false, 80 * time.Second},
		{150 << 10, 0, true, 80 * time.Second}, // it has 8 MB
	} {
		synctest.Test(t, func(t *testing.T) {
			net := newWires()
			members, lead := net.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			leader, late := members[lead], members[(lead+1)%3]
			term := leader.raft.CurrentTerm()
			again := stopMember(t, late)
			if x.snapshot {
				again = stopUntilSnapshot(t, late, leader)
			}
			fill(t, leader, "n", x.entries, 900_000)
			last := leader.commits.applied()
			net.rate.Store(x.rate)
			began := time.Now()
			late = again()
			for late.commits.applied() < last && time.Since(began) < 2*x.most {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took > x.most {
				t.Errorf("%+v: it has them after %v", x, took)
			}
			<-late.Ready()
			began = time.Now()
			fill(t, late, "own", 1, 900_000)
			if took, most := time.Since(began), 3*time.Duration(900_000/x.rate+1)*time.Second; took > most {
				t.Errorf("%+v: its own entry takes %v", x, took)
			}
			if leader.raft.CurrentTerm() != term {
				t.Error("the leader was replaced meanwhile")
			}
		})
	}
}

// TestLongMessages: a message is no longer than maxEntryBytes, unless it has a single entry,
// and Raft goes on behind the last entry that was sent. It never says that more is committed
// than the receiver has compared with the leader's log.
func TestLongMessages(t *testing.T) {
	entries := func(sizes ...int) (logs []*raft.Log) {
		for i, size := range sizes {
			logs = append(logs, &raft.Log{Index: uint64(11 + i), Term: uint64(2 + i), Data: make([]byte, size)})
		}
		return logs
	}
	const half = maxEntryBytes / 2
	for _, x := range []struct {
		sizes []int
		want  []int // entries in each message
	}{
		{nil, []int{0}},
		{[]int{1}, []int{1}},
		{[]int{3 * half}, []int{1}},
		{[]int{half, half}, []int{2}},
		{[]int{half, half, 1}, []int{2, 1}},
		{[]int{1, 3 * half, 1, 1}, []int{1, 1, 2}},
		{[]int{3 * half, 3 * half, 3 * half}, []int{1, 1, 1}},
	} {
		for _, piped := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				net := memnet.New()
				leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
				var got []*raft.AppendEntriesRequest
				stop := make(chan struct{})
				go func() {
					for {
						select {
						case rpc := <-follower.transport.Consumer():
							got = append(got, rpc.Command.(*raft.AppendEntriesRequest))
							rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
						case <-stop:
							return
						}
					}
				}()
				whole := raft.AppendEntriesRequest{Term: 9, PrevLogEntry: 10, PrevLogTerm: 1, LeaderCommitIndex: 12, Entries: entries(x.sizes...)}
				last := uint64(10 + len(x.sizes))
				if piped {
					p := streamOf(t, leader)
					reached := uint64(10)
					go func() { // as Raft does
						for {
							select {
							case f := <-p.Consumer():
								if n := len(f.Request().Entries); n > 0 && f.Response().Success {
									reached = f.Request().Entries[n-1].Index
								}
							case <-stop:
								return
							}
						}
					}()
					q := whole
					if _, err := p.AppendEntries(&q, new(raft.AppendEntriesResponse)); err != nil {
						t.Fatal(err)
					}
					if len(q.Entries) != len(whole.Entries) {
						t.Error("Raft would send entries again that are on their way")
					}
					synctest.Wait()
					if reached != last {
						t.Errorf("Raft knows of entries up to %d, want %d", reached, last)
					}
					p.Close()
				} else {
					for next := uint64(10); next < last || len(got) == 0; { // as Raft does
						q := whole
						if n := next - 10; n > 0 {
							q.PrevLogEntry, q.PrevLogTerm, q.Entries = next, whole.Entries[n-1].Term, whole.Entries[n:]
						}
						if err := leader.transport.AppendEntries("2", "follower:1", &q, new(raft.AppendEntriesResponse)); err != nil {
							t.Fatal(err)
						}
						if n := len(q.Entries); n > 0 {
							next = q.Entries[n-1].Index
						}
					}
				}
				prev, prevTerm := uint64(10), uint64(1)
				for i, q := range got {
					if i >= len(x.want) || len(q.Entries) != x.want[i] || q.Term != 9 || q.PrevLogEntry != prev || q.PrevLogTerm != prevTerm {
						t.Fatalf("%v, piped %v: message %d has %d entries after %d", x.sizes, piped, i, len(q.Entries), q.PrevLogEntry)
					}
					for _, e := range q.Entries {
						prev, prevTerm = e.Index, e.Term
					}
					if want := min(12, prev); q.LeaderCommitIndex != want {
						t.Errorf("%v, piped %v: message %d commits up to %d, want %d", x.sizes, piped, i, q.LeaderCommitIndex, want)
					}
				}
				if len(got) != len(x.want) {
					t.Errorf("%v, piped %v: %d messages", x.sizes, piped, len(got))
				}
				close(stop)
				closeTransport(leader)
				closeTransport(follower)
			})
		}
	}
}

// TestForgottenLink: when a follower's connection to the leader is forgotten on its way,
// while the leader stays the same, what waits for the leader is done soon over a new one.
func TestForgottenLink(t *testing.T) {
	what := map[string]func(m *Member, done chan<- error){
		"entry": func(m *Member, done chan<- error) {
			w := make(result, 1)
			m.Propose(someWrite(), w, nil)
			done <- <-w
		},
		"question": func(m *Member, done chan<- error) {
			w := make(result, 1)
			m.Propose(fsm.Nothing(), w, nil)
			done <- <-w
		},
		"touch": func(m *Member, done chan<- error) {
			if !m.Touch(fillsIn(m), nil) {
				done <- ErrNoSession
				return
			}
			done <- nil
		},
	}
	for name, ask := range what {
		for _, before := range []bool{true, false} { // the message was sent
			t.Run(fmt.Sprint(name, ", forgotten before ", before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newWires()
					members, lead := net.open(t, 3, nil)
					leader, m := members[lead], members[(lead+1)%3]
					fill(t, m, "n", 1, 1)
					time.Sleep(10 * time.Second)
					term := m.raft.CurrentTerm()
					from := hostOf(m)
					link := func(w *wire) bool { return w.kind == kindForward && w.from == from }
					done := make(chan error, 1)
					if before {
						if net.forget(link) == 0 {
							t.Fatal("there is no connection")
						}
						go ask(m, done)
					} else {
						came := func(w *wire) { // the leader reads the message, and its answer is lost
							w.mu.Lock()
							is := link(w) && !w.dialed
							w.mu.Unlock()
							if is {
								net.came.Store(nil)
								net.forget(link)
							}
						}
						net.came.Store(&came)
						go ask(m, done)
					}
					began := time.Now()
					select {
					case err := <-done:
						if err != nil {
							t.Error(err)
						}
						if took, most := time.Since(began), m.contacts.silence*3/2; took > most {
							t.Errorf("it is done after %v, should be within %v", took, most)
						}
					case <-time.After(time.Minute):
						t.Error("it is not done after a minute")
					}
					if m.raft.CurrentTerm() != term || leader.raft.State() != raft.Leader {
						t.Error("the leader was replaced meanwhile")
					}
				})
			})
		}
	}
}

// TestForgottenTogether: when a follower's connection to the leader and those over which the
// leader sends entries to it are forgotten together, what waits for the leader is done within
// two and a half election timeouts.
func TestForgottenTogether(t *testing.T) {
	for i := range 20 { // Raft's connections are used every two seconds
		synctest.Test(t, func(t *testing.T) {
			net := newWires()
			members, lead := net.open(t, 3, nil)
			m := members[(lead+1)%3]
			fill(t, m, "n", 1, 1)
			time.Sleep(10*time.Second + time.Duration(i)*100*time.Millisecond)
			a, b := hostOf(members[lead]), hostOf(m)
			net.forget(func(w *wire) bool {
				return (w.kind == kindForward || w.kind == kindRaft || w.kind == kindStream) && (w.from == a && w.to == b || w.from == b && w.to == a)
			})
			began, done := time.Now(), make(result, 1)
			m.Propose(someWrite(), done, nil)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if took, most := time.Since(began), m.contacts.silence*5/2; took > most {
				t.Errorf("it is done after %v, should be within %v", took, most)
			}
		})
	}
}

// TestServesAfterCut: a member that was cut off serves soon after the cut is healed, although
// its old connections carry nothing any more, and whether something waited on them or not.
func TestServesAfterCut(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 3 * time.Second, 56 * time.Second} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, nil)
				m := members[(lead+1)%3]
				fill(t, m, "n", 1, 1)
				time.Sleep(10 * time.Second)
				host := hostOf(m)
				net.forget(func(w *wire) bool { return w.from == host || w.to == host })
				cutOff(net.Network, members, (lead+1)%3)
				if waits {
					m.Propose(someWrite(), make(result, 1), nil)
					go m.Touch(fillsIn(m), nil)
				}
				time.Sleep(length)
				net.Heal()
				began := time.Now()
				for served := false; !served; {
					w := make(result, 1)
					m.Propose(someWrite(), w, nil)
					select {
					case err := <-w:
						served = err == nil
					case <-time.After(time.Minute):
						t.Fatalf("after a cut of %v a member does not serve within a minute", length)
					}
				}
				if took, most := time.Since(began), m.contacts.silence*3/2; took > most || length > 3*time.Second && took > m.contacts.silence {
					t.Errorf("after a cut of %v a member serves within %v; waits %v", length, took, waits)
				}
			})
		}
	}
}

// TestForgottenWhileReplicating: when a connection over which the leader sends entries is
// forgotten on its way, the member gets the entries soon over a new one.
func TestForgottenWhileReplicating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		members, lead := net.open(t, 3, nil)
		leader, m := members[lead], members[(lead+1)%3]
		for range 5 {
			time.Sleep(10 * time.Second)
			from, to := hostOf(leader), hostOf(m)
			net.forget(func(w *wire) bool {
				return (w.kind == kindRaft || w.kind == kindStream) && (w.from == from && w.to == to || w.from == to && w.to == from)
			})
			began, done := time.Now(), make(result, 1)
			leader.Propose(someWrite(), done, nil)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			last := leader.commits.applied()
			until(t, "the entry", func() bool { return m.commits.applied() >= last })
			if took, most := time.Since(began), leader.contacts.silence*3/2; took > most {
				t.Errorf("a member has the entry after %v, should within %v", took, most)
			}
		}
	})
}

// TestVoteOverForgotten: a vote request is not lost on a connection that was forgotten while
// nothing was sent over it.
func TestVoteOverForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		candidate, voter := openTransportOn(t, net.host("a"), "a"), openTransportOn(t, net.host("b"), "b")
		for range 3 {
			answered := make(chan error, 1)
			go func() {
				var r raft.RequestVoteResponse
				answered <- candidate.transport.RequestVote("2", "b:1", new(raft.RequestVoteRequest), &r)
			}()
			select {
			case rpc := <-voter.transport.Consumer():
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				if err := <-answered; err != nil {
					t.Error(err)
				}
			case err := <-answered:
				t.Error(err)
			}
			net.forget(func(*wire) bool { return true })
			time.Sleep(3 * candidate.silence)
		}
		closeTransport(candidate)
		closeTransport(voter)
	})
}

// TestTimeoutNowUnanswered: a transfer of the leadership to a member that hangs soon fails,
// so that Raft accepts entries again.
func TestTimeoutNowUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader := openTransport(t, net, "leader")
		l, err := net.Host("follower").Listen("follower:1")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(io.Discard, c) // and no answer
				c.Close()
			}
		}()
		began := time.Now()
		var r raft.TimeoutNowResponse
		if err := leader.transport.TimeoutNow("2", "follower:1", new(raft.TimeoutNowRequest), &r); err == nil {
			t.Error("it was not answered, and did not fail")
		}
		if took := time.Since(began); took > leader.contacts.sure {
			t.Errorf("it fails after %v", took)
		}
		closeTransport(leader)
		l.Close()
	})
}

// TestAskInCircles: while two members each name the other as the leader, who asks them
// pauses between its questions.
func TestAskInCircles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		var asked atomic.Int64
		var serving sync.WaitGroup
		defer serving.Wait()
		for addr, names := range map[string]string{"a:1": "b:1", "b:1": "a:1"} {
			l, err := net.Host(addr[:1]).Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			serving.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond) // so that time passes
					asked.Add(1)
					json.NewEncoder(c).Encode(Reply{Error: ErrNotLeader.Error(), Lead: true, Leader: names})
					c.Close()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := Ask(ctx, net.Host("c"), "a:1", Request{Status: true}); err == nil {
			t.Error("there is no leader, and no error")
		}
		if n := asked.Load(); n > 10*2*int64(time.Second/askAgain)+50 {
			t.Errorf("%d questions in 10 s", n)
		}
	})
}

// TestWaitingIsBounded: while Raft's main goroutine is busy, few messages of a member wait for
// it, only the newest of those with entries, and vote requests only for an election timeout.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		one, other, busy := openTransport(t, net, "one"), openTransport(t, net, "other"), openTransport(t, net, "busy")
		const sent = 20
		failed := map[string]*atomic.Int64{}
		send := func(what string, from openedTransport, id string, entries []*raft.Log) {
			failed[what] = new(atomic.Int64)
			for range sent {
				from.wg.Go(func() {
					q := raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte(id)}, Term: 1, PrevLogEntry: 5, PrevLogTerm: 1, Entries: entries}
					if from.appendEntries("3", "busy:1", &q, new(raft.AppendEntriesResponse)) != nil {
						failed[what].Add(1)
					}
				})
				synctest.Wait()
			}
		}
		expect := func(what string, want int64) {
			t.Helper()
			synctest.Wait()
			if n := failed[what].Load(); n != want {
				t.Errorf("%d messages of %s have been refused, want %d", n, what, want)
			}
		}
		send("one, with entries", one, "1", noops(6, 6, 1))
		expect("one, with entries", sent-1)
		send("other, without", other, "2", nil)
		expect("other, without", sent-mostWaiting)
		send("one, without", one, "1", nil)
		expect("one, with entries", sent)
		time.Sleep(10 * one.silence)
		expect("one, without", sent-mostWaiting)
		expect("other, without", sent-mostWaiting)

		began := time.Now()
		if err := other.transport.RequestVote("3", "busy:1", new(raft.RequestVoteRequest), new(raft.RequestVoteResponse)); err == nil {
			t.Error("a vote was answered")
		}
		if took := time.Since(began); took > other.silence {
			t.Errorf("a vote request waited %v", took)
		}
		for range 2 * mostWaiting {
			rpc := receive(t, "a message", busy.transport.Consumer())
			rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		}
		expect("one, without", sent-mostWaiting)
		expect("other, without", sent-mostWaiting)
		if len(busy.waiting) > 0 {
			t.Errorf("%d members are remembered", len(busy.waiting))
		}
		for _, o := range []openedTransport{one, other, busy} {
			closeTransport(o)
		}
	})
}
