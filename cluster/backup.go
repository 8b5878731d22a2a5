package cluster

import (
	"errors"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Restore makes cfg.Dir, which must be empty or not exist, the data directory of a server
// that begins with the state m: of a standalone server, or of a member of the new cluster
// that cfg.Peers lists. It does not start the server. m must not be used afterwards.
//
// Every member of a cluster is restored from the same state and with the same Peers and
// Observers. They then agree from the beginning, as if they had all taken the same
// snapshot of one log. Their zxids continue far above that of m (see [fsm.Machine.Restart]).
func Restore(cfg Config, m *fsm.Machine) error {
	first := cfg.first()
	if len(first) == 0 {
		return errors.New("cluster: a server that joins a cluster gets its state from there")
	}
	// A member that has received the snapshot has an empty entry for its last one. If that were entry 1, the member would send
	// it, as a leader, to an empty member in place of the snapshot.
	index, term := max(m.Index(), 1)+1, max(m.Term(), 1)
	if err := m.Restart(index, fsm.Members(storage.Configuration(first))); err != nil {
		return err
	}
	return storage.Make(cfg.Dir, cfg.LogStore, cfg.ID, cfg.Log, raftLogger(cfg.Log), func(s *storage.Storage) error {
		if err := s.Stable.SetUint64([]byte(storage.TermKey), term); err != nil {
			return err
		}
		trans := newLoneTransport(raft.ServerAddress(first[0].Addr)) // only asked to encode addresses
		sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, index, term, storage.Configuration(first), index, trans)
		if err != nil {
			return err
		}
		if err := m.Snapshot().Write(sink); err != nil {
			sink.Cancel()
			return err
		}
		return sink.Close()
	})
}
