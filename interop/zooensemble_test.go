//go:build interop

package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// zooEnsemble is a cluster of ZooKeeper servers.
type zooEnsemble struct {
	t      *testing.T
	listen []string
	procs  []*realZooKeeper
	down   int // index of the server that is down; -1 if none
}

func startZooEnsemble(t *testing.T, version zkVersion, n int) *zooEnsemble {
	t.Helper()
	z := &zooEnsemble{t: t, down: -1}
	cfg := merged(anyClients, withWords, map[string]string{"tickTime": "2000", "initLimit": "10", "syncLimit": "5"})
	port := func() string {
		_, port, _ := net.SplitHostPort(freeAddr(t))
		return port
	}
	for i := range n {
		cfg["server."+strconv.Itoa(i+1)] = "127.0.0.1:" + port() + ":" + port()
		z.listen = append(z.listen, freeAddr(t))
	}
	for i, addr := range z.listen {
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, "myid"), fmt.Append(nil, i+1), 0o600))
		_, port, _ := net.SplitHostPort(addr)
		own := map[string]string{"dataDir": dir, "clientPort": port}
		z.procs = append(z.procs, launchZooKeeper(t, version, nil, merged(cfg, own)))
	}
	z.await()
	return z
}

func (z *zooEnsemble) addresses() []string { return z.listen }

func (z *zooEnsemble) await() {
	for _, addr := range z.listen {
		waitZooKeeper(z.t, addr, nil)
	}
}

func (z *zooEnsemble) leader() int {
	z.t.Helper()
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for i, addr := range z.listen {
			if i == z.down {
				continue
			}
			if answer, err := fourLetterWord(addr, "srvr", time.Second); err == nil && strings.Contains(answer, "Mode: leader") {
				return i
			}
		}
	}
	z.t.Fatal("there is no leader")
	return -1
}

func (z *zooEnsemble) kill(i int) {
	z.procs[i].Kill()
	z.down = i
}

func (z *zooEnsemble) launch(i int) {
	z.procs[i].launch(z.t)
	z.down = -1
}
