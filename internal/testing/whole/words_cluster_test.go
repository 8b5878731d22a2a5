package whole

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// TestClusterWords: what a leader, a follower, an observer and a member without
// a quorum answer to four-letter words.
func TestClusterWords(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		m.add(4, func(c *lockkeeper.Config) { c.JoinAsObserver = true })
		ask := func(i int, w string) string {
			t.Helper()
			synctest.Wait() // until the connection of the word before is forgotten
			return word(t, inMemory(m.servers[i]), w)
		}
		says := func(i int, w string, lines ...string) {
			t.Helper()
			text := "\n" + ask(i, w)
			for _, l := range lines {
				if !regexp.MustCompile(`\n` + l + `(\n|$)`).MatchString(text) {
					t.Errorf("server %d, %s: no line %q in\n%s", i+1, w, l, text)
				}
			}
		}
		lacks := func(i int, w string, words ...string) {
			t.Helper()
			text := ask(i, w)
			for _, l := range words {
				if strings.Contains(text, l) {
					t.Errorf("server %d, %s: %q in\n%s", i+1, w, l, text)
				}
			}
		}
		lead := m.leader()
		follower := (lead + 1) % 3
		c := m.connect(follower, 10*time.Second)
		must(c.Create("/x", make([]byte, 1000), 0))(t)
		must(c.Set("/x", nil))(t)

		const sizes = `Proposal sizes last/min/max: \d+/\d+/\d\d\d\d`
		const members = `server\.1=host1:7000:8000:participant\nserver\.2=host2:7000:8000:participant\nserver\.3=host3:7000:8000:participant\nserver\.4=host4:7000:8000:observer\nversion=[1-9a-f][0-9a-f]{8,}$`
		for _, w := range []string{"srvr", "stat"} {
			says(lead, w, `Mode: leader\nNode count: \d+\n`+sizes)
			says(follower, w, `Mode: follower`)
			says(3, w, `Mode: observer`)
			lacks(follower, w, "Proposal")
		}
		keys := func(followers, observers int) []string {
			return []string{
				"zk_server_state\tleader\nzk_peer_state\tleading - broadcast", "zk_quorum_size\t3", fmt.Sprintf("zk_learners\t%d", followers+observers),
				fmt.Sprintf("zk_synced_followers\t%d", followers), "zk_synced_non_voting_followers\t0", fmt.Sprintf("zk_synced_observers\t%d", observers),
				"zk_pending_syncs\t0", `zk_leader_uptime\t\d+`, `zk_last_proposal_size\t\d+`, `zk_min_proposal_size\t\d+`, `zk_max_proposal_size\t\d\d\d\d`,
			}
		}
		says(lead, "mntr", keys(2, 1)...)
		says(follower, "mntr", "zk_server_state\tfollower\nzk_peer_state\tfollowing - broadcast", "zk_quorum_size\t3", "zk_synced_observers\t0")
		says(3, "mntr", "zk_server_state\tobserver\nzk_peer_state\tobserving - broadcast")
		lacks(follower, "mntr", "zk_learners", "leader_uptime", "proposal_size")
		says(lead, "conf", `serverId=\d\ninitLimit=0\nsyncLimit=0\nelectionAlg=3\nelectionPort=8000\nquorumPort=7000\npeerType=0\nmembership: \n`+members)
		says(3, "conf", `serverId=4`, `peerType=1`, `membership: \n`+members)
		says(lead, "dump", `SessionTracker dump:\nSession Sets \(1\)/\(1\):\n1 expire at .*\n\t0x[0-9a-f]+\nephemeral nodes dump:`)
		says(follower, "dump", `SessionTracker dump:\nGlobal Sessions\(1\):\n0x[0-9a-f]+\t10000ms\nephemeral nodes dump:`, `Connections Sets \([12]\)/\(2\):`)
		for i := range m.servers {
			says(i, "isro", "rw")
		}

		says(lead, "srst", "Server stats reset.")
		says(lead, "srvr", `Proposal sizes last/min/max: -1/-1/-1`)
		must(c.Set("/x", make([]byte, 2000)))(t)
		says(lead, "srvr", sizes)

		m.net.Kill(host(3)) // the leader hears of the observer no more
		m.stop(3)
		eventually(t, "silence", func() bool { return strings.Contains(ask(lead, "mntr"), "zk_synced_observers\t0\n") })
		says(lead, "mntr", keys(2, 0)...)
		m.serve(3)
		eventually(t, "its voice", func() bool { return strings.Contains(ask(lead, "mntr"), "zk_synced_observers\t1\n") })

		for _, i := range []int{follower, 3} {
			m.kill(i)
		}
		m.kill((lead + 2) % 3)
		const not = "This ZooKeeper instance is not currently serving requests\n"
		eventually(t, "the loss of the quorum", func() bool { return ask(lead, "srvr") == not })
		for w, answer := range map[string]string{"ruok": "imok", "isro": "null", "stat": not, "mntr": not, "conf": not, "dump": not, "cons": not, "wchs": not} {
			if got := ask(lead, w); got != answer {
				t.Errorf("%s without a quorum: %q", w, got)
			}
		}
	})
}
