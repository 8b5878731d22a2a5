package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
	"github.com/lockkeeper/lockkeeper/session"
)

// noops are entries without content.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}

// TestJoinLog: entries behind the leader's snapshot stay, as they may have been
// acknowledged, and those that the snapshot takes the place of go.
func TestJoinLog(t *testing.T) {
	for _, test := range []struct {
		name        string
		log         []*raft.Log
		first, last uint64 // that are left
	}{
		{"empty", nil, 0, 0},
		{"shorter", noops(3, 9, 1), 0, 0},
		{"the same entry, and more", noops(3, 13, 2), 3, 13},
		{"the same entry at the end", noops(3, 10, 2), 3, 10},
		{"another entry, and more", noops(3, 13, 1), 10, 13},
		{"another entry at the end", noops(3, 10, 1), 10, 10},
		{"another entry first", noops(10, 10, 1), 10, 10},
		{"another entry of a later term", noops(3, 12, 3), 10, 12},
		{"all behind", noops(11, 13, 2), 11, 13},
	} {
		log := raft.NewInmemStore()
		if err := log.StoreLogs(test.log); err != nil {
			t.Fatal(err)
		}
		err := joinLog(log, raft.SnapshotMeta{Index: 10, Term: 2})
		first, _ := log.FirstIndex()
		last, _ := log.LastIndex()
		if err != nil || first != test.first || last != test.last {
			t.Errorf("%s: %d to %d are left, want %d to %d; %v", test.name, first, last, test.first, test.last, err)
		}
	}
}

// TestGuardedLog: no write leaves a gap, and the entry at the snapshot's end stays.
func TestGuardedLog(t *testing.T) {
	m := &Member{stores: NewMemory().stores(), contacts: newContacts(1, timesFor(defaultElectionTimeout))}
	s := guardedStore{m.stores.log, m.stores.stable, m}
	expect := func(err error, ok bool, first, last uint64) {
		t.Helper()
		f, _ := s.FirstIndex()
		l, _ := s.LastIndex()
		if (err == nil) != ok || f != first || l != last {
			t.Errorf("entries %d to %d, want %d to %d; %v", f, l, first, last, err)
		}
	}
	expect(s.StoreLogs(noops(2, 3, 1)), false, 0, 0)
	expect(s.StoreLogs(noops(1, 8, 1)), true, 1, 8)
	expect(s.StoreLogs(noops(10, 10, 1)), false, 1, 8)
	sink, err := m.stores.snaps.Create(1, 6, 1, raft.Configuration{}, 1, nil)
	if err == nil {
		err = sink.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	expect(s.DeleteRange(1, 3), true, 4, 8)
	expect(s.DeleteRange(4, 6), true, 6, 8)
	expect(s.DeleteRange(6, 6), true, 6, 8)
	expect(s.DeleteRange(8, 8), true, 6, 7)
	expect(s.DeleteRange(6, 7), true, 0, 0) // the leader has others there
	expect(s.DeleteRange(0, 5), true, 0, 0)
	expect(s.StoreLogs(noops(8, 8, 2)), false, 0, 0)
	expect(s.StoreLogs(noops(6, 6, 2)), true, 6, 6)
	expect(s.StoreLogs(noops(6, 7, 3)), true, 6, 7)
	m.killed.Store(true)
	expect(s.StoreLogs(noops(8, 8, 3)), false, 6, 7)
	expect(s.DeleteRange(6, 7), false, 6, 7)
}

// TestStaleLog: a member whose log ends before, at or behind the end of the
// leader's snapshot, with entries that nobody else has, comes to have what the
// others have, though nobody writes any more.
func TestStaleLog(t *testing.T) {
	for _, beyond := range []int{-2, -1, 0, 1, 3} {
		t.Run(fmt.Sprint(beyond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStaleLog(t, beyond) })
		})
	}
}

func testStaleLog(t *testing.T, beyond int) {
	net := memnet.New()
	peers := map[uint64]string{1: "a:7", 2: "b:7", 3: "c:7"}
	memories := map[uint64]*Memory{1: NewMemory(), 2: NewMemory(), 3: NewMemory()}
	members := map[uint64]*Member{}
	start := func(ids ...uint64) {
		for _, id := range ids {
			m, err := Open(Config{
				ID: id, Peers: peers, Network: net.Host(peers[id][:1]), Memory: memories[id],
				Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1, Log: slog.New(slog.DiscardHandler),
			}, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			members[id] = m
		}
		for _, id := range ids {
			<-members[id].Ready()
		}
	}
	stop := func(ids ...uint64) {
		for _, id := range ids {
			if err := members[id].Close(); err != nil {
				t.Error(err)
			}
		}
	}
	write := func() {
		for n := 0; n < 20; {
			done := make(result, 1)
			members[1].Propose(fsm.OpenSession(1, 0, 1000_000, session.Password{1}), done, nil)
			if <-done == nil { // else a snapshot has taken it along
				n++
			}
		}
	}
	start(1, 2, 3)
	write()
	time.Sleep(time.Second) // so that all have it
	stop(3, 2, 1)
	log := memories[3].log
	last, _ := log.LastIndex()
	var l raft.Log
	if err := log.GetLog(last, &l); err != nil {
		t.Fatal(err)
	}
	start(1, 2) // in a later term
	leader := members[1]
	if leader.raft.State() != raft.Leader {
		leader = members[2]
	}
	var newest raft.SnapshotMeta
	for newest.Index < last+5 {
		write()
		time.Sleep(time.Second)
		var err error
		if newest, err = leader.stores.newest(); err != nil {
			t.Fatal(err)
		}
	}
	if newest.Term <= l.Term {
		t.Fatalf("the log ends in term %d, the snapshot in term %d", l.Term, newest.Term)
	}
	if err := log.StoreLogs(noops(last+1, newest.Index+uint64(beyond), l.Term)); err != nil {
		t.Fatal(err)
	}
	start(3)
	write()
	time.Sleep(time.Second)
	states := map[string]bool{}
	for _, m := range members {
		m.replica.View(func(v *fsm.View) {
			states[fmt.Sprintf("index %d, digest %x, %v", v.Index(), v.Digest(), v.Check())] = true
		})
	}
	if len(states) != 1 {
		t.Errorf("states differ: %v", states)
	}
	first, _ := log.FirstIndex()
	last, _ = log.LastIndex()
	for i := first; i <= last; i++ {
		var here, there raft.Log
		if err := log.GetLog(i, &here); err != nil {
			t.Errorf("entry %d of %d to %d: %v", i, first, last, err)
		}
		if leader.stores.log.GetLog(i, &there) == nil && here.Term != there.Term {
			t.Errorf("entry %d is of term %d, the leader's of term %d", i, here.Term, there.Term)
		}
	}
	stop(3, 2, 1)
}

// TestVoteIsOneWrite: a crash while a vote is stored leaves the vote before or
// the new one, never the new term with the candidate of the one before: to that
// candidate Raft would confirm a vote without comparing its log.
func TestVoteIsOneWrite(t *testing.T) {
	memory, dir := NewMemory(), t.TempDir()
	for name, open := range map[string]func() (*stores, error){
		"memory": func() (*stores, error) { return memory.stores(), nil },
		"files":  func() (*stores, error) { return openDir(dir, 1, slog.New(slog.DiscardHandler)) },
	} {
		t.Run(name, func(t *testing.T) {
			term, candidate := []byte("LastVoteTerm"), []byte("LastVoteCand")
			check := func(s *stores, wantTerm uint64, want string) {
				t.Helper()
				got, err := s.stable.GetUint64(term)
				who, err2 := s.stable.Get(candidate)
				for _, e := range []*error{&err, &err2} {
					if wantTerm == 0 && *e != nil && (*e).Error() == "not found" {
						*e = nil // as Raft takes it
					}
				}
				if err != nil || err2 != nil || got != wantTerm || string(who) != want {
					t.Errorf("a vote in term %d for %q, %v, %v; should be %d for %q", got, who, err, err2, wantTerm, want)
				}
			}
			s, err := open()
			if err != nil {
				t.Fatal(err)
			}
			check(s, 0, "")
			if err := errors.Join(s.bootstrap(raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "server-1"}}}), s.stable.SetUint64([]byte(currentTerm), 7)); err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"a", "b:1", "a"} {
				if err := errors.Join(s.stable.SetUint64(term, uint64(5+i)), s.stable.Set(candidate, []byte(want))); err != nil {
					t.Fatal(err)
				}
				check(s, uint64(5+i), want)
			}
			// The crash.
			if err := errors.Join(s.stable.SetUint64([]byte(currentTerm), 8), s.stable.SetUint64(term, 8), s.close()); err != nil {
				t.Fatal(err)
			}
			if s, err = open(); err != nil {
				t.Fatal(err)
			}
			check(s, 7, "a")
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
