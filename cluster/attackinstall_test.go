package cluster

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// send sends one message with entries of the leader's log, from first to last, and returns the answer.
func (l *scriptedLeader) send(first, last uint64) (*raft.AppendEntriesResponse, error) {
	q := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: first - 1, LeaderCommitIndex: min(l.committed, last)}
	if first > 1 {
		q.PrevLogTerm = l.log[first-2].Term
	}
	for _, e := range l.log[first-1 : last] {
		sent := *e
		q.Entries = append(q.Entries, &sent)
	}
	r := new(raft.AppendEntriesResponse)
	return r, l.wire.NetworkTransport.AppendEntries("2", "b:1", q, r)
}

// addMember has the leader propose a list with a fourth server.
func (l *scriptedLeader) addMember() {
	newer := l.members.Clone()
	newer.Servers = append(newer.Servers, raft.Server{Suffrage: raft.Nonvoter, ID: "4", Address: "d:1"})
	l.log = append(l.log, &raft.Log{Index: l.last() + 1, Term: l.term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(newer)})
}

// TestSnapshotDuringItsEntries: a snapshot arrives while the member is still storing the entries that it covers, and a list
// of the members after them. That stays the newest list that the member knows.
func TestSnapshotDuringItsEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		defer l.close()
		l.propose(3)
		if r, err := l.send(2, l.last()); err != nil || !r.Success {
			t.Fatal(r, err)
		}
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
		if have := l.follower.raft.servers(); len(have) != 4 {
			t.Errorf("its newest list of members is %v", have)
		}
	})
}

// TestSnapshotToCandidate: a snapshot comes late. The member has all that it covers, and a list of the members after that
// in its log, and stands for election since it has not heard from the leader. That stays the newest list that it knows.
func TestSnapshotToCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		defer l.close()
		l.propose(5)
		l.addMember()
		if r, err := l.send(2, l.last()); err != nil || !r.Success {
			t.Fatal(r, err)
		}
		until(t, "a candidate", func() bool { return l.follower.raft.State() == raft.Candidate })
		if term := l.follower.raft.CurrentTerm(); term != l.term {
			t.Fatalf("its term is %d", term)
		}
		l.snapshot(5) // which finds that the connection was not used for long, and was closed
		l.snapshot(5)
		if have := l.follower.raft.servers(); len(have) != 4 {
			t.Errorf("its newest list of members is %v", have)
		}
	})
}

// TestSnapshotBeforeBarrier: a snapshot arrives late, and the member has one that ends later, with only barriers between
// them. Raft does not go back to the earlier end: its log does not have the entries after that any more.
func TestSnapshotBeforeBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), storage.BoltDB)
		defer l.close()
		l.propose(5)
		end := l.last()
		for range 3 {
			l.log = append(l.log, &raft.Log{Index: l.last() + 1, Term: l.term, Type: raft.LogBarrier})
		}
		l.committed = l.last()
		if r, err := l.send(2, l.last()); err != nil || !r.Success {
			t.Fatal(r, err)
		}
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
		if r, err := l.send(l.last(), l.last()); err != nil || !r.Success {
			t.Error(r, err)
		}
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
		defer l.close()
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
		defer l.close()
		if err := l.follower.Close(); err != nil {
			t.Fatal(err)
		}
		s, at := l.cfg.Memory.Open(), uint64(0)
		s.Snapshots = slowSnapshots{s.Snapshots, &at, 100 * time.Millisecond}
		l.follower = New(l.cfg, fsm.NewReplica())
		if err := l.follower.startOn(s); err != nil {
			t.Fatal(err)
		}
		l.propose(3)
		l.committed = l.last()
		base := l.last()
		l.propose(10) // never committed
		if r, err := l.send(2, l.last()); err != nil || !r.Success {
			t.Fatal(r, err)
		}
		l.log = l.log[:base]
		l.lead(l.term + 1)
		l.propose(3)
		l.committed = l.last()
		end := l.last() // of the first snapshot
		at = end
		silence := l.follower.contacts.silence
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

// beginTerm has the follower begin a term.
func (o openedTransport) beginTerm(term uint64) (*raft.RequestVoteResponse, error) {
	r := new(raft.RequestVoteResponse)
	return r, o.NetworkTransport.RequestVote("2", "b:1", &raft.RequestVoteRequest{RPCHeader: o.header(), Term: term, LeadershipTransfer: true}, r)
}

// compareAt asks whether the follower has the leader's log up to the entry at index.
func (l *scriptedLeader) compareAt(index uint64) (*raft.AppendEntriesResponse, error) {
	r := new(raft.AppendEntriesResponse)
	return r, l.wire.NetworkTransport.AppendEntries("2", "b:1", &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: index, PrevLogTerm: l.log[index-1].Term}, r)
}
