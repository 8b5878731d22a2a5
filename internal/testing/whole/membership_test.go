package whole

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// add starts another server, which joins through the first one that runs, and waits until
// it serves in its own role.
func (m *members) add(id int, change func(c *lockkeeper.Config)) *lockkeeper.Server {
	m.t.Helper()
	i := len(m.servers)
	c := lockkeeper.Config{
		ID: uint64(id), PeerAddr: host(i) + ":7000", Join: m.running(), TickTime: 500 * time.Millisecond,
	}
	*testhooks.In(&c) = m.host(host(i))
	if change != nil {
		change(&c)
	}
	m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
	m.serve(i)
	eventually(m.t, "its place in the cluster", func() bool { // a voter is an observer first
		s, err := m.ask(request.Request{Status: true})
		check(m.t, err)
		for _, x := range s.Members {
			if x.ID == c.ID && x.Observer == c.JoinAsObserver {
				return true
			}
		}
		return false
	})
	return m.servers[i]
}

// running returns the peer address of the first server that runs.
func (m *members) running() string {
	for i, s := range m.servers {
		if s != nil {
			return host(i) + ":7000"
		}
	}
	m.t.Fatal("no server runs")
	return ""
}

func (m *members) ask(q request.Request) (*request.Status, error) {
	return request.Ask(context.Background(), m.net.Host("operator"), m.running(), q)
}

// list returns the members' ids as the first server knows them, with an o after those of
// observers.
func (m *members) list() string {
	m.t.Helper()
	s, err := m.ask(request.Request{Status: true})
	check(m.t, err)
	var list []string
	for _, x := range s.Members {
		name := fmt.Sprint(x.ID)
		if x.Observer {
			name += "o"
		}
		list = append(list, name)
	}
	return strings.Join(list, " ")
}

func (m *members) want(list string) {
	m.t.Helper()
	if got := m.list(); got != list {
		m.t.Errorf("members are %q, want %q", got, list)
	}
}

// removed waits until a server reports that it was removed, and closes it.
func (m *members) removed(i int) {
	m.t.Helper()
	select {
	case err := <-fault(m.servers[i]):
		if !errors.Is(err, lockkeeper.ErrRemoved) {
			m.t.Errorf("server %d: %v", i+1, err)
		}
		if strings.Contains(err.Error(), "\n") {
			m.t.Errorf("more than one line: %q", err)
		}
	case <-time.After(time.Minute):
		m.t.Fatalf("server %d does not know that it was removed", i+1)
	}
	m.kill(i)
}

// busy writes until stop is called, which returns the number of writes. The test fails if
// a write does.
func (m *members) busy(c *rawclient.Client) (stop func() int) {
	must(c.Create("/busy", nil, 0))(m.t)
	end, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
			s, err := c.Set("/busy", fmt.Append(nil, n))
			if n++; err != nil || int(s.Version) != n {
				m.t.Errorf("write %d: version %d, %v", n, s.Version, err)
				return
			}
		}
	}()
	return func() int {
		close(end)
		return <-done
	}
}

// TestMembershipChanges adds and removes servers while clients write. Every member must
// have all writes.
func TestMembershipChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		m := startMembers(t, 1, nil)
		stop := m.busy(m.connect(0, 10*time.Second))
		m.add(2, nil)
		m.add(3, nil)
		m.want("1 2 3")
		m.add(7, func(c *lockkeeper.Config) { c.JoinAsObserver = true })
		m.want("1 2 3 7o")
		if r := m.servers[3].Role(); r != lockkeeper.RoleObserver {
			t.Errorf("server 7 is %s", r)
		}
		o := m.connect(3, 10*time.Second)
		must(o.Create("/by-observer", nil, 0))(t)

		for _, voter := range []bool{true, false, true} {
			must(m.ask(request.Request{Add: &proto.Peer{ID: 7, Addr: "host4:7000", Observer: !voter}}))(t)
			m.want(map[bool]string{true: "1 2 3 7", false: "1 2 3 7o"}[voter])
		}
		must(m.ask(request.Request{Remove: 2}))(t)
		m.want("1 3 7")
		m.removed(1)
		n := stop()
		for i, s := range m.servers {
			if s == nil {
				continue
			}
			c := m.connect(i, 10*time.Second)
			must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			if s := must(c.Exists("/busy", false))(t); int(s.Version) != n {
				t.Errorf("server %d has %d writes of %d", i+1, s.Version, n)
			}
		}
	})
}

// TestMembershipReplace replaces a dead member by a server with the same id at another
// address, and by one with a new id. A server that starts with the old data learns that
// it was removed.
func TestMembershipReplace(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		m.connect(0, 10*time.Second)
		m.kill(2)
		taken := request.Request{Add: &proto.Peer{ID: 3, Addr: "host9:7000"}}
		if _, err := m.ask(taken); err == nil || !strings.Contains(err.Error(), "server 3 is at host3:7000: remove it") {
			t.Errorf("another address of a member: %v", err)
		}
		taken.Add = &proto.Peer{ID: 9, Addr: "host2:7000"}
		if _, err := m.ask(taken); err == nil || !strings.Contains(err.Error(), "address of server 2") {
			t.Errorf("the address of another member: %v", err)
		}
		must(m.ask(request.Request{Remove: 3}))(t)
		m.add(3, nil) // at host4
		m.want("1 2 3")
		must(m.ask(request.Request{Remove: 3}))(t)
		m.removed(3)
		m.add(4, nil)
		m.want("1 2 4")
		for _, again := range []int{2, 3} { // one was down when it was removed, the other was not
			m.start(again)
			m.removed(again)
		}
		m.want("1 2 4")
		must(m.connect(4, 10*time.Second).Create("/x", nil, 0))(t)
	})
}

// TestMembershipRemoveLeader: a leader that is removed hands over first, and clients of
// the others do not notice.
func TestMembershipRemoveLeader(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		stop := m.busy(m.connect((lead+1)%3, 10*time.Second))
		own := m.connect(lead, 10*time.Second)
		s := must(m.ask(request.Request{Remove: uint64(lead + 1)}))(t)
		if s.Leader == uint64(lead+1) || slices.ContainsFunc(s.Members, func(x proto.Peer) bool { return x.ID == uint64(lead+1) }) {
			t.Errorf("after the leader %d was removed: %+v", lead+1, s)
		}
		m.removed(lead)
		closed(t, own)
		if n := stop(); n == 0 {
			t.Error("nothing was written")
		}
	})
}

// TestMembershipRefusals: a refused change leaves the members as they are.
func TestMembershipRefusals(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		m.add(2, func(c *lockkeeper.Config) { c.JoinAsObserver = true })
		for _, x := range []struct {
			q    request.Request
			want string
		}{
			{request.Request{Remove: 1}, "0 voting members would be left"},
			{request.Request{Add: &proto.Peer{ID: 1, Addr: "host1:7000", Observer: true}}, "0 voting members would be left"},
			{request.Request{Remove: 5}, "server 5 is not a member"},
			{request.Request{Add: &proto.Peer{ID: 5, Addr: "host5:7000"}}, "server 5 cannot be added"},
			{request.Request{Add: &proto.Peer{ID: 300, Addr: "host5:7000"}}, "not in 1 to 254"},
			{request.Request{Add: &proto.Peer{ID: 5, Addr: "host5"}}, "not of the form HOST:PORT"},
			{request.Request{Transfer: new(uint64)}, "no other voting member"},
			{request.Request{Transfer: func() *uint64 { n := uint64(2); return &n }()}, "not a voting member"},
			{request.Request{}, "the request is empty"},
		} {
			if _, err := m.ask(x.q); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%+v: %v, want %q", x.q, err, x.want)
			}
		}
		m.want("1 2o")
		must(m.connect(1, 10*time.Second).Create("/x", nil, 0))(t)
	})
}

// TestMembershipStored: a server uses the members in its data, and logs a warning if its
// configuration names others.
func TestMembershipStored(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		var log testkit.Log
		m.stop(2)
		m.configs[2].Logger = log.Logger(slog.LevelInfo)
		m.configs[2].Peers = []lockkeeper.Peer{{ID: 3, Addr: "host3:7000"}, {ID: 4, Addr: "host4:7000"}}
		m.serve(2)
		m.want("1 2 3")
		if found := log.Matching("WARN", "ignoring the configured peers"); len(found) != 1 {
			t.Errorf("logged %q", found)
		}
		must(m.connect(2, 10*time.Second).Create("/x", nil, 0))(t)

		m.stop(2)
		m.configs[2].Peers, m.configs[2].PeerAddr = nil, ""
		if s, err := lockkeeper.Open(m.configs[2]); err == nil || !strings.Contains(err.Error(), "member of a cluster of 3") {
			t.Errorf("a member's data without a cluster: %v, %v", s, err)
		}
		m.configs[2].PeerAddr = "host3:7000" // this is enough
		m.serve(2)

		alone := withMemory(lockkeeper.Config{})
		s := must(lockkeeper.Open(alone))(t)
		<-s.Ready()
		check(t, s.Close())
		alone.Peers, testhooks.In(&alone).Network = []lockkeeper.Peer{{ID: 1, Addr: "host8:7000"}}, m.net.Host("host8")
		if s, err := lockkeeper.Open(alone); err == nil || !strings.Contains(err.Error(), "belongs to a standalone server") {
			t.Errorf("a standalone server's data in a cluster: %v, %v", s, err)
		}
	})
}

// TestMembershipWaits: a server with only a peer port waits until it is added.
func TestMembershipWaits(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		c := lockkeeper.Config{ID: 2, PeerAddr: "host2:7000"}
		testhooks.In(&c).Network = m.net.Host("host2")
		s := must(lockkeeper.Open(c))(t)
		defer s.Close()
		time.Sleep(time.Minute)
		select {
		case <-s.Ready():
			t.Error("served alone")
		case err := <-fault(s):
			t.Error(err)
		default:
		}
		must(m.ask(request.Request{Add: &proto.Peer{ID: 2, Addr: "host2:7000"}}))(t)
		m.ready(s)
		m.want("1 2")
		must(m.ask(request.Request{Remove: 2}))(t)
	})
}

// TestMembershipBySnapshot: a server that joins gets what is no longer in the log by a
// snapshot, which also has the members, and finds both after a restart.
func TestMembershipBySnapshot(t *testing.T) {
	inCluster(t, 1, func(c *lockkeeper.Config) { c.Limits.SnapshotBytes = 64 << 10 }, func(t *testing.T, m *members) {
		c := m.connect(0, 10*time.Second)
		for i := range 100 {
			must(c.Create(fmt.Sprintf("/n%d", i), make([]byte, 500<<10), 0))(t) // more than the log keeps after a snapshot
		}
		for i := range 100 {
			check(t, c.Delete(fmt.Sprintf("/n%d", i)))
		}
		must(c.Create("/last", nil, 0))(t)
		for id := 2; id < 4; id++ {
			var log testkit.Log
			m.add(id, func(c *lockkeeper.Config) { c.Logger = log.Logger(slog.LevelDebug) })
			// There may be a second one, if the log is trimmed after the first.
			if len(log.Matching("nstalled remote snapshot")) == 0 {
				t.Errorf("server %d got no snapshot", id)
			}
		}
		m.want("1 2 3")
		for i := 1; i < 3; i++ {
			m.stop(i)
			m.serve(i)
			must(m.connect(i, 10*time.Second).Exists("/last", false))(t)
		}
		m.want("1 2 3")
	})
}

// TestMembershipNotAdded: a server that cannot join a cluster logs the reason from time to
// time.
func TestMembershipNotAdded(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		var log testkit.Log
		c := lockkeeper.Config{ID: 2, PeerAddr: "host2:7000", Join: "host7:7000", Logger: log.Logger(slog.LevelWarn)}
		testhooks.In(&c).Network = m.net.Host("host2")
		s := must(lockkeeper.Open(c))(t)
		defer s.Close()
		var taken testkit.Log
		c = lockkeeper.Config{ID: 1, PeerAddr: "host3:7000", Join: "host1:7000", Logger: taken.Logger(slog.LevelWarn)}
		testhooks.In(&c).Network = m.net.Host("host3")
		other := must(lockkeeper.Open(c))(t)
		defer other.Close()
		eventually(t, "the message that its id is taken", func() bool { return len(taken.Matching("server 1 is at host1:7000: remove it")) > 0 })
		time.Sleep(65 * time.Second)
		if n := len(log.Matching("not in the cluster yet", "host7:7000")); n < 4 || n > 6 {
			t.Errorf("logged %d times in a minute: %q", n, log.Matching(""))
		}
	})
}

// TestMembershipQuiet: a server that AddMember makes a voter is not warned that it is an observer, which it is only
// while it catches up; and one that is removed does not complain of its leader.
func TestMembershipQuiet(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		log := new(testkit.Log)
		c := lockkeeper.Config{ID: 4, PeerAddr: "host4:7000", TickTime: 500 * time.Millisecond, Logger: log.Logger(slog.LevelWarn)}
		*testhooks.In(&c) = m.host("host4")
		m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
		m.start(3)
		time.Sleep(time.Second) // it waits
		check(t, m.servers[0].AddMember(t.Context(), lockkeeper.Peer{ID: 4, Addr: "host4:7000"}))
		m.ready(m.servers[3])
		awaitVotes(t, m.servers, 4)
		time.Sleep(time.Minute)
		if n := len(log.Matching("as an observer")); n > 0 {
			t.Errorf("said %d times that it is an observer: %s", n, log.String())
		}
		check(t, m.servers[3].RemoveMember(t.Context(), 4))
		if err := <-fault(m.servers[3]); !errors.Is(err, lockkeeper.ErrRemoved) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := len(log.Matching("the leader has changed")) + len(log.Matching("the leader is gone")); n > 0 {
			t.Errorf("said of its leader: %s", log.String())
		}
	})
}

// addAgain has an operator add server i, which waits for that because its directory is empty and the cluster does not have it.
func (m *members) addAgain(i int) {
	m.t.Helper()
	id := uint64(i + 1)
	eventually(m.t, "its word that it has to be added", func() bool {
		s, err := request.Ask(context.Background(), m.net.Host("operator"), host(i)+":7000", request.Request{Status: true})
		return err == nil && strings.Contains(s.Waiting, "cluster add")
	})
	must(m.ask(request.Request{Add: &proto.Peer{ID: id, Addr: host(i) + ":7000"}}))(m.t)
	m.ready(m.servers[i])
}

// TestMembershipJoinAgain: a member of the first list that was removed does not come back with its old data. With an empty
// directory it waits until it is added, or joins.
func TestMembershipJoinAgain(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		holder := m.connect(2, 10*time.Second)
		must(holder.Create("/held", nil, proto.FlagEphemeral))(t)
		for _, joins := range []bool{false, true} {
			must(m.ask(request.Request{Remove: 2}))(t)
			m.removed(1)
			m.start(1)
			m.removed(1)
			m.wipe(1)
			if joins {
				m.configs[1].Peers, m.configs[1].PeerAddr, m.configs[1].Join = nil, "host2:7000", "host1:7000"
			}
			m.start(1)
			if joins {
				m.ready(m.servers[1])
			} else {
				m.addAgain(1)
			}
			awaitVotes(t, m.servers, 3)
			m.want("1 2 3")
			must(m.connect(1, 10*time.Second).Exists("/held", false))(t)
			must(holder.Exists("/held", false))(t) // it sends no pings, and its session would soon expire
		}
	})
}

// TestMembershipGrow: a server that is a cluster of its own becomes one of three, of servers whose list has all three.
func TestMembershipGrow(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		must(m.connect(0, 10*time.Second).Create("/before", nil, 0))(t)
		three := peerList(map[uint64]string{1: host(0) + ":7000", 2: host(1) + ":7000", 3: host(2) + ":7000"})
		for i := 1; i < 3; i++ {
			c := lockkeeper.Config{ID: uint64(i + 1), Peers: three, TickTime: 500 * time.Millisecond}
			*testhooks.In(&c) = m.host(host(i))
			m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
			m.start(i)
		}
		for i := 1; i < 3; i++ {
			m.addAgain(i)
		}
		awaitVotes(t, m.servers, 3)
		m.stop(0)
		m.configs[0].Peers = three
		must(m.reconnect(2).Exists("/before", false))(t)
		m.serve(0)
		m.want("1 2 3")
		m.stop(1)
		must(m.reconnect(0).Exists("/before", false))(t)
	})
}

// TestMembershipMove moves a member with its data to another address. A server without
// the data cannot take its place.
func TestMembershipMove(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		must(m.connect(2, 10*time.Second).Create("/x", nil, 0))(t)
		m.kill(2)
		moved := request.Request{Add: &proto.Peer{ID: 3, Addr: "host4:7000"}}
		c := m.configs[2]
		c.Peers, c.PeerAddr, testhooks.In(&c).Network = nil, "host4:7000", m.net.Host("host4")

		empty := c
		testhooks.In(&empty).Memory = storage.NewMemory()
		s := must(lockkeeper.Open(empty))(t)
		if _, err := m.ask(moved); err == nil || !strings.Contains(err.Error(), "remove it before") {
			t.Errorf("moved without data: %v", err)
		}
		check(t, s.Close())

		var log testkit.Log
		c.Logger = log.Logger(slog.LevelInfo)
		m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
		m.start(3)
		time.Sleep(10 * time.Second) // the cluster knows it at another address, so it waits
		if len(log.Matching("WARN", "by another address", "host3:7000")) != 1 {
			t.Errorf("logged %q", log.Matching("WARN"))
		}
		r := must(m.ask(moved))(t)
		if len(r.Members) != 3 || r.Members[2].Addr != "host4:7000" || r.Members[2].Observer {
			t.Errorf("%+v", r.Members)
		}
		m.ready(m.servers[3])
		must(m.connect(3, 10*time.Second).Create("/y", nil, 0))(t)
		m.net.Kill(host(0)) // now the majority needs the moved member
		m.stop(0)
		must(m.connect(3, 10*time.Second).Exists("/x", false))(t)
		eventually(t, "a write", func() bool {
			nc, err := m.servers[3].Dial("", "", time.Second)
			if err != nil {
				return false
			}
			defer nc.Close()
			c, err := rawclient.Open(nc, 10*time.Second)
			if err != nil {
				return false
			}
			_, err = c.Set("/x", nil)
			return err == nil
		})
	})
}

// TestJoinInterrupted: a member that ended while it was being added, when it had stored the
// cluster's term but no entry, takes part after its next start.
func TestJoinInterrupted(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		i := (m.leader() + 1) % 3
		m.stop(i)
		memory := storage.NewMemory()
		s := memory.Open()
		check(t, s.SetRejoining(true))
		check(t, s.Stable.SetUint64([]byte(storage.TermKey), 2))
		check(t, s.Close())
		testhooks.In(&m.configs[i]).Memory = memory
		m.serve(i)
		c := m.connect(i, 10*time.Second)
		must(c.Create("/x", nil, 0))(t)
	})
}
