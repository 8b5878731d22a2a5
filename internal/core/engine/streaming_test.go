package engine

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftwire"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// TestStreamRefused: sending into a stream does not block forever when the other
// side has refused an entry and answers are no longer read.
func TestStreamRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.answers(t, func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{}, nil) })
		p := streamOf(t, leader)
		sent := make(chan error, 1)
		refused := make(chan struct{})
		go func() {
			for left := 1000; left > 0; {
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); err != nil {
					sent <- err
					return
				}
				select {
				case <-refused:
					left--
				default:
				}
			}
		}()
		<-p.Consumer() // the refusal, after which Raft takes no more
		close(refused)
		synctest.Wait()
		if len(sent) == 0 {
			t.Error("the sender waits for ever, or learns nothing")
		}
		p.Close()
	})
}

// TestStreamRepeatsLittle: what the follower has accepted is sent again only after
// tellAgain, or in doubt.
func TestStreamRepeatsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		hold, got := make(chan struct{}, 1), 0
		follower.answers(t, func(rpc raft.RPC) {
			got++
			hold <- struct{}{}
			succeed(rpc)
			<-hold
		})
		p := streamOf(t, leader)
		takeAnswers(t, p, func(raft.AppendFuture) {})
		send := func(what string, want int, q raft.AppendEntriesRequest) {
			t.Helper()
			synctest.Wait()
			before := got
			p.add(t, &q)
			synctest.Wait()
			if got-before != want {
				t.Errorf("%s: %d messages, want %d", what, got-before, want)
			}
		}
		empty := raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, LeaderCommitIndex: 4}
		send("the first message", 1, empty)
		send("the same", 0, empty)
		empty.LeaderCommitIndex = 5
		send("another commit index", 1, empty)
		send("the same", 0, empty)
		entries := empty
		entries.Entries = []*raft.Log{{Index: 6, Term: 1}}
		send("an entry", 1, entries)
		empty.PrevLogEntry = 6
		send("nothing new", 0, empty)
		send("the entry again", 1, entries)
		leader.doubts.Add(1)
		send("in doubt", 1, empty)
		send("the same", 0, empty)
		time.Sleep(timing.StreamKeepAlive - time.Millisecond)
		send("the same", 0, empty)
		time.Sleep(time.Millisecond)
		send("after some time", 1, empty)
		empty.LeaderCommitIndex = 6
		hold <- struct{}{} // the follower does not answer
		send("a commit index", 1, empty)
		go p.AppendEntries(&empty, new(raft.AppendEntriesResponse)) // waits for the answer
		synctest.Wait()
		<-hold
		synctest.Wait()
		if got != 8 {
			t.Errorf("%d messages, want 8: one that is not answered must be repeated", got)
		}
		p.Close()
	})
}

// streamTo opens a stream between two hosts, of which the follower's Raft is answer. It calls f, and then
// closes everything.
func streamTo(t *testing.T, answer func(rpc raft.RPC), f func(leader, follower openedTransport, s *stream)) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.answers(t, answer)
		p := streamOf(t, leader)
		takeAnswers(t, p, func(raft.AppendFuture) {})
		f(leader, follower, p)
		p.Close()
	})
}

// entryAt returns a message of term 1 with one entry.
func entryAt(index, commit uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: index - 1, PrevLogTerm: 1, LeaderCommitIndex: commit, Entries: []*raft.Log{{Index: index, Term: 1}}}
}

// TestStreamCommits: the follower is told once what is committed, when it has the entry: with
// an entry if one is on its way anyway, otherwise at once.
func TestStreamCommits(t *testing.T) {
	var got []string
	streamTo(t, func(rpc raft.RPC) {
		q := rpc.Command.(*raft.AppendEntriesRequest)
		got = append(got, fmt.Sprintf("%d+%d commit %d", q.PrevLogEntry, len(q.Entries), q.LeaderCommitIndex))
		succeed(rpc)
	}, func(leader, follower openedTransport, s *stream) {
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			got = nil
		}
		commit := func(term, index uint64, want bool) {
			t.Helper()
			if s.announceCommit(term, index, 1) != want {
				t.Errorf("term %d, index %d: not %v", term, index, want)
			}
		}
		commit(1, 4, false) // it has sent nothing, and may be of another term
		s.add(t, entryAt(5, 3))
		expect("4+1 commit 3")
		commit(2, 5, false)
		commit(1, 4, true)
		expect("4+0 commit 4")
		commit(1, 4, true)
		commit(1, 3, true)
		expect()
		commit(1, 7, true) // the entry has not been sent
		expect()
		s.add(t, entryAt(6, 4))
		expect("5+1 commit 6")
		s.add(t, entryAt(7, 4))
		expect("6+1 commit 7")
		s.add(t, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 7, PrevLogTerm: 1, LeaderCommitIndex: 7})
		expect() // it has been told
		s.Close()
		commit(1, 7, false)
	})
}

// TestToldWhileBusy: a follower knows what is committed while its Raft is busy with an entry, and that
// is handed on when it no longer is, however much has come meanwhile. The leader does not take the
// follower for dead.
func TestToldWhileBusy(t *testing.T) {
	var busy chan struct{}
	last := uint64(0)
	streamTo(t, func(rpc raft.RPC) {
		q := rpc.Command.(*raft.AppendEntriesRequest)
		if len(q.Entries) > 0 {
			<-busy
		}
		last = q.LeaderCommitIndex
		succeed(rpc)
	}, func(leader, follower openedTransport, s *stream) {
		busy = make(chan struct{})
		s.add(t, entryAt(9, 0))
		for index := range uint64(9) {
			s.announceCommit(1, index+1, 1)
			synctest.Wait()
			if told := follower.engine.leaderCommit.Index.Load(); told != index+1 {
				t.Errorf("it knows of %d, want %d", told, index+1)
			}
		}
		time.Sleep(10 * follower.ElectionTimeout)
		close(busy)
		synctest.Wait()
		if last != 9 {
			t.Errorf("Raft knows of %d", last)
		}
		if err := s.err(); err != nil {
			t.Error(err)
		}
	})
}

// TestStreamsShareNothing: two goroutines of Raft open a stream to the same member at once, since it was removed
// and added again, or a new term has begun. Each stream has a connection of its own: an answer on one would
// count for a message on the other.
func TestStreamsShareNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		network.SetDelay(func(string, string) time.Duration { return 200 * time.Millisecond })
		leader := openTransport(t, network, "leader")
		openTransport(t, network, "follower")
		var streams [2]*stream
		var opening sync.WaitGroup
		for i := range streams {
			opening.Go(func() { streams[i] = streamOf(t, leader) })
		}
		opening.Wait()
		if streams[0].conn == streams[1].conn {
			t.Error("two streams share a connection")
		}
		for _, s := range streams {
			s.Close()
		}
	})
}

// TestLookAtBegin: a stream has been idle for somewhat less than tellAgain, with an election timeout of 200 ms,
// when a long entry is sent. If peer.Conns.Run, which is the test here, looks while the entry is encoded, the
// follower does not count as silent.
func TestLookAtBegin(t *testing.T) {
	network := memnet.New()
	leader, follower := openUnwatched(t, network.Host("leader"), 1, "leader"), openUnwatched(t, network.Host("follower"), 1, "follower")
	follower.answers(t, succeed)
	s := streamOf(t, leader)
	defer s.Close()
	answered := make(chan struct{}, 10)
	takeAnswers(t, s, func(raft.AppendFuture) { answered <- struct{}{} })
	q := entryAt(5, 0)
	q.Entries[0].Data = make([]byte, 1<<20)
	for i := range 100 {
		q := *q
		for !s.conn.Reading.Load() {
			runtime.Gosched()
		}
		s.conn.Quiet.Store(8 - 1) // as after eight looks, each after 50 ms, in which nothing had to be sent
		looked := make(chan bool)
		go func() {
			for began := time.Now(); time.Since(began) < time.Duration(i%50)*10*time.Microsecond; {
			}
			looked <- s.conn.Check()
		}()
		s.add(t, &q)
		if <-looked {
			t.Fatalf("in round %d, the first look since the message was begun takes the follower for dead", i)
		}
		<-answered
	}
}

// TestNobodyReadsAnswers: a caller sends messages, reads no answers, and hangs up. Nothing is left of it.
func TestNobodyReadsAnswers(t *testing.T) {
	streamTo(t, succeed, func(leader, follower openedTransport, s *stream) {
		synctest.Wait()
		before := follower.taken.Load()
		for range 3 {
			c, err := leader.peers.Dial(leader.peers.Ctx, "follower:1", peer.KindRaft, 0)
			if err != nil {
				t.Fatal(err)
			}
			c.SetWriteDeadline(time.Now().Add(time.Second))
			message := raftwire.Append(nil, &raft.AppendEntriesRequest{Term: 1})
			for err == nil {
				_, err = c.Write(message)
			}
			c.Close()
		}
		time.Sleep(10 * time.Minute)
		if n := follower.taken.Load() - before; n > 0 {
			t.Errorf("%d connections are still handled ten minutes after they were closed", n)
		}
	})
}

// TestCommitsHideNoSilence: a follower that is silent while an answer is awaited is noticed in about an election
// timeout, also if what is committed advances meanwhile.
func TestCommitsHideNoSilence(t *testing.T) {
	streamTo(t, succeed, func(leader, follower openedTransport, s *stream) {
		// A new stream, whose follower answers the greeting and hangs.
		s.Close()
		synctest.Wait()
		stop := make(chan struct{})
		follower.setTake(func(c net.Conn) { <-stop; c.Close() })
		s = streamOf(t, leader)
		q := entryAt(2, 1)
		for i := range uint64(9) {
			q.Entries = append(q.Entries, &raft.Log{Index: 3 + i, Term: 1})
		}
		s.AppendEntries(q, new(raft.AppendEntriesResponse))
		began := time.Now()
		for index := uint64(2); !s.hasEnded() && index < 10; index++ {
			time.Sleep(1900 * time.Millisecond)
			s.announceCommit(1, index, 1)
		}
		if took := time.Since(began); took > 2*leader.ElectionTimeout {
			t.Errorf("it is noticed after %v: %v", took, s.hasEnded())
		}
		s.Close()
		close(stop)
		follower.setTake(follower.take)
	})
}

// TestHangUps: callers send an entry each and hang up, while Raft is stuck. Few are held.
func TestHangUps(t *testing.T) {
	var busy chan struct{}
	streamTo(t, func(rpc raft.RPC) { <-busy; succeed(rpc) }, func(leader, follower openedTransport, s *stream) {
		busy = make(chan struct{})
		synctest.Wait()
		before := follower.taken.Load()
		for i := range 200 {
			c, err := leader.peers.Dial(leader.peers.Ctx, "follower:1", peer.KindRaft, 0)
			if err != nil {
				t.Fatal(err)
			}
			q := &raft.AppendEntriesRequest{Term: 1}
			if i%2 == 0 {
				q = entryAt(uint64(i+1), 0)
			}
			c.Write(raftwire.AppendCommit(raftwire.Append(nil, q), &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1}))
			time.Sleep(time.Millisecond)
			c.Close()
		}
		time.Sleep(time.Minute)
		if n := follower.taken.Load() - before; n > mostWaiting+2 {
			t.Errorf("%d connections are still handled", n)
		}
		close(busy)
		time.Sleep(time.Minute)
		if n := follower.taken.Load() - before; n > 0 {
			t.Errorf("%d connections are still handled at the end", n)
		}
	})
}
