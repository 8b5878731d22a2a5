// Package wake has what goroutines wait for each other with. For testing/synctest such a wait is durable.
package wake

import "time"

// A Signal wakes the one goroutine that receives from it. Raise never blocks:
// several raises before a receive count as one.
type Signal chan struct{}

// NewSignal returns a signal that was not raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise wakes the receiver: at once if it waits, otherwise when it next receives.
func (s Signal) Raise() { Offer(s, struct{}{}) }

// Offer sends v if it need not wait for that, and reports whether it has.
func Offer[T any](c chan<- T, v T) bool {
	select {
	case c <- v:
		return true
	default:
		return false
	}
}

// Closed reports whether c, over which nothing is sent, is closed. A nil channel is not.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Broadcast wakes all goroutines that wait for it. The lock of the value that it is part of guards it.
type Broadcast struct{ c chan struct{} }

// Wait returns a channel that is closed by the next Raise.
func (b *Broadcast) Wait() <-chan struct{} {
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// Raise wakes all goroutines that wait.
func (b *Broadcast) Raise() {
	if b.c != nil {
		close(b.c)
		b.c = nil
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

// TryTake takes the turn if it is free, and reports whether it has.
func (t Turn) TryTake() bool { return Offer(t, struct{}{}) }

// TakeWithin takes the turn if it gets free within d, and reports whether it has.
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
