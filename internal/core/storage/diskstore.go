package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// LogStore names a way to keep Raft's log on disk.
type LogStore string

const (
	// WAL is hashicorp/raft-wal, with one sync for each write of the log. The term
	// and the vote are in a database of hashicorp/raft-boltdb beside it.
	WAL LogStore = "wal"
	// BoltDB is hashicorp/raft-boltdb for everything.
	BoltDB LogStore = "boltdb"
)

// LogStores are all of them, the one for new directories first.
var LogStores = []LogStore{WAL, BoltDB}

// disk returns the store of that name.
func (s LogStore) disk(raftLog hclog.Logger) (diskStore, error) {
	switch s {
	case WAL:
		return walStore{segmentSize: segmentSize, log: raftLog}, nil
	case BoltDB:
		return boltStore{}, nil
	}
	return nil, fmt.Errorf("there is no log store %q", string(s))
}

// logStoreOf returns the store that a data directory has, or "" for a new one.
func logStoreOf(dir string) (LogStore, error) {
	m, err := readMeta(dir)
	if err != nil {
		return "", err
	} else if m != nil {
		return m.LogStore, nil
	}
	for _, s := range LogStores {
		disk, _ := s.disk(nil)
		if _, err := os.Stat(disk.logPath(dir)); !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return "", nil
}

// A diskStore is one way to keep Raft's log, term and vote in the files of a data
// directory. [Open] and [Check] do everything else, and do it alike for all of
// them: they read and write meta.json and the snapshots, add and compare
// checksums, let the store write nothing after a write has failed, store the vote
// in one write, read every entry of the log, and compare log, term and vote with
// the newest snapshot.
//
// Errors name the file that they are about. They are in one line, and the same
// each time.
type diskStore interface {
	name() LogStore

	// files are the names of the store's files, below the data directory.
	files(dir string) []string

	// logPath is the file or directory that holds the log. Messages about
	// entries of the log name it.
	logPath(dir string) string

	// stablePath is the file that holds the term and the vote. Messages about these
	// name it.
	stablePath(dir string) string

	// create makes the empty files of a data directory that has no meta.json yet.
	// Some of them may be there already, left by a crash or made by another
	// process at the same time; create keeps those. After a crash at any moment,
	// create can be called again.
	create(dir string) error

	// verify looks for damage in the files, before anything opens them, and
	// changes nothing. It need not look at what the checksums of entries and
	// values cover. If a file is missing, the error is an [fs.PathError] with
	// [fs.ErrNotExist]. If another process has the store open, it is ErrInUse.
	verify(dir string) error

	// open opens the files that verify has accepted, and keeps other processes
	// from opening them (ErrInUse) until the store is closed. A store that is
	// opened with readOnly changes no file, and nothing is written to it.
	open(dir string, readOnly bool) (raftStore, error)
}

// raftStore is a store as raft-boltdb, for example, has it: without checksums,
// and with Raft's own keys for the vote. A write is on the disk when it returns.
type raftStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// guard runs f, which reads the file at path, and turns a panic or a fault in
// mapped memory into an error. bbolt, for one, panics when it meets a damaged
// page. An error of f that does not name the file gets its name.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged(path, "%v", p)
		}
	}()
	err = f()
	if err != nil && !errors.Is(err, ErrInUse) && !errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), path) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// ErrDamaged is the kind of an error about a file in a data directory that is damaged or
// missing.
var ErrDamaged = errors.New("damaged")

// What to do about a directory with [ErrDamaged]. An old copy of a member's directory would have
// forgotten what that member has acknowledged.
const (
	RemedyAlone  = `restore a snapshot, or a copy of the directory (see "Backups" in docs/operations.md)`
	RemedyMember = `do not put back a copy of it: move it away, and start the server with an empty one, which gets its state from the other members (see "A damaged directory" in docs/operations.md)`
)

// damageError is an error of the kind ErrDamaged.
type damageError struct{ error }

func (damageError) Is(target error) bool { return target == ErrDamaged }
func (d damageError) Unwrap() error      { return d.error }

// damaged is the error that the file or directory at path is damaged.
func damaged(path, format string, args ...any) error {
	return damageError{fmt.Errorf("%s is damaged: %w", path, fmt.Errorf(format, args...))}
}

// verifyFiles is disk.verify, which calls a missing file damage.
func verifyFiles(disk diskStore, dir string) error {
	err := disk.verify(dir)
	if file := (*fs.PathError)(nil); errors.Is(err, fs.ErrNotExist) && errors.As(err, &file) {
		return damageError{fmt.Errorf("%s is missing, but %s was in use", file.Path, dir)}
	}
	return err
}
