package cluster

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// TestEarlyPeer has another member send an entry while this one still starts:
// it waits, as it would in the backlog of a port.
func TestEarlyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, memory := memnet.New(), NewMemory()
		var peers sync.WaitGroup
		send := func(kind byte, say func(c net.Conn) error) {
			peers.Go(func() {
				c, err := hello(context.Background(), mem.Host("b"), "a:7", kind)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if err := say(c); err != nil {
					t.Error(err)
				}
				io.Copy(io.Discard, c) // until it is closed
			})
		}
		asked := false
		memory.SetFault(func() error { // between the port and Raft, the log is written
			if asked {
				return nil
			}
			asked = true
			send(kindForward, func(c net.Conn) error {
				e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
				return writeMessage(c, msgBatch, fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1}))
			})
			send(kindAdmin, func(c net.Conn) error {
				_, err := io.WriteString(c, `{"status":true}`+"\n")
				return err
			})
			time.Sleep(time.Second)
			return nil
		})
		m, err := Open(Config{
			ID: 1, Peers: map[uint64]string{1: "a:7", 2: "b:7"}, Network: mem.Host("a"), Memory: memory,
			Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1 << 20, Log: slog.New(slog.DiscardHandler),
		}, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		if !asked {
			t.Error("nothing was written")
		}
		synctest.Wait() // they were let in
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		peers.Wait()
	})
}
