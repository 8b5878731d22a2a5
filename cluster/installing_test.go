package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestSnapshotDuringItsEntries: a snapshot arrives while the member is still storing the entries that it covers, and a list
// of the members after them. That stays the newest list that the member knows.
func TestSnapshotDuringItsEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.propose(3)
		l.sends(2, l.last())
		from := l.last() + 1
		l.propose(2)
		end := l.last()
		l.addMember()
		over := make(chan struct{})
		l.cfg.Memory.SetFault(func() error { <-over; return nil })
		sent := make(chan error, 1)
		go func() {
			_, err := l.send(from, l.last())
			sent <- err
		}()
		time.Sleep(10 * time.Millisecond) // until its disk is busy with them
		synctest.Wait()
		installed := make(chan struct{})
		go func() {
			l.committed = end
			l.snapshot(end)
			close(installed)
		}()
		time.Sleep(10 * time.Millisecond)
		close(over)
		if err := <-sent; err != nil {
			t.Error(err)
		}
		<-installed
		l.hasFour()
	})
}

// TestSnapshotToCandidate: a snapshot comes late. The member has all that it covers, and a list of the members after that
// in its log, and stands for election since it has not heard from the leader. That stays the newest list that it knows.
func TestSnapshotToCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.propose(5)
		l.addMember()
		l.sends(2, l.last())
		until(t, "a candidate", func() bool { return l.follower.raft.State() == raft.Candidate })
		if term := l.follower.raft.CurrentTerm(); term != l.term {
			t.Fatalf("its term is %d", term)
		}
		l.snapshot(5) // which finds that the connection was not used for long, and was closed
		l.snapshot(5)
		l.hasFour()
	})
}

// TestSnapshotBeforeBarrier: a snapshot arrives late, and the member has one that ends later, with only barriers between
// them. Raft does not go back to the earlier end: its log does not have the entries after that any more.
func TestSnapshotBeforeBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), storage.BoltDB)
		l.propose(5)
		end := l.last()
		for range 3 {
			l.log = append(l.log, &raft.Log{Index: l.last() + 1, Term: l.term, Type: raft.LogBarrier})
		}
		l.committed = l.last()
		l.sends(2, l.last())
		synctest.Wait()
		if err := l.follower.raft.takeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := l.follower.raft.storage.Log.FirstIndex(); first != l.last()-1 && first != l.last() || err != nil {
			t.Fatalf("its log begins with entry %d: %v", first, err)
		}
		l.snapshot(end)
		if is := l.follower.raft.AppliedIndex(); is != l.last() { // the next entry would end the process
			t.Fatalf("it has applied entry %d, and was at %d before the snapshot", is, l.last())
		}
		l.propose(1)
		l.committed = l.last()
		l.sends(l.last(), l.last())
		synctest.Wait()
		if is := l.follower.raft.AppliedIndex(); is != l.last() {
			t.Errorf("it has applied entry %d of %d", is, l.last())
		}
	})
}

// TestEmptyEntryLate: the empty entry that the leader sends after a snapshot arrives only after the next snapshot, when the
// member's log is empty. The log continues after the second snapshot.
func TestEmptyEntryLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.propose(10)
		l.committed = l.last()
		l.snapshot(6)
		l.snapshot(8)
		l.endEntry(6)
		if r, err := l.send(9, l.last()); err != nil || !r.Success {
			t.Errorf("it refuses the next entries: %+v %v", r, err)
		}
	})
}

// TestEndNotReplaced: a member gets a snapshot, and its log has an earlier leader's entry where the snapshot ends, and more
// after that. Its disk is stuck before it has replaced that entry. The next leader has a snapshot that ends earlier, and
// sends what follows that, as Raft does. The member gets all of it; that leader does not send its snapshot again and again.
func TestEndNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		if err := l.follower.Close(); err != nil {
			t.Fatal(err)
		}
		s, at := l.cfg.Memory.Open(), uint64(0)
		s.Snapshots = slowAt(s.Snapshots, &at, 100*time.Millisecond)
		l.follower = New(l.cfg, fsm.NewReplica())
		if err := l.follower.startOn(s); err != nil {
			t.Fatal(err)
		}
		l.propose(3)
		l.committed = l.last()
		base := l.last()
		l.propose(10) // never committed
		l.sends(2, l.last())
		l.log = l.log[:base]
		l.lead(l.term + 1)
		l.propose(3)
		l.committed = l.last()
		end := l.last() // of the first snapshot
		at = end
		silence := l.follower.contacts.ElectionTimeout
		over := make(chan struct{})
		voted := make(chan error, 1)
		go func() {
			time.Sleep(50 * time.Millisecond) // while the snapshot is written
			var writes atomic.Int64
			l.cfg.Memory.SetFault(func() error {
				if writes.Add(1) > 1 { // the first makes the log agree with the snapshot
					<-over
				}
				return nil
			})
			_, err := l.wire.beginTerm(l.term + 1)
			voted <- err
		}()
		done := make(chan struct{})
		go func() { l.install(end); close(done) }()
		time.Sleep(20 * silence)
		close(over)
		if err := <-voted; err != nil {
			t.Error(err)
		}
		<-done
		var e raft.Log
		if err := l.follower.raft.storage.Log.GetLog(end, &e); err != nil || e.Term == l.log[end-1].Term {
			t.Fatalf("the entry at the snapshot's end is not the earlier leader's: term %d, %v", e.Term, err)
		}

		l.lead(l.follower.raft.CurrentTerm() + 1)
		l.committed = l.last()
		older, next, snapshots, began := end-1, l.last(), 0, time.Now()
		for rounds := 0; next <= l.last(); rounds++ {
			if rounds == 200 {
				t.Fatalf("after %d rounds and %v, in which it was sent %d snapshots, it still refuses entry %d of %d", rounds, time.Since(began), snapshots, next, l.last())
			}
			if next <= older { // its log begins with older+1
				if r, err := l.install(older); err == nil && r.Success {
					next = older + 1
				}
				l.endEntry(older) // which it refuses: its log begins after that
				snapshots++
				continue
			}
			r, err := l.send(next, l.last())
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case r.Success:
				next = l.last() + 1
			default:
				if r.LastLog >= next && r.LastLog <= l.last() { // as leap does
					if r, err := l.compareAt(r.LastLog); err == nil && r.Success {
						next = r.LastLog + 1
						continue
					}
				}
				next = max(min(next-1, r.LastLog+1), 1)
			}
		}
	})
}

// slowAt is a store on a slow disk: writes of a snapshot that ends with the entry at take that long.
func slowAt(s raft.SnapshotStore, at *uint64, takes time.Duration) raft.SnapshotStore {
	return steps{s, func(step string, index uint64, _ int) error {
		if step == "write" && index == *at {
			time.Sleep(takes)
		}
		return nil
	}}
}

// TestOwnSnapshotEndsLate: while a member takes a snapshot, it gets one of the leader's that ends one entry later. Then it leads, and
// sends its log to a member that has the same as its own snapshot.
func TestOwnSnapshotEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		const lead, late, c = 0, 3, 4
		at := uint64(1 << 60)
		for i := range c {
			f.start(i)
		}
		f.openWith(c, f.config(c), func(s *storage.Storage) { s.Snapshots = slowAt(s.Snapshots, &at, time.Minute) })
		f.whole()
		f.handTo(lead)
		f.writes(lead, 10)
		f.whole()
		time.Sleep(10 * time.Second)
		l, x := f.running[lead].raft, f.running[c].raft
		at = x.AppliedIndex()
		ended := make(chan error, 1)
		go func() { ended <- x.takeSnapshot() }()
		f.cutOff(c, true)
		f.cutOff(late, true)
		time.Sleep(20 * time.Second)
		f.writes(lead, 1)
		if err := l.takeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := l.storage.Log.FirstIndex(); first != at+1 || l.AppliedIndex() != at+1 || err != nil {
			t.Fatalf("the leader has entries %d to %d, want only %d: %v", first, l.AppliedIndex(), at+1, err)
		}
		f.cutOff(c, false)
		f.cutBetween(c, late, true)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		until(t, "the snapshot", func() bool { return x.AppliedIndex() > at })
		if newest := x.Stats()["last_snapshot_index"]; newest != fmt.Sprint(at+1) {
			t.Errorf("Raft takes the snapshot that ends with entry %s for the newest, not that with %d", newest, at+1)
		}
		f.handTo(c)
		f.net.Heal()
		f.whole()
		f.check()
	})
}

// TestSnapshotAfterItsEntries: a snapshot arrives late, when the member has all that it covers, and after that a list of the members in
// its log. That stays the newest list that it knows.
func TestSnapshotAfterItsEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
		l.propose(5)
		l.addMember()
		until(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
		l.snapshot(5)
		l.hasFour()
	})
}

// TestSnapshotAfterItself: a snapshot arrives a second time, when the log of the member begins after the entry with which the snapshot
// ends, and has a list of the members. That stays the newest list that it knows.
func TestSnapshotAfterItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		l.propose(5)
		at := l.last()
		l.committed = at
		l.snapshot(at) // with zeros, the empty entry at its end is not sent
		l.random = rand.New(rand.NewPCG(1, 1))
		l.propose(1)
		l.addMember()
		until(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
		if first, err := l.follower.raft.storage.Log.FirstIndex(); first != at+1 || err != nil {
			t.Fatalf("its log begins with entry %d: %v", first, err)
		}
		l.snapshot(at)
		l.hasFour()
	})
}

// TestSilentDuringSnapshot: a leader that falls silent while it sends a snapshot, or whose
// disk gets stuck then, is replaced like any other, with the vote of the member that
// receives the snapshot.
func TestSilentDuringSnapshot(t *testing.T) {
	for name, stuck := range map[string]bool{"silent": false, "disk stuck": true} {
		bubble(t, name, func(t *testing.T) {
			net, leader, other, late := wired(t, nil)
			again := stopUntilSnapshot(t, late, leader)
			half, release := make(chan struct{}), make(chan struct{})
			defer close(release)
			net.when(net.receiving(late, 2<<20), func(w *wire) {
				if !stuck {
					net.Pause(hostOf(leader), true)
					close(half)
					return
				}
				leader.cfg.Memory.SetFault(func() error { <-release; return nil })
				leader.Propose(someWrite(), make(result, 1), nil)
				close(half)
				select { // nor does the snapshot come any further
				case <-release:
				case <-w.gone:
				}
			})
			late = again()
			<-half
			began := time.Now()
			until(t, "another leader", func() bool { return other.raft.State() == raft.Leader })
			if took, most := time.Since(began), leader.contacts.ElectionTimeout+time.Second; took > most {
				t.Fatalf("another member leads after %v, should within %v", took, most)
			}
			if !ready(late, 3*late.contacts.ElectionTimeout) {
				t.Error("the late member does not catch up with the next leader")
			}
		})
	}
}

// TestSnapshotBeforeRaft: Raft is given a snapshot only when all of it is here, and while it
// installs it, this member counts as one whose disk is stuck.
func TestSnapshotBeforeRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.raft.storage = storage.NewMemory().Open()
		data := make([]byte, 3_000_000)
		rand.NewChaCha8([32]byte{}).Read(data)
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
			case <-time.After(leader.ElectionTimeout / 5):
			}
			more.Write(rest[:len(data)/30])
		}
		more.Close()
		rpc := <-follower.transport.Consumer()
		if b, err := io.ReadAll(rpc.Reader); err != nil || !bytes.Equal(b, data) {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		for range 50 { // a slow disk, and a leader that waits for it
			time.Sleep(leader.ElectionTimeout / 10)
			follower.contacts.Look(follower.now().Real, nil, election.State{})
		}
		if stalled := follower.raft.stall.length(follower.now()); stalled < 4*leader.ElectionTimeout {
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
	})
}

// likeMessages is a snapshot that Raft would take for messages.
var likeMessages = bytes.Repeat([]byte{3, 0x90}, 1<<20) // TimeoutNow

// sendSnapshot sends likeMessages, as fast as data delivers it.
func sendSnapshot(from openedTransport, term uint64, data io.Reader) error {
	q := raft.InstallSnapshotRequest{RPCHeader: raft.RPCHeader{ID: []byte("1")}, Term: term, Size: int64(len(likeMessages))}
	return from.transport.NetworkTransport.InstallSnapshot("2", "follower:1", &q, new(raft.InstallSnapshotResponse), data)
}

// brokenSpool fails at one of its steps.
type brokenSpool struct {
	storage.Spool
	step    string
	written int
	err     error
}

func (s *brokenSpool) Write(p []byte) (int, error) {
	if s.written += len(p); s.step == "write" && s.written > len(likeMessages)/2 {
		return 0, s.err
	}
	return s.Spool.Write(p)
}

func (s *brokenSpool) Reader() (io.Reader, error) {
	if s.step == "read" {
		return nil, s.err
	}
	return s.Spool.Reader()
}

// stuckSpool does nothing until hold is closed.
type stuckSpool struct {
	storage.Spool
	hold chan struct{}
}

func (s stuckSpool) Write(p []byte) (int, error) {
	<-s.hold
	return s.Spool.Write(p)
}

// TestStuckSpool: a disk that is stuck while a snapshot of the leader is received counts as stuck.
func TestStuckSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		hold := make(chan struct{})
		follower.spoolsTo(func(s storage.Spool) (storage.Spool, error) { return stuckSpool{s, hold}, nil })
		length := func() time.Duration { return follower.raft.stall.length(follower.transport.now()) }
		go func() {
			until(t, "a disk that does not respond", func() bool { return length() > 0 }) // running time stands still in this test
			close(hold)
		}()
		takesSnapshot(t, leader, follower, 1)
		synctest.Wait()
		if length() != 0 {
			t.Error("the disk counts as stuck for ever")
		}
	})
}

// TestSpoolFails: a disk that cannot store a snapshot from the leader is a fault of this
// member. A lack of file descriptors is not.
func TestSpoolFails(t *testing.T) {
	for _, x := range []struct {
		step  string
		err   error
		fault bool
	}{
		{"create", syscall.ENOSPC, true},
		{"create", syscall.EMFILE, false},
		{"write", syscall.ENOSPC, true},
		{"write", syscall.EIO, true},
		{"read", syscall.EIO, true},
	} {
		bubble(t, x.step+", "+x.err.Error(), func(t *testing.T) {
			leader, follower := openTransports(t)
			undo := follower.spoolsTo(func(s storage.Spool) (storage.Spool, error) {
				if x.step == "create" {
					return nil, x.err
				}
				return &brokenSpool{Spool: s, step: x.step, err: x.err}, nil
			})
			if err := sendSnapshot(leader, 1, bytes.NewReader(likeMessages)); err == nil {
				t.Error("the snapshot was taken")
			}
			follower.failsWith(t, x.err, x.fault)
			undo()
			takesSnapshot(t, leader, follower, 1)
		})
	}
}

// TestSnapshotOfEarlierTerm: when a later term begins, a member receives no more of a snapshot
// of the earlier leader, however long that goes on sending, and takes one of the next leader.
// What is left of the first is not taken for messages.
func TestSnapshotOfEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, next, follower := openTransport(t, net, "leader"), openTransport(t, net, "next"), openTransport(t, net, "follower")
		follower.raft.storage = storage.NewMemory().Open()
		follower.raft.terms.begin(1)
		there, more := io.Pipe()
		sent := make(chan error, 1)
		go func() { sent <- sendSnapshot(leader, 1, there) }()
		write := func(n int) bool { // slowly
			for range n {
				time.Sleep(leader.ElectionTimeout / 5)
				if _, err := more.Write(likeMessages[:len(likeMessages)/8]); err != nil {
					return false
				}
			}
			return true
		}
		write(4)
		follower.raft.terms.begin(2)
		began := time.Now()
		var writing sync.WaitGroup
		writing.Go(func() {
			if write(4) {
				t.Error("all of it was received")
			}
		})
		select {
		case err := <-sent:
			there.CloseWithError(err)
			writing.Wait()
			if took := time.Since(began); took > leader.ElectionTimeout {
				t.Errorf("it ends after %v", took)
			}
		case <-follower.transport.Consumer():
			t.Error("Raft is given a message")
		}
		takesSnapshot(t, next, follower, 2)
	})
}

// TestNextLeadersSnapshot: a member that is receiving a snapshot slowly when another member is
// elected gets the snapshot of that one. The earlier leader learns of the election, even if
// only the member that receives the snapshot can tell it.
func TestNextLeadersSnapshot(t *testing.T) {
	for name, cut := range map[string]bool{"all connected": false, "leaders cut off from each other": true} {
		bubble(t, name, func(t *testing.T) {
			net, leader, other, late := wired(t, nil)
			again := stopUntilSnapshot(t, late, leader)
			onlySnapshot(t, other)
			term, from := leader.raft.CurrentTerm(), hostOf(leader)
			half := make(chan struct{})
			var once sync.Once
			receiving := net.receiving(late, 1<<20)
			came := func(w *wire) {
				w.mu.Lock()
				is := w.from == from && receiving(w)
				w.mu.Unlock()
				if is {
					once.Do(func() { close(half) })
					select { // 64 KiB a second
					case <-time.After(time.Second):
					case <-w.gone:
					}
				}
			}
			net.came.Store(&came)
			late = again()
			<-half
			if cut {
				net.cut(leader, other, true)
			}
			other.pulse.stand()
			until(t, "the next leader", func() bool { return other.raft.State() == raft.Leader })
			if !ready(late, 3*late.contacts.ElectionTimeout) {
				t.Error("it does not get the snapshot of the next leader")
			}
			time.Sleep(late.contacts.ElectionTimeout)
			if leader.raft.State() == raft.Leader && leader.raft.CurrentTerm() == term {
				t.Error("the earlier leader has not learned of the election")
			}
		})
	}
}

// TestInstallFails: as TestSpoolFails, when Raft stores the snapshot. That Raft refuses one is
// no fault.
func TestInstallFails(t *testing.T) {
	for _, x := range []struct {
		step  string
		err   error
		fault bool
	}{
		{"create", syscall.ENOSPC, true},
		{"create", syscall.EMFILE, false},
		{"write", syscall.EIO, true},
		{"close", syscall.ENOSPC, true},
		{"close", syscall.EMFILE, false},
		{"refuse", errors.New("it is an old one"), false},
	} {
		bubble(t, x.step+", "+x.err.Error(), func(t *testing.T) {
			leader, follower := openTransports(t)
			follower.raft.storage = storage.NewMemory().Open()
			broken := steps{follower.raft.storage.Snapshots, func(step string, _ uint64, _ int) error {
				if step == x.step {
					return x.err
				}
				return nil
			}}
			snapshots := watchedSnapshots{broken, follower.life, &follower.raft.disk, follower.now, follower.raft.applied, follower.contacts.ElectionTimeout}
			if x.step == "refuse" {
				follower.raft.unwritten.Store(&x.err) // of an earlier one
			}
			sent := make(chan error, 1)
			go func() { sent <- sendSnapshot(leader, 1, bytes.NewReader(likeMessages)) }()
			rpc := receive(t, "the snapshot", follower.transport.Consumer())
			sink, err := snapshots.Create(1, 5, 1, raft.Configuration{}, 1, nil) // as Raft does
			if err == nil {
				_, err = io.Copy(sink, rpc.Reader)
			}
			if err == nil {
				err = sink.Close()
			}
			if x.step == "refuse" {
				err = x.err
			}
			rpc.Respond(new(raft.InstallSnapshotResponse), fmt.Errorf("failed: %v", err))
			if err := <-sent; err == nil {
				t.Error("the snapshot was taken")
			}
			follower.failsWith(t, x.err, x.fault)
		})
	}
}

// TestRedialSparesSnapshot: a heartbeat is answered late while a snapshot is sent, much of which has moved since that
// heartbeat was sent. At that moment the leader reads the next part from its disk. The snapshot goes on.
func TestRedialSparesSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.peers.Serve[peer.KindRaft] = func(c net.Conn) { io.Copy(io.Discard, c); c.Close() }
		watched, late := false, false
		read, done := leader.sending(4<<20, func(read int) {
			switch {
			case !watched && read >= 1<<20:
				watched = true
				leader.conns.watch("follower:1")
			case !late && read >= 3<<20:
				late = true
				leader.conns.redial("follower:1", true)
				time.Sleep(10 * time.Millisecond) // the disk
			}
		})
		time.Sleep(time.Second)
		if len(done) > 0 {
			t.Errorf("after %d bytes: %v", *read, <-done)
		}
	})
}

// TestSnapshotInGulps checks that a snapshot arrives although TCP has room for more of it only
// now and then, as on a slow link, and that one that stands still is given up.
func TestSnapshotInGulps(t *testing.T) {
	for each, cut := range map[time.Duration]bool{3 * time.Second: false, 3800 * time.Millisecond: false, 6 * time.Second: true} {
		bubble(t, each.String(), func(t *testing.T) {
			leader, follower := openTransports(t)
			follower.peers.Serve[peer.KindRaft] = func(conn net.Conn) {
				for buf := make([]byte, 512<<10); ; time.Sleep(each) {
					if _, err := io.ReadFull(conn, buf); err != nil {
						break
					}
				}
				conn.Close()
			}
			read, done := leader.sending(8<<20, func(int) {})
			time.Sleep(40 * time.Second)
			if ended := len(done) > 0; ended != cut {
				t.Errorf("after 40 s, %d bytes were sent; it has ended: %v", *read, ended)
			}
		})
	}
}

// TestSnapshotOnNarrowLink checks that a member gets its snapshot over a link that is slow and
// narrow, but works.
func TestSnapshotOnNarrowLink(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		rate int64
		trip time.Duration // in ms
	}{{50 << 10, 20}, {80 << 10, 560}, {1 << 20, 800}} {
		bubble(t, fmt.Sprint(x.rate>>10, " KiB ", int(x.trip), " ms"), func(t *testing.T) {
			n, leader, late, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			again := stopUntilSnapshot(t, late, leader)
			n.SetDelay(func(from, to string) time.Duration { return x.trip / 2 * time.Millisecond })
			n.rate.Store(x.rate)
			time.Sleep(10 * time.Second)
			catchesUp(t, leader, again, 2*time.Duration(8<<20/x.rate+1)*time.Second, func(time.Duration) {})
		})
	}
}

// TestSnapshotBesideLateHeartbeat checks that a member gets its snapshot over a narrow link
// although every 10 s a heartbeat is late or its connection is forgotten.
func TestSnapshotBesideLateHeartbeat(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, how := range []string{"late", "forgotten"} {
		for _, trip := range []time.Duration{2, 400} {
			bubble(t, fmt.Sprint(how, " ", int(trip), " ms"), func(t *testing.T) {
				const rate = 80 << 10
				n, leader, late, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
				again := stopUntilSnapshot(t, late, leader)
				n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
				n.rate.Store(rate)
				from, to := hostOf(leader), hostOf(late)
				beats := func(w *wire) bool {
					return w.from == from && w.to == to && (w.kind == peer.KindBeat || w.kind == peer.KindRebeat)
				}
				time.Sleep(10 * time.Second)
				next := 10 * time.Second
				catchesUp(t, leader, again, 2*(8<<20/rate+1)*time.Second, func(at time.Duration) {
					if at < next {
						return
					}
					next = at + 10130*time.Millisecond
					if how == "forgotten" {
						n.forget(beats)
						return
					}
					n.when(func(w *wire) bool { return w.dialed && beats(w) }, func(w *wire) { time.Sleep((520 - trip) * time.Millisecond) })
				})
			})
		}
	}
}

// takesSnapshot checks that the follower's Raft is given a snapshot of the leader of term.
func takesSnapshot(t *testing.T, leader, follower openedTransport, term uint64) {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- sendSnapshot(leader, term, bytes.NewReader(likeMessages)) }()
	rpc := receive(t, "the snapshot", follower.transport.Consumer())
	if q, ok := rpc.Command.(*raft.InstallSnapshotRequest); !ok || q.Term != term {
		t.Errorf("Raft is given %+v", rpc.Command)
	}
	rpc.Respond(new(raft.InstallSnapshotResponse), nil)
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// failsWith checks whether this member has failed with err.
func (o openedTransport) failsWith(t *testing.T, err error, want bool) {
	t.Helper()
	synctest.Wait()
	select {
	case is := <-o.life.errs:
		if !want || !errors.Is(is, err) {
			t.Errorf("the member stops: %v", is)
		}
	default:
		if want {
			t.Error("the member does not stop")
		}
	}
}

// spoolsTo changes how this member spools snapshots, and returns what makes that undone.
func (o openedTransport) spoolsTo(change func(storage.Spool) (storage.Spool, error)) (undo func()) {
	s := storage.NewMemory().Open()
	o.raft.storage = s
	works := s.Spool
	s.Spool = func() (storage.Spool, error) {
		spool, err := works()
		if err == nil {
			spool, err = change(spool)
		}
		return spool, err
	}
	return func() { s.Spool = works }
}

// sending has a transport send a snapshot of so many bytes, and calls at before each part is read.
func (o openedTransport) sending(size int, at func(read int)) (read *int, done chan error) {
	read, done = new(int), make(chan error, 1)
	data := peer.ReadFunc(func(p []byte) (int, error) {
		if *read >= size {
			return 0, io.EOF
		}
		*read += len(p)
		at(*read)
		return len(p), nil
	})
	go func() {
		done <- o.NetworkTransport.InstallSnapshot("2", "follower:1", &raft.InstallSnapshotRequest{Size: int64(size)}, new(raft.InstallSnapshotResponse), data)
	}()
	return read, done
}
