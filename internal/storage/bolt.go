package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const lockTimeout = 200 * time.Millisecond // how long to wait for another process to let go

// createBolt makes an empty raft.db. The file gets its name when it is whole, so
// that one cut short by a crash is not taken for a damaged one.
func createBolt(path string) error {
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
	// A rename would replace a file that another process has made by now, and uses.
	if err := os.Link(temporary, path); err != nil {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		return os.Rename(temporary, path) // this file system has no links
	}
	return nil
}

func openBolt(path string, readOnly bool) (store *raftboltdb.BoltStore, err error) {
	err = guard(path, func() error {
		store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout:      lockTimeout,
				ReadOnly:     readOnly,
				FreelistType: bbolt.FreelistMapType,
				// NoFreelistSync would save a page per write, but then bbolt
				// scans the file at start, and panics where no one can recover
				// if it is damaged.
			},
			MsgpackUseNewTimeFormat: true,
		})
		return err
	})
	return store, err
}

// guard runs f, which reads path, and turns what bbolt does about a damaged
// page, a panic or a fault in the mapped memory, into an error that names the file.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v: restore it from a copy, or replace this server", path, p)
		}
	}()
	switch err = f(); {
	case errors.Is(err, berrors.ErrTimeout): // of the lock on the file
		return fmt.Errorf("%s is %w", filepath.Dir(filepath.Dir(path)), ErrInUse)
	case err != nil && !strings.Contains(err.Error(), path):
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// verifyFile verifies raft.db, page by page, and that what is in it is of the
// kind that Raft keeps. It waits a moment for another process to let go of it.
func verifyFile(path string) error {
	return guard(path, func() error {
		// Opened only for its lock: nobody writes meanwhile.
		lock, err := bbolt.Open(path, fileMode, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		if errors.Is(err, berrors.ErrTimeout) || errors.Is(err, os.ErrPermission) {
			return err
		}
		if err == nil {
			defer lock.Close()
		}
		return checkPages(path, raftKeys())
	})
}

// raftKeys returns a function that takes the keys of raft.db in order, and
// refuses those that Raft does not make.
func raftKeys() func(bucket, key, value []byte) error {
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
			if !slices.Contains([]string{TermKey, voteKey, rejoiningKey}, string(key)) {
				return fmt.Errorf("key %q", key)
			}
		default:
			return fmt.Errorf("bucket %q", bucket)
		}
		return nil
	}
}
