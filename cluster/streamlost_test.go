package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// slowDials is a network whose new connections take long; those that exist work.
type slowDials struct {
	Network
	takes *atomic.Int64
}

func (s slowDials) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if d := time.Duration(s.takes.Load()); d > 0 {
		late := time.NewTimer(d)
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Network.Dial(ctx, addr)
}

// TestStreamsShareNothing: two goroutines of Raft open a stream to the same member at once, since it was removed
// and added again, or a new term has begun. Each stream has a connection of its own: an answer on one would
// count for a message on the other.
func TestStreamsShareNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		var takes atomic.Int64
		takes.Store(int64(500 * time.Millisecond))
		leader, follower := openTransportOn(t, slowDials{network.Host("leader"), &takes}, "leader"), openTransport(t, network, "follower")
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
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestCommitLost: a connection for entries dies silently between the answer to an entry and the message that it is
// committed. The follower is reachable otherwise, and learns that in about an election timeout.
func TestCommitLost(t *testing.T) {
	for _, timeout := range []time.Duration{2 * time.Second, 500 * time.Millisecond} {
		t.Run(timeout.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWires()
				members, lead := n.open(t, 3, func(c *Config) { c.ElectionTimeout = timeout })
				leader, f := members[lead], members[(lead+1)%3]
				time.Sleep(10 * time.Second)
				n.SetDelay(func(from, to string) time.Duration {
					if from == hostOf(members[(lead+2)%3]) {
						return 5 * time.Millisecond // so the entry is committed when f has answered already
					}
					return time.Millisecond
				})
				time.Sleep(2 * time.Second)
				has := func(id int64) (yes bool) {
					f.replica.View(func(v *fsm.View) { yes = v.Sessions().Get(id) != nil })
					return yes
				}
				var once sync.Once
				came := func(w *wire) { // the connection dies silently when the answer to the entry has come
					if w.dialed && w.from == hostOf(leader) && w.to == hostOf(f) && kindOf(w) == kindStream {
						once.Do(func() { n.forget(func(x *wire) bool { return x == w }) })
					}
				}
				w := make(result, 1)
				leader.Propose(fsm.OpenSession(4242, 4242, 1<<30, session.Password{}), w, nil)
				n.came.Store(&came)
				if err := <-w; err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				until(t, "the write at the follower", func() bool { return has(4242) })
				if took := time.Since(began); took > timeout*5/4+300*time.Millisecond {
					t.Errorf("the follower, which hears the leader's heartbeats, learns after %v that the entry is committed", took)
				}
				n.came.Store(nil)
			})
		})
	}
}

// TestNoNewConnections: one member is down, and a firewall lets no new connections through to the other; those
// that exist work. The connection for entries is lost. The other member is reachable, so writes go on.
func TestNoNewConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		var slow atomic.Int64
		members, lead := n.open(t, 3, func(c *Config) { c.Network = slowDials{c.Network, &slow} })
		leader, f := members[lead], members[(lead+1)%3]
		members[(lead+2)%3].Kill()
		time.Sleep(10 * time.Second)
		write := func() time.Duration {
			began := time.Now()
			w := make(result, 1)
			leader.Propose(someWrite(), w, nil)
			if err := <-w; err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		write()
		slow.Store(int64(time.Hour))
		n.mu.Lock()
		var lost []*wire
		for w := range n.ends {
			if w.dialed && w.from == hostOf(leader) && w.to == hostOf(f) && kindOf(w) == kindStream {
				lost = append(lost, w)
			}
		}
		n.mu.Unlock()
		if len(lost) == 0 {
			t.Fatal("no stream")
		}
		for _, w := range lost {
			w.Close()
		}
		var worst time.Duration
		for range 20 {
			worst = max(worst, write())
			time.Sleep(150 * time.Millisecond)
		}
		if worst > 200*time.Millisecond {
			t.Errorf("a write takes up to %v", worst)
		}
	})
}

// TestLookAtBegin: a stream has been idle for somewhat less than tellAgain, with an election timeout of 200 ms,
// when a long entry is sent. If watchConns looks while the entry is encoded, the follower does not count as silent.
func TestLookAtBegin(t *testing.T) {
	network := memnet.New()
	leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case rpc := <-follower.transport.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-stop:
				return
			}
		}
	}()
	s := streamOf(t, leader)
	answered := make(chan struct{}, 10)
	go func() {
		for {
			select {
			case <-s.Consumer():
				answered <- struct{}{}
			case <-stop:
				return
			}
		}
	}()
	q := entryAt(5, 0)
	q.Entries[0].Data = make([]byte, 1<<20)
	for i := range 300 {
		q := *q
		s.conn.quiet.Store(8 - 1) // as after eight looks, each after 50 ms, in which nothing had to be sent
		for !s.conn.reading.Load() {
			runtime.Gosched()
		}
		s.conn.quiet.Store(8 - 1)
		looked := make(chan bool)
		go func() {
			began := time.Now()
			for time.Since(began) < time.Duration(i%50)*10*time.Microsecond {
			}
			looked <- s.conn.look()
		}()
		if _, err := s.AppendEntries(&q, new(raft.AppendEntriesResponse)); err != nil {
			t.Error(err)
			break
		}
		if <-looked {
			t.Errorf("in round %d, the first look since the message was begun takes the follower for dead", i)
			break
		}
		<-answered
	}
	s.Close()
	close(stop)
	closeTransport(leader)
	closeTransport(follower)
}

// TestNobodyReadsAnswers: a caller sends messages, reads no answers, and hangs up. Nothing is left of it.
func TestNobodyReadsAnswers(t *testing.T) {
	testkit.SlowUnderRace(t)
	streamTo(t, success, func(leader, follower openedTransport, s *stream) {
		takes := follower.peers.serve[kindStream]
		var open atomic.Int32
		follower.peers.serve[kindStream] = func(c net.Conn) {
			open.Add(1)
			takes(c)
			open.Add(-1)
		}
		for range 10 {
			c, err := leader.peers.dial(leader.peers.ctx, "follower:1", kindStream, 0)
			if err != nil {
				t.Fatal(err)
			}
			c.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = io.WriteString(c, "\x00\x01a")
			message := appendEntries(nil, &raft.AppendEntriesRequest{Term: 1})
			for err == nil {
				_, err = c.Write(message)
			}
			c.Close()
		}
		time.Sleep(10 * time.Minute)
		if n := open.Load(); n > 0 {
			t.Errorf("%d connections are still handled ten minutes after they were closed", n)
		}
	})
}

// TestRestartBeforeStream: a follower restarts between Raft's single message and the next. It knows streams, and
// gets one.
func TestRestartBeforeStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
		leader.dialStream("follower:1") // beside a single message
		time.Sleep(10 * time.Millisecond)
		closeTransport(follower)
		time.Sleep(time.Second)
		follower = openTransport(t, network, "follower")
		opened := false
		for began := time.Now(); time.Since(began) < 3*time.Second && !opened; time.Sleep(100 * time.Millisecond) {
			leader.dialStream("follower:1") // again
			s, err := leader.openStream("2", "follower:1")
			if err != nil {
				continue
			}
			synctest.Wait()
			opened = !s.isGone()
			s.Close()
		}
		if !opened {
			t.Error("no stream in three seconds")
		}
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestShortCutOfStream: the network is cut for 1.5 s, just when a write is acknowledged, so all that is on the way in the
// stream is what is committed. One other member is down. When the network is whole again, a write
// does not wait until TCP sends that again.
func TestShortCutOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		members, lead := n.open(t, 3, nil)
		leader, f := members[lead], members[(lead+1)%3]
		time.Sleep(10 * time.Second)
		n.SetDelay(func(from, to string) time.Duration { return 500 * time.Microsecond })
		members[(lead+2)%3].Kill()
		time.Sleep(2 * time.Second)
		cut := func(cut bool) {
			n.Cut(hostOf(leader), hostOf(f), cut)
			n.Cut(hostOf(f), hostOf(leader), cut)
		}
		w := make(result, 1)
		leader.Propose(fsm.OpenSession(4242, 4242, 1<<30, session.Password{}), cutWhenDone{w, func() { cut(true) }}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		cut(false)
		began := time.Now()
		time.Sleep(300 * time.Millisecond)
		f.replica.View(func(v *fsm.View) {
			if v.Sessions().Get(4242) == nil {
				t.Error("the follower does not know of the write before the cut")
			}
		})
		leader.Propose(someWrite(), w, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		took := time.Since(began) - 300*time.Millisecond
		if took > 100*time.Millisecond {
			t.Errorf("a write after the cut takes %v", took)
		}
	})
}

// TestCommitsHideNoSilence: a follower that is silent while an answer is awaited is noticed in about an election
// timeout, also if what is committed advances meanwhile.
func TestCommitsHideNoSilence(t *testing.T) {
	streamTo(t, success, func(leader, follower openedTransport, s *stream) {
		// A new stream, whose follower answers the greeting and hangs.
		s.Close()
		synctest.Wait()
		takes := follower.peers.serve[kindStream]
		stop := make(chan struct{})
		follower.peers.serve[kindStream] = func(c net.Conn) { <-stop; c.Close() }
		s = streamOf(t, leader)
		q := entryAt(2, 1)
		for i := range uint64(9) {
			q.Entries = append(q.Entries, &raft.Log{Index: 3 + i, Term: 1})
		}
		s.AppendEntries(q, new(raft.AppendEntriesResponse))
		began := time.Now()
		for index := uint64(2); !s.isGone() && index < 10; index++ {
			time.Sleep(1900 * time.Millisecond)
			s.committed(1, index, 1)
		}
		if took := time.Since(began); took > 2*leader.silence {
			t.Errorf("it is noticed after %v: %v", took, s.isGone())
		}
		s.Close()
		close(stop)
		follower.peers.serve[kindStream] = takes
	})
}

// TestHangUps: callers send an entry each and hang up, while Raft is stuck. Few are held.
func TestHangUps(t *testing.T) {
	var busy chan struct{}
	streamTo(t, func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse {
		<-busy
		return raft.AppendEntriesResponse{Success: true}
	}, func(leader, follower openedTransport, s *stream) {
		busy = make(chan struct{})
		synctest.Wait()
		takes := follower.peers.serve[kindStream]
		var open atomic.Int32
		follower.peers.serve[kindStream] = func(c net.Conn) {
			open.Add(1)
			takes(c)
			open.Add(-1)
		}
		for i := range 200 {
			c, err := leader.peers.dial(leader.peers.ctx, "follower:1", kindStream, 0)
			if err != nil {
				t.Fatal(err)
			}
			b := []byte("\x00\x01a")
			if i%2 == 0 {
				b = appendEntries(b, entryAt(uint64(i+1), 0))
			} else {
				b = appendEntries(b, &raft.AppendEntriesRequest{Term: 1})
			}
			b = appendCommit(b, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1})
			c.Write(b)
			time.Sleep(time.Millisecond)
			c.Close()
		}
		time.Sleep(time.Minute)
		if n := open.Load(); n > mostWaiting+2 {
			t.Errorf("%d connections are still handled", n)
		}
		close(busy)
		synctest.Wait()
		time.Sleep(time.Minute)
		if n := open.Load(); n > 0 {
			t.Errorf("%d connections are still handled at the end", n)
		}
	})
}

// TestKillWhileConnecting: a member ends while a connection for a stream is being made.
func TestKillWhileConnecting(t *testing.T) {
	for i := range 12 {
		synctest.Test(t, func(t *testing.T) {
			n := newWires()
			var slow atomic.Int64
			members, lead := n.open(t, 3, func(c *Config) { c.Network = slowDials{c.Network, &slow} })
			leader := members[lead]
			time.Sleep(time.Second)
			slow.Store(int64(400 * time.Millisecond))
			n.mu.Lock()
			var lost []*wire
			for w := range n.ends {
				if kindOf(w) == kindStream && w.dialed && w.from == hostOf(leader) {
					lost = append(lost, w)
				}
			}
			n.mu.Unlock()
			for _, w := range lost {
				w.Close()
			}
			leader.Propose(someWrite(), make(result, 1), nil)
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			began := time.Now()
			leader.Kill()
			if took := time.Since(began); took > time.Second {
				t.Error(took)
			}
		})
	}
}

// TestStreamsEnd: the leader's streams end again and again while writes go on; no goroutine or connection is left, and
// all members have the same log.
func TestStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		members, lead := n.open(t, 3, nil)
		leader := members[lead]
		n.SetDelay(func(string, string) time.Duration { return 300 * time.Microsecond })
		time.Sleep(5 * time.Second)
		ends := func() int { n.mu.Lock(); defer n.mu.Unlock(); return len(n.ends) }
		before := ends()
		for i := range 3000 {
			w := make(result, 1)
			leader.Propose(someWrite(), w, nil)
			time.Sleep(time.Duration(i%11) * 100 * time.Microsecond)
			n.mu.Lock()
			var lost []*wire
			for w := range n.ends {
				if kindOf(w) == kindStream && w.dialed && w.from == hostOf(leader) && (i%7 > 0 || w.to == hostOf(members[(lead+1)%3])) {
					lost = append(lost, w)
				}
			}
			n.mu.Unlock()
			for _, w := range lost {
				w.Close()
			}
			if err := <-w; err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		if e := ends(); e > before+8 {
			t.Errorf("%d connections, before %d", e, before)
		}
		for _, m := range members {
			if m.commits.applied() != leader.commits.applied() {
				t.Error(m.commits.applied(), leader.commits.applied())
			}
		}
	})
}

func kindOf(w *wire) byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kind
}

// TestForgottenAgain: a firewall forgets all connections between the leader and a follower, which is connected
// all the time, again and again. The follower keeps its clients.
func TestForgottenAgain(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, times := range []int{2, 20} {
		for _, gap := range []time.Duration{1200, 1700} {
			t.Run(fmt.Sprint("times ", times, " gap ", int(gap)), func(t *testing.T) {
				var worst time.Duration
				stops := 0
				for k := range 6 {
					synctest.Test(t, func(t *testing.T) {
						f := newFleet(t, 3)
						f.opened(2 * time.Second)
						f.net.SetDelay(func(from, to string) time.Duration { return time.Duration(k%4) * 3 * time.Millisecond })
						time.Sleep(20 * time.Second)
						lead := leadOf(t, f)
						l, m := f.running[lead], f.running[(lead+1)%3]
						stop, done := make(chan struct{}), make(chan struct{})
						go func() {
							defer close(done)
							for {
								select {
								case <-stop:
									return
								case <-time.After(50 * time.Millisecond):
								}
								w := make(result, 1)
								l.Propose(fsm.Reap("/"+strings.Repeat("x", 100)), w, nil)
								<-w
							}
						}()
						lagging := make(chan struct{})
						go func() {
							defer close(lagging)
							for last, at := uint64(0), time.Now(); ; time.Sleep(time.Millisecond) {
								if now := m.commits.applied(); now > last {
									last, at = now, time.Now()
								}
								worst = max(worst, time.Since(at))
								select {
								case <-stop:
									return
								default:
								}
							}
						}()
						time.Sleep(3*time.Second + time.Duration(k)*682*time.Millisecond)
						for range times {
							f.net.Forget(string(rune('a'+lead)), string(rune('a'+(lead+1)%3)), func() bool { return true })
							time.Sleep(gap * time.Millisecond)
						}
						time.Sleep(15 * time.Second)
						close(stop)
						<-done
						<-lagging
						stops += f.log.Count("disconnecting clients")
					})
				}
				if stops > 0 || worst > 1500*time.Millisecond {
					t.Errorf("it disconnects its clients %d times, and lags for up to %v", stops, worst)
				}
			})
		}
	}
}
