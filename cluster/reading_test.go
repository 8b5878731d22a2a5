package cluster

import (
	"encoding/binary"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
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
			members, lead := startMembers(t, memnet.New(), new(testkit.Log), count, time.Second)
			written := <-members[lead].proposeWrite()
			time.Sleep(time.Second)
			last, blocked := members[lead].raft.LastIndex(), make(chan struct{})
			for _, m := range members {
				m.cfg.Memory.SetFault(func() error { <-blocked; return nil })
			}
			for range 3 {
				for i, m := range members {
					began := time.Now()
					if zxid := <-m.proposeRead(); zxid != written {
						t.Errorf("member %d of %d answers from zxid %x, the last is %x", i+1, count, zxid, written)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("member %d of %d answers after %v", i+1, count, took)
					}
				}
			}
			for _, m := range members {
				if n := m.raft.LastIndex(); n != last {
					t.Errorf("the log ends at entry %d, before at %d", n, last)
				}
				m.cfg.Memory.SetFault(nil)
			}
			close(blocked)
		})
	}
}

// TestReadsKeepTheirPlace: a read-only command is answered after all commands before it
// and before those after it, whether or not writes are proposed together with it.
func TestReadsKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, _ := threeMembers(t, memnet.New(), new(testkit.Log))
		for _, m := range members {
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
		network := memnet.New()
		members, lead := threeMembers(t, network, new(testkit.Log))
		old, next := members[lead], members[(lead+1)%3]
		<-old.proposeWrite()
		time.Sleep(time.Second)
		cutOff(network, members, lead)
		next.pulse.stand()
		until(t, "another leader", func() bool { return next.Leader() == next.cfg.ID && next.raft.begun.Load() != 0 })
		written := <-next.proposeWrite()
		if old.raft.State() != raft.Leader || old.Leader() != old.cfg.ID {
			t.Fatal("the old leader has noticed")
		}
		read := old.proposeRead()
		synctest.Wait()
		select {
		case zxid := <-read:
			t.Fatalf("answered from zxid %x, while %x was acknowledged", zxid, written)
		default:
		}
		network.Heal()
		if zxid := receive(t, "the outcome", read); zxid < written && zxid != -1 {
			t.Errorf("answered from zxid %x, and %x was acknowledged before", zxid, written)
		}
		if zxid := receive(t, "the outcome", old.proposeRead()); zxid != written {
			t.Errorf("answered from zxid %x, want %x", zxid, written)
		}
	})
}

// TestReadWithoutMajority: read-only commands of a leader that is cut off are lost when it
// gives up, and those of the others are answered when they have another leader.
func TestReadWithoutMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		members, lead := threeMembers(t, network, new(testkit.Log))
		time.Sleep(time.Second)
		cutOff(network, members, lead)
		read, other := members[lead].proposeRead(), members[(lead+1)%3].proposeRead()
		if zxid := receive(t, "the outcome", read); zxid != -1 {
			t.Errorf("the leader without a majority answered from zxid %x", zxid)
		}
		if zxid := receive(t, "the outcome", other); zxid == -1 {
			t.Error("a command of a member with a majority was lost")
		}
	})
}

// TestReadOfNewLeader: a leader gives no index before all entries of earlier terms are
// applied here, nor to a member that knows a later term.
func TestReadOfNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		m, other := members[lead], members[(lead+1)%3]
		term := m.raft.CurrentTerm()
		if _, ok := m.readIndex.answer(other.cfg.ID, term, nil); !ok {
			t.Error("the leader gives no index")
		}
		if _, ok := m.readIndex.answer(other.cfg.ID, term+1, nil); ok {
			t.Error("it gives one to a member that knows a later term")
		}
		if _, ok := other.readIndex.get(0, nil); ok {
			t.Error("a follower gives one")
		}
		for _, begun := range []uint64{0, term - 1} {
			m.raft.begun.Store(begun)
			if _, ok := m.readIndex.get(0, nil); ok {
				t.Errorf("it gives one in term %d, having begun to lead in %d", term, begun)
			}
		}
		m.raft.begun.Store(term)
	})
}

// TestRounds: only agreement to this round or a later one counts, of a majority of the
// voters. A member that asks has agreed only to its own question.
func TestRounds(t *testing.T) {
	members := []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}, {ID: 5}, {ID: 6, Observer: true}}
	c := newContacts(1, timesFor(time.Second))
	agreed := func(round, asker uint64) bool {
		ok, _ := c.hasAgreed(round, asker, members)
		return ok
	}
	before := c.ask()
	round := c.ask()
	c.agree(2, before)
	c.agree(3, before)
	if !agreed(before, 0) || agreed(round, 0) {
		t.Error("agreement to the round before counts for this one, or not for that one")
	}
	_, news := c.hasAgreed(round, 0, members)
	c.agree(2, round)
	receive(t, "news", news)
	c.agree(6, round)
	if agreed(round, 0) || agreed(round, 6) || agreed(round, 2) {
		t.Error("two of five voters have agreed")
	}
	if !agreed(round, 3) {
		t.Error("two of five voters have agreed, and a third one asks")
	}
	if agreed(round, 0) {
		t.Error("the question of one member counts for another's")
	}
	c.agree(2, before) // an answer that was delayed
	c.agree(3, c.ask())
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
		b.answer(t, "b", kindBeat, func(c net.Conn) {
			defer c.Close()
			for readFull(c, beatLen) != nil {
				select {
				case beats <- true:
				case <-b.stop:
					return
				}
				select {
				case <-reply:
				case <-b.stop:
					return
				}
				c.Write(append(binary.BigEndian.AppendUint64(nil, p.raft.CurrentTerm()), make([]byte, answerLen-8)...))
			}
		})
		b.wg.Go(p.run)
		receive(t, "a heartbeat", beats)
		round := p.contacts.ask()
		agreed := func() uint64 {
			synctest.Wait()
			p.contacts.mu.Lock()
			defer p.contacts.mu.Unlock()
			return p.contacts.peer(2).agreed
		}
		reply <- true
		if n := agreed(); n >= round {
			t.Errorf("a heartbeat before round %d agrees to round %d", round, n)
		}
		receive(t, "a heartbeat", beats)
		reply <- true
		if n := agreed(); n != round {
			t.Errorf("a heartbeat in round %d agrees to round %d", round, n)
		}
	})
}

// TestReadAsksLeader: a follower asks the leader, with its own id and term, again if the
// leader refuses, and answers when it has applied the entry at the index.
func TestReadAsksLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		asked := make(chan []byte, 10)
		b.answer(t, "b", kindForward, func(c net.Conn) {
			defer c.Close()
			for n := uint64(1); ; n++ {
				head := readFull(c, 5)
				if head == nil {
					return
				}
				q := readFull(c, int(binary.BigEndian.Uint32(head[1:])))
				if head[0] != msgAsk || len(q) != askLen || binary.BigEndian.Uint64(q) != n {
					t.Errorf("message %c with % x", head[0], q)
					return
				}
				asked <- q
				tell := func(number, index uint64) {
					writeMessage(c, msgIndex, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, number), index))
				}
				tell(n-1, 1) // late, to a question that was given up
				if n == 1 {
					tell(n, 0)
				} else {
					tell(n, 7)
				}
			}
		})
		p := b.proposer()
		b.leader.set(2, "b:1")
		b.wg.Go(p.run)
		read := make(zxids, 1)
		p.propose(fsm.Nothing(), read, nil)
		for range 2 {
			q := receive(t, "a question", asked)
			if id, term := binary.BigEndian.Uint64(q[8:]), binary.BigEndian.Uint64(q[16:]); id != 1 || term != b.pulse.raft.CurrentTerm() {
				t.Errorf("member %d asks in term %d, want 1 in %d", id, term, b.pulse.raft.CurrentTerm())
			}
		}
		b.pulse.commits.set(6, 1)
		synctest.Wait()
		if len(read) > 0 {
			t.Fatal("it is answered before entry 7 is applied")
		}
		b.pulse.commits.set(7, 1)
		if receive(t, "the outcome", read) == -1 {
			t.Error("it is lost")
		}

		b.pulse.commits.set(5, 1)
		p.propose(fsm.Nothing(), read, nil) // given up while the leader's entry is missing
		receive(t, "a question", asked)
		synctest.Wait()
		b.leader.suspend()
		if zxid := receive(t, "the outcome", read); zxid != -1 {
			t.Error("it is answered, although it was given up")
		}
	})
}

// TestReadAfterRaftsOwnEntries: a read-only command does not wait for an entry that Raft
// keeps to itself, nor for one that a snapshot has replaced.
func TestReadAfterRaftsOwnEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		m := members[lead]
		<-m.proposeWrite()
		if err := m.raft.Barrier(0).Error(); err != nil {
			t.Fatal(err)
		}
		applied := m.commits.applied() // a write is answered before this has its index
		commit := m.raft.CommitIndex()
		if commit <= applied {
			t.Fatalf("committed %d, applied %d", commit, applied)
		}
		if index, ok := m.readIndex.visible(commit); index != applied || !ok {
			t.Errorf("%d is committed, and the state last changed at %d, want %d", commit, index, applied)
		}
		if index, ok := m.readIndex.visible(commit + 10); index != applied || !ok {
			t.Errorf("up to an entry that is not in the log: %d, want %d", index, applied)
		}
		for _, m := range members {
			if receive(t, "the outcome", m.proposeRead()) == -1 {
				t.Error("it is lost")
			}
		}
		m.commits.set(applied-1, 1) // it is committed, and not applied yet
		if index, ok := m.readIndex.visible(commit); index != applied || !ok {
			t.Errorf("%d is committed, the last write at %d, and not %d", commit, applied, index)
		}
		m.commits.set(applied, m.raft.CurrentTerm())
	})
}

// TestOldReadsOfNewLeader: the leader acknowledges a write and loses its power in that moment, before it has
// told the others that the write is committed. One of them is elected. The disks of the others get stuck after
// they have stored their votes, so the new leader cannot commit anything, and does not apply that write. It
// stops serving reads after two election timeouts.
func TestOldReadsOfNewLeader(t *testing.T) {
	t.Run("three", func(t *testing.T) { oldReadsOfNewLeader(t, 3) })
	t.Run("five", func(t *testing.T) { oldReadsOfNewLeader(t, 5) }) // and the disk of one of the others works
}

func oldReadsOfNewLeader(t *testing.T, size int) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, size)
		for i := range size {
			f.start(i)
		}
		f.whole()
		old := leadOf(t, f)
		const timeout = 40_000 // the longest by default
		var serves [5]atomic.Bool
		for i, m := range f.running {
			go func() {
				for {
					select {
					case yes := <-m.Serving():
						serves[i].Store(yes)
					case <-m.stop:
						return
					}
				}
			}()
			did(t, m, fsm.OpenSession(uint64(1000+i), int64(1000+i), timeout, session.Password{}))
		}
		time.Sleep(time.Second)
		for i, m := range f.running {
			if !m.Touch(int64(1000+i), nil) {
				t.Fatal("no session")
			}
		}
		time.Sleep(time.Second)
		release := make(chan struct{})
		members := slices.Clone(f.running) // which the test ends while disks are still used
		next := func() int {               // the new leader
			for i, m := range members {
				if i != old && m.raft.State() == raft.Leader {
					return i
				}
			}
			return -1
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
		w := make(result, 1)
		host := func(i int) string { return f.peers[uint64(i+1)][:1] }
		f.running[old].Propose(fsm.OpenSession(7777, 7777, timeout, session.Password{}), cutWhenDone{w, func() {
			for i := range size {
				f.net.Cut(host(old), host(i), true)
			}
		}}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		acked := time.Now()
		was := f.running[old]
		was.Kill()
		worst := map[int]time.Duration{}
		for time.Since(acked) < 30*time.Second {
			time.Sleep(500 * time.Millisecond)
			for i, m := range f.running {
				if i == old || !serves[i].Load() {
					continue
				}
				over := make(chan struct{})
				answered := make(chan bool, 1)
				began := time.Now()
				go func() { answered <- m.Touch(int64(1000+i), over) }()
				synctest.Wait()
				select {
				case ok := <-answered:
					m.replica.View(func(v *fsm.View) {
						if ok && v.Sessions().Get(7777) == nil {
							worst[i] = began.Sub(acked)
						}
					})
				default:
					close(over)
					<-answered
				}
			}
		}
		for i, d := range worst {
			if m := f.running[i]; d > 2*m.contacts.silence+500*time.Millisecond {
				t.Errorf("member %d (%s) serves a read %v after a write was acknowledged that it does not show", i+1, m.Role(), d)
			}
		}
		close(release)
		l := f.running[lead.Load()]
		until(t, "the write", func() bool {
			ok := false
			l.replica.View(func(v *fsm.View) { ok = v.Sessions().Get(7777) != nil })
			return ok
		})
	})
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
	var serves atomic.Bool
	go func() {
		for {
			select {
			case yes := <-m.Serving():
				serves.Store(yes)
			case <-m.stop:
				return
			}
		}
	}()
	did(t, m, fsm.OpenSession(1000, 1000, 40_000, session.Password{}))
	time.Sleep(time.Second)
	if !m.Touch(1000, nil) {
		t.Fatal("no session")
	}
	time.Sleep(time.Second)
	release := make(chan struct{})
	defer close(release)
	f.disks[lead].SetFault(func() error { <-release; return nil })
	f.cutBetween(other, far, true)
	go f.running[lead].Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(result, 1), nil)
	cut(lead, other, far)
	elected := -1
	until(t, "another leader", func() bool {
		elected = slices.IndexFunc(f.running, func(x *Member) bool { return x != f.running[lead] && x.raft.State() == raft.Leader })
		return elected >= 0
	})
	if elected != other { // two stood at once, and far, which reaches other no more, may be the leader
		t.Logf("member %d leads, not %d", elected+1, other+1)
		return
	}
	did(t, f.running[other], fsm.OpenSession(7777, 7777, 1<<30, session.Password{}))
	acked := time.Now()
	var oldest time.Duration
	time.Sleep(4200 * time.Millisecond)
	for time.Since(acked) < 40*time.Second && serves.Load() {
		over := make(chan struct{})
		answered := make(chan bool, 1)
		go func() { answered <- m.Touch(1000, over) }()
		synctest.Wait()
		select {
		case ok := <-answered:
			m.replica.View(func(v *fsm.View) {
				if ok && v.Sessions().Get(7777) == nil {
					oldest = time.Since(acked)
				}
			})
		default:
			close(over)
			<-answered
		}
		time.Sleep(50 * time.Millisecond)
	}
	if oldest > 4500*time.Millisecond {
		t.Errorf("serves a read %v after a write was acknowledged that it does not show; leader %d, new leader %d, terms %d %d", oldest, m.Leader(), other+1, m.raft.CurrentTerm(), f.running[other].raft.CurrentTerm())
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
		bubble(t, name, func(t *testing.T) {
			f := newFleet(t, x.size)
			for i := range f.running {
				cfg := f.config(i)
				observe(&cfg, x.observers...)
				cfg.DiskFirst = x.first
				f.open(i, cfg)
			}
			until(t, "the whole cluster", func() bool {
				for _, m := range f.running {
					if s, err := m.Status(); err != nil || s.Leader == 0 || s.Index == 0 || s.Index != f.running[0].commits.applied() || m.identified() == 0 {
						return false
					}
				}
				return true
			})
			f.oldReads(func(int, int, int) {})
		})
	}
}

// TestOldReadsBehindWall: a firewall resets the old leader's connections to all members but far, so that the others replace
// it at once, without waiting for an election timeout.
func TestOldReadsBehindWall(t *testing.T) {
	bothDiskOrders(t, func(t *testing.T, first bool) {
		f := newFleet(t, 5)
		f.first = first
		w := &walls{up: map[[2]string]bool{}, conns: map[[2]string][]net.Conn{}}
		for i := range f.running {
			cfg := f.config(i)
			cfg.Network = walled{cfg.Network, string(rune('a' + i)), w}
			f.open(i, cfg)
		}
		f.whole()
		f.oldReads(func(lead, _, far int) {
			time.Sleep(50 * time.Millisecond)
			for i := range f.running {
				if i != lead && i != far {
					w.raise(string(rune('a'+i)), string(rune('a'+lead)))
				}
			}
		})
	})
}

// TestOldReadsBehindSilentCut: the old leader is replaced because its disk is stuck, and loses at that moment, without a
// reset, all members but far. So a majority accepted it until then, and it does not hear of the later term.
func TestOldReadsBehindSilentCut(t *testing.T) {
	bothDiskOrders(t, func(t *testing.T, first bool) {
		f := newFleet(t, 5)
		f.first = first
		for i := range f.running {
			f.start(i)
		}
		f.whole()
		f.net.SetDelay(func(from, to string) time.Duration { return 10 * time.Millisecond })
		f.oldReads(func(lead, other, far int) {
			for f.running[other].raft.State() == raft.Follower {
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
	t.Run("disk first", func(t *testing.T) { replacedWhileStuck(t, true) })
	t.Run("by default", func(t *testing.T) { replacedWhileStuck(t, false) })
}

func replacedWhileStuck(t *testing.T, diskFirst bool) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = diskFirst
		for i := range f.running {
			f.start(i)
		}
		f.whole()
		lead := leadOf(t, f)
		other := (lead + 1) % 3
		if lead != 0 {
			other = 0 // of equals, the one with the lowest id stands first
		}
		old := f.running[lead]
		until(t, "clients", func() bool { return <-old.Serving() })
		until(t, "equal logs", func() bool {
			return f.running[0].raft.AppliedIndex() == f.running[1].raft.AppliedIndex() && f.running[1].raft.AppliedIndex() == f.running[2].raft.AppliedIndex()
		})
		release := make(chan struct{})
		f.disks[lead].SetFault(func() error { <-release; return nil })
		defer close(release)
		if diskFirst {
			f.cutBetween(lead, other, true)
		}
		end := old.raft.LastIndex() + 1
		old.Propose(fsm.OpenSession(99, 99, 1<<30, session.Password{}), make(result, 1), nil)
		if !diskFirst {
			until(t, "the entry everywhere", func() bool {
				return f.running[0].raft.LastIndex() >= end && f.running[1].raft.LastIndex() >= end && f.running[2].raft.LastIndex() >= end
			})
			f.cutBetween(lead, other, true)
		}
		until(t, "another leader", func() bool { return f.running[other].raft.State() == raft.Leader })
		f.writes(other, 1)
		since := time.Now()
		for serving := true; serving; {
			select {
			case serving = <-old.Serving():
			case <-time.After(time.Minute):
				t.Fatal("it goes on serving")
			}
		}
		if took, limit := time.Since(since), unheardLimit*old.contacts.silence; took > limit {
			t.Errorf("it stopped serving after %v, more than %v", took, limit)
		}
		if diskFirst && old.raft.State() != raft.Leader {
			t.Error("its Raft has noticed")
		}
	})
}
