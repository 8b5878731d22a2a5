package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"

	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

// reserveFile is the name of a segment that is made before it is needed. It is in the
// directory of the segments.
const reserveFile = "reserve.wal.tmp"

// segmentMaker makes the files of segments. When the last segment is filling, it makes the
// next one in reserve, and it keeps that and the directory open, so that the log can go on
// in a new segment while there are no file descriptors left.
type segmentMaker struct {
	dir  string
	size uint32
	log  hclog.Logger
	top  *os.File // dir

	filled atomic.Int64  // about how many bytes of the last segment are in use
	asked  atomic.Bool   // whether the reserve was asked for since the last segment was made
	wake   chan struct{} // for run
	stop   chan struct{} // closed by close
	done   chan struct{} // closed when run has ended

	mu       sync.Mutex // held only while a file is being made
	reserve  *os.File   // nil if there is none
	made     *os.File   // the segment named madeName, until raft-wal takes it
	madeName string

	opened    bool                    // whether the log has been opened; from then on no name is used twice
	removeMu  sync.Mutex              // held while a file is being deleted: one after the other
	removing  sync.WaitGroup          // for deletions
	unlink    func(path string) error // os.Remove, except in tests
	undeleted atomic.Pointer[error]   // the newest error of a deletion
}

func newSegmentMaker(dir string, size uint32, log hclog.Logger) (*segmentMaker, error) {
	top, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	m := &segmentMaker{dir: dir, size: size, log: log, top: top, unlink: os.Remove, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go m.run()
	return m, nil
}

// end has run and everything that waits for a file descriptor end soon. close follows it.
func (m *segmentMaker) end() {
	close(m.stop)
	<-m.done
}

// close closes the files, when nothing writes to the log any more. It waits for deletions.
func (m *segmentMaker) close() error {
	m.removing.Wait()
	err := m.top.Close()
	if m.reserve != nil {
		err = errors.Join(err, m.reserve.Close(), os.Remove(filepath.Join(m.dir, reserveFile)))
	}
	if m.made != nil {
		err = errors.Join(err, m.made.Close())
	}
	return err
}

// wrote counts bytes that were written to the last segment. A server that writes little
// makes no reserve.
func (m *segmentMaker) wrote(bytes int) {
	if m.filled.Add(int64(bytes)) >= int64(m.size/8) && m.asked.CompareAndSwap(false, true) {
		select {
		case m.wake <- struct{}{}:
		default: // run is still trying
		}
	}
}

// run makes the reserve. If there is no descriptor for it, it tries again until there is.
// What else may be wrong shows when the segment is needed.
func (m *segmentMaker) run() {
	defer close(m.done)
	for {
		select {
		case <-m.wake:
		case <-m.stop:
			return
		}
		for {
			err := m.fill()
			if !OutOfFiles(err) {
				if err != nil {
					m.log.Warn("cannot make a segment of the log in reserve", "error", err)
				}
				break
			}
			select {
			case <-time.After(time.Second):
			case <-m.stop:
				return
			}
		}
	}
}

// ready waits until there is a segment in reserve, if it is needed. It is called before
// raft-wal may make one, since raft-wal must not wait.
func (m *segmentMaker) ready(needed func() bool) error {
	err := awaitFiles(m.log, "a segment of the log", m.stop, func() error {
		if !needed() {
			return nil
		}
		return m.fill()
	})
	if err != nil {
		return fmt.Errorf("making a segment of the log: %w", err)
	}
	return nil
}

func (m *segmentMaker) fill() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reserve == nil {
		m.reserve, err = m.create(m.size)
	}
	return err
}

// create makes the file of a segment under the name of the reserve: size bytes of zero,
// for which the disk has room, with their size on the disk. m.mu is held.
func (m *segmentMaker) create(size uint32) (*os.File, error) {
	path := filepath.Join(m.dir, reserveFile)
	os.Remove(path) // of an earlier try
	w, err := walfs.New().Create(m.dir, reserveFile, uint64(size))
	if err != nil {
		os.Remove(path) // the disk may be full
		return nil, err
	}
	f := &w.(*walfs.File).File // which syncs only the file
	if err := errors.Join(os.Chmod(path, fileMode), f.Sync()); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// make makes the file of a segment, unless it is there already. Its name and size are on
// the disk when make returns.
func (m *segmentMaker) make(name string, size uint32) (err error) {
	path := filepath.Join(m.dir, name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.reserve
	if f == nil || size != m.size {
		f, err = m.create(size)
	}
	if err == nil {
		if m.made != nil {
			m.made.Close()
		}
		f, err = renameOpen(f, path)
		m.reserve, m.made, m.madeName = nil, f, name
	}
	if err == nil {
		err = fsync.Opened(m.top)
	}
	if err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	m.filled.Store(0)
	m.asked.Store(false)
	return nil
}

// renameOpen renames a file that is open for reading and writing, and returns it. It is open even after an error,
// except on Windows, which does not rename a file that is open.
func renameOpen(f *os.File, to string) (*os.File, error) {
	if runtime.GOOS != "windows" {
		return f, os.Rename(f.Name(), to)
	}
	if err := errors.Join(f.Close(), os.Rename(f.Name(), to)); err != nil {
		return f, err
	}
	return os.OpenFile(to, os.O_RDWR, 0)
}

// take returns the file that make has made last, if it has that name and was not taken.
func (m *segmentMaker) take(name string) *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.madeName != name {
		return nil
	}
	f := m.made
	m.made, m.madeName = nil, ""
	return f
}

// remove deletes the file of a segment that is not in the list any more. Once the log has been
// opened, it only begins to: raft-wal calls it while nothing can be written to the log, and
// the many files that a snapshot makes superfluous take some ms each. If a crash, or a loss
// of power, leaves files behind, they are deleted when the log is opened.
func (m *segmentMaker) remove(name string) {
	remove := func() {
		m.removeMu.Lock()
		defer m.removeMu.Unlock()
		if err := m.unlink(filepath.Join(m.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.undeleted.Store(&err)
		}
	}
	if m.opened {
		m.removing.Go(remove)
	} else {
		remove()
	}
}

// segmentFiles opens the files of segments as raft-wal's own file system does, but
// expects that CommitState has made new ones, and does not wait until old ones are deleted.
type segmentFiles struct {
	*walfs.FS
	maker *segmentMaker
}

// Delete deletes a file. raft-wal would only log an error; the next write reports it.
func (f segmentFiles) Delete(_, name string) error {
	f.maker.remove(name)
	return nil
}

func (f segmentFiles) Create(dir, name string, _ uint64) (types.WritableFile, error) {
	if file := f.maker.take(name); file != nil {
		return file, nil
	}
	return f.OpenWriter(dir, name)
}
