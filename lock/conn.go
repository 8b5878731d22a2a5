package lock

import "github.com/go-zookeeper/zk"

// Conn is what the locks use of a *[zk.Conn], so that a program can give them a wrapper, for
// example one that counts or logs requests, and a test something of its own.
//
// A wrapper passes each call on and returns what the *zk.Conn has returned. In particular, it
// does not answer Sync or a read from a memory of its own, since the locks take the answer as
// the server's sign of life; it does not repeat a Create, since the reply to the first one may
// be lost; it keeps errors recognizable for [errors.Is]; and SessionID and State are those of
// the connection that sends the requests. The methods are called from several goroutines. No version will
// add a method.
type Conn interface {
	Children(path string) (names []string, stat *zk.Stat, err error)
	ChildrenW(path string) (names []string, stat *zk.Stat, event <-chan zk.Event, err error)
	Create(path string, data []byte, flags int32, acl []zk.ACL) (created string, err error)
	CreateContainer(path string, data []byte, flags int32, acl []zk.ACL) (created string, err error)
	Delete(path string, version int32) error
	Get(path string) (data []byte, stat *zk.Stat, err error)
	GetW(path string) (data []byte, stat *zk.Stat, event <-chan zk.Event, err error)
	SessionID() int64
	State() zk.State
	Sync(path string) (synced string, err error)
}

var _ Conn = (*zk.Conn)(nil)
