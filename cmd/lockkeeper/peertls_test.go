package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestMoveToTLS does what docs/operations.md says: a cluster of three moves to TLS between its members while a client
// writes, one restart after the other. No acknowledged write is lost, a majority serves while each member is down, and
// cluster status tells which step each member has taken.
func TestMoveToTLS(t *testing.T) {
	if !testkit.Thorough {
		t.Skip("the run under the race detector includes it; which modes go together, TestPeerTLSModes in cluster checks")
	}
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, _ := testkit.WritePair(t, ca.Named(t, "localhost"), dir, "cert.pem", "cert.pem")
	tlsFlags := []string{"--peer-tls-cert", cert, "--peer-tls-ca", ca.WriteCA(t, dir, "ca.pem")}
	var peers, clients, list []string
	for i, port := range freePorts(t, 6) {
		if i < 3 {
			peers = append(peers, fmt.Sprintf("localhost:%d", port))
			list = append(list, fmt.Sprintf("%d=%s", i+1, peers[i]))
		} else {
			clients = append(clients, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	members := make([]*process, 3)
	begin := func(i int, flags ...string) {
		args := []string{"serve", "--data", filepath.Join(dir, fmt.Sprint(i)), "--listen", clients[i], "--id", fmt.Sprint(i + 1), "--peers", strings.Join(list, ",")}
		members[i] = start(t, nil, append(args, flags...)...)
	}
	for i := range members {
		begin(i)
	}
	// status waits until all members serve, and one of them after the other has taken these steps.
	status := func(flags []string, steps ...string) {
		t.Helper()
		waitFor(t, fmt.Sprint("all members to serve, with ", steps), func() bool {
			code, stdout, _ := call(nil, append([]string{"cluster", "status", "--peer", peers[0]}, flags...)...)
			var said []string
			for line := range strings.Lines(stdout) {
				if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[1], "localhost:") {
					said = append(said, f[5])
				}
			}
			return code == exitOK && strings.Join(said, " ") == strings.Join(steps, " ")
		})
	}
	status(nil, "no", "no", "no")

	conn, _, err := zk.Connect(clients, 30*time.Second, zk.WithLogInfo(false))
	check1(t, err)
	defer conn.Close()
	_, err = conn.Create("/w", nil, 0, zk.WorldACL(zk.PermAll))
	check1(t, err)
	session := conn.SessionID()
	stop, done := make(chan struct{}), make(chan []string, 1)
	go func() {
		var acknowledged []string
		defer func() { done <- acknowledged }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if at, err := conn.Create("/w/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll)); err == nil {
				acknowledged = append(acknowledged, at)
			} else {
				time.Sleep(10 * time.Millisecond) // the client connects to another member
			}
		}
	}()

	steps := []string{"no", "no", "no"}
	for _, next := range []string{"accept", "use", "only"} {
		ask := tlsFlags
		if next != "only" {
			ask = nil
		}
		for i := range members {
			members[i].stop()
			// The other two are a majority, and serve.
			other := (i + 1) % 3
			code, stdout, stderr := call(nil, append([]string{"cluster", "status", "--peer", peers[other]}, ask...)...)
			if code != exitDegraded {
				t.Errorf("%s: without server %d: %d %s%s", next, i+1, code, stdout, stderr)
			}
			begin(i, append(tlsFlags, "--peer-tls-mode", next)...)
			steps[i] = next
			status(ask, steps...)
		}
	}
	close(stop)
	acknowledged := <-done
	if conn.SessionID() != session || len(acknowledged) < 9 {
		t.Errorf("%d writes, session %x, not %x", len(acknowledged), conn.SessionID(), session)
	}
	if _, err := conn.Sync("/"); err != nil {
		t.Error(err)
	}
	names, _, err := conn.Children("/w")
	check1(t, err)
	there := map[string]bool{}
	for _, name := range names {
		there["/w/"+name] = true
	}
	for _, at := range acknowledged {
		if !there[at] {
			t.Errorf("%s is lost", at)
		}
	}
	// From now on a member without TLS takes no part.
	if code, _, stderr := call(nil, "cluster", "status", "--peer", peers[0]); code != exitFault || !strings.Contains(stderr, "speaks TLS") && !strings.Contains(stderr, peers[0]) {
		t.Errorf("without TLS: %d %q", code, stderr)
	}
}

// TestPeerTLSMode: what the flag and ZooKeeper's keys mean.
func TestPeerTLSMode(t *testing.T) {
	for flags, says := range map[string]string{
		"--peer-tls-mode accept": "--peer-tls-mode: it is for a server that has a certificate for members",
		"--peer-tls-mode both --peer-tls-cert " + "CERT" + " --peer-tls-ca " + "CA": `--peer-tls-mode: it must be accept, use or only, not "both"`,
	} {
		dir, ca := t.TempDir(), testkit.NewCA(t)
		cert, _ := testkit.WritePair(t, ca.Named(t, "localhost"), dir, "cert.pem", "cert.pem")
		flags = strings.NewReplacer("CERT", cert, "CA", ca.WriteCA(t, dir, "ca.pem")).Replace(flags)
		refuses(t, exitUsage, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0"}, strings.Fields(flags)...), says)
	}
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, _ := testkit.WritePair(t, ca.Named(t, "localhost"), dir, "cert.pem", "cert.pem")
	stores := []string{"clientPort=0", "ssl.quorum.keyStore.location=" + cert, "ssl.quorum.trustStore.location=" + ca.WriteCA(t, dir, "ca.pem")}
	for key, mode := range map[string]string{"portUnification=true": "accept", "portUnification=true sslQuorum=true": "use", "portUnification=false sslQuorum=true": "only", "portUnification=false": "no"} {
		peer := fmt.Sprintf("localhost:%d", testkit.Port(t))
		lines := append([]string{"tickTime=500", "initLimit=10", "syncLimit=5"}, append(stores, strings.Fields(key)...)...)
		start(t, nil, "serve", "--memory", "--config", zooCfg(t, lines...), "--peers", "1="+peer).waitReady()
		asks := []string{"cluster", "status", "--json", "--peer", peer}
		if mode == "only" {
			asks = append(asks, "--peer-tls-cert", cert, "--peer-tls-ca", filepath.Join(dir, "ca.pem"))
		}
		if _, stdout, stderr := call(nil, asks...); !strings.Contains(stdout, `"peerTLS":"`+mode+`"`) {
			t.Errorf("%s: %s%s", key, stdout, stderr)
		}
	}
	refuses(t, exitUsage, []string{"serve", "--memory", "--config", zooCfg(t, "clientPort=0", "portUnification=true")}, "portUnification=true: without ssl.quorum.keyStore.location")
}
