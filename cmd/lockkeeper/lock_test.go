package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/lockscan"
	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// lockServer starts a server with a TCP port that allows these four-letter words.
func lockServer(t *testing.T, words ...string) *lockkeepertest.Server {
	t.Helper()
	return lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Features.FourLetterWords = words }))
}

// client opens a session by TCP.
func client(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := lockscan.Connect(ctx, []string{addr}, time.Minute, lockscan.Options{})
	check1(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// contend starts to lock a path in the background. The channel gets a value when it is held.
func contend(conn *zk.Conn, at string) (*zk.Lock, <-chan error) {
	l, held := zk.NewLock(conn, at, zk.WorldACL(zk.PermAll)), make(chan error, 1)
	go func() { held <- l.Lock() }()
	return l, held
}

// node creates a znode and its parents.
func node(t *testing.T, conn *zk.Conn, at string, flags int32) {
	t.Helper()
	for i := 1; i < len(at); i++ {
		if at[i] == '/' {
			if _, err := conn.Create(at[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != zk.ErrNodeExists {
				check1(t, err)
			}
		}
	}
	_, err := conn.Create(at, nil, flags, zk.WorldACL(zk.PermAll))
	check1(t, err)
}

// lsJSON runs lock ls --json.
func lsJSON(t *testing.T, addr string, args ...string) (l listing) {
	t.Helper()
	code, stdout, stderr := call(nil, append([]string{"lock", "ls", "--json", "--server", addr}, args...)...)
	if code != exitOK || stderr != "" {
		t.Fatalf("lock ls: %d %q", code, stderr)
	}
	check1(t, json.Unmarshal([]byte(stdout), &l))
	return l
}

func TestLockLs(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons", "dump")
	a, b := client(t, s.Addr()), client(t, s.Addr())
	_, held := contend(a, "/app/one")
	check1(t, <-held)
	contend(b, "/app/one")
	s.WaitWaiters("/app/one", 1)
	node(t, b, "/app/two/0123456789abcdef0123456789abcdef__rlock__", zk.FlagEphemeral|zk.FlagSequence)
	node(t, b, "/other/n-", zk.FlagEphemeral|zk.FlagSequence)

	l := lsJSON(t, s.Addr())
	if len(l.Locks) != 2 || l.Locks[0].Path != "/app/one" || l.Locks[1].Path != "/app/two" || l.Locks[1].Client != locks.Kazoo || !l.Locks[1].Holders[0].Shared {
		t.Fatalf("got %+v", l)
	}
	one := l.Locks[0]
	known := s.Locks()[0]
	if one.Kind != locks.Mutex || one.Client != locks.GoZooKeeper || len(one.Holders) != 1 || len(one.Queue) != 1 {
		t.Fatalf("got %+v", one)
	}
	h, w := one.Holders[0], one.Queue[0]
	if h.Session != locks.ID(a.SessionID()) || h.Token != known.Token || !strings.HasSuffix(h.Znode, "-lock-0000000000") ||
		h.Server != s.Addr() || !strings.HasPrefix(h.Address, "127.0.0.1:") || h.TimeoutMS != 60_000 || h.ForMS < 0 || h.ForMS > 60_000 {
		t.Errorf("got %+v, not %+v", h, known)
	}
	// A session ends up to a tick after its timeout.
	if h.LeftMS == nil || *h.LeftMS > 63_000 || *h.LeftMS < 1 {
		t.Errorf("got %v ms", h.LeftMS)
	}
	if w.Session != locks.ID(b.SessionID()) || w.Token <= h.Token || w.Since.Before(h.Since) {
		t.Errorf("got %+v", w)
	}
	if l := lsJSON(t, s.Addr(), "/other"); len(l.Locks) != 0 {
		t.Errorf("got %+v", l)
	}
	if l := lsJSON(t, s.Addr(), "/other", "--all"); len(l.Locks) != 1 || l.Locks[0].Kind != locks.Unknown {
		t.Errorf("got %+v", l)
	}
	code, stdout, stderr := call(map[string]string{"LOCKKEEPER_SERVER": s.Addr()}, "lock", "ls", "/app/one")
	want := regexp.MustCompile(fmt.Sprintf(`^ +SESSION +TOKEN +SINCE +FOR +CLIENT +ENDS IN
/app/one \(mutex, go-zookeeper\)
  holds +%s +%d +\d{4}-\S+ +\S+s +127\.0\.0\.1:\d+ +\S+s
  waits +%s +%d +\d{4}-\S+ +\S+s +127\.0\.0\.1:\d+ +\S+s
$`, h.Session, h.Token, w.Session, w.Token))
	if code != exitOK || stderr != "" || !want.MatchString(stdout) {
		t.Errorf("%d %q\n%s", code, stderr, stdout)
	}
}

// TestLockLsOfLittle shows what a server shows that allows none of the words that lock ls
// asks for, and that has znodes that the client may not read.
func TestLockLsOfLittle(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "srvr")
	a := client(t, s.Addr())
	_, held := contend(a, "/lock")
	check1(t, <-held)
	acl := zk.DigestACL(zk.PermAll, "user", "password")
	_, err := a.Create("/secret", nil, 0, acl)
	check1(t, err)
	check1(t, a.AddAuth("digest", []byte("user:password")))
	_, held = contend(a, "/secret/lock")
	check1(t, <-held)

	code, stdout, stderr := call(nil, "lock", "ls", "--server", s.Addr())
	if code != exitOK || !strings.Contains(stdout, "/lock (mutex") || strings.Contains(stdout, "CLIENT") || strings.Contains(stdout, "/secret") {
		t.Errorf("%d\n%s", code, stdout)
	}
	for _, says := range []string{"does not allow cons", "does not allow dump", "no permission to read all of /secret\n"} {
		if !strings.Contains(stderr, says) {
			t.Errorf("%q does not say %q", stderr, says)
		}
	}
	l := lsJSON(t, s.Addr(), "--auth", "digest:user:password")
	if len(l.Locks) != 2 || len(l.Unreadable) != 0 || l.Locks[1].Path != "/secret/lock" || l.Locks[1].Holders[0].LeftMS != nil {
		t.Errorf("got %+v", l)
	}
	refuses(t, exitFault, []string{"lock", "ls", "--server", s.Addr(), "/nothing"}, "/nothing does not exist")
}

// TestLockLsFollows: --watch shows each change, even after the server was restarted, and even
// if the path does not exist at first.
func TestLockLsFollows(t *testing.T) {
	t.Parallel()
	s := lockServer(t)
	cmd := exec.Command(binary, "lock", "ls", "--watch", "--json", "--server", s.Addr(), "/a/b")
	pipe, err := cmd.StdoutPipe()
	check1(t, err)
	p := startCmd(t, cmd)
	lines := bufio.NewScanner(pipe)
	expect := func(want string) {
		t.Helper()
		for lines.Scan() {
			var l listing
			check1(t, json.Unmarshal(lines.Bytes(), &l))
			got := ""
			for _, x := range l.Locks {
				got += fmt.Sprintf("%s %d+%d ", x.Path, len(x.Holders), len(x.Queue))
			}
			if got == want {
				return
			}
		}
		t.Fatalf("never %q: %v %q", want, lines.Err(), p.lines())
	}
	expect("")
	conn, other := client(t, s.Addr()), client(t, s.Addr())
	first, held := contend(conn, "/a/b/c/d")
	check1(t, <-held)
	expect("/a/b/c/d 1+0 ")
	next := make(chan error, 1)
	go func() { // go-zookeeper's lock would fail if the server stops while it asks for a watch
		_, err := lock.NewMutex(other, "/a/b/c/d", lock.WithSessionTimeout(time.Minute)).Lock(context.Background())
		next <- err
	}()
	expect("/a/b/c/d 1+1 ")
	s.Kill()
	s.Restart()
	for err := first.Unlock(); err != nil; err = first.Unlock() {
		if err == zk.ErrNoNode { // an attempt whose answer was lost
			break
		}
	}
	expect("/a/b/c/d 1+0 ")
	check1(t, <-next)
	conn.Close()
	check1(t, s.ExpireSession(other.SessionID()))
	expect("")
	p.stop()
}

func TestLockBreak(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons")
	a, b := client(t, s.Addr()), client(t, s.Addr())
	_, held := contend(a, "/lock")
	check1(t, <-held)
	_, next := contend(b, "/lock")
	s.WaitWaiters("/lock", 1)
	token := s.Locks()[0].Token

	breaks := func(stdin string, args ...string) (int, string, string) {
		cmd := exec.Command(binary, append([]string{"lock", "break", "--server", s.Addr()}, args...)...)
		var stdout, stderr strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
		cmd.Run()
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	for _, answer := range []string{"", "no\n", "y\n"} {
		code, stdout, stderr := breaks(answer, "/lock")
		if code != exitFault || !strings.Contains(stdout, fmt.Sprintf("session %s (client 127.0.0.1:", locks.ID(a.SessionID()))) ||
			!strings.Contains(stdout, "holds /lock, with token "+fmt.Sprint(token)) || !strings.Contains(stdout, "goes on believing") ||
			!strings.Contains(stdout, "Next in the queue is session "+locks.ID(b.SessionID())) {
			t.Errorf("%d\n%s", code, stdout)
		}
		oneError(t, stderr, "nothing was deleted")
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--yes", "/lock", "--token", "1"}, "nobody holds /lock with token 1"},
		{[]string{"--yes", "/"}, "nobody holds a lock at /"},
		{[]string{"--yes", "/nothing"}, "/nothing does not exist"},
	} {
		code, _, stderr := breaks("", c.args...)
		if code != exitFault {
			t.Errorf("%q: exit code %d", c.args, code)
		}
		oneError(t, stderr, c.says)
	}
	s.WaitHeld("/lock", a.SessionID()) // still
	if code, stdout, stderr := breaks("yes\n", "/lock", "--token", fmt.Sprint(token)); code != exitOK || stderr != "" {
		t.Errorf("%d %q\n%s", code, stderr, stdout)
	}
	check1(t, <-next)
	s.WaitHeld("/lock", b.SessionID())

	// Of several holders, one has to be chosen, by token or by path.
	const reader = "/shared/0123456789abcdef0123456789abcde%d__rlock__"
	for i, conn := range []*zk.Conn{a, b, a} {
		node(t, conn, fmt.Sprintf(reader, i), zk.FlagEphemeral|zk.FlagSequence)
	}
	code, _, stderr := breaks("", "--yes", "/shared")
	if code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	oneError(t, stderr, "several sessions hold /shared: choose one by --token ")
	last := lsJSON(t, s.Addr(), "/shared").Locks[0].Holders
	if code, stdout, stderr := breaks("", "--yes", "/shared/"+last[0].Znode); code != exitOK {
		t.Errorf("%d %q\n%s", code, stderr, stdout)
	}
	if code, stdout, stderr := breaks("", "--yes", "/shared", "--token", fmt.Sprint(last[2].Token)); code != exitOK {
		t.Errorf("%d %q\n%s", code, stderr, stdout)
	}
	if left := lsJSON(t, s.Addr(), "/shared").Locks[0].Holders; len(left) != 1 || left[0].Token != last[1].Token {
		t.Errorf("left: %+v", left)
	}
}

func TestLockCheck(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons", "wchp")
	a, b := client(t, s.Addr()), client(t, s.Addr())
	check := func(addr string, want ...string) (notes string) {
		t.Helper()
		code, stdout, _ := call(nil, "lock", "check", "--json", "--settle", "10ms", "--server", addr)
		var r struct {
			Problems []finding
			Notes    []string
		}
		check1(t, json.Unmarshal([]byte(stdout), &r))
		var got []string
		harmful := false
		for _, f := range r.Problems {
			got = append(got, string(f.Problem)+" "+f.Path)
			harmful = harmful || f.Harmful
		}
		if !slices.Equal(got, want) || (code == exitProblems) != harmful || code != exitProblems && code != exitOK {
			t.Errorf("exit code %d, got %q, want %q: %s", code, got, want, stdout)
		}
		return strings.Join(r.Notes, "\n")
	}
	check(s.Addr())
	_, held := contend(a, "/a")
	check1(t, <-held)
	_, held = contend(b, "/b")
	check1(t, <-held)
	// waits lets a client wait behind the holder, whose znode it watches shortly after its own exists.
	waits := func(conn *zk.Conn, at string) {
		t.Helper()
		contend(conn, at)
		s.WaitWaiters(at, 1)
		l := lsJSON(t, s.Addr(), at).Locks
		s.WaitWatched(at+"/"+l[0].Holders[0].Znode, conn.SessionID())
	}
	waits(b, "/a")
	if notes := check(s.Addr()); notes != "" {
		t.Errorf("got %q", notes)
	}
	waits(a, "/b")
	check(s.Addr(), "cycle /a")

	const id = "/c/_c_0123456789abcdef0123456789abcdef-lock-"
	node(t, a, id, zk.FlagEphemeral|zk.FlagSequence)
	node(t, a, id, zk.FlagEphemeral|zk.FlagSequence)
	node(t, b, "/d/_c_0123456789abcdef0123456789abcdef-lock-", zk.FlagSequence)
	want := []string{"duplicate /c", "watches-nobody /c", "orphan /d", "waits-for-itself /c", "cycle /a"}
	check(s.Addr(), want...)
	code, stdout, stderr := call(nil, "lock", "check", "--settle", "0s", "--server", s.Addr(), "/c")
	if code != exitProblems || strings.Count(stdout, "\n") != 3 || !strings.HasPrefix(stdout, "duplicate /c: _c_0123") {
		t.Errorf("%d %q", code, stdout)
	}
	oneError(t, stderr, "there are 2 problems")
	if code, stdout, stderr := call(nil, "lock", "check", "--settle", "0s", "--server", s.Addr(), "/b"); code != exitOK || stdout != "checked 1 queue, nothing wrong\n" || stderr != "" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// TestLockCheckCounts: without wchp, wchs shows that some client watches nobody.
func TestLockCheckCounts(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "wchs")
	a, b := client(t, s.Addr()), client(t, s.Addr())
	for i, conn := range []*zk.Conn{a, b} {
		node(t, conn, fmt.Sprintf("/lock/_c_0123456789abcdef0123456789abcde%d-lock-", i), zk.FlagEphemeral|zk.FlagSequence)
	}
	code, stdout, stderr := call(nil, "lock", "check", "--settle", "0s", "--server", s.Addr())
	if code != exitProblems || stdout != "watches-nobody /: 1 znodes wait in queues, but all servers together have only 0 watches\n" || !strings.Contains(stderr, "does not allow wchp") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	_, _, _, err := b.GetW("/lock/_c_0123456789abcdef0123456789abcde0-lock-0000000000")
	check1(t, err)
	if code, stdout, _ := call(nil, "lock", "check", "--settle", "0s", "--server", s.Addr()); code != exitOK {
		t.Errorf("%d %q", code, stdout)
	}
}

// TestLockCheckLooks: lock check says how many queues it has checked, and exits with 0 only if it
// has looked at everything.
func TestLockCheckLooks(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "srvr")
	conn := client(t, s.Addr())
	check := func(want int, says ...string) {
		t.Helper()
		args := "lock check --settle 0s --server " + s.Addr()
		code, out := shell(t, args+says[0])
		if code != want {
			t.Errorf("exit code %d, want %d: %s", code, want, out)
		}
		for _, text := range says[1:] {
			if !strings.Contains(out, text) {
				t.Errorf("%s: %q is not in %s", says[0], text, out)
			}
		}
	}
	check(exitOK, "", "checked 0 queues, nothing wrong\n")
	node(t, conn, "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	check(exitOK, "", "checked 1 queue, nothing wrong\n") // nobody waits, so no watch is needed
	node(t, conn, "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	check(exitFault, "", "not checked: what clients of "+s.Addr()+" watch: the server does not allow wchp", "checked 1 queue, but not everything; nothing is wrong with the rest")
	check(exitFault, " --json", `"queues":1`, `"complete":false`, "does not allow wchp")
	check(exitOK, " --no-watches", "checked 1 queue, nothing wrong\n")
	check(exitOK, " --no-watches --json", `"queues":1`, `"complete":true`)
	_, err := conn.Create("/secret", nil, 0, zk.DigestACL(zk.PermAll, "user", "password"))
	check1(t, err)
	check(exitFault, " --no-watches", "no permission to read all of /secret", "checked 1 queue, but not everything")
	node(t, conn, "/b/lock-", zk.FlagSequence)
	check(exitProblems, " --no-watches", "no permission to read all of /secret", "orphan /b: ", "there is a problem with locks")

	// The client of another server that is not listed.
	c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithTCP(), lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Features.FourLetterWords = []string{"*"} }))
	conn = client(t, c.Server(2).Addr())
	node(t, conn, "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	node(t, conn, "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	_, _, _, err = conn.GetW("/a/lock-0000000000")
	check1(t, err)
	if code, out := shell(t, "lock check --settle 0s --server "+c.Server(1).Addr()); code != exitFault || !strings.Contains(out, "--server does not list their servers") {
		t.Errorf("%d\n%s", code, out)
	}
	again := strings.Replace(c.Server(1).Addr(), "127.0.0.1", "localhost", 1) // one that is listed twice is not all
	if code, out := shell(t, "lock check --settle 0s --server "+c.Server(1).Addr()+","+again+","+again); code != exitFault {
		t.Errorf("%d\n%s", code, out)
	}
	if code, out := shell(t, "lock check --settle 0s --server "+c.Server(1).Addr()+","+c.Server(2).Addr()); code != exitOK || !strings.Contains(out, "checked 1 queue, nothing wrong") {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestLockLsWatchesNothing: --watch says when nothing is held.
func TestLockLsWatchesNothing(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons")
	conn := client(t, s.Addr())
	cmd := exec.Command(binary, "lock", "ls", "--watch", "--server", s.Addr(), "/a")
	pipe, err := cmd.StdoutPipe()
	check1(t, err)
	p := startCmd(t, cmd)
	lines := bufio.NewScanner(pipe)
	expect := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("never %q: %v %q", want, lines.Err(), p.lines())
	}
	expect("nobody holds a lock at /a or below")
	node(t, conn, "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	expect("/a (mutex)")
	check1(t, conn.Delete("/a/lock-0000000000", -1))
	expect("nobody holds a lock at /a or below")
}

// TestLockData: the data of holders, by which many clients say who they are, is shown, bounded and
// escaped.
func TestLockData(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons", "dump")
	conn := client(t, s.Addr())
	hold := func(dir, data string, acl []zk.ACL) {
		t.Helper()
		_, err := conn.Create(dir, nil, 0, zk.WorldACL(zk.PermAll))
		check1(t, err)
		_, err = conn.Create(dir+"/_c_0123456789abcdef0123456789abcdef-lock-", []byte(data), zk.FlagEphemeral|zk.FlagSequence, acl)
		check1(t, err)
	}
	all := zk.WorldACL(zk.PermAll)
	hold("/a", "host-1 pid 7", all)
	hold("/b", "\x1b[2J\n"+strings.Repeat("x", 200), all)
	hold("/c", "", all)
	hold("/d", strings.Repeat("x", 5000), all)
	hold("/e", "secret", zk.DigestACL(zk.PermAll, "user", "password"))
	wants := []string{"host-1 pid 7", `\x1b[2J\n` + strings.Repeat("x", 95) + "…", "", "(5000 bytes)"} // the Stat of the last one may not be read
	code, stdout, _ := call(nil, "lock", "ls", "--server", s.Addr())
	lines := strings.Split(stdout, "\n")
	if code != exitOK || !strings.HasSuffix(lines[0], "ENDS IN  DATA") {
		t.Fatalf("%d\n%s", code, stdout)
	}
	l := lsJSON(t, s.Addr())
	if len(l.Locks) != len(wants) || !slices.Equal(l.Unreadable, []string{"/e"}) {
		t.Errorf("got %+v", l)
	}
	for i, want := range wants {
		if got := l.Locks[i].Holders[0].Data; got != want {
			t.Errorf("%s: %q", l.Locks[i].Path, got)
		}
		if line := lines[2+2*i]; !strings.HasSuffix(line, "  "+cmp.Or(want, "-")) {
			t.Errorf("%s: %q", l.Locks[i].Path, line)
		}
	}
	if _, out := shell(t, "lock break --server "+s.Addr()+" /a"); !strings.Contains(out, ", data host-1 pid 7) holds /a") {
		t.Error(out)
	}
	waits := start(t, nil, "lock", "run", "--server", s.Addr(), "/a", "--", "true")
	waitFor(t, "what lock run says", func() bool { return len(waits.lines()) > 0 })
	if said := waits.lines()[0]; !strings.Contains(said, ", data host-1 pid 7) has held it") {
		t.Error(said)
	}
}

// TestLockOdd: lock run waits behind entries of no known library, and says so; lock ls shows
// them, lock check finds those that stay, and lock break removes them.
func TestLockOdd(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons", "dump", "wchp")
	conn := client(t, s.Addr())
	ls := func() string {
		t.Helper()
		_, out := shell(t, "lock ls --server "+s.Addr())
		return out
	}
	for _, c := range []struct {
		name   string
		flags  int32
		says   string
		orphan bool
	}{
		{"lock-", zk.FlagSequence, "lock-0000000000, since ", true},
		{"x-lock-", zk.FlagSequence | zk.FlagEphemeral, "x-lock-0000000000, of session " + locks.ID(conn.SessionID()) + " (client 127.0.0.1:", false},
		{"01234567-89ab-cdef-0123-456789abcdef-lock-", zk.FlagSequence | zk.FlagEphemeral, "no known library makes such names", false},
	} {
		node(t, conn, "/odd/"+c.name, c.flags)
		node(t, conn, "/odd/n-", zk.FlagSequence|zk.FlagEphemeral) // of something else
		at := "/odd/" + c.name + "0000000000"
		waits := start(t, nil, "lock", "run", "--server", s.Addr(), "/odd", "--", "true")
		waitFor(t, "what lock run says", func() bool { return len(waits.lines()) > 0 })
		if said := waits.lines()[0]; !strings.Contains(said, "waiting for /odd: first in its queue is "+c.name+"0000000000, ") || !strings.Contains(said, c.says) {
			t.Errorf("%s: %s", c.name, said)
		}
		check1(t, waits.Process.Signal(syscall.SIGTERM))
		waits.exit()
		for flag, why := range map[string]string{"--timeout 10ms": "/odd was not free within 10ms", "--try": "/odd is held by another client"} {
			waitFor(t, flag+" says what is first in the queue", func() bool { // it leaves that out when the server is slow to tell
				code, out := shell(t, "lock run --server "+s.Addr()+" "+flag+" /odd -- true")
				if code != exitNotHeld || !strings.Contains(out, why) {
					t.Fatalf("%s: %s: %d\n%s", c.name, flag, code, out)
				}
				return strings.Contains(out, why+"; first in its queue is "+c.name+"0000000000: ")
			})
		}
		if out := ls(); !strings.Contains(out, "/odd (mutex)\n  holds") || strings.Count(out, "\n") != 3 {
			t.Errorf("%s: lock ls\n%s", c.name, out)
		}
		if code, out := shell(t, "lock check --settle 0s --server "+s.Addr()); (code == exitProblems) != c.orphan || strings.Contains(out, "orphan /odd: ") != c.orphan {
			t.Errorf("%s: lock check: %d\n%s", c.name, code, out)
		}
		if code, out := shell(t, "lock break --yes --server "+s.Addr()+" /odd"); code != exitOK || !strings.Contains(out, "Deleted "+at+".") {
			t.Errorf("%s: lock break: %d\n%s", c.name, code, out)
		}
		check1(t, conn.Delete("/odd/n-0000000001", -1))
		check1(t, conn.Delete("/odd", -1))
	}
}
