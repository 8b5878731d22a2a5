// Package migrate moves the whole state between ZooKeeper's data directory and lockkeeper's: znodes
// with all of their metadata, and sessions with their passwords, so that clients go on with the locks
// that they hold. Package zkdata has the formats of ZooKeeper's files.
package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
)

// Source says which data of ZooKeeper to read.
type Source struct {
	Data string // ZooKeeper's dataDir
	Log  string // its dataLogDir; empty if it is the same
	// WithoutLog accepts a snapshot that no transaction log reaches, which may lack transactions.
	WithoutLog bool
}

// Found says what was read.
type Found struct {
	Snapshot     string `json:"snapshot,omitempty"` // the file
	Transactions int    `json:"transactions"`       // that were applied to it
	Epoch        int64  `json:"epoch"`              // ZooKeeper's currentEpoch; 0 if it has none
	Zxid         int64  `json:"zxid"`
	Znodes       int    `json:"znodes"`
	Ephemerals   int    `json:"ephemerals"`
	Containers   int    `json:"containers"`
	TTLs         int    `json:"ttls"`
	Sessions     int    `json:"sessions"`
	// Digests is how many digests, which ZooKeeper stores since 3.6, were compared.
	Digests int `json:"digests"`
	// Notes are sentences about what is unusual.
	Notes []string `json:"notes,omitempty"`
}

func (f *Found) note(format string, args ...any) {
	f.Notes = append(f.Notes, fmt.Sprintf(format, args...))
}

const (
	versionDir     = "version-2" // has all of ZooKeeper's files, in either directory
	snapshotPrefix = "snapshot"
	logPrefix      = "log"

	// As in ZooKeeper, no more snapshots than these are tried.
	maxSnapshots = 100
)

// file is a snapshot or a log.
type file struct {
	path string
	zxid int64 // of the last transaction in a snapshot, or the first in a log
	size int64
	time time.Time // of the last change
}

// files returns the snapshots or logs in a directory, in order of their zxids (Util.sortDataDir). As in
// ZooKeeper, they may be symbolic links.
func files(dir, prefix string) (all []file, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		parts := strings.Split(e.Name(), ".")
		if len(parts) < 2 || parts[0] != prefix {
			continue
		}
		zxid, err := strconv.ParseInt(parts[1], 16, 64)
		if err != nil || zxid < 0 {
			continue
		}
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("%v", err) // not ErrNotExist, which is about dir
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: it is no regular file", path)
		}
		all = append(all, file{path, zxid, info.Size(), info.ModTime()})
	}
	slices.SortStableFunc(all, func(a, b file) int { return cmp.Compare(a.zxid, b.zxid) })
	return all, nil
}

// directories is what is in the directories of a Source.
type directories struct{ snapshots, logs []file }

func (src *Source) list() (d directories, err error) {
	dir := filepath.Join(src.Data, versionDir)
	if d.snapshots, err = files(dir, snapshotPrefix); errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%s is no dataDir of ZooKeeper: it has no %s", src.Data, versionDir)
	} else if err != nil {
		return d, err
	}
	logDir := dir
	if src.Log != "" {
		logDir = filepath.Join(src.Log, versionDir)
	}
	if d.logs, err = files(logDir, logPrefix); errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%s is no dataLogDir of ZooKeeper: it has no %s", src.Log, versionDir)
	} else if err != nil {
		return d, err
	}
	return d, notMixed(dir, logDir)
}

// notMixed fails if two different directories have files that belong into the other one, with which
// ZooKeeper does not start either (FileTxnSnapLog.checkLogDir, checkSnapDir): the wrong one was named, or
// transactions would be left out.
func notMixed(dir, logDir string) error {
	a, err := os.Stat(dir)
	if err != nil {
		return err
	}
	b, err := os.Stat(logDir)
	if err != nil || os.SameFile(a, b) {
		return err
	}
	if logs, err := files(dir, logPrefix); err != nil {
		return err
	} else if len(logs) > 0 {
		return fmt.Errorf("%s: a log in ZooKeeper's dataDir, although it has a dataLogDir: put all logs into one of them, or name the right ones", logs[0].path)
	}
	if snapshots, err := files(logDir, snapshotPrefix); err != nil {
		return err
	} else if len(snapshots) > 0 {
		return fmt.Errorf("%s: a snapshot in ZooKeeper's dataLogDir: put all snapshots into the dataDir, or name the right ones", snapshots[0].path)
	}
	return nil
}

// Read reads the state in which a ZooKeeper that has been stopped would start: its newest snapshot, and
// the transactions after that. It is an error if transactions are missing, if what is there is damaged
// other than by a crash, or if the files change meanwhile. Errors name the file and the offset.
func Read(src Source) (*zkdata.State, *Found, error) { return read(src, func() {}) }

// read is Read. It calls done when it has read all files, before it looks whether they have changed.
func read(src Source, done func()) (*zkdata.State, *Found, error) {
	d, err := src.list()
	if err != nil {
		return nil, nil, err
	}
	f := &Found{}
	s, skipped, err := f.snapshot(d.snapshots)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case s == nil && len(d.logs) == 0:
		return nil, nil, fmt.Errorf("%s has neither a snapshot nor a transaction log", filepath.Join(src.Data, versionDir))
	case s == nil:
		s = zkdata.NewState() // releases before 3.5 do not begin with a snapshot
		f.note("there is no snapshot: all transactions from the first one on were applied")
	case s.Written() > 0 && len(d.logs) == 0 && !src.WithoutLog:
		return nil, nil, errors.New("there is no transaction log, without which a snapshot may not be complete: name ZooKeeper's dataLogDir with --log, or say --without-log if there is none")
	}
	written := s.Written()
	last, reached, err := f.replay(s, d.logs)
	if err != nil {
		return nil, nil, err
	}
	if reached < written && isTransaction(written) && len(d.logs) > 0 && !src.WithoutLog {
		return nil, nil, fmt.Errorf("the logs end at zxid 0x%x, but the server was at 0x%x when it had written the snapshot, and there may be transactions after it: name ZooKeeper's dataLogDir with --log, or say --without-log if there is no other log", reached, written)
	}
	if skipped > s.Zxid && isTransaction(skipped) {
		return nil, nil, fmt.Errorf("the snapshot of zxid 0x%x is damaged, and the transactions after the one before it end at zxid 0x%x: to go without what is between, move the damaged one away", skipped, s.Zxid)
	}
	deleted, err := s.Finish()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", cmp.Or(last, f.Snapshot), err)
	}
	if len(deleted) > 0 {
		f.note("%d ephemeral znodes of sessions that do not exist were deleted, as ZooKeeper does when it starts; the first is %s", len(deleted), deleted[0])
	}
	if err := f.describe(src, s); err != nil {
		return nil, nil, err
	}
	done()
	again, err := src.list()
	if err != nil {
		return nil, nil, err
	}
	if !slices.Equal(again.snapshots, d.snapshots) || !slices.Equal(again.logs, d.logs) {
		return nil, nil, fmt.Errorf("the files in %s have changed meanwhile: stop ZooKeeper first", src.Data)
	}
	return s, f, nil
}

// snapshot reads the newest snapshot that is not damaged, nil if there is no file. skipped is the
// zxid of the newest one that is damaged.
func (f *Found) snapshot(all []file) (s *zkdata.State, skipped int64, err error) {
	var why error
	for i, x := range slices.Backward(all) {
		if len(all)-i > maxSnapshots {
			break
		}
		if s, err = readSnapshot(x); err == nil {
			f.Snapshot = x.path
			return s, skipped, nil
		}
		if !errors.Is(err, zkdata.ErrDamaged) {
			return nil, 0, err
		}
		f.note("%v: the snapshot before it was taken, as ZooKeeper does", err)
		why, skipped = cmp.Or(why, err), max(skipped, x.zxid)
	}
	if why != nil {
		why = fmt.Errorf("no snapshot can be read: %w", why)
	}
	return nil, 0, why
}

func readSnapshot(x file) (*zkdata.State, error) {
	in, err := os.Open(x.path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	r, err := zkdata.Uncompressed(filepath.Base(x.path), in)
	var s *zkdata.State
	if err == nil {
		s, err = zkdata.ReadSnapshot(r, x.zxid)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.path, err)
	}
	return s, nil
}

// replay applies the transactions after the snapshot. last is the file of the last one, and reached the
// highest zxid that was read, which may be before the snapshot.
func (f *Found) replay(s *zkdata.State, logs []file) (last string, reached int64, err error) {
	from := s.Zxid
	// The first file that may have one of them is the last that begins at or before it.
	first := 0
	for i, x := range logs {
		if x.zxid <= from {
			first = i
		}
	}
	logs = logs[first:]
	repeated := 0
	for i, x := range logs {
		err := readLog(x.path, func(l *zkdata.Log) error {
			for {
				t, offset, err := l.Next()
				if err == io.EOF {
					if l.Torn > 0 {
						f.note("%s: the last %d bytes are a transaction that was not written completely, which no client got an answer to", x.path, l.Torn)
					}
					return nil
				}
				if err != nil {
					return err
				}
				reached = max(reached, t.Zxid)
				if t.Zxid <= from && f.Transactions == 0 {
					continue
				}
				switch {
				case t.Zxid <= s.Zxid:
					repeated++
				case !follows(s.Zxid, t.Zxid, f.Snapshot == "" && f.Transactions == 0):
					return fmt.Errorf("%w at offset %d: transactions are missing: zxid 0x%x comes after 0x%x", zkdata.ErrDamaged, offset, t.Zxid, s.Zxid)
				}
				if err := s.Apply(t); err != nil {
					return fmt.Errorf("%w at offset %d: zxid 0x%x: %v", zkdata.ErrDamaged, offset, t.Zxid, err)
				}
				f.Transactions++
			}
		})
		if err == io.EOF && i == len(logs)-1 {
			f.note("%s is empty: ZooKeeper was stopped before it wrote the first transaction", x.path)
			err = nil
		} else if err == io.EOF {
			err = fmt.Errorf("%w: it is empty, and is not the last log", zkdata.ErrDamaged)
		}
		if err != nil {
			return "", 0, fmt.Errorf("%s: %w", x.path, err)
		}
		last = x.path
	}
	if repeated > 0 {
		f.note("%d transactions were in the log a second time", repeated)
	}
	return last, reached, nil
}

func readLog(path string, read func(*zkdata.Log) error) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	l, err := zkdata.NewLog(in)
	if err != nil {
		return err
	}
	return read(l)
}

// isTransaction reports whether a transaction has this zxid. A new leader begins at one that none has, and may write a
// snapshot there (DataTree.deserializeZxidDigest).
func isTransaction(zxid int64) bool { return zxid&math.MaxUint32 != 0 }

// follows reports whether no transaction can be missing between two zxids: the second one is the
// next, or the first one of a new leader. Before the very first transaction, there was no leader or
// one.
func follows(last, next int64, first bool) bool {
	leader := next>>32 > last>>32 && next&math.MaxUint32 == 1
	return next == last+1 || leader && (!first || next>>32 == 1)
}

// describe fills in what is in the state.
func (f *Found) describe(src Source, s *zkdata.State) error {
	path := filepath.Join(src.Data, versionDir, "currentEpoch")
	b, err := os.ReadFile(path)
	if err == nil {
		if f.Epoch, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil || f.Epoch < 0 {
			return fmt.Errorf("%s: it has no number of an epoch", path)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.Zxid, f.Znodes, f.Sessions = s.Zxid, s.Len(), len(s.Sessions)
	for _, n := range s.All() {
		switch s.Kind(n) {
		case zkdata.Ephemeral:
			f.Ephemerals++
		case zkdata.Container:
			f.Containers++
		case zkdata.TTL:
			f.TTLs++
		}
	}
	compared, wrong := s.Digests()
	if f.Digests = compared; wrong != 0 {
		f.note("after the transaction of zxid 0x%x, ZooKeeper has noted another digest of the tree than the one that its snapshot and its log lead to", wrong)
	}
	return nil
}
