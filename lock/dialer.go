package lock

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Dialer opens the network connections of a *zk.Conn, and reads in the servers' answers which
// session timeout they grant, since go-zookeeper does not report that:
//
//	var dialer lock.Dialer
//	conn, events, err := zk.Connect(servers, 10*time.Second, zk.WithDialer(dialer.Dial))
//	...
//	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(&dialer))
//
// A Dialer is for one *zk.Conn, and for all locks that use it. The zero Dialer is ready for
// use. It must not be copied, and its methods may be called from any goroutine.
type Dialer struct {
	// Base opens the connections, for example over TLS, or to a server in this process
	// (lockkeeper.Server.Dial). If it is nil, net.DialTimeout does.
	// It must be set before the Dialer is used.
	Base zk.Dialer

	// OnGrant is called whenever a server has granted a timeout to a session, if it is not nil:
	// after SessionTimeout and the locks know it, and before the *zk.Conn does, which waits
	// for it. So a program that plans with the session timeout learns at once when a server
	// grants less than before. It must be set before the Dialer is used.
	OnGrant func(session int64, timeout time.Duration)

	mu      sync.Mutex
	grants  [2]grant // the newest first
	holders map[*keeper]struct{}
}

// grant is the timeout that a server has granted to a session when its client last connected.
type grant struct {
	session int64
	timeout time.Duration
}

// Dial opens a connection with Base. It is a [zk.Dialer], for [zk.WithDialer].
func (d *Dialer) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	dial := d.Base
	if dial == nil {
		dial = net.DialTimeout
	}
	conn, err := dial(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &handshake{Conn: conn, dialer: d}, nil
}

// SessionTimeout returns the session timeout that a server has granted last, or 0 if none has
// yet. It may be another one after each reconnect.
func (d *Dialer) SessionTimeout() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grants[0].timeout
}

// granted returns the timeout of a session, or 0 if it is not known. The session before the
// newest is known, too: when a server grants a new session, go-zookeeper learns of it a
// moment later than its Dialer.
func (d *Dialer) granted(session int64) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.grants {
		if g.session == session {
			return g.timeout
		}
	}
	return 0
}

// learn notes a grant, before go-zookeeper sees it.
func (d *Dialer) learn(g grant) {
	d.mu.Lock()
	if g.session != d.grants[0].session {
		d.grants[1] = d.grants[0]
	}
	d.grants[0] = g
	holders := make([]*keeper, 0, len(d.holders))
	for k := range d.holders {
		holders = append(holders, k)
	}
	d.mu.Unlock()
	for _, k := range holders {
		k.regranted()
	}
	if d.OnGrant != nil {
		d.OnGrant(g.session, g.timeout)
	}
}

// join makes learn tell a keeper of changes, until leave is called.
func (d *Dialer) join(k *keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holders == nil {
		d.holders = map[*keeper]struct{}{}
	}
	d.holders[k] = struct{}{}
}

func (d *Dialer) leave(k *keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.holders, k)
}

// handshake is a connection that reads the server's answer to the handshake as it passes
// (ConnectResponse): after the length of the frame come the version of the protocol in 4
// bytes, the session timeout in ms in 4 bytes, and the session in 8 bytes.
type handshake struct {
	net.Conn
	dialer *Dialer
	head   []byte // of the answer; used only by the one goroutine that reads
}

const headLength = 4 + 4 + 4 + 8

func (h *handshake) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if missing := headLength - len(h.head); missing > 0 {
		h.head = append(h.head, b[:min(n, missing)]...)
		if len(h.head) == headLength {
			ms, session := int32(binary.BigEndian.Uint32(h.head[8:])), int64(binary.BigEndian.Uint64(h.head[12:]))
			if session != 0 { // otherwise it is refused
				h.dialer.learn(grant{session, time.Duration(ms) * time.Millisecond})
			}
		}
	}
	return n, err
}
