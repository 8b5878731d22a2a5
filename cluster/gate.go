package cluster

import "sync/atomic"

// gate rejects Raft's messages and heartbeats until this member is in a cluster.
type gate struct{ of atomic.Uint64 }

// lift opens the gate for the other members of a cluster.
func (g *gate) lift(of ClusterID) { g.of.Store(uint64(of)) }

func (g *gate) lifted() bool { return g.cluster() != 0 }

// cluster returns the cluster that this member is in; 0 if the gate has not been lifted.
func (g *gate) cluster() ClusterID { return ClusterID(g.of.Load()) }
