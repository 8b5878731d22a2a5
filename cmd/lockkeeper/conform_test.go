package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestConform runs the command against a server that conforms, and as one that
// does not.
func TestConform(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	junit := filepath.Join(t.TempDir(), "junit.xml")
	code, stdout, stderr := call(nil, "conform", s.Addr(), "--group", "handshake", "--junit", junit)
	if code != exitOK || !strings.Contains(stdout, " 0 failed, ") || !strings.Contains(stderr, "passed handshake/") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	if b, err := os.ReadFile(junit); err != nil || !strings.Contains(string(b), `name="handshake/new session"`) {
		t.Errorf("%v\n%s", err, b)
	}

	code, stdout, _ = call(nil, "conform", "--json", "--run", "^handshake/new session$", "--like", "3.8.0+debian", s.Addr())
	var r conform.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || len(r.Results) != 1 || r.Version != "3.8.0+debian" {
		t.Errorf("exit %d, %v\n%s", code, err, stdout)
	}

	// Nothing that 3.4 cannot do is expected of one that is like it.
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
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	// Another version than the server's, so that it must differ.
	code, stdout, stderr := call(nil, "conform", s.Addr(), "--like", "3.8.0", "--group", "persistent watches")
	if code != exitFault || !strings.Contains(stdout, "\nFAILED persistent watches/") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestConformUsage(t *testing.T) {
	for _, x := range []struct {
		args string
		says string
	}{
		{"", "one endpoint"},
		{"127.0.0.1:1 127.0.0.1:2", "one endpoint"},
		{"127.0.0.1", "missing port"},
		{"127.0.0.1:1 --group nonsense", `--group: "nonsense" is not one of handshake`},
		{"127.0.0.1:1 --without nonsense", `--without: "nonsense" is not one of words`},
		{"127.0.0.1:1 --run (", "missing closing )"},
		{"127.0.0.1:1 --like new", `"new" is no version`},
	} {
		code, _, stderr := call(nil, append([]string{"conform"}, strings.Fields(x.args)...)...)
		if code != exitUsage {
			t.Errorf("conform %s: exit %d", x.args, code)
		}
		oneError(t, stderr, x.says)
	}
	code, _, stderr := call(nil, "conform", "127.0.0.1:1")
	if code != exitFault {
		t.Errorf("no server: exit %d", code)
	}
	oneError(t, stderr, "the endpoint cannot be used")
}
