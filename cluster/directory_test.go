package cluster

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

func testConfig(dir string) Config {
	return Config{ID: 1, Dir: dir, Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}
}

// openReady opens a member, waits until it leads, and closes it.
func openReady(t *testing.T, cfg Config) {
	t.Helper()
	m, err := Open(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Ready():
	case err := <-m.Err():
		t.Error(err)
	case <-time.After(time.Minute):
		t.Error("never ready")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestCrashWhileNew crashes a member while it makes its directory: the next one finishes that.
func TestCrashWhileNew(t *testing.T) {
	t.Run("raft.db is empty", func(t *testing.T) {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "raft/snapshots"), 0o755), os.WriteFile(filepath.Join(dir, "raft/raft.db"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
	t.Run("raft.db is not whole", func(t *testing.T) {
		dir := t.TempDir()
		unfinished := filepath.Join(dir, "raft/raft.db"+".1.tmp")
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "raft/snapshots"), 0o755), os.WriteFile(unfinished, make([]byte, 5000), 0o600)); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
		if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", unfinished, err)
		}
	})
	t.Run("raft.db without meta.json", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "raft/snapshots"), 0o755); err != nil {
			t.Fatal(err)
		}
		db, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft/raft.db"))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
	t.Run("a term and no entry", func(t *testing.T) {
		dir := t.TempDir()
		s, err := storage.Open(dir, 1, testConfig("").Log, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Stable.SetUint64([]byte(storage.TermKey), 1), s.Close()); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
}

// TestLostEntries takes the newest entries away, whole: what is left is not
// damaged in itself, but the vote tells of more.
func TestLostEntries(t *testing.T) {
	dir := t.TempDir()
	openReady(t, testConfig(dir))
	db, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft/raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	last, err := db.LastIndex()
	if err := errors.Join(err, db.DeleteRange(1, last), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(testConfig(dir), fsm.NewReplica()); err == nil {
		t.Error("a member without its log was opened")
	}
}

// TestProposeAfterClose tells every waiter, also those that come late.
func TestProposeAfterClose(t *testing.T) {
	m, err := Open(testConfig(""), fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	w := make(result, 1)
	m.Propose(&fsm.Command{Op: proto.OpSync}, w, nil)
	if err := <-w; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestPrivateFiles: only the owner may read what a member writes, and Check
// names a file that others may read.
func TestPrivateFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such modes")
	}
	dir := filepath.Join(t.TempDir(), "data")
	cfg := testConfig(dir)
	cfg.SnapshotBytes = 1
	m, err := Open(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	until(t, "a snapshot", func() bool {
		done := make(outcome, 1)
		m.Propose(fsm.Nothing(), done, nil)
		<-done
		newest, err := m.storage.NewestSnapshot()
		return err == nil && newest.Index > 0
	})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	var paths []string
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&0o77 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	state := slices.IndexFunc(paths, func(p string) bool { return filepath.Base(p) == "state.bin" })
	if state < 0 {
		t.Fatalf("no snapshot in %v", paths)
	}
	checkExposed := func(when, want string) {
		t.Helper()
		if r, err := storage.Check(dir); err != nil || r.Exposed != want {
			t.Errorf("%s: Check says %+v, %v, should name %q", when, r, err, want)
		}
	}
	checkExposed("as it was made", "")
	chmod := func(path string, mode os.FileMode) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for d := filepath.Dir(paths[state]); d != dir; d = filepath.Dir(d) {
		chmod(d, 0o755)
	}
	chmod(paths[state], 0o644)
	checkExposed("below a private directory", "")
	chmod(dir, 0o710)
	checkExposed("readable for the group", paths[state])
	chmod(paths[state], 0o604)
	checkExposed("readable for those who may not enter", "")
}
