package storage

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Spool holds what a member receives until it is complete, outside the log and the
// snapshots. Everything is written before anything is read.
type Spool interface {
	io.Writer
	// Reader returns a reader of everything written.
	Reader() (io.Reader, error)
	// Close discards the contents.
	Close() error
}

// spoolIn returns a function that makes spools in a data directory: temporary files, which
// the next start removes after a crash.
func spoolIn(dir string) func() (Spool, error) {
	return func() (Spool, error) {
		f, err := os.CreateTemp(filepath.Join(dir, raftDir), "received-*.tmp") // readable only by its owner
		if err != nil {
			return nil, err
		}
		return fileSpool{f}, nil
	}
}

// spoolInMemory makes a spool without a directory.
func spoolInMemory() (Spool, error) { return new(memorySpool), nil }

type memorySpool struct{ bytes.Buffer }

func (s *memorySpool) Reader() (io.Reader, error) { return &s.Buffer, nil }
func (s *memorySpool) Close() error               { return nil }

type fileSpool struct{ *os.File }

func (s fileSpool) Reader() (io.Reader, error) {
	_, err := s.Seek(0, io.SeekStart)
	return s.File, err
}

func (s fileSpool) Close() error { return errors.Join(s.File.Close(), os.Remove(s.Name())) }
