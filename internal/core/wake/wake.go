// Package wake has what goroutines wait for each other with. testing/synctest sees that they wait.
package wake

import "time"

// A Signal wakes the one goroutine that receives from it. Raise never blocks:
// several raises before a receive count as one.
type Signal chan struct{}

// NewSignal returns a signal that was not raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise wakes the receiver, now or when it receives.
func (s Signal) Raise() { Offer(s, struct{}{}) }

// Offer sends v unless it would have to wait, and reports whether it did.
func Offer[T any](c chan<- T, v T) bool {
	select {
	case c <- v:
		return true
	default:
		return false
	}
}

// News wakes all goroutines that wait for something at once. The lock of what it is part of guards it.
type News struct{ c chan struct{} }

// Wait returns a channel that is closed by the next Raise.
func (n *News) Wait() <-chan struct{} {
	if n.c == nil {
		n.c = make(chan struct{})
	}
	return n.c
}

// Raise wakes all that wait.
func (n *News) Raise() {
	if n.c != nil {
		close(n.c)
		n.c = nil
	}
}

// A Turn is a lock that may be held for long, as during a connection attempt or a
// disk write. Unlike waiting for a sync.Mutex, waiting for a turn does not stop the
// virtual time of testing/synctest.
type Turn chan struct{}

// NewTurn returns a free turn.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits until the turn is free, and takes it.
func (t Turn) Take() { t <- struct{}{} }

// TryTake takes the turn if it is free, and reports whether it did.
func (t Turn) TryTake() bool { return Offer(t, struct{}{}) }

// TakeWithin takes the turn if it is free within d, and reports whether it did.
func (t Turn) TakeWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case t <- struct{}{}:
		return true
	case <-late.C:
		return false
	}
}

// Give makes the turn free.
func (t Turn) Give() { <-t }
