package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// testedDisk is a diskStore, with what the tests of crashes and of damage have to
// know of its files.
type testedDisk struct {
	diskStore
	// logEnd returns the file, below the data directory, to whose end a write of
	// the log appends, and where that end is. What a file has beyond it is no
	// part of the log. The file is never shorter than size.
	logEnd func(t *testing.T, dir string) (file string, end, size int64)
}

// disks are all stores on disk. Each runs the tests in this package. The segments
// are short, so that the tests use several.
var disks = []testedDisk{
	{
		diskStore: boltStore{},
		logEnd: func(t *testing.T, dir string) (file string, end, size int64) {
			db := must(bbolt.Open(filepath.Join(dir, boltFile), fileMode, &bbolt.Options{ReadOnly: true}))(t)
			check(t, db.View(func(tx *bbolt.Tx) error { end = tx.Size(); return nil }))
			check(t, db.Close())
			return boltFile, end, end
		},
	},
	{
		diskStore: walStore{segmentSize: 32 << 10, log: hclog.NewNullLogger()},
		logEnd: func(t *testing.T, dir string) (file string, end, size int64) {
			tail := walTail(t, dir)
			return must(filepath.Rel(dir, tail.path))(t), int64(tail.end), int64(tail.SizeLimit)
		},
	},
}

// walTail returns the last segment of a log.
func walTail(t testing.TB, dir string) foundSegment {
	t.Helper()
	db := must(openBolt(filepath.Join(dir, walStable), true))(t)
	state, reached, err := loadSegments(checksumStable{db})
	check(t, errors.Join(err, db.Close()))
	list := must(readSegments(dir, state, reached, true))(t)
	return list[len(list)-1]
}

func onEachDisk(t *testing.T, test func(t *testing.T, disk testedDisk)) {
	for _, d := range disks {
		t.Run(string(d.name()), func(t *testing.T) { test(t, d) })
	}
}

// tryOpen opens the data directory of server 1.
func (d testedDisk) tryOpen(dir string) (*Storage, error) { return d.tryOpenAs(1, dir) }

func (d testedDisk) tryOpenAs(id uint64, dir string) (*Storage, error) {
	return openDirectory(d, dir, id, testkit.Quiet, hclog.NewNullLogger())
}

func (d testedDisk) mustOpen(t testing.TB, dir string) *Storage {
	t.Helper()
	return must(d.tryOpen(dir))(t)
}

func (d testedDisk) mustCheck(t testing.TB, dir string) *Report {
	t.Helper()
	return must(checkDirectory(d, dir))(t)
}

// onEachStore runs a test on every store on disk, and on the one in memory. open
// opens the storage, each time with what it had when it was closed.
func onEachStore(t *testing.T, test func(t *testing.T, open func() *Storage)) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := testkit.MemoryDir(t)
		test(t, func() *Storage { return disk.mustOpen(t, dir) })
	})
	t.Run("memory", func(t *testing.T) { test(t, NewMemory().Open) })
}

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

var check = testkit.Check

// alone is the configuration of a cluster of one, server 1.
var alone = []proto.Peer{{ID: 1, Addr: "server-1"}}

// member writes to a Storage as Raft does for a cluster of one.
type member struct {
	t       testing.TB
	s       *Storage
	machine *fsm.Machine // the state
	index   uint64       // of the last entry
	term    uint64
}

// start reads the state from s as Raft does, the newest snapshot and the entries
// that follow it, bootstraps the cluster if s is empty, and begins a term.
func start(t testing.TB, s *Storage) *member {
	t.Helper()
	check(t, s.Bootstrap(alone))
	m := &member{t: t, s: s, machine: fsm.NewMachine(), term: must(s.Term())(t)}
	if newest := must(s.NewestSnapshot())(t); newest.Index > 0 {
		_, state, err := s.Snapshots.Open(newest.ID)
		check(t, err)
		m.machine = must(fsm.ReadSnapshot(state))(t)
		check(t, state.Close())
		m.index = newest.Index
	}
	for last := must(s.Log.LastIndex())(t); m.index < last; m.index++ {
		var l raft.Log
		check(t, s.Log.GetLog(m.index+1, &l))
		if l.Type == raft.LogCommand {
			check(t, m.machine.Apply(l.Index, l.Term, l.Data, nil))
		}
	}
	m.term++
	check(t, s.Stable.SetUint64([]byte(TermKey), m.term))
	check(t, s.Stable.SetUint64([]byte(voteTermKey), m.term))
	check(t, s.Stable.Set([]byte(voteCandidateKey), []byte("server-1")))
	m.store(raft.LogNoop, nil)
	return m
}

func (m *member) store(kind raft.LogType, data []byte) {
	m.t.Helper()
	m.index++
	check(m.t, m.s.Log.StoreLogs([]*raft.Log{{Index: m.index, Term: m.term, Type: kind, Data: data}}))
}

// do stores and applies a command.
func (m *member) do(c *fsm.Command) {
	m.t.Helper()
	entry := fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), c), &fsm.Envelope{Origin: 1, Batch: m.index + 1, Count: 1})
	m.store(raft.LogCommand, entry)
	check(m.t, m.machine.Apply(m.index, m.term, entry, nil))
}

// openSession opens a session, for which create can be called.
func (m *member) openSession(id int64) { m.do(fsm.OpenSession(1, id, 10_000, session.Password{1})) }

func (m *member) create(session int64, path string, size int) {
	m.t.Helper()
	before := m.machine.Tree().Len()
	body := (&proto.CreateRequest{Path: path, Data: bytes.Repeat([]byte("d"), size), ACL: proto.OpenACL}).Append(nil)
	m.do(&fsm.Command{Op: proto.OpCreate, Session: session, Conn: 1, Body: body})
	if m.machine.Tree().Len() != before+1 {
		m.t.Fatalf("%s was not created", path)
	}
}

// snapshot takes a snapshot, and deletes the log up to some entries before its end.
func (m *member) snapshot() {
	m.t.Helper()
	_, trans := raft.NewInmemTransport("")
	sink := must(m.s.Snapshots.Create(1, m.index, m.term, Configuration(alone), 1, trans))(m.t)
	check(m.t, m.machine.Snapshot().Write(sink))
	check(m.t, sink.Close())
	check(m.t, m.s.Log.DeleteRange(must(m.s.Log.FirstIndex())(m.t), max(m.index, 5)-5))
}

// stop closes the storage.
func (m *member) stop() {
	m.t.Helper()
	check(m.t, m.s.Close())
}

// sample makes a data directory with a log and snapshots, and describes it.
func sample(t *testing.T, disk testedDisk) (dir string, intact *Report) {
	t.Helper()
	dir = filepath.Join(testkit.MemoryDir(t), "data")
	for round := range 2 {
		m := start(t, disk.mustOpen(t, dir))
		session := int64(round + 1)
		m.openSession(session)
		m.create(session, fmt.Sprintf("/round%d", round), 0)
		for i := range 60 {
			if i == 50 && round == 0 {
				m.snapshot()
			}
			m.create(session, fmt.Sprintf("/round%d/n%d", round, i), 80*i) // some spread over pages
		}
		m.stop()
	}
	intact = disk.mustCheck(t, dir)
	if intact.SnapshotIndex == 0 || intact.LastIndex < intact.SnapshotIndex+50 || intact.Znodes < 122 || intact.Sessions != 2 {
		t.Fatalf("the sample is %+v", intact)
	}
	return dir, intact
}

// sameState reports whether two reports tell of the same state.
func sameState(a, b *Report) bool {
	return a.Digest == b.Digest && a.Zxid == b.Zxid && a.Znodes == b.Znodes && a.Sessions == b.Sessions
}

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(testkit.MemoryDir(t), "data")
	check(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

func newestSnapshot(t testing.TB, dir string) string {
	t.Helper()
	newest, _, err := verifySnapshots(dir, 1)
	check(t, err)
	if newest == nil {
		t.Fatal("no snapshot")
	}
	return filepath.Join(snapshotDir, newest.ID)
}

// checkDirectory is Check for a directory with the store disk.
func checkDirectory(disk diskStore, dir string) (*Report, error) {
	report, _, err := verifyDirectory(disk, dir)
	return report, err
}
