package server

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// servePipes starts a server, and returns it with a function that opens a session of an hour.
func servePipes(t *testing.T) (s *Server, connect func() *rawclient.Client) {
	p := newApplying()
	s = New(Config{
		ID: 1, Proposer: p, Replica: p.replica, Log: testkit.Quiet,
		Limits: Limits{MaxSessionTimeout: time.Hour, MaxFrame: 1 << 20, MaxOutstanding: 10, OutboxBytes: 4 << 20, HandshakeTimeout: 10 * time.Second},
	})
	s.Open()
	t.Cleanup(func() {
		s.Close()
		s.Wait()
	})
	return s, func() *rawclient.Client {
		client, ours := net.Pipe()
		go s.ServeConn(ours)
		return testkit.Must(rawclient.Open(client, time.Hour))(t)
	}
}

// TestHandovers: the handover of a lock is measured once, from the event that tells a client
// that the znode before its own is gone, until that client reads. Nothing else is measured.
func TestHandovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, connect := servePipes(t)
		time.Sleep(time.Second) // not at the time that stands for none
		holder, waiter := connect(), connect()
		do := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"/lock-0000000001", "/lock-0000000002", "/config"} {
			do(holder.Create(path, nil, 0))
			do(waiter.Get(path, true))
		}
		want, sum := int64(0), time.Duration(0)
		check := func(when string, n int64, took time.Duration) {
			t.Helper()
			want, sum = want+n, sum+took
			if got := s.Handovers(); got.Count != want || got.Sum != sum {
				t.Errorf("%s: %d handovers in %v, want %d in %v", when, got.Count, got.Sum, want, sum)
			}
		}
		do(holder.Set("/lock-0000000001", nil))
		time.Sleep(time.Second)
		do(waiter.Get("/lock-0000000001", true))
		check("after a change of data", 0, 0)

		do(nil, holder.Delete("/config"))
		time.Sleep(time.Second)
		do(waiter.Get("/", false))
		check("after another znode was deleted", 0, 0)

		do(nil, holder.Delete("/lock-0000000001"))
		time.Sleep(70 * time.Millisecond)
		do(nil, holder.Delete("/lock-0000000002"))
		time.Sleep(50 * time.Millisecond)
		do(nil, waiter.Ping())
		do(waiter.Create("/mine", nil, 0))
		check("before the client reads", 0, 0)
		do(waiter.Get("/mine", false))
		check("when the client has read", 1, 120*time.Millisecond)
		do(waiter.Get("/mine", false))
		check("when it has read again", 0, 0)
	})
}
