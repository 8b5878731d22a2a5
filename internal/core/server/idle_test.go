package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestIdle: while its client is idle, a connection has no buffer and no writer. It still
// takes requests that arrive in parts or many at once, and sends events.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, connect := servePipes(t)
		idle := func(when string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			for _, c := range s.connections() {
				if c.r != nil || c.scratch != nil || c.out.writing || c.out.buf != nil || c.out.spare != nil {
					t.Errorf("%s: an idle connection has a buffer or a writer", when)
				}
			}
		}
		c, other := connect(), connect()
		idle("after the handshake")
		if err := c.Ping(); err != nil {
			t.Fatal(err)
		}
		idle("after a ping")

		get := rawclient.Request(nil, 7, proto.OpGetData, &proto.PathWatch{Path: "/", Watch: true})
		for _, part := range [][]byte{get[:1], get[1:3], get[3:6], get[6:14], get[14:]} {
			time.Sleep(time.Second)
			if err := c.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if f, err := c.Read(); err != nil || f.Xid != 7 || f.Code != proto.OK {
			t.Errorf("a request in parts: %+v, %v", f, err)
		}
		idle("after a request in parts")

		if _, err := other.Set("/", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if f, err := c.Read(); err != nil || f.Xid != proto.XidEvent {
			t.Errorf("the event: %+v, %v", f, err)
		}
		idle("after an event")

		for range 1000 {
			c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/"})
		}
		go c.Flush()
		for i := range 1000 {
			if f, err := c.Read(); err != nil || f.Code != proto.OK {
				t.Fatalf("reply %d: %+v, %v", i, f, err)
			}
		}
		idle("after many requests")
	})
}
