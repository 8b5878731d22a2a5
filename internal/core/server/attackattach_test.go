package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// TestResumeWhileNotServing: the server closes all connections, since it does not serve clients any more, while one waits
// for its session to be resumed, and then the resume is applied. The session does not count as connected.
func TestResumeWhileNotServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, server.Config{Tick: time.Second})
		old := connectFor(t, p.dial, 4*time.Second)
		nc := must(p.dial())(t)
		p.loop.resume = func(w fsm.Waiter, propose func(fsm.Waiter)) {
			p.loop.resume = nil
			p.Suspend()
			time.Sleep(time.Second)
			propose(w)
		}
		if _, err := rawclient.Resume(nc, old.Session); err == nil {
			t.Fatal("the session is resumed")
		}
		time.Sleep(2 * time.Second)
		if p.Connected(old.Session.SessionID) {
			t.Error("the session counts as connected, and no connection is left")
		}
	})
}
