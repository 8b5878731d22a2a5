package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// olderLog is what a build of commit 0e1175e wrote, from before clusters had ids: a client's
// reconfig added an observer with an address for clients, which was then removed, and a znode was
// created. The snapshot has the state after that, as that build has made it.
type olderLog struct {
	Log []struct {
		Index uint64
		Type  byte
		Data  []byte
	}
	Index    uint64
	Zxid     int64
	Snapshot []byte
}

func readOlderLog(t *testing.T) (x olderLog) {
	b, err := os.ReadFile("testdata/older.json")
	if err == nil {
		err = json.Unmarshal(b, &x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestOlderLogSameState: a log from before clusters had ids leads to the state to which it led then.
func TestOlderLogSameState(t *testing.T) {
	x := readOlderLog(t)
	then, err := fsm.ReadSnapshot(bytes.NewReader(x.Snapshot))
	if err != nil {
		t.Fatal(err)
	}
	now := fsm.NewMachine()
	for _, l := range x.Log {
		if raft.LogType(l.Type) == raft.LogConfiguration {
			now.SetMembers(l.Index, fsm.Members(raft.DecodeConfiguration(l.Data)))
		} else if err := now.Apply(l.Index, 1, l.Data, nil); err != nil {
			t.Fatal(err)
		}
	}
	if now.Zxid() != then.Zxid() || now.Quick() != then.Quick() {
		t.Errorf("entries up to %d: zxid %x, digest %x; the build that wrote them had %x, %x", now.Index(), now.Zxid(), now.Quick(), then.Zxid(), then.Quick())
	}
}

// TestOlderLogUpgrade: the upgrade of docs/operations.md. The last of three members has a snapshot (it
// had been behind, say, and the leader had sent it its own), the others have the log.
func TestOlderLogUpgrade(t *testing.T) {
	for name, n := range map[string]struct{ members, snapshots int }{"one of three": {3, 1}, "two of three": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { olderLogUpgrade(t, n.members, n.snapshots) })
		})
	}
}

func olderLogUpgrade(t *testing.T, members, snapshots int) {
	f := newFleet(t, members)
	x := readOlderLog(t)
	for i := range members {
		s := f.disks[i].Open()
		first := ptr(f.config(i)).first()
		if err := s.Stable.SetUint64([]byte(storage.TermKey), 1); err != nil {
			t.Fatal(err)
		}
		if i < members-snapshots {
			for _, l := range x.Log {
				if err := s.Log.StoreLog(&raft.Log{Index: l.Index, Term: 1, Type: raft.LogType(l.Type), Data: l.Data}); err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, x.Index, 1, first, x.Index-1, newLoneTransport("x"))
		if err == nil {
			_, err = sink.Write(x.Snapshot)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range members {
		f.start(i)
	}
	time.Sleep(time.Minute)
	for i, m := range f.running {
		select {
		case err := <-m.Err():
			t.Errorf("server %d: %v", i+1, err)
			f.stop(i) // as its owner does
		default:
		}
	}
	time.Sleep(time.Minute)
	ok := false
	for i, m := range f.running {
		ok = ok || m != nil && f.write(i)
	}
	if !ok {
		t.Error("nobody serves")
	}
}
