package spec

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// sessions is the automaton of sessions.pml. It keeps the sessions that each member knows, what the log has said about them,
// until when clients may rely on them, and what any leader knows of that.
//
// It does not know the election timeout. Where the model has what a replaced leader may still do (timing.Sure), the automaton
// takes the longest that this can be, or nothing, whichever allows more.
type sessions struct {
	members map[uint64]*sessionsOf
	changes []changed         // by the log, in its order
	of      map[int64][]int   // the changes of each session, as indexes of changes
	done    uint64            // no entry up to here changes more than changes has
	known   map[int64]*relied // sessions that any member knows, or has known
	newest  uint64            // the newest term in which a member leads, or of which an entry is visible
	leads   uint64            // the newest term in which a member leads
	led     time.Duration     // since when
}

// sessionsOf is a member.
type sessionsOf struct {
	foreign  bool // it has the disk of another cluster, and is not followed
	sessions map[int64]*tracked
	leads    uint64    // the last term in which it has led in this run; 0 is none
	entry    uint64    // that is being applied
	term     uint64    // of that
	commands []Command // in that, without those that are done
	next     int       // the first of changes that it has not applied
}

// tracked is a session as a member knows it.
type tracked struct {
	opened  int           // which of changes has opened or resumed it last
	timeout time.Duration // as granted then
	heard   time.Duration // the timeout runs from here on this member: since a restart, or a request that it knows of
	sure    bool          // it has begun anew since this member began to lead
}

// changed is a change of a session by an entry.
type changed struct {
	index   uint64
	session int64
	ended   bool         // or it was opened or resumed
	owner   session.Conn // since it was opened or resumed
	live    int          // how many sessions there are after it
}

// relied is what clients believe of a session, and what leaders know of it.
type relied struct {
	opened  int           // which of changes had opened or resumed it, as known to the member of the newest request
	until   time.Duration // the client of such a request relies on it until then
	vouched time.Duration // when a leader has heard of it last, by the time of the client's request
	late    finding
}

// finding is that the leader of a term has found a session late.
type finding struct {
	term   uint64
	at     time.Duration
	opened int  // which of changes had opened or resumed it, as known to that leader
	undone bool // the leader has given it its timeout again
}

func newSessions() *sessions {
	return &sessions{members: map[uint64]*sessionsOf{}, of: map[int64][]int{}, known: map[int64]*relied{}}
}

func (*sessions) name() string { return "sessions" }

// rounding is by how much a member's time of a request may differ from ours: it counts whole ms.
const rounding = 2 * time.Millisecond

// sure is the longest time for which a leader may not know that it was replaced.
const sure = 300 * time.Millisecond

func (w *sessions) member(id uint64) *sessionsOf {
	if w.members[id] == nil {
		w.members[id] = &sessionsOf{sessions: map[int64]*tracked{}}
	}
	return w.members[id]
}

func (w *sessions) session(id int64) *relied {
	if w.known[id] == nil {
		w.known[id] = &relied{opened: -1}
	}
	return w.known[id]
}

func (w *sessions) kind(e *Event) string {
	m := w.member(e.Member)
	kind := "follower"
	switch {
	case m.foreign:
		return "foreign"
	case m.leads != 0 && m.leads == w.newest:
		kind = "leader"
	case m.leads != 0:
		kind = "replaced leader"
	}
	if m.next < len(w.changes) && e.Step != Ended && e.Step != Restarts {
		kind += ", behind"
	}
	if e.Session == 0 {
		return kind
	}
	x, r := m.sessions[e.Session], w.known[e.Session]
	switch {
	case x == nil && r == nil:
		return kind + ", new session"
	case x == nil:
		return kind + ", unknown session"
	case r != nil && w.pending(r):
		kind += ", late session"
	}
	if r != nil && r.opened > x.opened {
		kind += ", resumed elsewhere"
	}
	return kind
}

// pending reports whether a session may be about to expire.
func (w *sessions) pending(r *relied) bool {
	return r.late.term != 0 && r.late.term == w.newest && !r.late.undone
}

func (w *sessions) next(e *Event) error {
	m := w.member(e.Member)
	if e.Step == Swapped {
		m.foreign = !m.foreign
	}
	if m.foreign {
		return nil
	}
	x := m.sessions[e.Session]
	switch e.Step {
	case Opened, LostDisk, Swapped:
		w.members[e.Member] = &sessionsOf{sessions: map[int64]*tracked{}}
	case Visible:
		return w.visible(m, e)
	case Anew:
		m.sessions = map[int64]*tracked{}
		if m.next = w.after(e.Last); m.next == len(w.changes) {
			w.done = max(w.done, e.Last)
		}
	case Leads:
		m.leads = e.Term
		for _, x := range m.sessions {
			x.sure = false
		}
		if e.Term > w.leads {
			w.leads, w.led, w.newest = e.Term, e.At, max(w.newest, e.Term)
		}
	case Restarts:
		return w.restarts(m, e, x)
	case Ended:
		return w.ended(m, e, x)
	case Heard:
		if x == nil {
			return fmt.Errorf("it knows no such session")
		}
		r := w.session(e.Session)
		x.heard, r.vouched = max(x.heard, e.Asked), max(r.vouched, e.Asked)
	case Touched:
		return w.touched(m, e, x)
	case Late:
		return w.late(m, e, x)
	}
	return nil
}

// after returns which of changes is the first after the entry at index.
func (w *sessions) after(index uint64) int {
	return sort.Search(len(w.changes), func(i int) bool { return w.changes[i].index > index })
}

// visible begins an entry. All members change the same sessions with each entry, and so know the same ones. The sessions may all
// be begun anew meanwhile.
func (w *sessions) visible(m *sessionsOf, e *Event) error {
	if m.next < len(w.changes) && w.changes[m.next].index < e.Last {
		c := w.changes[m.next]
		return fmt.Errorf("entry %d opens, resumes or ends session %x on another member, and not here", c.index, c.session)
	}
	if e.Last > 0 {
		w.done = max(w.done, e.Last-1)
	}
	m.entry, m.term, m.commands = e.Last, e.Term, e.Commands
	w.newest = max(w.newest, e.Term)
	return nil
}

// change takes a change of a session by the entry that m applies, and returns which of changes it is.
func (w *sessions) change(m *sessionsOf, id int64, ended bool, owner session.Conn) (int, error) {
	i, live := m.next, 0
	if i > 0 {
		live = w.changes[i-1].live
	}
	if len(m.sessions) != live {
		return 0, fmt.Errorf("it knows %d sessions, and other members know %d after the same entry", len(m.sessions), live)
	}
	if i == len(w.changes) {
		if m.entry <= w.done {
			return 0, fmt.Errorf("entry %d does not change session %x on other members", m.entry, id)
		}
		was := w.of[id]
		switch known := len(was) > 0 && !w.changes[was[len(was)-1]].ended; {
		case ended:
			live--
		case !known:
			live++
		}
		w.changes = append(w.changes, changed{m.entry, id, ended, owner, live})
		w.of[id] = append(was, i)
	}
	if c := w.changes[i]; c.index != m.entry || c.session != id || c.ended != ended {
		return 0, fmt.Errorf("on other members, session %x (ended: %v) is what changes next, by entry %d", c.session, c.ended, c.index)
	}
	m.next++
	return i, nil
}

// restarts takes a session that is opened or resumed by an entry, or one that a member knows, when all begin anew.
func (w *sessions) restarts(m *sessionsOf, e *Event, x *tracked) error {
	r := w.session(e.Session)
	was := w.of[e.Session]
	n := sort.Search(len(was), func(i int) bool { return was[i] >= m.next })
	opened := -1
	if x == nil && n > 0 && !w.changes[was[n-1]].ended { // after Anew
		opened = was[n-1]
	} else {
		at := slices.IndexFunc(m.commands, func(c Command) bool {
			return c.Session == e.Session && (c.Op == proto.OpCreateSession || c.Op == fsm.OpResumeSession)
		})
		if at < 0 {
			return fmt.Errorf("the entry does not open or resume this session")
		}
		c := m.commands[at]
		m.commands = m.commands[at+1:]
		if (c.Op == fsm.OpResumeSession) != (x != nil) {
			return fmt.Errorf("a session that does not exist is resumed, or one that does is opened")
		}
		var err error
		if opened, err = w.change(m, e.Session, false, c.Owner); err != nil {
			return err
		}
		r.vouched = max(r.vouched, e.At)
	}
	m.sessions[e.Session] = &tracked{opened, e.Timeout, e.At, true}
	if m.leads != 0 {
		r.vouched = max(r.vouched, e.At)
		r.late.undone = r.late.undone || m.leads == r.late.term
	}
	return nil
}

// ended takes the end of a session. A leader's finding that it is late ends it only in that leader's term, if nobody has
// resumed it since, and no client may rely on it any more.
func (w *sessions) ended(m *sessionsOf, e *Event, x *tracked) error {
	if x == nil {
		return fmt.Errorf("it knows no such session")
	}
	first, r := m.next == len(w.changes), w.session(e.Session)
	if _, err := w.change(m, e.Session, true, session.Conn{}); err != nil {
		return err
	}
	delete(m.sessions, e.Session)
	if !first {
		return nil
	}
	why := "no command in the entry ends it"
	for _, c := range m.commands {
		switch {
		case c.Op == fsm.OpPutBack, c.Op == proto.OpCloseSession && c.Session == e.Session:
			return nil
		case c.Op != fsm.OpExpireSession || c.Session != e.Session:
		case c.Owner != w.changes[x.opened].owner:
			why = fmt.Sprintf("it expires although it was resumed: its owner is %v, not %v", w.changes[x.opened].owner, c.Owner)
		case c.Term == 0: // an operator wants it
			return nil
		case c.Term != m.term:
			why = fmt.Sprintf("it expires although the leader that found it late, in term %d, was replaced", c.Term)
		case r.late.term != c.Term || r.late.opened != x.opened:
			why = fmt.Sprintf("it expires, but no leader of term %d has found it late", c.Term)
		case r.opened == x.opened && r.until > e.At:
			why = fmt.Sprintf("it expires, but a client may rely on it until %v", r.until)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s", why)
}

// touched takes a request. It is carried out only if a leader will not let the session expire while its client relies on the
// answer: a leader has heard of it in time, or this member surely leads.
func (w *sessions) touched(m *sessionsOf, e *Event, x *tracked) error {
	if x == nil {
		return fmt.Errorf("the session is not known here, or has ended")
	}
	r, asked := w.session(e.Session), e.Asked
	until := asked + timing.Believed(x.timeout) - rounding
	if w.pending(r) && r.late.opened == x.opened && until > r.late.at {
		return fmt.Errorf("the leader has found the session late at %v, and its client relies on it until %v", r.late.at, until)
	}
	switch surely := m.leads != 0 && (m.leads == w.leads || w.led >= asked-sure); {
	case surely:
		r.vouched = max(r.vouched, asked)
	case asked-timing.Unreported(x.timeout, 0)-rounding > r.vouched:
		return fmt.Errorf("the request came at %v, but a leader has last heard of the session at %v", asked, r.vouched)
	}
	x.heard = max(x.heard, asked)
	switch {
	case x.opened > r.opened:
		r.opened, r.until = x.opened, until
	case x.opened == r.opened:
		r.until = max(r.until, until)
	}
	return nil
}

// late takes a leader's finding that a session is late. What a leader that was replaced finds has no effect; see ended.
func (w *sessions) late(m *sessionsOf, e *Event, x *tracked) error {
	r := w.session(e.Session)
	switch {
	case m.leads == 0:
		return fmt.Errorf("it does not lead")
	case x == nil:
		return fmt.Errorf("it knows no such session")
	case !x.sure:
		return fmt.Errorf("it has not given the session its full timeout since it began to lead")
	case e.At < x.heard+x.timeout-rounding:
		return fmt.Errorf("its timeout of %v runs since %v here", x.timeout, x.heard)
	case m.leads < w.leads:
		return nil
	case r.opened == x.opened && r.until > e.At:
		return fmt.Errorf("a client may rely on it until %v", r.until)
	}
	r.late = finding{term: m.leads, at: e.At, opened: x.opened}
	return nil
}
