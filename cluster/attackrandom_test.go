package cluster

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestNobodyEndsAtRandom: members that are cut off, delayed, killed, deprived of one disk at a time and sent snapshots by
// changing leaders never end by themselves, and serve at last.
func TestNobodyEndsAtRandom(t *testing.T) {
	for seed := range uint64(25) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			f := newFleet(t, 3)
			var mu sync.Mutex
			rnd := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
			f.net.SetDelay(func(string, string) time.Duration {
				d := time.Duration(rnd(4000)) * time.Microsecond
				if rnd(100) == 0 {
					d += time.Duration(rnd(1500)) * time.Millisecond
				}
				return d
			})
			for i := range 3 {
				f.start(i)
			}
			f.whole()
			alive := func(what string) {
				for i, m := range f.running {
					if m == nil {
						continue
					}
					select {
					case err := <-m.Err():
						t.Fatalf("seed %d, %s: server %d ends: %v", seed, what, i+1, err)
					default:
					}
				}
			}
			for step := range 40 {
				i := rnd(3)
				switch rnd(7) {
				case 0:
					a, b := string(rune('a'+rnd(3))), string(rune('a'+rnd(3)))
					f.net.Cut(a, b, true)
					time.Sleep(time.Duration(rnd(4000)) * time.Millisecond)
					if rnd(3) > 0 {
						f.net.Cut(a, b, false)
					}
				case 1:
					f.net.Heal()
				case 2:
					f.stop(i)
					time.Sleep(time.Duration(rnd(3000)) * time.Millisecond)
					f.start(i)
				case 3:
					c := f.running[i].raft.ReloadableConfig()
					c.TrailingLogs = 1
					f.running[i].raft.ReloadConfig(c)
					f.running[i].raft.Snapshot().Error()
				case 4:
					id := uint64(i + 1)
					Ask(t.Context(), f.net.Host("operator"), f.peers[id], Request{Transfer: &id})
				case 5:
					if rnd(3) == 0 {
						f.net.Heal()
						f.whole()
						f.lose(i)
						f.start(i)
					}
				case 6:
					for range 1 + rnd(5) {
						f.write(i)
					}
				}
				alive(fmt.Sprint("step ", step))
			}
			f.net.Heal()
			f.whole()
			alive("at the end")
			f.check()
		})
		if t.Failed() {
			return
		}
	}
}
