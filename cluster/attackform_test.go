package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// snapshotFleet is a fleet whose servers an operator restores. The right snapshot has session 1, a foreign one session 2.
type snapshotFleet struct {
	*fleet
	observers []uint64
	kind      []string // what each began with: like, foreign or empty
	broken    []bool   // its disk fails
	in        []bool   // it was in a cluster
	did       []string
}

func (f *snapshotFleet) note(format string, args ...any) {
	f.did = append(f.did, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (f *snapshotFleet) config(i int) Config {
	cfg := f.fleet.config(i)
	observe(&cfg, f.observers...)
	return cfg
}

// begin gives server i a disk of this kind.
func (f *snapshotFleet) begin(i int, kind string) {
	f.lose(i)
	f.broken[i], f.in[i] = false, false
	f.kind[i] = kind
	f.note("%s disk on %d", kind, i+1)
	if kind == "empty" {
		return
	}
	m := fsm.NewMachine()
	m.Sessions().Open(session.Session{ID: map[string]int64{"like": 1, "foreign": 2}[kind], Timeout: 1 << 30})
	first := ptr(f.config(i)).first()
	if err := m.Restart(12, fsm.Members(first)); err != nil {
		f.t.Fatal(err)
	}
	s := f.disks[i].Open()
	sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, m.Index(), 1, first, m.Index(), newLoneTransport("x"))
	if err == nil {
		err = errors.Join(s.Stable.SetUint64([]byte(storage.TermKey), 1), m.Snapshot().Write(sink), sink.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *snapshotFleet) start(i int) {
	m, err := openMember(f.config(i), fsm.NewReplica())
	if err != nil {
		f.note("%d does not start: %v", i+1, err)
		if !f.broken[i] {
			f.t.Errorf("server %d does not start: %v", i+1, err)
		}
		return
	}
	f.running[i] = m
}

func (f *snapshotFleet) formed(i int) bool {
	m := f.running[i]
	return m != nil && m.membership.gate.lifted()
}

// judge looks for what must never be.
func (f *snapshotFleet) judge() {
	var of ClusterID
	for i, m := range f.running {
		if m == nil {
			continue
		}
		if f.formed(i) {
			f.in[i] = true
			if own := m.membership.gate.cluster(); of == 0 {
				of = own
			} else if of != own {
				f.t.Errorf("two clusters: server %d is in %v, another one in %v", i+1, own, of)
			}
			if f.kind[i] == "foreign" {
				f.t.Errorf("server %d is in a cluster with a foreign snapshot", i+1)
			}
		}
		select {
		case err := <-m.Err():
			f.note("%d ends: %v", i+1, err)
			f.stop(i)
			switch {
			case f.broken[i]:
				f.disks[i].SetFault(nil)
				f.broken[i] = false
			case !f.in[i] && strings.Contains(err.Error(), "its data was restored"): // as documented
				f.begin(i, "empty")
			default:
				f.t.Errorf("server %d ends: %v", i+1, err)
			}
		default:
		}
	}
}

// whole waits until all are in the same cluster, with their votes and the same state.
func (f *snapshotFleet) whole() {
	f.t.Helper()
	var why string
	ok := func() bool {
		f.judge()
		var states []string
		for i, m := range f.running {
			if m == nil {
				f.start(i)
				why = fmt.Sprintf("%d was down", i+1)
				return false
			}
			s, err := m.Status()
			if err != nil || s.Leader == 0 || !s.Formed || len(s.Members) != len(f.running) || m.identified() == 0 {
				why = fmt.Sprintf("%d: %v, leader %d, formed %v, %s", i+1, err, s.Leader, s.Formed, m.Waiting())
				return false
			}
			for _, x := range s.Members {
				if x.Observer != slices.Contains(f.observers, x.ID) {
					why = fmt.Sprintf("%d says %v", i+1, s.Members)
					return false
				}
			}
			states = append(states, fmt.Sprint(s.Cluster, s.Index, s.Digest))
		}
		why = fmt.Sprint(states)
		return len(slices.Compact(states)) == 1
	}
	for end := time.Now().Add(4 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("the cluster is not whole: %s", why)
		}
	}
}

// TestFormFromSnapshots: an operator restores three or five servers, of which one may be an observer, one has a foreign
// snapshot and one is empty, at times. They are started and crash in any order, with disks that fail or are slow at any write, on
// links that are slow and cut, and once somebody has a majority form the cluster. No write is lost, nobody serves
// another state, nobody ends who is right, and a cluster is formed when all who are alike are up, by the operator's word if
// others are not.
func TestFormFromSnapshots(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs, seed := 30, testkit.Seed(t)
	stats := map[string]int{}
	defer func() { t.Log(stats) }()
	if testkit.Thorough && !testkit.Race {
		runs = 400
	}
	for run := range runs {
		if t.Failed() {
			break
		}
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			size := 3 + 2*r.IntN(2)
			f := &snapshotFleet{fleet: newFleet(t, size), kind: make([]string, size), broken: make([]bool, size), in: make([]bool, size)}
			f.asked, f.acked = 100, []int64{1}
			defer func() {
				if t.Failed() {
					t.Errorf("run %d, observers %v:\n%s", run, f.observers, strings.Join(f.did, "\n"))
				}
			}()
			slow := time.Duration(r.IntN(60)) * time.Millisecond
			delays := rand.New(rand.NewPCG(seed, uint64(run)+1<<32))
			f.net.SetDelay(func(from, to string) time.Duration {
				return time.Duration(delays.Int64N(int64(slow) + 1))
			})
			if size == 5 && r.IntN(2) == 0 {
				f.observers = []uint64{uint64(1 + r.IntN(size))}
			}
			for i := range size {
				f.begin(i, "like")
			}
			if n := r.IntN(3); n > 0 {
				f.begin(r.IntN(size), []string{"", "foreign", "empty"}[n])
			}
			host := func(i int) string { return string(rune('a' + i)) }
			identity := func(i int) storage.Identity { return f.disks[i].Open().Identity() }
			word, lost := r.IntN(3) == 0, -1
			step := func() {
				i := r.IntN(size)
				switch n := r.IntN(20); {
				case n < 7 && f.running[i] == nil:
					f.note("start %d", i+1)
					f.start(i)
				case n < 9:
					f.note("crash of %d", i+1)
					f.stop(i)
				case n < 11 && !f.broken[i]:
					left := int64(r.IntN(6))
					f.note("disk of %d fails after %d writes", i+1, left)
					var count atomic.Int64
					f.broken[i] = true
					f.disks[i].SetFault(func() error {
						if count.Add(1) > left {
							return errors.New("disk failure")
						}
						return nil
					})
				case n == 11 && !f.broken[i]:
					d := time.Duration(r.IntN(1<<r.IntN(11))) * time.Millisecond
					f.note("disk of %d needs %v", i+1, d)
					f.disks[i].SetFault(func() error { time.Sleep(d); return nil })
				case n < 14:
					j := r.IntN(size)
					cut := r.IntN(2) == 0
					f.note("cut from %d to %d: %v", i+1, j+1, cut)
					f.net.Cut(host(i), host(j), cut)
					if r.IntN(2) == 0 {
						f.net.Cut(host(j), host(i), cut)
					}
				case n == 14 && identity(i).Cluster == 0 && f.kind[i] != "like":
					f.begin(i, "like")
				case n == 15 && !word && f.running[i] != nil:
					if slices.ContainsFunc(f.disks, func(d *storage.Memory) bool { return d.Open().Identity().Agreed }) {
						break
					}
					word = true
					m := f.running[i]
					began := len(f.did)
					f.note("word on %d", i+1)
					go func() {
						ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
						defer cancel()
						_, err := m.Ask(ctx, Request{Form: true})
						f.did[began] += fmt.Sprint(": ", err)
					}()
				case n == 16 && (lost < 0 || lost == i):
					same, own := map[ClusterID]int{}, 0
					for j := range size {
						if j != i && !slices.Contains(f.observers, uint64(j+1)) {
							if x := identity(j); x.Cluster != 0 {
								same[x.Cluster]++
								own = max(own, same[x.Cluster])
							}
						}
					}
					if own > (size-len(f.observers))/2 {
						lost = i
						f.begin(i, []string{"like", "empty", "foreign"}[r.IntN(3)])
					}
				default:
					if f.running[i] != nil && f.running[i].membership.gate.lifted() && f.write(i) {
						f.note("write on %d", i+1)
					}
				}
			}
			for range 10 + r.IntN(40) {
				step()
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
				f.judge()
			}
			f.note("all is well again")
			f.net.Heal()
			for i := range size {
				f.disks[i].SetFault(nil)
				f.judge()
				if f.running[i] == nil {
					f.start(i)
				}
			}
			for range 120 {
				time.Sleep(time.Second)
				f.judge()
			}
			some := false
			for i := range size {
				some = some || f.formed(i)
			}
			alike := !slices.ContainsFunc(f.kind, func(k string) bool { return k != "like" })
			f.note("formed: %v, alike: %v", some, alike)
			stats[fmt.Sprintf("formed %v, alike %v, word %v, lost %v", some, alike, word, lost >= 0)]++
			if !some && alike {
				t.Error("all are alike, and up, and form no cluster")
			}
			if !some {
				for i := range size {
					if f.kind[i] != "like" {
						f.begin(i, "empty")
					}
				}
				voter := slices.IndexFunc(f.kind, func(k string) bool { return k == "like" })
				if slices.Contains(f.observers, uint64(voter+1)) {
					voter += 1 + slices.IndexFunc(f.kind[voter+1:], func(k string) bool { return k == "like" })
				}
				var err error
				for range 10 {
					if _, err = f.running[voter].Ask(t.Context(), Request{Form: true}); err == nil {
						break
					}
					time.Sleep(5 * time.Second)
				}
				if err != nil {
					t.Errorf("word on %d: %v", voter+1, err)
				}
			}
			for i := range size {
				if f.running[i] != nil && !f.formed(i) && f.kind[i] != "like" { // as it says
					f.begin(i, "empty")
				}
			}
			f.whole()
			for i, m := range f.running {
				m.replica.View(func(v *fsm.View) {
					for _, id := range f.acked {
						if v.Sessions().Get(id) == nil {
							t.Errorf("server %d has lost write %d", i+1, id)
						}
					}
					if v.Sessions().Get(2) != nil {
						t.Errorf("server %d has the foreign state", i+1)
					}
				})
			}
			time.Sleep(10 * time.Second)
			f.judge()
		})
	}
}
