package whole

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// unreadLog is the handler of a log that blocks once unread is set, until the test ends.
type unreadLog struct {
	unread atomic.Bool
	end    chan struct{}
}

func (u *unreadLog) Enabled(context.Context, slog.Level) bool { return true }
func (u *unreadLog) WithAttrs([]slog.Attr) slog.Handler       { return u }
func (u *unreadLog) WithGroup(string) slog.Handler            { return u }
func (u *unreadLog) Handle(context.Context, slog.Record) error {
	if u.unread.Load() {
		<-u.end
	}
	return nil
}

// TestUnreadLog: a server whose log nobody reads serves, refuses, ends connections and sessions, and closes.
func TestUnreadLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &unreadLog{end: make(chan struct{})}
		defer close(log.end)
		s := open(t, lockkeeper.Config{Logger: slog.New(log), Limits: lockkeeper.Limits{MaxConnections: 2}})
		log.unread.Store(true)
		c, left := connectFor(t, inMemory(s), 30*time.Second), connectFor(t, inMemory(s), 10*time.Second)
		must(left.Create("/left", nil, proto.FlagEphemeral))(t)
		if _, err := rawclient.Open(must(inMemory(s)())(t), 10*time.Second); err == nil {
			t.Error("a third client is served")
		}
		left.Close()
		rawtest.SetQuota(t, c, "count=1,bytes=-1")
		must(c.Create("/q/beyond", nil, 0))(t) // which is logged

		time.Sleep(time.Second)
		bad := connectFor(t, inMemory(s), 10*time.Second)
		bad.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "none"}, nil)
		if _, err := bad.Read(); err != io.EOF {
			t.Errorf("after bad input: %v", err)
		}
		time.Sleep(20 * time.Second)
		if _, err := c.Exists("/left", false); err != proto.NoNode {
			t.Errorf("after the session: %v", err)
		}
		alive(t, connectFor(t, inMemory(s), 10*time.Second)) // those before have left room
		closesSoon(t, s)
	})
}

// TestUnreadLogs: nobody reads the logs of a cluster. Changes of its members are answered, a member that is cut off closes its
// clients' connections, and the members close.
func TestUnreadLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &unreadLog{end: make(chan struct{})}
		defer close(log.end)
		m := startMembers(t, 3, func(c *lockkeeper.Config) {
			c.Features.Reconfig, c.Auth.SuperDigest, c.Logger = true, superDigest, slog.New(log)
		})
		log.unread.Store(true)
		lead := m.leader()
		other := (lead + 1) % 3
		c := superUser(t, m.connect(other, time.Minute))
		began := time.Now()
		must(reconfig(c, "", "77", "", -1))(t)
		check(t, m.servers[other].RemoveMember(t.Context(), uint64((lead+2)%3+1)))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the answers took %v", took)
		}
		alive(t, c)
		m.cutOff(other, true)
		if _, err := c.Read(); err != io.EOF {
			t.Errorf("a client of a member that is cut off: %v", err)
		}
		for _, s := range m.servers {
			closesSoon(t, s)
		}
	})
}

// closesSoon closes a server, which waits for its log no longer than a second.
func closesSoon(t *testing.T, s *lockkeeper.Server) {
	t.Helper()
	began := time.Now()
	check(t, s.Close())
	if took := time.Since(began); took != time.Second {
		t.Errorf("Close took %v", took)
	}
}
