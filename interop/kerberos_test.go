//go:build interop

package interop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/lockkeeper/lockkeeper/internal/tools/gssapi/gssapitest"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// kerberosRealm is the one that kazoo's tests expect.
const kerberosRealm = "KAZOOTEST.ORG"

// kerberos is a realm of MIT Kerberos in a folder. Its KDC listens on the loopback address.
type kerberos struct{ dir, conf string }

// startKerberos creates a realm with these principals, whose keys are in keytabs in its folder, and starts its KDC.
func startKerberos(t *testing.T, keytabs map[string][]string) *kerberos {
	t.Helper()
	return startKerberosWith(t, "aes256-cts:normal aes128-cts:normal", keytabs)
}

// startKerberosWith is like startKerberos. The keys of principals are for these ciphers.
func startKerberosWith(t *testing.T, ciphers string, keytabs map[string][]string) *kerberos {
	t.Helper()
	k := &kerberos{dir: t.TempDir()}
	k.conf = filepath.Join(k.dir, "krb5.conf")
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	k.write(t, "krb5.conf", `[libdefaults]
 default_realm = `+kerberosRealm+`
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 default_ccache_name = FILE:`+k.dir+`/ccache
[realms]
 `+kerberosRealm+` = {
  kdc = `+addr+`
  database_name = `+k.dir+`/principal
  key_stash_file = `+k.dir+`/stash
  kdc_listen = `+addr+`
  kdc_tcp_listen = `+addr+`
  supported_enctypes = `+ciphers+`
 }
[logging]
 default = FILE:`+k.dir+`/log
 kdc = FILE:`+k.dir+`/kdc.log
`)
	k.run(t, "kdb5_util", "-r", kerberosRealm, "create", "-s", "-W", "-P", "only for tests")
	for file, principals := range keytabs {
		for _, principal := range principals {
			k.run(t, "kadmin.local", "-q", "add_principal -randkey "+principal)
			k.run(t, "kadmin.local", "-q", "ktadd -norandkey -k "+filepath.Join(k.dir, file)+" "+principal)
			if text, err := os.ReadFile(filepath.Join(k.dir, file)); err != nil || len(text) < 10 {
				t.Fatalf("no keytab of %s: %v", principal, err)
			}
		}
	}
	kdc := k.command("krb5kdc", "-n", "-r", kerberosRealm, "-p", port)
	log := &tail{}
	kdc.Stdout, kdc.Stderr = log, log
	kdc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, kdc.Start())
	t.Cleanup(func() {
		kdc.Process.Kill()
		kdc.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(k.dir + "/kdc.log")
			t.Logf("the KDC: %s\n%s", log, text)
		}
	})
	for end := time.Now().Add(startDeadline); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			return k
		} else if time.Now().After(end) {
			t.Fatalf("the KDC: %v\n%s", err, log)
		}
	}
}

func (k *kerberos) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(k.dir, name)
	check(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// command returns a command of Kerberos, or one that uses it. Debian has its server in /usr/sbin.
func (k *kerberos) command(name string, args ...string) *exec.Cmd {
	if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
		name = path
	}
	cmd := clientCommand(name, args...)
	cmd.Env = append(cmd.Env, k.env()...)
	return cmd
}

func (k *kerberos) env() []string {
	return []string{"KRB5_CONFIG=" + k.conf, "KRB5_KDC_PROFILE=" + k.conf, "KRB5_TEST_ENV=" + k.dir}
}

func (k *kerberos) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := k.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// kerberosSection is a section of a JAAS file.
func kerberosSection(name, keytab, principal, more string) string {
	return fmt.Sprintf("%s {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true doNotPrompt=true\n"+
		"  keyTab=%q principal=%q %s;\n};\n", name, keytab, principal+"@"+kerberosRealm, more)
}

// TestKerberosJava has ZooKeeper's Java client authenticate with tickets of a KDC, with ZooKeeper 3.9
// and lockkeeper, which have the same JAAS file and settings, and with a cluster of three. The
// identities are the same.
func TestKerberosJava(t *testing.T) {
	t.Parallel()
	classpath := must(javaClients())(t)
	k := startKerberos(t, map[string][]string{
		"client.keytab": {"client", "svc/host.example.com", "other"},
		"server.keytab": {"zookeeper/127.0.0.1"},
		"none.keytab":   {"zookeeper/other", "other/127.0.0.1"},
	})
	clients := k.dir + "/client.keytab"
	jaas := k.write(t, "jaas.conf", kerberosSection("Server", k.dir+"/server.keytab", "zookeeper/127.0.0.1", "isInitiator=false useTicketCache=false")+
		kerberosSection("User", clients, "client", "")+kerberosSection("Host", clients, "svc/host.example.com", "")+kerberosSection("Other", clients, "other", ""))
	for name, x := range map[string]struct {
		settings       map[string]string
		user, withHost string
	}{
		"plain":   {nil, "client@" + kerberosRealm, "svc/host.example.com@" + kerberosRealm},
		"realm":   {map[string]string{"kerberos.removeRealmFromPrincipal": "true"}, "client", "svc/host.example.com"},
		"host":    {map[string]string{"kerberos.removeHostFromPrincipal": "true"}, "client@" + kerberosRealm, "svc@" + kerberosRealm},
		"neither": {map[string]string{"kerberos.removeHostFromPrincipal": "true", "kerberos.removeRealmFromPrincipal": "true"}, "client", "svc"},
	} {
		run := func(t *testing.T, addr string, restart func()) {
			outcomes := runJava(t, classpath, "KerberosCases", map[string]func(){"restart": restart}, addr, jaas, k.conf, x.user, x.withHost)
			checkCases(t, outcomes, "login", "host", "acl", "other-service", "other-host", "restart")
		}
		t.Run(name+" on ZooKeeper", func(t *testing.T) {
			props := merged(withSASL, map[string]string{"java.security.auth.login.config": jaas, "java.security.krb5.conf": k.conf})
			for key, value := range x.settings {
				props["zookeeper."+key] = value
			}
			z := startZooKeeper(t, zk39, props, merged(anyClients, withWords))
			run(t, z.addr, func() {
				z.Kill()
				z.Restart(t)
			})
		})
		conf := "tickTime=500\nmaxClientCnxns=0\njava.security.auth.login.config=" + jaas + "\n"
		for key, value := range x.settings {
			conf += key + "=" + value + "\n"
		}
		flags := []string{"--config", k.write(t, name+".cfg", conf)}
		t.Run(name+" on lockkeeper", func(t *testing.T) {
			l := startLockkeeper(t, flags...)
			run(t, l.addr, func() {
				l.Stop()
				l = startLockkeeper(t, slices.Concat(flags, []string{"--listen", l.addr, "--data", l.dir})...)
			})
		})
		if name != "plain" {
			continue
		}
		t.Run("cluster", func(t *testing.T) {
			e := startEnsemble(t, 3, "--jaas", jaas, "--tick-time", "500ms")
			run(t, e.addrs(), func() { // one after another, so that the client has to move
				for i := range e.procs {
					e.stop(i)
					e.launch(i)
					e.await()
				}
			})
		})
	}
}

// login gets a ticket for the principal client, with its keytab, into a file of tickets.
func (k *kerberos) login(t *testing.T, tickets string) {
	t.Helper()
	k.run(t, "kinit", "-c", filepath.Join(k.dir, tickets), "-k", "-t", k.dir+"/client.keytab", "client")
}

// kerberosModules returns the folder with the Python module that kazoo needs for Kerberos.
func kerberosModules(t *testing.T) string {
	t.Helper()
	modules, _ := filepath.Glob(filepath.Dir(filepath.Dir(clientCache(t, "kerberos/bin/python"))) + "/lib/python*/site-packages")
	if len(modules) != 1 {
		t.Fatalf("the virtual environment with the module kerberos has %d folders of packages", len(modules))
	}
	return modules[0]
}

// kazoo has kazoo authenticate with a file of tickets, and returns who it is then.
func (k *kerberos) kazoo(t *testing.T, addr, tickets string) string {
	t.Helper()
	cmd := k.command(clientCache(t, "kazoo/bin/python"), "clients/kazoo/login.py", addr)
	wheels, _ := filepath.Glob(clientCache(t, "python") + "/pure_sasl-*.whl") // from which Python can import
	cmd.Env = append(cmd.Env, "PYTHONPATH="+strings.Join(append(wheels, kerberosModules(t)), ":"), "PYTHONDONTWRITEBYTECODE=1", "KRB5CCNAME=FILE:"+filepath.Join(k.dir, tickets))
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		errors.As(err, &failed)
		t.Fatalf("kazoo: %v %s", err, failed.Stderr)
	}
	return strings.TrimSpace(string(out))
}

// TestKerberosCiphers has kazoo, which wants a proof of the server, authenticate with keys for each cipher, with
// tickets of a KDC.
func TestKerberosCiphers(t *testing.T) {
	t.Parallel()
	for _, cipher := range []string{"aes128-cts-hmac-sha1-96", "aes256-cts-hmac-sha1-96", "aes128-cts-hmac-sha256-128", "aes256-cts-hmac-sha384-192"} {
		t.Run(cipher, func(t *testing.T) {
			k := startKerberosWith(t, cipher+":normal", map[string][]string{"client.keytab": {"client"}, "server.keytab": {"zookeeper/127.0.0.1"}})
			l := startLockkeeper(t, "--memory", "--jaas", k.write(t, "jaas.conf", kerberosSection("Server", k.dir+"/server.keytab", "zookeeper/127.0.0.1", "")))
			k.login(t, "tickets")
			if who := k.kazoo(t, l.addr, "tickets"); who != "is client@"+kerberosRealm {
				t.Errorf("the client %s", who)
			}
			out, err := k.command("klist", "-e", "-c", k.dir+"/tickets").Output()
			if want := "zookeeper/127.0.0.1@" + kerberosRealm; err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), cipher+", "+cipher) {
				t.Errorf("the tickets are not all for %s: %v\n%s", cipher, err, out)
			}
		})
	}
}

// TestKerberosRotation gives a server new keys, as an administrator does it: with kadmin, while clients have tickets for the
// old ones. These count as long as the old keys are in the keytab. One client's connection lasts all the time. The
// server notices each change by itself, or is told by SIGHUP.
func TestKerberosRotation(t *testing.T) {
	t.Parallel()
	k := startKerberos(t, map[string][]string{"client.keytab": {"client"}, "server.keytab": {"zookeeper/127.0.0.1"}})
	file := k.dir + "/server.keytab"
	first := must(keytab.Load(file))(t)
	jaas := k.write(t, "jaas.conf", kerberosSection("Server", file, "zookeeper/127.0.0.1", ""))
	l := startLockkeeper(t, "--memory", "--jaas", jaas, "--log-level", "info", "--max-client-cnxns", "0")
	change := func(hangUp bool, command, says string) {
		t.Helper()
		if command != "" {
			k.run(t, "kadmin.local", "-q", command)
		}
		if hangUp {
			check(t, l.cmd.Process.Signal(syscall.SIGHUP))
		}
		for end := time.Now().Add(startDeadline); !strings.Contains(l.stderr.String(), says); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after %q the log does not say %s: %s", command, says, l.stderr)
			}
		}
	}
	client := "is client@" + kerberosRealm
	stays := dialSASL(t, l.addr)
	defer stays.Close()
	is := func(when, tickets, want string) {
		t.Helper()
		check(t, stays.Ping())
		if who := k.kazoo(t, l.addr, tickets); who != want {
			t.Errorf("%s, the client with %s %s, want %s", when, tickets, who, want)
		}
	}
	c := gssapitest.New("client", "zookeeper/127.0.0.1", kerberosRealm, first)
	token := must(c.First())(t)
	offer := must(rawtest.CallSASL(stays, string(token)))(t)
	choice := must(c.Choice([]byte(offer), gssapitest.NoLayer, 0))(t)
	must(rawtest.CallSASL(stays, string(choice)))(t)
	k.login(t, "old")
	is("at first", "old", client)

	change(false, "ktadd -k "+file+" zookeeper/127.0.0.1", `versions="[2 1]"`)
	is("with both keys", "old", client)
	k.login(t, "new")
	is("with both keys", "new", client)

	change(true, "ktremove -k "+file+" zookeeper/127.0.0.1 old", "versions=[2]")
	is("without the old key", "old", "is refused")
	is("without the old key", "new", client)

	good := must(os.ReadFile(file))(t)
	check(t, os.WriteFile(file, good[:len(good)-9], 0o600))
	change(true, "", file+": it is not a keytab, or is damaged")
	is("with a damaged keytab", "new", client)
	check(t, os.WriteFile(file, good, 0o600))
	change(true, "", "the files for SASL can be used again")
	is("with a keytab that is mended", "new", client)

	var who proto.WhoAmIReply
	if _, err := stays.Call(proto.OpWhoAmI, nil, &who); err != nil || !slices.Contains(who.IDs, proto.ID{Scheme: proto.SchemeSASL, ID: "client@" + kerberosRealm}) {
		t.Errorf("the client that was connected all the time is %v, %v", who.IDs, err)
	}
}

// kerberosCase is an exchange of tokens that may go wrong.
type kerberosCase struct {
	name   string
	change func(*gssapitest.Client)
	token  func(first []byte) []byte // in place of the first token
	choice string                    // that of a good client, if it is empty
	flags  byte                      // of the choice
	turned int                       // by how many bytes the choice is rotated
	late   string                    // what the client sends in place of an empty token
	twice  bool                      // the exchange is done twice, with the same first token
	more   bool                      // the client sends another token when it has authenticated
	differ string                    // what lockkeeper does, if it is not what ZooKeeper does
}

var kerberosCases = []kerberosCase{
	{name: "good"},
	{name: "mutual", change: func(c *gssapitest.Client) { c.Mutual = true }},
	{name: "no subkey", change: func(c *gssapitest.Client) { c.NoSubkey = true }},
	{name: "mutual without a subkey", change: func(c *gssapitest.Client) { c.Mutual, c.NoSubkey = true, true }},
	{name: "AES 128", change: func(c *gssapitest.Client) { c.Kind, c.SessionKind = 17, 17 }},
	{name: "a service", change: func(c *gssapitest.Client) { c.Name = "svc/h.example.com" }},
	{name: "super", change: func(c *gssapitest.Client) { c.Name = "super" }},
	{name: "another authzid", choice: gssapitest.NoLayer + "eve"},
	{name: "an empty token", token: func([]byte) []byte { return nil }},
	{name: "no token of GSSAPI", token: func([]byte) []byte { return []byte("hello") }},
	{name: "half a token", token: func(b []byte) []byte { return b[:len(b)/2] }},
	{name: "a changed token", token: func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
	{name: "an old ticket", change: func(c *gssapitest.Client) { c.Start, c.End = -time.Hour, -10*time.Minute }},
	{name: "a ticket of the future", change: func(c *gssapitest.Client) { c.Start = 10 * time.Minute }},
	{name: "a clock that is behind", change: func(c *gssapitest.Client) { c.Clock = -10 * time.Minute }},
	{name: "a clock that is a little behind", change: func(c *gssapitest.Client) { c.Clock = -4 * time.Minute }},
	{name: "a clock that is ahead", change: func(c *gssapitest.Client) { c.Clock = 10 * time.Minute }},
	{name: "another user's name", change: func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.CName.NameString = []string{"eve"} }
	}},
	{name: "another server's name", change: func(c *gssapitest.Client) {
		c.Change = func(tk *messages.Ticket, _ *types.Authenticator) {
			tk.SName.NameString = []string{"zookeeper", "other"}
		}
	}},
	{name: "a name in three parts", change: func(c *gssapitest.Client) { c.Name = "a/b/c" }},
	// Whom no rule maps becomes whoever it says.
	{name: "another realm", change: func(c *gssapitest.Client) { c.Realm = "OTHER" }, differ: "AuthFailed"},
	{name: "another realm that wants to be super", change: func(c *gssapitest.Client) { c.Realm = "OTHER" }, choice: gssapitest.NoLayer + "super", differ: "AuthFailed"},
	{name: "no flags", change: func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.Cksum.Checksum = nil }
	}},
	{name: "a checksum of another kind", change: func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.Cksum.CksumType = 7 }
	}},
	{name: "a user's realm that is not the ticket's", change: func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.CRealm = "OTHER" }
	}},
	{name: "another version", change: func(c *gssapitest.Client) { c.Replaced = func(q *messages.APReq) { q.PVNO = 4 } }},
	{name: "another version of the ticket", change: func(c *gssapitest.Client) { c.Replaced = func(q *messages.APReq) { q.Ticket.TktVNO = 4 } }},
	{name: "another version of the authenticator", change: func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.AVNO = 4 }
	}},
	{name: "another realm of the server", change: func(c *gssapitest.Client) { c.Replaced = func(q *messages.APReq) { q.Ticket.Realm = "OTHER" } }},
	{name: "no name of the server", change: func(c *gssapitest.Client) {
		c.Replaced = func(q *messages.APReq) { q.Ticket.SName.NameString = nil }
	}},
	{name: "the name of a KDC", change: func(c *gssapitest.Client) {
		c.Replaced = func(q *messages.APReq) { q.Ticket.SName.NameString = []string{"krbtgt", kerberosRealm} }
	}},
	{name: "a token with more behind it", token: func(b []byte) []byte { return append(b, 'x') }},
	{name: "no checksum", change: checksum(nil)},
	{name: "half of the flags", change: checksum([]byte("\x10\x00\x00\x000123456789abcdef\x00\x00"))},
	{name: "flags that begin otherwise", change: checksum([]byte("\x11\x00\x00\x000123456789abcdef\x00\x00\x00\x00"))},
	{name: "a few bytes in place of flags", change: checksum([]byte("\x10\x01"))},
	{name: "a ticket for addresses", change: func(c *gssapitest.Client) {
		c.Part = func(p *messages.EncTicketPart) { p.CAddr = types.HostAddressesFromNetIPs([]net.IP{{192, 0, 2, 1}}) }
	}},
	{name: "an invalid ticket", change: func(c *gssapitest.Client) {
		c.Part = func(p *messages.EncTicketPart) { types.SetFlag(&p.Flags, 7) }
	}},
	{name: "the version in the keytab", change: func(c *gssapitest.Client) { c.Said = 1 }},
	{name: "another version", change: func(c *gssapitest.Client) { c.Said = 7 }},
	{name: "a key for RC4", change: func(c *gssapitest.Client) { c.SessionKind = 23 }},
	{name: "AES 128 with SHA-2", change: func(c *gssapitest.Client) { c.SessionKind = 19 }},
	{name: "AES 256 with SHA-2", change: func(c *gssapitest.Client) { c.SessionKind = 20 }},
	{name: "AES 256 with SHA-2, mutual", change: func(c *gssapitest.Client) { c.SessionKind, c.Mutual = 20, true }},
	{name: "no host", change: func(c *gssapitest.Client) { c.Name = "svc/" }},
	{name: "no name", change: func(c *gssapitest.Client) { c.Name = "" }},
	{name: "a name with two lines", change: func(c *gssapitest.Client) { c.Name = "bob\nroot" }},
	{name: "a name with a NUL", change: func(c *gssapitest.Client) { c.Name = "bob\x00" }},
	{name: "a name with a blank and a quote", change: func(c *gssapitest.Client) { c.Name = "b o\"b" }},
	{name: "a name in UTF-8", change: func(c *gssapitest.Client) { c.Name = "j\u00fcrgen\u20ac" }},
	{name: "a name with an @", change: func(c *gssapitest.Client) { c.Name = "super@" + kerberosRealm }},
	{name: "a name with a backslash", change: func(c *gssapitest.Client) { c.Name = "b\\ob" }},
	// It would be the same user as svc/h.example.com.
	{name: "a name with a slash in its only part", change: named("svc/h.example.com"), differ: "closed"},
	{name: "a name that is not UTF-8", change: named("b\xffob"), differ: "closed"},
	{name: "a long name", change: named(strings.Repeat("x", 3000))},
	{name: "integrity", choice: "\x02\x00\xff\xff"},
	{name: "more than one protection", choice: "\x07\x00\x00\x00"},
	{name: "three bytes", choice: "\x01\x00\x00"},
	{name: "one byte", choice: "\x01"},
	{name: "another byte", choice: "\x02"},
	{name: "an authzid that is not UTF-8", choice: gssapitest.NoLayer + "\xff"},
	{name: "a long authzid", choice: gssapitest.NoLayer + strings.Repeat("x", 100000)},
	{name: "an encrypted choice", flags: gssapitest.Sealed},
	{name: "an encrypted choice of integrity", flags: gssapitest.Sealed, choice: "\x02\x00\xff\xff"},
	{name: "a rotated choice", turned: 5},
	{name: "a choice rotated by its checksum", turned: 12},
	{name: "an encrypted and rotated choice", flags: gssapitest.Sealed, turned: 28},
	{name: "a choice with the flag of another key", flags: gssapitest.AcceptorSubkey},
	{name: "a choice of the server", flags: gssapitest.ByAcceptor},
	{name: "a number", change: func(c *gssapitest.Client) { c.Flags = 12 }},
	{name: "a number, mutual", change: func(c *gssapitest.Client) { c.Flags, c.Mutual = 12, true }},
	{name: "another number", change: func(c *gssapitest.Client) { c.Flags, c.Skip = 8, 1 }},
	{name: "a former number", change: func(c *gssapitest.Client) { c.Flags, c.Skip = 4, 1<<64-1 }},
	{name: "another number that does not count", change: func(c *gssapitest.Client) { c.Skip = 5 }},
	{name: "no choice", choice: "\x00\x00\x00\x00"},
	{name: "a token that is not empty", change: func(c *gssapitest.Client) { c.Mutual = true }, late: "x"},
	{name: "twice", twice: true},
	{name: "one token more", more: true},
}

// checksum has a client send other bytes in place of its flags, or none.
func checksum(sum []byte) func(*gssapitest.Client) {
	return func(c *gssapitest.Client) {
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) {
			a.Cksum.Checksum = sum
			if sum == nil {
				a.Cksum = types.Checksum{}
			}
		}
	}
}

// named gives a client a name of one part, whatever is in it.
func named(name string) func(*gssapitest.Client) {
	return func(c *gssapitest.Client) {
		c.Part = func(p *messages.EncTicketPart) { p.CName.NameString = []string{name} }
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.CName.NameString = []string{name} }
	}
}

// run does an exchange and returns who the client is then, or what happens.
func (x *kerberosCase) run(t *testing.T, c *gssapitest.Client, addr string) (string, error) {
	if x.change != nil {
		x.change(c)
	}
	first, err := c.First()
	if err != nil {
		return "", err
	}
	if x.token != nil {
		first = x.token(first)
	}
	outcome := ""
	for range map[bool]int{false: 1, true: 2}[x.twice] {
		if outcome, err = x.exchange(t, c, addr, first); err != nil {
			return "", err
		}
	}
	return outcome, nil
}

func (x *kerberosCase) exchange(t *testing.T, c *gssapitest.Client, addr string, first []byte) (string, error) {
	k := dialSASL(t, addr)
	defer k.Close()
	answer, err := rawtest.CallSASL(k, string(first))
	flags := byte(0)
	if err == nil && c.Mutual {
		withKey, e := c.Proof([]byte(answer))
		if e != nil {
			return "", e
		}
		if withKey {
			flags = gssapitest.AcceptorSubkey
		}
		answer, err = rawtest.CallSASL(k, x.late)
	}
	if err == nil {
		payload := x.choice
		if payload == "" {
			payload = gssapitest.NoLayer
		}
		choice, e := c.Choice([]byte(answer), payload, flags|x.flags)
		if e != nil {
			return "", e
		}
		if body := choice[16:]; x.turned > 0 { // to the right
			cut := len(body) - x.turned
			choice = slices.Concat(choice[:7], []byte{byte(x.turned)}, choice[8:16], body[cut:], body[:cut])
		}
		answer, err = rawtest.CallSASL(k, string(choice))
		if err == nil && answer != "" {
			return "", fmt.Errorf("the last answer is %x", answer)
		}
	}
	if err == nil && x.more {
		_, err = rawtest.CallSASL(k, string(first))
	}
	var late net.Error
	switch code, ok := err.(proto.Code); {
	case errors.As(err, &late) && late.Timeout():
		return "", err
	case err != nil && !ok:
		return "closed", nil
	case ok:
		return code.String(), nil
	}
	var who proto.WhoAmIReply
	if _, err := k.Call(proto.OpWhoAmI, nil, &who); err != nil {
		return "", err
	}
	for _, id := range who.IDs {
		if id.Scheme == proto.SchemeSASL {
			return "is " + id.ID, nil
		}
	}
	return "is nobody", nil
}

// TestKerberosAgainstZooKeeper sends the same kinds of tokens to ZooKeeper 3.9 and to lockkeeper, valid and invalid ones. The same
// follows from each, or what the case says.
func TestKerberosAgainstZooKeeper(t *testing.T) {
	t.Parallel()
	k := startKerberos(t, map[string][]string{"server.keytab": {"zookeeper/127.0.0.1"}})
	keys := must(keytab.Load(k.dir + "/server.keytab"))(t)
	jaas := k.write(t, "jaas.conf", kerberosSection("Server", k.dir+"/server.keytab", "zookeeper/127.0.0.1", "isInitiator=false"))
	z := startZooKeeper(t, zk39, merged(withSASL, map[string]string{"java.security.auth.login.config": jaas, "java.security.krb5.conf": k.conf}), merged(anyClients, withWords))
	l := startLockkeeper(t, "--jaas", jaas, "--max-client-cnxns", "0")
	outcomes := map[string]int{}
	for _, x := range kerberosCases {
		theirs, err := x.run(t, gssapitest.New("client", "zookeeper/127.0.0.1", kerberosRealm, keys), z.addr)
		if err != nil {
			t.Errorf("%s: ZooKeeper: %v", x.name, err)
		}
		ours, err := x.run(t, gssapitest.New("client", "zookeeper/127.0.0.1", kerberosRealm, keys), l.addr)
		if err != nil {
			t.Errorf("%s: lockkeeper: %v", x.name, err)
		}
		want := theirs
		if x.differ != "" {
			want = x.differ
		}
		if ours != want || ours == theirs && x.differ != "" {
			t.Errorf("%s: ZooKeeper: %s, lockkeeper: %s", x.name, theirs, ours)
		}
		outcomes[ours]++
		t.Logf("%s: ZooKeeper: %s, lockkeeper: %s", x.name, theirs, ours)
	}
	if len(outcomes) < 5 {
		t.Errorf("outcomes %v", outcomes)
	}
}
