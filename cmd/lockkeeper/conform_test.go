package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestConform runs the command against a server that conforms.
func TestConform(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	junit := filepath.Join(t.TempDir(), "junit.xml")
	code, stdout, stderr := call(nil, "conform", s.Addr(), "--group", "handshake", "--junit", junit)
	if code != exitOK || !strings.Contains(stdout, " 0 failed, ") || !strings.Contains(stderr, "passed handshake/") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	onlyMine(t, junit)
	if b, err := os.ReadFile(junit); err != nil || !strings.Contains(string(b), `name="handshake/new session"`) {
		t.Errorf("%v\n%s", err, b)
	}

	code, stdout, _ = call(nil, "conform", "--json", "--run", "^handshake/new session$", "--like", "3.8.0+debian", s.Addr())
	var r conform.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || len(r.Results) != 1 || r.Version != "3.8.0+debian" {
		t.Errorf("exit %d, %v\n%s", code, err, stdout)
	}

	// Checks for newer versions do not run with an old one.
	code, stdout, _ = call(nil, "conform", "--like", "3.0.0", "--run", "readOnly byte", "--without", "words,ttl", s.Addr())
	if code != exitOK || !strings.Contains(stdout, "1 of other versions") {
		t.Errorf("exit %d\n%s", code, stdout)
	}

	lines := strings.Count(strings.TrimSpace(mustList(t)), "\n") + 1
	if lines != len(conform.Checks()) {
		t.Errorf("--list prints %d lines for %d checks", lines, len(conform.Checks()))
	}
}

func mustList(t *testing.T) string {
	code, stdout, stderr := call(nil, "conform", "--list")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	return stdout
}

// TestConformDiffers asks for a behaviour that the server does not have.
func TestConformDiffers(t *testing.T) {
	refuses(t, exitFault, []string{"conform", "127.0.0.1:1"}, "cannot connect to 127.0.0.1:1: ")
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	// The server does not behave like this version.
	code, stdout, stderr := call(nil, "conform", s.Addr(), "--like", "3.8.0", "--group", "persistent watches")
	if code != exitFault || !strings.Contains(stdout, "\nFAILED persistent watches/") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
}

// TestConformInterrupted checks that a signal ends the command with a one-line message,
// and that it leaves nothing on the server.
func TestConformInterrupted(t *testing.T) {
	t.Parallel()
	server := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--super-digest", "super:lK75jTNcA+U9vtVEw5vB51mj/w4=").waitReady()
	// Without the super user, a check of permissions that is interrupted leaves its znode.
	p := start(t, nil, "conform", server.addr, "--super", "super:secret", "--group", "create,delete,data,children,watches,multi", "--parallel", "1")
	waitFor(t, "progress", func() bool { return len(p.lines()) > 0 })
	check1(t, p.Process.Signal(os.Interrupt))
	if code := p.exit(); code != exitFault {
		t.Errorf("exit code %d", code)
	}
	last := p.lines()[len(p.lines())-1]
	var cut, of, passed, failed int
	if n, err := fmt.Sscanf(last, "lockkeeper: interrupted: %d of %d checks were not run, %d passed, %d failed", &cut, &of, &passed, &failed); n != 4 || cut < 1 || cut >= of || failed != 0 {
		t.Errorf("it says %q, %v", last, err)
	}
	for _, line := range p.lines() { // progress, too, counts nothing as failed
		if strings.Contains(line, " failed ") && line != last {
			t.Errorf("progress says %q", line)
		}
	}
	var r proto.ChildrenReply
	if _, err := server.connect().Call(proto.OpGetChildren, &proto.PathWatch{Path: "/"}, &r); err != nil || len(r.Names) != 1 {
		t.Errorf("the server has %q, %v", r.Names, err)
	}
}

// TestProgress checks that on a terminal progress is one line, which a shorter text
// overwrites completely and which is removed at the end. Elsewhere it is separate lines
// of the texts that matter.
func TestProgress(t *testing.T) {
	var b strings.Builder
	long := strings.Repeat("é", 100)
	p := progress{w: &b, terminal: true}
	p.show("1/3 passed with a long name", false)
	p.show("2/3 passed", true)
	p.show(long, true)
	p.clear()
	line := strings.Repeat(" ", 79)
	if want := "\r1/3 passed with a long name\r2/3 passed" + line[:17] + "\r" + long[:2*79] + "\r" + line + "\r"; b.String() != want {
		t.Errorf("on a terminal %q, not %q", b.String(), want)
	}
	b.Reset()
	p = progress{w: &b}
	p.show("1/3 passed", false)
	p.show("2/3 failed", true)
	p.clear()
	if b.String() != "2/3 failed\n" {
		t.Errorf("elsewhere %q", b.String())
	}
}
