package server_test

import (
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestEndConnections: the connections of an identity end, and no others. Their sessions go on.
func TestEndConnections(t *testing.T) {
	p := open(t, withSASL(server.Auth{}))
	p.loop.set(fsm.SASL)
	digest := func(text string) func(c *rawclient.Client) {
		return func(c *rawclient.Client) {
			must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(text)}, nil))(t)
		}
	}
	sum := sha1.Sum([]byte("ann:a"))
	auths := []func(c *rawclient.Client){
		digest("ann:a"), digest("ann:b"), digest("anna:a"), func(c *rawclient.Client) { check(t, bob.Login(c)) }, func(*rawclient.Client) {},
	}
	for _, x := range []struct {
		identity string
		ends     []int // of auths
	}{
		{"digest:ann", []int{0, 1}},
		{"digest:ann:" + base64.StdEncoding.EncodeToString(sum[:]), []int{0}},
		{"sasl:bob", []int{3}},
		{"sasl:ann", nil},
		{"x509:ann", nil},
		{"ip:127.0.0.0/8", []int{0, 1, 2, 3, 4}},
		{"ip:127.0.0.2", nil},
	} {
		var all []*rawclient.Client
		var want report.Ended
		for _, auth := range auths {
			c := connect(t, p.dial)
			auth(c)
			all = append(all, c)
		}
		for _, i := range x.ends {
			want.Connections++
			want.Sessions = append(want.Sessions, all[i].Session.SessionID)
		}
		slices.Sort(want.Sessions)
		got, err := p.EndConnections(x.identity)
		if err != nil || got.Connections != want.Connections || !slices.Equal(got.Sessions, want.Sessions) {
			t.Errorf("%s: %+v, %v, not %+v", x.identity, got, err, want)
		}
		for i, c := range all {
			if !slices.Contains(x.ends, i) {
				check(t, c.Ping())
				c.Close()
				continue
			}
			closed(t, c)
			if p.Connected(c.Session.SessionID) {
				t.Errorf("%s: session %d still counts as connected", x.identity, i)
			}
			again := must(rawclient.Resume(must(p.dial())(t), c.Session))(t)
			if ids := whoAmI(t, again); len(ids) != 1 {
				t.Errorf("%s: client %d comes back as %v", x.identity, i, ids)
			}
			again.Close()
		}
		eventually(t, "the end of the connections", func() bool { return len(p.Connections()) == 0 })
	}
	for _, text := range []string{"", "bob", "sasl", "sasl:", "world:anyone", "super:", "auth:", "ip:x", "ip:127.0.0.1/33", "digest:"} {
		if _, err := p.EndConnections(text); err == nil {
			t.Errorf("%q is an identity", text)
		}
	}
}

// TestEndConnectionsThatProve: who has begun to prove an identity, by a certificate or a password that was valid then, does not
// come in with it later.
func TestEndConnectionsThatProve(t *testing.T) {
	ca := testkit.NewCA(t)
	hello, proceed := make(chan struct{}), make(chan struct{})
	config := &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	config.VerifyConnection = func(tls.ConnectionState) error { // it is valid, as far as is known
		close(hello)
		<-proceed
		return nil
	}
	p := open(t, withSASL(server.Auth{}))
	p.loop.set(fsm.SASL)
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	go p.ServeTLS(l, config) // until the listener is closed
	defer l.Close()
	answered := make(chan error, 1)
	go func() {
		nc, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.Client(t, pkix.Name{CommonName: "ann"})}})
		if err == nil {
			defer nc.Close()
			_, err = rawclient.Open(nc, 40*time.Second)
		}
		answered <- err
	}()
	<-hello
	c := connect(t, p.dial)
	challenge := must(rawtest.CallSASL(c, ""))(t)
	if got, err := p.EndConnections("x509:CN=ann"); err != nil || got.Connections != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	close(proceed)
	if err := <-answered; err == nil {
		t.Error("a TLS handshake that had begun is a way in")
	}
	response, _ := bob.Response(challenge)
	if _, err := rawtest.CallSASL(c, response); err == nil {
		t.Error("an exchange of SASL that had begun is a way in")
	}
}
