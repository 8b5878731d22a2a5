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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

// Save verifies the data directory of a server that is not running, as [Check] does, and
// writes its state, which [Load] describes, to w as a snapshot.
func Save(dir string, w io.Writer) (*Report, error) {
	report, machine, err := Load(dir)
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

// isMaking reports whether name is that of a directory in which MakeDir makes the one around it.
func isMaking(name string) bool {
	return strings.HasPrefix(name, "making.") && strings.HasSuffix(name, ".tmp")
}

// halfMade returns an error if MakeDir is at work in dir, or a crash has ended it, and has not moved anything into its place. A
// server must not begin there without the state that somebody has begun to put there.
func halfMade(dir string) error {
	entries, _ := os.ReadDir(dir)
	making := slices.IndexFunc(entries, func(e fs.DirEntry) bool { return isMaking(e.Name()) })
	if making < 0 || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == raftDir }) {
		return nil
	}
	return fmt.Errorf("there is no state in %s, and %s shows that a restore or a migration has not ended: run it again, or remove that to begin without one",
		dir, filepath.Join(dir, entries[making].Name()))
}

// removeMaking removes what calls of MakeDir that did not end well have left in a directory.
func removeMaking(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if isMaking(e.Name()) {
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// Make makes a data directory that begins with what fill stores, and verifies it, by [MakeDir],
// meta.json last. A crash, or an error after the log was moved, leaves a complete log. Any other one
// leaves a directory without a log, which Make can be called for again.
func Make(dir string, kind LogStore, serverID uint64, log *slog.Logger, raftLog hclog.Logger, fill func(*Storage) error) error {
	return MakeDir(dir, func(making string) ([]string, error) {
		s, err := Open(making, kind, serverID, log, raftLog)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(fill(s), s.Close()); err != nil && !strings.Contains(err.Error(), making) {
			return nil, fmt.Errorf("%s: %w", making, err) // bbolt's may be a bare "no space left on device"
		} else if err != nil {
			return nil, err
		}
		_, err = Check(making)
		return []string{raftDir, metaFile}, err
	})
}

// MakeDir makes a directory, which must be empty or not exist. fill makes everything in a directory
// inside of it, so that dir may be where a disk is mounted, and syncs it. MakeDir then moves what fill
// names into its place, one after the other, durably.
//
// MakeDir removes and replaces nothing outside of the directory inside: if another MakeDir, or a server that found dir empty
// just before, has begun with dir meanwhile, this one fails. No server begins with dir while that directory is there.
func MakeDir(dir string, fill func(making string) (names []string, err error)) (err error) {
	dir = filepath.Clean(dir) // without a slash at its end, so that filepath.Dir is its parent
	_, err = os.Stat(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	if free, err := isFree(dir); err != nil {
		return err
	} else if !free {
		return fmt.Errorf("%s is not empty: move away what is in it", dir)
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
	names, err := fill(making)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return cmp.Or(err, fmt.Errorf("%s is in use already: it was made meanwhile", filepath.Join(dir, name)))
		}
		if err := os.Rename(filepath.Join(making, name), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := errors.Join(fsync.Dir(dir), fsync.Name(dir)); err != nil {
			return err
		}
	}
	removeMaking(dir) // another MakeDir that has not ended would fail
	return nil
}

// oldEnd and a time are at the end of the name that SetAside gives to a directory.
const oldEnd = ".old-"

// SetAside gives what is at dir another name, dir.old- and a time, which it returns, and has fill make dir anew. If no server runs on dir: otherwise
// the error is [ErrInUse]. None may be started meanwhile. If there was nothing that [MakeDir] minds, old is empty, and so it is if fill has
// failed and dir is as it was. A crash may leave nothing at dir; [Open] and [Check] then say where it is. If dir is a symbolic link, all
// that is done where it leads to.
func SetAside(dir string, fill func(dir string) error) (old string, err error) {
	if free, err := isFree(dir); err != nil {
		return "", err
	} else if free {
		return "", fill(dir)
	}
	for _, file := range []string{walStable, boltFile} {
		err := withoutOthers(filepath.Join(dir, file), func() error { return nil })
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", err
		}
	}
	if dir, err = filepath.EvalSymlinks(dir); err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", err
	}
	old = dir + oldEnd + time.Now().UTC().Format("20060102T150405.000Z")
	if err := os.Rename(dir, old); err != nil {
		return "", err
	}
	err = fsync.Dir(filepath.Dir(dir))
	if err == nil {
		err = fill(dir)
	}
	if err != nil && os.Rename(old, dir) == nil {
		old = ""
	}
	return old, err
}

// nothingAt returns an error if there is nothing at dir since a [SetAside] has not ended: a server must not begin without a state there.
func nothingAt(dir string) error {
	if to, err := os.Readlink(dir); err == nil && filepath.IsAbs(to) {
		dir = to
	} else if err == nil {
		dir = filepath.Join(filepath.Dir(dir), to)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entries, _ := os.ReadDir(filepath.Dir(dir))
	for _, e := range slices.Backward(entries) { // the newest first
		if strings.HasPrefix(e.Name(), filepath.Base(dir)+oldEnd) {
			return fmt.Errorf("there is nothing at %s, and what was there is %s: a restore of a snapshot has not ended; run it again, or rename that, or make %[1]s to begin without a state", dir, filepath.Join(filepath.Dir(dir), e.Name()))
		}
	}
	return nil
}

// isFree reports whether MakeDir can make dir: it does not exist, or has nothing that anybody needs.
func isFree(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range entries {
		if !isMaking(e.Name()) && e.Name() != "lost+found" { // which a new file system has
			return false, nil
		}
	}
	return true, nil
}
