package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// boltFile is the file that boltStore keeps, below the data directory.
const boltFile = "raft/raft.db"

// errNoKey is a StableStore's error for a key that has no value.
var errNoKey = raftboltdb.ErrKeyNotFound

// lockTimeout is how long to wait while another process has the file open.
const lockTimeout = 200 * time.Millisecond

// boltStore is the [diskStore] that keeps the log, the term and the vote in one
// bbolt database. The lock on that file is what tells that a data directory is in use.
type boltStore struct{}

func (boltStore) name() LogStore        { return BoltDB }
func (boltStore) files(string) []string { return []string{boltFile} }

func (boltStore) logPath(dir string) string    { return filepath.Join(dir, boltFile) }
func (boltStore) stablePath(dir string) string { return filepath.Join(dir, boltFile) }

func (b boltStore) create(dir string) error { return createDatabase(b.logPath(dir)) }

// createDatabase makes a database without a log, unless there is one. It gives the file its name only
// when it is complete, since one that a crash cut short would be taken for damaged.
func createDatabase(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	temporary := f.Name()
	defer os.Remove(temporary)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := openBolt(temporary, false)
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	// A rename would replace a file that another process has made and opened meanwhile.
	if err := os.Link(temporary, path); err != nil {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		return os.Rename(temporary, path) // this file system has no links
	}
	return nil
}

// verify checks every page of the file, and that its keys are those that Raft
// stores. It waits up to lockTimeout for another process to close the file.
func (b boltStore) verify(dir string) error {
	path := b.logPath(dir)
	return withoutOthers(path, func() error { return checkPages(path, raftKeys()) })
}

// withoutOthers runs f while no other process has the bbolt file at path open to write
// to it. If that file is damaged, f finds it.
func withoutOthers(path string, f func() error) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	return guardBolt(path, func() error {
		// Opened only for the lock, so that nothing is written meanwhile.
		lock, err := bbolt.Open(path, fileMode, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		if errors.Is(err, berrors.ErrTimeout) || errors.Is(err, os.ErrPermission) || OutOfFiles(err) {
			return err
		}
		if err == nil {
			defer lock.Close()
		}
		return f()
	})
}

// raftKeys returns a function that takes the keys of the file in order, and
// refuses those that Raft does not store, and that are not in more.
func raftKeys(more ...string) func(bucket, key, value []byte) error {
	var index uint64
	return func(bucket, key, _ []byte) error {
		switch string(bucket) {
		case "logs":
			if len(key) != 8 {
				return fmt.Errorf("log entry %x", key)
			}
			next := binary.BigEndian.Uint64(key)
			if next == 0 || index != 0 && next != index+1 { // the first is 1
				return fmt.Errorf("log entry %d follows %d", next, index)
			}
			index = next
		case "conf":
			if !slices.Contains(append(more, TermKey, voteKey, rejoiningKey), string(key)) {
				return fmt.Errorf("key %q", key)
			}
		default:
			return fmt.Errorf("bucket %q", bucket)
		}
		return nil
	}
}

func (b boltStore) open(dir string, readOnly bool) (raftStore, error) {
	return openBolt(b.logPath(dir), readOnly)
}

func openBolt(path string, readOnly bool) (store *raftboltdb.BoltStore, err error) {
	err = guardBolt(path, func() error {
		store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout:      lockTimeout,
				ReadOnly:     readOnly,
				FreelistType: bbolt.FreelistMapType,
				// NoFreelistSync would save a page for each write, but then bbolt
				// scans the file when it opens it. If the file is damaged, that
				// panics on a goroutine where nobody can recover.
			},
			MsgpackUseNewTimeFormat: true,
		})
		return err
	})
	return store, err
}

// guardBolt is guard for calls that wait for the lock on the file.
func guardBolt(path string, f func() error) error {
	return guard(path, func() error {
		err := f()
		if errors.Is(err, berrors.ErrTimeout) {
			return fmt.Errorf("%s is %w", filepath.Dir(filepath.Dir(path)), ErrInUse)
		}
		return err
	})
}
