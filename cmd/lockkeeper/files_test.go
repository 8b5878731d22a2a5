//go:build unix

package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// TestFewFiles opens as many connections as the leader of a cluster accepts, to all of its
// ports. With the few files that are left, it must store what its clients write, take
// snapshots, answer operators and let a member come back.
func TestFewFiles(t *testing.T) {
	t.Parallel()
	const files = 256
	dir, ca := testkit.MemoryDir(t), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	addrs := freeAddrs(t, 6)
	peerAddrs, secure := addrs[:3], addrs[3:]
	procs := make([]*process, 3)
	launch := func(i int) {
		cmd := exec.Command("sh", "-c", `ulimit -n "$0" && exec "$@"`, fmt.Sprint(files), binary, "serve",
			"--listen", "127.0.0.1:0", "--tls-listen", secure[i], "--tls-cert", cert, "--tls-key", key, "--tls-client-auth", "none", "--admin", "0", "--tick-time", "30s", // no session expires meanwhile
			"--data", filepath.Join(dir, fmt.Sprint(i)), "--id", fmt.Sprint(i+1), "--peers", peersAt(peerAddrs...))
		procs[i] = startCmd(t, cmd)
	}
	for i := range procs {
		launch(i)
	}
	for _, p := range procs {
		p.waitReady()
	}
	var lead int
	waitFor(t, "a leader", func() bool {
		lead = int(ask(t, "status", "--peer", peerAddrs[0]).Leader) - 1
		return lead >= 0
	})
	p, other := procs[lead], (lead+1)%3

	open := func(i int) (*rawclient.Client, error) {
		var nc net.Conn
		var err error
		if dialer := (&net.Dialer{Timeout: 30 * time.Second}); i%2 == 0 {
			nc, err = dialer.Dial("tcp", p.addr)
		} else {
			nc, err = tls.DialWithDialer(dialer, "tcp", secure[lead], &tls.Config{RootCAs: ca.Pool})
		}
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { nc.Close() })
		return rawclient.OpenWithin(nc, 10*time.Minute, 30*time.Second)
	}
	var clients []*rawclient.Client
	for {
		c, err := open(len(clients))
		if err != nil {
			if !closedEarly(err) {
				t.Fatalf("after %d sessions: %v", len(clients), err)
			}
			break
		}
		clients = append(clients, c)
	}
	if n := len(clients); n < files/2 || n >= files {
		t.Errorf("%d sessions", n)
	}
	web := strings.TrimPrefix(p.admin(), "http://")
	for _, addr := range []string{web, peerAddrs[lead]} {
		for range files {
			nc, err := net.DialTimeout("tcp", addr, time.Minute)
			check1(t, err)
			defer nc.Close()
		}
	}

	c := clients[0]
	_, err := c.Create("/large", nil, 0)
	check1(t, err)
	for i := range 40 { // the log's segments have 8 MiB, and 16 MiB of it are worth a snapshot
		if _, err := c.Set("/large", make([]byte, 1_000_000)); err != nil {
			t.Fatalf("write %d: %v; the server says %q", i, err, p.lines())
		}
	}
	snapshot, refused := regexp.MustCompile(`(?m)^lockkeeper_snapshot_write_seconds_count [1-9]`), regexp.MustCompile(`(?m)^connection_rejected [1-9]`)
	waitFor(t, "a snapshot", func() bool {
		_, metrics := fetch(t, httpClient(t, nil), p.admin()+"/metrics", "")
		return snapshot.MatchString(metrics) && refused.MatchString(metrics)
	})
	if status, body := fetch(t, httpClient(t, nil), p.admin()+"/healthz", ""); status != http.StatusOK {
		t.Errorf("health: %d %s", status, body)
	}
	check1(t, procs[other].Process.Kill())
	procs[other].exit()
	launch(other)
	procs[other].waitReady()
	if now := ask(t, "status", "--peer", peerAddrs[other]).Leader; now != uint64(lead+1) {
		t.Errorf("server %d leads", now)
	}

	for _, c := range clients[1:] {
		c.Close()
	}
	waitFor(t, "room for a client", func() bool {
		_, err := open(0)
		return err == nil
	})
	check1(t, c.Ping())
	p.stop()
}
