package admin

import (
	"errors"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// reader reads znodes as a client without any permissions of its own, with one session
// through memory. It has the session only while somebody uses it.
type reader struct {
	server *lockkeeper.Server

	mu     sync.Mutex
	users  int
	client *rawclient.Client // nil before the first call and after a fault
}

// Times of a reader.
const (
	readerTimeout = time.Second      // of one request
	readerSession = 10 * time.Second // of its session, which ends with the last user, and of one that breaks a lock
)

// acquire announces calls, and release ends what acquire has begun.
func (r *reader) acquire() {
	r.mu.Lock()
	r.users++
	r.mu.Unlock()
}

func (r *reader) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 && r.client != nil {
		r.client.CloseSession() // if that fails, the session expires
		r.client.Close()
		r.client = nil
	}
}

// session returns the id of the reader's session, 0 if it has none.
func (r *reader) session() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return 0
	}
	return r.client.Session.SessionID
}

// call sends a request and waits for its reply. The error is a proto.Code if the server
// has answered. Otherwise the next call begins with a new session.
func (r *reader) call(op proto.OpCode, body, reply proto.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		c, err := connect(r.server, readerTimeout, true)
		if err != nil {
			return err
		}
		r.client = c
	}
	_, err := r.client.Call(op, body, reply)
	if err != nil && !errors.As(err, new(proto.Code)) {
		r.client.Close()
		r.client = nil
	}
	return err
}

// connect opens a session without any permissions, through memory. timeout is that of every
// request. Only with readOnly may the session be one of a server without a majority.
func connect(s *lockkeeper.Server, timeout time.Duration, readOnly bool) (*rawclient.Client, error) {
	nc, err := s.Dial("", "", timeout)
	if err != nil {
		return nil, err
	}
	c := rawclient.New(nc)
	c.Timeout = timeout
	q := proto.ConnectRequest{Timeout: int32(readerSession.Milliseconds()), Password: make([]byte, proto.PasswordLen), HasReadOnly: true, ReadOnly: readOnly}
	if err := c.Handshake(&q); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

func (r *reader) exists(path string) (stat proto.Stat, err error) {
	err = r.call(proto.OpExists, &proto.PathWatch{Path: path}, &stat)
	return stat, err
}
