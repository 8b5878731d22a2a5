package server

import (
	"bytes"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// applying is a Proposer without a log: Propose applies the command at once.
type applying struct {
	idle
	replica *fsm.Replica
	mu      sync.Mutex
	index   uint64
	entries [][]byte // all entries applied so far
	waiter  fsm.Waiter
}

func newApplying() *applying {
	p := &applying{replica: fsm.NewReplica()}
	p.replica.Complete(func(*fsm.Envelope, int) fsm.Waiter { return p.waiter })
	return p
}

func entryOf(index uint64, c *fsm.Command) []byte {
	return fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), c), &fsm.Envelope{Origin: 1, Batch: index, Time: 1000, Settings: fsm.EnforceQuota, Count: 1})
}

func (p *applying) Propose(c *fsm.Command, w fsm.Waiter, _ <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index++
	p.waiter = w
	p.entries = append(p.entries, entryOf(p.index, c))
	p.replica.Apply(&raft.Log{Index: p.index, Term: 1, Data: p.entries[p.index-1]})
}

// snapshot returns the state after all applied entries and then more commands.
func (p *applying) snapshot(t *testing.T, more ...*fsm.Command) (snapshot []byte, zxid int64) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	m, entries := fsm.NewMachine(), p.entries
	for i, c := range more {
		entries = append(entries, entryOf(p.index+1+uint64(i), c))
	}
	for i, e := range entries {
		if err := m.Apply(uint64(1+i), 1, e, nil); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := m.Snapshot().Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m.Zxid()
}

// betweenStates is an fsm.Observer. It calls run after the replica has switched to
// the snapshot and before the server learns of it.
type betweenStates struct{ run func() }

func (betweenStates) Changed(*fsm.View, []proto.Change) {}
func (betweenStates) Applied(uint64, uint64, int)       {}
func (betweenStates) Answered()                         {}
func (betweenStates) Restoring()                        {}
func (b betweenStates) Restored()                       { b.run() }
func (betweenStates) Failed(error)                      {}

type closer struct{ *bytes.Reader }

func (closer) Close() error { return nil }

// TestRestoreAnswersNobody restores a snapshot while clients that watch a znode send
// pings. No reply on an existing connection may show the snapshot's zxid: the client
// would name that zxid when it sets its watches again, and so never learn of a change
// that is part of the snapshot.
func TestRestoreAnswersNobody(t *testing.T) {
	const clients = 50
	p := newApplying()
	var before, late atomic.Int64 // the zxid before; clients that have seen a later one, or whose connection has ended
	before.Store(math.MaxInt64)
	p.replica.Observe(betweenStates{func() {
		for end := time.Now().Add(200 * time.Millisecond); late.Load() < clients && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}})
	s := New(Config{
		ID: 1, Proposer: p, Replica: p.replica, Log: testkit.Quiet,
		Limits: Limits{MaxSessionTimeout: time.Minute, MaxFrame: 1 << 20, MaxOutstanding: 10, OutboxBytes: 1 << 20, HandshakeTimeout: 10 * time.Second},
	})
	s.Open()
	defer s.Wait()
	defer s.Close()

	var (
		watching, ended sync.WaitGroup
		zxids           [clients]int64 // the last that a client has seen
		notified        [clients]bool  // whether it got the event
	)
	for i := range clients {
		client, ours := net.Pipe()
		go s.ServeConn(ours)
		watching.Add(1)
		ended.Go(func() {
			defer client.Close()
			c, err := rawclient.Open(client, 30*time.Second)
			if err != nil {
				t.Error(err)
				watching.Done()
				return
			}
			if _, err := c.Exists("/x", true); err != proto.NoNode {
				t.Error(err)
			}
			watching.Done()
			for {
				f, err := c.Call(proto.OpPing, nil, nil)
				if err != nil { // the connection has ended
					late.Add(1)
					break
				}
				if zxids[i] = f.Zxid; f.Zxid > before.Load() {
					late.Add(1)
					break
				}
			}
			notified[i] = len(c.Events) > 0
		})
	}
	watching.Wait()
	if t.Failed() {
		return
	}
	p.replica.View(func(v *fsm.View) { before.Store(v.Zxid()) })
	create := proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}
	snapshot, zxid := p.snapshot(t,
		fsm.OpenSession(99, 99, 10_000, session.Password{}),
		&fsm.Command{Op: proto.OpCreate, Session: 99, Conn: 99, IDs: fsm.AppendIDs(nil, nil), Body: create.Append(nil)})
	if err := p.replica.Restore(closer{bytes.NewReader(snapshot)}); err != nil {
		t.Fatal(err)
	}
	ended.Wait()
	for i := range clients {
		if zxids[i] >= zxid && !notified[i] {
			t.Errorf("client %d saw zxid %d in a reply but got no event for the change at %d", i, zxids[i], zxid)
		}
	}
}
