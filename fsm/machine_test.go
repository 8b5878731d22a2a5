package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// outcome is what the application of one entry came to.
type outcome struct {
	commands []string // what each command did
	digest   uint64
	zxid     int64
}

func describe(r *Result, changes []proto.Change) string {
	var owner any = "-"
	if r.Session != nil {
		owner = *r.Session
	}
	return fmt.Sprintf("zxid %#x %v drop=%v body=%x session=%v changes=%+v", r.Zxid, r.Code, r.Drop, r.Body, owner, changes)
}

func apply(t *testing.T, m *Machine, e *entry) (o outcome) {
	t.Helper()
	err := m.Apply(e.index, e.term, e.bytes, func(_ *Envelope, _ int, r *Result, changes []proto.Change) {
		o.commands = append(o.commands, describe(r, changes))
	})
	if err != nil {
		t.Fatalf("entry %d: %v\n%s", e.index, err, strings.Join(e.text, "\n"))
	}
	if e.index%8 == 0 { // it looks at the whole tree
		if err := m.Check(); err != nil {
			t.Fatalf("entry %d: %v\n%s", e.index, err, strings.Join(e.text, "\n"))
		}
	}
	if m.Index() != e.index {
		t.Fatalf("index %d after entry %d", m.Index(), e.index)
	}
	o.digest, o.zxid = m.Digest(), m.Zxid()
	return o
}

// TestMachine applies one random log in three ways: straight; with the state
// written to a snapshot and read back at random points; and twice in one
// process at the same time. Every command must come to the same.
func TestMachine(t *testing.T) {
	s := testkit.Seed(t)
	h := newHistory(s)
	var log []entry
	for range 1000 {
		log = append(log, h.next())
	}

	var straight, again []outcome
	var both sync.WaitGroup
	both.Go(func() {
		m := NewMachine()
		for i := range log {
			again = append(again, apply(t, m, &log[i]))
		}
	})
	m := NewMachine()
	for i := range log {
		straight = append(straight, apply(t, m, &log[i]))
	}
	both.Wait()
	compare(t, "in another machine", log, straight, again)
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	text := fmt.Sprint(straight)
	done := strings.Count(text, " Ok drop=false")
	if total := strings.Count(text, "drop="); done < total/5 || done > total*9/10 {
		t.Errorf("%d of %d commands were successful: the log does not show much", done, total)
	}

	var restored []outcome
	r := rand.New(rand.NewPCG(s, 2))
	m = NewMachine()
	for i := 0; i < len(log); i++ {
		if r.IntN(20) == 0 {
			m = throughSnapshot(t, m, log[i:min(i+r.IntN(4), len(log))])
		}
		restored = append(restored, apply(t, m, &log[i]))
	}
	compare(t, "with snapshots in between", log, straight, restored)
}

// throughSnapshot returns a machine read from a snapshot of m. Between taking
// and writing the snapshot, m applies some entries, which must not show in it.
func throughSnapshot(t *testing.T, m *Machine, meanwhile []entry) *Machine {
	t.Helper()
	digest, zxid, index, znodes, ephemerals, size := m.Digest(), m.Zxid(), m.Index(), m.Tree().Len(), m.Tree().Ephemerals(), m.Tree().DataSize()
	s := m.Snapshot()
	for i := range meanwhile {
		apply(t, m, &meanwhile[i])
	}
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest() != digest || got.Zxid() != zxid || got.Index() != index ||
		got.Tree().Len() != znodes || got.Tree().Ephemerals() != ephemerals || got.Tree().DataSize() != size {
		t.Fatalf("the state restored at index %d is not the one that the snapshot was taken of", index)
	}
	if err := got.Check(); err != nil {
		t.Fatal(err)
	}
	return got
}

func compare(t *testing.T, how string, log []entry, want, got []outcome) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d of %d entries applied", how, len(got), len(want))
	}
	for i := range want {
		if reflect.DeepEqual(want[i], got[i]) {
			continue
		}
		for j := range want[i].commands {
			if want[i].commands[j] != got[i].commands[j] {
				t.Errorf("%s: %s\n  %s, was\n  %s", how, log[i].text[j], got[i].commands[j], want[i].commands[j])
			}
		}
		t.Fatalf("%s: differs after entry %d: digest %016x, was %016x; zxid %#x, was %#x",
			how, log[i].index, got[i].digest, want[i].digest, got[i].zxid, want[i].zxid)
	}
}

// TestFates checks what must come of a command whatever the tree is like: which
// commands take a zxid, which change nothing, and whose connection is closed.
func TestFates(t *testing.T) {
	h := newHistory(testkit.Seed(t))
	m := NewMachine()
	for range 1500 {
		e := h.next()
		zxid, term, before := m.Zxid(), m.term, visible(m)
		if e.term > term {
			if first := (zxid>>32 + 1) << 32; e.term > 0 && first > zxid {
				zxid = max(first, int64(e.term)<<32)
			}
		}
		quiet := e.term == term // nothing that may change the digest was there yet
		err := m.Apply(e.index, e.term, e.bytes, func(_ *Envelope, i int, r *Result, changes []proto.Change) {
			f := &e.fates[i]
			zxid += f.zxids
			bad := func(format string, args ...any) {
				t.Errorf("entry %d, %s: %s: %s", e.index, e.text[i], fmt.Sprintf(format, args...), describe(r, changes))
			}
			if r.Zxid != zxid || m.Zxid() != zxid {
				bad("zxid should be %#x", zxid)
			}
			if r.Drop != f.drop {
				bad("drop should be %v", f.drop)
			}
			if f.nothing && len(changes) > 0 {
				bad("changed something")
			}
			if f.write && r.Code != proto.OK && len(changes) > 0 {
				bad("failed, but changed something")
			}
			if r.Code != proto.OK && !f.write && len(r.Body) > 0 {
				bad("failed, but has a reply")
			}
			quiet = quiet && f.nothing && f.zxids == 0
		})
		if err != nil {
			t.Fatal(err)
		}
		if quiet && visible(m) != before {
			t.Errorf("entry %d changed the digest, though none of its commands may change anything:\n%s", e.index, strings.Join(e.text, "\n"))
		}
		if t.Failed() {
			return
		}
	}
	// The generator's sessions are those of the table.
	var want []int64
	for _, c := range h.clients {
		if c.alive {
			want = append(want, c.id)
			if s := m.Sessions().Get(c.id); s == nil || s.Owner != c.owner {
				t.Errorf("session %d is %+v, should belong to %+v", c.id, s, c.owner)
			}
		}
	}
	var got []int64
	for _, s := range m.Sessions().All() {
		got = append(got, s.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("sessions %v, should be %v", got, want)
	}
}

// visible is a hash of what clients may see of the state: all but the numbers of the entries.
func visible(m *Machine) uint64 { return digest(m.sessions.All(), m.zxid, nil, nil, m.tree.Digest()) }

// one applies an entry of the given commands and returns their results and changes.
func one(t testing.TB, m *Machine, term uint64, commands ...*Command) (results []Result, changes []proto.Change) {
	t.Helper()
	b := BeginEntry(nil)
	for _, c := range commands {
		b = AppendCommand(b, c)
	}
	b = EndEntry(b, &Envelope{Origin: 1, Batch: m.Index() + 1, Time: 1000, Count: len(commands)})
	err := m.Apply(m.Index()+1, term, b, func(_ *Envelope, _ int, r *Result, c []proto.Change) {
		r.Body = bytes.Clone(r.Body)
		results = append(results, *r)
		changes = append(changes, c...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return results, changes
}

func createCommand(sessionID int64, path string, flags int32) *Command {
	r := proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: flags}
	return &Command{Op: proto.OpCreate, Session: sessionID, Conn: 1, Body: r.Append(nil)}
}

// TestDigests: the tree's digest is noted after every 128th transaction,
// failures included, wherever in an entry that is, and after nothing else; and
// no more than 1024 of them are kept.
func TestDigests(t *testing.T) {
	m := NewMachine()
	results, _ := one(t, m, 1, OpenSession(1, 7, 1000, session.Password{}))
	id := results[0].Session.ID
	var want []TreeDigest
	for n := 0; len(want) < maxDigests+3; n++ {
		var entry []*Command
		for i := range 1 + n%100 {
			entry = append(entry, createCommand(id, fmt.Sprintf("/%d", (n*100+i)%700), 0)) // most exist already
		}
		entry = append(entry, &Command{Op: proto.OpSync, Session: id, Conn: 1, Body: (&proto.Path{Path: "/"}).Append(nil)})
		b := BeginEntry(nil)
		for _, c := range entry {
			b = AppendCommand(b, c)
		}
		before := m.Zxid()
		err := m.Apply(m.Index()+1, 1, EndEntry(b, &Envelope{Origin: 1, Batch: m.Index() + 1, Count: len(entry)}), func(*Envelope, int, *Result, []proto.Change) {
			if m.Zxid() != before && m.Zxid()%128 == 0 {
				want = append(want, TreeDigest{m.Zxid(), m.Tree().Digest()})
			}
			before = m.Zxid()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := m.digests; !slices.Equal(got, want[len(want)-maxDigests:]) {
		t.Errorf("%d digests: %v …", len(got), got[:3])
	}
}

func TestEpochRisesWithTerm(t *testing.T) {
	m := NewMachine()
	steps := []struct {
		term uint64
		want int64 // zxid after one write
	}{
		{1, 1<<32 + 1}, {1, 1<<32 + 2}, {2, 2<<32 + 1}, {7, 7<<32 + 1}, {7, 7<<32 + 2}, {8, 8<<32 + 1},
	}
	for i, s := range steps {
		r, _ := one(t, m, s.term, OpenSession(1, int64(i+1), 1000, session.Password{}))
		if r[0].Zxid != s.want {
			t.Errorf("term %d: zxid %#x, want %#x", s.term, r[0].Zxid, s.want)
		}
	}
	// A counter that ran over into the epoch: the next term still goes up.
	m.zxid = 9<<32 - 1
	if r, _ := one(t, m, 8, OpenSession(1, 100, 1000, session.Password{})); r[0].Zxid != 9<<32 {
		t.Errorf("zxid after %#x is %#x", int64(9<<32-1), r[0].Zxid)
	}
	if r, _ := one(t, m, 9, OpenSession(1, 101, 1000, session.Password{})); r[0].Zxid != 10<<32+1 {
		t.Errorf("zxid %#x in term 9 after epoch 9 was used, want %#x", r[0].Zxid, int64(10<<32+1))
	}
}

// TestExpiryOfEarlierTerm: what a leader decided does not count under the next,
// who gives every session its whole time again.
func TestExpiryOfEarlierTerm(t *testing.T) {
	m := NewMachine()
	one(t, m, 3, OpenSession(1, 5, 1000, session.Password{}))
	late := ExpireSession(m.Sessions().Get(5), 3)
	if r, changes := one(t, m, 4, late); r[0].Code == proto.OK || len(changes) > 0 || m.Sessions().Get(5) == nil {
		t.Errorf("in the next term: %v, changes %v", r[0].Code, changes)
	}
	if r, _ := one(t, m, 4, ExpireSession(m.Sessions().Get(5), 4)); r[0].Code != proto.OK || m.Sessions().Get(5) != nil {
		t.Errorf("in the same term: %v", r[0].Code)
	}
}

// TestMovedSession: what a connection can still do once another one has resumed
// its session.
func TestMovedSession(t *testing.T) {
	m := NewMachine()
	var none session.Password
	one(t, m, 1, OpenSession(1, 5, 1000, none), createCommand(5, "/e", 1), ResumeSession(2, 5, 1000, none[:]))
	sync := &Command{Op: proto.OpSync, Session: 5, Conn: 1, Body: (&proto.Path{Path: "/"}).Append(nil)}
	r, changes := one(t, m, 1, createCommand(5, "/late", 0), sync)
	if r[0].Code != proto.SessionMoved || !r[0].Drop || r[1].Code != proto.OK || len(changes) > 0 {
		t.Errorf("a create and a sync came to %+v, with changes %+v", r, changes)
	}
	r, _ = one(t, m, 1, &Command{Op: proto.OpCloseSession, Session: 5, Conn: 1})
	if r[0].Code != proto.OK || m.Sessions().Get(5) != nil || m.Tree().Lookup("/e") != nil {
		t.Errorf("a close came to %+v", r[0])
	}
}

// TestCloseDeletesEphemerals: one zxid, the znodes in the order of their
// creation, then the session.
func TestCloseDeletesEphemerals(t *testing.T) {
	m := NewMachine()
	one(t, m, 1, OpenSession(1, 5, 1000, session.Password{}), OpenSession(2, 6, 1000, session.Password{}))
	one(t, m, 1, createCommand(5, "/z", 0), createCommand(5, "/z/3", 1), createCommand(5, "/a", 1), createCommand(5, "/z/1", 1))
	other := createCommand(6, "/z/other", 1)
	other.Conn = 2
	one(t, m, 1, other)
	before := m.Zxid()
	for _, end := range []*Command{ExpireSession(m.Sessions().Get(5), 0), ExpireSession(&session.Session{ID: 5}, 0)} {
		r, changes := one(t, m, 1, end)
		if m.Sessions().Get(5) != nil {
			t.Fatal("the session is still there")
		}
		if len(changes) == 0 { // the second time
			if r[0].Code == proto.OK || m.Zxid() != before+1 {
				t.Errorf("expiry of a session that is gone: %v, zxid %#x", r[0].Code, m.Zxid())
			}
			continue
		}
		var got []string
		for _, c := range changes {
			got = append(got, fmt.Sprint(c.Kind, c.Path, c.Session))
		}
		want := []string{
			fmt.Sprint(proto.NodeDeleted, "/z/3", 5), fmt.Sprint(proto.NodeDeleted, "/a", 5),
			fmt.Sprint(proto.NodeDeleted, "/z/1", 5), fmt.Sprint(proto.SessionClosed, "", 5),
		}
		if !slices.Equal(got, want) || r[0].Zxid != before+1 {
			t.Errorf("zxid %#x, changes %v, want %v", r[0].Zxid, got, want)
		}
	}
	if got := m.Tree().EphemeralsOf(6, ""); !slices.Equal(got, []string{"/z/other"}) {
		t.Errorf("another session's ephemerals are %v", got)
	}
}

// TestOpsHaveHandlers: every write and read of the table of operations has its
// code here, and there is no code for anything else.
func TestOpsHaveHandlers(t *testing.T) {
	for i := range proto.Ops {
		op := &proto.Ops[i]
		switch op.Class {
		case proto.Write:
			m := NewMachine()
			one(t, m, 1, OpenSession(1, 5, 1000, session.Password{}))
			one(t, m, 1, &Command{Op: op.Code, Session: 5, Conn: 1, Body: op.Request().Append(nil)}) // fails on what it does not know
		case proto.Read:
			if reads[op.Code] == nil {
				t.Errorf("%s (%d) is a read without code in reads.go", op.Name, op.Code)
			}
		}
		if op.InMulti == proto.OpMulti {
			m := NewMachine()
			m.txn.Zxid = 1
			if code := m.part(proto.MultiOp{Op: op.Code, Request: op.Request()}); code == proto.MarshallingError {
				t.Errorf("%s (%d) may be part of a multi, which does not know it", op.Name, op.Code)
			}
		}
	}
	for code := range writes {
		if op := proto.OpByCode(code); op == nil || op.Class != proto.Write {
			t.Errorf("operation %d has code in writes.go, but is no write in proto.Ops", code)
		}
	}
	for code := range reads {
		if op := proto.OpByCode(code); op == nil || op.Class != proto.Read {
			t.Errorf("operation %d has code in reads.go, but is no read in proto.Ops", code)
		}
	}
}

// TestEntriesNotUnderstood: what cannot be understood stops the server.
func TestEntriesNotUnderstood(t *testing.T) {
	good := func(c *Command, count int) []byte {
		return EndEntry(AppendCommand(BeginEntry(nil), c), &Envelope{Origin: 9, Batch: 1, Count: count})
	}
	open := OpenSession(1, 5, 1000, session.Password{})
	newer := good(open, 1)
	newer[0]++
	setting := EndEntry(AppendCommand(BeginEntry(nil), open), &Envelope{Origin: 9, Batch: 1, Count: 1, Settings: knownSettings + 1})
	flipped := good(open, 1)
	flipped[20] ^= 4
	tests := []struct {
		name  string
		entry []byte
		want  error
	}{
		{"empty", nil, ErrEntry},
		{"short", good(open, 1)[:30], ErrEntry},
		{"newer version", newer, ErrVersion},
		{"newer setting", setting, ErrVersion},
		{"damaged", flipped, ErrEntry},
		{"fewer commands than it says", good(open, 2), ErrEntry},
		{"more commands than it says", good(open, 0), ErrEntry},
		{"unknown operation", good(&Command{Op: 4711, Session: 7}, 1), ErrVersion},
		{"session without password", good(&Command{Op: proto.OpCreateSession, Body: make([]byte, 16)}, 1), ErrEntry},
		{"resume cut short", good(&Command{Op: OpResumeSession, Body: make([]byte, 3)}, 1), ErrEntry},
		{"expiry cut short", good(&Command{Op: OpExpireSession, Session: 7, Body: make([]byte, 15)}, 1), ErrEntry},
		{"reap without path", good(&Command{Op: proto.OpDeleteContainer}, 1), ErrEntry},
	}
	for _, test := range tests {
		m := NewMachine()
		one(t, m, 1, OpenSession(1, 7, 1000, session.Password{}))
		digest := m.Digest()
		if err := m.Apply(2, 1, test.entry, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		} else if !strings.HasPrefix(test.name, "fewer") && !strings.HasPrefix(test.name, "unknown") && m.Sessions().Len() != 1 {
			t.Errorf("%s: was applied, digest %x, was %x", test.name, m.Digest(), digest)
		}
	}
}

// TestMultiFlags: in a multi the flags of a create decide what it makes.
func TestMultiFlags(t *testing.T) {
	create := func(path string, flags int32) proto.CreateRequest {
		return proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: flags}
	}
	byFlag, plain := create("/container", proto.FlagContainer), create("/plain", 0)
	both := create("/both", proto.FlagContainer)
	q := proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCreate, Request: &byFlag},
		{Op: proto.OpCreateTTL, Request: &proto.CreateTTLRequest{CreateRequest: plain, TTL: 1000}},
		{Op: proto.OpCreateTTL, Request: &proto.CreateTTLRequest{CreateRequest: both, TTL: 1000}},
	}}
	m := NewMachine()
	one(t, m, 1, OpenSession(1, 5, 1000, session.Password{}))
	one(t, m, 1, &Command{Op: proto.OpMulti, Session: 5, Conn: 1, Body: q.Append(nil)})
	for path, want := range map[string]znode.Kind{"/container": znode.Container, "/plain": znode.Persistent, "/both": znode.Container} {
		if n := m.tree.Lookup(path); n == nil || n.Record().Kind != want {
			t.Errorf("%s: %+v, want the kind %v", path, n, want)
		}
	}
}
