package engine

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestFollowerModel runs one member, to which the test sends what leaders may send in any
// order that Raft allows: entries, others in their place that a later leader has, and
// snapshots. Meanwhile the member takes snapshots of its own, truncates its log, and is
// closed or killed and started again. It must never stop by itself, and at last have the
// log and the state of the leader.
func TestFollowerModel(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, store := range append([]storage.LogStore{""}, storage.LogStores...) {
		t.Run(cmp.Or(string(store), "memory"), func(t *testing.T) {
			seed, rounds := testkit.Seed(t), 4
			if testkit.Nightly {
				rounds = 50
			}
			for round := range rounds {
				synctest.Test(t, func(t *testing.T) {
					l := newScriptedLeader(t, rand.New(rand.NewPCG(seed, uint64(round))), store)
					for range 80 {
						l.step()
					}
					l.catchUp()
				})
				if t.Failed() {
					t.Fatalf("round %d", round)
				}
			}
		})
	}
}

// TestSameSnapshotAgain: a leader that sends a member the same snapshot again and again pauses in between, longer each time. It
// sends another one at once, and the same one if the last time is long ago.
func TestSameSnapshotAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := openTransport(t, memnet.New(), "leader")
		q := raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 9}
		began, sent := time.Now(), 0
		for ; sent < 1000 && time.Since(began) < time.Minute; sent++ {
			leader.transport.pauseBefore("2", &q)
		}
		if most := int(time.Minute/timing.DefaultElectionTimeout) + 10; sent > most {
			t.Errorf("it was sent %d times in a minute, should be at most %d times", sent, most)
		}
		for what, q := range map[raft.ServerID]raft.InstallSnapshotRequest{
			"3": q, "2": {Term: 1, LastLogIndex: 12},
		} {
			began := time.Now()
			if leader.transport.pauseBefore(what, &q); time.Since(began) != 0 {
				t.Errorf("to %s, up to entry %d: it waits", what, q.LastLogIndex)
			}
		}
		time.Sleep(time.Minute) // the link may have failed nine times, and works now
		began = time.Now()
		if leader.transport.pauseBefore("2", &raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 12}); time.Since(began) != 0 {
			t.Error("it waits because of what was long ago")
		}
	})
}

// TestVotesFollow: a member that votes for this one counts as following it from when
// the request was sent; one that refuses its vote does not.
func TestVotesFollow(t *testing.T) {
	for _, granted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net := memnet.New()
			candidate, voter := openTransport(t, net, "candidate"), openTransport(t, net, "voter")
			sent := candidate.now()
			go func() {
				rpc := <-voter.transport.Consumer()
				time.Sleep(50 * time.Millisecond)
				rpc.Respond(&raft.RequestVoteResponse{Granted: granted}, nil)
			}()
			var r raft.RequestVoteResponse
			if err := candidate.transport.RequestVote("2", "voter:1", &raft.RequestVoteRequest{}, &r); err != nil || r.Granted != granted {
				t.Errorf("%+v, %v", r, err)
			}
			until := sent.Real + candidate.contacts.ElectionTimeout.Milliseconds() // if it follows since the request was sent
			if is, was := candidate.contacts.Follows(2, until-1), candidate.contacts.Follows(2, until); is != granted || was {
				t.Errorf("granted %v: it follows %v, and later %v", granted, is, was)
			}
		})
	}
}

// TestVoteOverForgotten: a vote request is not lost on a connection that was forgotten while
// nothing was sent over it.
func TestVoteOverForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		candidate, voter := openTransport(t, net, "a"), openTransport(t, net, "b")
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
			net.Forget("a", "b", func() bool { return true })
			time.Sleep(3 * candidate.ElectionTimeout)
		}
	})
}

// TestEntriesByDeposed: a member led in term 3. By now it follows the leader of term 4, which has replaced its last entry by another
// one, of an earlier or a later term. Its Raft still sends in term 3 what its log has: that must not arrive, since the message
// with the entry that was replaced may come late.
func TestEntriesByDeposed(t *testing.T) {
	for _, term := range []uint64{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
			l.catchUp()
			end := l.last()
			l.lead(3)
			own := &raft.AppendEntriesRequest{RPCHeader: l.wire.header(), Term: 3, PrevLogEntry: end, PrevLogTerm: 2, Entries: l.log[end:], LeaderCommitIndex: end}
			var s raft.AppendPipeline
			testkit.Eventually(t, "a stream", func() (ok bool) {
				var err error
				s, err = l.wire.AppendEntriesPipeline("2", "b:1")
				return err == nil
			})
			defer s.Close()
			l.log = l.log[:end:end]
			l.term = term
			l.propose(1)
			l.wire.transport.engine.disk.Terms.Begin(4)
			others := *own
			others.Entries, others.LeaderCommitIndex = l.log[end:], l.last()
			if err := l.wire.appendEntries("2", "b:1", &others, new(raft.AppendEntriesResponse)); !errors.Is(err, errTermEnded) {
				t.Errorf("it sends an entry of term %d in term 3: %v", term, err)
			}
			if _, err := s.AppendEntries(&others, new(raft.AppendEntriesResponse)); !errors.Is(err, errTermEnded) {
				t.Errorf("it sends an entry of term %d in term 3 over a stream: %v", term, err)
			}
			var state bytes.Buffer
			if err := l.state(l.last()).Snapshot().Write(&state); err != nil {
				t.Fatal(err)
			}
			q := &raft.InstallSnapshotRequest{RPCHeader: own.RPCHeader, SnapshotVersion: 1, Term: 3, LastLogIndex: l.last(), LastLogTerm: term,
				Configuration: raft.EncodeConfiguration(storage.Configuration(l.members)), ConfigurationIndex: 1, Size: int64(state.Len())}
			if err := l.wire.InstallSnapshot("2", "b:1", q, new(raft.InstallSnapshotResponse), &state); !errors.Is(err, errTermEnded) {
				t.Errorf("it sends a snapshot of term %d in term 3: %v", term, err)
			}
			l.wire.exchange("b:1", own, new(raft.AppendEntriesResponse)) // was sent before, and comes late
			time.Sleep(time.Second)
			l.alive()
		})
	}
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
		if took := time.Since(began); took > leader.contacts.Lease {
			t.Errorf("it fails after %v", took)
		}
		l.Close()
	})
}
