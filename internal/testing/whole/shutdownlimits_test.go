package whole

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/proto"
)

// within checks that Shutdown returns when its context has ended.
func within(t *testing.T, s *lockkeeper.Server, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	err := s.Shutdown(ctx)
	if took := time.Since(began); took > limit+500*time.Millisecond { // as its comment says
		t.Errorf("Shutdown with %v returned after %v: %v", limit, took, err)
	}
	s.Close() // waits for the disk
	return err
}

// TestShutdownStuckDisk: the disk does not answer for a minute.
func TestShutdownStuckDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := withMemory(lockkeeper.Config{})
		s := must(lockkeeper.Open(cfg))(t)
		c := connect(t, inMemory(s))
		disk := make(chan struct{})
		testhooks.In(&cfg).Memory.SetFault(func() error { <-disk; return nil })
		must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
		synctest.Wait()
		time.AfterFunc(time.Minute, func() { close(disk) })
		within(t, s, 3*time.Second)
	})
}

// TestShutdownLeaderLimits: a leader that is cut off, alone, or has a stuck disk.
func TestShutdownLeaderLimits(t *testing.T) {
	for _, how := range []string{"cut off", "alone", "stuck", "no follower answers, busy"} {
		t.Run(how, func(t *testing.T) {
			inCluster(t, 3, nil, func(t *testing.T, m *members) {
				lead := m.leader()
				s := m.servers[lead]
				c := m.connect(lead, 10*time.Second)
				m.servers[lead] = nil
				switch how {
				case "cut off":
					m.cutOff(lead, true)
				case "alone":
					for _, i := range []int{(lead + 1) % 3, (lead + 2) % 3} {
						m.stop(i)
					}
				case "stuck":
					until := time.Now().Add(time.Minute)
					testhooks.In(&m.configs[lead]).Memory.SetFault(func() error { time.Sleep(time.Until(until)); return nil })
				case "no follower answers, busy":
					until := time.Now().Add(time.Minute)
					for _, i := range []int{(lead + 1) % 3, (lead + 2) % 3} {
						testhooks.In(&m.configs[i]).Memory.SetFault(func() error { time.Sleep(time.Until(until)); return nil })
					}
				}
				must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
				synctest.Wait()
				within(t, s, 300*time.Millisecond)
			})
		})
	}
}

// TestShutdownTwice: a second Shutdown with a shorter context does not wait for the first one.
func TestShutdownTwice(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		lead := m.leader()
		s := m.servers[lead]
		m.servers[lead] = nil
		m.cutOff(lead, true)
		first := make(chan error)
		go func() { first <- s.Shutdown(context.Background()) }()
		time.Sleep(20 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := s.Shutdown(ctx)
		if took := time.Since(began); took > 150*time.Millisecond {
			t.Errorf("Shutdown with 50 ms returned after %v: %v", took, err)
		}
		<-first
	})
}

// TestShutdownCloseFault: Shutdown, Close and a fault come together, in any order. Done is closed
// once, Err is stable, and nothing is left.
func TestShutdownCloseFault(t *testing.T) {
	for range rounds(20, 150) {
		synctest.Test(t, func(t *testing.T) {
			noGoroutineLeft(t)
			cfg := withMemory(lockkeeper.Config{})
			s := must(lockkeeper.Open(cfg))(t)
			c := connect(t, inMemory(s))
			at := func() time.Duration { return time.Duration(rand.IntN(3)) * time.Microsecond }
			var all sync.WaitGroup
			ctx, cancel := context.WithTimeout(t.Context(), at())
			defer cancel()
			for _, f := range []func(){
				func() { s.Shutdown(ctx) }, func() { s.Shutdown(t.Context()) }, func() { s.Close() },
				func() {
					testhooks.In(&cfg).Memory.SetFault(func() error { return syscall.EIO })
					c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL})
				},
				func() { s.Dial("", "", time.Second) },
			} {
				wait := at()
				all.Go(func() { time.Sleep(wait); f() })
			}
			<-s.Done()
			why := s.Err()
			if !errors.Is(why, lockkeeper.ErrClosed) && !errors.Is(why, syscall.EIO) {
				t.Error(why)
			}
			all.Wait()
			if err := s.Err(); err != why {
				t.Errorf("Err was %v and is %v", why, err)
			}
			c.Close()
		})
	}
}
