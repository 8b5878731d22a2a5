package cluster

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// mixed gives the members restored snapshots that end with these entries, and makes them members of one cluster all the
// same, as an operator does who copies meta.json from one directory to the others.
func (f *fleet) mixed(ends ...uint64) {
	f.t.Helper()
	f.asked = 100
	for i, end := range ends {
		f.restored(i, end, int64(end))
		if err := f.disks[i].Open().SetIdentity(storage.Identity{Cluster: testCluster, Agreed: true}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// TestAheadOfLeader: a member has applied entries that the leader does not have, since its snapshot is of another history. It
// ends and says so, whether the leader's log reaches its snapshot's end or not, and is not sent a snapshot all the time. The
// others go on.
func TestAheadOfLeader(t *testing.T) {
	for _, writes := range []int{0, 1, 2, 30} {
		for _, down := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d writes, third member down %v", writes, down), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					f.mixed(9, 9, 13)
					f.start(0)
					f.start(1)
					until(t, "a leader", func() bool { return f.running[0].raft.begun.Load() != 0 || f.running[1].raft.begun.Load() != 0 })
					f.writes(0, writes)
					other := 1 - leadOf(t, f)
					if down {
						f.stop(other)
					}
					m := f.start(2)
					if err := receive(t, "its fault", m.Err()); !errors.Is(err, ErrDiffers) {
						t.Error(err)
					}
					f.stop(2)
					if down {
						f.start(other)
					}
					until(t, "a write", func() bool { return f.write(0) })
					time.Sleep(10 * time.Second)
					for i := range 2 {
						select {
						case err := <-f.running[i].Err():
							t.Errorf("server %d ends: %v", i+1, err)
						default:
						}
					}
				})
			})
		}
	}
}

// TestSameSnapshotAgain: a leader that sends a member the same snapshot again and again pauses in between, longer each time. It
// sends another one at once, and the same one if the last time is long ago.
func TestSameSnapshotAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := openTransport(t, memnet.New(), "leader")
		defer closeTransport(leader)
		q := raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 9}
		began, sent := time.Now(), 0
		for ; sent < 1000 && time.Since(began) < time.Minute; sent++ {
			leader.transport.pauseBefore("2", &q)
		}
		if most := int(time.Minute/defaultElectionTimeout) + 10; sent > most {
			t.Errorf("it was sent %d times in a minute, should be at most %d times", sent, most)
		}
		for what, q := range map[raft.ServerID]raft.InstallSnapshotRequest{
			"3": q, "2": {Term: 1, LastLogIndex: 12},
		} {
			began := time.Now()
			if leader.transport.pauseBefore(what, &q); time.Since(began) != 0 {
				t.Errorf("to %s, up to entry %d: it waits", what, q.LastLogIndex)
			}
		}
		time.Sleep(time.Minute) // the link may have failed nine times, and works now
		began = time.Now()
		if leader.transport.pauseBefore("2", &raft.InstallSnapshotRequest{Term: 1, LastLogIndex: 12}); time.Since(began) != 0 {
			t.Error("it waits because of what was long ago")
		}
	})
}
