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

func opens(member uint64) Event { return Event{Member: member, Step: Opened} }

func belongs(member uint64, of Of) Event { return Event{Member: member, Step: Identity, Of: of} }

func proposal(member, cluster uint64) Event {
	return belongs(member, Of{Cluster: cluster, First: list(1, 2, 3)})
}

func agreement(member, cluster uint64) Event {
	return belongs(member, Of{Cluster: cluster, Agreed: true, First: list(1, 2, 3)})
}

func joined(member, cluster, since uint64) Event {
	return belongs(member, Of{Cluster: cluster, Agreed: true, Since: since})
}

func stores(member, index, term uint64, lists ...Server) Event {
	e := Event{Member: member, Step: Stored, Log: []Run{{index, index, term}}}
	if lists != nil {
		e.Lists = []List{{index, lists}}
	}
	return e
}

func sees(member, index, term uint64) Event {
	return Event{Member: member, Step: Visible, Last: index, Term: term}
}

func votes(member, term uint64, candidate string) Event {
	return Event{Member: member, Step: Voted, Term: term, Candidate: candidate}
}

func begins(member, term uint64) Event { return Event{Member: member, Step: Term, Term: term} }

// formed is a cluster whose three members have entry 1, the first list, and entry 2.
func formed() (all []Event) {
	for id := uint64(1); id <= 3; id++ {
		all = append(all, opens(id), proposal(id, 7))
	}
	for id := uint64(1); id <= 3; id++ {
		all = append(all, agreement(id, 7), stores(id, 1, 1, list(1, 2, 3)...), begins(id, 2), stores(id, 2, 2))
	}
	return append(all, sees(1, 1, 0), sees(1, 2, 2))
}

// lost is that cluster after member 3 has lost its disk, and the list that takes its vote away is stored.
func lost() []Event {
	return append(formed(), Event{Member: 3, Step: LostDisk}, opens(3), stores(1, 3, 2, list(1, 2)...))
}

// demoted is the same, and the list is committed.
func demoted() []Event { return append(lost(), stores(2, 3, 2, list(1, 2)...), sees(1, 3, 0)) }

// back is the same after member 3 has joined, up to entry 3, and has nothing yet.
func back() []Event { return append(demoted(), begins(3, 2), joined(3, 7, 3)) }

// TestFormationAutomaton: each step is refused, with the words that are given, or allowed, which needs none.
func TestFormationAutomaton(t *testing.T) {
	two := []Event{opens(1), opens(2), opens(3), proposal(1, 7), proposal(2, 7)}
	for _, x := range []struct {
		name   string
		before []Event
		step   Event
		says   string
	}{
		{"all have the proposal", append(two, proposal(3, 7)), agreement(1, 7), ""},
		{"one has not", two, agreement(1, 7), "nobody agrees before all"},
		{"one has another one", append(two, proposal(3, 8)), agreement(1, 7), "nobody agrees before all"},
		{"one has agreed", append(two, proposal(3, 7), agreement(1, 7)), agreement(2, 7), ""},
		{"one has agreed, to another one", append(two, proposal(3, 7), agreement(1, 7), proposal(2, 8)), agreement(2, 8), "agreed to another cluster"},
		{"one has agreed, and this one holds another one", append(two, proposal(3, 7), agreement(1, 7), proposal(2, 8)), agreement(2, 7), "the proposal that it holds"},
		{"a proposal is replaced", two, proposal(2, 8), ""},
		{"an agreement is replaced", formed(), proposal(2, 8), "never replaced"},
		{"nobody had seen anything of the cluster", append(two, proposal(3, 7), agreement(1, 7), Event{Member: 1, Step: LostDisk}, opens(1)), proposal(1, 8), ""},
		{"a proposal for an earlier run", append(formed(), Event{Member: 3, Step: LostDisk}, opens(3)), proposal(3, 7), "no proposal of it is for this run"},
		{"a member has the identity that it had", formed(), Event{Member: 2, Step: Opened, Of: agreement(2, 7).Of, Term: 2, Log: []Run{{1, 1, 1}, {2, 2, 2}}, Lists: []List{{1, list(1, 2, 3)}}}, ""},
		{"a member has another one", formed(), Event{Member: 2, Step: Opened, Of: agreement(2, 8).Of}, "never replaced"},
		{"the first list is another one", append(two, proposal(3, 7), agreement(1, 7)), stores(1, 1, 1, list(1, 2)...), "the first list"},
		{"a member outside stores", two, stores(1, 1, 1, list(1, 2, 3)...), "once it is in a cluster"},

		{"it joins", append(demoted(), begins(3, 2)), joined(3, 7, 3), ""},
		{"it joins before its vote was taken", append(lost(), begins(3, 2)), joined(3, 7, 2), "a place without a vote"},
		{"it joins with what was there before that", append(demoted(), begins(3, 2)), joined(3, 7, 2), "a place without a vote"},
		{"it joins with what was there before its start", append(demoted(), begins(3, 2)), joined(3, 7, 1), "only to entry 1"},
		{"it joins in an earlier term", append(demoted(), begins(3, 1)), joined(3, 7, 3), "still in term 1"},
		{"it joins another cluster", append(demoted(), begins(3, 2)), joined(3, 8, 3), "agreed to another cluster"},
		{"it joins with data", demoted(), joined(2, 7, 3), "does not join"},

		{"it votes", append(back(), stores(3, 1, 1, list(1, 2, 3)...), stores(3, 2, 2), stores(3, 3, 2, list(1, 2)...)), votes(3, 3, "a\x001"), ""},
		{"it votes too soon", append(back(), stores(3, 1, 1, list(1, 2, 3)...)), votes(3, 3, "a\x001"), "has reached 3"},
		{"it takes over a term", demoted(), votes(3, 2, "c"), ""},
		{"it takes over a term that nobody has led in", demoted(), votes(3, 3, "c"), "votes only once it is in a cluster"},
		{"it stands without a vote", append(back(), stores(3, 1, 1, list(1, 2, 3)...), stores(3, 2, 2), stores(3, 3, 2, list(1, 2)...)), votes(3, 3, "c"), "stands for election only if"},
		{"a voter stands", formed(), votes(2, 3, "b"), ""},

		{"the next change", demoted(), stores(1, 4, 2, list(1, 2, 3)...), ""},
		{"the next change, too soon", lost(), stores(1, 4, 2, list(1, 2, 3)...), "only when it is committed"},
		{"two at a time", formed(), stores(1, 3, 2, list(1, 2, 4)...), "one member is changed at a time"},
		{"another content", lost(), stores(2, 3, 2, list(1, 3)...), "has one content"},
		{"a list is visible that one of two has", lost(), sees(1, 3, 0), "no majority of its voters"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFormation()
			events := append(slices.Clone(x.before), x.step)
			for i := range events {
				e := &events[i]
				f.kind(e)
				err := f.next(e)
				last := i == len(events)-1
				switch {
				case err != nil && (!last || x.says == "" || !strings.Contains(err.Error(), x.says)):
					t.Fatalf("%v: %v", e, err)
				case err == nil && last && x.says != "":
					t.Errorf("%v: it is allowed", e)
				}
			}
		})
	}
}
