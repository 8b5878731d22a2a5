package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
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
const (
	formatVersion   = 1
	metaFile        = "meta.json"
	raftFile        = "raft/raft.db"
	raftDir         = "raft"
	snapshotDir     = "raft/snapshots"
	retainSnapshots = 2
	lockTimeout     = 200 * time.Millisecond // how long to wait for another process to let go
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
}

// Memory keeps a member's state where a disk would, for as long as it is
// referenced: a member that is opened on the Memory of one that was closed
// finds everything that one had. Only one member may use it at a time.
type Memory struct {
	log   *raft.InmemStore
	snaps *raft.InmemSnapshotStore
}

// NewMemory returns the state of a member that never was.
func NewMemory() *Memory { return &Memory{raft.NewInmemStore(), raft.NewInmemSnapshotStore()} }

func (m *Memory) stores() *stores {
	return &stores{m.log, m.log, m.snaps, "memory", func() error { return nil }}
}

// openDir opens a member's data directory, making it if it is new, and
// verifies what is in it. It deletes nothing but what a crash left half-written
// under a temporary name.
func openDir(dir string, id uint64, log *slog.Logger) (*stores, error) {
	if err := os.MkdirAll(filepath.Join(dir, snapshotDir), 0o755); err != nil {
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
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && known != nil {
		return nil, fmt.Errorf("%s is missing, but %s was in use: restore it, or start with an empty directory", path, dir)
	}
	db, err := openBolt(path, false)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*stores, error) {
		db.Close()
		return nil, err
	}
	removeTemporary(filepath.Join(dir, snapshotDir), log)
	snaps, err := openSnapshots(dir, log)
	if err != nil {
		return fail(err)
	}
	newest, err := verifySnapshots(dir, snaps)
	if err != nil {
		return fail(err)
	}
	if err := verifyLog(path, db, newest, func(*raft.Log) error { return nil }); err != nil {
		return fail(err)
	}
	if known == nil {
		if err := writeMeta(dir, &meta{formatVersion, id}); err != nil {
			return fail(err)
		}
	}
	return &stores{db, db, snaps, dir, db.Close}, nil
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
	path := filepath.Join(dir, metaFile)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	// A new name lasts only once its directory is written too: the data
	// directory's own, and those of raft.db and the snapshots.
	for _, d := range []string{filepath.Join(dir, raftDir), dir, filepath.Dir(dir)} {
		if err == nil {
			err = syncDir(d)
		}
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

func openSnapshots(dir string, log *slog.Logger) (*raft.FileSnapshotStore, error) {
	return raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, raftDir), retainSnapshots, raftLogger(log))
}

// removeTemporary removes snapshots that a crash left unfinished: Raft never
// looked at them, and never will.
func removeTemporary(dir string, log *slog.Logger) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), ".tmp") {
			log.Info("removing an unfinished snapshot", "name", e.Name())
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// verifySnapshots reads every snapshot whole and returns the newest one. Raft
// by itself would pass over a damaged one in silence, and fall back to an
// older state.
func verifySnapshots(dir string, snaps *raft.FileSnapshotStore) (newest *raft.SnapshotMeta, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshotDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		m, rc, err := snaps.Open(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s is damaged: %w: restore it from a copy, or replace this server",
				filepath.Join(dir, snapshotDir, e.Name()), err)
		}
		rc.Close()
		if newest == nil || m.Index > newest.Index {
			newest = m
		}
	}
	return newest, nil
}

// verifyLog reads the log, which must follow the snapshot without a gap, checks
// every entry's checksum, and calls each with the entries after the snapshot.
func verifyLog(path string, log raft.LogStore, newest *raft.SnapshotMeta, each func(*raft.Log) error) error {
	return guard(path, func() error {
		first, err := log.FirstIndex()
		if err != nil {
			return err
		}
		last, err := log.LastIndex()
		if err != nil {
			return err
		}
		after := uint64(0)
		if newest != nil {
			after = newest.Index
		}
		if first > after+1 {
			return fmt.Errorf("%s is damaged: the log starts at entry %d, but the newest snapshot ends at %d", path, first, after)
		}
		if first == 0 {
			return nil
		}
		var term uint64
		for i := first; i <= last; i++ {
			var l raft.Log
			if err := log.GetLog(i, &l); err != nil {
				return fmt.Errorf("%s is damaged: log entry %d: %w", path, i, err)
			}
			if l.Index != i {
				return fmt.Errorf("%s is damaged: log entry %d says it is %d", path, i, l.Index)
			}
			if l.Term < term {
				return fmt.Errorf("%s is damaged: log entry %d has term %d after term %d", path, i, l.Term, term)
			}
			term = l.Term
			if l.Type == raft.LogCommand {
				if _, _, err := fsm.OpenEntry(l.Data); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
			}
			if i > after {
				if err := each(&l); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
			}
		}
		return nil
	})
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
	if err := checkPages(path); err != nil {
		return nil, err
	}
	db, err := openBolt(path, true)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	snaps, err := openSnapshots(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	newest, err := verifySnapshots(dir, snaps)
	if err != nil {
		return nil, err
	}
	report := &Report{ServerID: m.ServerID}
	machine := fsm.NewMachine()
	if newest != nil {
		report.SnapshotIndex = newest.Index
		_, rc, err := snaps.Open(newest.ID)
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		if machine, err = fsm.ReadSnapshot(rc); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, snapshotDir, newest.ID), err)
		}
	}
	err = verifyLog(path, db, newest, func(l *raft.Log) error {
		if l.Type != raft.LogCommand {
			return nil
		}
		return machine.Apply(l.Index, l.Term, l.Data, nil)
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
	if err := machine.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	report.Zxid, report.Znodes, report.Sessions = machine.Zxid(), machine.Tree().Len(), machine.Sessions().Len()
	report.Digest = fmt.Sprintf("%016x", machine.Digest())
	return report, nil
}

// checkPages reads every page that holds something. (bbolt's own Check looks
// for lost pages too, but on a goroutine of its own, where a damaged page is
// the end of the process.)
func checkPages(path string) error {
	return guard(path, func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		if err != nil {
			return err
		}
		defer db.Close()
		return db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
				return b.ForEach(func(_, _ []byte) error { return nil })
			})
		})
	})
}
