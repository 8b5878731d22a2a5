package cluster

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPeerTLSModes: which members reach each other while a cluster moves to TLS. Members whose modes are neighbours in
// the list always do, in both directions; so the members of a cluster can take each step one after the other.
func TestPeerTLSModes(t *testing.T) {
	ca := testkit.NewCA(t)
	mutual := &tls.Config{Certificates: []tls.Certificate{ca.Named(t, "localhost")}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	modes := []struct {
		name    string
		network TCP
	}{
		{"no", TCP{}},
		{"accept", TCP{TLS: mutual, PlainToo: true, DialPlain: true}},
		{"use", TCP{TLS: mutual, PlainToo: true}},
		{"only", TCP{TLS: mutual}},
	}
	reached := func(caller, called int) bool { // what their names say
		dialsTLS := caller >= 2
		return dialsTLS && called >= 1 || !dialsTLS && called <= 2
	}
	for called, of := range modes {
		self := proto.Peer{ID: 1, Addr: fmt.Sprintf("localhost:%d", testkit.Port(t))}
		asked := make(chan Asked, len(modes))
		cfg := Config{ID: 1, Addr: self.Addr, Peers: []proto.Peer{self}, Network: of.network, Tick: time.Second, ReapInterval: time.Minute,
			SnapshotBytes: 1 << 20, Memory: storage.NewMemory()}
		cfg.Log = slog.New(slog.DiscardHandler)
		cfg.Changed = func(a Asked) { asked <- a }
		m := New(cfg, fsm.NewReplica())
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "a leader", func() bool { return m.leader.get().id == 1 })
		for caller, by := range modes {
			_, err := Ask(t.Context(), by.network, self.Addr, Request{Status: true})
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
			Ask(t.Context(), by.network, self.Addr, Request{Remove: 1})
			if a := <-asked; (a.Subject != nil) != (caller >= 2) {
				t.Errorf("%s asks %s: the subject is %x", by.name, of.name, a.Subject)
			}
		}
		m.Close()
	}
}
