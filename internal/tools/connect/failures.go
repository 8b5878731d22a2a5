package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// NotServing is the error of a server that closes the connections of clients without an answer.
type NotServing struct {
	Server string
	Peer   string // its peer port, if it has told that
}

func (e *NotServing) Error() string {
	if e.Peer == "" {
		return e.Server + " serves no clients at the moment, as when it has no majority, is in no cluster yet or has too many clients"
	}
	return fmt.Sprintf("%s serves no clients at the moment, as when it has no majority or is in no cluster yet; its peer port tells more: lockkeeper cluster status --peer %s", e.Server, e.Peer)
}

// tellPatience is how long a server may take to tell its peer port.
const tellPatience = time.Second

// NotServing returns the error of the server at addr, which has closed a connection without an
// answer. It asks the server for its peer port, even if ctx has ended.
func (d *Dialer) NotServing(ctx context.Context, addr string) *NotServing {
	e := &NotServing{Server: addr}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellPatience)
	defer cancel()
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return e
	}
	answer, _ := rawclient.Word(nc, "envi", tellPatience)
	for line := range strings.Lines(answer) {
		if peer, ok := strings.CutPrefix(line, "lockkeeper.peer="); ok {
			e.Peer = strings.TrimSpace(peer)
		}
	}
	return e
}

// Failures remembers why a client could not use each of its servers. It is safe for concurrent use.
type Failures struct {
	Dialer   *Dialer // asks servers that have closed a connection
	OnFailed func()  // is called after each failure; it may be nil
	OnHeard  func()  // is called when a server has answered; it may be nil

	mu      sync.Mutex
	servers []string // in the order of their first failures
	why     map[string]error
}

// Watch returns a dialer that calls dial and remembers what failed, also that a server has closed
// the connection before it has said anything.
func (f *Failures) Watch(dial func(network, addr string, timeout time.Duration) (net.Conn, error)) func(network, addr string, timeout time.Duration) (net.Conn, error) {
	return func(network, addr string, timeout time.Duration) (net.Conn, error) {
		nc, err := dial(network, addr, timeout)
		if err != nil {
			f.note(addr, fmt.Errorf("cannot connect to %s: %w", addr, err))
			return nil, err
		}
		return &watched{Conn: nc, addr: addr, failures: f}, nil
	}
}

func (f *Failures) note(addr string, why error) {
	f.mu.Lock()
	if _, known := f.why[addr]; !known {
		f.servers = append(f.servers, addr)
	}
	if f.why == nil {
		f.why = map[string]error{}
	}
	f.why[addr] = why
	f.mu.Unlock()
	if f.OnFailed != nil {
		f.OnFailed()
	}
}

// Err returns the last failure of each server, or nil if there was none.
func (f *Failures) Err(ctx context.Context) error {
	f.mu.Lock()
	var all []error
	for _, addr := range f.servers {
		all = append(all, f.why[addr])
	}
	f.mu.Unlock()
	return errors.Join(f.Dialer.Explain(ctx, all)...)
}

// Explain replaces each [NotServing] without a peer port by one for which the server was asked. All
// servers are asked at once.
func (d *Dialer) Explain(ctx context.Context, all []error) []error {
	explained := append([]error(nil), all...)
	var asked sync.WaitGroup
	for i, err := range all {
		if e := (*NotServing)(nil); errors.As(err, &e) && e.Peer == "" {
			asked.Go(func() { explained[i] = d.NotServing(ctx, e.Server) })
		}
	}
	asked.Wait()
	return explained
}

// watched is a connection whose first Read shows whether the server serves this client.
type watched struct {
	net.Conn
	addr     string
	failures *Failures
	read     bool // used by the one goroutine that reads
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read {
		return n, err
	}
	c.read = n > 0 || err != nil
	switch {
	case n > 0:
		if c.failures.OnHeard != nil {
			c.failures.OnHeard()
		}
	case errors.Is(err, io.EOF):
		c.failures.note(c.addr, &NotServing{Server: c.addr})
	case err != nil:
		c.failures.note(c.addr, fmt.Errorf("%s does not answer: %w", c.addr, err))
	}
	return n, err
}

// NetConn returns the connection below this one.
func (c *watched) NetConn() net.Conn { return c.Conn }
