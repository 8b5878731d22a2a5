//go:build unix

package privatefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestCreate makes a new file, and one that everybody may read.
func TestCreate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for _, before := range []os.FileMode{0, 0o644, 0o400, 0o600} {
		if before != 0 {
			testkit.Check(t, os.Chmod(name, before))
		}
		f, err := Create(name)
		if before == 0o400 && os.Geteuid() != 0 {
			if err == nil {
				t.Error("a file that may not be written was opened")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		info := testkit.Must(os.Stat(name))(t)
		if got := info.Mode().Perm(); got&0o077 != 0 {
			t.Errorf("the mode was %o and is %o", before, got)
		}
	}

}

// written writes secret to a file that is to be private, at its offset, and closes it. It
// checks the file's name, which is that in errors.
func written(t *testing.T, f *os.File, err error, name string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if f.Name() != name {
		t.Errorf("its name is %s, not %s", f.Name(), name)
	}
	if _, err := f.WriteString("secret"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func readAll(t *testing.T, name string) string {
	t.Helper()
	text := testkit.Must(os.ReadFile(name))(t)
	return string(text)
}

// TestOpenBefore: another user who had a file open while everybody could read it does not see
// what is written to it when it is private.
func TestOpenBefore(t *testing.T) {
	dir := testkit.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	name, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	testkit.Check(t, os.Symlink(name, link))
	for _, by := range []string{name, link} {
		for what, open := range map[string]func() (*os.File, error){
			"secret": func() (*os.File, error) { return Create(by) },
			"beforesecret": func() (*os.File, error) {
				f, err := os.OpenFile(by, os.O_RDWR, 0)
				if err != nil {
					return nil, err
				}
				if _, err := f.Seek(int64(len("before")), io.SeekStart); err != nil {
					return nil, err
				}
				return Protect(f)
			},
		} {
			testkit.Check(t, errors.Join(os.WriteFile(name, []byte("before, and more"), 0o600), os.Chmod(name, 0o644)))
			other := testkit.Must(os.Open(name))(t)
			defer other.Close()
			f, err := open()
			written(t, f, err, name)
			if got := readAll(t, name); got != what {
				t.Errorf("the file has %q, not %q", got, what)
			}
			if seen, err := io.ReadAll(other); err != nil || strings.Contains(string(seen), "secret") {
				t.Errorf("another user has seen %q, %v", seen, err)
			}
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the file has mode %v, %v", info.Mode(), err)
			}
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
	if to, err := os.Readlink(link); err != nil || to != name {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	nowhere := filepath.Join(dir, "nowhere")
	testkit.Check(t, os.Symlink(filepath.Join(dir, "nothing"), nowhere))
	if _, err := Create(nowhere); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a link that leads to nothing: %v", err)
	}
}

// TestNotFiles: what is not a file is written to as it is, and keeps its mode; so is a file that
// this process has open under the name of its descriptor.
func TestNotFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	testkit.Check(t, errors.Join(syscall.Mkfifo(pipe, 0o600), os.Chmod(pipe, 0o666)))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // does not wait for another process
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, open := range []func() (*os.File, error){
		func() (*os.File, error) { return Create(pipe) },
		func() (*os.File, error) {
			f, err := os.OpenFile(pipe, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			return Protect(f)
		},
	} {
		f, err := open()
		written(t, f, err, pipe)
		got := make([]byte, len("secret"))
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != "secret" {
			t.Errorf("from the pipe: %q, %v", got, err)
		}
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode() != fs.ModeNamedPipe|0o666 {
		t.Errorf("the mode of the pipe is %v, %v", info.Mode(), err)
	}

	name := filepath.Join(t.TempDir(), "file")
	open := testkit.Must(os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644))(t)
	defer open.Close()
	own := fmt.Sprintf("/dev/fd/%d", open.Fd())
	if _, err := os.Stat(own); err != nil {
		t.Skip(err)
	}
	f, err := Create(own)
	written(t, f, err, own)
	if got, err := io.ReadAll(open); err != nil || string(got) != "secret" {
		t.Errorf("the file that is open has %q, %v", got, err)
	}
	if info, err := open.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file that is open has mode %v, %v", info.Mode(), err)
	}
}
