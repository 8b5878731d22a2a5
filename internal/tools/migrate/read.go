// Package migrate moves the whole state between ZooKeeper's data directory and lockkeeper's: znodes
// with all of their metadata, and sessions with their passwords, so that clients go on with the locks
// that they hold. Package zkdata has the formats of ZooKeeper's files.
package migrate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Source says which data of ZooKeeper to read.
type Source struct {
	Data string // ZooKeeper's dataDir
	Log  string // its dataLogDir; empty if it is the same
	// WithoutLog accepts a snapshot that no transaction log reaches, which may lack transactions.
	WithoutLog bool
	// WithoutPadding accepts a log that ends without the zeros that ZooKeeper allocates, which may be an incomplete copy.
	WithoutPadding bool
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

	// maxEarlier is of how many logs before the first that is read the end is looked at.
	maxEarlier = 100
)

// file is a snapshot or a log.
type file struct {
	path string
	zxid int64 // of the last transaction in a snapshot, or the first in a log
	size int64
	time time.Time // of the last change
}

// files returns the snapshots or logs in a directory, in order of their zxids (Util.sortDataDir). As in
// ZooKeeper, they may be symbolic links. strangers are files with names that ZooKeeper gives to none, such as log.1.bak,
// but reads as snapshots or logs (Util.getZxidFromName).
func files(dir, prefix string) (own, strangers []file, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
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
			return nil, nil, fmt.Errorf("%v", err) // not ErrNotExist, which is about dir
		}
		if !info.Mode().IsRegular() {
			return nil, nil, fmt.Errorf("%s: it is no regular file", path)
		}
		x := file{path, zxid, info.Size(), info.ModTime()}
		name := fmt.Sprintf("%s.%x", prefix, zxid)
		if e.Name() == name || prefix == snapshotPrefix && (e.Name() == name+".gz" || e.Name() == name+".snappy") {
			own = append(own, x)
		} else {
			strangers = append(strangers, x)
		}
	}
	slices.SortStableFunc(own, func(a, b file) int { return cmp.Compare(a.zxid, b.zxid) })
	return own, strangers, nil
}

// directories is what is in the directories of a Source.
type directories struct{ snapshots, strangeSnapshots, logs, strangeLogs []file }

// dirs returns the directories that ZooKeeper has its files in, which may be the same.
func (src *Source) dirs() (snapshots, logs string) {
	return filepath.Join(src.Data, versionDir), filepath.Join(cmp.Or(src.Log, src.Data), versionDir)
}

func (src *Source) list() (d directories, err error) {
	dir, logDir := src.dirs()
	if d.snapshots, d.strangeSnapshots, err = files(dir, snapshotPrefix); errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%s is no dataDir of ZooKeeper: it has no %s", src.Data, versionDir)
	} else if err != nil {
		return d, err
	}
	if d.logs, d.strangeLogs, err = files(logDir, logPrefix); errors.Is(err, fs.ErrNotExist) {
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
	if logs, strangers, err := files(dir, logPrefix); err != nil {
		return err
	} else if logs = append(logs, strangers...); len(logs) > 0 {
		return fmt.Errorf("%s: a log in ZooKeeper's dataDir, although it has a dataLogDir: put all logs into one of them, or name the right ones", logs[0].path)
	}
	if snapshots, strangers, err := files(logDir, snapshotPrefix); err != nil {
		return err
	} else if snapshots = append(snapshots, strangers...); len(snapshots) > 0 {
		return fmt.Errorf("%s: a snapshot in ZooKeeper's dataLogDir: put all snapshots into the dataDir, or name the right ones", snapshots[0].path)
	}
	return nil
}

// Read reads the state that a ZooKeeper had when it was stopped: its newest snapshot, and
// the transactions after that, each once. It is an error if transactions are missing or may be, if files cannot be of one
// server, if what is there is damaged other than by a crash, or if the files change meanwhile. Errors name the file and
// the offset.
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
	for _, x := range d.strangeSnapshots {
		if s == nil || x.zxid >= s.Zxid { // ZooKeeper would take it
			if err := f.leaveOut(x, d.snapshots); err != nil {
				return nil, nil, err
			}
		}
	}
	switch {
	case s == nil && len(d.logs)+len(d.strangeLogs) == 0:
		return nil, nil, fmt.Errorf("%s has neither a snapshot nor a transaction log", filepath.Join(src.Data, versionDir))
	case s == nil:
		s = zkdata.NewState() // releases before 3.5 do not begin with a snapshot
		f.note("there is no snapshot: all transactions from the first one on were applied")
	case s.Written() > 0 && len(d.logs)+len(d.strangeLogs) == 0 && !src.WithoutLog:
		return nil, nil, errors.New("there is no transaction log, without which a snapshot may not be complete: name ZooKeeper's dataLogDir with --log, or say --without-log if there is none")
	}
	written := s.Written()
	last, reached, err := f.replay(s, d.logs, d.strangeLogs, src.WithoutPadding)
	if err != nil {
		return nil, nil, err
	}
	if reached < written && isTransaction(written) && len(d.logs) > 0 && !src.WithoutLog {
		return nil, nil, fmt.Errorf("the logs end at zxid 0x%x, but the server was at 0x%x when it had written the snapshot, and there may be transactions after it: name ZooKeeper's dataLogDir with --log, or say --without-log if there is no other log", reached, written)
	}
	if skipped > s.Zxid && isTransaction(skipped) {
		return nil, nil, fmt.Errorf("the snapshot of zxid 0x%x is damaged, and the transactions after the one before it end at zxid 0x%x: to go without what is between, move the damaged one out of the directory", skipped, s.Zxid)
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
	if !reflect.DeepEqual(again, d) {
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

// leaveOut notes that a file is left out whose name is none of ZooKeeper's, if all that it has is also in one of its own
// files. Otherwise nobody can know which one is right.
func (f *Found) leaveOut(x file, own []file) error {
	for _, o := range own {
		if o.zxid != x.zxid {
			continue
		}
		if same, err := beginsWith(o.path, x.path); err != nil {
			return err
		} else if same {
			f.note("%s was left out: it is a copy of %s, or of its beginning. ZooKeeper reads both when it starts", x.path, filepath.Base(o.path))
			return nil
		}
	}
	return fmt.Errorf("%s: ZooKeeper gives its files no such name, but reads it when it starts, and it is no copy of a file that is there: move it out of the directory, or rename it if it is the server's own", x.path)
}

// beginsWith reports whether a file begins with all that is in another one, which may have zeros after it.
func beginsWith(path, beginning string) (bool, error) {
	a, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	b, err := os.ReadFile(beginning)
	return bytes.HasPrefix(a, bytes.TrimRight(b, "\x00")), err
}

// notOfOneServer is the error for two logs that have the same zxids. ZooKeeper begins a log after the last transaction of the
// one before it.
func notOfOneServer(later string, begins int64, earlier string, last int64) error {
	return fmt.Errorf("%s begins at zxid 0x%x, but %s goes on to zxid 0x%x: they are no logs of one server, or one of them is from before a truncation. Keep only the files of one server, or move away the wrong one", later, begins, earlier, last)
}

// unread looks at what is not read: the logs before the first of those that are, and strangers. None of these may have what
// comes after that.
func (f *Found) unread(earlier, strangers, logs []file) error {
	for _, x := range strangers {
		if len(logs) > 0 && x.zxid < logs[0].zxid {
			earlier = append(earlier, x)
		} else if err := f.leaveOut(x, logs); err != nil {
			return err
		}
	}
	for _, x := range earlier {
		in, err := os.Open(x.path)
		if err != nil {
			return err
		}
		last, known, err := zkdata.LastZxid(in, x.size)
		in.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", x.path, err)
		}
		if known && last >= logs[0].zxid {
			return notOfOneServer(logs[0].path, logs[0].zxid, x.path, last)
		}
	}
	return nil
}

// replay applies the transactions after the snapshot. last is the file of the last one, and reached the
// highest zxid that was read, which may be before the snapshot.
func (f *Found) replay(s *zkdata.State, logs, strangers []file, withoutPadding bool) (last string, reached int64, err error) {
	from, written := s.Zxid, s.Written()
	// The first file that may have one of them is the last that begins at or before it.
	first := 0
	for i, x := range logs {
		if x.zxid <= from {
			first = i
		}
	}
	if err := f.unread(slices.Clone(logs[max(0, first-maxEarlier):first]), strangers, logs[first:]); err != nil {
		return "", 0, err
	}
	logs = logs[first:]
	repeated := 0
	// cut says of a log that it may lack transactions at its end. If the next one goes on with the next zxid, it does not.
	cut := ""
	var refused error // because of that
	judge := func() error {
		if cut == "" {
			return nil
		}
		if !withoutPadding {
			refused = fmt.Errorf("%s, without the zeros that ZooKeeper allocates for what comes next: this is probably an incomplete copy, without transactions that clients got answers to. Compare it with the original; if that ends there too, as with preAllocSize=0 or after a truncation for a new leader, --without-padding goes on", cut)
			return refused
		}
		f.note("%s, without the zeros that ZooKeeper allocates for what comes next: if it is an incomplete copy, transactions are missing", cut)
		cut = ""
		return nil
	}
	for i, x := range logs {
		before := reached // by the logs before this one
		begun := false
		err := readLog(x.path, func(l *zkdata.Log) error {
			at := int64(0) // zxid of the last transaction here
			for {
				t, offset, err := l.Next()
				if err == io.EOF {
					switch {
					case l.Cut && at == written && at != 0 && l.Torn == 0: // was truncated, and then came the snapshot
					case l.Cut:
						cut = fmt.Sprintf("%s ends after zxid 0x%x and %d bytes of the next transaction", x.path, at, l.Torn)
					case l.Torn > 0:
						f.note("%s: after zxid 0x%x are %d bytes of a transaction that is not complete. If the server was stopped while it wrote that, no client got an answer to it. If this is an incomplete copy, more may be missing", x.path, at, l.Torn)
					}
					return nil
				}
				if err != nil {
					return err
				}
				if !begun && i > 0 && t.Zxid <= before {
					return notOfOneServer("it", t.Zxid, logs[i-1].path, before)
				}
				begun, at = true, t.Zxid
				reached = max(reached, t.Zxid)
				switch {
				case t.Zxid <= from && f.Transactions == 0:
					continue
				case t.Zxid <= s.Zxid:
					repeated++
					continue
				case !follows(s.Zxid, t.Zxid, f.Snapshot == "" && f.Transactions == 0):
					return fmt.Errorf("%w at offset %d: transactions are missing: zxid 0x%x comes after 0x%x", zkdata.ErrDamaged, offset, t.Zxid, s.Zxid)
				case t.Zxid == s.Zxid+1:
					cut = ""
				}
				if err := judge(); err != nil {
					return err
				}
				if err := s.Apply(t); err != nil {
					return fmt.Errorf("%w at offset %d: zxid 0x%x: %v", zkdata.ErrDamaged, offset, t.Zxid, err)
				}
				f.Transactions++
			}
		})
		if err == io.EOF && i == len(logs)-1 {
			if err = judge(); err == nil {
				cut = fmt.Sprintf("%s is empty", x.path)
			}
		} else if err == io.EOF {
			err = fmt.Errorf("%w: it is empty, and is not the last log", zkdata.ErrDamaged)
		}
		if refused != nil {
			return "", 0, refused
		}
		if err != nil {
			return "", 0, fmt.Errorf("%s: %w", x.path, err)
		}
		last = x.path
	}
	if repeated > 0 {
		f.note("%d transactions were in the logs a second time, and were left out", repeated)
	}
	return last, reached, judge()
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
	var err error
	if f.Epoch, err = readEpoch(path); errors.As(err, new(*fs.PathError)) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w. ZooKeeper does not start with it either. Use the directory of another server; if this is the only one, move the file away: the epoch is then that of the last zxid, %d, as for a ZooKeeper that has no such file", err, s.Zxid>>32)
	}
	f.Zxid, f.Znodes, f.Sessions = s.Zxid, s.Len(), len(s.Sessions)
	for _, n := range s.All() {
		switch s.Kind(n) {
		case znode.Ephemeral:
			f.Ephemerals++
		case znode.Container:
			f.Containers++
		case znode.TTL:
			f.TTLs++
		}
	}
	compared, wrong := s.Digests()
	if f.Digests = compared; wrong != 0 {
		f.note("after the transaction of zxid 0x%x, ZooKeeper has noted another digest of the tree than the one that its snapshot and its log lead to", wrong)
	}
	return nil
}

// readEpoch reads an epoch. If there is no file, it is 0.
func readEpoch(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil || epoch < 0 {
		return 0, fmt.Errorf("%s has %q, and should have the server's epoch", path, text)
	}
	return epoch, nil
}
