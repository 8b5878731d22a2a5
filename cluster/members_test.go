package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

func (b *base) membership() *membership.Membership {
	p := b.pulse
	return membership.New(&membership.Parts{
		Server: &b.cfg.Server, Answers: b.cfg.Answers, Log: b.cfg.Log,
		Lifecycle: b.Lifecycle, Engine: p.engine, Contacts: p.contacts, Digests: p.digests, Leader: b.leader, Replica: b.replica,
		Gate: p.gate, Port: p.peers, Look: p.wake, Now: p.moment,
	})
}

// TestChangeRefused: each change that is not possible is refused with its code, and
// changes nothing.
func TestChangeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1", Observer: true}}
		b := newBase(t, all...)
		m := b.membership()
		nobody := uint64(0)
		for name, x := range map[string]struct {
			q    request.Request
			code proto.Code
		}{
			"remove a stranger":             {request.Request{Remove: 9}, proto.NoNode},
			"an id that is too large":       {request.Request{Add: &proto.Peer{ID: 255, Addr: "c:1"}}, proto.BadArguments},
			"an address without a port":     {request.Request{Add: &proto.Peer{ID: 3, Addr: "c"}}, proto.BadArguments},
			"an address that is taken":      {request.Request{Add: &proto.Peer{ID: 3, Addr: "b:1", Observer: true}}, proto.BadArguments},
			"a voter that is down":          {request.Request{Add: &proto.Peer{ID: 3, Addr: "c:1"}}, proto.NewConfigNoQuorum},
			"a moved member that is down":   {request.Request{Add: &proto.Peer{ID: 2, Addr: "c:1", Observer: true}}, proto.BadArguments},
			"remove the only voter":         {request.Request{Remove: 1}, proto.BadArguments},
			"hand over to an observer":      {request.Request{Transfer: &all[1].ID}, proto.BadArguments},
			"hand over to nobody":           {request.Request{Transfer: &nobody}, proto.BadArguments},
			"a reconfig of another version": {request.Request{Reconfig: &request.Reconfig{Version: 77}}, proto.BadVersion},
			"a reconfig with one voter":     {request.Request{Reconfig: &request.Reconfig{Version: -1, Leaving: []uint64{2}}}, proto.BadArguments},
		} {
			_, err := m.Change(x.q)
			if request.CodeOf(err) != x.code {
				t.Errorf("%s: %v, want code %v", name, err, x.code)
			}
		}
		if now := b.pulse.engine.Members(); !slices.Equal(now, all) {
			t.Errorf("members %v", now)
		}
	})
}

// TestChange: the leader adds an observer, even one that is down, removes it, and knows
// who is a member. A member that does not lead refuses.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		m := b.membership()
		two := proto.Peer{ID: 2, Addr: "b:1", Observer: true}
		r, err := m.Change(request.Request{Add: &two})
		if err != nil || election.Find(r.Status.Members, 2) == nil || r.Status.Role != "leader" {
			t.Fatalf("%+v, %v", r.Status, err)
		}
		if r, err := m.Change(request.Request{Knows: 2}); err != nil || !r.Known {
			t.Errorf("member 2 is known: %v, %v", r.Known, err)
		}
		if r, err = m.Change(request.Request{Remove: 2}); err != nil || election.Find(r.Status.Members, 2) != nil {
			t.Fatalf("%+v, %v", r.Status, err)
		}
		if r, err := m.Change(request.Request{Knows: 2}); err != nil || r.Known {
			t.Errorf("member 2 is known: %v, %v", r.Known, err)
		}
		b.leader.Set(2, "b:1")
		if _, err := m.Change(request.Request{Add: &two}); err != request.ErrNotLeader {
			t.Errorf("while another member leads: %v", err)
		}
	})
}

// TestReconfigInProgress: a client's change is refused while another is under way; an
// operator's waits for it.
func TestReconfigInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		m := b.membership()
		m.Hold()
		_, err := m.Change(request.Request{Reconfig: &request.Reconfig{Version: -1}})
		if request.CodeOf(err) != proto.ReconfigInProgress {
			t.Errorf("a client's: %v", err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := m.Change(request.Request{Add: &proto.Peer{ID: 2, Addr: "b:1", Observer: true}})
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("an operator's did not wait: %v", err)
		default:
			m.Release()
			if err := testkit.Receive(t, "the change", done); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestChangeEndsWithItsTerm: a change that still waits when its leader is replaced is not
// made when that member leads again.
func TestChangeEndsWithItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		members := f.running
		m, other := members[lead], members[(lead+1)%3]
		m.membership.Hold()
		done := make(chan error, 1)
		go func() {
			_, err := m.membership.Change(request.Request{Remove: members[(lead+2)%3].cfg.ID})
			done <- err
		}()
		time.Sleep(time.Second)
		for _, hand := range [][2]*Member{{m, other}, {other, m}} {
			if err := hand[0].engine.HandOver(hand[0].peers.Ctx, hand[1].cfg.ID); err != nil {
				t.Fatal(err)
			}
			until(t, "the next leader", func() bool { return hand[1].Role() == "leader" })
		}
		m.membership.Release()
		if err := testkit.Receive(t, "the change", done); err != request.ErrNotLeader {
			t.Errorf("the change of an earlier term: %v", err)
		}
		if all := m.engine.Members(); len(all) != 3 {
			t.Errorf("the members are %v", all)
		}
	})
}

// TestRemoveWithoutMajority: while one of three members is down, neither of the others can be removed.
// That is said at once: nobody hands over, and no other change has to wait.
func TestRemoveWithoutMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		members := f.running
		m, follower := members[lead], members[(lead+1)%3]
		down := members[(lead+2)%3].cfg
		f.stop((lead + 2) % 3)
		term, _ := m.engine.LeaderTerm()
		for _, x := range []*Member{m, follower} {
			began := time.Now()
			_, err := m.membership.Change(request.Request{Remove: x.cfg.ID})
			if request.CodeOf(err) != proto.NewConfigNoQuorum {
				t.Errorf("removing server %d, where %d leads: %v", x.cfg.ID, m.cfg.ID, err)
			}
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("missing: server %d at %s", down.ID, down.Address())) {
				t.Errorf("removing server %d does not name the one that is down: %v", x.cfg.ID, err)
			}
			if d := time.Since(began); d > timing.PeerTimeout {
				t.Errorf("the refusal took %v", d)
			}
		}
		if now, leads := m.engine.LeaderTerm(); !leads || now != term {
			t.Errorf("term %d is over", term)
		}
	})
}

// TestHandOverNobody: handing over fails, and this member leads on, if no other voter
// has the log.
func TestHandOverNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1", Observer: true})
		if err := b.pulse.engine.HandOver(t.Context()); err == nil || !strings.Contains(err.Error(), "no other member") {
			t.Errorf("%v", err)
		}
		if _, leads := b.pulse.engine.LeaderTerm(); !leads {
			t.Error("it no longer leads")
		}
	})
}

// startFormer has m form its cluster in the background, as Start does.
func (b *base) startFormer(t *testing.T, m *membership.Membership) {
	t.Helper()
	begin, err := m.Belong()
	if err != nil || begin == nil {
		t.Fatal("it forms no cluster", err)
	}
	b.Running.Go(begin)
}

// TestForm: a member whose storage is empty forms the cluster once all of its voters
// are there and have accepted its proposal, and only then opens its gate.
func TestForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.cfg.Peers = listOf(map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"})
		m := b.membership()
		b.startFormer(t, m)
		unformed := func(when string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			if m.Gate.IsOpen() || m.Engine.LastIndex() != 0 {
				t.Fatalf("it has formed a cluster %s", when)
			}
		}
		unformed("by itself")
		var accepts atomic.Bool
		var proposed atomic.Uint64
		fresh := func(id uint64) func(q request.Request) request.Reply {
			return func(q request.Request) request.Reply {
				switch {
				case q.Propose != nil && id == 3 && !accepts.Load():
					return request.Reply{Error: "not now"}
				case q.Propose != nil:
					if q.Propose.To != id || q.Propose.Run != id*10 || q.Propose.State != (request.FirstState{}) {
						t.Errorf("server %d is proposed %+v", id, q.Propose)
					}
					proposed.Store(uint64(q.Propose.Cluster))
				}
				return request.Reply{Status: &request.Status{ID: id, Run: id * 10, Configured: b.cfg.First()}}
			}
		}
		b.answerRequests(t, "b", fresh(2))
		unformed("with a majority")
		b.answerRequests(t, "c", fresh(3))
		unformed("although one has not accepted it")
		before := m.Engine.Storage().Identity()
		if before.Agreed || before.Cluster == 0 || uint64(before.Cluster) != proposed.Load() {
			t.Errorf("the proposal is %v, it holds %+v", proposed.Load(), before)
		}
		accepts.Store(true)
		time.Sleep(5 * time.Second)
		if members := m.Engine.Members(); m.Gate.Cluster() != before.Cluster || !slices.Equal(members, b.cfg.First()) {
			t.Errorf("members %v; in cluster %v", members, m.Gate.Cluster())
		}
	})
}

// TestFormsOnLog: a member that has got a log meanwhile begins no other, and does not say that its disk has failed.
func TestFormsOnLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.cfg.Peers = listOf(map[uint64]string{1: "a:1", 2: "b:1"})
		m := b.membership()
		b.startFormer(t, m)
		time.Sleep(time.Second)
		if err := m.Engine.Bootstrap(b.cfg.First()); err != nil {
			t.Fatal(err)
		}
		b.answerRequests(t, "b", func(q request.Request) request.Reply {
			return request.Reply{Status: &request.Status{ID: 2, Run: 20, Configured: b.cfg.First()}}
		})
		if err := testkit.Receive(t, "a fault", b.Errs); strings.Contains(err.Error(), "cannot write") || m.Gate.IsOpen() {
			t.Error(err)
		}
	})
}

// TestFormStranger: a member whose storage is empty waits to be added if the cluster
// that is running does not have it, and forms no other.
func TestFormStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.cfg.Peers = listOf(map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"})
		b.answerRequests(t, "b", func(q request.Request) request.Reply {
			switch {
			case q.Status:
				return request.Reply{Status: &request.Status{ID: 2, Formed: true, Cluster: testCluster}}
			case q.Add != nil:
				t.Error("it asks for a place")
			}
			return request.Reply{Status: &request.Status{ID: 2}} // it does not know member 1
		})
		m := b.membership()
		b.startFormer(t, m)
		time.Sleep(time.Minute)
		if why := m.Waiting(); !strings.Contains(why, "cluster add") {
			t.Errorf("it waits for %q", why)
		}
		if m.Gate.IsOpen() || m.Engine.LastIndex() != 0 {
			t.Error("it takes part in a cluster")
		}
	})
}

// TestWatchRemoved: a member without a leader asks the others whether it was removed.
// Only the answer of the leader counts.
func TestWatchRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"}, proto.Peer{ID: 2, Addr: "b:1"}, proto.Peer{ID: 3, Addr: "c:1"})
		m := b.membership()
		m.Leader.Set(2, "b:1")
		var asked, leads atomic.Bool
		b.answerRequests(t, "b", func(request.Request) request.Reply {
			asked.Store(true)
			if leads.Load() {
				return request.Reply{} // it does not know member 1
			}
			return request.Reply{Error: "not the leader", NotLeader: true}
		})
		b.Running.Go(m.Watch)
		time.Sleep(10 * time.Second)
		if asked.Load() {
			t.Error("it asks while it has a leader")
		}
		m.Leader.Set(0, "")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case err := <-b.Errs:
			t.Fatal(err)
		default:
		}
		if !asked.Load() {
			t.Error("it has not asked")
		}
		leads.Store(true)
		if err := testkit.Receive(t, "a fault", b.Errs); !errors.Is(err, request.ErrRemoved) {
			t.Error(err)
		}
	})
}

// TestRemovedSoon: a member that was removed stops as soon as the leader sends it nothing any
// more, not only when it takes the leader for lost.
func TestRemovedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 4)
		out := (lead + 1) % 4
		f.tell(lead, request.Request{Remove: uint64(out + 1)})
		began := time.Now()
		if err := testkit.Receive(t, "a fault", f.running[out].Err()); !errors.Is(err, request.ErrRemoved) {
			t.Error(err)
		}
		if took := time.Since(began); took < engine.Farewell || took > engine.Farewell+700*time.Millisecond {
			t.Errorf("it has run for another %v", took)
		}
	})
}

// TestMistakenServerBlocksReconfig: the host of a member has crashed (it does not answer at all), and an empty server is
// started with its id at another address, with --join. It is refused again and again. Clients' reconfigs, which do not
// wait for each other, must not be refused because of that.
func TestMistakenServerBlocksReconfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		c := (lead + 1) % 3
		f.cutOff(c, true)
		f.net.Cut("z", string(rune('a'+c)), true)
		cfg := f.config(c)
		cfg.Peers, cfg.Addr, cfg.Join = nil, "z:1", f.peers[uint64(lead+1)]
		cfg.Network, cfg.Memory = f.net.Host("z"), storage.NewMemory()
		time.Sleep(5 * time.Second)
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Kill()
		time.Sleep(10 * time.Second)
		busy, tried := 0, 0
		for range 200 {
			// A reconfig that is refused for its version, when its turn comes.
			_, err := f.running[lead].membership.Change(request.Request{Reconfig: &request.Reconfig{Version: 1}})
			if request.CodeOf(err) == proto.ReconfigInProgress {
				busy++
			}
			tried++
			time.Sleep(310 * time.Millisecond)
		}
		if t.Logf("%d of %d reconfigs were refused; it waits: %s", busy, tried, m.membership.Waiting()); busy > tried/20 {
			t.Errorf("%d of %d reconfigs were refused", busy, tried)
		}
	})
}

// TestReconfigBesideLostDisk: a member that has lost its disk asks for its place again and again, and cannot be called. A client's
// reconfig waits for that, which is short, and is not refused.
func TestReconfigBesideLostDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dns := named(t, 3)
		f.all(nil)
		f.handTo(0)
		f.lose(1)
		dns.Store("b:1", "z:1")
		f.net.Cut("a", "z", true)
		time.Sleep(5 * time.Second)
		f.start(1)
		for k := range 20 {
			time.Sleep(time.Duration(k) * 37 * time.Millisecond)
			// It is refused for its version, when its turn comes.
			if _, err := f.running[0].membership.Change(request.Request{Reconfig: &request.Reconfig{Version: 1}}); request.CodeOf(err) != proto.BadVersion {
				t.Error(err)
			}
		}
	})
}

// TestAsksItself: a member that is asked for a change, by an embedder or its own client, does not call
// itself at its peer port, whether it leads or not. It is refused there what it would be refused over
// the network, and a member that is closed answers at once.
func TestAsksItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		var no atomic.Bool
		no.Store(true)
		for i := range f.running {
			cfg := f.config(i)
			cfg.Network = refusing{cfg.Network, f.peers[uint64(i+1)], &no} // as on a host that cannot reach itself at the address that the others use
			f.open(i, cfg)
		}
		f.whole()
		for i, m := range f.running {
			other := uint64((i+1)%3 + 1)
			if _, err := m.Ask(t.Context(), request.Request{Transfer: &other}); err != nil {
				t.Fatalf("server %d, asked to make server %d the leader: %v", i+1, other, err)
			}
			for _, by := range f.running {
				_, err := by.Ask(t.Context(), request.Request{Remove: 9})
				_, called := request.Ask(t.Context(), f.net.Host("operator"), f.peers[by.cfg.ID], request.Request{Remove: 9})
				if !errors.Is(err, request.ErrNoMember) || called == nil || err.Error() != called.Error() {
					t.Errorf("server %d, asked directly: %v; over the network: %v", by.cfg.ID, err, called)
				}
			}
			f.whole()
		}
		m := f.running[0]
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.Ask(ctx, request.Request{Remove: 3}); !errors.Is(err, context.Canceled) || errors.Is(err, request.ErrUnknownOutcome) {
			t.Errorf("canceled before: %v", err)
		}
		f.stop(0)
		began := time.Now()
		if _, err := m.Ask(t.Context(), request.Request{Remove: 3}); !errors.Is(err, lifecycle.ErrClosed) || time.Since(began) > 0 {
			t.Errorf("closed: %v, after %v", err, time.Since(began))
		}
	})
}

// TestReconfigUnknown: a client's reconfig adds two servers. When the first one has been added, the leader is replaced: the next
// one is asked again, and refuses, since the list has another version by then. Or the second server ends, so that it is not added.
func TestReconfigUnknown(t *testing.T) {
	for _, how := range []string{"another leader", "lost server"} {
		testkit.Bubble(t, how, func(t *testing.T) {
			f := newFleet(t, 5)
			config := f.found(3)
			for i := 3; i < 5; i++ {
				f.open(i, config(i))
			}
			for _, m := range f.running[:3] {
				<-m.Ready()
			}
			lead := leaderOf(t, f.running[:3])
			l, m := f.running[lead], f.running[(lead+1)%3]
			time.Sleep(5 * time.Second)
			go func() {
				for f.place(lead, 4) == nil {
					time.Sleep(time.Millisecond)
				}
				if how == "lost server" {
					f.stop(4)
				} else {
					l.beginTerm(l.engine.Term() + 1)
				}
			}()
			version := m.membership.ConfigVersion()
			null := proto.Path{Path: jute.Null}
			q := proto.ReconfigRequest{Joining: proto.Path{Path: "server.4=d:1:1;2181,server.5=e:1:1;2181"}, Leaving: null, NewMembers: null, ConfigID: version}
			code, known := m.Reconfigure(q.Append(nil), 10*time.Second)
			time.Sleep(time.Second)
			if now := m.membership.ConfigVersion(); known || now == version {
				t.Errorf("the client is told %v, and the outcome is known: %v; the version of the list was %x, and is %x", code, known, version, now)
			}
		})
	}
}

// TestAddedInVain: an operator adds a voter to three, of which one is down. When the new one has caught up, another one is cut off
// for a moment, so that the new one may stay an observer.
func TestAddedInVain(t *testing.T) {
	refused := 0
	for after := time.Duration(0); after < time.Second; after += 50 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 4)
			config := f.found(3)
			for _, m := range f.running[:3] {
				<-m.Ready()
			}
			f.open(3, config(3))
			lead := leaderOf(t, f.running[:3])
			time.Sleep(5 * time.Second)
			f.stop((lead + 1) % 3)
			end := f.stuck(3)
			go func() {
				until(t, "the new member", func() bool { return f.place(lead, 4) != nil })
				time.Sleep(after)
				f.cutOff((lead+2)%3, true)
				end(nil)
				time.Sleep(1500 * time.Millisecond)
				f.cutOff((lead+2)%3, false)
			}()
			err := f.ask(lead, request.Request{Add: &proto.Peer{ID: 4, Addr: f.peers[4]}})
			x := f.place(lead, 4)
			switch {
			case x == nil || x.Observer && err == nil:
				t.Errorf("%v: %v, and the new server is %+v", after, err, x)
			case err != nil && !errors.Is(err, request.ErrUnknownOutcome):
				t.Errorf("%v: %v, but the new server was added", after, err)
			case x.Observer:
				refused++
			}
		})
	}
	if refused == 0 {
		t.Error("the new server always gets its vote")
	}
}

// TestReconfigRefusedHalfway: a client's reconfig removes two of four servers. One that stays lags, so the first removal is possible
// without it, and the second is not.
func TestReconfigRefusedHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 4)
		l, id := f.running[lead], func(i int) int { return (lead+i)%4 + 1 }
		end := f.stuck(id(1) - 1)
		if !f.write(lead) {
			t.Fatal("no write")
		}
		null, version := proto.Path{Path: jute.Null}, l.membership.ConfigVersion()
		q := proto.ReconfigRequest{Joining: null, Leaving: proto.Path{Path: fmt.Sprintf("%d,%d", id(2), id(3))}, NewMembers: null, ConfigID: version}
		code, known := l.Reconfigure(q.Append(nil), 3*time.Second)
		if now := l.membership.ConfigVersion(); known || now == version {
			t.Errorf("the client is told %v, and the outcome is known: %v; the version of the list was %x, and is %x", code, known, version, now)
		}
		end(nil)
	})
}
