package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestCannotReadWhatItStreams: a follower's disk was stuck for a while. When its leader, whose stream to it is still open, goes on with
// the entries that it has missed, the leader's own disk cannot read them. The leader names the fault, and can be closed.
func TestCannotReadWhatItStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		var bad [3]atomic.Bool
		for i := range bad {
			cfg := f.config(i)
			cfg.Trace = unreadableTrace{bad: &bad[i]}
			f.open(i, cfg)
		}
		f.whole()
		lead := leadOf(t, f)
		f.writes(lead, 5)
		time.Sleep(10 * time.Second)
		late := (lead + 1) % 3
		end := f.stuck(late)
		f.writes(lead, 10*recentEntries)
		bad[lead].Store(true)
		end(nil)
		if err := fault(f.running[lead], 20*time.Second); err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("its fault is %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- f.running[lead].Close() }()
		select {
		case <-closed:
			f.acknowledges(late, 3-lead-late)
		case <-time.After(time.Hour):
			f.running[lead] = nil // the end of the test would wait for it, too
			t.Error("it cannot be closed")
		}
	})
}

// slowlyUnreadable is the log of a member whose disk needs a while to find out that it cannot read any more.
type slowlyUnreadable struct {
	unreadable
	began *atomic.Bool
}

func (u slowlyUnreadable) GetLog(index uint64, l *raft.Log) error {
	if u.bad.Load() {
		u.began.Store(true)
		time.Sleep(30 * time.Second)
	}
	return u.unreadable.GetLog(index, l)
}

type slowlyUnreadableTrace struct {
	untraced
	bad, began *atomic.Bool
}

func (u slowlyUnreadableTrace) Opened(s *storage.Storage) {
	s.Log = slowlyUnreadable{unreadable{s.Log, u.bad}, u.began}
}

// TestCannotReadWhileClosed is TestCannotReadWhatItApplies for a disk that reports its error half a minute later, when an operator has
// begun to stop the member, whose disk seems stuck.
func TestCannotReadWhileClosed(t *testing.T) {
	if os.Getenv("CANNOT_READ") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestCannotReadWhileClosed$", "-test.timeout=60s")
		c.Env = append(os.Environ(), "CANNOT_READ=1")
		if out, err := c.CombinedOutput(); err != nil {
			at := max(0, strings.Index(string(out), "panic"))
			t.Errorf("%v: %.600s", err, out[at:])
		}
		return
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.found(3)
		f.whole()
		lead := leadOf(t, f)
		late := (lead + 1) % 3
		f.stop(late)
		f.writes(lead, 10*recentEntries)
		bad, began := new(atomic.Bool), new(atomic.Bool)
		cfg := f.config(late)
		cfg.Trace = slowlyUnreadableTrace{bad: bad, began: began}
		f.cutOff(late, true)
		f.open(late, cfg)
		time.Sleep(time.Minute)
		bad.Store(true)
		f.cutOff(late, false)
		until(t, "a read", began.Load)
		time.Sleep(10 * time.Second)
		f.stop(late)
	})
}

// TestDamagedMetaWhileItFollows is TestDamagedMetaWhileItLeads for a leader of the past, whose last entry was never committed. It
// gets the next leader's in its place, or names the fault.
func TestDamagedMetaWhileItFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, config := onDisk(t)
		lead := leadOf(t, f)
		f.writes(lead, 5)
		onlySnapshot(t, f.running[lead])
		f.writes(lead, 5)
		f.cutOff(lead, true)
		f.propose(lead, 1000)
		time.Sleep(10 * time.Second)
		f.acknowledges((lead+1)%3, (lead+2)%3)
		files := testkit.Must(filepath.Glob(filepath.Join(config(lead).Dir, "raft/snapshots/*/meta.json")))(t)
		meta := testkit.Must(os.ReadFile(files[0]))(t)
		meta[0] ^= 1
		testkit.Check(t, os.WriteFile(files[0], meta, 0o600))
		f.cutOff(lead, false)
		time.Sleep(10 * time.Minute)
		if err := fault(f.running[lead], 0); err != nil {
			if !strings.Contains(err.Error(), config(lead).Dir+": snapshot") {
				t.Errorf("its fault is %v", err)
			}
			return
		}
		if !f.write(lead) {
			t.Error("it waits for what it lacks, and does not say why")
		}
	})
}

// TestCannotReadAlone is TestCannotReadWhatItApplies for a standalone server, which applies its log once it has elected itself.
func TestCannotReadAlone(t *testing.T) {
	if os.Getenv("CANNOT_READ") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestCannotReadAlone$", "-test.timeout=60s")
		c.Env = append(os.Environ(), "CANNOT_READ=1")
		if out, err := c.CombinedOutput(); err != nil {
			at := max(0, strings.Index(string(out), "panic"))
			t.Errorf("%v: %.600s", err, out[at:])
		}
		return
	}
	synctest.Test(t, func(t *testing.T) {
		bad, cfg := new(atomic.Bool), testConfig("")
		cfg.Memory, cfg.Trace = storage.NewMemory(), unreadableTrace{bad: bad}
		m := New(cfg, fsm.NewReplica())
		testkit.Check(t, m.Start())
		must(t, m, fsm.OpenSession(1, 1, 30_000, session.Password{}))
		testkit.Check(t, m.Close())
		cfg.Memory.SetFault(func() error {
			time.Sleep(time.Second)
			bad.Store(true)
			return nil
		})
		m = New(cfg, fsm.NewReplica())
		testkit.Check(t, m.Start())
		defer m.Close()
		if err := fault(m, 20*time.Second); err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("its fault is %v", err)
		}
	})
}
