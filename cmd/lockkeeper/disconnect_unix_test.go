//go:build unix

package main

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// adminHost returns what --admin of the commands takes.
func (p *process) adminHost() string {
	p.t.Helper()
	return strings.TrimPrefix(p.admin(), "http://")
}

// TestDisconnectRevoked: after the procedure of docs/operations.md, a client whose certificate was revoked is out, and does not
// come back, while others stay.
func TestDisconnectRevoked(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	cert, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	ann, bob := ca.Client(t, pkix.Name{CommonName: "ann"}), ca.Client(t, pkix.Name{CommonName: "bob"})
	list := ca.WriteCRL(t, dir, "crl.pem", time.Now().Add(time.Hour))
	p := start(t, nil, "serve", "--memory", "--listen", "", "--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-ca", authority, "--tls-crl", list,
		"--admin", "127.0.0.1:0", "--admin-write=sessions")
	addr := p.secureAddr()
	config := func(c tls.Certificate) *tls.Config { // which resumes TLS sessions, too
		return &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{c}, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	}
	dial := func(c *tls.Config) net.Conn {
		t.Helper()
		nc, err := tls.Dial("tcp", addr, c)
		check1(t, err)
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	asAnn, asBob := config(ann), config(bob)
	a, b := value(rawclient.Open(dial(asAnn), 40*time.Second))(t), value(rawclient.Open(dial(asBob), 40*time.Second))(t)
	_, err := b.Create("/held", nil, proto.FlagEphemeral)
	check1(t, err)
	_, err = rawclient.Open(dial(asBob), 40*time.Second) // it has read its ticket by then
	check1(t, err)

	replace(t, ca.WriteCRL(t, t.TempDir(), "crl.pem", time.Now().Add(time.Hour), bob), list)
	p.hangUp()
	waitFor(t, "the new list", func() bool {
		_, body := fetch(t, http.DefaultClient, p.admin()+"/metrics", "")
		return strings.Contains(body, `lockkeeper_file_reloads_total{for="clients"} 1`)
	})
	check1(t, b.Ping()) // so far it has stayed
	code, stdout, stderr := call(nil, "disconnect", "x509:CN=bob", "--admin", p.adminHost())
	if code != exitOK || !strings.Contains(stdout, "2 connections ended, of the sessions ") || !strings.Contains(stdout, fmt.Sprintf("0x%x", uint64(b.Session.SessionID))) || stderr != "" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	rawtest.Closed(t, b)
	for range 3 {
		nc, err := tls.Dial("tcp", addr, asBob)
		if err == nil {
			_, err = rawclient.Resume(nc, b.Session)
			nc.Close()
		}
		if err == nil {
			t.Fatal("it comes back")
		}
	}
	_, err = a.Exists("/held", false) // the session goes on
	check1(t, err)
	value(rawclient.Open(dial(asAnn), 40*time.Second))(t)
}

// TestDisconnectUser: so is one whose password was changed, until it knows the new one. All servers are asked.
func TestDisconnectUser(t *testing.T) {
	t.Parallel()
	file := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	token := filepath.Join(t.TempDir(), "token")
	check1(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	flags := []string{"serve", "--memory", "--listen=127.0.0.1:0", "--jaas", file, "--enforce-auth", "sasl", "--admin", "127.0.0.1:0", "--admin-token-file", token, "--admin-write=sessions"}
	p, other := start(t, nil, flags...).waitReady(), start(t, nil, flags...).waitReady()
	bob := p.connect()
	check1(t, rawtest.DigestMD5{User: "bob", Password: "x"}.Login(bob))
	check1(t, os.WriteFile(file, []byte(rawtest.JAAS(map[string]string{"bob": "y"})), 0o600))
	p.hangUp()
	login := func(password string, session *proto.ConnectReply) error {
		nc, err := net.Dial("tcp", p.addr)
		check1(t, err)
		t.Cleanup(func() { nc.Close() })
		var c *rawclient.Client
		if session == nil {
			c, err = rawclient.Open(nc, 40*time.Second)
		} else {
			c, err = rawclient.Resume(nc, *session)
		}
		check1(t, err)
		if err := (rawtest.DigestMD5{User: "bob", Password: password}).Login(c); err != nil {
			return err
		}
		_, err = c.Create("/by-bob", nil, proto.FlagSequential)
		return err
	}
	waitFor(t, "the new password", func() bool { return login("y", nil) == nil })
	_, err := bob.Create("/so-far", nil, 0)
	check1(t, err)

	servers := p.adminHost() + "," + other.adminHost() + ",127.0.0.1:1"
	code, stdout, stderr := call(nil, "disconnect", "sasl:bob", "--json", "--admin", servers, "--admin-token-file", token)
	var all []disconnected
	for d := json.NewDecoder(strings.NewReader(stdout)); ; {
		var x disconnected
		if d.Decode(&x) != nil {
			break
		}
		all = append(all, x)
	}
	if oneError(t, stderr, "1 of 3 servers"); code != exitFault || len(all) != 3 || all[0].Connections < 1 || all[1].Connections != 0 || all[1].Error != "" || !strings.Contains(all[2].Error, "127.0.0.1:1") {
		t.Errorf("%d, %+v", code, all)
	}
	rawtest.Closed(t, bob)
	if err := login("x", &bob.Session); err == nil {
		t.Error("it comes back with the former password")
	}
	check1(t, login("y", &bob.Session))
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"disconnect", "sasl:bob"}, exitUsage, "--admin: say which servers"},
		{[]string{"disconnect", "bob", "--admin", p.adminHost()}, exitUsage, `"bob" is not an identity, SCHEME:ID`},
		{[]string{"disconnect", "--admin", p.adminHost()}, exitUsage, "usage: lockkeeper disconnect IDENTITY"},
		{[]string{"disconnect", "sasl:bob", "--admin", "x://y"}, exitUsage, "--admin: "},
		{[]string{"disconnect", "sasl:bob", "--admin", "a", "--timeout", "0s"}, exitUsage, "--"},
		{[]string{"disconnect", "sasl:bob", "--admin", p.adminHost(), "--admin-token-file", "/none"}, exitUsage, "--admin-token-file: "},
		{[]string{"disconnect", "sasl:bob", "--admin", p.adminHost()}, exitFault, "1 of 1 servers"},
		{[]string{"disconnect", "world:anyone", "--admin", p.adminHost(), "--admin-token-file", token}, exitFault, "1 of 1 servers"},
	} {
		code, _, stderr := call(nil, x.args...)
		if oneError(t, stderr, x.says); code != x.code {
			t.Errorf("%q: exit code %d", x.args, code)
		}
	}
}
