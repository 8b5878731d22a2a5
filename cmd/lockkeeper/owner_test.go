//go:build unix

package main

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestOwner: what root makes for a server that runs as another user belongs to that user, with the directories above it that are new.
func TestOwner(t *testing.T) {
	from, top := zooDir(t), t.TempDir()
	data, back, empty := filepath.Join(top, "new", "data"), filepath.Join(top, "back"), filepath.Join(top, "empty")
	if os.Geteuid() != 0 {
		refuses(t, exitUsage, []string{"migrate", "from", from, "--data", data, "--owner", "nobody"}, "--owner: only root can give files to another user")
		notThere(t, filepath.Join(top, "new"))
		return
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	check1(t, os.Mkdir(empty, 0o700)) // exists already
	succeeds(t, "migrate", "from", from, "--data", data, "--owner", "nobody")
	succeeds(t, "migrate", "to", back, "--data", data, "--owner", "nobody")
	if code, _, stderr := call(map[string]string{"LOCKKEEPER_MIGRATE_EMPTY_OWNER": nobody.Uid}, "migrate", "empty", "--above", "0x5", "--data", empty); code != exitOK {
		t.Errorf("%d %q", code, stderr)
	}
	restored, backup := filepath.Join(top, "copy"), filepath.Join(top, "backup")
	succeeds(t, "snapshot", "save", backup, "--data", data)
	succeeds(t, "snapshot", "restore", backup, "--data", filepath.Join(restored, "data"), "--owner", "nobody")
	aside := filepath.Join(top, "again")
	succeeds(t, "snapshot", "restore", backup, "--data", aside)
	succeeds(t, "snapshot", "restore", backup, "--data", aside, "--set-aside", "--owner", "nobody")
	for _, dir := range []string{filepath.Join(top, "new"), back, empty, restored, aside} {
		n := 0
		check1(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if s := info.Sys().(*syscall.Stat_t); err == nil && (strconv.Itoa(int(s.Uid)) != nobody.Uid || strconv.Itoa(int(s.Gid)) != nobody.Gid) {
				t.Errorf("%s belongs to %d:%d", path, s.Uid, s.Gid)
			}
			n++
			return err
		}))
		if n < 3 {
			t.Errorf("%s has only %d files", dir, n)
		}
	}
	kept, _ := filepath.Glob(aside + ".old-*")
	if len(kept) != 1 {
		t.Errorf("there is %q", kept)
	}
	for _, path := range append(kept, top, filepath.Join(from, "version-2", "log.1")) {
		if info, err := os.Stat(path); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s does not belong to root any more, %v", path, err)
		}
	}
	for _, name := range []string{"", "no such user"} {
		refuses(t, exitUsage, []string{"migrate", "from", from, "--data", filepath.Join(top, "none"), "--owner", name}, "--owner: there is no user "+strconv.Quote(name))
		notThere(t, filepath.Join(top, "none"))
		refuses(t, exitUsage, []string{"snapshot", "restore", backup, "--data", filepath.Join(top, "none"), "--owner", name}, "--owner: there is no user "+strconv.Quote(name))
		notThere(t, filepath.Join(top, "none"))
	}
}
