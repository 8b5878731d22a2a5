package cluster

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
)

// newer returns an entry as a later version could write it.
func newer(change func(entry []byte, e *fsm.Envelope) []byte) []byte {
	e := &fsm.Envelope{Origin: 2, Batch: 1 << 62, Count: 1}
	return change(fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing()), e)
}

var newerEntries = map[string][]byte{
	"version": newer(func(b []byte, e *fsm.Envelope) []byte { b = fsm.EndEntry(b, e); b[0]++; return b }),
	"operation": newer(func(b []byte, e *fsm.Envelope) []byte {
		e.Count++
		return fsm.EndEntry(fsm.AppendCommand(b, &fsm.Command{Op: 110, Session: 77, Conn: 1}), e)
	}),
	"setting": newer(func(b []byte, e *fsm.Envelope) []byte { e.Settings = 1 << 31; return fsm.EndEntry(b, e) }),
}

// TestNewerEntry: a leader refuses an entry of a newer member that it does not
// understand, and the cluster keeps working; a member that finds such an entry in its
// log reports it in one line and applies nothing more.
func TestNewerEntry(t *testing.T) {
	for name, entry := range newerEntries {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 1)
				lead := leadOf(t, f)
				other := f.running[(lead+1)%3]
				c, err := callPeer(other.peers.Network, f.running[lead].cfg.Address(), peer.KindForward, other.pulse.gate.Cluster())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := peer.WriteMessage(c, propose.MsgBatch, entry); err != nil {
					t.Fatal(err)
				}
				if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
					t.Errorf("answered %q, %v", b, err)
				}
				synctest.Wait()
				if n := f.log.Count("refusing a peer's entry"); n != 1 || f.log.Count("upgrade this one") != 1 {
					t.Errorf("the log reports %d refusals: %s", n, f.log.String())
				}
				did(t, other, someWrite())
				f.running[lead].engine.Propose(entry, time.Second)
				for i, m := range f.running {
					err := <-m.Err()
					if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, "log entry ") || !strings.Contains(text, "upgrade this one") {
						t.Errorf("member %d: %v", i+1, err)
					}
				}
			})
		})
	}
}

// TestNewerPeer: connections of a later protocol version are refused, which is logged
// only once in a while.
func TestNewerPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		for range 100 {
			for _, kind := range []byte{peer.KindRaft, peer.KindForward, peer.KindAdmin} {
				c, err := f.net.Host("d").Dial(t.Context(), "a:1")
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(c, "%c%c{\"status\":true}\n", kind, peer.Version+1)
				if b, _ := io.ReadAll(c); len(b) > 0 {
					t.Errorf("answered %q", b)
				}
				c.Close()
			}
		}
		if got := f.log.Count("speaks another version"); got != 1 || f.log.Count("upgrade") != 1 {
			t.Errorf("logged %d times: %s", got, f.log.String())
		}
		did(t, f.running[0], someWrite())
	})
}
