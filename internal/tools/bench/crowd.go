package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// crowd is many sessions, each with a goroutine, a connection and an ephemeral znode of its own.
// Like an ordinary client, it pings each session after a third of its timeout, and resumes a
// session whose connection is lost at another server.
type crowd struct {
	run     *Run
	timeout time.Duration // of a session
	seats   []seat
	ctx     context.Context // of all connections; its cause is the first thing that no server should do
	cancel  context.CancelCauseFunc
	all     sync.WaitGroup

	mu     sync.Mutex // for what follows, and the seats
	w      *Worker    // counts what is being measured; nil for nothing
	ending bool       // who loses the connection now does not come back
	served int        // seats that are served now
	moved  int        // times that a session has been resumed
	lost   int        // sessions that a server did not know any more
	told   int        // events that have come
	began  time.Time  // when the measured part began, which fires the watches
}

type seat struct {
	path     string             // of its znode
	server   int                // index of its server
	session  proto.ConnectReply // zero if it has none yet
	client   *rawclient.Client  // nil while it is not served
	opened   bool               // it has been served
	hadMoved bool               // its connection was lost after that, and its session was resumed or lost
	// done gets a signal when the seat is served for the first time, has the reply to what
	// askAll asks, and is left for good.
	done chan struct{}
}

func (s *seat) signal() {
	select {
	case s.done <- struct{}{}:
	default:
	}
}

// The xids of the requests that have replies of interest.
const (
	xidAsked = 1000 + iota
	xidLast
)

const (
	crowdAtOnce = 512                    // sessions that are being opened, asked or closed at the same time
	crowdRetry  = 200 * time.Millisecond // between two attempts to connect, when another server was tried
	crowdSpare  = 100                    // descriptors that are not for a crowd
	crowdLimit  = 20 * time.Minute       // after which a crowd is given up
)

// newCrowd returns a crowd of n sessions that are not open yet. Their znodes are below parent,
// which newCrowd creates.
func (r *Run) newCrowd(n int, parent string, timeout time.Duration) (*crowd, error) {
	if most := fdlimit.Most(n + crowdSpare); most < n+crowdSpare {
		return nil, fmt.Errorf("%d sessions need %d file descriptors, and this process may have %d (ulimit -n)", n, n+crowdSpare, most)
	}
	err := r.with(0, func(one *rawclient.Client) error { _, err := one.Create(parent, nil, 0); return err })
	if err != nil {
		return nil, err
	}
	c := &crowd{run: r, timeout: timeout, seats: make([]seat, n)}
	for i := range c.seats {
		c.seats[i] = seat{path: fmt.Sprintf("%s/%d", parent, i), server: i % len(r.Target.Addrs), done: make(chan struct{}, 1)}
	}
	c.ctx, c.cancel = context.WithCancelCause(r.ctx)
	late := time.AfterFunc(crowdLimit, func() { c.cancel(errors.New("it takes too long")) })
	context.AfterFunc(c.ctx, func() { late.Stop() })
	c.all.Go(c.ping)
	return c, nil
}

func (c *crowd) close() {
	c.cancel(nil)
	c.all.Wait()
}

// ping pings each session after a third of its timeout, a hundredth of them at a time.
func (c *crowd) ping() {
	const parts = 100
	tick := time.NewTicker(c.timeout / 3 / parts)
	defer tick.Stop()
	for part := 0; ; part = (part + 1) % parts {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		for i := part; i < len(c.seats); i += parts {
			c.send(&c.seats[i], proto.XidPing, proto.OpPing, nil)
		}
	}
}

// send sends a request if the seat is served. Whoever reads from the connection notices errors.
func (c *crowd) send(s *seat, xid int32, op proto.OpCode, body proto.Record) {
	c.mu.Lock()
	client := s.client
	c.mu.Unlock()
	if client != nil {
		client.Write(rawclient.Request(nil, xid, op, body))
	}
}

// sit opens the session of a seat and keeps it until the crowd ends.
func (c *crowd) sit(s *seat) {
	defer s.signal()
	began := time.Now()
	for tries := 0; ; tries++ {
		served, err := c.visit(s, began)
		c.mu.Lock()
		switch {
		case served:
			c.served--
			s.client, began, tries = nil, time.Now(), 0
		case errors.Is(err, rawclient.ErrRefused) && s.session.SessionID != 0:
			c.lost++
			s.hadMoved, s.session = s.opened, proto.ConnectReply{}
			err = errors.New("a session was lost")
			fallthrough
		default:
			if c.w != nil && s.session.SessionID == 0 && c.ctx.Err() == nil {
				c.w.Fail(err)
			}
		}
		over := c.ending || s.opened && s.session.SessionID == 0
		n := len(c.run.Target.Addrs)
		s.server = (s.server + 1 + rand.N(max(1, n-1))) % n // another one
		c.mu.Unlock()
		pause := time.Duration(0)
		if tries > 0 {
			pause = crowdRetry/2 + rand.N(crowdRetry)
		}
		if over || !c.wait(pause) {
			return
		}
	}
}

// wait waits, and returns false if the crowd ends meanwhile.
func (c *crowd) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
	}
	return c.ctx.Err() == nil
}

// visit opens or resumes the session of a seat that has waited for it since began, and serves it
// until its connection ends.
func (c *crowd) visit(s *seat, began time.Time) (served bool, err error) {
	nc, err := c.run.Target.dial(c.ctx, s.server)
	if err != nil {
		return false, err
	}
	defer nc.Close()
	defer context.AfterFunc(c.ctx, func() { nc.Close() })()
	client := rawclient.New(nc)
	client.Timeout = c.timeout * 2 / 3
	q := rawclient.NewSession(c.timeout)
	if s.session.SessionID != 0 {
		q = rawclient.Resumption(s.session)
	}
	if err := client.Handshake(q); err != nil {
		return false, err
	}
	s.session = client.Session
	if s.opened {
		err = client.Ping()
	} else if _, err = client.Create(s.path, nil, proto.FlagEphemeral); err == proto.NodeExists { // the reply to a first try was lost
		err = nil
	}
	if err != nil {
		if code, ok := err.(proto.Code); ok {
			c.cancel(code)
		}
		return false, err
	}
	c.mu.Lock()
	if c.served++; s.opened {
		c.moved++
		s.hadMoved = true
	} else {
		s.opened = true
		s.signal()
	}
	if c.w != nil {
		c.w.Done(time.Since(began))
	}
	s.client = client
	c.mu.Unlock()
	for {
		f, err := client.Read()
		switch {
		case err != nil:
			return true, err
		case f.Xid == proto.XidEvent:
			c.mu.Lock()
			if c.told++; c.w != nil {
				c.w.Done(time.Since(c.began))
			}
			c.mu.Unlock()
		case f.Code != proto.OK:
			c.cancel(f.Code)
		case f.Xid == xidAsked:
			s.signal()
		case f.Xid == xidLast:
			return true, nil
		}
	}
}

// until waits until done, which is called now and then with mu locked, returns true.
func (c *crowd) until(done func() bool) error {
	for {
		c.mu.Lock()
		over := done()
		c.mu.Unlock()
		if over {
			return nil
		}
		if !c.wait(5 * time.Millisecond) {
			return context.Cause(c.ctx)
		}
	}
}

// each starts something for each seat, some at a time, and waits until it is done.
func (c *crowd) each(start func(s *seat)) error {
	return atOnce(crowdAtOnce, len(c.seats), func(i int) error {
		start(&c.seats[i])
		select {
		case <-c.seats[i].done:
			return nil
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	})
}

func (c *crowd) openAll() error {
	return c.each(func(s *seat) { c.all.Go(func() { c.sit(s) }) })
}

// askAll has every session send a request, and waits for the replies.
func (c *crowd) askAll(op proto.OpCode, body proto.Record) error {
	return c.each(func(s *seat) { c.send(s, xidAsked, op, body) })
}

func (c *crowd) endAll() error {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	return c.each(func(s *seat) { c.send(s, xidLast, proto.OpCloseSession, nil) })
}
