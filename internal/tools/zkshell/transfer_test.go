package zkshell_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// script executes commands in one session and keeps the session open until the test ends.
func script(t *testing.T, server *lockkeepertest.Server, lines ...string) {
	t.Helper()
	i := startShell(server, nil)
	for _, line := range lines {
		if got := i.do(line); strings.Contains(got, " not ") {
			t.Fatalf("%s: %s", line, got)
		}
	}
	t.Cleanup(func() {
		i.do("quit")
		<-i.done
	})
}

// variety creates znodes of all types, with all kinds of data and ACLs.
var variety = []string{
	"addauth digest user:secret",
	"create /app", "create /app/a text", "create /app/a/b 'two words'", "create /app/a-b x", "create /app/a/b/c x",
	"create /app/empty ''", "create /app/bytes x", "set -b /app/bytes //79", "create /app/ünïcödé ✓",
	"create /app/acl x world:anyone:r,digest:other:hash:cdrwa", "create /app/mine x auth::cdrwa", "create /app/mine/x y auth::r",
	"create -c /app/container x", "create /app/container/x y",
	"create -e /app/ephemeral x", "create -s /app/seq- x", "create -s /app/seq- x",
}

// super makes a shell one of the super user, who may read everything. The password's digest
// is that of super:secret.
func super(cfg *lockkeeper.Config) { cfg.Auth.SuperDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4=" }

func asSuper(cfg *zkshell.Config) {
	cfg.Auth = []zkshell.Auth{{Scheme: "digest", Auth: []byte("super:secret")}}
}

// transfer executes one command of the super user.
func transfer(t *testing.T, server *lockkeepertest.Server, exit int, words ...string) *output {
	t.Helper()
	o := newShell(server, asSuper)
	if code := o.shell.Once(context.Background(), words); code != exit {
		t.Fatalf("%q: exit code %d, not %d: %s", words, code, exit, o.err.String())
	}
	return o
}

func read(t *testing.T, file string) string {
	t.Helper()
	text := testkit.Must(os.ReadFile(file))(t)
	return string(text)
}

// TestTransfer checks that a subtree comes out of another server as it was exported.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := lockkeepertest.Start(t, lockkeepertest.WithConfig(super)), lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		script(t, from, variety...)
		dir := t.TempDir()
		first, second, third := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
		o := transfer(t, from, 0, "export", first, "/app")
		if got := o.out.String(); got != "Exported 16 znodes from /app to "+first+"\n" {
			t.Errorf("export printed %q", got)
		}
		for _, want := range []string{
			`{"path":"/"}`, `{"path":"/a/b","data":"two words"}`, `{"path":"/bytes","base64":"//79"}`, `{"path":"/empty","data":""}`,
			`{"path":"/acl","data":"x","acl":[{"scheme":"world","id":"anyone","perms":"r"},{"scheme":"digest","id":"other:hash","perms":"cdrwa"}]}`,
			`{"path":"/ephemeral","type":"ephemeral","owner":"0x`,
		} {
			if !strings.Contains(read(t, first), "\n"+want) {
				t.Errorf("the file has no line %s", want)
			}
		}

		o = transfer(t, to, 0, "import", first)
		st := transfer(t, to, 0, "stat", "/app/ünïcödé").out.String()
		if got := o.err.String(); !strings.Contains(got, "fencing tokens") || !strings.Contains(got, "at present 0x") || strings.Count(got, "\n") != 1 || !strings.Contains(st, "cZxid = "+zxidIn(got)+"\n") {
			t.Errorf("import says %q; the last znode is %s", got, st)
		}
		if got := o.out.String(); got != fmt.Sprintf("Imported %s to /app: 15 znodes created, 0 were there already, 0 overwritten, 1 ephemeral ones skipped\n", first) {
			t.Errorf("import printed %q", got)
		}
		if again := transfer(t, to, 0, "import", first); again.err.String() != "" {
			t.Errorf("an import that creates nothing says %q", again.err.String())
		}
		transfer(t, to, 0, "import", "-e", first, "/copy")
		transfer(t, to, 0, "export", second, "/app")
		transfer(t, to, 0, "export", third, "/copy")
		want := strings.Split(read(t, first), "\n")
		for i, line := range want {
			if strings.Contains(line, `"ephemeral"`) {
				want[i] = `{"path":"/ephemeral","data":"x"}`
			}
		}
		if got := strings.ReplaceAll(read(t, third), `"/copy"`, `"/app"`); got != strings.Join(want, "\n") {
			t.Errorf("with ephemeral znodes as persistent ones the copy is\n%s, not\n%s", got, strings.Join(want, "\n"))
		}
		if got := read(t, second); strings.Contains(got, "ephemeral") || strings.Count(got, "\n") != len(want)-2 {
			t.Errorf("the copy is\n%s", got)
		}
	})
}

// TestImportEdited imports files that an editor has changed without changing a znode.
func TestImportEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		script(t, server, "create /app text", "create /app/a 'two words'")
		dir := t.TempDir()
		whole, edited := filepath.Join(dir, "whole"), filepath.Join(dir, "edited")
		transfer(t, server, 0, "export", whole, "/app")
		text := read(t, whole)
		crlf := strings.ReplaceAll(text, "\n", "\r\n")
		for i, changed := range []string{text + "\n", text + " \n\t\n\n", crlf, crlf + "\r\n", "\ufeff" + text, "\ufeff" + crlf + "\r\n", strings.TrimSuffix(text, "\n")} {
			testkit.Check(t, os.WriteFile(edited, []byte(changed), 0o600))
			to := fmt.Sprintf("/copy%d", i)
			transfer(t, server, 0, "import", edited, to)
			if got := transfer(t, server, 0, "get", to+"/a").out.String(); got != "two words\n" {
				t.Errorf("%q: the znode has %q", changed, got)
			}
		}
	})
}

// zxidIn returns the zxid in the note of an import.
func zxidIn(note string) string {
	_, rest, _ := strings.Cut(note, "at present ")
	zxid, _, _ := strings.Cut(rest, ".")
	return zxid
}

// TestExportContinues cuts the file of an export in and around each line, and checks that
// another export completes it.
func TestExportContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		script(t, server, variety...)
		dir := t.TempDir()
		whole, part := filepath.Join(dir, "whole"), filepath.Join(dir, "part")
		transfer(t, server, 0, "export", whole, "/app")
		want := read(t, whole)
		var cuts []int
		end := 0
		for line := range strings.Lines(want) {
			cuts = append(cuts, end, end+1, end+len(line)/2, end+len(line)-1)
			end += len(line)
		}
		for _, n := range cuts {
			testkit.Check(t, errors.Join(os.WriteFile(part, []byte(want[:n]), 0o600), os.Chmod(part, 0o644)))
			if n > 0 && n < len(want)-1 { // without only the last newline, it is complete
				transfer(t, server, 1, "import", part) // it has no end
			}
			transfer(t, server, 0, "export", part, "/app")
			if got := read(t, part); got != want {
				t.Fatalf("after a cut at byte %d of %d the file is\n%s", n, len(want), got)
			}
			if info, err := os.Stat(part); err != nil || info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
				t.Fatalf("other users may read the file: %v, %v", info.Mode(), err)
			}
		}
		for _, c := range []struct{ text, path string }{{want, "/app"}, {"other\n", "/app"}, {"other", "/app"}, {want[:200], "/"}} {
			os.WriteFile(part, []byte(c.text), 0o600)
			transfer(t, server, 1, "export", part, c.path)
			if read(t, part) != c.text {
				t.Errorf("a refused export changed the file %.20q", c.text)
			}
		}
	})
}

// TestTransferSurvives loses the connection and the reply at each request of an export and of
// an import in turn, and checks that both complete in the same session.
func TestTransferSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		script(t, from, variety...)
		dir := t.TempDir()
		whole := filepath.Join(dir, "whole")
		transfer(t, from, 0, "export", whole, "/app")
		for n := 1; n <= 15; n++ {
			again, copied := filepath.Join(dir, fmt.Sprint("again", n)), filepath.Join(dir, fmt.Sprint("copied", n))
			from.Inject(lockkeepertest.Fault{Op: "getACL", Nth: n, Do: lockkeepertest.CloseAfter()})
			transfer(t, from, 0, "export", again, "/app")
			if read(t, again) != read(t, whole) {
				t.Errorf("after a loss at znode %d the export differs", n)
			}
			for _, loss := range []lockkeepertest.Action{lockkeepertest.CloseAfter(), lockkeepertest.CloseBefore()} {
				to := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
				to.Inject(lockkeepertest.Fault{Op: "create*", Nth: n, Do: loss})
				transfer(t, to, 0, "import", whole)
				os.Remove(copied)
				transfer(t, to, 0, "export", copied, "/app")
				if got := read(t, copied); strings.Count(got, "\n") != 17 {
					t.Errorf("after a loss (%v) at znode %d the import is\n%s", loss, n, got)
				}
			}
		}
	})
}

// TestImportAgain interrupts an import after each znode, by ending its session, and checks
// that another import completes it, and that it neither changes a znode that differs nor
// refuses to do so if told.
func TestImportAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		script(t, from, variety...)
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		transfer(t, from, 0, "export", file, "/app")
		for n := 1; n <= 15; n++ {
			to := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
			creates := to.Inject(lockkeepertest.Fault{Op: "create*", Nth: n, Do: lockkeepertest.CloseBefore()})
			// With no reply the client tries until its session would have expired.
			connections := to.Inject(lockkeepertest.Fault{Op: "connect", Nth: 2, Times: -1, Do: lockkeepertest.CloseBefore()})
			transfer(t, to, 1, "import", file)
			creates.Remove()
			connections.Remove()
			o := transfer(t, to, 0, "import", file)
			if got := o.out.String(); !strings.Contains(got, fmt.Sprintf("%d znodes created, %d were there", 16-n, n-1)) {
				t.Errorf("after %d znodes import printed %q", n-1, got)
			}
		}

		to := lockkeepertest.Start(t, lockkeepertest.WithConfig(super))
		transfer(t, to, 0, "import", file)
		transfer(t, to, 0, "set", "/app/a/b", "other")
		o := transfer(t, to, 1, "import", file)
		if got := o.err.String(); !strings.HasPrefix(got, "Node already exists: /app/a/b, with other data") {
			t.Errorf("import printed %q", got)
		}
		transfer(t, to, 0, "import", "-f", file)
		if o := transfer(t, to, 0, "get", "/app/a/b"); o.out.String() != "two words\n" {
			t.Errorf("/app/a/b is %q", o.out.String())
		}
		transfer(t, to, 0, "delete", "/app/a/b/c")
		script(t, to, "create -e /app/a/b/c x")
		transfer(t, to, 1, "import", "-f", file) // an ephemeral znode would not stay
	})
}

// TestImportTypes checks that an import creates containers and znodes with a TTL if the file
// says so: the server deletes them in time.
func TestImportTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		file := filepath.Join(t.TempDir(), "file")
		for _, c := range []struct {
			line string
			exit int
		}{
			{`{"path":"/none","type":"other"}`, 1},
			{`{"path":"/none","type":"ttl"}`, 1},
			{`{"path":"/c","type":"container"}` + "\n" + `{"path":"/c/x","type":"ttl","ttl":1000}` + "\n" + `{"path":"/stays"}`, 0},
		} {
			text := `{"format":"lockkeeper znodes","version":1,"path":"/"}` + "\n" + c.line + "\n"
			text += fmt.Sprintf(`{"end":true,"znodes":%d}`+"\n", strings.Count(c.line, "\n")+1)
			testkit.Check(t, os.WriteFile(file, []byte(text), 0o600))
			transfer(t, server, c.exit, "import", file)
		}
		if got, _ := once(t, server, 0, "ls", "-R", "/c"); got != "/c\n/c/x\n" {
			t.Errorf("imported %q", got)
		}
		time.Sleep(5 * time.Minute)
		if got, _ := once(t, server, 0, "ls", "/"); got != "[stays, zookeeper]\n" {
			t.Errorf("after five minutes there are %q", got)
		}
	})
}

// TestTree checks the drawing of a subtree.
func TestTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		script(t, server, "create /a x", "create /a/b", "create /a/b/c", "create -c /a/d xyz")
		want := "/\n├── a\n│   ├── b\n│   │   └── c\n│   └── d\n└── zookeeper\n    ├── config\n    └── quota\n"
		if got, _ := once(t, server, 0, "tree"); got != want {
			t.Errorf("tree printed\n%s, not\n%s", got, want)
		}
		want = "/a  (1 bytes)\n├── b  (0 bytes)\n└── d  (3 bytes)\n"
		if got, _ := once(t, server, 0, "tree", "-l", "-d", "1", "/a"); got != want {
			t.Errorf("tree printed\n%s, not\n%s", got, want)
		}
	})
}
