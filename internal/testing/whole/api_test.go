package whole

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestWait: Wait returns when the server is ready, has a fault or is closed, or when its
// context ends. A fault reaches all callers of Wait and the reader of Err.
func TestWait(t *testing.T) {
	// waiting calls Wait with a context that does not end.
	waiting := func(s *lockkeeper.Server) chan error {
		got := make(chan error, 1)
		go func() { got <- s.Wait(context.Background()) }()
		synctest.Wait()
		return got
	}
	t.Run("ready", func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Wait(done); err != nil {
			t.Errorf("on a server that is ready: %v", err)
		}
		check(t, s.Close())
		if err := s.Wait(t.Context()); err != lockkeeper.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
	t.Run("not ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := lockkeeper.Config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:7000"}}}
			testhooks.In(&cfg).Network = memnet.New().Host("host1") // without the other
			s := must(lockkeeper.Open(cfg))(t)
			got := waiting(s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			says := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for server 2 at host2:7000") {
					t.Errorf("%s: %v", what, err)
				}
			}
			says("after an hour", s.Wait(ctx))
			_, err := s.Dial("", "", time.Second)
			says("Dial", err)
			says("AddMember", s.AddMember(ctx, lockkeeper.Peer{ID: 3, Addr: "host3:7000"}))
			check(t, s.Close())
			if err := <-got; err != lockkeeper.ErrClosed {
				t.Errorf("closed meanwhile: %v", err)
			}
		})
	})
	t.Run("fault", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg, full := withMemory(lockkeeper.Config{}), make(chan struct{})
			s := must(lockkeeper.Open(cfg))(t) // forms the cluster, which writes
			check(t, s.Close())
			testhooks.In(&cfg).Memory.SetFault(func() error { <-full; return syscall.ENOSPC })
			s = must(lockkeeper.Open(cfg))(t)
			defer s.Close()
			got, again := waiting(s), waiting(s)
			close(full)
			for _, c := range []<-chan error{got, again, fault(s), waiting(s)} {
				if err := <-c; !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("got %v", err)
				}
			}
			if _, err := s.Dial("", "", 0); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Dial: %v", err)
			}
		})
	})
}

// TestStatus checks the status of a leader, a follower and an observer of one cluster,
// and of a standalone server.
func TestStatus(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Peers[2].Observer = true }, func(t *testing.T, m *members) {
		lead := m.leader()
		time.Sleep(time.Minute)
		c, other := m.connect(lead, 10*time.Second), m.connect(2, 10*time.Second)
		must(c.Create("/a", []byte("data"), 0))(t)
		must(c.Create("/e", nil, proto.FlagEphemeral))(t)
		must(other.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
		must(other.Get("/a", true))(t)
		eventually(t, "the follower's log", func() bool { return m.servers[0].Status().State.Index == m.servers[1].Status().State.Index })

		members := []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:7000"}, {ID: 3, Addr: "host3:7000", Observer: true}}
		roles := []lockkeeper.Role{lockkeeper.RoleFollower, lockkeeper.RoleFollower, lockkeeper.RoleObserver}
		roles[lead] = lockkeeper.RoleLeader
		first := m.servers[0].Status()
		for i, s := range m.servers {
			x := s.Status()
			if id, err := strconv.ParseUint(x.Cluster.ID, 16, 64); err != nil || id == 0 || len(x.Cluster.ID) != 16 || x.Cluster.ID != first.Cluster.ID || x.Cluster.Differs != nil {
				t.Errorf("server %d is of cluster %q, server 1 of %q; %v differ", i+1, x.Cluster.ID, first.Cluster.ID, x.Cluster.Differs)
			}
			if x.ID != uint64(i+1) || x.Role != roles[i] || x.Role != s.Role() || x.Cluster.Leader != uint64(lead+1) || !x.Serving || x.ReadOnly {
				t.Errorf("server %d: %+v", i+1, x)
			}
			if !slices.Equal(x.Cluster.Members, members) || !slices.Equal(s.Members(), members) {
				t.Errorf("server %d has the members %+v", i+1, x.Cluster.Members)
			}
			if leads := i == lead; leads != (x.Cluster.Leads >= time.Minute) || leads != (x.Cluster.Followers == 1) || leads != (x.Cluster.Observers == 1) {
				t.Errorf("server %d leads for %v, with %d followers and %d observers", i+1, x.Cluster.Leads, x.Cluster.Followers, x.Cluster.Observers)
			}
			if x.Uptime < time.Minute || x.State.Term == 0 || x.State.Index != first.State.Index || x.State.Zxid != first.State.Zxid || x.State.Digest != first.State.Digest {
				t.Errorf("server %d: %+v, but server 1 has %+v", i+1, x, first)
			}
			// The other znodes are /, /zookeeper, /zookeeper/quota and /zookeeper/config.
			if x.State.Znodes != 6 || x.State.Ephemerals != 1 || x.State.DataBytes < 4 || x.State.Sessions != 2 {
				t.Errorf("server %d has the state %+v", i+1, x)
			}
		}
		if x := m.servers[lead].Status(); x.Clients.Connections != 1 || x.Clients.Watches != 0 || x.Clients.Requests != 3 || x.Clients.Replies != 3 || x.Clients.Outstanding != 0 || x.Clients.MinLatency > x.Clients.AvgLatency || x.Clients.AvgLatency > x.Clients.MaxLatency {
			t.Errorf("the leader's clients: %+v", x)
		}
		if x := m.servers[2].Status(); x.Clients.Connections != 1 || x.Clients.Watches != 1 || x.Clients.Requests != 3 {
			t.Errorf("the observer's clients: %+v", x)
		}

		for i, s := range m.servers {
			x := s.Status()
			want := lockkeeper.MemberStatus{ID: x.ID, Role: x.Role, Leader: x.Cluster.Leader, Cluster: x.Cluster.ID, Term: x.State.Term, Index: x.State.Index, Zxid: x.State.Zxid}
			for _, by := range m.servers {
				if got, err := by.MemberStatus(t.Context(), uint64(i+1)); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("member %d says %+v, %v; its status is %+v", i+1, got, err, want)
				}
			}
		}
		if _, err := m.servers[0].MemberStatus(t.Context(), 9); err == nil {
			t.Error("a member that does not exist has a status")
		}

		for _, i := range []int{(lead + 1) % 2, 2} {
			m.kill(i)
		}
		time.Sleep(time.Minute)
		if x := m.servers[lead].Status(); x.Role != lockkeeper.RoleLooking || x.Cluster.Leader != 0 || x.Serving || x.Clients.Connections != 0 || x.Cluster.Leads != 0 {
			t.Errorf("without a majority: %+v", x)
		}
		if x, err := m.servers[lead].MemberStatus(t.Context(), uint64(lead+1)); err != nil || x.Role != lockkeeper.RoleLooking {
			t.Errorf("without a majority, a member says %+v, %v", x, err)
		}
		if x, err := m.servers[lead].MemberStatus(t.Context(), 3); err == nil {
			t.Errorf("a member that was stopped says %+v", x)
		}

		s := open(t, lockkeeper.Config{})
		if x := s.Status(); x.ID != 1 || x.Role != lockkeeper.RoleStandalone || x.Cluster.Leader != 1 || !x.Serving || x.Cluster.Members != nil || x.State.Znodes != 4 {
			t.Errorf("a standalone server: %+v", x)
		}
		check(t, s.Close())
		if x := s.Status(); x.Serving || x.State.Znodes != 4 {
			t.Errorf("a closed server: %+v", x)
		}
	})
}

// TestChangeMembers transfers the leadership, and adds and removes servers, through a
// member that does not lead.
func TestChangeMembers(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		ctx := t.Context()
		lead := m.leader()
		by := m.servers[(lead+1)%3]
		stop := m.busy(m.connect((lead+1)%3, 10*time.Second))
		leads := func(id uint64) {
			t.Helper()
			eventually(t, fmt.Sprintf("server %d as the leader", id), func() bool { return m.servers[id-1].Role() == lockkeeper.RoleLeader })
		}

		to := uint64((lead+2)%3 + 1)
		check(t, by.Transfer(ctx, to))
		leads(to)
		check(t, by.Transfer(ctx, 0))
		eventually(t, "another leader", func() bool { return by.Status().Cluster.Leader != to && by.Status().Cluster.Leader != 0 })
		if err := by.Transfer(ctx, 9); err == nil || !strings.Contains(err.Error(), "server 9 is not a member") {
			t.Errorf("transfer to a server that does not exist: %v", err)
		}

		m.startWaiting(4)
		for _, p := range []lockkeeper.Peer{{ID: 4, Addr: "host4:7000", Observer: true}, {ID: 4, Addr: "host4:7000"}} {
			check(t, by.AddMember(ctx, p))
			m.ready(m.servers[3])
			eventually(t, "the new member", func() bool { return slices.Contains(by.Members(), p) })
		}
		if err := by.AddMember(ctx, lockkeeper.Peer{ID: 4, Addr: "host9:7000"}); err == nil {
			t.Error("two servers got the same id")
		}
		four := m.servers[3]
		check(t, four.RemoveMember(ctx, 4))
		if err := <-fault(four); !errors.Is(err, lockkeeper.ErrRemoved) {
			t.Errorf("the fault of a removed server: %v", err)
		}
		if err := four.Wait(ctx); !errors.Is(err, lockkeeper.ErrRemoved) {
			t.Errorf("Wait of a removed server: %v", err)
		}
		eventually(t, "three members", func() bool { return len(by.Members()) == 3 })
		for _, id := range []uint64{0, 4} {
			if err := by.RemoveMember(ctx, id); err == nil {
				t.Errorf("server %d was removed", id)
			}
		}
		// A leader can remove itself.
		lead = m.leader()
		if m.servers[lead] == by {
			check(t, by.Transfer(ctx, 0))
			eventually(t, "another leader", func() bool { lead = m.leader(); return m.servers[lead] != by })
		}
		check(t, m.servers[lead].RemoveMember(ctx, uint64(lead+1)))
		m.removed(lead)
		if n := stop(); n == 0 {
			t.Error("nothing was written")
		}

		// Without a majority Transfer waits until its context ends.
		for i, s := range m.servers {
			if s != nil && s != by {
				m.kill(i)
			}
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := by.Transfer(short, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("without a majority: %v after %v", err, time.Since(began))
		}
		ended := make(chan error, 1)
		go func() { ended <- by.Transfer(ctx, 0) }()
		synctest.Wait()
		check(t, by.Close())
		if err := <-ended; !errors.Is(err, lockkeeper.ErrClosed) {
			t.Errorf("closed meanwhile: %v", err)
		}
		s := open(t, lockkeeper.Config{})
		for _, err := range []error{s.Transfer(ctx, 0), s.AddMember(ctx, lockkeeper.Peer{ID: 2, Addr: "host2:7000"}), s.RemoveMember(ctx, 1)} {
			if err == nil || !strings.Contains(err.Error(), "standalone") {
				t.Errorf("a standalone server: %v", err)
			}
		}
	})
}

// TestEndSession: any member ends any session of the cluster. Without a majority, EndSession
// blocks until its context ends or the server is closed.
func TestEndSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		m := startMembers(t, 3, nil)
		owner, watcher := m.connect(0, time.Minute), m.connect(1, time.Minute)
		must(owner.Create("/e", nil, proto.FlagEphemeral))(t)
		time.Sleep(time.Second) // until each member has applied it
		must(watcher.Exists("/e", true))(t)
		by := m.servers[2]
		check(t, by.EndSession(ctx, owner.Session.SessionID))
		if f := must(watcher.Read())(t); f.Xid != proto.XidEvent {
			t.Errorf("instead of an event: %+v", f)
		}
		if _, err := owner.Read(); err == nil {
			t.Error("the connection of the session continues")
		}
		if err := by.EndSession(ctx, owner.Session.SessionID); !errors.Is(err, lockkeeper.ErrNoSession) || !strings.Contains(err.Error(), fmt.Sprintf("%#x", uint64(owner.Session.SessionID))) {
			t.Errorf("once more: %v", err)
		}
		for i, s := range m.servers {
			if s != by {
				m.kill(i)
			}
		}
		time.Sleep(10 * time.Second) // until it knows that there is no majority
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := by.EndSession(short, watcher.Session.SessionID); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("without a majority: %v after %v", err, time.Since(began))
		}
		ended := make(chan error, 1)
		go func() { ended <- by.EndSession(ctx, watcher.Session.SessionID) }()
		synctest.Wait()
		check(t, by.Close())
		if err := <-ended; !errors.Is(err, lockkeeper.ErrClosed) {
			t.Errorf("closed meanwhile: %v", err)
		}
	})
}
