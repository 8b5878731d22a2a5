package storage

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/raft"
)

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
	// logPath is the file or directory that holds the log. Messages about
	// entries of the log name it.
	logPath(dir string) string

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
	if err != nil && !errors.Is(err, ErrInUse) && !strings.Contains(err.Error(), path) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// damaged is the error that the file or directory at path is damaged.
func damaged(path, format string, args ...any) error {
	return fmt.Errorf("%s is damaged: %w: restore it from a copy, or replace this server", path, fmt.Errorf(format, args...))
}
