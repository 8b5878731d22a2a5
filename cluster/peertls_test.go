package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPeerTLSModes: which members reach each other while a cluster moves to TLS. Members whose modes are neighbours in
// the list always do, in both directions; so the members of a cluster can take each step one after the other.
func TestPeerTLSModes(t *testing.T) {
	ca := testkit.NewCA(t)
	own := mutual(ca, ca.Named(t, "localhost"))
	modes := []struct {
		name    string
		network peer.TCP
	}{
		{"no", peer.TCP{}},
		{"accept", peer.TCP{TLS: own, PlainToo: true, DialPlain: true}},
		{"use", peer.TCP{TLS: own, PlainToo: true}},
		{"only", peer.TCP{TLS: own}},
	}
	reached := func(caller, called int) bool { // what their names say
		dialsTLS := caller >= 2
		return dialsTLS && called >= 1 || !dialsTLS && called <= 2
	}
	for called, of := range modes {
		asked := make(chan request.Asked, len(modes))
		self := localPeers(t, 1)
		m := overTCP(t, self, 1, of.network, func(cfg *Config) { cfg.Changed = func(a request.Asked) { asked <- a } })
		until(t, "a leader", func() bool { return m.leader.Get().ID == 1 })
		for caller, by := range modes {
			_, err := request.Ask(t.Context(), by.network, self[0].Addr, request.Request{Status: true})
			if (err == nil) != reached(caller, called) {
				t.Errorf("%s calls %s: %v", by.name, of.name, err)
			}
			if err != nil {
				if caller-called == 1 || called-caller == 1 {
					t.Errorf("%s does not reach %s: %v", by.name, of.name, err)
				}
				continue
			}
			// A change is traced with the subject of the certificate, if there was one.
			request.Ask(t.Context(), by.network, self[0].Addr, request.Request{Remove: 1})
			if a := <-asked; (a.Subject != nil) != (caller >= 2) {
				t.Errorf("%s asks %s: the subject is %x", by.name, of.name, a.Subject)
			}
		}
	}
}

// TestTLSFails: a member whose certificate the others do not accept, or which does not accept theirs, and the others
// say of each other which side refuses which, and why: while they wait for each other, and once they are in a cluster.
func TestTLSFails(t *testing.T) {
	ca, foreign := testkit.NewCA(t), testkit.NewCA(t)
	good := ca.Named(t, "localhost")
	for name, x := range map[string]struct {
		config        *tls.Config
		first, second string // what the first member, whose certificate is good, says of the second, and the reverse
	}{
		"common name only":  {mutual(ca, ca.Bad(t, false)), "its certificate (CN=localhost) is not accepted here: x509: certificate relies on legacy Common Name field", ""},
		"another name":      {mutual(ca, ca.Named(t, "b.example")), "its certificate (CN=b.example) is not accepted here: x509: certificate is valid for b.example, not localhost", ""},
		"expired":           {mutual(ca, ca.Bad(t, true)), "its certificate (CN=localhost) is not accepted here: x509: certificate has expired", "it does not accept this server's certificate (tls: expired certificate); its log says more"},
		"foreign authority": {mutual(ca, foreign.Named(t, "localhost")), "its certificate (CN=localhost) is not accepted here: x509: certificate signed by unknown authority", "it does not accept this server's certificate (tls: unknown certificate authority); its log says more"},
		"other authorities": {mutual(foreign, good),
			"it does not accept this server's certificate (tls: unknown certificate authority); its log says more", "its certificate (CN=localhost) is not accepted here: x509: certificate signed by unknown authority"},
		"no TLS": {nil, "it closed the connection during the TLS handshake, as a server without TLS does", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peers := localPeers(t, 2)
			var logs [2]testkit.Log
			for i, config := range []*tls.Config{mutual(ca, good), x.config} {
				overTCP(t, peers, uint64(i+1), peer.TCP{TLS: config}, func(cfg *Config) { cfg.Log = logs[i].Logger(slog.LevelInfo) })
			}
			says := func(i int, want string) {
				t.Helper()
				of := peers[1-i]
				until(t, "a line that says "+want, func() bool {
					return len(logs[i].Matching("not in the cluster yet", fmt.Sprintf("server %d at %s: %s", of.ID, of.Addr, want))) > 0
				})
			}
			says(0, x.first)
			if x.second != "" {
				says(1, x.second)
			}
			if x.config == nil {
				return
			}
			// The side that was called says it, too.
			called := 1
			if strings.HasPrefix(x.first, "it does not accept") {
				called = 0
			}
			saysRefused(t, &logs[called])
		})
	}
}

// TestTLSFailsLater is TestTLSFails for a member that gets its bad certificate when it is in the cluster.
func TestTLSFailsLater(t *testing.T) {
	t.Parallel() // it waits in real time
	ca := testkit.NewCA(t)
	good := mutual(ca, ca.Named(t, "localhost"))
	peers, disk := localPeers(t, 2), storage.NewMemory()
	var logs [2]testkit.Log
	start := func(i int, own *tls.Config) *Member {
		t.Helper()
		return overTCP(t, peers, uint64(i+1), peer.TCP{TLS: own}, func(cfg *Config) {
			if cfg.Log = logs[i].Logger(slog.LevelWarn); i == 1 {
				cfg.Memory = disk
			}
		})
	}
	first, second := start(0, good), start(1, good)
	until(t, "a leader that both know", func() bool {
		return first.leader.Get().ID != 0 && first.leader.Get().ID == second.leader.Get().ID
	})
	second.Close()
	start(1, mutual(ca, ca.Bad(t, false)))
	until(t, "a line of the first member", func() bool {
		return len(logs[0].Matching("WARN", "TLS with another member fails", "server=2", "address="+peers[1].Addr, "its certificate (CN=localhost) is not accepted here: x509: certificate relies on legacy Common Name field")) > 0
	})
	saysRefused(t, &logs[1])
	_, err := request.Ask(t.Context(), peer.TCP{TLS: good}, peers[1].Addr, request.Request{Status: true})
	if why := (*peer.TLSError)(nil); !errors.As(err, &why) || !strings.HasPrefix(err.Error(), peers[1].Addr+": its certificate") {
		t.Errorf("asking it: %v", err)
	}
}

// localPeers returns n servers at ports of this machine.
func localPeers(t *testing.T, n int) (peers []proto.Peer) {
	for i := range n {
		peers = append(peers, proto.Peer{ID: uint64(i + 1), Addr: fmt.Sprintf("localhost:%d", testkit.Port(t))})
	}
	return peers
}

// overTCP starts a member of these peers, until the test ends.
func overTCP(t *testing.T, peers []proto.Peer, id uint64, network peer.TCP, change func(*Config)) *Member {
	t.Helper()
	cfg := testConfig("")
	cfg.ID, cfg.Addr, cfg.Peers, cfg.Network, cfg.Memory = id, peers[id-1].Addr, peers, network, storage.NewMemory()
	change(&cfg)
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// saysRefused waits until a server that was called says that its certificate was not accepted.
func saysRefused(t *testing.T, log *testkit.Log) {
	t.Helper()
	until(t, "a line of the server that is called", func() bool {
		return len(log.Matching("WARN", "a peer cannot connect: TLS handshake failed", "it does not accept this server's certificate")) > 0
	})
}

// TestPeerTLSMismatch: a member without TLS and one with it say of each other what is wrong.
func TestPeerTLSMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		c, err := f.net.Host("d").Dial(t.Context(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx); err == nil {
			t.Error("TLS works")
		}
		synctest.Wait()
		if f.log.Count("refusing a peer that uses TLS") != 1 || f.log.Count("another version") != 0 {
			t.Errorf("logged: %s", f.log.String())
		}
	})
}
