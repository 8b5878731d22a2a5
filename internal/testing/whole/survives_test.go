package whole

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestSurvivesRestart sends random requests to a server, with quotas, ACLs of many users,
// sessions that come and go, and many snapshots. Its directory must then pass the check,
// and must have every znode and session as before when it is opened again.
func TestSurvivesRestart(t *testing.T) {
	first := testkit.Seed(t)
	for _, seed := range []uint64{1, first} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { survive(t, seed) })
		})
	}
}

func survive(t *testing.T, seed uint64) {
	const super = "super:lK75jTNcA+U9vtVEw5vB51mj/w4=" // super:secret
	r := rand.New(rand.NewPCG(seed, 0))
	cfg := lockkeeper.Config{Auth: lockkeeper.Auth{SuperDigest: super}, Features: lockkeeper.Features{EnforceQuota: r.IntN(2) == 0}, ContainerCheckInterval: time.Hour}
	beside := open(t, cfg)
	cfg.DataDir, cfg.Limits.SnapshotBytes = testkit.MemoryDir(t), 1<<(10+r.IntN(10))
	s := open(t, cfg)
	for _, s := range []*lockkeeper.Server{s, beside} { // random clients may not write this
		root := connect(t, inMemory(s))
		must(root.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("super:secret")}, nil))(t)
		must(root.Set("/zookeeper/config", []byte("no list\nof members")))(t)
		must(root.Call(proto.OpCloseSession, nil, nil))(t)
	}

	// The requests are those of a comparison with another server. It is cut off before it
	// deletes its znodes.
	a := &severed{dial: inMemory(s), left: 300 + r.IntN(1000)}
	b := &severed{dial: inMemory(beside), left: math.MaxInt}
	report, err := differ.Run(t.Context(), differ.Options{
		A: a.connect, B: b.connect, Seed: seed, Ops: 4000, Round: 4000, Super: "super:secret", NoMasks: true, Patience: time.Second, Minimize: 1,
	})
	if a.left > 0 {
		t.Fatalf("the requests ended %d writes too early: %v\n%v", a.left, err, report)
	}
	want := everything(t, s)
	if len(want) < 15 {
		t.Errorf("there are few znodes:\n%s", strings.Join(want, "\n"))
	}
	sessions := 0
	for round := range 3 {
		check(t, s.Close())
		stored := must(storage.Check(cfg.DataDir))(t)
		if round > 0 && stored.Sessions != sessions || stored.Sessions == 0 || stored.Znodes != len(want) {
			t.Errorf("round %d: %+v, but there were %d znodes and %d sessions", round, stored, len(want), sessions)
		}
		sessions = stored.Sessions
		s = open(t, cfg)
		if got := everything(t, s); !slices.Equal(got, want) {
			t.Fatalf("round %d: the znodes are\n%s\nbut were\n%s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// severed connects to a server. After the given number of writes it closes all connections
// and makes no more.
type severed struct {
	dial dialer

	mu    sync.Mutex
	left  int
	conns []net.Conn
}

func (s *severed) connect(context.Context) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left <= 0 {
		return nil, io.ErrClosedPipe
	}
	c, err := s.dial()
	if err == nil {
		s.conns = append(s.conns, c)
	}
	return severedConn{c, s}, err
}

type severedConn struct {
	net.Conn
	s *severed
}

func (c severedConn) Write(b []byte) (int, error) {
	c.s.mu.Lock()
	if c.s.left--; c.s.left == 0 {
		for _, c := range c.s.conns {
			c.Close()
		}
	}
	c.s.mu.Unlock()
	return c.Conn.Write(b)
}

// everything lists the znodes of a server, with data, Stat and ACL.
func everything(t *testing.T, s *lockkeeper.Server) (lines []string) {
	t.Helper()
	c := connect(t, inMemory(s))
	must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("super:secret")}, nil))(t)
	must(c.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
	paths := []string{"/"}
	for len(paths) > 0 {
		path := paths[0]
		paths = paths[1:]
		var acl proto.ACLReply
		var children proto.ChildrenReply
		data := must(c.Get(path, false))(t)
		must(c.Call(proto.OpGetACL, &proto.Path{Path: path}, &acl))(t)
		must(c.Call(proto.OpGetChildren, &proto.PathWatch{Path: path}, &children))(t)
		lines = append(lines, fmt.Sprintf("%q %q %+v %q", path, data.Data, data.Stat, acl.ACL))
		for _, name := range children.Names {
			paths = append(paths, strings.TrimSuffix(path, "/")+"/"+name)
		}
	}
	must(c.Call(proto.OpCloseSession, nil, nil))(t)
	slices.Sort(lines)
	return lines
}
