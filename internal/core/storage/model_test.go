package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestModel compares a store with a map: entries are appended, deleted at both
// ends and replaced, the term is set, and now and then the store is closed and
// opened again. It refuses what would replace an entry or leave a gap. Before the first
// entry there may be terms and votes.
func TestModel(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *Storage) {
		r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
		s := open()
		var first, last, term, voted uint64
		var candidate string
		entries := map[uint64]raft.Log{}
		newTerm := func() {
			term++
			check(t, s.Stable.SetUint64([]byte(TermKey), term))
			if r.IntN(2) == 0 {
				voted, candidate = term, fmt.Sprintf("host-%d:1", r.IntN(3))
				check(t, s.Stable.SetUint64([]byte(voteTermKey), voted))
				check(t, s.Stable.Set([]byte(voteCandidateKey), []byte(candidate)))
			}
		}
		compare := func(step int) {
			t.Helper()
			f, l := must(s.Log.FirstIndex())(t), must(s.Log.LastIndex())(t)
			if f != first || l != last {
				t.Fatalf("step %d: entries %d to %d, should be %d to %d", step, f, l, first, last)
			}
			for i := max(first, 1); i <= last; i++ {
				var l raft.Log
				check(t, s.Log.GetLog(i, &l))
				if w := entries[i]; l.Index != i || l.Term != w.Term || l.Type != w.Type || !bytes.Equal(l.Data, w.Data) || !bytes.Equal(l.Extensions, w.Extensions) {
					t.Fatalf("step %d: entry %d is %v, should be %v", step, i, l, w)
				}
			}
			for _, i := range []uint64{0, max(first, 1) - 1, last + 1} {
				var l raft.Log
				if err := s.Log.GetLog(i, &l); !errors.Is(err, raft.ErrLogNotFound) {
					t.Fatalf("step %d: entry %d, which is not there: %v", step, i, err)
				}
			}
			if got := must(s.Term())(t); got != term {
				t.Fatalf("step %d: the term is %d, should be %d", step, got, term)
			}
			in, _ := s.Stable.GetUint64([]byte(voteTermKey))
			if who, _ := s.Stable.Get([]byte(voteCandidateKey)); in != voted || string(who) != candidate {
				t.Fatalf("step %d: a vote in term %d for %q, should be in %d for %q", step, in, who, voted, candidate)
			}
		}
		// A member may vote before it has an entry.
		for step := range 10 + r.IntN(20) {
			switch r.IntN(3) {
			case 0:
				newTerm()
			case 1:
				if empty := must(s.Empty())(t); !empty {
					t.Fatal("it is not empty")
				}
				if term == 1 && voted == 0 {
					term = 0 // as a crash during Bootstrap leaves it
				}
			default:
				check(t, s.Close())
				s = open()
			}
			compare(-1 - step)
		}
		check(t, s.Bootstrap(alone))
		first, last, term = 1, 1, max(term, 1)
		var l raft.Log
		check(t, s.Log.GetLog(1, &l))
		entries[1] = l
		for step := range 300 {
			switch r.IntN(9) {
			case 0: // a snapshot, and the entries up to its end are deleted
				if n := uint64(r.IntN(int(last - first + 1))); n > 0 {
					end := first + n - 1
					_, trans := raft.NewInmemTransport("")
					sink := must(s.Snapshots.Create(1, end, entries[end].Term, Configuration(alone), 1, trans))(t)
					check(t, errors.Join(fsm.NewMachine().Snapshot().Write(sink), sink.Close()))
					check(t, s.Log.DeleteRange(first, end))
					first = end + 1
				}
			case 1: // the leader has other entries there
				if n := uint64(r.IntN(int(last - first + 1))); n > 0 && n < 8 {
					check(t, s.Log.DeleteRange(last-n+1, last))
					last -= n
				}
			case 2:
				newTerm()
			case 3:
				check(t, s.Close())
				s = open()
				compare(step)
			case 4: // what no store accepts: an entry that is there, a gap, a hole
				if last == 0 || last-first < 2 {
					break
				}
				at := []uint64{first, first + 1, last, last + 2}[r.IntN(4)]
				logs := []*raft.Log{{Index: at, Term: []uint64{term, entries[at].Term}[r.IntN(2)], Type: raft.LogNoop}}
				if r.IntN(2) == 0 {
					if err := s.Log.StoreLogs(logs); err == nil {
						t.Fatalf("step %d: entry %d was stored although the log is %d to %d", step, at, first, last)
					}
				} else if err := s.Log.DeleteRange(first+1, last-1); err == nil {
					t.Fatalf("step %d: the middle of entries %d to %d was deleted", step, first, last)
				}
				check(t, s.Close()) // nothing is written after a fault
				s = open()
				compare(step)
			default:
				var logs []*raft.Log
				for range 1 + r.IntN(5) {
					last++
					l := raft.Log{Index: last, Term: term, Type: raft.LogNoop, Data: make([]byte, r.IntN(3)*r.IntN(4000))}
					for i := range l.Data {
						l.Data[i] = byte(r.Uint32())
					}
					if r.IntN(3) == 0 {
						l.Extensions = []byte("extensions")
					}
					entries[last] = l
					logs = append(logs, &l)
				}
				check(t, s.Log.StoreLogs(logs))
			}
			if step%10 == 0 {
				compare(step)
			}
		}
		compare(300)
		check(t, s.Close())
	})
}
