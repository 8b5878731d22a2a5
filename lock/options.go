package lock

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

var (
	// ErrBusy is returned by the Try methods if another one has the lock or waits for it.
	ErrBusy = errors.New("lock: held by another")
	// ErrLost is returned, wrapped with the reason, if a lock was lost before it was
	// unlocked. What was done under it may overlap with what another holder does.
	ErrLost = errors.New("lock: lost")
	// ErrUnlocked is returned for a lock that is not held any more because it was unlocked.
	ErrUnlocked = errors.New("lock: unlocked")
	// ErrDeadlock is returned for a lock that the caller's own context already holds, since
	// waiting for it would never end. See [Reentrant].
	ErrDeadlock = errors.New("lock: the context holds this lock already")
	// ErrNoCandidate is returned by [Election.Leader] if nobody leads.
	ErrNoCandidate = errors.New("lock: no candidate")
	// ErrTimeoutUnknown is returned if nothing tells for how long a session outlives its last
	// request: there is neither [WithDialer] nor [WithSessionTimeout], or the Dialer is not
	// that of the connection.
	ErrTimeoutUnknown = errors.New("lock: the session timeout is not known (see WithDialer and WithSessionTimeout)")
)

// Option changes a lock. The zero Option changes nothing.
type Option struct{ apply func(*options) }

type options struct {
	wrong     error // what is wrong with the arguments, or nil
	acl       []zk.ACL
	data      []byte
	timeout   time.Duration
	reentrant bool
	dialer    *Dialer
}

func newOptions(list []Option) options {
	o := options{acl: zk.WorldACL(zk.PermAll), data: []byte{}}
	for _, option := range list {
		if option.apply != nil {
			option.apply(&o)
		}
	}
	return o
}

// refuse notes that the arguments are wrong. The first reason counts.
func (o *options) refuse(why string) {
	if o.wrong == nil {
		o.wrong = errors.New(why)
	}
}

// WithDialer gives the lock the [Dialer] of its connection, from which it knows at any time
// which session timeout the server has granted. Every lock needs this option or
// [WithSessionTimeout], and fails with [ErrTimeoutUnknown] without them. With a nil Dialer,
// every attempt to lock fails.
func WithDialer(d *Dialer) Option {
	return Option{func(o *options) {
		if o.dialer = d; d == nil {
			o.refuse("WithDialer: the Dialer is nil")
		}
	}}
}

// WithSessionTimeout says which session timeout the server grants to the connection. That is
// the one that was asked for, unless it is outside the server's limits: by default, these
// are 2 and 20 of its ticks, and a tick is 2 s. The value may be less than what is granted, in
// which case a lock counts as lost earlier than necessary. It must not be more, or two clients
// may believe that they hold the lock. So prefer [WithDialer]; with both options, the smaller
// timeout counts. If the value is not above 0, every attempt to lock fails.
func WithSessionTimeout(d time.Duration) Option {
	return Option{func(o *options) {
		if o.timeout = d; d <= 0 {
			o.refuse(fmt.Sprintf("WithSessionTimeout: %v is not above 0", d))
		}
	}}
}

// WithACL sets the ACL of the znodes that the lock creates. By default everybody has all
// permissions. The contenders of a lock must be able to read each other's znodes.
func WithACL(acl ...zk.ACL) Option {
	acl = slices.Clone(acl)
	return Option{func(o *options) { o.acl = acl }}
}

// WithData sets the data of the contender's znode: something that tells people, or
// [Election.Leader], who it is. By default it is empty.
func WithData(data []byte) Option {
	data = append([]byte{}, data...)
	return Option{func(o *options) { o.data = data }}
}

// Reentrant lets a context that holds a lock take it again. A context holds a lock if it
// comes from [Held.Context] of the same lock, or is derived from one that does. Locking it
// again returns at once, with another Held of the same token, and the lock is released when
// each of them is unlocked. Without Reentrant, such a call returns [ErrDeadlock].
func Reentrant() Option { return Option{func(o *options) { o.reentrant = true }} }

// sessionTimeout returns the timeout of a session, or 0 if it is not known.
func (o *options) sessionTimeout(session int64) time.Duration {
	if o.dialer == nil {
		return o.timeout
	}
	granted := o.dialer.granted(session)
	if o.timeout > 0 {
		granted = min(granted, o.timeout)
	}
	return granted
}
