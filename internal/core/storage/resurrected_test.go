package storage

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestDeletedSegmentsComeBack crashes at random points between writes, head and tail truncations, with
// deletions under way, and has deleted files come back, as their directory is not synced.
func TestDeletedSegmentsComeBack(t *testing.T) {
	top := testkit.MemoryDir(t)
	runs := uint64(20)
	if testkit.Thorough {
		runs = 300
	}
	first := testkit.Seed(t)
	for seed := first; seed < first+runs; seed++ {
		r := rand.New(rand.NewPCG(seed, 7))
		disk := testWAL(16 << 10)
		n := 0
		dir := filepath.Join(top, fmt.Sprint(seed, "-", n))
		check(t, disk.mustOpen(t, dir).Close())
		model := map[uint64]byte{}
		first, last := uint64(0), uint64(0)
		for range 12 {
			grave := filepath.Join(top, fmt.Sprint("grave", seed, "-", n))
			check(t, os.MkdirAll(grave, 0o700))
			check(t, openAfter(disk, dir))
			store := must(disk.open(dir, false))(t)
			f, l := must(store.FirstIndex())(t), must(store.LastIndex())(t)
			if last == 0 || first > last {
				if l != 0 {
					t.Fatalf("seed %d: log %d-%d, want none", seed, f, l)
				}
			} else if f != first || l != last {
				t.Fatalf("seed %d: log %d-%d, want %d-%d", seed, f, l, first, last)
			}
			for i := f; i <= l && l > 0; i++ {
				var e raft.Log
				check(t, store.GetLog(i, &e))
				if e.Index != i || e.Data[0] != model[i] {
					t.Fatalf("seed %d: entry %d", seed, i)
				}
			}
			maker := store.(*walLog).files
			var mu sync.Mutex
			slow := r.IntN(3)
			maker.unlink = func(path string) error {
				if slow > 0 {
					time.Sleep(time.Duration(slow) * 200 * time.Microsecond)
				}
				mu.Lock()
				defer mu.Unlock()
				os.Link(path, filepath.Join(grave, filepath.Base(path)))
				return os.Remove(path)
			}
			for range r.IntN(20) {
				switch k := r.IntN(10); {
				case k < 6:
					next := last + 1
					if last == 0 || first > last {
						if last == 0 && r.IntN(2) == 0 {
							next = 1 + r.Uint64N(30)
						}
						first = next
					}
					var logs []*raft.Log
					for j := range uint64(1 + r.IntN(8)) {
						b := byte(r.Uint32())
						data := make([]byte, 1+r.IntN(6000))
						data[0] = b
						model[next+j] = b
						logs = append(logs, &raft.Log{Index: next + j, Term: 1, Data: data})
					}
					if err := store.StoreLogs(logs); err != nil {
						t.Fatalf("seed %d: store: %v", seed, err)
					}
					last = logs[len(logs)-1].Index
				case k < 8 && last >= first && last > 0:
					to := first + r.Uint64N(last-first+1)
					check(t, store.DeleteRange(first, to))
					first = to + 1
				case last > first && last > 0:
					from := first + 1 + r.Uint64N(last-first)
					check(t, store.DeleteRange(from, last))
					last = from - 1
				}
			}
			if last == 0 || first > last { // emptied: the next may begin anywhere
				first, last = 0, 0
			}
			n++
			next := filepath.Join(top, fmt.Sprint(seed, "-", n))
			closed := r.IntN(4) == 0
			if closed {
				check(t, store.Close())
			} else { // a rotation in the background would change the copy while it is made
				check(t, store.(*walLog).wal.DeleteRange(1<<40, 1<<40))
			}
			mu.Lock()
			check(t, os.CopyFS(next, os.DirFS(dir)))
			back, _ := os.ReadDir(grave)
			for _, e := range back {
				if r.IntN(2) == 0 {
					check(t, os.WriteFile(filepath.Join(next, walDir, e.Name()), must(os.ReadFile(filepath.Join(grave, e.Name())))(t), fileMode))
				}
			}
			mu.Unlock()
			if !closed {
				check(t, store.Close())
			}
			dir = next
		}
	}
}

func openAfter(d testedDisk, dir string) error {
	if err := verifyFiles(d, dir); err != nil {
		return err
	}
	return syncFound(dir, d.files(dir))
}
