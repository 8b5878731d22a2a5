package spec

import (
	"strings"
	"testing"
)

// tell feeds an automaton with steps. It must refuse the last one, with these words, or allow all if there are none.
func tell(t *testing.T, a automaton, name string, steps []Event, why string) {
	for i, e := range steps {
		a.kind(&e)
		err := a.next(&e)
		refused := why != "" && i == len(steps)-1
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v: %v, want %q", name, e, err, why)
			return
		}
	}
}

// TestReplication feeds the automaton with short stories: what must be refused at the last step, and what is nearly the same
// and right. All begin with a cluster of three, of which member 1 leads in term 2.
func TestReplication(t *testing.T) {
	all := []Server{{1, "a", true}, {2, "b", true}, {3, "c", true}}
	on := func(member uint64, e Event) Event { e.Member = member; return e }
	runs := func(member uint64, r ...Run) Event { return Event{Member: member, Step: Stored, Log: r} }
	term := func(member, n uint64) Event { return Event{Member: member, Step: Term, Term: n} }
	vote := func(member, n uint64, candidate string) Event { // for another member's id, or empty: for itself
		return Event{Member: member, Step: Voted, Term: n, Candidate: strings.TrimSuffix("x\x00"+candidate, "\x00")}
	}
	sees := func(m, index, n uint64) Event { return Event{Member: m, Step: Visible, Last: index, Term: n} }
	saves := func(member, index, term uint64) Event {
		return Event{Member: member, Step: Snapshot, Snapshot: &Covers{index, term, List{1, all}}}
	}
	gone := func(m, first, last uint64) Event { return Event{Member: m, Step: Deleted, First: first, Last: last} }
	restores := func(m, index uint64) Event { return Event{Member: m, Step: Restored, Last: index} }
	opens := func(member, term, voted uint64, candidate string, log ...Run) Event {
		return Event{Member: member, Step: Opened, Term: term, Last: voted, Candidate: candidate, Log: log}
	}
	first, lost, swap := Run{1, 1, 1}, on(2, Event{Step: LostDisk}), on(3, Event{Step: Swapped})
	var begin []Event
	for m := range uint64(3) {
		list := Event{Member: m + 1, Step: Stored, Log: []Run{first}, Lists: []List{{1, all}}}
		begin = append(begin, on(m+1, Event{Step: Opened}), term(m+1, 1), list)
	}
	begin = append(begin, term(1, 2), vote(1, 2, ""), term(2, 2), vote(2, 2, "1"), runs(1, Run{2, 2, 2}))
	// Entry 3 is on the disks of 1 and 2.
	kept := []Run{first, {2, 3, 2}}
	both := []Event{runs(2, Run{2, 3, 2}), runs(1, Run{3, 3, 2})}
	// Member 3 stands in term 3; it has only entry 1.
	third := []Event{term(3, 3), vote(3, 3, "")}
	for _, story := range []struct {
		name  string
		steps []Event
		why   string // empty if it is right
	}{
		{"committed", append(both, sees(1, 3, 2), sees(2, 3, 2)), ""},
		{"only the others have it", []Event{runs(2, Run{2, 3, 2}), term(3, 2), runs(3, Run{2, 3, 2}), sees(1, 3, 2)}, ""},
		{"only one has it", []Event{runs(2, Run{2, 3, 2}), sees(1, 3, 2)}, "a crash may lose"},
		{"only the leader has it", []Event{runs(1, Run{3, 3, 2}), sees(1, 3, 2)}, "a crash may lose"},
		{"stored in a later term", []Event{runs(1, Run{3, 3, 2}), term(2, 3), runs(2, Run{2, 3, 2}), sees(1, 3, 2)}, "a crash may lose"},
		{"a follower lacks it", append(both, sees(3, 3, 2)), "its disk ends before"},
		{"another term", append(both, sees(2, 3, 1)), "is of another term"},
		{"twice", append(both, sees(1, 3, 2), sees(1, 3, 2)), "not the next entry"},
		{"one is left out", append(both, sees(1, 2, 2), sees(1, 3, 2), sees(2, 3, 2)), "not the next entry"},
		{"one comes between", append(both, sees(1, 3, 2), sees(2, 2, 2)), "not the next entry"},
		{"the vote again", []Event{vote(2, 2, "1")}, ""},
		{"a second vote", []Event{term(3, 2), vote(2, 2, "3")}, "voted for another member"},
		{"a second vote after a start", []Event{opens(2, 2, 2, "x\x001", first), term(3, 2), vote(2, 2, "3")}, "voted for another member"},
		{"a second vote for itself, with a new disk", []Event{lost, on(2, Event{Step: Opened}), term(2, 2), vote(2, 2, "")}, ""},
		{"a vote for a longer log", append(both, term(2, 3), vote(2, 3, ""), term(1, 3), vote(1, 3, "2")), ""},
		{"a vote for a shorter log", append(append(both, third...), term(2, 3), vote(2, 3, "3")), "older than its own"},
		{"a vote for nobody", append(both, term(1, 3), vote(1, 3, "2")), "not stored this term"},
		{"a leader without votes", append(third, runs(3, Run{2, 2, 3})), "no majority"},
		{"a leader that lacks what is committed", append(append(both, third...), runs(3, Run{2, 2, 3})), "lacks what is committed"},
		{"a leader that was replaced before its first entry", append(both, term(1, 3), vote(1, 3, ""), term(2, 3), vote(2, 3, "1"), term(2, 4), vote(2, 4, ""), term(3, 4), vote(3, 4, "2"),
			runs(2, Run{4, 4, 4}), runs(3, Run{2, 3, 2}, Run{4, 4, 4}), runs(1, Run{4, 4, 3})), ""},
		{"two leaders", []Event{runs(1, Run{3, 3, 2}), term(3, 2), runs(3, Run{2, 2, 1}, Run{3, 3, 2})}, "begins elsewhere"},
		{"a follower stores the beginning of a term", []Event{runs(1, Run{3, 3, 2}), term(3, 2), runs(3, Run{2, 2, 2})}, ""},
		{"the term goes back", []Event{term(1, 1)}, "a newer term"},
		{"a tail is replaced", []Event{runs(2, Run{2, 2, 2}), runs(1, Run{3, 4, 2}), gone(1, 3, 4), runs(1, Run{3, 3, 2})}, ""},
		{"what is committed is deleted", append(both, gone(2, 3, 3)), "an entry is committed"},
		{"a snapshot covers it", append(both, saves(2, 3, 2), gone(2, 1, 3)), ""},
		{"the leader's snapshot", append(both, saves(1, 3, 2), term(3, 2), saves(3, 3, 2), restores(3, 3), gone(3, 1, 1), runs(3, Run{3, 4, 2})), ""},
		{"the log leaves a gap", append(both, term(3, 2), saves(3, 3, 2), gone(3, 1, 1), runs(3, Run{5, 5, 2})), "does not follow"},
		{"a snapshot of what is not committed", []Event{runs(1, Run{3, 3, 2}), saves(1, 3, 2)}, "has what is not committed"},
		{"a snapshot of another term", append(both, saves(3, 3, 1)), "of another term"},
		{"the state goes back", append(both, saves(1, 2, 2), sees(1, 3, 2), restores(1, 2)), "its state goes back"},
		{"all is there", append(both, opens(1, 2, 2, "x", kept...)), ""},
		{"more is there", append(both, opens(1, 3, 2, "x", first, Run{2, 5, 2})), ""},
		{"an entry is gone", append(both, opens(1, 2, 2, "x", first, Run{2, 2, 2})), "its disk had the entries"},
		{"the term is gone", append(both, opens(1, 1, 2, "x", kept...)), "a newer term"},
		{"the vote is gone", append(both, opens(1, 2, 0, "", kept...)), "its disk had a vote"},
		{"the snapshot is gone", append(both, saves(1, 3, 2), opens(1, 2, 2, "x", kept...)), "its disk had a snapshot"},
		{"the disk of another cluster", []Event{swap, opens(3, 9, 0, ""), sees(3, 7, 9), swap, opens(3, 1, 0, "", first)}, ""},
		{"leads", []Event{on(1, Event{Step: Leads, Term: 2})}, ""},
		{"another leads", []Event{on(2, Event{Step: Leads, Term: 2})}, "another member has begun"},
	} {
		tell(t, newReplication(), story.name, append(begin[:len(begin):len(begin)], story.steps...), story.why)
	}
}
