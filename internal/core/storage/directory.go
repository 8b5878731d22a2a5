package storage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

// The data directory:
//
//	meta.json        format version, server id, which of the two logs it has, and
//	                 the cluster that it belongs to
//	raft/wal/        Raft's log, term and vote (see walStore), or
//	raft/raft.db     the same (see boltStore)
//	raft/snapshots/  Raft's snapshots, the newest two
//	raft/*.tmp       a snapshot that is being received (see spoolIn)
//
// The log and the snapshots hold the passwords of sessions and the digests in
// ACLs, so what is created here is readable only by its owner.
//
// While a file or a directory is being made, its name ends in .tmp.
//
// meta.json ends with a checksum of what comes before it.
const (
	formatVersion = 3
	metaFile      = "meta.json" // in the data directory; each snapshot has one of its own
	metaSum       = `,"sum":"`  // before its checksum, a CRC-32C in hexadecimal digits
	raftDir       = "raft"

	dirMode  = 0o700
	fileMode = 0o600
)

// meta is what meta.json says.
type meta struct {
	Format   int      `json:"format"`
	ServerID uint64   `json:"serverId"`
	LogStore LogStore `json:"logStore"`
	Identity
}

// Open opens the data directory of server serverID, creating it if it is new,
// and verifies all that is in it. If kind is empty, it is the one that the directory
// has; a directory of another kind is refused. Open deletes only what a crash left unfinished
// under a temporary name, and a log that the leader's snapshot supersedes.
// Errors name the file that they are about.
//
// Messages go to log, and those of Raft's snapshot store to raftLog.
func Open(dir string, kind LogStore, serverID uint64, log *slog.Logger, raftLog hclog.Logger) (*Storage, error) {
	has, err := logStoreOf(dir)
	if err != nil {
		return nil, err
	}
	if kind != "" && has != "" && kind != has {
		return nil, fmt.Errorf("%s has its log in %s, not in %s: convert it with lockkeeper check --convert %s", dir, has, kind, kind)
	}
	disk, err := cmp.Or(has, kind, LogStores[0]).disk(raftLog)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return openDirectory(disk, dir, serverID, log, raftLog)
}

func openDirectory(disk diskStore, dir string, serverID uint64, log *slog.Logger, raftLog hclog.Logger) (*Storage, error) {
	known, err := metaOf(dir, disk.name(), serverID, false)
	if err != nil {
		return nil, err
	}
	if known == nil {
		if err := cmp.Or(nothingAt(dir), halfMade(dir)); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, snapshotDir), dirMode); err != nil {
			return nil, err
		}
		if err := disk.create(dir); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(filepath.Join(dir, snapshotDir), dirMode); err != nil { // if that was lost
		return nil, err
	}
	store, err := openAfterVerifying(disk, dir, false)
	if err != nil {
		return nil, unlessChanged(err, dir, disk.name(), serverID, known != nil)
	}
	if known, err = metaOf(dir, disk.name(), serverID, known != nil); err != nil {
		store.Close()
		return nil, err
	}
	s, err := openVerified(disk, dir, store, serverID, log, raftLog)
	if err == nil && known == nil {
		known = &meta{Format: formatVersion, ServerID: serverID, LogStore: disk.name()}
		err = writeMeta(dir, known)
	}
	if err != nil {
		store.Close()
		return nil, err
	}
	s.identity.Store(&known.Identity)
	s.StoreIdentity = func(x Identity) error {
		return writeMeta(dir, &meta{formatVersion, serverID, known.LogStore, x})
	}
	return s, nil
}

// openAfterVerifying verifies and opens a store.
func openAfterVerifying(disk diskStore, dir string, readOnly bool) (raftStore, error) {
	if err := verifyFiles(disk, dir); err != nil {
		return nil, err
	}
	if !readOnly {
		if err := syncFound(dir, disk.files(dir)); err != nil {
			return nil, err
		}
	}
	return disk.open(dir, readOnly)
}

// unlessChanged returns err, why a store cannot be opened, unless another process has put another one in its place
// since meta.json was read: then it says that.
func unlessChanged(err error, dir string, kind LogStore, serverID uint64, was bool) error {
	_, changed := metaOf(dir, kind, serverID, was)
	return cmp.Or(changed, err)
}

// openVerified verifies what store holds against the newest snapshot, and returns
// the Storage that they make.
func openVerified(disk diskStore, dir string, store raftStore, serverID uint64, log *slog.Logger, raftLog hclog.Logger) (*Storage, error) {
	removeTemporary(dir, log)
	snaps, err := openSnapshots(dir, raftLog)
	if err != nil {
		return nil, err
	}
	newest, machine, err := verifySnapshots(dir, serverID)
	if err != nil {
		return nil, err
	}
	first, last, err := supersededLog(disk.logPath(dir), checksumLog{store}, newest)
	if err != nil {
		return nil, err
	}
	if last > 0 {
		log.Info("deleting the log, which the leader's snapshot supersedes", "first", first, "last", last)
		if err := store.DeleteRange(first, last); err != nil {
			return nil, fmt.Errorf("%s: %w", disk.logPath(dir), err)
		}
	}
	latched := &latchedStore{LogStore: orderedLog{store}, StableStore: store}
	s := &Storage{Log: checksumLog{latched}, Stable: checksumStable{latched}, Snapshots: snaps, Spool: spoolIn(dir), Name: dir, state: machine, close: store.Close}
	s.keepVotes()
	if newest != nil {
		s.Members, s.logOf = Peers(newest.Configuration), ClusterID(machine.Cluster())
	}
	return s, verifyStore(disk, dir, store, newest, machine, s.note)
}

// readMeta reads meta.json; the result is nil if there is none.
func readMeta(dir string) (*meta, error) {
	path := filepath.Join(dir, metaFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, sum, _ := bytes.Cut(bytes.TrimSpace(b), []byte(metaSum))
	if string(sum) != sumOfMeta(content) {
		return nil, damaged(path, "%w", errChecksum)
	}
	var m meta
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, damaged(path, "%w", err)
	}
	if m.Format != formatVersion {
		return nil, fmt.Errorf("%s has format %d, this program knows %d: use the lockkeeper that has written it, or a newer one", dir, m.Format, formatVersion)
	}
	return &m, nil
}

// sumOfMeta is how meta.json ends after metaSum, if content is what comes before that.
func sumOfMeta(content []byte) string {
	return fmt.Sprintf("%08x\"}", crc32.Checksum(content, castagnoli))
}

// metaOf is readMeta for a directory of server serverID that has its log in kind. If was is set, there must
// be a meta.json.
//
// It is called again once the store is open, which keeps other processes out: until then another process may have been at
// work, one that was stopping while this one waited for its lock.
func metaOf(dir string, kind LogStore, serverID uint64, was bool) (*meta, error) {
	m, err := readMeta(dir)
	switch {
	case err != nil:
		return nil, err
	case m == nil && was:
		return nil, fmt.Errorf("%s has been removed just now", filepath.Join(dir, metaFile))
	case m == nil:
		return nil, nil
	case m.ServerID != serverID:
		return nil, fmt.Errorf("%s belongs to server %d, not %d", dir, m.ServerID, serverID)
	case m.LogStore != kind:
		return nil, fmt.Errorf("the log of %s has just been converted to %s: try again", dir, m.LogStore)
	}
	return m, nil
}

// writeMeta stores meta.json, which says that the directory is in use. A new name
// lasts only once its directory is synced, so writeMeta first syncs those that
// hold the names of all other files.
func writeMeta(dir string, m *meta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = b[:len(b)-1] // the closing brace
	b = append(b, metaSum+sumOfMeta(b)+"\n"...)
	if err := cmp.Or(fsync.Dir(filepath.Join(dir, raftDir)), fsync.Dir(dir), fsync.Name(dir)); err != nil {
		return err
	}
	path := filepath.Join(dir, metaFile)
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil {
		err = fsync.Dir(dir)
	}
	return err
}

// syncFound syncs the files of the log, and the directories that hold the names of all
// files. A process that was killed may have written some of what is there without
// syncing it. Raft would rely on it, and the store would delete what it replaces.
func syncFound(dir string, files []string) error {
	dirs := []string{dir, filepath.Join(dir, raftDir), filepath.Join(dir, snapshotDir)}
	for _, name := range files {
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		if d := filepath.Dir(path); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	for _, d := range dirs {
		if err := fsync.Dir(d); err != nil {
			return err
		}
	}
	return nil
}

// removeTemporary removes what a crash left unfinished: nothing has read it, and
// nothing ever will. The caller has the store open, so no other process is at
// work in the directory.
func removeTemporary(dir string, log *slog.Logger) {
	removeMaking(dir)
	for _, d := range []string{raftDir, snapshotDir, walDir} {
		entries, _ := os.ReadDir(filepath.Join(dir, d))
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				log.Info("removing what a crash left unfinished", "directory", d, "name", e.Name())
				os.RemoveAll(filepath.Join(dir, d, e.Name()))
			}
		}
	}
}
