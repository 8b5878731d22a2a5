package cluster

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// unreadable is the log of a member whose disk cannot read any more.
type unreadable struct {
	raft.LogStore
	bad *atomic.Bool
}

func (u unreadable) GetLog(index uint64, l *raft.Log) error {
	if u.bad.Load() {
		return errors.New("input/output error")
	}
	return u.LogStore.GetLog(index, l)
}

type unreadableTrace struct {
	untraced
	bad *atomic.Bool
}

func (u unreadableTrace) Opened(s *storage.Storage) { s.Log = unreadable{s.Log, u.bad} }

// TestCannotReadWhatItApplies: a member has started while it could reach nobody, and an hour later, when it learns what is committed, its
// disk reports an error for an entry that was in its log at the start. The member names the fault. Its process, which may be that of
// another program, must not panic.
func TestCannotReadWhatItApplies(t *testing.T) {
	if os.Getenv("CANNOT_READ") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestCannotReadWhatItApplies$", "-test.timeout=60s")
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
		bad := new(atomic.Bool)
		cfg := f.config(late)
		cfg.Trace = unreadableTrace{bad: bad}
		f.cutOff(late, true)
		f.open(late, cfg)
		time.Sleep(time.Hour)
		bad.Store(true)
		f.cutOff(late, false)
		if err := fault(f.running[late], 20*time.Second); err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("its fault is %v", err)
		}
	})
}
