package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// small returns a machine with a few sessions, members and znodes of several kinds.
func small(t testing.TB) *Machine {
	t.Helper()
	m := NewMachine()
	one(t, m, 3, OpenSession(1, 5, 1000, session.Password{1, 2, 3}), OpenSession(1, 6, 1000, session.Password{4}))
	one(t, m, 3, createCommand(5, "/a", 0), createCommand(5, "/a/e-", 3), createCommand(5, "/b", 0))
	ttl := proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: "/ttl", ACL: someACL, Flags: proto.FlagTTL}, TTL: 77}
	one(t, m, 3, &Command{Op: proto.OpCreateTTL, Session: 5, Conn: 1, Body: ttl.Append(nil)})
	set := proto.SetDataRequest{Path: "/b", Data: []byte("data"), Version: -1}
	m.SetMembers(m.Index()+1, []proto.Peer{{ID: 3, Addr: "c:7000", ElectionPort: 8000}})
	m.SetMembers(m.Index()+1, []proto.Peer{{ID: 1, Addr: "a:7000", ElectionPort: 8000, ClientAddr: "0.0.0.0:2181"}, {ID: 7, Addr: "b:7000", ElectionPort: 8000, Observer: true}})
	r, _ := one(t, m, 3, &Command{Op: proto.OpSetData, Session: 5, Conn: 1, Body: set.Append(nil)})
	if r[0].Code != proto.OK || m.Tree().Len() != 4+4 {
		t.Fatalf("%v, %d znodes", r[0].Code, m.Tree().Len())
	}
	return m
}

var someACL = []proto.ACL{{Perms: proto.PermRead, ID: someIDs[1]}, {Perms: proto.PermAll, ID: someIDs[0]}}

func encode(t testing.TB, m *Machine) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Snapshot().Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnapshotDamage changes each byte of a snapshot, and truncates it at each. That must be
// an error or make no difference.
func TestSnapshotDamage(t *testing.T) {
	m := small(t)
	good := encode(t, m)
	if got, err := ReadSnapshot(bytes.NewReader(good)); err != nil || got.Digest() != m.Digest() {
		t.Fatalf("undamaged: %v", err)
	}
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			got, err := ReadSnapshot(bytes.NewReader(bad))
			switch {
			case err == nil && (got.Digest() != m.Digest() || got.Index() != m.Index() || got.term != m.term):
				t.Errorf("byte %d changed by %#x: read as another state", i, flip)
			case err != nil && !errors.Is(err, ErrSnapshot) && !errors.Is(err, ErrVersion):
				t.Errorf("byte %d changed by %#x: error %v is neither ErrSnapshot nor ErrVersion", i, flip, err)
			}
		}
		if _, err := ReadSnapshot(bytes.NewReader(good[:i])); !errors.Is(err, ErrSnapshot) {
			t.Errorf("truncated at byte %d: %v", i, err)
		}
	}
	want := fmt.Sprintf("at offset %d: something after the end", len(good))
	if _, err := ReadSnapshot(bytes.NewReader(append(good, 0))); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), want) {
		t.Errorf("with one more byte: %v", err)
	}
}

// TestRestart checks that the zxid goes up, by whole epochs, and on from there with the next
// leader, and that everything else stays, except for the members.
func TestRestart(t *testing.T) {
	for _, members := range [][]proto.Peer{nil, {{ID: 1, Addr: "c:1"}}, small(t).members} {
		m, was := small(t), small(t)
		m.Restart(99, members)
		if m.Index() != 99 || m.Term() != was.Term() || !m.HasMembers(members) || m.Zxid()>>32 != was.Zxid()>>32+epochGap || m.Check() != nil {
			t.Errorf("%v: index %d, term %d, zxid %#x after %#x, members %v", members, m.Index(), m.Term(), m.Zxid(), was.Zxid(), m.members)
		}
		if same := was.HasMembers(members); same != (m.tree.Digest() == was.tree.Digest()) || m.sessions.Len() != was.sessions.Len() {
			t.Errorf("%v: another state", members)
		}
		throughSnapshot(t, m, nil)
		one(t, m, m.Term()+1, createCommand(5, "/next", 0))
		if n := m.tree.Lookup("/next"); n == nil || n.Stat().Czxid != (was.Zxid()>>32+epochGap+1)<<32+1 {
			t.Errorf("%v: the next zxid is %#x", members, m.Zxid())
		}
	}
	m := NewMachine()
	if m.Restart(2, nil); m.Zxid() != epochGap<<32 {
		t.Errorf("a new state: zxid %#x", m.Zxid())
	}
}

// TestRestored: of servers that were restored from the same snapshot, those that begin later have
// higher zxids, however far the time of day is ahead of the snapshot, also if that is of servers
// that were restored themselves. Servers that have an id, and new ones, do not change.
func TestRestored(t *testing.T) {
	now := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	begin := func(m *Machine, at time.Time) int64 {
		e := AppendCommand(AppendCommand(BeginEntry(nil), Restored()), Identify(1))
		if err := m.Apply(m.index+1, m.term+1, EndEntry(e, &Envelope{Origin: 1, Batch: m.LastBatch(1) + 1, Time: at.UnixMilli(), Count: 2}), nil); err != nil {
			t.Fatal(err)
		}
		return m.zxid
	}
	restored := func(from *Machine, at time.Time) *Machine {
		m := throughSnapshot(t, from, nil)
		m.Restart(m.index+1, nil)
		before := m.zxid
		began := begin(m, at)
		if next := begin(m, at.AddDate(9, 0, 0)); began <= before || next != (began>>32+1)<<32 || next < 0 {
			t.Errorf("at %v: zxid %#x after %#x, and then %#x", at, began, before, next)
		}
		return m
	}
	original := small(t)
	if was := original.zxid; begin(original, now) != (was>>32+1)<<32 {
		t.Errorf("new servers: zxid %#x after %#x", original.zxid, was)
	}
	for name, from := range map[string]*Machine{"original": original, "restored": restored(original, now), "restored later": restored(original, now.Add(time.Hour))} {
		last := restored(from, time.Unix(0, 0)).zxid // with a wrong clock
		for _, after := range []time.Duration{2 * time.Hour, 2*time.Hour + time.Minute, 36 * time.Hour, 37 * time.Hour, 72 * time.Hour, 74 * time.Hour, 24 * 365 * time.Hour} {
			m := restored(from, now.Add(after))
			if m.zxid>>32 < last>>32+10 {
				t.Errorf("%s: zxid %#x %v later, was %#x", name, m.zxid, after, last)
			}
			last = m.zxid
		}
	}
}

// TestSnapshotReadError: an error of the reader is not taken for the end of a snapshot.
func TestSnapshotReadError(t *testing.T) {
	good := encode(t, small(t))
	for i := range len(good) + 1 {
		_, err := ReadSnapshot(io.MultiReader(bytes.NewReader(good[:i]), iotest.ErrReader(errDisk)))
		if !errors.Is(err, errDisk) || errors.Is(err, ErrSnapshot) {
			t.Fatalf("after byte %d: %v", i, err)
		}
	}
}

// sections splits a snapshot into its sections, without their checksums. It accepts damaged
// snapshots.
func sections(b []byte) (all [][]byte) {
	for b = b[7:]; len(b) >= 9; {
		n := min(int(binary.BigEndian.Uint32(b[1:])), len(b)-9)
		if n < 0 {
			break
		}
		all = append(all, b[:5+n:5+n])
		b = b[9+n:]
	}
	return all
}

// join makes a snapshot from sections, with correct lengths and checksums.
func join(all ...[]byte) []byte {
	b := append([]byte(snapshotMagic), snapshotVersion)
	for _, s := range all {
		s = bytes.Clone(s)
		binary.BigEndian.PutUint32(s[1:], uint32(len(s)-5))
		b = append(b, s...)
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(s, castagnoli))
	}
	return b
}

// TestSnapshotSections checks that intact but missing, repeated, misplaced, changed or
// unknown sections are found.
func TestSnapshotSections(t *testing.T) {
	good := encode(t, small(t))
	s := sections(good)
	if len(s) != 5 || !bytes.Equal(join(s...), good) {
		t.Fatalf("%d sections", len(s))
	}
	state, members, sessions, nodes, end := s[0], s[1], s[2], s[3], s[4]
	kind := func(k byte, b []byte) []byte { return append([]byte{k}, b[1:]...) }
	more := func(b []byte, n int) []byte { return append(bytes.Clone(b), make([]byte, n)...) }
	tests := []struct {
		name, want string
		snapshot   []byte
	}{
		{"nothing", "cut short", join()},
		{"no state", "section 3 after 0", join(sessions, nodes, end)},
		{"state twice", "section 1 after 1", join(state, state, sessions, nodes, end)},
		{"no members", "digest", join(state, sessions, nodes, end)},
		{"long members", "members: ", join(state, more(members, 1), sessions, nodes, end)},
		{"empty members", "members: ", join(state, more(members[:5], 0), sessions, nodes, end)},
		{"other members", "digest", join(state, append(append(bytes.Clone(members[:12]), members[12]+1), members[13:]...), sessions, nodes, end)},
		{"no sessions", "0 sessions", join(state, members, nodes, end)},
		{"sessions twice", "occurs twice", join(state, members, sessions, sessions, nodes, end)},
		{"no znodes", "0 znodes", join(state, members, sessions, end)},
		{"znodes twice", "occurs twice", join(state, members, sessions, nodes, nodes, end)},
		{"wrong order", "section 3 after 4", join(state, members, nodes, sessions, end)},
		{"no end", "cut short", join(state, members, sessions, nodes)},
		{"unknown section", "unknown kind 9", join(state, members, sessions, nodes, kind(9, end))},
		{"long state", "state of 49 bytes", join(more(state, 1), members, sessions, nodes, end)},
		{"long totals", "totals of 25 bytes", join(state, members, sessions, nodes, more(end, 1))},
		{"long sessions", "bad record", join(state, members, more(sessions, 1), nodes, end)},
		{"long znodes", "bad record", join(state, members, sessions, more(nodes, 1), end)},
		{"another zxid", "digest", join(append(bytes.Clone(state[:12]), append([]byte{state[12] + 1}, state[13:]...)...), members, sessions, nodes, end)},
	}
	for _, test := range tests {
		_, err := ReadSnapshot(bytes.NewReader(test.snapshot))
		if !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestSnapshotOfNewerVersion(t *testing.T) {
	b := encode(t, small(t))
	b[len(snapshotMagic)]++
	if _, err := ReadSnapshot(bytes.NewReader(b)); !errors.Is(err, ErrVersion) {
		t.Errorf("%v, want ErrVersion", err)
	}
}

// TestSnapshotFalseLength checks that a length beyond the end of the file does not cost
// memory.
func TestSnapshotFalseLength(t *testing.T) {
	b := append([]byte(snapshotMagic), snapshotVersion, sectionNodes, 3, 0xff, 0xff, 0xff)
	b = append(b, "a few bytes"...)
	n := testkit.Allocated(func() {
		if _, err := ReadSnapshot(bytes.NewReader(b)); !errors.Is(err, ErrSnapshot) {
			t.Error(err)
		}
	})
	if n > 1<<20 {
		t.Errorf("allocated %d bytes to read %d", n, len(b))
	}
}

// TestSnapshotOfManySections checks a snapshot with several sections of sessions and of
// znodes.
func TestSnapshotOfManySections(t *testing.T) {
	m := NewMachine()
	var commands []*Command
	for i := range int64(8000) {
		commands = append(commands, OpenSession(1, i+1, 1000, session.Password{byte(i)}))
	}
	for range 8000 {
		commands = append(commands, createCommand(1, "/n-", 2))
	}
	one(t, m, 1, commands...)
	b := encode(t, m)
	if n := len(sections(b)); n < 6 {
		t.Errorf("only %d sections: the test does not show much", n)
	}
	got, err := ReadSnapshot(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest() != m.Digest() || got.Check() != nil {
		t.Error("restored another state")
	}
}

// ran is a sink that notes how often another goroutine ran between two writes.
type ran struct {
	bytes.Buffer
	other  *atomic.Int64
	before int64
	writes int
	never  int // writes before which the other goroutine did not run
}

func (*ran) ID() string    { return "" }
func (*ran) Cancel() error { return nil }
func (*ran) Close() error  { return nil }

func (s *ran) Write(b []byte) (int, error) {
	now := s.other.Load()
	if s.writes++; now == s.before {
		s.never++
	}
	s.before = now
	return s.Buffer.Write(b)
}

// TestSnapshotYields: while a large snapshot is written, other goroutines run again and again, also
// with a single processor.
func TestSnapshotYields(t *testing.T) {
	m := NewMachine()
	var commands []*Command
	commands = append(commands, OpenSession(1, 1, 1000, session.Password{}))
	for range 20_000 {
		commands = append(commands, createCommand(1, "/n-", 2))
	}
	one(t, m, 1, commands...)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var turns atomic.Int64
	var over atomic.Bool
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for !over.Load() {
			turns.Add(1)
			runtime.Gosched()
		}
	}()
	runtime.Gosched()
	sink := &ran{other: &turns}
	err := persister{s: m.Snapshot()}.Persist(sink)
	over.Store(true)
	<-ended
	if err != nil || sink.writes < 10 || sink.never > 1 {
		t.Errorf("%v; in %d of %d writes, no other goroutine had run since the one before", err, sink.never, sink.writes)
	}
}

type failingWriter struct{ after int }

var errDisk = errors.New("disk full")

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.after -= len(b); w.after < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func TestSnapshotWriteError(t *testing.T) {
	s := small(t).Snapshot()
	for after := range 100 {
		if err := s.Write(&failingWriter{after}); !errors.Is(err, errDisk) {
			t.Fatalf("after %d bytes: %v", after, err)
		}
	}
}

func FuzzReadSnapshot(f *testing.F) {
	good := encode(f, small(f))
	f.Add(good, false)
	f.Add(good, true)
	f.Add(encode(f, NewMachine()), true)
	f.Add(join(sections(good)[0]), true)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair && len(b) > 7 { // correct the checksums, so that the contents are read
			b = join(sections(b)...)
		}
		m, err := ReadSnapshot(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrSnapshot) && !errors.Is(err, ErrVersion) {
				t.Fatalf("error %v is neither ErrSnapshot nor ErrVersion", err)
			}
			return
		}
		again, err := ReadSnapshot(bytes.NewReader(encode(t, m)))
		if err != nil || again.Digest() != m.Digest() {
			t.Fatalf("the state that was read cannot be written and read again: %v", err)
		}
	})
}

// TestLargestZnode checks that a snapshot can contain a znode whose path, data and ACL are
// each as long as a request allows.
func TestLargestZnode(t *testing.T) {
	m := small(t)
	do := func(op proto.OpCode, body []byte) {
		t.Helper()
		if r, _ := one(t, m, 3, &Command{Op: op, Session: 5, Conn: 1, Body: body}); r[0].Code != proto.OK || len(body) > MaxRequest {
			t.Fatalf("%v to a request of %d bytes", r[0].Code, len(body))
		}
	}
	size := MaxRequest - 100
	if !testkit.Thorough {
		size /= 8
	}
	// Each byte that is not UTF-8 becomes three when the request is decoded.
	id := "u:" + strings.Repeat("\xff", size)
	acl := proto.SetACLRequest{Path: "/b", ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: id}}}, Version: -1}
	create := proto.CreateRequest{Path: "/" + strings.Repeat("p", size), ACL: proto.OpenACL}
	do(proto.OpCreate, create.Append(nil))
	set := proto.SetDataRequest{Path: "/b", Data: make([]byte, size), Version: -1}
	do(proto.OpSetData, set.Append(nil))
	do(proto.OpSetACL, acl.Append(nil))
	longest := 0
	var b []byte
	for i := range m.Tree().Len() {
		b = m.Snapshot().tree.Append(b[:0], i)
		longest = max(longest, len(b))
	}
	if longest < 4*size-600 {
		t.Errorf("the longest znode has only %d bytes", longest)
	}
	throughSnapshot(t, m, nil)
}
