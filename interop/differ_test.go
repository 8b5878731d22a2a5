//go:build interop

package interop

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/differ"
)

// differSettings give a server all that is compared, and keep it from deleting
// containers when it pleases.
var differSettings = map[string]string{
	"tickTime":                                 "2000",
	"extendedTypesEnabled":                     "true",
	"maxClientCnxns":                           "0",
	"znode.container.checkIntervalMs":          "100000000",
	"DigestAuthenticationProvider.superDigest": "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
}

// TestDiffer sends the same random requests to lockkeeper and to a real
// ZooKeeper, by the command, and finds no difference but those that have a name
// and a reason. LOCKKEEPER_INTEROP_DIFFER is how many requests to send to each.
func TestDiffer(t *testing.T) {
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
			ours := startConfigured(t, differSettings)
			cmd := exec.Command(lockkeeperBinary(t), "conform", "--against", real.addr, ours.addr,
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
		})
	}
}
