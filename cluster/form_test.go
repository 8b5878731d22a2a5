package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestFormedOnce: two of three members whose disks are empty do not form the cluster a second
// time, whatever the third has stored.
func TestFormedOnce(t *testing.T) {
	for _, third := range []string{"never started", "formed, and then down"} {
		testkit.Bubble(t, third, func(t *testing.T) {
			f := newFleet(t, 3)
			f.start(0)
			f.start(1)
			time.Sleep(20 * time.Second)
			if f.write(0) || f.write(1) {
				t.Fatal("two members have formed a cluster without the third")
			}
			f.start(2)
			f.whole()
			if third == "never started" { // as if it had never come: it has stored nothing
				f.lose(2)
			} else {
				f.stop(2)
			}
			f.writes(0, 1)
			f.stop(0)
			f.lose(1) // with the above, two disks are lost; without, one is
			f.start(1)
			f.start(2)
			time.Sleep(time.Minute)
			if f.write(1) || f.write(2) {
				t.Error("members without the first one's data acknowledge a write")
			}
			f.start(0)
			if third == "never started" {
				time.Sleep(time.Minute)
				if f.write(0) {
					t.Error("a member alone acknowledges a write")
				}
				for i, m := range f.running[1:] {
					if m.pulse.gate.IsOpen() {
						t.Errorf("member %d, which has lost its disk, is in a cluster", i+2)
					}
				}
				return
			}
			f.whole()
			f.check()
		})
	}
}

// TestFormByWord: an operator lets a majority form the cluster; the third member joins it
// later, and two members without data do not form another one.
func TestFormByWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.start(1)
		form := func(i int) error { return f.ask(i, request.Request{Form: true}) }
		observed := newFleet(t, 3)
		cfg := observed.config(2)
		observe(&cfg, 3)
		observed.open(2, cfg)
		if err := observed.ask(2, request.Request{Form: true}); err == nil || !strings.Contains(err.Error(), "does not vote") {
			t.Errorf("an observer: %v", err)
		}
		if err := form(1); err == nil || !strings.Contains(err.Error(), "only 1 of 3") {
			t.Errorf("one of three: %v", err)
		}
		f.start(2)
		time.Sleep(time.Second)
		if err := form(1); err != nil {
			t.Fatal(err)
		}
		until(t, "a write", func() bool { return f.write(1) })
		if err := form(2); err == nil {
			t.Error("the cluster is formed twice")
		}
		f.stop(1)
		f.lose(2)
		f.start(2)
		f.start(0)
		time.Sleep(time.Minute)
		if f.write(0) || f.write(2) {
			t.Error("members without data acknowledge a write")
		}
		f.lose(2) // as it was
		f.stop(0)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.start(1)
		f.start(2)
		time.Sleep(time.Second)
		f.tell(1, request.Request{Form: true})
		until(t, "a write", func() bool { return f.write(2) })
		time.Sleep(30 * time.Second)
		if n := f.log.Count("this member's data is empty"); n > 0 {
			t.Errorf("a member that has formed the cluster joins it:\n%s", f.log.String())
		}
		f.start(0)
		f.whole()
		f.check()
	})
}

// TestAcceptedBeforeStart: a server that has accepted a proposal keeps it for a while, also when it starts again: the proposer may
// agree by that, and needs only a majority if an operator lets it. Otherwise it could agree alone, for good.
func TestAcceptedBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		propose := func(from uint64, id request.ClusterID) error {
			synctest.Wait() // it may just be deciding what to do
			m := f.running[2]
			s := m.membership.Status()
			_, err := m.membership.Change(request.Request{Propose: &request.Proposal{Cluster: id, From: from, To: 3, Run: s.Run, Members: s.Configured}})
			return err
		}
		f.start(2)
		if err := propose(2, 7); err != nil {
			t.Fatal(err)
		}
		f.stop(2)
		f.start(2)
		if err := propose(1, 8); err == nil {
			t.Error("it accepts another proposal at once")
		}
		if err := propose(2, 7); err != nil {
			t.Error("the same proposal:", err)
		}
		f.stop(2)
		f.start(2)
		time.Sleep(3*timing.PeerTimeout + time.Second)
		if err := propose(1, 8); err != nil {
			t.Error("another one, later:", err)
		}
	})
}

// TestProposerLostAfterCall: the server that forms the cluster has agreed, and has called the others, when it loses its disk. They
// have not asked it since. It comes back empty, and the cluster is formed.
func TestProposerLostAfterCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.net.SetDelay(func(from, to string) time.Duration { return 20 * time.Millisecond })
		f.start(1)
		f.start(2)
		time.Sleep(10 * time.Second)
		f.start(0)
		called := func(m *Member) bool { return m.membership.WasCalled() }
		for !called(f.running[1]) || !called(f.running[2]) {
			time.Sleep(time.Millisecond)
		}
		f.net.Kill("a")
		f.lose(0)
		time.Sleep(time.Second)
		f.start(0)
		time.Sleep(10 * time.Minute)
		f.acknowledges(0, 1, 2)
		for i, m := range f.running {
			if why := m.Waiting(); why != "" {
				t.Errorf("server %d waits: %s", i+1, why)
			}
		}
	})
}

// TestFormWithAnotherList: a proposal that was made with another list of members does not
// become the cluster's id, nor does that list begin its log.
func TestFormWithAnotherList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier := newFleet(t, 3)
		f := newFleet(t, 2)
		for i := range f.disks {
			if err := f.disks[i].Open().SetIdentity(storage.Identity{Cluster: testCluster, First: ptr(earlier.config(i)).First()}); err != nil {
				t.Fatal(err)
			}
			f.start(i)
		}
		f.whole()
		if of := f.running[0].pulse.gate.Cluster(); of == testCluster {
			t.Error("it has the id that was proposed with another list")
		}
	})
}

// TestFormInAnyOrder starts, stops and kills members, and takes their disks, in a random order,
// before, while and after they form their cluster. Of the disks, a minority is lost at a time. In half of the runs there are
// also five servers, of which two may not be in the list, and join; members that an operator removes, and that come back
// empty, to be added by him if they are in the list; slow links, and cuts.
func TestFormInAnyOrder(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 40
	if testkit.Nightly {
		runs = 600
	}
	seed := testkit.Seed(t)
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			size, kinds := 3, 9
			if run%2 == 1 {
				size, kinds = 3+2*r.IntN(2), 13
			}
			f := newFleet(t, size)
			if kinds > 9 && r.IntN(3) == 0 {
				f.net.SetDelay(func(string, string) time.Duration { return 30 * time.Millisecond })
			}
			listed := size - 2*r.IntN(size/2) // 3 or 5
			removed := map[uint64]bool{}
			open := func(i int) {
				cfg := f.config(i)
				cfg.Peers = slices.DeleteFunc(cfg.Peers, func(x proto.Peer) bool { return x.ID > uint64(listed) })
				if i >= listed {
					cfg = f.joins(i, 2)
				}
				f.open(i, cfg)
			}
			whole := func() {
				f.net.Heal()
				for id := range removed {
					until(t, "its addition", func() bool {
						return f.place(leadOf(t, f), id) != nil || f.ask(leadOf(t, f), request.Request{Add: &proto.Peer{ID: id, Addr: f.peers[id]}}) == nil
					})
				}
				clear(removed)
				f.whole()
			}
			var lost []int // whose disk is lost, until all are well again
			var did []string
			note := func(what string, i int) { did = append(did, fmt.Sprint(what, " ", i+1)) }
			for range 10 + r.IntN(40) {
				i, j := r.IntN(size), r.IntN(size)
				mayLose := len(lost) < (listed-1)/2 || slices.Contains(lost, i)
				lose := func() {
					f.lose(i)
					if !slices.Contains(lost, i) {
						lost = append(lost, i)
					}
				}
				switch n := r.IntN(kinds); {
				case n < 4 && f.running[i] == nil:
					open(i)
					note("start", i)
				case n < 6:
					f.stop(i)
					note("stop", i)
				case n == 6 && mayLose:
					lose()
					note("lose", i)
				case n == 7 && !slices.Contains(f.running, nil):
					whole()
					lost = nil
					did = append(did, "all well")
				case n == 9 && mayLose && f.running[j] != nil && i != j:
					_, err := f.running[j].Ask(t.Context(), request.Request{Remove: uint64(i + 1)})
					note(fmt.Sprintf("remove (%v)", err), i)
					lose() // whether it was removed or not
					if i < listed {
						removed[uint64(i+1)] = true
					}
				case n == 10 && i != j:
					f.cutBetween(i, j, true)
					note("cut", i)
				case n == 11:
					f.net.Heal()
				default:
					f.write(i)
				}
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
				var of request.ClusterID
				for _, m := range f.running {
					if m == nil || !m.pulse.gate.IsOpen() {
						continue
					}
					if is := m.pulse.gate.Cluster(); of != 0 && is != of {
						t.Errorf("there are two clusters, %v and %v", of, is)
					} else {
						of = is
					}
				}
			}
			for i, m := range f.running {
				if m == nil {
					open(i)
				}
			}
			whole()
			f.check()
			for i, m := range f.running {
				if err := fault(m, 0); err != nil {
					t.Errorf("member %d: %v", i+1, err)
				}
			}
			if t.Failed() {
				t.Errorf("run %d, %d of %d in the list: %v", run, listed, size, did)
			}
		})
	}
}

// TestRestoreInAnyOrder: an operator restores three servers from snapshots that may differ, starts and stops them, restores
// another snapshot where no cluster was formed, or on one lost disk, and asks a majority to form the cluster, all in any order,
// over links that are slow and cut.
// No acknowledged write is lost, and all members of the cluster begin with the same state.
func TestRestoreInAnyOrder(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 16
	if testkit.Nightly {
		runs = 400
	}
	seed, formed := testkit.Seed(t), 0
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			f := newFleet(t, 3)
			f.asked = 100
			var did []string
			defer func() {
				if t.Failed() {
					t.Errorf("run %d: %v", run, did)
				}
			}()
			restore := func(i int) {
				f.lose(i)
				n := []int{0, 1, 2, 2, 2, 2, 2, 2, 2, 3}[r.IntN(10)] // mostly the same one
				if n < 3 {                                           // otherwise it is left empty
					f.restored(i, []uint64{9, 12, 12}[n], int64(1+n))
				}
				did = append(did, fmt.Sprintf("restore %d on %d", n, i+1))
			}
			of := func(i int) request.ClusterID { return f.disks[i%3].Open().Identity().Cluster } // perhaps only proposed
			for i := range 3 {
				restore(i)
			}
			slow := time.Duration(r.IntN(60)) * time.Millisecond
			f.net.SetDelay(func(string, string) time.Duration { return slow })
			lost := -1
			for range 10 + r.IntN(40) {
				i := r.IntN(3)
				switch n := r.IntN(14); {
				case n < 4 && f.running[i] == nil:
					f.start(i)
					did = append(did, fmt.Sprint("start ", i+1))
				case n < 6:
					f.stop(i)
					did = append(did, fmt.Sprint("stop ", i+1))
				case n < 8:
					f.stop(i)
					switch own, next, last := of(i), of(i+1), of(i+2); {
					case own == 0 && next == 0 && last == 0: // nobody has begun to form a cluster
						restore(i)
					case (lost < 0 || lost == i) && next == last && next != 0: // the others are a majority
						lost = i
						restore(i)
					}
				case n == 8 && f.running[i] != nil:
					err := f.ask(i, request.Request{Form: true})
					did = append(did, fmt.Sprintf("form on %d: %v", i+1, err))
				case n == 9:
					f.cutBetween(i, r.IntN(3), true)
				case n == 10:
					f.net.Heal()
				default:
					f.write(i)
				}
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
			}
			f.net.Heal()
			for i, m := range f.running {
				if m == nil {
					f.start(i)
				}
			}
			time.Sleep(time.Minute)
			in := func(m *Member) bool { return m.pulse.gate.IsOpen() }
			if slices.ContainsFunc(f.running, in) {
				formed++
				for i, m := range f.running {
					if !in(m) { // as it says
						f.lose(i)
						f.start(i)
					}
				}
			} else {
				for i := range 3 {
					f.lose(i)
					f.restored(i, 9, 1)
				}
				for i := range 3 {
					f.start(i)
				}
			}
			f.whole()
			f.check()
			for i, m := range f.running {
				if err := fault(m, 0); err != nil {
					t.Errorf("member %d: %v", i+1, err)
				}
			}
		})
	}
	if formed < runs/10 {
		t.Errorf("a cluster was formed in %d of %d runs only", formed, runs)
	}
}

// TestWordWhileFirstStarts: an operator lets servers 2 and 3 form the cluster, since server 1 does not start. It starts just
// then after all, and proposes an id as well. The cluster serves clients.
func TestWordWhileFirstStarts(t *testing.T) {
	testkit.SlowUnderRace(t)
	const round = 20 * time.Millisecond
	for _, restored := range []bool{false, true} {
		for late := time.Duration(0); late < 2*round; late += round / 5 {
			testkit.Bubble(t, fmt.Sprintf("restored %v, %v later", restored, late), func(t *testing.T) {
				f := newFleet(t, 3)
				f.asked = 100
				f.net.SetDelay(func(from, to string) time.Duration { return round / 2 })
				for i := range 3 {
					if restored {
						f.restored(i, 9, 1)
					}
					if i > 0 {
						f.start(i)
					}
				}
				time.Sleep(10 * time.Second)
				word := make(chan error, 1)
				go func() {
					_, err := f.running[1].membership.Change(request.Request{Form: true})
					word <- err
				}()
				time.Sleep(late)
				f.start(0)
				err := <-word
				time.Sleep(time.Minute)
				if f.write(0) || f.write(1) || f.write(2) {
					return
				}
				t.Errorf("a minute after the word (%v), with all servers up, nobody acknowledges a write", err)
				for i, m := range f.running {
					x := m.engine.Storage().Identity()
					t.Logf("server %d: cluster %v, agreed %v, waits since %q", i+1, x.Cluster, x.Agreed, m.Waiting())
				}
			})
		}
	}
}

// replaced is a fleet of five: servers 1 to 3 have formed the cluster, 4 and 5 were added, and those in out removed.
func replaced(t *testing.T, out ...int) (f *fleet, config func(i int) Config) {
	t.Helper()
	f = newFleet(t, 5)
	config = f.found(3)
	for i := 3; i < 5; i++ {
		f.open(i, f.joins(i, 0))
	}
	f.whole()
	for _, i := range out {
		f.tell(4, request.Request{Remove: uint64(i + 1)})
		fault(f.running[i], time.Minute)
		f.stop(i)
	}
	return f, config
}

// TestListOfThePast: of servers 1 to 3, which have formed the cluster, 1 and 3 were removed, and come back empty. At the same
// time server 2, a member, loses its disk. All of the list are empty, and form no other cluster, since server 2 is called
// before the last one of them is started; an operator's word, whichever of them gets it, does not change that.
func TestListOfThePast(t *testing.T) {
	for _, last := range []int{0, 2} {
		testkit.Bubble(t, fmt.Sprint("last ", last+1), func(t *testing.T) {
			f, config := replaced(t, 0, 2)
			of := f.running[3].pulse.gate.Cluster()
			f.lose(1)
			for k := range 3 {
				i := (last + 1 + k) % 3
				f.lose(i)
				f.open(i, config(i))
				time.Sleep(5 * time.Second)
			}
			time.Sleep(time.Minute)
			for i := range 3 {
				if err := f.ask(i, request.Request{Form: true}); err == nil || !strings.Contains(err.Error(), "calls this server as a member") {
					t.Errorf("the operator is told %v", err)
				}
			}
			for i, m := range f.running[:3] {
				if is := m.pulse.gate.Cluster(); is != 0 && is != of {
					t.Errorf("server %d is in %v; cluster %v exists", i+1, is, of)
				}
			}
			f.writes(3, 1)
		})
	}
}

// TestListOfThePastOnly is TestListOfThePast for a cluster whose other members are lost for a while once they have called
// server 2, and only then the removed ones come back: there is no second cluster when the others return. If server 2 was
// removed meanwhile, too, the servers of the list form a new one.
func TestListOfThePastOnly(t *testing.T) {
	for _, removed := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprint("removed ", removed), func(t *testing.T) {
			f, config := replaced(t, 0, 2)
			of := f.running[3].pulse.gate.Cluster()
			f.lose(1)
			m := f.open(1, config(1))
			until(t, "a call", func() bool { return m.membership.WasCalled() })
			if removed {
				f.tell(3, request.Request{Remove: 2})
			} else {
				f.stop(3)
				f.stop(4)
			}
			time.Sleep(time.Minute)
			for _, i := range []int{0, 2} {
				f.lose(i)
				f.open(i, config(i))
			}
			time.Sleep(time.Minute)
			for i, m := range f.running[:3] {
				if is := m.pulse.gate.Cluster(); (is != 0 && is != of) != removed {
					t.Errorf("server %d is in %v; cluster %v exists; it waits: %s", i+1, is, of, m.Waiting())
				}
			}
			if !removed {
				f.open(3, config(3))
				f.open(4, config(4))
			}
			time.Sleep(time.Minute)
			f.acknowledges(3, 4)
		})
	}
}

// TestListOfThePastOtherName is TestListOfThePastOnly for a server 2 that its cluster knows by another name of its address, which
// then leads nowhere. So its cluster, which is up, does not call it any more. It still has it as a member.
func TestListOfThePastOtherName(t *testing.T) {
	if testkit.Race {
		t.Skip("Raft has a data race when a follower's address changes")
	}
	synctest.Test(t, func(t *testing.T) {
		f, dns := named(t, 5)
		dns.Store("name:1", "b:1")
		config := f.found(3)
		for i := 3; i < 5; i++ {
			f.open(i, f.joins(i, 0))
		}
		f.whole()
		f.tell(4, request.Request{Add: &proto.Peer{ID: 2, Addr: "name:1"}})
		for _, i := range []int{0, 2} {
			f.tell(4, request.Request{Remove: uint64(i + 1)})
			fault(f.running[i], time.Minute)
			f.stop(i)
		}
		of := f.running[3].pulse.gate.Cluster()
		f.lose(1)
		m := f.open(1, config(1))
		until(t, "a call", func() bool { return m.membership.WasCalled() })
		dns.Store("name:1", "nowhere:1")
		time.Sleep(time.Minute)
		for _, i := range []int{0, 2} {
			f.lose(i)
			f.open(i, config(i))
		}
		time.Sleep(time.Minute)
		for i, m := range f.running[:3] {
			if is := m.pulse.gate.Cluster(); is != 0 && is != of {
				t.Errorf("server %d is in %v; cluster %v exists, and has server 2 as a member", i+1, is, of)
			}
		}
		f.acknowledges(3, 4)
	})
}

// TestCalledByMistake: for some seconds, the name of member 2 of a cluster leads to a server of another cluster that is to be
// formed, which is called by that. When the name is right again, the other cluster is formed.
func TestCalledByMistake(t *testing.T) {
	if testkit.Race {
		t.Skip("Raft has a data race when a follower's address changes")
	}
	synctest.Test(t, func(t *testing.T) {
		f, dns := named(t, 6)
		dns.Store("name:1", "b:1")
		config := f.found(3)
		second := listOf(map[uint64]string{1: "d:1", 2: "e:1", 3: "f:1"})
		start := func(i int) {
			cfg := f.config(i)
			cfg.ID, cfg.Peers = uint64(i-2), second
			f.open(i, cfg)
		}
		f.tell(0, request.Request{Add: &proto.Peer{ID: 2, Addr: "name:1"}})
		start(4)
		f.stop(1)
		dns.Store("name:1", "e:1")
		until(t, "a call", func() bool { return f.running[4].membership.WasCalled() })
		dns.Store("name:1", "b:1")
		f.open(1, config(1))
		time.Sleep(20 * time.Second)
		start(3)
		start(5)
		time.Sleep(time.Minute)
		if lead := slices.IndexFunc(f.running[3:], func(m *Member) bool { return m.Role() == "leader" }); lead < 0 {
			t.Errorf("no cluster is formed: %q", f.running[3].Waiting())
		}
	})
}

// TestProposesAgain: a proposer that was started again without its data has the others accept its next proposal at once. Another
// one, which an operator's word may have added, has to wait.
func TestProposesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		m := f.start(1).membership
		s := m.Status()
		for cluster, from := range []uint64{1, 1, 3} {
			synctest.Wait()
			_, err := m.Change(request.Request{Propose: &request.Proposal{Cluster: request.ClusterID(cluster + 1), From: from, To: 2, Run: s.Run, Members: s.Configured}})
			if (err == nil) != (from == 1) {
				t.Errorf("proposal %d, of server %d: %v", cluster+1, from, err)
			}
		}
	})
}

// TestObserverOnlyJoins: an observer of the list is started with a Join and no list, before the cluster is formed. The voters do
// not wait for it to have their list.
func TestObserverOnlyJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		cfg := f.joins(2, 0)
		cfg.Observer = true
		m := f.open(2, cfg)
		for i := range 2 {
			cfg := f.config(i)
			observe(&cfg, 3)
			f.open(i, cfg)
		}
		time.Sleep(time.Minute)
		if !f.write(0) || !f.write(2) || m.Role() != "observer" {
			t.Errorf("server 1 says %q, the observer %q, whose role is %s", f.running[0].Waiting(), m.Waiting(), m.Role())
		}
	})
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
		if f.running[0].pulse.gate.IsOpen() || f.running[1].pulse.gate.IsOpen() {
			t.Error("a member without data takes part")
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
		testkit.Bubble(t, name, func(t *testing.T) {
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
				if err := f.ask(i, request.Request{Form: true}); err == nil {
					t.Errorf("server %d forms a cluster", i+1)
				}
			}
			time.Sleep(20 * time.Second)
			for i, m := range f.running {
				if m.pulse.gate.IsOpen() || m.engine.Storage().Identity().Agreed || f.write(i) {
					t.Errorf("server %d takes part", i+1)
				}
				s := m.membership.Status()
				if i == 0 && !strings.Contains(s.Waiting, "restore the same snapshot") {
					t.Errorf("server %d waits since %q", i+1, s.Waiting)
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
	}
}

// TestWrongListOnce: a server that was started with the address of a member of another cluster in
// its list forms its own cluster when the list is right.
func TestWrongListOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := startedFleet(t, 1)
		f := newFleet(t, 3)
		f.net = old.net
		f.peers = map[uint64]string{1: "p:1", 2: "q:1", 3: "r:1"}
		cfg := f.config(0)
		cfg.Peers = listOf(map[uint64]string{1: "p:1", 2: "q:1", 3: "c:1"}) // c:1 is member 3 of the old cluster
		f.open(0, cfg)
		time.Sleep(20 * time.Second)
		f.stop(0)
		for i := range 3 { // with the right list
			f.start(i)
		}
		f.whole()
	})
}

// counting counts the connections that are made.
type counting struct {
	peer.Network
	made *atomic.Int64
}

func (c counting) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c.made.Add(1)
	return c.Network.Dial(ctx, addr)
}

// TestTwoClustersCall: two clusters take an empty server that waits for the others of its list for a member of
// theirs. It does not ask those others many times a second, nor log that.
func TestTwoClustersCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, f := newFleet(t, 3), newFleet(t, 3), newFleet(t, 3)
		one.peers = map[uint64]string{1: "u:1", 2: "b:1", 3: "v:1"}
		two.peers = map[uint64]string{1: "x:1", 2: "b:1", 3: "y:1"}
		two.net, f.net = one.net, one.net
		for _, x := range []*fleet{one, two} {
			for i := range 3 {
				x.start(i)
			}
			x.whole()
			x.stop(1)
			f.net.Cut("u", "b", true) // while the other one is formed
			f.net.Cut("v", "b", true)
		}
		f.net.Heal()
		var made atomic.Int64
		cfg := f.config(1)
		cfg.Network, cfg.Log = counting{cfg.Network, &made}, f.log.Logger(slog.LevelInfo)
		f.open(1, cfg)
		time.Sleep(time.Minute)
		if n := made.Load(); n > 300 {
			t.Errorf("it has made %d connections in a minute", n)
		}
		if n := f.log.Count("not in the cluster yet"); n > 100 {
			t.Errorf("it has logged %d times in a minute that it is in no cluster", n)
		}
	})
}

// TestRestoredWhileOldOneCalls: servers 1 to 3 are restored from a snapshot while a member of the cluster before, which has
// them as members, still runs. They form a new cluster, and one that loses its disk comes back to that.
func TestRestoredWhileOldOneCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		config := f.found(3)
		f.open(3, f.joins(3, 0))
		f.whole()
		was := f.running[3].pulse.gate.Cluster()
		delete(f.peers, 4) // for f.restored
		for i := range 3 {
			f.lose(i)
			f.restored(i, 12, 100)
		}
		f.acked, f.asked = []int64{100}, 100
		for i := range 3 {
			f.open(i, config(i))
		}
		again := func() {
			t.Helper()
			until(t, "the restored cluster", func() bool { return f.write(0) && f.write(2) })
			for i, m := range f.running[:3] {
				if of := m.pulse.gate.Cluster(); of == was || of != f.running[0].pulse.gate.Cluster() {
					t.Errorf("server %d is in %v; the old cluster is %v", i+1, of, was)
				}
			}
		}
		again()
		time.Sleep(time.Minute)
		f.lose(2)
		f.open(2, config(2))
		again()
	})
}

// TestRestoredBesideStale: two of three servers are restored, and the third one has only stored that it belongs to the cluster
// before, which it does not leave, or holds a proposal of that, which it does.
func TestRestoredBesideStale(t *testing.T) {
	for _, agreed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			f.restored(0, 12, 1)
			f.restored(1, 12, 1)
			of := storage.Identity{Cluster: testCluster, Agreed: true, Since: 3}
			if !agreed {
				of = storage.Identity{Cluster: testCluster, First: ptr(f.config(2)).First()}
			}
			if err := f.disks[2].Open().SetIdentity(of); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				f.start(i)
			}
			time.Sleep(time.Minute)
			if f.running[0].pulse.gate.IsOpen() {
				t.Error("they form a cluster without an operator's word")
			}
			f.tell(0, request.Request{Form: true})
			time.Sleep(time.Minute)
			if joined := f.running[2].pulse.gate.Cluster() == f.running[0].pulse.gate.Cluster(); joined == agreed {
				t.Errorf("agreed %v: server 3 is in %v", agreed, f.running[2].pulse.gate.Cluster())
			}
		})
	}
}

// TestFormCannotWrite: an operator has a member form the cluster, and its disk fails: the outcome is unknown.
func TestFormCannotWrite(t *testing.T) {
	for writes := range 3 { // that succeed
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			f.start(1)
			f.start(2)
			time.Sleep(time.Second)
			done := 0
			f.disks[1].SetFault(func() error {
				if done++; done > writes {
					return errors.New("broken")
				}
				return nil
			})
			if err := f.ask(1, request.Request{Form: true}); !errors.Is(err, request.ErrUnknownOutcome) {
				t.Errorf("after %d writes: %v", writes, err)
			}
		})
	}
}
