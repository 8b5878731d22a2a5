package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestAddRestored: an operator adds a server that was restored from a snapshot to a cluster, as a new member or after it was removed.
// It is refused like one of another cluster, since it never joins, and the list of members stays as it was. Emptied, it joins.
func TestAddRestored(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, how := range []string{"list", "join", "address"} {
			t.Run(fmt.Sprintf("removed before %v, %s", again, how), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x, all := 3, addresses(4)
					if again {
						x, all = 2, addresses(3)
					}
					f := newFleet(t, 4)
					f.asked, f.peers = 100, addresses(3)
					for i := range 3 {
						f.restored(i, 9, 1)
						f.start(i)
					}
					until(t, "a write", func() bool { return f.write(0) })
					ask := func(q Request) error {
						ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
						defer cancel()
						_, err := Ask(ctx, f.net.Host("operator"), all[1], q)
						return err
					}
					if again {
						if err := ask(Request{Remove: 3}); err != nil {
							t.Fatal(err)
						}
						f.lose(2)
					}
					before := fmt.Sprint(f.running[0].Members())
					f.peers = all
					f.restored(x, 9, 1)
					config := func() Config {
						cfg := f.config(x)
						switch how {
						case "join":
							cfg.Addr, cfg.Join, cfg.Peers = all[uint64(x+1)], all[1], nil
						case "address":
							cfg.Addr, cfg.Peers = all[uint64(x+1)], nil
						}
						return cfg
					}
					m := f.open(x, config())
					added := proto.Peer{ID: uint64(x + 1), Addr: all[uint64(x+1)]}
					began := time.Now()
					for _, observer := range []bool{false, true} {
						added.Observer = observer
						if err := ask(Request{Add: &added}); err == nil || !strings.Contains(err.Error(), "empty its directory") {
							t.Errorf("added as an observer %v, after %v: %v", observer, time.Since(began), err)
						}
						if err := ask(Request{Reconfig: &Reconfig{Version: -1, Joining: []proto.Peer{added}}}); err == nil || !strings.Contains(err.Error(), "empty its directory") {
							t.Errorf("reconfigured as an observer %v, after %v: %v", observer, time.Since(began), err)
						}
					}
					if now := fmt.Sprint(f.running[0].Members()); now != before {
						t.Errorf("the members are %v, were %v", now, before)
					}
					if m.membership.gate.lifted() || f.write(x) {
						t.Error("it takes part")
					}
					f.lose(x)
					cfg := config()
					cfg.Addr, cfg.Join, cfg.Peers = all[uint64(x+1)], all[1], nil
					f.open(x, cfg)
					until(t, "it joins", func() bool { return f.write(x) })
					time.Sleep(time.Second) // the others, too, apply it
					f.check()
					for _, i := range []int{0, 1, x} {
						if err := fault(f.running[i], 0); err != nil {
							t.Errorf("server %d: %v", i+1, err)
						}
					}
				})
			})
		}
	}
}

// TestAddRestoredFarAhead: the same, with a snapshot that ends after the cluster's log. It has not caught up, and gets no vote.
func TestAddRestoredFarAhead(t *testing.T) {
	for size := 1; size <= 3; size++ {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, size+1)
			f.found(size)
			until(t, "a write", func() bool { return f.write(0) })
			x := size
			f.restored(x, 1000)
			f.start(x)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := Ask(ctx, f.net.Host("operator"), f.peers[1], Request{Add: &proto.Peer{ID: uint64(x + 1), Addr: f.peers[uint64(x+1)]}})
			time.Sleep(10 * time.Second)
			if s := find(f.running[0].Members(), uint64(x+1)); s != nil && !s.Observer {
				t.Errorf("beside %d members, it has a vote: %v", size, err)
			}
			if !f.write(0) {
				t.Errorf("beside %d members, no write is acknowledged any more", size)
			}
		})
	}
}
