package storage

import (
	"fmt"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/lockkeeper/lockkeeper/fsm"
)

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
			if err := (checksumLog{db}).GetLog(newest.Index, &l); err == nil && l.Term != newest.Term {
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
	log, stable := checksumLog{db}, &voteStore{StableStore: checksumStable{db}}
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
		current, err := stableUint64(stable, TermKey)
		if err != nil {
			return damaged("%w", err)
		}
		voted, err := stableUint64(stable, voteTermKey)
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
