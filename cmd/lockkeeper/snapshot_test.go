package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// succeeds runs a command, which must succeed, and returns what it prints.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := call(nil, args...)
	if code != exitOK || stderr != "" {
		t.Fatalf("%v: %d %q", args, code, stderr)
	}
	return stdout
}

// notThere checks that there is nothing at a path, nor a temporary file beside it.
func notThere(t *testing.T, path string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"+filepath.Base(path)+"*"))
	check1(t, err)
	if hidden, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left)+len(hidden) > 0 {
		t.Errorf("there is %v %v, %v", left, hidden, err)
	}
}

func TestSnapshotUsage(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	check1(t, os.WriteFile("empty", nil, 0o600))
	for args, says := range map[string][]string{
		"snapshot sav":                       {`"snapshot sav"`, "did you mean save?"},
		"snapshot save":                      {"usage: lockkeeper snapshot save FILE"},
		"snapshot save f":                    {"--admin", "--data"},
		"snapshot save f --admin 1 --data d": {"--data: not together with --admin"},
		"snapshot save f --data=":            {"--data: it cannot be empty"},
		"snapshot save f --data d --admin-token-file empty":   {"--admin-token-file: only together with --admin"},
		"snapshot save f --admin=":                            {"--admin: "},
		"snapshot save f --admin ftp://a:1":                   {"--admin: ", `"ftp://a:1"`},
		"snapshot save f --admin 1 --admin-token-file empty":  {"--admin-token-file: ", "empty has no token"},
		"snapshot restore":                                    {"usage: lockkeeper snapshot restore FILE"},
		"snapshot restore f":                                  {"--data: "},
		"snapshot restore f --data d --id 0":                  {"--id", `"0"`},
		"snapshot restore empty --data d --id 255":            {"--id: 255 is not in 1 to 254"},
		"snapshot restore f --data d --peers 1":               {"--peers: ", `"1"`},
		"snapshot restore empty --data d --peers 2=a:1,3=b:1": {"--id: server 1 is not among the members"},
		"snapshot restore empty --data d --log-store x":       {"--log-store: ", `"x"`},
	} {
		refuses(t, exitUsage, strings.Fields(args), says...)
	}
	env := map[string]string{"LOCKKEEPER_SNAPSHOT_SAVE_DATA": "d", "LOCKKEEPER_SNAPSHOT_SAVE_ADMIN": "a:1"}
	if code, _, stderr := call(env, "snapshot", "save", "f"); code != exitUsage || !strings.Contains(stderr, "LOCKKEEPER_SNAPSHOT_SAVE_DATA: not together with LOCKKEEPER_SNAPSHOT_SAVE_ADMIN") {
		t.Errorf("%d %q", code, stderr)
	}
	if code, _, stderr := call(env, "snapshot", "save", "f", "--data", "missing"); code != exitFault || !strings.Contains(stderr, "missing is no data directory") {
		t.Errorf("the flag before the environment: %d %q", code, stderr)
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 1 {
		t.Errorf("there is %v, %v", entries, err)
	}
}

// TestSnapshotOfDirectory saves the state of a data directory, restores it, and serves it.
func TestSnapshotOfDirectory(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	base := t.TempDir()
	file, restored := filepath.Join(base, "backup"), filepath.Join(base, "data")
	var report, saved struct {
		File             string
		Zxid, Bytes      int64
		Znodes, Sessions int
		Cluster, Digest  string
	}
	check1(t, json.Unmarshal([]byte(succeeds(t, "check", "--json", dir)), &report))
	out := succeeds(t, "snapshot", "save", file, "--data", dir)
	info, err := os.Stat(file)
	check1(t, err)
	want := fmt.Sprintf("saved %s: cluster %s, zxid 0x%x, 24 znodes, 1 sessions, %d bytes, digest %s\n", file, report.Cluster, report.Zxid, info.Size(), report.Digest)
	if out != want || info.Mode() != 0o600 {
		t.Errorf("%q, not %q; mode %v", out, want, info.Mode())
	}

	refuses(t, exitFault, []string{"snapshot", "save", file, "--data", dir}, file+" exists; --force replaces it")
	refuses(t, exitFault, []string{"snapshot", "save", base, "--data", dir, "--force"}, base+" is not a file")
	refuses(t, exitFault, []string{"snapshot", "save", filepath.Join(base, "no", "backup"), "--data", dir}, filepath.Join(base, "no"))
	before, err := os.ReadFile(file)
	check1(t, err)
	check1(t, json.Unmarshal([]byte(succeeds(t, "snapshot", "save", file, "--data", dir, "--force", "--json")), &saved))
	if saved.File != file || saved.Bytes != info.Size() || len(saved.Cluster) != 16 || saved.Cluster != report.Cluster || saved.Zxid != report.Zxid || saved.Znodes != 24 || saved.Sessions != 1 || saved.Digest != report.Digest {
		t.Errorf("%+v, but check says %+v", saved, report)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, before) {
		t.Errorf("saved once more, it differs: %v", err)
	}

	for says, text := range map[string][]byte{
		"at offset 0: cut short": {}, "cut short": before[:len(before)/2], "something after the end": append(bytes.Clone(before), 0),
		"checksum": append(append(bytes.Clone(before[:99]), before[99]^1), before[100:]...),
	} {
		bad := filepath.Join(base, "bad")
		check1(t, os.WriteFile(bad, text, 0o600))
		refuses(t, exitFault, []string{"snapshot", "restore", bad, "--data", restored}, bad+": ", "offset ", says)
	}
	for _, missing := range []string{filepath.Join(base, "missing"), base} {
		refuses(t, exitFault, []string{"snapshot", "restore", missing, "--data", restored}, missing)
	}
	notThere(t, restored)

	for _, logStore := range []string{"boltdb", "wal"} {
		check1(t, os.RemoveAll(restored))
		out = succeeds(t, "snapshot", "restore", file, "--data", restored, "--id", "7", "--log-store", logStore)
		was := report.Zxid
		check1(t, json.Unmarshal([]byte(succeeds(t, "check", "--json", restored)), &report))
		want = fmt.Sprintf("restored %s: server 7, zxid 0x%x, 24 znodes, 1 sessions, digest %s; start it with: lockkeeper serve --data %s --id 7\n", file, report.Zxid, report.Digest, restored)
		if out != want || report.Zxid <= was && logStore == "boltdb" {
			t.Errorf("%q, not %q; the zxid was %#x", out, want, was)
		}
		if out := succeeds(t, "check", restored); !strings.Contains(out, " is good: server 7, no cluster id yet, ") || !strings.Contains(out, " in "+logStore+" ") {
			t.Errorf("%s", out)
		}
	}
	refuses(t, exitFault, []string{"snapshot", "restore", file, "--data", restored}, restored+" is not empty")
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", restored, "--id", "7").waitReady()
	if r, err := p.connect().Get("/n19", false); err != nil || len(r.Data) != 100 {
		t.Errorf("%d bytes, %v", len(r.Data), err)
	}
	refuses(t, exitFault, []string{"snapshot", "save", filepath.Join(base, "running"), "--data", restored}, restored, "in use")
	notThere(t, filepath.Join(base, "running"))
}

// TestRestoreFromStdin restores a snapshot that comes through a pipe, whole and cut short.
func TestRestoreFromStdin(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, file := filepath.Join(base, "data"), filepath.Join(base, "backup")
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
	_, err := p.connect().Create("/piped", nil, 0)
	check1(t, err)
	p.stop()
	succeeds(t, "snapshot", "save", file, "--data", dir)
	text := value(os.ReadFile(file))(t)
	restore := func(text []byte) (stdout, stderr string, err error) {
		c := exec.Command(binary, "snapshot", "restore", "-", "--data", filepath.Join(base, "restored"))
		var out, errs bytes.Buffer
		c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(text), &out, &errs // not a file: a pipe
		err = c.Run()
		return out.String(), errs.String(), err
	}
	if _, stderr, err := restore(text[:len(text)/2]); err == nil {
		t.Error("half a snapshot was restored")
	} else {
		oneError(t, stderr, "standard input: ", "cut short")
	}
	if stdout, stderr, err := restore(text); err != nil || !strings.HasPrefix(stdout, "restored standard input: server 1, ") {
		t.Fatalf("%q %q %v", stdout, stderr, err)
	}
	p = start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(base, "restored")).waitReady()
	if _, err := p.connect().Exists("/piped", false); err != nil {
		t.Error(err)
	}
}

// TestRestoreSetAside restores a snapshot in the place of a directory, which is kept, and does so twice. It does not while a
// server runs on that directory.
func TestRestoreSetAside(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	base := t.TempDir()
	file, data := filepath.Join(base, "backup"), filepath.Join(base, "data")
	succeeds(t, "snapshot", "save", file, "--data", dir)
	restore := []string{"snapshot", "restore", file, "--data", data, "--set-aside"}
	if out := succeeds(t, restore...); !strings.HasPrefix(out, "restored "+file+": server 1, ") || !strings.HasSuffix(out, "lockkeeper serve --data "+data+" --id 1\n") {
		t.Errorf("where nothing was: %q", out)
	}
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", data).waitReady()
	_, err := p.connect().Create("/after", nil, 0)
	check1(t, err)
	refuses(t, exitFault, restore, data, "in use by another process")
	p.stop()
	for _, znodes := range []string{" 25 znodes", " 24 znodes"} {
		out := succeeds(t, restore...)
		kept, rest, _ := strings.Cut(strings.TrimPrefix(out, "kept what was in "+data+" as "), "\n")
		if !strings.HasPrefix(kept, data+".old-") || !strings.HasPrefix(rest, "restored "+file+": server 1, ") {
			t.Fatalf("%q", out)
		}
		for dir, want := range map[string]string{data: " 24 znodes", kept: znodes} {
			if out := succeeds(t, "check", dir); !strings.Contains(out, want) {
				t.Errorf("%s does not have%s: %s", dir, want, out)
			}
		}
	}
}

// TestSnapshotOfServer saves the states of servers that run: one without a token, and one
// with TLS and a token. It is refused without --admin-write or the token.
func TestSnapshotOfServer(t *testing.T) {
	t.Parallel()
	base, ca := t.TempDir(), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), base, "cert.pem", "key.pem")
	token, file := filepath.Join(base, "token"), filepath.Join(base, "backup")
	check1(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	memory := []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	p := start(t, nil, append(memory, "--admin-write")...).waitReady()
	_, err := p.connect().Create("/a", []byte("x"), 0)
	check1(t, err)
	for i, admin := range []string{p.admin(), p.admin() + "/", strings.TrimPrefix(p.admin(), "http://")} {
		out := succeeds(t, "snapshot", "save", fmt.Sprint(file, i), "--admin", admin)
		if !regexp.MustCompile(`^saved \S+: cluster \w{16}, zxid 0x\w+, 5 znodes, 1 sessions, \d+ bytes, digest \w{16}\n$`).MatchString(out) {
			t.Errorf("%s", out)
		}
		check1(t, os.Remove(fmt.Sprint(file, i)))
	}
	if log := strings.Join(p.lines(), "\n"); !strings.Contains(log, "an operator has saved a snapshot") {
		t.Errorf("the log: %s", log)
	}
	var out string
	env := []string{"SSL_CERT_FILE=" + ca.WriteCA(t, base, "ca.pem")}
	secure := start(t, nil, append(memory, "--admin-write", "--admin-token-file", token, "--admin-tls-cert", cert, "--admin-tls-key", key)...).waitReady()
	fails(t, start(t, env, "snapshot", "save", file, "--admin", secure.admin()), "401 Unauthorized", "needs a token")
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", secure.admin()}, "certificate")
	cmd := exec.Command(binary, "snapshot", "save", file, "--admin", secure.admin(), "--admin-token-file", token)
	cmd.Env = env
	text, err := cmd.CombinedOutput()
	if out = string(text); err != nil || !strings.HasPrefix(out, "saved ") {
		t.Errorf("%q, %v", out, err)
	}
	check1(t, os.Remove(file))

	readOnly := start(t, nil, memory...).waitReady()
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", readOnly.admin()}, readOnly.admin(), "403 Forbidden", "--admin-write")
	const closed = "127.0.0.1:1"
	for _, scheme := range []string{"http://", "https://"} { // a port for clients closes the connection
		refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", scheme + p.addr}, scheme+p.addr, "no HTTP server answers there", "the port that serve --admin opens")
	}
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", strings.Replace(p.admin(), "http:", "https:", 1)}, "this port has no TLS: use http://")
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", closed}, closed, "refused")

	// What other servers might send.
	hangs := make(chan struct{})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "LKSNAP\x02")
		switch r.URL.Path {
		case "/aborts/snapshot":
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/hangs/snapshot":
			w.(http.Flusher).Flush()
			close(hangs)
			<-r.Context().Done()
		}
	}))
	defer other.Close()
	other.Config.ErrorLog = nil
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", other.URL}, other.URL, "offset 7: cut short")
	refuses(t, exitFault, []string{"snapshot", "save", file, "--admin", other.URL + "/aborts"}, other.URL, "unexpected EOF")
	interrupted := start(t, nil, "snapshot", "save", file, "--admin", other.URL+"/hangs")
	<-hangs
	check1(t, interrupted.Process.Signal(syscall.SIGINT))
	fails(t, interrupted, other.URL)
	for _, name := range []string{"token", "cert.pem", "key.pem", "ca.pem"} {
		check1(t, os.Remove(filepath.Join(base, name)))
	}
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

// TestSnapshotOfCluster saves the state of a server, restores it to three members, and lets
// them go on. The client resumes its session.
func TestSnapshotOfCluster(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	file := filepath.Join(base, "backup")
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--admin", "0", "--admin-write", "--data", filepath.Join(base, "old")).waitReady()
	c := p.connect()
	_, err := c.Create("/lock", nil, proto.FlagEphemeral)
	check1(t, err)
	succeeds(t, "snapshot", "save", file, "--admin", p.admin())
	check1(t, p.Process.Kill())
	p.exit()

	list := peersAt(freeAddrs(t, 3)...)
	digests := map[string]bool{}
	for id := 1; id <= 3; id++ {
		dir := filepath.Join(base, fmt.Sprint(id))
		out := succeeds(t, "snapshot", "restore", file, "--data", dir, "--id", fmt.Sprint(id), "--peers", list)
		if !strings.HasSuffix(out, fmt.Sprintf("; start it with: lockkeeper serve --data %s --id %d --peers %s\n", dir, id, list)) {
			t.Errorf("%s", out)
		}
		digests[regexp.MustCompile(`digest \w{16}`).FindString(out)] = true
	}
	if len(digests) != 1 {
		t.Errorf("%v", digests)
	}
	var members []*process
	for id := 1; id <= 3; id++ {
		members = append(members, start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(base, fmt.Sprint(id)), "--id", fmt.Sprint(id), "--peers", list))
	}
	waitFor(t, "the session", func() bool {
		nc, err := net.DialTimeout("tcp", members[1].waitReady().addr, time.Minute)
		check1(t, err)
		t.Cleanup(func() { nc.Close() })
		again, err := rawclient.Resume(nc, c.Session)
		if !closedEarly(err) {
			check1(t, err)
			c = again
		}
		return err == nil
	})
	if stat, err := c.Exists("/lock", false); err != nil || stat.EphemeralOwner != c.Session.SessionID {
		t.Errorf("%+v, %v", stat, err)
	}
	if s := ask(t, "status", "--server", members[0].waitReady().addr); len(s.Members) != 3 {
		t.Errorf("%+v", s)
	}
}
