package storage

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// supersededLog returns the ends of the whole log if it does not lead up to the newest
// snapshot, else 0. Such a snapshot supersedes the log: it came from the leader, and a crash kept the member from
// deleting the log (Raft's paper, section 7); or this member has led, and crashed before its disk had what it had applied.
func supersededLog(path string, log raft.LogStore, newest *raft.SnapshotMeta) (first, last uint64, err error) {
	if newest == nil {
		return 0, 0, nil
	}
	err = guard(path, func() error {
		if first, err = log.FirstIndex(); err != nil {
			return err
		}
		if last, err = log.LastIndex(); err != nil {
			return err
		}
		var l raft.Log
		// An entry that cannot be read is left for verifyLog to report.
		if first > newest.Index || last >= newest.Index && (log.GetLog(newest.Index, &l) != nil || l.Term == newest.Term) {
			first, last = 0, 0
		}
		return nil
	})
	return first, last, err
}

// verifyStore reads everything that the store of disk in the data directory dir holds:
// every entry of the log, which must continue the snapshot without a gap, and the
// term and the vote, which must not be older than the entries. It calls each with the
// entries after the snapshot. newest and machine are the newest snapshot and its
// state; both are nil if there is none.
func verifyStore(disk diskStore, dir string, store raftStore, newest *raft.SnapshotMeta, machine *fsm.Machine, each func(*raft.Log) error) error {
	last, term, err := verifyLog(disk.logPath(dir), checksumLog{store}, newest, machine, each)
	if err != nil {
		return err
	}
	unused := last == 0 && newest == nil
	return verifyTerm(disk.stablePath(dir), &voteStore{StableStore: checksumStable{store}}, term, unused)
}

// verifyLog is verifyStore for the entries of the log. It returns the index of its last entry, and the term
// of the newest entry in log and snapshot; 0 stands for none.
func verifyLog(path string, log checksumLog, newest *raft.SnapshotMeta, machine *fsm.Machine, each func(*raft.Log) error) (last, term uint64, err error) {
	err = guard(path, func() error {
		first, err := log.FirstIndex()
		if err != nil {
			return err
		}
		if last, err = log.LastIndex(); err != nil {
			return err
		}
		var end, applied uint64 // the snapshot's last entry, and the last one that changed its state
		if newest != nil {
			end, applied = newest.Index, machine.Index()
		}
		if first > end+1 {
			return damaged(path, "the log starts at entry %d, but the newest snapshot ends at %d", first, end)
		}
		for i := max(first, 1); i <= last; i++ {
			var l raft.Log
			if err := log.GetLog(i, &l); err != nil {
				return damaged(path, "log entry %d: %w", i, err)
			}
			if l.Term < term {
				return damaged(path, "log entry %d has term %d after term %d", i, l.Term, term)
			}
			if term = l.Term; newest != nil && (i <= end && term > newest.Term || i >= end && term < newest.Term) {
				return damaged(path, "log entry %d has term %d, but the newest snapshot ends at %d in term %d", i, term, end, newest.Term)
			}
			switch l.Type {
			case raft.LogCommand:
				if _, _, err := fsm.OpenEntry(l.Data); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
				if i > applied && i <= end {
					return damaged(path, "the newest snapshot ends at %d, but does not have entry %d", end, i)
				}
			case raft.LogNoop, raft.LogBarrier, raft.LogConfiguration:
			default:
				return fmt.Errorf("%s: log entry %d is of unknown type %d", path, i, l.Type)
			}
			if i > end {
				if err := each(&l); err != nil {
					return fmt.Errorf("%s: log entry %d: %w", path, i, err)
				}
			}
		}
		if newest != nil {
			term = max(term, newest.Term)
		}
		return nil
	})
	return last, term, err
}

// verifyTerm verifies the term and the vote in the store at path. The newest entry is of
// the given term. unused says that there is neither an entry nor a snapshot.
func verifyTerm(path string, stable *voteStore, term uint64, unused bool) error {
	return guard(path, func() error {
		current, err := stableUint64(stable, TermKey)
		if err != nil {
			return damaged(path, "%w", err)
		}
		voted, _, mark, err := stable.read()
		if err != nil && !missing(err) {
			return damaged(path, "%w", err)
		}
		if _, err := stableUint64(stable, rejoiningKey); err != nil {
			return damaged(path, "%w", err)
		}
		switch {
		case current < term || current < voted:
			return damaged(path, "its term is %d, but it has entries of %d and a vote in %d", current, term, voted)
		case unused && voted > 0 && mark == votedInUse:
			// Without a vote, or with one that is marked as unused, it is a member that has
			// learned the term of the cluster that it is being added to, and perhaps
			// voted there, and has not stored an entry yet.
			return damaged(path, "the log is empty, but it has voted in term %d", voted)
		}
		return nil
	})
}
