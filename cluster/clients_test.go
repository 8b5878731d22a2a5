package cluster

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
)

// TestAskClients: a member tells others its clients, in one answer of limited length, and is told which it
// should look for. One that has nothing to tell says only its status.
func TestAskClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		asked := make(chan ClientQuery, 1)
		members, _ := openMembers(t, 3, func(host string) Network { return n.Host(host) }, func(cfg *Config) {
			if cfg.ID == 3 {
				return
			}
			id := cfg.ID
			cfg.Clients = func(q ClientQuery) Clients {
				asked <- q
				all := Clients{Total: 5000}
				for i := range 5000 * (id - 1) {
					all.Some = append(all.Some, Client{Number: i, Session: int64(id), Addr: strings.Repeat("a", int(i)), Op: "PING"})
				}
				return all
			}
		})
		for i, m := range members {
			q := &ClientQuery{Find: []string{"10.0.0.1", "0x"}}
			s, all, err := AskStatus(t.Context(), n.Host("stranger"), m.cfg.addr(), q)
			switch {
			case err != nil || s.ID != m.cfg.ID || s.Cluster != members[0].membership.gate.cluster():
				t.Errorf("member %d: %+v, %v", m.cfg.ID, s, err)
			case (all != nil) != (i < 2):
				t.Errorf("member %d: %+v", m.cfg.ID, all)
			case all == nil:
				continue
			case all.Total != 5000 || len(all.Some) != []int{0, maxClients}[i]:
				t.Errorf("member %d: %d of %d clients", m.cfg.ID, len(all.Some), all.Total)
			}
			if got := <-asked; !slices.Equal(got.Find, q.Find) {
				t.Errorf("member %d was asked for %q", m.cfg.ID, got.Find)
			}
			for _, c := range all.Some {
				if len(c.Addr) != min(int(c.Number), maxClientText) || c.Session != 2 || c.Op != "PING" {
					t.Errorf("%+v", c)
				}
			}
			if s, all, err := AskStatus(t.Context(), n.Host("stranger"), m.cfg.addr(), nil); err != nil || s == nil || all != nil {
				t.Errorf("member %d: %+v, %v", m.cfg.ID, all, err)
			}
		}
	})
}

// TestOlderMemberReadsClients: an earlier version, which does not know the question for clients, takes it for
// a question for the status.
func TestOlderMemberReadsClients(t *testing.T) {
	var old struct { // the requests that 0.1.0's first builds knew
		Status           bool
		Add, Reconfig    any
		Remove, Transfer any
		Propose, Agreed  any
		Form             bool
		Knows            uint64
	}
	text, _ := json.Marshal(Request{Status: true, Clients: &ClientQuery{Find: []string{"status"}}})
	if err := json.Unmarshal(text, &old); err != nil || !old.Status || old.Add != nil || old.Remove != nil || old.Transfer != nil || old.Form || old.Knows != 0 {
		t.Errorf("%s: %+v, %v", text, old, err)
	}
}

// TestReplyOfManyParts: a reply of the length that one may have, which would fill a hundred times as much memory with clients
// of whom it says nothing, is not unpacked.
func TestReplyOfManyParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.answer(t, "b", kindAdmin, func(c net.Conn) {
			io.WriteString(c, `{"status":{"id":2},"clients":{"some":[{}`+strings.Repeat(`,{}`, 340_000)+`]}}`)
			c.Close()
		})
		r, err := ask(t.Context(), b.net.Host("a"), "b:1", Request{Status: true, Clients: &ClientQuery{}})
		if err == nil || !strings.Contains(err.Error(), "b:1: its answer has too many parts") || r.Clients != nil {
			t.Errorf("%v, and it has clients: %v", err, r.Clients != nil)
		}
	})
}

// TestEndlessReply: a server that answers a question about the members without end is given up, after a
// limited number of bytes.
func TestEndlessReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		sent := make(chan int, 1)
		b.answer(t, "b", kindAdmin, func(c net.Conn) {
			defer c.Close()
			io.WriteString(c, `{"status":{"members":[`)
			part, n := strings.Repeat(" ", 64<<10), 0
			for {
				if _, err := io.WriteString(c, part); err != nil || n > 100<<20 {
					break
				}
				n += len(part)
			}
			sent <- n
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := ask(ctx, b.net.Host("a"), "b:1", Request{Status: true})
		if n := <-sent; n > 2<<20 || err == nil || !strings.Contains(err.Error(), "b:1: its answer is too long") {
			t.Errorf("%v, after %d bytes", err, n)
		}
	})
}
