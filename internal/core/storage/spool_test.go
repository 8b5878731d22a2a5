package storage

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestSpool: a spool returns what was written, is readable only by its owner, and leaves
// nothing behind, also after a crash.
func TestSpool(t *testing.T) {
	dir := testkit.MemoryDir(t)
	kept := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, raftDir, "*.tmp"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	open := func() *Storage {
		s, err := Open(dir, "", 1, testkit.Quiet, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	onDisk := open()
	for _, s := range []*Storage{onDisk, NewMemory().Open()} {
		spool, err := s.Spool()
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"one ", "two"} {
			if _, err := io.WriteString(spool, part); err != nil {
				t.Fatal(err)
			}
		}
		r, err := spool.Reader()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != "one two" {
			t.Errorf("%s: %q, %v", s.Name, b, err)
		}
		for _, name := range kept() {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != fileMode {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		}
		if err := spool.Close(); err != nil {
			t.Error(err)
		}
		if left := kept(); len(left) > 0 {
			t.Errorf("it leaves %v", left)
		}
	}
	if _, err := onDisk.Spool(); err != nil { // and a crash
		t.Fatal(err)
	}
	if err := onDisk.Close(); err != nil {
		t.Fatal(err)
	}
	if len(kept()) != 1 {
		t.Error("no file was left for the next start")
	}
	again := open()
	defer again.Close()
	if left := kept(); len(left) > 0 {
		t.Errorf("the next start leaves %v", left)
	}
}
