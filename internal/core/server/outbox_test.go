package server

import (
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestBlockedWriters sends an event to many connections at once, of which only the last
// one's client reads. The others block their writers. Every client gets its event when it
// reads, and no writer is left at the end.
func TestBlockedWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{ID: 1, Proposer: &cutting{}, Replica: fsm.NewReplica(), Log: testkit.Quiet})
		const n = 20
		var conns []*conn
		var clients []net.Conn
		for range n {
			client, raw := net.Pipe()
			c := &conn{s: s, nc: raw, raw: raw, gone: make(chan struct{})}
			c.out.init(1 << 20)
			c.out.begin(c)
			conns, clients = append(conns, c), append(clients, client)
		}
		s.enter() // like a connection's reader, since Wait must not return yet
		for i, c := range conns {
			c.Event(int64(i), proto.EventNodeDataChanged, "/watched")
		}
		observer{s}.Applied(0, 0, 0)
		length := 4 + 16 + 4 + 4 + 4 + len("/watched")
		for i := n - 1; i >= 0; i-- { // if the last one is not sent, all goroutines wait and the test fails
			frame := make([]byte, length)
			if _, err := io.ReadFull(clients[i], frame); err != nil || frame[4+4+7] != byte(i) {
				t.Errorf("client %d: got event %d, %v", i, frame[4+4+7], err)
			}
		}
		synctest.Wait()
		for _, c := range conns {
			if c.out.writing || len(c.out.buf) > 0 {
				t.Error("an outbox still waits for a writer")
			}
			c.kill()
		}
		synctest.Wait()
		for i, c := range conns {
			if !c.out.ended {
				t.Errorf("connection %d has not ended", i)
			}
		}
		s.wg.Done()
		s.Wait() // for the writers
	})
}
