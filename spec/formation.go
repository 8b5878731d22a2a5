package spec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// formation is the automaton of formation.pml and membership.pml. It follows which cluster each disk belongs to, the lists of
// members in the logs, and how far a member that began without data must catch up before it takes part in elections.
type formation struct {
	disks   map[uint64]*membership
	visible uint64 // the newest entry that was visible anywhere
	term    uint64 // the newest that a member has stored which may stand for election
	formed  uint64 // the cluster that a disk has agreed to; 0 if none has
	first   []Server
	known   map[position]listed // all lists that were stored
	seen    []position          // those that were visible, in order
}

// position is where a list is in a log.
type position struct{ index, term uint64 }

type listed struct {
	List
	before []Server // the list before it
}

// membership is what the disk of a member says about its cluster.
type membership struct {
	opened    bool
	away      bool // the member runs with another cluster's disk
	of        Of
	rejoining bool
	term      uint64
	last      uint64     // of the log
	lists     []position // in the log
	snapshot  Covers

	// When it started last, if it had neither a log nor a snapshot:
	visible uint64 // the newest entry that was visible
	seen    int    // how many lists had been visible before the newest one
	formed  uint64 // the cluster that there was
}

func newFormation() *formation {
	return &formation{disks: map[uint64]*membership{}, known: map[position]listed{}}
}

func (*formation) name() string { return "formation" }

func (f *formation) of(member uint64) *membership {
	if f.disks[member] == nil {
		f.disks[member] = new(membership)
	}
	return f.disks[member]
}

// kind says how far a member is in its cluster, and what the cluster does.
func (f *formation) kind(e *Event) string {
	d := f.of(e.Member)
	kind, list := "member", f.newest(d)
	switch {
	case d.away:
		return "away"
	case d.of.Cluster == 0:
		kind = "new"
	case !d.of.Agreed:
		kind = "proposed"
	case d.end() < d.of.Since:
		kind = "catching up"
	}
	in, votes := find(list.Servers, e.Member)
	return fmt.Sprintf("%s, in a list %t, with a vote %t, that is visible %t, is owed a vote %t, a cluster is formed %t",
		kind, in, votes, list.Index <= f.visible, d.rejoining, f.formed != 0)
}

func (f *formation) next(e *Event) error {
	d := f.of(e.Member)
	switch {
	case e.Step == Swapped:
		d.away = !d.away
	case d.away:
	case e.Step == LostDisk:
		*d = membership{opened: true}
		if f.visible == 0 && len(f.agreed(0)) == 0 { // what it had begun alone is gone, without a trace
			f.formed, f.first = 0, nil
		}
	case e.Step == Opened:
		return f.open(d, e)
	case e.Step == Stored && !d.of.Agreed:
		return fmt.Errorf("a member stores entries only once it is in a cluster, not with %+v", d.of)
	case e.Step == Stored:
		return f.append(d, e)
	case e.Step == Deleted:
		d.lists = slices.DeleteFunc(d.lists, func(at position) bool { return e.First <= at.index && at.index <= e.Last })
		if e.Last >= d.last {
			d.last = min(d.last, e.First-1)
		}
	case e.Step == Snapshot:
		d.snapshot = *e.Snapshot
	case e.Step == Term:
		d.term = e.Term
		f.begin(d)
	case e.Step == Voted:
		return f.vote(d, e)
	case e.Step == Identity:
		return f.identify(d, e)
	case e.Step == Rejoining:
		d.rejoining = e.Rejoining
	case e.Step == Visible:
		return f.see(d, e)
	}
	return nil
}

// open compares what a member finds on its disk with what it has stored. It may have stored one thing more.
func (f *formation) open(d *membership, e *Event) error {
	if was := d.of; d.opened && !reflect.DeepEqual(e.Of, was) {
		if err := f.identify(d, e); err != nil {
			return fmt.Errorf("its disk had %+v: %w", was, err)
		}
	}
	d.opened, d.of, d.rejoining, d.term = true, e.Of, e.Rejoining, e.Term
	d.snapshot, d.last, d.lists = Covers{}, 0, nil
	if e.Snapshot != nil {
		d.snapshot = *e.Snapshot
	}
	if d.of.Agreed {
		f.formed = d.of.Cluster
	}
	if d.snapshot.Index == 0 && len(e.Log) == 0 {
		d.visible, d.seen, d.formed = f.visible, max(0, len(f.seen)-1), f.formed
	}
	err := f.append(d, e)
	f.begin(d)
	return err
}

// begin notes the term of a member, if it may stand for election.
func (f *formation) begin(d *membership) {
	if d.of.Agreed && d.end() >= max(1, d.of.Since) {
		f.term = max(f.term, d.term)
	}
}

func (d *membership) end() uint64 { return max(d.last, d.snapshot.Index) }

// append has entries in a member's log, whose lists must be right.
func (f *formation) append(d *membership, e *Event) error {
	for _, r := range e.Log {
		d.last = r.Last
	}
	for _, l := range e.Lists {
		at, before := position{l.Index, termAt(e.Log, l.Index)}, f.newest(d)
		is, known := f.known[at]
		switch changed := differ(before.Servers, l.Servers); {
		case known && !slices.Equal(is.Servers, l.Servers):
			return fmt.Errorf("list %d of term %d has one content, not %v and %v", at.index, at.term, is.Servers, l.Servers)
		case known:
		case before.Servers == nil && (l.Index != 1 || !slices.Equal(l.Servers, f.first)):
			return fmt.Errorf("the first list is entry 1, %v, not entry %d, %v", f.first, l.Index, l.Servers)
		case before.Servers != nil && len(changed) > 1:
			return fmt.Errorf("one member is changed at a time, not %v, from %v to %v", changed, before.Servers, l.Servers)
		case before.Servers != nil && before.Index > max(f.visible, d.snapshot.Index):
			return fmt.Errorf("a list is changed only when it is committed, and list %d, %v, is not", before.Index, before.Servers)
		default: // the leader of the term has made it
			f.known[at] = listed{l, before.Servers}
		}
		d.lists = append(d.lists, at)
	}
	return nil
}

func (f *formation) newest(d *membership) List {
	if n := len(d.lists); n > 0 && d.lists[n-1].index >= d.snapshot.List.Index {
		return f.known[d.lists[n-1]].List
	}
	return d.snapshot.List
}

// see checks that a list which becomes visible is on the disks of a majority of its voters, or of those of the list before: Raft
// counts the leader's disk before it puts a list into force.
func (f *formation) see(d *membership, e *Event) error {
	f.visible = max(f.visible, e.Last)
	if e.Term != 0 {
		return nil
	}
	i := slices.IndexFunc(d.lists, func(at position) bool { return at.index == e.Last })
	if i < 0 {
		return fmt.Errorf("list %d is visible on a member whose disk does not have it", e.Last)
	}
	at := d.lists[i]
	if slices.Contains(f.seen, at) {
		return nil
	}
	has := map[uint64]uint64{} // 1 for those that have it, or a snapshot of it
	for id, d := range f.disks {
		if d.snapshot.Index >= at.index || slices.Contains(d.lists, at) {
			has[id] = 1
		}
	}
	switch n, l := len(f.seen), f.known[at]; {
	case n > 0 && f.seen[n-1].index >= at.index:
		return fmt.Errorf("list %d of term %d is visible, but others have seen %v", at.index, at.term, f.seen[n-1])
	case majority(l.List, has) == 0 && majority(List{Servers: l.before}, has) == 0:
		return fmt.Errorf("list %d is visible, and no majority of its voters has it: %v, before %v", at.index, l.Servers, l.before)
	}
	f.seen = append(f.seen, at)
	return nil
}

// vote checks a vote. Raft keeps the candidate's address, with the candidate's id behind it if that is another member. A member
// that joins, or has joined and has nothing yet, also gives itself its vote, so that the term of the leader that has taken it in,
// which may have begun another one since, is on its disk.
func (f *formation) vote(d *membership, e *Event) error {
	addr, _, other := strings.Cut(e.Candidate, "\x00")
	list := f.newest(d).Servers
	_, votes := find(list, e.Member)
	switch {
	case !other && e.Term <= f.term && d.end() == 0:
	case !d.of.Agreed:
		return fmt.Errorf("a member votes only once it is in a cluster, or for itself in a term that another has begun, up to %d", f.term)
	case d.end() < d.of.Since:
		return fmt.Errorf("it began without data, and votes for %s before its log, to %d, has reached %d", addr, d.end(), d.of.Since)
	case !other && !votes:
		return fmt.Errorf("a member stands for election only if it votes in its newest list, %v", list)
	}
	return nil
}

// identify checks that a member may belong to a cluster, or hold its proposal.
func (f *formation) identify(d *membership, e *Event) (err error) {
	x, was := e.Of, d.of
	switch others := f.agreed(x.Cluster); {
	case was.Agreed && (!x.Agreed || was.Cluster != x.Cluster):
		err = fmt.Errorf("what a member has agreed to is never replaced: %x by %x", was.Cluster, x.Cluster)
	case !x.Agreed && d.last != 0:
		err = fmt.Errorf("a member with a log, up to %d, accepts no proposal", d.last)
	case !x.Agreed && x.Cluster == d.formed:
		err = fmt.Errorf("cluster %x was formed before this member started without data: no proposal of it is for this run", x.Cluster)
	case !x.Agreed:
	case len(others) > 0:
		err = fmt.Errorf("members %v have agreed to another cluster than %x", others, x.Cluster)
	case f.visible > 0 && f.formed != x.Cluster:
		err = fmt.Errorf("cluster %x has visible entries, so nobody agrees to %x", f.formed, x.Cluster)
	case x.Since > 0:
		err = f.join(d, e)
	default:
		err = f.agree(d, x)
	}
	d.of = x
	if x.Agreed {
		f.formed = x.Cluster
	}
	return err
}

// agreed returns the members whose disks have agreed to another cluster than that.
func (f *formation) agreed(cluster uint64) (ids []uint64) {
	for id, d := range f.disks {
		if d.of.Agreed && d.of.Cluster != cluster {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// agree checks that a member may agree to the proposal that it holds: all that are needed hold it, or one of them has agreed.
func (f *formation) agree(d *membership, x Of) error {
	begins, observers := x.First, false
	if len(begins) == 0 {
		begins, observers = d.snapshot.List.Servers, true // all have the same data
	}
	lacks := slices.IndexFunc(begins, func(s Server) bool {
		return (s.Votes || observers) && f.of(s.ID).of.Cluster != x.Cluster
	})
	switch {
	case len(begins) == 1 && d.of.Cluster == 0: // it is alone
	case d.of.Cluster != x.Cluster || d.of.Agreed:
		return fmt.Errorf("a member agrees to the proposal that it holds, not with %+v to %x", d.of, x.Cluster)
	case f.formed == x.Cluster && !slices.Equal(f.first, begins):
		return fmt.Errorf("cluster %x begins with the members %v, not %v", x.Cluster, f.first, begins)
	case f.formed == x.Cluster && len(f.agreed(0)) > 0:
	case lacks >= 0:
		return fmt.Errorf("nobody agrees before all have stored the proposal %x, and member %d has not", x.Cluster, begins[lacks].ID)
	}
	f.first = begins
	return nil
}

// join checks that a cluster has taken in a member without data: since this run of it began, there was a visible list that
// has it, and in which it has no vote. Nothing that it has forgotten counts any more then: the members that are left have
// all that was visible before, and it knows how far that goes, and takes part in no term before that.
func (f *formation) join(d *membership, e *Event) error {
	since := e.Of.Since
	switch {
	case d.end() > 0:
		return fmt.Errorf("a member with data, up to entry %d, does not join", d.end())
	case f.formed != e.Of.Cluster:
		return fmt.Errorf("it joins cluster %x, which nobody has agreed to", e.Of.Cluster)
	case since < d.visible:
		return fmt.Errorf("it is to catch up only to entry %d, but %d was visible before it started without data", since, d.visible)
	}
	for _, at := range slices.Backward(f.seen[d.seen:]) {
		switch in, votes := find(f.known[at].Servers, e.Member); {
		case at.index > since || !in || votes:
		case d.term < at.term: // it could vote for, or count for, a leader before that
			return fmt.Errorf("list %d of term %d has taken its vote away, and it is still in term %d", at.index, at.term, d.term)
		default:
			return nil
		}
	}
	return fmt.Errorf("it has joined, up to entry %d, and no list that was visible then has it in a place without a vote", since)
}

// find reports whether a list has a member, and whether that votes.
func find(list []Server, id uint64) (in, votes bool) {
	i := slices.IndexFunc(list, func(s Server) bool { return s.ID == id })
	return i >= 0, i >= 0 && list[i].Votes
}

func differ(a, b []Server) (ids []uint64) {
	for _, s := range slices.Concat(a, b) {
		if slices.Contains(a, s) != slices.Contains(b, s) && !slices.Contains(ids, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}
