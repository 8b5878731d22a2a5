package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestCountdown: a countdown ends when enough time has passed in which the process was
// not paused.
func TestCountdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, paused := time.Now(), 300*time.Millisecond
		c := countdown{length: time.Second, ran: func() time.Duration { return time.Since(began) }}
		c.start(200 * time.Millisecond)
		c.ran = func() time.Duration { return time.Since(began) - paused }
		<-c.timer
		if took := time.Since(began); took != 800*time.Millisecond || c.ended() {
			t.Errorf("it ended after %v, of which %v were a pause", took, paused)
		}
		<-c.timer
		if took := time.Since(began); took != 1100*time.Millisecond || !c.ended() {
			t.Errorf("it has not ended after %v, of which %v were a pause", took, paused)
		}
		c.start(time.Minute) // longer ago than it takes
		if <-c.timer; !c.ended() {
			t.Error("it has not ended, and began a minute ago")
		}
	})
}

// blockingLog is the handler of a log that takes nothing before release is closed.
type blockingLog struct {
	slog.Handler
	release chan struct{}
}

func (b blockingLog) Handle(context.Context, slog.Record) error {
	<-b.release
	return nil
}

func (b blockingLog) Enabled(context.Context, slog.Level) bool { return true }

// TestServingKnowsLeader: when a service reports that clients can be served, it has noted who
// leads, even if it learns of both at once.
func TestServingKnowsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		release := make(chan struct{})
		b.pulse.log = slog.New(blockingLog{slog.DiscardHandler, release})
		s := b.service()
		b.leader.Set(0, "")
		b.pulse.verdict.Store(&election.Verdict{NoLeader: true})
		b.Running.Go(s.run)
		synctest.Wait()
		b.pulse.verdict.Store(&election.Verdict{Leads: true})
		b.pulse.gain(b.pulse.moment())
		synctest.Wait() // until it logs that it has noted the leader
		if len(s.changes) > 0 {
			t.Error("it serves before it has noted the leader")
		}
		close(release)
		if !testkit.Receive(t, "serving", s.changes) {
			t.Error("it does not serve")
		}
	})
}

// TestServiceAfterSilence: a member that had no leader for long, and now begins to lead,
// serves at once and goes on, although its pulse has seen its old state.
func TestServiceAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
		p := b.pulse
		s := b.service()
		p.verdict.Store(&election.Verdict{NoLeader: true})
		b.Running.Go(s.run)
		time.Sleep(10 * timing.UnheardLimit * p.contacts.ElectionTimeout)
		p.verdict.Store(&election.Verdict{Leads: true, Behind: true})
		b.pulse.gain(p.moment())
		if !testkit.Receive(t, "serving", s.changes) {
			t.Fatal("it does not serve, and leads")
		}
		for _, v := range []election.Verdict{{Leads: true, Behind: true}, {Leads: true}} {
			p.verdict.Store(&v)
			p.changed.Raise()
			synctest.Wait()
			if len(s.changes) > 0 {
				t.Fatalf("it stopped serving at %+v", v)
			}
		}
	})
}

// TestServesOnSlowLinks: long writes, one after the other, over links that carry at least 1 MiB in an
// election timeout, and twice as much as is written. No member stops serving its clients.
func TestServesOnSlowLinks(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		size    int
		timeout time.Duration // in ms
		entry   int
	}{{3, 500, 900_000}, {3, 2000, 300_000}, {5, 500, 300_000}, {5, 2000, 900_000}} {
		testkit.Bubble(t, fmt.Sprintf("%+v", x), func(t *testing.T) {
			f := newFleet(t, x.size)
			timeout := x.timeout * time.Millisecond
			f.all(func(c *Config) { c.ElectionTimeout = timeout })
			rate := int((1 << 20) * time.Second / timeout)
			f.net.SetDelay(func(from, to string) time.Duration { return 2 * time.Millisecond })
			for i := range x.size {
				for j := range x.size {
					f.net.SetBandwidth(string(rune('a'+i)), string(rune('a'+j)), rate)
				}
			}
			stops := make([]atomic.Int64, x.size)
			f.sees(stops)
			time.Sleep(5 * time.Second)
			l := f.running[leadOf(t, f)]
			term := l.engine.Term()
			for range 3 { // each group of writes is 1.8 MB
				began := time.Now()
				for range 1_800_000 / x.entry {
					did(t, l, fsm.Reap("/"+strings.Repeat("x", x.entry)))
				}
				time.Sleep(time.Duration(2*1_800_000*float64(time.Second)/float64(rate)) - time.Since(began))
			}
			for i := range stops {
				if c := stops[i].Load(); c > 0 {
					t.Errorf("server %d stopped serving %d times", i+1, c)
				}
			}
			if l.engine.Term() != term {
				t.Error("another term")
			}
		})
	}
}

// service returns a service of this member, which does not run yet.
func (b *base) service() *service {
	p := b.proposer()
	b.replica.Complete(p.Complete)
	b.tick()
	b.Running.Go(p.Run)
	return newService(b.pulse, p)
}
