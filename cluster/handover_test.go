package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// TestHandOverTooLate: a leader that is to hand over, and does not know yet that
// another leads, is done when it does.
func TestHandOverTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		members, lead := threeMembers(t, net, new(lines))
		m, other := members[lead], members[(lead+1)%3]
		write := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-write; return nil })
		m.Propose(fsm.Nothing(), make(result, 1), nil) // holds Raft up there
		hosts := []string{"a", "b", "c"}
		for _, host := range hosts {
			net.Cut(hosts[lead], host, true)
		}
		for other.Leader() == 0 || other.Leader() == m.cfg.ID {
			<-other.leader().changed
		}
		net.Heal()
		time.AfterFunc(m.electionTimeout, func() { close(write) })
		if err := m.handOver(0); err != nil {
			t.Error(err)
		}
		if _, l := m.raft.LeaderWithID(); l == "" || l == serverID(m.cfg.ID) {
			t.Errorf("%q leads", l)
		}
	})
}
