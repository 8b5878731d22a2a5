package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk fills the server's disk. The server must exit with code 1 and a one-line
// message and, started again with more space, have everything that it acknowledged.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	mount := func(flags uintptr, size string) error {
		return syscall.Mount("lockkeeper-test", disk, "tmpfs", flags, "size="+size)
	}
	if err := mount(0, "9m"); err != nil {
		t.Skipf("a small disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() { check1(t, syscall.Unmount(disk, 0)) })
	dir := filepath.Join(disk, "data")

	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
	c := p.connect()
	written := 0
	for ; ; written++ {
		if _, err := c.Create(fmt.Sprintf("/n%d", written), make([]byte, 10_000), 0); err != nil {
			break
		}
	}
	if code := p.exit(); code != exitFault {
		t.Errorf("exit code %d", code)
	}
	var messages []string
	for _, line := range p.lines() {
		if strings.HasPrefix(line, "lockkeeper: ") && !readyLine.MatchString(line) {
			messages = append(messages, line)
		}
	}
	if len(messages) != 1 || !strings.Contains(messages[0], dir) || !strings.Contains(messages[0], "no space left") {
		t.Errorf("it says %q", p.lines())
	}
	t.Logf("%d writes; %q", written, p.lines())

	check1(t, mount(syscall.MS_REMOUNT, "64m"))
	p = start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
	c = p.connect()
	for i := range written {
		if _, err := c.Exists(fmt.Sprintf("/n%d", i), false); err != nil {
			t.Errorf("/n%d was acknowledged: %v", i, err)
		}
	}
	p.stop()
}
