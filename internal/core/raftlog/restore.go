package raftlog

import (
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Restore makes dir, which must be empty or not exist, the data directory of the server with this id, which begins with the state m
// as one of the members in first, as if all had taken the same snapshot. m must not be used afterwards.
func Restore(dir string, kind storage.LogStore, id uint64, first []proto.Peer, m *fsm.Machine, log *slog.Logger) error {
	// A member that has received the snapshot has an empty entry for its last one. If that were entry 1, the member would send
	// it, as a leader, to an empty member in place of the snapshot.
	index, term := max(m.Index(), 1)+1, max(m.Term(), 1)
	members := storage.Configuration(first)
	if err := m.Restart(index, fsm.Members(members)); err != nil {
		return err
	}
	return storage.Make(dir, kind, id, log, Logger(log), func(s *storage.Storage) error {
		if err := s.Stable.SetUint64([]byte(storage.TermKey), term); err != nil {
			return err
		}
		_, trans := raft.NewInmemTransport("") // only asked to encode addresses
		sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, index, term, members, index, trans)
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
