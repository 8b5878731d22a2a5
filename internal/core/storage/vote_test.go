package storage

import (
	"errors"
	"testing"
)

// TestVoteIsOneWrite: a crash while a vote is stored leaves the vote before or
// the new one, never the new term with the candidate of the one before: to that
// candidate Raft would confirm a vote without comparing its log.
func TestVoteIsOneWrite(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *Storage) {
		term, candidate := []byte(voteTermKey), []byte(voteCandidateKey)
		votedFor := func(s *Storage, wantTerm uint64, want string) {
			t.Helper()
			got, err := s.Stable.GetUint64(term)
			who, err2 := s.Stable.Get(candidate)
			for _, e := range []*error{&err, &err2} {
				if wantTerm == 0 && *e != nil && (*e).Error() == "not found" {
					*e = nil // Raft compares the text
				}
			}
			if err != nil || err2 != nil || got != wantTerm || string(who) != want {
				t.Errorf("a vote in term %d for %q, %v, %v; should be %d for %q", got, who, err, err2, wantTerm, want)
			}
		}
		s := open()
		votedFor(s, 0, "")
		check(t, errors.Join(s.Bootstrap(alone), s.Stable.SetUint64([]byte(TermKey), 7)))
		for i, want := range []string{"a", "b:1", "a"} {
			check(t, errors.Join(s.Stable.SetUint64(term, uint64(5+i)), s.Stable.Set(candidate, []byte(want))))
			votedFor(s, uint64(5+i), want)
		}
		// The crash.
		check(t, errors.Join(s.Stable.SetUint64([]byte(TermKey), 8), s.Stable.SetUint64(term, 8), s.Close()))
		s = open()
		votedFor(s, 7, "a")
		check(t, s.Close())
	})
}
