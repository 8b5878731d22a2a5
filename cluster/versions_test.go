package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// until waits for a condition.
var until = testkit.Eventually

// threeMembers opens a cluster and returns it with the leader's index.
func threeMembers(t *testing.T, n *memnet.Network, log *testkit.Log) (members []*Member, lead int) {
	t.Helper()
	return startMembers(t, n, log, 3, time.Second)
}

// startMembers opens the members of a cluster, on hosts a, b and so on, waits until
// they serve and have their votes, and returns them and the index of the leader.
func startMembers(t *testing.T, n *memnet.Network, log *testkit.Log, count int, tick time.Duration) (members []*Member, lead int) {
	t.Helper()
	return openMembers(t, count, func(host string) Network { return n.Host(host) }, func(cfg *Config) {
		cfg.Tick, cfg.Log = tick, log.Logger(slog.LevelWarn)
	})
}

// openMembers opens the members of a cluster, each configured as change says, if that is not nil.
func openMembers(t *testing.T, count int, host func(string) Network, change func(*Config)) (members []*Member, lead int) {
	t.Helper()
	peers := addresses(count)
	for id := uint64(1); id <= uint64(count); id++ {
		cfg := memberConfig(id, peers, host(peers[id][:1]))
		if change != nil {
			change(&cfg)
		}
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		members = append(members, m)
	}
	for _, m := range members {
		<-m.Ready()
		// A member that started late has found the cluster running, and gets its vote when it
		// has caught up.
		until(t, "every member's vote", func() bool {
			infos, err := m.raft.members()
			return err == nil && voters(infos) == count
		})
	}
	return members, leaderOf(t, members)
}

// leaderOf waits for a leader among the members that run, and returns its index.
func leaderOf(t *testing.T, members []*Member) (lead int) {
	t.Helper()
	until(t, "a leader", func() bool {
		lead = slices.IndexFunc(members, func(m *Member) bool { return m != nil && m.Role() == "leader" })
		return lead >= 0
	})
	return lead
}

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
				var log testkit.Log
				members, lead := threeMembers(t, memnet.New(), &log)
				other := members[(lead+1)%3]
				c, err := callPeer(other.peers.network, members[lead].cfg.addr(), kindForward, other.membership.gate.cluster())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := writeMessage(c, msgBatch, entry); err != nil {
					t.Fatal(err)
				}
				if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
					t.Errorf("answered %q, %v", b, err)
				}
				if n := log.Count("refusing a peer's entry"); n != 1 || log.Count("upgrade this one") != 1 {
					t.Errorf("the log reports %d refusals: %s", n, log.String())
				}
				done := make(result, 1)
				other.Propose(someWrite(), done, nil)
				if err := <-done; err != nil {
					t.Errorf("the next entry: %v", err)
				}

				members[lead].raft.Apply(entry, time.Second)
				for i, m := range members {
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
		var log testkit.Log
		n := memnet.New()
		members, _ := threeMembers(t, n, &log)
		for range 100 {
			for _, kind := range []byte{kindRaft, kindStream, kindForward, kindAdmin} {
				c, err := n.Host("d").Dial(context.Background(), "a:1")
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(c, "%c%c{\"status\":true}\n", kind, peerVersion+1)
				if b, _ := io.ReadAll(c); len(b) > 0 {
					t.Errorf("answered %q", b)
				}
				c.Close()
			}
		}
		if got := log.Count("speaks another version"); got != 1 || log.Count("upgrade") != 1 {
			t.Errorf("logged %d times: %s", got, log.String())
		}
		done := make(result, 1)
		members[0].Propose(someWrite(), done, nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
