package election

import (
	"sync"
	"sync/atomic"
)

// Leader describes the leader, as far as this member knows.
type Leader struct {
	ID        uint64 // 0 if none is known
	Addr      string
	Changed   chan struct{} // closed when ID or Addr changes
	Suspended chan struct{} // closed when commands waiting for the leader must be given up
}

// KnownLeader holds who leads, for those that wait for the leader or for another one. Its methods are safe for concurrent use.
type KnownLeader struct {
	// Begun is the term in which this member leads, once all entries of earlier terms are applied here; 0 otherwise.
	Begun atomic.Uint64

	mu  sync.Mutex
	now Leader
}

// NewKnownLeader returns one that knows no leader.
func NewKnownLeader() *KnownLeader {
	return &KnownLeader{now: Leader{Changed: make(chan struct{}), Suspended: make(chan struct{})}}
}

func (k *KnownLeader) Get() Leader {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// Set replaces the leader, and reports whether it has changed.
func (k *KnownLeader) Set(id uint64, addr string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now.ID == id && k.now.Addr == addr {
		return false
	}
	close(k.now.Changed)
	k.now.ID, k.now.Addr, k.now.Changed = id, addr, make(chan struct{})
	return true
}

// Suspend has those give up who wait for the leader.
func (k *KnownLeader) Suspend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.now.Suspended)
	k.now.Suspended = make(chan struct{})
}
