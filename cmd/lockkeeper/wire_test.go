package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/proto"
)

// startWire starts a proxy to p. It returns the process and its output, which may be read
// only after the process has ended.
func startWire(t *testing.T, p *process, args ...string) (*process, *bytes.Buffer) {
	t.Helper()
	var stdout bytes.Buffer
	cmd := exec.Command(binary, append([]string{"wire", "--to", p.addr}, args...)...)
	cmd.Stdout = &stdout
	return startCmd(t, cmd).waitReady(), &stdout
}

func memoryServer(t *testing.T) *process {
	return start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0").waitReady()
}

// onlyMine checks that other users may not read a file that may have passwords.
func onlyMine(t *testing.T, file string) {
	t.Helper()
	info, err := os.Stat(file)
	check1(t, err)
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		t.Errorf("the mode of %s is %o", file, mode)
	}
}

// interrupt stops the proxy while clients are connected.
func (p *process) interrupt(signal syscall.Signal) {
	p.t.Helper()
	check1(p.t, p.Process.Signal(signal))
	if code := p.exit(); code != exitOK || len(p.lines()) != 1 {
		p.t.Errorf("exit code %d: %q", code, p.lines())
	}
}

// converse sends some requests through the proxy p.
func converse(t *testing.T, p *process) {
	t.Helper()
	c := p.connect()
	_, err := c.Create("/w", []byte("data"), proto.FlagEphemeral)
	check1(t, err)
	_, err = c.Get("/w", true)
	check1(t, err)
	_, err = c.Set("/w", []byte("more"))
	check1(t, err)
	if _, err := c.Exists("/none", false); err != proto.NoNode {
		t.Error(err)
	}
	if !strings.Contains(p.conf(), "tickTime=2000\n") {
		t.Error("no answer to conf")
	}
}

func TestWire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "it.txt")
	check1(t, os.WriteFile(file, []byte("an older recording"), 0o644))
	server := memoryServer(t)
	p, stdout := startWire(t, server, "--listen", "127.0.0.1:0", "--record", file)
	if want := "lockkeeper: proxying " + p.addr + " to " + server.addr; p.lines()[0] != want {
		t.Errorf("it says %q, not %q", p.lines(), want)
	}
	onlyMine(t, file)
	converse(t, p)
	p.interrupt(syscall.SIGINT)
	at := 0
	for _, want := range []string{
		" C1 -> open\n", " C1 -> connect {", " C1 <- connect {", ` C1 -> create xid=1 {path="/w" data="data" acl=[31 world:anyone] flags=1}`,
		" C1 <- create xid=1 zxid=0x", ` C1 -> getData xid=2 {path="/w" watch=true}`, ` {data="data" stat={`,
		" C1 -> setData xid=3 ", ` {type=NodeDataChanged state=3 path="/w"}`, " NoNode\n", " C2 -> 4lw conf\n", "             | tickTime=2000\n",
	} {
		i := strings.Index(stdout.String()[at:], want)
		if i < 0 {
			t.Fatalf("after byte %d of\n%s\nthere is no %q", at, stdout, want)
		}
		at += i
	}

	// A new server behaves the same; one where the znode already exists does not.
	fresh := memoryServer(t)
	code, out, errs := call(nil, "wire", "replay", file, fresh.addr)
	if code != exitOK || errs != "" || !strings.HasPrefix(out, "it: the same in all ") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	c := fresh.connect()
	_, err := c.Create("/w", nil, 0)
	check1(t, err)
	code, out, errs = call(nil, "wire", "replay", file, fresh.addr, "--event-zxid")
	if code != exitFault || !strings.Contains(out, "code is NodeExists, expected Ok\n  asked:    create xid=1 {") {
		t.Errorf("%d %q", code, out)
	}
	oneError(t, errs, "it", "differs")
	code, out, errs = call(nil, "wire", "replay", "--json", file, fresh.addr)
	var o struct {
		Recording, Field, Asked, Expected, Came string
		Same                                    bool
		Line, Steps                             int
	}
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitFault || o.Same || o.Field != "code" || o.Line == 0 || o.Came == "" || o.Recording != "it" {
		t.Errorf("%d %v %+v %q", code, err, o, errs)
	}
	check1(t, os.WriteFile(filepath.Join(dir, "other.txt"), []byte("zk-golden 1\ntitle: t\nserver: s, config x\n\n4LW > ruok\n4LW <\n  | imok\n"), 0o644))
	code, out, errs = call(nil, "wire", "replay", dir, fresh.addr)
	if code != exitFault || !strings.HasPrefix(out, "RECORDING  STEPS  ") || !strings.Contains(out, "code is NodeExists") || !strings.Contains(out, "same\n") {
		t.Errorf("%d %q", code, out)
	}
	oneError(t, errs, "1 of 2")
}

func TestWireQuiet(t *testing.T) {
	server := memoryServer(t)
	p, stdout := startWire(t, server, "--quiet")
	converse(t, p)
	p.interrupt(syscall.SIGTERM)
	if stdout.Len() > 0 {
		t.Errorf("it prints %q", stdout)
	}
}

func TestWireJSON(t *testing.T) {
	server := memoryServer(t)
	p, stdout := startWire(t, server, "--json", "--hex", "--only", "setData")
	converse(t, p)
	p.interrupt(syscall.SIGTERM)
	kinds := ""
	for line := range strings.Lines(stdout.String()) {
		var o struct {
			Op, Kind, Hex string
			Body          map[string]any
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.Op != "setData" || o.Hex == "" || len(o.Body) == 0 {
			t.Errorf("%q: %v", line, err)
		}
		kinds += o.Kind + " "
	}
	if kinds != "request reply " {
		t.Error(kinds)
	}
}

func TestWireFails(t *testing.T) {
	server := memoryServer(t)
	fails(t, start(t, nil, "wire", "--to", server.addr, "--listen", server.addr), "address already in use")
	fails(t, start(t, nil, "wire", "--to", server.addr, "--record", "/nowhere/file"), "/nowhere/file")
	if _, err := os.Stat("/dev/full"); err == nil {
		fails(t, start(t, nil, "wire", "--to", server.addr, "--record", "/dev/full"), "no space left")
	}
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.txt")
	check1(t, os.WriteFile(bad, []byte("zk-golden 1\n\nC1 < 00\n"), 0o644))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	l.Close()
	for _, x := range [][]string{
		{"replay", bad, server.addr, "line 2"},
		{"replay", filepath.Join(dir, "none"), server.addr, "none"},
		{"replay", t.TempDir(), server.addr, "no golden files"},
		{"replay", "../../testdata/golden/12-create-persistent.txt", l.Addr().String(), "cannot connect to "},
	} {
		code, _, errs := call(nil, append([]string{"wire"}, x[:3]...)...)
		if code != exitFault {
			t.Errorf("%q: exit code %d", x, code)
		}
		oneError(t, errs, x[3])
	}
}
