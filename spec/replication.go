package spec

import (
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
func (a *replication) member(id uint64) *replica {
	if a.members[id] == nil {
		a.members[id] = new(replica)
	}
	return a.members[id]
}

func (a *replication) term(n uint64) *term {
	if a.terms[n] == nil {
		a.terms[n] = &term{votes: map[uint64]uint64{}, ends: map[uint64]Run{}, has: map[uint64]uint64{}}
	}
	return a.terms[n]
}

// termAt returns the term of an entry, or 0 if that is not known.
func termAt(log []Run, index uint64) uint64 {
	i := sort.Search(len(log), func(i int) bool { return log[i].Last >= index })
	if i == len(log) || log[i].First > index {
		return 0
	}
	return log[i].Term
}

func lastOf(log []Run) uint64 {
	if len(log) == 0 {
		return 0
	}
	return log[len(log)-1].Last
}

func addRun(log []Run, r Run) []Run {
	if n := len(log); n > 0 && log[n-1].Term == r.Term && log[n-1].Last+1 == r.First {
		log[n-1].Last = r.Last
		return log
	}
	return append(log, r)
}

// between returns the entries from first to last of a log.
func between(log []Run, first, last uint64) (part []Run) {
	for _, r := range log {
		if r.First, r.Last = max(r.First, first), min(r.Last, last); r.First <= r.Last {
			part = append(part, r)
		}
	}
	return part
}

// end returns Last and Term of the log, as Raft knows it.
func (m *replica) end() Run {
	if n := len(m.log); n > 0 && m.log[n-1].Last >= m.snapshot.Index {
		return m.log[n-1]
	}
	return Run{Last: m.snapshot.Index, Term: m.snapshot.Term}
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

func (a *replication) next(e *Event) error {
	m := a.member(e.Member)
	if e.Step == Swapped {
		m.foreign = !m.foreign
	}
	if m.foreign {
		return nil
	}
	switch e.Step {
	case LostDisk:
		*m = replica{}
	case Opened:
		return a.open(e, m)
	case Stored:
		return a.store(e.Member, m, e.Log, e.Lists)
	case Deleted:
		return a.remove(m, e.First, e.Last)
	case Snapshot:
		return a.save(m, e.Snapshot)
	case Term:
		return a.begin(e.Member, m, e.Term)
	case Voted:
		return a.elect(e.Member, m, e.Term, e.Candidate)
	case Visible:
		return a.apply(e.Member, m, e.Last, e.Term)
	case Restored:
		if e.Last > m.snapshot.Index || e.Last < m.newest {
			return fmt.Errorf("it had applied %d, and its snapshot ends at %d", m.newest, m.snapshot.Index)
		}
		m.applied = max(m.applied, m.snapshot.Index)
	case Leads:
		t := a.term(e.Term)
		if next, ok := a.after(m.applied); t.leader != e.Member || ok && next < t.first {
			return fmt.Errorf("the first entry of that term is %d, of member %d, and it has applied only up to %d", t.first, t.leader, m.applied)
		}
	}
	return nil
}

// open compares what is on a disk with what was stored there. A write that was not told may have been completed, and
// a deletion that was told may not have been.
func (a *replication) open(e *Event, m *replica) error {
	m.applied, m.newest = 0, 0
	if !m.ran {
		*m = replica{log: slices.Clone(e.Log), lists: slices.Clone(e.Lists), term: e.Term, vote: e.Candidate, voteTerm: e.Last, ran: true}
		if e.Snapshot != nil {
			m.snapshot, m.applied = *e.Snapshot, e.Snapshot.Index
			a.given[Run{First: e.Snapshot.Index, Term: e.Snapshot.Term}] = true
		}
		return nil
	}
	switch {
	case e.Last < m.voteTerm || e.Last == m.voteTerm && e.Candidate != m.vote:
		return fmt.Errorf("its disk had a vote for %q in term %d, and now one for %q in %d", m.vote, m.voteTerm, e.Candidate, e.Last)
	case m.snapshot.Index > 0 && (e.Snapshot == nil || e.Snapshot.Index < m.snapshot.Index):
		return fmt.Errorf("its disk had a snapshot up to %d, and now %v", m.snapshot.Index, e.Snapshot)
	}
	err := a.begin(e.Member, m, e.Term)
	if err == nil && e.Snapshot != nil {
		err = a.save(m, e.Snapshot)
	}
	s, old := m.snapshot, lastOf(m.log)
	m.applied = s.Index
	if is := termAt(m.log, s.Index); (old < s.Index || is > 0 && is != s.Term) && (len(e.Log) == 0 || e.Log[0].First >= s.Index) {
		m.log, m.lists, old = nil, nil, 0 // a snapshot of the leader's superseded it
	}
	for _, r := range m.log {
		if got := between(e.Log, r.First, r.Last); len(got) != 1 || got[0] != r {
			return fmt.Errorf("its disk had the entries %v, and now %v", m.log, e.Log)
		}
	}
	if more := between(e.Log, old+1, lastOf(e.Log)); err == nil && len(more) > 0 {
		err = a.store(e.Member, m, more, e.Lists)
	}
	m.log, m.lists = slices.Clone(e.Log), slices.Clone(e.Lists)
	if err == nil && e.Last > m.voteTerm {
		err = a.elect(e.Member, m, e.Last, e.Candidate)
	}
	return err
}

func (a *replication) store(id uint64, m *replica, runs []Run, lists []List) error {
	for _, r := range runs {
		if err := a.follows(id, m, r); err != nil {
			return err
		}
		m.log = addRun(m.log, r)
	}
	t, r := a.term(m.term), runs[len(runs)-1]
	for _, l := range lists {
		if n := len(m.lists); n == 0 || m.lists[n-1].Index < l.Index {
			m.lists = append(m.lists, l)
		}
		if n := len(t.lists); r.Term == m.term && n > 0 && l.Index >= max(r.First, t.first) && t.lists[n-1].Index < l.Index {
			t.lists = append(t.lists, l)
		}
	}
	if r.Term != m.term || len(t.lists) == 0 {
		return nil
	}
	t.has[id] = max(t.has[id], r.Last)
	// Until a list is committed, Raft may count with the one before for a moment.
	for i, l := range slices.Backward(t.lists) {
		if n := min(majority(l, t.has), r.Last); n >= t.first && n > lastOf(a.committed) {
			for _, r := range between(m.log, lastOf(a.committed)+1, n) {
				a.committed = addRun(a.committed, r)
			}
		}
		if l.Index <= lastOf(a.committed) || i < len(t.lists)-1 {
			break
		}
	}
	return nil
}

// follows checks that a member may store entries.
func (a *replication) follows(id uint64, m *replica, r Run) error {
	s := m.snapshot
	end, ended := lastOf(m.log), termAt(m.log, lastOf(m.log))
	if len(m.log) == 0 {
		end, ended = s.Index, s.Term
		if r.First == s.Index && r.Term == s.Term && s.Index > 0 {
			return nil // it comes with the snapshot, see transport.InstallSnapshot
		}
	}
	t := a.term(r.Term)
	switch {
	case r.First != end+1 || r.Term < ended || r.Term > m.term:
		return fmt.Errorf("entry %d of term %d does not follow entry %d of term %d, in term %d", r.First, r.Term, end, ended, m.term)
	case r.Term != ended && t.began && (r.First != t.first || ended != t.before):
		return fmt.Errorf("term %d begins at %d, after term %d, and at member %d, which began it, at %d, after term %d", r.Term, r.First, ended, t.leader, t.first, t.before)
	case r.Term == ended || t.began:
		return nil
	case r.Term < m.term:
		return fmt.Errorf("nobody has begun term %d, and now it is term %d", r.Term, m.term)
	}
	t.began, t.first, t.before = true, r.First, ended
	if r.First == 1 && r.Term == 1 {
		return nil // the first list of a cluster, which each member stores by itself
	}
	t.leader = id
	// A leader that was replaced may store its first entry late, and lack what is committed in later terms.
	if end := lastOf(a.committed); end > 0 && r.Term > a.newest && (r.First <= end || end > s.Index && termAt(m.log, end) != termAt(a.committed, end)) {
		return fmt.Errorf("it leads in term %d, and lacks what is committed: up to entry %d, of term %d", r.Term, end, termAt(a.committed, end))
	}
	a.newest = max(a.newest, r.Term)
	voted := map[uint64]uint64{}
	for voter, got := range t.votes {
		if got == id {
			voted[voter] = 1
		}
	}
	t.lists = []List{s.List}
	if n := len(m.lists); n > 0 && m.lists[n-1].Index > s.List.Index {
		t.lists[0] = m.lists[n-1]
	}
	if majority(t.lists[0], voted) == 0 {
		return fmt.Errorf("it leads in term %d with votes of %v, no majority in its list %v", r.Term, slices.Sorted(maps.Keys(voted)), t.lists[0])
	}
	return nil
}

func (a *replication) remove(m *replica, first, until uint64) error {
	if at := max(first, m.snapshot.Index+1); at <= min(until, lastOf(a.committed)) {
		if t := termAt(m.log, at); t > 0 && t == termAt(a.committed, at) {
			return fmt.Errorf("entry %d is committed, and its snapshot ends at %d", at, m.snapshot.Index)
		}
	}
	m.log = append(between(m.log, 0, max(first, 1)-1), between(m.log, until+1, lastOf(m.log))...)
	m.lists = slices.DeleteFunc(slices.Clone(m.lists), func(l List) bool { return first <= l.Index && l.Index <= until })
	return nil
}

func (a *replication) save(m *replica, s *Covers) error {
	if t := termAt(a.committed, s.Index); !a.given[Run{First: s.Index, Term: s.Term}] && (s.Index > lastOf(a.committed) || t > 0 && t != s.Term) {
		return fmt.Errorf("the snapshot ends with entry %d of term %d, and what is committed at %d, with term %d there", s.Index, s.Term, lastOf(a.committed), t)
	}
	if s.Index >= m.snapshot.Index {
		m.snapshot = *s
	}
	return nil
}

func (a *replication) begin(id uint64, m *replica, n uint64) error {
	if n < m.term && !(n == 0 && len(m.log) == 0 && m.snapshot.Index == 0) { // see storage.Empty
		return fmt.Errorf("its disk had term %d already", m.term)
	}
	if t := a.term(n); n != m.term {
		m.term, t.ends[id] = n, m.end()
	}
	return nil
}

// elect checks a vote. The candidate's log must be as new as that of the voter.
func (a *replication) elect(id uint64, m *replica, n uint64, candidate string) error {
	got := id // its own, unless there is an id behind the address: see transport.dispatch
	if _, other, ok := strings.Cut(candidate, "\x00"); ok {
		got, _ = strconv.ParseUint(other, 10, 64)
	}
	t, end := a.term(n), m.end()
	with, stands := t.ends[got]
	switch before, voted := t.votes[id]; {
	case voted && before != got && got == id && m.voteTerm < n:
		got = before // its disk was new since, and transport.adopt keeps others from getting the vote
	case voted && before != got:
		return fmt.Errorf("it has voted for member %d in this term, and now for %d", before, got)
	case n != m.term || !stands:
		return fmt.Errorf("its term is %d, or member %d has not stored this term", m.term, got)
	case got != id && (with.Term < end.Term || with.Term == end.Term && with.Last < end.Last):
		return fmt.Errorf("the log of member %d ends with entry %d of term %d, and its own with %d of %d", got, with.Last, with.Term, end.Last, end.Term)
	}
	t.votes[id], m.voteTerm, m.vote = got, n, candidate
	return nil
}

// after returns the first entry after index that any member has applied.
func (a *replication) after(index uint64) (next uint64, ok bool) {
	i := sort.Search(len(a.applied), func(i int) bool { return a.applied[i].Last > index })
	if i == len(a.applied) {
		return 0, false
	}
	return max(a.applied[i].First, index+1), true
}

func (a *replication) apply(id uint64, m *replica, index, term uint64) error {
	next, ok := a.after(m.applied)
	switch t := termAt(a.committed, index); {
	case index > lastOf(a.committed):
		return fmt.Errorf("a crash may lose the entry: what is committed ends at %d", lastOf(a.committed))
	case term > 0 && t > 0 && t != term:
		return fmt.Errorf("the entry that is committed there is of term %d", t)
	case index <= m.applied || ok && next != index:
		return fmt.Errorf("it has applied up to %d, and the next entry that others have applied is %d", m.applied, next)
	case index > m.end().Last && a.term(m.term).leader != id:
		return fmt.Errorf("its disk ends at %d, and it does not lead in term %d", m.end().Last, m.term)
	}
	if !ok {
		a.applied = addRun(a.applied, Run{First: index, Last: index})
	}
	m.applied, m.newest = index, index
	return nil
}

// kind says who the member is in its term, how its log ends, with what it begins, and whether a list is on its way.
func (a *replication) kind(e *Event) string {
	m := a.member(e.Member)
	t, end, committed := a.term(m.term), m.end(), lastOf(a.committed)
	kind, both := "no leader", min(end.Last, committed)
	switch is, at := termAt(m.log, both), termAt(a.committed, both); {
	case e.Session != 0 || e.Step == Identity || e.Step == Rejoining:
		return ""
	case m.foreign:
		return "other cluster"
	case t.leader == e.Member:
		kind = "leader"
	case t.leader > 0:
		kind = "follower"
	case t.votes[e.Member] == e.Member:
		kind = "candidate"
	case is > 0 && at > 0 && is != at:
		kind = "other end"
	}
	switch {
	case end.Last < committed:
		kind += ", behind"
	case end.Last > committed:
		kind += ", ahead"
	}
	switch begins := termAt(m.log, m.snapshot.Index); {
	case m.snapshot.Index == 0:
	case len(m.log) == 0:
		kind += ", only a snapshot"
	case m.log[0].First > m.snapshot.Index:
		kind += ", begins after its snapshot"
	case begins != m.snapshot.Term:
		kind += ", other than its snapshot"
	}
	if n := len(t.lists); n > 0 && t.lists[n-1].Index > committed {
		kind += ", list on its way"
	}
	return kind
}
