// Package fence keeps those who have lost a lock without knowing it from what the lock
// protects.
//
// A program that is paused for longer than its session timeout has lost its lock, and when
// it continues, it may write before it notices. So each holder passes its fencing token
// (Held.Token of package lock, or the czxid of the lock's znode) along with what it writes,
// and what is written to refuses a token that is smaller than one that it has seen.
//
// A [Checker] does that for something that one process protects, such as a server in front of
// a device. Where many processes write, the check belongs into what they share: a database
// compares tokens in the statement that writes, and files can have the token in their names.
// The examples, in example_test.go, show both.
//
// This package promises compatibility, as package lockkeeper explains.
package fence

import (
	"errors"
	"fmt"
	"sync"
)

var (
	// ErrStale is returned for a token that is smaller than one that was accepted before. Who
	// presents it has lost the lock.
	ErrStale = errors.New("fence: stale token")
	// ErrInvalid is returned for a number that no lock has as its token, since it is less than 1:
	// most likely, the caller has forgotten to set it.
	ErrInvalid = errors.New("fence: invalid token")
)

// Checker remembers the greatest token that it has accepted. The zero Checker accepts any that
// is valid.
// It must not be copied, and its methods may be called from any goroutine.
//
// It remembers only as long as the process lives. After a restart, it accepts stale tokens
// until a newer one has come, unless it begins with the greatest that was stored: see
// [NewChecker].
type Checker struct {
	mu      sync.Mutex
	highest int64
}

// NewChecker returns a Checker that has accepted a token already: the greatest with which
// something was stored, or 0 if nothing was.
func NewChecker(highest int64) *Checker { return &Checker{highest: max(0, highest)} }

// Do calls write if the token is neither stale nor invalid, and returns its error. Otherwise it
// returns [ErrStale] or [ErrInvalid]. A token is noted as accepted before write is called, even if write then fails. Calls of
// write do not overlap: a check that is not one step with the write would let a stale write
// follow a newer one.
func (c *Checker) Do(token int64, write func() error) error {
	if token < 1 {
		return fmt.Errorf("%w: %d", ErrInvalid, token)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if token < c.highest {
		return fmt.Errorf("%w: %#x, after %#x", ErrStale, token, c.highest)
	}
	c.highest = token
	return write()
}

// Check notes a token, or returns [ErrStale] or [ErrInvalid]. It is for resources that order what follows in
// the same way as the calls of Check; otherwise use Do.
func (c *Checker) Check(token int64) error {
	return c.Do(token, func() error { return nil })
}

// Highest returns the greatest token that was accepted, or 0.
func (c *Checker) Highest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.highest
}
