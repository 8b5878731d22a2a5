package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestEntryTwice checks that an entry that was proposed again, because its origin did not
// know the outcome, is applied only once, even if a snapshot was restored in between.
func TestEntryTwice(t *testing.T) {
	r := NewReplica()
	var completed []int
	r.Complete(func(_ *Envelope, i int) Waiter { completed = append(completed, i); return nil })
	apply := func(origin, batch uint64, c *Command) {
		t.Helper()
		if err := r.Apply(&raft.Log{Index: r.m.Index() + 1, Term: 1, Data: entryOf(origin, batch, c)}); err != nil {
			t.Fatal(err)
		}
	}
	apply(1, 10, OpenSession(1, 5, 1000, session.Password{}))
	apply(1, 11, createCommand(5, "/n-", proto.FlagSequential))
	apply(1, 11, createCommand(5, "/n-", proto.FlagSequential))
	apply(1, 10, createCommand(5, "/n-", proto.FlagSequential)) // older than the last one
	if want := []int{0, 0, -1, -1}; !slices.Equal(completed, want) {
		t.Errorf("the Completer was called for %v, want %v", completed, want)
	}
	if n := r.m.Tree().Lookup("/").NumChildren(); n != 2 { // including /zookeeper
		t.Errorf("the root has %d children, want 2", n)
	}
	var b bytes.Buffer
	if err := r.m.Snapshot().Write(&b); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.m, err = ReadSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	if r.m.LastBatch(1) != 11 || r.m.LastBatch(2) != 0 {
		t.Errorf("last batches %d and %d, want 11 and 0", r.m.LastBatch(1), r.m.LastBatch(2))
	}
	apply(1, 11, createCommand(5, "/n-", proto.FlagSequential))
	apply(2, 1, createCommand(5, "/other", 0)) // each origin has its own numbers
	if n := r.m.Tree().Lookup("/").NumChildren(); n != 2 {
		t.Errorf("after the snapshot the root has %d children, want 2", n)
	}
}

// TestStamp checks that Stamp changes only the time, and that the checksum stays valid.
func TestStamp(t *testing.T) {
	b := entryOf(3, 7, OpenSession(1, 5, 1000, session.Password{}))
	Stamp(b, 123456)
	e, _, err := OpenEntry(b)
	if err != nil || e.Time != 123456 || e.Origin != 3 || e.Batch != 7 || e.Count != 1 {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestMembers checks that a change of the members is written to /zookeeper/config in a
// transaction, and fires the watches there.
func TestMembers(t *testing.T) {
	var sent []string
	r := NewReplica()
	r.StoreConfiguration(1, raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "server-1"}}})
	if n := r.m.Tree().Lookup("/zookeeper/config"); len(n.Record().Data) > 0 || r.m.Zxid() != 0 {
		t.Errorf("standalone: /zookeeper/config is %q at zxid %d", n.Record().Data, r.m.Zxid())
	}
	w := &watcher{name: "C1", sent: &sent}
	r.View(func(v *View) { readBy(w, v, proto.OpGetData, &proto.PathWatch{Path: "/zookeeper/config", Watch: true}) })
	r.StoreConfiguration(2, raft.Configuration{Servers: []raft.Server{
		{ID: "1", Address: "a:7001"}, {ID: "2", Address: "[::1]:7002", Suffrage: raft.Nonvoter},
	}})
	expect(t, &sent, "C1: event NodeDataChanged /zookeeper/config zxid 0")
	want := "server.1=a:7001:8001:participant\nserver.2=[::1]:7002:8002:observer\nversion=100000000"
	if n := r.m.Tree().Lookup("/zookeeper/config"); string(n.Record().Data) != want || n.Stat().Version != -1 || n.Stat().Mzxid != 1<<32 {
		t.Errorf("%q, %+v", n.Record().Data, n.Stat())
	}
	if r.m.Index() != 2 || r.m.Check() != nil {
		t.Errorf("index %d, %v", r.m.Index(), r.m.Check())
	}
}

// TestDescribeFirst: what is said about the first members before any client can have seen them
// is part of the first version. Later it is a change like any other.
func TestDescribeFirst(t *testing.T) {
	for _, seen := range []bool{false, true} {
		m := NewMachine()
		m.SetMembers(1, []proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 8000}})
		commands := []*Command{Describe([]proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 3888, ClientAddr: "b:1"}}, 0), Identify(7)}
		version, zxid := int64(1<<32), int64(2<<32)
		if seen {
			slices.Reverse(commands)
			version, zxid = zxid+1, zxid+1
		}
		one(t, m, 1, append([]*Command{Restored()}, commands...)...)
		r := m.Tree().Lookup("/zookeeper/config").Record()
		if want := fmt.Sprintf("server.1=a:7000:3888:participant;b:1\nversion=%x", version); string(r.Data) != want || r.Mzxid != version || m.Zxid() != zxid {
			t.Errorf("seen %v: %q at zxid %x, now %x; want %q", seen, r.Data, r.Mzxid, m.Zxid(), want)
		}
	}
}

// TestReconfigDescribes: a server that a reconfig adds is shown with its address for clients from
// the beginning, also after a snapshot, unless the reconfig has failed; and a reconfig that
// changes nothing gives the list of members a new version.
func TestReconfigDescribes(t *testing.T) {
	for _, failed := range []bool{false, true} {
		m := NewMachine()
		first := proto.Peer{ID: 1, Addr: "a:7000", ElectionPort: 8000}
		second := proto.Peer{ID: 2, Addr: "b:7000", ElectionPort: 8000, Observer: true}
		m.SetMembers(1, []proto.Peer{first})
		m.cluster = 1
		r := proto.ReconfigRequest{Leaving: proto.Path{Path: jute.Null}, NewMembers: proto.Path{Path: jute.Null}, Joining: proto.Path{Path: "server.2=b:7000:3888;c:1,server.1=a:7000:3999;c:2,server.255=c:1:1;1"}, ConfigID: -1}
		b := BeginEntry(nil)
		b = AppendCommand(b, OpenSession(1, 7, 10_000, session.Password{}))
		b = AppendCommand(b, &Command{Op: proto.OpReconfig, Session: 7, Conn: 1, IDs: AppendIDs(nil, []proto.ID{{Scheme: "super"}}), Body: r.Append(nil)})
		b = EndEntry(b, &Envelope{Origin: 1, Batch: 1, Settings: Reconfig, Count: 2})
		if err := m.Apply(2, 1, b, func(_ *Envelope, i int, r *Result, _ []proto.Change) {
			if r.Code != proto.OK {
				t.Errorf("command %d: %v", i, r.Code)
			}
		}); err != nil {
			t.Fatal(err)
		}
		m = throughSnapshot(t, m, nil)
		shows := func(want string) {
			t.Helper()
			got := m.Tree().Lookup("/zookeeper/config").Record()
			if want += fmt.Sprintf("version=%x", got.Mzxid); string(got.Data) != want {
				t.Errorf("failed %v: %q, want %q", failed, got.Data, want)
			}
		}
		was := m.membersZxid
		if failed {
			one(t, m, 1, Describe(nil, 0))
			if m.membersZxid != was || len(m.expected) > 0 {
				t.Errorf("version %x, was %x; expected %v", m.membersZxid, was, m.expected)
			}
		}
		m.SetMembers(m.Index()+1, []proto.Peer{first, second})
		if failed {
			shows("server.1=a:7000:8000:participant\nserver.2=b:7000:8000:observer\n")
			continue
		}
		shows("server.1=a:7000:8000:participant\nserver.2=b:7000:3888:observer;c:1\n")
		joining, err := proto.ParseServers(r.Joining.Path)
		if err != nil {
			t.Fatal(err)
		}
		one(t, m, 1, Describe(joining, was))
		shows("server.1=a:7000:3999:participant;c:2\nserver.2=b:7000:3888:observer;c:1\n")
		// Nothing is new.
		for _, x := range []struct {
			servers []proto.Peer
			was     int64
			again   bool
		}{
			{joining, was, false}, {nil, was, false}, {joining, m.membersZxid, true}, {nil, 0, false},
		} {
			zxid := m.membersZxid
			one(t, m, 1, Describe(x.servers, x.was))
			if m.membersZxid > zxid != x.again {
				t.Errorf("%+v: version %x, was %x", x, m.membersZxid, zxid)
			}
		}
		zxid := m.membersZxid
		if one(t, m, 1, Describe(nil, zxid)); m.membersZxid == zxid {
			t.Error("a reconfig that only names servers to leave gave no version")
		}
		shows("server.1=a:7000:3999:participant;c:2\nserver.2=b:7000:3888:observer;c:1\n")
	}
}

// TestUndescribed: a configuration completes what is known of members, and does not replace it
// unless it is sure.
func TestUndescribed(t *testing.T) {
	r := NewReplica()
	r.StoreConfiguration(1, raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "a:7000"}, {ID: "2", Address: "b:7000"}}})
	said := func(text string, sure uint64) (s string) {
		t.Helper()
		known, err := proto.ParseServers(text)
		if err != nil {
			t.Fatal(err)
		}
		r.View(func(v *View) { s = strings.Trim(fmt.Sprint(v.Undescribed(known, sure)), "[]") })
		return s
	}
	reconfigured, err := proto.ParseServers("server.1=a:7000:3888;b:1")
	if err != nil {
		t.Fatal(err)
	}
	one(t, r.m, 1, Describe(reconfigured, 0))
	for _, x := range []struct {
		known string
		sure  uint64
		want  string
	}{
		{"server.2=b:7000:3888;c:1", 0, "server.2=b:7000:3888:participant;c:1"},
		{"server.2=b:7000:8000;c:1", 0, "server.2=b:7000:8000:participant;c:1"},
		{"server.2=b:7000:3888:observer", 0, "server.2=b:7000:3888:participant"}, // the list knows who votes
		{"server.2=b:7001:3888;c:1,server.3=c:7000:3888;c:1", 0, ""},
		{"server.1=a:7000:3999;c:1,server.2=b:7000:8000", 0, ""},
		{"server.1=a:7000:3999;c:1", 2, ""},
		{"server.1=a:7000:3999;c:1", 1, "server.1=a:7000:3999:participant;c:1"},
		{"server.1=a:7000:3999", 1, "server.1=a:7000:3999:participant;b:1"},
		{"server.1=a:7000:3888;b:1", 1, ""},
	} {
		if got := said(x.known, x.sure); got != x.want {
			t.Errorf("%s, sure of %d: %q, want %q", x.known, x.sure, got, x.want)
		}
	}
}

// TestDescribe checks that Describe completes the description of those servers that are
// members, and that this survives a snapshot and later changes of the members, until the
// member leaves.
func TestDescribe(t *testing.T) {
	m := NewMachine()
	observer := func(id uint64, addr string) proto.Peer {
		return proto.Peer{ID: id, Addr: addr, ElectionPort: 8000, Observer: true}
	}
	config := func(want ...string) {
		t.Helper()
		r := m.Tree().Lookup("/zookeeper/config").Record()
		if len(want) > 0 {
			want = append(want, fmt.Sprintf("version=%x", r.Mzxid))
		}
		if got := string(r.Data); got != strings.Join(want, "\n") {
			t.Errorf("%q, want %q", got, want)
		}
	}
	describe := func(text string) {
		t.Helper()
		servers, err := proto.ParseServers(text)
		if err != nil {
			t.Fatal(err)
		}
		one(t, m, 1, Describe(servers, 0))
	}
	describe("server.1=a:7000:3888;2181") // no effect on a standalone server
	config()
	m.SetMembers(m.Index()+1, []proto.Peer{observer(1, "a:7000"), observer(2, "b:7000")})
	describe("server.1=a:7000:3888;2181,server.2=x:7000:3888;2181,server.3=c:7000:3888;2181")
	first, second := "server.1=a:7000:3888:observer;0.0.0.0:2181", "server.2=b:7000:8000:observer"
	config(first, second)
	zxid := m.Zxid()
	describe("server.1=a:7000:3888;2181") // again
	one(t, m, 1, &Command{Op: OpDescribe, Body: []byte("server.1=a")})
	config(first, second)
	if m.Zxid() != zxid {
		t.Errorf("descriptions without effect took zxids: %x after %x", m.Zxid(), zxid)
	}
	m = throughSnapshot(t, m, nil)
	now := []proto.Peer{observer(1, "a:7000"), observer(2, "b:7000"), observer(9, "[::1]:7000")}
	m.SetMembers(m.Index()+1, now)
	config(first, second, "server.9=[::1]:7000:8000:observer")
	if !m.HasMembers(now) || m.HasMembers(now[:2]) || m.HasMembers(nil) {
		t.Error("HasMembers is wrong")
	}
	m.SetMembers(m.Index()+1, now[1:])
	m.SetMembers(m.Index()+1, []proto.Peer{observer(1, "a:7000")})
	config("server.1=a:7000:8000:observer")
}

// TestDescribeAfterRestore: a cluster begins with the snapshot of one whose list of members never changed, and in which a
// session's client has read that list; the servers' configuration names an address for clients now. /zookeeper/config
// changes, so it must get a new version: otherwise a client that sets its watch again with the zxid that it has seen
// last is not told.
func TestDescribeAfterRestore(t *testing.T) {
	m := NewMachine()
	members := []proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 8000}}
	m.SetMembers(1, members)
	apply := func(index, term, batch uint64, commands ...*Command) {
		b := BeginEntry(nil)
		for _, c := range commands {
			b = AppendCommand(b, c)
		}
		b = EndEntry(b, &Envelope{Origin: 1, Batch: batch, Count: len(commands)})
		if err := m.Apply(index, term, b, nil); err != nil {
			t.Fatal(err)
		}
	}
	apply(2, 1, 1, OpenSession(1, 7, 10_000, session.Password{}))
	m.Restart(3, members)
	before := m.Tree().Lookup("/zookeeper/config").Record()
	seen := m.Zxid()
	apply(4, 2, 2, Restored(), Describe([]proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 3888, ClientAddr: "b:1"}}, 0), Identify(7))
	after := m.Tree().Lookup("/zookeeper/config").Record()
	if string(after.Data) != string(before.Data) && after.Mzxid <= seen {
		t.Errorf("the session has seen zxid %x; then %q (mzxid %x) became %q (mzxid %x)", seen, before.Data, before.Mzxid, after.Data, after.Mzxid)
	}
}

// TestRemoved checks which members the state says were removed, and where, also after a snapshot. With another address it
// is another server.
func TestRemoved(t *testing.T) {
	m := NewMachine()
	peer := func(id uint64, addr string) proto.Peer { return proto.Peer{ID: id, Addr: addr, ElectionPort: 8000} }
	removed := func(id uint64, addr string, want uint64) {
		t.Helper()
		if got := (&View{m: m}).Removed(id, addr); got != want {
			t.Errorf("server %d at %s was removed by entry %d, want %d", id, addr, got, want)
		}
	}
	m.SetMembers(1, []proto.Peer{peer(1, "a:1"), peer(2, "b:1"), peer(3, "c:1")})
	m.SetMembers(2, []proto.Peer{peer(1, "a:1"), peer(2, "e:1")})
	m.SetMembers(3, []proto.Peer{peer(1, "a:1"), {ID: 2, Addr: "e:1", ElectionPort: 8000, Observer: true}})
	for range 2 {
		removed(1, "a:1", 0)
		removed(2, "b:1", 2)
		removed(2, "e:1", 0)
		removed(3, "c:1", 2)
		removed(3, "d:1", 0)
		m = throughSnapshot(t, m, nil)
	}
	m.SetMembers(4, []proto.Peer{peer(1, "a:1"), peer(3, "c:1")})
	m.SetMembers(5, []proto.Peer{peer(1, "a:1")})
	removed(3, "c:1", 5)
	removed(2, "e:1", 4)
	for i := range uint64(maxRemoved) {
		m.SetMembers(6+2*i, []proto.Peer{peer(1, "a:1"), peer(4, fmt.Sprint("d:", i))})
		m.SetMembers(7+2*i, []proto.Peer{peer(1, "a:1")})
	}
	removed(3, "c:1", 0) // too many since
	removed(4, "d:0", 7)
	if err := m.Restart(m.Index()+1, []proto.Peer{peer(1, "a:1")}); err != nil {
		t.Fatal(err)
	}
	removed(4, "d:0", 0)
}
