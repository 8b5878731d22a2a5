package whole

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestKnownFailures tests for failures that other servers of this protocol had.
// docs/known-failures.md lists them, and those that are tested elsewhere.
func TestKnownFailures(t *testing.T) {
	for _, k := range []struct {
		name string
		test func(t *testing.T, s *lockkeeper.Server, dial dialer)
	}{
		{"an old session's ephemeral mistaken for the new session's", predecessorsEphemeral},
		{"setWatches of more than 1 MiB in several frames", largeSetWatches},
		{"watch leak at disconnect", watchLeak},
		{"a lock directory with children of other clients", foreignChildren},
	} {
		t.Run(k.name, func(t *testing.T) { overAll(t, lockkeeper.Config{}, k.test) })
	}
	t.Run("writes of a session that expired later dropped at replay", writesOfExpired)
}

// A client that gets a new session while the znode of its old one still exists must be
// able to tell that the znode is not its own.
func predecessorsEphemeral(t *testing.T, s *lockkeeper.Server, dial dialer) {
	before := connect(t, dial)
	must(before.Create("/lock", []byte("same name"), proto.FlagEphemeral))(t)
	before.Close()
	after := connect(t, dial)
	if after.Session.SessionID == before.Session.SessionID {
		t.Fatal("the new session has the old one's id")
	}
	if stat := must(after.Exists("/lock", true))(t); stat.EphemeralOwner != before.Session.SessionID {
		t.Errorf("the owner is %#x, not the old session %#x", stat.EphemeralOwner, before.Session.SessionID)
	}
	if _, err := after.Create("/lock", nil, proto.FlagEphemeral); err != proto.NodeExists {
		t.Errorf("create beside the old lock: %v", err)
	}
	check(t, s.EndSession(t.Context(), before.Session.SessionID))
	must(after.Create("/lock", nil, proto.FlagEphemeral))(t)
	if stat := must(after.Exists("/lock", false))(t); stat.EphemeralOwner != after.Session.SessionID {
		t.Errorf("the owner is %#x", stat.EphemeralOwner)
	}
	if len(after.Events) != 1 || after.Events[0].Type != proto.EventNodeDeleted {
		t.Errorf("events %+v", after.Events)
	}
}

// A client with many watches sends several setWatches with the same xid, without waiting
// for the replies.
func largeSetWatches(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	const frames, each = 10, 1200
	writer, c := connect(t, dial), connect(t, dial)
	path := func(i, j int) string { return fmt.Sprintf("/%d-%d-%s", i, j, strings.Repeat("p", 90)) }
	go func() {
		for i := range frames {
			q := &proto.SetWatchesRequest{RelativeZxid: 1 << 60}
			for j := range each {
				q.Exist = append(q.Exist, path(i, j))
			}
			c.Write(rawclient.Request(nil, proto.XidSetWatches, proto.OpSetWatches, q))
		}
	}()
	for i := range frames {
		if f := must(c.Read())(t); f.Xid != proto.XidSetWatches || f.Code != proto.OK || len(f.Body) > 0 {
			t.Fatalf("frame %d: %+v", i, f)
		}
	}
	if w := word(t, dial, "wchs"); !strings.Contains(w, fmt.Sprintf("Total watches:%d\n", frames*each)) {
		t.Errorf("wchs: %s", w)
	}
	must(writer.Create(path(0, 7), nil, 0))(t)
	f := must(c.Read())(t)
	if e, ok := f.Event(); !ok || e.Path != path(0, 7) || e.Type != proto.EventNodeCreated {
		t.Errorf("event %+v", e)
	}
}

func watchLeak(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	total := func() string { return strings.TrimSpace(word(t, dial, "wchs")) }
	none := "0 connections watching 0 paths\nTotal watches:0"
	for range 3 {
		c := connect(t, dial)
		for i := range 100 {
			c.Queue(proto.OpExists, &proto.PathWatch{Path: fmt.Sprintf("/missing%d", i), Watch: true})
			c.Queue(proto.OpAddWatch, &proto.PathType{Path: fmt.Sprintf("/p%d", i), Type: int32(i % 2)})
		}
		c.Queue(proto.OpGetChildren, &proto.PathWatch{Path: "/", Watch: true})
		go c.Flush()
		for range 201 {
			must(c.Read())(t)
		}
		if total() == none {
			t.Fatal("no watches")
		}
		c.Close() // the session continues
		eventually(t, "the end of the watches: "+total(), func() bool { return total() == none })
	}
}

// A lock directory may contain znodes that do not belong to the recipe. They count as
// creates, and sequence numbers stay in the order of creation.
func foreignChildren(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	c := connect(t, dial)
	must(c.Create("/lock", nil, 0))(t)
	names := []string{"config", "_c_guid-lock-", "0123__lock__", "lease-", "x"}
	var numbers []string
	for i, name := range names {
		flags := proto.FlagEphemeralSeq
		if i == 0 || i == 4 {
			flags = proto.FlagPersistent
		}
		path := must(c.Create("/lock/"+name, nil, flags))(t)
		numbers = append(numbers, path[len("/lock/"+name):])
	}
	check(t, c.Delete("/lock/x"))
	path := must(c.Create("/lock/_c_other-lock-", nil, proto.FlagEphemeralSeq))(t)
	numbers = append(numbers, path[len("/lock/_c_other-lock-"):])
	if want := []string{"", "0000000001", "0000000002", "0000000003", "", "0000000005"}; !slices.Equal(numbers, want) {
		t.Errorf("numbers %q, want %q", numbers, want)
	}
}

// A server that replays the expiry of a session must not drop the session's earlier
// writes: persistent znodes stay, and ephemerals are deleted. The same holds when it
// starts from a snapshot.
func writesOfExpired(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		dir := t.TempDir()
		cfg := lockkeeper.Config{DataDir: dir}
		if snapshot {
			cfg.Limits.SnapshotBytes = 1
		}
		s := open(t, cfg)
		writer, other := connect(t, inMemory(s)), connect(t, inMemory(s))
		must(writer.Create("/kept", []byte("1"), 0))(t)
		must(writer.Create("/gone", nil, proto.FlagEphemeral))(t)
		must(writer.Set("/kept", []byte("2")))(t)
		check(t, s.EndSession(t.Context(), writer.Session.SessionID))
		for i := range 20 {
			must(other.Create(fmt.Sprintf("/later%d", i), nil, 0))(t)
		}
		check(t, s.Close())
		c := connect(t, inMemory(open(t, lockkeeper.Config{DataDir: dir})))
		if r, err := c.Get("/kept", false); err != nil || string(r.Data) != "2" || r.Stat.Version != 1 {
			t.Errorf("snapshot %v: /kept is %q, version %d, %v", snapshot, r.Data, r.Stat.Version, err)
		}
		if _, err := c.Exists("/gone", false); err != proto.NoNode {
			t.Errorf("snapshot %v: /gone: %v", snapshot, err)
		}
	}
}

// TestKnownFailuresAreListed checks that every test named in docs/known-failures.md
// exists, and every check of package conform.
func TestKnownFailuresAreListed(t *testing.T) {
	doc := must(os.ReadFile("docs/known-failures.md"))(t)
	var code bytes.Buffer
	for _, dir := range []string{"internal/testing/whole", "cluster", "internal/core/server", "internal/core/storage", "znode", "cmd/lockkeeper", "conform", "interop"} {
		files := must(os.ReadDir(dir))(t)
		for _, f := range files {
			if strings.HasSuffix(f.Name(), "_test.go") {
				file := must(os.Open(dir + "/" + f.Name()))(t)
				_, err := io.Copy(&code, file)
				check(t, errors.Join(err, file.Close()))
			}
		}
	}
	rows := regexp.MustCompile(`(?m)^\| ([0-9]+) \| (.+) \| (.+) \|$`).FindAllStringSubmatch(string(doc), -1)
	if len(rows) != 24 {
		t.Errorf("%d failures are listed, not 24", len(rows))
	}
	for i, row := range rows {
		if row[1] != fmt.Sprint(i+1) {
			t.Errorf("row %d has the number %s", i+1, row[1])
		}
		tests := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[3], -1)
		if len(tests) == 0 {
			t.Errorf("%s: no test", row[2])
		}
		for _, test := range tests {
			if !strings.Contains(code.String(), "func "+test[1]+"(") {
				t.Errorf("%s: test %s does not exist", row[2], test[1])
			}
			_, named, _ := strings.Cut(row[3], "`TestLockkeeper`: ")
			for name := range strings.SplitSeq(named, "; ") {
				if test[1] == "TestLockkeeper" && !slices.ContainsFunc(conform.Checks(), func(k conform.Check) bool { return k.Name == name }) {
					t.Errorf("%s: there is no check %q", row[2], name)
				}
			}
			if test[1] == "TestKnownFailures" && !strings.Contains(code.String(), fmt.Sprintf("%q", row[2])) {
				t.Errorf("%s: TestKnownFailures does not test it", row[2])
			}
		}
	}
}
