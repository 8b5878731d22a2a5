package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// Save verifies the data directory of a server that is not running, as [Check] does, and
// writes its state to w as a snapshot. The state of a cluster's member includes all
// entries that it has stored, also those of which it does not know that they were
// committed.
func Save(dir string, w io.Writer) (*Report, error) {
	report, machine, err := verify(dir)
	if err != nil {
		return nil, err
	}
	return report, machine.Snapshot().Write(w)
}

// VerifySnapshot reads a snapshot, with nothing after it, verifies it, and describes its state.
func VerifySnapshot(r io.Reader) (State, error) {
	m, err := fsm.ReadSnapshot(r)
	if err != nil {
		return State{}, err
	}
	return stateOf(m), m.Check()
}

// isMaking reports whether name is that of a directory, in a data directory, in which Make
// makes it.
func isMaking(name string) bool {
	return strings.HasPrefix(name, "making.") && strings.HasSuffix(name, ".tmp")
}

// removeMaking removes what Makes that did not end well have left in a data directory.
func removeMaking(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if isMaking(e.Name()) {
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// Make makes a data directory that begins with what fill stores, and verifies it. The
// directory must be empty or not exist.
//
// Everything is made in a directory inside of it, so that dir may be where a disk is
// mounted, and is then moved into its place, meta.json last. A crash, or an error after the
// log was moved, leaves a complete log. Any other one leaves a directory without a log, which
// Make can be called for again.
//
// Make removes and replaces nothing outside of the directory inside: if a server or another
// Make has begun with dir meanwhile, this one fails.
func Make(dir string, kind LogStore, serverID uint64, log *slog.Logger, raftLog hclog.Logger, fill func(*Storage) error) (err error) {
	entries, err := os.ReadDir(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return err
	}
	for _, e := range entries {
		if !isMaking(e.Name()) && e.Name() != "lost+found" { // which a new file system has
			return fmt.Errorf("%s is not empty: move away what is in it", dir)
		}
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	making, err := os.MkdirTemp(dir, "making.*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		os.RemoveAll(making)
		if err != nil && isNew {
			os.Remove(dir) // if it is empty
		}
	}()
	s, err := Open(making, kind, serverID, log, raftLog)
	if err != nil {
		return err
	}
	if err := errors.Join(fill(s), s.Close()); err != nil {
		return err
	}
	if _, err := Check(making); err != nil {
		return err
	}
	for _, name := range []string{raftDir, metaFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return cmp.Or(err, fmt.Errorf("%s is in use already: it was made meanwhile", filepath.Join(dir, name)))
		}
		if err := os.Rename(filepath.Join(making, name), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
			return err
		}
	}
	removeMaking(dir) // another Make that has not ended would fail
	return nil
}
