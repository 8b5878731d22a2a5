//go:build interop

package interop

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	locks "github.com/lockkeeper/lockkeeper/lock"
)

const storePassword = "changeit"

// command runs a program that must succeed.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// TestTLSStores serves clients with stores that openssl and keytool have made, and ZooKeeper's Java
// client connects with stores to both servers, which have the same zoo.cfg.
func TestTLSStores(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	authority := ca.WriteCA(t, dir, "ca.pem")
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	check(t, os.WriteFile(file("password"), []byte(storePassword+"\n"), 0o600))
	pass := "pass:" + storePassword
	export := func(name, cert, key string, more ...string) string {
		command(t, "openssl", append([]string{"pkcs12", "-export", "-in", cert, "-inkey", key, "-certfile", authority, "-name", "server", "-passout", pass, "-out", file(name)}, more...)...)
		return file(name)
	}
	convert := func(from, name, kind string) string {
		command(t, "keytool", "-importkeystore", "-noprompt", "-srckeystore", from, "-srcstorepass", storePassword,
			"-destkeystore", file(name), "-deststoretype", kind, "-deststorepass", storePassword)
		return file(name)
	}
	trust := func(name, kind string) string {
		command(t, "keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", authority, "-keystore", file(name), "-storetype", kind, "-storepass", storePassword)
		return file(name)
	}
	encrypt := func(name string, more ...string) [2]string {
		command(t, "openssl", append([]string{"pkcs8", "-topk8", "-in", key, "-passout", pass, "-out", file(name)}, more...)...)
		return [2]string{cert, file(name)}
	}
	modern := export("modern.p12", cert, key)
	jks, trustJKS, trustP12 := convert(modern, "server.jks", "JKS"), trust("trust.jks", "JKS"), trust("trust.p12", "PKCS12")
	client := ca.Client(t, pkix.Name{CommonName: "ann"})
	for name, store := range map[string][2]string{
		"openssl pkcs12":         {modern},
		"openssl pkcs12 -legacy": {export("legacy.p12", cert, key, "-legacy")},
		"keytool, PKCS12":        {convert(modern, "java.p12", "PKCS12")},
		"keytool, JKS":           {jks},
		"openssl pkcs8":          encrypt("aes.pem"),
		"openssl pkcs8, SHA-1":   encrypt("sha1.pem", "-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA1"),
		"openssl pkcs8, 3DES":    encrypt("des.pem", "-v2", "des3"),
		"openssl pkcs8, scrypt":  encrypt("scrypt.pem", "-scrypt"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, authorities := range []string{authority, trustJKS, trustP12} {
				l := startLockkeeper(t, "--memory", "--tls-listen", "127.0.0.1:0", "--tls-cert", store[0], "--tls-key", store[1],
					"--tls-password-file", file("password"), "--tls-ca", authorities, "--tls-ca-password-file", file("password"))
				c, err := tls.Dial("tcp", secureAddr(t, l), &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{client}})
				if err != nil {
					t.Fatalf("with %s: %v", authorities, err)
				}
				waitZooKeeper(t, c.RemoteAddr().String(), &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{client}, ServerName: "127.0.0.1"})
				c.Close()
				l.Kill()
			}
		})
	}

	t.Run("zoo.cfg", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(freeAddr(t))
		keys := map[string]string{
			"secureClientPort": port, "secureClientPortAddress": "127.0.0.1", "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
			"ssl.keyStore.location": jks, "ssl.keyStore.password": storePassword,
			"ssl.trustStore.location": trustP12, "ssl.trustStore.passwordPath": file("password"),
		}
		startZooKeeper(t, zk39, nil, keys)
		_, securePort, _ := net.SplitHostPort(freeAddr(t))
		cfg := "tickTime=2000\ndataDir=" + t.TempDir() + "\n"
		for k, v := range keys {
			if k == "secureClientPort" {
				v = securePort
			}
			cfg += k + "=" + v + "\n"
		}
		check(t, os.WriteFile(file("zoo.cfg"), []byte(cfg), 0o600))
		l := startLockkeeper(t, "--memory", "--config", file("zoo.cfg"))
		clientCert, clientKey := testkit.WritePair(t, client, dir, "client-cert.pem", "client-key.pem")
		own := convert(export("client.p12", clientCert, clientKey), "client.jks", "JKS")
		for _, addr := range []string{"127.0.0.1:" + port, secureAddr(t, l)} {
			for _, store := range []string{own, file("client.p12")} {
				java := javaCommand("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.client.secure=true",
					"-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
					"-Dzookeeper.ssl.keyStore.location="+store, "-Dzookeeper.ssl.keyStore.password="+storePassword,
					"-Dzookeeper.ssl.trustStore.location="+trustJKS, "-Dzookeeper.ssl.trustStore.password="+storePassword,
					"-cp", zk39.classpath(t), "org.apache.zookeeper.ZooKeeperMain", "-server", addr, "whoami")
				if out, err := java.CombinedOutput(); err != nil || !strings.Contains(string(out), "x509: CN=ann") {
					t.Errorf("the Java client with %s at %s: %v\n%s", store, addr, err, out)
				}
			}
		}
	})
}

// TestTLSReload changes certificate, key and authority of a server, without a signal, while a client
// of go-zookeeper holds a lock over TLS. Then another one waits for the lock that knows only the
// new authority.
func TestTLSReload(t *testing.T) {
	t.Parallel()
	dir, next, before, after := t.TempDir(), t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	authority := before.WriteCA(t, dir, "ca.pem")
	store, _ := testkit.WritePair(t, before.Server(t), dir, "both.pem", "both.pem")
	l := startLockkeeper(t, "--memory", "--tls-listen", "127.0.0.1:0", "--tls-cert", store, "--tls-ca", authority, "--log-level", "info")
	connect := func(ca *testkit.CA) *locks.Mutex {
		config := &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.Client(t, pkix.Name{CommonName: "ann"})}}
		conn, _, err := zk.Connect([]string{secureAddr(t, l)}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, addr, config)
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return locks.NewMutex(conn, "/lock", locks.WithSessionTimeout(10*time.Second))
	}
	mutex := connect(before)
	held := must(mutex.Lock(t.Context()))(t)
	newStore, _ := testkit.WritePair(t, after.Server(t), next, "both.pem", "both.pem")
	for from, to := range map[string]string{newStore: store, after.WriteCA(t, next, "ca.pem"): authority} {
		check(t, os.Rename(from, to))
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(l.stderr.String(), "have been read again"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the files are not read again: %s", l.stderr)
		}
	}
	other := connect(after)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := other.TryLock(ctx); !errors.Is(err, locks.ErrBusy) {
		t.Errorf("the lock while it is held: %v", err)
	}
	select {
	case <-held.Lost():
		t.Error(held.Err())
	case <-time.After(12 * time.Second): // longer than the session's timeout
	}
	if err := held.Unlock(ctx); err != nil {
		t.Error(err)
	}
	again := must(other.Lock(ctx))(t)
	if err := again.Unlock(ctx); err != nil {
		t.Error(err)
	}
}
