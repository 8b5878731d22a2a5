package cluster

import "sync"

// leaderInfo describes the leader, as far as this member knows.
type leaderInfo struct {
	id        uint64 // 0 if none is known
	addr      string
	changed   chan struct{} // closed when id or addr changes
	suspended chan struct{} // closed when commands waiting for the leader must be given up
}

// knownLeader holds the current leaderInfo. Its methods are safe for concurrent use;
// only service.run changes it.
type knownLeader struct {
	mu  sync.Mutex
	now leaderInfo
}

func newKnownLeader() *knownLeader {
	return &knownLeader{now: leaderInfo{changed: make(chan struct{}), suspended: make(chan struct{})}}
}

func (k *knownLeader) get() leaderInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// set replaces the leader, and reports whether it has changed.
func (k *knownLeader) set(id uint64, addr string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now.id == id && k.now.addr == addr {
		return false
	}
	close(k.now.changed)
	k.now.id, k.now.addr, k.now.changed = id, addr, make(chan struct{})
	return true
}

// suspend makes proposer.run give up all commands that wait for the leader.
func (k *knownLeader) suspend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.now.suspended)
	k.now.suspended = make(chan struct{})
}
