package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAddedByOtherName: an operator adds a waiting server, or one has lost its disk, by another name of its
// address (a DNS name, where the server was started with --peer-listen IP:PORT). Everybody reaches it by both.
func TestAddedByOtherName(t *testing.T) {
	for _, how := range []string{"added", "lost disk"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				first := map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]}
				config := func(i int) Config {
					cfg := f.config(i)
					if cfg.Peers = first; i == 3 {
						cfg.Peers, cfg.Addr = nil, f.peers[4]
					}
					cfg.Network = detour{cfg.Network, map[string]string{"name:1": "d:1"}}
					return cfg
				}
				for i := range 4 {
					f.open(i, config(i))
				}
				lead := leadOf(t, f)
				for range 5 {
					for !f.write(lead) {
					}
				}
				ask := func(addr string) {
					_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Add: &MemberInfo{ID: 4, Addr: addr, Voter: true}})
					t.Logf("add at %s: %v", addr, err)
				}
				if how == "added" {
					ask("name:1")
				} else {
					ask("d:1")
					time.Sleep(time.Second)
					ask("name:1") // as a reconfig may
					time.Sleep(time.Second)
					f.lose(3)
					f.open(3, config(3))
				}
				time.Sleep(5 * time.Minute)
				s, _ := f.running[3].Status()
				l, _ := f.running[lead].Status()
				if !s.Formed || find(l.Members, 4) == nil || !find(l.Members, 4).Voter {
					t.Errorf("after five minutes: formed %v, waiting %q, %v", s.Formed, s.Waiting, l.Members)
				}
			})
		})
	}
}
