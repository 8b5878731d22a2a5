package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
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
	stateFile       = "state.bin" // in the directory of a snapshot, beside a meta.json

	dirMode  = 0o700
	fileMode = 0o600
)

// meta is what meta.json says.
type meta struct {
	Format   int    `json:"format"`
	ServerID uint64 `json:"serverId"`
}

// Open opens a member's data directory, making it if it is new, and
// verifies what is in it. It deletes nothing but what a crash left half-written
// under a temporary name.
func Open(dir string, id uint64, log *slog.Logger, raftLog hclog.Logger) (*Storage, error) {
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
	fail := func(err error) (*Storage, error) {
		db.Close()
		return nil, err
	}
	removeTemporary(dir, log)
	snaps, err := openSnapshots(dir, raftLog)
	if err != nil {
		return fail(err)
	}
	newest, machine, err := verifySnapshots(dir, id)
	if err != nil {
		return fail(err)
	}
	latched := &latchedStore{LogStore: db, StableStore: db}
	s := &Storage{Log: checksumLog{latched}, Stable: &voteStore{StableStore: checksumStable{latched}}, Snapshots: snaps, Name: dir, close: db.Close}
	if old, err := overtaken(path, db, newest); err != nil {
		return fail(err)
	} else if old != nil {
		log.Info("the log ends before the snapshot that the leader sent, and goes", "first", old.first, "last", old.last)
		if err := db.DeleteRange(old.first, old.last); err != nil {
			return fail(fmt.Errorf("%s: %w", path, err))
		}
	}
	if newest != nil {
		s.Members = newest.Configuration
	}
	err = verifyLog(path, db, newest, machine, func(l *raft.Log) error {
		if l.Type == raft.LogConfiguration {
			s.Members = raft.DecodeConfiguration(l.Data)
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
