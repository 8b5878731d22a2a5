package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hashicorp/raft"
)

// unwritten is how many pages of a file are not on the disk yet; false if the kernel
// cannot tell (cachestat, since Linux 6.5).
func unwritten(t *testing.T, path string) (pages uint64, known bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all struct{ offset, length uint64 }
	var stat struct{ cached, dirty, writing, evicted, recentlyEvicted uint64 }
	const cachestat = 451
	_, _, errno := syscall.Syscall6(cachestat, f.Fd(), uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&stat)), 0, 0, 0)
	return stat.dirty + stat.writing, errno == 0
}

// tellsUnwritten reports whether unwritten can be trusted in a directory: bytes that
// were just written are not on the disk, and are after a sync.
func tellsUnwritten(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	before, known := unwritten(t, f.Name())
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	after, _ := unwritten(t, f.Name())
	return known && before > 0 && after == 0
}

// allWritten checks that the files in a directory are on the disk.
func allWritten(t *testing.T, dir, when string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if pages, _ := unwritten(t, path); pages > 0 {
			t.Errorf("%s, %d pages of %s are not on the disk", when, pages, path)
		}
		return nil
	}))
}

// TestStoredIsOnDisk: when a write of the log, the term or the vote returns, all of
// it is on the disk, and when a snapshot is taken, all of the snapshot is. Raft
// acknowledges nothing before.
func TestStoredIsOnDisk(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		if w, ok := disk.diskStore.(walStore); ok {
			w.segmentSize = segmentSize // otherwise raft-wal makes other segments meanwhile
			disk.diskStore = w
		}
		top := t.TempDir()
		if !tellsUnwritten(t, top) {
			t.Skip("the kernel or the file system does not tell what is on the disk")
		}
		dir := filepath.Join(top, "data")
		synced := func(when string) {
			t.Helper()
			allWritten(t, dir, when)
		}
		s := disk.mustOpen(t, dir)
		defer s.Close()
		synced("after the start")
		check(t, s.Bootstrap(alone))
		synced("after the first entry")
		m := start(t, s)
		m.openSession(1)
		for i := range 20 {
			m.create(1, fmt.Sprintf("/n%d", i), 1000*i)
			synced("after an entry")
			check(t, s.Stable.SetUint64([]byte(TermKey), m.term+uint64(i)))
			synced("after a term")
			check(t, s.Stable.SetUint64([]byte(voteTermKey), m.term+uint64(i)))
			check(t, s.Stable.Set([]byte(voteCandidateKey), []byte("server-1")))
			if synced("after a vote"); t.Failed() {
				t.Fatalf("write %d", i)
			}
		}
		m.snapshot()
		synced("after a snapshot")
	})
}

// TestSnapshotIsSyncedInParts: while a large snapshot is being written, only a little of it is not
// on the disk yet, so that no sync of the log has to wait long.
func TestSnapshotIsSyncedInParts(t *testing.T) {
	top := t.TempDir()
	if !tellsUnwritten(t, top) {
		t.Skip("the kernel or the file system does not tell what is on the disk")
	}
	s := disks[0].mustOpen(t, filepath.Join(top, "data"))
	defer s.Close()
	_, trans := raft.NewInmemTransport("")
	sink := must(s.Snapshots.Create(1, 1, 1, Configuration(alone), 1, trans))(t)
	defer sink.Cancel()
	part, size := make([]byte, 64<<10), os.Getpagesize()
	path := filepath.Join(top, "data", snapshotDir, sink.ID()+".tmp", stateFile)
	for i := range 5 * syncedAtOnce / len(part) {
		must(sink.Write(part))(t)
		if pages, _ := unwritten(t, path); pages > uint64(syncedAtOnce/size) {
			t.Fatalf("after %d parts, %d pages are not on the disk", i+1, pages)
		}
	}
}

// TestFoundIsOnDisk opens a directory whose log a killed process has written and not
// synced. Raft relies on what it finds there, so it is synced first.
func TestFoundIsOnDisk(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		top := t.TempDir()
		if !tellsUnwritten(t, top) {
			t.Skip("the kernel or the file system does not tell what is on the disk")
		}
		dir := filepath.Join(top, "data")
		m := start(t, disk.mustOpen(t, dir))
		for i := range 20 {
			m.openSession(int64(i + 1))
		}
		m.stop()
		for _, name := range disk.files(dir) {
			path := filepath.Join(dir, name)
			content := must(os.ReadFile(path))(t)
			f := must(os.OpenFile(path, os.O_WRONLY, 0))(t)
			_, err := f.Write(content)
			check(t, errors.Join(err, f.Close()))
			if pages, _ := unwritten(t, path); pages == 0 {
				t.Fatalf("%s is on the disk already", name)
			}
		}
		s := disk.mustOpen(t, dir)
		defer s.Close()
		allWritten(t, dir, "after the start")
	})
}
