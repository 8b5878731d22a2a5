package engine

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

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/slowdisk"
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
		l.memory.SetFault(func() error { <-over; return nil })
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
		testkit.Eventually(t, "a candidate", func() bool { return l.follower.Role() == Candidate })
		if term := l.follower.Term(); term != l.term {
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
		if err := l.follower.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := l.follower.disk.Storage.Log.FirstIndex(); first != l.last()-1 && first != l.last() || err != nil {
			t.Fatalf("its log begins with entry %d: %v", first, err)
		}
		l.snapshot(end)
		if is := l.follower.LastApplied(); is != l.last() { // the next entry would end the process
			t.Fatalf("it has applied entry %d, and was at %d before the snapshot", is, l.last())
		}
		l.propose(1)
		l.committed = l.last()
		l.sends(l.last(), l.last())
		synctest.Wait()
		if is := l.follower.LastApplied(); is != l.last() {
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
		s, at := l.memory.Open(), uint64(0)
		s.Snapshots = slowdisk.SlowAt(s.Snapshots, &at, 100*time.Millisecond)
		l.startOn(s)
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
		silence := l.follower.cfg.Contacts.ElectionTimeout
		over := make(chan struct{})
		voted := make(chan error, 1)
		go func() {
			time.Sleep(50 * time.Millisecond) // while the snapshot is written
			var writes atomic.Int64
			l.memory.SetFault(func() error {
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
		if err := l.follower.disk.Storage.Log.GetLog(end, &e); err != nil || e.Term == l.log[end-1].Term {
			t.Fatalf("the entry at the snapshot's end is not the earlier leader's: term %d, %v", e.Term, err)
		}

		l.lead(l.follower.Term() + 1)
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

// TestSnapshotAfterItsEntries: a snapshot arrives late, when the member has all that it covers, and after that a list of the members in
// its log. That stays the newest list that it knows.
func TestSnapshotAfterItsEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
		l.propose(5)
		l.addMember()
		testkit.Eventually(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
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
		testkit.Eventually(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
		if first, err := l.follower.disk.Storage.Log.FirstIndex(); first != at+1 || err != nil {
			t.Fatalf("its log begins with entry %d: %v", first, err)
		}
		l.snapshot(at)
		l.hasFour()
	})
}

// TestSnapshotBeforeRaft: Raft is given a snapshot only when all of it is here, and while it
// installs it, this member counts as one whose disk is stuck.
func TestSnapshotBeforeRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.engine.disk.Storage = storage.NewMemory().Open()
		data := make([]byte, 3_000_000)
		rand.NewChaCha8([32]byte{}).Read(data)
		there, more := io.Pipe()
		sent := make(chan error, 1)
		var r raft.InstallSnapshotResponse
		go func() {
			sent <- leader.transport.sendSnapshot("follower:1", &raft.InstallSnapshotRequest{Size: int64(len(data))}, &r, there)
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
		if stalled := follower.engine.disk.Stall.Length(follower.now()); stalled < 4*leader.ElectionTimeout {
			t.Errorf("it counts as stuck for %v", stalled)
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		if err := <-sent; err != nil || !r.Success {
			t.Errorf("%+v, %v", r, err)
		}
		synctest.Wait()
		if stalled := follower.engine.disk.Stall.Length(follower.now()); stalled != 0 {
			t.Errorf("it counts as stuck for %v afterwards", stalled)
		}
	})
}

// likeMessages is a snapshot that Raft would take for messages.
var likeMessages = bytes.Repeat([]byte("T"), 1<<20) // TimeoutNow

// sendSnapshot sends likeMessages, as fast as data delivers it.
func sendSnapshot(from openedTransport, term uint64, data io.Reader) error {
	q := raft.InstallSnapshotRequest{RPCHeader: raft.RPCHeader{ID: []byte("1")}, Term: term, Size: int64(len(likeMessages))}
	return from.transport.sendSnapshot("follower:1", &q, new(raft.InstallSnapshotResponse), data)
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

// TestStuckSpool: a disk that is stuck while a snapshot of the leader is received counts as stuck.
func TestStuckSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		hold := make(chan struct{})
		follower.spoolsTo(func(s storage.Spool) (storage.Spool, error) { return stuckSpool{s, hold}, nil })
		length := func() time.Duration { return follower.engine.disk.Stall.Length(follower.transport.now()) }
		go func() {
			testkit.Eventually(t, "a disk that does not respond", func() bool { return length() > 0 }) // running time stands still in this test
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
		testkit.Bubble(t, x.step+", "+x.err.Error(), func(t *testing.T) {
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
		follower.engine.disk.Storage = storage.NewMemory().Open()
		follower.engine.disk.Terms.Begin(1)
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
		follower.engine.disk.Terms.Begin(2)
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
		testkit.Bubble(t, x.step+", "+x.err.Error(), func(t *testing.T) {
			leader, follower := openTransports(t)
			follower.engine.disk.Storage = storage.NewMemory().Open()
			own := x.step == "refuse"
			broken := slowdisk.Snapshots{SnapshotStore: follower.engine.disk.Storage.Snapshots, At: func(step string, _ uint64, _ int) error {
				if step == x.step || own {
					return x.err
				}
				return nil
			}}
			snapshots := raftlog.WatchedSnapshots{SnapshotStore: broken, Disk: follower.engine.disk, ElectionTimeout: follower.contacts.ElectionTimeout}
			if own { // one of its own cannot be written, which is no fault
				if _, err := snapshots.Create(1, 4, 1, raft.Configuration{}, 1, nil); err == nil {
					t.Error("a snapshot of its own was written")
				}
				own = false
			}
			sent := make(chan error, 1)
			go func() { sent <- sendSnapshot(leader, 1, bytes.NewReader(likeMessages)) }()
			rpc := testkit.Receive(t, "the snapshot", follower.transport.Consumer())
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

// TestRedialSparesSnapshot: a heartbeat is answered late while a snapshot is sent, of which nothing has moved since that
// heartbeat was sent, since the leader reads the next part from its disk. The snapshot goes on.
func TestRedialSparesSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.setTake(func(c net.Conn) { io.Copy(io.Discard, c); c.Close() })
		late := false
		read, done := leader.sending(4<<20, func(read int) {
			if !late && read >= 3<<20 {
				late = true
				leader.conns.BeatSent("follower:1")
				time.Sleep(10 * time.Millisecond) // the disk
				leader.conns.Redial("follower:1", true)
				time.Sleep(10 * time.Millisecond)
			}
		})
		time.Sleep(time.Second)
		if len(done) > 0 {
			t.Errorf("after %d bytes: %v", *read, <-done)
		}
	})
}

// TestSnapshotInGulps checks that a snapshot arrives although TCP has room for more of it only now and then, as on a slow
// link, if the follower gives signs of life.
func TestSnapshotInGulps(t *testing.T) {
	for _, signs := range []bool{true, false} {
		testkit.Bubble(t, fmt.Sprint("signs ", signs), func(t *testing.T) {
			leader, follower := openTransports(t)
			follower.setTake(func(conn net.Conn) {
				defer conn.Close()
				for buf, looks := make([]byte, 512<<10), 0; ; looks++ {
					if looks%10 == 0 {
						if _, err := io.ReadFull(conn, buf); err != nil {
							return
						}
					}
					if signs {
						conn.Write(make([]byte, 4))
					}
					time.Sleep(follower.ElectionTimeout / timing.LooksPerTimeout)
				}
			})
			read, done := leader.sending(8<<20, func(int) {})
			time.Sleep(40 * time.Second)
			if ended := len(done) > 0; ended == signs {
				t.Errorf("after 40 s, %d bytes were sent; it has ended: %v", *read, ended)
			}
		})
	}
}

// TestSnapshotStops: a leader sends half of a snapshot, or only that one comes, and then nothing, as if the network had
// forgotten the connection. The follower gives that up in about an election timeout, and is ready for another one.
func TestSnapshotStops(t *testing.T) {
	for _, after := range []int{0, 2 << 20} {
		testkit.Bubble(t, fmt.Sprint(after), func(t *testing.T) {
			leader, follower := openTransports(t)
			follower.engine.disk.Storage = storage.NewMemory().Open()
			stop := make(chan struct{})
			leader.sending(4<<20, func(read int) {
				if read > after {
					<-stop
				}
			})
			time.Sleep(leader.ElectionTimeout / 2)
			if follower.receiving.TryTake() {
				t.Error("the follower receives no snapshot")
			}
			time.Sleep(leader.ElectionTimeout * 7 / 8) // before the leader gives up
			if !follower.receiving.TryTake() {
				t.Error("the follower still waits for the snapshot")
			}
			close(stop)
		})
	}
}

// TestWholeSnapshotIsKept: while Raft's main goroutine is busy, the connection ends over which a snapshot has come whole. The leader
// goes on with the entries that follow it.
func TestWholeSnapshotIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		follower.engine.disk.Storage = storage.NewMemory().Open()
		_, sent := leader.sending(1<<20, func(int) {})
		time.Sleep(3 * leader.ElectionTimeout)
		net.Cut("leader", "follower", true)
		net.Cut("follower", "leader", true)
		select {
		case <-sent:
		case <-time.After(3 * leader.ElectionTimeout):
			t.Fatal("the leader still waits for the answer")
		}
		net.Heal()
		entries := &raft.AppendEntriesRequest{PrevLogEntry: 5, PrevLogTerm: 1, Entries: noops(6, 6, 1)}
		go leader.appendEntries("2", "follower:1", entries, new(raft.AppendEntriesResponse))
		time.Sleep(leader.ElectionTimeout)
		rpc := testkit.Receive(t, "the snapshot", follower.transport.Consumer())
		if rpc.Reader == nil {
			t.Fatalf("Raft is given %T first", rpc.Command)
		}
		if n, err := io.Copy(io.Discard, rpc.Reader); n != 1<<20 || err != nil {
			t.Errorf("Raft is given %d bytes: %v", n, err)
		}
		rpc.Respond(nil, io.EOF)
	})
}

// takesSnapshot checks that the follower's Raft is given a snapshot of the leader of term.
func takesSnapshot(t *testing.T, leader, follower openedTransport, term uint64) {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- sendSnapshot(leader, term, bytes.NewReader(likeMessages)) }()
	rpc := testkit.Receive(t, "the snapshot", follower.transport.Consumer())
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
	case is := <-o.life.Errs:
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
	o.engine.disk.Storage = s
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
		done <- o.sendSnapshot("follower:1", &raft.InstallSnapshotRequest{Size: int64(size)}, new(raft.InstallSnapshotResponse), data)
	}()
	return read, done
}
