//go:build interop

package interop

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
)

// differSettings enable every feature that is compared, and prevent the reaper from
// running during a test.
var differSettings = map[string]string{
	"tickTime":                                 "2000",
	"extendedTypesEnabled":                     "true",
	"maxClientCnxns":                           "0",
	"znode.container.checkIntervalMs":          "100000000",
	"DigestAuthenticationProvider.superDigest": "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
}

// TestDiffer runs 'lockkeeper conform --against', which sends the same random requests to
// lockkeeper and to ZooKeeper. It must find no difference except the known ones.
// LOCKKEEPER_INTEROP_DIFFER is the number of requests.
func TestDiffer(t *testing.T) {
	t.Parallel()
	ops := 10_000
	if s := os.Getenv("LOCKKEEPER_INTEROP_DIFFER"); s != "" {
		var err error
		if ops, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []zkVersion{zk38, zk39} {
		seed := strconv.FormatUint(seeded(t).Uint64N(1e9)+1, 10)
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			real := startZooKeeper(t, version, map[string]string{"zookeeper.forceSync": "no"}, differSettings)
			runDiffer(t, real.addr, startConfigured(t, differSettings).addr, ops, seed)
		})
	}
}

// runDiffer runs the command against two servers. The test fails if they differ.
func runDiffer(t *testing.T, real, ours string, ops int, seed string) {
	t.Helper()
	cmd := exec.Command(lockkeeperBinary(t), "conform", "--against", real, ours,
		"--ops", strconv.Itoa(ops), "--seed", seed, "--super", "super:secret", "--json")
	cmd.Env = cleanEnv()
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var r differ.Report
	if e := json.Unmarshal(out, &r); e != nil {
		t.Fatalf("seed %s: %v, %v\n%s", seed, err, e, out)
	}
	if err != nil || r.Difference != nil {
		t.Fatalf("seed %s: %v\n%s", seed, err, &r)
	}
	t.Logf("\n%s", &r)
	if r.Ops < ops || r.Events < ops/100 {
		t.Errorf("seed %s shows little", seed)
	}
}
