package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"reflect"
	"runtime"
	"slices"
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

// TestStreamRefused: sending into a stream does not block forever when the other
// side has refused an entry and answers are no longer read.
func TestStreamRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop := make(chan struct{})
		go func() { // the follower, which refuses all
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{}, nil)
				case <-stop:
					return
				}
			}
		}()
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
		select {
		case <-sent:
		default:
			t.Error("the sender waits for ever, or learns nothing")
		}
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStreamRepeatsLittle: what the follower has accepted is sent again only after
// tellAgain, or in doubt.
func TestStreamRepeatsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop, hold := make(chan struct{}), make(chan struct{}, 1)
		got := 0
		go func() {
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					got++
					hold <- struct{}{}
					rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
					<-hold
				case <-stop:
					return
				}
			}
		}()
		p := streamOf(t, leader)
		go func() { // Raft, which takes the answers
			for {
				select {
				case <-p.Consumer():
				case <-stop:
					return
				}
			}
		}()
		send := func(what string, want int, q raft.AppendEntriesRequest) {
			t.Helper()
			synctest.Wait()
			before := got
			if _, err := p.AppendEntries(&q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
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
		time.Sleep(tellAgain - time.Millisecond)
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
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStreamMessages: a message is read as it was sent.
func TestStreamMessages(t *testing.T) {
	at := time.Unix(1700000000, 123456789)
	for _, q := range []raft.AppendEntriesRequest{
		{Term: 1},
		{Term: math.MaxUint64, PrevLogEntry: 1 << 60, PrevLogTerm: 1 << 50, LeaderCommitIndex: 1 << 40},
		{Term: 7, PrevLogEntry: 4, PrevLogTerm: 6, LeaderCommitIndex: 5, Entries: []*raft.Log{
			{Index: 5, Term: 6, Type: raft.LogCommand, Data: []byte("data"), AppendedAt: at},
			{Index: 6, Term: 7, Type: raft.LogNoop, Data: []byte{}},
			{Index: 7, Term: 7, Type: raft.LogConfiguration, Data: bytes.Repeat([]byte("x"), 1<<18), Extensions: []byte("more")},
		}},
	} {
		in := bufio.NewReader(bytes.NewReader(append(appendEntries(nil, &q), appendCommit(nil, &q)...)))
		got, asks, err := readAppend(in)
		if err != nil || !asks || !reflect.DeepEqual(got, &q) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, q)
		}
		commit := &raft.AppendEntriesRequest{Term: q.Term, PrevLogEntry: q.PrevLogEntry, PrevLogTerm: q.PrevLogTerm, LeaderCommitIndex: q.PrevLogEntry}
		got, asks, err = readAppend(in)
		if err != nil || asks || !reflect.DeepEqual(got, commit) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, commit)
		}
		if _, _, err := readAppend(in); err != io.EOF {
			t.Error(err)
		}
	}
	for _, want := range []raft.AppendEntriesResponse{{}, {Term: 1, LastLog: 2, Success: true}, {Term: 1 << 63, LastLog: 1 << 62, NoRetryBackoff: true}} {
		var got raft.AppendEntriesResponse
		if err := readAnswer(bytes.NewReader(appendAnswer(nil, &want)), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}

// FuzzReadAppend: no bytes make a follower panic, and a message that can be read is written as the
// same bytes.
func FuzzReadAppend(f *testing.F) {
	f.Add(appendCommit(nil, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 2, PrevLogTerm: 3}))
	f.Add(appendEntries(nil, &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Term: 1, Data: []byte("x"), AppendedAt: time.Unix(1, 1)}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, asks, err := readAppend(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again := appendCommit(nil, q)
		if asks {
			again = appendEntries(nil, q)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}

// streamTo opens a stream between two hosts, of which the follower's Raft is answer. It calls f, and then
// closes everything.
func streamTo(t *testing.T, answer func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse, f func(leader, follower openedTransport, s *stream)) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					r := answer(rpc.Command.(*raft.AppendEntriesRequest))
					rpc.Respond(&r, nil)
				case <-stop:
					return
				}
			}
		}()
		p := streamOf(t, leader)
		go func() { // Raft, which takes the answers
			for {
				select {
				case <-p.Consumer():
				case <-stop:
					return
				}
			}
		}()
		f(leader, follower, p)
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

func success(*raft.AppendEntriesRequest) raft.AppendEntriesResponse {
	return raft.AppendEntriesResponse{Success: true}
}

// entryAt returns a message of term 1 with one entry.
func entryAt(index, commit uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: index - 1, PrevLogTerm: 1, LeaderCommitIndex: commit, Entries: []*raft.Log{{Index: index, Term: 1}}}
}

// TestStreamCommits: the follower is told once what is committed, when it has the entry: with
// an entry if one is on its way anyway, otherwise at once.
func TestStreamCommits(t *testing.T) {
	var got []string
	streamTo(t, func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse {
		got = append(got, fmt.Sprintf("%d+%d commit %d", q.PrevLogEntry, len(q.Entries), q.LeaderCommitIndex))
		return raft.AppendEntriesResponse{Success: true}
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
			if s.committed(term, index, 1) != want {
				t.Errorf("term %d, index %d: not %v", term, index, want)
			}
		}
		send := func(q *raft.AppendEntriesRequest) {
			t.Helper()
			if _, err := s.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
		}
		commit(1, 4, false) // it has sent nothing, and may be of another term
		send(entryAt(5, 3))
		expect("4+1 commit 3")
		commit(2, 5, false)
		commit(1, 4, true)
		expect("4+0 commit 4")
		commit(1, 4, true)
		commit(1, 3, true)
		expect()
		commit(1, 7, true) // the entry has not been sent
		expect()
		send(entryAt(6, 4))
		expect("5+1 commit 6")
		send(entryAt(7, 4))
		expect("6+1 commit 7")
		send(&raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 7, PrevLogTerm: 1, LeaderCommitIndex: 7})
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
	streamTo(t, func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse {
		if len(q.Entries) > 0 {
			<-busy
		}
		last = q.LeaderCommitIndex
		return raft.AppendEntriesResponse{Success: true}
	}, func(leader, follower openedTransport, s *stream) {
		busy = make(chan struct{})
		if _, err := s.AppendEntries(entryAt(9, 0), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		for index := range uint64(9) {
			s.committed(1, index+1, 1)
			synctest.Wait()
			if told := follower.raft.told.index.Load(); told != index+1 {
				t.Errorf("it knows of %d, want %d", told, index+1)
			}
		}
		time.Sleep(10 * follower.silence)
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

// overTLS is a network whose connections are encrypted. It counts the connections that were dialed, by kind.
type overTLS struct {
	Network
	config *tls.Config // nil: plain
	dials  *dialCount
}

func (o overTLS) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := o.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if o.config != nil {
		s := tls.Client(c, o.config)
		if err := s.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		c = s
	}
	return &dialCounted{Conn: c, d: o.dials, addr: addr}, nil
}

func (o overTLS) Listen(addr string) (net.Listener, error) {
	l, err := o.Network.Listen(addr)
	if err == nil && o.config != nil {
		l = tls.NewListener(l, o.config)
	}
	return l, err
}

type dialCount struct {
	mu     sync.Mutex
	dialed map[string]int // by kind and address
	open   map[string]int
}

func (d *dialCount) of(kind byte, addr string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dialed[string(kind)+addr]
}

func (d *dialCount) left() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprint(d.open)
}

type dialCounted struct {
	net.Conn
	d    *dialCount
	addr string
	once sync.Once
	key  string
	shut atomic.Bool
}

func (c *dialCounted) Write(p []byte) (int, error) {
	c.once.Do(func() {
		c.d.mu.Lock()
		c.key = string(p[:1]) + c.addr
		c.d.dialed[c.key]++
		c.d.open[c.key]++
		c.d.mu.Unlock()
	})
	return c.Conn.Write(p)
}

func (c *dialCounted) Close() error {
	if !c.shut.Swap(true) {
		c.d.mu.Lock()
		if c.key != "" {
			c.d.open[c.key]--
		}
		c.d.mu.Unlock()
	}
	return c.Conn.Close()
}

func newDialCount() *dialCount { return &dialCount{dialed: map[string]int{}, open: map[string]int{}} }

func tlsConfig(t *testing.T) *tls.Config {
	ca := testkit.NewCA(t)
	cert := ca.Peer(t)
	at := time.Now()
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Time: func() time.Time { return at }, ServerName: "127.0.0.1"}
}

// TestStreamsOverTLS checks, with TLS between members and without, that a write takes at most
// about two election timeouts although connections are forgotten again and again, and that
// nothing is left.
func TestStreamsOverTLS(t *testing.T) {
	testkit.SlowUnderRace(t)
	config := tlsConfig(t)
	for _, secure := range []bool{false, true} {
		for _, trip := range []time.Duration{2, 250} {
			t.Run(fmt.Sprint(secure, int(trip)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					d := newDialCount()
					for i := range 3 {
						cfg := f.config(i)
						cfg.Network = overTLS{cfg.Network, nil, d}
						if secure {
							cfg.Network = overTLS{f.net.Host(string(rune('a' + i))), config.Clone(), d}
						}
						f.open(i, cfg)
					}
					f.whole()
					f.net.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
					time.Sleep(20 * time.Second)
					lead := leadOf(t, f)
					l := f.running[lead]
					term := l.raft.CurrentTerm()
					write := func() time.Duration {
						at := time.Now()
						w := make(result, 1)
						l.Propose(someWrite(), w, nil)
						if err := <-w; err != nil {
							t.Error(err)
						}
						return time.Since(at)
					}
					var usual, worst time.Duration
					for range 50 {
						usual = max(usual, write())
						time.Sleep(37 * time.Millisecond)
					}
					streams := d.of(kindStream, f.peers[uint64((lead+1)%3+1)])
					for k := range 8 {
						for i := range 3 {
							if i != lead {
								f.net.Forget(string(rune('a'+lead)), string(rune('a'+i)), func() bool { return true })
							}
						}
						for began := time.Now(); time.Since(began) < 12*time.Second; time.Sleep(time.Duration(13*k+1) * time.Millisecond) {
							worst = max(worst, write())
						}
					}
					t.Log("usual", usual, "worst", worst, "streams before", streams, "after", d.of(kindStream, f.peers[uint64((lead+1)%3+1)]), "term", l.raft.CurrentTerm()-term, "disconnects", f.log.Count("disconnecting clients"), d.left())
					if worst > 4*time.Second+4*trip*time.Millisecond || f.log.Count("disconnecting clients") > 0 {
						t.Error("too long")
					}
					for i := range 3 {
						f.stop(i)
					}
					for k, n := range d.open {
						if n != 0 {
							t.Errorf("%d connections of %q are left open", n, k)
						}
					}
				})
			})
		}
	}
}

// TestNeededStreamForgotten checks that a write takes at most about two election timeouts while
// one member is down, and a firewall forgets the connections to the other again and again,
// except that for heartbeats.
func TestNeededStreamForgotten(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, half := range []string{"both", "to", "from"} {
		for _, trip := range []time.Duration{1, 250} {
			for _, each := range []time.Duration{20 * time.Millisecond, 3 * time.Second} {
				t.Run(fmt.Sprint(half, " ", int(trip), " ", each), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newWires()
						members, lead := n.open(t, 3, nil)
						leader, f := members[lead], members[(lead+1)%3]
						members[(lead+2)%3].Kill()
						n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
						time.Sleep(10 * time.Second)
						var worst time.Duration
						bad := 0
						term := leader.raft.CurrentTerm()
						for k := range 6 {
							n.forget(func(w *wire) bool {
								return w.from == hostOf(leader) && w.to == hostOf(f) && (w.kind == kindStream || w.kind == kindRaft) &&
									(half == "both" || w.dialed == (half == "from"))
							})
							for began := time.Now(); time.Since(began) < 15*time.Second+time.Duration(k)*331*time.Millisecond; time.Sleep(each) {
								at := time.Now()
								w := make(result, 1)
								leader.Propose(someWrite(), w, nil)
								if <-w != nil {
									bad++
									time.Sleep(100 * time.Millisecond)
								}
								worst = max(worst, time.Since(at))
							}
						}
						n.mu.Lock()
						ends := len(n.ends)
						n.mu.Unlock()
						t.Log("worst", worst, "failed", bad, "terms", leader.raft.CurrentTerm()-term, "ends", ends)
						if worst > 5*time.Second+4*trip*time.Millisecond || bad > 0 {
							t.Error("too long")
						}
					})
				})
			}
		}
	}
}

// TestObserverStreams checks, with two voters and an observer, that writes do not wait for the
// observer while its connections are forgotten or end, and that it follows.
func TestObserverStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		var members []*Member
		peers := map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}
		for id := uint64(1); id <= 4; id++ {
			cfg := observerConfig(n, id, peers)
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			members = append(members, m)
		}
		for _, m := range members {
			<-m.Ready()
		}
		time.Sleep(30 * time.Second)
		lead := leaderOf(t, members)
		leader, obs := members[lead], members[3]
		infos, _ := leader.raft.members()
		t.Log(infos)
		n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
		worst, lag := time.Duration(0), time.Duration(0)
		write := func() {
			at := time.Now()
			w := make(result, 1)
			leader.Propose(someWrite(), w, nil)
			if err := <-w; err != nil {
				t.Error(err)
			}
			worst = max(worst, time.Since(at))
		}
		for k := range 5 {
			n.forget(func(w *wire) bool { return w.from == hostOf(leader) && w.to == "d" })
			for range 40 + k {
				write()
				time.Sleep(100 * time.Millisecond)
			}
			want, at := leader.commits.applied(), time.Now()
			until(t, "the observer", func() bool { return obs.commits.applied() >= want })
			lag = max(lag, time.Since(at))
		}
		t.Log("worst", worst, "lag", lag)
		if worst > 10*time.Millisecond || lag > 3*time.Second {
			t.Error("too long")
		}
		n.mu.Lock()
		before := len(n.ends)
		n.mu.Unlock()
		for i := range 300 {
			write()
			n.mu.Lock()
			var lost []*wire
			for w := range n.ends {
				if w.dialed && kindOf(w) == kindStream && w.to == "d" {
					lost = append(lost, w)
				}
			}
			n.mu.Unlock()
			for _, w := range lost {
				w.Close()
			}
			time.Sleep(time.Duration(i%7) * 3 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		n.mu.Lock()
		after := len(n.ends)
		n.mu.Unlock()
		if after > before+6 || obs.commits.applied() != leader.commits.applied() {
			t.Error(before, after, obs.commits.applied(), leader.commits.applied())
		}
		// One voter is left beside the observer: nothing may be acknowledged.
		for i, m := range members[:3] {
			if i != lead {
				m.Kill()
			}
		}
		w := make(result, 1)
		leader.Propose(someWrite(), w, nil)
		select {
		case err := <-w:
			if err == nil {
				t.Error("acknowledged with the observer's answer only")
			}
		case <-time.After(20 * time.Second):
		}
		obs.Kill()
		leader.Kill()
	})
}

func observerConfig(n *wires, id uint64, peers map[uint64]string) Config {
	cfg := memberConfig(id, peers, n.host(peers[id][:1]))
	for i := range cfg.Peers {
		cfg.Peers[i].Observer = cfg.Peers[i].ID == 4
	}
	return cfg
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

// TestLateStreamHidesNone: a stream of an earlier term is opened late, and closed. The current one is still known.
func TestLateStreamHidesNone(t *testing.T) {
	streamTo(t, success, func(leader, follower openedTransport, s *stream) {
		for _, x := range []struct {
			s    *stream
			term uint64
		}{{s, 2}, {streamOf(t, leader), 1}} {
			q := entryAt(1, 0)
			q.Term = x.term
			if _, err := x.s.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
			if x.s != s {
				x.s.Close()
			}
		}
		if leader.stream("2") != s {
			t.Error("the open stream is not known any more")
		}
	})
}

// TestSlowLinkKeepsStreams: all links are slow, and work. The connections for entries are kept, and a write takes
// about one round trip.
func TestSlowLinkKeepsStreams(t *testing.T) {
	for _, l := range []struct{ timeout, trip time.Duration }{{500, 110}, {500, 140}, {2000, 450}, {2000, 560}} {
		t.Run((l.timeout*time.Millisecond).String()+" "+(l.trip*time.Millisecond).String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWires()
				members, lead := n.open(t, 3, func(c *Config) { c.ElectionTimeout = l.timeout * time.Millisecond })
				leader := members[lead]
				time.Sleep(5 * time.Second)
				n.SetDelay(func(from, to string) time.Duration { return l.trip / 2 * time.Millisecond })
				time.Sleep(10 * time.Second)
				seen := map[*wire]bool{}
				raftSeen := map[*wire]bool{}
				var took []time.Duration
				for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(730 * time.Millisecond) {
					at := time.Now()
					w := make(result, 1)
					leader.Propose(someWrite(), w, nil)
					if err := <-w; err != nil {
						t.Log(err)
					}
					took = append(took, time.Since(at))
					n.mu.Lock()
					for w := range n.ends {
						w.mu.Lock()
						if w.dialed && w.from == hostOf(leader) {
							if w.kind == kindStream {
								seen[w] = true
							} else if w.kind == kindRaft {
								raftSeen[w] = true
							}
						}
						w.mu.Unlock()
					}
					n.mu.Unlock()
				}
				slices.Sort(took)
				t.Logf("%v %v streams %d, other %d, writes: median %v, max %v, still leads %v", l.timeout, l.trip, len(seen), len(raftSeen), took[len(took)/2], took[len(took)-1], leader.raft.State())
				if len(raftSeen) > 30 { // if redial spares idle connections, up to 15
					t.Errorf("%d connections for single messages in a minute to two members", len(raftSeen))
				}
			})
		})
	}
}

// TestSlowLinkWrites: all links are slow, and work. Long writes, one at a time, take a few round trips each.
func TestSlowLinkWrites(t *testing.T) {
	for _, size := range []int{100, 600 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWires()
				members, lead := n.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
				leader := members[lead]
				const trip = 560 * time.Millisecond
				n.SetDelay(func(from, to string) time.Duration { return trip / 2 })
				time.Sleep(10 * time.Second)
				var took []time.Duration
				var sum time.Duration
				for i := range 40 {
					at := time.Now()
					fill(t, leader, fmt.Sprint("x", i, "-"), 1, size)
					took = append(took, time.Since(at))
					sum += took[i]
					time.Sleep(730 * time.Millisecond)
				}
				slices.Sort(took)
				t.Logf("writes: mean %v, median %v, max %v", sum/40, took[20], took[39])
				if took[39] > 8*trip {
					t.Errorf("writes take up to %v, with a round trip of %v", took[39], trip)
				}
				if size == 100 && took[20] > trip*8/5 { // if redial spares idle connections, 0.8 s, and otherwise 1.1 s
					t.Errorf("half of the short writes take %v or more, with a round trip of %v", took[20], trip)
				}
			})
		})
	}
}
