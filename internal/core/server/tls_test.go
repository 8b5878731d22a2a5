package server

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// pipes is a net.Listener whose connections are pipes in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p <- server
	return client
}

// idle is a Proposer that loses every command.
type idle struct{}

func (idle) Propose(_ *fsm.Command, w fsm.Waiter, _ <-chan struct{}) { w.Lost() }
func (idle) Touch(int64, <-chan struct{}) bool                       { return true }
func (idle) Deadlines() []session.Bucket                             { return nil }
func (idle) Expired() int64                                          { return 0 }
func (idle) Quorum() (report.Quorum, bool)                           { return report.Quorum{}, false }
func (idle) Work() (w report.Work)                                   { return w }
func (idle) Reconfigure([]byte, time.Duration) (proto.Code, bool)    { return proto.Unimplemented, true }
func (idle) ResetProposals()                                         {}
func (idle) Role() string                                            { return "standalone" }

// overPipes runs a test in virtual time, with a server that speaks TLS over pipes.
// handshake performs the client's side of a TLS handshake.
func overPipes(t *testing.T, test func(t *testing.T, s *Server, l pipes, handshake func(net.Conn) *tls.Conn)) {
	ca := testkit.NewCA(t)
	// On a pipe, the server's handshake would block until the client reads the ticket.
	config := &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}, SessionTicketsDisabled: true}
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{
			ID: 1, Proposer: idle{}, Replica: fsm.NewReplica(), Log: testkit.Quiet,
			Limits: Limits{MaxFrame: 1 << 20, MaxOutstanding: 10, OutboxBytes: 4 << 20, HandshakeTimeout: 10 * time.Second, MaxTLSHandshakes: 2},
		})
		s.Open()
		l := make(pipes)
		go s.ServeTLS(l, config)
		test(t, s, l, func(nc net.Conn) *tls.Conn {
			c := tls.Client(nc, &tls.Config{RootCAs: ca.Pool, ServerName: "localhost"})
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
			return c
		})
		close(l)
		s.Close()
		s.Wait()
	})
}

// TestTLSHandshakesAreBounded checks that a TLS handshake must end within
// HandshakeTimeout, and that at most MaxTLSHandshakes run at the same time: one more ends the
// oldest.
func TestTLSHandshakesAreBounded(t *testing.T) {
	overPipes(t, func(t *testing.T, s *Server, l pipes, handshake func(net.Conn) *tls.Conn) {
		ended := func(nc net.Conn) time.Duration {
			start := time.Now()
			if n, err := nc.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
				t.Errorf("%d bytes, %v", n, err)
			}
			return time.Since(start)
		}
		count := func(failed, exceeded, running int) {
			t.Helper()
			synctest.Wait()
			if f, e, r := s.stats.tlsFailed.Load(), s.stats.tlsExceeded.Load(), s.tlsHandshakes.count(); f != int64(failed) || e != int64(exceeded) || r != running {
				t.Errorf("%d failed, %d exceeded, %d in progress; should be %d, %d, %d", f, e, r, failed, exceeded, running)
			}
		}
		silent := l.dial()
		synctest.Wait()
		slow := l.dial()
		synctest.Wait()
		real := l.dial()
		if d := ended(silent); d > 0 {
			t.Errorf("the oldest connection is closed after %v", d)
		}
		count(0, 1, 2)
		handshake(real).Close()
		count(0, 1, 1)
		go func() {
			for _, b := range []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 1, 2, 3, 4} {
				if _, err := slow.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		if d := ended(slow); d != 10*time.Second {
			t.Errorf("closed after %v", d)
		}
		count(1, 1, 0)
		// Those who say nothing keep nobody out, however many they are.
		for range 20 {
			for range 5 {
				l.dial()
				synctest.Wait()
			}
			handshake(l.dial()).Close()
		}
		time.Sleep(10 * time.Second)
		count(2, 100, 0) // the last who said nothing had its 10 s
		// The TLS handshake and the first frame share one deadline.
		late := l.dial()
		time.Sleep(4 * time.Second)
		if d := ended(handshake(late)); d != 6*time.Second {
			t.Errorf("closed %v after its TLS handshake", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(s.connections()); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// TestCutTLS checks that killing a TLS connection does not block, although TLS would
// send an alert and the client does not read: the caller may hold the server's lock.
func TestCutTLS(t *testing.T) {
	overPipes(t, func(t *testing.T, s *Server, l pipes, handshake func(net.Conn) *tls.Conn) {
		handshake(l.dial())
		synctest.Wait()
		conns := s.connections()
		if len(conns) != 1 {
			t.Fatalf("%d connections", len(conns))
		}
		start := time.Now()
		conns[0].kill()
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// TestDistinguishedName compares formatted subjects with the output of Java 17.
func TestDistinguishedName(t *testing.T) {
	for der, want := range map[string]string{
		"3000":                                       "",
		"300c310a30080603550407130100":               "L=\\00",
		"300d310b300906035504030c023e00":             "CN=\\>\\00",
		"300d310b300906035504071e0209ff":             "L=\x09�",
		"300c310a300806035504081e01ff":               "ST=�",
		"300b3109300706035504031c00":                 "CN=#1c00",
		"300b3109300706035504051200":                 "2.5.4.5=#1200",
		"300c310a300806035504091e012b":               "STREET=\\+",
		"300c310a300806035504060c012b":               "C=\\+",
		"300c310a3008060355040b0c0120":               "OU=\\ ",
		"300d310b3009060355040614022720":             "C='\\ ",
		"300d310b3009060355040313020d2b":             "CN=\\\x0d\\+",
		"300d310b3009060355040a14020d3b":             "O=\\\x0d\\;",
		"300d310b30090603883701130227ff":             "2.999.1=#130227ff",
		"300b3109300706038837011e00":                 "2.999.1=#1e00",
		"30133111300f060a0992268993f22c6401191e012b": "DC=\\+",
		"30133111300f060a0992268993f22c64011916013b": "DC=\\;",
		"30123110300e060a0992268993f22c6401011400":   "UID=",
		"30133111300f060a0992268993f22c6401011e013d": "UID=\\=",
		"300c310a30080603550409040122":               "STREET=#040122",
		"300d310b300906035504091e020a09":             "STREET=\x0a\x09",
		"300b3109300706035504081b00":                 "ST=",
		"300d310b300906035504081e024209":             "ST=B\x09",
		"300d310b3009060355040713022c0d":             "L=\\,\\\x0d",
		"300b3109300706035504071300":                 "L=",
		"300b3109300706035504061300":                 "C=",
		"300d310b300906035504060c020d3e":             "C=\\\x0d\\>",
		"300b31093007060355040b0c00":                 "OU=",
		"300c310a3008060355040b1b013b":               "OU=\\;",
		"300c310a30080603550403130120":               "CN=\\ ",
		"300b3109300706035504031200":                 "CN=#1200",
		"300d310b300906038837011e025c3d":             "2.999.1=#1e025c3d",
		"300d310b300906035504041e023b3b":             "2.5.4.4=#1e023b3b",
		"3010310e300c06035504031405e697a50061":       "CN=日\\00a",
		"3010310e300c060355040b0c053ce697a53b":       "OU=\\<日\\;",
		"300d310b300906035504060c024222":             "C=B\\\"",
		"300d310b3009060355040313022e22":             "CN=.\\\"",
		"300d310b3009060355040a0c025c61":             "O=\\\\a",
		"300d310b3009060355040a14025c2c":             "O=\\\\\\,",
	} {
		b, err := hex.DecodeString(der)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := distinguishedName(b); err != nil || got != want {
			t.Errorf("%s is %q, %v; Java has %q", der, got, err, want)
		}
		if _, err := distinguishedName(append(b, 0)); err == nil {
			t.Errorf("%s: no error with a byte appended", der)
		}
		if got, err := distinguishedName(b[:len(b)-1]); err == nil {
			t.Errorf("%s: no error without the last byte: %q", der, got)
		}
	}
	subject := pkix.Name{CommonName: "Ann, of X", Organization: []string{"Example"}, Country: []string{"DE"}}
	if got, err := distinguishedName(testkit.NewCA(t).Client(t, subject).Leaf.RawSubject); err != nil || got != `CN=Ann\, of X,O=Example,C=DE` {
		t.Errorf("%q, %v", got, err)
	}
}
