package cluster

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// TestEndNotReplaced: a member gets a snapshot, and its log has entries of an earlier leader from the snapshot's end on. Its disk is stuck
// in the next term before it has replaced the one at that end. The next leader has a snapshot that ends earlier, and sends
// its log as Raft does it. The member gets all of it, and that leader does not send its snapshot without end.
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
			_, err := l.wire.RequestVoteOf(l.term + 1)
			voted <- err
		}()
		done := make(chan struct{})
		go func() { l.snapshotOnly(end); close(done) }()
		time.Sleep(20 * silence)
		t.Log("applied", l.follower.raft.AppliedIndex(), "of", end, "term", l.follower.raft.CurrentTerm())
		close(over)
		t.Log("vote:", <-voted)
		<-done
		var e raft.Log
		first, _ := l.follower.raft.storage.Log.FirstIndex()
		last, _ := l.follower.raft.storage.Log.LastIndex()
		err := l.follower.raft.storage.Log.GetLog(end, &e)
		t.Logf("its log is %d to %d; entry %d is of term %d, the leader's of %d: %v", first, last, end, e.Term, l.log[end-1].Term, err)

		l.lead(l.follower.raft.CurrentTerm() + 1)
		l.committed = l.last()
		older, next, snapshots, began := end-1, l.last(), 0, time.Now()
		for rounds := 0; next <= l.last(); rounds++ {
			if rounds == 200 {
				t.Fatalf("after %d rounds and %v, in which it was sent %d snapshots, it still refuses entry %d of %d", rounds, time.Since(began), snapshots, next, l.last())
			}
			if next <= older { // its log begins with older+1
				if l.snapshotOnly(older) {
					next = older + 1
				}
				// As transport.InstallSnapshot does it: its log begins after that, so it refuses it.
				l.wire.appendEntries("2", "b:1", &raft.AppendEntriesRequest{
					RPCHeader: l.wire.header(), Term: l.term, Entries: []*raft.Log{{Index: older, Term: l.log[older-1].Term, Type: raft.LogNoop}},
				}, new(raft.AppendEntriesResponse))
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

// RequestVoteOf has the follower begin a term.
func (o openedTransport) RequestVoteOf(term uint64) (*raft.RequestVoteResponse, error) {
	r := new(raft.RequestVoteResponse)
	return r, o.NetworkTransport.RequestVote("2", "b:1", &raft.RequestVoteRequest{RPCHeader: o.header(), Term: term, LeadershipTransfer: true}, r)
}

func (l *scriptedLeader) compareAt(index uint64) (*raft.AppendEntriesResponse, error) {
	r := new(raft.AppendEntriesResponse)
	return r, l.wire.NetworkTransport.AppendEntries("2", "b:1", &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: l.term, PrevLogEntry: index, PrevLogTerm: l.log[index-1].Term}, r)
}

// snapshotOnly sends a snapshot, and not the empty entry at its end.
func (l *scriptedLeader) snapshotOnly(index uint64) bool {
	time.Sleep(time.Millisecond)
	var b bytes.Buffer
	if err := l.state(index).Snapshot().Write(&b); err != nil {
		l.t.Fatal(err)
	}
	q := &raft.InstallSnapshotRequest{
		RPCHeader: l.wire.header(), SnapshotVersion: 1, Term: l.term, LastLogIndex: index, LastLogTerm: l.log[index-1].Term,
		Configuration: raft.EncodeConfiguration(l.members), ConfigurationIndex: 1, Size: int64(b.Len()),
	}
	var r raft.InstallSnapshotResponse
	err := l.wire.NetworkTransport.InstallSnapshot("2", "b:1", q, &r, &b)
	return err == nil && r.Success
}
