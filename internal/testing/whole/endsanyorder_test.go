package whole

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestEndsInAnyOrder: members are shut down, closed and opened again in any order, with open
// connections, while they are asked for changes of the members.
func TestEndsInAnyOrder(t *testing.T) {
	for range 1 { // more find more
		synctest.Test(t, func(t *testing.T) {
			noGoroutineLeft(t)
			m := startMembers(t, 3, nil)
			stop := make(chan struct{})
			var all sync.WaitGroup
			var mu sync.Mutex
			get := func(i int) *lockkeeper.Server { mu.Lock(); defer mu.Unlock(); return m.servers[i] }
			ms := func(n int) time.Duration { return time.Duration(rand.IntN(n*1000)) * time.Microsecond }
			for i := range 3 {
				// changes
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(ms(40)):
						}
						s := get(i)
						ctx, cancel := context.WithTimeout(t.Context(), ms(3000))
						switch rand.IntN(6) {
						case 0:
							s.Transfer(ctx, uint64(rand.IntN(4)))
						case 1:
							s.AddMember(ctx, lockkeeper.Peer{ID: 9, Addr: "nowhere:1", Observer: true, ClientAddr: ":2181"})
						case 2:
							s.RemoveMember(ctx, 9)
						case 3:
							s.FormCluster(ctx)
						case 4:
							s.MemberStatus(ctx, uint64(i+1))
							s.Status()
							s.Stats()
						case 5:
							s.EndSession(ctx, 4711)
						}
						cancel()
					}
				})
				// clients
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(ms(20)):
						}
						nc, err := get(i).Dial("", "", ms(1000))
						if err != nil {
							continue
						}
						c, err := rawclient.Open(nc, 5*time.Second)
						if err == nil {
							for range rand.IntN(20) {
								if _, err := c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x-", ACL: proto.OpenACL, Flags: proto.FlagEphemeral | proto.FlagSequential}); err != nil {
									break
								}
							}
							if rand.IntN(2) == 0 {
								time.Sleep(ms(500))
							}
						}
						if rand.IntN(3) > 0 {
							nc.Close()
						} else {
							time.AfterFunc(ms(5000), func() { nc.Close() })
						}
					}
				})
				// ends
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(ms(2000)):
						}
						s := get(i)
						var ends sync.WaitGroup
						for range 1 + rand.IntN(3) {
							ends.Go(func() {
								time.Sleep(ms(5))
								if rand.IntN(3) == 0 {
									s.Close()
									return
								}
								limit := ms(2000)
								ctx, cancel := context.WithTimeout(t.Context(), limit)
								defer cancel()
								began := time.Now()
								s.Shutdown(ctx)
								if took := time.Since(began); took > limit+500*time.Millisecond {
									t.Errorf("Shutdown with %v took %v", limit, took)
								}
							})
						}
						ends.Wait()
						s.Close()
						time.Sleep(ms(1500))
						mu.Lock()
						m.start(i)
						mu.Unlock()
					}
				})
			}
			time.Sleep(6 * time.Second)
			close(stop)
			all.Wait()
			for i := range 3 {
				m.ready(m.servers[i])
			}
			time.Sleep(6 * time.Second)
		})
	}
}
