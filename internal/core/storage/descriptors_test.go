//go:build unix

package storage

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// runOut leaves at most spare file descriptors to the whole process, until back is called.
// The test must not run in parallel with others.
func runOut(t testing.TB, spare int) (back func()) {
	t.Helper()
	for range 2 {
		runtime.GC() // it closes files of earlier tests that nobody refers to, which would make room later
		runtime.Gosched()
	}
	var limit syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	f := must(os.Open(os.DevNull))(t) // with the lowest number that is not in use
	few := limit
	few.Cur = uint64(f.Fd()) + uint64(spare)
	check(t, f.Close())
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
}

// tooMany is OutOfFiles for errors that Raft has turned into text.
func tooMany(err error) bool { return strings.Contains(err.Error(), syscall.EMFILE.Error()) }

// TestModelOutOfFiles writes, truncates, takes snapshots, and closes and opens the storage,
// while now and then there are few file descriptors left or none, for less than patience. All writes of
// the log, the term and the vote are done, a snapshot is there or not, and nothing counts as damage.
func TestModelOutOfFiles(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		seed := testkit.Seed(t)
		rounds := uint64(2)
		if testkit.Thorough {
			rounds = 6
		}
		for round := range rounds {
			synctest.Test(t, func(t *testing.T) { modelOutOfFiles(t, disk, rand.New(rand.NewPCG(seed, round))) })
		}
	})
}

func modelOutOfFiles(t *testing.T, disk testedDisk, r *rand.Rand) {
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	s := disk.mustOpen(t, dir)
	check(t, s.Bootstrap(alone))
	first, last, term, snapshot := uint64(1), uint64(1), uint64(1), uint64(0)
	terms := map[uint64]uint64{1: 1}
	step := func(out bool) {
		time.Sleep(time.Millisecond) // the time is a part of a snapshot's name
		switch n := uint64(r.IntN(int(last - first + 2))); r.IntN(8) {
		case 0: // a snapshot, and the entries up to its end are deleted
			if n == 0 {
				break
			}
			end := first + n - 1
			_, trans := raft.NewInmemTransport("")
			sink, err := s.Snapshots.Create(1, end, terms[end], Configuration(alone), 1, trans)
			if err == nil {
				err = errors.Join(fsm.NewMachine().Snapshot().Write(sink), sink.Close())
			}
			if err != nil {
				if !out || !tooMany(err) {
					t.Fatalf("a snapshot: %v", err)
				}
				break
			}
			snapshot = end
			check(t, s.Log.DeleteRange(first, end))
			first = end + 1
		case 1: // the leader has other entries there
			if n > 0 && n < min(8, last) && first <= last { // the first entry of all is never replaced
				check(t, s.Log.DeleteRange(last-n+1, last))
				last -= n
			}
		case 2:
			term++
			check(t, s.Stable.SetUint64([]byte(TermKey), term))
			check(t, s.Stable.SetUint64([]byte(voteTermKey), term))
			check(t, s.Stable.Set([]byte(voteCandidateKey), []byte("a:1")))
		case 3:
			if newest := must(s.NewestSnapshot())(t); newest.Index != snapshot {
				t.Fatalf("the newest snapshot is at %d, should be at %d", newest.Index, snapshot)
			}
		case 4:
			check(t, s.Close())
			for {
				again, err := disk.tryOpen(dir)
				if err == nil {
					s = again
					break
				}
				if !out || !tooMany(err) || strings.Contains(err.Error(), "damaged") {
					t.Fatalf("at the start: %v", err)
				}
				if _, err := checkDirectory(disk, dir); err != nil && (!tooMany(err) || strings.Contains(err.Error(), "damaged")) {
					t.Fatalf("check: %v", err)
				}
				time.Sleep(time.Second)
			}
		default:
			var logs []*raft.Log
			for range 1 + r.IntN(5) {
				last++
				terms[last] = term
				logs = append(logs, &raft.Log{Index: last, Term: term, Type: raft.LogNoop, Data: make([]byte, r.IntN(4000))})
			}
			check(t, s.Log.StoreLogs(logs))
		}
	}
	for range 40 {
		if r.IntN(2) == 0 {
			step(false)
			continue
		}
		steps, length := 1+r.IntN(8), time.Duration(r.Int64N(int64(patience*2/3)))
		back, done := runOut(t, r.IntN(6)), make(chan struct{})
		go func() {
			defer close(done)
			for range steps {
				step(true)
			}
		}()
		time.Sleep(length)
		back()
		<-done
		if t.Failed() {
			return
		}
	}
	check(t, s.Close())
	if got := disk.mustCheck(t, dir); first <= last && (got.FirstIndex != first || got.LastIndex != last) || got.SnapshotIndex != snapshot {
		t.Errorf("%+v, should have entries %d to %d after a snapshot at %d", got, first, last, snapshot)
	}
	for _, d := range []string{walDir, snapshotDir} {
		if left, _ := filepath.Glob(filepath.Join(dir, d, "*.tmp")); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
}

// TestReserve: a segment that is made in reserve keeps writes from waiting when the
// descriptors run out; without one they wait, and fail only after patience, with a fault
// that says why. Nothing that was stored is lost.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, dir := testWAL(32<<10), filepath.Join(testkit.MemoryDir(t), "data")
		m := start(t, disk.mustOpen(t, dir))
		m.openSession(1)
		m.create(1, "/first", 8<<10)
		synctest.Wait() // until the reserve is made
		back := runOut(t, 0)
		began := time.Now()
		store := func() error { // most of a segment
			m.index++
			return m.s.Log.StoreLogs([]*raft.Log{{Index: m.index, Term: m.term, Type: raft.LogNoop, Data: make([]byte, 30<<10)}})
		}
		_, err := os.Stat(filepath.Join(dir, walDir, reserveFile))
		if time.AfterFunc(patience/3, back); err != nil {
			t.Errorf("no segment is in reserve: %v", err)
		}
		check(t, store())
		check(t, store())
		if took := time.Since(began); took > 4*askAgain {
			t.Errorf("with a segment in reserve, writes take %v", took)
		}
		check(t, store())
		if took := time.Since(began); took < patience/3 || took > patience/3+time.Second {
			t.Errorf("without one, writes take %v", took)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		back = runOut(t, 0)
		defer back()
		err = nil
		for tries := 0; err == nil && tries < 5; tries++ {
			began = time.Now()
			err = store()
		}
		if took := time.Since(began); !OutOfFiles(err) || took < patience {
			t.Errorf("the fault comes after %v: %v", took, err)
		}
		m.stop()
		back()
		if r := disk.mustCheck(t, dir); r.LastIndex != m.index-1 {
			t.Errorf("%+v, should end at %d", r, m.index-1)
		}
		disk.mustOpen(t, dir).Close()
	})
}

// TestOutOfFilesIsNoDamage opens and checks a directory with any number of descriptors:
// either there are enough, or the error says that there are not.
func TestOutOfFilesIsNoDamage(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, intact := sample(t, disk)
		good, step := 0, 2
		if testkit.Thorough {
			step = 1
		}
		for spare := 0; spare < 40; spare += step {
			back := runOut(t, spare)
			report, checked := checkDirectory(disk, dir)
			s, opened := disk.tryOpen(dir)
			if opened == nil {
				check(t, s.Close())
				good++
			}
			_, _, snapshot := verifySnapshots(dir, 1)
			back()
			for what, err := range map[string]error{"check": checked, "open": opened, "the snapshot": snapshot} {
				if err != nil && (!tooMany(err) || strings.Contains(err.Error(), "damaged")) {
					t.Errorf("with %d descriptors, %s: %v", spare, what, err)
				}
			}
			if checked == nil && !sameState(report, intact) {
				t.Errorf("with %d descriptors, the state is %+v, was %+v", spare, report, intact)
			}
		}
		if good == 0 || good == 40/step {
			t.Errorf("opened %d times of %d", good, 40/step)
		}
	})
}
