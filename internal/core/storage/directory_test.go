package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestPrivateFiles: only the owner may read what Open and the Storage write.
func TestPrivateFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such modes")
	}
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, _ := sample(t, disk)
		check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode()&0o77 != 0 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		}))
	})
}

// TestTakeState checks that a storage has the state of its newest snapshot, and gives it
// only once.
func TestTakeState(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := filepath.Join(testkit.MemoryDir(t), "data")
		m := start(t, disk.mustOpen(t, dir))
		if m.s.TakeState() != nil {
			t.Error("a new storage has a state")
		}
		m.openSession(1)
		m.create(1, "/a", 10)
		m.snapshot()
		want := m.machine.Digest()
		m.create(1, "/b", 10)
		m.stop()
		s := disk.mustOpen(t, dir)
		if state := s.TakeState(); state == nil || state.Digest() != want {
			t.Errorf("%v, want the state of the snapshot", state)
		}
		if s.TakeState() != nil {
			t.Error("the state can be taken twice")
		}
		check(t, s.Close())
	})
}

// TestMembers: the newest members that are stored are known when the storage is
// opened, from the log or from the snapshot.
func TestMembers(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *Storage) {
		is := func(s *Storage, want int) {
			t.Helper()
			if got := len(s.Members); got != want {
				t.Errorf("%d members are known, should be %d", got, want)
			}
		}
		s := open()
		is(s, 0)
		m := start(t, s)
		m.openSession(1)
		m.stop()
		s = open()
		is(s, 1)
		m = start(t, s)
		for id := range int64(10) {
			m.openSession(2 + id)
		}
		m.snapshot()
		check(t, s.Log.DeleteRange(1, m.index))
		m.stop()
		s = open()
		is(s, 1)
		check(t, s.Close())
	})
}

// TestEmpty: a storage is empty until something is stored, and Bootstrap changes
// no other.
func TestEmpty(t *testing.T) {
	onEachStore(t, func(t *testing.T, open func() *Storage) {
		s := open()
		for _, term := range []uint64{0, 1} { // 1 is what a crash during Bootstrap leaves
			check(t, s.Stable.SetUint64([]byte(TermKey), term))
			if empty := must(s.Empty())(t); !empty {
				t.Errorf("in term %d it is not empty", term)
			}
			if got := must(s.Term())(t); got != 0 {
				t.Errorf("the term is %d", got)
			}
		}
		check(t, s.Stable.SetUint64([]byte(TermKey), 1))
		check(t, s.Bootstrap(alone))
		check(t, s.Stable.SetUint64([]byte(TermKey), 5))
		check(t, s.SetRejoining(true))
		check(t, s.Bootstrap(alone))
		check(t, s.Close())

		s = open()
		empty, rejoining, term, last := must(s.Empty())(t), must(s.Rejoining())(t), must(s.Term())(t), must(s.Log.LastIndex())(t)
		if empty || !rejoining || term != 5 || last != 1 {
			t.Errorf("empty %v, rejoining %v, term %d, last entry %d", empty, rejoining, term, last)
		}
		check(t, s.SetRejoining(false))
		if must(s.Rejoining())(t) {
			t.Error("it is rejoining still")
		}
		check(t, s.Close())
	})
}

// TestVoteBeforeLog: a member that is being added to a cluster stores the cluster's term,
// and perhaps a vote, before the first entry. If it ends in between, it starts again and
// has forgotten neither. If it had an entry, its log is lost.
func TestVoteBeforeLog(t *testing.T) {
	for _, x := range []struct {
		name      string
		rejoining bool
		voted     bool
		entry     bool // which it has lost
		refused   bool
	}{
		{name: "it waits to be added"},
		{name: "it has asked to be added", rejoining: true},
		{name: "it has voted", voted: true},
		{name: "it has asked to be added, and voted", rejoining: true, voted: true},
		{name: "it has voted and had an entry", voted: true, entry: true, refused: true},
		{name: "it had an entry, and forgot that it was added", rejoining: true, voted: true, entry: true, refused: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			onEachDisk(t, func(t *testing.T, disk testedDisk) {
				dir := testkit.MemoryDir(t)
				s := disk.mustOpen(t, dir)
				check(t, s.SetRejoining(x.rejoining))
				check(t, s.Stable.SetUint64([]byte(TermKey), 2))
				if x.voted {
					check(t, errors.Join(s.Stable.SetUint64([]byte(voteTermKey), 2), s.Stable.Set([]byte(voteCandidateKey), []byte("a:1"))))
				}
				if x.entry {
					check(t, s.Log.StoreLogs(noops(5, 5, 2)))
					check(t, s.Log.DeleteRange(5, 5))
				}
				check(t, s.Close())
				if _, err := checkDirectory(disk, dir); x.refused != (err != nil) || x.refused && !strings.Contains(err.Error(), "the log is empty, but it has voted in term 2") {
					t.Errorf("check: %v", err)
				}
				s, err := disk.tryOpen(dir)
				if x.refused != (err != nil) {
					t.Fatalf("open: %v", err)
				}
				if err != nil {
					return
				}
				empty, term := must(s.Empty())(t), must(s.Term())(t)
				if voted, _ := s.Stable.GetUint64([]byte(voteTermKey)); !empty || term != 2 || x.voted != (voted == 2) {
					t.Errorf("empty %v, in term %d, after a vote in term %d", empty, term, voted)
				}
				check(t, s.Bootstrap(alone))
				if term := must(s.Term())(t); term != 2 {
					t.Errorf("in term %d", term)
				}
				check(t, s.Close())
				disk.mustCheck(t, dir)
			})
		})
	}
}

// TestOpenBesideLast opens a directory while the process before it still stops, and so waits
// for its lock. Meanwhile that one stores an identity and completes a snapshot. Open returns
// both, not what it found before it had the lock: Raft never applies the snapshot's entries
// again.
func TestOpenBesideLast(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		synctest.Test(t, func(t *testing.T) { // so that Open does not give up while a busy machine does the rest
			dir, _ := sample(t, disk)
			last := start(t, disk.mustOpen(t, dir))
			last.openSession(77)
			type opened struct {
				s   *Storage
				err error
			}
			done := make(chan opened)
			go func() {
				s, err := disk.tryOpen(dir)
				done <- opened{s, err}
			}()
			time.Sleep(lockTimeout / 4)
			want := Identity{Cluster: 5, Agreed: true, Since: 1234}
			check(t, last.s.SetIdentity(want))
			last.snapshot()
			last.stop()
			x := <-done
			check(t, x.err)
			defer x.s.Close()
			newest := must(x.s.NewestSnapshot())(t)
			if state := x.s.TakeState(); newest.Index != last.index || state.Index() != newest.Index {
				t.Errorf("the state is of entry %d, the newest snapshot ends at %d, and should at %d", state.Index(), newest.Index, last.index)
			}
			if got := x.s.Identity(); !reflect.DeepEqual(got, want) {
				t.Errorf("its identity is %+v, but meta.json has %+v", got, want)
			}
		})
	})
}

// TestChangedBeforeOpen: a directory is not opened or checked as what it was before this process
// had its lock, nor taken for damaged.
func TestChangedBeforeOpen(t *testing.T) {
	disk := testedDisk{diskStore: boltStore{}}
	for _, c := range []struct {
		says   string
		change func(dir string) error
	}{
		{"has just been converted to wal", func(dir string) error {
			return errors.Join(writeMeta(dir, &meta{Format: formatVersion, ServerID: 1, LogStore: WAL}), os.Remove(disk.logPath(dir)))
		}},
		{"meta.json has been removed just now", func(dir string) error { return os.Remove(filepath.Join(dir, metaFile)) }},
	} {
		for name, use := range map[string]func(dir string) error{
			"open":  func(dir string) error { _, err := disk.tryOpen(dir); return err },
			"check": func(dir string) error { _, err := checkDirectory(disk, dir); return err },
		} {
			synctest.Test(t, func(t *testing.T) {
				dir, _ := sample(t, disk)
				held := must(openBolt(disk.logPath(dir), false))(t)
				done := make(chan error)
				go func() { done <- use(dir) }()
				time.Sleep(lockTimeout / 4)
				check(t, errors.Join(c.change(dir), held.Close()))
				if err := <-done; err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrDamaged) {
					t.Errorf("%s: %v does not say %q", name, err, c.says)
				}
			})
		}
	}
}
