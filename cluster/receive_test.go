package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// likeMessages is a snapshot that Raft would take for messages.
var likeMessages = bytes.Repeat([]byte{3, 0x90}, 1<<20) // TimeoutNow

// sendSnapshot sends likeMessages, as fast as data delivers it.
func sendSnapshot(from openedTransport, term uint64, data io.Reader) error {
	q := raft.InstallSnapshotRequest{RPCHeader: raft.RPCHeader{ID: []byte("1")}, Term: term, Size: int64(len(likeMessages))}
	return from.transport.NetworkTransport.InstallSnapshot("2", "follower:1", &q, new(raft.InstallSnapshotResponse), data)
}

// brokenSpool fails at one of its steps.
type brokenSpool struct {
	storage.Spool
	step    string
	written int
	err     error
}

func (s *brokenSpool) Write(p []byte) (int, error) {
	if s.written += len(p); s.step == "write" && s.written > len(likeMessages)/2 {
		return 0, s.err
	}
	return s.Spool.Write(p)
}

func (s *brokenSpool) Reader() (io.Reader, error) {
	if s.step == "read" {
		return nil, s.err
	}
	return s.Spool.Reader()
}

// stuckSpool does nothing until hold is closed.
type stuckSpool struct {
	storage.Spool
	hold chan struct{}
}

func (s stuckSpool) Write(p []byte) (int, error) {
	<-s.hold
	return s.Spool.Write(p)
}

// TestStuckSpool: a disk that is stuck while a snapshot of the leader is received counts as stuck.
func TestStuckSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		s, hold := storage.NewMemory().Open(), make(chan struct{})
		follower.raft.storage = s
		works := s.Spool
		s.Spool = func() (storage.Spool, error) {
			spool, err := works()
			return stuckSpool{spool, hold}, err
		}
		sent := make(chan error, 1)
		go func() { sent <- sendSnapshot(leader, 1, bytes.NewReader(likeMessages)) }()
		length := func() time.Duration { return follower.raft.stall.length(follower.transport.now()) }
		until(t, "a disk that does not respond", func() bool { return length() > 0 }) // running time stands still in this test
		close(hold)
		rpc := receive(t, "the snapshot", follower.transport.Consumer())
		rpc.Respond(new(raft.InstallSnapshotResponse), nil)
		if err := <-sent; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if length() != 0 {
			t.Error("the disk counts as stuck for ever")
		}
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestSpoolFails: a disk that cannot store a snapshot from the leader is a fault of this
// member. A lack of file descriptors is not.
func TestSpoolFails(t *testing.T) {
	for _, x := range []struct {
		step  string
		err   error
		fault bool
	}{
		{"create", syscall.ENOSPC, true},
		{"create", syscall.EMFILE, false},
		{"write", syscall.ENOSPC, true},
		{"write", syscall.EIO, true},
		{"read", syscall.EIO, true},
	} {
		t.Run(x.step+", "+x.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := memnet.New()
				leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
				s := storage.NewMemory().Open()
				follower.raft.storage = s
				works := s.Spool
				s.Spool = func() (storage.Spool, error) {
					if x.step == "create" {
						return nil, x.err
					}
					spool, err := works()
					return &brokenSpool{Spool: spool, step: x.step, err: x.err}, err
				}
				if err := sendSnapshot(leader, 1, bytes.NewReader(likeMessages)); err == nil {
					t.Error("the snapshot was taken")
				}
				synctest.Wait()
				select {
				case err := <-follower.life.errs:
					if !x.fault || !errors.Is(err, x.err) {
						t.Errorf("the member stops: %v", err)
					}
				case <-follower.transport.Consumer():
					t.Error("Raft is given a message")
				default:
					if x.fault {
						t.Error("the member does not stop")
					}
				}
				s.Spool = works
				sent := make(chan error, 1)
				go func() { sent <- sendSnapshot(leader, 1, bytes.NewReader(likeMessages)) }()
				rpc := receive(t, "the snapshot, sent again", follower.transport.Consumer())
				rpc.Respond(new(raft.InstallSnapshotResponse), nil)
				if err := <-sent; err != nil {
					t.Error(err)
				}
				closeTransport(leader)
				closeTransport(follower)
			})
		})
	}
}

// TestSnapshotOfEarlierTerm: when a later term begins, a member receives no more of a snapshot
// of the earlier leader, however long that goes on sending, and takes one of the next leader.
// What is left of the first is not taken for messages.
func TestSnapshotOfEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, next, follower := openTransport(t, net, "leader"), openTransport(t, net, "next"), openTransport(t, net, "follower")
		follower.raft.storage = storage.NewMemory().Open()
		follower.raft.terms.begin(1)
		there, more := io.Pipe()
		sent := make(chan error, 1)
		go func() { sent <- sendSnapshot(leader, 1, there) }()
		write := func(n int) bool { // slowly
			for range n {
				time.Sleep(leader.silence / 5)
				if _, err := more.Write(likeMessages[:len(likeMessages)/8]); err != nil {
					return false
				}
			}
			return true
		}
		write(4)
		follower.raft.terms.begin(2)
		began := time.Now()
		var writing sync.WaitGroup
		writing.Go(func() {
			if write(4) {
				t.Error("all of it was received")
			}
		})
		select {
		case err := <-sent:
			there.CloseWithError(err)
			writing.Wait()
			if took := time.Since(began); took > leader.silence {
				t.Errorf("it ends after %v", took)
			}
		case <-follower.transport.Consumer():
			t.Error("Raft is given a message")
		}
		go func() { sent <- sendSnapshot(next, 2, bytes.NewReader(likeMessages)) }()
		rpc := receive(t, "the snapshot of the next leader", follower.transport.Consumer())
		if q, ok := rpc.Command.(*raft.InstallSnapshotRequest); !ok || q.Term != 2 {
			t.Errorf("Raft is given %+v", rpc.Command)
		}
		rpc.Respond(new(raft.InstallSnapshotResponse), nil)
		if err := <-sent; err != nil {
			t.Error(err)
		}
		for _, o := range []openedTransport{leader, next, follower} {
			closeTransport(o)
		}
	})
}

// TestNextLeadersSnapshot: a member that is receiving a snapshot slowly when another member is
// elected gets the snapshot of that one. The earlier leader learns of the election, even if
// only the member that receives the snapshot can tell it.
func TestNextLeadersSnapshot(t *testing.T) {
	for name, cut := range map[string]bool{"all connected": false, "leaders cut off from each other": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, nil)
				leader, other, late := members[lead], members[(lead+1)%3], members[(lead+2)%3]
				again := stopUntilSnapshot(t, late, leader)
				onlySnapshot(t, other)
				term := leader.raft.CurrentTerm()
				from, to := hostOf(leader), hostOf(late)
				half := make(chan struct{})
				var once sync.Once
				came := func(w *wire) {
					if w.dialed || w.from != from || w.to != to {
						return
					}
					w.mu.Lock()
					kind, read := w.kind, w.read
					w.mu.Unlock()
					if kind != kindRaft || read < 1<<20 {
						return
					}
					once.Do(func() { close(half) })
					select { // 64 KiB a second
					case <-time.After(time.Second):
					case <-w.gone:
					}
				}
				net.came.Store(&came)
				late = again()
				<-half
				if cut {
					net.Cut(hostOf(leader), hostOf(other), true)
					net.Cut(hostOf(other), hostOf(leader), true)
				}
				other.pulse.stand()
				until(t, "the next leader", func() bool { return other.raft.State() == raft.Leader })
				select {
				case <-late.Ready():
				case <-time.After(3 * late.contacts.silence):
					t.Error("it does not get the snapshot of the next leader")
				}
				time.Sleep(late.contacts.silence)
				if leader.raft.State() == raft.Leader && leader.raft.CurrentTerm() == term {
					t.Error("the earlier leader has not learned of the election")
				}
			})
		})
	}
}

// brokenSnapshots fails at one of its steps.
type brokenSnapshots struct {
	raft.SnapshotStore
	step string
	err  error
}

type brokenSink struct {
	raft.SnapshotSink
	brokenSnapshots
}

func (s brokenSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if s.step == "create" {
		return nil, s.err
	}
	sink, err := s.SnapshotStore.Create(version, index, term, c, at, trans)
	return brokenSink{sink, s}, err
}

func (s brokenSink) Write(p []byte) (int, error) {
	if s.step == "write" {
		return 0, s.err
	}
	return s.SnapshotSink.Write(p)
}

func (s brokenSink) Close() error {
	if s.step == "close" {
		s.Cancel()
		return s.err
	}
	return s.SnapshotSink.Close()
}

// TestInstallFails: as TestSpoolFails, when Raft stores the snapshot. That Raft refuses one is
// no fault.
func TestInstallFails(t *testing.T) {
	for _, x := range []struct {
		step  string
		err   error
		fault bool
	}{
		{"create", syscall.ENOSPC, true},
		{"create", syscall.EMFILE, false},
		{"write", syscall.EIO, true},
		{"close", syscall.ENOSPC, true},
		{"close", syscall.EMFILE, false},
		{"refuse", errors.New("it is an old one"), false},
	} {
		t.Run(x.step+", "+x.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := memnet.New()
				leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
				follower.raft.storage = storage.NewMemory().Open()
				snapshots := watchedSnapshots{brokenSnapshots{follower.raft.storage.Snapshots, x.step, x.err}, &follower.raft.disk, follower.now, follower.contacts.silence}
				if x.step == "refuse" {
					follower.raft.unwritten.Store(&x.err) // of an earlier one
				}
				sent := make(chan error, 1)
				go func() { sent <- sendSnapshot(leader, 1, bytes.NewReader(likeMessages)) }()
				rpc := receive(t, "the snapshot", follower.transport.Consumer())
				sink, err := snapshots.Create(1, 5, 1, raft.Configuration{}, 1, nil) // as Raft does
				if err == nil {
					_, err = io.Copy(sink, rpc.Reader)
				}
				if err == nil {
					err = sink.Close()
				}
				if x.step == "refuse" {
					err = x.err
				}
				rpc.Respond(new(raft.InstallSnapshotResponse), fmt.Errorf("failed: %v", err))
				if err := <-sent; err == nil {
					t.Error("the snapshot was taken")
				}
				select {
				case err := <-follower.life.errs:
					if !x.fault || !errors.Is(err, x.err) {
						t.Errorf("the member stops: %v", err)
					}
				default:
					if x.fault {
						t.Error("the member does not stop")
					}
				}
				closeTransport(leader)
				closeTransport(follower)
			})
		})
	}
}
