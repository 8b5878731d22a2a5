package whole

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"log/slog"
)

// TestDescribedMembers: /zookeeper/config shows the addresses for clients and the election
// ports that the configurations of members name, from the first version on, and what a
// reconfig has said is not undone.
func TestDescribedMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := map[uint64]string{1: "a.example:2181", 2: ":2182", 3: "[::1]:2183"}
		m := newMembers(t, 3, func(c *lockkeeper.Config) {
			c.Auth.SuperDigest, c.Features.Reconfig = superDigest, true
			for i := range c.Peers {
				p := &c.Peers[i]
				p.ClientAddr, p.ElectionPort = clients[p.ID], 3880+int(p.ID)
			}
		})
		defer m.close()
		for i := range 3 {
			m.start(i)
		}
		config := func(at int) string {
			t.Helper()
			r := must(m.reconnect(at).Get("/zookeeper/config", false))(t)
			if want := fmt.Sprintf("version=%x", r.Stat.Mzxid); !strings.HasSuffix(string(r.Data), want) {
				t.Errorf("%q does not end with %s", r.Data, want)
			}
			return string(r.Data)
		}
		shows := func(at int, lines ...string) {
			t.Helper()
			want := strings.Join(lines, "\n") + "\nversion="
			eventually(t, "members "+want, func() bool { return strings.HasPrefix(config(at), want) })
		}
		lines := []string{
			"server.1=host1:7000:3881:participant;a.example:2181",
			"server.2=host2:7000:3882:participant;0.0.0.0:2182",
			"server.3=host3:7000:3883:participant;[::1]:2183",
		}
		for i := range 3 {
			m.ready(m.servers[i])
			if got, want := config(i), strings.Join(lines, "\n")+"\nversion=100000000"; got != want {
				t.Errorf("member %d shows\n%s\nnot\n%s", i+1, got, want)
			}
		}
		if says := word(t, inMemory(m.servers[1]), "conf"); !strings.Contains(says, "electionPort=3882\n") {
			t.Errorf("conf says %q", says)
		}

		// A reconfig counts more than the configurations, also after a restart.
		must(reconfig(superUser(t, m.connect(0, 10*time.Second)), "server.1=host1:7000:3991;b.example:2191", "", "", -1))(t)
		lines[0] = "server.1=host1:7000:3991:participant;b.example:2191"
		restart := func(i int) {
			m.stop(i)
			m.serve(i)
		}
		for i := range 3 {
			restart(i)
			shows(i, lines...)
		}
		// Without reconfigs, a server is right about itself, and only about itself.
		m.configs[0].Features.Reconfig = false
		m.configs[0].Peers[0].ClientAddr, m.configs[0].Peers[1].ClientAddr = "c.example:2201", "not:1"
		restart(0)
		lines[0] = "server.1=host1:7000:3881:participant;c.example:2201"
		shows(1, lines...)

		// A server that is added later says it of itself.
		m.configs = append(m.configs, lockkeeper.Config{
			ID: 4, PeerAddr: "host4:7000", Join: "host1:7000", JoinAsObserver: true, TickTime: 500 * time.Millisecond,
			AdvertisedClientAddr: ":2184",
		})
		*testhooks.In(&m.configs[3]) = m.host("host4")
		m.servers = append(m.servers, nil)
		m.serve(3)
		shows(0, append(lines, "server.4=host4:7000:8000:observer;0.0.0.0:2184")...)
	})
}

// TestAddDescribedMember: what AddMember says of a member is shown to clients, and by Members of
// every member; what it does not say stays.
func TestAddDescribedMember(t *testing.T) {
	inCluster(t, 1, nil, func(t *testing.T, m *members) {
		m.startWaiting(2)
		p := lockkeeper.Peer{ID: 2, Addr: "host2:7000", ClientAddr: ":2182", ElectionPort: 3882}
		check(t, m.servers[0].AddMember(t.Context(), p))
		p.ClientAddr = "0.0.0.0:2182"
		m.ready(m.servers[1])
		for _, s := range m.servers {
			eventually(t, "the new member", func() bool { return slices.Contains(s.Members(), p) })
		}
		check(t, m.servers[1].AddMember(t.Context(), lockkeeper.Peer{ID: 2, Addr: "host2:7000", Observer: true, ClientAddr: "b.example:2182"}))
		const want = "server.1=host1:7000:8000:participant\nserver.2=host2:7000:3882:observer;b.example:2182\nversion="
		if got := string(must(m.connect(0, 10*time.Second).Get("/zookeeper/config", false))(t).Data); !strings.HasPrefix(got, want) {
			t.Errorf("/zookeeper/config has %q, want %q", got, want)
		}
		for _, p := range []lockkeeper.Peer{{ID: 2, Addr: "host2:7000", ClientAddr: "2182"}, {ID: 2, Addr: "host2:7000", ElectionPort: 65536}} {
			if err := m.servers[0].AddMember(t.Context(), p); err == nil {
				t.Errorf("%+v was added", p)
			}
		}
	})
}

// TestToldClientAddr: a server goes on listening where it was told to if the address that its
// configuration tells clients is another one, and moves when a reconfig names a third one.
func TestToldClientAddr(t *testing.T) {
	var log testkit.Log
	m := startMembers(t, 1, func(c *lockkeeper.Config) {
		c.Features.Reconfig, c.Auth.SuperDigest, c.Features.AllowSingleVoter = true, superDigest, true
		c.ClientAddr, c.Peers[0].ClientAddr = "127.0.0.1:0", "127.0.0.2:2181"
		c.Logger = log.Logger(slog.LevelInfo)
	})
	was := m.servers[0].Addr().String()
	c := superUser(t, m.connect(0, 10*time.Second))
	eventually(t, "the address in the list", func() bool {
		return strings.Contains(string(must(c.Get("/zookeeper/config", false))(t).Data), ";127.0.0.2:2181\n")
	})
	free := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	check(t, free.Close())
	now := free.Addr().String()
	must(reconfig(c, "server.1=host1:7000:8000;"+now, "", "", -1))(t)
	eventually(t, "the move", func() bool { return len(log.Matching("the client port has moved", "from="+was, "to="+now)) == 1 })
}
