package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// The promises about time: how soon a write is acknowledged while a single member is
// stuck, and how old a read may be.

// ackLimit is the time within which a write is acknowledged while one member is stuck, if
// it was sent to another one. The other members elect a new leader once the stuck one,
// or its disk, has not responded for an election timeout. If that election fails, they
// try again after half an election timeout. The rest is for messages, and for the
// members to report their sessions to the new leader before it answers anybody.
func (s *sim) ackLimit() time.Duration {
	return s.opts.ElectionTimeout*3/2 + 500*time.Millisecond
}

// settleTime is how long after any other fault the cluster is sure to be healthy again.
func (s *sim) settleTime() time.Duration { return 5*s.opts.ElectionTimeout + 5*time.Second }

// maxReadAge is how old a read without a sync may be: two election timeouts, a moment
// until the member notices, and the time that messages take.
func (s *sim) maxReadAge() time.Duration {
	return 2*s.opts.ElectionTimeout + 150*time.Millisecond + 500*time.Millisecond
}

// availability checks that writes were acknowledged soon, if they were sent to a
// member that was not stuck while at most one other member was.
func (c *checker) availability() {
	closed := map[int64]bool{}
	for _, g := range c.h.changes() {
		if g.Kind == proto.SessionClosed {
			closed[g.Session] = true
		}
	}
	newest := map[int64]*ConnLog{}
	for _, k := range c.h.Conns {
		newest[k.Session] = k
	}
	soon := c.s.ackLimit()
	if c.s.slack() > soon/100 || c.s.opts.Large {
		return // a write takes many steps, and each may be delayed by that much; or it waits for others on a narrow link
	}
	for _, o := range c.h.Ops {
		k := c.h.Conns[o.Conn]
		if !isWrite(o.Code) || o.ReadOnly || o.CallAt+soon > c.h.WorkEnded || !c.onlyOtherStuck(o.Server, o.CallAt, o.CallAt+soon) {
			continue
		}
		if !o.Known() && (closed[o.Session] || newest[o.Session] != k || k.Ended-o.CallAt < soon && !k.ByServer) {
			continue // the client itself gave up the connection or the session
		}
		c.n["writes that had to be prompt"]++
		switch {
		case !o.Known():
			c.fail("availability", "op %d, sent to member %d at %v, was not answered; the connection ended at %v, by the server: %v", o.ID, o.Server, o.CallAt, k.Ended, k.ByServer)
		case o.RetAt-o.CallAt > soon:
			c.fail("availability", "op %d, sent to member %d at %v, was answered after %v", o.ID, o.Server, o.CallAt, o.RetAt-o.CallAt)
		}
	}
}

// onlyOtherStuck reports whether in a period, and for a while before it, there was no fault
// other than one other member being stuck once.
func (c *checker) onlyOtherStuck(member int, from, to time.Duration) bool {
	from -= c.s.settleTime()
	if from < 0 || c.was(otherFault, 0, from, to) {
		return false
	}
	stuck := 0
	for _, s := range c.s.spans[memberStuck] {
		if s.within(from, to) {
			if stuck++; stuck > 1 || s.from == memberHost(member) {
				return false
			}
		}
	}
	return true
}

// age checks that every read shows all writes that were acknowledged longer ago than
// a read may be old.
func (c *checker) age() {
	var acked []*Op
	for _, o := range c.h.Ops {
		if isWrite(o.Code) && o.OK() {
			acked = append(acked, o)
		}
	}
	slices.SortFunc(acked, func(a, b *Op) int { return cmp.Compare(a.RetAt, b.RetAt) })
	oldest := c.s.maxReadAge() + c.s.slack()
	if c.s.slack() > oldest/50 {
		return // entries queue up if each of them takes that long to apply
	}
	var high *Op
	for _, o := range c.h.Ops { // in the order of their calls
		for len(acked) > 0 && acked[0].RetAt < o.CallAt-oldest {
			if high == nil || acked[0].Zxid > high.Zxid {
				high = acked[0]
			}
			acked = acked[1:]
		}
		switch o.Code {
		case proto.OpGetData, proto.OpExists, proto.OpGetChildren:
		default:
			continue
		}
		if high == nil || !o.Known() || o.ReadOnly {
			continue
		}
		c.n["ages of reads"]++
		if o.Zxid < high.Zxid && !c.was(processPaused, o.Server, high.RetAt, o.RetAt) {
			c.fail("age of reads", "op %d, sent to member %d at %v, was answered from zxid %x, although %x had been acknowledged at %v", o.ID, o.Server, o.CallAt, o.Zxid, high.Zxid, high.RetAt)
		}
	}
}

// maxOpen is how many connections from another member one may have open at a time. Where each
// step under a lock may sleep, connections that their other end has given up wait for the lock
// in turn: there may be more of them, but not at each look for a minute.
const maxOpen = 30

// countConns checks until the end of the run that no member keeps more and more connections
// of others, each with a request that it has not finished.
func (s *sim) countConns() {
	looks := 1
	if s.slack() > 0 {
		looks = 12
	}
	above := map[[2]*member]int{}
	for !s.over() {
		s.sleep(5 * time.Second)
		for _, m := range s.members {
			now := s.h.now()
			s.mu.Lock()
			frozen := s.frozen[m.name] > 0 || // then its kernel accepts them
				slices.ContainsFunc(s.spans[processPaused], func(x *span) bool { return x.from == m.name && x.within(now-time.Second, now) })
			s.mu.Unlock()
			for _, x := range s.members {
				if x == m || frozen {
					continue
				}
				n := s.net.Open(m.name, x.name)
				pair := [2]*member{m, x}
				if n <= maxOpen {
					above[pair] = 0
				} else if above[pair]++; above[pair] == looks {
					s.h.violate("connections", "member %d has %d open connections with member %d", m.id, n, x.id)
					return
				}
			}
		}
	}
}

// progressLimit is how long the cluster may do nothing for its clients while a majority of
// the members is up and connected. A single one of them, which may have to catch up, may do
// nothing for twice as long.
func (s *sim) progressLimit() time.Duration { return 2 * s.settleTime() }

// progress checks that writes are acknowledged while a majority of the members is
// undisturbed, whatever happens to the others, and through each member that belongs to it.
func (c *checker) progress() {
	if c.s.slack() > 0 {
		return
	}
	limit := c.s.progressLimit()
	if from, tries := c.idle(nil, limit); tries > 0 {
		c.fail("progress", "from %v to %v no write was acknowledged, although a majority of the members was not disturbed, and clients failed %d times", from, from+limit, tries)
	}
	for _, m := range c.s.members {
		if from, tries := c.idle(m, 2*limit); tries > 0 {
			c.fail("progress", "from %v to %v member %d acknowledged no write, although it and a majority of the members were not disturbed, and clients failed %d times", from, from+2*limit, m.id, tries)
		}
	}
}

// idle returns the first period of that length in which a majority of the members, and m if
// it is not nil, was undisturbed, and no write was acknowledged (through m), and how often
// clients failed to connect or to write. 0 means that there is no such period.
func (c *checker) idle(m *member, length time.Duration) (from time.Duration, tries int) {
	enough := 10 // fewer attempts say nothing
	if m != nil {
		enough = 3
	}
	of := func(server int) bool { return m == nil || server == int(m.id) }
	done, tried := []time.Duration{0, c.h.WorkEnded}, []time.Duration{}
	for _, o := range c.h.Ops {
		if !isWrite(o.Code) || o.ReadOnly || !of(o.Server) {
			continue
		}
		if o.Known() {
			done = append(done, o.RetAt)
		} else {
			tried = append(tried, o.CallAt)
		}
	}
	for _, k := range c.h.Conns {
		if of(k.Server) && !k.ReadOnly { // a session was opened or resumed, which is a write
			done = append(done, k.At)
		}
	}
	for _, x := range c.h.Failed {
		if of(int(x.Member)) {
			tried = append(tried, x.At)
		}
	}
	slices.Sort(tried)
	slices.Sort(done)
	starts := slices.Clone(done)
	for what, log := range c.s.spans {
		for _, x := range log {
			if what != otherFault {
				starts = append(starts, x.Until+1)
			}
		}
	}
	slices.Sort(starts)
	count := func(all []time.Duration, from, to time.Duration) int {
		i, _ := slices.BinarySearch(all, from)
		j, _ := slices.BinarySearch(all, to)
		return j - i
	}
	for _, from := range slices.Compact(starts) {
		to := from + length
		if to > c.h.WorkEnded || count(done, from+1, to) > 0 {
			continue
		}
		if n := count(tried, from+length/2, to); n >= enough && c.majority(m, from, to) {
			return from, n
		}
	}
	return 0, 0
}

// majority reports whether a majority of the voters was up, connected and undisturbed, with
// its votes, in a period without slow round trips, and so was the member with, if it is not nil.
func (c *checker) majority(with *member, from, to time.Duration) bool {
	if c.was(votesChange, 0, from, to) || c.was(roundSlow, 0, from, to) {
		return false
	}
	voters, well := 0, 0
	for _, m := range c.s.members {
		disturbed := slices.ContainsFunc(c.s.spans[wayCut], func(x *span) bool {
			return x.within(from, to) && (x.from == m.name || x.to == m.name) && !strings.HasPrefix(x.from, "client") && !strings.HasPrefix(x.to, "client")
		})
		for _, what := range []trouble{diskSlow, memberStuck, processPaused, memberOut} {
			disturbed = disturbed || c.was(what, int(m.id), from, to)
		}
		if disturbed && m == with {
			return false
		}
		if m.votes() {
			if voters++; !disturbed {
				well++
			}
		}
	}
	return well > voters/2
}
