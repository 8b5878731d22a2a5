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

	"github.com/lockkeeper/lockkeeper/proto"
)

// Counts say how much was checked.
type Counts struct {
	Ops, Commits, Locks, Watches, Events, Ephemerals, Expiries, Reads, Linearized, Restores int
	Reaped                                                                                  int // TTL znodes and containers
	Timely                                                                                  int // sessions that were to end, or not, by a known time
	Again, AtOnce                                                                           int // watches that were set again, and events that this caused
	Unchecked                                                                               int // histories that Porcupine could not judge in time
	Outcomes                                                                                int // answers to writes that were compared with what the tree allowed
	Reconfigs                                                                               int // that were answered
	Refused                                                                                 int // writes that would have gone over a quota
	ReadOnly                                                                                int // answers of members without a majority
	Prompt, Recent                                                                          int // writes by which availability was judged, and reads that were held to how old they may be
	Overtaken                                                                               int // snapshots that were restored while the member served clients with watches; Restores has the others
}

func (n *Counts) add(m Counts) {
	n.Ops += m.Ops
	n.Commits += m.Commits
	n.Locks += m.Locks
	n.Watches += m.Watches
	n.Events += m.Events
	n.Ephemerals += m.Ephemerals
	n.Expiries += m.Expiries
	n.Reads += m.Reads
	n.Linearized += m.Linearized
	n.Unchecked += m.Unchecked
	n.Restores += m.Restores
	n.Reaped += m.Reaped
	n.Timely += m.Timely
	n.Again += m.Again
	n.AtOnce += m.AtOnce
	n.Overtaken += m.Overtaken
	n.Outcomes += m.Outcomes
	n.Prompt += m.Prompt
	n.Recent += m.Recent
	n.ReadOnly += m.ReadOnly
	n.Refused += m.Refused
	n.Reconfigs += m.Reconfigs
}

// check judges the history. Session order and the agreement of the members were
// judged as things happened.
func (s *sim) check() Counts {
	c := &checker{s: s, h: s.h, at: map[int64]int{}}
	for i := range s.h.Commits {
		c.at[s.h.Commits[i].Zxid] = i
	}
	c.n.Restores, c.n.Overtaken = s.h.Restores, s.h.Overtaken
	c.n.Ops, c.n.Commits = len(s.h.Ops), len(s.h.Commits)
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

// isStats says whether a znode has data that the members write.
func isStats(path string) bool { return strings.HasSuffix(path, "/zookeeper_stats") }

// writes compares what clients were told of their writes with what the members
// applied: nothing acknowledged is missing, nothing refused was done, nothing is
// done twice, and what was done before something began has a lower zxid.
func (c *checker) writes() {
	done := map[string]int64{}    // tag -> zxid
	lockers := map[string]int64{} // session of a stock client that made this for a lock
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		var tags []string
		for _, g := range x.Changes {
			if g.Data == "" || g.Kind != proto.NodeCreated && g.Kind != proto.NodeDataChanged || g.Path == "/zookeeper/config" || isStats(g.Path) || slices.Contains(tags, g.Data) {
				continue
			}
			tags = append(tags, g.Data) // a multi writes one twice
			again := false
			if strings.HasPrefix(g.Path, "/stock/") { // such a client tries again by itself in its next session
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
				c.fail("writes", "op %d was answered %v, and yet zxid %x changed %+v", o.ID, o.Err, o.Zxid, c.h.Commits[i].Changes)
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
	// What is sent on a connection whose session another one has by then is not done.
	newest := map[int64]*ConnLog{}
	next := map[int]*ConnLog{} // the session's next connection
	for i := len(c.h.Conns) - 1; i >= 0; i-- {
		k := c.h.Conns[i]
		next[k.ID] = newest[k.Session]
		if !k.ReadOnly { // no other member hears of such a connection
			newest[k.Session] = k
		}
	}
	for _, o := range c.h.Ops {
		if o.Tag == "" || !isWrite(o.Code) {
			continue
		}
		if n := next[o.Conn]; done[o.Tag] != 0 && n != nil && o.Call > n.Seq {
			c.fail("session moved", "op %d was sent on connection %d, after session %x had moved to connection %d, and was done at zxid %x", o.ID, o.Conn, o.Session, n.ID, done[o.Tag])
		}
	}
	c.gaps(done)
	// In the order of their ends, the highest zxid so far is a bound for all that begin later.
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
			c.fail("real time", "op %d has zxid %x, and began after op %d ended, with zxid %x", o.ID, o.Zxid, high.ID, high.Zxid)
			break
		}
	}
}

// multi compares a multi that was acknowledged with what its transaction did.
func (c *checker) multi(o *Op, changes []Chg) {
	kinds := map[proto.OpCode]proto.ChangeKind{proto.OpCreate: proto.NodeCreated, proto.OpSetData: proto.NodeDataChanged, proto.OpDelete: proto.NodeDeleted}
	did := changes
	for _, p := range o.More {
		if p.Code == proto.OpCheck {
			continue
		}
		// There is no data left of what it deleted again.
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

// readOnly asks of what was sent to members without a majority whether writes were
// refused, and done by nobody. A member ends all connections when it loses the
// majority and when it has one again: none answers once it has let in a client of
// the other kind.
func (c *checker) readOnly() {
	done := map[string]int64{}
	opened := map[int64]bool{}
	for i := range c.h.Commits {
		for _, g := range c.h.Commits[i].Changes {
			switch g.Kind {
			case proto.NodeCreated, proto.NodeDataChanged:
				done[g.Data] = c.h.Commits[i].Zxid
			case proto.SessionOpened:
				opened[g.Session] = true
			}
		}
	}
	sessions := map[int64]bool{} // that clients had from members with a majority
	for _, k := range c.h.Conns {
		sessions[k.Session] = sessions[k.Session] || !k.ReadOnly
	}
	for _, k := range c.h.Conns {
		if opened[k.Session] != sessions[k.Session] {
			c.fail("read-only", "connection %d, read-only: %v, has session %x; the members opened it: %v", k.ID, k.ReadOnly, k.Session, opened[k.Session])
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
		c.n.ReadOnly++
		if refused := o.Err == proto.NotReadOnly; refused != (isWrite(o.Code) || o.Code == proto.OpSync) {
			c.fail("read-only", "op %d (%d of %s) was sent on a read-only connection and answered %v", o.ID, o.Code, o.Path, o.Err)
		}
	}
	over := map[int]*ConnLog{} // by connection: the first of the other kind that came later
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
			c.fail("read-only", "op %d, sent at %v, was answered on connection %d, read-only: %v, and member %d had let in connection %d of the other kind at %v", o.ID, o.CallAt, o.Conn, o.ReadOnly, o.Server, k.ID, k.At)
		}
	}
}

// reconfigs compares the answers to reconfigs with the members as /zookeeper/config
// had them, and asks whether everybody has the role again that it is to have when the
// faults are over.
func (c *checker) reconfigs() {
	type config struct {
		at   time.Duration
		zxid int64
		text string
	}
	var all []config
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		for _, g := range x.Changes {
			if g.Path == "/zookeeper/config" {
				all = append(all, config{x.At, x.Zxid, g.Data})
			}
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
		c.n.Reconfigs++
		wrong := false
		switch o.Err {
		case proto.OK:
			// Who is not as it is to be, or as another client wanted it.
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
			c.fail("reconfig", "op %d (%s as %q, for version %x), sent at %v, was answered %v: %q; the members were %+v, and %+v when the answer came", o.ID, o.Path, o.User, o.Version64, o.CallAt, o.Err, o.GotData, by(o.CallAt), by(o.RetAt))
		}
	}
	if len(all) == 0 || c.h.Over == 0 {
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
			c.fail("reconfig", "member %d is no %s at the end: %q", m.id, role, last.text)
		}
	}
}

// gaps asks whether what was written on each connection was done in order, and
// of what got no answer none behind one that was not done. done is the zxid by tag.
func (c *checker) gaps(done map[string]int64) {
	last, missing := map[int]*Op{}, map[int]*Op{} // by connection
	for _, o := range c.h.Ops {
		if o.Tag == "" || !isWrite(o.Code) {
			continue
		}
		z := done[o.Tag]
		if z == 0 {
			// A write on conditions may have been refused, and its answer lost.
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

// reads compares every read with the tree as it was at the zxid of its reply,
// and has Porcupine judge the writes and the synced reads of each register.
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
	c.n.Reads = len(reads)
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

// regState is a register for Porcupine.
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

// Linearize has Porcupine judge the registers. It takes real time, so it is
// called outside of the bubble.
func (r *Report) Linearize(most time.Duration) {
	h := r.History
	// Of a write without an answer the log knows whether it was done, and by
	// when: else there would be too many orders to try.
	done := map[string]int{}
	for i := range h.Commits {
		for _, g := range h.Commits[i].Changes {
			done[g.Data] = h.Commits[i].Seq
		}
	}
	// A synced read begins with its sync.
	syncs := map[int]*Op{} // the newest by connection
	per := map[string][]porcupine.Operation{}
	for _, o := range h.Ops {
		begin := int64(o.Call)
		switch {
		case o.Code == proto.OpSync:
			syncs[o.Conn] = o
			continue
		case o.Code == proto.OpGetData && !o.Unsynced && o.OK():
			// The sync was sent just before on the same connection, and its reply came, too.
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
			h.violate("linearizability", "%d operations on %s are in no order that a register could have had", len(ops), path)
		case porcupine.Unknown:
			r.Checked.Unchecked++
		default:
			r.Checked.Linearized += len(ops)
		}
	}
}

// locks judges who held which lock: in zxid order one at a time, the first in
// line, with tokens that grow; and by the clock, for as long as a holder could
// know that its session lived, one at a time, too.
func (c *checker) locks() {
	c.n.Locks = len(c.h.Spans)
	created, deleted := map[string]int64{}, map[string]int64{}
	for i := range c.h.Commits {
		for _, g := range c.h.Commits[i].Changes {
			if g.Kind == proto.NodeCreated {
				created[g.Path] = c.h.Commits[i].Zxid
			} else if g.Kind == proto.NodeDeleted {
				deleted[g.Path] = c.h.Commits[i].Zxid
			}
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
				c.fail("locks", "%s has czxid %x for its holder, and was made at %x", p.Path, p.Czxid, created[p.Path])
			}
			// First in line when it was told so: all that came before were gone.
			for path, z := range created {
				if z < p.Czxid && strings.HasPrefix(path, lock+"/") {
					if d := deleted[path]; d == 0 || d > p.Zxid {
						c.fail("locks", "client %d holds %s from zxid %x, and %s, made before, is there until %x", p.Client, p.Path, p.Zxid, path, d)
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
				c.fail("locks", "client %d holds %s from zxid %x, and client %d %s until %x", p.Client, p.Path, p.Zxid, q.Client, q.Path, d)
			}
		}
		// By the clock.
		slices.SortFunc(spans, func(a, b *Span) int { return cmp.Compare(a.At, b.At) })
		var until time.Duration
		var holder *Span
		for _, p := range spans {
			end := confident(p, answered[p.Session])
			if t, ok := c.h.Known[p.Session]; ok {
				end = min(end, t)
			}
			if c.h.Forced[p.Session] {
				end = 0 // it was ended over its head
			}
			if holder != nil && p.At < until && p.Path != holder.Path {
				c.fail("locks", "client %d holds %s from %v, and client %d may believe in %s until %v", p.Client, p.Path, p.At, holder.Client, holder.Path, until)
			}
			if end > until {
				until, holder = end, p
			}
		}
	}
}

// confident is until when a holder may believe that it holds: for two thirds of
// its timeout after it sent the last request that was answered, as stock
// clients do, if it does not let go before.
func confident(p *Span, answered []answer) time.Duration {
	until := p.CallAt + p.Timeout*2/3
	for _, a := range answered { // in order of their calls
		if a.ret <= until {
			until = max(until, a.call+p.Timeout*2/3)
		}
	}
	if p.Until > 0 {
		until = min(until, p.Until)
	}
	return until
}

// answer is what a client was answered in a session: a request or a handshake.
type answer struct {
	call, ret time.Duration
	server    int
	handshake bool
}

func (a answer) what() string {
	if a.handshake {
		return "a handshake"
	}
	return "a request"
}

// answers lists, for each session, what its client was answered, in the order in
// which it asked. The answers of read-only servers say nothing about the session.
func (c *checker) answers() map[int64][]answer {
	all := map[int64][]answer{}
	for _, o := range c.h.Ops {
		if o.Known() && !o.ReadOnly {
			all[o.Session] = append(all[o.Session], answer{o.CallAt, o.RetAt, o.Server, false})
		}
	}
	for _, k := range c.h.Conns {
		if k.ReadOnly {
			continue
		}
		all[k.Session] = append(all[k.Session], answer{k.CallAt, k.At, k.Server, true})
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b answer) int { return cmp.Compare(a.call, b.call) })
	}
	return all
}

// triggers lists when a watch of a kind on a path fires.
type triggers map[string][]trigger

type trigger struct {
	zxid  int64
	event proto.EventType
}

// due is an event that a change causes.
type due struct {
	zxid  int64
	event proto.EventType
	path  string
}

// watchCheck follows the watches of sessions over their connections.
type watchCheck struct {
	c           *checker
	data, child triggers // by path
	all         []due    // in order
}

// watches follows every session: an event for each watch that should have fired
// before what came later, at the zxid of the first change, and no other. On a
// new connection the first request sets the watches again, and what changed
// since the zxid that it names is told at once.
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
	for _, l := range c.h.Conns { // in the order in which they were made
		bySession[l.Session] = append(bySession[l.Session], l)
	}
	for _, id := range slices.Sorted(maps.Keys(bySession)) {
		believed := beliefs{map[watched]bool{}, map[lasting]bool{}}
		logs := bySession[id]
		for i, l := range logs {
			left := math.MaxInt // when the client went on on another one
			if i+1 < len(logs) {
				left = logs[i+1].Left
			}
			believed = k.conn(l, believed, left)
		}
	}
}

// beliefs are what a client knows that it watches.
type beliefs struct {
	watching   map[watched]bool
	persistent map[lasting]bool
}

// after is the first trigger after a zxid, and before the last one until it.
func (t triggers) after(path string, zxid int64) trigger {
	l := t[path]
	if i := t.search(path, zxid); i < len(l) {
		return l[i]
	}
	return trigger{zxid: 1 << 62}
}

func (t triggers) before(path string, zxid int64) trigger {
	if i := t.search(path, zxid); i > 0 {
		return t[path][i-1]
	}
	return trigger{}
}

func (t triggers) search(path string, zxid int64) int {
	l := t[path]
	return sort.Search(len(l), func(i int) bool { return l[i].zxid > zxid })
}

// times is how often the changes at a zxid cause an event: a multi may do so twice.
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

// at is the state that setWatches finds at a zxid: whether a znode is there,
// and the zxids of its last change and of the last change of its children.
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

// covers says whether a persistent watch is for an event.
func (w lasting) covers(d due) bool {
	if !w.recursive {
		return d.path == w.path
	}
	return d.event != proto.EventNodeChildrenChanged && (d.path == w.path || strings.HasPrefix(d.path, w.path+"/"))
}

// conn follows one connection, on which the client begins with what it
// believes and which it leaves at a time, and returns what it believes then.
func (k *watchCheck) conn(l *ConnLog, believes beliefs, left int) beliefs {
	c := k.c
	fail := func(format string, args ...any) {
		c.fail("watches", "connection %d of client %d to member %d: %s", l.ID, l.Client, l.Server, fmt.Sprintf(format, args...))
	}
	first := beliefs{maps.Clone(believes.watching), maps.Clone(believes.persistent)}
	var leaves *beliefs                                           // set when the client has left
	armed := map[watched]trigger{}                                // when each is to fire
	persistent := map[lasting]int64{}                             // from which zxid on
	told := map[due]int{}                                         // with a zxid
	var atOnce []due                                              // without one
	next := len(k.all)                                            // of all, the first that may not have been told
	set := len(first.watching) == 0 && len(first.persistent) == 0 // the watches of before
	watch := &client{watching: believes.watching, persistent: believes.persistent}
	lasts := func(w lasting, zxid int64) {
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
			leaves = &beliefs{maps.Clone(watch.watching), maps.Clone(watch.persistent)}
		}
		for w, t := range armed {
			if f.Zxid > t.zxid || f.Zxid == t.zxid && f.Event == 0 {
				fail("no event of %v at zxid %x, and something at %x", w, t.zxid, f.Zxid)
				delete(armed, w)
			}
		}
		if len(persistent) > 0 {
			for ; next < len(k.all) && (k.all[next].zxid < f.Zxid || k.all[next].zxid == f.Zxid && f.Event == 0); next++ {
				if d := k.all[next]; covered(d) && told[d] < k.times(d) {
					fail("no event %d of %s at zxid %x for a persistent watch, and something at %x", d.event, d.path, d.zxid, f.Zxid)
				}
			}
		}
		if f.Event != 0 {
			c.n.Events++
			d := due{f.Zxid, f.Event, f.Path}
			watch.fired(f.Event, f.Path)
			if f.Zxid == -1 {
				if set {
					fail("event %d of %s without a zxid, and no setWatches waits", f.Event, f.Path)
				}
				atOnce = append(atOnce, d)
				continue
			}
			times := k.times(d)
			if told[d]++; told[d] > max(1, times) {
				fail("event %d of %s at zxid %x came %d times", f.Event, f.Path, f.Zxid, told[d])
			}
			fired := covered(d) && times > 0
			for _, w := range []watched{{false, f.Path}, {true, f.Path}} {
				if t, ok := armed[w]; ok && t.event == f.Event && t.zxid == f.Zxid {
					delete(armed, w)
					fired = true
				}
			}
			if !fired {
				fail("event %d of %s at zxid %x, which no watch waits for: armed %v, persistent %v", f.Event, f.Path, f.Zxid, armed, persistent)
			}
			continue
		}
		o := f.Op
		watch.note(o)
		switch {
		case o.Code == proto.OpSetWatches || o.Code == proto.OpSetWatches2:
			if set || o.Err != proto.OK {
				fail("op %d sets watches: %v; before it there were %v", o.ID, o.Err, first)
				continue
			}
			set = true
			k.again(o, first, atOnce, armed, lasts, fail)
		case o.Code == proto.OpAddWatch && o.Err == proto.OK:
			c.n.Watches++
			lasts(lasting{o.Recursive, o.Path}, o.Zxid)
		case o.Watch && (o.Err == proto.OK || o.Code == proto.OpExists && o.Err == proto.NoNode):
			w, t := watched{o.Code == proto.OpGetChildren, o.Path}, k.data
			if w.child {
				t = k.child
			}
			c.n.Watches++
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
		leaves = &beliefs{watch.watching, watch.persistent}
	}
	return *leaves
}

// again judges a setWatches: it asks for what the client had, and what came at
// once is what had changed. It arms the others.
func (k *watchCheck) again(o *Op, first beliefs, atOnce []due, armed map[watched]trigger, lasts func(lasting, int64), fail func(string, ...any)) {
	c, q := k.c, o.Set
	if n := len(q.Data) + len(q.Exist) + len(q.Child); n != len(first.watching) || len(q.Persistent)+len(q.Recursive) != len(first.persistent) {
		fail("op %d sets %d watches and %d persistent ones, and the session has %v", o.ID, n, len(q.Persistent)+len(q.Recursive), first)
	}
	var want []due
	arm := func(w watched, t triggers) {
		c.n.Again++
		if absent, ok := first.watching[w]; !ok || absent != slices.Contains(q.Exist, w.path) && !w.child {
			fail("op %d sets a watch of %v again, and the session has %v", o.ID, w, first)
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
			// It was there for a while, of which nobody knows any more.
			armed[w] = t.after(w.path, o.Zxid)
			return
		}
		want = append(want, due{-1, e, w.path})
	}
	for _, path := range slices.Concat(q.Data, q.Exist) {
		arm(watched{false, path}, k.data)
	}
	for _, path := range q.Child {
		arm(watched{true, path}, k.child)
	}
	for _, path := range q.Persistent {
		lasts(lasting{false, path}, o.Zxid)
	}
	for _, path := range q.Recursive {
		lasts(lasting{true, path}, o.Zxid)
	}
	order := func(a, b due) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.event, b.event)) }
	slices.SortFunc(want, order)
	slices.SortFunc(atOnce, order)
	c.n.AtOnce += len(atOnce)
	if !slices.Equal(want, atOnce) {
		fail("op %d sets watches again, from zxid %x at %x: told at once %v, should be %v", o.ID, q.RelativeZxid, o.Zxid, atOnce, want)
	}
}

// ephemerals holds ephemeral znodes to the lives of their sessions.
func (c *checker) ephemerals() {
	open := map[int64]bool{}
	owned := map[int64]map[string]bool{}
	owner := map[string]int64{}
	asked := map[string]bool{} // that somebody wanted deleted
	for _, o := range c.h.Ops {
		if o.Code == proto.OpDelete {
			asked[o.Path] = true
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
				c.n.Ephemerals++
				if !open[g.Session] {
					c.fail("ephemerals", "%s was made at zxid %x in session %x, which has ended", g.Path, x.Zxid, g.Session)
					continue
				}
				owned[g.Session][g.Path] = true
				owner[g.Path] = g.Session
			case g.Kind == proto.NodeDeleted && owner[g.Path] != 0:
				if owner[g.Path] != closes && !asked[g.Path] && !strings.HasPrefix(g.Path, "/stock") {
					c.fail("ephemerals", "%s is gone at zxid %x, which nobody asked for, and its session lives", g.Path, x.Zxid)
				}
				delete(owned[owner[g.Path]], g.Path)
				delete(owner, g.Path)
			}
		}
		if closes != 0 {
			if len(owned[closes]) > 0 {
				c.fail("ephemerals", "session %x ended at zxid %x, and has left %v", closes, x.Zxid, slices.Sorted(maps.Keys(owned[closes])))
			}
			if !open[closes] {
				c.fail("ephemerals", "session %x ended again at zxid %x", closes, x.Zxid)
			}
			delete(open, closes)
			delete(owned, closes)
		}
	}
}

// onItsWay is how long word of a session takes from one member to the other, at
// most, without a cut.
const onItsWay = tick/4 + 600*time.Millisecond

// expiries asks of every session that a leader found late whether its client
// had been heard of within its timeout, by a member that could tell the leader;
// and of every one that ended so, whether its client could trust in it by then,
// no matter what became of the member that had answered it.
func (c *checker) expiries() {
	answered := c.answers()
	closed := map[int64]time.Duration{}
	for i := range c.h.Commits {
		for _, g := range c.h.Commits[i].Changes {
			if g.Kind == proto.SessionClosed {
				closed[g.Session] = c.h.Commits[i].At
			}
		}
	}
	left := map[int64]bool{} // sessions that their clients ended
	for _, o := range c.h.Ops {
		left[o.Session] = left[o.Session] || o.Code == proto.OpCloseSession
	}
	late := map[int64][]*Expiry{} // when a session was found late, in the last leader's time
	for i := range c.h.Expiries {
		e := &c.h.Expiries[i]
		if end, ended := closed[e.Session]; !ended || e.At > end || left[e.Session] || c.h.Forced[e.Session] {
			continue
		}
		found := late[e.Session]
		if c.wasStuck(int(e.By), e.At-time.Second, e.At) {
			continue // another leads, who ends it, or found it late before
		}
		if n := len(found); n > 0 && (found[n-1].By != e.By || slices.ContainsFunc(c.h.Leads, func(t time.Duration) bool { return found[n-1].At < t && t <= e.At })) {
			found = nil // that came to nothing
		}
		late[e.Session] = append(found, e)
	}
	for _, id := range slices.Sorted(maps.Keys(late)) {
		e := late[id][0] // if it was not the last, it could not be done then
		c.n.Expiries++
		for _, a := range answered[e.Session] {
			if a.ret+onItsWay+c.s.slack() < e.At && a.call+e.Timeout > e.At && !c.wasCut(a.server, int(e.By), a.call-5*time.Second, e.At) &&
				!c.wasSlow(a.server, a.call-5*time.Second, e.At) {
				c.fail("expiry", "session %x, with %v, was found late at %v by member %d, and member %d heard of it at %v", e.Session, e.Timeout, e.At, e.By, a.server, a.call)
				break
			}
		}
		// The time in which its process was stopped does not count.
		for _, a := range answered[e.Session] {
			if a.server == int(e.By) && a.ret+onItsWay+c.s.slack() < e.At && a.call+e.Timeout+c.stopped(a.server, a.ret, e.At) > e.At {
				c.fail("expiry", "session %x, with %v, was found late at %v by member %d, which heard of it at %v and was stopped for %v since", e.Session, e.Timeout, e.At, e.By, a.call, c.stopped(a.server, a.ret, e.At))
				break
			}
		}
		end := closed[e.Session]
		for _, a := range answered[e.Session] {
			if a.call+e.Timeout*2/3 > end {
				c.fail("expiry", "session %x, with %v, ended at %v, and member %d answered %s that its client sent at %v", e.Session, e.Timeout, end, a.server, a.what(), a.call)
				break
			}
		}
	}
}

// told is when the last of some members can have learned, from another one, of
// what that one heard.
func (c *checker) told(by int, members []int, heard time.Duration) time.Duration {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	const again = 5 * time.Second // until a connection that was cut is given up, and there is another
	told := heard + onItsWay + c.s.slack()
	for _, s := range c.s.cutLog { // in order
		if s.At > told || s.Until != 0 && s.Until+again < heard {
			continue
		}
		for _, m := range members {
			if s.between(by, m) {
				if s.Until == 0 {
					return math.MaxInt64 / 2
				}
				told = max(told, s.Until+again)
			}
		}
	}
	return told
}

// between says whether the span is of a cut between two members, or of an end of one.
func (s *cutSpan) between(a, b int) bool {
	x, y := memberHost(a), memberHost(b)
	return s.from == x && (s.to == y || s.to == anyone) || s.from == y && (s.to == x || s.to == anyone)
}

// within says whether some of the span is in a time.
func (s *cutSpan) within(from, to time.Duration) bool {
	return s.At <= to && (s.Until == 0 || s.Until >= from)
}

// wasCut says whether the way between two members was cut in a time, or one of
// them stopped.
func (c *checker) wasCut(a, b int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, s := range c.s.cutLog {
		if s.between(a, b) && s.within(from, to) {
			return true
		}
	}
	return false
}

// wasSlow says whether a member had a slow disk in a time. While it waits for
// that, it does not learn that another member leads.
func (c *checker) wasSlow(a int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return slices.ContainsFunc(c.s.slowLog, func(s *cutSpan) bool { return s.from == memberHost(a) && s.within(from, to) })
}

// stopped is for how long in a time a member's process was. Stops that are too
// short to be noticed do not count.
func (c *checker) stopped(a int, from, to time.Duration) (sum time.Duration) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, s := range c.s.stopLog {
		if d := min(s.Until, to) - max(s.At, from); s.from == memberHost(a) && d > tick/2+c.s.slack() {
			sum += d
		}
	}
	return sum
}

// wasStuck says whether a member could do nothing in a time, while the others went on.
func (c *checker) wasStuck(a int, from, to time.Duration) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return slices.ContainsFunc(c.s.stuckLog, func(s *cutSpan) bool { return s.from == memberHost(a) && s.within(from, to) })
}

// lateness asks of every session of the clients whether it ended, or is there
// at the end of the run, longer after its client was heard of last than it may:
// a new leader gives it its whole time again, and what a cut has held up may
// have been heard later than anybody knows.
func (c *checker) lateness() {
	if c.s.slack() > tick/5 {
		return // goroutines that often sleep as long are taken for a process that stands still
	}
	c.s.mu.Lock()
	slices.SortStableFunc(c.s.cutLog, func(a, b cutSpan) int { return cmp.Compare(a.At, b.At) })
	c.s.mu.Unlock()
	last := map[int64]*Op{}
	for _, o := range c.h.Ops {
		if l := last[o.Session]; !o.ReadOnly && (l == nil || o.CallAt >= l.CallAt) {
			last[o.Session] = o
		}
	}
	// What came to a member while its process was stopped, it hears when it goes on.
	afterStop := map[int64]time.Duration{}
	c.s.mu.Lock()
	for _, t := range c.s.stopLog {
		for _, o := range c.h.Ops {
			if t.from == memberHost(o.Server) && t.within(o.CallAt, o.CallAt+onItsWay) {
				afterStop[o.Session] = max(afterStop[o.Session], t.Until)
			}
		}
	}
	c.s.mu.Unlock()
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
		if c.h.Tries[id] > heard-10*time.Second { // a slow member may do it long after the client gave up
			return
		}
		if t := afterStop[id]; t <= at {
			heard = max(heard, t)
		}
		heard = c.told(server, by, heard)
		// A leader's first act takes as long as its store does.
		for _, t := range c.h.Leads {
			if t <= at {
				heard = max(heard, t+10*time.Second)
			}
		}
		// Nor does one count while its process is stopped.
		for _, s := range c.s.stopLog {
			if s.within(heard, at) && slices.ContainsFunc(by, func(m int) bool { return s.from == memberHost(m) }) {
				heard += s.Until - s.At + tick
			}
		}
		c.n.Timely++
		if late := at - heard - k.timeout; late > tick+time.Second+c.s.slack() {
			c.fail("expiry", "session %x, with %v, %s at %v, %v later than it was to end", id, k.timeout, what, at, late)
		}
	}
	for _, e := range c.h.Expiries {
		judge(e.Session, e.At, "was found late", int(e.By))
	}
	var all []int
	for _, m := range c.s.members {
		all = append(all, int(m.id))
	}
	for _, id := range c.h.Left {
		judge(id, c.h.End, "has not ended", all...)
	}
}

// stampedWithin is how long an entry may be on its way from the leader that
// stamps it until a member applies it. Most take less than stampedSoon.
const (
	stampedWithin = 2 * time.Minute
	stampedSoon   = time.Second
)

// shown calls f with the times of the run at which a member's clock was
// ahead by so much, of those between from and to.
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

// stamps finds, for each epoch, the members whose clock has shown the times that
// the leader of the epoch has stamped its entries with. There is one at least.
func (c *checker) stamps() map[int64][]uint64 {
	type lags struct{ least, most time.Duration } // from the stamp, by a member's clock, until the entry was applied
	per := map[int64]map[uint64]*lags{}
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		for _, g := range x.Changes {
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

// clocks compares the times of znodes with the clocks of the members: they are
// those of the leaders, and no znode that was to live for a time is gone before
// that is over by the leader's clock.
func (c *checker) clocks() {
	by := c.stamps()
	lives := map[string]time.Duration{} // by the data of the create; 0 of a container
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
	for i := range c.h.Commits {
		x := &c.h.Commits[i]
		for _, g := range x.Changes {
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
				c.n.Reaped++
				delete(alive, g.Path)
				if a.ttl == 0 {
					if !had[g.Path] || children[g.Path] > 0 {
						c.fail("clocks", "container %s is gone at zxid %x; it has %d children, and had some: %v", g.Path, x.Zxid, children[g.Path], had[g.Path])
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
					c.fail("clocks", "%s, with a TTL of %v and mtime %v, is gone at zxid %x, at %v, before its time by the clock of member %d", g.Path, a.ttl, time.UnixMilli(a.mtime).UTC(), x.Zxid, x.At, by[x.Zxid>>32])
				}
			}
		}
	}
}
