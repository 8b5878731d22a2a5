package lockkeeper

import (
	"errors"
	"io"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
)

// WriteSnapshot writes the state that this server has applied, while it goes on serving.
// [Restore] makes a data directory from it. A server of the cluster that lags, or has no
// contact with a majority, writes an older state than others have.
//
// The snapshot has all data, whatever the ACLs say, the digests of passwords in ACLs, and
// the passwords of sessions, with which anybody could resume them.
//
// WriteSnapshot fails before the server is first ready, because it may not have applied what
// it has stored. If the server has stopped serving for good, it returns what [Server.Err]
// returns. An error of w is returned as it is. After an error, what was written is no complete
// snapshot, and Restore refuses it.
func (s *Server) WriteSnapshot(w io.Writer) error {
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case <-s.ready:
	default:
		return s.notReady(errors.New("lockkeeper: the server is not ready"))
	}
	state, err := s.replica.State()
	if err != nil {
		return err
	}
	return state.Write(w)
}

// Restore makes cfg.DataDir, which must be empty or not exist, the data directory of a server
// that begins with the state of a snapshot, which [Server.WriteSnapshot] or the command
// lockkeeper snapshot save has written. It opens no port; [Open] then starts the server. If
// the snapshot is damaged, or there is another error, the directory is as before, unless a
// server has been started on it just before, or its disk failed at the very end. No server starts
// on it meanwhile, or after a crash: then call Restore again.
//
// Without Peers the server is standalone; with Peers it is a member of that new cluster.
// Restore the same snapshot with the same Peers for each of its members, before any of them is
// started; members whose states differ form no cluster. It does not matter which cluster or server the snapshot is
// from: the new cluster gets an id of its own when all its members have been started (see
// [Server.FormCluster] if one is lost). It and a running cluster with another id refuse each
// other's members, so a server that is started with its old data does no harm to the restored
// state. But stop the servers that the snapshot is from: while they run, they give out the same locks.
//
// The sessions of the snapshot live, with their ephemeral znodes, and their clients can
// resume them. Those whose clients do not come back within their timeout expire. Zxids, and
// so fencing tokens, are higher than all that the old servers have given out, unless these had
// more than 65,536 leaders after the snapshot. The same goes for servers that were restored from
// the same snapshot before (see docs/operations.md).
//
// The error is a [*ConfigError] if a field of cfg is wrong; other errors name the offset in the
// snapshot, or the file or directory, that they are about.
func Restore(cfg Config, snapshot io.Reader) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	switch {
	case cfg.DataDir == "":
		return badField("DataDir", "a snapshot is restored into a directory")
	case cfg.Join != "":
		return badField("Join", "a server that joins a cluster gets its state from there, not from a snapshot")
	case len(cfg.Peers) == 0 && cfg.PeerAddr != "":
		return badField("PeerAddr", "a server that waits until it is added to a cluster gets its state from there, not from a snapshot")
	}
	m, err := fsm.ReadSnapshot(snapshot)
	if err != nil {
		return own(err)
	}
	return own(cluster.Restore(cfg.cluster(), m))
}
