package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestFormationModel explores all orders of what can happen to three members that form a
// cluster: each asks some of the others at any time (those that do not answer are down, have
// not been started yet, or cannot be reached), proposes, accepts, agrees, joins, acknowledges
// a write with one other, and is started again; and one of them loses its disk, at any time;
// so does another, once the first has its vote and its state again. They are empty, or were restored from snapshots,
// and an operator restores another one on the member that lost its disk. The members decide by the
// very rules of formation.go. What they store is durable. Questions are answered at once;
// proposals and their acceptance arrive at any time later, or never.
//
// It is to find: two ids that members have agreed to; a write that was acknowledged and that
// a majority, which can acknowledge the next one, does not have; members of a cluster that have begun
// with different states.
func TestFormationModel(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		name             string
		losses, restarts int
		data             [modelSize]int8 // the snapshot from which each was restored, or 0
		restore          int8            // the snapshot that may be restored on a lost disk
		forced           bool            // an operator lets a majority form the cluster, if it was never formed
		change           func(m *formationModel)
		finds            string // what a model with a planted fault finds
	}{
		{name: "one disk", losses: 1, restarts: 1},
		{name: "two disks, one after the other", losses: 2, restarts: 1},
		{name: "a majority by an operator's word", losses: 1, forced: true},
		{name: "restored", losses: 1, restarts: 1, data: [modelSize]int8{1, 1, 1}, restore: 2},
		{name: "restored from two snapshots", losses: 2, restarts: 1, data: [modelSize]int8{1, 1, 2}, restore: 1},
		{name: "restored, and a majority by an operator's word", losses: 1, forced: true, data: [modelSize]int8{1, 1, 1}, restore: 2},
		{name: "planted: nobody compares states", losses: 1, data: [modelSize]int8{1, 1, 2}, change: func(m *formationModel) { m.blind = true }, finds: "different states"},
		{name: "planted: a majority is enough", losses: 1, restarts: 1, change: func(m *formationModel) { m.majorityForms = true }, finds: "two clusters"},
		{name: "planted: an agreement may be replaced", losses: 1, restarts: 1, change: func(m *formationModel) { m.forgetsAgreement = true }, finds: "lost"},
		{name: "planted: proposals for earlier runs count", losses: 2, restarts: 1, change: func(m *formationModel) { m.anyRun = true }, finds: "lost"},
		{name: "planted: who has lost its disk keeps its vote", losses: 1, restarts: 1, change: func(m *formationModel) { m.votesAtOnce = true }, finds: "lost"},
	} {
		t.Run(x.name, func(t *testing.T) {
			m := &formationModel{losses: x.losses, restarts: x.restarts, forced: x.forced, data: x.data, restore: x.restore}
			if x.change != nil {
				x.change(m)
			}
			found, states := m.explore()
			t.Logf("%d states", states)
			switch {
			case x.finds == "" && found != "":
				t.Error(found)
			case x.finds != "" && !strings.Contains(found, x.finds):
				t.Errorf("it finds %q, should find %q", found, x.finds)
			case x.finds == "" && !m.formed:
				t.Error("no cluster was ever formed")
			case x.finds == "" && !m.recovered:
				t.Error("no member ever came back without its disk")
			}
		})
	}
}

const modelSize = 3

// modelMember is a member of the model. All but run is on its disk.
type modelMember struct {
	run      int8 // counts its starts; a message may be for an earlier run
	proposed int8 // an id, or 0
	agreed   bool // to proposed
	log      bool // it has begun the log of that cluster, or was sent it
	data     int8 // the snapshot with which it begins, or has begun; 0 for an empty state
	votes    bool // it has its vote, as the others see it too
	written  bool // it has the write that was acknowledged
}

// modelProposal is a proposal on its way. It is delivered at most once.
type modelProposal struct {
	id, from, to, run, fromRun, data int8
	accepted                         bool
}

type modelState struct {
	members   [modelSize]modelMember
	proposals string // of modelProposal, encoded
	lost      int8   // disks
	ids       int8   // ids made so far
	restarts  int8   // of members that kept their disk
	acked     bool   // a write was acknowledged
	word      bool   // an operator has let a majority form the cluster
}

type formationModel struct {
	losses, restarts int
	forced           bool
	data             [modelSize]int8
	restore          int8
	// Planted faults.
	majorityForms, forgetsAgreement, anyRun, votesAtOnce, blind bool

	formed, recovered bool // seen
}

var modelList = []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1"}}

// explore returns the first broken promise, with the way to it, and the number of states.
func (m *formationModel) explore() (found string, states int) {
	start := modelState{}
	for i, of := range m.data {
		start.members[i].data = of
	}
	type origin struct {
		from modelState
		how  string
	}
	seen := map[modelState]origin{start: {}}
	queue := []modelState{start}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		var broken string
		m.steps(s, func(how string, next modelState) {
			if broken != "" {
				return
			}
			if _, known := seen[next]; known {
				return
			}
			seen[next] = origin{s, how}
			if what := m.check(next); what != "" {
				broken = what
				for at := next; at != start; at = seen[at].from {
					broken = seen[at].how + "; " + broken
				}
			}
			queue = append(queue, next)
		})
		if broken != "" {
			return broken, len(seen)
		}
	}
	return "", len(seen)
}

func (m *formationModel) check(s modelState) string {
	var first *modelMember
	for i := range s.members {
		x := &s.members[i]
		if !x.agreed {
			continue
		}
		m.formed = m.formed || x.log
		switch {
		case first == nil:
			first = x
		case first.proposed != x.proposed:
			return "two clusters"
		case first.data != x.data:
			return "a cluster begins with different states"
		}
	}
	// A majority that can acknowledge a write must have the earlier one.
	if s.acked {
		for i, x := range s.members {
			for j, y := range s.members[:i] {
				if x.log && x.votes && y.log && y.votes && x.proposed == y.proposed && !x.written && !y.written {
					return fmt.Sprintf("a write is lost: members %d and %d do not have it", j+1, i+1)
				}
			}
		}
	}
	return ""
}

// modelFirst is the state of a snapshot. All end with the same entry.
func modelFirst(snapshot int8) (x request.FirstState) {
	if snapshot != 0 {
		x = request.FirstState{Index: 9, Term: 1, Digest: fmt.Sprint(snapshot)}
	}
	return x
}

// stance and status are those of a member, as its code makes them.
func (s *modelState) stance(i int) stance {
	x := stance{self: uint64(i + 1), members: modelList, state: modelFirst(s.members[i].data)}
	if !s.members[i].agreed {
		x.proposed = request.ClusterID(s.members[i].proposed)
	}
	return x
}

func (s *modelState) status(i int) *request.Status {
	x := s.members[i]
	first := modelFirst(x.data)
	st := &request.Status{ID: uint64(i + 1), Run: uint64(x.run), Data: x.log || first.Data(), Index: first.Index, Digest: first.Digest, Configured: modelList}
	if x.agreed {
		st.Formed, st.Cluster, st.Configured = true, request.ClusterID(x.proposed), nil
	}
	return st
}

func (s *modelState) identity(i int) storage.Identity {
	return storage.Identity{Cluster: request.ClusterID(s.members[i].proposed), Agreed: s.members[i].agreed}
}

func (s *modelState) sent() (all []modelProposal) {
	for i := 0; i < len(s.proposals); i += 7 {
		p := s.proposals[i:]
		all = append(all, modelProposal{int8(p[0]), int8(p[1]), int8(p[2]), int8(p[3]), int8(p[4]), int8(p[5]), p[6] != 0})
	}
	return all
}

func (s *modelState) send(all []modelProposal) {
	var b []string
	for _, p := range all {
		accepted := byte(0)
		if p.accepted {
			accepted = 1
		}
		b = append(b, string([]byte{byte(p.id), byte(p.from), byte(p.to), byte(p.run), byte(p.fromRun), byte(p.data), accepted}))
	}
	slices.Sort(b)
	s.proposals = strings.Join(slices.Compact(b), "")
}

// agree makes a member agree to its proposal, and begin its log.
func (s *modelState) agree(i int) {
	s.members[i].agreed, s.members[i].log, s.members[i].votes = true, true, true
}

// steps calls visit with everything that can happen next.
func (m *formationModel) steps(s modelState, visit func(how string, next modelState)) {
	for i := range s.members {
		id := i + 1
		x := &s.members[i]
		if int(s.restarts) < m.restarts {
			next := s
			next.members[i].run++
			next.restarts++
			visit(fmt.Sprintf("%d starts again", id), next)
		}
		if m.mayLose(&s) {
			next := s
			next.lost++
			next.members[i] = modelMember{run: x.run + 1}
			visit(fmt.Sprintf("%d loses its disk", id), next)
			if m.restore != 0 {
				next.members[i].data = m.restore
				visit(fmt.Sprintf("%d loses its disk, and snapshot %d is restored on it", id, m.restore), next)
			}
		}
		if !x.agreed {
			m.form(s, i, visit)
		}
	}
	m.deliver(s, visit)
	m.replicate(s, visit)
}

// mayLose reports whether a disk may be lost: those that were are members again.
func (m *formationModel) mayLose(s *modelState) bool {
	if int(s.lost) >= m.losses {
		return false
	}
	if s.lost == 0 {
		return true
	}
	for _, x := range s.members { // all have recovered
		if !x.log || !x.votes || s.acked && !x.written {
			return false
		}
	}
	return true
}

// form is what a member that has not agreed does when it has asked the others, and some have
// answered.
func (m *formationModel) form(s modelState, i int, visit func(how string, next modelState)) {
	for answering := range 1 << modelSize {
		if answering&(1<<i) != 0 {
			continue
		}
		said := map[uint64]*request.Status{}
		for j := range s.members {
			if answering&(1<<j) != 0 {
				said[uint64(j+1)] = s.status(j)
				if m.blind {
					said[uint64(j+1)].Digest = modelFirst(s.members[i].data).Digest
				}
			}
		}
		own := s.stance(i)
		how := fmt.Sprintf("%d, which %d others have answered, ", i+1, len(said))
		switch n := own.decide(said); {
		case n.do == toAgree:
			next := s
			next.agree(i)
			visit(how+"agrees", next)
		case n.do == toJoin:
			m.join(s, i, n, how, visit)
		case n.do == toPropose, n.do == toWait && m.majorityForms && len(said) > 0:
			m.propose(s, i, own.required(), how, visit)
		}
		if m.forced && !s.word && !s.formedEver() {
			if required, err := own.majority(said); err == nil {
				forced := s
				forced.word = true
				m.propose(forced, i, required, how+"by an operator's word ", visit)
			}
		}
	}
}

// formedEver reports whether somebody has agreed to an id: an operator must not say then that
// the cluster is new.
func (s *modelState) formedEver() bool {
	return s.acked || slices.ContainsFunc(s.members[:], func(x modelMember) bool { return x.agreed })
}

func (m *formationModel) propose(s modelState, i int, required []proto.Peer, how string, visit func(string, modelState)) {
	next := s
	x := &next.members[i]
	if x.proposed == 0 {
		next.ids++
		x.proposed = next.ids
	}
	all := next.sent()
	accepted := 1
	for _, y := range election.Without(required, uint64(i+1)) {
		p := modelProposal{id: x.proposed, from: int8(i + 1), to: int8(y.ID), run: next.members[y.ID-1].run, fromRun: x.run, data: x.data}
		done := p
		done.accepted = true
		if slices.Contains(all, done) {
			accepted++
		} else if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	next.send(all)
	if accepted == len(required) || m.majorityForms && accepted > modelSize/2 {
		agreed := next
		agreed.agree(i)
		visit(how+"agrees to its own proposal", agreed)
	}
	visit(how+"proposes", next)
}

// deliver delivers proposals, to a later run too.
func (m *formationModel) deliver(s modelState, visit func(string, modelState)) {
	all := s.sent()
	for k, p := range all {
		to := int(p.to - 1)
		if p.accepted {
			continue
		}
		own := s.stance(to)
		q := &request.Proposal{Cluster: request.ClusterID(p.id), From: uint64(p.from), To: uint64(p.to), Run: uint64(p.run), Members: modelList, State: modelFirst(p.data)}
		if m.blind {
			q.State = own.state
		}
		run, of := uint64(s.members[to].run), s.identity(to)
		if m.anyRun {
			run = q.Run
		}
		if m.forgetsAgreement && of.Cluster != q.Cluster {
			of.Agreed = false
		}
		if own.mayAccept(q, run, of) != nil {
			continue
		}
		next := s
		x := &next.members[to]
		if x.proposed != p.id {
			*x = modelMember{run: x.run, proposed: p.id, data: x.data}
		}
		rest := slices.Clone(all)
		// The answer reaches the proposer only in the run that has asked.
		rest[k].accepted = s.members[p.from-1].run == p.fromRun
		if !rest[k].accepted {
			rest = slices.Delete(rest, k, k+1)
		}
		next.send(rest)
		visit(fmt.Sprintf("%d accepts the proposal of %d", p.to, p.from), next)
	}
}

// join has the others take the vote of a member without a disk away, which needs a majority of
// them, send it what they have, and give it its vote back.
func (m *formationModel) join(s modelState, i int, n next, how string, visit func(string, modelState)) {
	next := s
	x := &next.members[i]
	if m.votesAtOnce {
		*x = modelMember{run: x.run, proposed: int8(n.cluster), agreed: true, log: true, votes: true}
		visit(how+"takes part at once", next)
		return
	}
	there, written, data := 0, false, int8(0)
	for j, y := range s.members {
		if j != i && y.log && y.votes && request.ClusterID(y.proposed) == n.cluster {
			there++
			written, data = written || y.written, y.data
		}
	}
	if there < modelSize/2+1 {
		return
	}
	*x = modelMember{run: x.run, proposed: int8(n.cluster), agreed: true, log: true, votes: true, written: written, data: data}
	m.recovered = true
	visit(how+"joins and catches up", next)
}

// replicate has two members of a cluster acknowledge a write, and the third get it.
func (m *formationModel) replicate(s modelState, visit func(string, modelState)) {
	for i := range s.members {
		for j := range i {
			x, y := s.members[i], s.members[j]
			if !x.log || !y.log || !x.votes || !y.votes || x.proposed != y.proposed {
				continue
			}
			next := s
			switch {
			case !s.acked:
				next.acked = true
				fallthrough
			case x.written || y.written:
				next.members[i].written, next.members[j].written = true, true
				visit(fmt.Sprintf("%d and %d store a write", j+1, i+1), next)
			}
		}
	}
}

// TestMayAccept: a server accepts a proposal only from one that begins with the same state, in all that makes it, and with the
// same members.
func TestMayAccept(t *testing.T) {
	restored := request.FirstState{Index: 9, Term: 3, Digest: "x"}
	for _, own := range []request.FirstState{{}, restored} {
		for _, of := range []request.FirstState{{}, restored, {Index: 10, Term: 3, Digest: "x"}, {Index: 9, Term: 4, Digest: "x"}, {Index: 9, Term: 3, Digest: "y"}} {
			s := stance{self: 2, members: modelList, state: own}
			q := request.Proposal{Cluster: 7, From: 1, To: 2, Run: 5, Members: modelList, State: of}
			if err := s.mayAccept(&q, 5, storage.Identity{}); (err == nil) != (own == of) {
				t.Errorf("one with %v and one with %v: %v", own, of, err)
			}
			if q.Members = modelList[:2]; s.mayAccept(&q, 5, storage.Identity{}) == nil {
				t.Error("it accepts one with another list")
			}
		}
	}
}
