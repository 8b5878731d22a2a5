package lock

import (
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

var (
	// ErrBusy is returned by the Try methods if another client has the lock.
	ErrBusy = errors.New("lock: held by another")
	// ErrLost is returned, wrapped with the reason, if a lock was lost before it was
	// unlocked. What was done under it may overlap with what another holder does.
	ErrLost = errors.New("lock: lost")
	// ErrUnlocked is returned for a lock that is not held any more because it was unlocked.
	ErrUnlocked = errors.New("lock: unlocked")
	// ErrDeadlock is returned for a lock that the caller's own context already holds, since
	// waiting for it would never end. See [Reentrant].
	ErrDeadlock = errors.New("lock: the context holds this lock already")
	// ErrNoLeader is returned by [Election.Leader] if nobody leads.
	ErrNoLeader = errors.New("lock: no leader")
)

// DefaultSessionTimeout is what [WithSessionTimeout] is by default: the shortest session
// timeout that a server with ZooKeeper's default settings grants.
const DefaultSessionTimeout = 4 * time.Second

// Option changes a lock.
type Option func(*options)

type options struct {
	acl       []zk.ACL
	data      []byte
	timeout   time.Duration
	reentrant bool
}

func newOptions(list []Option) options {
	o := options{acl: zk.WorldACL(zk.PermAll), data: []byte{}, timeout: DefaultSessionTimeout}
	for _, option := range list {
		option(&o)
	}
	return o
}

// WithSessionTimeout says which session timeout the server has granted to the connection.
// go-zookeeper does not report it: it is the one that was asked for, unless that is outside
// the server's limits, which are 2 and 20 ticks by default, and a tick is 2 s. The value may be
// less than what was granted, in which case a lock counts as lost earlier than necessary. It
// must not be more. The default is [DefaultSessionTimeout], which is right or less unless the
// server has been configured with a shorter tick.
func WithSessionTimeout(d time.Duration) Option {
	if d <= 0 {
		panic("lock: the session timeout must be positive")
	}
	return func(o *options) { o.timeout = d }
}

// WithACL sets the ACL of the znodes that the lock creates. By default everybody has all
// permissions. The contenders of a lock must be able to read each other's znodes.
func WithACL(acl ...zk.ACL) Option { return func(o *options) { o.acl = acl } }

// WithData sets the data of the contender's znode: something that tells people, or
// [Election.Leader], who it is. By default it is empty.
func WithData(data []byte) Option { return func(o *options) { o.data = data } }

// Reentrant lets a context that holds a lock take it again. A context holds a lock if it
// comes from [Held.Context] of the same lock, or is derived from one that does. Locking it
// again returns at once, with another Held of the same token, and the lock is released when
// each of them is unlocked. Without Reentrant, such a call returns [ErrDeadlock].
func Reentrant() Option { return func(o *options) { o.reentrant = true } }

// belief is how long after it was sent an answered request keeps a lock.
func (o *options) belief() time.Duration { return o.timeout * 2 / 3 }

// interval is how often a holder asks its server. ZooKeeper's followers report to the leader
// twice in a tick which sessions they have heard from, so the leader may believe that a
// session was last heard of half a tick and one interval before an answered request was sent.
// Half a tick is at most a quarter of the shortest session timeout; an interval of a twelfth
// adds up with it to the third that a holder does not count on.
func (o *options) interval() time.Duration { return o.timeout / 12 }
