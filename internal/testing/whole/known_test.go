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
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestKnownFailures tests for failures that other servers of this protocol had.
// docs/known-failures.md lists them, and those that are tested elsewhere.
func TestKnownFailures(t *testing.T) {
	for _, k := range []struct {
		name string
		test func(t *testing.T, s *lockkeeper.Server, dial dialer)
	}{
		{"a new session given to a client whose session has ended", staleSession},
		{"session id -1 misread", sessionMinusOne},
		{"an old session's ephemeral mistaken for the new session's", predecessorsEphemeral},
		{"socket left open after an expired answer", refusedSocket},
		{"a handshake without the readOnly byte misread", noReadOnlyByte},
		{"unknown opcode that hangs the client", unknownOpcode},
		{"TTL create that desynchronises the stream", ttlCreate},
		{"bad operation in a multi that kills the server", badMulti},
		{"addWatch reply without its body", addWatchBody},
		{"a check outside a multi", loneCheck},
		{"setWatches of more than 1 MiB in several frames", largeSetWatches},
		{"child watches lost in setWatches", childSetWatches},
		{"relativeZxid ignored", relativeZxid},
		{"watch leak at disconnect", watchLeak},
		{"a lock directory with children of other clients", foreignChildren},
	} {
		t.Run(k.name, func(t *testing.T) { overAll(t, lockkeeper.Config{}, k.test) })
	}
	t.Run("writes of a session that expired later dropped at replay", writesOfExpired)
}

func handshake(t *testing.T, dial dialer, q *proto.ConnectRequest) (*rawclient.Client, error) {
	t.Helper()
	nc := must(dial())(t)
	t.Cleanup(func() { nc.Close() })
	c := rawclient.New(nc)
	return c, c.Handshake(q)
}

// ClickHouse Keeper gave a client a new session when the old one had ended, so the client
// never learned that its ephemerals, and its lock, were gone.
func staleSession(t *testing.T, s *lockkeeper.Server, dial dialer) {
	holder := connect(t, dial)
	must(holder.Create("/lock", nil, proto.FlagEphemeral))(t)
	check(t, s.EndSession(t.Context(), holder.Session.SessionID))
	c, err := handshake(t, dial, rawclient.Resumption(holder.Session))
	if err != rawclient.ErrRefused || c.Session.Timeout != 0 {
		t.Errorf("an expired session was resumed as %+v, %v", c.Session, err)
	}
}

func sessionMinusOne(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	q := rawclient.NewSession(10 * time.Second)
	q.SessionID = -1
	c, err := handshake(t, dial, q)
	if err != rawclient.ErrRefused {
		t.Errorf("session -1 gives %+v, %v", c.Session, err)
	}
	closed(t, c)
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

func refusedSocket(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	for _, hasReadOnly := range []bool{true, false} {
		q := rawclient.NewSession(10 * time.Second)
		q.SessionID, q.HasReadOnly = 77, hasReadOnly
		c, err := handshake(t, dial, q)
		if err != rawclient.ErrRefused {
			t.Fatal(err)
		}
		closed(t, c)
	}
}

func noReadOnlyByte(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	for hasReadOnly, want := range map[bool]int{true: 37, false: 36} {
		nc := must(dial())(t)
		defer nc.Close()
		q := rawclient.NewSession(10 * time.Second)
		q.HasReadOnly = hasReadOnly
		go nc.Write(rawclient.Framed(q))
		nc.SetDeadline(time.Now().Add(time.Minute))
		reply := must(jute.ReadFrame(nc, 1000, nil))(t)
		if len(reply) != want {
			t.Errorf("readOnly byte %v: a reply of %d bytes, not %d", hasReadOnly, len(reply), want)
		}
	}
}

func unknownOpcode(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	for _, op := range []proto.OpCode{99, 500, proto.OpCreateSession, proto.OpDeleteContainer} {
		c := connect(t, dial)
		if _, err := c.Call(op, nil, nil); err != proto.Unimplemented {
			t.Errorf("op %d: %v", op, err)
		}
		closed(t, c)
	}
}

// A server that decodes a TTL create as a plain create takes the last eight bytes for
// the next request.
func ttlCreate(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	c := connect(t, dial)
	create := &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: "/ttl", ACL: proto.OpenACL, Flags: proto.FlagTTL}, TTL: 0x0000000b_0000000b}
	c.Queue(proto.OpCreateTTL, create)
	next := c.Queue(proto.OpExists, &proto.PathWatch{Path: "/ttl"})
	check(t, c.Flush())
	var created proto.PathStatReply
	f := must(c.Read())(t)
	if f.Code != proto.OK || f.Decode(&created) != nil || created.Path != "/ttl" {
		t.Errorf("createTTL: %+v", f)
	}
	if f = must(c.Read())(t); f.Xid != next || f.Code != proto.OK {
		t.Errorf("the request after it: %+v", f.ReplyHeader)
	}
	// A createTTL whose mode has no TTL is refused.
	create.Path, create.Flags, create.TTL = "/none", proto.FlagPersistent, -1
	if _, err := c.Call(proto.OpCreateTTL, create, nil); err != proto.BadArguments {
		t.Errorf("createTTL of a persistent znode: %v", err)
	}
	alive(t, c)
}

func badMulti(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	c := connect(t, dial)
	header := func(op int32, done bool) []byte {
		return jute.AppendInt(jute.AppendBool(jute.AppendInt(nil, op), done), -1)
	}
	path := jute.AppendString(nil, "/x")
	for name, body := range map[string][]byte{
		"unknown":       slices.Concat(header(99, false), path, header(-1, true)),
		"error":         slices.Concat(header(-1, false), path, header(-1, true)),
		"setACL":        slices.Concat(header(7, false), path, header(-1, true)),
		"a read":        slices.Concat(header(4, false), path, []byte{0}, header(-1, true)),
		"a multi":       slices.Concat(header(14, false), header(-1, true), header(-1, true)),
		"closeSession":  slices.Concat(header(-11, false), header(-1, true)),
		"no end":        slices.Concat(header(2, false), path, request32(-1)),
		"half a header": header(2, false)[:5],
		"nothing":       nil,
	} {
		xid := c.Queue(proto.OpMulti, nil)
		check(t, c.Flush())
		f := must(c.Read())(t) // an empty body
		if f.Xid != xid || f.Code != proto.MarshallingError {
			t.Errorf("no body: %+v", f.ReplyHeader)
		}
		check(t, c.Write(frame(append(request32(1000, int32(proto.OpMulti)), body...))))
		if f := must(c.Read())(t); f.Xid != 1000 || f.Code != proto.MarshallingError {
			t.Errorf("%s: %+v", name, f.ReplyHeader)
		}
	}
	must(c.Create("/x", nil, 0))(t)
}

func addWatchBody(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	c := connect(t, dial)
	f := must(c.Call(proto.OpAddWatch, &proto.PathType{Path: "/a", Type: 1}, nil))(t)
	if !bytes.Equal(f.Body, make([]byte, 4)) {
		t.Errorf("the body is %x", f.Body)
	}
}

func loneCheck(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	c := connect(t, dial)
	if _, err := c.Call(proto.OpCheck, &proto.PathVersion{Path: "/", Version: -1}, nil); err != proto.Unimplemented {
		t.Errorf("check: %v", err)
	}
	closed(t, c)
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

// watchesAgain connects and sets watches as a client that last saw zxid.
func watchesAgain(t *testing.T, dial dialer, zxid int64, q *proto.SetWatchesRequest) *rawclient.Client {
	t.Helper()
	c := connect(t, dial)
	q.RelativeZxid = zxid
	must(c.Call(proto.OpSetWatches, q, nil))(t)
	return c
}

func childSetWatches(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	writer := connect(t, dial)
	for _, p := range []string{"/changed", "/same", "/gone"} {
		must(writer.Create(p, nil, 0))(t)
	}
	seen := must(writer.Exists("/gone", false))(t).Czxid
	must(writer.Create("/changed/child", nil, 0))(t)
	check(t, writer.Delete("/gone"))
	c := watchesAgain(t, dial, seen, &proto.SetWatchesRequest{Child: []string{"/changed", "/same", "/gone"}})
	want := []proto.WatcherEvent{
		{Type: proto.EventNodeChildrenChanged, State: proto.EventStateConnected, Path: "/changed"},
		{Type: proto.EventNodeDeleted, State: proto.EventStateConnected, Path: "/gone"},
	}
	var got []proto.WatcherEvent
	for _, e := range c.Events {
		got = append(got, e.WatcherEvent)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %+v", got)
	}
	must(writer.Create("/same/child", nil, 0))(t)
	f := must(c.Read())(t)
	if e, ok := f.Event(); !ok || e.Path != "/same" || e.Type != proto.EventNodeChildrenChanged {
		t.Errorf("the watch that was set again: %+v", e)
	}
}

func relativeZxid(t *testing.T, _ *lockkeeper.Server, dial dialer) {
	writer := connect(t, dial)
	must(writer.Create("/n", nil, 0))(t)
	must(writer.Create("/n/c", nil, 0))(t)
	stat := must(writer.Set("/n", []byte("1")))(t)
	for _, k := range []struct {
		zxid   int64
		events int
	}{{stat.Mzxid, 0}, {stat.Mzxid - 1, 1}, {stat.Czxid, 2}, {stat.Czxid - 1, 2}} {
		c := watchesAgain(t, dial, k.zxid, &proto.SetWatchesRequest{Data: []string{"/n"}, Child: []string{"/n"}})
		if len(c.Events) != k.events {
			t.Errorf("last zxid %#x, znode %+v: events %+v", k.zxid, stat, c.Events)
		}
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
// exists.
func TestKnownFailuresAreListed(t *testing.T) {
	doc, err := os.ReadFile("docs/known-failures.md")
	check(t, err)
	var code bytes.Buffer
	for _, dir := range []string{"internal/testing/whole", "cluster", "internal/core/server", "internal/core/storage", "znode", "cmd/lockkeeper", "interop"} {
		files, err := os.ReadDir(dir)
		check(t, err)
		for _, f := range files {
			if strings.HasSuffix(f.Name(), "_test.go") {
				file, err := os.Open(dir + "/" + f.Name())
				check(t, err)
				_, err = io.Copy(&code, file)
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
			if test[1] == "TestKnownFailures" && !strings.Contains(code.String(), fmt.Sprintf("%q", row[2])) {
				t.Errorf("%s: TestKnownFailures does not test it", row[2])
			}
		}
	}
}
