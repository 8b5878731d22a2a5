package whole

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

func withJoin(c *lockkeeper.Config) { c.Join = "host1:7000" }

func (m *members) extra(id int, name string, list []lockkeeper.Peer, change func(c *lockkeeper.Config)) int {
	c := lockkeeper.Config{ID: uint64(id), Peers: list, Join: host(0) + ":7000", TickTime: 500 * time.Millisecond}
	*testhooks.In(&c) = m.host(name)
	if change != nil {
		change(&c)
	}
	m.configs, m.servers = append(m.configs, c), append(m.servers, nil)
	i := len(m.servers) - 1
	m.start(i)
	return i
}

func (m *members) of(i int) string { return m.servers[i].Status().Cluster.ID }

// quiet waits and reports whether server i is still in no cluster and has no fault.
func (m *members) waits(i int, d time.Duration) {
	m.t.Helper()
	time.Sleep(d)
	select {
	case <-m.servers[i].Done():
		m.t.Errorf("server %d has ended: %v", i+1, m.servers[i].Err())
	default:
	}
	if id := m.of(i); id != "" {
		m.t.Errorf("server %d is in cluster %s", i+1, id)
	}
}

// Two empty servers with the id and the flags of a removed member, on two machines.
func TestAttackTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		must(m.ask(cluster.Request{Remove: 2}))(t)
		m.removed(1)
		m.wipe(1)
		m.start(1)
		two := m.extra(2, "host9", m.configs[1].Peers, func(c *lockkeeper.Config) { c.PeerAddr = "host9:7000" })
		time.Sleep(time.Minute)
		var in []int
		for _, i := range []int{1, two} {
			if m.of(i) != "" {
				in = append(in, i)
			}
		}
		if len(in) != 1 {
			t.Fatalf("in the cluster: %v", in)
		}
		m.want("1 2 3")
		// the one that is in is removed: the other one was told to be removed first, and may join
		must(m.ask(cluster.Request{Remove: 2}))(t)
		time.Sleep(time.Minute)
		t.Log(m.list())
		for _, i := range []int{1, two} {
			st := m.servers[i].Status()
			t.Logf("%d: cluster %s, serving %v, role %v, ends with %v", i, st.Cluster.ID, st.Serving, st.Role, m.servers[i].Err())
		}
		s := must(m.ask(cluster.Request{Status: true}))(t)
		t.Log(s.Members, in)
		must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
	})
}

// The id was given to another server at another address; the wiped former holder comes back.
func TestAttackIDTaken(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, withJoin)
			must(m.ask(cluster.Request{Remove: 2}))(t)
			m.removed(1)
			m.add(2, nil) // at host4
			m.want("1 2 3")
			if down {
				m.net.Kill(host(3))
				m.stop(3)
			}
			m.wipe(1)
			m.start(1)
			m.waits(1, 2*time.Minute)
			m.want("1 2 3")
			s := must(m.ask(cluster.Request{Status: true}))(t)
			if s.Members[1].Addr != "host4:7000" {
				t.Error(s.Members)
			}
			if !down {
				must(m.connect(3, 10*time.Second).Create("/x", nil, 0))(t)
			}
		})
	}
}

// A cluster of one has become one of three; the first one loses its disk, and still has its old flags besides a Join.
func TestAttackAloneWithJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 1, nil)
		three := peerList(map[uint64]string{1: host(0) + ":7000", 2: host(1) + ":7000", 3: host(2) + ":7000"})
		m.extra(2, host(1), three, nil)
		m.extra(3, host(2), three, nil)
		m.ready(m.servers[1])
		m.ready(m.servers[2])
		awaitVotes(t, m.servers, 3)
		m.net.Kill(host(0))
		m.stop(0)
		m.wipe(0)
		m.configs[0].Join = host(1) + ":7000"
		m.start(0)
		time.Sleep(time.Minute)
		if a, b := m.of(0), m.of(1); a != "" && a != b {
			t.Errorf("server 1 is of cluster %q, server 2 of %q", a, b)
		}
	})
}

// All members of the list were replaced by others, and come back empty with a Join to one of these.
func TestAttackAllReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		for id := 4; id <= 6; id++ {
			m.add(id, nil)
		}
		for i := range 3 {
			must(cluster.Ask(t.Context(), m.net.Host("operator"), host(4)+":7000", cluster.Request{Remove: uint64(i + 1)}))(t)
			m.removed(i)
		}
		for i := range 3 {
			m.wipe(i)
			m.configs[i].Join = host(3) + ":7000"
			m.start(i)
		}
		time.Sleep(time.Minute)
		for i := range 3 {
			if a, b := m.of(i), m.of(4); a != "" && a != b {
				t.Errorf("server %d is of cluster %q, server 5 of %q", i+1, a, b)
			}
		}
	})
}

// The single server is down, or has lost its disk, when the two others start.
func TestAttackGrowDown(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 1, nil)
			must(m.connect(0, 10*time.Second).Create("/before", nil, 0))(t)
			first := m.of(0)
			m.net.Kill(host(0))
			m.stop(0)
			three := peerList(map[uint64]string{1: host(0) + ":7000", 2: host(1) + ":7000", 3: host(2) + ":7000"})
			m.extra(2, host(1), three, nil)
			m.extra(3, host(2), three, nil)
			m.waits(1, time.Minute)
			m.waits(2, time.Second)
			m.configs[0].Peers, m.configs[0].Join = three, host(0)+":7000"
			if lost {
				m.wipe(0)
			}
			m.start(0)
			for _, s := range m.servers {
				m.ready(s)
			}
			awaitVotes(t, m.servers, 3)
			m.want("1 2 3")
			for i := range 3 {
				if (m.of(i) == first) == lost || m.of(i) != m.of(0) {
					t.Errorf("%d: %s, was %s", i, m.of(i), first)
				}
			}
		})
	}
}

// Grow, and the single server stops in the middle; the two others stay what they are; wiped one, with the list of three.
func TestAttackGrowMiddle(t *testing.T) {
	for ms := 0; ms < 1500; ms += 60 {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 1, nil)
			m.net.SetDelay(func(string, string) time.Duration { return 10 * time.Millisecond })
			c := m.connect(0, 10*time.Second)
			must(c.Create("/before", nil, 0))(t)
			first := m.of(0)
			three := peerList(map[uint64]string{1: host(0) + ":7000", 2: host(1) + ":7000", 3: host(2) + ":7000"})
			m.extra(2, host(1), three, nil)
			m.extra(3, host(2), three, nil)
			time.Sleep(time.Duration(ms) * time.Millisecond)
			for i := range 3 {
				m.net.Kill(host(i))
				m.stop(i)
			}
			m.configs[0].Peers, m.configs[0].Join = three, host(0)+":7000"
			m.start(1)
			m.start(2)
			time.Sleep(20 * time.Second)
			for i := 1; i < 3; i++ {
				if of := m.of(i); of != "" && of != first {
					t.Errorf("%d ms: server %d is in %s, not in %s", ms, i+1, of, first)
				}
			}
			m.start(0)
			for _, s := range m.servers {
				m.ready(s)
			}
			awaitVotes(t, m.servers, 3)
			m.want("1 2 3")
			for i := range 3 {
				must(m.connect(i, 10*time.Second).Exists("/before", false))(t)
				if m.of(i) != first {
					t.Errorf("%d ms: %d is of %s", ms, i, m.of(i))
				}
			}
		})
	}
}

// An observer of the list comes back as one, a voter as a voter, also if an operator has added it as an observer before.
func TestAttackObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 4, func(c *lockkeeper.Config) {
			withJoin(c)
			c.Peers[3].Observer = true
		})
		for range 3 {
			must(m.ask(cluster.Request{Remove: 4}))(t)
			m.removed(3)
			m.wipe(3)
			m.start(3)
			m.ready(m.servers[3])
			time.Sleep(20 * time.Second)
			m.want("1 2 3 4o")
		}
		must(m.ask(cluster.Request{Remove: 2}))(t)
		m.removed(1)
		m.wipe(1)
		m.start(1)
		m.ready(m.servers[1])
		time.Sleep(20 * time.Second)
		m.want("1 2 3 4o")
	})
}

// All but one have lost their disks; removed ones too.
func TestAttackMostDisksLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		for i := 1; i < 3; i++ {
			m.net.Kill(host(i))
			m.stop(i)
			m.wipe(i)
		}
		for i := 1; i < 3; i++ {
			m.start(i)
		}
		m.waits(1, 3*time.Minute)
		m.waits(2, time.Second)
		m.net.Kill(host(0)) // not even then
		m.stop(0)
		m.waits(1, 3*time.Minute)
		m.waits(2, time.Second)
		if err := m.servers[1].FormCluster(t.Context()); err != nil {
			t.Log(err)
		}
	})
}

// Two of three form by an operator's word, some with and some without Join; the third comes later, and also
// when it was removed before it ever came.
func TestAttackByWord(t *testing.T) {
	for _, remove := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMembers(t, 3, nil)
			defer m.close()
			m.configs[1].Join, m.configs[2].Join = "host77:7000", "host3:7000"
			m.start(0)
			m.start(1)
			time.Sleep(15 * time.Second) // host77 does not answer
			check(t, m.servers[1].FormCluster(t.Context()))
			m.ready(m.servers[0])
			if remove {
				must(m.ask(cluster.Request{Remove: 3}))(t)
			}
			m.start(2)
			m.ready(m.servers[2])
			awaitVotes(t, m.servers, 3)
			m.want("1 2 3")
		})
	}
}

// A member that holds the proposal of its cluster, and was removed before it agreed, does not come back.
func TestAttackProposalRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		m.net.Kill(host(1))
		m.stop(1)
		of := testhooks.In(&m.configs[0]).Memory.Open()
		id := of.Identity()
		must(m.ask(cluster.Request{Remove: 2}))(t)
		mem := storage.NewMemory()
		s := mem.Open()
		check(t, s.SetIdentity(storage.Identity{Cluster: id.Cluster, First: id.First}))
		check(t, s.Close())
		testhooks.In(&m.configs[1]).Memory = mem
		m.start(1)
		m.removed(1)
		m.want("1 3")
	})
}

// Servers that were restored from a snapshot, and have no id yet, while an empty one with a Join is in the list.
func TestAttackRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
		var snap bytes.Buffer
		snap.WriteString(string(snapshotOf(t, m.servers[0])))
		for i := range 3 {
			m.net.Kill(host(i))
			m.stop(i)
		}
		for i := range 3 {
			c := m.configs[i]
			c.DataDir = testkit.MemoryDir(t) + fmt.Sprintf("/r%d", i)
			testhooks.In(&c).Memory = nil
			if i < 2 {
				check(t, lockkeeper.Restore(c, strings.NewReader(snap.String())))
			}
			m.configs[i] = c
		}
		m.start(0)
		m.start(2)
		m.waits(0, time.Minute)
		m.waits(2, time.Second)
		m.start(1)
		m.waits(0, time.Minute) // 3 is empty
		m.waits(1, time.Second)
		m.waits(2, time.Second)
		if err := m.servers[2].FormCluster(t.Context()); err == nil {
			t.Error("the empty one forms it")
		}
		check(t, m.servers[0].FormCluster(t.Context()))
		for _, s := range m.servers {
			m.ready(s)
		}
		awaitVotes(t, m.servers, 3)
		m.want("1 2 3")
		must(m.connect(2, 10*time.Second).Exists("/x", false))(t)
	})
}

// Like TestAttackRestored, with an old member that comes back before, and an empty one that could join its cluster.
func TestAttackOldMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		m.net.Kill(host(2))
		m.stop(2)
		m.wipe(2)
		for i := range 2 {
			m.net.Kill(host(i))
			m.stop(i)
		}
		m.wipe(0)
		m.start(1) // with the data of before
		m.start(0)
		m.start(2)
		m.waits(0, time.Minute)
		m.waits(2, time.Second)
	})
}

// A member moved to another address, was removed, and comes back empty.
func TestAttackAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		m := startMembers(t, 3, withJoin)
		must(m.ask(cluster.Request{Remove: 2}))(t)
		m.removed(1)
		m.wipe(1)
		m.configs[1].PeerAddr = "host9:7000"
		m.configs[1].Logger = log.Logger(slog.LevelInfo)
		*testhooks.In(&m.configs[1]) = m.host("host9")
		m.start(1)
		m.ready(m.servers[1])
		awaitVotes(t, m.servers, 3)
		s := must(m.ask(cluster.Request{Status: true}))(t)
		if s.Members[1].Addr != "host9:7000" {
			t.Error(s.Members)
		}
		// wiped again, back at host2, while the list has host9
		m.net.Kill("host9")
		m.stop(1)
		m.configs[1].PeerAddr = ""
		*testhooks.In(&m.configs[1]) = m.host("host2")
		m.start(1)
		m.waits(1, time.Minute)
		must(m.ask(cluster.Request{Remove: 2}))(t)
		m.ready(m.servers[1]) // as it was told
		awaitVotes(t, m.servers, 3)
	})
}

// While an empty server joins, in every moment, it is removed; restarted, once.
func TestAttackRemoveAnyTime(t *testing.T) {
	for ms := 0; ms < 2500; ms += 50 {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			m := startMembers(t, 3, withJoin)
			m.net.SetDelay(func(string, string) time.Duration { return 20 * time.Millisecond })
			must(m.ask(cluster.Request{Remove: 2}))(t)
			m.removed(1)
			m.wipe(1)
			m.configs[1].Logger = log.Logger(slog.LevelInfo)
			m.start(1)
			time.Sleep(time.Duration(ms) * time.Millisecond)
			_, err := m.ask(cluster.Request{Remove: 2})
			time.Sleep(time.Minute)
			in := strings.Contains(m.list(), "2")
			if (err == nil) == in {
				t.Errorf("%d ms: removed: %v; members %s; %v\n%s", ms, err, m.list(), m.servers[1].Err(), strings.Join(log.Matching(""), "\n"))
			}
			if err == nil && !errors.Is(m.servers[1].Err(), lockkeeper.ErrRemoved) {
				t.Errorf("%d ms: %v", ms, m.servers[1].Err())
			}
		})
	}
}

// The same with a member that has lost its disk and was not removed before.
func TestAttackRemoveAnyTimeKnown(t *testing.T) {
	for ms := 0; ms < 2500; ms += 50 {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			m := startMembers(t, 3, withJoin)
			m.net.SetDelay(func(string, string) time.Duration { return 20 * time.Millisecond })
			m.net.Kill(host(1))
			m.stop(1)
			m.wipe(1)
			m.configs[1].Logger = log.Logger(slog.LevelInfo)
			m.start(1)
			time.Sleep(time.Duration(ms) * time.Millisecond)
			_, err := m.ask(cluster.Request{Remove: 2})
			knew := len(log.Matching("this member's data is empty")) > 0
			time.Sleep(time.Minute)
			in := strings.Contains(m.list(), "2")
			if err != nil || in && knew {
				t.Errorf("%d ms: removed: %v; members %s; %v\n%s", ms, err, m.list(), m.servers[1].Err(), strings.Join(log.Matching(""), "\n"))
			}
		})
	}
}

// A server that is alone in its list, with a Join at which there is nobody, forms a cluster.
func TestAttackAloneJoinDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 1, func(c *lockkeeper.Config) { c.Join = "host7:7000" })
		of := m.of(0)
		must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
		m.stop(0)
		m.start(0)
		m.ready(m.servers[0])
		must(m.connect(0, 10*time.Second).Exists("/x", false))(t)
		if of == "" || of != m.of(0) {
			t.Error(of, m.of(0))
		}
	})
}

// Three form a cluster although the server at Join is in none, and does not answer.
func TestAttackJoinEmptyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 3, func(c *lockkeeper.Config) { c.Join = "host4:7000" })
		defer m.close()
		m.extra(4, host(3), nil, func(c *lockkeeper.Config) { c.PeerAddr = "host4:7000" })
		for i := range 3 {
			m.start(i)
		}
		for i := range 3 {
			m.ready(m.servers[i])
		}
		awaitVotes(t, m.servers[:3], 4)
	})
}

// The leader is lost at any time while a server joins again, and then an operator removes it.
func TestAttackLeaderLost(t *testing.T) {
	for ms := 0; ms < 1500; ms += 50 {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 5, withJoin)
			m.net.SetDelay(func(string, string) time.Duration { return 20 * time.Millisecond })
			lead := m.leader()
			other := (lead + 1) % 5
			id := uint64(other + 1)
			must(m.ask(cluster.Request{Remove: id}))(t)
			m.removed(other)
			m.wipe(other)
			m.start(other)
			time.Sleep(time.Duration(ms) * time.Millisecond)
			m.net.Kill(host(lead))
			m.stop(lead)
			at := (lead + 2) % 5
			var err error
			was := false
			for range 200 {
				if _, err = cluster.Ask(t.Context(), m.net.Host("operator"), host(at)+":7000", cluster.Request{Remove: id}); err == nil {
					was = true
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			s := must(cluster.Ask(t.Context(), m.net.Host("operator"), host(at)+":7000", cluster.Request{Status: true}))(t)
			in := 0
			for _, x := range s.Members {
				if x.ID == id {
					in++
				}
			}
			if was && in > 0 || in > 1 || !was && in == 0 {
				t.Errorf("%d ms: removed %v (%v), members %v; its fault %v", ms, was, err, s.Members, m.servers[other].Err())
			}
			for i, x := range m.servers {
				if x != nil && m.of(i) != "" && m.of(i) != m.of(at) {
					t.Errorf("%d ms: %d is of another cluster", ms, i)
				}
			}
		})
	}
}

// restoredTo has servers of m begin with a snapshot, in directories.
func (m *members) restoredTo(snapshot []byte, is ...int) {
	m.t.Helper()
	for _, i := range is {
		c := &m.configs[i]
		c.DataDir = testkit.MemoryDir(m.t) + fmt.Sprintf("/r%d", i)
		testhooks.In(c).Memory = nil
		check(m.t, lockkeeper.Restore(*c, bytes.NewReader(snapshot)))
	}
}

// Servers 1 to 3 are restored from a snapshot while a member of the cluster before, which has them as members, still runs.
func TestAttackRestoredWhileOldOneCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, withJoin)
		m.add(4, nil)
		m.want("1 2 3 4")
		must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
		snapshot := snapshotOf(t, m.servers[0])
		was := m.of(3)
		for i := range 3 {
			m.net.Kill(host(i))
			m.stop(i)
		}
		m.restoredTo(snapshot, 0, 1, 2)
		for i := range 3 {
			m.start(i)
		}
		for i := range 3 {
			m.ready(m.servers[i])
		}
		awaitVotes(t, m.servers[:3], 3)
		time.Sleep(time.Minute)
		for i := range 3 {
			if m.of(i) != m.of(0) || m.of(i) == was {
				t.Errorf("server %d is of %s, not of %s; the old cluster is %s", i+1, m.of(i), m.of(0), was)
			}
		}
		must(m.connect(2, 10*time.Second).Exists("/x", false))(t)
		// The third one loses its disk, and the old one still has it as a member.
		m.net.Kill(host(2))
		m.stop(2)
		m.configs[2].DataDir += "-empty"
		m.start(2)
		m.ready(m.servers[2])
		awaitVotes(t, m.servers[:3], 3)
		if m.of(2) != m.of(0) {
			t.Errorf("server 3 is of %s, not of %s", m.of(2), m.of(0))
		}
		must(m.connect(2, 10*time.Second).Exists("/x", false))(t)
	})
}

// Two of three are restored, and the third one has only stored that it belongs to the cluster before, or holds the proposal.
func TestAttackStaleIdentity(t *testing.T) {
	for _, agreed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, withJoin)
			must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
			snapshot := snapshotOf(t, m.servers[0])
			for i := range 3 {
				m.net.Kill(host(i))
				m.stop(i)
			}
			s := testhooks.In(&m.configs[0]).Memory.Open()
			of := s.Identity()
			check(t, s.Close())
			m.wipe(2)
			s = testhooks.In(&m.configs[2]).Memory.Open()
			if agreed {
				check(t, s.SetIdentity(storage.Identity{Cluster: of.Cluster, Agreed: true, Since: 3}))
			} else {
				check(t, s.SetIdentity(storage.Identity{Cluster: of.Cluster, First: of.First}))
			}
			check(t, s.Close())
			m.restoredTo(snapshot, 0, 1)
			for i := range 3 {
				m.start(i)
			}
			m.waits(0, time.Minute)
			check(t, m.servers[0].FormCluster(t.Context()))
			m.ready(m.servers[1])
			time.Sleep(time.Minute)
			if is := m.of(2); agreed && is != "" || !agreed && is != m.of(0) {
				t.Errorf("agreed %v: server 3 is of %q; the restored cluster is %s, the one before was %v", agreed, is, m.of(0), of.Cluster)
			}
		})
	}
}

// A member's directory was not emptied as a whole.
func TestAttackLeftoverFiles(t *testing.T) {
	for name, empty := range map[string]func(dir string) error{
		"only raft":             func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft")) },
		"only meta.json":        func(dir string) error { return os.Remove(filepath.Join(dir, "meta.json")) },
		"only the log":          func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft", "wal")) },
		"only files of the log": func(dir string) error { return removeFiles(filepath.Join(dir, "raft", "wal")) },
		"all but directories":   removeFiles,
		"all but the snapshots": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "meta.json")), os.RemoveAll(filepath.Join(dir, "raft", "wal")))
		},
		"all but lost+found": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700))
		},
		"all but a .tmp of meta": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "raft")), os.Rename(filepath.Join(dir, "meta.json"), filepath.Join(dir, "meta.json.tmp")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := startMembers(t, 3, func(c *lockkeeper.Config) {
					withJoin(c)
					if c.ID == 2 {
						c.DataDir = filepath.Join(testkit.MemoryDir(t), "data")
						testhooks.In(c).Memory = nil
					}
				})
				must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
				dir := m.configs[1].DataDir
				m.net.Kill(host(1))
				m.stop(1)
				must(m.connect(0, 10*time.Second).Create("/y", nil, 0))(t)
				check(t, empty(dir))
				s, err := lockkeeper.Open(m.configs[1])
				if err != nil {
					t.Log(err)
					return
				}
				m.servers[1] = s
				m.net.Cut(host(0), host(1), true) // it neither votes nor leads before it has the data
				m.net.Cut(host(1), host(0), true)
				time.Sleep(20 * time.Second)
				m.net.Heal()
				time.Sleep(20 * time.Second)
				if m.of(1) != "" && m.of(1) != m.of(0) {
					t.Errorf("it is of cluster %s, the others of %s", m.of(1), m.of(0))
				}
				for _, path := range []string{"/x", "/y"} {
					must(m.connect(0, 10*time.Second).Exists(path, false))(t)
					if m.of(1) != "" {
						must(m.connect(1, 10*time.Second).Exists(path, false))(t)
					}
				}
				t.Logf("it is of cluster %q, %v", m.of(1), s.Err())
			})
		})
	}
}

// removeFiles removes all files below dir, but no directories.
func removeFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Remove(path)
		}
		return err
	})
}
