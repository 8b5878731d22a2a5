// Package storage keeps what one member of a Raft cluster must not forget: its
// log, its term and vote, and its snapshots, in a data directory or in memory.
//
// [Open] and [Check] verify all that a data directory holds before anything else
// reads it. What is written there carries checksums, and nothing is written
// after a write has failed.
package storage

import (
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ErrInUse says that another process has the data directory open.
var ErrInUse = errors.New("in use by another process")

// Storage is the storage of one member, as [Open] and [Memory.Open] return it.
type Storage struct {
	Log       raft.LogStore
	Stable    raft.StableStore // term and vote
	Snapshots raft.SnapshotStore
	Spool     func() (Spool, error) // returns an empty one

	// Name is the data directory, or "memory". Messages begin with it.
	Name string
	// Members is the newest configuration that was stored when the storage was
	// opened; it is empty if there was none.
	Members []proto.Peer

	// StoreIdentity is for [Storage.SetIdentity].
	StoreIdentity func(Identity) error

	identity atomic.Pointer[Identity]
	logOf    ClusterID    // the cluster that the log and the snapshots are of, as far as they say it
	state    *fsm.Machine // see TakeState
	close    func() error
}

// Close closes the files. Nothing may use the storage afterwards.
func (s *Storage) Close() error { return s.close() }

// TakeState returns the state of the newest snapshot, which verifying it has
// produced, so that it need not be read again. It does so only once, and returns
// nil afterwards, and if there is no snapshot.
func (s *Storage) TakeState() *fsm.Machine {
	state := s.state
	s.state = nil
	return state
}

// Empty reports whether the storage has neither a log nor a snapshot. A crash
// during Bootstrap can leave term 1 without an entry, and Empty removes it. A later
// term, or a vote, is of a cluster that this member takes part in: these are never
// forgotten.
func (s *Storage) Empty() (bool, error) {
	empty, err := s.noEntries()
	if err != nil || !empty {
		return false, err
	}
	term, err := s.Term()
	if err != nil || term != 1 {
		return true, err
	}
	if voted, err := stableUint64(s.Stable, voteTermKey); err != nil || voted > 0 {
		return true, err
	}
	return true, s.Stable.SetUint64([]byte(TermKey), 0)
}

func (s *Storage) noEntries() (bool, error) {
	last, err := s.Log.LastIndex()
	if err != nil || last > 0 {
		return false, err
	}
	snapshots, err := s.Snapshots.List()
	return err == nil && len(snapshots) == 0, err
}

// LastIndex returns the index of the last entry in the log or, if that is later, of the last one
// that the newest snapshot covers.
func (s *Storage) LastIndex() (uint64, error) {
	last, err := s.Log.LastIndex()
	if err != nil {
		return 0, err
	}
	newest, err := s.NewestSnapshot()
	return max(last, newest.Index), err
}

// Bootstrap stores the members of a new cluster as the first entry of the
// log. It does nothing if there is a log or a snapshot.
//
// It takes the place of raft.BootstrapCluster, which refuses a storage that has
// a term and no entry. A crash between those two writes leaves such a storage,
// and its cluster would never have a leader.
func (s *Storage) Bootstrap(first []proto.Peer) error {
	if empty, err := s.noEntries(); err != nil || !empty {
		return err
	}
	if term, err := s.Term(); err != nil {
		return err
	} else if err := s.Stable.SetUint64([]byte(TermKey), max(term, 1)); err != nil {
		return err
	}
	return s.Log.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(Configuration(first))})
}

// NewestSnapshot describes the newest snapshot; the result is zero if there is none.
func (s *Storage) NewestSnapshot() (raft.SnapshotMeta, error) {
	list, err := s.Snapshots.List()
	if err != nil || len(list) == 0 {
		return raft.SnapshotMeta{}, err
	}
	return *list[0], nil
}

// ReconcileLog makes the log agree with the newest snapshot, after the leader
// has sent that one. Raft does not do this: it keeps the log as it is, and goes
// on to believe that the log ends where it did before.
func (s *Storage) ReconcileLog() error {
	newest, err := s.NewestSnapshot()
	if err != nil {
		return err
	}
	return reconcileLog(s.Log, newest)
}

// reconcileLog makes log agree with the snapshot newest:
//
//   - If the log has the snapshot's last entry, all of the log stays: what
//     follows that entry may have been acknowledged (Raft's paper, section 7).
//   - If the log ends before that entry, all of it is deleted.
//   - If the log has another entry there, what it holds was never committed. The
//     entries before that one are deleted, since this member might send them to
//     others one day. The one at the snapshot's end is replaced by the leader's
//     (see transport.InstallSnapshot in package engine).
func reconcileLog(log raft.LogStore, newest raft.SnapshotMeta) error {
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil || first == 0 {
		return err
	}
	if last >= newest.Index {
		var l raft.Log
		if err := log.GetLog(newest.Index, &l); err == raft.ErrLogNotFound || err == nil && l.Term == newest.Term {
			return nil
		} else if err != nil {
			return err
		}
		last = newest.Index - 1
	}
	if first > last {
		return nil
	}
	return log.DeleteRange(first, last)
}
