package whole

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// electionTimeout is the default.
const electionTimeout = 2 * time.Second

// members is a cluster in memory.
type members struct {
	t       *testing.T
	net     *memnet.Network
	peers   map[uint64]string
	configs []lockkeeper.Config
	servers []*lockkeeper.Server // nil when down
}

func host(i int) string { return fmt.Sprintf("host%d", i+1) }

// host returns what a new server needs: a host of the network, and an empty memory.
func (m *members) host(name string) testhooks.Hooks {
	return testhooks.Hooks{Network: m.net.Host(name), Memory: storage.NewMemory()}
}

// startMembers starts a cluster of n and waits until all of them serve.
func startMembers(t *testing.T, n int, change func(c *lockkeeper.Config)) *members {
	t.Helper()
	m := newMembers(t, n, change)
	for i := range n {
		m.start(i)
	}
	t.Cleanup(m.close)
	for _, s := range m.servers {
		m.ready(s)
	}
	voters := slices.DeleteFunc(slices.Clone(m.configs[0].Peers), func(p lockkeeper.Peer) bool { return p.Observer })
	awaitVotes(t, m.servers, len(voters))
	return m
}

// inCluster runs a test in virtual time, with the members of startMembers.
func inCluster(t *testing.T, n int, change func(c *lockkeeper.Config), test func(t *testing.T, m *members)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, startMembers(t, n, change)) })
}

// newMembers prepares a cluster whose members the test starts, and closes.
func newMembers(t *testing.T, n int, change func(c *lockkeeper.Config)) *members {
	m := &members{t: t, net: memnet.New(), peers: map[uint64]string{}, servers: make([]*lockkeeper.Server, n)}
	for i := range n {
		m.peers[uint64(i+1)] = host(i) + ":7000"
	}
	for i := range n {
		c := lockkeeper.Config{
			ID: uint64(i + 1), Peers: peerList(m.peers), TickTime: 500 * time.Millisecond,
		}
		*testhooks.In(&c) = m.host(host(i))
		if change != nil {
			change(&c)
		}
		if c.Logger == nil {
			c.Logger = testkit.Unblocked(t)
		}
		m.configs = append(m.configs, c)
	}
	return m
}

func (m *members) close() {
	for i := range m.servers {
		m.stop(i)
	}
}

// awaitVotes waits until every server knows that many voters. A member that started late
// has found the cluster running, and gets its vote when it has caught up.
func awaitVotes(t *testing.T, servers []*lockkeeper.Server, want int) {
	t.Helper()
	for _, s := range servers {
		eventually(t, "vote of every member", func() bool {
			voters := 0
			for _, p := range s.Members() {
				if !p.Observer {
					voters++
				}
			}
			return voters == want
		})
	}
}

func (m *members) start(i int) {
	m.t.Helper()
	s, err := lockkeeper.Open(m.configs[i])
	if err != nil {
		m.t.Fatal(err)
	}
	m.servers[i] = s
}

func (m *members) stop(i int) {
	if s := m.servers[i]; s != nil {
		m.servers[i] = nil
		if err := s.Close(); err != nil {
			m.t.Errorf("close %d: %v", i, err)
		}
	}
}

// kill stops a member, whose host answers nobody any more.
func (m *members) kill(i int) {
	m.net.Kill(host(i))
	m.stop(i)
}

// crash is like kill, but the member says nothing to anybody.
func (m *members) crash(i int) {
	m.net.Kill(host(i))
	check(m.t, testhooks.Of(m.servers[i]).Kill())
	m.servers[i] = nil
}

// serve starts a member and waits until it serves.
func (m *members) serve(i int) {
	m.t.Helper()
	m.start(i)
	m.ready(m.servers[i])
}

func (m *members) ready(s *lockkeeper.Server) {
	m.t.Helper()
	if err := ready(s); err != nil {
		m.t.Fatal("not ready: ", err)
	}
}

func (m *members) connect(i int, timeout time.Duration) *rawclient.Client {
	m.t.Helper()
	return connectFor(m.t, inMemory(m.servers[i]), timeout)
}

// reconnect opens a session as soon as the member serves.
func (m *members) reconnect(i int) *rawclient.Client {
	m.t.Helper()
	return m.retry(i, func(nc net.Conn) (*rawclient.Client, error) { return rawclient.Open(nc, 10*time.Second) })
}

// resume resumes a session as soon as the member serves.
func (m *members) resume(i int, session proto.ConnectReply) *rawclient.Client {
	m.t.Helper()
	return m.retry(i, func(nc net.Conn) (*rawclient.Client, error) { return rawclient.Resume(nc, session) })
}

func (m *members) retry(i int, open func(net.Conn) (*rawclient.Client, error)) (c *rawclient.Client) {
	m.t.Helper()
	eventually(m.t, "service", func() bool {
		nc, err := m.servers[i].Dial("", "", time.Second)
		if err != nil {
			return false
		}
		m.t.Cleanup(func() { nc.Close() })
		c, err = open(nc)
		return err == nil
	})
	return c
}

// settle waits until all members have applied the same entries.
func (m *members) settle() {
	m.t.Helper()
	testkit.Eventually(m.t, "the same state everywhere", func() bool {
		first := m.servers[0].Status().State.Index
		return !slices.ContainsFunc(m.servers, func(s *lockkeeper.Server) bool { return s.Status().State.Index != first })
	})
}

// cutOff cuts or heals all ways between a member and the others.
func (m *members) cutOff(one int, cut bool) {
	for i := range m.servers {
		if i != one {
			m.net.Cut(host(one), host(i), cut)
			m.net.Cut(host(i), host(one), cut)
		}
	}
}

// leader waits until a member leads, and returns its index.
func (m *members) leader() int {
	m.t.Helper()
	for range 1000 {
		for i, s := range m.servers {
			if s != nil && s.Role() == lockkeeper.RoleLeader {
				return i
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Fatal("nobody leads")
	return 0
}

// TestClusterLeaderLost: when the leader is lost, clients of the other members keep their
// connections and sessions, and their writes are answered.
func TestClusterLeaderLost(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		for round := range 5 {
			lead := m.leader()
			c := m.connect((lead+1)%3, 10*time.Second)
			must(c.Create(fmt.Sprintf("/r%d", round), nil, proto.FlagEphemeral))(t)
			m.kill(lead)
			began := time.Now()
			if _, err := c.Create(fmt.Sprintf("/r%d-after", round), nil, 0); err != nil {
				// After two elections without a winner, clients lose their connections.
				t.Logf("round %d: %v", round, err)
				c = m.resume((lead+1)%3, c.Session)
				if _, err := c.Create(fmt.Sprintf("/r%d-after", round), nil, 0); err != nil && err != proto.NodeExists {
					t.Fatal(err)
				}
			}
			t.Logf("round %d: %v until the next write", round, time.Since(began))
			must(c.Exists(fmt.Sprintf("/r%d", round), false))(t)
			m.serve(lead)
			must(m.connect(lead, 10*time.Second).Exists(fmt.Sprintf("/r%d-after", round), false))(t)
		}
	})
}

// TestClusterLeaderKilled: the others replace a dead leader at once, since its connections
// have ended and its host refuses new ones.
func TestClusterLeaderKilled(t *testing.T) {
	inCluster(t, 5, nil, func(t *testing.T, m *members) {
		m.net.SetDelay(func(string, string) time.Duration { return time.Millisecond })
		for range 3 { // the third one takes the majority away
			lead := m.leader()
			next := (lead + 1) % 5
			for m.servers[next] == nil {
				next = (next + 1) % 5
			}
			c := m.connect(next, 10*time.Second)
			must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			killed := time.Now()
			m.crash(lead)
			_, err := c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil)
			left := 0
			for _, s := range m.servers {
				if s != nil {
					left++
				}
			}
			if took := time.Since(killed); left > 2 && (err != nil || took > 150*time.Millisecond) {
				t.Errorf("with %d members left a write waited %v: %v", left, took, err)
			} else if left == 2 && (err == nil || took > time.Second) {
				t.Errorf("without a majority the client was closed after %v: %v", took, err)
			}
		}
	})
}

// TestClusterSilence: a leader that is silent for a moment continues to lead, and no
// client loses its connection. A leader that stays silent is replaced.
func TestClusterSilence(t *testing.T) {
	for how, silence := range map[string]func(m *members, lead int, yes bool){
		"paused":  func(m *members, lead int, yes bool) { m.net.Pause(host(lead), yes) },
		"cut off": (*members).cutOff,
	} {
		t.Run(how, func(t *testing.T) { testSilence(t, silence) })
	}
}

func testSilence(t *testing.T, silent func(m *members, lead int, yes bool)) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		var clients []*rawclient.Client
		for i := range m.servers {
			clients = append(clients, m.connect(i, 10*time.Second))
		}
		m.settle() // an entry that a cut delays makes its member lag
		silence := func(yes bool) { silent(m, lead, yes) }
		term := func() uint64 {
			return must(request.Ask(t.Context(), m.net.Host(host((lead+1)%3)), host((lead+1)%3)+":7000", request.Request{Status: true}))(t).Term
		}
		before := term()
		for range 5 {
			silence(true)
			time.Sleep(3 * electionTimeout / 4)
			silence(false)
			for i, c := range clients {
				if err := c.Ping(); err != nil {
					t.Fatalf("client of %d: %v", i, err)
				}
			}
			time.Sleep(time.Second)
		}
		if after := term(); after != before {
			t.Errorf("term %d, after %d", after, before)
		}
		silence(true)
		began := time.Now()
		must(clients[(lead+1)%3].Create("/after", nil, 0))(t)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("a write waited %v", took)
		}
	})
}

// TestClusterShortCuts: two cuts that are shorter than an election timeout follow one another while
// entries are on their way. TCP sends what is lost again long after each cut. No member lags so
// much that it closes its clients' connections.
func TestClusterShortCuts(t *testing.T) {
	for pause := electionTimeout / 4; pause < electionTimeout; pause += electionTimeout / 8 {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testShortCuts(t, pause) })
		})
	}
}

func testShortCuts(t *testing.T, pause time.Duration) {
	m := startMembers(t, 3, nil)
	lead := m.leader()
	var clients []*rawclient.Client
	for i := range m.servers {
		clients = append(clients, m.connect(i, 10*time.Second))
	}
	writer := m.connect(lead, 10*time.Second)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := writer.Create(fmt.Sprintf("/n%d", i), nil, 0); err != nil {
				t.Errorf("a write: %v", err)
				return
			}
		}
	})
	for range 2 {
		m.cutOff(lead, true)
		time.Sleep(71 * electionTimeout / 100)
		m.cutOff(lead, false)
		time.Sleep(pause)
	}
	time.Sleep(2 * time.Second)
	for i, c := range clients {
		if err := c.Ping(); err != nil {
			t.Errorf("client of %d: %v", i, err)
		}
	}
	close(stop)
	wg.Wait()
}

// TestClusterStuckDisk: a leader whose disk is stuck is replaced. A follower whose disk is
// stuck delays no other member's clients, and closes the connections of its own.
func TestClusterStuckDisk(t *testing.T) {
	for name, behind := range map[string]int{"leader": 0, "follower": 1} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, nil, func(t *testing.T, m *members) {
				lead := m.leader()
				stuck, other := (lead+behind)%3, (lead+2)%3
				theirs, ours := m.connect(stuck, 10*time.Second), m.connect(other, 10*time.Second)
				healed := make(chan struct{})
				heal := sync.OnceFunc(func() { close(healed) })
				t.Cleanup(heal)
				testhooks.In(&m.configs[stuck]).Memory.SetFault(func() error {
					<-healed
					return nil
				})
				began := time.Now()
				_, err := ours.Create("/held-up", nil, 0)
				took := time.Since(began)
				if most := time.Duration(1-behind) * (electionTimeout + 500*time.Millisecond); err != nil || took > most+50*time.Millisecond {
					t.Errorf("a write waited %v: %v", took, err)
				}
				closed(t, theirs)
				if took := time.Since(began); took > electionTimeout+500*time.Millisecond {
					t.Errorf("the stuck member closed its client's connection after %v", took)
				}
				time.Sleep(5 * time.Second)
				check(t, ours.Ping())
				testhooks.In(&m.configs[stuck]).Memory.SetFault(nil)
				heal()
				must(m.reconnect(stuck).Create("/healed", nil, 0))(t)
			})
		})
	}
}

// TestClusterSlowDisks: when all disks are slow an election takes longer than usual, and
// candidates wait long enough for it.
func TestClusterSlowDisks(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		c := m.connect((lead+1)%3, 10*time.Second)
		for i := range m.configs {
			testhooks.In(&m.configs[i]).Memory.SetFault(func() error {
				time.Sleep(150 * time.Millisecond)
				return nil
			})
		}
		time.Sleep(time.Second)
		killed := time.Now()
		m.crash(lead)
		_, err := c.Create("/after", nil, 0)
		if took := time.Since(killed); err != nil || took > 5*time.Second {
			t.Errorf("a write waited %v: %v", took, err)
		}
		for i := range m.configs {
			testhooks.In(&m.configs[i]).Memory.SetFault(nil)
		}
	})
}

// TestClusterOutage: while no member can reach another no session ends, and a new leader
// gives every session its full timeout again.
func TestClusterOutage(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		var sessions []proto.ConnectReply
		for i := range m.servers {
			c := m.connect(i, 4*time.Second)
			must(c.Create(fmt.Sprint("/", i), nil, proto.FlagEphemeral))(t)
			sessions = append(sessions, c.Session)
		}
		for i := range m.servers {
			for j := range m.servers {
				m.net.Cut(host(i), host(j), i != j)
			}
		}
		time.Sleep(7 * time.Second)
		m.net.Heal()
		for i, s := range sessions {
			must(m.resume(i, s).Exists(fmt.Sprint("/", i), false))(t)
		}
	})
}

// TestClusterTouches: a session on any member lives while its client sends requests, and
// expires when it does not.
func TestClusterTouches(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		watcher := m.connect(0, 10*time.Second)
		for i := range m.servers {
			quiet, reader := m.connect(i, 2*time.Second), m.connect(i, 2*time.Second)
			must(quiet.Create("/quiet", nil, proto.FlagEphemeral))(t)
			must(reader.Create("/reader", nil, proto.FlagEphemeral))(t)
			for range 40 {
				time.Sleep(600 * time.Millisecond)
				must(reader.Exists("/reader", false))(t)
				check(t, watcher.Ping())
			}
			testkit.Must(watcher.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			if _, err := watcher.Exists("/quiet", false); err != proto.NoNode {
				t.Errorf("member %d: a silent session's znode: %v", i, err)
			}
			if _, err := watcher.Exists("/reader", false); err != nil {
				t.Errorf("member %d: a reader's znode: %v", i, err)
			}
			must(reader.Call(proto.OpCloseSession, nil, nil))(t)
		}
	})
}

// TestClusterTouchDuringHandOver: a client pings a member that does not know yet that
// there is a new leader. Its session expires one timeout after that ping.
func TestClusterTouchDuringHandOver(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.ElectionTimeout = 2 * time.Second }, func(t *testing.T, m *members) {
		was := m.leader()
		next, far := (was+1)%3, (was+2)%3
		watcher, quiet := m.connect(next, 30*time.Second), m.connect(far, 4*time.Second)
		must(quiet.Create("/quiet", nil, proto.FlagEphemeral))(t)
		m.net.SetDelay(func(from, to string) time.Duration {
			if to == host(far) && from != to {
				return 900 * time.Millisecond
			}
			return 0
		})
		time.Sleep(time.Second)
		to := uint64(next + 1)
		must(m.ask(request.Request{Transfer: &to}))(t)
		time.Sleep(650 * time.Millisecond)
		here := must(request.Ask(t.Context(), m.net.Host(host(far)), host(far)+":7000", request.Request{Status: true}))(t)
		if here.Leader != uint64(was+1) {
			t.Fatalf("it already knows that %d leads", here.Leader)
		}
		heard := time.Now()
		check(t, quiet.Ping())
		eventually(t, "the end of the session", func() bool {
			_, err := watcher.Exists("/quiet", false)
			return err == proto.NoNode
		})
		if lived := time.Since(heard); lived < 4*time.Second || lived > 5*time.Second {
			t.Errorf("the session ended %v after the ping", lived)
		}
	})
}

// TestClusterUnheard: a member that hears the leader, but that the leader does not hear,
// closes its clients' connections before others can get their locks. It serves again when
// the leader hears it.
func TestClusterUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		m := startMembers(t, 3, nil)
		lead := m.leader()
		unheard := (lead + 1) % 3
		writer, client := m.connect(lead, 10*time.Second), m.connect(unheard, 10*time.Second)
		must(writer.Create("/x", nil, 0))(t)
		time.Sleep(time.Second)
		check(t, client.Ping())
		m.net.Cut(host(unheard), host(lead), true)
		cut := time.Now()
		for i := 1; client.Ping() == nil; i++ {
			if time.Sleep(10 * time.Millisecond); i%25 == 0 { // Raft sends a few entries without waiting for answers
				must(writer.Set("/x", nil))(t)
			}
		}
		if served := time.Since(cut); served < electionTimeout || served > 2*electionTimeout+200*time.Millisecond {
			t.Errorf("it closed its client's connection after %v", served)
		}
		m.net.Heal()
		check(t, m.reconnect(unheard).Ping())
	})
}

// TestClusterLostQuorum: members that are cut off from the majority close their clients'
// connections within the election timeout, even if they still hear their leader. They
// serve again when they are back. Members of the majority keep their clients.
func TestClusterLostQuorum(t *testing.T) {
	for _, c := range []struct{ members, cut int }{{3, 1}, {5, 2}} {
		for first := range c.members { // the first member that is cut off, counted from the leader
			t.Run(fmt.Sprintf("%d of %d, %d after the leader", c.cut, c.members, first), func(t *testing.T) {
				inCluster(t, c.members, nil, func(t *testing.T, m *members) {
					lead := m.leader()
					away := func(i int) bool { return (i-lead-first+2*c.members)%c.members < c.cut }
					clients := make([]*rawclient.Client, c.members)
					for i := range clients {
						clients[i] = m.connect(i, 20*time.Second)
					}
					for i := range m.servers {
						for j := range m.servers {
							m.net.Cut(host(i), host(j), away(i) != away(j))
						}
					}
					cut := time.Now()
					for left := c.cut; left > 0; time.Sleep(time.Millisecond) {
						for i, c := range clients {
							if c == nil || !away(i) || c.Ping() == nil {
								continue
							}
							served := time.Since(cut)
							if served < electionTimeout/2 || served > electionTimeout+150*time.Millisecond {
								t.Errorf("member %d closed its client's connection after %v", i, served)
							}
							clients[i] = nil
							left--
						}
					}
					time.Sleep(2 * electionTimeout)
					m.net.Heal()
					for i, c := range clients {
						if away(i) {
							c = m.reconnect(i)
						}
						if err := c.Ping(); err != nil {
							t.Errorf("client of %d: %v", i, err)
						}
					}
				})
			})
		}
	}
}

// TestClusterTooLate: a member does not answer a client whose session the leader has
// already found late.
func TestClusterTooLate(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		c := m.connect((lead+1)%3, 4*time.Second)
		check(t, c.Ping())
		time.Sleep(3900 * time.Millisecond)
		testhooks.In(&m.configs[lead]).Memory.SetFault(func() error {
			time.Sleep(3 * electionTimeout / 4)
			return nil
		})
		defer testhooks.In(&m.configs[lead]).Memory.SetFault(nil)
		time.Sleep(time.Second) // now it is late, but its expiry waits for the disk
		if c.Ping() == nil {
			t.Error("it is answered")
		}
	})
}

// TestClusterStuckLeader: a leader whose disk keeps it from learning that it was replaced
// stops answering clients before others can have their locks. If it is cut off as well, it
// closes their connections within the election timeout.
func TestClusterStuckLeader(t *testing.T) {
	const timeout = 6 * time.Second
	for _, c := range []struct {
		name        string
		cut         func(m *members, stuck *silenced)
		least, most time.Duration
	}{
		{"cut off", func(m *members, stuck *silenced) { m.cutOff(int(stuck.id-1), true) }, electionTimeout / 2, electionTimeout + 150*time.Millisecond},
		{"reachable", func(m *members, stuck *silenced) { stuck.on.Store(true) }, time.Second, timeout / 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stuck := new(silenced)
				m := startMembers(t, 3, func(c *lockkeeper.Config) {
					testhooks.In(c).Network = silencedNetwork{testhooks.In(c).Network, c.ID, stuck}
				})
				lead := m.leader()
				stuck.id, stuck.host = uint64(lead+1), host(lead)
				client, writer := m.connect(lead, timeout), m.connect(lead, timeout)
				check(t, client.Ping())
				testhooks.In(&m.configs[lead]).Memory.SetFault(func() error {
					time.Sleep(10 * time.Second)
					return nil
				})
				defer testhooks.In(&m.configs[lead]).Memory.SetFault(nil)
				writer.Send(proto.OpDelete, &proto.PathVersion{Path: "/none"})
				time.Sleep(10 * time.Millisecond)
				c.cut(m, stuck)
				cut := time.Now()
				var answered time.Duration
				for client.Ping() == nil {
					answered = time.Since(cut)
					time.Sleep(10 * time.Millisecond)
				}
				if answered < c.least || answered > c.most {
					t.Errorf("its client was answered for %v", answered)
				}
			})
		})
	}
}

// silenced is a member whose messages to and from other members are dropped once on is
// set, except for those by which members find out whether others run.
type silenced struct {
	id   uint64
	host string
	on   atomic.Bool
}

// silencedNetwork is the network as one of the members uses it.
type silencedNetwork struct {
	peer.Network
	id    uint64 // of that member
	stuck *silenced
}

func (n silencedNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	return &silencedConn{Conn: c, silencedNetwork: n, addr: addr}, err
}

type silencedConn struct {
	net.Conn
	silencedNetwork
	addr string
	kind atomic.Uint32 // the first byte
}

func (c *silencedConn) Write(b []byte) (int, error) {
	c.kind.CompareAndSwap(0, uint32(b[0]))
	if c.stuck.on.Load() && (c.id == c.stuck.id || c.addr == c.stuck.host+":7000") && c.kind.Load() != 'P' {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestClusterSlowLeader: sessions of other members' clients stay alive while writes wait
// for the leader's slow disk.
func TestClusterSlowLeader(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		other := (lead + 1) % 3
		ours, theirs, quiet := m.connect(lead, 10*time.Second), m.connect(other, 10*time.Second), m.connect(other, 2*time.Second)
		must(quiet.Create("/quiet", nil, proto.FlagEphemeral))(t)
		slow := true
		testhooks.In(&m.configs[lead]).Memory.SetFault(func() error {
			if slow {
				slow = false
				time.Sleep(6 * time.Second)
			}
			return nil
		})
		// The leader is storing the first write, and the second one waits for that.
		ours.Send(proto.OpDelete, &proto.PathVersion{Path: "/none"})
		time.Sleep(10 * time.Millisecond)
		theirs.Send(proto.OpDelete, &proto.PathVersion{Path: "/none"})
		for range 16 {
			time.Sleep(500 * time.Millisecond)
			check(t, quiet.Ping())
		}
		must(quiet.Exists("/quiet", false))(t)
	})
}

// TestClusterSessionMoves: a session can be resumed on any member, and its old connection
// is closed.
func TestClusterSessionMoves(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		c := m.connect(0, 10*time.Second)
		must(c.Create("/mine", nil, proto.FlagEphemeral))(t)
		for i := range 6 {
			next := must(rawclient.Resume(must(m.servers[(i+1)%3].Dial("", "", time.Second))(t), c.Session))(t)
			closed(t, c)
			c = next
			must(c.Set("/mine", fmt.Append(nil, i)))(t)
		}
	})
}

// TestClusterSessionRequests opens sessions while leaders are lost. Each handshake is
// answered or its connection closed, and a session that was confirmed exists on every
// member.
func TestClusterSessionRequests(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		for range 4 {
			lead := m.leader()
			var handshakes sync.WaitGroup
			var mu sync.Mutex
			var opened []proto.ConnectReply
			for i := range 40 {
				handshakes.Go(func() {
					time.Sleep(time.Duration(i) * 25 * time.Millisecond)
					nc, err := m.servers[(lead+1+i%2)%3].Dial("", "", time.Second)
					if err != nil {
						return
					}
					defer nc.Close()
					c, err := rawclient.OpenWithin(nc, 20*time.Second, 5*time.Second)
					var late net.Error
					if errors.As(err, &late) && late.Timeout() {
						t.Errorf("handshake %d was neither answered nor refused", i)
					}
					if err == nil {
						mu.Lock()
						opened = append(opened, c.Session)
						mu.Unlock()
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			m.kill(lead)
			handshakes.Wait()
			m.serve(lead)
			if len(opened) < 15 {
				t.Errorf("only %d of 40 sessions were opened", len(opened))
			}
			for _, s := range opened {
				nc := must(m.servers[lead].Dial("", "", time.Second))(t)
				if _, err := rawclient.Resume(nc, s); err != nil {
					t.Errorf("session %#x on another member: %v", s.SessionID, err)
				}
				nc.Close()
			}
		}
	})
}

// wipe replaces a member's disk by an empty one.
func (m *members) wipe(i int) { testhooks.In(&m.configs[i]).Memory = storage.NewMemory() }

// TestClusterWipedMember: a member that lost its disk has forgotten what it acknowledged,
// so it must not form a majority with a member that never had that.
func TestClusterWipedMember(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		wiped, behind := (lead+1)%3, (lead+2)%3
		m.cutOff(behind, true) // it misses what follows
		c := m.connect(lead, 20*time.Second)
		must(c.Create("/acknowledged", nil, 0))(t)
		for _, i := range []int{lead, wiped} {
			m.kill(i)
		}
		m.net.Heal()
		m.wipe(wiped)
		m.start(wiped)
		time.Sleep(20 * time.Second)
		if m.servers[wiped].Role() != "looking" || m.servers[behind].Role() != "looking" {
			t.Fatal("a wiped member has formed a majority that does not have the acknowledged write")
		}
		m.start(lead)
		for i := range m.servers {
			c := m.reconnect(i)
			must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			must(c.Exists("/acknowledged", false))(t)
		}
		// When it has its vote again, the cluster survives the loss of another member.
		eventually(t, "its vote", func() bool { return m.servers[wiped].Role() == "follower" || m.servers[wiped].Role() == "leader" })
		m.kill(lead)
		must(m.reconnect(wiped).Create("/later", nil, 0))(t)
	})
}

// TestClusterWipedTwice wipes each member in turn, twice. The second time, it is also
// killed while it recovers.
func TestClusterWipedTwice(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		for round := range 6 {
			i := round % 3
			must(m.reconnect((i+1)%3).Create(fmt.Sprintf("/r%d", round), nil, 0))(t)
			m.kill(i)
			m.wipe(i)
			m.start(i)
			if round >= 3 {
				time.Sleep(time.Duration(round) * 30 * time.Millisecond)
				m.kill(i)
				m.start(i)
			}
			m.ready(m.servers[i])
			c := m.reconnect(i)
			for r := range round + 1 {
				must(c.Exists(fmt.Sprintf("/r%d", r), false))(t)
			}
			eventually(t, "its vote", func() bool { return m.servers[i].Role() == "follower" })
		}
	})
}

// TestClusterLastWord: a client that is answered after a long silence keeps its session for
// a full timeout from then, even if the member that answered is lost at once.
func TestClusterLastWord(t *testing.T) {
	const timeout, tick = 6 * time.Second, 500 * time.Millisecond
	for name, x := range map[string]struct {
		silence time.Duration // before the last ping
		lose    func(m *members, i int)
	}{
		"killed": {timeout - tick, func(m *members, i int) {
			m.crash(i)
		}},
		"restarted": {timeout - tick, func(m *members, i int) {
			m.crash(i)
			m.start(i)
		}},
		"cut off": {timeout / 3, func(m *members, i int) {
			for j := range m.servers {
				m.net.Cut(host(i), host(j), true)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, nil, func(t *testing.T, m *members) {
				lead := m.leader()
				i := (lead + 1) % 3
				c := m.connect(i, timeout)
				time.Sleep(x.silence)
				check(t, c.Ping())
				heard := time.Now()
				x.lose(m, i)
				lives := func() (yes bool) {
					testhooks.Of(m.servers[lead]).View(func(v *fsm.View) { yes = v.Sessions().Get(c.Session.SessionID) != nil })
					return yes
				}
				eventually(t, "the end of the session", func() bool { return !lives() })
				if lived := time.Since(heard); lived < timeout || lived > timeout+5*time.Second {
					t.Errorf("the session lived for %v after its last ping", lived)
				}
			})
		})
	}
}
