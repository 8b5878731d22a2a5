package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// slowSnapshots is a store on a slow disk: writes of a snapshot that ends with the entry at take that long.
type slowSnapshots struct {
	raft.SnapshotStore
	at    *uint64
	takes time.Duration
}

func (s slowSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, at, trans)
	if err == nil && index == *s.at {
		sink = slowSink{sink, s.takes}
	}
	return sink, err
}

type slowSink struct {
	raft.SnapshotSink
	takes time.Duration
}

func (s slowSink) Write(p []byte) (int, error) {
	time.Sleep(s.takes)
	return s.SnapshotSink.Write(p)
}

// openWith is open for a member whose storage is changed before it starts.
func (f *fleet) openWith(i int, cfg Config, change func(*storage.Storage)) *Member {
	f.t.Helper()
	m := New(cfg, fsm.NewReplica())
	s := cfg.Memory.Open()
	change(s)
	if err := m.startOn(s); err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = m
	return m
}

// TestOwnSnapshotEndsLate: while a member takes a snapshot, it gets one of the leader's that ends one entry later. Then it leads, and
// sends its log to a member that has the same as its own snapshot.
func TestOwnSnapshotEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		const lead, late, c = 0, 3, 4
		at := uint64(1 << 60)
		for i := range c {
			f.start(i)
		}
		f.openWith(c, f.config(c), func(s *storage.Storage) { s.Snapshots = slowSnapshots{s.Snapshots, &at, time.Minute} })
		f.whole()
		f.handTo(lead)
		f.writes(lead, 10)
		f.whole()
		time.Sleep(10 * time.Second)
		l, x := f.running[lead].raft, f.running[c].raft
		at = x.AppliedIndex()
		ended := make(chan error, 1)
		go func() { ended <- x.takeSnapshot() }()
		f.cutOff(c, true)
		f.cutOff(late, true)
		time.Sleep(20 * time.Second)
		f.writes(lead, 1)
		if err := l.takeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := l.storage.Log.FirstIndex(); first != at+1 || l.AppliedIndex() != at+1 || err != nil {
			t.Fatalf("the leader has entries %d to %d, want only %d: %v", first, l.AppliedIndex(), at+1, err)
		}
		f.cutOff(c, false)
		f.cutBetween(c, late, true)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		until(t, "the snapshot", func() bool { return x.AppliedIndex() > at })
		if newest := x.Stats()["last_snapshot_index"]; newest != fmt.Sprint(at+1) {
			t.Errorf("Raft takes the snapshot that ends with entry %s for the newest, not that with %d", newest, at+1)
		}
		f.handTo(c)
		f.net.Heal()
		f.whole()
		f.check()
	})
}

// TestTailRefused: a leader that has taken a snapshot is cut off with entries that nobody else has. When the next leader, whose log begins with
// the first entry, has others in their place, its disk is full. Later it has room, and is started again, and a majority needs it.
func TestTailRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		c := leadOf(t, f)
		if err := f.running[c].raft.takeSnapshot(); err != nil {
			t.Fatal(err)
		}
		f.cutOff(c, true)
		f.write(c)
		until(t, "another leader", func() bool { return f.write((c + 1) % 3) })
		time.Sleep(20 * time.Second)
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.net.Heal()
		until(t, "its fault", f.running[c].over.Load)
		time.Sleep(100 * time.Millisecond) // until its owner has closed it
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.start(c)
		time.Sleep(10 * time.Second)
		lead := leadOf(t, f)
		third := 3 - c - lead
		f.stop(third)
		until(t, "a write", func() bool { return f.write(lead) })
		f.start(third)
		f.whole()
		f.check()
	})
}

// TestSnapshotAfterItsEntries: a snapshot arrives late, when the member has all that it covers, and after that a list of the members in
// its log. That stays the newest list that it knows.
func TestSnapshotAfterItsEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(rand.NewPCG(1, 1)), "")
		defer l.close()
		l.propose(5)
		l.addMember()
		until(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
		l.snapshot(5)
		if have := l.follower.raft.servers(); len(have) != 4 {
			t.Errorf("its newest list of members is %v", have)
		}
	})
}

// TestSnapshotAfterItself: a snapshot arrives a second time, when the log of the member begins after the entry with which the snapshot
// ends, and has a list of the members. That stays the newest list that it knows.
func TestSnapshotAfterItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newScriptedLeader(t, rand.New(zeros{}), "")
		defer l.close()
		l.propose(5)
		at := l.last()
		l.committed = at
		l.snapshot(at) // with zeros, the empty entry at its end is not sent
		l.random = rand.New(rand.NewPCG(1, 1))
		l.propose(1)
		l.addMember()
		until(t, "all entries", func() bool { return l.replicate() && l.next > l.last() })
		if first, err := l.follower.raft.storage.Log.FirstIndex(); first != at+1 || err != nil {
			t.Fatalf("its log begins with entry %d: %v", first, err)
		}
		l.snapshot(at)
		if have := l.follower.raft.servers(); len(have) != 4 {
			t.Errorf("its newest list of members is %v", have)
		}
	})
}

// zeros is a source of zeros.
type zeros struct{}

func (zeros) Uint64() uint64 { return 0 }
