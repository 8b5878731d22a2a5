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
// It does not know the election timeout. Where the model has what a replaced leader may still do (timing.Lease), the automaton
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
	foreign  bool               // it has the disk of another cluster, and is not followed
	sessions map[int64]*tracked // that it knows
	leads    uint64             // the last term in which it has led in this run; 0 is none
	entry    uint64             // that is being applied
	term     uint64             // of that
	commands []Command          // in that, without those that are done
	next     int                // the first of changes that it has not applied
}

// tracked is a session as a member knows it.
type tracked struct {
	opened  int           // how many changes there were with the one that has opened or resumed it last
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
	opened  int           // as in tracked, as known to the member of the newest request; 0 if there was none
	until   time.Duration // the client of such a request relies on it until then
	vouched time.Duration // when a leader has heard of it last, by the time of the client's request
	late    finding
}

// finding is that the leader of a term has found a session late.
type finding struct {
	term   uint64
	at     time.Duration
	opened int  // as in tracked, as known to that leader
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

func (w *sessions) kind(e *Event) string {
	m := get(w.members, e.Member)
	if m.foreign {
		return "foreign"
	}
	kind := first(is{m.leads == 0, "follower"}, is{m.leads == w.newest, "leader"}, is{true, "replaced leader"}) +
		first(is{m.next < len(w.changes) && e.Step != Ended && e.Step != Restarts, ", behind"})
	if e.Session == 0 {
		return kind
	}
	x, r := m.sessions[e.Session], w.known[e.Session]
	if x == nil {
		return kind + first(is{r == nil, ", new session"}, is{true, ", unknown session"})
	}
	return kind + first(is{r != nil && w.pending(r), ", late session"}) +
		first(is{r != nil && r.opened > x.opened, ", resumed elsewhere"})
}

// pending reports whether a session may be about to expire.
func (w *sessions) pending(r *relied) bool {
	return r.late.term != 0 && r.late.term == w.newest && !r.late.undone
}

// sessionSteps take a step, or return why it is not allowed. x is the session as the member knows it, if it does.
var sessionSteps = map[Step]func(w *sessions, m *sessionsOf, e *Event, x *tracked) string{
	Visible: (*sessions).visible, Anew: (*sessions).anew, Leads: (*sessions).lead, Restarts: (*sessions).restarts,
	Ended: (*sessions).ended, Heard: (*sessions).heard, Touched: (*sessions).touched, Late: (*sessions).late,
	Answered: (*sessions).answered,
}

func (w *sessions) next(e *Event) error {
	m := get(w.members, e.Member)
	switch e.Step {
	case Opened, LostDisk, Swapped: // it forgets all
		*m = sessionsOf{foreign: m.foreign != (e.Step == Swapped), sessions: map[int64]*tracked{}}
	}
	x, take := m.sessions[e.Session], sessionSteps[e.Step]
	if m.foreign || take == nil || x == nil && e.Step == Answered {
		return nil
	}
	why := "the session is not known here, or has ended"
	if x != nil || !slices.Contains([]Step{Ended, Heard, Touched, Late}, e.Step) {
		why = take(w, m, e, x)
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s; the leader is that of term %d, since %v, and the member led in %d; the session here %+v, anywhere %+v",
		why, w.leads, w.led, m.leads, x, w.known[e.Session])
}

// visible begins an entry. All members change the same sessions with each entry, and so know the same ones. The sessions may all
// be begun anew meanwhile.
func (w *sessions) visible(m *sessionsOf, e *Event, _ *tracked) string {
	if m.next < len(w.changes) && w.changes[m.next].index < e.Last {
		return fmt.Sprintf("entry %d opens, resumes or ends a session on another member, and not here", w.changes[m.next].index)
	}
	m.entry, m.term, m.commands = e.Last, e.Term, e.Commands
	w.done, w.newest = max(w.done, e.Last-1), max(w.newest, e.Term)
	return ""
}

func (w *sessions) anew(m *sessionsOf, e *Event, _ *tracked) string {
	clear(m.sessions)
	m.next = sort.Search(len(w.changes), func(i int) bool { return w.changes[i].index > e.Last })
	if m.next == len(w.changes) {
		w.done = max(w.done, e.Last)
	}
	return ""
}

// lead begins a term. No session becomes late before the leader has given it its full timeout (see late), which it does next. So it
// may answer reports of touches before that, also with what it has heard before it led.
func (w *sessions) lead(m *sessionsOf, e *Event, _ *tracked) string {
	m.leads = e.Term
	if e.Term > w.leads {
		w.leads, w.led, w.newest = e.Term, e.At, max(w.newest, e.Term)
	}
	for id, x := range m.sessions {
		x.sure = false
		if m.leads == w.leads {
			r := get(w.known, id)
			r.vouched = max(r.vouched, e.At)
		}
	}
	return ""
}

// change takes a change of a session by the entry that m applies.
func (w *sessions) change(m *sessionsOf, id int64, ended bool, owner session.Conn) string {
	live := lastOf(w.changes[:m.next]).live
	switch newest := m.next == len(w.changes); {
	case len(m.sessions) != live:
		return fmt.Sprintf("it knows %d sessions, and other members know %d after the same entry", len(m.sessions), live)
	case newest && m.entry <= w.done:
		return "its entry does not change the session on other members"
	case newest:
		if ended {
			live--
		} else if m.sessions[id] == nil {
			live++
		}
		w.of[id] = append(w.of[id], m.next)
		w.changes = append(w.changes, changed{m.entry, id, ended, owner, live})
	}
	c := w.changes[m.next]
	m.next++
	return first(is{c.index != m.entry || c.session != id || c.ended != ended, "something else changes next on other members"})
}

// restarts takes a session that is opened or resumed by an entry, or one that a member knows, when all begin anew.
func (w *sessions) restarts(m *sessionsOf, e *Event, x *tracked) string {
	r, was, opened := get(w.known, e.Session), w.of[e.Session], 0
	n, _ := slices.BinarySearch(was, m.next)
	if x == nil && n > 0 && !w.changes[was[n-1]].ended { // after Anew
		opened = was[n-1] + 1
	} else {
		at := slices.IndexFunc(m.commands, func(c Command) bool {
			return c.Session == e.Session && (c.Op == proto.OpCreateSession || c.Op == fsm.OpResumeSession)
		})
		if at < 0 {
			return "the entry does not open or resume this session"
		}
		c := m.commands[at]
		m.commands = m.commands[at+1:]
		if (c.Op == fsm.OpResumeSession) != (x != nil) {
			return "a session that does not exist is resumed, or one that does is opened"
		}
		if why := w.change(m, e.Session, false, c.Owner); why != "" {
			return why
		}
		if opened = m.next; opened == len(w.changes) { // no leader has applied it before
			r.vouched = max(r.vouched, e.At)
		}
	}
	m.sessions[e.Session] = &tracked{opened, e.Timeout, e.At, true}
	if m.leads != 0 {
		if m.leads == w.leads {
			r.vouched = max(r.vouched, e.At)
		}
		r.late.undone = r.late.undone || m.leads == r.late.term
	}
	return ""
}

// ended takes the end of a session. A leader's finding that it is late ends it only in that leader's term, if nobody has
// resumed it since, and no client may rely on it any more.
func (w *sessions) ended(m *sessionsOf, e *Event, x *tracked) string {
	newest, r, owner := m.next == len(w.changes), get(w.known, e.Session), w.changes[x.opened-1].owner
	why := w.change(m, e.Session, true, session.Conn{})
	if delete(m.sessions, e.Session); why != "" || !newest {
		return why
	}
	why = "no command in the entry ends it"
	for _, c := range m.commands {
		switch {
		case c.Op == fsm.OpPutBack, c.Op == proto.OpCloseSession && c.Session == e.Session:
			return ""
		case c.Op != fsm.OpExpireSession || c.Session != e.Session:
			continue
		}
		why = first(
			is{c.Owner != owner, "it expires although it was resumed"},
			is{c.Term == 0, ""}, // an operator wants it
			is{c.Term != m.term, "it expires although the leader that found it late was replaced"},
			is{r.late.term != c.Term || r.late.opened != x.opened, "it expires, but no leader of that term has found it late"},
			is{r.opened == x.opened && r.until > e.At, "it expires while a client may rely on it"})
		if why == "" {
			break
		}
	}
	return why
}

// surely reports whether a member leads, or was replaced so lately that it may not know.
func (w *sessions) surely(m *sessionsOf, at time.Duration) bool {
	return m.leads != 0 && (m.leads == w.leads || w.led >= at-sure)
}

func (w *sessions) heard(m *sessionsOf, e *Event, x *tracked) string {
	x.heard = max(x.heard, e.Asked)
	if r := get(w.known, e.Session); w.surely(m, e.At) {
		r.vouched = max(r.vouched, e.Asked)
	}
	return ""
}

// answered takes the answer to a write or a sync on a member that does not lead: the leader has heard of the session with it.
func (w *sessions) answered(m *sessionsOf, e *Event, x *tracked) string {
	asked := min(e.Asked, x.heard) // it may have waited since it was touched
	asks := m.leads == 0 && w.newest == w.leads && w.led <= asked && e.At-asked <= timing.Believed(x.timeout)
	return first(is{asks && asked > get(w.known, e.Session).vouched+rounding, "the leader has not heard of the session with it"})
}

// touched takes a request. It is carried out only if a leader will not let the session expire while its client relies on the
// answer: a leader has heard of it in time, or this member surely leads.
func (w *sessions) touched(m *sessionsOf, e *Event, x *tracked) string {
	r, until, surely := get(w.known, e.Session), e.Asked+timing.Believed(x.timeout)-rounding, w.surely(m, e.Asked)
	late := w.pending(r) && r.late.opened == x.opened
	why := first(
		is{late && until > r.late.at, "the leader has found the session late, and its client relies on the answer"},
		is{!surely && e.Asked-timing.Unreported(x.timeout, 0)-rounding > r.vouched, "no leader has heard of the session in time"})
	if surely {
		r.vouched = max(r.vouched, e.Asked)
	}
	x.heard = max(x.heard, e.Asked)
	switch {
	case x.opened > r.opened:
		r.opened, r.until = x.opened, until
	case x.opened == r.opened:
		r.until = max(r.until, until)
	}
	return why
}

// late takes a leader's finding that a session is late. What a leader that was replaced finds has no effect; see ended.
func (w *sessions) late(m *sessionsOf, e *Event, x *tracked) string {
	r, replaced := get(w.known, e.Session), m.leads < w.leads
	why := first(
		is{m.leads == 0, "it does not lead"},
		is{!x.sure, "it has not given the session its full timeout since it began to lead"},
		is{e.At < x.heard+x.timeout-rounding, "the session's timeout has not passed here"},
		is{!replaced && r.opened == x.opened && r.until > e.At, "a client may rely on it"})
	if !replaced {
		r.late = finding{term: m.leads, at: e.At, opened: x.opened}
	}
	return why
}
