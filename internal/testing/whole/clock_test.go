package whole

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestClockJumps sets a server's clock. The times of znodes and the ends of TTLs follow
// it; the ends of sessions do not.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		var ahead atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		cfg := lockkeeper.Config{ContainerCheckInterval: time.Second}
		testhooks.In(&cfg).TimeOfDay = clock
		s := open(t, cfg)
		live, silent := connectFor(t, inMemory(s), 10*time.Second), connectFor(t, inMemory(s), 10*time.Second)
		do := func(op proto.OpCode, q, r proto.Record) {
			t.Helper()
			if _, err := live.Call(op, q, r); err != nil {
				t.Fatalf("%v: %v", op, err)
			}
		}
		create := proto.CreateRequest{Path: "/a", ACL: proto.OpenACL}
		do(proto.OpCreate, &create, nil)
		create.Path, create.Flags = "/ttl", proto.FlagTTL
		do(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: create, TTL: time.Hour.Milliseconds()}, nil)
		children := func() []string {
			var r proto.ChildrenReply
			do(proto.OpGetChildren, &proto.PathWatch{Path: "/"}, &r)
			slices.Sort(r.Names)
			return r.Names
		}
		for i, jump := range []time.Duration{-100 * year, 30 * time.Minute, -30 * time.Minute, -200 * year} {
			ahead.Store(int64(jump))
			var stat proto.Stat
			do(proto.OpSetData, &proto.SetDataRequest{Path: "/a", Version: -1}, &stat)
			if want := clock().UnixMilli(); stat.Mtime != want {
				t.Errorf("after jump %d: mtime %d, want %d", i+1, stat.Mtime, want)
			}
			time.Sleep(2 * time.Second)
			if got := children(); !slices.Contains(got, "ttl") {
				t.Errorf("after jump %d there are %q, although the hour is not over", i+1, got)
			}
		}
		if _, err := silent.Call(proto.OpExists, &proto.PathWatch{Path: "/a"}, nil); err != nil {
			t.Errorf("a session of 10 s, after 8 s of silence: %v", err)
		}
		ahead.Store(int64(time.Hour))
		time.Sleep(2 * time.Second)
		if got := children(); slices.Contains(got, "ttl") {
			t.Errorf("after the hour there are %q", got)
		}
		ahead.Store(int64(-time.Hour))
		for range 8 {
			time.Sleep(2 * time.Second)
			do(proto.OpPing, nil, nil)
		}
		if _, err := silent.Read(); err == nil {
			t.Error("a session of 10 s still has its connection after 18 s of silence")
		}
	})
}
