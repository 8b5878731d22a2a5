package cluster

import "time"

// A signal wakes the one goroutine that receives from it. raise never blocks:
// several raises before a receive count as one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// A turn is a lock that may be held for long, as during a connection attempt or a
// disk write. Unlike waiting for a sync.Mutex, waiting for a turn does not stop the
// virtual time of testing/synctest.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take() { t <- struct{}{} }

// tryTake takes the turn if it is free, and reports whether it did.
func (t turn) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeWithin takes the turn if it is free within d, and reports whether it did.
func (t turn) takeWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case t <- struct{}{}:
		return true
	case <-late.C:
		return false
	}
}

func (t turn) give() { <-t }
