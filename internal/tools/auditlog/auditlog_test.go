package auditlog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

var check = testkit.Check

func event(path string) lockkeeper.AuditEvent {
	return lockkeeper.AuditEvent{Session: 0x1a, User: "ann", IP: "127.0.0.1", Operation: "delete", Path: path, Result: "failure"}
}

func read(t *testing.T, file string) []string {
	t.Helper()
	text := string(testkit.Must(os.ReadFile(file))(t))
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// TestForm compares whole lines, to which the second opening of the file appends.
func TestForm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	for range 2 {
		l := testkit.Must(Open(file, "root", testkit.Quiet))(t)
		l.Add(event("/a"))
		l.Add(lockkeeper.AuditEvent{Operation: "serverStart", Result: "success"})
		l.Add(event("/b\n\tuser=eve"))
		l.Close()
		l.Add(event("/after")) // is nothing
		if lines, dropped := l.Stats(); lines != 3 || dropped != 0 {
			t.Errorf("%d lines, %d dropped", lines, dropped)
		}
	}
	if info := testkit.Must(os.Stat(file))(t); info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		t.Errorf("others may read digests in ACLs: %v", info.Mode())
	}
	lines := read(t, file)
	if len(lines) != 6 {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{
		"ERROR audit.Slf4jAuditLogger: session=0x1a\tuser=ann\tip=127.0.0.1\toperation=delete\tznode=/a\tresult=failure",
		"INFO audit.Slf4jAuditLogger: user=root\toperation=serverStart\tresult=success",
		"ERROR audit.Slf4jAuditLogger: session=0x1a\tuser=ann\tip=127.0.0.1\toperation=delete\tznode=/b\\u000a\\u0009user=eve\tresult=failure",
	} {
		for _, line := range []string{lines[i], lines[i+3]} {
			if !regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ` + regexp.QuoteMeta(want) + "$").MatchString(line) {
				t.Errorf("%q, not %q", line, want)
			}
		}
	}
}

// TestReopen renames the file, as logrotate does.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	file, old := filepath.Join(dir, "audit.log"), filepath.Join(dir, "audit.log.1")
	var log testkit.Log
	l := testkit.Must(Open(file, "root", log.Logger(slog.LevelInfo)))(t)
	written := func(n int64) {
		t.Helper()
		testkit.Eventually(t, "the line", func() bool { lines, _ := l.Stats(); return lines == n })
	}
	l.Add(event("/a"))
	written(1)
	check(t, os.Rename(file, old))
	l.Add(event("/b"))
	written(2)
	l.Reopen()
	testkit.Eventually(t, "the new file", func() bool { _, err := os.Stat(file); return err == nil })
	l.Add(event("/c"))
	written(3)
	check(t, os.Remove(file))
	check(t, os.Mkdir(file, 0o700))
	l.Reopen() // cannot be opened
	testkit.Eventually(t, "the error", func() bool { return len(log.Matching("ERROR", file)) == 1 })
	l.Add(event("/d"))
	l.Close()
	if lines := read(t, old); len(lines) != 2 || !strings.Contains(lines[1], "/b") {
		t.Errorf("the file that was renamed: %q", lines)
	}
	if lines, dropped := l.Stats(); lines != 4 || dropped != 0 {
		t.Errorf("%d lines, %d dropped", lines, dropped)
	}
	if lines := log.Matching("ERROR", file); len(lines) != 1 {
		t.Errorf("the log: %q", log.Matching())
	}
}

// disk is a file that takes as many bytes as it has room for, and then fails, or blocks while stuck.
type disk struct {
	mu    sync.Mutex
	text  []byte
	room  int
	stuck chan struct{}
}

func (d *disk) Write(b []byte) (int, error) {
	if d.stuck != nil {
		<-d.stuck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(b), d.room)
	d.text, d.room = append(d.text, b[:n]...), d.room-n
	if n < len(b) {
		return n, errors.New("no space left")
	}
	return n, nil
}

func (d *disk) Close() error { return nil }

func (d *disk) lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Split(strings.TrimSuffix(string(d.text), "\n"), "\n")
}

func on(t *testing.T, d *disk, log *slog.Logger) *Log {
	return testkit.Must(start(func() (io.WriteCloser, error) { return d, nil }, "root", log))(t)
}

// TestStuck: while the disk does nothing, nobody waits. Of the lines beyond 4 MiB only the number is kept.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		d := &disk{room: 1 << 30, stuck: make(chan struct{})}
		l := on(t, d, log.Logger(slog.LevelInfo))
		const all = 100_000
		start := time.Now()
		for i := range all {
			l.Add(event(fmt.Sprintf("/%06d", i)))
			if i == 0 {
				synctest.Wait() // the writer has the first one
			}
		}
		_, dropped := l.Stats()
		if time.Since(start) > 0 || dropped < 1000 {
			t.Errorf("%d dropped, after %v", dropped, time.Since(start))
		}
		close(d.stuck)
		synctest.Wait()
		l.Add(event("/more"))
		l.Close()
		lines := d.lines()
		kept := all - int(dropped)
		if len(lines) != kept+2 || !strings.Contains(lines[kept-1], fmt.Sprintf("/%06d", kept-1)) ||
			!strings.HasSuffix(lines[kept], fmt.Sprintf(": dropped=%d", dropped)) || !strings.Contains(lines[kept+1], "/more") {
			t.Errorf("%d lines for %d that were kept; behind them %q", len(lines), kept, lines[max(0, kept-1):])
		}
		if lines := log.Matching("WARN", "were dropped", fmt.Sprint(dropped)); len(lines) != 1 {
			t.Errorf("the log: %q", log.Matching())
		}
	})
}

// TestFull: a disk that is full for a while costs no line, and one that is full at the end says how many.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		d := &disk{room: 150}
		l := on(t, d, log.Logger(slog.LevelInfo))
		for i := range 10 {
			l.Add(event(fmt.Sprint("/", i)))
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		d.mu.Lock()
		d.room = 1 << 20
		d.mu.Unlock()
		time.Sleep(2 * time.Second)
		if lines := d.lines(); len(lines) != 10 || !strings.Contains(lines[1], "\tznode=/1\t") {
			t.Errorf("%q", lines)
		}
		if lines := log.Matching("ERROR", "no space left"); len(lines) != 1 {
			t.Errorf("the log: %q", log.Matching())
		}
		d.mu.Lock()
		d.room = 0
		d.mu.Unlock()
		l.Add(event("/a"))
		l.Add(event("/b"))
		synctest.Wait()
		l.Close()
		if lines, dropped := l.Stats(); lines != 10 || dropped != 2 {
			t.Errorf("%d lines, %d dropped", lines, dropped)
		}
		if lines := log.Matching("last lines are lost", "lines=2"); len(lines) != 1 {
			t.Errorf("the log: %q", log.Matching())
		}
	})
}

// TestLongLine: a client cannot keep an attempt out of the log with a path whose line is longer than what may wait.
func TestLongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 30}
		l := on(t, d, testkit.Quiet)
		l.Add(event("/" + strings.Repeat("\x01", 1<<20)))
		synctest.Wait()
		l.Close()
		lines := d.lines()
		if lines, dropped := l.Stats(); lines != 1 || dropped != 0 {
			t.Errorf("%d lines, %d dropped", lines, dropped)
		}
		if len(lines) != 1 || len(lines[0]) < maxQueued || !strings.Contains(lines[0], "user=ann") {
			t.Errorf("%d lines, the first %.300q", len(lines), lines[0])
		}
	})
}

// TestReopenFull: Reopen leaves a file that cannot be written any more, and nothing is lost.
func TestReopenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, empty := &disk{}, &disk{room: 1 << 20}
		opened := []*disk{full, empty}
		l := testkit.Must(start(func() (io.WriteCloser, error) {
			d := opened[0]
			opened = opened[1:]
			return d, nil
		}, "root", testkit.Quiet))(t)
		l.Add(event("/a"))
		synctest.Wait()
		l.Reopen()
		l.Add(event("/b"))
		time.Sleep(2 * again)
		if lines := empty.lines(); len(lines) != 2 || !strings.Contains(lines[0], "/a") || !strings.Contains(lines[1], "/b") {
			t.Errorf("the new file: %q", lines)
		}
		l.Close()
	})
}

// TestCloseFull: Close tries once more to write what could not be written before.
func TestCloseFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := on(t, d, testkit.Quiet)
		l.Add(event("/a"))
		synctest.Wait()
		d.mu.Lock()
		d.room = 1 << 20
		d.mu.Unlock()
		l.Close()
		if lines := d.lines(); len(lines) != 1 || !strings.Contains(lines[0], "/a") {
			t.Errorf("%q", lines)
		}
	})
}

// TestCloseStuck: a disk that does nothing keeps nobody from ending.
func TestCloseStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 20, stuck: make(chan struct{})}
		l := on(t, d, testkit.Quiet)
		l.Add(event("/a"))
		start := time.Now()
		l.Close()
		if d := time.Since(start); d != closeTime {
			t.Errorf("it took %v", d)
		}
		close(d.stuck)
		<-l.done
	})
}
