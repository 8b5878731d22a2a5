package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// kind is what a contender contends for.
type kind struct {
	mark   string
	shared bool
	slots  int // of leases: how many may be held; 0 for locks
}

// ahead returns which contender the one at index me waits for, or -1 if it waits for none.
func (k kind) ahead(line []locks.Entry, me int) int {
	switch {
	case k.slots > 0:
		return me - k.slots
	case !k.shared:
		return me - 1
	}
	for i := me - 1; i >= 0; i-- {
		if !line[i].Shared {
			return i
		}
	}
	return -1
}

// keeper owns one znode of a queue, from before its creation until it is known to be gone.
// Its goroutine is started by queue.lock. It is stopped by Held.Unlock, or when the context
// of queue.lock ends; queue.wait waits for it.
type keeper struct {
	q       *queue
	kind    kind
	patient bool

	settled chan struct{} // closed when failed is set or the lock is held
	stop    chan struct{} // closed when the znode is to be deleted
	lost    chan struct{}
	granted chan struct{} // has room for one: the server has granted a timeout anew
	gone    chan struct{} // closed when the goroutine ends
	life    context.Context
	end     context.CancelCauseFunc // ends life when the lock is lost or unlocked

	knowledge

	// Set before settled is closed.
	failed  error
	token   int64
	session int64
	path    string // of the znode

	standing
	removed error // why the znode could not be deleted; set before gone is closed
}

// knowledge is what a keeper's goroutine knows of its znode. No other goroutine uses it.
type knowledge struct {
	id      string
	name    string    // of the znode; empty if it does not exist or is not known
	unknown bool      // a create was not answered, and the znode has not been looked for yet
	unsure  bool      // a create was not answered at some time
	sent    time.Time // when the last request was sent that proves that the session existed
}

// standing is how far a keeper has come with its lock, and until when it may trust in it. mu
// guards it.
type standing struct {
	mu     sync.Mutex
	state  state
	behind string // the name of the znode that it has waited for last
	refs   int    // how many Helds have not been unlocked
	why    error
	proved time.Time   // when the last request was sent that was answered
	timer  *time.Timer // of the deadline
}

type state int

const (
	contending state = iota
	held
	releasing
	over // given up or lost
)

func (k *keeper) run() {
	q := k.q
	own, err := k.acquire()
	if err == nil && k.hold() {
		k.watchOver(own)
	}
	// A caller that waits for an error waits until the znode is gone, so that it does not
	// stand in the way of the caller's next attempt.
	k.removed = k.remove()
	if q.dialer != nil {
		q.dialer.leave(k)
	}
	if err != nil {
		k.failed = err
		close(k.settled)
	}
	q.mu.Lock()
	delete(q.keepers, k)
	q.mu.Unlock()
	close(k.gone)
}

var errGivenUp = errors.New("given up")

func (k *keeper) stopped() bool {
	select {
	case <-k.stop:
		return true
	default:
		return false
	}
}

// acquire contends until the znode is the first, and returns a watch on it.
func (k *keeper) acquire() (own <-chan zk.Event, err error) {
	var again retries
	for !k.stopped() {
		var wait <-chan zk.Event
		if own, wait, err = k.step(); own != nil {
			return own, nil
		}
		switch {
		case errors.Is(err, zk.ErrSessionExpired):
			k.startAnew()
			fallthrough
		case err != nil:
			if err := again.pause(k.q.conn, err, k.stop); err != nil {
				return nil, err
			}
			continue
		}
		again = retries{}
		if wait == nil {
			continue
		}
		k.await(wait)
	}
	return nil, errGivenUp
}

// await waits for an event, or until the keeper is given up.
func (k *keeper) await(event <-chan zk.Event) {
	var relist <-chan time.Time
	if k.kind.slots > 0 {
		// A watch for children can be lost in a reconnect: go-zookeeper sets it again with the
		// zxid of the last reply, which may be one that came after the reconnect. Watches for
		// deletion cannot. Of each semaphore, only one contender at a time waits like this.
		timer := time.NewTimer(k.q.sessionTimeout(k.q.conn.SessionID()))
		defer timer.Stop()
		relist = timer.C
	}
	select {
	case ev := <-event:
		if errors.Is(ev.Err, zk.ErrSessionExpired) {
			k.startAnew()
		}
	case <-relist:
	case <-k.stop:
	}
}

// startAnew forgets a znode whose session has expired: it is deleted, or will be in a
// moment.
func (k *keeper) startAnew() {
	k.id, k.name, k.unknown, k.unsure = newID(), "", false, false
	k.session, k.sent = 0, time.Time{}
}

// step contends once. It returns a watch on the keeper's own znode if that is the first, or a
// watch to wait for. If it returns neither, it must be called again.
func (k *keeper) step() (own, wait <-chan zk.Event, err error) {
	q := k.q
	if k.name == "" && !k.unknown {
		if !k.patient {
			if line, err := k.list(); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return nil, nil, err
			} else if k.kind.ahead(line, len(line)) >= 0 {
				return nil, nil, ErrBusy
			}
		}
		if err := k.create(); err != nil {
			return nil, nil, err
		}
	}
	if k.unknown {
		// The server that the client has moved to may not have the znode yet.
		if _, err := q.conn.Sync(q.path); err != nil {
			return nil, nil, err
		}
	}
	line, err := k.list()
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, nil, err
	}
	me := k.find(line)
	k.unknown = false
	if me < 0 {
		k.name, k.session = "", 0 // it has been deleted, or was never created
		return nil, nil, nil
	}
	k.name = line[me].Name
	if !q.knowsTimeout() {
		return nil, nil, fmt.Errorf("%w: the Dialer serves another connection", ErrTimeoutUnknown)
	}
	i := k.kind.ahead(line, me)
	if i < 0 {
		own, err = k.confirm()
		return own, nil, err
	}
	if !k.patient {
		return nil, nil, ErrBusy
	}
	if k.kind.slots > 0 {
		wait, err = k.watchLeases()
	} else {
		wait, err = q.watch(line[i].Name)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil, nil
	}
	if err == nil {
		// The watch may belong to a later session than the znode, and then it would not tell that
		// the znode is gone.
		if ours, err := k.ours(); !ours {
			return nil, nil, err
		}
	}
	k.mu.Lock()
	k.behind = line[i].Name
	k.mu.Unlock()
	return nil, wait, err
}

// ours reports whether the znode belongs to the session that the connection has now. If not, it
// deletes the znode and starts anew.
func (k *keeper) ours() (bool, error) {
	q := k.q
	if k.session == 0 {
		_, stat, err := q.conn.Get(q.at(k.name))
		if errors.Is(err, zk.ErrNoNode) {
			k.name = ""
			return false, nil
		}
		if err != nil {
			return false, err
		}
		k.session = stat.EphemeralOwner
	}
	if q.conn.SessionID() == k.session {
		return true, nil
	}
	// The znode belongs to an earlier session. The server may not know yet that that session has
	// ended.
	if err := q.conn.Delete(q.at(k.name), -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return false, err
	}
	k.startAnew()
	return false, nil
}

// create creates the znode, and its parents if need be. If no answer comes, it sets unknown
// and unsure, so that the znode is looked for.
func (k *keeper) create() error {
	q := k.q
	for {
		sent, session := time.Now(), q.conn.SessionID()
		at, err := q.conn.Create(q.at("_c_"+k.id+k.kind.mark), q.data, zk.FlagEphemeralSequential, q.acl)
		switch {
		case err == nil:
			k.name, k.sent = at[strings.LastIndexByte(at, '/')+1:], sent
			if q.conn.SessionID() == session { // it never gets an earlier one back
				k.session = session
			}
			if len(locks.Queue([]string{k.name}, k.kind.slots > 0)) == 0 { // so it would be made again and again
				return fmt.Errorf("the server has given the znode the name %q, which has no sequence number", k.name)
			}
			return nil
		case errors.Is(err, zk.ErrNoNode):
			if err := q.makePath(q.path); err != nil {
				return err
			}
			if k.stopped() {
				return errGivenUp
			}
		case transient(err), errors.Is(err, zk.ErrClosing):
			k.unknown, k.unsure, k.sent = true, true, time.Time{}
			return err
		default:
			return err
		}
	}
}

func (k *keeper) list() ([]locks.Entry, error) {
	children, _, err := k.q.conn.Children(k.q.path)
	if err != nil {
		return nil, err
	}
	return locks.Queue(children, k.kind.slots > 0), nil
}

// find returns the index of the keeper's own znode, or -1. If creates whose replies were lost
// have made several, find returns the first, so that the keeper never waits for itself.
func (k *keeper) find(line []locks.Entry) int {
	return slices.IndexFunc(line, func(c locks.Entry) bool {
		return strings.HasPrefix(c.Name, "_c_"+k.id) || k.name != "" && c.Name == k.name
	})
}

// watchLeases returns a watch for a change of the leases.
func (k *keeper) watchLeases() (<-chan zk.Event, error) {
	q := k.q
	if ch := q.watching(q.path); ch != nil {
		// It was set before the list was read, so it fires for changes since.
		return ch, nil
	}
	children, _, ch, err := q.conn.ChildrenW(q.path)
	if err != nil {
		return nil, err
	}
	q.keepWatch(q.path, ch)
	line := locks.Queue(children, true)
	if me := k.find(line); me < 0 || k.kind.ahead(line, me) < 0 {
		return nil, nil // there has been a change already
	}
	return ch, nil
}

// confirm makes sure that the session of the znode, which is the first, still exists. It sets
// token and session, and returns a watch on the znode, or nothing if it is not the holder.
func (k *keeper) confirm() (own <-chan zk.Event, err error) {
	q := k.q
	_, stat, own, err := q.conn.GetW(q.at(k.name))
	if errors.Is(err, zk.ErrNoNode) {
		k.name, k.session = "", 0
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k.token, k.session, k.path = stat.Czxid, stat.EphemeralOwner, q.at(k.name)
	if ours, err := k.ours(); !ours {
		return nil, err
	}
	if time.Since(k.sent) > k.interval() {
		if err := k.ask(); err != nil {
			return nil, err
		}
		if q.conn.SessionID() != k.session {
			k.startAnew()
			return nil, nil
		}
	}
	return own, nil
}

// ask sends a sync, which is answered only if the leader has seen it, and notes when it
// was sent. go-zookeeper may send it later than it is noted, but not earlier. The caller
// must check that the session is still the same: if the connection has got another one, the
// answer proves nothing about this one. It never gets an earlier one back.
func (k *keeper) ask() error {
	sent := time.Now()
	_, err := k.q.conn.Sync(k.q.path)
	if err == nil && k.q.conn.SessionID() == k.session {
		k.sent = sent
	}
	return err
}

// giveUp makes the keeper stop contending. It returns false if it holds the lock already or
// has failed.
func (k *keeper) giveUp() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.settled:
		return false
	default:
	}
	k.state = over
	close(k.stop)
	return true
}

// hold makes the keeper a holder. It returns false if it was given up.
func (k *keeper) hold() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == over {
		return false
	}
	k.state, k.refs = held, 1
	k.proved = k.sent
	if d := k.q.dialer; d != nil {
		d.join(k)
	}
	k.timer = time.AfterFunc(k.left(), func() { k.check() })
	k.checkLocked() // the last answer may have come too late
	close(k.settled)
	return true
}

// again is queue.lock for a context that already holds the lock. It returns nothing if the
// lock has been unlocked.
func (k *keeper) again(kind kind) (*Held, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.why != nil && !k.stopped():
		return nil, k.why
	case k.state != held:
		return nil, nil
	case !k.q.reentrant, k.kind.shared && !kind.shared: // readers would wait for each other
		return nil, ErrDeadlock
	}
	k.refs++
	return &Held{k: k}, nil
}

// check returns how much longer the lock is held without another answer. If that is not
// longer than 0, the lock is lost.
func (k *keeper) check() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.checkLocked()
}

// checkLocked is check for a caller that holds mu.
func (k *keeper) checkLocked() time.Duration {
	if k.state != held {
		return 0
	}
	left := k.left()
	if left <= 0 {
		k.loseLocked(fmt.Errorf("%w: no answer to a request sent in the last %v", ErrLost, k.belief().Round(time.Millisecond)))
		return 0
	}
	return left
}

// releaseLocked makes the keeper delete the znode. The caller holds mu and the last reference.
func (k *keeper) releaseLocked() {
	close(k.stop)
	if k.state == held {
		k.state = releasing
		k.timer.Stop()
		k.end(ErrUnlocked)
	}
}

// lose ends the hold.
func (k *keeper) lose(why string, cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := fmt.Errorf("%w: %s", ErrLost, why)
	if cause != nil {
		err = fmt.Errorf("%w: %s: %w", ErrLost, why, cause)
	}
	k.loseLocked(err)
}

func (k *keeper) loseLocked(why error) {
	if k.state != held && k.state != releasing {
		return
	}
	k.why = why
	if k.state == held { // otherwise the caller has stopped what the lock protects
		k.timer.Stop()
		close(k.lost)
		k.end(why)
	}
	k.state = over
}

// rearm sets the timer anew when the deadline has changed.
func (k *keeper) rearm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == held {
		k.timer.Reset(k.left())
	}
}

// regranted is called when the server has granted a session timeout anew. If it is shorter,
// the next request may be due before the time that was planned.
func (k *keeper) regranted() {
	k.rearm()
	select {
	case k.granted <- struct{}{}:
	default: // it knows already
	}
}

// left returns how long it is until the deadline, which is closer if the client has
// reconnected and was granted a shorter session timeout. The caller holds mu.
func (k *keeper) left() time.Duration { return time.Until(k.proved.Add(k.belief())) }

// belief is how long after it was sent an answered request keeps a lock.
func (k *keeper) belief() time.Duration { return timing.Believed(k.q.sessionTimeout(k.session)) }

// interval is how often a holder asks its server. A lockkeeper's leader counts the timeout from
// an answered sync or create. ZooKeeper's followers report to the leader twice in a tick which
// sessions they have heard from, so the leader may believe that a session was last heard of half
// a tick and one interval before an answered request was sent. Half a tick is at most a quarter of
// a session timeout of at least two ticks; an interval of a twelfth adds up with it to the third
// that a holder does not count on, unless the answer before was late.
func (k *keeper) interval() time.Duration { return timing.Ask(k.q.sessionTimeout(k.session)) }

// watchOver keeps asking the server, until the lock is unlocked or lost for good.
func (k *keeper) watchOver(own <-chan zk.Event) {
	q := k.q
	var again retries
	timer := time.NewTimer(time.Until(k.sent.Add(k.interval())))
	defer timer.Stop()
	for !k.stopped() {
		var err error
		select {
		case <-k.stop:
			return
		case ev := <-own:
			switch {
			case ev.Err != nil:
				k.lose("the session has ended", ev.Err)
				return
			case ev.Type == zk.EventNodeDeleted:
				k.lose("the znode was deleted", nil)
				return
			}
			own = nil // someone has set its data
		case <-k.lost:
			// The session may still exist, and the caller may still be at work: so the znode
			// stays until the caller says that it has stopped, or closes the connection.
			for {
				select {
				case <-k.stop:
					return
				case ev, open := <-own:
					if !open || ev.Err != nil {
						return
					}
				}
			}
		case <-k.granted: // the timer is set anew below
		case <-timer.C:
			if err = k.ask(); err == nil {
				k.mu.Lock()
				k.proved = k.sent
				k.mu.Unlock()
				k.rearm()
			}
		}
		if own == nil && err == nil {
			_, _, own, err = q.conn.GetW(k.path)
			if errors.Is(err, zk.ErrNoNode) {
				k.lose("the znode was deleted", nil)
				return
			}
		}
		if q.conn.SessionID() != k.session {
			k.lose("the session has ended", nil)
			return
		}
		next := time.Until(k.sent.Add(k.interval()))
		if err == nil {
			again = retries{}
		} else if err = again.pause(q.conn, err, k.stop); err != nil {
			if errors.Is(err, zk.ErrClosing) {
				k.lose("the connection was closed", nil)
				return
			}
			next = k.interval() // refused, for a reason that may go away
		}
		timer.Reset(next)
	}
}

// remove deletes the znode. It returns when the znode is known not to exist, or to belong to
// a session that is over. An error means that the server has refused to delete it.
func (k *keeper) remove() error {
	var again retries
	first := true
	for k.name != "" || k.unsure {
		err := k.removeOnce(first)
		first = false
		if err == nil {
			continue
		}
		if id := k.q.conn.SessionID(); k.session != 0 && id != k.session {
			k.lose("the session has ended", nil)
			return nil
		}
		if err := again.pause(k.q.conn, err, nil); errors.Is(err, zk.ErrClosing) {
			return nil // the session ends, and the znode with it
		} else if err != nil {
			return err
		}
	}
	return nil
}

// removeOnce deletes what is known, and finds out what is not.
func (k *keeper) removeOnce(first bool) error {
	q := k.q
	if k.name != "" {
		err := q.conn.Delete(q.at(k.name), -1)
		if errors.Is(err, zk.ErrNoNode) {
			if first { // the reply to no earlier delete was lost
				k.lose("the znode was deleted", nil)
			}
			err = nil
		}
		if err != nil {
			return err
		}
		k.name = ""
	}
	if !k.unsure {
		return nil
	}
	if _, err := q.conn.Sync(q.path); err != nil {
		return err
	}
	line, err := k.list()
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	if err != nil {
		return err
	}
	me := k.find(line)
	if me < 0 {
		k.unsure = false
		return nil
	}
	k.name = line[me].Name // and once more, for there may be another one
	return nil
}
