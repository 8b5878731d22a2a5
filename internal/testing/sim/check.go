package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Counts say how much of what there was, and was checked.
type Counts map[string]int

func (n Counts) add(m Counts) {
	for what, k := range m {
		n[what] += k
	}
}

// check checks the history. The order of sessions' replies and the agreement of the
// members were checked during the run.
func (s *sim) check() Counts {
	c := &checker{s: s, h: s.h, at: map[int64]int{}, n: s.perturbed.Counts()}
	c.n.add(s.h.Counts)
	for i := range s.h.Commits {
		c.at[s.h.Commits[i].Zxid] = i
	}
	c.n["requests"], c.n["transactions"] = len(s.h.Ops), len(s.h.Commits)
	c.n["steps of the automata"] = s.steps.n
	c.writes()
	c.outcomes()
	c.readOnly()
	c.reconfigs()
	c.reads()
	c.locks()
	c.watches()
	c.ephemerals()
	c.expiries()
	c.lateness()
	c.clocks()
	c.availability()
	c.progress()
	c.age()
	return c.n
}

type checker struct {
	s  *sim
	h  *History
	at map[int64]int // index in h.Commits by zxid
	n  Counts
}

func (c *checker) fail(check, format string, args ...any) { c.h.violate(check, format, args...) }

func isWrite(code proto.OpCode) bool {
	switch code {
	case proto.OpCreate, proto.OpCreateContainer, proto.OpCreateTTL, proto.OpSetData, proto.OpDelete, proto.OpMulti:
		return true
	}
	return false
}

// isStats reports whether the members, and not clients, determine a znode's data.
func isStats(path string) bool { return strings.HasSuffix(path, "/zookeeper_stats") }

// writes compares the answers to writes with what the members applied: no
// acknowledged write is missing, no refused write was done, none was done twice, and a
// write that was answered before another one was sent has the lower zxid.
func (c *checker) writes() {
	done := map[string]int64{}    // tag -> zxid
	lockers := map[string]int64{} // by the data of a stock client's lock znode: the session that created it last
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		var tags []string
		for _, g := range x.Changes {
			if g.Data == "" || g.Kind != proto.NodeCreated && g.Kind != proto.NodeDataChanged || g.Path == "/zookeeper/config" || isStats(g.Path) || slices.Contains(tags, g.Data) {
				continue
			}
			tags = append(tags, g.Data) // a multi may write the same data to two znodes
			again := false
			if strings.HasPrefix(g.Path, "/stock/") { // a stock client retries by itself in its next session
				last, ok := lockers[g.Data]
				again = ok && last != g.Session
				lockers[g.Data] = g.Session
			}
			if z, twice := done[g.Data]; twice && !again {
				c.fail("exactly once", "%q was written at zxid %x and again at %x", g.Data, z, x.Zxid)
			}
			done[g.Data] = x.Zxid
		}
	}
	var known []*Op
	for _, o := range c.h.Ops {
		if !isWrite(o.Code) || !o.Known() || o.ReadOnly {
			continue
		}
		known = append(known, o)
		i, committed := c.at[o.Zxid]
		switch {
		case o.Err != proto.OK:
			if committed {
				c.fail("writes", "op %d was answered %v, but zxid %x changed %+v", o.ID, o.Err, o.Zxid, c.h.Commits[i].Changes)
			}
		case !committed:
			c.fail("writes", "op %d, %s, was acknowledged at zxid %x, which no member applied", o.ID, o.Path, o.Zxid)
		default:
			path, kind := o.Path, proto.NodeDataChanged
			switch o.Code {
			case proto.OpCreate, proto.OpCreateContainer, proto.OpCreateTTL:
				path, kind = o.GotPath, proto.NodeCreated
			case proto.OpDelete:
				kind = proto.NodeDeleted
			case proto.OpMulti:
				c.multi(o, c.h.Commits[i].Changes)
				continue
			}
			g := c.h.Commits[i].Changes[0]
			if g.Path != path || g.Kind != kind || kind != proto.NodeDeleted && g.Data != o.Tag && !isStats(path) || o.Code == proto.OpSetData && g.Version != o.GotVersion {
				c.fail("writes", "op %d, %s of %q, was acknowledged at zxid %x, which did %+v", o.ID, path, o.Tag, o.Zxid, g)
			}
		}
	}
	// A write is not done if it was sent on a connection after its session had moved to
	// another one.
	newest := map[int64]*ConnLog{}
	next := map[int]*ConnLog{} // the session's next connection
	for i := len(c.h.Conns) - 1; i >= 0; i-- {
		k := c.h.Conns[i]
		next[k.ID] = newest[k.Session]
		if !k.ReadOnly { // a read-only connection does not take the session from another
			newest[k.Session] = k
		}
	}
	// Nor is anything answered there by a member that has applied what was done on the other one, unless it serves reads only: then it
	// does not know who has the session.
	first := map[int]*Op{} // the first write that was done on each connection
	for _, o := range known {
		if x := first[o.Conn]; o.Err == proto.OK && (x == nil || o.Zxid < x.Zxid) {
			first[o.Conn] = o
		}
	}
	for _, o := range c.h.Ops {
		if n := next[o.Conn]; n != nil && !o.ReadOnly && o.Known() && first[n.ID] != nil && o.Zxid >= first[n.ID].Zxid {
			c.fail("session moved", "op %d on connection %d was answered at zxid %x, after op %d on connection %d of session %x, at %x", o.ID, o.Conn, o.Zxid, first[n.ID].ID, n.ID, o.Session, first[n.ID].Zxid)
		}
		if o.Tag == "" || !isWrite(o.Code) {
			continue
		}
		if n := next[o.Conn]; done[o.Tag] != 0 && n != nil && o.Call > n.Seq {
			c.fail("session moved", "op %d was sent on connection %d, after session %x had moved to connection %d, and was done at zxid %x", o.ID, o.Conn, o.Session, n.ID, done[o.Tag])
		}
	}
	c.gaps(done)
	// Every write has a higher zxid than all writes that ended before it began.
	ends := slices.Clone(known)
	slices.SortFunc(ends, func(a, b *Op) int { return cmp.Compare(a.Ret, b.Ret) })
	slices.SortFunc(known, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	var high *Op
	for _, o := range known {
		for len(ends) > 0 && ends[0].Ret < o.Call {
			if high == nil || ends[0].Zxid > high.Zxid {
				high = ends[0]
			}
			ends = ends[1:]
		}
		if high != nil && o.Zxid <= high.Zxid {
			c.fail("real time", "op %d has zxid %x, but it began after op %d ended, with zxid %x", o.ID, o.Zxid, high.ID, high.Zxid)
			break
		}
	}
}

// multi compares an acknowledged multi with what its transaction did.
func (c *checker) multi(o *Op, changes []Change) {
	kinds := map[proto.OpCode]proto.ChangeKind{proto.OpCreate: proto.NodeCreated, proto.OpSetData: proto.NodeDataChanged, proto.OpDelete: proto.NodeDeleted}
	did := changes
	for _, p := range o.More {
		if p.Code == proto.OpCheck {
			continue
		}
		// If the multi deleted the znode again, its data is not recorded.
		if len(did) == 0 || did[0].Kind != kinds[p.Code] || did[0].Path != p.Path || did[0].Data != p.Tag && did[0].Data != "" {
			c.fail("writes", "op %d, multi %+v, was acknowledged at zxid %x, which did %+v", o.ID, o.More, o.Zxid, changes)
			return
		}
		did = did[1:]
	}
	if len(did) > 0 {
		c.fail("writes", "op %d, multi %+v, was acknowledged at zxid %x, which also did %+v", o.ID, o.More, o.Zxid, did)
	}
}

// readOnly checks what was sent to members without a majority: writes were refused
// and never done. A member closes all connections when it loses the majority and when
// it regains it, so a connection is not answered any more after the member has
// accepted a client of the other kind.
func (c *checker) readOnly() {
	done := map[string]int64{}
	opened := map[int64]bool{}
	for x, g := range c.h.changes() {
		switch g.Kind {
		case proto.NodeCreated, proto.NodeDataChanged:
			done[g.Data] = x.Zxid
		case proto.SessionOpened:
			opened[g.Session] = true
		}
	}
	sessions := map[int64]bool{} // sessions that clients got from members with a majority
	for _, k := range c.h.Conns {
		sessions[k.Session] = sessions[k.Session] || !k.ReadOnly
	}
	for _, k := range c.h.Conns {
		if opened[k.Session] != sessions[k.Session] {
			c.fail("read-only", "connection %d, read-only: %v, has session %x, which the members opened: %v", k.ID, k.ReadOnly, k.Session, opened[k.Session])
		}
	}
	for _, o := range c.h.Ops {
		if !o.ReadOnly {
			continue
		}
		if z := done[o.Tag]; o.Tag != "" && z != 0 {
			c.fail("read-only", "op %d was sent on a read-only connection, and done at zxid %x", o.ID, z)
		}
		if !o.Known() {
			continue
		}
		c.n["answers without a majority"]++
		if refused := o.Err == proto.NotReadOnly; refused != (isWrite(o.Code) || o.Code == proto.OpSync) {
			c.fail("read-only", "op %d (%d of %s) was sent on a read-only connection and answered %v", o.ID, o.Code, o.Path, o.Err)
		}
	}
	over := map[int]*ConnLog{} // by connection: the first later one of the other kind
	for _, a := range c.h.Conns {
		if !a.ReadOnly {
			continue
		}
		for _, b := range c.h.Conns {
			if a.Server != b.Server || b.ReadOnly {
				continue
			}
			before, after := a, b
			if b.At < a.CallAt {
				before, after = b, a
			}
			if first := over[before.ID]; before.At < after.CallAt && (first == nil || after.At < first.At) {
				over[before.ID] = after
			}
		}
	}
	for _, o := range c.h.Ops {
		if k := over[o.Conn]; k != nil && o.Known() && o.CallAt > k.At {
			c.fail("read-only", "op %d, sent at %v, was answered on connection %d, read-only: %v, although member %d had accepted connection %d of the other kind at %v", o.ID, o.CallAt, o.Conn, o.ReadOnly, o.Server, k.ID, k.At)
		}
	}
}

// reconfigs compares the answers to reconfigs with the members in /zookeeper/config at
// the time, and checks that all members have their own roles again at the end.
func (c *checker) reconfigs() {
	type config struct {
		at   time.Duration
		zxid int64
		text string
	}
	var all []config
	for x, g := range c.h.changes() {
		if g.Path == "/zookeeper/config" {
			all = append(all, config{x.At, x.Zxid, g.Data})
		}
	}
	by := func(at time.Duration) (last config) {
		for _, x := range all {
			if x.at <= at {
				last = x
			}
		}
		return last
	}
	for _, o := range c.h.Ops {
		if o.Code != proto.OpReconfig || !o.Known() || o.ReadOnly {
			continue
		}
		c.n["reconfigs"]++
		wrong := false
		switch o.Err {
		case proto.OK:
			wrong = o.User != superUser || !strings.Contains(o.GotData, o.Path) || o.Version64 != -1 && by(o.CallAt).zxid > o.Version64
		case proto.NoAuth:
			wrong = o.User == superUser
		case proto.BadVersion:
			wrong = o.Version64 == -1 || by(o.RetAt).zxid == o.Version64
		case proto.BadArguments, proto.NewConfigNoQuorum, proto.ReconfigInProgress:
			wrong = o.User != superUser
		default:
			wrong = true
		}
		if wrong {
			c.fail("reconfig", "op %d (%s as %q, for version %x), sent at %v, was answered %v: %q; the members were %+v then, and %+v when the answer came", o.ID, o.Path, o.User, o.Version64, o.CallAt, o.Err, o.GotData, by(o.CallAt), by(o.RetAt))
		}
	}
	if len(all) == 0 || c.h.WorkEnded == 0 {
		return
	}
	last := all[len(all)-1]
	for _, m := range c.s.members {
		role := "participant"
		if !m.votes() {
			role = "observer"
		}
		if !slices.ContainsFunc(strings.Split(last.text, "\n"), func(line string) bool {
			return strings.HasPrefix(line, fmt.Sprintf("server.%d=", m.id)) && strings.Contains(line, ":"+role)
		}) {
			c.fail("reconfig", "member %d should be a %s at the end: %q", m.id, role, last.text)
		}
	}
}

// gaps checks that the writes of each connection were done in order, and that no write was
// done after an unanswered one that was never done. done has the zxids by tag.
func (c *checker) gaps(done map[string]int64) {
	last, missing := map[int]*Op{}, map[int]*Op{} // by connection
	for _, o := range c.h.Ops {
		if o.Tag == "" || !isWrite(o.Code) {
			continue
		}
		z := done[o.Tag]
		if z == 0 {
			// A conditional write may have been refused, and the answer lost.
			if !o.Known() && o.Code == proto.OpSetData && o.Version == -1 && !strings.HasPrefix(o.Path, "/ttl/") && missing[o.Conn] == nil {
				missing[o.Conn] = o
			}
			continue
		}
		if m := missing[o.Conn]; m != nil {
			c.fail("session order", "op %d was done at zxid %x, and op %d, sent before on connection %d, never", o.ID, z, m.ID, o.Conn)
		}
		if l := last[o.Conn]; l != nil && done[l.Tag] >= z {
			c.fail("session order", "op %d was done at zxid %x, and op %d, sent before on connection %d, at %x", o.ID, z, l.ID, o.Conn, done[l.Tag])
		}
		last[o.Conn] = o
	}
}

// reads compares every read with the tree at the zxid of its reply.
func (c *checker) reads() {
	var reads []*Op
	for _, o := range c.h.Ops {
		switch o.Code {
		case proto.OpGetData, proto.OpExists, proto.OpGetChildren:
			if o.Known() {
				reads = append(reads, o)
			}
		}
	}
	c.n["reads"] = len(reads)
	slices.SortStableFunc(reads, func(a, b *Op) int { return cmp.Compare(a.Zxid, b.Zxid) })
	w := c.newWorld()
	next := 0
	for _, o := range reads {
		for ; next < len(c.h.Commits) && c.h.Commits[next].Zxid <= o.Zxid; next++ {
			w.apply(&c.h.Commits[next])
		}
		n, exists := w.nodes[o.Path]
		if isStats(o.Path) {
			of, _ := parentOf(strings.TrimPrefix(o.Path, "/zookeeper/quota"))
			n.Data = w.quotas[of].text()
		}
		switch {
		case exists && o.Code != proto.OpExists && !w.permits(o.Path, o.User):
			if o.Err != proto.NoAuth {
				c.fail("reads", "op %d of %q reads %s of %q at zxid %x and gets %v", o.ID, o.User, o.Path, w.owners[o.Path], o.Zxid, o.Err)
			}
		case !exists || o.Err != proto.OK:
			if exists || o.Err != proto.NoNode {
				c.fail("reads", "op %d reads %s at zxid %x and gets %v; exists: %v", o.ID, o.Path, o.Zxid, o.Err, exists)
			}
		case o.Code == proto.OpGetChildren:
			got, want := slices.Sorted(slices.Values(o.GotChildren)), slices.Sorted(maps.Keys(w.children[o.Path]))
			if !slices.Equal(got, want) {
				c.fail("reads", "op %d lists %s at zxid %x as %v, should be %v", o.ID, o.Path, o.Zxid, got, want)
			}
		case n.Version != o.GotVersion || o.Code == proto.OpGetData && n.Data != o.GotData:
			c.fail("reads", "op %d reads %s at zxid %x as %q version %d, should be %q version %d", o.ID, o.Path, o.Zxid, o.GotData, o.GotVersion, n.Data, n.Version)
		}
	}
}

// regState is the state of a register, for Porcupine.
type regState struct {
	data    string
	version int32
}

var regModel = porcupine.Model{
	Init: func() any { return regState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(regState), input.(*Op), output.(*Op)
		if in.Code != proto.OpSetData {
			return s.version == out.GotVersion && (s.version == 0 || s.data == out.GotData), s
		}
		fits := in.Version == -1 || in.Version == s.version
		after := regState{in.Tag, s.version + 1}
		switch {
		case !out.Known():
			return fits, after
		case out.Err == proto.BadVersion:
			return !fits, s
		}
		return fits && out.GotVersion == after.version, after
	},
	Equal: func(a, b any) bool { return a == b },
}

// Linearize has Porcupine judge the writes and synced reads of each register. Its
// limit is in real time, so it must be called outside the synctest bubble.
func (r *Report) Linearize(most time.Duration) {
	h := r.History
	// Whether and when an unanswered write was done is taken from the log. Otherwise
	// Porcupine would have too many orders to try.
	done := map[string]int{}
	for x, g := range h.changes() {
		done[g.Data] = x.Seq
	}
	syncs := map[int]*Op{} // the last one by connection
	per := map[string][]porcupine.Operation{}
	for _, o := range h.Ops {
		begin := int64(o.Call)
		switch {
		case o.Code == proto.OpSync:
			syncs[o.Conn] = o
			continue
		case o.Code == proto.OpGetData && !o.Unsynced && o.OK():
			// The sync was sent just before on the same connection.
			if y := syncs[o.Conn]; y == nil || !y.OK() {
				continue
			}
		case o.Code == proto.OpSetData && strings.HasPrefix(o.Path, "/reg/"):
			if o.Known() && o.Err != proto.OK && o.Err != proto.BadVersion {
				continue
			}
		default:
			continue
		}
		end := int64(o.Ret)
		if !o.Known() {
			if done[o.Tag] == 0 {
				continue
			}
			end = int64(done[o.Tag])
		}
		per[o.Path] = append(per[o.Path], porcupine.Operation{ClientId: o.Client, Input: o, Call: begin, Output: o, Return: end})
	}
	for _, path := range slices.Sorted(maps.Keys(per)) {
		ops := per[path]
		switch porcupine.CheckOperationsTimeout(regModel, ops, most) {
		case porcupine.Illegal:
			h.violate("linearizability", "no order of the %d operations on %s explains their results", len(ops), path)
		case porcupine.Unknown:
			r.Checked["histories that Porcupine gave up on"]++
		default:
			r.Checked["operations that Porcupine judged"] += len(ops)
		}
	}
}

// locks checks who held which lock. In zxid order there is one holder at a time, the
// first in line, with fencing tokens that grow. By the clock, no two clients believe
// at once that they hold the lock.
func (c *checker) locks() {
	c.n["locks"] = len(c.h.Spans)
	created, deleted := map[string]int64{}, map[string]int64{}
	deletedAt := map[string]time.Duration{}
	for x, g := range c.h.changes() {
		if g.Kind == proto.NodeCreated {
			created[g.Path] = x.Zxid
		} else if g.Kind == proto.NodeDeleted {
			deleted[g.Path], deletedAt[g.Path] = x.Zxid, x.At
		}
	}
	answered := c.answers()
	per := map[string][]*Span{}
	for _, p := range c.h.Spans {
		per[p.Lock] = append(per[p.Lock], p)
	}
	for _, lock := range slices.Sorted(maps.Keys(per)) {
		spans := per[lock]
		slices.SortFunc(spans, func(a, b *Span) int { return cmp.Compare(a.Zxid, b.Zxid) })
		for i, p := range spans {
			if created[p.Path] != p.Czxid {
				c.fail("locks", "%s has czxid %x for its holder, but was created at %x", p.Path, p.Czxid, created[p.Path])
			}
			// All znodes created before the holder's were deleted when it took the lock.
			for path, z := range created {
				if z < p.Czxid && strings.HasPrefix(path, lock+"/") {
					if d := deleted[path]; d == 0 || d > p.Zxid {
						c.fail("locks", "client %d holds %s from zxid %x, but %s, created before, exists until %x", p.Client, p.Path, p.Zxid, path, d)
					}
				}
			}
			if i == 0 {
				continue
			}
			q := spans[i-1]
			if q.Czxid >= p.Czxid {
				c.fail("locks", "%s: token %x follows %x", lock, p.Czxid, q.Czxid)
			}
			if d := deleted[q.Path]; d == 0 || d > p.Zxid {
				c.fail("locks", "client %d holds %s from zxid %x, but client %d holds %s until %x", p.Client, p.Path, p.Zxid, q.Client, q.Path, d)
			}
		}
		slices.SortFunc(spans, func(a, b *Span) int { return cmp.Compare(a.At, b.At) })
		var until time.Duration
		var holder *Span
		for _, p := range spans {
			end := believesUntil(p, answered[p.Session])
			if t, ok := c.h.KnownEnded[p.Session]; ok {
				end = min(end, t)
			}
			if c.h.Forced[p.Session] { // a fault ended the session, which the client cannot know
				if t, ok := deletedAt[p.Path]; ok && t <= p.At {
					continue // its server lagged, and still had the lock's znode
				}
				end = 0
			}
			if holder != nil && p.At < until && p.Path != holder.Path {
				c.fail("locks", "client %d holds %s from %v, but client %d may believe until %[6]v that it holds %[5]s", p.Client, p.Path, p.At, holder.Client, holder.Path, until)
			}
			if end > until {
				until, holder = end, p
			}
		}
	}
}

// believesUntil is how long a client may believe that it holds a lock: until it releases
// the lock, but no longer than two thirds of its session timeout after it sent the last
// request that was answered. So does package lock. Stock clients count from when the answer
// arrived, and may believe a little longer; see the conditions in docs/reliability.md.
func believesUntil(p *Span, answered []answer) time.Duration {
	until := p.CallAt + timing.Believed(p.Timeout)
	for _, a := range answered { // in order of their calls
		if a.ret <= until {
			until = max(until, a.call+timing.Believed(p.Timeout))
		}
	}
	if p.Until > 0 {
		until = min(until, p.Until)
	}
	return until
}

type answer struct {
	call, ret time.Duration
	server    int
	logged    bool // a write or a sync, of which the leader has heard
}

// answers lists the answers that each session's client got, in the order of its
// requests. The answers of read-only servers and those to auth are left out, because they do
// not keep the session alive.
func (c *checker) answers() map[int64][]answer {
	all := map[int64][]answer{}
	for _, o := range c.h.Ops {
		if o.Known() && !o.ReadOnly && o.Code != proto.OpAuth {
			all[o.Session] = append(all[o.Session], answer{call: o.CallAt, ret: o.RetAt, server: o.Server, logged: o.OK() && proto.OpByCode(o.Code).Class == proto.Write})
		}
	}
	for _, k := range c.h.Conns {
		if !k.ReadOnly {
			all[k.Session] = append(all[k.Session], answer{call: k.CallAt, ret: k.At, server: k.Server})
		}
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b answer) int { return cmp.Compare(a.call, b.call) })
	}
	return all
}

// triggers lists by path when a watch fires.
type triggers map[string][]trigger

type trigger struct {
	zxid  int64
	event proto.EventType
}

// due is an event that a change causes, for a client that watches the path.
type due struct {
	zxid  int64
	event proto.EventType
	path  string
}

type watchCheck struct {
	c           *checker
	data, child triggers // by path
	all         []due    // in order of zxid
}

// watches checks that every watch fired at the first change after it was set, before
// any reply that shows this change or a later one, and that no other events came. On a
// new connection the first request sets the watches again, and the server reports at
// once what has changed since the zxid named in the request.
func (c *checker) watches() {
	k := &watchCheck{c: c, data: triggers{}, child: triggers{}}
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		on := func(t triggers, path string, e proto.EventType) {
			t[path] = append(t[path], trigger{x.Zxid, e})
			k.all = append(k.all, due{x.Zxid, e, path})
		}
		for _, g := range x.Changes {
			switch g.Kind {
			case proto.NodeCreated:
				dir, _ := parentOf(g.Path)
				on(k.data, g.Path, proto.EventNodeCreated)
				on(k.child, dir, proto.EventNodeChildrenChanged)
			case proto.NodeDeleted:
				dir, _ := parentOf(g.Path)
				on(k.data, g.Path, proto.EventNodeDeleted)
				k.child[g.Path] = append(k.child[g.Path], trigger{x.Zxid, proto.EventNodeDeleted})
				on(k.child, dir, proto.EventNodeChildrenChanged)
			case proto.NodeDataChanged:
				on(k.data, g.Path, proto.EventNodeDataChanged)
			}
		}
	}
	bySession := map[int64][]*ConnLog{}
	for _, l := range c.h.Conns { // in the order in which they were opened
		bySession[l.Session] = append(bySession[l.Session], l)
	}
	for _, id := range slices.Sorted(maps.Keys(bySession)) {
		believed := knownWatches{map[oneShot]bool{}, map[persistentWatch]bool{}}
		logs := bySession[id]
		for i, l := range logs {
			left := math.MaxInt // when the client left it for the next one
			if i+1 < len(logs) {
				left = logs[i+1].Left
			}
			believed = k.conn(l, believed, left)
		}
	}
}

// after returns the first trigger after a zxid.
func (t triggers) after(path string, zxid int64) trigger {
	l := t[path]
	if i := t.search(path, zxid); i < len(l) {
		return l[i]
	}
	return trigger{zxid: 1 << 62}
}

// before returns the last trigger at or before a zxid.
func (t triggers) before(path string, zxid int64) trigger {
	if i := t.search(path, zxid); i > 0 {
		return t[path][i-1]
	}
	return trigger{}
}

// search returns the index of the first trigger after a zxid.
func (t triggers) search(path string, zxid int64) int {
	l := t[path]
	return sort.Search(len(l), func(i int) bool { return l[i].zxid > zxid })
}

// times is how often the changes at an event's zxid cause it: with a multi it can be
// more than once.
func (k *watchCheck) times(d due) (n int) {
	for i := k.from(d.zxid - 1); i < len(k.all) && k.all[i].zxid == d.zxid; i++ {
		if k.all[i] == d {
			n++
		}
	}
	return n
}

// from is the index of the first event after a zxid.
func (k *watchCheck) from(zxid int64) int {
	return sort.Search(len(k.all), func(i int) bool { return k.all[i].zxid > zxid })
}

// at is the state that setWatches finds at a zxid: whether a znode exists, and the
// zxids of its last change and of the last change of its children.
func (k *watchCheck) at(path string, zxid int64) (there bool, mzxid, pzxid int64) {
	d := k.data.before(path, zxid)
	if d.zxid == 0 || d.event == proto.EventNodeDeleted {
		return false, 0, 0
	}
	l := k.data[path]
	made := int64(0)
	for i := k.data.search(path, zxid) - 1; i >= 0 && made == 0; i-- {
		if l[i].event == proto.EventNodeCreated {
			made = l[i].zxid
		}
	}
	return true, d.zxid, max(made, k.child.before(path, zxid).zxid)
}

// covers reports whether a persistent watch fires for an event.
func (w persistentWatch) covers(d due) bool {
	if !w.recursive {
		return d.path == w.path
	}
	return d.event != proto.EventNodeChildrenChanged && (d.path == w.path || strings.HasPrefix(d.path, w.path+"/"))
}

// conn checks the frames of one connection. The client begins it with some watches,
// and leaves it at a point of the run; conn returns the watches that it has then.
func (k *watchCheck) conn(l *ConnLog, believes knownWatches, left int) knownWatches {
	c := k.c
	fail := func(format string, args ...any) {
		c.fail("watches", "connection %d of client %d to member %d: %s", l.ID, l.Client, l.Server, fmt.Sprintf(format, args...))
	}
	first := believes.clone()
	var leaves *knownWatches                  // nil until the client leaves
	armed := map[oneShot]trigger{}            // when each must fire
	persistent := map[persistentWatch]int64{} // the zxids at which they were set
	told := map[due]int{}                     // how often each event came, of those with a zxid
	var atOnce []due                          // events without a zxid
	next := len(k.all)                        // the first of k.all that may not have come yet
	set := first.empty()                      // the watches are set again, or there were none
	persist := func(w persistentWatch, zxid int64) {
		if _, ok := persistent[w]; !ok {
			persistent[w] = zxid
			next = min(next, k.from(zxid))
		}
	}
	covered := func(d due) bool {
		for w, from := range persistent {
			if d.zxid > from && w.covers(d) {
				return true
			}
		}
		return false
	}
	for _, f := range l.Frames {
		if f.Seq > left && leaves == nil {
			leaves = new(believes.clone())
		}
		for w, t := range armed {
			if f.Zxid > t.zxid || f.Zxid == t.zxid && f.Event == 0 {
				fail("no event of %v at zxid %x came before a frame with %x", w, t.zxid, f.Zxid)
				delete(armed, w)
			}
		}
		if len(persistent) > 0 {
			for ; next < len(k.all) && (k.all[next].zxid < f.Zxid || k.all[next].zxid == f.Zxid && f.Event == 0); next++ {
				if d := k.all[next]; covered(d) && told[d] < k.times(d) {
					fail("no event %d of %s at zxid %x for a persistent watch came before a frame with %x", d.event, d.path, d.zxid, f.Zxid)
				}
			}
		}
		if f.Event != 0 {
			c.n["events"]++
			d := due{f.Zxid, f.Event, f.Path}
			believes.fired(f.Event, f.Path)
			if f.Zxid == -1 {
				if set {
					fail("event %d of %s without a zxid, but no setWatches is pending", f.Event, f.Path)
				}
				atOnce = append(atOnce, d)
				continue
			}
			times := k.times(d)
			if told[d]++; told[d] > max(1, times) {
				fail("event %d of %s at zxid %x came %d times", f.Event, f.Path, f.Zxid, told[d])
			}
			fired := covered(d) && times > 0
			for _, w := range []oneShot{{false, f.Path}, {true, f.Path}} {
				if t, ok := armed[w]; ok && t.event == f.Event && t.zxid == f.Zxid {
					delete(armed, w)
					fired = true
				}
			}
			if !fired {
				fail("event %d of %s at zxid %x, for which there is no watch: armed %v, persistent %v", f.Event, f.Path, f.Zxid, armed, persistent)
			}
			continue
		}
		o := f.Op
		believes.note(o)
		switch {
		case o.Code == proto.OpSetWatches || o.Code == proto.OpSetWatches2:
			if set || o.Err != proto.OK {
				fail("op %d sets watches: %v; the session had %v", o.ID, o.Err, first)
				continue
			}
			set = true
			k.again(o, first, atOnce, armed, persist, fail)
		case o.Code == proto.OpAddWatch && o.Err == proto.OK:
			c.n["watches"]++
			persist(persistentWatch{o.Recursive, o.Path}, o.Zxid)
		case o.Watch && (o.Err == proto.OK || o.Code == proto.OpExists && o.Err == proto.NoNode):
			w, t := oneShot{o.Code == proto.OpGetChildren, o.Path}, k.data
			if w.child {
				t = k.child
			}
			c.n["watches"]++
			if _, ok := armed[w]; !ok {
				armed[w] = t.after(w.path, o.Zxid)
			}
		}
		if !set {
			fail("op %d is answered before the watches were set", o.ID)
			set = true
		}
	}
	if leaves == nil {
		return believes
	}
	return *leaves
}

// again checks a setWatches: the request must name the watches that the client had, and
// the events that came at once must be those for what had changed. again arms the other
// watches.
func (k *watchCheck) again(o *Op, first knownWatches, atOnce []due, armed map[oneShot]trigger, persist func(persistentWatch, int64), fail func(string, ...any)) {
	c, q := k.c, o.Set
	if n := len(q.Data) + len(q.Exist) + len(q.Child); n != len(first.watching) || len(q.Persistent)+len(q.Recursive) != len(first.persistent) {
		fail("op %d sets %d watches and %d persistent ones, but the session has %v", o.ID, n, len(q.Persistent)+len(q.Recursive), first)
	}
	var want []due
	arm := func(w oneShot, t triggers) {
		c.n["watches set again"]++
		if absent, ok := first.watching[w]; !ok || absent != slices.Contains(q.Exist, w.path) && !w.child {
			fail("op %d sets a watch of %v again, but the session has %v", o.ID, w, first)
		}
		if d := t.after(w.path, q.RelativeZxid); d.zxid > o.Zxid {
			armed[w] = d
			return
		}
		there, mzxid, pzxid := k.at(w.path, o.Zxid)
		e := proto.EventNodeDeleted
		switch {
		case there && slices.Contains(q.Exist, w.path) && !w.child:
			e = proto.EventNodeCreated
		case there && w.child && pzxid > q.RelativeZxid:
			e = proto.EventNodeChildrenChanged
		case there && !w.child && mzxid > q.RelativeZxid:
			e = proto.EventNodeDataChanged
		case !there && slices.Contains(q.Exist, w.path) && !w.child:
			// The znode was created and deleted again in between, which setWatches does not see.
			armed[w] = t.after(w.path, o.Zxid)
			return
		}
		want = append(want, due{-1, e, w.path})
	}
	for _, path := range slices.Concat(q.Data, q.Exist) {
		arm(oneShot{false, path}, k.data)
	}
	for _, path := range q.Child {
		arm(oneShot{true, path}, k.child)
	}
	for _, path := range q.Persistent {
		persist(persistentWatch{false, path}, o.Zxid)
	}
	for _, path := range q.Recursive {
		persist(persistentWatch{true, path}, o.Zxid)
	}
	order := func(a, b due) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.event, b.event)) }
	slices.SortFunc(want, order)
	slices.SortFunc(atOnce, order)
	c.n["events at once"] += len(atOnce)
	if !slices.Equal(want, atOnce) {
		fail("op %d sets watches again, from zxid %x at %x: the events at once are %v, should be %v", o.ID, q.RelativeZxid, o.Zxid, atOnce, want)
	}
}

// ephemerals checks that ephemeral znodes are deleted in the transaction that ends
// their session, and not before, unless a client deletes them.
func (c *checker) ephemerals() {
	open := map[int64]bool{}
	owned := map[int64]map[string]bool{}
	owner := map[string]int64{}
	deletes := map[string]bool{} // paths that a client tried to delete
	for _, o := range c.h.Ops {
		if o.Code == proto.OpDelete {
			deletes[o.Path] = true
		}
	}
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		closes := int64(0)
		for _, g := range x.Changes {
			switch g.Kind {
			case proto.SessionOpened:
				open[g.Session] = true
				owned[g.Session] = map[string]bool{}
			case proto.SessionClosed:
				closes = g.Session
			}
		}
		for _, g := range x.Changes {
			switch {
			case g.Kind == proto.NodeCreated && g.Session != 0:
				c.n["ephemerals"]++
				if !open[g.Session] {
					c.fail("ephemerals", "%s was created at zxid %x in session %x, which had ended", g.Path, x.Zxid, g.Session)
					continue
				}
				owned[g.Session][g.Path] = true
				owner[g.Path] = g.Session
			case g.Kind == proto.NodeDeleted && owner[g.Path] != 0:
				if owner[g.Path] != closes && !deletes[g.Path] && !strings.HasPrefix(g.Path, "/stock") {
					c.fail("ephemerals", "%s was deleted at zxid %x, although no client deleted it and its session lives", g.Path, x.Zxid)
				}
				delete(owned[owner[g.Path]], g.Path)
				delete(owner, g.Path)
			}
		}
		if closes != 0 {
			if len(owned[closes]) > 0 {
				c.fail("ephemerals", "session %x ended at zxid %x and left %v behind", closes, x.Zxid, slices.Sorted(maps.Keys(owned[closes])))
			}
			if !open[closes] {
				c.fail("ephemerals", "session %x ended a second time at zxid %x", closes, x.Zxid)
			}
			delete(open, closes)
			delete(owned, closes)
		}
	}
}

// reportTime is the longest time until the leader knows that a member has heard from a
// session, if the network between them is not cut.
const reportTime = tick/4 + 600*time.Millisecond

// reportTime is reportTime in this run. Where each step of a message often sleeps,
// messages wait for each other.
func (c *checker) reportTime() time.Duration { return reportTime + 40*c.s.slack() }

// expiries checks every session that a leader ended because it was late. No member
// that could report it to the leader had heard from the client within the session
// timeout. And whatever happened to the member that answered, the client's last
// answered request was sent at least two thirds of the timeout before the end, and the last
// write or sync, if it was answered within two thirds, the whole timeout.
func (c *checker) expiries() {
	answered := c.answers()
	closed := map[int64]time.Duration{}
	for x, g := range c.h.changes() {
		if g.Kind == proto.SessionClosed {
			closed[g.Session] = x.At
		}
	}
	left := map[int64]bool{} // sessions that their clients closed
	for _, o := range c.h.Ops {
		left[o.Session] = left[o.Session] || o.Code == proto.OpCloseSession
	}
	late := map[int64][]*Expiry{} // when sessions were found late by the last leader
	for i := range c.h.Expiries {
		e := &c.h.Expiries[i]
		if end, ended := closed[e.Session]; !ended || e.At > end || left[e.Session] || c.h.Forced[e.Session] {
			continue
		} else if end-e.At > 10*time.Second {
			continue // a member that had been replaced as the leader could not end it
		}
		found := late[e.Session]
		if c.was(memberStuck, int(e.By), e.At-time.Second, e.At) {
			continue // another member may lead already, and have found the session late
		}
		if n := len(found); n > 0 && (found[n-1].By != e.By || slices.ContainsFunc(c.h.LeaderChanges, func(t time.Duration) bool { return found[n-1].At < t && t <= e.At })) {
			found = nil // the previous leader did not get to end the session
		}
		late[e.Session] = append(found, e)
	}
	for _, id := range slices.Sorted(maps.Keys(late)) {
		e := late[id][0] // later ones repeat an attempt that failed
		c.n["expiries"]++
		for _, a := range answered[e.Session] {
			if a.ret+c.reportTime() < e.At && a.call+e.Timeout > e.At && !c.wasCut(a.server, int(e.By), a.call-5*time.Second, e.At) &&
				!c.was(diskSlow, a.server, a.call-5*time.Second, e.At) && !c.wasUnheard(a.server, a.call, e.At+time.Second) {
				c.fail("expiry", "session %x, with a timeout of %v, was found late at %v by member %d, but member %d heard from it at %v", e.Session, e.Timeout, e.At, e.By, a.server, a.call)
				break
			}
		}
		// Of a pause of the leader's process, only half a tick counts.
		for _, a := range answered[e.Session] {
			if a.server == int(e.By) && a.ret+c.reportTime() < e.At && a.call+e.Timeout+c.paused(a.server, a.ret, e.At) > e.At {
				c.fail("expiry", "session %x, with a timeout of %v, was found late at %v by member %d, which heard from it at %v and was paused for %v since", e.Session, e.Timeout, e.At, e.By, a.call, c.paused(a.server, a.ret, e.At))
				break
			}
		}
		end := closed[e.Session]
		for _, a := range answered[e.Session] {
			lives := timing.Believed(e.Timeout)
			if a.logged && a.ret-a.call <= lives {
				lives = e.Timeout
			}
			if a.call+lives > end {
				c.fail("expiry", "session %x, with a timeout of %v, ended at %v, but member %d answered what its client sent at %v", e.Session, e.Timeout, end, a.server, a.call)
				break
			}
		}
	}
}

// reportedBy returns the time by which all of the members have learned what the member by
// heard at a given time.
func (c *checker) reportedBy(by int, members []int, heard time.Duration) time.Duration {
	told := heard + c.reportTime()
	for _, s := range c.s.spans[wayCut] { // in order
		if s.At > told || s.Until != 0 && s.Until+redialed < heard {
			continue
		}
		for _, m := range members {
			if s.between(by, m) {
				if s.Until == 0 {
					return math.MaxInt64 / 2
				}
				told = max(told, s.Until+redialed)
			}
		}
	}
	return told
}

// between reports whether the span cuts the way between two members, or cuts off one
// of them.
func (s *span) between(a, b int) bool {
	x, y := memberHost(a), memberHost(b)
	return s.from == x && (s.to == y || s.to == anyHost) || s.from == y && (s.to == x || s.to == anyHost)
}

// within reports whether the span overlaps a period.
func (s *span) within(from, to time.Duration) bool {
	return s.At <= to && (s.Until == 0 || s.Until >= from)
}

// wasCut reports whether in a period the way between two members was cut, or one of
// them was down.
func (c *checker) wasCut(a, b int, from, to time.Duration) bool {
	return slices.ContainsFunc(c.s.spans[wayCut], func(s *span) bool { return s.between(a, b) && s.within(from, to) })
}

// wasUnheard reports whether between two times a member disconnected its clients because
// the leader did not receive their touches.
func (c *checker) wasUnheard(member int, from, to time.Duration) bool {
	return slices.ContainsFunc(c.h.Unheard, func(u Moment) bool { return int(u.Member) == member && from <= u.At && u.At <= to })
}

// was reports whether in a period there was that trouble with a member, or with any if member is 0. A
// member that waits for its disk does not learn that another member leads.
func (c *checker) was(what trouble, member int, from, to time.Duration) bool {
	host := memberHost(member)
	return slices.ContainsFunc(c.s.spans[what], func(s *span) bool { return (member == 0 || s.from == host) && s.within(from, to) })
}

// slowest is the longest time that an answered request took which was sent in a period.
func (c *checker) slowest(from, to time.Duration) (longest time.Duration) {
	for _, o := range c.h.Ops {
		if o.Known() && from <= o.CallAt && o.CallAt <= to {
			longest = max(longest, o.RetAt-o.CallAt)
		}
	}
	return longest
}

// paused is for how long a member's process was paused in a period, without half a tick of each
// pause, which counts against sessions.
func (c *checker) paused(a int, from, to time.Duration) (sum time.Duration) {
	for _, s := range c.s.spans[processPaused] {
		if d := min(s.Until, to) - max(s.At, from) - tick/2 - c.s.slack(); s.from == memberHost(a) && d > 0 {
			sum += d
		}
	}
	return sum
}

// lateness checks that no session outlives its timeout for long, whether it ends late
// or still exists at the end of the run. A new leader gives every session its full
// timeout again, and a request that a cut delayed may be heard after the cut ends.
func (c *checker) lateness() {
	if c.s.slack() > tick/10 {
		return // the leader takes goroutines that often sleep, one after another, for a paused process
	}
	slices.SortStableFunc(c.s.spans[wayCut], func(a, b *span) int { return cmp.Compare(a.At, b.At) })
	committed := make([]time.Duration, len(c.h.Commits))
	for i := range c.h.Commits {
		committed[i] = c.h.Commits[i].At
	}
	slices.Sort(committed)
	last, unknown := map[int64]*Op{}, map[int64]time.Duration{}
	for _, o := range c.h.Ops {
		if l := last[o.Session]; !o.ReadOnly && (l == nil || o.CallAt >= l.CallAt) {
			last[o.Session] = o
		}
		if !o.Known() {
			unknown[o.Session] = max(unknown[o.Session], o.CallAt)
		}
	}
	// When the process of a member is resumed, the member hears what arrived in the pause.
	afterStop := map[int64]time.Duration{}
	for _, t := range c.s.spans[processPaused] {
		for _, o := range c.h.Ops {
			if t.from == memberHost(o.Server) && t.within(o.CallAt, o.CallAt+reportTime) {
				afterStop[o.Session] = max(afterStop[o.Session], t.Until)
			}
		}
	}
	type opened struct {
		at, timeout time.Duration
		server      int
	}
	newest := map[int64]opened{}
	for _, k := range c.h.Conns {
		if !k.ReadOnly {
			newest[k.Session] = opened{k.At, k.Timeout, k.Server}
		}
	}
	judge := func(id int64, at time.Duration, what string, by ...int) {
		k, known := newest[id]
		if !known || c.h.Forced[id] {
			return
		}
		heard, server := k.at, k.server
		if o := last[id]; o != nil {
			if !o.Known() || o.Code == proto.OpCloseSession {
				return
			}
			heard, server = max(heard, o.RetAt), o.Server
		}
		// A slow member may resume the session, or write, long after the client gave up.
		if unknown[id] > heard-10*time.Second || c.h.FailedResumes[id] > heard-10*time.Second {
			return
		}
		if t := afterStop[id]; t <= at {
			heard = max(heard, t)
		}
		heard = c.reportedBy(server, by, heard)
		// A new leader with a slow store needs a while before it counts timeouts. It counts
		// them once it has applied its log, which takes long where each step often sleeps.
		for _, b := range c.h.Began {
			if b.At <= at && slices.Contains(by, int(b.Member)) {
				heard = max(heard, b.At)
			}
		}
		for _, t := range c.h.LeaderChanges {
			if t <= at {
				heard = max(heard, t+10*time.Second)
			}
			if i, _ := slices.BinarySearch(committed, t); i < len(committed) && committed[i] <= at {
				heard = max(heard, committed[i])
			}
		}
		// A leader does not count time in which its process is paused.
		for _, s := range c.s.spans[processPaused] {
			if s.within(heard, at) && slices.ContainsFunc(by, func(m int) bool { return s.from == memberHost(m) }) {
				heard += s.Until - s.At + tick
			}
			// A leader that was paused also gives that time to the sessions that it hears
			// from before it notices the pause.
			if s.Until <= at && slices.ContainsFunc(by, func(m int) bool { return s.from == memberHost(m) }) {
				heard = max(heard, s.Until+s.Until-s.At+tick)
			}
		}
		// What a leader without a network proposes is committed when TCP sends it again: after up
		// to twice that time.
		for _, s := range c.s.spans[memberStuck] {
			if s.Until <= at && s.Until > heard+k.timeout && slices.ContainsFunc(by, func(m int) bool { return s.from == memberHost(m) }) {
				heard += 2 * (s.Until - max(s.At, heard+k.timeout))
			}
		}
		// Without a majority whose disks are fast, and which the leader reaches, the leader's entries fill up, and what is
		// to end a session waits for room in one.
		slow, voters := 0, 0
		for _, m := range c.s.members {
			if m.votes() {
				voters++
				if c.was(diskSlow, int(m.id), heard+k.timeout, at) || c.was(memberStuck, int(m.id), heard+k.timeout, at) ||
					len(by) == 1 && by[0] != int(m.id) && c.wasCut(int(m.id), by[0], heard+k.timeout, at) {
					slow++
				}
			}
		}
		if 2*slow >= voters {
			return
		}
		c.n["ends in time"]++
		// While large entries are on their way, what is to end a session waits for room, too.
		limit := tick + time.Second + c.s.slack()
		if late := at - heard - k.timeout; late > limit && late > limit+2*c.slowest(heard, at) {
			c.fail("expiry", "session %x, with a timeout of %v, %s at %v, %v after it should have ended", id, k.timeout, what, at, late)
		}
	}
	type attempt struct {
		session int64
		by      uint64
	}
	tried := map[attempt]time.Duration{}
	for _, e := range c.h.Expiries { // in order
		k := attempt{e.Session, e.By}
		before, again := tried[k]
		tried[k] = e.At
		// A leader tries again to end a session if its last attempt was not committed.
		if again && e.At-before < 10*time.Second && !slices.ContainsFunc(c.h.LeaderChanges, func(t time.Duration) bool { return before < t && t <= e.At }) {
			continue
		}
		judge(e.Session, e.At, "was found late", int(e.By))
	}
	var all []int
	for _, m := range c.s.members {
		all = append(all, int(m.id))
	}
	for _, id := range c.h.Sessions {
		judge(id, c.h.End, "has not ended", all...)
	}
}

// stampedWithin is how long it may take from the time when a leader stamps an entry
// until a member applies it: a leader that falls silent may store an entry, and have it
// committed when it is heard again. Most entries take less than stampedSoon.
const (
	stampedWithin = 2*time.Minute + 2*longest
	stampedSoon   = time.Second
)

// shown calls f for each part of the period between from and to in which a member's
// clock was ahead by the same amount.
func (h *History) shown(member uint64, from, to time.Duration, f func(from, to, ahead time.Duration)) {
	for i, k := range h.Clocks {
		if k.Member != member {
			continue
		}
		until := to
		for _, next := range h.Clocks[i+1:] {
			if next.Member == member {
				until = min(until, next.At)
				break
			}
		}
		if at := max(k.At, from); at <= until {
			f(at, until, k.Ahead)
		}
	}
}

// stamps finds, for each epoch, the members whose clocks have shown all times that the
// leader of the epoch stamped its entries with. At least one has.
func (c *checker) stamps() map[int64][]uint64 {
	type lags struct{ least, most time.Duration } // from the stamp, by the member's clock, until the entry was applied
	per := map[int64]map[uint64]*lags{}
	for x, g := range c.h.changes() {
		if g.Mtime == 0 || g.Kind != proto.NodeCreated && g.Kind != proto.NodeDataChanged {
			continue
		}
		epoch := x.Zxid >> 32
		if per[epoch] == nil {
			per[epoch] = map[uint64]*lags{}
		}
		for _, m := range c.s.members {
			const never = time.Duration(math.MaxInt64)
			lag := never
			c.h.shown(m.id, x.At-stampedWithin, x.At, func(from, to, ahead time.Duration) {
				at := time.UnixMilli(g.Mtime).Sub(c.h.start.Add(ahead))
				if at >= from-time.Millisecond && at <= to {
					lag = min(lag, x.At-at)
				}
			})
			l := per[epoch][m.id]
			if l == nil {
				l = &lags{least: never}
				per[epoch][m.id] = l
			}
			l.least, l.most = min(l.least, lag), max(l.most, lag)
		}
	}
	by := map[int64][]uint64{}
	for epoch, members := range per {
		var could, likely []uint64
		for id, l := range members {
			if l.most <= stampedWithin {
				could = append(could, id)
				if l.least <= stampedSoon {
					likely = append(likely, id)
				}
			}
		}
		if by[epoch] = likely; len(likely) == 0 {
			by[epoch] = could
		}
		if len(could) == 0 {
			c.fail("clocks", "no member's clock has shown all the times of epoch %d", epoch)
		}
	}
	return by
}

// clocks checks that the times of znodes are those of the leaders' clocks, and that no
// TTL znode is deleted before its TTL is over by the leader's clock, and no container
// while it has children or before it had one.
func (c *checker) clocks() {
	by := c.stamps()
	lives := map[string]time.Duration{} // TTLs by the data of the create; 0 for a container
	for _, o := range c.h.Ops {
		if o.Code == proto.OpCreateTTL || o.Code == proto.OpCreateContainer {
			lives[o.Tag] = o.TTL
		}
	}
	type aging struct {
		ttl   time.Duration
		mtime int64
	}
	alive := map[string]aging{}
	children, had := map[string]int{}, map[string]bool{}
	for x, g := range c.h.changes() {
		if !strings.HasPrefix(g.Path, "/ttl/") {
			continue
		}
		dir, _ := parentOf(g.Path)
		a, ages := alive[g.Path]
		switch g.Kind {
		case proto.NodeCreated:
			children[dir]++
			had[dir] = true
			if ttl, ok := lives[g.Data]; ok {
				alive[g.Path] = aging{ttl, g.Mtime}
				had[g.Path], children[g.Path] = false, 0
			}
		case proto.NodeDataChanged:
			if ages {
				alive[g.Path] = aging{a.ttl, g.Mtime}
			}
		case proto.NodeDeleted:
			children[dir]--
			if !ages {
				continue
			}
			c.n["znodes reaped"]++
			delete(alive, g.Path)
			if a.ttl == 0 {
				if !had[g.Path] || children[g.Path] > 0 {
					c.fail("clocks", "container %s was deleted at zxid %x; it has %d children, and had some: %v", g.Path, x.Zxid, children[g.Path], had[g.Path])
				}
				continue
			}
			over := len(by[x.Zxid>>32]) == 0
			for _, m := range by[x.Zxid>>32] {
				c.h.shown(m, x.At-stampedWithin, x.At, func(_, to, ahead time.Duration) {
					over = over || c.h.start.Add(to+ahead).Sub(time.UnixMilli(a.mtime)) >= a.ttl
				})
			}
			if !over {
				c.fail("clocks", "%s, with a TTL of %v and mtime %v, was deleted at zxid %x, at %v, too early by the clock of member %d", g.Path, a.ttl, time.UnixMilli(a.mtime).UTC(), x.Zxid, x.At, by[x.Zxid>>32])
			}
		}
	}
}
