package whole

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestMeterAcrossSnapshot: the meter of locks of a member agrees with the leader's, also after a snapshot has
// replaced the member's state, whenever it is scraped, and while znodes are deleted with their parents,
// containers are reaped, sessions end and multis mix all that.
func TestMeterAcrossSnapshot(t *testing.T) {
	for range rounds(1, 2) {
		synctest.Test(t, func(t *testing.T) {
			m := startMembers(t, 3, func(c *lockkeeper.Config) {
				c.Limits.SnapshotBytes = 64 << 10
				c.ContainerCheckInterval = time.Second
			})
			lead := m.leader()
			late := (lead + 1) % 3
			handlers := [3]*admin.Handler{}
			for i := range 3 {
				handlers[i] = admin.New(m.servers[i], admin.Options{})
				defer handlers[i].Close()
			}
			by := func(h *admin.Handler) string {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
				var all []string
				for line := range strings.Lines(w.Body.String()) {
					for _, p := range []string{"lockkeeper_locks_held ", "lockkeeper_lock_waiters ", "lockkeeper_lock_queue_length_max ", "lockkeeper_lock_directories_unmeasured ", "lockkeeper_lock_metrics_complete "} {
						if strings.HasPrefix(line, p) {
							all = append(all, strings.TrimSpace(line[len("lockkeeper_"):]))
						}
					}
				}
				slices.Sort(all)
				return strings.Join(all, " ")
			}
			locks := func(i int) string { return by(handlers[i]) }
			var clients []*rawclient.Client
			more := func() { clients = append(clients, connectFor(t, inMemory(m.servers[lead]), 30*time.Second)) }
			for range 4 {
				more()
			}
			c := clients[0]
			dirs := []string{"/a", "/a/b", "/a/b/locks", "/c", "/c/locks", "/d-0000000001", "/d-0000000001/e", "/ä ö", "/ä ö/x"}
			change := func() {
				by := clients[rand.IntN(len(clients))]
				dir := dirs[rand.IntN(len(dirs))]
				switch n := rand.IntN(14); {
				case n == 0:
					by.Call(proto.OpCreateContainer, &proto.CreateRequest{Path: dir, ACL: proto.OpenACL, Flags: proto.FlagContainer}, nil)
				case n == 1:
					by.Create(dir, nil, 0)
				case n == 2:
					by.Delete(dir)
				case n < 6:
					var children proto.ChildrenReply
					by.Call(proto.OpGetChildren, &proto.PathWatch{Path: dir}, &children)
					for _, name := range children.Names {
						if rand.IntN(2) == 0 {
							by.Delete(dir + "/" + name)
						}
					}
				case n == 6 && len(clients) > 2:
					i := 1 + rand.IntN(len(clients)-1)
					clients[i].CloseSession()
					clients[i].Close()
					clients = slices.Delete(clients, i, i+1)
					more()
				default:
					format := []string{"_c_%032x-lock-", "%032x__lock__", "_c_%032x-__READ__", "_c_%032x-__WRIT__", "x%032x-", "lock-%.0x", "%.0xqn-", "_c_%032x-lease-"}[rand.IntN(8)]
					by.Create(dir+"/"+fmt.Sprintf(format, rand.Uint64()), nil, proto.FlagEphemeral|proto.FlagSequential)
				}
				if rand.IntN(20) == 0 {
					time.Sleep(1100 * time.Millisecond) // containers are reaped
				}
				for _, c := range clients {
					check(t, c.Ping())
				}
			}
			same := func(when string) {
				t.Helper()
				m.settle()
				synctest.Wait()
				all := map[string]bool{}
				for i := range 3 {
					all[locks(i)] = true
				}
				fresh := admin.New(m.servers[lead], admin.Options{}) // it reads the state
				all[by(fresh)] = true
				if len(all) != 1 {
					t.Errorf("%s: %q %q %q; read anew: %q", when, locks(0), locks(1), locks(2), by(fresh))
				}
				fresh.Close()
			}
			same("at first")
			for range 150 {
				change()
			}
			same("before")
			for round := range 3 {
				m.cutOff(late, true)
				for range 100 {
					change()
					if rand.IntN(10) == 0 {
						locks(late)
					}
				}
				for i := range 100 {
					must(c.Create(fmt.Sprintf("/n%d", i), make([]byte, 500<<10), 0))(t)
					check(t, c.Delete(fmt.Sprintf("/n%d", i)))
					for _, c := range clients {
						check(t, c.Ping())
					}
				}
				for range 30 {
					change()
				}
				m.cutOff(late, false)
				for range 100 {
					locks(late)
					time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
					change()
				}
				m.ready(m.servers[late])
				time.Sleep(3 * time.Second)
				for _, c := range clients {
					check(t, c.Ping())
				}
				same(fmt.Sprint("after the snapshot, ", round))
				t.Log(locks(late))
				for range 50 {
					change()
				}
				same(fmt.Sprint("later, ", round))
			}
		})
	}
}
