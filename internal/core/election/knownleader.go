package election

import (
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Leader describes the leader, as far as this member knows.
type Leader struct {
	ID        uint64 // 0 if none is known
	Addr      string
	Changed   <-chan struct{} // closed when ID or Addr changes
	Suspended <-chan struct{} // closed when commands waiting for the leader must be given up
}

// KnownLeader holds who leads, for those that wait for the leader or for another one. Its methods are safe for concurrent use.
type KnownLeader struct {
	// ReadyTerm is the term in which this member leads, once all entries of earlier terms are applied here; 0 otherwise.
	ReadyTerm atomic.Uint64

	mu                 sync.Mutex
	id                 uint64
	addr               string
	changed, suspended wake.Broadcast
}

func (k *KnownLeader) Get() Leader {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Leader{k.id, k.addr, k.changed.Wait(), k.suspended.Wait()}
}

// Set replaces the leader, and reports whether it has changed.
func (k *KnownLeader) Set(id uint64, addr string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.id == id && k.addr == addr {
		return false
	}
	k.id, k.addr = id, addr
	k.changed.Raise()
	return true
}

// Suspend has those give up who wait for the leader.
func (k *KnownLeader) Suspend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.suspended.Raise()
}
