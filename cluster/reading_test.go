package cluster

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// zxids is a Waiter that sends the zxid of the state from which a command was answered;
// -1 means Lost.
type zxids chan int64

func (z zxids) Done(v *fsm.View, _ *fsm.Result) { z <- v.Zxid() }
func (z zxids) Lost()                           { z <- -1 }

// proposeRead proposes a read-only command.
func (m *Member) proposeRead() zxids {
	z := make(zxids, 1)
	m.Propose(fsm.Nothing(), z, nil)
	return z
}

// proposeWrite proposes a write.
func (m *Member) proposeWrite() zxids {
	z := make(zxids, 1)
	m.Propose(someWrite(), z, nil)
	return z
}

// TestReadsAreNotStored: read-only commands are answered on every member while no disk
// works, and leave nothing in the log. They see the writes before them.
func TestReadsAreNotStored(t *testing.T) {
	for _, count := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, count)
			lead := f.all(nil)
			written := <-f.running[lead].proposeWrite()
			time.Sleep(time.Second)
			last, blocked := f.running[lead].engine.LastIndex(), make(chan struct{})
			defer close(blocked)
			for _, m := range f.running {
				m.cfg.Memory.SetFault(func() error { <-blocked; return nil })
			}
			for range 3 {
				for i, m := range f.running {
					began := time.Now()
					if zxid := <-m.proposeRead(); zxid != written {
						t.Errorf("member %d of %d answers from zxid %x, the last is %x", i+1, count, zxid, written)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("member %d of %d answers after %v", i+1, count, took)
					}
				}
			}
			for _, m := range f.running {
				if n := m.engine.LastIndex(); n != last {
					t.Errorf("the log ends at entry %d, before at %d", n, last)
				}
			}
		})
	}
}

// TestReadsKeepTheirPlace: a read-only command is answered after all commands before it
// and before those after it, whether or not writes are proposed together with it.
func TestReadsKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, m := range startedFleet(t, 1).running {
			for range 3 {
				first, a, second, b, c := m.proposeWrite(), m.proposeRead(), m.proposeWrite(), m.proposeRead(), m.proposeRead()
				if x, y := <-first, <-a; x != y {
					t.Errorf("a read after zxid %x is answered from %x", x, y)
				}
				if x, y, z := <-second, <-b, <-c; x != y || x != z {
					t.Errorf("reads after zxid %x are answered from %x and %x", x, y, z)
				}
			}
		}
	})
}

// TestReadOnReplacedLeader: a leader that was replaced, and does not know it yet, does not
// answer a read-only command before it has applied what its successor has committed.
func TestReadOnReplacedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		old, next := f.running[lead], f.running[(lead+1)%3]
		time.Sleep(time.Second)
		f.cutOff(lead, true)
		next.engine.Campaign(next.contacts.Lease)
		until(t, "another leader", func() bool { return next.leader.Get().ID == next.cfg.ID && next.pulse.leader.ReadyTerm.Load() != 0 })
		written := <-next.proposeWrite()
		if old.engine.Role() != engine.Leader || old.leader.Get().ID != old.cfg.ID {
			t.Fatal("the old leader has noticed")
		}
		read := old.proposeRead()
		synctest.Wait()
		if len(read) > 0 {
			t.Fatalf("answered from zxid %x, while %x was acknowledged", <-read, written)
		}
		f.net.Heal()
		if zxid := testkit.Receive(t, "the outcome", read); zxid < written && zxid != -1 {
			t.Errorf("answered from zxid %x, and %x was acknowledged before", zxid, written)
		}
		if zxid := testkit.Receive(t, "the outcome", old.proposeRead()); zxid != written {
			t.Errorf("answered from zxid %x, want %x", zxid, written)
		}
	})
}

// TestReadWithoutMajority: read-only commands of a leader that is cut off are lost when it
// gives up, and those of the others are answered when they have another leader.
func TestReadWithoutMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		time.Sleep(time.Second)
		f.cutOff(lead, true)
		read, other := f.running[lead].proposeRead(), f.running[(lead+1)%3].proposeRead()
		if zxid := testkit.Receive(t, "the outcome", read); zxid != -1 {
			t.Errorf("the leader without a majority answered from zxid %x", zxid)
		}
		if zxid := testkit.Receive(t, "the outcome", other); zxid == -1 {
			t.Error("a command of a member with a majority was lost")
		}
	})
}

// TestReadOfNewLeader: a leader gives no index before all entries of earlier terms are
// applied here, nor to a member that knows a later term.
func TestReadOfNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		m, other := f.running[lead], f.running[(lead+1)%3]
		term := m.engine.Term()
		if m.proposer.ReadIndex(other.cfg.ID, term, nil) == 0 {
			t.Error("the leader gives no index")
		}
		if m.proposer.ReadIndex(other.cfg.ID, term+1, nil) != 0 {
			t.Error("it gives one to a member that knows a later term")
		}
		if other.proposer.ReadIndex(0, 0, nil) != 0 {
			t.Error("a follower gives one")
		}
		for _, ready := range []uint64{0, term - 1} {
			m.pulse.leader.ReadyTerm.Store(ready)
			if m.proposer.ReadIndex(0, 0, nil) != 0 {
				t.Errorf("it gives one in term %d, with ReadyTerm %d", term, ready)
			}
		}
		m.pulse.leader.ReadyTerm.Store(term)
	})
}

// TestRounds: only agreement to this round or a later one counts, of a majority of the
// voters. A member that asks has agreed only to its own question.
func TestRounds(t *testing.T) {
	members := []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}, {ID: 5}, {ID: 6, Observer: true}}
	c := election.NewContacts(1, timing.For(time.Second))
	agreed := func(round, asker uint64) bool {
		ok, _ := c.HasMajority(round, asker, members)
		return ok
	}
	before := c.BeginRound()
	round := c.BeginRound()
	c.Accepted(2, timing.Moment{}, before)
	c.Accepted(3, timing.Moment{}, before)
	if !agreed(before, 0) || agreed(round, 0) {
		t.Error("agreement to the round before counts for this one, or not for that one")
	}
	_, news := c.HasMajority(round, 0, members)
	c.Accepted(2, timing.Moment{}, round)
	testkit.Receive(t, "news", news)
	c.Accepted(6, timing.Moment{}, round)
	if agreed(round, 0) || agreed(round, 6) || agreed(round, 2) {
		t.Error("two of five voters have agreed")
	}
	if !agreed(round, 3) {
		t.Error("two of five voters have agreed, and a third one asks")
	}
	if agreed(round, 0) {
		t.Error("the question of one member counts for another's")
	}
	c.Accepted(2, timing.Moment{}, before) // an answer that was delayed
	c.Accepted(3, timing.Moment{}, c.BeginRound())
	if !agreed(round, 0) {
		t.Error("a majority has agreed, one to a later round")
	}
}

// TestBeatAgreesToEarlierRound: the answer to a heartbeat that was on its way when a round
// began does not count for that round.
func TestBeatAgreesToEarlierRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		p, beats, reply := b.pulse, make(chan bool), make(chan bool)
		b.answer(t, "b", peer.KindBeat, func(c net.Conn) {
			defer c.Close()
			for readFull(c, binary.Size(beat{})) != nil {
				select {
				case beats <- true:
				case <-b.Stop:
					return
				}
				select {
				case <-reply:
				case <-b.Stop:
					return
				}
				c.Write(append(binary.BigEndian.AppendUint64(nil, p.engine.Term()), make([]byte, binary.Size(election.DigestAnswer{}))...))
			}
		})
		b.Running.Go(p.run)
		testkit.Receive(t, "a heartbeat", beats)
		round := p.contacts.BeginRound()
		agreed := func() bool {
			synctest.Wait()
			is, _ := p.contacts.HasMajority(round, 0, []proto.Peer{{ID: 1}, {ID: 2}})
			return is
		}
		reply <- true
		if agreed() {
			t.Errorf("a heartbeat before round %d agrees to it", round)
		}
		testkit.Receive(t, "a heartbeat", beats)
		reply <- true
		if !agreed() {
			t.Errorf("a heartbeat in round %d does not agree to it", round)
		}
	})
}

// TestReadAsksLeader: a follower asks the leader, with its own id and term, again if the
// leader refuses, and answers when it has applied the entry at the index.
func TestReadAsksLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		asked := make(chan []byte, 10)
		var at atomic.Uint64 // the index that the leader names
		at.Store(7)
		b.answer(t, "b", peer.KindForward, func(c net.Conn) {
			defer c.Close()
			for n := uint64(1); ; n++ {
				head := readFull(c, 5)
				if head == nil {
					return
				}
				q := readFull(c, int(binary.BigEndian.Uint32(head[1:])))
				if head[0] != propose.MsgAsk || len(q) != propose.AskLen || binary.BigEndian.Uint64(q) != n {
					t.Errorf("message %c with % x", head[0], q)
					return
				}
				asked <- q
				tell := func(number, index uint64) {
					peer.WriteMessage(c, propose.MsgAnswer, propose.Answer(number, index))
				}
				tell(n-1, 1) // late, to a question that was given up
				if n == 1 {
					tell(n, 0)
				} else {
					tell(n, at.Load())
				}
			}
		})
		p := b.proposer()
		b.leader.Set(2, "b:1")
		b.Running.Go(p.Run)
		read := make(zxids, 1)
		p.Propose(fsm.Nothing(), read, nil)
		for range 2 {
			q := testkit.Receive(t, "a question", asked)
			if id, term := binary.BigEndian.Uint64(q[8:]), binary.BigEndian.Uint64(q[16:]); id != 1 || term != b.pulse.engine.Term() {
				t.Errorf("member %d asks in term %d, want 1 in %d", id, term, b.pulse.engine.Term())
			}
		}
		apply := func() {
			e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
			if err := b.pulse.engine.Propose(fsm.EndEntry(e, &fsm.Envelope{Origin: 9, Count: 1}), 0)(); err != nil {
				t.Fatal(err)
			}
		}
		for b.pulse.engine.LastIndex() < at.Load()-1 {
			apply()
		}
		synctest.Wait()
		if len(read) > 0 {
			t.Fatalf("it is answered before entry %d is applied", at.Load())
		}
		apply()
		if testkit.Receive(t, "the outcome", read) == -1 {
			t.Error("it is lost")
		}

		at.Add(2)
		p.Propose(fsm.Nothing(), read, nil) // given up while the leader's entry is missing
		testkit.Receive(t, "a question", asked)
		synctest.Wait()
		b.leader.Suspend()
		if zxid := testkit.Receive(t, "the outcome", read); zxid != -1 {
			t.Error("it is answered, although it was given up")
		}
	})
}

// TestReadAfterRaftsOwnEntries: a read-only command does not wait for an entry that Raft
// keeps to itself, nor for one that a snapshot has replaced.
func TestReadAfterRaftsOwnEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		m := f.running[leadOf(t, f)]
		if err := m.engine.Barrier(0); err != nil {
			t.Fatal(err)
		}
		applied, commit := m.engine.StateIndex(), m.engine.Committed()
		if commit <= applied {
			t.Fatalf("committed %d, applied %d", commit, applied)
		}
		visible := func(upTo uint64) {
			t.Helper()
			if index, ok := m.engine.StateIndexAt(upTo); index != applied || !ok {
				t.Errorf("up to %d, the state last changed at %d, want %d", upTo, index, applied)
			}
		}
		visible(commit)
		visible(commit + 10) // which is not in the log
		for _, m := range f.running {
			if testkit.Receive(t, "the outcome", m.proposeRead()) == -1 {
				t.Error("it is lost")
			}
		}
	})
}

// TestOldReadsOfNewLeader: the leader acknowledges a write and loses its power in that moment, before it has
// told the others that the write is committed. One of them is elected. The disks of the others get stuck after
// they have stored their votes, so the new leader cannot commit anything, and does not apply that write. It
// stops serving reads after two election timeouts. Of five members, the disk of one of the others works.
func TestOldReadsOfNewLeader(t *testing.T) {
	for _, size := range []int{3, 5} {
		testkit.Bubble(t, fmt.Sprint(size), func(t *testing.T) {
			f := newFleet(t, size)
			old := f.all(nil)
			var serves []*atomic.Bool
			for i, m := range f.running {
				serves = append(serves, served(m))
				client(t, m, int64(1000+i))
			}
			time.Sleep(time.Second)
			release := make(chan struct{})
			members := slices.Clone(f.running) // which the test ends while disks are still used
			next := func() int {               // the new leader
				return slices.IndexFunc(members, func(m *Member) bool { return m != members[old] && m.engine.Role() == engine.Leader })
			}
			var lead atomic.Int32
			lead.Store(-1)
			for x := range f.running {
				if x == old {
					continue
				}
				f.disks[x].SetFault(func() error {
					if i := next(); i >= 0 {
						lead.CompareAndSwap(-1, int32(i))
					}
					// The lowest of the others works.
					works := 0
					for works == old || works == int(lead.Load()) {
						works++
					}
					if l := int(lead.Load()); l >= 0 && x != l && (x != works || size == 3) {
						<-release
					}
					return nil
				})
			}
			w := make(propose.Result, 1)
			f.running[old].Propose(fsm.OpenSession(7777, 7777, 40_000, session.Password{}), cutWhenDone{w, func() { f.cutOff(old, true) }}, nil)
			if err := <-w; err != nil {
				t.Fatal(err)
			}
			acked := time.Now()
			was := f.running[old]
			was.Kill()
			for time.Since(acked) < 30*time.Second {
				time.Sleep(500 * time.Millisecond)
				for i, m := range f.running {
					if d := time.Since(acked); i != old && serves[i].Load() && m.oldRead(int64(1000+i)) && d > 2*m.contacts.ElectionTimeout+500*time.Millisecond {
						t.Errorf("member %d (%s) serves a read %v after a write was acknowledged that it does not show", i+1, m.Role(), d)
					}
				}
			}
			close(release)
			until(t, "the write", func() bool { return f.running[lead.Load()].hasSession(7777) })
		})
	}
}

// oldReads has the leader's disk get stuck, and another member elected, which is cut off from a third one, far. cut does
// what else happens at that moment. far still hears the old leader; its client is idle, so no touch of the session
// waits for the leader. oldReads fails if far answers a read much later than two election timeouts after a
// write was acknowledged that the read does not show.
func (f *fleet) oldReads(cut func(lead, other, far int)) {
	t := f.t
	t.Helper()
	time.Sleep(3 * time.Second)
	lead := leadOf(t, f)
	other, far := 0, len(f.running)-1 // of equals, the one with the lowest id stands first
	if lead == 0 {
		other = 1
	}
	if lead == far {
		far--
	}
	m := f.running[far]
	serves := served(m)
	client(t, m, 1000)
	time.Sleep(time.Second)
	release := make(chan struct{})
	defer close(release)
	f.disks[lead].SetFault(func() error { <-release; return nil })
	f.cutBetween(other, far, true)
	go f.running[lead].Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(propose.Result, 1), nil)
	cut(lead, other, far)
	f.anotherLeads(lead, time.Minute)
	if f.running[other].engine.Role() != engine.Leader { // two stood at once, and far, which reaches other no more, may be the leader
		t.Log("another member leads")
		return
	}
	did(t, f.running[other], fsm.OpenSession(7777, 7777, 1<<30, session.Password{}))
	acked := time.Now()
	var oldest time.Duration
	for time.Sleep(4200 * time.Millisecond); time.Since(acked) < 40*time.Second && serves.Load(); time.Sleep(50 * time.Millisecond) {
		if m.oldRead(1000) {
			oldest = time.Since(acked)
		}
	}
	if oldest > 4500*time.Millisecond {
		t.Errorf("serves a read %v after a write was acknowledged that it does not show; leader %d, new leader %d, terms %d %d", oldest, m.leader.Get().ID, other+1, m.engine.Term(), f.running[other].engine.Term())
	}
	if serves.Load() {
		t.Errorf("it still serves 40 s later")
	}
}

// TestOldReadsBesideStuckLeader: the old leader's Raft does not notice that another was elected, since it waits for the
// disk. It hears of the later term from the other members only. The same with three voters and an observer.
func TestOldReadsBesideStuckLeader(t *testing.T) {
	for name, x := range map[string]struct {
		size      int
		observers []uint64
		first     bool // its Raft waits for the disk before it sends an entry
	}{"five voters": {5, nil, true}, "an observer": {4, []uint64{4}, true}, "five voters, disk last": {5, nil, false}} {
		testkit.Bubble(t, name, func(t *testing.T) {
			f := newFleet(t, x.size)
			f.first = x.first
			for i := range f.running {
				cfg := f.config(i)
				observe(&cfg, x.observers...)
				f.open(i, cfg)
			}
			until(t, "the whole cluster", func() bool {
				return !slices.ContainsFunc(f.running, func(m *Member) bool {
					s := m.membership.Status()
					return s.Leader == 0 || s.Index == 0 || s.Index != f.running[0].engine.StateIndex() || m.identified() == 0
				})
			})
			f.oldReads(func(int, int, int) {})
		})
	}
}

// TestOldReadsBehindWall: a firewall resets the old leader's connections to all members but far, so that the others replace
// it at once, without waiting for an election timeout.
func TestOldReadsBehindWall(t *testing.T) {
	for _, first := range []bool{true, false} {
		testkit.Bubble(t, fmt.Sprint("disk first ", first), func(t *testing.T) {
			f := newFleet(t, 5)
			f.first = first
			n := newWires()
			f.net = n.Network
			var no [5][5]atomic.Bool // new connections from one member to another
			for i := range f.running {
				cfg := f.config(i)
				cfg.Network = n.host(string(rune('a' + i)))
				for j := range f.running {
					cfg.Network = refusing{cfg.Network, f.peers[uint64(j+1)], &no[i][j]}
				}
				f.open(i, cfg)
			}
			f.whole()
			f.oldReads(func(lead, _, far int) {
				time.Sleep(50 * time.Millisecond)
				for i, m := range f.running {
					if i != lead && i != far {
						no[i][lead].Store(true)
						no[lead][i].Store(true)
						n.end(between(f.running[lead], m))
					}
				}
			})
		})
	}
}

// TestOldReadsBehindSilentCut: the old leader is replaced because its disk is stuck, and loses at that moment, without a
// reset, all members but far. So a majority accepted it until then, and it does not hear of the later term.
func TestOldReadsBehindSilentCut(t *testing.T) {
	bothDiskOrders(t, 5, func(t *testing.T, f *fleet, _ int) {
		f.net.SetDelay(func(from, to string) time.Duration { return 10 * time.Millisecond })
		f.oldReads(func(lead, other, far int) {
			for f.running[other].engine.Role() == engine.Follower {
				time.Sleep(time.Millisecond)
			}
			for i := range f.running {
				if i != lead && i != far {
					f.cutBetween(i, lead, true)
				}
			}
		})
	})
}

// TestReplacedWhileStuck: the leader's disk is stuck, so Raft does not notice that another was
// elected, and that one cannot reach it. The third member answers its heartbeats. It stops
// serving before its state is older than promised. That is also so if Raft is free to notice it,
// and has sent the others what it cannot write.
func TestReplacedWhileStuck(t *testing.T) {
	bothDiskOrders(t, 3, func(t *testing.T, f *fleet, lead int) {
		other := (lead + 1) % 3
		if lead != 0 {
			other = 0 // of equals, the one with the lowest id stands first
		}
		old := f.running[lead]
		until(t, "clients", func() bool { return <-old.Serving() })
		f.whole()
		release := make(chan struct{})
		f.disks[lead].SetFault(func() error { <-release; return nil })
		defer close(release)
		if f.first {
			f.cutBetween(lead, other, true)
		}
		end := old.engine.LastIndex() + 1
		f.propose(lead, 99)
		if !f.first {
			until(t, "the entry everywhere", func() bool {
				return !slices.ContainsFunc(f.running, func(m *Member) bool { return m.engine.LastIndex() < end })
			})
			f.cutBetween(lead, other, true)
		}
		until(t, "another leader", func() bool { return f.running[other].engine.Role() == engine.Leader })
		f.writes(other, 1)
		since := time.Now()
		for serving := true; serving; {
			select {
			case serving = <-old.Serving():
			case <-time.After(time.Minute):
				t.Fatal("it goes on serving")
			}
		}
		if took, limit := time.Since(since), timing.UnheardLimit*old.contacts.ElectionTimeout; took > limit {
			t.Errorf("it stopped serving after %v, more than %v", took, limit)
		}
		if f.first && old.engine.Role() != engine.Leader {
			t.Error("its Raft has noticed")
		}
	})
}

// oldRead has a client of a member, with the session id, send a request, and reports whether it is answered now, from a
// state without session 7777.
func (m *Member) oldRead(id int64) (old bool) {
	over, answered := make(chan struct{}), make(chan bool, 1)
	go func() { answered <- m.Touch(id, over) }()
	synctest.Wait()
	if len(answered) == 0 {
		close(over)
		<-answered
		return false
	}
	return <-answered && !m.hasSession(7777)
}

// client opens a session of a client of a member, which it keeps alive once.
func client(t *testing.T, m *Member, id int64) {
	t.Helper()
	did(t, m, fsm.OpenSession(uint64(id), id, 40_000, session.Password{})) // the longest timeout by default
	time.Sleep(time.Second)
	if !m.Touch(id, nil) {
		t.Fatal("no session")
	}
}
