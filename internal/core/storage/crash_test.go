package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestCrashWhileNew crashes a member while it makes its data directory: the next
// start completes it.
func TestCrashWhileNew(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		for _, c := range []struct {
			name  string
			crash func(t *testing.T, dir string)
		}{
			{"only directories", func(*testing.T, string) {}},
			{"an unfinished file", func(t *testing.T, dir string) {
				check(t, os.WriteFile(disk.logPath(dir)+".1.tmp", make([]byte, 5000), fileMode))
			}},
			{"empty files", func(t *testing.T, dir string) { check(t, disk.create(dir)) }},
			{"the same files twice", func(t *testing.T, dir string) { check(t, errors.Join(disk.create(dir), disk.create(dir))) }},
			{"no meta.json", func(t *testing.T, dir string) {
				check(t, disk.mustOpen(t, dir).Close())
				check(t, os.Remove(filepath.Join(dir, metaFile)))
			}},
			{"an unfinished meta.json", func(t *testing.T, dir string) {
				check(t, disk.mustOpen(t, dir).Close())
				check(t, os.Rename(filepath.Join(dir, metaFile), filepath.Join(dir, metaFile+".tmp")))
			}},
			{"a term and no entry", func(t *testing.T, dir string) {
				s := disk.mustOpen(t, dir)
				check(t, errors.Join(s.Stable.SetUint64([]byte(TermKey), 1), s.Close()))
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				dir := testkit.MemoryDir(t)
				check(t, os.MkdirAll(filepath.Join(dir, snapshotDir), dirMode))
				c.crash(t, dir)
				s := disk.mustOpen(t, dir)
				if empty := must(s.Empty())(t); !empty {
					t.Error("it is not empty")
				}
				if left, _ := filepath.Glob(filepath.Join(dir, raftDir, "*.tmp")); len(left) > 0 {
					t.Errorf("%v are left", left)
				}
				m := start(t, s)
				m.openSession(1)
				m.stop()
				if r := disk.mustCheck(t, dir); r.Sessions != 1 || r.ServerID != 1 || r.FirstIndex != 1 {
					t.Errorf("%+v", r)
				}
			})
		}
	})
}

// TestLostEntries deletes the whole log: the files are not damaged, but the term
// and the vote show that there were entries.
func TestLostEntries(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := testkit.MemoryDir(t)
		m := start(t, disk.mustOpen(t, dir))
		check(t, m.s.Log.DeleteRange(1, m.index))
		m.stop()
		if s, err := disk.tryOpen(dir); err == nil {
			s.Close()
			t.Error("a member without its log was opened")
		}
		if _, err := checkDirectory(disk, dir); err == nil {
			t.Error("Check finds nothing")
		}
	})
}

// TestSupersededLog puts beside a snapshot what a crash leaves of the log when the
// leader's snapshot supersedes it: an older log, or one of another term. That is
// deleted, and the entries stored next follow the snapshot.
func TestSupersededLog(t *testing.T) {
	for name, logs := range map[string]func(snapshot uint64) []*raft.Log{
		"older":           func(uint64) []*raft.Log { return noops(1, 2, 1) },
		"of another term": func(snapshot uint64) []*raft.Log { return noops(1, snapshot+3, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			onEachDisk(t, func(t *testing.T, disk testedDisk) {
				dir := testkit.MemoryDir(t)
				m := start(t, disk.mustOpen(t, dir))
				m.openSession(1)
				for i := range 20 {
					m.create(1, fmt.Sprintf("/%d", i), 10)
				}
				m.snapshot()
				snapshot := m.index
				check(t, m.s.Log.DeleteRange(must(m.s.Log.FirstIndex())(t), snapshot))
				check(t, m.s.Log.StoreLogs(logs(snapshot)))
				m.stop()
				before := disk.mustCheck(t, dir)
				if before.FirstIndex != 0 || before.SnapshotIndex != snapshot {
					t.Fatalf("%+v", before)
				}
				m = start(t, disk.mustOpen(t, dir))
				m.openSession(2)
				m.stop()
				after := disk.mustCheck(t, dir)
				if after.Sessions != 2 || after.FirstIndex != snapshot+1 || after.Znodes != before.Znodes {
					t.Errorf("%+v, before %+v", after, before)
				}
			})
		})
	}
}

// TestTornTail appends to the log's file what a write may leave that a power cut
// tore: any bytes after a sector that is missing, and a file of another length. They are no part of the log,
// and entries that are stored afterwards last.
func TestTornTail(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
		dir := testkit.MemoryDir(t)
		for round := range 6 {
			m := start(t, disk.mustOpen(t, dir))
			for before := range round {
				for i := range 30 {
					if path := fmt.Sprintf("/round%d-%d", before, i); m.machine.Tree().Lookup(path) == nil {
						t.Errorf("%s is lost", path)
					}
				}
			}
			m.openSession(int64(round + 1))
			for i := range 30 {
				m.create(int64(round+1), fmt.Sprintf("/round%d-%d", round, i), r.IntN(5000))
			}
			m.stop()

			name, end, size := disk.logEnd(t, dir)
			file := filepath.Join(dir, name)
			content := must(os.ReadFile(file))(t)[:end]
			torn := make([]byte, r.IntN(100_000))
			if end == 0 {
				torn = nil // the file is new, and its first write begins with a known header
			}
			for i := range torn {
				torn[i] = byte(r.Uint32())
			}
			clear(torn[:min(sector-int(end)%sector, len(torn))]) // else it would begin with a frame
			content = append(content, torn...)
			content = append(content, make([]byte, max(0, int(size)-len(content)))...)
			check(t, os.WriteFile(file, content, fileMode))
			disk.mustCheck(t, dir)
		}
	})
}

// TestCrashWhileSnapshotsGo leaves what a crash leaves of an older snapshot that
// was being removed, and of one that was being written.
func TestCrashWhileSnapshotsGo(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, intact := sample(t, disk)
		old, unfinished := filepath.Join(dir, snapshotDir, "1-1-1"), filepath.Join(dir, snapshotDir, "9-999-9.tmp")
		check(t, errors.Join(os.Mkdir(old, dirMode), os.WriteFile(filepath.Join(old, metaFile), []byte("{}"), fileMode), os.Mkdir(unfinished, dirMode)))
		check(t, disk.mustOpen(t, dir).Close())
		if now := disk.mustCheck(t, dir); !sameState(now, intact) {
			t.Errorf("the state is %+v, was %+v", now, intact)
		}
		if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", unfinished, err)
		}
	})
}

// TestDeleteBeyondEnd: a range that ends after the log deletes what there is.
func TestDeleteBeyondEnd(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := testkit.MemoryDir(t)
		m := start(t, disk.mustOpen(t, dir))
		m.openSession(1)
		m.snapshot()
		check(t, m.s.Log.DeleteRange(1, math.MaxUint64))
		if last := must(m.s.Log.LastIndex())(t); last != 0 {
			t.Errorf("the log still ends at %d", last)
		}
		m.openSession(2)
		m.stop()
		if r := disk.mustCheck(t, dir); r.Sessions != 2 {
			t.Errorf("%+v", r)
		}
	})
}
