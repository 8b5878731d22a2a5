package cluster

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// sees counts how often each member stops serving.
func (f *fleet) sees(stops []atomic.Int64) {
	for i, m := range f.running {
		go func() {
			was := false
			for {
				select {
				case yes := <-m.Serving():
					if was && !yes {
						stops[i].Add(1)
					}
					was = yes
				case <-m.stop:
					return
				}
			}
		}()
	}
}

// opened starts all members with an election timeout.
func (f *fleet) opened(timeout time.Duration) {
	for i := range f.running {
		cfg := f.config(i)
		cfg.ElectionTimeout = timeout
		f.open(i, cfg)
	}
	f.whole()
}

// TestServesOnSlowLinks: long writes, one after the other, over links that carry at least 1 MiB in an
// election timeout, and twice as much as is written. No member stops serving its clients.
func TestServesOnSlowLinks(t *testing.T) {
	for _, size := range []int{3, 5} {
		for _, timeout := range []time.Duration{500, 2000} {
			for _, percent := range []int{100} { // of 1 MiB in an election timeout
				for _, entry := range []int{300_000, 900_000} {
					t.Run(fmt.Sprint("size ", size, " timeout ", int(timeout), " link ", percent, " entry ", entry), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							f := newFleet(t, size)
							timeout := timeout * time.Millisecond
							f.opened(timeout)
							rate := int((1<<20)*time.Second/timeout) * percent / 100
							f.net.SetDelay(func(from, to string) time.Duration { return 2 * time.Millisecond })
							for i := range size {
								for j := range size {
									f.net.SetBandwidth(string(rune('a'+i)), string(rune('a'+j)), rate)
								}
							}
							stops := make([]atomic.Int64, size)
							f.sees(stops)
							time.Sleep(5 * time.Second)
							l := f.running[leadOf(t, f)]
							term := l.raft.CurrentTerm()
							for range 3 { // each group of writes is 1.8 MB
								began := time.Now()
								for range 1_800_000 / entry {
									w := make(result, 1)
									l.Propose(fsm.Reap("/"+strings.Repeat("x", entry)), w, nil)
									if err := <-w; err != nil {
										t.Fatal(err)
									}
								}
								time.Sleep(time.Duration(2*1_800_000*float64(time.Second)/float64(rate)) - time.Since(began))
							}
							for i := range stops {
								if c := stops[i].Load(); c > 0 {
									t.Errorf("server %d stopped serving %d times", i+1, c)
								}
							}
							if l.raft.CurrentTerm() != term {
								t.Error("another term")
							}
						})
					})
				}
			}
		}
	}
}

// TestFailoverKeepsClients: the leader is cut off. Clients of the other members keep their
// connections if the first election elects a leader.
func TestFailoverKeepsClients(t *testing.T) {
	for _, x := range []struct {
		timeout, trip time.Duration // in ms
	}{
		{400, 2}, {400, 10}, {200, 2}, {600, 40}, {2000, 98},
	} {
		t.Run(fmt.Sprint("timeout ", int(x.timeout), " trip ", int(x.trip)), func(t *testing.T) {
			var stopped, of, split int64
			for k := range 10 {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 3)
					timeout := x.timeout * time.Millisecond
					f.opened(timeout)
					f.net.SetDelay(func(from, to string) time.Duration { return x.trip * time.Millisecond / 2 })
					stops := make([]atomic.Int64, 3)
					f.sees(stops)
					for i := range f.disks {
						f.disks[i].SetFault(func() error { time.Sleep(2 * time.Millisecond); return nil })
					}
					time.Sleep(10*time.Second + time.Duration(k)*timeout/37)
					lead := leadOf(t, f)
					term := f.running[lead].raft.CurrentTerm()
					f.cutOff(lead, true)
					time.Sleep(10 * timeout)
					if f.running[(lead+1)%3].raft.CurrentTerm() > term+1 { // both stood for election at once
						split++
						return
					}
					for i := range stops {
						if i != lead {
							of++
							stopped += min(1, stops[i].Load())
						}
					}
				})
			}
			if split > 4 {
				t.Errorf("in %d of 10 runs, the first election elected nobody", split)
			}
			if stopped > 0 {
				t.Errorf("%d of %d other members disconnected their clients", stopped, of)
			}
		})
	}
}
