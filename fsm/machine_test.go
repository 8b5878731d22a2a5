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

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// outcome is the result of applying one entry.
type outcome struct {
	commands []string // results of the commands
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
	if e.index%8 == 0 { // not always, since Check is slow
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

// TestMachine applies a random log to two machines concurrently, and to a third one that is
// replaced at random points by one restored from its snapshot. Each command must have the
// same result on all of them.
func TestMachine(t *testing.T) {
	s := testkit.Seed(t)
	h := newHistory(s)
	var log []entry
	for range 1000 {
		log = append(log, h.next())
	}

	var first, second []outcome
	var wg sync.WaitGroup
	wg.Go(func() {
		m := NewMachine()
		for i := range log {
			second = append(second, apply(t, m, &log[i]))
		}
	})
	m := NewMachine()
	for i := range log {
		first = append(first, apply(t, m, &log[i]))
	}
	wg.Wait()
	compare(t, "on another machine", log, first, second)
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	text := fmt.Sprint(first)
	ok := strings.Count(text, " Ok drop=false")
	if total := strings.Count(text, "drop="); ok < total/5 || ok > total*9/10 {
		t.Errorf("%d of %d commands succeeded: the log does not show much", ok, total)
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
	compare(t, "with snapshots in between", log, first, restored)
}

// throughSnapshot returns a machine that was restored from a snapshot of m. Between taking
// and writing the snapshot, m applies the entries in meanwhile, which must not change the
// snapshot.
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
		t.Fatalf("the state restored at index %d differs from that of the snapshot", index)
	}
	if err := got.Check(); err != nil {
		t.Fatal(err)
	}
	return got
}

func compare(t *testing.T, how string, log []entry, want, got []outcome) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d of %d entries were applied", how, len(got), len(want))
	}
	for i := range want {
		if reflect.DeepEqual(want[i], got[i]) {
			continue
		}
		for j := range want[i].commands {
			if want[i].commands[j] != got[i].commands[j] {
				t.Errorf("%s: %s: got\n  %s, want\n  %s", how, log[i].text[j], got[i].commands[j], want[i].commands[j])
			}
		}
		t.Fatalf("%s: different after entry %d: digest %016x, want %016x; zxid %#x, want %#x",
			how, log[i].index, got[i].digest, want[i].digest, got[i].zxid, want[i].zxid)
	}
}

// TestEffects checks the effects that the history predicts for each command: how many zxids
// it uses, whether it changes nothing, and whether its connection must be closed.
func TestEffects(t *testing.T) {
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
		quiet := e.term == term // nothing so far may have changed the digest
		err := m.Apply(e.index, e.term, e.bytes, func(_ *Envelope, i int, r *Result, changes []proto.Change) {
			f := &e.effects[i]
			zxid += f.zxids
			bad := func(format string, args ...any) {
				t.Errorf("entry %d, %s: %s: %s", e.index, e.text[i], fmt.Sprintf(format, args...), describe(r, changes))
			}
			if r.Zxid != zxid || m.Zxid() != zxid {
				bad("the zxid should be %#x", zxid)
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
				bad("failed, but has a reply body")
			}
			quiet = quiet && f.nothing && f.zxids == 0
		})
		if err != nil {
			t.Fatal(err)
		}
		if quiet && visible(m) != before {
			t.Errorf("entry %d changed the digest, although none of its commands may change anything:\n%s", e.index, strings.Join(e.text, "\n"))
		}
		if t.Failed() {
			return
		}
	}
	// The table must have the sessions that the history expects.
	var want []int64
	for _, c := range h.clients {
		if c.alive {
			want = append(want, c.id)
			if s := m.Sessions().Get(c.id); s == nil || s.Owner != c.owner {
				t.Errorf("session %d is %+v, want owner %+v", c.id, s, c.owner)
			}
		}
	}
	var got []int64
	for s := range m.Sessions().All() {
		got = append(got, s.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("sessions %v, want %v", got, want)
	}
}

// visible returns a hash of the state without the numbers of the entries and the members.
func visible(m *Machine) uint64 {
	return (&summary{m.sessions.List(), m.zxid, nil, nil, m.tree.Digest()}).digest()
}

// one applies an entry with the given commands and returns their results and changes.
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

// TestDigests checks that the tree's digest is recorded after every 128th transaction,
// including failed ones, at any place in an entry; and that only the last 1024 are kept.
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
		t.Errorf("wrong digests: %d, beginning with %v", len(got), got[:3])
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
	// If the counter overflows into the epoch, the next term still increases the epoch.
	m.zxid = 9<<32 - 1
	if r, _ := one(t, m, 8, OpenSession(1, 100, 1000, session.Password{})); r[0].Zxid != 9<<32 {
		t.Errorf("zxid %#x after %#x", r[0].Zxid, int64(9<<32-1))
	}
	if r, _ := one(t, m, 9, OpenSession(1, 101, 1000, session.Password{})); r[0].Zxid != 10<<32+1 {
		t.Errorf("zxid %#x in term 9 after epoch 9 was used, want %#x", r[0].Zxid, int64(10<<32+1))
	}
}

// TestExpiryOfEarlierTerm checks that an expiry proposed by the leader of an earlier term is
// refused, since the new leader restarts the timeouts of all sessions.
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

// TestMovedSession checks what a connection can still do after another one has resumed its
// session.
func TestMovedSession(t *testing.T) {
	m := NewMachine()
	var none session.Password
	one(t, m, 1, OpenSession(1, 5, 1000, none), createCommand(5, "/e", 1), ResumeSession(2, 5, 1000, none[:]))
	sync := &Command{Op: proto.OpSync, Session: 5, Conn: 1, Body: (&proto.Path{Path: "/"}).Append(nil)}
	r, changes := one(t, m, 1, createCommand(5, "/late", 0), sync)
	if r[0].Code != proto.SessionMoved || !r[0].Drop || r[1].Code != proto.OK || len(changes) > 0 {
		t.Errorf("a create and a sync: %+v, changes %+v", r, changes)
	}
	r, _ = one(t, m, 1, &Command{Op: proto.OpCloseSession, Session: 5, Conn: 1})
	if r[0].Code != proto.OK || m.Sessions().Get(5) != nil || m.Tree().Lookup("/e") != nil {
		t.Errorf("a close: %+v", r[0])
	}
}

// TestCloseDeletesEphemerals checks that closing a session, with one zxid, deletes its
// ephemerals in the order in which they were created, and then the session.
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
			t.Fatal("the session still exists")
		}
		if len(changes) == 0 { // the second time
			if r[0].Code == proto.OK || m.Zxid() != before+1 {
				t.Errorf("expiry of a closed session: %v, zxid %#x", r[0].Code, m.Zxid())
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

// TestOpsHaveHandlers checks that there is a function for each write and read of proto.Ops,
// and for no other opcode.
func TestOpsHaveHandlers(t *testing.T) {
	for i := range proto.Ops {
		op := &proto.Ops[i]
		switch op.Class {
		case proto.Write:
			m := NewMachine()
			one(t, m, 1, OpenSession(1, 5, 1000, session.Password{}))
			one(t, m, 1, &Command{Op: op.Code, Session: 5, Conn: 1, Body: op.Request().Append(nil)}) // fails the test if the opcode is unknown
		case proto.Read:
			if reads[op.Code] == nil {
				t.Errorf("reads has no function for %s (%d)", op.Name, op.Code)
			}
		}
		if op.InMulti == proto.OpMulti {
			m := NewMachine()
			m.txn.Zxid = 1
			if code := m.doPart(proto.MultiOp{Op: op.Code, Request: op.Request()}); code == proto.MarshallingError {
				t.Errorf("doPart does not know %s (%d), which is allowed in a multi", op.Name, op.Code)
			}
		}
	}
	for code := range writes {
		if op := proto.OpByCode(code); op == nil || op.Class != proto.Write {
			t.Errorf("writes has operation %d, which is not a write in proto.Ops", code)
		}
	}
	for code := range reads {
		if op := proto.OpByCode(code); op == nil || op.Class != proto.Read {
			t.Errorf("reads has operation %d, which is not a read in proto.Ops", code)
		}
	}
}

// TestBadEntries checks that an entry that cannot be decoded is an error, after which the
// server stops.
func TestBadEntries(t *testing.T) {
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
		{"unknown operation without a session", good(&Command{Op: -4711}, 1), ErrVersion},
		{"unknown operation of a session that has ended", good(&Command{Op: 4711, Session: 6}, 1), ErrVersion},
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
			t.Errorf("%s: changed the state, digest %x, was %x", test.name, m.Digest(), digest)
		}
	}
}

// TestMultiFlags checks that in a multi the flags of a create decide the kind of the znode.
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
