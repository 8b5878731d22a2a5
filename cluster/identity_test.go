package cluster

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The tests in this file mix up clusters as operators do by mistake. Nothing that was
// acknowledged may be lost, and no member may serve what is not of its cluster. The list is in
// docs/operations.md; tests of others are in form_test.go and internal/core/storage.

// startedFleet returns a cluster of three members that has acknowledged some writes.
func startedFleet(t *testing.T, writes int) *fleet {
	t.Helper()
	f := newFleet(t, 3)
	for i := range f.running {
		f.start(i)
	}
	f.whole()
	f.writes(0, writes)
	return f
}

// detour is the network of a host on which some addresses lead to others.
type detour struct {
	Network
	to map[string]string
}

func (d detour) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if to, ok := d.to[addr]; ok {
		addr = to
	}
	return d.Network.Dial(ctx, addr)
}

// TestEarlierFormation: a member that has kept its directory when the others were made anew
// does not lend it to them, and they do not form a cluster beside it.
func TestEarlierFormation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		for i := range f.running {
			f.stop(i)
		}
		f.lose(0)
		f.lose(1)
		for i := range f.running {
			f.start(i)
		}
		time.Sleep(time.Minute)
		if f.write(0) || f.write(1) || f.write(2) {
			t.Error("a cluster serves of which two disks are lost")
		}
		if f.running[0].membership.gate.lifted() || f.running[1].membership.gate.lifted() {
			t.Error("a member without data takes part")
		}
	})
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
				lead := slices.IndexFunc(f.running, func(m *Member) bool { return m.Role() == "leader" })
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
				for i := range f.running {
					f.start(i)
				}
				f.whole()
				f.check()
			})
		})
	}
}

// TestJoinsWrongCluster: a new server that is told to join a cluster which has its id already
// takes that member's place only if it is that member; a list with a server of a running
// cluster does not join that cluster.
func TestJoinsWrongCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		members, err := f.running[0].raft.members()
		if err != nil {
			t.Fatal(err)
		}
		for name, cfg := range map[string]Config{
			"--join": {ID: 2, Addr: "x:1", Join: "a:1"},
			"list":   {ID: 2, Peers: listOf(map[uint64]string{1: "w:1", 2: "x:1", 3: "c:1"})},
		} {
			cfg.Network, cfg.Memory, cfg.Tick, cfg.ReapInterval, cfg.SnapshotBytes, cfg.Log = f.net.Host("x"), storage.NewMemory(), time.Second, time.Minute, 1<<20, f.config(0).Log
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if m.membership.gate.lifted() {
				t.Errorf("%s: it takes part", name)
			}
			if now, err := f.running[0].raft.members(); err != nil || !slices.Equal(now, members) {
				t.Errorf("%s: the members are %v, %v", name, now, err)
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
		for what, q := range map[string]Request{
			"added":                 {Add: &x},
			"added as an observer":  {Add: &proto.Peer{ID: 4, Addr: "z:1", Observer: true}},
			"added by a reconfig":   {Reconfig: &Reconfig{Version: -1, Joining: []proto.Peer{x}, WaitMs: 1000}},
			"moved to that address": {Add: &proto.Peer{ID: 3, Addr: "z:1"}},
		} {
			_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[1], q)
			if err == nil || !strings.HasPrefix(what, "moved") && !strings.Contains(err.Error(), "belongs to cluster") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if s, err := f.running[0].Status(); err != nil || len(s.Members) != 3 {
			t.Errorf("the members are %v, %v", s.Members, err)
		}
	})
}

// TestTwoAddresses: a member's address does not change to that of a copy of its data while
// the old process lives.
func TestTwoAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := slices.IndexFunc(f.running, func(m *Member) bool { return m.Role() == "leader" })
		id := (lead + 1) % 3
		f.stop(id)
		f.start(id)
		// The copy: nothing is written to it any more.
		copied := storage.NewMemory()
		s, from := copied.Open(), f.disks[id].Open()
		if err := s.Bootstrap(ptr(f.config(id)).first()); err != nil {
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
			_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Add: &proto.Peer{ID: uint64(id + 1), Addr: "copy:1"}})
			return err
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

// TestDifferentSnapshots: servers that were restored from snapshots of which two differ form no cluster and serve nobody, in
// any order of their starts, and say what differs. An operator's word does not change that. When the same snapshot has been restored
// on all of them, they form one.
func TestDifferentSnapshots(t *testing.T) {
	type snapshot struct {
		index   uint64
		session int64
	}
	for name, of := range map[string][]snapshot{
		"two that end alike, and an older one": {{9, 1}, {12, 2}, {12, 3}},
		"older, then newer":                    {{9, 1}, {12, 1}, {12, 1}},
		"newer, then older":                    {{12, 1}, {9, 1}, {9, 1}},
		"the last one has another state":       {{12, 1}, {12, 1}, {12, 2}},
		"three":                                {{9, 1}, {10, 1}, {11, 1}},
		"only two voters":                      {{9, 1}, {9, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, len(of))
				f.asked = 100
				for i, x := range of {
					f.restored(i, x.index, x.session)
				}
				for _, i := range rand.New(rand.NewPCG(testkit.Seed(t), 0)).Perm(len(of)) {
					f.start(i)
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(20 * time.Second)
				for i := range of {
					if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(i+1)], Request{Form: true}); err == nil {
						t.Errorf("server %d forms a cluster", i+1)
					}
				}
				time.Sleep(20 * time.Second)
				for i, m := range f.running {
					if m.membership.gate.lifted() || m.raft.storage.Identity().Agreed || f.write(i) {
						t.Errorf("server %d takes part", i+1)
					}
					s, err := m.Status()
					if err != nil || i == 0 && !strings.Contains(s.Waiting, "restore the same snapshot") {
						t.Errorf("server %d waits since %q, %v", i+1, s.Waiting, err)
					}
				}
				for i := range of { // first: those that have the same state by now could form a cluster
					f.stop(i)
				}
				for i := range of {
					f.lose(i)
					f.restored(i, 12, 2)
					f.start(i)
				}
				f.acked = []int64{2}
				f.whole()
				f.check()
			})
		})
	}
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
				cfg.Addr, cfg.Join, cfg.Peers = f.peers[2], f.peers[1], nil
			}
			m := f.open(1, cfg)
			time.Sleep(time.Minute)
			if of := m.raft.storage.Identity(); of.Agreed || m.membership.gate.lifted() {
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

// TestWithoutIdentity: only the logs and snapshots are left of the directories (a copy of raft/, without
// meta.json, which storage.Open then makes anew). The log says of which cluster it is. Either the servers
// refuse that, or they serve; but a server must not store another id beside that log, acknowledge
// writes, and then never start again.
func TestWithoutIdentity(t *testing.T) {
	t.Run("standalone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1)
			cfg := f.config(0)
			cfg.Peers = nil
			f.open(0, cfg)
			until(t, "a write", func() bool { return f.write(0) })
			f.stop(0)
			if err := f.disks[0].Open().SetIdentity(storage.Identity{}); err != nil {
				t.Fatal(err)
			}
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Logf("refused at once, which is fine: %v", err)
				return
			}
			f.running[0] = m
			until(t, "a write", func() bool { return f.write(0) })
			f.stop(0)
			m, err = openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatalf("it has acknowledged a write, and does not start again: %v", err)
			}
			f.running[0] = m
		})
	})
	t.Run("cluster", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := startedFleet(t, 3)
			for i := range f.running {
				f.stop(i)
				if err := f.disks[i].Open().SetIdentity(storage.Identity{}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range f.running {
				m, err := openMember(f.config(i), fsm.NewReplica())
				if err != nil {
					t.Logf("refused at once, which is fine: %v", err)
					return
				}
				f.running[i] = m
			}
			wrote := false
			for range 20 {
				wrote = wrote || f.write(0)
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			t.Logf("a write was acknowledged: %v", wrote)
			for i, m := range f.running {
				select {
				case err := <-m.Err():
					t.Errorf("server %d ends: %v", i+1, err)
				default:
				}
				f.stop(i)
			}
			for i := range f.running {
				m, err := openMember(f.config(i), fsm.NewReplica())
				if err != nil {
					t.Errorf("server %d does not start again: %v", i+1, err)
					continue
				}
				f.running[i] = m
			}
		})
	})
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

// TestAloneLostMeta: a one-member cluster has lost its meta.json, and is started by the address of its peer port (or with
// the list of three with which it began). It must not advise to empty the only copy of the data.
func TestAloneLostMeta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		f.start(0)
		time.Sleep(time.Second)
		for range 3 {
			f.write(0)
		}
		f.stop(0)
		s := f.disks[0].Open()
		if err := s.SetIdentity(storage.Identity{}); err != nil {
			t.Fatal(err)
		}
		cfg := f.config(0)
		cfg.Peers, cfg.Addr = nil, "a:1"
		m, err := openMember(cfg, fsm.NewReplica())
		if err == nil {
			m.Kill()
			return
		}
		if strings.Contains(err.Error(), "empty the directory") && !strings.Contains(err.Error(), "--peers") {
			t.Errorf("it is alone in its list, and is told: %v", err)
		}
	})
}
