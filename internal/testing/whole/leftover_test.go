package whole

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

func (m *members) of(i int) string { return m.servers[i].Status().Cluster.ID }

// TestLeftoverFiles: the directory of a member was not emptied as a whole. The member either does not start, or gets all that the others have.
func TestLeftoverFiles(t *testing.T) {
	for name, empty := range map[string]func(dir string) error{
		"only raft":             func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft")) },
		"only meta.json":        func(dir string) error { return os.Remove(filepath.Join(dir, "meta.json")) },
		"only the log":          func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft", "wal")) },
		"only files of the log": func(dir string) error { return removeFiles(filepath.Join(dir, "raft", "wal")) },
		"all but directories":   removeFiles,
		"all but the snapshots": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "meta.json")), os.RemoveAll(filepath.Join(dir, "raft", "wal")))
		},
		"all but lost+found": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700))
		},
		"all but a .tmp of meta": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "raft")), os.Rename(filepath.Join(dir, "meta.json"), filepath.Join(dir, "meta.json.tmp")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := startMembers(t, 3, func(c *lockkeeper.Config) {
					if c.ID == 2 {
						c.DataDir = filepath.Join(testkit.MemoryDir(t), "data")
						testhooks.In(c).Memory = nil
					}
				})
				must(m.connect(0, 10*time.Second).Create("/x", nil, 0))(t)
				dir := m.configs[1].DataDir
				m.kill(1)
				must(m.connect(0, 10*time.Second).Create("/y", nil, 0))(t)
				check(t, empty(dir))
				s, err := lockkeeper.Open(m.configs[1])
				if err != nil {
					return // as it says
				}
				m.servers[1] = s
				m.net.Cut(host(0), host(1), true) // it neither votes nor leads before it has the data
				m.net.Cut(host(1), host(0), true)
				time.Sleep(20 * time.Second)
				m.net.Heal()
				time.Sleep(20 * time.Second)
				if m.of(1) != "" && m.of(1) != m.of(0) {
					t.Errorf("it is of cluster %s, the others of %s", m.of(1), m.of(0))
				}
				for _, path := range []string{"/x", "/y"} {
					must(m.connect(0, 10*time.Second).Exists(path, false))(t)
					if m.of(1) != "" {
						must(m.connect(1, 10*time.Second).Exists(path, false))(t)
					}
				}
			})
		})
	}
}

// removeFiles removes all files below dir, but no directories.
func removeFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Remove(path)
		}
		return err
	})
}
