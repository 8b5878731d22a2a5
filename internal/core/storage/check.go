package storage

import (
	"cmp"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// State describes a replicated state.
type State struct {
	// Cluster is the cluster that the state is from; 0 if it does not say so, as one that was
	// restored from a snapshot.
	Cluster  ClusterID `json:"cluster"`
	Zxid     int64     `json:"zxid"`
	Znodes   int       `json:"znodes"`
	Sessions int       `json:"sessions"`
	Digest   string    `json:"digest"`
}

func stateOf(m *fsm.Machine) State {
	return State{ClusterID(m.Cluster()), m.Zxid(), m.Tree().Len(), m.Sessions().Len(), fmt.Sprintf("%016x", m.Digest())}
}

// Report is what [Check] found.
type Report struct {
	ServerID uint64 `json:"serverId"`
	// Cluster is the cluster that the directory belongs to; 0 if it belongs to none yet.
	Cluster       ClusterID `json:"cluster"`
	LogStore      LogStore  `json:"logStore"`
	SnapshotIndex uint64    `json:"snapshotIndex"` // 0 without one
	FirstIndex    uint64    `json:"firstIndex"`    // of the log; 0 if it is empty
	LastIndex     uint64    `json:"lastIndex"`
	// Term is that of the last entry with commands; 0 if there was none. Of members that are stopped,
	// the one with the highest term, and of these the one with the highest LastIndex, has all that was
	// acknowledged.
	Term uint64 `json:"term"`
	State
}

// Check verifies the data directory of a server that is not running: the files
// of its log, the snapshots, every entry of the log, and the state that these
// lead to. It changes nothing. If the server is running, the error is [ErrInUse].
func Check(dir string) (*Report, error) {
	report, _, err := Load(dir)
	return report, err
}

// Load is [Check] that also returns the state. The state of a cluster's member includes all
// entries that it has stored, also those of which it does not know that they were committed.
func Load(dir string) (*Report, *fsm.Machine, error) {
	has, err := logStoreOf(dir)
	if err != nil {
		return nil, nil, err
	}
	disk, err := cmp.Or(has, LogStores[0]).disk(hclog.NewNullLogger())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}
	return verifyDirectory(disk, dir)
}

// verifyDirectory is Check for a directory with the store disk. It also returns the state.
func verifyDirectory(disk diskStore, dir string) (*Report, *fsm.Machine, error) {
	m, err := readMeta(dir)
	if err != nil {
		return nil, nil, err
	}
	if m == nil {
		return nil, nil, cmp.Or(nothingAt(dir), fmt.Errorf("%s is no data directory: it has no %s", dir, metaFile))
	}
	store, err := openAfterVerifying(disk, dir, true)
	if err != nil {
		return nil, nil, unlessChanged(err, dir, m.LogStore, m.ServerID, true)
	}
	defer store.Close()
	if m, err = metaOf(dir, m.LogStore, m.ServerID, true); err != nil {
		return nil, nil, err
	}
	newest, snapshot, err := verifySnapshots(dir, m.ServerID)
	if err != nil {
		return nil, nil, err
	}
	report := &Report{ServerID: m.ServerID, LogStore: disk.name()}
	if m.Agreed {
		report.Cluster = m.Cluster
	}
	machine := snapshot
	if newest == nil {
		machine = fsm.NewMachine()
	} else {
		report.SnapshotIndex = newest.Index
	}
	_, superseded, err := supersededLog(disk.logPath(dir), checksumLog{store}, newest)
	if err != nil {
		return nil, nil, err
	}
	if superseded == 0 {
		err = verifyStore(disk, dir, store, newest, snapshot, func(l *raft.Log) error { return apply(machine, l) })
		if err != nil {
			return nil, nil, err
		}
		if report.FirstIndex, err = store.FirstIndex(); err != nil {
			return nil, nil, err
		}
		if report.LastIndex, err = store.LastIndex(); err != nil {
			return nil, nil, err
		}
	}
	if err := machine.Check(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}
	if err := m.Check(ClusterID(machine.Cluster())); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}
	report.State, report.Term = stateOf(machine), machine.Term()
	return report, machine, nil
}

// apply applies an entry of the log.
func apply(machine *fsm.Machine, l *raft.Log) error {
	switch l.Type {
	case raft.LogCommand:
		return machine.Apply(l.Index, l.Term, l.Data, nil)
	case raft.LogConfiguration:
		if members := fsm.Members(raft.DecodeConfiguration(l.Data)); members != nil {
			machine.SetMembers(l.Index, members)
		}
	}
	return nil
}
