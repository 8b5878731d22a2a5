package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// doubt is a fleet some of whose members have wrong states.
type doubt struct {
	*fleet
	lead   int
	serves map[*Member]bool // what Serving has said last
}

// doubtIn starts a fleet whose members all serve.
func doubtIn(t *testing.T, size int) *doubt {
	f, lead := fleetOf(t, size)
	d := &doubt{f, lead, map[*Member]bool{}}
	d.all(true)
	return d
}

// all waits until all members that run serve, or none does.
func (d *doubt) all(serve bool) {
	d.t.Helper()
	until(d.t, fmt.Sprint("all members: serves ", serve), func() bool {
		return !slices.ContainsFunc(d.running, func(m *Member) bool { return m != nil && d.now(m) != serve })
	})
}

func (d *doubt) now(m *Member) bool {
	select {
	case d.serves[m] = <-m.Serving():
	default:
	}
	return d.serves[m]
}

// wrong makes the state of a member wrong; those with the same number get the same state.
func (d *doubt) wrong(i int, number int64) { d.corrupt(i, 1<<40+number) }

// undecided checks that members serve for no longer than a little more than an election timeout, do not serve for the next three
// minutes, and do not end.
func (d *doubt) undecided() {
	d.t.Helper()
	time.Sleep(d.running[d.lead].contacts.silence + time.Second)
	for range 180 {
		for i, m := range d.running {
			if m == nil {
				continue
			}
			if d.now(m) {
				d.t.Fatalf("member %d serves", i+1)
			}
			select {
			case err := <-m.Err():
				d.t.Fatalf("member %d ends: %v", i+1, err)
			default:
			}
		}
		time.Sleep(time.Second)
	}
}

// end checks that these members end because of their states. Then it waits until the others serve, and checks that none of them
// ends.
func (d *doubt) end(which ...int) {
	d.t.Helper()
	for _, i := range which {
		if err := fault(d.running[i], time.Minute); !errors.Is(err, ErrDiffers) {
			d.t.Errorf("the fault of member %d is %v", i+1, err)
		}
		d.stop(i) // as its owner does
	}
	d.all(true)
	time.Sleep(time.Minute)
	d.unharmed()
	d.check()
}

// TestDiffersBesideStuckDisk: the states of two members of three differ, and the third one's disk is stuck. Nobody knows which
// of the two is wrong: nobody ends, and soon nobody serves, but no session expires meanwhile. The third one decides it when its
// disk works again.
func TestDiffersBesideStuckDisk(t *testing.T) {
	for far, wrong := range []string{"the leader", "a follower"} {
		bubble(t, wrong, func(t *testing.T) {
			d := doubtIn(t, 3)
			third, bad := (d.lead+2)%3, (d.lead+far)%3
			const id = 77
			did(t, d.running[d.lead], fsm.OpenSession(id, id, 30_000, session.Password{}))
			end := d.stuck(third)
			t.Cleanup(func() { end(nil) })
			d.wrong(bad, 1)
			d.write(d.lead)
			d.undecided()
			if !d.running[(d.lead+1)%3].hasSession(id) {
				t.Error("a session has expired, and no member has served its client")
			}
			time.Sleep(40 * time.Second) // the session's timeout does not go on from here
			end(nil)
			until(t, "a member that serves", func() bool { return d.now(d.running[third]) })
			time.Sleep(time.Second)
			lead := d.running[leadOf(t, d.fleet)]
			deadline := int64(math.MaxInt64)
			for _, b := range lead.Deadlines() {
				deadline = min(deadline, b.Deadline)
			}
			if left := deadline - lead.timeOfDay(); left < 28_000 {
				t.Errorf("the session has %d ms left", left)
			}
			d.end(bad)
		})
	}
}

// TestDiffersWithoutThird: the states of two members differ, and there is no third one, or it is down for good. Nobody ends, and
// soon nobody serves. The two serve again when an operator has restarted the one that was wrong, or the other one does when
// the operator has removed that one, after the third one.
func TestDiffersWithoutThird(t *testing.T) {
	for _, x := range []struct {
		size, far int // how far the member that is wrong is from the leader
		remove    bool
	}{{2, 1, false}, {2, 0, false}, {3, 1, false}, {3, 0, false}, {2, 1, true}, {3, 1, true}} {
		bubble(t, fmt.Sprintf("%+v", x), func(t *testing.T) {
			d := doubtIn(t, x.size)
			bad, third := (d.lead+x.far)%x.size, (d.lead+2)%3
			if x.size == 3 {
				d.stop(third)
			}
			d.wrong(bad, 1)
			d.write(d.lead)
			d.undecided()
			if !x.remove {
				d.stop(bad)
				d.start(bad)
				d.end()
				return
			}
			remove := func(i int) {
				if _, err := Ask(t.Context(), d.net.Host("operator"), d.peers[uint64(d.lead+1)], Request{Remove: uint64(i + 1)}); err != nil {
					t.Fatal(err)
				}
			}
			if x.size == 3 {
				remove(third)
			}
			remove(bad)
			if err := fault(d.running[bad], time.Minute); !errors.Is(err, ErrRemoved) {
				t.Errorf("its fault is %v", err)
			}
			d.stop(bad)
			d.end()
		})
	}
}

// TestDiffersOfFive: members of five have states that differ from each other's. Those end that a majority with one state
// differs from. If there is no such majority, nobody ends, and nobody serves, until there is one.
func TestDiffersOfFive(t *testing.T) {
	for name, states := range map[string][5]int64{ // wrong ones, by how far the member is from the leader; 0 is right
		"3:1:1":                      {0, 0, 1, 2, 0},
		"3:2, the leader is wrong":   {1, 0, 1, 0, 0},
		"2:2:1, the leader is alone": {2, 0, 1, 0, 1},
		"1:1:1:1:1":                  {0, 1, 2, 3, 4},
	} {
		bubble(t, name, func(t *testing.T) {
			d := doubtIn(t, 5)
			var bad []int
			for i, state := range states {
				if state != 0 {
					i = (d.lead + i) % 5
					d.wrong(i, state)
					bad = append(bad, i)
				}
			}
			d.write(d.lead)
			for len(bad) > 2 {
				d.undecided()
				d.stop(bad[0]) // it makes its state anew
				d.start(bad[0])
				bad = bad[1:]
			}
			d.end(bad...)
		})
	}
}

// TestDiffersFromCopy: the leader of three is wrong, and one of the others has missed what it has done since then: it gets
// a snapshot of the leader's state. That does not make two against one.
func TestDiffersFromCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		d.cutOff((d.lead+2)%3, true)
		d.wrong(d.lead, 1)
		d.snapshotTo((d.lead + 2) % 3)
		d.undecided()
	})
}

// TestDiffersNextLeader: no majority of five has the same state. Nobody serves, not for a moment, when the leader is lost and
// another one leads, when that one hands over, or when a member is started again, until there is a majority.
func TestDiffersNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 5)
		d.level = slog.LevelInfo
		for i, state := range []int64{0, 0, 1, 1, 2} {
			if state != 0 {
				d.wrong((d.lead+i)%5, state)
			}
		}
		d.write(d.lead)
		d.undecided()
		served := d.log.Count("serving clients")
		quiet := func(what string) {
			t.Helper()
			time.Sleep(time.Minute)
			if n := d.log.Count("serving clients"); n != served {
				t.Fatalf("%s: %d members have served\n%s", what, n-served, d.log.String())
			}
		}
		first := d.lead
		d.stop(first)
		d.lead = leadOf(t, d.fleet)
		quiet("the next leader")
		d.start(first)
		quiet("a member that was started again")
		d.handTo((first + 1) % 5)
		quiet("a leader that was handed over to")
		again := (first + 2) % 5
		d.stop(again)
		d.start(again)
		d.end((first+3)%5, (first+4)%5)
	})
}

// TestDifferenceOfCopiesSettled: if all members have the same state, nothing is in doubt, even if all are copies.
func TestDifferenceOfCopiesSettled(t *testing.T) {
	for _, size := range []int{1, 2, 3} {
		x := []*modelled{}
		var members []proto.Peer
		for i := range size {
			m := &modelled{digests: newDigests(uint64(i+1), fsm.NewReplica())}
			m.apply(t, 5)
			m.restored(5)
			x, members = append(x, m), append(members, proto.Peer{ID: uint64(i + 1)})
		}
		x[0].heard(question{Disputed: 5})
		x[0].begin()
		for ran := range int64(3) {
			x[0].look(members, true, ran*1000, 2*time.Second)
			for i, m := range x[1:] {
				x[0].answered(uint64(i+2), m.told(x[0].says(uint64(i+2)).Index))
			}
		}
		if x[0].dispute() != 0 {
			t.Errorf("%d voters: nobody serves, and all have the same state", size)
		}
	}
}

// TestCopyNeverProof: a member that has restored another one's snapshot says so with the first digest of that state.
func TestCopyNeverProof(t *testing.T) {
	from := &modelled{digests: newDigests(1, fsm.NewReplica())}
	from.apply(t, 5)
	state, err := from.replica.State()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := state.Write(&b); err != nil {
		t.Fatal(err)
	}
	r := fsm.NewReplica()
	to := newDigests(2, r)
	told := false
	r.Observe(restoring{restored: func() {
		if a := to.told(5); a.Index == 5 {
			if told = true; a.Copied == 0 {
				t.Error("it says that the state is its own")
			}
		}
	}})
	g := &gatedFSM{Replica: r, digests: to, trace: untraced{}}
	if err := g.Restore(io.NopCloser(&b)); err != nil || !told {
		t.Fatal(err, told)
	}
	if copied := to.told(5).Copied; copied != 5 {
		t.Error("copied up to", copied)
	}
	if err := g.Restore(io.NopCloser(bytes.NewReader(nil))); err == nil {
		t.Fatal("no state was restored")
	}
	if copied := to.told(5).Copied; copied != 5 {
		t.Error("a snapshot that was not restored counts: copied up to", copied)
	}
}

// restoring is an [fsm.Observer] that hears of restored states.
type restoring struct {
	noObserver
	restored func()
}

func (r restoring) Restored() { r.restored() }

// TestDisputeOfNewest: a member that has heard from an earlier leader that entry 10 is settled does not serve either if members differ
// at entry 8 and at later ones.
func TestDisputeOfNewest(t *testing.T) {
	lead := &modelled{digests: newDigests(1, fsm.NewReplica())}
	other := newDigests(3, fsm.NewReplica())
	other.heard(question{Settled: 10})
	members := []proto.Peer{{ID: 1}, {ID: 2}, {ID: 3}}
	lead.begin()
	for n := range 6 {
		lead.apply(t, 8+n)
		lead.look(members, true, int64(n)*1000, 2*time.Second)
		lead.answered(2, digestAnswer{Index: lead.newest(), Digest: 1})
	}
	if lead.look(members, true, 6000, 2*time.Second); lead.dispute() == 0 {
		t.Fatal("no dispute")
	}
	if other.heard(lead.says(3)); other.dispute() == 0 {
		t.Error("it serves")
	}
}

// TestDiffersAmongCopies: two members of three have once lagged, and got the leader's snapshot. Their states were right at later
// entries. So they count, also when another one leads, and the one that goes wrong then ends.
func TestDiffersAmongCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		first := d.lead
		for i := 1; i < 3; i++ {
			d.snapshotTo((first + i) % 3)
			d.all(true)
			d.write(first)
			time.Sleep(5 * time.Second)
		}
		d.lead = (first + 1) % 3
		d.handTo(d.lead)
		d.all(true)
		d.write(d.lead)
		time.Sleep(5 * time.Second)
		d.wrong(first, 1)
		d.write(d.lead)
		d.end(first)
	})
}

// TestDiffersLeaderForgets: of three members, the third one is down, and another one is wrong. The right one is started again, and
// leads. It hears of the dispute with the answers to its first heartbeats.
func TestDiffersLeaderForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := doubtIn(t, 3)
		first, other := d.lead, (d.lead+1)%3
		d.stop((d.lead + 2) % 3)
		d.wrong(other, 1)
		d.write(first)
		d.undecided()
		d.stop(first)
		d.start(first)
		until(t, "a leader", func() bool { return d.running[first].raft.begun.Load() != 0 || d.running[other].raft.begun.Load() != 0 })
		if d.running[first].Role() != "leader" {
			d.handTo(first)
		}
		began := time.Now()
		d.all(false)
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("a member serves for %v", took)
		}
		d.undecided()
	})
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
	*digests
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
	start := func(i int) *modelled { return &modelled{digests: newDigests(uint64(i+1), fsm.NewReplica())} }
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
		wrong, _ := all[lead].look(members, true, ran, patience)
		if is(lead, wrong); wrong != 0 { // it ends
			lead = (lead + 1) % voters
			all[lead].apply(t, end)
			all[lead].begin()
		}
	}
	restart := func(i int) {
		was := all[i].applied
		all[i] = start(i)
		all[i].apply(t, was)
		all[lead].forget(uint64(i + 1))
		delete(known, i)
	}
	beat := func(i int) {
		q := all[lead].says(uint64(i + 1))
		if is(i, q.Wrong); q.Wrong != 0 { // it ends
			restart(i)
			return
		}
		all[i].heard(q)
		a := all[i].told(q.Index)
		if r.IntN(8) > 0 {
			all[lead].answered(uint64(i+1), a)
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
				x.restored(uint64(x.applied))
			}
		case 8:
			if i != lead && i < voters && !known[i] {
				lead = i
				x.apply(t, end)
				x.begin()
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

// snapshotTo gives a member the leader's snapshot, which has missed some entries.
func (d *doubt) snapshotTo(i int) {
	d.t.Helper()
	d.cutOff(i, true)
	d.writes(d.lead, 20)
	if err := d.running[d.lead].raft.Snapshot().Error(); err != nil {
		d.t.Fatal(err)
	}
	d.cutOff(i, false)
	until(d.t, "the snapshot", func() bool {
		x := d.running[i].pulse.digests
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.copied != 0
	})
}
