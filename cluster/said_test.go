package cluster

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestWaitingIsSaidOnce: at level INFO, a member that waits for others says what it waits for once,
// and again when that is something else, not at each attempt.
func TestWaitingIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.level = slog.LevelInfo
		f.start(0)
		time.Sleep(2900 * time.Millisecond) // the first warning comes after three seconds
		count := func(want int, words ...string) {
			t.Helper()
			if n := len(f.log.Matching(append(words, "not in the cluster yet")...)); n != want {
				t.Errorf("said %q %d times instead of %d:\n%s", words, n, want, f.log.String())
			}
		}
		count(1)
		f.start(1)
		time.Sleep(1100 * time.Millisecond)
		count(1, "level=INFO", "error=\"waiting for server 2")
	})
}

// TestWaitingForALeader: a member that has lost its disk says what it waits for while the others have no leader.
func TestWaitingForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		for i := range 3 {
			f.start(i)
		}
		f.whole()
		for i := range 3 {
			f.stop(i)
		}
		f.lose(0)
		f.start(0)
		f.start(1)
		time.Sleep(10 * time.Second)
		if why := f.running[0].Waiting(); !strings.Contains(why, "waiting for the leader of the cluster that b:1 belongs to") {
			t.Errorf("it waits for %q", why)
		}
		if why := f.running[1].Waiting(); !strings.HasPrefix(why, "no majority can be reached without server ") {
			t.Errorf("the one with its disk waits for %q", why)
		}
	})
}

// TestPeerTLSMismatch: a member without TLS and one with it say of each other what is wrong.
func TestPeerTLSMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		n := memnet.New()
		threeMembers(t, n, &log)
		c, err := n.Host("d").Dial(context.Background(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx); err == nil {
			t.Error("TLS works")
		}
		c.Close()
		if log.Count("refusing a peer that uses TLS") != 1 || log.Count("another version") != 0 {
			t.Errorf("logged: %s", log.String())
		}
	})
}
