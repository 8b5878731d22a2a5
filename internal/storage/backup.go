package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

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

// makingDir is the directory, in a data directory, in which Make makes it.
const makingDir = "making.tmp"

// Make makes a data directory that begins with what fill stores, and verifies it. The
// directory must be empty or not exist, and is left like that if there is an error.
//
// Everything is made in a directory inside of it, so that dir may be where a disk is
// mounted, and is then moved into its place, meta.json last. A crash leaves either a
// directory without a log, which Make can be called for again, or a complete log.
func Make(dir string, kind LogStore, serverID uint64, log *slog.Logger, raftLog hclog.Logger, fill func(*Storage) error) (err error) {
	entries, err := os.ReadDir(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return err
	}
	for _, e := range entries {
		if e.Name() != makingDir && e.Name() != "lost+found" { // which a new file system has
			return fmt.Errorf("%s is not empty: move away what is in it", dir)
		}
	}
	making := filepath.Join(dir, makingDir)
	defer func() {
		os.RemoveAll(making)
		if err != nil {
			os.RemoveAll(filepath.Join(dir, raftDir))
			os.Remove(filepath.Join(dir, metaFile))
			if isNew {
				os.Remove(dir)
			}
		}
	}()
	if err := os.RemoveAll(making); err != nil {
		return err
	}
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
		if err := os.Rename(filepath.Join(making, name), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
			return err
		}
	}
	return nil
}
