package whole

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestFormCluster: two of three servers wait for the third, until an operator lets them form
// the cluster without it. It joins later.
func TestFormCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		m := newMembers(t, 3, nil)
		defer m.close()
		m.start(0)
		if err := m.servers[0].FormCluster(t.Context()); err == nil || !strings.Contains(err.Error(), "only 1 of 3") {
			t.Errorf("one of three: %v", err)
		}
		m.start(1)
		time.Sleep(time.Minute)
		for i, s := range m.servers[:2] {
			if st := s.Status(); st.Cluster.ID != "" || st.Serving || st.Role != lockkeeper.RoleLooking {
				t.Errorf("server %d, before the cluster is formed: %+v", i+1, st)
			}
		}
		check(t, m.servers[1].FormCluster(t.Context()))
		m.ready(m.servers[0])
		m.ready(m.servers[1])
		for i, s := range m.servers[:2] {
			if err := s.FormCluster(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to cluster "+s.Status().Cluster.ID) {
				t.Errorf("server %d forms it again: %v", i+1, err)
			}
		}
		m.serve(2)
		awaitVotes(t, m.servers, 3)
		for i, s := range m.servers {
			if of, first := s.Status().Cluster.ID, m.servers[0].Status().Cluster.ID; of == "" || of != first {
				t.Errorf("server %d is of cluster %q, server 1 of %q", i+1, of, first)
			}
		}
	})
}

// TestFormClusterRefused: FormCluster is for a server that has a list of members.
func TestFormClusterRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := open(t, lockkeeper.Config{}).FormCluster(t.Context()); err == nil || !strings.Contains(err.Error(), "standalone") {
			t.Errorf("a standalone server: %v", err)
		}
		m := newMembers(t, 1, func(c *lockkeeper.Config) { c.PeerAddr, c.Peers = host(0)+":7000", nil })
		defer m.close()
		m.start(0)
		if err := m.servers[0].FormCluster(t.Context()); err == nil || !strings.Contains(err.Error(), "without a list of members") {
			t.Errorf("a server that waits to be added: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.servers[0].FormCluster(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("with a canceled context: %v", err)
		}
	})
}

// TestClusterOfOne: a standalone server has an id from its first start on, and a server whose
// snapshot was restored gets one of its own.
func TestClusterOfOne(t *testing.T) {
	cfg := lockkeeper.Config{DataDir: testkit.MemoryDir(t) + "/data"}
	of := ""
	for range 2 {
		s := must(lockkeeper.Open(cfg))(t)
		check(t, ready(s))
		if st := s.Status(); len(st.Cluster.ID) != 16 || of != "" && st.Cluster.ID != of {
			t.Errorf("its id is %q, and was %q", st.Cluster.ID, of)
		} else {
			of = st.Cluster.ID
		}
		check(t, s.Close())
	}
	snapshot := snapshotOf(t, open(t, cfg))
	restored := lockkeeper.Config{DataDir: testkit.MemoryDir(t) + "/restored"}
	check(t, lockkeeper.Restore(restored, strings.NewReader(string(snapshot))))
	if got := open(t, restored).Status().Cluster.ID; len(got) != 16 || got == of {
		t.Errorf("the restored one has the id %q, the other %q", got, of)
	}
}

// TestDiffers: the leader's status names a member whose state differs, the others say so too
// when they are asked, and that member stops with ErrDiffers.
func TestDiffers(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		bad := (lead + 1) % 3
		synctest.Wait() // so that nobody reads the state meanwhile
		testhooks.Of(m.servers[bad]).View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: 1 << 40}) })
		must(m.connect(lead, 10*time.Second).Create("/x", nil, 0))(t)
		select {
		case err := <-fault(m.servers[bad]):
			if !errors.Is(err, lockkeeper.ErrDiffers) || strings.Contains(err.Error(), "\n") {
				t.Errorf("its fault is %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it does not stop")
		}
		for i, s := range m.servers {
			if st := s.Status(); i == lead && (len(st.Cluster.Differs) != 1 || st.Cluster.Differs[0].ID != uint64(bad+1) || st.Cluster.Differs[0].Index == 0) || i != lead && st.Cluster.Differs != nil {
				t.Errorf("server %d says that %v differ; the leader is %d", i+1, st.Cluster.Differs, lead+1)
			}
		}
		if st, err := m.servers[3-lead-bad].MemberStatus(t.Context(), uint64(lead+1)); err != nil || len(st.Differs) != 1 || st.Differs[0].ID != uint64(bad+1) {
			t.Errorf("the leader says %+v, %v", st, err)
		}
	})
}
