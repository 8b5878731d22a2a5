package storage

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// TestVoteIsOneWrite: a crash while a vote is stored leaves the vote before or
// the new one, never the new term with the candidate of the one before: to that
// candidate Raft would confirm a vote without comparing its log.
func TestVoteIsOneWrite(t *testing.T) {
	memory, dir := NewMemory(), t.TempDir()
	for name, open := range map[string]func() (*Storage, error){
		"memory": func() (*Storage, error) { return memory.Open(), nil },
		"files":  func() (*Storage, error) { return Open(dir, 1, slog.New(slog.DiscardHandler), hclog.NewNullLogger()) },
	} {
		t.Run(name, func(t *testing.T) {
			term, candidate := []byte(voteTermKey), []byte(voteCandidateKey)
			check := func(s *Storage, wantTerm uint64, want string) {
				t.Helper()
				got, err := s.Stable.GetUint64(term)
				who, err2 := s.Stable.Get(candidate)
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
			if err := errors.Join(s.Bootstrap(raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "server-1"}}}), s.Stable.SetUint64([]byte(TermKey), 7)); err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"a", "b:1", "a"} {
				if err := errors.Join(s.Stable.SetUint64(term, uint64(5+i)), s.Stable.Set(candidate, []byte(want))); err != nil {
					t.Fatal(err)
				}
				check(s, uint64(5+i), want)
			}
			// The crash.
			if err := errors.Join(s.Stable.SetUint64([]byte(TermKey), 8), s.Stable.SetUint64(term, 8), s.Close()); err != nil {
				t.Fatal(err)
			}
			if s, err = open(); err != nil {
				t.Fatal(err)
			}
			check(s, 7, "a")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
