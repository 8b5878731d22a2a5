package cluster

import (
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// removals knows which members were removed in the part of the log that this process has applied. A server that
// joins sends its request again if the answer is late. If it was added meanwhile, and an operator has removed it, the
// second request must not add it once more, also if another member leads by then. Its methods are safe for concurrent
// use.
type removals struct {
	mu  sync.Mutex
	all map[uint64]removal // by id: the last one
}

type removal struct {
	addr  string // of the member
	index uint64 // of the entry that has removed it
}

func newRemovals() *removals { return &removals{all: map[uint64]removal{}} }

// note is told which members there were before an entry was applied, or a snapshot in which it is the last one, and
// which there are now. Where in a snapshot's part of the log a member was removed is not known; the end is on the safe
// side.
func (r *removals) note(was, is map[uint64]string, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, addr := range was {
		if _, ok := is[id]; !ok {
			r.all[id] = removal{addr, index}
		}
	}
}

// after reports whether the member x was removed after the entry at index. A member with the same id and another
// address was another server.
func (r *removals) after(x proto.Peer, index uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.all[x.ID]
	return ok && last.addr == x.Addr && last.index > index
}

// memberAddresses returns the addresses of the members by id, and the index of the last entry applied.
func memberAddresses(replica *fsm.Replica) (all map[uint64]string, index uint64) {
	all = map[uint64]string{}
	replica.View(func(v *fsm.View) {
		index = v.Index()
		for id := uint64(1); id <= maxID; id++ {
			if x, ok := v.Member(id); ok {
				all[id] = x.Addr
			}
		}
	})
	return all, index
}
