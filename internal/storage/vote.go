package storage

import (
	"encoding/binary"
	"errors"
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
	if errors.Is(err, errNoKey) {
		return 0, nil
	}
	return v, err
}

// voteStore stores Raft's vote in one write: the term, followed by the
// candidate. Raft stores the term first and the candidate after it. A crash
// between those two writes would leave the new term with the candidate of an
// earlier vote, and Raft would confirm that vote to this candidate without
// comparing its log.
//
// voteStore holds a term back until its candidate follows. Raft does not answer
// the candidate before both are stored, only its main goroutine votes, and that
// one does nothing else between the two.
type voteStore struct {
	raft.StableStore
	term uint64 // whose candidate is yet to be stored
}

func (s *voteStore) SetUint64(key []byte, v uint64) error {
	if string(key) == voteTermKey {
		s.term = v
		return nil
	}
	return s.StableStore.SetUint64(key, v)
}

func (s *voteStore) Set(key, v []byte) error {
	if string(key) == voteCandidateKey {
		return s.StableStore.Set([]byte(voteKey), append(binary.BigEndian.AppendUint64(nil, s.term), v...))
	}
	return s.StableStore.Set(key, v)
}

func (s *voteStore) GetUint64(key []byte) (uint64, error) {
	if string(key) == voteTermKey {
		term, _, err := s.vote()
		return term, err
	}
	return s.StableStore.GetUint64(key)
}

func (s *voteStore) Get(key []byte) ([]byte, error) {
	if string(key) == voteCandidateKey {
		_, candidate, err := s.vote()
		return candidate, err
	}
	return s.StableStore.Get(key)
}

// vote reads the stored vote. If there is none, it returns term 0 and no
// candidate, with the error that the underlying store has for a missing key.
func (s *voteStore) vote() (term uint64, candidate []byte, err error) {
	b, err := s.StableStore.Get([]byte(voteKey))
	switch {
	case err != nil || len(b) == 0:
		return 0, nil, err
	case len(b) < 8:
		return 0, nil, fmt.Errorf("%s: %w", voteKey, errChecksum)
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}
