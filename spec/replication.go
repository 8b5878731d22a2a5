package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// replication is the automaton of replication.pml. It knows what is on each member's disk, by runs of entries of one term, and
// from that what is committed: what was on the disks of a majority while their term was that of its leader. Only
// that may be applied, be in a snapshot, or must not be deleted.
type replication struct {
	members   map[uint64]*replica
	terms     map[uint64]*term
	given     map[Run]bool // snapshots that a member had when it started for the first time, as First and Term
	committed []Run        // may begin late, after given snapshots
	newest    uint64       // term that has begun
	applied   []Run        // the entries that any member has applied; the others are Raft's own
}

// replica is a member. Its disk has log, lists, snapshot, term and vote.
type replica struct {
	log             []Run
	lists           []List // in log
	snapshot        Covers
	term, voteTerm  uint64
	vote            string
	ran             bool   // since its disk was new
	foreign         bool   // it has the disk of another cluster
	applied, newest uint64 // its state is as of an entry; the newest one since it started
}

// term is what is known of a term.
type term struct {
	began  bool              // an entry of it was stored
	leader uint64            // who stored that; 0 for the first list of a cluster
	first  uint64            // index of that entry
	before uint64            // term of the entry before
	lists  []List            // in the leader's log: the newest one when the term began, and those of this term
	votes  map[uint64]uint64 // who got the vote of each member
	ends   map[uint64]Run    // Last and Term of each member's log when it stored the term: with that it stands
	has    map[uint64]uint64 // up to which entry each member had the leader's log while this was its term
}

func newReplication() *replication {
	return &replication{members: map[uint64]*replica{}, terms: map[uint64]*term{}, given: map[Run]bool{}}
}

func (*replication) name() string { return "replication" }

func (a *replication) term(n uint64) *term {
	if a.terms[n] == nil {
		a.terms[n] = &term{votes: map[uint64]uint64{}, ends: map[uint64]Run{}, has: map[uint64]uint64{}}
	}
	return a.terms[n]
}

// replicationSteps take a step, or return why it is not allowed.
var replicationSteps = map[Step]func(*replication, *replica, *Event) string{
	LostDisk: func(_ *replication, m *replica, _ *Event) string { *m = replica{}; return "" },
	Opened:   (*replication).open, Stored: (*replication).store, Deleted: (*replication).remove,
	Snapshot: (*replication).save, Term: (*replication).begin, Voted: (*replication).elect,
	Visible: (*replication).apply, Restored: (*replication).restore, Leads: (*replication).lead,
}

func (a *replication) next(e *Event) error {
	m := get(a.members, e.Member)
	if e.Step == Swapped {
		m.foreign = !m.foreign
	}
	if take := replicationSteps[e.Step]; take != nil && !m.foreign {
		if why := take(a, m, e); why != "" {
			return fmt.Errorf("%s; committed %v, member %+v, its term %+v", why, lastOf(a.committed), *m, *a.term(m.term))
		}
	}
	return nil
}

// open compares what is on a disk with what was stored there. A write that was not told may have been completed, and
// a deletion that was told may not have been.
func (a *replication) open(m *replica, e *Event) string {
	m.applied, m.newest = 0, 0
	if !m.ran {
		*m = replica{term: e.Term, vote: e.Candidate, voteTerm: e.Last, ran: true}
		m.log, m.lists = slices.Clone(e.Log), slices.Clone(e.Lists)
		if s := e.Snapshot; s != nil {
			m.snapshot, m.applied, a.given[Run{First: s.Index, Term: s.Term}] = *s, s.Index, true
		}
		return ""
	}
	why := first(
		is{e.Last < m.voteTerm || e.Last == m.voteTerm && e.Candidate != m.vote, "its disk had a vote"},
		is{m.snapshot.Index > 0 && (e.Snapshot == nil || e.Snapshot.Index < m.snapshot.Index), "its disk had a snapshot"})
	why = cmp.Or(why, a.begin(m, e), a.save(m, e))
	s, old, at := m.snapshot, lastOf(m.log).Last, termAt(m.log, m.snapshot.Index)
	m.applied = s.Index
	if (old < s.Index || at > 0 && at != s.Term) && (len(e.Log) == 0 || e.Log[0].First >= s.Index) {
		m.log, m.lists, old = nil, nil, 0 // a snapshot of the leader's superseded it
	}
	for _, r := range m.log {
		why = cmp.Or(why, first(is{!slices.Equal(between(e.Log, r.First, r.Last), []Run{r}), "its disk had the entries"}))
	}
	more := *e
	more.Log, more.Term = between(e.Log, old+1, lastOf(e.Log).Last), e.Last
	why = cmp.Or(why, a.store(m, &more))
	m.log, m.lists = slices.Clone(e.Log), slices.Clone(e.Lists)
	if why == "" && e.Last > m.voteTerm {
		why = a.elect(m, &more)
	}
	return why
}

// store adds entries to a log. What is on the disks of a majority then is committed.
func (a *replication) store(m *replica, e *Event) string {
	var r Run
	for _, r = range e.Log {
		if why := a.follows(m, e.Member, r); why != "" {
			return why
		}
		m.log = addRun(m.log, r)
	}
	t := a.term(m.term)
	for _, l := range e.Lists {
		if lastOf(m.lists).Index < l.Index {
			m.lists = append(m.lists, l)
		}
		if r.Term == m.term && len(t.lists) > 0 && l.Index >= r.First && lastOf(t.lists).Index < l.Index {
			t.lists = append(t.lists, l)
		}
	}
	if r.Term != m.term {
		return ""
	}
	t.has[e.Member] = max(t.has[e.Member], r.Last)
	// Until a list is committed, Raft may count with the one before for a moment.
	for i, l := range slices.Backward(t.lists) {
		if n := min(majority(l, t.has), r.Last); n >= t.first {
			for _, r := range between(m.log, lastOf(a.committed).Last+1, n) {
				a.committed = addRun(a.committed, r)
			}
		}
		if l.Index <= lastOf(a.committed).Last || i < len(t.lists)-1 {
			break
		}
	}
	return ""
}

// follows checks that a member may store entries.
func (a *replication) follows(m *replica, id uint64, r Run) string {
	s, end, t, c := m.snapshot, lastOf(m.log), a.term(r.Term), lastOf(a.committed)
	if len(m.log) == 0 {
		end = Run{Last: s.Index, Term: s.Term}
		if r.First == s.Index && r.Term == s.Term && s.Index > 0 {
			return "" // it comes with the snapshot, see transport.InstallSnapshot
		}
	}
	begins := r.Term != end.Term
	why := first(
		is{r.First != end.Last+1 || r.Term < end.Term || r.Term > m.term, "an entry does not follow the one before"},
		is{begins && t.began && (r.First != t.first || end.Term != t.before), "its term begins elsewhere at who began it"},
		is{begins && !t.began && r.Term < m.term, "nobody has begun its term, and now it is a later one"})
	if why != "" || !begins || t.began {
		return why
	}
	t.began, t.first, t.before = true, r.First, end.Term
	if r.First == 1 && r.Term == 1 {
		return "" // the first list of a cluster, which each member stores by itself
	}
	t.leader, t.lists = id, []List{s.List}
	if l := lastOf(m.lists); l.Index > s.List.Index {
		t.lists[0] = l
	}
	voted := maps.Clone(t.votes)
	maps.DeleteFunc(voted, func(_, got uint64) bool { return got != id })
	// A leader that was replaced may store its first entry late, and lack what is committed in later terms.
	newer, lacks := r.Term > a.newest, c.Last > s.Index && termAt(m.log, c.Last) != c.Term
	a.newest = max(a.newest, r.Term)
	return first(
		is{newer && c.Last > 0 && (lacks || r.First <= c.Last), "it leads, and lacks what is committed"},
		is{majority(t.lists[0], voted) == 0, "it leads, and no majority in its list has voted for it"})
}

func (a *replication) remove(m *replica, e *Event) string {
	at := max(e.First, m.snapshot.Index+1)
	t := termAt(m.log, at)
	m.log = append(between(m.log, 0, max(e.First, 1)-1), between(m.log, e.Last+1, lastOf(m.log).Last)...)
	m.lists = slices.DeleteFunc(slices.Clone(m.lists), func(l List) bool { return e.First <= l.Index && l.Index <= e.Last })
	return first(is{at <= min(e.Last, lastOf(a.committed).Last) && t > 0 && t == termAt(a.committed, at),
		"an entry is committed, and not in its snapshot"})
}

func (a *replication) save(m *replica, e *Event) string {
	s := *cmp.Or(e.Snapshot, &m.snapshot)
	t, given := termAt(a.committed, s.Index), a.given[Run{First: s.Index, Term: s.Term}]
	if s.Index >= m.snapshot.Index {
		m.snapshot = s
	}
	return first(is{!given && s.Index > lastOf(a.committed).Last, "its snapshot has what is not committed"},
		is{!given && t > 0 && t != s.Term, "its snapshot ends with an entry of another term"})
}

func (a *replication) begin(m *replica, e *Event) string {
	was := m.term
	if e.Term != was {
		m.term, a.term(e.Term).ends[e.Member] = e.Term, m.end()
	}
	return first(is{e.Term < was && (e.Term > 0 || m.end().Last > 0), "its disk had a newer term"}) // see storage.Empty
}

// elect checks a vote. The candidate's log must be as new as that of the voter.
func (a *replication) elect(m *replica, e *Event) string {
	got := e.Member // its own, unless there is an id behind the address: see transport.dispatch
	if _, other, ok := strings.Cut(e.Candidate, "\x00"); ok {
		got, _ = strconv.ParseUint(other, 10, 64)
	}
	t, end := a.term(e.Term), m.end()
	with, stands := t.ends[got]
	before, voted := t.votes[e.Member]
	other, older := got != e.Member, with.Term < end.Term || with.Term == end.Term && with.Last < end.Last
	why := first(
		// If its disk was new since, Engine.AdvanceTerm keeps others from getting the vote.
		is{voted && before != got && !other && m.voteTerm < e.Term, ""},
		is{voted && before != got, "it has voted for another member in this term"},
		is{e.Term != m.term || !stands, "it or the candidate has not stored this term"},
		is{other && older, "the candidate's log is older than its own"})
	t.votes[e.Member], m.voteTerm, m.vote = cmp.Or(before, got), e.Term, e.Candidate
	return why
}

func (a *replication) apply(m *replica, e *Event) string {
	next, t := a.after(m.applied), termAt(a.committed, e.Last)
	why := first(
		is{e.Last > lastOf(a.committed).Last, "a crash may lose the entry"},
		is{e.Term > 0 && t > 0 && t != e.Term, "the entry that is committed there is of another term"},
		is{e.Last <= m.applied || next > 0 && next != e.Last, "it is not the next entry that others have applied"},
		is{e.Last > m.end().Last && a.term(m.term).leader != e.Member, "its disk ends before, and it does not lead"})
	if next == 0 {
		a.applied = addRun(a.applied, Run{First: e.Last, Last: e.Last})
	}
	m.applied, m.newest = e.Last, e.Last
	return why
}

func (a *replication) restore(m *replica, e *Event) string {
	m.applied = max(m.applied, m.snapshot.Index)
	return first(is{e.Last > m.snapshot.Index, "it has no such snapshot"}, is{e.Last < m.newest, "its state goes back"})
}

func (a *replication) lead(m *replica, e *Event) string {
	t, next := a.term(e.Term), a.after(m.applied)
	return first(is{t.leader != e.Member, "another member has begun that term"},
		is{next > 0 && next < t.first, "it has not applied all that comes before its term"})
}

// kind says who the member is in its term, how its log ends, with what it begins, and whether a list is on its way.
func (a *replication) kind(e *Event) string {
	m := get(a.members, e.Member)
	switch {
	case e.Session != 0 || e.Step == Identity || e.Step == Rejoining:
		return ""
	case m.foreign:
		return "other cluster"
	}
	t, end, s, committed := a.term(m.term), m.end().Last, m.snapshot, lastOf(a.committed).Last
	own, at := termAt(m.log, min(end, committed)), termAt(a.committed, min(end, committed))
	return first(is{t.leader == e.Member, "leader"}, is{t.leader > 0, "follower"}, is{t.votes[e.Member] == e.Member, "candidate"},
		is{own > 0 && at > 0 && own != at, "other end"}, is{true, "no leader"}) +
		first(is{end < committed, ", behind"}, is{end > committed, ", ahead"}) +
		first(is{s.Index == 0, ""}, is{len(m.log) == 0, ", only a snapshot"},
			is{runAt(m.log, 0).First > s.Index, ", begins after its snapshot"},
			is{termAt(m.log, s.Index) != s.Term, ", other than its snapshot"}) +
		first(is{lastOf(t.lists).Index > committed, ", list on its way"})
}

// end returns Last and Term of the log, as Raft knows it.
func (m *replica) end() Run {
	if r := lastOf(m.log); r.Last >= m.snapshot.Index {
		return r
	}
	return Run{Last: m.snapshot.Index, Term: m.snapshot.Term}
}

// after returns the first entry after index that any member has applied, or 0.
func (a *replication) after(index uint64) uint64 {
	r := runAt(a.applied, index+1)
	return max(r.First, min(index+1, r.Last))
}

// runAt returns the run that has an entry, or the next one, or an empty one.
func runAt(log []Run, index uint64) (r Run) {
	if i := sort.Search(len(log), func(i int) bool { return log[i].Last >= index }); i < len(log) {
		r = log[i]
	}
	return r
}

// termAt returns the term of an entry, or 0 if that is not known.
func termAt(log []Run, index uint64) uint64 {
	if r := runAt(log, index); r.First <= index {
		return r.Term
	}
	return 0
}

func addRun(log []Run, r Run) []Run {
	if end := lastOf(log); end.Term == r.Term && end.Last+1 == r.First && len(log) > 0 {
		log[len(log)-1].Last = r.Last
		return log
	}
	return append(log, r)
}

func between(log []Run, first, last uint64) (part []Run) {
	for _, r := range log {
		if r.First, r.Last = max(r.First, first), min(r.Last, last); r.First <= r.Last {
			part = append(part, r)
		}
	}
	return part
}

// majority returns how far a majority of the voters in a list has come.
func majority(l List, has map[uint64]uint64) uint64 {
	upTo := []uint64{0}
	for _, s := range l.Servers {
		if s.Votes {
			upTo = append(upTo, has[s.ID])
		}
	}
	slices.Sort(upTo) // the first one is no voter's
	return upTo[len(upTo)/2]
}

// is has words for what may be so: a kind of state, or that a step is not allowed.
type is struct {
	so    bool
	words string
}

// first returns the words for the first that is so.
func first(all ...is) string {
	if i := slices.IndexFunc(all, func(x is) bool { return x.so }); i >= 0 {
		return all[i].words
	}
	return ""
}

// get returns what a map has for a key, which is new if there was nothing.
func get[K comparable, V any](m map[K]*V, key K) *V {
	if m[key] == nil {
		m[key] = new(V)
	}
	return m[key]
}

// lastOf returns the last element, or an empty one if there is none.
func lastOf[T any](all []T) (last T) {
	if n := len(all); n > 0 {
		last = all[n-1]
	}
	return last
}
