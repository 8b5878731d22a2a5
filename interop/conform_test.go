//go:build interop

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// conformSettings give a server every feature that the suite looks at. The ticks are
// short, because some checks wait until a session expires.
var conformSettings = map[string]string{
	"tickTime":                                 "500",
	"4lw.commands.whitelist":                   "*",
	"enforceQuota":                             "true",
	"extendedTypesEnabled":                     "true",
	"maxClientCnxns":                           "0",
	"admin.enableServer":                       "false",
	"DigestAuthenticationProvider.superDigest": "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
}

// conformReaper makes the reaper of containers and TTL znodes run often. In ZooKeeper
// these are system properties.
var conformReaper = map[string]string{
	"znode.container.checkIntervalMs": "300",
	"znode.container.maxPerMinute":    "100000",
}

// TestConform runs 'lockkeeper conform' against both versions of ZooKeeper and against
// lockkeeper. Every check must pass on each server to whose version it applies. The table
// of operations in docs/compatibility.md shows the result.
func TestConform(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		reports = map[string]*conform.Report{}
	)
	t.Run("servers", func(t *testing.T) {
		for name, start := range map[string]func(t *testing.T) string{
			"lockkeeper":    func(t *testing.T) string { return startConfigured(t, merged(conformSettings, conformReaper)).addr },
			"ZooKeeper 3.8": func(t *testing.T) string { return startZooKeeper(t, zk38, conformReaper, conformSettings).addr },
			"ZooKeeper 3.9": func(t *testing.T) string { return startZooKeeper(t, zk39, conformReaper, conformSettings).addr },
		} {
			t.Run(name, func(t *testing.T) {
				confirmed(t, name)
				t.Parallel()
				r := runConform(t, start(t))
				mu.Lock()
				reports[name] = r
				mu.Unlock()
			})
		}
	})
	if len(reports) == 3 && !t.Failed() {
		testkit.Generated(t, "../docs/compatibility.md", "operations", operationsTable(reports))
	}
}

// startConfigured starts lockkeeper with a zoo.cfg and flags.
func startConfigured(t *testing.T, settings map[string]string, flags ...string) *lockkeeper {
	t.Helper()
	var cfg strings.Builder
	for k, v := range settings {
		fmt.Fprintf(&cfg, "%s=%s\n", k, v)
	}
	file := filepath.Join(t.TempDir(), "zoo.cfg")
	check(t, os.WriteFile(file, []byte(cfg.String()), 0o600))
	return startLockkeeper(t, append(flags, "--config", file)...)
}

// runConform runs the command. The test fails for every check that does not pass.
func runConform(t *testing.T, addr string) *conform.Report {
	t.Helper()
	r := reportConform(t, addr)
	for _, x := range r.Results {
		if x.Status != conform.Passed && x.Status != conform.OtherVersion {
			t.Errorf("%s: %s\n%s\n%s\n%s", x.Status, x.Name, x.Says, strings.Join(x.Exchange, "\n"), x.Why)
		}
	}
	return r
}

// reportConform runs the command and returns its report.
func reportConform(t *testing.T, addr string) *conform.Report {
	t.Helper()
	cmd := exec.Command(lockkeeperBinary(t), "conform", "--json", "--super", "super:secret", "--reap-within", "3s", "--timeout", "60s", addr)
	cmd.Env = cleanEnv()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, runErr := cmd.Output()
	r := new(conform.Report)
	if err := json.Unmarshal(stdout, r); err != nil {
		t.Fatalf("%v, %v\n%s\n%s", runErr, err, stdout, &stderr)
	}
	if (runErr == nil) != r.OK() {
		t.Errorf("the command ended with %v: %s", runErr, &stderr)
	}
	if r.Left != "" {
		t.Errorf("left behind: %s", r.Left)
	}
	t.Logf("%s: %s", r.Claims, r.Summary())
	return r
}

// operationsTable returns a table with the number of passed checks on each server for
// each operation that they use.
func operationsTable(reports map[string]*conform.Report) string {
	servers := []string{"ZooKeeper 3.8", "ZooKeeper 3.9", "lockkeeper"}
	var b strings.Builder
	fmt.Fprintf(&b, "| opcode | operation | %s %s (Debian) | %s %s | lockkeeper |\n|---|---|---|---|---|\n",
		"ZooKeeper", strings.TrimSuffix(reports[servers[0]].Version, "+debian"), "ZooKeeper", reports[servers[1]].Version)
	row := func(op proto.OpCode) {
		name := wire.OpName(op)
		fmt.Fprintf(&b, "| %d | %s ", op, name)
		for _, s := range servers {
			passed, of := 0, 0
			for _, x := range reports[s].Results {
				if !slices.Contains(x.Ops, name) {
					continue
				}
				of++
				if x.Status == conform.Passed {
					passed++
				}
			}
			fmt.Fprintf(&b, "| %d of %d ", passed, of)
		}
		b.WriteString("|\n")
	}
	for i := range proto.Ops {
		row(proto.Ops[i].Code)
	}
	b.WriteString("| | all checks ")
	for _, s := range servers {
		r := reports[s]
		fmt.Fprintf(&b, "| %d of %d ", r.Count(conform.Passed), len(r.Results)-r.Count(conform.OtherVersion))
	}
	b.WriteString("|\n")
	return b.String()
}
