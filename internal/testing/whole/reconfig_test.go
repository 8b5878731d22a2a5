package whole

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// superUser authenticates as the super user of a configuration with superDigest.
func superUser(t *testing.T, c *rawclient.Client) *rawclient.Client {
	t.Helper()
	must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("super:test")}, nil))(t)
	return c
}

const superDigest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=" // password test

func list(s string) proto.Path { return proto.Path{Path: cmp.Or(s, jute.Null)} }

func reconfig(c *rawclient.Client, joining, leaving, members string, version int64) (proto.DataReply, error) {
	var r proto.DataReply
	_, err := c.Call(proto.OpReconfig, &proto.ReconfigRequest{Joining: list(joining), Leaving: list(leaving), NewMembers: list(members), ConfigID: version}, &r)
	return r, err
}

// TestReconfigIsLogged: lists that a client leaves out, as most do, are logged as empty.
func TestReconfigIsLogged(t *testing.T) {
	var log testkit.Log
	inCluster(t, 3, func(c *lockkeeper.Config) {
		c.Features.Reconfig, c.Auth.SuperDigest, c.Logger = true, superDigest, log.Logger(slog.LevelWarn)
	}, func(t *testing.T, m *members) {
		must(reconfig(superUser(t, m.connect(m.leader(), 10*time.Second)), "", "77", "", -1))(t)
		synctest.Wait() // until it is logged
		if lines := log.Matching(`joining="" leaving=77 members=""`); len(lines) != 1 {
			t.Errorf("logged: %s", log.String())
		}
	})
}

// TestReconfig changes the members by ZooKeeper's own operation, through a follower.
func TestReconfig(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest }, func(t *testing.T, m *members) {
		more := func(c *lockkeeper.Config) { // waits to be added
			c.Join, c.Features.Reconfig, c.Auth.SuperDigest = "", true, superDigest
		}
		follower := (m.leader() + 1) % 3
		c := superUser(t, m.connect(follower, 10*time.Second))
		watcher := m.connect((follower+1)%3, 10*time.Second)
		line := func(i int, role string) string { return fmt.Sprintf("server.%d=host%d:7000:8000:%s\n", i, i, role) }
		config := func(r proto.DataReply, lines ...string) {
			t.Helper()
			if want := strings.Join(lines, "") + fmt.Sprintf("version=%x", r.Stat.Mzxid); string(r.Data) != want {
				t.Errorf("the members are\n%s\nnot\n%s", r.Data, want)
			}
		}
		was := must(watcher.Get("/zookeeper/config", true))(t)
		// A member that starts late joins the others, which changes the members twice.
		if v := was.Stat.Mzxid; v != 1<<32 && v != 1<<32+2 {
			t.Errorf("the first members have version %x, not 100000000", v)
		}
		config(was, line(1, "participant"), line(2, "participant"), line(3, "participant"))

		for i := 3; i < 5; i++ {
			m.configs = append(m.configs, lockkeeper.Config{
				ID: uint64(i + 1), PeerAddr: host(i) + ":7000", TickTime: 500 * time.Millisecond,
			})
			*testhooks.In(&m.configs[i]) = m.host(host(i))
			more(&m.configs[i])
			m.servers = append(m.servers, nil)
			m.start(i)
		}
		// In one request a voter and an observer join, and a member leaves.
		leaves := (follower + 1) % 3
		if leaves == m.leader() {
			leaves = (follower + 2) % 3
		}
		r := must(reconfig(c, "server.4=host4:7000:3888;2181,server.5=host5:7000:3888:observer;2181", fmt.Sprint(leaves+1), "", was.Stat.Mzxid))(t)
		var lines []string
		for i := range 3 {
			if i != leaves {
				lines = append(lines, line(i+1, "participant"))
			}
		}
		lines = append(lines, "server.4=host4:7000:3888:participant;0.0.0.0:2181\n", "server.5=host5:7000:3888:observer;0.0.0.0:2181\n")
		config(r, lines...)
		config(must(c.Get("/zookeeper/config", false))(t), lines...)
		m.removed(leaves)
		m.ready(m.servers[4])
		if r.Stat.Version != -1 && r.Stat.Version != was.Stat.Version {
			t.Errorf("version %d after %d", r.Stat.Version, was.Stat.Version)
		}

		// The whole list: the observer gets a vote, and member 4 leaves.
		lines = append(lines[:2:2], line(5, "participant"))
		r = must(reconfig(c, "", "", strings.ReplaceAll(strings.Join(lines, ""), "\n", ","), -1))(t)
		config(r, lines...)
		m.removed(3)

		for _, x := range []struct {
			name                      string
			c                         *rawclient.Client
			joining, leaving, members string
			version                   int64
			want                      proto.Code
		}{
			{"without permission", m.connect(follower, 10*time.Second), "", "5", "", -1, proto.NoAuth},
			{"an impossible id, without permission", m.connect(follower, 10*time.Second), "server.999=host9:7000:8000;2181", "", "", -1, proto.NoAuth},
			{"an impossible id", c, "server.999=host9:7000:8000;2181", "", "", -1, proto.BadArguments},
			{"old version", c, "", "5", "", was.Stat.Mzxid, proto.BadVersion},
			{"malformed", c, "server.4=host4", "", "", -1, proto.BadArguments},
			{"malformed leaving", c, "", "x", "", -1, proto.BadArguments},
			{"taken address", c, "server.6=host5:7000:1", "", "", -1, proto.BadArguments},
			{"no voter is left", c, "", "", "server.5=host5:7000:1:observer", -1, proto.BadArguments},
			{"too few voters are up", c, "server.6=host6:7000:1;2181,server.7=host7:7000:1;2181,server.8=host8:7000:1;2181", "", "", -1, proto.NewConfigNoQuorum},
		} {
			if _, err := reconfig(x.c, x.joining, x.leaving, x.members, x.version); err != x.want {
				t.Errorf("%s: %v, want %v", x.name, err, x.want)
			}
		}
		config(must(c.Get("/zookeeper/config", false))(t), lines...)
		before := must(c.Get("/zookeeper/config", true))(t)
		s, err := reconfig(c, "", "77", "", -1) // ids that are not members are ignored
		if err != nil || s.Stat.Mzxid <= before.Stat.Mzxid || len(c.Events) == 0 {
			t.Errorf("%v %v %+v, after version %x", s, err, c.Events, before.Stat.Mzxid)
		}

		// An observer may be added before it runs.
		observer := "server.6=host7:7000:8001:observer;0.0.0.0:2181"
		r = must(reconfig(c, observer, "", "", -1))(t)
		config(r, append(lines[:3:3], observer+"\n")...)
		r = must(reconfig(c, "", "6", "", r.Stat.Mzxid))(t)
		config(r, lines...)

		// A member moves to another address in one request. Then the leader leaves.
		m.kill(4)
		m.configs[4].PeerAddr, *testhooks.In(&m.configs[4]) = "host6:7000", m.host("host6")
		m.start(4)
		lead := m.leader()
		c = superUser(t, m.connect(lead, 10*time.Second))
		r = must(reconfig(c, "server.5=host6:7000:3888;2181", "5", "", -1))(t)
		config(r, append(lines[:2:2], "server.5=host6:7000:3888:participant;0.0.0.0:2181\n")...)
		m.ready(m.servers[4])
		c = superUser(t, m.connect(4, 10*time.Second))
		_ = must(reconfig(c, "", fmt.Sprint(lead+1), "", -1))(t)
		m.removed(lead)
		if s, err := m.ask(request.Request{Status: true}); err != nil || len(s.Members) != 2 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestReconfigOwnServer removes the server that the request is sent to. It answers this
// and other requests, and stops a moment later, unless it is added again before.
func TestReconfigOwnServer(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest }, func(t *testing.T, m *members) {
		for _, own := range []int{(m.leader() + 1) % 3, m.leader()} {
			other := superUser(t, m.connect((own+1)%3, 10*time.Second))
			c := superUser(t, m.connect(own, 10*time.Second))
			stop := m.busy(m.connect(own, 10*time.Second))
			line := fmt.Sprintf("server.%d=", own+1)
			was := must(c.Get("/zookeeper/config", true))(t)
			without := must(reconfig(c, "", fmt.Sprint(own+1), "", was.Stat.Mzxid))(t)
			if strings.Contains(string(without.Data), line) {
				t.Errorf("still a member:\n%s", without.Data)
			}
			if len(c.Events) == 0 || c.Events[0].Path != "/zookeeper/config" || c.Events[0].Type != proto.EventNodeDataChanged {
				t.Errorf("no event reports the change: %+v", c.Events)
			}
			with := must(reconfig(c, "", "", string(was.Data), without.Stat.Mzxid))(t)
			if !strings.Contains(string(with.Data), line) {
				t.Errorf("not a member again:\n%s", with.Data)
			}
			time.Sleep(5 * time.Second)
			stop() // every write has succeeded
			check(t, other.Delete("/busy"))
		}
		own := (m.leader() + 1) % 3
		must(reconfig(superUser(t, m.connect(own, 10*time.Second)), "", fmt.Sprint(own+1), "", -1))(t)
		m.removed(own)
	})
}

// startWaiting starts servers that wait to be added, up to the given id.
func (m *members) startWaiting(id int) {
	m.t.Helper()
	for i := len(m.configs); i < id; i++ {
		c := m.configs[0]
		c.ID, c.Peers, c.PeerAddr, *testhooks.In(&c) = uint64(i+1), nil, host(i)+":7000", m.host(host(i))
		m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
		m.start(i)
	}
}

// TestReconfigAbsentVoter: members that are down may get a vote if a majority of the new
// voters is up, as in ZooKeeper. The cluster then survives the loss of its leader, and
// the members serve once they are started.
func TestReconfigAbsentVoter(t *testing.T) {
	for _, joins := range []bool{false, true} { // whether the absent server is started with Join
		inCluster(t, 3, func(c *lockkeeper.Config) { c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest }, func(t *testing.T, m *members) {
			c := superUser(t, m.connect((m.leader()+1)%3, 30*time.Second))
			before := must(c.Get("/zookeeper/config", false))(t)
			line := func(id int) string {
				return fmt.Sprintf("server.%[1]d=host%[1]d:7000:8000:participant;0.0.0.0:2181", id)
			}

			// Three of six voters, the only ones that run, are not a majority.
			if _, err := reconfig(c, line(4)+","+line(5)+","+line(6), "", "", -1); err != proto.NewConfigNoQuorum {
				t.Errorf("three of six: %v", err)
			}
			if after := must(c.Get("/zookeeper/config", false))(t); string(after.Data) != string(before.Data) {
				t.Errorf("refused, but the members are\n%s", after.Data)
			}

			m.startWaiting(6)
			r := must(reconfig(c, line(7)+","+line(6)+","+line(5)+","+line(4), "", "", before.Stat.Mzxid))(t)
			for id := 4; id <= 7; id++ {
				if !strings.Contains(string(r.Data), line(id)+"\n") {
					t.Errorf("server %d does not vote:\n%s", id, r.Data)
				}
			}
			lead := m.leader()
			m.kill(lead)
			survivor := (lead + 1) % 3
			c = superUser(t, m.reconnect(survivor))
			must(c.Create("/x", nil, 0))(t)

			m.configs = append(m.configs, m.configs[5])
			last := &m.configs[6]
			last.ID, last.PeerAddr, *testhooks.In(last) = 7, "host7:7000", m.host("host7")
			if joins {
				last.Join = host(survivor) + ":7000"
			}
			m.servers = append(m.servers, nil)
			m.serve(6)
			eventually(t, "the vote of server 7", func() bool {
				s := must(m.ask(request.Request{Status: true}))(t)
				return slices.Contains(s.Members, proto.Peer{ID: 7, Addr: "host7:7000"})
			})
			c7 := m.connect(6, 10*time.Second)
			must(c7.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			must(c7.Exists("/x", false))(t)

			// A member that is already down may be named with the others.
			r = must(reconfig(c, "", "", fmt.Sprintf("%s,%s,%s,%s", line(survivor+1), line(5), line(7), line(lead+1)), -1))(t)
			if n := strings.Count(string(r.Data), ":participant"); n != 4 {
				t.Errorf("%d voters:\n%s", n, r.Data)
			}
			for i := range m.servers {
				if m.servers[i] != nil && i != survivor && i != 4 && i != 6 {
					m.removed(i)
				}
			}
			must(m.reconnect(survivor).Create("/y", nil, 0))(t)
		})
	}
}

// TestReconfigLaggingVoter: a member that answers but does not catch up gets its vote
// after a while, if a majority of the voters has caught up. Otherwise it stays an
// observer.
func TestReconfigLaggingVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n, want := range map[int]error{3: nil, 1: proto.NewConfigNoQuorum} {
			m := startMembers(t, n, func(c *lockkeeper.Config) { c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest })
			c := superUser(t, m.connect(0, 9*time.Second))
			c2 := m.configs[0]
			c2.ID, *testhooks.In(&c2) = 7, m.host("host7")
			c2.Peers = []lockkeeper.Peer{{ID: 7, Addr: "host7:7000"}, {ID: 8, Addr: "host8:7000"}} // it ignores Raft until these two have formed a cluster
			m.configs, m.servers = append(m.configs, c2), append(m.servers, nil)
			m.start(n)
			start := time.Now()
			_, err := reconfig(c, "server.7=host7:7000:8000;2181", "", "", -1)
			if took := time.Since(start); err != want || took < 3*time.Second || took > 5*time.Second {
				t.Errorf("beside %d: %v after %v", n, err, took)
			}
			s := must(m.ask(request.Request{Status: true}))(t)
			if !slices.Contains(s.Members, proto.Peer{ID: 7, Addr: "host7:7000", Observer: !(want == nil)}) {
				t.Errorf("beside %d: %+v", n, s.Members)
			}
			if n == 3 {
				must(c.Create("/x", nil, 0))(t)
			}
			for i := range m.servers {
				m.stop(i)
			}
		}
	})
}

// TestReconfigSingleVoter: a reconfig may leave a single voting member only if the leader
// allows that, as with ZooKeeper's standaloneEnabled=false.
func TestReconfigSingleVoter(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, func(c *lockkeeper.Config) {
				c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest
				c.Features.AllowSingleVoter = allowed
			})
			lead := m.leader()
			c := superUser(t, m.connect(lead, 10*time.Second))
			var leaving []string
			for i := range 3 {
				if i != lead {
					leaving = append(leaving, fmt.Sprint(i+1))
				}
			}
			before := must(c.Get("/zookeeper/config", false))(t)
			self := fmt.Sprintf("server.%d=%s:7000:8000", lead+1, host(lead))
			want := error(proto.BadArguments)
			if allowed {
				want = nil
			}
			for _, x := range []struct{ name, joining, leaving, members string }{
				{"the others demoted", fmt.Sprintf("server.%[1]s=host%[1]s:7000:1:observer;2181,server.%[2]s=host%[2]s:7000:1:observer;2181", leaving[0], leaving[1]), "", ""},
				{"the others leave", "", strings.Join(leaving, ","), ""},
				{"a list of one", "", "", self},
			} {
				if _, err := reconfig(c, x.joining, x.leaving, x.members, -1); err != want {
					t.Errorf("%s, allowed %v: %v", x.name, allowed, err)
				}
			}
			if after := must(c.Get("/zookeeper/config", false))(t); !allowed && string(after.Data) != string(before.Data) {
				t.Errorf("refused, but the members are\n%s", after.Data)
			}
			if !allowed { // the operator's own requests are not limited like this
				for i, id := range leaving {
					if s := must(m.ask(request.Request{Remove: uint64(id[0] - '0')}))(t); len(s.Members) != 2-i {
						t.Errorf("%d members after %s was removed", len(s.Members), id)
					}
				}
			}
		})
	}
}

// TestReconfigOtherName: a reconfig may give a member's address, even the leader's, in
// another form. A different address for the leader is refused.
func TestReconfigOtherName(t *testing.T) {
	var ports []int
	peers := map[uint64]string{}
	for id := range 3 {
		ports = append(ports, testkit.Port(t))
		peers[uint64(id+1)] = fmt.Sprintf("127.0.0.1:%d", ports[id])
	}
	var servers []*lockkeeper.Server
	var configs []lockkeeper.Config
	for id := range 3 {
		configs = append(configs, withMemory(lockkeeper.Config{ID: uint64(id + 1), Peers: peerList(peers), Features: lockkeeper.Features{Reconfig: true}, Auth: lockkeeper.Auth{SuperDigest: superDigest}}))
		s := must(lockkeeper.Open(configs[id]))(t)
		t.Cleanup(func() { s.Close() })
		servers = append(servers, s)
	}
	lead := 0
	for i, s := range servers {
		<-s.Ready()
		if s.Role() == lockkeeper.RoleLeader {
			lead = i
		}
	}
	awaitVotes(t, servers, 3) // before that, a reconfig finds another one in progress
	c := superUser(t, connect(t, inMemory(servers[lead])))
	list := func(host string) string {
		var lines []string
		for i, port := range ports {
			lines = append(lines, fmt.Sprintf("server.%d=%s:%d:%d:participant;%s:2181", i+1, host, port, port, host))
		}
		return strings.Join(lines, "\n")
	}
	for _, other := range []string{"127.0.0.2", "no-such-host.invalid"} {
		moved := fmt.Sprintf("server.%d=%s:%d:%d;2181", lead+1, other, ports[lead], ports[lead])
		if _, err := reconfig(c, moved, "", "", -1); err != proto.BadArguments {
			t.Errorf("the leader at %s: %v", other, err)
		}
	}
	if testkit.Race {
		t.Skip("Raft has a data race when the address of a follower changes: see docs/raft.md")
	}
	r := must(reconfig(c, "", "", list("localhost"), -1))(t)
	if want := list("localhost") + fmt.Sprintf("\nversion=%x", r.Stat.Mzxid); string(r.Data) != want {
		t.Errorf("the members are\n%s\nnot\n%s", r.Data, want)
	}
	must(c.Create("/x", nil, 0))(t)

	// The leader restarts, with its address as it was at first.
	check(t, servers[lead].Close())
	must(connect(t, inMemory(servers[(lead+1)%3])).Create("/y", nil, 0))(t)
	s := must(lockkeeper.Open(configs[lead]))(t)
	t.Cleanup(func() { s.Close() })
	<-s.Ready()
	again := connect(t, inMemory(s))
	must(again.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
	must(again.Exists("/y", false))(t)
}

// TestReconfigClientPort: a reconfig moves the client port, as in ZooKeeper. Existing
// connections stay, the server listens at the new port, also after a restart, and the
// old port is closed. If the new port is in use, the server retries.
func TestReconfigClientPort(t *testing.T) {
	noGoroutineLeft(t)
	m := startMembers(t, 1, func(c *lockkeeper.Config) {
		c.Features.Reconfig, c.Auth.SuperDigest, c.Features.AllowSingleVoter, c.ClientAddr = true, superDigest, true, "127.0.0.1:0"
	})
	port := func() string {
		_, port, err := net.SplitHostPort(m.servers[0].Addr().String())
		check(t, err)
		return port
	}
	at := func(port string) dialer {
		return func() (net.Conn, error) { return net.DialTimeout("tcp", "127.0.0.1:"+port, time.Minute) }
	}
	closed := func(port string) bool {
		nc, err := at(port)()
		if err == nil {
			nc.Close()
		}
		return err != nil
	}
	first := port()
	c := superUser(t, connect(t, at(first)))
	move := func(client string) {
		t.Helper()
		must(reconfig(c, "server.1=host1:7000:8000;"+client, "", "", -1))(t)
	}
	serves := func(want, not string) {
		t.Helper()
		eventually(t, "service at port "+want, func() bool { return port() == want && !closed(want) })
		must(connect(t, at(want)).Exists("/", false))(t)
		must(c.Exists("/", false))(t)
		if conf := word(t, at(want), "conf"); !strings.Contains(conf, "clientPort="+want+"\n") {
			t.Errorf("conf does not have port %s:\n%s", want, conf)
		}
		if not != "" && !closed(not) {
			t.Errorf("port %s still accepts connections", not)
		}
	}
	serves(first, "")
	move("127.0.0.1:" + first) // where it is
	serves(first, "")

	second := fmt.Sprint(testkit.Port(t))
	move("localhost:" + second)
	serves(second, first)
	move(second) // the same port, of all addresses
	eventually(t, "all addresses", func() bool {
		nc, err := net.DialTimeout("tcp", "127.0.0.2:"+second, time.Minute)
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	serves(second, first)

	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, third, _ := net.SplitHostPort(taken.Addr().String())
	move("127.0.0.1:" + third)
	eventually(t, "the end of the old port", func() bool { return closed(second) })
	must(c.Exists("/", false))(t)
	check(t, taken.Close())
	serves(third, second)

	m.stop(0)
	m.configs[0].ClientAddr = "127.0.0.1:" + first
	m.start(0)
	c = m.connect(0, 10*time.Second)
	serves(third, first)

	m.stop(0)
	m.configs[0].Features.Reconfig = false // then the port named by a reconfig does not count
	m.start(0)
	c = m.connect(0, 10*time.Second)
	serves(first, third)

	m.stop(0)
	m.configs[0].Features.Reconfig, m.configs[0].ClientAddr = true, "" // a server without a client port does not get one
	m.start(0)
	c = superUser(t, m.connect(0, 10*time.Second))
	move("127.0.0.1:" + first)
	if m.servers[0].Addr() != nil || !closed(first) {
		t.Errorf("it has port %v", m.servers[0].Addr())
	}
}

// TestReconfigOff sends a reconfig to a server that has not enabled it, and to a
// standalone one.
func TestReconfigOff(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		if _, err := reconfig(m.connect(0, 10*time.Second), "", "1", "", -1); err != proto.ReconfigDisabled {
			t.Errorf("disabled: %v", err)
		}
		s := open(t, lockkeeper.Config{Features: lockkeeper.Features{Reconfig: true}, Auth: lockkeeper.Auth{SuperDigest: superDigest}})
		c := superUser(t, connect(t, inMemory(s)))
		if _, err := reconfig(c, "", "1", "", -1); err != proto.Unimplemented {
			t.Errorf("standalone: %v", err)
		}
		must(c.Exists("/", false))(t) // the connection stays
	})
}

// TestConfigZnodeIsNotTheMembers: the super user may write anything to
// /zookeeper/config, as in ZooKeeper, and the members do not change. A member with such a
// snapshot can restart, and the next reconfig writes the real members there.
func TestConfigZnodeIsNotTheMembers(t *testing.T) {
	m := startMembers(t, 1, func(c *lockkeeper.Config) {
		c.Features.Reconfig, c.Auth.SuperDigest, c.Features.AllowSingleVoter = true, superDigest, true
		testhooks.In(c).Memory, c.DataDir, c.Limits.SnapshotBytes = nil, t.TempDir(), 1
	})
	const path = "/zookeeper/config"
	c := superUser(t, m.connect(0, 10*time.Second))
	was := must(c.Get(path, true))(t)
	if was.Stat.Version != -1 {
		t.Errorf("version %d, not -1", was.Stat.Version)
	}
	for i, data := range []string{"nonsense", "server.9=host9:7000:8000\nversion=7", ""} {
		if s := must(c.Set(path, []byte(data)))(t); s.Version != int32(2*i) {
			t.Errorf("version %d after write %d", s.Version, 2*i+1)
		}
		multi := proto.MultiRequest{Ops: []proto.MultiOp{
			{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: path, Data: []byte(data), Version: int32(2 * i)}},
		}}
		must(c.Call(proto.OpMulti, &multi, nil))(t)
		for _, acl := range [][]proto.ACL{proto.OpenACL, {{Perms: proto.PermRead, ID: proto.ID{Scheme: proto.SchemeWorld, ID: proto.Anyone}}}} {
			must(c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: path, ACL: acl, Version: -1}, nil))(t)
			if acl[0].Perms == proto.PermAll { // everybody may create children now
				must(c.Create(path+"/child", []byte("x"), 0))(t)
			}
		}
		check(t, c.Delete(path+"/child"))
		if err := c.Delete(path); err != proto.BadArguments {
			t.Errorf("delete %s: %v", path, err)
		}
		eventually(t, "a snapshot", func() bool {
			must(c.Set("/", []byte("x")))(t)
			found, err := filepath.Glob(filepath.Join(m.configs[0].DataDir, "raft", "snapshots", "*", "meta.json"))
			return err == nil && len(found) > 0
		})
		m.stop(0)
		m.serve(0)
		c = superUser(t, m.connect(0, 10*time.Second))
		if got := must(c.Get(path, false))(t); string(got.Data) != data {
			t.Errorf("%q after a restart, not %q", got.Data, data)
		}
	}
	if _, err := reconfig(c, "server.2=host2:7000:8000:observer;2181", "", "", was.Stat.Mzxid+1); err != proto.BadVersion {
		t.Errorf("a reconfig of another version: %v", err)
	}
	// A reconfig that changes nothing restores the znode as well.
	r := must(reconfig(c, "", "77", "", was.Stat.Mzxid))(t)
	if want := fmt.Sprintf("server.1=host1:7000:8000:participant\nversion=%x", r.Stat.Mzxid); string(r.Data) != want {
		t.Errorf("the members are\n%s\nnot\n%s", r.Data, want)
	}
	r = must(reconfig(c, "server.2=host2:7000:8000:observer;2181", "", "", r.Stat.Mzxid))(t)
	want := fmt.Sprintf("server.1=host1:7000:8000:participant\nserver.2=host2:7000:8000:observer;0.0.0.0:2181\nversion=%x", r.Stat.Mzxid)
	if string(r.Data) != want || r.Stat.Version != -1 {
		t.Errorf("the members are\n%s\nof version %d, want\n%s", r.Data, r.Stat.Version, want)
	}
}

// TestReconfigRefusedLate makes a znode change while the leader finds out that a reconfig
// cannot be done. The reply must not have a lower zxid than the event that came before
// it, since zxids never go back.
func TestReconfigRefusedLate(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Features.Reconfig, c.Auth.SuperDigest = true, superDigest }, func(t *testing.T, m *members) {
		c := superUser(t, m.connect(m.leader(), 10*time.Second))
		must(c.Create("/x", nil, 0))(t)
		must(c.Get("/x", true))(t)
		for i := range 3 {
			for j := 3; j < 6; j++ {
				m.net.Cut(host(i), host(j), true)
			}
		}
		xid, err := c.Send(proto.OpReconfig, &proto.ReconfigRequest{
			Joining: list("server.4=host4:7000:1,server.5=host5:7000:1,server.6=host6:7000:1"), Leaving: list(""), NewMembers: list(""), ConfigID: -1,
		})
		check(t, err)
		time.Sleep(100 * time.Millisecond)
		must(m.connect(m.leader(), 10*time.Second).Set("/x", nil))(t)
		event := must(c.Read())(t)
		reply := must(c.Read())(t)
		if event.Xid != proto.XidEvent || reply.Xid != xid || reply.Code != proto.NewConfigNoQuorum {
			t.Fatalf("%+v, then %+v", event, reply)
		}
		if reply.Zxid < event.Zxid {
			t.Errorf("zxid %x after %x", reply.Zxid, event.Zxid)
		}
	})
}
