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
	all map[place]uint64 // the index of the entry that has removed a member, the last time
	// The members were changed in a part of the log that this process has not applied, since it has got a snapshot
	// instead. This is the index of the last such change; 0 if there is none.
	unseen uint64
}

// place is where a member was. With the same id at another address it was another server.
type place struct {
	id   uint64
	addr string
}

func newRemovals() *removals { return &removals{all: map[place]uint64{}} }

// note is told which members there were before an entry was applied, and which there are now.
func (r *removals) note(was, is map[uint64]string, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, addr := range was {
		if _, ok := is[id]; !ok {
			r.all[place{id, addr}] = index
		}
	}
}

// skip is told that this process begins with a snapshot, or has got one, in which the entry at index is the last one that
// changed the members. Who was a member before, and was removed, is not known.
func (r *removals) skip(index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unseen = max(r.unseen, index)
}

// after reports whether the member x was removed after the entry at index, or may have been.
func (r *removals) after(x proto.Peer, index uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unseen > index || r.all[place{x.ID, x.Addr}] > index
}

// memberAddresses returns the addresses of the members by id.
func memberAddresses(replica *fsm.Replica) map[uint64]string {
	all := map[uint64]string{}
	replica.View(func(v *fsm.View) {
		for id := uint64(1); id <= maxID; id++ {
			if x, ok := v.Member(id); ok {
				all[id] = x.Addr
			}
		}
	})
	return all
}
