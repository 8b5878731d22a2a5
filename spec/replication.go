package spec

import (
	"fmt"
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
	applied   []uint64     // the entries that any member has applied, in order; old ones are forgotten
	forgotten uint64       // those up to here
}

// replica is a member. Its disk has log, lists, snapshot, term and vote.
type replica struct {
	log      []Run
	lists    []List // in log
	snapshot Covers
	term     uint64
	voteTerm uint64
	vote     string
	ran      bool   // since its disk was new
	foreign  bool   // it has the disk of another cluster
	applied  uint64 // its state is as of this entry
	newest   uint64 // that it has applied since it started
}

// place is an entry. In a log that ends with a later one there is more.
type place struct{ term, index uint64 }

func (p place) before(q place) bool { return p.term < q.term || p.term == q.term && p.index < q.index }

// term is what is known of a term.
type term struct {
	began  bool              // an entry of it was stored
	leader uint64            // who stored that; 0 for the first list of a cluster
	first  uint64            // index of that entry
	before uint64            // term of the entry before
	lists  []List            // in the leader's log: the newest one when the term began, and those of this term
	votes  map[uint64]uint64 // who got the vote of each member
	ends   map[uint64]place  // of the log of each member, when it stored the term: with that it stands
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
		a.terms[n] = &term{votes: map[uint64]uint64{}, ends: map[uint64]place{}, has: map[uint64]uint64{}}
	}
	return a.terms[n]
}

// runAt returns the run that has an entry, or nil.
func runAt(log []Run, index uint64) *Run {
	i := sort.Search(len(log), func(i int) bool { return log[i].Last >= index })
	if i == len(log) || log[i].First > index {
		return nil
	}
	return &log[i]
}

// termAt returns the term of an entry, or 0 if that is not known.
func termAt(log []Run, index uint64) uint64 {
	if r := runAt(log, index); r != nil {
		return r.Term
	}
	return 0
}

func lastOf(log []Run) uint64 {
	if len(log) == 0 {
		return 0
	}
	return log[len(log)-1].Last
}

// addRun returns the log with one more run.
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

func (m *replica) end() place {
	if n := lastOf(m.log); n >= m.snapshot.Index && n > 0 {
		return place{termAt(m.log, n), n}
	}
	return place{m.snapshot.Term, m.snapshot.Index}
}

// termOf returns the term of an entry, also of the last one that the snapshot covers, or 0.
func (m *replica) termOf(index uint64) uint64 {
	if t := termAt(m.log, index); t > 0 || index != m.snapshot.Index {
		return t
	}
	return m.snapshot.Term
}

// newestLists returns the lists of which one is in force for this member's Raft: that of the end of the log, and that of the
// snapshot, which replaces it if it was the leader's.
func (m *replica) newestLists() []List {
	lists := []List{m.snapshot.List}
	if n := len(m.lists); n > 0 {
		lists = append(lists, m.lists[n-1])
	}
	return lists
}

// majority returns how far a majority of the voters in a list has come.
func majority(l List, has map[uint64]uint64) uint64 {
	var upTo []uint64
	for _, s := range l.Servers {
		if s.Votes {
			upTo = append(upTo, has[s.ID])
		}
	}
	if len(upTo) == 0 {
		return 0
	}
	slices.Sort(upTo)
	return upTo[(len(upTo)-1)/2]
}

func (a *replication) next(e *Event) error {
	m := a.member(e.Member)
	switch {
	case e.Step == Swapped:
		m.foreign = !m.foreign
		return nil
	case m.foreign:
		return nil
	case e.Step == LostDisk:
		*m = replica{}
		return nil
	}
	switch e.Step {
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
		switch {
		case e.Last > m.snapshot.Index:
			return fmt.Errorf("its state is of a snapshot up to %d, but the newest one on its disk ends at %d", e.Last, m.snapshot.Index)
		case e.Last < m.newest:
			return fmt.Errorf("its state goes back from entry %d to %d", m.newest, e.Last)
		}
		m.applied = max(m.applied, m.snapshot.Index)
	case Leads:
		t := a.term(e.Term)
		if t.leader != e.Member {
			return fmt.Errorf("it leads in term %d, whose first entry is of member %d", e.Term, t.leader)
		}
		if next, ok := a.after(m.applied); ok && next < t.first {
			return fmt.Errorf("it leads with its entry %d, and has not applied %d", t.first, next)
		}
	}
	return nil
}

// open compares what is on a disk with what was stored there. A write that was not told may have been completed, and
// a deletion that was told may not have been.
func (a *replication) open(e *Event, m *replica) error {
	m.applied, m.newest = 0, 0
	if !m.ran {
		*m = replica{log: e.Log, lists: e.Lists, term: e.Term, vote: e.Candidate, voteTerm: e.Last, ran: true}
		if e.Snapshot != nil {
			m.snapshot, m.applied = *e.Snapshot, e.Snapshot.Index
			a.given[Run{First: e.Snapshot.Index, Term: e.Snapshot.Term}] = true
		}
		return nil
	}
	switch {
	case e.Term < m.term:
		return fmt.Errorf("its disk had term %d, and now %d", m.term, e.Term)
	case e.Last < m.voteTerm || e.Last == m.voteTerm && e.Candidate != m.vote:
		return fmt.Errorf("its disk had a vote for %q in term %d, and now one for %q in %d", m.vote, m.voteTerm, e.Candidate, e.Last)
	case m.snapshot.Index > 0 && (e.Snapshot == nil || e.Snapshot.Index < m.snapshot.Index):
		return fmt.Errorf("its disk had a snapshot up to %d, and now %v", m.snapshot.Index, e.Snapshot)
	}
	if e.Snapshot != nil {
		if err := a.save(m, e.Snapshot); err != nil {
			return err
		}
	}
	if e.Term > m.term {
		if err := a.begin(e.Member, m, e.Term); err != nil {
			return err
		}
	}
	s := m.snapshot
	m.applied = s.Index
	old := lastOf(m.log)
	if conflicts := termAt(m.log, s.Index); s.Index > 0 && len(m.log) > 0 && m.log[0].First <= s.Index && (old < s.Index || conflicts > 0 && conflicts != s.Term) {
		if len(e.Log) == 0 || e.Log[0].First >= s.Index { // a snapshot of the leader's superseded it
			m.log, m.lists, old = nil, nil, 0
		}
	}
	for _, r := range m.log {
		if got := between(e.Log, r.First, r.Last); len(got) != 1 || got[0] != r {
			return fmt.Errorf("its disk had the entries %v, and now %v", m.log, e.Log)
		}
	}
	if more := between(e.Log, old+1, lastOf(e.Log)); len(more) > 0 {
		if err := a.store(e.Member, m, more, e.Lists); err != nil {
			return err
		}
	}
	m.log, m.lists = e.Log, e.Lists
	if e.Last > m.voteTerm {
		return a.elect(e.Member, m, e.Last, e.Candidate)
	}
	return nil
}

func (a *replication) store(id uint64, m *replica, runs []Run, lists []List) error {
	for _, r := range runs {
		if err := a.follows(id, m, r); err != nil {
			return err
		}
		m.log = addRun(m.log, r)
	}
	for _, l := range lists {
		if n := len(m.lists); n == 0 || m.lists[n-1].Index < l.Index {
			m.lists = append(m.lists, l)
		}
	}
	t := a.term(m.term)
	r := runs[len(runs)-1]
	if r.Term != m.term || !t.began {
		return nil
	}
	for _, l := range lists {
		if l.Index >= max(r.First, t.first) && (len(t.lists) == 0 || t.lists[len(t.lists)-1].Index < l.Index) {
			t.lists = append(t.lists, l)
		}
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
		if s.Index > 0 && r.First <= s.Index {
			if r.First == s.Index && r.Term != s.Term {
				return fmt.Errorf("entry %d is of term %d, but the snapshot there of %d", r.First, r.Term, s.Term)
			}
			return nil // it comes with the snapshot, see transport.InstallSnapshot
		}
	}
	t := a.term(r.Term)
	switch {
	case r.First != end+1:
		return fmt.Errorf("entry %d does not follow entry %d", r.First, end)
	case r.Term > m.term:
		return fmt.Errorf("entry %d is of term %d, but its disk has term %d", r.First, r.Term, m.term)
	case r.Term < ended:
		return fmt.Errorf("entry %d of term %d follows one of term %d", r.First, r.Term, ended)
	case r.Term == ended:
		return nil
	case t.began && (r.First != t.first || ended != t.before):
		return fmt.Errorf("term %d begins at %d, after an entry of term %d, and at member %d it began at %d, after one of term %d: two lead in it, or the log has another beginning", r.Term, r.First, ended, t.leader, t.first, t.before)
	case t.began:
		return nil
	}
	t.began, t.first, t.before = true, r.First, ended
	if r.First == 1 && r.Term == 1 {
		return nil // the first list of a cluster, which each member stores by itself
	}
	t.leader = id
	if r.Term != m.term {
		return fmt.Errorf("it stores the first entry of term %d in term %d", r.Term, m.term)
	}
	if end := lastOf(a.committed); end > 0 && (r.First <= end || end > s.Index && m.termOf(end) != termAt(a.committed, end)) {
		return fmt.Errorf("it leads in term %d, and lacks what is committed: up to entry %d, of term %d", r.Term, end, termAt(a.committed, end))
	}
	voted := map[uint64]uint64{}
	for voter, got := range t.votes {
		if got == id {
			voted[voter] = 1
		}
	}
	for _, l := range m.newestLists() {
		if majority(l, voted) > 0 {
			if n := len(t.lists); n == 0 || t.lists[n-1].Index < l.Index {
				t.lists = []List{l}
			}
		}
	}
	if len(t.lists) == 0 {
		return fmt.Errorf("it leads in term %d with votes of %v, which are no majority in its lists %v", r.Term, voted, m.newestLists())
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
	for i, r := range m.log {
		if i > 0 && m.log[i-1].Last+1 != r.First {
			return fmt.Errorf("the log has a hole before entry %d", r.First)
		}
	}
	return nil
}

func (a *replication) save(m *replica, s *Covers) error {
	if t := termAt(a.committed, s.Index); !a.given[Run{First: s.Index, Term: s.Term}] && (s.Index > lastOf(a.committed) || t > 0 && t != s.Term) {
		return fmt.Errorf("the snapshot ends with entry %d of term %d, which is not committed: %s", s.Index, s.Term, a.tail())
	}
	if s.Index >= m.snapshot.Index {
		m.snapshot = *s
	}
	return nil
}

func (a *replication) tail() string {
	return fmt.Sprintf("what is ends at %d, in term %d", lastOf(a.committed), termAt(a.committed, lastOf(a.committed)))
}

func (a *replication) begin(id uint64, m *replica, n uint64) error {
	if n < m.term && !(n == 0 && len(m.log) == 0 && m.snapshot.Index == 0) { // see storage.Empty
		return fmt.Errorf("its disk had term %d already", m.term)
	}
	m.term = n
	a.term(n).ends[id] = m.end()
	return nil
}

// elect checks a vote. The candidate's log must be as new as that of the voter.
func (a *replication) elect(id uint64, m *replica, n uint64, candidate string) error {
	got := id // its own, unless there is an id behind the address: see transport.dispatch
	if _, other, ok := strings.Cut(candidate, "\x00"); ok {
		got, _ = strconv.ParseUint(other, 10, 64)
	}
	t := a.term(n)
	with, stands := t.ends[got]
	switch before, voted := t.votes[id]; {
	case n != m.term:
		return fmt.Errorf("its term is %d", m.term)
	case voted && before != got && got == id && m.voteTerm < n:
		got = before // its disk was new since, and transport.adopt keeps others from getting the vote
	case voted && before != got:
		return fmt.Errorf("it has voted for member %d in this term, and now for %d", before, got)
	case !stands:
		return fmt.Errorf("member %d has not stored this term", got)
	case got != id && with.before(m.end()):
		return fmt.Errorf("the log of member %d ends with entry %d of term %d, and its own with %d of %d", got, with.index, with.term, m.end().index, m.end().term)
	}
	t.votes[id], m.voteTerm, m.vote = got, n, candidate
	return nil
}

// after returns the first entry after index that any member has applied.
func (a *replication) after(index uint64) (next uint64, ok bool) {
	i := sort.Search(len(a.applied), func(i int) bool { return a.applied[i] > index })
	if i == len(a.applied) || index < a.forgotten {
		return 0, false
	}
	return a.applied[i], true
}

const mostApplied = 1 << 18 // entries that are remembered

func (a *replication) apply(id uint64, m *replica, index, term uint64) error {
	next, ok := a.after(m.applied)
	switch t := termAt(a.committed, index); {
	case index > lastOf(a.committed):
		return fmt.Errorf("the entry is not committed, a crash may lose it: %s", a.tail())
	case term > 0 && t > 0 && t != term:
		return fmt.Errorf("the entry that is committed there is of term %d", t)
	case index <= m.applied:
		return fmt.Errorf("it has applied up to %d already", m.applied)
	case ok && next < index:
		return fmt.Errorf("it leaves out entry %d, which others have applied", next)
	case ok && next > index:
		return fmt.Errorf("others have applied %d after %d, without this one", next, m.applied)
	case index > max(m.end().index, m.snapshot.Index) && a.term(m.term).leader != id:
		return fmt.Errorf("its disk ends at %d, and it does not lead in term %d", m.end().index, m.term)
	}
	if !ok && index > a.forgotten && (len(a.applied) == 0 || a.applied[len(a.applied)-1] < index) {
		if a.applied = append(a.applied, index); len(a.applied) > mostApplied {
			a.forgotten = a.applied[mostApplied/2]
			a.applied = slices.Clone(a.applied[mostApplied/2+1:])
		}
	}
	m.applied, m.newest = index, index
	return nil
}

// kind says who the member is in its term, how its log ends, with what it begins, and whether a list is on its way.
func (a *replication) kind(e *Event) string {
	switch e.Step {
	case Touched, Heard, Restarts, Late, Ended, Identity, Rejoining:
		return ""
	}
	m := a.member(e.Member)
	if m.foreign {
		return "other cluster"
	}
	t := a.term(m.term)
	kind := "no leader"
	switch got, voted := t.votes[e.Member]; {
	case t.leader == e.Member:
		kind = "leader"
	case t.leader > 0:
		kind = "follower"
	case voted && got == e.Member:
		kind = "candidate"
	case voted:
		kind = "voter"
	}
	end, committed := m.end(), lastOf(a.committed)
	switch is, at := termAt(m.log, min(end.index, committed)), termAt(a.committed, min(end.index, committed)); {
	case is > 0 && at > 0 && is != at:
		kind += ", other end"
	case end.index < committed:
		kind += ", behind"
	case end.index > committed:
		kind += ", ahead"
	}
	switch {
	case m.snapshot.Index == 0:
	case len(m.log) == 0:
		kind += ", only a snapshot"
	case m.log[0].First > m.snapshot.Index:
		kind += ", begins after its snapshot"
	case termAt(m.log, m.snapshot.Index) != m.snapshot.Term:
		kind += ", other than its snapshot"
	}
	if n := len(t.lists); n > 0 && t.lists[n-1].Index > committed {
		kind += ", list on its way"
	}
	return kind
}
