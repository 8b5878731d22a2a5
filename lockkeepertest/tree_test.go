package lockkeepertest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// file writes a file for WithTreeFile.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tree.txt")
	check(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestWithTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t, lockkeepertest.WithTree("/config/hosts = \"a,b\"\n/config/empty\n/x = 0x00\n"))
		if got, want := s.Tree(), "/config\n/config/empty\n/config/hosts = \"a,b\"\n/x = 0x00\n"; got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		conn := s.Connect(t, time.Minute)
		_, stat, err := conn.Get("/config")
		if err != nil || stat.Cversion != 2 || stat.NumChildren != 2 || stat.Version != 0 || stat.Czxid == 0 || stat.Ctime != time.Now().UnixMilli() {
			t.Errorf("got %+v, %v", stat, err)
		}
		if path, err := conn.Create("/config/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil || path != "/config/n-0000000002" {
			t.Errorf("got %s, %v", path, err)
		}
		was := s.Tree()
		s.Kill()
		s.Restart()
		if got := s.Tree(); got != was {
			t.Errorf("after a restart:\n%s", got)
		}
	})
}

func TestWithTreeCluster(t *testing.T) {
	name := file(t, "/a = \"x\"\n/a/b = \"y\"\n")
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithTreeFile(name))
		for i := 1; i <= 3; i++ {
			if got := c.Server(i).Tree(); got != "/a = \"x\"\n/a/b = \"y\"\n" {
				t.Errorf("member %d: got\n%s", i, got)
			}
		}
	})
}

// TestTreeFile: what Tree prints can be read back.
func TestTreeFile(t *testing.T) {
	text := "/a (b) c\n" +
		"/a (b) c/d = \"a \\\"quoted\\\" (container) = 1\"\n" +
		"/bytes = 0x00ff (container)\n" +
		"/container (container)\n" +
		"/ttl = \"x\" (TTL 1m0s)\n"
	s := lockkeepertest.Start(t, lockkeepertest.WithTreeFile(file(t, "# a comment\n\n"+text)))
	if got := s.Tree(); got != text {
		t.Errorf("got\n%swant\n%s", got, text)
	}
}

func TestTreeFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"/a\n/a/e = \"x\" (ephemeral of 0x1)":                 ":2: /a/e is ephemeral: that needs a session, and a new server has none",
		"/a = \"" + strings.Repeat("x", 199) + "…(300 bytes)": ":1: the data is neither a whole text in quotes nor in hex",
		"/a = x":            ":1: the data is neither a whole text in quotes nor in hex",
		"/a = \"\\x\"":      `:1: the data "\x": invalid syntax`,
		"/a = 0x0":          ":1: the data 0x0: encoding/hex: odd length hex string",
		"/a (TTL soon)":     ":1: soon is not a TTL",
		"a":                 `: "a" is not a path`,
		"/a//b":             `: "/a//b" is not a path`,
		"/a\n/a":            ": /a occurs twice",
		"/":                 ": / belongs to the server itself",
		"/zookeeper/quota":  ": /zookeeper/quota belongs to the server itself",
		"/zookeeper/quota2": ": /zookeeper/quota2 belongs to the server itself",
	} {
		name := file(t, text)
		fake := &failures{TB: t}
		fake.run(func() { lockkeepertest.Start(fake, lockkeepertest.WithTreeFile(name)) })
		if got := strings.Join(fake.errors, "\n"); got != "lockkeepertest: "+name+want {
			t.Errorf("%s: got %s", text, got)
		}
	}
	dir := t.TempDir()
	durable := lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.DataDir = dir })
	fake := &failures{TB: t}
	fake.run(func() {
		tree := lockkeepertest.WithTree("/a")
		lockkeepertest.Start(fake, durable, tree).Kill()
		lockkeepertest.Start(fake, durable, tree)
	})
	if got := strings.Join(fake.errors, "\n"); got != "lockkeepertest: WithTree is for new servers, and this one has znodes already" {
		t.Errorf("got %s", got)
	}
}
