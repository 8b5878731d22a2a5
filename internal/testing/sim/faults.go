package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/sim/perturb"
	"github.com/lockkeeper/lockkeeper/proto"
)

// fault is a kind of fault: do causes one to a member, holds it for a while and ends it. It is not called if of,
// which chooses the member, returns nil.
type fault struct {
	name   string
	weight int
	of     func(s *sim, r *rand.Rand) *member
	do     doer
}

type doer func(s *sim, m *member, r *rand.Rand, hold time.Duration)

// Those who may be chosen.
var (
	anyone  = (*sim).pick
	leading = func(s *sim, _ *rand.Rand) *member { return s.leader() }
	nobody  = func(s *sim, _ *rand.Rand) *member { return s.members[0] } // for faults that are of no single member
)

func restarting(crash bool) doer {
	return func(s *sim, m *member, _ *rand.Rand, hold time.Duration) { s.restart(m, crash, hold) }
}

// undone calls cut with 1, and after a while with -1.
func undone(hold time.Duration, cut func(by int)) {
	cut(1)
	time.Sleep(hold)
	cut(-1)
}

// usualHold is the longest that most faults last; longest is the longest that one lasts. What
// is lost meanwhile may arrive twice as late.
const (
	usualHold = 12500 * time.Millisecond
	longest   = 80 * time.Second
)

// stickingFaults are the faults that make a single member stuck and do nothing else.
// They begin spans of memberStuck.
var stickingFaults = []string{"freeze a member", "freeze the leader", "isolate the leader", "isolate a member", "cut off a member", "stall the disk", "stall the leader's disk", "pause a process", "pause the leader's process"}

var faultKinds = []fault{
	{"crash", 4, anyone, restarting(true)},
	{"stop", 2, anyone, restarting(false)},
	{"crash the leader", 4, leading, restarting(true)},
	{"crash all", 1, nobody, func(s *sim, _ *member, _ *rand.Rand, hold time.Duration) {
		for _, m := range s.members {
			s.wg.Go(func() { s.restart(m, true, hold/4) })
		}
		time.Sleep(hold / 4)
	}},
	{"isolate the leader", 4, leading, isolating(true, true)},
	{"isolate the leader's sends", 2, leading, isolating(true, false)},
	{"isolate the leader's receives", 2, leading, isolating(false, true)},
	{"isolate a member", 2, anyone, isolating(true, true)},
	{"cut one way", 3, anyone, func(s *sim, a *member, r *rand.Rand, hold time.Duration) {
		if b := s.pick(r); a != b {
			undone(hold, func(by int) { s.cut(a.name, b.name, by) })
		}
	}},
	{"partition", 3, nobody, func(s *sim, _ *member, r *rand.Rand, hold time.Duration) {
		side := make([]bool, len(s.members))
		for i := range side {
			side[i] = r.IntN(2) == 0
		}
		undone(hold, func(by int) {
			for i, a := range s.members {
				for j, b := range s.members {
					if side[i] != side[j] {
						s.cut(a.name, b.name, by)
					}
				}
			}
		})
	}},
	{"cut off a member", 3, anyone, func(s *sim, m *member, _ *rand.Rand, hold time.Duration) {
		defer s.beginSpan(memberStuck, m.name)()
		undone(hold, func(by int) { s.cutAll(m.name, by) })
	}},
	{"cut clients", 3, anyone, func(s *sim, m *member, r *rand.Rand, hold time.Duration) {
		way := r.IntN(3)
		s.h.mu.Lock()
		n := len(s.clients)
		s.h.mu.Unlock()
		var some []string
		for i := 1; i <= n; i++ {
			if r.IntN(3) == 0 {
				some = append(some, clientHost(i))
			}
		}
		undone(hold, func(by int) {
			for _, c := range some {
				if way != 0 {
					s.cut(c, m.name, by)
				}
				if way != 1 {
					s.cut(m.name, c, by)
				}
			}
		})
	}},
	{"slow network", 3, nobody, func(s *sim, _ *member, r *rand.Rand, hold time.Duration) {
		delay := time.Duration(5+r.IntN(150)) * time.Millisecond
		s.delay.Store(int64(delay))
		if 2*delay > s.opts.ElectionTimeout/4 {
			defer s.beginSpan(roundSlow, "")()
		}
		time.Sleep(hold)
		s.delay.Store(int64(usualDelay))
	}},
	{"slow store", 3, anyone, func(s *sim, m *member, r *rand.Rand, hold time.Duration) {
		if m.mem == nil {
			return
		}
		most := 5 + r.IntN(400)
		if r.IntN(3) == 0 {
			most *= 10 // so slow that the member falls behind the others
		}
		end := m.slow(func() error {
			time.Sleep(time.Duration(s.shared.IntN(most)) * time.Millisecond)
			return nil
		})
		time.Sleep(hold)
		end()
	}},
	{"stall the disk", 2, anyone, (*sim).stall},
	{"stall the leader's disk", 3, leading, (*sim).stall},
	{"lose what the leader has not written", 4, leading, (*sim).loseUnwritten},
	{"lag behind the snapshot", 4, nobody, (*sim).lag},
	{"full disk", 2, anyone, func(s *sim, m *member, _ *rand.Rand, hold time.Duration) {
		if m.mem == nil || !m.claim() {
			return
		}
		defer m.release()
		m.setMayStop(true)
		end := m.slow(func() error { return syscall.ENOSPC })
		time.Sleep(hold)
		m.stop(false)
		end()
		m.setMayStop(false)
		m.start()
	}},
	{"transfer", 3, leading, func(s *sim, m *member, _ *rand.Rand, _ time.Duration) {
		s.ask(m, request.Request{Transfer: new(uint64)})
	}},
	{"remove and add", 2, anyone, (*sim).removeAndAdd},
	{"change a vote", 5, anyone, (*sim).changeVote},
	{"freeze a member", 2, anyone, (*sim).freeze},
	{"freeze the leader", 2, leading, (*sim).freeze},
	{"forget connections", 4, anyone, func(s *sim, m *member, r *rand.Rand, _ time.Duration) { s.forget(m, s.pick(r), r) }},
	{"forget the leader's connections, and nothing else", 3, leading, func(s *sim, m *member, r *rand.Rand, _ time.Duration) { s.forgetOnly(m, s.pick(r), r) }},
	{"no new connections", 3, anyone, (*sim).shut},
	{"be absent", 4, anyone, (*sim).beAbsent},
	{"lose a disk", 2, anyone, (*sim).loseDisk},
	{"another cluster's disk", 3, anyone, (*sim).takeOther},
	{"disconnect sessions", 3, nobody, func(s *sim, _ *member, r *rand.Rand, _ time.Duration) {
		for _, id := range s.sessions() {
			if r.IntN(2) == 0 {
				for _, m := range s.members {
					if srv := m.server(); srv != nil {
						testhooks.Of(srv).Disconnect(id)
					}
				}
			}
		}
	}},
	{"expire a session", 3, anyone, func(s *sim, m *member, r *rand.Rand, _ time.Duration) {
		ids, srv := s.sessions(), m.server()
		if len(ids) == 0 || srv == nil {
			return
		}
		id := ids[r.IntN(len(ids))]
		s.h.mu.Lock()
		s.h.Forced[id] = true
		s.h.mu.Unlock()
		srv.EndSession(context.Background(), id) // it may fail because of other faults
	}},
}

// storeFault is a fault of a member's store. Several may be in force at once.
type storeFault struct{ f func() error }

// slow makes the member's store call f before each write, until end is called.
func (m *member) slow(f func() error) (end func()) {
	x := &storeFault{f}
	m.changeFaults(func(all []*storeFault) []*storeFault { return append(slices.Clone(all), x) })
	over := m.s.beginSpan(diskSlow, m.name)
	return func() {
		m.changeFaults(func(all []*storeFault) []*storeFault {
			return slices.DeleteFunc(slices.Clone(all), func(y *storeFault) bool { return x == y })
		})
		over()
	}
}

func (m *member) changeFaults(change func([]*storeFault) []*storeFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = change(m.faults)
	m.setFaults()
}

// setFaults puts the member's faults into force. m.mu must be held.
func (m *member) setFaults() {
	all := m.faults
	fault := func() error {
		if m.s.opts.Disk > 0 {
			time.Sleep(m.s.opts.Disk)
		}
		for _, x := range all {
			if err := x.f(); err != nil {
				return err
			}
		}
		return nil
	}
	m.mem.SetFault(fault)
	m.mem.SetSnapshotFault(fault)
}

// stall makes a member's disk do nothing for a while. Then the writes that wait for it
// continue. If the member leads, a client may meanwhile write more than it keeps in memory for its disk.
func (s *sim) stall(m *member, r *rand.Rand, _ time.Duration) {
	if m.mem == nil {
		return
	}
	var clients sync.WaitGroup
	defer clients.Wait() // this may take longer, if the cluster has no leader
	defer s.beginSpan(memberStuck, m.name)()
	over := make(chan struct{})
	defer close(over)
	defer m.slow(func() error { <-over; return nil })()
	most := 14 * time.Second
	if s.opts.For > time.Minute && r.IntN(4) == 0 {
		most = longest
	}
	length := time.Second + time.Duration(r.Int64N(int64(most)))
	if m == s.leader() && r.IntN(2) == 0 && s.lagging.TryLock() {
		if s.opts.For > time.Minute && s.slack() == 0 && r.IntN(4) > 0 { // nothing else keeps the others from going on
			length = s.progressLimit() + 2*usualHold
			s.calm(length)
		}
		clients.Go(func() {
			defer s.lagging.Unlock()
			defer s.beginSpan(otherFault, "")() // what others write waits for large entries on a narrow link
			s.burst(s.h.now()+length, r)
		})
	}
	time.Sleep(length)
}

// lag makes a follower that serves clients fall behind the leader: its disk is as slow as
// it may be without being stuck, and meanwhile a client writes so much that the leader takes
// snapshots and trims its log or, with a long log, so many entries that the follower falls
// behind more and more, since the leader sends it 64 at a time.
func (s *sim) lag(_ *member, r *rand.Rand, hold time.Duration) {
	if s.opts.Dir != "" || !s.lagging.TryLock() {
		return
	}
	defer s.lagging.Unlock()
	hold = min(hold, usualHold)
	var m *member
	leader, most := s.leader(), -1
	s.h.mu.Lock()
	for _, x := range s.members { // choose the follower with the most watchers
		if n := s.watchersAt(x.id); x != leader && n > most {
			m, most = x, n
		}
	}
	s.h.mu.Unlock()
	each := s.opts.ElectionTimeout * time.Duration(40+r.IntN(50)) / 100
	over := m.slow(func() error { time.Sleep(each); return nil })
	hold += 2 * each
	if s.longLog() {
		hold += 6 * each
	}
	end := s.h.now() + hold
	var clients sync.WaitGroup
	clients.Go(func() { s.watchAt(m, end) })
	clients.Go(func() { s.fill(m, end, each/2) })
	time.Sleep(hold)
	over()
	clients.Wait() // this may take longer, if the cluster has no leader
}

// fill makes a client write much, through other members than the one that lags.
func (s *sim) fill(m *member, end, pause time.Duration) {
	c := s.writer
	defer c.drop()
	for s.h.now() < end {
		switch err := c.connect(); {
		case errors.Is(err, errExpired): // usual, since faults of this kind are rare
			continue
		case err != nil:
			return
		case c.conn.log.Server == int(m.id):
			c.drop()
			continue
		}
		size := 16 << 10
		if srv := s.members[c.conn.log.Server-1].server(); srv != nil {
			testhooks.Of(srv).View(func(v *fsm.View) { size = max(size, int(v.Tree().DataSize())) })
		}
		entries := 6 // a snapshot is due after two
		if s.longLog() {
			entries, size = 150, 0
		}
		for range entries {
			tag := c.tag()
			c.do(&Op{Code: proto.OpSetData, Path: "/bursts", Tag: tag + strings.Repeat(".", size/2), Version: -1})
		}
		time.Sleep(pause)
	}
}

// watchAt makes a client connect to a member, watch what the writer writes, and read
// there all the time.
func (s *sim) watchAt(m *member, end time.Duration) {
	c := s.watcher
	defer c.drop()
	if errors.Is(c.try(int(m.id)), errExpired) {
		c.try(int(m.id)) // with a new session
	}
	for s.h.now() < end && c.connect() == nil {
		c.do(&Op{Code: proto.OpExists, Path: "/bursts", Watch: true, Unsynced: true})
		if c.rng.IntN(4) == 0 {
			c.do(&Op{Code: proto.OpAddWatch, Path: "/bursts", Recursive: c.rng.IntN(2) == 0, Unsynced: true})
		}
		for range 3 {
			s.sleep(60 * time.Millisecond)
			c.do(&Op{Code: proto.OpExists, Path: register(c.rng.IntN(registers)), Unsynced: true})
		}
	}
}

func (s *sim) pick(r *rand.Rand) *member { return s.members[r.IntN(len(s.members))] }

// sessions lists the sessions that exist, in order of their ids.
func (s *sim) sessions() (ids []int64) {
	for _, m := range s.members {
		if srv := m.server(); srv != nil {
			testhooks.Of(srv).View(func(v *fsm.View) {
				for x := range v.Sessions().All() {
					ids = append(ids, x.ID)
				}
			})
			return ids
		}
	}
	return nil
}

// claim reserves a running member for a fault that stops it, until release. It reports
// false if the member is reserved or down.
func (m *member) claim() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claimed || m.srv == nil {
		return false
	}
	m.claimed = true
	return true
}

func (m *member) release() {
	m.mu.Lock()
	m.claimed = false
	m.mu.Unlock()
}

func (s *sim) restart(m *member, crash bool, down time.Duration) {
	if !m.claim() {
		return
	}
	defer m.release()
	m.stop(crash)
	time.Sleep(down)
	m.start()
}

// isolating cuts a member's way to the other members, or theirs to it, or both.
func isolating(sends, receives bool) doer {
	return func(s *sim, m *member, _ *rand.Rand, hold time.Duration) {
		if sends && receives {
			defer s.beginSpan(memberStuck, m.name)()
		}
		undone(hold, func(by int) {
			for _, x := range s.members {
				if x != m && sends {
					s.cut(m.name, x.name, by)
				}
				if x != m && receives {
					s.cut(x.name, m.name, by)
				}
			}
		})
	}
}

// removeAndAdd removes a member from the cluster, and some time later makes it join
// again with no data.
func (s *sim) removeAndAdd(m *member, r *rand.Rand, hold time.Duration) {
	if !m.changing.CompareAndSwap(false, true) {
		return
	}
	defer m.changing.Store(false)
	if !s.complete() || !s.disks.TryRLock() {
		return
	}
	defer s.disks.RUnlock()
	if !m.claim() {
		return
	}
	defer m.release()
	defer s.beginSpan(votesChange, "")()
	m.setMayStop(true)
	began := s.h.now()
	if !s.remove(m, r) {
		return
	}
	time.Sleep(hold / 4)
	s.noteSilence(m, began) // the leader may not learn what a removed member hears
	m.stop(r.IntN(2) == 0)
	time.Sleep(hold)
	m.setMayStop(false)
	m.join = true
	m.newDisk()
	faults, others := s.faultsBegun()
	if m.start() != nil {
		return
	}
	if r.IntN(3) == 0 && s.removeJoining(m, r) {
		m.stop(r.IntN(2) == 0)
		if !s.remove(m, r) {
			return
		}
		m.setMayStop(false)
		m.newDisk()
		if m.start() != nil {
			return
		}
	}
	select {
	case <-m.server().Ready():
		s.h.fault("member %d has joined", m.id)
		s.wg.Go(func() { s.awaitJoined(m) }) // it gets its vote when it has caught up
	case <-time.After(time.Minute):
		// It may apply entries more slowly than others write them. And other faults may
		// have kept it out; that it joins after them is checked at the end.
		if n, _ := s.faultsBegun(); s.slack() > 50*time.Millisecond || n > faults || others {
			s.h.fault("member %d has not joined yet", m.id)
			s.wg.Go(func() { s.awaitJoined(m) })
			return
		}
		s.h.violate("recovery", "member %d has not joined after a minute", m.id)
	}
}

// awaitJoined counts a member as one that is out until it has its own role again, in its own
// list of members and in the leader's. Its own may be one of the past.
func (s *sim) awaitJoined(m *member) {
	defer s.beginSpan(memberOut, m.name)()
	has := func(x *member) bool {
		if x == nil {
			return false
		}
		srv := x.server()
		return srv != nil && slices.ContainsFunc(srv.Members(), func(p lockkeeper.Peer) bool { return p.ID == m.id && p.Observer == !m.votes() })
	}
	for !s.over() {
		if has(m) && has(s.leader()) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// remove removes a member from the cluster, and tries until the removal is certain: a member
// that then loses its data must not have a vote. It reports whether it succeeded, and may
// stop the member.
func (s *sim) remove(m *member, r *rand.Rand) bool {
	for i := 0; ; i++ {
		via := s.members[(int(m.id)+i)%len(s.members)]
		err := errors.New("not tried: it would remove itself")
		if via != m || r.IntN(2) == 0 {
			err = s.ask(via, request.Request{Remove: m.id})
		}
		s.h.fault("remove member %d through member %d: %v", m.id, via.id, err)
		if err == nil {
			return true
		}
		if strings.Contains(err.Error(), "is not a member") { // an answer was lost, or it is still joining
			if m.server() == nil {
				return true
			}
			m.stop(r.IntN(2) == 0) // otherwise it might be added after this
		}
		if i > 1000 {
			s.h.violate("recovery", "member %d cannot be removed: %v", m.id, err)
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// changeVote makes a client take a member's vote away, or give it one, and undo that
// after a while.
func (s *sim) changeVote(m *member, r *rand.Rand, hold time.Duration) {
	if !s.voting.TryLock() {
		return
	}
	defer s.voting.Unlock()
	if !s.complete() || !s.disks.TryRLock() {
		return
	}
	defer s.disks.RUnlock()
	defer s.beginSpan(votesChange, "")()
	if !m.changing.CompareAndSwap(false, true) {
		return
	}
	defer m.changing.Store(false)
	c := s.reconfigurer
	defer c.drop()
	for range 1 + r.IntN(3) {
		c.reconfigure(m, !m.votes(), 3)
		time.Sleep(hold / 2)
		c.reconfigure(m, m.votes(), 3)
	}
	if !c.reconfigure(m, m.votes(), 500) && !s.over() {
		s.h.violate("recovery", "member %d does not get its own role back", m.id)
	}
}

// reconfigure gives a member a vote or takes it away, in at most that many attempts, and
// reports whether one was acknowledged. Each attempt names the version that the members
// had when it was sent, so none that was delayed takes effect after the acknowledged one. A member that
// has its vote already, and is the only one that has, counts as well.
func (c *client) reconfigure(m *member, votes bool, attempts int) bool {
	const config = "/zookeeper/config"
	for range attempts {
		if c.s.over() {
			break
		}
		c.s.sleep(100 * time.Millisecond)
		if c.connect() != nil {
			continue
		}
		if c.rng.IntN(2) == 0 {
			c.do(&Op{Code: proto.OpExists, Path: []string{config, register(0)}[c.rng.IntN(2)], Watch: true, Unsynced: true})
		}
		if c.conn.user == "" && c.rng.IntN(4) == 0 {
			c.do(&Op{Code: proto.OpReconfig, Path: m.asMember(votes), Version64: -1})
		}
		if c.conn.user == "" {
			c.do(&Op{Code: proto.OpAuth, User: superUser, Unsynced: true})
		}
		o := c.do(&Op{Code: proto.OpGetData, Path: config, Unsynced: true})
		if !o.OK() {
			continue
		}
		_, text, _ := strings.Cut(o.GotData, "version=")
		version, err := strconv.ParseInt(text, 16, 64)
		if err != nil {
			c.s.h.violate("reconfig", "op %d reads the members as %q", o.ID, o.GotData)
			return false
		}
		if old := c.version; c.rng.IntN(3) == 0 && old != 0 && old != version {
			c.do(&Op{Code: proto.OpReconfig, Path: m.asMember(votes), Version64: old})
		}
		c.version = version
		change := c.do(&Op{Code: proto.OpReconfig, Path: m.asMember(votes), Version64: version})
		if change.OK() {
			return true
		}
		// While the others are removed, or are not back yet, the only one that votes cannot be changed.
		_, line, _ := strings.Cut("\n"+o.GotData, fmt.Sprintf("\nserver.%d=", m.id))
		line, _, _ = strings.Cut(line, "\n")
		if change.Err == proto.BadArguments && votes && strings.Contains(line, ":participant") {
			return true
		}
	}
	return false
}

func (m *member) setMayStop(yes bool) {
	m.mu.Lock()
	if m.mayStop = yes; !yes {
		m.mayNot = time.Now()
	}
	m.mu.Unlock()
}

// jumpClocks sets members' clocks until the faults are over. It has its own random source,
// so that the rest of the run does not depend on it.
func (s *sim) jumpClocks() {
	r := s.stream(7)
	pace := time.Duration(float64(5000+r.IntN(60_000))*math.Sqrt(s.opts.Pace)) * time.Millisecond
	for {
		select {
		case <-s.faultsOver:
			return
		case <-time.After(time.Duration(r.ExpFloat64() * float64(pace))):
		}
		if m := s.pick(r); m.claim() { // only the claim's owner may set the clock
			m.setClock()
			s.mu.Lock()
			s.faults["clock jump"]++
			s.mu.Unlock()
			s.h.fault("the clock of member %d is %v ahead", m.id, time.Duration(m.ahead.Load()))
			m.release()
		}
	}
}

// faults lists the kinds of faults of this build. Processes can be paused only in a
// build with points (see package perturb).
func faults() []fault {
	if !perturb.Woven() {
		return faultKinds
	}
	return append(slices.Clip(faultKinds),
		fault{"pause a process", 6, anyone, func(s *sim, m *member, _ *rand.Rand, hold time.Duration) { s.pauseProcesses(hold, m) }},
		fault{"pause the leader's process", 6, leading, func(s *sim, m *member, _ *rand.Rand, hold time.Duration) {
			s.pauseProcesses(min(3*hold, longest), m) // long enough for its sessions to expire meanwhile
		}},
		fault{"pause all processes", 2, nobody, func(s *sim, _ *member, _ *rand.Rand, hold time.Duration) { s.pauseProcesses(hold, s.members...) }},
	)
}

// pauseProcesses pauses members, as SIGSTOP pauses a process, and resumes them after a while.
// All their timers have expired then.
func (s *sim) pauseProcesses(hold time.Duration, members ...*member) {
	var paused []*member
	for _, m := range members {
		if m.claim() {
			defer m.release()
			paused = append(paused, m)
		}
	}
	for _, m := range paused {
		s.perturbed.Pause(m.name)
		defer s.beginSpan(processPaused, m.name)()
		defer s.beginSpan(diskSlow, m.name)() // the leader learns late what this member has heard
		if len(members) == 1 {
			defer s.beginSpan(memberStuck, m.name)()
		}
	}
	began := s.h.now()
	time.Sleep(hold)
	for _, m := range paused {
		s.noteSilence(m, began)
		s.perturbed.Resume(m.name)
	}
}

// makeFaults starts faults until they are to end.
func (s *sim) makeFaults() {
	r := s.stream(4)
	kinds := faults()
	total := 0
	for _, f := range kinds {
		total += f.weight
	}
	pace := time.Duration(float64(300+r.IntN(5000))*math.Sqrt(s.opts.Pace)) * time.Millisecond // of this run
	for {
		select {
		case <-s.faultsOver:
			return
		case <-time.After(time.Duration(r.ExpFloat64() * float64(pace))):
		}
		select {
		case <-s.faultsOver:
			return
		case <-time.After(s.calmFor()):
		}
		n := r.IntN(total)
		for _, f := range kinds {
			if n -= f.weight; n >= 0 {
				continue
			}
			hold := time.Duration(min(r.ExpFloat64()/5, 1) * float64(usualHold))
			if s.opts.For > time.Minute && r.IntN(12) == 0 {
				hold = min(10*hold, longest)
			}
			own := rand.New(rand.NewPCG(r.Uint64(), 0))
			if slices.Contains(s.opts.Without, f.name) {
				break
			}
			s.mu.Lock()
			s.faults[f.name]++
			s.active++
			s.mu.Unlock()
			s.h.fault("%s for %v", f.name, hold)
			s.wg.Go(func() {
				if !slices.Contains(stickingFaults, f.name) {
					defer s.beginSpan(otherFault, "")()
				}
				if m := f.of(s, own); m != nil {
					f.do(s, m, own, hold)
				}
				s.mu.Lock()
				s.active--
				s.mu.Unlock()
			})
			break
		}
	}
}

// calm lets no fault begin for a while.
func (s *sim) calm(length time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calmUntil = max(s.calmUntil, s.h.now()+length)
}

// calmFor returns for how much longer no fault is to begin.
func (s *sim) calmFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calmUntil - s.h.now()
}

// faultsBegun returns how many faults have begun so far, and whether more than one of them,
// which may be the caller's, has not ended.
func (s *sim) faultsBegun() (n int, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.faults {
		n += k
	}
	return n, s.active > 1
}
