package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// oldVersion is peerVersion of the members that say `voter` (commit 8116098).
const oldVersion = 2

// asOld sends a request to a member as one that says `voter` does. refused means that the member
// does not talk to such a member.
func asOld(t *testing.T, n *memnet.Network, from, to, request string) (r Reply, refused bool) {
	t.Helper()
	c, err := n.Host(from).Dial(context.Background(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello := (&hello{kind: kindAdmin}).append(nil)
	hello[1] = oldVersion
	if _, err := c.Write(append(hello, request+"\n"...)); err != nil {
		return r, true
	}
	var answer [helloAnswerLen]byte
	b := bufio.NewReader(c)
	if n, err := b.Read(answer[:]); err != nil || n < helloAnswerLen || answer[0] != oldVersion {
		return r, true
	}
	if err := json.NewDecoder(b).Decode(&r); err != nil {
		return r, true
	}
	return r, false
}

// TestOldMemberLostItsDisk: a voter of the version that says `voter` has lost its disk, and asks for
// a place without a vote before it joins. Either it is refused, or it has no vote afterwards. If it is told that
// this was done, and still has its vote, it votes with a log that it has forgotten.
func TestOldMemberLostItsDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		members, lead := threeMembers(t, n, new(testkit.Log))
		m, lost := members[lead], members[(lead+1)%3]
		lost.Kill() // its process has ended, and its disk is lost
		host := string(rune('a' + (lead+1)%3))
		q := fmt.Sprintf(`{"add":{"id":%d,"address":"%s:1","voter":false},"back":true,"run":4711}`, lost.cfg.ID, host)
		r, refused := asOld(t, n, host, m.cfg.addr(), q)
		if refused || r.Error != "" {
			t.Logf("refused: %q", r.Error)
			return
		}
		if is, votes := m.membership.known(lost.cfg.ID); is && votes {
			t.Errorf("server %d was told that it has no vote, and has it: %+v", lost.cfg.ID, r.Status.Members)
		}
	})
}

// TestOldOperatorKeepsObserver: an observer that `cluster add --observer` of the version that says
// `voter` names does not become a voter.
func TestOldOperatorKeepsObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		members, lead := threeMembers(t, n, new(testkit.Log))
		m, x := members[lead], members[(lead+1)%3]
		if _, err := m.Change(Request{Add: &proto.Peer{ID: x.cfg.ID, Addr: x.cfg.addr(), Observer: true}}); err != nil {
			t.Fatal(err)
		}
		q := fmt.Sprintf(`{"add":{"id":%d,"address":"%s","voter":false}}`, x.cfg.ID, x.cfg.addr())
		r, refused := asOld(t, n, "d", m.cfg.addr(), q)
		if refused || r.Error != "" {
			t.Logf("refused: %q", r.Error)
			return
		}
		if _, votes := m.membership.known(x.cfg.ID); votes {
			t.Error("an observer has a vote that nobody gave it")
		}
	})
}

// TestOldLeaderReads: what this version asks of a leader that says `voter`, if the two talk to each
// other at all, means the same there. A voter in a reconfig must not lose its vote.
func TestOldLeaderReads(t *testing.T) {
	if peerVersion != oldVersion {
		return
	}
	type oldPeer struct {
		ID    uint64 `json:"id"`
		Voter bool   `json:"voter"`
	}
	for _, observer := range []bool{false, true} {
		peer := proto.Peer{ID: 2, Addr: "b:1", Observer: observer}
		b, _ := json.Marshal(Request{Add: &peer, Reconfig: &Reconfig{Joining: []proto.Peer{peer}, Version: -1}})
		var old struct {
			Add      oldPeer `json:"add"`
			Reconfig struct {
				Joining []oldPeer `json:"joining"`
			} `json:"reconfig"`
		}
		if err := json.Unmarshal(b, &old); err != nil {
			t.Fatal(err)
		}
		if old.Add.Voter == observer || old.Reconfig.Joining[0].Voter == observer {
			t.Errorf("%s: an old leader reads voter=%v", b, old.Add.Voter)
		}
	}
}
