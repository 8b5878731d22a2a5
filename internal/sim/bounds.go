package sim

import (
	"cmp"
	"slices"
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
	for i := range c.h.Commits {
		for _, g := range c.h.Commits[i].Changes {
			if g.Kind == proto.SessionClosed {
				closed[g.Session] = true
			}
		}
	}
	newest := map[int64]*ConnLog{}
	for _, k := range c.h.Conns {
		newest[k.Session] = k
	}
	soon := c.s.ackLimit()
	if c.s.slack() > soon/100 {
		return // a write takes many steps, and each may be delayed by that much
	}
	for _, o := range c.h.Ops {
		k := c.h.Conns[o.Conn]
		if !isWrite(o.Code) || o.ReadOnly || o.CallAt+soon > c.h.WorkEnded || !c.onlyOtherStuck(o.Server, o.CallAt, o.CallAt+soon) {
			continue
		}
		if !o.Known() && (closed[o.Session] || newest[o.Session] != k || k.Ended-o.CallAt < soon && !k.ByServer) {
			continue // the client itself gave up the connection or the session
		}
		c.n.PromptWrites++
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
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	from -= c.s.settleTime()
	if from < 0 || slices.ContainsFunc(c.s.otherLog, func(s *span) bool { return s.within(from, to) }) {
		return false
	}
	stuck := 0
	for _, s := range c.s.stuckLog {
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
		c.n.ReadAges++
		if o.Zxid < high.Zxid && !c.wasPaused(o.Server, high.RetAt, o.RetAt) {
			c.fail("age of reads", "op %d, sent to member %d at %v, was answered from zxid %x, although %x had been acknowledged at %v", o.ID, o.Server, o.CallAt, o.Zxid, high.Zxid, high.RetAt)
		}
	}
}

// wasPaused reports whether a member's process was paused in a period. The age of
// its reads is not limited then.
func (c *checker) wasPaused(member int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return slices.ContainsFunc(c.s.pauseLog, func(s *span) bool { return s.from == memberHost(member) && s.within(from, to) })
}
