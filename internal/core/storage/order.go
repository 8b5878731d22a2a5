package storage

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// orderedLog has every store accept the same writes, those that raft-wal accepts: entries
// are stored only at the end of the log, without a gap, and ranges are deleted only at the
// beginning or at the end. raft-boltdb and Raft's store in memory would replace an entry,
// leave a gap or make a hole without a word, so that a fault would show with raft-wal only.
//
// Only one of its methods that write may be called at a time.
type orderedLog struct{ raft.LogStore }

func (s orderedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s orderedLog) StoreLogs(logs []*raft.Log) error {
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	for i, l := range logs {
		if l.Index != last+1 && (i > 0 || last > 0) { // an empty log may begin anywhere
			return fmt.Errorf("entry %d cannot be stored after entry %d", l.Index, last)
		}
		last = l.Index
	}
	return s.LogStore.StoreLogs(logs)
}

// DeleteRange deletes what there is of a range.
func (s orderedLog) DeleteRange(first, last uint64) error {
	begin, err := s.FirstIndex()
	if err != nil {
		return err
	}
	end, err := s.LastIndex()
	if err != nil {
		return err
	}
	if first > begin && last < end && first <= last {
		return fmt.Errorf("entries %d to %d cannot be deleted from the middle of %d to %d", first, last, begin, end)
	}
	first, last = max(first, begin), min(last, end)
	if end == 0 || first > last {
		return nil
	}
	return s.LogStore.DeleteRange(first, last)
}
