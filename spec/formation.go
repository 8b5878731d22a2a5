package spec

import (
	"fmt"
	"slices"
	"strings"
)

// formation is the automaton of formation.pml and membership.pml. It follows which cluster each disk belongs to, the lists of
// members in the logs, and how far a member that began without data must catch up before it takes part in elections.
type formation struct {
	disks   map[uint64]*membership
	visible uint64 // the newest entry that was visible anywhere
	term    uint64 // the newest term of an entry in a log: somebody has led in it
	formed  uint64 // the cluster that a disk has agreed to; 0 if none has
	first   []Server
	known   map[position]List     // all lists that were stored
	before  map[position][]Server // the list before each of them
	seen    []position            // those that were visible, in order
}

// position is where a list is in a log.
type position struct{ index, term uint64 }

// membership is what the disk of a member says about its cluster.
type membership struct {
	id        uint64
	opened    bool
	away      bool // the member runs with another cluster's disk
	of        Of
	rejoining bool
	term      uint64
	first     uint64 // of the log; 0 if it is empty
	last      uint64
	lists     []position // in the log
	snapshot  Covers

	// When it started last, if it had neither a log nor a snapshot:
	visible uint64 // the newest entry that was visible
	listed  uint64 // the newest list that was visible
	formed  uint64 // the cluster that there was
}

func newFormation() *formation {
	return &formation{disks: map[uint64]*membership{}, known: map[position]List{}, before: map[position][]Server{}}
}

func (*formation) name() string { return "formation" }

func (f *formation) of(member uint64) *membership {
	d := f.disks[member]
	if d == nil {
		d = &membership{id: member}
		f.disks[member] = d
	}
	return d
}

// kind says how far a member is in its cluster, and what the cluster does.
func (f *formation) kind(e *Event) string {
	d := f.of(e.Member)
	var is []string
	switch {
	case d.away:
		return "away"
	case d.of.Cluster == 0:
		is = append(is, "new")
	case !d.of.Agreed:
		is = append(is, "proposed")
	case d.end() < d.of.Since:
		is = append(is, "catching up")
	default:
		is = append(is, "member")
	}
	switch in, votes := find(f.newest(d).Servers, e.Member); {
	case votes:
		is = append(is, "votes")
	case in:
		is = append(is, "observes")
	}
	if d.rejoining {
		is = append(is, "is owed a vote")
	}
	if n := len(d.lists); n > 0 && d.lists[n-1].index > f.visible {
		is = append(is, "has a list that is not visible")
	}
	if f.formed == 0 {
		is = append(is, "no cluster")
	}
	return strings.Join(is, ", ")
}

// next takes a step.
func (f *formation) next(e *Event) error {
	d := f.of(e.Member)
	switch {
	case e.Step == Swapped:
		d.away = !d.away
	case d.away:
	case e.Step == LostDisk:
		*d = membership{id: d.id, opened: true}
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
		d.delete(e.First, e.Last)
	case e.Step == Snapshot:
		d.snapshot = *e.Snapshot
	case e.Step == Term:
		d.term = e.Term
	case e.Step == Voted:
		return f.vote(d, e)
	case e.Step == Identity:
		return f.identify(d, e.Of)
	case e.Step == Rejoining:
		d.rejoining = e.Rejoining
	case e.Step == Visible:
		return f.see(d, e)
	}
	return nil
}

// open compares what a member finds on its disk with what it has stored. It may have stored one thing more.
func (f *formation) open(d *membership, e *Event) error {
	if d.opened && !equal(e.Of, d.of) {
		if err := f.identify(d, e.Of); err != nil {
			return fmt.Errorf("its disk had %+v: %w", d.of, err)
		}
	}
	d.opened, d.of, d.rejoining, d.term = true, e.Of, e.Rejoining, e.Term
	d.snapshot, d.first, d.last, d.lists = Covers{}, 0, 0, nil
	if e.Snapshot != nil {
		d.snapshot = *e.Snapshot
	}
	if d.of.Agreed {
		f.formed = d.of.Cluster
	}
	if err := f.append(d, e); err != nil {
		return err
	}
	if d.end() == 0 {
		d.visible, d.listed, d.formed = f.visible, f.newestVisible().Index, f.formed
	}
	return nil
}

func (d *membership) end() uint64 { return max(d.last, d.snapshot.Index) }

// append has entries in a member's log, whose lists must be right.
func (f *formation) append(d *membership, e *Event) error {
	for _, r := range e.Log {
		if d.first == 0 {
			d.first = r.First
		}
		d.last, f.term = r.Last, max(f.term, r.Term)
		for _, l := range e.Lists {
			if l.Index < r.First || l.Index > r.Last {
				continue
			}
			at := position{l.Index, r.Term}
			if is, ok := f.known[at]; !ok {
				if err := f.begin(d, at, l); err != nil {
					return err
				}
				f.before[at] = f.newest(d).Servers
				f.known[at] = l
			} else if !slices.Equal(is.Servers, l.Servers) {
				return fmt.Errorf("list %d of term %d has one content, not %v and %v", at.index, at.term, is.Servers, l.Servers)
			}
			d.lists = append(d.lists, at)
		}
	}
	return nil
}

// begin checks a list that nobody has stored before: the leader of its term has made it.
func (f *formation) begin(d *membership, at position, l List) error {
	before := f.newest(d)
	switch changed := differ(before.Servers, l.Servers); {
	case before.Servers == nil && (at.index != 1 || !slices.Equal(l.Servers, f.first)):
		return fmt.Errorf("the first list is entry 1, %v, not entry %d, %v", f.first, at.index, l.Servers)
	case before.Servers == nil:
		return nil
	case len(changed) > 1:
		return fmt.Errorf("one member is changed at a time, not %v, from %v to %v", changed, before.Servers, l.Servers)
	case before.Index > max(f.visible, d.snapshot.Index):
		return fmt.Errorf("a list is changed only when it is committed, and list %d is not visible anywhere: %v", before.Index, before.Servers)
	}
	return nil
}

// newest returns the newest list on a disk.
func (f *formation) newest(d *membership) List {
	if n := len(d.lists); n > 0 && d.lists[n-1].index >= d.snapshot.List.Index {
		return f.known[d.lists[n-1]]
	}
	return d.snapshot.List
}

func (f *formation) newestVisible() List {
	if n := len(f.seen); n > 0 {
		return f.known[f.seen[n-1]]
	}
	return List{}
}

func (d *membership) delete(first, last uint64) {
	d.lists = slices.DeleteFunc(d.lists, func(at position) bool { return first <= at.index && at.index <= last })
	switch {
	case first <= d.first && last >= d.last:
		d.first, d.last = 0, 0
	case first <= d.first:
		d.first = last + 1
	default:
		d.last = first - 1
	}
}

// has reports whether a list is on a disk, or covered by a snapshot there.
func (d *membership) has(at position) bool {
	return d.snapshot.Index >= at.index || slices.Contains(d.lists, at)
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
	switch n := len(f.seen); {
	case n == 0 || f.seen[n-1].index < at.index:
	case slices.Contains(f.seen, at):
		return nil
	default:
		return fmt.Errorf("list %d of term %d is visible, but others have seen the lists at %v", at.index, at.term, f.seen[max(0, n-5):])
	}
	if !f.majority(at, f.known[at].Servers) && !f.majority(at, f.before[at]) {
		return fmt.Errorf("list %d is visible, and no majority of its voters, or of those before, has it: %v, %v", at.index, f.known[at].Servers, f.before[at])
	}
	f.seen = append(f.seen, at)
	return nil
}

// majority reports whether a majority of the voters of a list have another list on their disks.
func (f *formation) majority(at position, list []Server) bool {
	voters, there := 0, 0
	for _, s := range list {
		if s.Votes {
			voters++
			if f.of(s.ID).has(at) {
				there++
			}
		}
	}
	return there > voters/2
}

// vote checks a vote. Raft keeps the candidate's address, with the candidate's id behind it if that is another member. A member
// that is about to join also gives itself its vote, so that the term of the leader that has taken it in is on its disk.
func (f *formation) vote(d *membership, e *Event) error {
	addr, _, other := strings.Cut(e.Candidate, "\x00")
	_, votes := find(f.newest(d).Servers, e.Member)
	switch {
	case !other && e.Term <= f.term && d.end() == 0:
	case !d.of.Agreed:
		return fmt.Errorf("a member votes only once it is in a cluster, or for itself in a term in which another has led, up to %d", f.term)
	case d.end() < d.of.Since:
		return fmt.Errorf("a member that began without data does not vote, for %s, before its log, which ends at %d, has reached %d", addr, d.end(), d.of.Since)
	case !other && !votes:
		return fmt.Errorf("a member stands for election only if it votes in its newest list, %v", f.newest(d).Servers)
	}
	return nil
}

// identify checks that a member may belong to a cluster, or hold its proposal.
func (f *formation) identify(d *membership, x Of) error {
	was := d.of
	switch others := f.agreed(x.Cluster); {
	case was.Agreed && (!x.Agreed || was.Cluster != x.Cluster):
		return fmt.Errorf("what a member has agreed to is never replaced: %x by %x", was.Cluster, x.Cluster)
	case !x.Agreed && d.first != 0:
		return fmt.Errorf("a member with a log, %d to %d, accepts no proposal", d.first, d.last)
	case !x.Agreed && x.Cluster == d.formed:
		return fmt.Errorf("cluster %x was formed before this member started without data: no proposal of it is for this run", x.Cluster)
	case !x.Agreed:
	case len(others) > 0:
		return fmt.Errorf("members %v have agreed to another cluster than %x", others, x.Cluster)
	case f.visible > 0 && f.formed != x.Cluster:
		return fmt.Errorf("cluster %x has visible entries, so nobody agrees to %x", f.formed, x.Cluster)
	default:
		check := f.agree
		if x.Since > 0 {
			check = f.join
		}
		if err := check(d, x); err != nil {
			return err
		}
	}
	d.of = x
	if x.Agreed {
		f.formed = x.Cluster
	}
	return nil
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
	switch {
	case len(begins) == 1 && d.of.Cluster == 0: // it is alone
	case d.of.Cluster != x.Cluster || d.of.Agreed:
		return fmt.Errorf("a member agrees to the proposal that it holds, not with %+v to %x", d.of, x.Cluster)
	case f.formed == x.Cluster && !slices.Equal(f.first, begins):
		return fmt.Errorf("cluster %x begins with the members %v, not %v", x.Cluster, f.first, begins)
	case f.formed == x.Cluster && len(f.agreed(0)) > 0:
	default:
		for _, s := range begins {
			if (s.Votes || observers) && f.of(s.ID).of.Cluster != x.Cluster {
				return fmt.Errorf("nobody agrees before all have stored the proposal, and member %d holds %x, not %x", s.ID, f.of(s.ID).of.Cluster, x.Cluster)
			}
		}
	}
	f.first = begins
	return nil
}

// join checks that a cluster has taken in a member without data: since this run of it began, there was a visible list that
// has it, and in which it has no vote. Nothing that it has forgotten counts any more then: the members that are left have
// all that was visible before, and it knows how far that goes, and takes part in no term before that.
func (f *formation) join(d *membership, x Of) error {
	if d.end() > 0 {
		return fmt.Errorf("a member with data, up to entry %d, does not join", d.end())
	}
	if f.formed != x.Cluster {
		return fmt.Errorf("it joins cluster %x, which nobody has agreed to", x.Cluster)
	}
	if x.Since < d.visible {
		return fmt.Errorf("it is to catch up only to entry %d, but entry %d was visible before it started without data", x.Since, d.visible)
	}
	for _, at := range slices.Backward(f.seen) {
		if at.index < d.listed {
			break
		}
		in, votes := find(f.known[at].Servers, d.id)
		if at.index <= x.Since && in && !votes {
			if d.term < at.term {
				return fmt.Errorf("list %d of term %d has taken its vote away, and it is still in term %d: it could vote for, or count for, a leader before that", at.index, at.term, d.term)
			}
			return nil
		}
	}
	return fmt.Errorf("it has joined, up to entry %d, but no list between %d and that was visible in which it has a place without a vote", x.Since, d.listed)
}

// find reports whether a list has a member, and whether that votes.
func find(list []Server, id uint64) (in, votes bool) {
	for _, s := range list {
		if s.ID == id {
			return true, s.Votes
		}
	}
	return false, false
}

// differ returns the members in which two lists differ.
func differ(a, b []Server) (ids []uint64) {
	for _, s := range slices.Concat(a, b) {
		if slices.Contains(a, s) != slices.Contains(b, s) && !slices.Contains(ids, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

func equal(a, b Of) bool {
	return a.Cluster == b.Cluster && a.Agreed == b.Agreed && a.Since == b.Since && slices.Equal(a.First, b.First)
}
