package server_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/proto"
)

// follower is a report.Follower that notes what it is told.
type follower struct {
	mu    sync.Mutex
	paths []string // created and, with a minus, deleted
	lost  int
}

func (f *follower) Changed(changes []proto.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range changes {
		switch c.Kind {
		case proto.NodeCreated:
			f.paths = append(f.paths, c.Path)
		case proto.NodeDeleted:
			f.paths = append(f.paths, "-"+c.Path)
		}
	}
}

func (f *follower) Lost() {
	f.mu.Lock()
	f.lost++
	f.mu.Unlock()
}

func (f *follower) want(t *testing.T, lost int, paths ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.paths, paths) || f.lost != lost {
		t.Errorf("it was told of %q, and lost %d times, not %q and %d", f.paths, f.lost, paths, lost)
	}
}

// TestFollow: a follower is told of all changes, among them those of a session that ends, until it
// stops, or until the server may miss some, and then exactly once that it has.
func TestFollow(t *testing.T) {
	p := open(t, server.Config{})
	c, other := connect(t, p.dial), connect(t, p.dial)
	a, b := &follower{}, &follower{}
	follow := func(f *follower) (stop func()) {
		t.Helper()
		stop, ok := p.Follow(f)
		if !ok {
			t.Fatal("it does not follow")
		}
		return stop
	}
	stop := follow(a)
	follow(b)
	must(c.Create("/x", nil, 0))(t)
	must(other.Create("/e", nil, proto.FlagEphemeral))(t)
	must(c.Call(proto.OpSetData, &proto.SetDataRequest{Path: "/x", Version: -1}, nil))(t)
	check(t, other.CloseSession())
	stop()
	stop()
	check(t, c.Delete("/x"))
	a.want(t, 0, "/x", "/e", "-/e")
	b.want(t, 0, "/x", "/e", "-/e", "-/x")
	p.Suspend()
	p.Suspend()
	if _, ok := p.Follow(&follower{}); ok {
		t.Error("it follows a server that does not serve")
	}
	p.Open()
	must(connect(t, p.dial).Create("/y", nil, 0))(t)
	a.want(t, 0, "/x", "/e", "-/e")
	b.want(t, 1, "/x", "/e", "-/e", "-/x")
	follow(a)
	p.Close()
	a.want(t, 1, "/x", "/e", "-/e")
}

// TestReportRead: a read for operators gets what a client in memory gets, and sets no watch.
func TestReportRead(t *testing.T) {
	p := open(t, server.Config{})
	c := connect(t, p.dial)
	acl := func(scheme, id string) []proto.ACL {
		return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: scheme, ID: id}}}
	}
	must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
	stranger := connect(t, p.dial)
	for path, acl := range map[string][]proto.ACL{"/open": acl("world", "anyone"), "/near": acl("ip", "127.0.0.1"), "/far": acl("ip", "192.0.2.1"), "/mine": acl("auth", "")} {
		must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl}, nil))(t)
	}
	for _, path := range []string{"/", "/open", "/near", "/far", "/mine", "/nowhere", "/zookeeper/config"} {
		for op, reply := range map[proto.OpCode]proto.Record{
			proto.OpExists: &proto.Stat{}, proto.OpGetData: &proto.DataReply{}, proto.OpGetChildren: &proto.ChildrenReply{}, proto.OpGetACL: &proto.ACLReply{},
		} {
			var q proto.Record = &proto.PathWatch{Path: path}
			if op == proto.OpGetACL {
				q = &proto.Path{Path: path}
			}
			_, want := stranger.Call(op, q, nil)
			if got := p.Read(op, q, reply); got != want {
				t.Errorf("%v of %s: %v, but a client gets %v", op, path, got, want)
			}
		}
	}
	if err := p.Read(proto.OpGetData, &proto.PathWatch{Path: "/open", Watch: true}, &proto.DataReply{}); err != proto.BadArguments {
		t.Errorf("with a watch: %v", err)
	}
	if n := p.WatchCounts(); n != (report.WatchCounts{}) {
		t.Errorf("%+v", n)
	}
	check(t, p.Sync(time.Minute))
	p.Suspend()
	if err := p.Read(proto.OpExists, &proto.PathWatch{Path: "/open"}, &proto.Stat{}); err != report.ErrNotServing {
		t.Errorf("of a server that does not serve: %v", err)
	}
}
