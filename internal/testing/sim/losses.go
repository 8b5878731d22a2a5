package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/spec"
)

// Faults in which a member has other data than it should: none, because its disk was lost
// or it has never run, or that of another cluster. And long absences.

// newDisk replaces the storage of a member that is down by an empty one.
func (m *member) newDisk() {
	m.s.steps.take(spec.Event{Member: m.id, Step: spec.LostDisk})
	if m.mem == nil {
		m.dir += "+"
		return
	}
	m.mu.Lock()
	m.mem, m.faults = storage.NewMemory(), nil
	m.setFaults()
	m.mu.Unlock()
}

// complete reports whether all members have run. Before that their changes may lack a
// majority.
func (s *sim) complete() bool {
	return !slices.ContainsFunc(s.members, func(m *member) bool { return m.absent.Load() })
}

// index returns how far a running member has applied the log.
func (m *member) index() (n uint64, runs bool) {
	srv := m.server()
	if srv == nil {
		return 0, false
	}
	testhooks.Of(srv).View(func(v *fsm.View) { n = v.Index() })
	return n, true
}

// settled reports whether all members that have ever run are running, all have their
// roles in the lists of all of them, and have applied everything up to some recent entries. Then
// each of them has all that it has ever acknowledged, and may lose its disk.
func (s *sim) settled() bool {
	most, least := uint64(0), uint64(math.MaxUint64)
	var roles []lockkeeper.Peer
	var lists [][]lockkeeper.Peer
	for _, m := range s.members {
		if m.absent.Load() {
			continue
		}
		n, runs := m.index()
		srv := m.server()
		if !runs || m.wrong.Load() || srv == nil {
			return false
		}
		most, least = max(most, n), min(least, n)
		roles, lists = append(roles, lockkeeper.Peer{ID: m.id, Observer: !m.votes()}), append(lists, srv.Members())
	}
	return least >= most-min(most, 20) && haveRoles(lists, roles)
}

// haveRoles reports whether the members have their roles in all lists. In its own, a member that has just come back
// with an empty disk may still be the voter that it was, when it catches up: the others know that it is an
// observer for now.
func haveRoles(lists [][]lockkeeper.Peer, roles []lockkeeper.Peer) bool {
	for _, list := range lists {
		for _, x := range roles {
			if !slices.ContainsFunc(list, func(p lockkeeper.Peer) bool { return p.ID == x.ID && p.Observer == x.Observer }) {
				return false
			}
		}
	}
	return true
}

// awaitSettled waits until the cluster has recovered from the loss of a disk. Until then no
// other disk may be lost.
func (s *sim) awaitSettled() {
	for !s.settled() && !s.over() {
		time.Sleep(100 * time.Millisecond)
	}
}

// loseDisk makes a member start with an empty disk, as it was started before. It is not
// removed from the cluster.
func (s *sim) loseDisk(m *member, r *rand.Rand, hold time.Duration) {
	if !s.disks.TryLock() {
		return
	}
	defer s.disks.Unlock()
	if !s.settled() || !m.claim() {
		return
	}
	defer s.beginSpan(memberOut, m.name)()
	m.stop(r.IntN(2) == 0)
	m.newDisk()
	time.Sleep(hold)
	m.start()
	m.release()
	s.awaitSettled()
}

// startLate starts the members that have not run yet. Mostly all others are down at that
// time, and sometimes one of them has lost its disk; then all start in any order.
func (s *sim) startLate() {
	r := s.stream(8)
	defer s.beginSpan(otherFault, "")()
	select {
	case <-s.faultsOver:
	case <-time.After(time.Duration(r.Float64() * float64(s.opts.For) * 3 / 4)):
	}
	s.mu.Lock()
	s.faults["first start"]++
	s.active++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.active--
		s.mu.Unlock()
	}()
	var late, all []*member
	for _, m := range s.members {
		if m.absent.Load() {
			late = append(late, m)
			m.mu.Lock()
			m.claimed = true
			m.mu.Unlock()
		}
	}
	if len(late) == 0 {
		return
	}
	all = late
	if r.IntN(4) > 0 {
		for !s.disks.TryLock() { // waiting in Lock would stop virtual time
			time.Sleep(100 * time.Millisecond)
		}
		defer s.disks.Unlock()
		s.awaitSettled()
		s.h.fault("all members stop before others start for the first time")
		for _, m := range s.members {
			if !m.absent.Load() && m.claim() {
				all = append(all, m)
			}
		}
		for _, m := range all[len(late):] {
			m.stop(r.IntN(2) == 0)
		}
		if early := all[len(late):]; len(early) == len(s.members)-len(late) {
			m := early[r.IntN(len(early))]
			s.h.fault("member %d loses its disk", m.id)
			defer s.beginSpan(memberOut, m.name)()
			m.newDisk()
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	for _, m := range all {
		s.h.fault("member %d starts", m.id)
		m.absent.Store(false)
		m.start()
		m.release()
		time.Sleep(time.Duration(min(r.ExpFloat64(), 5) * float64(3*time.Second)))
	}
	s.awaitSettled()
}

// otherCluster returns the storage of a member of another cluster, whose members have the
// same ids and addresses. It has run for a while. s.foreign must be held.
func (s *sim) otherCluster(r *rand.Rand) []*member {
	if s.others != nil {
		return s.others
	}
	network := memnet.New()
	var others []*member
	var running []*lockkeeper.Server
	for _, m := range s.members {
		x := &member{s: s, id: m.id, name: m.name}
		if m.mem != nil {
			x.mem = storage.NewMemory()
		} else {
			x.dir = filepath.Join(s.opts.Dir, "other-"+m.name)
		}
		others = append(others, x)
		c := s.config(x)
		*testhooks.In(&c) = testhooks.Hooks{Memory: x.mem, Network: network.Host(x.name)}
		srv, err := lockkeeper.Open(c)
		if err != nil {
			s.h.violate("start", "member %d of another cluster: %v", x.id, err)
			return nil
		}
		defer srv.Close()
		running = append(running, srv)
	}
	for _, srv := range running {
		select {
		case <-srv.Ready():
		case <-time.After(time.Minute):
			s.h.violate("start", "another cluster does not serve after a minute")
			return nil
		}
	}
	nc, err := running[0].Dial("", "", time.Second)
	if err != nil {
		s.h.violate("start", "another cluster: %v", err)
		return nil
	}
	defer nc.Close()
	c, err := rawclient.Open(nc, time.Minute)
	for i := 0; i < 200 && err == nil && (i == 0 || r.IntN(50) > 0); i++ {
		_, err = c.Create(fmt.Sprintf("/other%d", i), bytes.Repeat([]byte("x"), r.IntN(500)), 0)
	}
	if err != nil {
		s.h.violate("start", "another cluster: %v", err)
		return nil
	}
	s.others = others
	return others
}

// takeOther makes a member start with the data of a member of another cluster, which has the
// same id, and then with its own again.
func (s *sim) takeOther(m *member, r *rand.Rand, hold time.Duration) {
	if s.opts.Real || !s.foreign.TryLock() {
		return
	}
	defer s.foreign.Unlock()
	others := s.otherCluster(r)
	if others == nil || !m.claim() {
		return
	}
	defer m.release()
	defer s.beginSpan(memberOut, m.name)()
	x := others[m.id-1]
	m.stop(r.IntN(2) == 0)
	m.setMayStop(true)
	m.swap(x)
	m.wrong.Store(true)
	m.start()
	time.Sleep(hold)
	m.stop(r.IntN(2) == 0)
	m.wrong.Store(false)
	m.swap(x)
	m.setMayStop(false)
	m.start()
	for _, o := range s.members {
		for o.misled.Load() { // its operator knows better
			if o.claim() {
				o.misled.Store(false)
				o.stop(true)
				o.start()
				o.release()
			} else if s.over() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// swap exchanges the storage of two members that are down.
func (m *member) swap(x *member) {
	m.s.steps.take(spec.Event{Member: m.id, Step: spec.Swapped})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mem, x.mem = x.mem, m.mem
	m.dir, x.dir = x.dir, m.dir
	if m.mem != nil {
		x.mem.SetFault(nil)
		x.mem.SetSnapshotFault(nil)
		m.setFaults()
	}
}

// beAbsent makes a member be down for long. When it is back, the leader or the member
// sometimes falls silent while the member gets what it has missed, or their connections lose everything.
func (s *sim) beAbsent(m *member, r *rand.Rand, hold time.Duration) {
	if m == s.leader() || !m.claim() {
		return
	}
	m.stop(r.IntN(2) == 0)
	end := s.h.now() + hold
	if s.opts.Large && s.lagging.TryLock() {
		s.burst(end, r)
		s.lagging.Unlock()
	}
	time.Sleep(end - s.h.now())
	m.start()
	m.release()
	if s.opts.Real || r.IntN(3) == 0 {
		return
	}
	time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
	leader := s.leader()
	if r.IntN(3) == 0 {
		s.forgetOnly(leader, m, r)
		return
	}
	silent := leader
	if silent == nil || r.IntN(3) == 0 {
		silent = m
	}
	s.freeze(silent, r, s.progressLimit()+5*hold) // so long that the others must go on without it
}

// burst writes large entries until end, if there is a leader.
func (s *sim) burst(end time.Duration, r *rand.Rand) {
	c := s.writer
	defer c.drop()
	for n := 20 + r.IntN(50); n > 0 && s.h.now() < end && !s.over(); n-- {
		if c.conn == nil || c.conn.dead() { // connect would not return before there is a leader
			c.drop()
			s.sleep(100 * time.Millisecond)
			c.try(1 + c.rng.IntN(len(s.members)))
		}
		if c.conn != nil {
			c.do(&Op{Code: proto.OpSetData, Path: "/bulk", Tag: c.tag(), Pad: largest/4 + c.rng.IntN(largest/4), Version: -1})
		}
	}
}

// loseUnwritten makes the leader crash, and mostly those others that have got its last entries, while the disks of
// some of these do not write what they get. The rest go on with what they have, if they are a majority with those that
// are back first.
func (s *sim) loseUnwritten(leader *member, r *rand.Rand, hold time.Duration) {
	if leader.mem == nil || !leader.claim() {
		return
	}
	hold = min(hold, usualHold)
	var without []*member
	down, others := []*member{leader}, r.IntN(3) > 0
	for _, x := range s.members {
		switch {
		case x == leader:
		case r.IntN(2) == 0:
			without = append(without, x)
			s.cutAll(x.name, 1)
		case others && x.claim():
			down = append(down, x)
		}
	}
	crashed := make(chan struct{})
	var ends []func()
	stick := func(x *member) {
		x.setMayStop(true)
		stuck, end := s.beginSpan(memberStuck, x.name), x.slow(func() error { <-crashed; return errCrashed })
		ends = append(ends, func() { end(); stuck(); x.setMayStop(false) })
	}
	for _, x := range down[1:] {
		if r.IntN(2) == 0 {
			stick(x)
		}
	}
	if len(ends) == 0 || r.IntN(2) == 0 {
		stick(leader)
	}
	time.Sleep(time.Duration(r.ExpFloat64() / 4 * float64(s.opts.ElectionTimeout)))
	close(crashed)
	var stopping sync.WaitGroup
	for _, x := range down {
		stopping.Go(func() { x.stop(true) })
	}
	stopping.Wait()
	for _, end := range ends {
		end()
	}
	for _, x := range without {
		s.cutAll(x.name, -1)
	}
	time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
	r.Shuffle(len(down), func(i, j int) { down[i], down[j] = down[j], down[i] })
	for i, x := range down {
		if i == 1 {
			time.Sleep(hold)
		}
		x.start()
		x.release()
	}
}

// errCrashed is why a write fails during which the process is killed.
var errCrashed = errors.New("killed meanwhile")

// freeze keeps a member from reading and writing on the network.
func (s *sim) freeze(m *member, _ *rand.Rand, hold time.Duration) {
	s.mu.Lock()
	s.frozen[m.name]++
	s.mu.Unlock()
	defer s.beginSpan(memberStuck, m.name)()
	s.net.Pause(m.name, true)
	began := s.h.now()
	defer func() { s.noteSilence(m, began) }()
	time.Sleep(min(hold, longest))
	s.mu.Lock()
	s.frozen[m.name]--
	last := s.frozen[m.name] == 0
	s.mu.Unlock()
	if last {
		s.net.Pause(m.name, false)
	}
}

// forget makes some connections between two members lose everything.
func (s *sim) forget(a, b *member, r *rand.Rand) {
	some := 1 + r.IntN(3)
	s.net.Forget(a.name, b.name, func() bool { return r.IntN(3) < some })
	s.mu.Lock()
	s.spans[wayCut] = append(s.spans[wayCut], &span{from: a.name, to: b.name, At: s.h.now(), Until: s.h.now() + redialed})
	s.mu.Unlock()
}

// forgetOnly makes some connections between the leader, if there is one, and another member lose everything, and
// lets no other fault begin for as long as a single member may do nothing for its clients. The
// leader stays the same, so what is not noticed otherwise lasts (see idle).
func (s *sim) forgetOnly(leader, other *member, r *rand.Rand) {
	if leader == nil || leader == other || s.opts.For <= time.Minute || s.slack() > 0 {
		return
	}
	s.calm(2*s.progressLimit() + 2*usualHold) // other faults have to end first
	s.forget(leader, other, r)
}

// shut makes some connections between two members lose everything, and for a while lets them make no
// new ones. The checks treat that as a cut.
func (s *sim) shut(a *member, r *rand.Rand, hold time.Duration) {
	b := s.pick(r)
	if a == b {
		return
	}
	each := func(shut bool) {
		s.net.Shut(a.name, b.name, shut)
		s.net.Shut(b.name, a.name, shut)
	}
	each(true)
	since := s.h.now()
	s.forget(a, b, r)
	time.Sleep(hold)
	each(false)
	s.mu.Lock()
	s.spans[wayCut] = append(s.spans[wayCut],
		&span{from: a.name, to: b.name, At: since, Until: s.h.now() + redialed},
		&span{from: b.name, to: a.name, At: since, Until: s.h.now() + redialed})
	s.mu.Unlock()
}

// redialed is how long a member may use a connection over which it hears nothing.
const redialed = 5 * time.Second

// removeJoining removes a member that may still wait for its vote, and checks that it does
// not come back by itself. It reports whether the member is removed for certain.
func (s *sim) removeJoining(m *member, r *rand.Rand) bool {
	time.Sleep(time.Duration(r.ExpFloat64() * float64(300*time.Millisecond)))
	m.setMayStop(true)
	via := s.members[int(m.id)%len(s.members)]
	removed, lost := false, false
	for i := 0; i < 50 || lost && !s.over(); i++ {
		err := s.ask(via, request.Request{Remove: m.id})
		s.h.fault("remove member %d, which is joining, through member %d: %v", m.id, via.id, err)
		none := err != nil && strings.Contains(err.Error(), "is not a member") // not yet, or the answer to the removal was lost
		// A request that is sent again after a change of the leader may have done it before.
		if removed = err == nil || none && (lost || m.removed.Load()); removed {
			break
		}
		lost = lost || !none
		time.Sleep(100 * time.Millisecond)
	}
	if !removed {
		m.setMayStop(lost)
		return false
	}
	if lost { // perhaps it was not removed, but is only about to be added
		return true
	}
	var most uint64
	for _, x := range s.members {
		if n, _ := x.index(); x != m {
			most = max(most, n)
		}
	}
	for range 30 {
		time.Sleep(200 * time.Millisecond)
		lead := s.leader()
		if lead == nil || lead == m {
			continue
		}
		n, _ := lead.index()
		srv := lead.server()
		if srv != nil && n >= most && slices.ContainsFunc(srv.Members(), func(p lockkeeper.Peer) bool { return p.ID == m.id }) {
			s.h.violate("members", "member %d was removed while it was joining, and has come back by itself", m.id)
			break
		}
	}
	return true
}
