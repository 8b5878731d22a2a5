package whole

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"log/slog"
)

// smallDisk mounts a small file system, and returns a function that enlarges it.
func smallDisk(t *testing.T, size string) (dir string, grow func(size string)) {
	t.Helper()
	dir = t.TempDir()
	mount := func(flags uintptr, size string) error {
		return syscall.Mount("lockkeeper-test", dir, "tmpfs", flags, "size="+size)
	}
	if err := mount(0, size); err != nil {
		t.Skipf("a small disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("a file is still open: %v", err)
		}
	})
	return dir, func(size string) { check(t, mount(syscall.MS_REMOUNT, size)) }
}

// TestFullDisk writes until the disk is full. The server reports that and stops. When the
// disk has room again, it still has everything that it acknowledged.
func TestFullDisk(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  lockkeeper.Config
	}{
		{"wal", lockkeeper.Config{LogStore: "wal"}},
		{"wal and snapshots", lockkeeper.Config{LogStore: "wal", Limits: lockkeeper.Limits{SnapshotBytes: 256 << 10}}},
		{"boltdb", lockkeeper.Config{LogStore: "boltdb"}},
		{"boltdb and snapshots", lockkeeper.Config{LogStore: "boltdb", Limits: lockkeeper.Limits{SnapshotBytes: 256 << 10}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			noGoroutineLeft(t)
			size := "3m"
			if c.cfg.LogStore == "wal" { // it has room for a segment and a snapshot of some MiB
				size = "14m"
			}
			disk, grow := smallDisk(t, size)
			cfg := c.cfg
			cfg.DataDir = disk + "/data"
			var log testkit.Log
			cfg.Logger = log.Logger(slog.LevelInfo)
			s := open(t, cfg)
			const writers = 4
			var acknowledged [writers][]string
			var wg sync.WaitGroup
			for w := range writers {
				c := connect(t, inMemory(s))
				wg.Go(func() {
					for i := range 4000 {
						path := fmt.Sprintf("/w%d-%d", w, i)
						if _, err := c.Create(path, []byte(strings.Repeat("full", 2000)), 0); err != nil {
							return
						}
						acknowledged[w] = append(acknowledged[w], path)
					}
				})
			}
			select {
			case err := <-fault(s):
				if !strings.Contains(err.Error(), cfg.DataDir) || !strings.Contains(err.Error(), "no space left") {
					t.Errorf("the fault is %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("no fault")
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done: // all clients are cut off
			case <-time.After(time.Minute):
				t.Fatal("clients wait forever")
			}
			check(t, s.Close())
			if lines := log.Matching("ERROR"); len(lines) > 10 { // Raft logs some of it too
				t.Errorf("the log says %q", lines)
			}

			grow("64m")
			report := must(storage.Check(cfg.DataDir))(t)
			s = open(t, cfg)
			reader := connect(t, inMemory(s))
			n := 0
			for _, list := range acknowledged {
				for _, path := range list {
					n++
					if _, err := reader.Exists(path, false); err != nil {
						t.Errorf("%s was acknowledged: %v", path, err)
					}
				}
			}
			if n < 50 {
				t.Errorf("only %d writes", n)
			}
			t.Logf("%d writes; %+v", n, report)
			must(reader.Create("/more", nil, 0))(t)
			check(t, s.Close())
		})
	}
}

// TestDiskFullAtStart starts servers on a full disk. Open fails, or the server reports the
// fault when it has to write; nothing hangs.
func TestDiskFullAtStart(t *testing.T) {
	for _, store := range []string{"wal", "boltdb"} {
		t.Run(store, func(t *testing.T) { testDiskFullAtStart(t, store) })
	}
}

func testDiskFullAtStart(t *testing.T, store string) {
	noGoroutineLeft(t)
	disk, grow := smallDisk(t, "12m")
	cfg := lockkeeper.Config{DataDir: disk + "/data", LogStore: lockkeeper.LogStore(store)}
	s := open(t, cfg)
	must(connect(t, inMemory(s)).Create("/kept", nil, 0))(t)
	check(t, s.Close())
	check(t, os.WriteFile(disk+"/filler", nil, 0o600))
	filler := must(os.OpenFile(disk+"/filler", os.O_WRONLY, 0))(t)
	for err, block := error(nil), make([]byte, 4096); err == nil; {
		_, err = filler.Write(block)
	}
	check(t, filler.Close())

	for _, dir := range []string{"/new", "/data"} {
		opened := make(chan error, 1)
		go func() {
			s, err := lockkeeper.Open(lockkeeper.Config{DataDir: disk + dir, LogStore: lockkeeper.LogStore(store)})
			if err != nil {
				opened <- err
				return
			}
			select {
			case err = <-fault(s):
			case <-s.Ready(): // the file's free pages may be enough for a while
				nc, err2 := s.Dial("", "", 0)
				if err2 == nil {
					var c *rawclient.Client
					if c, err2 = rawclient.Open(nc, 30*time.Second); err2 == nil {
						for i := 0; err2 == nil; i++ {
							_, err2 = c.Create(fmt.Sprintf("/more%d", i), make([]byte, 1000), 0)
						}
					}
					nc.Close()
				}
				err = <-fault(s)
			}
			if e := s.Close(); e != nil {
				err = e
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			if !strings.Contains(err.Error(), disk+dir) || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("%s: %v", dir, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: it hangs", dir)
		}
	}
	check(t, os.Remove(disk+"/filler"))
	grow("64m")
	for _, dir := range []string{"/data", "/new"} {
		s := open(t, lockkeeper.Config{DataDir: disk + dir, LogStore: lockkeeper.LogStore(store)})
		if _, err := connect(t, inMemory(s)).Exists("/kept", false); (err == nil) != (dir == "/data") {
			t.Errorf("%s: %v", dir, err)
		}
		check(t, s.Close())
	}
}

// TestReadOnlyDisk: on a file system that is mounted read-only, a directory can be checked,
// but a server does not start.
func TestReadOnlyDisk(t *testing.T) {
	disk, _ := smallDisk(t, "16m")
	dir := disk + "/data"
	s := open(t, lockkeeper.Config{DataDir: dir})
	must(connect(t, inMemory(s)).Create("/kept", nil, 0))(t)
	check(t, s.Close())
	want := must(storage.Check(dir))(t)
	check(t, syscall.Mount("lockkeeper-test", disk, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	if got := must(storage.Check(dir))(t); *got != *want {
		t.Errorf("%+v, then %+v", want, got)
	}
	for _, d := range []string{dir, disk + "/new"} {
		if _, err := lockkeeper.Open(lockkeeper.Config{DataDir: d}); err == nil || !strings.Contains(err.Error(), d) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s: %v", d, err)
		}
	}
}
