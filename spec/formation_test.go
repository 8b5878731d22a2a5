package spec

import (
	"slices"
	"strings"
	"testing"
)

// The members of the tests: three that vote, and perhaps a fourth.
func list(voters ...uint64) (all []Server) {
	for id := uint64(1); id <= 4; id++ {
		if id < 4 || slices.Contains(voters, id) {
			all = append(all, Server{id, string('a' - 1 + rune(id)), slices.Contains(voters, id)})
		}
	}
	return all
}

func opens(m uint64) Event              { return Event{Member: m, Step: Opened} }
func loses(m uint64) Event              { return Event{Member: m, Step: LostDisk} }
func begins(m, term uint64) Event       { return Event{Member: m, Step: Term, Term: term} }
func sees(m, i, term uint64) Event      { return Event{Member: m, Step: Visible, Last: i, Term: term} }
func belongs(m uint64, of Of) Event     { return Event{Member: m, Step: Identity, Of: of} }
func votes(m, t uint64, c string) Event { return Event{Member: m, Step: Voted, Term: t, Candidate: c} }
func proposal(m, c uint64) Event        { return belongs(m, Of{c, false, list(1, 2, 3), 0}) }
func agreement(m, c uint64) Event       { return belongs(m, Of{c, true, list(1, 2, 3), 0}) }
func joined(m, c, since uint64) Event   { return belongs(m, Of{c, true, nil, since}) }

func stores(member, index, term uint64, lists ...Server) Event {
	e := Event{Member: member, Step: Stored, Log: []Run{{index, index, term}}}
	if lists != nil {
		e.Lists = []List{{index, lists}}
	}
	return e
}

// TestFormationAutomaton: each step is refused, with the words that are given, or allowed, which needs none.
func TestFormationAutomaton(t *testing.T) {
	with := func(before []Event, more ...Event) []Event { return slices.Concat(before, more) }
	three := list(1, 2, 3)
	two := []Event{opens(1), opens(2), opens(3), proposal(1, 7), proposal(2, 7)}
	all := with(two, proposal(3, 7))
	one := with(all, agreement(1, 7))
	// Three members have entry 1, the first list, and entry 2.
	formed := all
	for id := uint64(1); id <= 3; id++ {
		formed = with(formed, agreement(id, 7), stores(id, 1, 1, three...), begins(id, 2), stores(id, 2, 2))
	}
	formed = with(formed, sees(1, 1, 0), sees(1, 2, 2))
	found := Event{Member: 2, Step: Opened, Of: agreement(2, 7).Of, Log: []Run{{1, 1, 1}, {2, 2, 2}}, Lists: []List{{1, three}}}
	other := Event{Member: 2, Step: Opened, Of: agreement(2, 8).Of}
	// Member 3 has lost its disk, and the list that takes its vote away is stored; then it is committed, and then the member
	// has joined, up to entry 3, and has nothing yet; and then it has all.
	lost := with(formed, loses(3), opens(3), stores(1, 3, 2, list(1, 2)...))
	demoted := with(lost, stores(2, 3, 2, list(1, 2)...), sees(1, 3, 0))
	late := with(demoted, begins(3, 2))
	back := with(late, joined(3, 7, 3), stores(3, 1, 1, three...))
	caughtUp := with(back, stores(3, 2, 2), stores(3, 3, 2, list(1, 2)...))
	for _, x := range []struct {
		name   string
		before []Event
		step   Event
		says   string
	}{
		{"all have the proposal", all, agreement(1, 7), ""},
		{"one has not", two, agreement(1, 7), "nobody agrees before all"},
		{"one has another one", with(two, proposal(3, 8)), agreement(1, 7), "nobody agrees before all"},
		{"one has agreed", one, agreement(2, 7), ""},
		{"one has agreed, to another one", with(one, proposal(2, 8)), agreement(2, 8), "agreed to another cluster"},
		{"one has agreed, and this one holds another one", with(one, proposal(2, 8)), agreement(2, 7), "the proposal that it holds"},
		{"a proposal is replaced", two, proposal(2, 8), ""},
		{"an agreement is replaced", formed, proposal(2, 8), "never replaced"},
		{"nobody had seen anything of the cluster", with(one, loses(1), opens(1)), proposal(1, 8), ""},
		{"a proposal for an earlier run", with(formed, loses(3), opens(3)), proposal(3, 7), "no proposal of it is for this run"},
		{"a member has the identity that it had", formed, found, ""},
		{"a member has another one", formed, other, "never replaced"},
		{"the first list is another one", one, stores(1, 1, 1, list(1, 2)...), "the first list"},
		{"a member outside stores", two, stores(1, 1, 1, three...), "once it is in a cluster"},

		{"it joins", late, joined(3, 7, 3), ""},
		{"it joins before its vote was taken", with(lost, begins(3, 2)), joined(3, 7, 2), "a place without a vote"},
		{"it joins with what was there before that", late, joined(3, 7, 2), "a place without a vote"},
		{"it joins with what was there before its start", late, joined(3, 7, 1), "only to entry 1"},
		{"it joins in an earlier term", with(demoted, begins(3, 1)), joined(3, 7, 3), "still in term 1"},
		{"it joins another cluster", late, joined(3, 8, 3), "agreed to another cluster"},
		{"it joins with data", demoted, joined(2, 7, 3), "does not join"},

		{"it votes", caughtUp, votes(3, 3, "a\x001"), ""},
		{"it votes too soon", back, votes(3, 3, "a\x001"), "has reached 3"},
		{"it takes over a term", demoted, votes(3, 2, "c"), ""},
		{"it takes over a term that no member has", with(demoted, begins(3, 3)), votes(3, 3, "c"), "votes only once it is in a cluster"},
		{"it takes over the term that the leader of 2 has begun", with(demoted, begins(1, 3), begins(3, 3)), votes(3, 3, "c"), ""},
		{"it stands when it has joined and has nothing yet", with(late, joined(3, 7, 3), begins(3, 3)), votes(3, 3, "c"), "before its log, to 0, has reached 3"},
		{"it takes over a term once more", with(late, joined(3, 7, 3), begins(1, 3), begins(3, 3)), votes(3, 3, "c"), ""},
		{"it stands without a vote", caughtUp, votes(3, 3, "c"), "stands for election only if"},
		{"a voter stands", formed, votes(2, 3, "b"), ""},

		{"the next change", demoted, stores(1, 4, 2, three...), ""},
		{"the next change, too soon", lost, stores(1, 4, 2, three...), "only when it is committed"},
		{"two at a time", formed, stores(1, 3, 2, list(1, 2, 4)...), "one member is changed at a time"},
		{"another content", lost, stores(2, 3, 2, list(1, 3)...), "has one content"},
		{"a list is visible that one of two has", lost, sees(1, 3, 0), "no majority of its voters"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFormation()
			for i, e := range with(x.before, x.step) {
				f.kind(&e)
				err, refused := f.next(&e), x.says != "" && i == len(x.before)
				if (err != nil) != refused || refused && !strings.Contains(err.Error(), x.says) {
					t.Fatalf("%v: %v, not %q", e, err, x.says)
				}
			}
		})
	}
}
