package cluster

import (
	"errors"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
)

// Restore makes cfg.Dir, which must be empty or not exist, the data directory of a server
// that begins with the state m: of a standalone server, or of a member of the new cluster
// that cfg.Peers lists. It does not start the server. m must not be used afterwards.
//
// Every member of a cluster is restored from the same state and with the same Peers and
// Observers. They then agree from the beginning, as if they had all taken the same
// snapshot of one log. Their zxids continue far above that of m (see [fsm.Machine.Restart]).
func Restore(cfg Config, m *fsm.Machine) error {
	first := cfg.First()
	if len(first) == 0 {
		return errors.New("cluster: a server that joins a cluster gets its state from there")
	}
	return raftlog.Restore(cfg.Dir, cfg.LogStore, cfg.ID, first, m, cfg.Log)
}
