package cluster

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// guardedStore makes a store that cannot be written the end of this member.
// Raft by itself would panic when it cannot store its term, and would stand for
// election again and again when it cannot store its log.
type guardedStore struct {
	raft.LogStore
	raft.StableStore
	m *Member
}

func (s guardedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s guardedStore) StoreLogs(logs []*raft.Log) error {
	if s.m.killed.Load() {
		return ErrClosed
	}
	if err := s.follows(logs[0].Index); err != nil {
		return err
	}
	err := s.m.stall.write(s.m.moment(), func() error { return s.LogStore.StoreLogs(logs) })
	if err != nil {
		s.m.cannotWrite(err)
	}
	return err
}

// follows refuses an entry that would leave a gap in the log, or between the
// newest snapshot and the log.
func (s guardedStore) follows(index uint64) error {
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		newest, err := s.m.stores.newest()
		if err != nil {
			return err
		}
		last = newest.Index
	}
	if index > last+1 {
		return fmt.Errorf("cluster: entry %d does not follow entry %d", index, last)
	}
	return nil
}

// DeleteRange keeps the entry at the end of the newest snapshot. Raft looks at
// no snapshot for that entry's term once its log goes on behind it, and without
// the term it refuses what the leader sends next.
func (s guardedStore) DeleteRange(first, last uint64) error {
	if s.m.killed.Load() {
		return ErrClosed
	}
	newest, err := s.m.stores.newest()
	if err != nil {
		return err
	}
	if last == newest.Index {
		last--
	}
	if first > last {
		return nil
	}
	err = s.LogStore.DeleteRange(first, last)
	if err != nil {
		s.m.cannotWrite(err)
	}
	return err
}

// joinLog makes a log fit the snapshot that the leader has sent. Raft leaves
// that undone, and does not look at the log again: it goes on to believe that
// the log ends where it did.
//
// If the log has the snapshot's last entry, all of it stays: what comes after
// that entry may have been acknowledged (Raft's paper, section 7). If it ends
// before that entry, it goes. Else what it has there is not what was committed.
// The entries before go, since others might get them from here one day, and
// that at the snapshot's end is replaced by the leader's: see
// transport.InstallSnapshot.
func joinLog(log raft.LogStore, newest raft.SnapshotMeta) error {
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil || first == 0 {
		return err
	}
	if last >= newest.Index {
		var l raft.Log
		if err := log.GetLog(newest.Index, &l); err == raft.ErrLogNotFound || err == nil && l.Term == newest.Term {
			return nil
		} else if err != nil {
			return err
		}
		last = newest.Index - 1
	}
	if first > last {
		return nil
	}
	return log.DeleteRange(first, last)
}

// latchedStore writes nothing after a write has failed. A database whose sync
// failed does not know what the disk holds: the next write could take the place
// of pages that the disk, after a loss of power, still needs.
type latchedStore struct {
	raft.LogStore
	raft.StableStore
	mu    sync.Mutex
	fault error
}

func (s *latchedStore) write(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.fault = f()
	}
	return s.fault
}

func (s *latchedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *latchedStore) StoreLogs(logs []*raft.Log) error {
	return s.write(func() error { return s.LogStore.StoreLogs(logs) })
}

func (s *latchedStore) DeleteRange(first, last uint64) error {
	return s.write(func() error { return s.LogStore.DeleteRange(first, last) })
}

func (s *latchedStore) Set(key, val []byte) error {
	return s.write(func() error { return s.StableStore.Set(key, val) })
}

func (s *latchedStore) SetUint64(key []byte, val uint64) error {
	return s.write(func() error { return s.StableStore.SetUint64(key, val) })
}

// The keys under which Raft stores its term and its vote.
const (
	currentTerm   = "CurrentTerm"
	voteTerm      = "LastVoteTerm"
	voteCandidate = "LastVoteCand"
)

// vote is the key under which voteStore keeps the vote.
const vote = "LastVote"

// voteStore keeps Raft's vote as one value: the term, and behind it the
// candidate. Raft stores the term first and then the candidate. A crash in
// between would leave the new term with the candidate of an earlier vote, and
// Raft would confirm that vote to this candidate without comparing its log.
//
// A term is held back until its candidate comes, without which Raft tells nobody
// of the vote. Only Raft's main goroutine votes, and it does nothing in between.
type voteStore struct {
	raft.StableStore
	term uint64 // whose candidate is to come
}

func (s *voteStore) SetUint64(key []byte, v uint64) error {
	if string(key) == voteTerm {
		s.term = v
		return nil
	}
	return s.StableStore.SetUint64(key, v)
}

func (s *voteStore) Set(key, v []byte) error {
	if string(key) == voteCandidate {
		return s.StableStore.Set([]byte(vote), append(binary.BigEndian.AppendUint64(nil, s.term), v...))
	}
	return s.StableStore.Set(key, v)
}

func (s *voteStore) GetUint64(key []byte) (uint64, error) {
	if string(key) == voteTerm {
		term, _, err := s.vote()
		return term, err
	}
	return s.StableStore.GetUint64(key)
}

func (s *voteStore) Get(key []byte) ([]byte, error) {
	if string(key) == voteCandidate {
		_, candidate, err := s.vote()
		return candidate, err
	}
	return s.StableStore.Get(key)
}

// vote reads the vote that is stored; without one it is that of term 0 for
// nobody, or an error that says so, as the store has it.
func (s *voteStore) vote() (term uint64, candidate []byte, err error) {
	b, err := s.StableStore.Get([]byte(vote))
	switch {
	case err != nil || len(b) == 0:
		return 0, nil, err
	case len(b) < 8:
		return 0, nil, fmt.Errorf("%s: %w", vote, errSeal)
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}

// newest describes the newest snapshot; it is zero if there is none.
func (s *stores) newest() (raft.SnapshotMeta, error) {
	list, err := s.snaps.List()
	if err != nil || len(list) == 0 {
		return raft.SnapshotMeta{}, err
	}
	return *list[0], nil
}

func (s guardedStore) Set(key, val []byte) error {
	return s.stable(func() error { return s.StableStore.Set(key, val) })
}

func (s guardedStore) SetUint64(key []byte, val uint64) error {
	if string(key) == currentTerm {
		s.m.terms.begin(val)
		// Raft stores again what it has read while it starts. A fault would then
		// have stable wait for somebody to close a member that is not open yet.
		if stored, err := stableUint64(s.StableStore, currentTerm); err == nil && stored == val {
			return nil
		}
	}
	return s.stable(func() error { return s.StableStore.SetUint64(key, val) })
}

func (s guardedStore) stable(store func() error) error {
	err := ErrClosed
	if !s.m.killed.Load() {
		err = s.m.stall.write(s.m.moment(), store)
	}
	if err == nil {
		return nil
	}
	s.m.cannotWrite(err)
	// Whoever is told of the fault closes this member. Until then Raft must
	// not go on without its term and vote, and an error would make it panic.
	// Nobody may hear of a vote that is not stored: it would be given twice.
	<-s.m.stop
	if s.m.peers != nil {
		<-s.m.peers.cut
	}
	return nil
}

func (m *Member) cannotWrite(err error) {
	m.fail(fmt.Errorf("cannot write to %s: %w", m.stores.where, err))
}
