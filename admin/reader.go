package admin

import (
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// reader reads znodes as a client without any permissions of its own, so the ACLs decide what
// the console shows. It needs no session.
type reader struct{ from report.Server }

func (r reader) exists(path string) (stat proto.Stat, err error) {
	err = r.from.Read(proto.OpExists, &proto.PathWatch{Path: path}, &stat)
	return stat, err
}

func (r reader) data(path string) ([]byte, error) {
	var reply proto.DataReply
	err := r.from.Read(proto.OpGetData, &proto.PathWatch{Path: path}, &reply)
	return reply.Data, err
}

func (r reader) children(path string) ([]string, error) {
	var reply proto.ChildrenReply
	err := r.from.Read(proto.OpGetChildren, &proto.PathWatch{Path: path}, &reply)
	return reply.Names, err
}

// breakerSession is the timeout of the session that breaks a lock, which ends with that.
const breakerSession = 10 * time.Second

// connect opens a session without any permissions, through memory, that can write. timeout is
// that of every request.
func connect(s *lockkeeper.Server, timeout time.Duration) (*rawclient.Client, error) {
	nc, err := s.Dial("", "", timeout)
	if err != nil {
		return nil, err
	}
	return rawclient.OpenWithin(nc, breakerSession, timeout)
}
