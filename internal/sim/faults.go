package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/sim/perturb"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
	"github.com/lockkeeper/lockkeeper/proto"
)

// fault is a kind of fault: do makes one, holds it for a while and ends it.
type fault struct {
	name   string
	weight int
	do     func(s *sim, r *rand.Rand, hold time.Duration)
}

// sticks are the faults by which a single member gets stuck, and which do nothing
// else. They note themselves in stuckLog.
var sticks = []string{"isolate the leader", "isolate a member", "pause a member", "stall the disk", "stall the leader's disk", "stop a process", "stop the leader's process"}

var faultKinds = []fault{
	{"crash", 4, func(s *sim, r *rand.Rand, hold time.Duration) { s.restart(s.pick(r), true, hold) }},
	{"stop", 2, func(s *sim, r *rand.Rand, hold time.Duration) { s.restart(s.pick(r), false, hold) }},
	{"crash the leader", 4, func(s *sim, r *rand.Rand, hold time.Duration) { s.restart(s.leader(), true, hold) }},
	{"crash all", 1, func(s *sim, r *rand.Rand, hold time.Duration) {
		for _, m := range s.members {
			s.wg.Go(func() { s.restart(m, true, hold/4) })
		}
		time.Sleep(hold / 4)
	}},
	{"isolate the leader", 4, func(s *sim, r *rand.Rand, hold time.Duration) {
		if m := s.leader(); m != nil {
			defer s.spanIn(&s.stuckLog, m.name)()
			s.isolate(m.name, true, true, hold)
		}
	}},
	{"isolate the leader's sends", 2, func(s *sim, r *rand.Rand, hold time.Duration) {
		if m := s.leader(); m != nil {
			s.isolate(m.name, true, false, hold)
		}
	}},
	{"isolate the leader's receives", 2, func(s *sim, r *rand.Rand, hold time.Duration) {
		if m := s.leader(); m != nil {
			s.isolate(m.name, false, true, hold)
		}
	}},
	{"isolate a member", 2, func(s *sim, r *rand.Rand, hold time.Duration) {
		m := s.pick(r)
		defer s.spanIn(&s.stuckLog, m.name)()
		s.isolate(m.name, true, true, hold)
	}},
	{"cut one way", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		a, b := s.pick(r), s.pick(r)
		if a != b {
			s.cut(a.name, b.name, 1)
			time.Sleep(hold)
			s.cut(a.name, b.name, -1)
		}
	}},
	{"partition", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		side := make([]bool, len(s.members))
		for i := range side {
			side[i] = r.IntN(2) == 0
		}
		each := func(by int) {
			for i, a := range s.members {
				for j, b := range s.members {
					if side[i] != side[j] {
						s.cut(a.name, b.name, by)
					}
				}
			}
		}
		each(1)
		time.Sleep(hold)
		each(-1)
	}},
	{"pause a member", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		m := s.pick(r)
		defer s.spanIn(&s.stuckLog, m.name)()
		s.cutAll(m.name, 1)
		time.Sleep(hold)
		s.cutAll(m.name, -1)
	}},
	{"cut clients", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		m, way := s.pick(r), r.IntN(3)
		s.h.mu.Lock()
		n := len(s.clients)
		s.h.mu.Unlock()
		var some []string
		for i := 1; i <= n; i++ {
			if r.IntN(3) == 0 {
				some = append(some, clientHost(i))
			}
		}
		each := func(by int) {
			for _, c := range some {
				if way != 0 {
					s.cut(c, m.name, by)
				}
				if way != 1 {
					s.cut(m.name, c, by)
				}
			}
		}
		each(1)
		time.Sleep(hold)
		each(-1)
	}},
	{"slow network", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		s.delay.Store(int64(5+r.IntN(150)) * int64(time.Millisecond))
		time.Sleep(hold)
		s.delay.Store(int64(usualDelay))
	}},
	{"slow store", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		m := s.pick(r)
		if m.mem == nil {
			return
		}
		most := 5 + r.IntN(400)
		if r.IntN(3) == 0 {
			most *= 10 // so slow that the others' logs go on without it
		}
		end := m.slow(func() error {
			time.Sleep(time.Duration(s.shared.IntN(most)) * time.Millisecond)
			return nil
		})
		time.Sleep(hold)
		end()
	}},
	{"stall the disk", 2, func(s *sim, r *rand.Rand, hold time.Duration) { s.stall(s.pick(r), r) }},
	{"stall the leader's disk", 3, func(s *sim, r *rand.Rand, hold time.Duration) { s.stall(s.leader(), r) }},
	{"lag behind the snapshot", 4, func(s *sim, r *rand.Rand, hold time.Duration) { s.lag(r, hold) }},
	{"full disk", 2, func(s *sim, r *rand.Rand, hold time.Duration) {
		m := s.pick(r)
		if m.mem == nil || !m.claim() {
			return
		}
		defer m.release()
		m.setDoomed(true)
		end := m.slow(func() error { return syscall.ENOSPC })
		time.Sleep(hold)
		m.stop(false)
		end()
		m.setDoomed(false)
		m.start()
	}},
	{"transfer", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		if m := s.leader(); m != nil {
			s.ask(m, cluster.Request{Transfer: new(uint64)})
		}
	}},
	{"remove and add", 2, func(s *sim, r *rand.Rand, hold time.Duration) { s.removeAndAdd(s.pick(r), r, hold) }},
	{"change a vote", 5, func(s *sim, r *rand.Rand, hold time.Duration) { s.changeVote(s.pick(r), r, hold) }},
	{"disconnect sessions", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
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
	{"expire a session", 3, func(s *sim, r *rand.Rand, hold time.Duration) {
		ids, srv := s.sessions(), s.pick(r).server()
		if len(ids) == 0 || srv == nil {
			return
		}
		id := ids[r.IntN(len(ids))]
		s.h.mu.Lock()
		s.h.Forced[id] = true
		s.h.mu.Unlock()
		testhooks.Of(srv).ExpireSession(id) // an error means that it was not to be
	}},
}

// slowness is a fault of a member's store.
type slowness struct{ f func() error }

// slow has f called before each write of the member's store, beside others, until
// end is called.
func (m *member) slow(f func() error) (end func()) {
	x := &slowness{f}
	m.changeSlows(func(all []*slowness) []*slowness { return append(slices.Clone(all), x) })
	over := m.s.spanIn(&m.s.slowLog, m.name)
	return func() {
		m.changeSlows(func(all []*slowness) []*slowness {
			return slices.DeleteFunc(slices.Clone(all), func(y *slowness) bool { return x == y })
		})
		over()
	}
}

func (m *member) changeSlows(change func([]*slowness) []*slowness) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slows = change(m.slows)
	all := m.slows
	m.mem.SetFault(func() error {
		for _, x := range all {
			if err := x.f(); err != nil {
				return err
			}
		}
		return nil
	})
}

// stall has a member's disk do nothing for a while. What waits for it then goes on.
func (s *sim) stall(m *member, r *rand.Rand) {
	if m == nil || m.mem == nil {
		return
	}
	defer s.spanIn(&s.stuckLog, m.name)()
	over := make(chan struct{})
	defer close(over)
	defer m.slow(func() error { <-over; return nil })()
	time.Sleep(time.Second + time.Duration(r.Int64N(int64(14*time.Second))))
}

// lag has a follower that goes on serving clients fall behind the leader's log: it
// writes as slowly as a member may whose disk is not stuck, and meanwhile a client
// writes so much that the leader takes snapshots and cuts its log.
func (s *sim) lag(r *rand.Rand, hold time.Duration) {
	if s.opts.Dir != "" || !s.filling.TryLock() {
		return
	}
	defer s.filling.Unlock()
	var m *member
	leader, most := s.leader(), -1
	s.h.mu.Lock()
	for _, x := range s.members { // the one with the most to lose
		if n := s.watchersAt(x.id); x != leader && n > most {
			m, most = x, n
		}
	}
	s.h.mu.Unlock()
	each := s.opts.ElectionTimeout * time.Duration(40+r.IntN(50)) / 100
	over := m.slow(func() error { time.Sleep(each); return nil })
	hold += 2 * each
	end := s.h.now() + hold
	var clients sync.WaitGroup
	clients.Go(func() { s.lookOn(m, end) })
	clients.Go(func() { s.fill(m, end, each/2) })
	time.Sleep(hold)
	over()
	clients.Wait() // the cluster may have no leader
}

// fill has a client write much, by way of other members than one that lags.
func (s *sim) fill(m *member, end, pause time.Duration) {
	c := s.filler
	defer c.drop()
	for s.h.now() < end {
		switch err := c.connect(); {
		case errors.Is(err, errExpired): // as it mostly has since the last time
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
		for range 6 { // one entry each; a snapshot is due after two
			tag := c.tag()
			c.do(&Op{Code: proto.OpSetData, Path: "/bursts", Tag: tag + strings.Repeat(".", size/2), Version: -1})
		}
		time.Sleep(pause)
	}
}

// lookOn has a client watch at a member what the filler writes, and read there all
// the time.
func (s *sim) lookOn(m *member, end time.Duration) {
	c := s.onlooker
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

// sessions are those that exist, in order.
func (s *sim) sessions() (ids []int64) {
	for _, m := range s.members {
		if srv := m.server(); srv != nil {
			testhooks.Of(srv).View(func(v *fsm.View) {
				for _, x := range v.Sessions().All() {
					ids = append(ids, x.ID)
				}
			})
			return ids
		}
	}
	return nil
}

// claim takes a member for a fault that stops it; false if another has it.
func (m *member) claim() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy || m.srv == nil {
		return false
	}
	m.busy = true
	return true
}

func (m *member) release() {
	m.mu.Lock()
	m.busy = false
	m.mu.Unlock()
}

func (s *sim) restart(m *member, crash bool, down time.Duration) {
	if m == nil || !m.claim() {
		return
	}
	defer m.release()
	m.stop(crash)
	time.Sleep(down)
	m.start()
}

// isolate cuts a member from the other members.
func (s *sim) isolate(host string, sends, receives bool, hold time.Duration) {
	each := func(by int) {
		for _, m := range s.members {
			if m.name == host {
				continue
			}
			if sends {
				s.cut(host, m.name, by)
			}
			if receives {
				s.cut(m.name, host, by)
			}
		}
	}
	each(1)
	time.Sleep(hold)
	each(-1)
}

// removeAndAdd takes a member out of the cluster, and after a while in which it
// is down has it join again, with nothing.
func (s *sim) removeAndAdd(m *member, r *rand.Rand, hold time.Duration) {
	if !m.changing.CompareAndSwap(false, true) {
		return
	}
	defer m.changing.Store(false)
	if !m.claim() {
		return
	}
	defer m.release()
	m.setDoomed(true)
	began := s.h.now()
	// Until it is sure: a member that lost its memory must not vote.
	for i := 0; ; i++ {
		via := s.members[(int(m.id)+i)%len(s.members)]
		err := errors.New("it would remove itself")
		if via != m || r.IntN(2) == 0 {
			err = s.ask(via, cluster.Request{Remove: m.id})
		}
		s.h.fault("remove %d by way of %d: %v", m.id, via.id, err)
		if err == nil || strings.Contains(err.Error(), "is no member") { // an answer was lost
			break
		}
		if i > 1000 {
			s.h.violate("recovery", "member %d cannot be removed: %v", m.id, err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(hold / 4)
	s.cutFor(m, began) // what it hears once it is removed, the leader may not learn
	m.stop(r.IntN(2) == 0)
	time.Sleep(hold)
	m.setDoomed(false)
	m.join = true
	if m.mem != nil {
		m.mu.Lock()
		m.mem, m.slows = storage.NewMemory(), nil // another disk
		m.mu.Unlock()
	} else {
		m.dir += "+"
	}
	if m.start() != nil {
		return
	}
	select {
	case <-m.server().Ready():
		s.h.fault("%d has joined", m.id)
	case <-time.After(time.Minute):
		if s.slack() > 50*time.Millisecond { // it may apply entries more slowly than others write them
			s.h.fault("%d has not joined yet", m.id)
			return
		}
		s.h.violate("recovery", "member %d has not joined after a minute", m.id)
	}
}

// changeVote has a client take a member's vote, or give it one, and undo that
// after a while.
func (s *sim) changeVote(m *member, r *rand.Rand, hold time.Duration) {
	if !s.voting.TryLock() {
		return
	}
	defer s.voting.Unlock()
	if !m.changing.CompareAndSwap(false, true) {
		return
	}
	defer m.changing.Store(false)
	c := s.warden
	defer c.drop()
	for range 1 + r.IntN(3) {
		c.reconfigure(m, !m.votes(), 3)
		time.Sleep(hold / 2)
		c.reconfigure(m, m.votes(), 3)
	}
	if !c.reconfigure(m, m.votes(), 500) && !s.over() {
		s.h.violate("recovery", "member %d does not get back the role that it had", m.id)
	}
}

// reconfigure has a member vote or not, in so many attempts, and reports whether
// one was acknowledged. Each is for the members as they were when it was sent, so that
// none is done after one that was acknowledged.
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
		if c.do(&Op{Code: proto.OpReconfig, Path: m.asMember(votes), Version64: version}).OK() {
			return true
		}
	}
	return false
}

func (m *member) setDoomed(yes bool) {
	m.mu.Lock()
	m.doomed = yes
	m.mu.Unlock()
}

// jumps sets members' clocks until the run is to calm down. It draws from a
// source of its own, so that it changes nothing else of a seed.
func (s *sim) jumps() {
	r := s.stream(7)
	pace := time.Duration(float64(5000+r.IntN(60_000))*math.Sqrt(s.opts.Pace)) * time.Millisecond
	for {
		select {
		case <-s.calm:
			return
		case <-time.After(time.Duration(r.ExpFloat64() * float64(pace))):
		}
		if m := s.pick(r); m.claim() { // nobody else sets it
			m.setClock()
			s.mu.Lock()
			s.faults["clock jump"]++
			s.mu.Unlock()
			s.h.fault("the clock of member %d is %v ahead", m.id, time.Duration(m.ahead.Load()))
			m.release()
		}
	}
}

// faults are the kinds of this build. Only one whose servers have points can stop
// them there.
func faults() []fault {
	if !perturb.Woven() {
		return faultKinds
	}
	return append(slices.Clip(faultKinds),
		fault{"stop a process", 6, func(s *sim, r *rand.Rand, hold time.Duration) { s.freeze(hold, s.pick(r)) }},
		fault{"stop the leader's process", 6, func(s *sim, r *rand.Rand, hold time.Duration) {
			if m := s.leader(); m != nil {
				s.freeze(3*hold, m) // the sessions that it knows have ended by then
			}
		}},
		fault{"stop all processes", 2, func(s *sim, r *rand.Rand, hold time.Duration) { s.freeze(hold, s.members...) }},
	)
}

// freeze stops members as a signal stops their processes, and lets them go on
// after a while. All their timers are over then.
func (s *sim) freeze(hold time.Duration, members ...*member) {
	var frozen []*member
	for _, m := range members {
		if m.claim() {
			defer m.release()
			frozen = append(frozen, m)
		}
	}
	for _, m := range frozen {
		s.order.Pause(m.name)
		defer s.spanIn(&s.stopLog, m.name)()
		defer s.spanIn(&s.slowLog, m.name)() // what it has heard, the leader may learn only now
		if len(members) == 1 {
			defer s.spanIn(&s.stuckLog, m.name)()
		}
	}
	began := s.h.now()
	time.Sleep(hold)
	for _, m := range frozen {
		s.cutFor(m, began)
		s.order.Resume(m.name)
	}
}

// chaos makes faults until the run is to calm down, and waits for their ends.
func (s *sim) chaos() {
	r := s.stream(4)
	kinds := faults()
	total := 0
	for _, f := range kinds {
		total += f.weight
	}
	pace := time.Duration(float64(300+r.IntN(5000))*math.Sqrt(s.opts.Pace)) * time.Millisecond // of this run
	for {
		select {
		case <-s.calm:
			return
		case <-time.After(time.Duration(r.ExpFloat64() * float64(pace))):
		}
		n := r.IntN(total)
		for _, f := range kinds {
			if n -= f.weight; n >= 0 {
				continue
			}
			hold := time.Duration(min(r.ExpFloat64(), 5) * float64(2500*time.Millisecond))
			mine := rand.New(rand.NewPCG(r.Uint64(), 0))
			s.mu.Lock()
			s.faults[f.name]++
			s.active++
			s.mu.Unlock()
			s.h.fault("%s for %v", f.name, hold)
			s.wg.Go(func() {
				if !slices.Contains(sticks, f.name) {
					defer s.spanIn(&s.otherLog, "")()
				}
				f.do(s, mine, hold)
				s.mu.Lock()
				s.active--
				s.mu.Unlock()
			})
			break
		}
	}
}
