package bench

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// crowd is many sessions, each with a connection and an ephemeral znode of its own, that are
// served by one goroutine: it takes what has come from the kernel (epoll), and a session takes
// about 150 bytes here, so that a hundred thousand of them cost less than the servers do. Like
// an ordinary client, it pings each session after a third of its timeout, and resumes a session
// whose connection is lost at another server.
type crowd struct {
	run    *Run
	w      *Worker // counts what is being measured; nil for nothing
	poll   int     // the epoll descriptor
	addrs  []unix.Sockaddr
	seats  []seat
	create frame // what every session sends first
	pings  turns // seats to ping
	tries  turns // seats to connect again
	in     []byte
	out    []byte
	events []unix.EpollEvent

	waits  time.Duration // after which a session is pinged
	opened int           // seats that have been served
	served int           // seats that are served now
	moved  int           // times that a session has been resumed
	lost   int           // sessions that a server did not know any more
	told   int           // events that have come
	asked  int           // requests of askAll that have been answered
	fired  time.Time     // when the watches were fired
	failed error         // the first thing that no server should do
}

// seat is one session of a crowd.
type seat struct {
	fd       int32 // -1 if it has no connection
	state    seatState
	server   uint16    // index of its server
	tried    bool      // another server was tried before
	moved    bool      // its session has been resumed
	opened   bool      // it has been served
	session  int64     // 0 if it has none yet
	password [16]byte  // of the session
	began    time.Time // when it had to wait for what it has not got yet
	next     time.Time // when it is to be pinged, or connected again
	part     []byte    // the beginning of a frame, of which the rest has not come
}

// hadToMove reports whether the seat's connection was lost after it was served, and its session was resumed or lost.
func (s *seat) hadToMove() bool { return s.moved || s.state == seatEnded }

type seatState byte

const (
	seatAway       seatState = iota // it has no connection
	seatConnecting                  // no answer to the handshake has come
	seatCreating                    // waits for the reply to its create
	seatReturning                   // its session is resumed, and it waits for the reply to a ping
	seatServed
	seatClosing // waits for the reply to the end of its session
	seatEnded
)

// turns is seats in order of their time next. A seat whose time has been changed since it was
// added is skipped.
type turns []turnAt

type turnAt struct {
	seat int
	at   time.Time
}

func (q *turns) add(seat int, at time.Time) { *q = append(*q, turnAt{seat, at}) }

// due removes and returns the first seat if its time has come.
func (q *turns) due(now time.Time) (t turnAt, ok bool) {
	if len(*q) == 0 || (*q)[0].at.After(now) {
		return t, false
	}
	t, *q = (*q)[0], (*q)[1:]
	return t, true
}

// The xids of the requests of a seat, beside pings.
const (
	xidFirst = 1 + iota
	xidAsked
	xidLast
)

const (
	crowdOpening = 512                    // sessions that are being opened at the same time
	crowdRetry   = 200 * time.Millisecond // between two attempts to connect, when all servers were tried
	crowdPorts   = 20_000                 // connections from one address of this machine
	crowdSpare   = 100                    // descriptors that are not for a crowd
	crowdLimit   = 20 * time.Minute       // after which a step is given up
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
	c := &crowd{run: r, seats: make([]seat, n), waits: timeout / 3, in: make([]byte, 64<<10), events: make([]unix.EpollEvent, 1024)}
	for _, addr := range r.Target.Addrs {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			return nil, err
		}
		c.addrs = append(c.addrs, sockaddr(a.IP, a.Port))
	}
	for i := range c.seats {
		c.seats[i] = seat{fd: -1, server: uint16(i % len(c.addrs))}
	}
	c.create = numbered(proto.OpCreate, &proto.CreateRequest{Path: parent + "/" + digits, ACL: proto.OpenACL, Flags: proto.FlagEphemeral})
	c.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return c, err
}

func sockaddr(ip net.IP, port int) unix.Sockaddr {
	if ip4 := ip.To4(); ip4 != nil {
		return &unix.SockaddrInet4{Port: port, Addr: [4]byte(ip4)}
	}
	return &unix.SockaddrInet6{Port: port, Addr: [16]byte(ip.To16())}
}

// close closes all connections at once.
func (c *crowd) close() {
	for i := range c.seats {
		c.leave(i)
	}
	unix.Close(c.poll)
}

// leave closes the connection of a seat.
func (c *crowd) leave(i int) {
	s := &c.seats[i]
	if s.fd >= 0 {
		unix.Close(int(s.fd))
	}
	if s.state == seatServed {
		c.served--
	}
	s.fd, s.part, s.state = -1, nil, seatAway
}

// connect connects a seat to its server. A server on this machine is reached from several
// addresses, as each has only some ten thousand ports.
func (c *crowd) connect(i int) {
	s := &c.seats[i]
	if s.session == 0 || s.began.IsZero() {
		s.began = time.Now()
	}
	to := c.addrs[s.server]
	v4, is4 := to.(*unix.SockaddrInet4)
	family := unix.AF_INET6
	if is4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.fail(fmt.Errorf("socket: %w", err))
		return
	}
	s.fd, s.state = int32(fd), seatConnecting
	unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if is4 && v4.Addr[0] == 127 {
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, byte(1 + i/crowdPorts)}})
	}
	if err = cmp.Or(err, unix.Connect(fd, to)); err != nil && err != unix.EINPROGRESS {
		c.away(i, err)
		return
	}
	// Edge-triggered: one call for the whole life of the connection.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: int32(i)}
	if err := unix.EpollCtl(c.poll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		c.fail(fmt.Errorf("epoll: %w", err))
		return
	}
	q := rawclient.NewSession(3 * c.waits)
	if s.session != 0 {
		q.SessionID, q.Password = s.session, s.password[:]
	}
	s.part = rawclient.Framed(q) // sent when the connection is there
}

// away notes that a seat has lost its connection, or got none, and has it connect to another
// server: at once, or after a pause if that was tried.
func (c *crowd) away(i int, why error) {
	s := &c.seats[i]
	if s.state == seatServed {
		s.began, s.tried = time.Now(), false
	}
	ends := s.state == seatClosing
	c.leave(i)
	if ends {
		s.state = seatEnded
		return
	}
	if s.session == 0 && c.w != nil {
		c.w.Fail(why)
	}
	s.server = uint16((int(s.server) + 1 + rand.N(max(1, len(c.addrs)-1))) % len(c.addrs)) // another one
	at := time.Now()
	if s.tried {
		at = at.Add(crowdRetry/2 + rand.N(crowdRetry)) // the order of tries is almost that of time
	}
	s.tried, s.next = true, at
	c.tries.add(i, at)
}

func (c *crowd) fail(err error) {
	if c.failed == nil {
		c.failed = err
	}
}

// send sends a few bytes, for which there is always room in the socket's buffer.
func (c *crowd) send(i int, b []byte) {
	if n, err := unix.Write(int(c.seats[i].fd), b); err != nil || n < len(b) {
		c.away(i, cmp.Or(err, error(syscall.EAGAIN)))
	}
}

func (c *crowd) ask(i int, xid int32, op proto.OpCode) {
	c.out = rawclient.Request(c.out[:0], xid, op, nil)
	c.send(i, c.out)
}

func (c *crowd) sendCreate(i int) {
	c.out = c.create.append(c.out[:0], xidFirst, i)
	c.send(i, c.out)
}

// until serves the crowd until done, which is called now and then, returns true, or the run is
// stopped.
func (c *crowd) until(done func() bool) error {
	deadline := time.Now().Add(crowdLimit)
	for !c.run.Stopped() && !done() {
		now := time.Now()
		if now.After(deadline) {
			return errors.New("it takes too long")
		}
		for t, ok := c.tries.due(now); ok; t, ok = c.tries.due(now) {
			if s := &c.seats[t.seat]; s.state == seatAway && s.next.Equal(t.at) {
				c.connect(t.seat)
			}
		}
		for t, ok := c.pings.due(now); ok; t, ok = c.pings.due(now) {
			if s := &c.seats[t.seat]; s.state == seatServed && s.next.Equal(t.at) {
				c.ask(t.seat, proto.XidPing, proto.OpPing)
				c.pingLater(t.seat, now)
			}
		}
		n, err := unix.EpollWait(c.poll, c.events, 5)
		if err != nil && err != unix.EINTR {
			return err
		}
		for _, e := range c.events[:max(n, 0)] {
			c.ready(int(e.Fd), e.Events)
		}
		if c.failed != nil {
			return c.failed
		}
	}
	return nil
}

// pingLater has a seat pinged after a third of its session's timeout.
func (c *crowd) pingLater(i int, now time.Time) {
	c.seats[i].next = now.Add(c.waits)
	c.pings.add(i, c.seats[i].next)
}

// ready handles what has happened to the connection of a seat.
func (c *crowd) ready(i int, events uint32) {
	s := &c.seats[i]
	if s.fd < 0 {
		return
	}
	if s.state == seatConnecting && s.part != nil && events&unix.EPOLLOUT != 0 && events&(unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		hello := s.part
		s.part = nil
		c.send(i, hello)
	}
	if s.fd < 0 || events&(unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) == 0 {
		return
	}
	for s.fd >= 0 {
		kept := copy(c.in, s.part)
		n, err := unix.Read(int(s.fd), c.in[kept:])
		switch {
		case err == unix.EAGAIN:
			return
		case n <= 0:
			c.away(i, cmp.Or(err, error(errors.New("the server has closed the connection"))))
			return
		}
		all := kept+n == len(c.in) // there may be more
		c.received(i, c.in[:kept+n])
		if !all {
			return
		}
	}
}

// received handles the frames that have come for a seat, and keeps the rest.
func (c *crowd) received(i int, b []byte) {
	s := &c.seats[i]
	s.part = nil
	fd := s.fd
	for len(b) >= 4 && s.fd == fd {
		n := 4 + int(binary.BigEndian.Uint32(b))
		if n > len(c.in) {
			c.fail(fmt.Errorf("a frame of %d bytes", n))
			return
		}
		if len(b) < n {
			break
		}
		c.frame(i, b[4:n])
		b = b[n:]
	}
	if len(b) > 0 && s.fd == fd {
		s.part = append([]byte(nil), b...)
	}
}

// frame handles a frame that has come for a seat.
func (c *crowd) frame(i int, b []byte) {
	s := &c.seats[i]
	d := jute.NewDecoder(b)
	if s.state == seatConnecting {
		var r proto.ConnectReply
		if r.Decode(&d); d.Err() != nil {
			c.fail(d.Err())
			return
		}
		switch {
		case r.SessionID == 0 && s.session == 0:
			c.away(i, rawclient.ErrRefused)
		case r.SessionID == 0:
			c.lost++
			if c.w != nil {
				c.w.Fail(errors.New("a session was lost"))
			}
			if s.session = 0; !s.opened { // it opens another one
				c.away(i, rawclient.ErrRefused)
				return
			}
			c.leave(i)
			s.state = seatEnded
		case s.session == 0:
			s.session, s.state = r.SessionID, seatCreating
			copy(s.password[:], r.Password)
			c.sendCreate(i)
		case !s.opened: // its create may have been done or not
			s.state = seatCreating
			c.sendCreate(i)
		default:
			c.moved++
			s.moved, s.state = true, seatReturning
			c.ask(i, proto.XidPing, proto.OpPing)
		}
		return
	}
	var h proto.ReplyHeader
	if h.Decode(&d); d.Err() != nil {
		c.fail(d.Err())
		return
	}
	switch {
	case h.Xid == proto.XidEvent:
		c.told++
		if c.w != nil {
			c.w.Done(time.Since(c.fired))
		}
	case h.Xid == xidAsked && h.Code == proto.OK:
		c.asked++
	case h.Xid != proto.XidPing && h.Code != proto.OK && h.Code != proto.NodeExists:
		c.fail(h.Code)
	case s.state == seatCreating || s.state == seatReturning:
		if s.state = seatServed; !s.opened {
			s.opened = true
			c.opened++
		}
		c.served++
		if c.w != nil {
			c.w.Done(time.Since(s.began))
		}
		s.tried = false
		c.pingLater(i, time.Now())
	case s.state == seatClosing:
		c.leave(i)
		s.state = seatEnded
	}
}

// openAll opens all sessions, some at a time.
func (c *crowd) openAll() error {
	next := 0
	return c.until(func() bool {
		for ; next < len(c.seats) && next-c.opened < crowdOpening; next++ {
			c.connect(next)
		}
		return c.opened == len(c.seats)
	})
}

// hold serves the crowd for a time.
func (c *crowd) hold(d time.Duration) error {
	end := time.Now().Add(d)
	return c.until(func() bool { return time.Now().After(end) })
}

// askAll has every session send a request, some at a time, and waits for the replies.
func (c *crowd) askAll(op proto.OpCode, body proto.Record) error {
	request := rawclient.Request(nil, xidAsked, op, body)
	next := 0
	c.asked = 0
	return c.until(func() bool {
		for ; next < len(c.seats) && next-c.asked < crowdOpening; next++ {
			c.send(next, request)
		}
		return c.asked == len(c.seats)
	})
}

// endAll ends all sessions, some at a time.
func (c *crowd) endAll() error {
	next, closing := 0, []int{}
	return c.until(func() bool {
		kept := closing[:0]
		for _, i := range closing {
			if c.seats[i].state == seatClosing {
				kept = append(kept, i)
			}
		}
		for closing = kept; next < len(c.seats) && len(closing) < crowdOpening; next++ {
			s := &c.seats[next]
			if s.state != seatServed {
				c.leave(next)
				s.state = seatEnded
				continue
			}
			c.served--
			s.state = seatClosing
			c.ask(next, xidLast, proto.OpCloseSession)
			closing = append(closing, next)
		}
		return len(closing) == 0
	})
}
