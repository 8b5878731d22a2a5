package whole

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

func TestNegotiation(t *testing.T) {
	for _, c := range []struct {
		cfg  lockkeeper.Config
		asks map[int32]int32 // ms
	}{
		{lockkeeper.Config{}, map[int32]int32{0: 4000, -1: 4000, math.MinInt32: 4000, 1: 4000, 4000: 4000, 4001: 4001, 39999: 39999, 40000: 40000, 40001: 40000, math.MaxInt32: 40000}},
		{lockkeeper.Config{TickTime: 100 * time.Millisecond}, map[int32]int32{1: 200, 300: 300, 5000: 2000}},
		{lockkeeper.Config{Limits: lockkeeper.Limits{MinSessionTimeout: time.Second, MaxSessionTimeout: time.Hour}}, map[int32]int32{1: 1000, math.MaxInt32: 3600000}},
	} {
		s := open(t, c.cfg)
		for ask, want := range c.asks {
			for _, hasReadOnly := range []bool{true, false} {
				cl := rawclient.New(must(s.Dial("", "", time.Second))(t))
				// In a request for a new session, version and password are ignored.
				check(t, cl.Handshake(&proto.ConnectRequest{ProtocolVersion: 7, Timeout: ask, Password: []byte("any"), HasReadOnly: hasReadOnly}))
				if cl.Session.Timeout != want || cl.Session.ProtocolVersion != 0 || cl.Session.HasReadOnly != hasReadOnly || cl.Session.ReadOnly {
					t.Errorf("asked for %d ms, got %+v", ask, cl.Session)
				}
				cl.Close()
			}
		}
	}
}

// TestShortestSessionWarning: a server says so if it grants sessions shorter than two ticks.
func TestShortestSessionWarning(t *testing.T) {
	for shortest, warns := range map[time.Duration]bool{0: false, 4 * time.Second: false, 3999 * time.Millisecond: true, time.Millisecond: true} {
		var log testkit.Log
		check(t, open(t, lockkeeper.Config{Limits: lockkeeper.Limits{MinSessionTimeout: shortest}, Logger: log.Logger(slog.LevelWarn)}).Close())
		if strings.Contains(log.String(), "minSessionTimeout="+shortest.String()+" twoTicks=4s") != warns {
			t.Errorf("with %v: %s", shortest, log.String())
		}
	}
}

const (
	tick    = time.Second
	timeout = 4 * time.Second
)

// inBubble runs a test in virtual time, on a server with ticks of a second.
func inBubble(t *testing.T, cfg lockkeeper.Config, test func(t *testing.T, s *lockkeeper.Server)) {
	synctest.Test(t, func(t *testing.T) {
		cfg.TickTime = tick
		test(t, open(t, cfg))
	})
}

// TestExpiry checks that sessions expire after their timeout, and at most a tick later.
func TestExpiry(t *testing.T) {
	r := rng(seed(t), 0)
	inBubble(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server) {
		watcher := connect(t, inMemory(s))
		for i := range 40 {
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
			lasts := timeout + time.Duration(r.Int64N(5000))*time.Millisecond
			c := connectFor(t, inMemory(s), lasts)
			path := fmt.Sprintf("/e%d", i)
			must(c.Create(path, nil, proto.FlagEphemeral))(t)
			heard := time.Now()
			if r.IntN(2) == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(lasts))))
				alive(t, c)
				heard = time.Now()
			}
			must(watcher.Exists(path, true))(t)
			watcher.Conn.SetReadDeadline(time.Time{})
			watcher.Timeout = time.Minute
			go func() { // keeps the watcher alive without reading
				for range 10 {
					time.Sleep(time.Second)
					watcher.Write(rawclient.Request(nil, proto.XidPing, proto.OpPing, nil))
				}
			}()
			var e rawclient.Event
			for pongs := 0; pongs < 10; {
				f := must(watcher.Read())(t)
				if got, ok := f.Event(); ok {
					e = got
					if after := time.Since(heard); after < lasts || after > lasts+tick+time.Millisecond {
						t.Errorf("a session of %v ended %v after its last request", lasts, after)
					}
				} else {
					pongs++
				}
			}
			if e.Path != path || e.Type != proto.EventNodeDeleted {
				t.Errorf("event %+v", e)
			}
			closed(t, c) // and no frame came
		}
	})
}

// TestRestartGivesTime restarts a server just before sessions would expire: they get their
// full timeout again, and then expire.
func TestRestartGivesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := withMemory(lockkeeper.Config{TickTime: tick})
		s := open(t, cfg)
		c := connectFor(t, inMemory(s), timeout)
		must(c.Create("/e", nil, proto.FlagEphemeral))(t)
		for range 3 {
			time.Sleep(timeout - time.Millisecond)
			check(t, s.Close())
			time.Sleep(time.Hour) // time without a server does not count
			s = open(t, cfg)
		}
		start := time.Now()
		witness := connectFor(t, inMemory(s), 20*time.Second)
		for exists(t, witness, "/e") {
			if time.Since(start) > timeout+tick+200*time.Millisecond {
				t.Fatal("the session does not end")
			}
			time.Sleep(50 * time.Millisecond)
		}
		if after := time.Since(start); after < timeout-100*time.Millisecond {
			t.Errorf("the session ended %v after the restart", after)
		}
		if _, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), c.Session); err != rawclient.ErrRefused {
			t.Errorf("the session came back: %v", err)
		}
	})
}
