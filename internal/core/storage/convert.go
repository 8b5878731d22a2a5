package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

// convertBytes is about how many bytes of log Convert writes at once.
const convertBytes = 1 << 20

// Convert has a data directory, which no server uses, keep its log in another
// store from now on. It first verifies the directory as [Check] does, and compares
// the copy with it before the directory uses the copy. A crash leaves either the old
// log in use or the new one; what is beside it is removed by the next Convert.
func Convert(dir string, to LogStore) (*Report, error) {
	before, err := Check(dir)
	if err != nil || before.LogStore == to {
		return before, err
	}
	from, err := before.LogStore.disk(hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	disk, err := to.disk(hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	old, err := from.open(dir, false) // keeps servers and other conversions out
	if err != nil {
		return nil, err
	}
	closeOld := sync.OnceValue(old.Close)
	defer closeOld()
	m, err := metaOf(dir, before.LogStore, before.ServerID, true)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(disk.logPath(dir)); err != nil {
		return nil, err
	}
	if err := disk.create(dir); err != nil {
		return nil, err
	}
	store, err := disk.open(dir, false)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(copyStore(store, old), store.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", disk.logPath(dir), err)
	}
	after, _, err := verifyDirectory(disk, dir)
	if err != nil {
		return nil, err
	}
	if same := *after; same.FirstIndex != before.FirstIndex || same.LastIndex != before.LastIndex || same.Digest != before.Digest {
		return nil, fmt.Errorf("%s does not have the log of %s", disk.logPath(dir), from.logPath(dir))
	}
	if err := fsync.Dir(filepath.Dir(filepath.Join(dir, disk.files(dir)[0]))); err != nil {
		return nil, err
	}
	if err := writeMeta(dir, &meta{formatVersion, m.ServerID, to, m.Identity}); err != nil {
		return nil, err
	}
	if err := closeOld(); err != nil { // Windows removes no file that is open
		return nil, err
	}
	return after, os.RemoveAll(from.logPath(dir))
}

// copyStore copies the log, the term and the vote, with their checksums.
func copyStore(to, from raftStore) error {
	for _, key := range []string{TermKey, voteKey, rejoiningKey} {
		v, err := from.Get([]byte(key))
		if errors.Is(err, errNoKey) {
			continue
		}
		if err == nil {
			err = to.Set([]byte(key), v)
		}
		if err != nil {
			return err
		}
	}
	first, err := from.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	last, err := from.LastIndex()
	if err != nil {
		return err
	}
	var logs []*raft.Log
	bytes := 0
	for i := first; i <= last; i++ {
		l := new(raft.Log)
		if err := from.GetLog(i, l); err != nil {
			return err
		}
		logs = append(logs, l)
		if bytes += len(l.Data); bytes < convertBytes && i < last {
			continue
		}
		if err := to.StoreLogs(logs); err != nil {
			return err
		}
		logs, bytes = nil, 0
	}
	return nil
}
