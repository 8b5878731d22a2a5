package cluster

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// The data directory:
//
//	meta.json        format version and server id
//	raft/raft.db     Raft's log, term and vote (raft-boltdb)
//	raft/snapshots/  Raft's snapshots, the newest two
//
// The log and the snapshots hold the passwords of sessions and the digests in
// ACLs, so only the owner may read what is made here.
const (
	formatVersion   = 1
	metaFile        = "meta.json"
	raftFile        = "raft/raft.db"
	raftDir         = "raft"
	snapshotDir     = "raft/snapshots"
	retainSnapshots = 2
	stateFile       = "state.bin"            // in the directory of a snapshot, beside a meta.json
	lockTimeout     = 200 * time.Millisecond // how long to wait for another process to let go

	dirMode  = 0o700
	fileMode = 0o600
)

// ErrInUse says that another process has the data directory open.
var ErrInUse = errors.New("in use by another process")

type meta struct {
	Format   int    `json:"format"`
	ServerID uint64 `json:"serverId"`
}

// stores is where Raft keeps things.
type stores struct {
	log    raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	where  string // for messages
	close  func() error

	members raft.Configuration // the newest that is stored; empty if none is
}

// bootstrap makes the cluster's configuration the first entry of an empty log.
// (That of Raft takes a term without an entry for a cluster that exists, which
// a crash between the two leaves. It would never have a leader.)
func (s *stores) bootstrap(c raft.Configuration) error {
	last, err := s.log.LastIndex()
	if err != nil || last > 0 {
		return err
	}
	snapshots, err := s.snaps.List()
	if err != nil || len(snapshots) > 0 {
		return err
	}
	if err := s.stable.SetUint64([]byte(currentTerm), 1); err != nil {
		return err
	}
	return s.log.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)})
}

// Memory keeps a member's state where a disk would, for as long as it is
// referenced: a member that is opened on the Memory of one that was closed
// finds everything that one had. Only one member may use it at a time.
type Memory struct {
	log   *memoryLog
	snaps *memorySnapshots
	fault atomic.Pointer[func() error]
}

// NewMemory returns the state of a member that never was.
func NewMemory() *Memory {
	return &Memory{log: &memoryLog{InmemStore: raft.NewInmemStore()}, snaps: &memorySnapshots{}}
}

// SetFault has f called before each write of the log, the term or the vote: it
// may take its time, as a slow disk does, or return an error, as a full one
// does, and then nothing is written. Nil ends that.
func (m *Memory) SetFault(f func() error) {
	if f == nil {
		f = func() error { return nil }
	}
	m.fault.Store(&f)
}

func (m *Memory) stores() *stores {
	faulty := faultyStore{m.log, m}
	s := &stores{log: faulty, stable: &voteStore{StableStore: faulty}, snaps: m.snaps, where: "memory", close: func() error { return nil }}
	newest, _ := s.newest()
	s.members = newest.Configuration
	joinLog(m.log, newest) // a crash may have left that undone
	first, _ := m.log.FirstIndex()
	last, _ := m.log.LastIndex()
	for i := max(first, 1); i <= last; i++ {
		var l raft.Log
		if m.log.GetLog(i, &l) == nil && l.Type == raft.LogConfiguration {
			s.members = raft.DecodeConfiguration(l.Data)
		}
	}
	return s
}

// faultyStore has faults on command.
type faultyStore struct {
	*memoryLog
	m *Memory
}

func (s faultyStore) write(f func() error) error {
	if fault := s.m.fault.Load(); fault != nil {
		if err := (*fault)(); err != nil {
			return err
		}
	}
	return f()
}

func (s faultyStore) StoreLog(l *raft.Log) error {
	return s.write(func() error { return s.memoryLog.StoreLog(l) })
}

func (s faultyStore) StoreLogs(l []*raft.Log) error {
	return s.write(func() error { return s.memoryLog.StoreLogs(l) })
}

func (s faultyStore) Set(key, val []byte) error {
	return s.write(func() error { return s.memoryLog.Set(key, val) })
}

func (s faultyStore) SetUint64(key []byte, val uint64) error {
	return s.write(func() error { return s.memoryLog.SetUint64(key, val) })
}

// openDir opens a member's data directory, making it if it is new, and
// verifies what is in it. It deletes nothing but what a crash left half-written
// under a temporary name.
func openDir(dir string, id uint64, log *slog.Logger) (*stores, error) {
	if err := os.MkdirAll(filepath.Join(dir, snapshotDir), dirMode); err != nil {
		return nil, err
	}
	known, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	if known != nil && known.ServerID != id {
		return nil, fmt.Errorf("%s belongs to server %d, not %d", dir, known.ServerID, id)
	}
	path := filepath.Join(dir, raftFile)
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist) && known != nil:
		return nil, fmt.Errorf("%s is missing, but %s was in use: restore it, or start with an empty directory", path, dir)
	case errors.Is(err, os.ErrNotExist):
		if err := createBolt(path); err != nil {
			return nil, err
		}
	case err == nil && (info.Size() > 0 || known != nil): // an empty file is one that was just made
		if err := verifyFile(path); err != nil {
			return nil, err
		}
	}
	db, err := openBolt(path, false)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*stores, error) {
		db.Close()
		return nil, err
	}
	removeTemporary(dir, log)
	snaps, err := openSnapshots(dir, log)
	if err != nil {
		return fail(err)
	}
	newest, machine, err := verifySnapshots(dir, id)
	if err != nil {
		return fail(err)
	}
	latched := &latchedStore{LogStore: db, StableStore: db}
	s := &stores{log: sealedLog{latched}, stable: &voteStore{StableStore: sealedStable{latched}}, snaps: snaps, where: dir, close: db.Close}
	if old, err := overtaken(path, db, newest); err != nil {
		return fail(err)
	} else if old != nil {
		log.Info("the log ends before the snapshot that the leader sent, and goes", "first", old.first, "last", old.last)
		if err := db.DeleteRange(old.first, old.last); err != nil {
			return fail(fmt.Errorf("%s: %w", path, err))
		}
	}
	if newest != nil {
		s.members = newest.Configuration
	}
	err = verifyLog(path, db, newest, machine, func(l *raft.Log) error {
		if l.Type == raft.LogConfiguration {
			s.members = raft.DecodeConfiguration(l.Data)
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	if known == nil {
		if err := writeMeta(dir, &meta{formatVersion, id}); err != nil {
			return fail(err)
		}
	}
	if file := exposed(dir); file != "" {
		log.Warn("other users may read passwords of sessions and ACLs: take their rights to the data directory", "file", file)
	}
	return s, nil
}

func readMeta(dir string) (*meta, error) {
	path := filepath.Join(dir, metaFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m meta
	if err := json.Unmarshal(b, &m); err != nil || m.Format < 1 || m.ServerID == 0 {
		return nil, fmt.Errorf("%s is damaged: it should be like {\"format\":%d,\"serverId\":1}", path, formatVersion)
	}
	if m.Format > formatVersion {
		return nil, fmt.Errorf("%s has format %d, this program knows up to %d: use a newer lockkeeper", dir, m.Format, formatVersion)
	}
	return &m, nil
}

func writeMeta(dir string, m *meta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	// A new name is durable only once its directory is synced. meta.json says
	// that the directory is in use, so all other names have to be durable first.
	for _, d := range []string{filepath.Join(dir, raftDir), dir, filepath.Dir(dir)} {
		if err := syncDir(d); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, metaFile)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// createBolt makes an empty raft.db. The file gets its name when it is whole, so
// that one cut short by a crash is not taken for a damaged one.
func createBolt(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	temporary := f.Name()
	defer os.Remove(temporary)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := openBolt(temporary, false)
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	// A rename would replace a file that another process has made by now, and uses.
	if err := os.Link(temporary, path); err != nil {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		return os.Rename(temporary, path) // this file system has no links
	}
	return nil
}

func openBolt(path string, readOnly bool) (store *raftboltdb.BoltStore, err error) {
	err = guard(path, func() error {
		store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout:      lockTimeout,
				ReadOnly:     readOnly,
				FreelistType: bbolt.FreelistMapType,
				// NoFreelistSync would save a page per write, but then bbolt
				// scans the file at start, and panics where no one can recover
				// if it is damaged.
			},
			MsgpackUseNewTimeFormat: true,
		})
		return err
	})
	return store, err
}

// guard runs f, which reads path, and turns what bbolt does about a damaged
// page, a panic or a fault in the mapped memory, into an error that names the file.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v: restore it from a copy, or replace this server", path, p)
		}
	}()
	switch err = f(); {
	case errors.Is(err, berrors.ErrTimeout): // of the lock on the file
		return fmt.Errorf("%s is %w", filepath.Dir(filepath.Dir(path)), ErrInUse)
	case err != nil && !strings.Contains(err.Error(), path):
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

func openSnapshots(dir string, log *slog.Logger) (raft.SnapshotStore, error) {
	s, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, raftDir), retainSnapshots, raftLogger(log))
	return privateSnapshots{s, filepath.Join(dir, snapshotDir)}, err
}

// privateSnapshots is Raft's own store, which would let everybody read its files.
type privateSnapshots struct {
	*raft.FileSnapshotStore
	dir string
}

func (s privateSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, configIndex, trans)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, sink.ID()+".tmp") // until the snapshot is complete
	err = errors.Join(os.Chmod(dir, dirMode), os.Chmod(filepath.Join(dir, metaFile), fileMode), os.Chmod(filepath.Join(dir, stateFile), fileMode))
	// Raft syncs both files and the name of their directory, but not their names in it.
	err = errors.Join(err, syncDir(dir))
	if err != nil {
		sink.Cancel()
		return nil, err
	}
	return sink, nil
}

// exposed returns a file with secrets in a data directory that users other than
// its owner may read, as an earlier version left them, or "". It looks at
// nothing above the data directory.
func exposed(dir string) string {
	if runtime.GOOS == "windows" { // no such modes
		return ""
	}
	files := []string{raftFile}
	snapshots, _ := os.ReadDir(filepath.Join(dir, snapshotDir))
	for _, s := range snapshots {
		files = append(files, filepath.Join(snapshotDir, s.Name(), stateFile))
	}
	mode := func(path string) os.FileMode {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			return 0
		}
		return info.Mode()
	}
	for _, file := range files {
		who := os.FileMode(0o77) & mode(file) >> 2 // an x for each who may read
		for d := filepath.Dir(file); ; d = filepath.Dir(d) {
			if who &= mode(d); d == "." {
				break
			}
		}
		if who&0o11 != 0 {
			return filepath.Join(dir, file)
		}
	}
	return ""
}

// removeTemporary removes what a crash left unfinished: nobody has looked at it,
// and nobody ever will. The caller has raft.db locked.
func removeTemporary(dir string, log *slog.Logger) {
	for _, d := range []string{raftDir, snapshotDir} {
		entries, _ := os.ReadDir(filepath.Join(dir, d))
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				log.Info("removing what a crash left unfinished", "directory", d, "name", e.Name())
				os.RemoveAll(filepath.Join(dir, d, e.Name()))
			}
		}
	}
}

// verifySnapshots reads the newest snapshot whole and returns it with the state
// in it; nil if there is none. Raft by itself would pass over a damaged one in
// silence, and fall back to an older state. Older ones are not needed: a crash
// while one was being removed leaves a part of it.
func verifySnapshots(dir string, id uint64) (*raft.SnapshotMeta, *fsm.Machine, error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshotDir))
	if err != nil {
		return nil, nil, err
	}
	var newest snapshotName
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		var n snapshotName
		if _, err := fmt.Sscanf(e.Name(), "%d-%d-%d", &n.term, &n.index, &n.time); err != nil || n.String() != e.Name() {
			return nil, nil, fmt.Errorf("%s is no snapshot: remove it", filepath.Join(dir, snapshotDir, e.Name()))
		}
		if newest.less(n) {
			newest = n
		}
	}
	if newest == (snapshotName{}) {
		return nil, nil, nil
	}
	path := filepath.Join(dir, snapshotDir, newest.String())
	meta, machine, err := readSnapshot(path, newest, id)
	if errors.Is(err, fsm.ErrVersion) {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s is damaged: %w: restore it from a copy, or replace this server", path, err)
	}
	return meta, machine, nil
}

// snapshotName is what Raft names a snapshot's directory by.
type snapshotName struct{ term, index, time uint64 }

func (n snapshotName) String() string { return fmt.Sprintf("%d-%d-%d", n.term, n.index, n.time) }

func (n snapshotName) less(m snapshotName) bool {
	return cmp.Or(cmp.Compare(n.term, m.term), cmp.Compare(n.index, m.index), cmp.Compare(n.time, m.time)) < 0
}

// snapshotMeta is the meta.json of a snapshot, as Raft writes it.
type snapshotMeta struct {
	raft.SnapshotMeta
	CRC []byte // CRC-64 of state.bin
}

// readSnapshot reads the snapshot in the directory path, and changes nothing
// there (Raft's own store makes files to see whether it can). Its meta.json has
// no checksum, so what it says is compared with what else is known.
func readSnapshot(path string, name snapshotName, id uint64) (*raft.SnapshotMeta, *fsm.Machine, error) {
	b, err := os.ReadFile(filepath.Join(path, metaFile))
	if err != nil {
		return nil, nil, err
	}
	var m snapshotMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, nil, fmt.Errorf("meta.json: %w", err)
	}
	state, err := os.Open(filepath.Join(path, stateFile))
	if err != nil {
		return nil, nil, err
	}
	defer state.Close()
	voters, self := 0, false
	for _, s := range m.Configuration.Servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
		self = self || s.ID == raft.ServerID(fmt.Sprint(id))
	}
	members := fsm.Members(m.Configuration)
	switch {
	case m.Version != 1 || m.ID != name.String() || m.Index != name.index || m.Term != name.term:
		return nil, nil, errors.New("meta.json is of another snapshot")
	case voters == 0 || members == nil && !self:
		return nil, nil, fmt.Errorf("meta.json does not have server %d in its cluster", id)
	}
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	whole := io.TeeReader(state, sum)
	machine, err := fsm.ReadSnapshot(whole)
	if err != nil {
		return nil, nil, fmt.Errorf("state.bin: %w", err)
	}
	rest, err := io.Copy(io.Discard, whole)
	switch {
	case err != nil:
		return nil, nil, err
	case rest > 0 || !bytes.Equal(sum.Sum(nil), m.CRC):
		return nil, nil, errors.New("state.bin does not have the checksum that meta.json says")
	case machine.Index() > m.Index:
		return nil, nil, fmt.Errorf("its state is of entry %d, after its end", machine.Index())
	}
	if members != nil && !machine.HasMembers(members) {
		return nil, nil, errors.New("meta.json does not have the members that its state has")
	}
	return &m.SnapshotMeta, machine, nil
}

// verifyFile verifies raft.db, page by page, and that what is in it is of the
// kind that Raft keeps. It waits a moment for another process to let go of it.
func verifyFile(path string) error {
	return guard(path, func() error {
		// Opened only for its lock: nobody writes meanwhile.
		lock, err := bbolt.Open(path, fileMode, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		if errors.Is(err, berrors.ErrTimeout) || errors.Is(err, os.ErrPermission) {
			return err
		}
		if err == nil {
			defer lock.Close()
		}
		return checkPages(path, raftKeys())
	})
}

// raftKeys returns a function that takes the keys of raft.db in order, and
// refuses those that Raft does not make.
func raftKeys() func(bucket, key, value []byte) error {
	var index uint64
	return func(bucket, key, _ []byte) error {
		switch string(bucket) {
		case "logs":
			if len(key) != 8 {
				return fmt.Errorf("log entry %x", key)
			}
			next := binary.BigEndian.Uint64(key)
			if next == 0 || index != 0 && next != index+1 { // the first is 1
				return fmt.Errorf("log entry %d follows %d", next, index)
			}
			index = next
		case "conf":
			if !slices.Contains([]string{currentTerm, vote, string(rejoining)}, string(key)) {
				return fmt.Errorf("key %q", key)
			}
		default:
			return fmt.Errorf("bucket %q", bucket)
		}
		return nil
	}
}

// entries is a part of the log, both ends included.
type entries struct{ first, last uint64 }

// overtaken returns the whole log if it does not lead up to the newest
// snapshot: that one came from the leader, and a crash kept Raft from removing
// the log that it takes the place of (Raft's paper, section 7). Else nil.
func overtaken(path string, db *raftboltdb.BoltStore, newest *raft.SnapshotMeta) (old *entries, err error) {
	if newest == nil {
		return nil, nil
	}
	err = guard(path, func() error {
		first, err := db.FirstIndex()
		if err != nil || first == 0 {
			return err
		}
		last, err := db.LastIndex()
		if err != nil {
			return err
		}
		var l raft.Log
		switch {
		case first > newest.Index:
			return nil
		case last < newest.Index:
			old = &entries{first, last}
		default:
			// One that cannot be read is for verifyLog to judge.
			if err := (sealedLog{db}).GetLog(newest.Index, &l); err == nil && l.Term != newest.Term {
				old = &entries{first, last}
			}
		}
		return nil
	})
	return old, err
}

// verifyLog reads the log, which must follow the snapshot without a gap, checks
// every entry, and calls each with the entries after the snapshot. It checks
// Raft's term and vote as well. snapshot is the state in the newest snapshot, or nil.
func verifyLog(path string, db *raftboltdb.BoltStore, newest *raft.SnapshotMeta, snapshot *fsm.Machine, each func(*raft.Log) error) error {
	log, stable := sealedLog{db}, &voteStore{StableStore: sealedStable{db}}
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("%s is damaged: %w: restore it from a copy, or replace this server", path, fmt.Errorf(format, args...))
	}
	return guard(path, func() error {
		first, err := log.FirstIndex()
		if err != nil {
			return err
		}
		last, err := log.LastIndex()
		if err != nil {
			return err
		}
		var after, applied, term uint64 // the snapshot's end, its state's last entry
		if newest != nil {
			after, applied = newest.Index, snapshot.Index()
		}
		if first > after+1 {
			return damaged("the log starts at entry %d, but the newest snapshot ends at %d", first, after)
		}
		for i := max(first, 1); i <= last; i++ {
			var l raft.Log
			if err := log.GetLog(i, &l); err != nil {
				return damaged("log entry %d: %w", i, err)
			}
			if l.Term < term {
				return damaged("log entry %d has term %d after term %d", i, l.Term, term)
			}
			if term = l.Term; newest != nil && (i <= after && term > newest.Term || i >= after && term < newest.Term) {
				return damaged("log entry %d has term %d, but the newest snapshot ends at %d in term %d", i, term, after, newest.Term)
			}
			switch l.Type {
			case raft.LogCommand:
				if _, _, err := fsm.OpenEntry(l.Data); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
				if i > applied && i <= after {
					return damaged("the newest snapshot ends at %d, but does not have entry %d", after, i)
				}
			case raft.LogNoop, raft.LogBarrier, raft.LogConfiguration:
			default:
				return fmt.Errorf("%s: log entry %d is of unknown type %d", path, i, l.Type)
			}
			if i > after {
				if err := each(&l); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
			}
		}
		if newest != nil {
			term = max(term, newest.Term)
		}
		current, err := stableUint64(stable, currentTerm)
		if err != nil {
			return damaged("%w", err)
		}
		voted, err := stableUint64(stable, voteTerm)
		if err != nil {
			return damaged("%w", err)
		}
		switch {
		case current < term || current < voted:
			return damaged("its term is %d, but it has entries of %d and a vote in %d", current, term, voted)
		case last == 0 && newest == nil && current > 1:
			return damaged("its log is empty in term %d", current)
		}
		return nil
	})
}

// stableUint64 reads a number, 0 if there is none.
func stableUint64(s raft.StableStore, key string) (uint64, error) {
	v, err := s.GetUint64([]byte(key))
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return v, err
}

// Report is what [Check] found.
type Report struct {
	ServerID      uint64 `json:"serverId"`
	SnapshotIndex uint64 `json:"snapshotIndex"` // 0 without one
	FirstIndex    uint64 `json:"firstIndex"`    // of the log; 0 if it is empty
	LastIndex     uint64 `json:"lastIndex"`
	Zxid          int64  `json:"zxid"`
	Znodes        int    `json:"znodes"`
	Sessions      int    `json:"sessions"`
	Digest        string `json:"digest"`
	// Exposed is a file with passwords that other users may read.
	Exposed string `json:"exposed,omitempty"`
}

// Check verifies the data directory of a server that is not running: the
// database's pages, the snapshots, the log, and the state that they lead to. It
// changes nothing.
func Check(dir string) (*Report, error) {
	m, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("%s is no data directory: it has no %s", dir, metaFile)
	}
	path := filepath.Join(dir, raftFile)
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	if err := verifyFile(path); err != nil {
		return nil, err
	}
	db, err := openBolt(path, true)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	newest, snapshot, err := verifySnapshots(dir, m.ServerID)
	if err != nil {
		return nil, err
	}
	report := &Report{ServerID: m.ServerID, Exposed: exposed(dir)}
	machine := snapshot
	if newest == nil {
		machine = fsm.NewMachine()
	} else {
		report.SnapshotIndex = newest.Index
	}
	old, err := overtaken(path, db, newest)
	if err != nil {
		return nil, err
	}
	if old == nil {
		err = verifyLog(path, db, newest, snapshot, func(l *raft.Log) error {
			switch l.Type {
			case raft.LogCommand:
				return machine.Apply(l.Index, l.Term, l.Data, nil)
			case raft.LogConfiguration:
				if members := fsm.Members(raft.DecodeConfiguration(l.Data)); members != nil {
					machine.SetMembers(l.Index, members)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if report.FirstIndex, err = db.FirstIndex(); err != nil {
			return nil, err
		}
		if report.LastIndex, err = db.LastIndex(); err != nil {
			return nil, err
		}
	}
	if err := machine.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	report.Zxid, report.Znodes, report.Sessions = machine.Zxid(), machine.Tree().Len(), machine.Sessions().Len()
	report.Digest = fmt.Sprintf("%016x", machine.Digest())
	return report, nil
}
