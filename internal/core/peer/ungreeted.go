package peer

import (
	"net"
	"slices"
	"sync"
)

// maxUngreeted limits the connections to the peer port whose hello has not come. If the process may
// have only few file descriptors, the limit is a thirty-second of their number: half of those that
// fdlimit.ForPeers leaves to peers when clients have taken all of theirs.
const maxUngreeted = 256

// ungreeted are the connections to the peer port whose hello has not come. If there are too many,
// the oldest is closed, so that strangers who say nothing cannot keep a member out. It is safe
// for concurrent use.
type ungreeted struct {
	most int

	mu    sync.Mutex
	conns []net.Conn // the oldest first
}

// add adds a connection that was just accepted.
func (u *ungreeted) add(c net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conns = append(u.conns, c)
	if len(u.conns) <= u.most {
		return
	}
	oldest := u.conns[0]
	u.conns = slices.Delete(u.conns, 0, 1)
	if t, ok := oldest.(interface{ NetConn() net.Conn }); ok {
		oldest = t.NetConn() // closing a connection of TLS may wait for the other side
	}
	oldest.Close()
}

// remove removes a connection whose hello has come or failed to come. It returns false if add has
// closed the connection.
func (u *ungreeted) remove(c net.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.Index(u.conns, c)
	if i >= 0 {
		u.conns = slices.Delete(u.conns, i, i+1)
	}
	return i >= 0
}
