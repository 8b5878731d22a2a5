package storage

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/raft"
)

// TermKey is the key under which Raft stores its term in [Storage.Stable].
const TermKey = "CurrentTerm"

const (
	// The keys under which Raft stores its vote, and which voteStore replaces.
	voteTermKey      = "LastVoteTerm"
	voteCandidateKey = "LastVoteCand"

	// voteKey is the key under which voteStore keeps the vote.
	voteKey = "LastVote"

	// rejoiningKey has the value 1 while Rejoining holds.
	rejoiningKey = "Rejoining"
)

// Term is the newest term that was stored; 0 if there is none.
func (s *Storage) Term() (uint64, error) { return stableUint64(s.Stable, TermKey) }

// Rejoining reports what SetRejoining stored last.
func (s *Storage) Rejoining() (bool, error) {
	n, err := stableUint64(s.Stable, rejoiningKey)
	return n != 0, err
}

// SetRejoining stores whether this member was added without a vote and has yet
// to ask for it.
func (s *Storage) SetRejoining(rejoining bool) error {
	var n uint64
	if rejoining {
		n = 1
	}
	return s.Stable.SetUint64([]byte(rejoiningKey), n)
}

// stableUint64 reads a number, 0 if there is none.
func stableUint64(s raft.StableStore, key string) (uint64, error) {
	v, err := s.GetUint64([]byte(key))
	if missing(err) {
		return 0, nil
	}
	return v, err
}

// missing reports whether err says that a key has no value. Each store has an error of
// its own for that, and Raft compares the text.
func missing(err error) bool { return err != nil && err.Error() == errNoKey.Error() }

// voteStore stores Raft's vote in one write: the term, followed by the candidate
// and a mark. Raft stores the term first and the candidate after it. A crash
// between those two writes would leave the new term with the candidate of an
// earlier vote, and Raft would confirm that vote to this candidate without
// comparing its log.
//
// voteStore holds a term back until its candidate follows. Raft does not answer
// the candidate before both are stored, only its main goroutine votes and stores
// entries, and that one does nothing else between the two.
type voteStore struct {
	raft.StableStore
	unused  func() (bool, error) // whether there is neither an entry nor a snapshot; nil if nothing is written
	term    uint64               // whose candidate is yet to be stored
	settled bool                 // the stored vote is not marked as votedUnused
}

// A vote ends with a mark, which no candidate does, since these are addresses. It tells a
// member that voted before it had any entry from one that has lost its log.
const (
	votedUnused = 0 // there was neither an entry nor a snapshot
	votedInUse  = 1
)

// keepVotes has the storage keep Raft's votes in a voteStore.
func (s *Storage) keepVotes() {
	votes := &voteStore{StableStore: s.Stable, unused: s.noEntries}
	s.Stable, s.Log = votes, votedLog{s.Log, votes}
}

// votedLog changes the mark of the vote when the first entry has been stored after it.
// A snapshot of the leader is followed by an entry, too.
type votedLog struct {
	raft.LogStore
	votes *voteStore
}

func (l votedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l votedLog) StoreLogs(logs []*raft.Log) error {
	if err := l.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	return l.votes.settle()
}

// settle marks the stored vote as one of a member that has entries.
func (s *voteStore) settle() error {
	if s.settled {
		return nil
	}
	term, candidate, mark, err := s.read()
	if err == nil && mark == votedUnused && term > 0 {
		err = s.store(term, candidate, votedInUse)
	} else if missing(err) {
		err = nil
	}
	s.settled = err == nil
	return err
}

func (s *voteStore) store(term uint64, candidate []byte, mark byte) error {
	return s.StableStore.Set([]byte(voteKey), append(append(binary.BigEndian.AppendUint64(nil, term), candidate...), mark))
}

func (s *voteStore) SetUint64(key []byte, v uint64) error {
	if string(key) == voteTermKey {
		s.term = v
		return nil
	}
	return s.StableStore.SetUint64(key, v)
}

func (s *voteStore) Set(key, v []byte) error {
	if string(key) != voteCandidateKey {
		return s.StableStore.Set(key, v)
	}
	unused, err := s.unused()
	if err != nil {
		return err
	}
	if s.settled = !unused; unused {
		return s.store(s.term, v, votedUnused)
	}
	return s.store(s.term, v, votedInUse)
}

func (s *voteStore) GetUint64(key []byte) (uint64, error) {
	if string(key) == voteTermKey {
		term, _, _, err := s.read()
		return term, err
	}
	return s.StableStore.GetUint64(key)
}

func (s *voteStore) Get(key []byte) ([]byte, error) {
	if string(key) == voteCandidateKey {
		_, candidate, _, err := s.read()
		return candidate, err
	}
	return s.StableStore.Get(key)
}

// read reads the stored vote. If there is none, it returns term 0 and no
// candidate, with the error that the underlying store has for a missing key.
func (s *voteStore) read() (term uint64, candidate []byte, mark byte, err error) {
	b, err := s.StableStore.Get([]byte(voteKey))
	end := len(b) - 1
	switch {
	case err != nil || len(b) == 0:
		return 0, nil, 0, err
	case end < 8 || b[end] > votedInUse:
		return 0, nil, 0, fmt.Errorf("%s: %w", voteKey, errChecksum)
	}
	return binary.BigEndian.Uint64(b), b[8:end], b[end], nil
}
