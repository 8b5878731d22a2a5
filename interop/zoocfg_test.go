//go:build interop

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// zooCfgs are lines that ZooKeeper reads in a way of its own, or refuses. A file has them beside dataDir and clientPort.
var zooCfgs = []string{
	"", "tickTime=2000", "tickTime=+2000", "tickTime=02000", "tickTime=0x10", "tickTime=0", "tickTime=2_000", "tickTime=2000 # c", "tickTime=", "tickTime=2147483648", "tickTime = 2000 ", "tickTime:2000", "tickTime 2000",
	"minSessionTimeout=04000", "minSessionTimeout=70000", "minSessionTimeout=+4000", "minSessionTimeout=-1", "minSessionTimeout=0x1000", "minSessionTimeout=4s", "minSessionTimeout=4000.0",
	"maxSessionTimeout=090000", "maxSessionTimeout=-1", "maxSessionTimeout=1000", "maxSessionTimeout=#10", "minSessionTimeout=9000\\\n  0\nmaxSessionTimeout=100000",
	"maxClientCnxns=-1", "maxClientCnxns=0", "maxClientCnxns=007", "maxClientCnxns=+7", "maxClientCnxns=many", "maxClientCnxns=0x7", "maxClientCnxns=\\u0037",
	"initLimit=10\nsyncLimit=5", "initLimit=x", "syncLimit=0x5", "syncLimit=05", "connectToLearnerMasterLimit=no", "observerMasterPort=none", "clientPortListenBacklog=-1", "clientPortListenBacklog=x",
	"electionAlg=3", "electionAlg=03", "electionAlg=0", "electionAlg=x",
	"reconfigEnabled=True", "reconfigEnabled=FALSE", "reconfigEnabled=yes", "reconfigEnabled=", "standaloneEnabled=True", "standaloneEnabled=no", "standaloneEnabled=false",
	"quorumListenOnAllIPs=TRUE", "quorumListenOnAllIPs=1", "syncEnabled=False", "syncEnabled=off", "localSessionsEnabled=False", "localSessionsUpgradingEnabled=0",
	"sslQuorum=False", "sslQuorum=no", "portUnification=FALSE", "portUnification=none", "sslQuorumReloadCertFiles=True", "sslQuorumReloadCertFiles=x",
	"peerType=PARTICIPANT", "peerType=Observer", "peerType=leader",
	"skipACL=true", "forceSync=true", "leaderServes=maybe", "enforceQuota=yes", "maxCnxns=many", "maxCnxns=010", "jute.maxbuffer=many", "snapCount=x", "nio.sessionlessCnxnTimeout=1s",
	"ssl.keyStore.location=/none.jks\nssl.keyStore.password=x", "ssl.clientAuth=NEED", "ssl.quorum.clientAuth=NEED",
	"authProvider.1=org.apache.zookeeper.server.auth.DigestAuthenticationProvider", "authProvider.7=org.apache.zookeeper.server.auth.IPAuthenticationProvider", "authProvider.x=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
	"clientPortAddress=[::1]", "clientPortAddress=", "clientPort=+12181", "clientPort=012181", "clientPort=0x10", "clientPort=-1", "clientPort=70000", "secureClientPortAddress=127.0.0.1",
	"dynamicConfigFile=/does/not/exist", "server.1=a:1:2\ndynamicConfigFile=/dev/null", "metricsProvider.className=org.example.None", "some.other.key=x",
}

// TestZooCfgFiles reads files with ZooKeeper's own parser and with lockkeeper: both refuse the same, and read the same
// numbers in the others.
func TestZooCfgFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(i int) string { return filepath.Join(dir, fmt.Sprintf("%03d", i)) }
	for i, lines := range zooCfgs {
		check(t, os.WriteFile(file(i), []byte("dataDir=/nowhere/data\nclientPort=2181\n"+lines+"\n"), 0o644))
	}
	java := javaCommand("-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", zk39.classpath(t), "clients/properties/Config.java", dir)
	java.Stderr = os.Stderr
	out, err := java.Output()
	check(t, err)
	theirs := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(theirs) != len(zooCfgs) {
		t.Fatalf("ZooKeeper has read %d of %d files", len(theirs), len(zooCfgs))
	}
	for i, lines := range zooCfgs {
		l := execLockkeeper(t, "--memory", "--listen", "127.0.0.1:0", "--4lw", "conf", "--config", file(i))
		ours := "refused"
		select {
		case line := <-l.stderr.match:
			conf, err := fourLetterWord(strings.TrimSpace(line[strings.Index(line, servingLine)+len(servingLine):]), "conf", rawTimeout)
			check(t, err)
			var values []string
			for _, key := range []string{"tickTime=", "maxClientCnxns=", "minSessionTimeout=", "maxSessionTimeout="} {
				_, value, _ := strings.Cut("\n"+conf, "\n"+key)
				value, _, _ = strings.Cut(value, "\n")
				values = append(values, key+value)
			}
			ours = strings.Join(values, " ")
			l.Kill()
		case <-l.exited:
		}
		if ours != theirs[i] {
			t.Errorf("%q: lockkeeper: %s, ZooKeeper: %s", lines, ours, theirs[i])
		}
	}
}
