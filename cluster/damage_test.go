package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// marked is data that can be found in files, which are not compressed.
var marked = bytes.Repeat([]byte("damaged here "), 20)

const marker = 1 << 40 // the session that writes /marked

// putMarked creates the znode /marked.
func putMarked(t *testing.T, m *Member) {
	t.Helper()
	q := proto.CreateRequest{Path: "/marked", Data: marked, ACL: proto.OpenACL}
	must(t, m, fsm.OpenSession(1, marker, 1<<30, session.Password{}))
	must(t, m, &fsm.Command{Op: proto.OpCreate, Session: marker, Conn: 1, Body: q.Append(nil)})
}

// flip flips a bit of the marked data in the file that a pattern finds.
func flip(t *testing.T, pattern string) {
	t.Helper()
	files, _ := filepath.Glob(pattern)
	for _, name := range files {
		b := testkit.Must(os.ReadFile(name))(t)
		if at := bytes.Index(b, marked); at >= 0 {
			b[at+100] ^= 1
			testkit.Check(t, os.WriteFile(name, b, 0o600)) // in place
			return
		}
	}
	t.Fatal("nothing was damaged")
}

// dataOf returns the data of /marked, "" if there is no such znode.
func dataOf(m *Member) (data string) {
	m.replica.View(func(v *fsm.View) {
		if n := v.Tree().Lookup("/marked"); n != nil {
			data = string(n.AppendData(nil)[4:])
		}
	})
	return data
}

// flipInMemory flips a bit of the data of /marked in a member's tree.
func flipInMemory(t *testing.T, m *Member) {
	t.Helper()
	synctest.Wait() // so that nobody reads the state meanwhile
	m.replica.View(func(v *fsm.View) {
		n := v.Tree().Lookup("/marked")
		text := *(*string)(unsafe.Pointer(n)) // name, then data
		unsafe.Slice(unsafe.StringData(text), len(text))[100] ^= 1
	})
}

// onDisk starts three members with their data in directories.
func onDisk(t *testing.T) (f *fleet, config func(i int) Config) {
	f = newFleet(t, 3)
	dir := testkit.MemoryDir(t)
	config = func(i int) Config {
		cfg := f.config(i)
		cfg.Memory, cfg.Dir = nil, filepath.Join(dir, fmt.Sprint(i))
		return cfg
	}
	for i := range 3 {
		f.open(i, config(i))
	}
	f.whole()
	return f, config
}

// lateFleet is onDisk with a member that misses the znode /marked and the entries after it.
func lateFleet(t *testing.T) (f *fleet, config func(i int) Config, lead, late int) {
	f, config = onDisk(t)
	lead = leadOf(t, f)
	late = (lead + 1) % 3
	f.stop(late)
	putMarked(t, f.running[lead])
	f.writes(lead, 2*raftlog.RecentEntries) // so that the leader reads the older ones from its file
	return f, config, lead, late
}

// right waits until these members have all that the others have, with the data of /marked as it was written.
func (f *fleet) right(which ...int) {
	f.t.Helper()
	f.acknowledges(which...)
	for _, i := range which {
		until(f.t, "the data", func() bool { return dataOf(f.running[i]) != "" })
		if dataOf(f.running[i]) != string(marked) {
			f.t.Errorf("member %d has got the damage", i+1)
		}
	}
	time.Sleep(10 * time.Second)
	f.unharmed()
	f.check()
}

// TestDamagedWhileItLeads: a bit flips in a file of a leader that runs, and another member needs what is there. The leader sends
// nothing of it, but names the fault and ends, and the other member gets what it needs from the next leader. The damaged member
// does not start again.
func TestDamagedWhileItLeads(t *testing.T) {
	for what, file := range map[string]string{"log entry": "raft/wal/*.wal", "snapshot": "raft/snapshots/*/state.bin"} {
		testkit.Bubble(t, what, func(t *testing.T) {
			f, config, lead, late := lateFleet(t)
			if what == "snapshot" {
				onlySnapshot(t, f.running[lead])
			}
			flip(t, filepath.Join(config(lead).Dir, file))
			f.open(late, config(late))
			if err := fault(f.running[lead], 0); err == nil || !strings.Contains(err.Error(), config(lead).Dir+": "+what) {
				t.Fatalf("the leader's fault is %v", err)
			}
			f.stop(lead)
			f.right(late, 3-lead-late)
			if _, err := openMember(config(lead), fsm.NewReplica()); !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("it starts again: %v", err)
			}
		})
	}
}

// TestDamagedMetaWhileItLeads is TestDamagedWhileItLeads for what Raft says of a snapshot in its meta.json, which has no checksum:
// where it ends, and who the members are.
func TestDamagedMetaWhileItLeads(t *testing.T) {
	for what, damage := range map[string]func(meta string, end uint64) string{
		"no JSON": func(meta string, end uint64) string { return "z" + meta[1:] },
		"its end": func(meta string, end uint64) string {
			return strings.Replace(meta, fmt.Sprintf(`"Index":%d`, end), fmt.Sprintf(`"Index":%d`, end^1), 1)
		},
		"the size": func(meta string, end uint64) string { return strings.Replace(meta, `"Size":2`, `"Size":3`, 1) },
		"a vote":   func(meta string, end uint64) string { return strings.Replace(meta, `"Suffrage":0`, `"Suffrage":1`, 1) },
	} {
		testkit.Bubble(t, what, func(t *testing.T) {
			f, config, lead, late := lateFleet(t)
			if f.running[lead].engine.LastApplied()%2 == 1 {
				f.writes(lead, 1)
			}
			onlySnapshot(t, f.running[lead])
			end := f.running[lead].engine.LastApplied()
			f.writes(lead, 5)
			files, _ := filepath.Glob(filepath.Join(config(lead).Dir, "raft/snapshots/*/meta.json"))
			meta := string(testkit.Must(os.ReadFile(files[0]))(t))
			damaged := damage(meta, end)
			if damaged == meta {
				t.Fatal("nothing was damaged: ", meta)
			}
			testkit.Check(t, os.WriteFile(files[0], []byte(damaged), 0o600))
			f.open(late, config(late))
			if err := fault(f.running[lead], 10*time.Second); err == nil || !strings.Contains(err.Error(), config(lead).Dir+": snapshot") {
				t.Errorf("the leader's fault is %v", err)
			}
			if err := fault(f.running[late], 10*time.Second); err != nil {
				t.Errorf("the fault of the member that lagged is %v", err)
			}
			f.stop(lead)
			f.right(late, 3-lead-late)
		})
	}
}

// TestLostWhileItLeads: the newest snapshot's file is gone while its leader runs, and another member needs it. The leader names the fault and
// ends: it would lead on for ever, and that member would never catch up.
func TestLostWhileItLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, config, lead, late := lateFleet(t)
		onlySnapshot(t, f.running[lead])
		files := testkit.Must(filepath.Glob(filepath.Join(config(lead).Dir, "raft/snapshots/*/state.bin")))(t)
		for _, name := range files {
			testkit.Check(t, os.Remove(name))
		}
		f.open(late, config(late))
		if err := fault(f.running[lead], 20*time.Second); err == nil || !strings.Contains(err.Error(), config(lead).Dir+": snapshot") {
			t.Fatalf("the leader's fault is %v", err)
		}
		f.stop(lead)
		f.right(late, 3-lead-late)
	})
}

// TestMemoryDamaged: a bit of a znode's data, or of a session, flips in the memory of a member. It is found at the next snapshot or backup, which is
// not written, so that neither this member nor another one ever has to read it. A restart makes the state anew.
func TestMemoryDamaged(t *testing.T) {
	for _, where := range []string{"a znode of the leader", "a znode of a follower", "a session of the leader"} {
		testkit.Bubble(t, where, func(t *testing.T) {
			f, config, lead, late := lateFleet(t)
			bad := lead
			if where == "a znode of a follower" {
				bad = 3 - lead - late
				until(t, "the data", func() bool { return dataOf(f.running[bad]) != "" })
			}
			if where == "a session of the leader" {
				synctest.Wait() // as in flipInMemory
				f.running[bad].replica.View(func(v *fsm.View) { v.Sessions().Get(marker).Timeout ^= 1 << 10 })
			} else {
				flipInMemory(t, f.running[bad])
			}
			if backup, err := f.running[bad].replica.State(); err != nil || !errors.Is(backup.Write(io.Discard), fsm.ErrMemory) {
				t.Errorf("a backup was written: %v", err)
			}
			if f.running[bad].engine.TakeSnapshot() == nil {
				t.Error("a snapshot was written")
			}
			if err := fault(f.running[bad], 0); !errors.Is(err, fsm.ErrMemory) || !strings.HasPrefix(err.Error(), config(bad).Dir) {
				t.Errorf("its fault is %v", err)
			}
			f.damaged(bad, late, config)
		})
	}
}

// damaged has the other members go on without the one whose memory is damaged, and that one start again.
func (f *fleet) damaged(bad, late int, config func(i int) Config) {
	f.t.Helper()
	f.stop(bad)
	f.open(late, config(late))
	f.right(late, 3-bad-late)
	f.open(bad, config(bad))
	f.whole()
	f.right(0, 1, 2)
}

// TestMemoryDamagedACL is TestMemoryDamaged for a bit of a znode's ACL.
func TestMemoryDamagedACL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, config, lead, late := lateFleet(t)
		q := proto.CreateRequest{Path: "/secret", ACL: []proto.ACL{{Perms: proto.PermRead, ID: proto.ID{Scheme: "ip", ID: "10.0.0.1"}}}}
		must(t, f.running[lead], &fsm.Command{Op: proto.OpCreate, Session: marker, Conn: 1, Body: q.Append(nil)})
		synctest.Wait() // as in flipInMemory
		f.running[lead].replica.View(func(v *fsm.View) { v.Tree().Lookup("/secret").Record().ACL[0].Perms ^= proto.PermWrite })
		if f.running[lead].engine.TakeSnapshot() == nil {
			t.Error("a snapshot was written")
		}
		if err := fault(f.running[lead], 0); !errors.Is(err, fsm.ErrMemory) {
			t.Errorf("its fault is %v", err)
		}
		f.damaged(lead, late, config)
	})
}

// TestMemoryDamagedUntilChange: members that compare their states do not see such a bit before the znode is changed. Then the
// member ends within an election timeout.
func TestMemoryDamagedUntilChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		bad := (lead + 1) % 3
		putMarked(t, f.running[lead])
		until(t, "the data", func() bool { return dataOf(f.running[bad]) != "" })
		flipInMemory(t, f.running[bad])
		f.writes(lead, 20)
		time.Sleep(time.Minute)
		f.unharmed()
		q := proto.SetDataRequest{Path: "/marked", Data: marked, Version: -1}
		must(t, f.running[lead], &fsm.Command{Op: proto.OpSetData, Session: marker, Conn: 1, Body: q.Append(nil)})
		if err := fault(f.running[bad], f.running[bad].contacts.ElectionTimeout-time.Second); !errors.Is(err, election.ErrDiffers) {
			t.Errorf("its fault is %v", err)
		}
		f.stop(bad)
		f.right(lead, (lead+2)%3)
	})
}

// TestLyingDisk: the disk of a member, or of most members, has lost what it had reported as written, and the member has crashed.
// What was acknowledged is lost if no member of the majority that goes on has it. Only a member that has applied it,
// and runs since then, notices that.
func TestLyingDisk(t *testing.T) {
	for name, x := range map[string]struct {
		third, both, runs bool // the third member misses the write; its disk lies, too; the leader runs until it is back
	}{
		"the others have the write":         {},
		"only the leader has it, and stops": {third: true},
		"only the leader has it, and runs":  {third: true, runs: true},
		"most disks lie":                    {both: true},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			f, config := onDisk(t)
			lead := leadOf(t, f)
			liar, third := (lead+1)%3, (lead+2)%3
			before := filepath.Join(testkit.MemoryDir(t), "before")
			lying := []int{liar}
			if x.both {
				lying = append(lying, third)
			}
			for _, i := range lying {
				f.stop(i)
				testkit.Check(t, os.CopyFS(before+fmt.Sprint(i), os.DirFS(config(i).Dir)))
				f.open(i, config(i))
				f.whole()
			}
			f.cutOff(third, x.third)
			f.writes(lead, 1)
			if !x.third {
				f.whole()
			}
			for _, i := range lying { // first: a vote for one that stood before would count for it again, without what its disk has lost
				f.stop(i)
				testkit.Check(t, errors.Join(os.RemoveAll(config(i).Dir), os.Rename(before+fmt.Sprint(i), config(i).Dir)))
			}
			if !x.runs {
				f.stop(lead)
			}
			f.cutOff(third, false)
			f.cutOff(lead, true)
			for _, i := range lying {
				f.open(i, config(i))
			}
			write := f.acked[len(f.acked)-1]
			lost := x.third || x.both
			if lost {
				f.acked = f.acked[:len(f.acked)-1]
			}
			f.acknowledges(liar, third)
			f.cutOff(lead, false)
			if x.runs {
				if err := fault(f.running[lead], 10*time.Second); !errors.Is(err, election.ErrDiffers) {
					t.Errorf("the fault of the member that has applied the write is %v", err)
				}
				f.stop(lead)
			}
			f.open(lead, config(lead))
			f.whole()
			f.unharmed()
			f.check()
			for i, m := range f.running {
				if m.hasSession(write) == lost {
					t.Errorf("member %d has the write: %v", i+1, !lost)
				}
			}
		})
	}
}

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

// inChild runs the test in a process of its own, which must not panic. There, it returns true.
func inChild(t *testing.T) bool {
	if os.Getenv("CANNOT_READ") != "" {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	c.Env = append(os.Environ(), "CANNOT_READ=1")
	if out, err := c.CombinedOutput(); err != nil {
		at := max(0, strings.Index(string(out), "panic"))
		t.Errorf("%v: %.600s", err, out[at:])
	}
	return false
}

// TestCannotReadWhatItApplies: a member has started while it could reach nobody, and an hour later, when it learns what is committed, its
// disk reports an error for an entry that was in its log at the start. The member names the fault. Its process, which may be that of
// another program, must not panic.
func TestCannotReadWhatItApplies(t *testing.T) {
	if !inChild(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		lead := f.all(nil)
		late := (lead + 1) % 3
		f.stop(late)
		f.writes(lead, 10*raftlog.RecentEntries)
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
		f.writes(lead, 10*raftlog.RecentEntries)
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
	if !inChild(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		lead := f.all(nil)
		late := (lead + 1) % 3
		f.stop(late)
		f.writes(lead, 10*raftlog.RecentEntries)
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
	if !inChild(t) {
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
