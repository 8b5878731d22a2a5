package peer

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Gate keeps out all connections but those of KindAdmin until this member is in a cluster.
type Gate struct{ of atomic.Uint64 }

// Open opens the gate to the members of a cluster.
func (g *Gate) Open(of storage.ClusterID) { g.of.Store(uint64(of)) }

// IsOpen reports whether this member is in a cluster.
func (g *Gate) IsOpen() bool { return g.Cluster() != 0 }

// Cluster returns the cluster that this member is in; 0 if it is in none.
func (g *Gate) Cluster() storage.ClusterID { return storage.ClusterID(g.of.Load()) }
