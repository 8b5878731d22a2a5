package reread

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// texts is a source of two files, which must not begin with a !.
type texts struct {
	a, b string
	mu   sync.Mutex
	now  string
}

func (s *texts) Read() Contents { return Read(s.a, s.b, "", s.a) }

func (s *texts) Load(c Contents) ([]any, error) {
	for _, f := range []string{s.a, s.b} {
		if err := c[f].Err; err != nil {
			return nil, err
		}
		if strings.HasPrefix(string(c[f].Text), "!") {
			return nil, fmt.Errorf("%s: it is bad", f)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = string(c[s.a].Text) + "," + string(c[s.b].Text)
	return []any{"now", s.now}, nil
}

func (s *texts) loaded() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// TestKeeper: files that belong together are put to use when they have been the same for a second, and at once
// if somebody wants it. Bad ones change nothing, and are logged once.
func TestKeeper(t *testing.T) {
	dir := t.TempDir()
	s := &texts{a: filepath.Join(dir, "a"), b: filepath.Join(dir, "b")}
	write := func(file, text string) { testkit.Check(t, os.WriteFile(file, []byte(text), 0o600)) }
	var log testkit.Log
	if _, err := Open("X", "y", s.Read, s.Load, log.Logger(slog.LevelInfo)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), s.a) {
		t.Errorf("without files: %v", err)
	}
	write(s.a, "1")
	write(s.b, "!")
	if _, err := Open("X", "y", s.Read, s.Load, log.Logger(slog.LevelInfo)); err == nil || err.Error() != s.b+": it is bad" {
		t.Errorf("with a bad file: %v", err)
	}
	write(s.b, "2")
	if log.String() != "" {
		t.Errorf("before there is anything to be changed: %s", &log)
	}
	synctest.Test(t, func(t *testing.T) {
		k := testkit.Must(Open("X", "y", s.Read, s.Load, log.Logger(slog.LevelInfo)))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { k.Watch(ctx) })
		defer wg.Wait()
		defer cancel()
		is := func(when, text string, state State, lines int) {
			t.Helper()
			synctest.Wait()
			if s.loaded() != text || k.State() != state || len(log.Matching()) != lines {
				t.Errorf("%s: %q, %+v, the log: %s", when, s.loaded(), k.State(), &log)
			}
		}
		is("at first", "1,2", State{}, 0)
		time.Sleep(time.Hour)
		is("as long as nothing changes", "1,2", State{}, 0)
		write(s.a, "3")
		time.Sleep(Every)
		is("a look has found a change", "1,2", State{}, 0)
		write(s.b, "4")
		time.Sleep(Settle)
		is("there is another one", "1,2", State{}, 0)
		time.Sleep(Settle)
		is("they have been the same for a second", "3,4", State{Reloads: 1}, 1)
		write(s.b, "!")
		time.Sleep(time.Hour)
		is("one is bad", "3,4", State{Reloads: 1, Failures: 1, Refused: true}, 2)
		k.Reload()
		is("somebody wants it to be read", "3,4", State{Reloads: 1, Failures: 2, Refused: true}, 3)
		testkit.Check(t, os.Remove(s.b))
		time.Sleep(time.Hour)
		is("it is missing", "3,4", State{Reloads: 1, Failures: 3, Refused: true}, 4)
		write(s.b, "4")
		time.Sleep(Every + Settle)
		is("it is back", "3,4", State{Reloads: 2, Failures: 3}, 5)
		write(s.a, "5")
		k.Reload()
		is("at once", "5,4", State{Reloads: 3, Failures: 3}, 6)
		testkit.Check(t, os.Truncate(s.a, MaxFile+1))
		k.Reload()
		is("it is too long", "5,4", State{Reloads: 3, Failures: 4, Refused: true}, 7)
	})
	for i, want := range []string{
		`INFO msg="the files for X have been read again" for=y now=3,4`, `ERROR msg="the files for X have changed and cannot be used`, "ERROR", "ERROR",
		`WARN msg="the files for X can be used again" for=y`, "INFO", "more than 16777216",
	} {
		if lines := log.Matching(); i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d is not %q: %q", i, want, lines)
		}
	}
}
