package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
)

var check, mutual = testkit.Check, Settings{ClientAuth: tls.RequireAndVerifyClientCert}

// presented returns the certificate that a server with the configuration presents, and the error
// of the client's side, which trusts everybody and presents certificates.
func presented(t *testing.T, config *tls.Config, certificates ...tls.Certificate) (*x509.Certificate, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	server := tls.Server(b, config)
	wg.Go(func() {
		if server.Handshake() == nil {
			server.Write([]byte("x"))
		}
		b.Close()
	})
	client := tls.Client(a, &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
	if _, err := client.Read(make([]byte, 1)); err != nil { // with TLS 1.3, the server judges last
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// shows checks which certificate a server presents.
func shows(t *testing.T, k *Keeper, want, with tls.Certificate) {
	t.Helper()
	if got, err := presented(t, k.Server(), with); err != nil || !got.Equal(want.Leaf) {
		t.Errorf("the server presents another certificate; %v", err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b := testkit.Must(os.ReadFile(from))(t)
	check(t, os.WriteFile(to, b, 0o600))
}

// watched runs f in virtual time, while somebody watches k.
func watched(t *testing.T, open func() *Keeper, f func(k *Keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := open()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { k.Watch(ctx) })
		f(k)
		cancel()
		wg.Wait()
	})
}

// TestSwap replaces certificate, key and authorities as Kubernetes does: the names are links into
// a directory ..data, which is a link itself, and is replaced by rename.
func TestSwap(t *testing.T) {
	dir, first, second := t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	one, two := first.Server(t), second.Server(t)
	for i, x := range []struct {
		ca   *testkit.CA
		pair tls.Certificate
	}{{first, one}, {second, two}} {
		at := filepath.Join(dir, []string{"v1", "v2"}[i])
		check(t, os.Mkdir(at, 0o700))
		testkit.WritePair(t, x.pair, at, "tls.crt", "tls.key")
		x.ca.WriteCA(t, at, "ca.crt")
	}
	data := filepath.Join(dir, "..data")
	check(t, os.Symlink("v1", data))
	name := func(f string) string {
		check(t, os.Symlink(filepath.Join("..data", f), filepath.Join(dir, f)))
		return filepath.Join(dir, f)
	}
	files := Files{Use: "clients", Cert: name("tls.crt"), Key: name("tls.key"), CA: name("ca.crt")}
	var log testkit.Log
	watched(t, func() *Keeper {
		return testkit.Must(Open(files, mutual, log.Logger(slog.LevelInfo)))(t)
	}, func(k *Keeper) {
		ann, bob := first.Client(t, pkix.Name{CommonName: "ann"}), second.Client(t, pkix.Name{CommonName: "bob"})
		shows(t, k, one, ann)
		if _, err := presented(t, k.Server(), bob); err == nil {
			t.Error("a client of an unknown authority is let in")
		}
		next := filepath.Join(dir, "..next")
		check(t, os.Symlink("v2", next))
		check(t, os.Rename(next, data))
		time.Sleep(reread.Every + reread.Settle + time.Millisecond)
		shows(t, k, two, bob)
		if _, err := presented(t, k.Server(), ann); err == nil {
			t.Error("a client of the former authority is let in")
		}
		if !k.Dial().RootCAs.Equal(second.Pool) {
			t.Error("connections that are made trust other authorities")
		}
		if s := k.State(); s.Reloads != 1 || s.Failures != 0 || s.Refused || !s.End.Equal(two.Leaf.NotAfter) {
			t.Errorf("%+v", s)
		}
	})
	if lines := log.Matching("read again"); len(lines) != 1 {
		t.Errorf("the log: %q", lines)
	}
}

// TestPair changes the certificate and its key one after the other. A pair that does not fit is
// not even tried.
func TestPair(t *testing.T) {
	dir, next, ca := t.TempDir(), t.TempDir(), testkit.NewCA(t)
	one, two := ca.Server(t), ca.Server(t)
	cert, key := testkit.WritePair(t, one, dir, "cert.pem", "key.pem")
	cert2, key2 := testkit.WritePair(t, two, next, "cert.pem", "key.pem")
	var log testkit.Log
	watched(t, func() *Keeper {
		return testkit.Must(Open(Files{Use: "clients", Cert: cert, Key: key}, Settings{}, log.Logger(slog.LevelInfo)))(t)
	}, func(k *Keeper) {
		time.Sleep(reread.Every - time.Millisecond)
		copyFile(t, cert2, cert)
		time.Sleep(reread.Settle) // a look has found a change
		copyFile(t, key2, key)
		time.Sleep(2*reread.Settle + time.Millisecond)
		if s := k.State(); s.Reloads != 1 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		shows(t, k, two, tls.Certificate{})
	})
	if lines := log.Matching("ERROR"); len(lines) != 0 {
		t.Errorf("the log: %q", lines)
	}
}

// TestBroken breaks each of the files. What was read before stays in use, and the log names the
// file once, however long it stays so.
func TestBroken(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	pair := ca.Server(t)
	ann := ca.Client(t, pkix.Name{CommonName: "ann"})
	cert, key := testkit.WritePair(t, pair, dir, "cert.pem", "key.pem")
	_, other := testkit.WritePair(t, ca.Server(t), t.TempDir(), "cert.pem", "key.pem")
	authority := ca.WriteCA(t, dir, "ca.pem")
	cut := func(file string) func() {
		return func() {
			b := testkit.Must(os.ReadFile(file))(t)
			check(t, os.WriteFile(file, b[:len(b)/2], 0o600))
		}
	}
	for name, x := range map[string]struct {
		file, says string
		change     func()
	}{
		"half a certificate":   {cert, cert + ": the part that begins at byte 0 is not whole", cut(cert)},
		"half a key":           {key, key + ": the part that begins at byte 0 is not whole", cut(key)},
		"another key":          {key, key + ": ", func() { copyFile(t, other, key) }},
		"no key":               {key, key, func() { check(t, os.Remove(key)) }},
		"an empty certificate": {cert, cert, func() { check(t, os.WriteFile(cert, nil, 0o600)) }},
		"half an authority": {authority, authority + ": the part that begins at byte ", func() {
			b := testkit.Must(os.ReadFile(authority))(t)
			check(t, os.WriteFile(authority, append(b, b[:len(b)/2]...), 0o600))
		}},
		"half an authority before another": {authority, authority + ": the part that begins at byte 0 is not whole", func() {
			b := testkit.Must(os.ReadFile(authority))(t)
			half := append([]byte{}, b[:len(b)/2]...)
			check(t, os.WriteFile(authority, append(append(half, '\n'), b...), 0o600))
		}},
		"a broken authority": {authority, authority + ": the certificate that begins at byte 0: ", func() {
			check(t, os.WriteFile(authority, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0o600))
		}},
		"a long file": {authority, authority + ": it has 16777217 bytes", func() { check(t, os.Truncate(authority, reread.MaxFile+1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			var log testkit.Log
			good := filepath.Join(t.TempDir(), "good")
			copyFile(t, x.file, good)
			watched(t, func() *Keeper {
				return testkit.Must(Open(Files{Use: "clients", Cert: cert, Key: key, CA: authority}, mutual, log.Logger(slog.LevelInfo)))(t)
			}, func(k *Keeper) {
				x.change()
				time.Sleep(time.Hour)
				if s := k.State(); s.Reloads != 0 || s.Failures != 1 || !s.Refused {
					t.Errorf("%+v", s)
				}
				shows(t, k, pair, ann)
				if lines := log.Matching("ERROR", x.says); len(lines) != 1 {
					t.Errorf("the log does not say once %q: %q", x.says, log.Matching())
				}
				k.Reload() // whoever asks for it gets an answer
				if s := k.State(); s.Failures != 2 {
					t.Errorf("%+v", s)
				}
				check(t, os.Rename(good, x.file))
				time.Sleep(reread.Every + reread.Settle + time.Millisecond)
				if s := k.State(); s.Reloads != 1 || s.Refused {
					t.Errorf("%+v", s)
				}
				if lines := log.Matching("WARN", "can be used again"); len(lines) != 1 {
					t.Errorf("the log: %q", log.Matching())
				}
			})
		})
	}
}

// TestInvalidAtFirst: where there is nothing to fall back to, a server begins with files that are not valid now, because
// the clock may be wrong, and the log says so. It takes others like them, too, until it has valid ones.
func TestInvalidAtFirst(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	now := time.Now()
	ended, early := ca.Between(t, now.Add(-2*time.Hour), now.Add(-time.Hour)), ca.Between(t, now.Add(time.Hour), now.Add(2*time.Hour))
	cert, _ := testkit.WritePair(t, ended, dir, "both.pem", "both.pem")
	authority, _ := testkit.WritePair(t, ended, dir, "ca.pem", "ca.key")
	var log testkit.Log
	k := testkit.Must(Open(Files{Use: "clients", Cert: cert, CA: authority, CRL: ca.WriteCRL(t, dir, "crl.pem", now.Add(-time.Hour))}, mutual, log.Logger(slog.LevelWarn)))(t)
	for _, says := range []string{
		`msg="a certificate has ended at ` + stamp(ended.Leaf.NotAfter) + `, and nobody who checks it accepts it" for=clients file=` + cert,
		`msg="no authority is valid now, so no certificate is accepted" for=clients file=` + authority,
		`msg="a list of revoked certificates has ended`,
	} {
		if len(log.Matching("ERROR", says)) != 1 {
			t.Errorf("the log does not say %s: %s", says, &log)
		}
	}
	testkit.WritePair(t, early, dir, "both.pem", "both.pem")
	k.Reload()
	if len(log.Matching("ERROR", "a certificate is not valid before "+stamp(early.Leaf.NotBefore))) != 1 || k.State().Refused {
		t.Errorf("%+v, the log: %s", k.State(), &log)
	}
	testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	ca.WriteCA(t, dir, "ca.pem")
	ca.WriteCRL(t, dir, "crl.pem", now.Add(time.Hour))
	lines := len(log.Matching())
	k.Reload()
	if s := k.State(); s.Refused || s.Reloads != 2 || len(log.Matching()) != lines {
		t.Errorf("with valid files: %+v, %s", s, &log)
	}
}

// TestNoWorse: a file that is not valid does not replace one that is. One that becomes valid does so then, without
// another change.
func TestNoWorse(t *testing.T) {
	ca, good := testkit.NewCA(t), testkit.NewCA(t).Server(t)
	for name, x := range map[string]struct {
		change func(t *testing.T, dir string, now time.Time)
		file   string
		says   string
		after  time.Duration // until it is used; 0 for never
	}{
		"a certificate that has ended": {func(t *testing.T, dir string, now time.Time) {
			testkit.WritePair(t, ca.Between(t, now.Add(-time.Hour), now.Add(-time.Minute)), dir, "both.pem", "both.pem")
		}, "both.pem", ": a certificate has ended at 1999-12-31T23:59:00Z, and the one in use is valid", 0},
		"a certificate that is not valid yet": {func(t *testing.T, dir string, now time.Time) {
			testkit.WritePair(t, ca.Between(t, now.Add(time.Hour), now.Add(100*time.Hour)), dir, "both.pem", "both.pem")
		}, "both.pem", ": a certificate is not valid before 2000-01-01T01:00:00Z, and the one in use is valid", time.Hour},
		"an authority that has ended": {func(t *testing.T, dir string, now time.Time) {
			testkit.WritePair(t, ca.Between(t, now.Add(-time.Hour), now.Add(-time.Minute)), dir, "ca.pem", "ca.key")
		}, "ca.pem", ": no authority in it is valid now, and one of those in use is", 0},
		"an authority that is not valid yet": {func(t *testing.T, dir string, now time.Time) {
			testkit.WritePair(t, ca.Between(t, now.Add(time.Hour), now.Add(100*time.Hour)), dir, "ca.pem", "ca.key")
		}, "ca.pem", ": no authority in it is valid now, and one of those in use is", time.Hour},
		"a list that has ended": {func(t *testing.T, dir string, now time.Time) {
			ca.WriteCRL(t, dir, "crl.pem", now.Add(-time.Minute))
		}, "crl.pem", ": the list of CN=Test CA has ended at 1999-12-31T23:59:00Z, and the one in use has not", 0},
		"an older list": {func(t *testing.T, dir string, now time.Time) {
			copyFile(t, filepath.Join(dir, "older.pem"), filepath.Join(dir, "crl.pem"))
		}, "crl.pem", ": the list of CN=Test CA, of 1990-01-01T00:00:00Z, is older than the one in use, of 1990-01-01T00:00:00Z", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cert, _ := testkit.WritePair(t, good, dir, "both.pem", "both.pem")
			eve := ca.Client(t, pkix.Name{CommonName: "eve"})
			files := Files{Use: "clients", Cert: cert, CA: ca.WriteCA(t, dir, "ca.pem")}
			var log testkit.Log
			watched(t, func() *Keeper {
				ca.WriteCRL(t, dir, "older.pem", time.Now().Add(1000*time.Hour))
				files.CRL = ca.WriteCRL(t, dir, "crl.pem", time.Now().Add(1000*time.Hour), eve)
				return testkit.Must(Open(files, mutual, log.Logger(slog.LevelInfo)))(t)
			}, func(k *Keeper) {
				x.change(t, dir, time.Now())
				time.Sleep(time.Hour - time.Millisecond)
				if s := k.State(); s.Failures != 1 || s.Reloads != 0 || !s.Refused {
					t.Errorf("%+v", s)
				}
				shows(t, k, good, ca.Client(t, pkix.Name{CommonName: "ann"}))
				if _, err := presented(t, k.Server(), eve); err == nil {
					t.Error("a client is let in whose certificate is revoked")
				}
				if lines := log.Matching("ERROR"); len(lines) != 1 || !strings.Contains(lines[0], filepath.Join(dir, x.file)+x.says) {
					t.Errorf("the log does not say once %q: %q", x.says, lines)
				}
				time.Sleep(reread.Every + time.Millisecond)
				if s := k.State(); s.Failures != 1 || s.Refused != (x.after == 0) {
					t.Errorf("an hour later: %+v", s)
				}
			})
		})
	}
}

// TestEndedIssuer: a certificate that has ended is no reason to refuse files if it is not the server's own but one that
// comes with it. The log warns of it.
func TestEndedIssuer(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	var log testkit.Log
	k := testkit.Must(Open(Files{Use: "clients", Cert: cert}, Settings{}, log.Logger(slog.LevelWarn)))(t)
	next, issuer := ca.Server(t), ca.Expired(t, pkix.Name{CommonName: "issuer"})
	testkit.WritePair(t, next, dir, "both.pem", "both.pem")
	more, _ := testkit.WritePair(t, issuer, dir, "issuer.pem", "issuer.key")
	check(t, os.WriteFile(cert, append(testkit.Must(os.ReadFile(cert))(t), testkit.Must(os.ReadFile(more))(t)...), 0o600))
	k.Reload()
	if s := k.State(); s.Refused || !s.End.Equal(issuer.Leaf.NotAfter) || len(log.Matching("WARN", "that comes with the server's own has ended")) != 1 {
		t.Errorf("%+v, the log: %s", s, &log)
	}
	if got, err := presented(t, k.Server()); err != nil || !got.Equal(next.Leaf) {
		t.Errorf("the server presents another certificate; %v", err)
	}
}

// TestResumption: a client that has a session ticket is judged like any other, which is
// crypto/tls's doing.
func TestResumption(t *testing.T) {
	dir, ca, next := t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	cert, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	authority := ca.WriteCA(t, dir, "ca.pem")
	k := testkit.Must(Open(Files{Use: "clients", Cert: cert, CA: authority}, mutual, slog.New(slog.DiscardHandler)))(t)
	l := testkit.Must(tls.Listen("tcp", "127.0.0.1:0", k.Server()))(t)
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("x"))
			c.Close()
		}
	})
	client := &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.Client(t, pkix.Name{CommonName: "ann"})}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	dial := func() error {
		c, err := tls.Dial("tcp", l.Addr().String(), client)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
		return err
	}
	for range 2 {
		check(t, dial())
	}
	next.WriteCA(t, dir, "ca.pem")
	k.Reload()
	if err := dial(); err == nil || !strings.Contains(err.Error(), "tls: ") {
		t.Errorf("a client of the former authority: %v", err)
	}
}
