package whole

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/request"
)

// TestHandOver makes leaders hand over, on request and because they stop, while clients
// write through all members. The first election must succeed every time, so that no
// client waits for a second one.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rng(seed(t), 0)
		m := startMembers(t, 3, nil)
		m.net.SetDelay(func(string, string) time.Duration { return time.Duration(r.IntN(10_000)) * time.Microsecond })
		status := func() *request.Status {
			t.Helper()
			return must(m.ask(request.Request{Status: true}))(t)
		}
		for round := range 20 {
			lead, term := m.leader(), status().Term
			began := time.Now()
			var writers sync.WaitGroup
			for i := range m.servers {
				if stops := round%2 == 1; stops && i == lead {
					continue // its clients lose their connections
				}
				for j := range 3 {
					c := m.connect(i, 10*time.Second)
					writers.Go(func() {
						defer c.Close()
						for n := 0; time.Since(began) < time.Second; n++ {
							sent := time.Now()
							_, err := c.Create(fmt.Sprintf("/w%d-%d-%d-%d", round, i, j, n), nil, 0)
							if waited := time.Since(sent); err != nil || waited > 250*time.Millisecond {
								t.Errorf("round %d: a write on server %d waited %v: %v", round, i+1, waited, err)
							}
						}
					})
				}
			}
			time.Sleep(200 * time.Millisecond)
			if round%2 == 0 {
				must(m.ask(request.Request{Transfer: new(uint64)}))(t)
			} else {
				m.stop(lead)
			}
			var s *request.Status // of a member that may be the last to learn of it
			eventually(t, "another leader", func() bool { s = status(); return s.Term > term && s.Leader != 0 })
			if s.Leader == uint64(lead+1) || s.Term != term+1 {
				t.Errorf("round %d: server %d leads in term %d, after %d in %d", round, s.Leader, s.Term, lead+1, term)
			}
			writers.Wait()
			if m.servers[lead] == nil {
				m.net.Kill(host(lead))
				m.serve(lead)
			}
		}
	})
}

// TestHandOverAfterRestarts: a member whose connections all lead to previous runs of
// members that were restarted since wins its first election. It may take Raft 100 ms to find
// out that its connection to a member that has restarted is broken.
func TestHandOverAfterRestarts(t *testing.T) {
	for range 5 { // without the correction, it wins some of them by chance
		synctest.Test(t, handOverAfterRestarts)
	}
}

func handOverAfterRestarts(t *testing.T) {
	m := startMembers(t, 3, nil)
	first := m.leader()
	second, third := (first+1)%3, (first+2)%3
	transfer := func(to int) {
		t.Helper()
		id, began := uint64(to+1), time.Now()
		must(m.ask(request.Request{Transfer: &id}))(t)
		if lead, took := m.leader(), time.Since(began); lead != to || took > 250*time.Millisecond {
			t.Errorf("server %d leads after %v, not %d", lead+1, took, id)
		}
	}
	restart := func(i int) {
		t.Helper()
		m.kill(i)
		m.serve(i)
	}
	transfer(second)
	restart(third)
	transfer(third)
	restart(second)
	transfer(first)
}
