package cluster

import (
	"bytes"
	"crypto/rand"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
	"github.com/lockkeeper/lockkeeper/internal/storage"
)

// TestSilentDuringSnapshot: a leader that falls silent while it sends a snapshot, or whose
// disk gets stuck then, is replaced like any other, with the vote of the member that
// receives the snapshot.
func TestSilentDuringSnapshot(t *testing.T) {
	for name, stuck := range map[string]bool{"silent": false, "disk stuck": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, nil)
				leader, other, late := members[lead], members[(lead+1)%3], members[(lead+2)%3]
				again := stopUntilSnapshot(t, late, leader)
				half := make(chan struct{})
				release := make(chan struct{})
				defer close(release)
				var once sync.Once
				from, to := hostOf(leader), hostOf(late)
				came := func(w *wire) {
					if w.dialed || w.from != from || w.to != to {
						return
					}
					w.mu.Lock()
					kind, read := w.kind, w.read
					w.mu.Unlock()
					if kind != kindRaft || read < 2<<20 {
						return
					}
					once.Do(func() {
						if stuck {
							leader.cfg.Memory.SetFault(func() error { <-release; return nil })
							leader.Propose(someWrite(), make(result, 1), nil)
						} else {
							net.Pause(hostOf(leader), true)
						}
						close(half)
					})
					if stuck { // nor does the snapshot come any further
						select {
						case <-release:
						case <-w.gone:
						}
					}
				}
				net.came.Store(&came)
				late = again()
				<-half
				began := time.Now()
				for other.raft.State() != raft.Leader {
					if time.Sleep(10 * time.Millisecond); time.Since(began) > time.Minute {
						break
					}
				}
				if took, most := time.Since(began), leader.contacts.silence+time.Second; took > most {
					t.Fatalf("another member leads after %v, should within %v", took, most)
				}
				select {
				case <-late.Ready():
				case <-time.After(3 * late.contacts.silence):
					t.Error("the late member does not catch up with the next leader")
				}
			})
		})
	}
}

// TestSnapshotBeforeRaft: Raft is given a snapshot only when all of it is here, and while it
// installs it, this member counts as one whose disk is stuck.
func TestSnapshotBeforeRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		follower.raft.storage = storage.NewMemory().Open()
		data := make([]byte, 3_000_000)
		rand.Read(data)
		there, more := io.Pipe()
		sent := make(chan error, 1)
		var r raft.InstallSnapshotResponse
		go func() {
			sent <- leader.transport.NetworkTransport.InstallSnapshot("2", "follower:1", &raft.InstallSnapshotRequest{Size: int64(len(data))}, &r, there)
		}()
		for rest := data; len(rest) > 0; rest = rest[len(data)/30:] { // it takes longer than an election timeout
			select {
			case <-follower.transport.Consumer():
				t.Fatal("Raft is given a part")
			case <-time.After(leader.silence / 5):
			}
			more.Write(rest[:len(data)/30])
		}
		more.Close()
		rpc := <-follower.transport.Consumer()
		if b, err := io.ReadAll(rpc.Reader); err != nil || !bytes.Equal(b, data) {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		for range 50 { // a slow disk, and a leader that waits for it
			time.Sleep(leader.silence / 10)
			follower.contacts.tick(follower.now().now)
		}
		if stalled := follower.raft.stall.length(follower.now()); stalled < 4*leader.silence {
			t.Errorf("it counts as stuck for %v", stalled)
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		if err := <-sent; err != nil || !r.Success {
			t.Errorf("%+v, %v", r, err)
		}
		synctest.Wait()
		if stalled := follower.raft.stall.length(follower.now()); stalled != 0 {
			t.Errorf("it counts as stuck for %v afterwards", stalled)
		}
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStuckFollower: a member whose disk is stuck for long does not collect the leader's
// messages, and has everything soon after its disk works again.
func TestStuckFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWires()
		members, lead := net.open(t, 3, nil)
		leader, m := members[lead], members[(lead+1)%3]
		time.Sleep(10 * time.Second)
		held := func() int {
			stacks := make([]byte, 4<<20)
			return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), ").handleConn(")
		}
		before := held()
		release := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-release; return nil })
		for i := range 60 {
			fill(t, leader, string(rune('A'+i)), 1, 900_000)
			time.Sleep(8 * time.Second)
		}
		if now := held(); now > before+10 {
			t.Errorf("%d connections of Raft are open, %d before", now, before)
		}
		m.cfg.Memory.SetFault(nil)
		close(release)
		began := time.Now()
		last := leader.commits.applied()
		until(t, "all entries", func() bool { return m.commits.applied() >= last })
		if took := time.Since(began); took > m.contacts.silence {
			t.Errorf("it has them after %v", took)
		}
	})
}
