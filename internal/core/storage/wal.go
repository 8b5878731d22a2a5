package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// The files of walStore, below the data directory.
const (
	walDir    = "raft/wal"
	walStable = "raft/wal/stable.db"
)

const (
	// segmentsKey is the key of the list of segments, a types.PersistentState in
	// JSON.
	segmentsKey = "Segments"

	// reachesKey is the key of the index that the log had reached when the list of
	// segments was stored, or when the store was closed.
	reachesKey = "Reaches"

	// segmentSize is how many bytes of disk a segment is given when it is made. Its
	// last batch may go beyond.
	segmentSize = 8 << 20

	// entryOverhead and batchOverhead are at least how many bytes an entry and a batch take
	// beside their content, with what is written when a segment is full.
	entryOverhead = 96
	batchOverhead = 128
)

// walStore is the [diskStore] that keeps the log in the segments of raft-wal, each
// write with one sync. A bbolt database beside them has the list of segments, the
// term and the vote. A lock on that file shows that the data
// directory is in use.
type walStore struct {
	segmentSize int
	log         hclog.Logger
}

func (walStore) name() LogStore { return WAL }

func (walStore) files(dir string) []string {
	files := []string{walStable}
	found, err := os.ReadDir(filepath.Join(dir, walDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return append(files, walDir) // whatever is done to the files fails on it
	}
	for _, f := range found {
		if strings.HasSuffix(f.Name(), ".wal") {
			files = append(files, filepath.Join(walDir, f.Name()))
		}
	}
	return files
}

func (walStore) logPath(dir string) string    { return filepath.Join(dir, walDir) }
func (walStore) stablePath(dir string) string { return filepath.Join(dir, walStable) }

func (walStore) create(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, walDir), dirMode); err != nil {
		return err
	}
	return createDatabase(filepath.Join(dir, walStable))
}

// verify checks every page of the database, and all segments.
func (w walStore) verify(dir string) error {
	path := filepath.Join(dir, walStable)
	return withoutOthers(path, func() error { return w.verifyAlone(dir, path) })
}

func (w walStore) verifyAlone(dir, path string) error {
	keys := raftKeys(segmentsKey, reachesKey)
	err := checkPages(path, func(bucket, key, value []byte) error {
		if string(bucket) == "logs" {
			return errors.New("it has entries of a log")
		}
		return keys(bucket, key, value)
	})
	if err != nil {
		return err
	}
	db, err := openBolt(path, true)
	if err != nil {
		return err
	}
	state, reached, err := loadSegments(checksumStable{db})
	if db.Close(); err != nil {
		return damaged(path, "%w", err)
	}
	if len(state.Segments) == 0 {
		return noEntries(path, w.files(dir)[1:], dir)
	}
	_, err = readSegments(dir, state, reached, false)
	return err
}

// noEntries verifies that segments are empty, because the list of segments at path is.
func noEntries(path string, segments []string, dir string) error {
	for _, name := range segments {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if len(bytes.Trim(b, "\x00")) > 0 {
			return damaged(path, "it does not have %s in its list", filepath.Base(name))
		}
	}
	return nil
}

// loadSegments returns the list of segments, and the index that the log has reached
// at least. The list is empty in a new directory.
func loadSegments(stable raft.StableStore) (state types.PersistentState, reached uint64, err error) {
	b, err := stable.Get([]byte(segmentsKey))
	if err != nil && !errors.Is(err, errNoKey) {
		return state, 0, err
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &state); err != nil {
			return state, 0, err
		}
	}
	last := len(state.Segments) - 1
	for i, s := range state.Segments {
		switch {
		case s.Codec != wal.CodecBinaryV1 || s.BaseIndex == 0 || s.MinIndex < s.BaseIndex || s.SealTime.IsZero() != (i == last),
			i > 0 && s.BaseIndex != state.Segments[i-1].MaxIndex+1:
			return state, 0, errors.New("the list of segments")
		}
	}
	reached, err = stableUint64(stable, reachesKey)
	return state, reached, err
}

// foundSegment is a segment of the log, and what is in its file.
type foundSegment struct {
	types.SegmentInfo
	walSegment
	path    string
	content []byte // the whole file
	torn    int    // bytes to clear behind the end
}

// readSegments reads and verifies all segments. It returns their content if keep is true.
func readSegments(dir string, state types.PersistentState, reached uint64, keep bool) ([]foundSegment, error) {
	var list []foundSegment
	for _, info := range state.Segments {
		s, err := readSegment(dir, info)
		if err != nil {
			return nil, err
		}
		if !keep {
			s.content = nil
		}
		list = append(list, s)
		if last := info.BaseIndex + uint64(len(s.entries)) - 1; info.SealTime.IsZero() && last < reached {
			return nil, damaged(s.path, "it ends at entry %d, but had entry %d", last, reached)
		}
	}
	return list, nil
}

func readSegment(dir string, info types.SegmentInfo) (s foundSegment, err error) {
	s.SegmentInfo, s.path = info, filepath.Join(dir, walDir, segment.FileName(info))
	b, err := os.ReadFile(s.path)
	if err != nil {
		return s, err
	}
	s.content = b
	if len(b) < int(info.SizeLimit) {
		return s, damaged(s.path, "%d bytes of %d", len(b), info.SizeLimit)
	}
	if s.walSegment, err = parseSegment(b, info); err != nil {
		return s, damaged(s.path, "%w", err)
	}
	if info.SealTime.IsZero() {
		s.torn, err = tornTail(b, s.walSegment, info)
		if err != nil {
			return s, damaged(s.path, "%w", err)
		}
		return s, nil
	}
	if s.index == 0 || uint64(s.index) != info.IndexStart {
		return s, damaged(s.path, "it has no whole batch at offset %d", s.end)
	}
	if info.MaxIndex < info.BaseIndex || info.MaxIndex-info.BaseIndex >= uint64(len(s.entries)) {
		return s, damaged(s.path, "%d entries, should have %d to %d", len(s.entries), info.BaseIndex, info.MaxIndex)
	}
	return s, nil
}

// entryIndex returns the index of an entry, with its checksum; ok is whether content is one.
func entryIndex(content []byte) (index uint64, ok bool) {
	defer func() {
		if recover() != nil { // the codec expects whole entries
			ok = false
		}
	}()
	var l raft.Log
	if (&wal.BinaryCodec{}).Decode(content, &l) != nil {
		return 0, false
	}
	n := len(l.Extensions) - 4
	return l.Index, n >= 0 && entrySum(&l, l.Extensions[:n]) == binary.BigEndian.Uint32(l.Extensions[n:])
}

func (w walStore) open(dir string, readOnly bool) (raftStore, error) {
	path := filepath.Join(dir, walStable)
	db, err := openBolt(path, readOnly)
	if err != nil {
		return nil, err
	}
	stable := &latchedStore{StableStore: db}
	s := &walLog{StableStore: stable, db: db}
	err = guard(path, func() error {
		state, reached, err := loadSegments(checksumStable{stable})
		if err != nil {
			return damaged(path, "%w", err)
		}
		if readOnly {
			list, err := readSegments(dir, state, reached, true)
			s.LogStore = readOnlyLog{list: list}
			return err
		}
		s.files, err = newSegmentMaker(filepath.Join(dir, walDir), uint32(w.segmentSize), w.log)
		if err != nil {
			return err
		}
		s.meta = &walMeta{dir: dir, files: s.files, stable: checksumStable{stable}, reached: reached}
		if err := s.meta.mend(state); err != nil {
			return err
		}
		if len(state.Segments) == 0 {
			// raft-wal makes the first segment, and then deletes files that were not in
			// the list: also the first segment, if a crash had left a file of its name.
			for _, name := range w.files(dir)[1:] {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
		}
		s.wal, err = wal.Open(filepath.Join(dir, walDir), wal.WithMetaStore(s.meta), wal.WithSegmentSize(w.segmentSize),
			wal.WithSegmentFiler(segment.NewFiler(filepath.Join(dir, walDir), segmentFiles{walfs.New(), s.files})), wal.WithLogger(w.log))
		s.LogStore = s.wal
		s.files.opened = true
		return err
	})
	if err != nil {
		if s.files != nil {
			s.files.end()
			s.files.close()
		}
		db.Close()
		return nil, err
	}
	return s, nil
}

// walLog is a log in segments, with the term and the vote in a database.
type walLog struct {
	raft.LogStore
	raft.StableStore
	wal   *wal.WAL // this, meta and files are nil if the log is only read
	meta  *walMeta
	files *segmentMaker
	db    io.Closer
}

func (s *walLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *walLog) StoreLogs(logs []*raft.Log) error {
	if err := s.files.undeleted.Load(); err != nil {
		return fmt.Errorf("deleting an old segment: %w", *err)
	}
	bytes := batchOverhead
	for _, l := range logs {
		bytes += len(l.Data) + len(l.Extensions) + entryOverhead
	}
	err := s.files.ready(func() bool {
		last, err := s.LastIndex()
		return err != nil || last == 0 && logs[0].Index != s.meta.base.Load() || s.files.filled.Load()+int64(bytes) >= int64(s.files.size)
	})
	if err != nil {
		return err
	}
	err = s.LogStore.StoreLogs(logs)
	if errors.Is(err, wal.ErrSealed) && s.meta.fault != nil {
		return s.meta.fault // raft-wal could not make the next segment, and only logs why
	}
	if err == nil {
		s.files.wrote(bytes)
	}
	return err
}

// DeleteRange deletes entries. If these are the last ones, raft-wal begins a segment.
func (s *walLog) DeleteRange(first, last uint64) error {
	err := s.files.ready(func() bool {
		end, err := s.LastIndex()
		return err != nil || last >= end
	})
	if err != nil {
		return err
	}
	return s.LogStore.DeleteRange(first, last)
}

// GetLog hides entries that were deleted at the beginning of the last segment.
// raft-wal still finds those, until it is opened again. It closes a segment that is deleted
// although an entry there may just be being read.
func (s *walLog) GetLog(index uint64, l *raft.Log) error {
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	if index < first {
		return raft.ErrLogNotFound
	}
	if err = s.LogStore.GetLog(index, l); errors.Is(err, fs.ErrClosed) { // the entry was deleted meanwhile
		return s.GetLog(index, l)
	}
	return err
}

// Close stores which index the log has reached, so that later damage to its last
// batch cannot be taken for what a crash left.
func (s *walLog) Close() error {
	if s.wal == nil {
		return s.db.Close()
	}
	s.files.end() // raft-wal's Close waits for a segment that is being made
	last, err := s.wal.LastIndex()
	err = errors.Join(err, s.wal.Close())
	if err == nil {
		err = s.meta.reach(last)
	}
	return errors.Join(err, s.files.close(), s.db.Close())
}

// walMeta keeps the list of segments in the database. It implements [types.MetaStore].
type walMeta struct {
	dir     string
	files   *segmentMaker
	stable  checksumStable
	base    atomic.Uint64 // where the last segment begins
	reached uint64        // what is stored under reachesKey
	fault   error         // of the newest CommitState
}

// mend clears what the last crash left behind the end of the log, so that after the
// next crash only the write that it interrupts is there. If the last segment is
// already sealed, and only the list does not say so, mend adds a segment to the
// list; raft-wal would refuse to store anything.
func (m *walMeta) mend(state types.PersistentState) error {
	if len(state.Segments) == 0 {
		return nil
	}
	tail := &state.Segments[len(state.Segments)-1]
	found, err := readSegment(m.dir, *tail)
	if err != nil {
		return err
	}
	if found.torn > 0 {
		f, err := os.OpenFile(found.path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, found.torn), int64(found.end))
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	m.base.Store(tail.BaseIndex)
	m.files.filled.Store(int64(found.end))
	if found.index == 0 {
		return nil
	}
	now := time.Now()
	tail.SealTime, tail.MaxIndex, tail.IndexStart = now, tail.BaseIndex+uint64(len(found.entries))-1, uint64(found.index)
	next := tail.MaxIndex + 1
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: next, MinIndex: next, SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: now,
	})
	state.NextSegmentID++
	return m.CommitState(state)
}

func (m *walMeta) Load(string) (types.PersistentState, error) {
	state, _, err := loadSegments(m.stable)
	return state, err
}

// CommitState makes the file of a new segment before the list has the segment, so
// that a file in the list which is missing has been lost. (raft-wal makes it
// afterwards. It also makes a missing one again, even if that had entries.)
func (m *walMeta) CommitState(state types.PersistentState) (err error) {
	defer func() { m.fault = err }()
	tail := state.Segments[len(state.Segments)-1]
	if err := m.files.make(segment.FileName(tail), tail.SizeLimit); err != nil {
		return err
	}
	// The log may end before this segment now, and not where it had reached.
	if err := m.reach(min(m.reached, tail.BaseIndex-1)); err != nil {
		return err
	}
	b, err := json.Marshal(state)
	if err == nil {
		err = m.stable.Set([]byte(segmentsKey), b)
	}
	if err == nil {
		m.base.Store(tail.BaseIndex)
	}
	return err
}

func (m *walMeta) reach(index uint64) error {
	if index == m.reached {
		return nil
	}
	err := m.stable.SetUint64([]byte(reachesKey), index)
	if err == nil {
		m.reached = index
	}
	return err
}

// raft-wal does not use these, since Raft's term and vote are not stored through it.
func (*walMeta) GetStable([]byte) ([]byte, error) { return nil, errors.ErrUnsupported }
func (*walMeta) SetStable([]byte, []byte) error   { return errors.ErrUnsupported }
func (*walMeta) Close() error                     { return nil }

// readOnlyLog reads the entries of segments that were found whole.
type readOnlyLog struct {
	raft.LogStore // nil: nothing writes
	list          []foundSegment
}

func (l readOnlyLog) FirstIndex() (uint64, error) {
	if last, _ := l.LastIndex(); last == 0 {
		return 0, nil
	}
	return l.list[0].MinIndex, nil
}

func (l readOnlyLog) LastIndex() (uint64, error) {
	n := len(l.list)
	if n == 0 || n == 1 && len(l.list[0].entries) == 0 {
		return 0, nil
	}
	tail := l.list[n-1]
	return tail.BaseIndex + uint64(len(tail.entries)) - 1, nil
}

func (l readOnlyLog) GetLog(index uint64, entry *raft.Log) error {
	for _, s := range l.list {
		n := index - s.BaseIndex
		if index < s.MinIndex || n >= uint64(len(s.entries)) || s.MaxIndex > 0 && index > s.MaxIndex {
			continue
		}
		f := s.entries[n]
		return (&wal.BinaryCodec{}).Decode(s.content[f.at:f.at+f.size], entry)
	}
	return raft.ErrLogNotFound
}
