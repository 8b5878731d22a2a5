package lockkeepertest

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
)

// Link is the network from one member to another, in this direction only. Its zero value
// has no fault. Like TCP, it delivers everything in order, or else the connection ends.
type Link struct {
	// Cut keeps back everything that is sent, until the link is not cut any more or the
	// connection ends. No new connections are made, in either direction.
	Cut bool
	// Delay is how long everything takes to arrive.
	Delay time.Duration
	// Loss is the probability, less than 1, that what is sent at a time is lost. It is
	// sent again after 200 ms, then after 400 ms, and so on, and what follows it waits.
	// The random choices are the same in every run.
	Loss float64
}

// Disk is what is wrong with a member's disk. Its zero value has no fault.
type Disk struct {
	// Delay is how long each write takes.
	Delay time.Duration
	// Full makes all writes fail. A member that cannot write to its log stops serving
	// clients, and must be restarted when there is room again: [Server.Kill] and
	// [Server.Restart].
	Full bool
}

// resend is after what time something lost is sent again.
const resend = 200 * time.Millisecond

// links are the delays and losses of a cluster's network.
type links struct {
	mu  sync.Mutex
	all map[[2]string]*lossy // by the hosts from and to
}

type lossy struct {
	Link
	random *rand.Rand
}

// delay returns how long something takes to arrive.
func (l *links) delay(from, to string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.all[[2]string{from, to}]
	if x == nil {
		return 0
	}
	d := x.Delay
	for again := resend; again < 100*resend && x.random.Float64() < x.Loss; again *= 2 {
		d += again
	}
	return d
}

// SetLink sets the faults of the network from one member to another. [Cluster.Partition]
// decides anew which links are cut, and [Cluster.Heal] ends all faults of links.
func (c *Cluster) SetLink(from, to int, l Link) {
	c.t.Helper()
	c.here(c.t)
	if l.Delay < 0 || l.Loss < 0 || l.Loss >= 1 {
		c.t.Fatalf("lockkeepertest: impossible link %+v: a Delay is not negative, and a Loss at least 0 and less than 1", l)
	}
	c.Server(from) // both must exist
	c.Server(to)
	c.links.mu.Lock()
	if c.links.all == nil {
		c.links.all = map[[2]string]*lossy{}
	}
	c.links.all[[2]string{host(from), host(to)}] = &lossy{l, rand.New(rand.NewPCG(uint64(from), uint64(to)))}
	c.links.mu.Unlock()
	c.net.SetDelay(c.links.delay)
	c.net.Cut(host(from), host(to), l.Cut)
}

// SetDisk sets the faults of the server's disk, which only servers that keep their state in memory
// can have. Stopping a server does not wait for a slow disk.
func (s *Server) SetDisk(d Disk) {
	s.t.Helper()
	s.here(s.t)
	memory := testhooks.In(&s.cfg).Memory
	if d.Delay < 0 {
		s.t.Fatalf("lockkeepertest: impossible disk %+v: a Delay is not negative", d)
	}
	if memory == nil {
		s.t.Fatalf("lockkeepertest: %s keeps its state in %s, and only in memory can its disk have faults", s.name(), s.cfg.DataDir)
	}
	s.condition.change(func(x *condition) { x.disk = d })
	memory.SetFault(s.condition.write)
}

// Pause keeps a server from sending and receiving, also from and to its clients, and from
// writing to its disk, until [Server.Resume]. Connections stay, other members can make new
// ones, and what others send meanwhile arrives when it is resumed. To the others it looks like
// a process that the operating system has stopped. But its own timers go on, so when it is
// resumed it knows how much time has passed. Clients that use TLS are not held back.
func (s *Server) Pause() {
	s.t.Helper()
	s.setPaused(true)
}

// Resume continues a paused server. Stopping it resumes it too.
func (s *Server) Resume() {
	s.t.Helper()
	s.setPaused(false)
}

func (s *Server) setPaused(paused bool) {
	s.t.Helper()
	s.here(s.t)
	if memory := testhooks.In(&s.cfg).Memory; memory != nil {
		memory.SetFault(s.condition.write)
	}
	s.condition.change(func(x *condition) { x.paused = paused })
	if s.network != nil {
		s.network.Pause(host(s.cfg.ID), paused)
	}
}

// SetClock makes the clock of a server differ from the time by skew, which may be negative; 0 sets
// it right. It does not undo [Server.Advance]. While the server leads or is alone, the znodes' ctime
// and mtime come from this clock, and TTL znodes are deleted by it. Sessions are not affected.
func (s *Server) SetClock(skew time.Duration) { s.skew.Store(int64(skew)) }

// StepDown makes the leader hand over to another member, and returns the id of the new
// leader. It must be called from the goroutine that runs the test.
func (c *Cluster) StepDown() int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lead := c.Leader()
	var err error
	for range 3 { // a leader tries for 1.5 s, for which a machine may be too busy
		server, down := c.Server(lead).running()
		if err = down; err == nil {
			err = server.Transfer(ctx, 0)
		}
		if next := c.Leader(); err == nil || next != lead {
			return next
		}
	}
	c.t.Fatalf("lockkeepertest: member %d does not step down: %v", lead, err)
	return 0
}

// condition is what is wrong with a server, apart from its network.
type condition struct {
	mu       sync.Mutex
	disk     Disk
	paused   bool
	stopping bool
	changed  chan struct{} // closed and replaced when any of these changes
	closing  []net.Conn    // clients' connections that were closed during the pause
}

func (x *condition) change(f func(x *condition)) {
	x.mu.Lock()
	f(x)
	if x.changed != nil {
		close(x.changed)
	}
	x.changed = make(chan struct{})
	var closing []net.Conn
	if !x.paused {
		closing, x.closing = x.closing, nil
	}
	x.mu.Unlock()
	for _, nc := range closing {
		nc.Close()
	}
}

// write is called before each write to the disk.
func (x *condition) write() error {
	began := time.Now()
	for {
		x.mu.Lock()
		disk, paused, stopping, changed := x.disk, x.paused, x.stopping, x.changed
		x.mu.Unlock()
		left := disk.Delay - time.Since(began)
		switch {
		case paused:
			<-changed
			continue
		case disk.Full:
			return syscall.ENOSPC
		case stopping || left <= 0:
			return nil
		}
		select {
		case <-changed:
		case <-time.After(left):
		}
	}
}

// awaitResumed blocks while the server is paused. It returns false if done is closed
// first.
func (x *condition) awaitResumed(done <-chan struct{}) bool {
	for {
		x.mu.Lock()
		paused, changed := x.paused, x.changed
		x.mu.Unlock()
		if !paused {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

// closeLater closes a client's connection, which does not notice while the server is
// paused.
func (x *condition) closeLater(nc net.Conn) error {
	x.mu.Lock()
	if x.paused {
		x.closing = append(x.closing, nc)
		x.mu.Unlock()
		return nil
	}
	x.mu.Unlock()
	return nc.Close()
}

// clock is a TimeOfDay.
type clock struct {
	atomic.Int64              // how wrong it is
	ahead        atomic.Int64 // by Advance
}

func (c *clock) now() time.Time {
	return time.Now().Add(time.Duration(c.Load())).Add(time.Duration(c.ahead.Load())) // their sum may be too long for a Duration
}

// mostAhead is how far a clock can be advanced, in all. With mostAdvance it still fits a Duration.
const mostAhead = 2 * mostAdvance

func (c *clock) advance(d time.Duration) {
	c.ahead.Store(int64(min(time.Duration(c.ahead.Load()), mostAhead-d) + d))
}
