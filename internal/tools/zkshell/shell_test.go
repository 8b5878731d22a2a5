package zkshell_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// output is what a shell prints on standard output and standard error.
type output struct {
	out, err bytes.Buffer
	shell    *zkshell.Shell
}

// newShell returns a shell for a server, which reaches it without a port.
func newShell(server *lockkeepertest.Server, change func(*zkshell.Config)) *output {
	o := &output{}
	cfg := zkshell.Config{
		Servers: "server:2181", Timeout: 10 * time.Second, Dial: dialer(server), Command: context.WithCancel, Explain: func(_ context.Context, why []error) []error { return why }, Stdout: &o.out, Stderr: &o.err, Version: "1",
	}
	if change != nil {
		change(&cfg)
	}
	o.shell = zkshell.New(cfg)
	return o
}

// once executes one command in a session of its own.
func once(t *testing.T, server *lockkeepertest.Server, exit int, words ...string) (stdout, stderr string) {
	t.Helper()
	o := newShell(server, nil)
	if code := o.shell.Once(context.Background(), words); code != exit {
		t.Fatalf("%q: exit code %d, not %d: %s", words, code, exit, o.err.String())
	}
	return o.out.String(), o.err.String()
}

// TestOnce checks that single commands print their results and errors where they should,
// and that their session ends.
func TestOnce(t *testing.T) {
	server := lockkeepertest.Start(t)
	for _, c := range []struct {
		words    string
		exit     int
		out, err string
	}{
		{"create /a x", 0, "", "Created /a\n"},
		{"create -e /a/e x", 0, "", "Created /a/e\n"},
		{"ls /a", 0, "[]\n", ""}, // the session has ended
		{"get /a", 0, "x\n", ""},
		{"get /b", 1, "", "Node does not exist: /b\n"},
		{"get -v", 1, "", "Unrecognized option: -v\n"},
		{"set -v", 1, "", "Missing argument for option: v\n"},
		{"delete -v7 /a", 1, "", "version No is not valid : /a\n"},
		{"setAcl /a world:anyone:r", 0, "", ""},
		{"set /a y", 1, "", "Insufficient permission : /a\n"},
		{"setquota /a", 1, "", "Missing required option: [-n num soft quota, -b bytes soft quota, -N num hard quota, -B bytes hard quota]\n"},
		{"delquota -n -b /a", 1, "", "The option 'b' was specified but an option from this group has already been selected: 'n'\n"},
		{"setquota -n 1 /", 1, "", "Path must not end with / character\n"}, // it would stop ZooKeeper 3.9
		{"addWatch relative", 1, "", "Path must start with / character\n"},
		{"delete -v x /a", 1, "", "For input string: \"x\"\n"},
		{"version", 0, "lockkeeper CLI version: 1\n", ""},
		{"sync /", 0, "Sync is OK\n", ""},
	} {
		out, errs := once(t, server, c.exit, strings.Fields(c.words)...)
		if out != c.out || errs != c.err {
			t.Errorf("%s: printed %q and %q, not %q and %q", c.words, out, errs, c.out, c.err)
		}
	}
	if _, errs := once(t, server, 127, "nothing"); !strings.HasSuffix(errs, "Command not found: Command not found nothing\n") {
		t.Errorf("an unknown command: %q", errs)
	}
}

// TestJSON checks that each command prints one JSON object for a result or an error.
func TestJSON(t *testing.T) {
	server := lockkeepertest.Start(t)
	for _, c := range []struct{ words, want string }{
		{"create /a x", `{"command":"create","path":"/a"}`},
		{"set -b /a /w==", `{"command":"set","path":"/a","stat":{`},
		{"get /a", `{"base64":"/w==","command":"get","path":"/a"}`},
		{"getAcl /a", `{"acl":[{"scheme":"world","id":"anyone","perms":"cdrwa"}],"command":"getAcl","path":"/a"}`},
		{"ls /", `{"children":["a","zookeeper"],"command":"ls","path":"/"}`},
		{"ls /b", `{"code":-101,"error":"Node does not exist: /b"}`},
	} {
		o := newShell(server, func(cfg *zkshell.Config) { cfg.JSON = true })
		o.shell.Once(context.Background(), strings.Fields(c.words))
		if got := o.out.String(); !json.Valid(o.out.Bytes()) || !strings.HasPrefix(got, strings.TrimSuffix(c.want, "}")) {
			t.Errorf("%s: printed %s, not %s", c.words, got, c.want)
		}
	}
}

// TestScript checks the commands of the shell itself.
func TestScript(t *testing.T) {
	server := lockkeepertest.Start(t)
	o := newShell(server, nil)
	exit := o.shell.Run(context.Background(), strings.NewReader(strings.Join([]string{
		"create /a 'two words'", "get /a", "redo 1", "history", "redo 9", "printwatches off", "printwatches",
		"close", "ls /", "connect", "ls /", "get /none", "quit", "ls /",
	}, "\n")))
	if exit != 1 {
		t.Errorf("exit code %d, not that of the last command", exit)
	}
	want := "two words\ntwo words\n0 - create /a 'two words'\n1 - get /a\n2 - get /a\n3 - history\nprintwatches is off\nNot connected\n[a, zookeeper]\n"
	_, rest, _ := strings.Cut(o.out.String(), "Welcome to ZooKeeper!\n")
	if got := withoutEvents(rest); got != want {
		t.Errorf("printed %q, not %q", got, want)
	}
}

// withoutEvents removes the events from an output.
func withoutEvents(text string) string {
	return strings.Join(slices.DeleteFunc(slices.Collect(strings.Lines(text)), func(line string) bool {
		return line == "\n" || line == "WATCHER::\n" || strings.HasPrefix(line, "WatchedEvent ")
	}), "")
}
