package cluster

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// TestEarlyPeer: an entry that another member sends while this one is still starting
// waits, as it would in the backlog of a TCP port.
func TestEarlyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memnet.New()
		var peers sync.WaitGroup
		send := func(kind byte, say func(c net.Conn) error) {
			peers.Go(func() {
				c, err := callPeer(mem.Host("b"), "a:7", kind, testCluster)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if err := say(c); err != nil && !errors.Is(err, syscall.EPIPE) { // it may have been refused already
					t.Error(err)
				}
				io.Copy(io.Discard, c) // until it is closed
			})
		}
		listened := false
		network := slowNetwork{mem.Host("a"), func() {
			listened = true
			send(kindForward, func(c net.Conn) error {
				e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
				return writeMessage(c, msgBatch, fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1}))
			})
			send(kindAdmin, func(c net.Conn) error {
				_, err := io.WriteString(c, `{"status":true}`+"\n")
				return err
			})
			time.Sleep(time.Second)
		}}
		m, err := openMember(memberConfig(1, map[uint64]string{1: "a:7", 2: "b:7"}, network), fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		if !listened {
			t.Error("the member did not listen")
		}
		synctest.Wait() // the connections were accepted
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		peers.Wait()
	})
}

// slowNetwork calls listening when a port is open, before Listen returns.
type slowNetwork struct {
	Network
	listening func()
}

func (n slowNetwork) Listen(addr string) (net.Listener, error) {
	l, err := n.Network.Listen(addr)
	n.listening()
	return l, err
}
