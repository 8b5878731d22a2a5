package peer

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Gate rejects Raft's messages and heartbeats until this member is in a cluster.
type Gate struct{ of atomic.Uint64 }

// Lift opens the gate for the other members of a cluster.
func (g *Gate) Lift(of storage.ClusterID) { g.of.Store(uint64(of)) }

// Lifted reports whether this member is in a cluster.
func (g *Gate) Lifted() bool { return g.Cluster() != 0 }

// Cluster returns the cluster that this member is in; 0 if the gate has not been lifted.
func (g *Gate) Cluster() storage.ClusterID { return storage.ClusterID(g.of.Load()) }
