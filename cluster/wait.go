package cluster

import "time"

// A signal wakes the one goroutine that receives from it. raise never blocks:
// several raises before a receive count as one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() { offer(s, struct{}{}) }

// offer sends v unless it would have to wait, and reports whether it did.
func offer[T any](c chan<- T, v T) bool {
	select {
	case c <- v:
		return true
	default:
		return false
	}
}

// news wakes all goroutines that wait for something at once. The lock of what it is part of guards it.
type news struct{ c chan struct{} }

// wait returns a channel that is closed by the next raise.
func (n *news) wait() <-chan struct{} {
	if n.c == nil {
		n.c = make(chan struct{})
	}
	return n.c
}

func (n *news) raise() {
	if n.c != nil {
		close(n.c)
		n.c = nil
	}
}

// A turn is a lock that may be held for long, as during a connection attempt or a
// disk write. Unlike waiting for a sync.Mutex, waiting for a turn does not stop the
// virtual time of testing/synctest.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take() { t <- struct{}{} }

// tryTake takes the turn if it is free, and reports whether it did.
func (t turn) tryTake() bool { return offer(t, struct{}{}) }

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
