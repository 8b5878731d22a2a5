package election

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestDifferenceOfCopiesSettled: if all members have the same state, nothing is in doubt, even if all are copies.
func TestDifferenceOfCopiesSettled(t *testing.T) {
	for _, size := range []int{1, 2, 3} {
		x := []*modelled{}
		var members []proto.Peer
		for i := range size {
			m := &modelled{Digests: NewDigests(uint64(i+1), fsm.NewReplica())}
			m.apply(t, 5)
			m.Restored(5)
			x, members = append(x, m), append(members, proto.Peer{ID: uint64(i + 1)})
		}
		x[0].Heard(DigestQuestion{Disputed: 5})
		x[0].BeginTerm()
		for ran := range int64(3) {
			x[0].Look(members, true, ran*1000, 2*time.Second)
			for i, m := range x[1:] {
				x[0].Answered(uint64(i+2), m.Answer(x[0].Question(uint64(i+2)).Index))
			}
		}
		if x[0].Dispute() != 0 {
			t.Errorf("%d voters: nobody serves, and all have the same state", size)
		}
	}
}

// TestDisputeOfNewest: a member that has heard from an earlier leader that entry 10 is settled does not serve either if members differ
// at entry 8 and at later ones.
func TestDisputeOfNewest(t *testing.T) {
	lead := &modelled{Digests: NewDigests(1, fsm.NewReplica())}
	other := NewDigests(3, fsm.NewReplica())
	other.Heard(DigestQuestion{Settled: 10})
	members := []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}}
	lead.BeginTerm()
	for n := range 6 {
		lead.apply(t, 8+n)
		lead.Look(members, true, int64(n)*1000, 2*time.Second)
		lead.Answered(2, DigestAnswer{Index: lead.newest(), Digest: 1})
	}
	if lead.Look(members, true, 6000, 2*time.Second); lead.Dispute() == 0 {
		t.Fatal("no dispute")
	}
	if other.Heard(lead.Question(3)); other.Dispute() == 0 {
		t.Error("it serves")
	}
}

// TestDigestsModel has members apply entries, answer the leader's questions, take over each other's states, change their leader
// and start again, in random order. Some of them, fewer than a majority, go wrong. A member that is right is never said to be wrong,
// and if none goes wrong, nothing is ever in doubt. In the end, when all are there, those that are wrong are
// known to be, or nobody serves.
func TestDigestsModel(t *testing.T) {
	r, n := rand.New(rand.NewPCG(testkit.Seed(t), 0)), 100
	if testkit.Thorough {
		n = 300
	}
	for range n {
		modelDigests(t, r, 3+r.IntN(3))
	}
}

type modelled struct {
	*Digests
	applied int
	wrong   bool // it went wrong, or has taken over the state of one that did
	was     bool // it has been wrong since it was started
}

func (x *modelled) apply(t *testing.T, upTo int) {
	for ; x.applied < upTo; x.applied++ {
		i := uint64(x.applied + 1)
		entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.OpenSession(i, int64(i), 1000, session.Password{}))
		if err := x.replica.Apply(&raft.Log{Index: i, Term: 1, Data: fsm.EndEntry(entry, &fsm.Envelope{Origin: 1, Batch: i, Count: 1})}); err != nil {
			t.Fatal(err)
		}
	}
}

func modelDigests(t *testing.T, r *rand.Rand, voters int) {
	const patience = 2 * time.Second
	var members []proto.Peer
	var all []*modelled
	start := func(i int) *modelled { return &modelled{Digests: NewDigests(uint64(i+1), fsm.NewReplica())} }
	for i := range voters + 1 {
		members = append(members, proto.Peer{ID: uint64(i + 1), Observer: i == voters})
		all = append(all, start(i))
	}
	lead, end, bad := 0, 0, r.IntN((voters+1)/2) // so many may go wrong by themselves: fewer than a majority
	ran := int64(0)
	known := map[int]bool{} // those that are known to be wrong
	is := func(i int, index uint64) {
		if index == 0 {
			return
		}
		if known[i] = true; !all[i].was {
			t.Fatalf("member %d is right, and is said to be wrong at entry %d", i+1, index)
		}
	}
	look := func() {
		ran += 100
		wrong, _ := all[lead].Look(members, true, ran, patience)
		if is(lead, wrong); wrong != 0 { // it ends
			lead = (lead + 1) % voters
			all[lead].apply(t, end)
			all[lead].BeginTerm()
		}
	}
	restart := func(i int) {
		was := all[i].applied
		all[i] = start(i)
		all[i].apply(t, was)
		all[lead].Forget(uint64(i + 1))
		delete(known, i)
	}
	beat := func(i int) {
		q := all[lead].Question(uint64(i + 1))
		if is(i, q.Wrong); q.Wrong != 0 { // it ends
			restart(i)
			return
		}
		all[i].Heard(q)
		a := all[i].Answer(q.Index)
		if r.IntN(8) > 0 {
			all[lead].Answered(uint64(i+1), a)
		}
	}
	anybody := false
	for range 400 {
		i := r.IntN(len(all))
		x := all[i]
		switch r.IntN(24) {
		case 0:
			end += 1 + r.IntN(3)
			all[lead].apply(t, end)
		case 1, 2, 3, 4:
			x.apply(t, x.applied+r.IntN(end-x.applied+1))
		case 5:
			if i < bad && x.applied > 0 {
				id := 1<<40 + int64(r.IntN(2))
				x.replica.View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: id}) })
				x.wrong, x.was, anybody = true, true, true
			}
		case 6:
			if i != lead {
				restart(i)
			}
		case 7:
			if y := all[lead]; y.applied > x.applied {
				state, err := y.replica.State()
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				if err := state.Write(&b); err != nil {
					t.Fatal(err)
				}
				if err := x.replica.Restore(io.NopCloser(&b)); err != nil {
					t.Fatal(err)
				}
				x.applied, x.wrong, x.was = y.applied, y.wrong, x.was || y.wrong
				x.Restored(uint64(x.applied))
			}
		case 8:
			if i != lead && i < voters && !known[i] {
				lead = i
				x.apply(t, end)
				x.BeginTerm()
			}
		case 9, 10, 11:
			look()
		default:
			if i != lead {
				beat(i)
			}
		}
		if x := all[lead]; !anybody && (x.doubted != 0 || x.disputed != 0) {
			t.Fatal("a false alarm")
		}
	}
	for n := range 60 {
		end++
		for i, x := range all {
			if x.apply(t, end); i != lead && n > 0 {
				beat(i)
			}
		}
		look()
	}
	wrong := 0
	for _, x := range all[:voters] {
		if x.wrong {
			wrong++
		}
	}
	for i, x := range all {
		if x.wrong && wrong <= voters/2 && !known[i] && x.disputed == 0 {
			t.Fatalf("member %d is wrong and serves", i+1)
		}
		if !x.wrong && !anybody && x.disputed != 0 {
			t.Fatalf("member %d does not serve", i+1)
		}
	}
}
