package engine

import "github.com/hashicorp/raft"

// WatchLeader returns a channel that receives something when Leader may return another one, until stop is called.
func (e *Engine) WatchLeader() (news <-chan struct{}, stop func()) {
	raised := make(chan struct{}, 1)
	o := raft.NewObserver(nil, false, func(o *raft.Observation) bool { // called with a lock of Raft's held
		if _, ok := o.Data.(raft.LeaderObservation); ok {
			select {
			case raised <- struct{}{}:
			default:
			}
		}
		return false
	})
	e.raft.RegisterObserver(o)
	return raised, func() { e.raft.DeregisterObserver(o) }
}
