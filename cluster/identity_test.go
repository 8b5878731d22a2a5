package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The tests in this file mix up clusters as operators do by mistake. Nothing that was
// acknowledged may be lost, and no member may serve what is not of its cluster. The list is in
// docs/reliability.md; tests of others are in form_test.go and internal/core/storage.

// detour is the network of a host on which some addresses lead to others.
type detour struct {
	peer.Network
	to map[string]string
}

func (d detour) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if to, ok := d.to[addr]; ok {
		addr = to
	}
	return d.Network.Dial(ctx, addr)
}

// TestLostMeta: only the logs and snapshots are left of the directories (a copy of raft/, without meta.json, which
// storage.Open then makes anew). The log says of which cluster it is, and the server does not store another id beside that:
// one that is the whole cluster goes on, and another one is refused, and not told to empty the only copy of the data.
func TestLostMeta(t *testing.T) {
	for name, x := range map[string]struct {
		servers    int
		standalone bool
		alone      bool // it is started by the address of its peer port
		refused    string
	}{
		"standalone":                     {servers: 1, standalone: true},
		"cluster":                        {servers: 3, refused: "restore that, or empty the directory"},
		"cluster of one":                 {servers: 1},
		"cluster of one, without a list": {servers: 1, alone: true, refused: "start it with --peers and only itself"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, x.servers)
				config := f.config
				if x.standalone {
					config = func(i int) Config {
						cfg := f.config(i)
						cfg.Peers = nil
						return cfg
					}
				}
				for i := range f.running {
					f.open(i, config(i))
				}
				f.writes(0, 3)
				of := f.running[0].pulse.gate.Cluster()
				synctest.Wait() // for the entry that says it
				for i := range f.running {
					f.stop(i)
					if err := f.disks[i].Open().SetIdentity(storage.Identity{}); err != nil {
						t.Fatal(err)
					}
				}
				cfg := config(0)
				if x.alone {
					cfg = f.joins(0, -1)
				}
				m, err := openMember(cfg, fsm.NewReplica())
				if x.refused != "" {
					if err == nil || !strings.Contains(err.Error(), x.refused) {
						t.Error(err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				f.running[0] = m
				f.writes(0, 1)
				if is := m.pulse.gate.Cluster(); is != of {
					t.Errorf("it is of cluster %v, not of %v", is, of)
				}
				f.check()
			})
		})
	}
}

// TestMixedFiles: a member whose log is of another cluster than its identity ends.
func TestMixedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, other := startedFleet(t, 1), startedFleet(t, 1)
		f.stop(2)
		other.stop(2)
		own, foreign := f.disks[2].Open(), other.disks[2].Open()
		was := foreign.Identity()
		if err := foreign.SetIdentity(own.Identity()); err != nil {
			t.Fatal(err)
		}
		disk := f.disks[2]
		f.disks[2] = other.disks[2]
		_, err := openMember(f.config(2), fsm.NewReplica())
		if err == nil || !strings.Contains(err.Error(), was.Cluster.String()) || !strings.Contains(err.Error(), "were mixed") {
			t.Error(err)
		}
		f.disks[2] = disk
		f.start(2)
		f.whole()
		f.check()
	})
}

// TestWrongAddress: an address that leads to another member of the cluster, or to one of
// another cluster, does not make that one count for the member that should be there.
func TestWrongAddress(t *testing.T) {
	for name, to := range map[string]string{"of this cluster": "b:1", "of another cluster": "z:1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 1)
				other := newFleet(t, 1)
				other.net, other.peers[1] = f.net, "z:1"
				other.start(0)
				lead := leadOf(t, f)
				for i := range f.running {
					f.stop(i)
				}
				// From now on all connections to the third member, which is down, end elsewhere.
				for i := range 2 {
					cfg := f.config(i)
					cfg.Network = detour{cfg.Network, map[string]string{"c:1": to}}
					f.open(i, cfg)
				}
				until(t, "a write", func() bool { return f.write(lead % 2) })
				f.stop(1)
				time.Sleep(20 * time.Second)
				if f.write(0) {
					t.Error("a member alone acknowledges a write, since another one counts as the third")
				}
				for i := range 2 {
					f.stop(i)
				}
				other.stop(0)
				f.all(nil)
				f.check()
			})
		})
	}
}

// TestJoinsWrongCluster: a new server that is told to join a cluster which has its id already
// takes that member's place only if it is that member; one whose list has a server of a running
// cluster does not join that cluster, whether that has a member with its id or not.
func TestJoinsWrongCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		members := f.running[0].engine.Members()
		for name, server := range map[string]membership.Server{
			"--join": {ID: 2, Addr: "x:1", Join: "a:1"},
			"list":   {ID: 2, Peers: listOf(map[uint64]string{1: "w:1", 2: "x:1", 3: "c:1"})},
			"new id": {ID: 9, Peers: listOf(map[uint64]string{1: "w:1", 3: "c:1", 9: "x:1"})},
		} {
			cfg := Config{Server: server}
			cfg.Network, cfg.Memory, cfg.Tick, cfg.ReapInterval, cfg.SnapshotBytes, cfg.Log = f.net.Host("x"), storage.NewMemory(), time.Second, time.Minute, 1<<20, f.config(0).Log
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if m.pulse.gate.IsOpen() {
				t.Errorf("%s: it takes part", name)
			}
			if now := f.running[0].engine.Members(); !slices.Equal(now, members) {
				t.Errorf("%s: the members are %v", name, now)
			}
			if err := m.Kill(); err != nil {
				t.Error(err)
			}
		}
		for i := range f.running {
			if !f.write(i) {
				t.Errorf("member %d does not write any more", i+1)
			}
		}
		f.whole()
		f.check()
	})
}

// TestAddForeign: a server that belongs to another cluster is not added, neither by an
// operator nor by a reconfig.
func TestAddForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		other := newFleet(t, 1)
		other.net, other.peers = f.net, map[uint64]string{4: "z:1"}
		cfg := other.config(0)
		cfg.ID, cfg.Addr, cfg.Network = 4, "z:1", f.net.Host("z")
		other.open(0, cfg)
		until(t, "the other cluster", func() bool { return other.running[0].Role() == "leader" })
		x := proto.Peer{ID: 4, Addr: "z:1"}
		for what, q := range map[string]request.Request{
			"added":                 {Add: &x},
			"added as an observer":  {Add: &proto.Peer{ID: 4, Addr: "z:1", Observer: true}},
			"added by a reconfig":   {Reconfig: &request.Reconfig{Version: -1, Joining: []proto.Peer{x}, WaitMs: 1000}},
			"moved to that address": {Add: &proto.Peer{ID: 3, Addr: "z:1"}},
		} {
			if err := f.ask(0, q); err == nil || !strings.HasPrefix(what, "moved") && !strings.Contains(err.Error(), "belongs to cluster") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if s := f.running[0].membership.Status(); len(s.Members) != 3 {
			t.Errorf("the members are %v", s.Members)
		}
	})
}

// TestTwoAddresses: a member's address does not change to that of a copy of its data while
// the old process lives.
func TestTwoAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		id := (lead + 1) % 3
		f.stop(id)
		f.start(id)
		// The copy: nothing is written to it any more.
		copied := storage.NewMemory()
		s, from := copied.Open(), f.disks[id].Open()
		if err := s.Bootstrap(ptr(f.config(id)).First()); err != nil {
			t.Fatal(err)
		}
		if err := s.SetIdentity(from.Identity()); err != nil {
			t.Fatal(err)
		}
		cfg := f.config(id)
		cfg.Addr, cfg.Network, cfg.Memory = "copy:1", f.net.Host("copy"), copied
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		move := func() error {
			return f.ask(lead, request.Request{Add: &proto.Peer{ID: uint64(id + 1), Addr: "copy:1"}})
		}
		if err := move(); err == nil {
			t.Error("its address is that of a copy now")
		}
		f.stop(id)
		if err := move(); err != nil {
			t.Errorf("after the old one has ended: %v", err)
		}
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	})
}

// TestStrangerAnswersFirst: a member without data does not commit itself to the cluster of a
// server that answers at the address of another member, and joins its own when that is there.
func TestStrangerAnswersFirst(t *testing.T) {
	for _, join := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, other := startedFleet(t, 1), startedFleet(t, 1)
			for i := range f.running {
				f.stop(i)
				other.stop(i)
			}
			f.lose(1)
			own := f.disks[0]
			f.disks[0] = other.disks[0]
			f.start(0) // on the data of the other cluster
			cfg := f.config(1)
			if join {
				cfg = f.joins(1, 0)
			}
			m := f.open(1, cfg)
			time.Sleep(time.Minute)
			if of := m.engine.Storage().Identity(); of.Agreed || m.pulse.gate.IsOpen() {
				t.Errorf("it belongs to %v", of)
			}
			f.stop(0)
			f.disks[0] = own
			f.start(0)
			f.start(2)
			f.whole()
			f.check()
		})
	}
}

// TestRestoredAloneMoved: a server was restored as the only member of a cluster. Its host has another name or address by
// now, and it is started with --peers and only itself. With other flags, the error says that these must be used.
func TestRestoredAloneMoved(t *testing.T) {
	for _, how := range []string{"same", "moved", "listen only", "once three"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				cfg := f.config(0)
				f.restored(0, 9, 5)
				switch how {
				case "moved":
					cfg.Peers = listOf(map[uint64]string{1: "new:1"})
					cfg.Network = f.net.Host("new")
				case "listen only":
					cfg.Peers, cfg.Addr = nil, "a:1"
				case "once three":
					cfg.Peers = listOf(map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"})
				}
				m, err := openMember(cfg, fsm.NewReplica())
				if refused := how == "listen only" || how == "once three"; refused != (err != nil) || refused && !strings.Contains(err.Error(), "start it with --peers and only itself") {
					t.Fatalf("--peers %v, --peer-listen %q: %v", cfg.Peers, cfg.Addr, err)
				}
				if err != nil {
					return
				}
				f.running[0] = m
				time.Sleep(5 * time.Second)
				if !f.write(0) {
					t.Error("no write")
				}
			})
		})
	}
}

// TestOtherClustersData: a member that is started with the data of another cluster, with the
// same ids and addresses, takes no part, and ends when it sees that the others agree.
func TestOtherClustersData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := newFleet(t, 5)
		for i := range 5 {
			other.start(i)
		}
		other.whole()
		for range 5 {
			other.write(0)
		}
		for i := range 5 {
			other.stop(i)
		}
		f := newFleet(t, 5)
		f.all(nil)
		f.write(0)
		f.stop(4)
		own := f.disks[4]
		f.disks[4] = other.disks[4]
		m := f.start(4)
		err := testkit.Receive(t, "its fault", m.Err())
		if a, b := fmt.Sprint(m.engine.Storage().Identity().Cluster), fmt.Sprint(f.running[0].engine.Storage().Identity().Cluster); !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) || strings.Contains(err.Error(), "\n") {
			t.Errorf("the fault does not name clusters %s and %s: %v", a, b, err)
		}
		if f.log.Count("refusing a server of another cluster") == 0 {
			t.Error("the others do not say that they refuse it")
		}
		if m.Role() != "looking" || m.identified() == f.running[0].identified() {
			t.Error("it takes part")
		}
		lead := leadOf(t, f)
		for _, voter := range []bool{false, true} { // it does not keep others from getting theirs
			x := proto.Peer{ID: uint64((lead+1)%4 + 1), Addr: f.peers[uint64((lead+1)%4+1)], Observer: !voter}
			if _, err := request.Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], request.Request{Reconfig: &request.Reconfig{Version: -1, Joining: []proto.Peer{x}, WaitMs: 5000}}); err != nil {
				t.Errorf("with a vote: %v: %v", voter, err)
			}
		}
		f.stop(4)
		f.disks[4] = own
		f.start(4)
		f.whole()
		f.check()
	})
}

// TestRestoredInto: a server that was restored from a snapshot does not come into a cluster that exists.
func TestRestoredInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.lose(2)
		f.restored(2, 77)
		if err := testkit.Receive(t, "its fault", f.start(2).Err()); !strings.Contains(err.Error(), "belongs to cluster") || !strings.Contains(err.Error(), "empty the directory") {
			t.Error(err)
		}
		f.lose(2)
		f.start(2)
		f.whole()
		f.check()
	})
}

// TestOldDirectoryTakesIDBack: server 2 was removed while it waited for its vote, and another server got its id, at
// another address. While that is down, the old one is started again with its old directory. It does not take the id back: it
// has nothing of what the other one has acknowledged.
func TestOldDirectoryTakesIDBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.stop(1)
		if err := f.disks[1].Open().SetRejoining(true); err != nil { // as while it waits
			t.Fatal(err)
		}
		f.tell(0, request.Request{Remove: 2})
		cfg := f.joins(1, 0)
		cfg.Addr, cfg.Network, cfg.Memory = "z:1", f.net.Host("z"), storage.NewMemory()
		z, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		until(t, "its vote", func() bool {
			x := f.place(0, 2)
			return x != nil && x.Addr == "z:1" && !x.Observer
		})
		f.writes(0, 1)
		time.Sleep(time.Second)
		z.Kill()
		f.start(1)
		time.Sleep(time.Minute)
		if x := f.place(0, 2); x == nil || x.Addr != "z:1" {
			t.Errorf("server 2 is %v", x)
		}
	})
}

// TestNotRemovedByStrangers: a member does not end as removed because a server of another cluster,
// at the address of a member that is down, does not know it.
func TestNotRemovedByStrangers(t *testing.T) {
	for _, how := range []string{"a server of another cluster is at the address", "an emptied member is started with a list of only itself"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 3)
				lead := leadOf(t, f)
				// b is the lost one, c the one that is left.
				b, c := (lead+1)%3, (lead+2)%3
				f.lose(b)
				if strings.HasPrefix(how, "an emptied") {
					cfg := f.config(b)
					cfg.Peers = listOf(map[uint64]string{uint64(b + 1): f.peers[uint64(b+1)]})
					f.open(b, cfg)
				} else {
					cfg := f.config(b)
					cfg.ID, cfg.Peers, cfg.Addr = 7, listOf(map[uint64]string{7: f.peers[uint64(b+1)]}), f.peers[uint64(b+1)]
					f.open(b, cfg)
				}
				until(t, "the other cluster", func() bool { return f.running[b].Role() == "leader" })
				if !f.write(lead) || !f.write(c) {
					t.Fatal("no write")
				}
				// The leader is restarted, e.g. by a reboot that takes ten seconds.
				f.stop(lead)
				err := fault(f.running[c], 10*time.Second)
				if err != nil {
					t.Errorf("member %d stops: %v", c+1, err)
				}
				f.start(lead)
				time.Sleep(10 * time.Second)
				if !f.write(lead) && err == nil {
					t.Error("no write afterwards")
				}
			})
		})
	}
}

// TestAboutToJoin: a member that is about to join does not end because one of its addresses leads
// to another cluster.
func TestAboutToJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		other := newFleet(t, 1)
		other.net, other.peers = f.net, map[uint64]string{1: "z:1"}
		other.start(0)
		f.lose(2)
		if err := f.disks[2].Open().SetRejoining(true); err != nil {
			t.Fatal(err)
		}
		id := f.running[0].pulse.gate.Cluster()
		if err := f.disks[2].Open().SetIdentity(storage.Identity{Cluster: id, Agreed: true}); err != nil { // as join does it
			t.Fatal(err)
		}
		cfg := f.config(2)
		cfg.Network = detour{cfg.Network, map[string]string{"a:1": "z:1"}}
		m := f.open(2, cfg)
		if err := fault(m, time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitingServerHasNoVote: a server without data that was started with only the address of
// its peer port, at the address of a voter, takes no part before the others have taken the
// vote away.
func TestWaitingServerHasNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.all(nil)
		f.stop(2)
		f.write(0)
		f.stop(0)
		f.lose(1)
		cfg := f.joins(1, -1)
		f.open(1, cfg)
		f.start(2) // it has not got the write
		time.Sleep(time.Minute)
		if f.write(2) || f.write(1) {
			t.Error("a server that has forgotten everything completes a majority")
		}
		f.start(0)
		f.whole()
		f.check()
	})
}
