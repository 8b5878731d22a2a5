package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// losing is a network on which requests for a place in the cluster are lost while holds is true or, if refused is set,
// refused.
type losing struct {
	Network
	holds   atomic.Bool
	refused bool
}

func (n *losing) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return losingConn{c, n}, nil
}

type losingConn struct {
	net.Conn
	n *losing
}

func (c losingConn) Write(b []byte) (int, error) {
	switch {
	case !bytes.Contains(b, []byte(`"add":`)) || !c.n.holds.Load():
		return c.Conn.Write(b)
	case !c.n.refused:
		return 0, &net.OpError{Op: "write", Err: errors.New("reset")}
	}
	_, err := c.Conn.Write([]byte(`{"remove":99,"cluster":"00000000000000ff"}` + "\n"))
	return len(b), err
}

// TestRemovedBeforeItAsked: a server joins with the id and the address of a member that was removed before, or of none, and
// its first requests are lost or refused. Meanwhile another server is added. Then a member leads that has got both changes
// in a snapshot which ends after the server began to ask, or that was started with one. The server is added.
func TestRemovedBeforeItAsked(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct{ before, refused, restarted bool }{
		{true, false, false}, {true, true, false}, {false, false, false}, {false, false, true},
	} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := f.found(3)
				lead := leadOf(t, f)
				next := (lead + 1) % 3
				third := 3 - lead - next
				operator := func(q Request) {
					if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], q); err != nil {
						t.Fatal(err)
					}
				}
				if x.before {
					operator(Request{Add: &proto.Peer{ID: 4, Addr: "d:1", Observer: true}})
					until(t, "the addition", func() bool {
						s, _ := f.running[next].Status()
						return find(s.Members, 4) != nil && f.running[next].raft.AppliedIndex() == f.running[lead].raft.LastIndex()
					})
				}
				f.cutOff(next, !x.restarted)
				if x.before {
					operator(Request{Remove: 4})
				}
				f.writes(lead, 20)
				cfg := f.config(3)
				cfg.Peers, cfg.Addr, cfg.Join = nil, "d:1", f.peers[uint64(third+1)]
				n := &losing{Network: cfg.Network, refused: x.refused}
				n.holds.Store(true)
				cfg.Network = n
				m := f.open(3, cfg)
				time.Sleep(10 * time.Second)
				operator(Request{Add: &proto.Peer{ID: 5, Addr: "e:1", Observer: true}})
				f.writes(lead, 20)
				if x.restarted {
					f.snapshot(3)
					f.stop(next)
					f.open(next, config(next))
				} else if err := f.running[lead].raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
				f.net.Heal()
				until(t, "the snapshot", func() bool {
					newest, _ := f.running[next].raft.storage.NewestSnapshot()
					return newest.Index > 0
				})
				f.handTo(next)
				time.Sleep(10 * time.Second)
				n.holds.Store(false)
				if err := fault(m, time.Minute); err != nil {
					t.Errorf("its fault is %v", err)
				}
				if s, _ := f.running[next].Status(); find(s.Members, 4) == nil {
					t.Errorf("it was not added: %v", s.Members)
				}
			})
		})
	}
}
