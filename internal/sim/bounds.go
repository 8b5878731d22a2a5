package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// What the promises say in seconds: how soon a write is acknowledged while a single
// member is stuck, and how old a read may be.

// soon is within which time a write is acknowledged, through any member that is
// not stuck, while one is. The others elect another leader when the one that is
// stuck was silent, or its disk, for an election timeout, and if that fails once
// more after half of one. The rest is for messages, and for the new leader to
// hear of the sessions before anybody is answered.
func (s *sim) soon() time.Duration {
	return s.opts.ElectionTimeout*3/2 + 500*time.Millisecond
}

// settled is how long after any other fault the cluster is as it should be.
func (s *sim) settled() time.Duration { return 5*s.opts.ElectionTimeout + 5*time.Second }

// oldest is how old a read without a sync may be: a member answers from what was
// committed two election timeouts ago. It takes a moment to notice, and messages
// take a while.
func (s *sim) oldest() time.Duration {
	return 2*s.opts.ElectionTimeout + 150*time.Millisecond + 500*time.Millisecond
}

// availability asks of every write that was sent while at most one member, and
// another one than it was sent to, was stuck, whether it was acknowledged soon.
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
	soon := c.s.soon()
	if c.s.slack() > soon/100 {
		return // each of many steps may take as long
	}
	for _, o := range c.h.Ops {
		k := c.h.Conns[o.Conn]
		if !isWrite(o.Code) || o.ReadOnly || o.CallAt+soon > c.h.Over || !c.calm(o.Server, o.CallAt, o.CallAt+soon) {
			continue
		}
		if !o.Known() && (closed[o.Session] || newest[o.Session] != k || k.Ended-o.CallAt < soon && !k.ByServer) {
			continue // for a reason of its client's
		}
		c.n.Prompt++
		switch {
		case !o.Known():
			c.fail("availability", "op %d, sent to member %d at %v, was not answered; the connection ended at %v, by the server: %v", o.ID, o.Server, o.CallAt, k.Ended, k.ByServer)
		case o.RetAt-o.CallAt > soon:
			c.fail("availability", "op %d, sent to member %d at %v, was answered after %v", o.ID, o.Server, o.CallAt, o.RetAt-o.CallAt)
		}
	}
}

// calm says whether nothing happened in a time, and for a while before it, but that
// another member was stuck, once.
func (c *checker) calm(member int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	from -= c.s.settled()
	if from < 0 || slices.ContainsFunc(c.s.otherLog, func(s *cutSpan) bool { return s.within(from, to) }) {
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

// age asks of every read whether it shows all that was acknowledged as long before
// as a read may be old.
func (c *checker) age() {
	var acked []*Op
	for _, o := range c.h.Ops {
		if isWrite(o.Code) && o.OK() {
			acked = append(acked, o)
		}
	}
	slices.SortFunc(acked, func(a, b *Op) int { return cmp.Compare(a.RetAt, b.RetAt) })
	oldest := c.s.oldest() + c.s.slack()
	if c.s.slack() > oldest/50 {
		return // entries that each take as long to apply may queue up
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
		c.n.Recent++
		if o.Zxid < high.Zxid && !c.stoodStill(o.Server, high.RetAt, o.RetAt) {
			c.fail("age of reads", "op %d, sent to member %d at %v, is answered from zxid %x, and %x was acknowledged at %v", o.ID, o.Server, o.CallAt, o.Zxid, high.Zxid, high.RetAt)
		}
	}
}

// stoodStill says whether a member's process was stopped in a time, which does not
// count then.
func (c *checker) stoodStill(member int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return slices.ContainsFunc(c.s.stopLog, func(s *cutSpan) bool { return s.from == memberHost(member) && s.within(from, to) })
}
