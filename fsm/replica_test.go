package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// watcher is a connection that records its events.
type watcher struct {
	name string
	ids  []proto.ID
	sent *[]string // may be shared between connections
}

func (w *watcher) Identities() []proto.ID { return w.ids }
func (w *watcher) Event(zxid int64, t proto.EventType, path string) {
	if w.sent != nil {
		*w.sent = append(*w.sent, fmt.Sprintf("%s: event %v %s zxid %d", w.name, t, path, zxid&0xffff))
	}
}

// waiter records how it is called.
type waiter struct {
	name string
	sent *[]string
}

func (w *waiter) Done(v *View, r *Result) {
	*w.sent = append(*w.sent, fmt.Sprintf("%s: reply %v zxid %d", w.name, r.Code, r.Zxid&0xffff))
}
func (w *waiter) Lost() { *w.sent = append(*w.sent, w.name+": lost") }

// observer records how it is called.
type observer struct{ sent *[]string }

func (o observer) Changed(_ *View, changes []proto.Change) {
	*o.sent = append(*o.sent, fmt.Sprintf("observer: %d changes", len(changes)))
}
func (o observer) Applied(uint64, uint64, int) { *o.sent = append(*o.sent, "observer: applied") }
func (o observer) Answered()                   { *o.sent = append(*o.sent, "observer: answered") }
func (o observer) Restoring()                  { *o.sent = append(*o.sent, "observer: restoring") }
func (o observer) Restored()                   { *o.sent = append(*o.sent, "observer: restored") }
func (o observer) Failed(e error)              { *o.sent = append(*o.sent, "observer: failed: "+e.Error()) }

func entryOf(origin, batch uint64, commands ...*Command) []byte {
	b := BeginEntry(nil)
	for _, c := range commands {
		b = AppendCommand(b, c)
	}
	return EndEntry(b, &Envelope{Origin: origin, Batch: batch, Time: 1000, Count: len(commands)})
}

func readBy(w *watcher, v *View, op proto.OpCode, r proto.Record) ([]byte, proto.Code) {
	return v.Read(&Reader{Watcher: w, Session: 5, IDs: w.ids}, op, r.Append(nil), nil)
}

func expect(t *testing.T, got *[]string, want ...string) {
	t.Helper()
	if !slices.Equal(*got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(*got, "\n  "), strings.Join(want, "\n  "))
	}
	*got = nil
}

// TestReplicaOrder checks the order of notifications: for each command its events, then
// Changed, then its reply; and Applied once after the entry.
func TestReplicaOrder(t *testing.T) {
	var sent []string
	r := NewReplica()
	r.Observe(observer{&sent})
	calls := 0
	r.Complete(func(e *Envelope, i int) Waiter {
		if e.Origin != 1 {
			return nil // proposed on another server
		}
		if calls++; i != calls-1 {
			t.Errorf("batch %d: the Completer was called for command %d in call %d", e.Batch, i, calls)
		}
		return &waiter{fmt.Sprintf("command %d", i), &sent}
	})
	run := func(origin, batch uint64, commands ...*Command) {
		calls = 0
		if err := r.Apply(&raft.Log{Index: r.m.Index() + 1, Term: 1, Data: entryOf(origin, batch, commands...)}); err != nil {
			t.Fatal(err)
		}
		if origin == 1 && calls != len(commands) {
			t.Errorf("batch %d: the Completer was called for %d of %d commands", batch, calls, len(commands))
		}
	}
	run(1, 1, OpenSession(1, 5, 1000, session.Password{}))
	expect(t, &sent, "observer: 1 changes", "command 0: reply Ok zxid 1", "observer: applied")

	c1, c2 := &watcher{name: "C1", sent: &sent}, &watcher{name: "C2", sent: &sent}
	r.View(func(v *View) {
		readBy(c1, v, proto.OpExists, &proto.PathWatch{Path: "/a", Watch: true})
		readBy(c1, v, proto.OpGetChildren, &proto.PathWatch{Path: "/", Watch: true})
	})
	run(1, 2, createCommand(5, "/a", 0), createCommand(5, "/a", 0), createCommand(5, "/a/b", 0))
	expect(t, &sent,
		"C1: event NodeCreated /a zxid 2", "C1: event NodeChildrenChanged / zxid 2",
		"observer: 1 changes", "command 0: reply Ok zxid 2",
		"command 1: reply NodeExists zxid 3",
		"observer: 1 changes", "command 2: reply Ok zxid 4",
		"observer: applied")

	// A multi's events are sent in the order of its operations, before its reply.
	r.View(func(v *View) {
		for _, path := range []string{"/a", "/a/b", "/c"} {
			readBy(c2, v, proto.OpExists, &proto.PathWatch{Path: path, Watch: true})
		}
	})
	multi := proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: "/c", ACL: proto.OpenACL}},
		{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/a/b", Version: -1}},
		{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/a", Version: -1}},
	}}
	moved := &Command{Op: proto.OpMulti, Session: 5, Conn: 99, Body: multi.Append(nil)}
	run(2, 1, moved) // refused, and proposed on another server: no event and no Waiter here
	expect(t, &sent, "observer: applied")
	run(1, 3, &Command{Op: proto.OpMulti, Session: 5, Conn: 1, Body: multi.Append(nil)})
	expect(t, &sent,
		"C2: event NodeCreated /c zxid 6", "C2: event NodeDeleted /a/b zxid 6", "C2: event NodeDeleted /a zxid 6",
		"observer: 3 changes", "command 0: reply Ok zxid 6", "observer: applied")

	// Dropped connections get no events.
	r.View(func(v *View) {
		readBy(c2, v, proto.OpAddWatch, &proto.PathType{Path: "/", Type: 1})
	})
	r.DropWatches(c2)
	r.View(func(v *View) {
		if c, p, w := v.WatchCounts(); c+p+w != 0 {
			t.Errorf("after DropWatches, %d connections have watches on %d paths, %d watches in all", c, p, w)
		}
	})
	run(1, 4, createCommand(5, "/d", 0))
	expect(t, &sent, "observer: 1 changes", "command 0: reply Ok zxid 7", "observer: applied")
}

// TestReplicaFiltersEvents checks that only connections with READ permission on the znode get
// an event, by the ACL that the znode has or had before it was deleted. For
// NodeChildrenChanged, the parent's ACL decides.
func TestReplicaFiltersEvents(t *testing.T) {
	var sent []string
	r := NewReplica()
	owner := []proto.ID{{Scheme: proto.SchemeDigest, ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="}}
	private := []proto.ACL{{Perms: proto.PermAll, ID: owner[0]}}
	do := func(op proto.OpCode, q proto.Record) {
		t.Helper()
		c := &Command{Op: op, Session: 5, Conn: 1, IDs: AppendIDs(nil, owner), Body: q.Append(nil)}
		if res, _ := one(t, r.m, 1, c); res[0].Code != proto.OK {
			t.Fatal(res[0].Code)
		}
	}
	one(t, r.m, 1, OpenSession(1, 5, 1000, session.Password{}))
	do(proto.OpCreate, &proto.CreateRequest{Path: "/open", ACL: proto.OpenACL})
	do(proto.OpCreate, &proto.CreateRequest{Path: "/private", ACL: private})

	stranger, friend, super := &watcher{"stranger", nil, &sent}, &watcher{"friend", owner, &sent}, &watcher{"super", someIDs[3:], &sent}
	for _, w := range []*watcher{stranger, friend, super} {
		r.View(func(v *View) { // addWatch and exists succeed without READ, as in ZooKeeper
			readBy(w, v, proto.OpAddWatch, &proto.PathType{Path: "/open", Type: 0})
			readBy(w, v, proto.OpAddWatch, &proto.PathType{Path: "/private", Type: 0})
			readBy(w, v, proto.OpExists, &proto.PathWatch{Path: "/private/x", Watch: true})
		})
	}
	apply := func(op proto.OpCode, q proto.Record, want ...string) {
		t.Helper()
		c := &Command{Op: op, Session: 5, Conn: 1, IDs: AppendIDs(nil, owner), Body: q.Append(nil)}
		if err := r.apply(r.m.Index()+1, 1, entryOf(1, r.m.Index()+1, c)); err != nil {
			t.Fatal(err)
		}
		slices.Sort(sent) // connections are notified in no particular order
		for i := range sent {
			sent[i], _, _ = strings.Cut(sent[i], " zxid")
		}
		expect(t, &sent, want...)
	}
	apply(proto.OpSetData, &proto.SetDataRequest{Path: "/open", Version: -1},
		"friend: event NodeDataChanged /open", "stranger: event NodeDataChanged /open", "super: event NodeDataChanged /open")
	apply(proto.OpSetData, &proto.SetDataRequest{Path: "/private", Version: -1},
		"friend: event NodeDataChanged /private", "super: event NodeDataChanged /private")
	// Everybody may read the new znode, but not its parent.
	apply(proto.OpCreate, &proto.CreateRequest{Path: "/private/x", ACL: proto.OpenACL},
		"friend: event NodeChildrenChanged /private", "friend: event NodeCreated /private/x",
		"stranger: event NodeCreated /private/x",
		"super: event NodeChildrenChanged /private", "super: event NodeCreated /private/x")
	// A watch whose event was filtered is removed too.
	for _, w := range []*watcher{stranger, friend} {
		r.View(func(v *View) { readBy(w, v, proto.OpExists, &proto.PathWatch{Path: "/private/x", Watch: true}) })
	}
	apply(proto.OpSetACL, &proto.SetACLRequest{Path: "/private/x", ACL: private, Version: -1}) // no event
	apply(proto.OpSetData, &proto.SetDataRequest{Path: "/private/x", Version: -1}, "friend: event NodeDataChanged /private/x")
	apply(proto.OpSetACL, &proto.SetACLRequest{Path: "/private/x", ACL: proto.OpenACL, Version: -1})
	apply(proto.OpSetData, &proto.SetDataRequest{Path: "/private/x", Version: -1})
}

// TestReplicaFails checks that after an entry that cannot be decoded a replica applies no
// others.
func TestReplicaFails(t *testing.T) {
	var sent []string
	r := NewReplica()
	r.Observe(observer{&sent})
	good := entryOf(1, 1, OpenSession(1, 5, 1000, session.Password{}))
	bad := slices.Clone(good)
	bad[0]++
	if err, _ := r.Apply(&raft.Log{Index: 1, Term: 1, Data: bad}).(error); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "entry 1") {
		t.Errorf("a newer entry: %v", err)
	}
	if last := sent[len(sent)-1]; !strings.HasPrefix(last, "observer: failed: log entry 1") {
		t.Errorf("the observer was notified of %q", sent)
	}
	if err, _ := r.Apply(&raft.Log{Index: 2, Term: 1, Data: good}).(error); !errors.Is(err, ErrVersion) || r.m.Sessions().Len() != 0 {
		t.Errorf("the next entry: %v, %d sessions", err, r.m.Sessions().Len())
	}
	if _, err := r.Snapshot(); !errors.Is(err, ErrVersion) {
		t.Errorf("a snapshot of a failed replica: %v", err)
	}
	if _, err := r.State(); !errors.Is(err, ErrVersion) {
		t.Errorf("the state of a failed replica: %v", err)
	}
}

// TestReplicaNewerSnapshot checks that a snapshot of a newer version fails the replica.
func TestReplicaNewerSnapshot(t *testing.T) {
	b := encode(t, small(t))
	b[len(snapshotMagic)]++
	var sent []string
	r := NewReplica()
	r.Observe(observer{&sent})
	if err := r.Restore(io.NopCloser(bytes.NewReader(b))); !errors.Is(err, ErrVersion) {
		t.Errorf("%v", err)
	}
	if len(sent) != 1 || !strings.HasPrefix(sent[0], "observer: failed: snapshot: ") {
		t.Errorf("the observer was notified of %q", sent)
	}
	if err, _ := r.Apply(&raft.Log{Index: 1, Term: 1, Data: entryOf(1, 1, Nothing())}).(error); !errors.Is(err, ErrVersion) {
		t.Errorf("the next entry: %v", err)
	}
}

type sink struct {
	strings.Builder
	ended string
}

func (s *sink) ID() string    { return "1" }
func (s *sink) Cancel() error { s.ended += "cancelled"; return nil }
func (s *sink) Close() error  { s.ended += "closed"; return nil }

// TestReplicaRestores checks that Restore restores what Persist has written, and that a
// damaged or older snapshot changes nothing.
func TestReplicaRestores(t *testing.T) {
	from, to := NewReplica(), NewReplica()
	from.m = small(t)
	var sent []string
	to.Observe(observer{&sent})
	s, err := from.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var out sink
	if err := s.Persist(&out); err != nil || out.ended != "closed" {
		t.Fatalf("%v, sink %s", err, out.ended)
	}
	s.Release()
	fresh := to.m.Digest()
	if err := to.Restore(io.NopCloser(strings.NewReader(out.String()[1:]))); !errors.Is(err, ErrSnapshot) || to.m.Digest() != fresh {
		t.Errorf("damaged: %v", err)
	}
	expect(t, &sent)
	if err := to.Restore(io.NopCloser(strings.NewReader(out.String()))); err != nil {
		t.Fatal(err)
	}
	expect(t, &sent, "observer: restoring", "observer: restored")
	to.View(func(v *View) {
		if v.Digest() != from.m.Digest() || v.Zxid() != from.m.Zxid() || v.Index() != from.m.Index() || v.Check() != nil {
			t.Error("restored another state")
		}
	})
	// A snapshot that arrives after a later entry was applied.
	next := &raft.Log{Index: to.m.Index() + 1, Term: 9, Data: entryOf(9, 1, OpenSession(1, 99, 1000, session.Password{}))}
	if err, _ := to.Apply(next).(error); err != nil {
		t.Fatal(err)
	}
	now := to.m.Digest()
	sent = nil
	if err := to.Restore(io.NopCloser(strings.NewReader(out.String()))); err == nil || to.m.Digest() != now {
		t.Errorf("older than the state: %v", err)
	}
	expect(t, &sent)
}

// TestReadWhileApplying reads with watches on several connections while entries are applied.
// Each connection must get its replies and events in the order in which the tree changed:
// after a reply that sets a watch, the event must come before any reply that shows a newer
// version.
func TestReadWhileApplying(t *testing.T) {
	const writes, readers = 2000, 4
	r := NewReplica()
	one(t, r.m, 1, OpenSession(1, 5, 1000, session.Password{}), createCommand(5, "/a", 0))
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range readers {
		all.Go(func() {
			c := &stream{}
			for n := 0; ; n++ {
				select {
				case <-done:
					if n > 0 {
						return
					}
				default:
				}
				r.View(func(v *View) {
					body, code := v.Read(&Reader{Watcher: c}, proto.OpGetData, (&proto.PathWatch{Path: "/a", Watch: n%2 == 0}).Append(nil), nil)
					if code != proto.OK {
						t.Errorf("reader %d: %v", i, code)
					}
					var data proto.DataReply
					d := jute.NewDecoder(body)
					data.Decode(&d)
					c.reply(t, data.Stat.Version, n%2 == 0)
				})
				if n%64 == 63 { // replace the connection with a new one
					r.DropWatches(c)
					c = &stream{}
				}
				r.View(func(v *View) { v.WatchCounts() })
			}
		})
	}
	set := (&proto.SetDataRequest{Path: "/a", Version: -1}).Append(nil)
	for i := range writes {
		c := &Command{Op: proto.OpSetData, Session: 5, Conn: 1, Body: set}
		if err := r.apply(uint64(10+i), 1, entryOf(1, r.m.Index()+100, c)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			s, err := r.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() { // write it while further entries are applied
				if err := s.(persister).s.Write(io.Discard); err != nil {
					t.Error(err)
				}
			})
		}
	}
	close(done)
	all.Wait()
}

// stream is a connection that checks the order of its replies and events.
type stream struct {
	mu       sync.Mutex
	seen     int32 // version in the last reply
	watching bool  // a watch was set, which has not fired
	since    int32 // version in the reply that set the watch
}

func (s *stream) reply(t *testing.T, version int32, watch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.seen {
		t.Errorf("reply with version %d after one with %d", version, s.seen)
	}
	if s.watching && version > s.since {
		t.Errorf("reply with version %d, but no event since the watch was set at %d", version, s.since)
	}
	s.seen = version
	if watch && !s.watching {
		s.watching, s.since = true, version
	}
}

func (s *stream) Identities() []proto.ID { return nil }
func (s *stream) Event(int64, proto.EventType, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = false
}

// TestAnswer: commands that are not in the log get the same replies as from an entry of
// the log, and change nothing. A command that cannot be decoded is lost.
func TestAnswer(t *testing.T) {
	var sent []string
	r := NewReplica()
	r.Observe(observer{&sent})
	r.Complete(func(_ *Envelope, i int) Waiter { return &waiter{fmt.Sprintf("command %d", i), &sent} })
	if err := r.Apply(&raft.Log{Index: 3, Term: 1, Data: entryOf(1, 1, OpenSession(1, 5, 1000, session.Password{}))}); err != nil {
		t.Fatal(err)
	}
	sent = nil
	sync := func(session int64) *Command {
		return &Command{Op: proto.OpSync, Session: session, Conn: 1, Body: (&proto.Path{Path: "/a"}).Append(nil)}
	}
	commands := []*Command{sync(5), Nothing(), {Op: proto.OpSync, Session: 5}, sync(6)}
	b, waiters := BeginEntry(nil), []Waiter{}
	for i, c := range commands {
		if !c.ReadOnly() {
			t.Errorf("command %d is not read-only", i)
		}
		b = AppendCommand(b, c)
		waiters = append(waiters, &waiter{fmt.Sprintf("command %d", i), &sent})
	}
	digest, index := r.m.Digest(), r.m.Index()
	r.Answer(b, waiters)
	want := []string{"command 0: reply Ok zxid 1", "command 1: reply Ok zxid 1", "command 2: reply MarshallingError zxid 1", "command 3: reply SessionExpired zxid 1"}
	expect(t, &sent, append(slices.Clone(want), "observer: answered")...)
	if r.m.Digest() != digest || r.m.Index() != index {
		t.Error("they changed the state")
	}
	if err := r.Apply(&raft.Log{Index: 4, Term: 1, Data: entryOf(1, 2, commands...)}); err != nil {
		t.Fatal(err)
	}
	expect(t, &sent, append(want, "observer: applied")...)

	r.Answer(b[:len(b)-1], waiters)
	expect(t, &sent, "command 0: reply Ok zxid 1", "command 1: reply Ok zxid 1", "command 2: reply MarshallingError zxid 1",
		"command 3: lost", "observer: answered")
	if createCommand(5, "/a", 0).ReadOnly() {
		t.Error("a create is read-only")
	}
}
