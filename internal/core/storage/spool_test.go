package storage

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestSpool: a spool returns what was written, is readable only by its owner, and leaves
// nothing behind, also after a crash.
func TestSpool(t *testing.T) {
	dir := testkit.MemoryDir(t)
	kept := func() []string { return must(filepath.Glob(filepath.Join(dir, raftDir, "*.tmp")))(t) }
	onDisk := must(openAs(dir, ""))(t)
	for _, s := range []*Storage{onDisk, NewMemory().Open()} {
		spool := must(s.Spool())(t)
		for _, part := range []string{"one ", "two"} {
			must(io.WriteString(spool, part))(t)
		}
		if b, err := io.ReadAll(must(spool.Reader())(t)); err != nil || string(b) != "one two" {
			t.Errorf("%s: %q, %v", s.Name, b, err)
		}
		for _, name := range kept() {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != fileMode {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		}
		check(t, spool.Close())
		if left := kept(); len(left) > 0 {
			t.Errorf("it leaves %v", left)
		}
	}
	must(onDisk.Spool())(t) // and a crash
	check(t, onDisk.Close())
	if len(kept()) != 1 {
		t.Error("no file was left for the next start")
	}
	check(t, must(openAs(dir, ""))(t).Close())
	if left := kept(); len(left) > 0 {
		t.Errorf("the next start leaves %v", left)
	}
}
