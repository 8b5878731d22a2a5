package conform_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// everything enables the features that the suite checks.
var everything = lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
	c.Auth.SuperDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="
	c.Features.EnforceQuota = true
	c.ContainerCheckInterval = 100 * time.Millisecond
})

// TestLockkeeper runs the whole suite against a server in this process, in virtual
// time. Every check must pass, and the checks must use every operation.
func TestLockkeeper(t *testing.T) {
	whole(t, func(t *testing.T) *lockkeepertest.Server { return lockkeepertest.Start(t, everything) })
}

// TestMembers runs the whole suite against a leader and against a follower.
func TestMembers(t *testing.T) {
	if !testkit.Thorough {
		t.Skip("the run under the race detector includes it")
	}
	for i, role := range []string{"leader", "follower"} {
		t.Run(role, func(t *testing.T) {
			whole(t, func(t *testing.T) *lockkeepertest.Server {
				c := lockkeepertest.StartCluster(t, 3, everything)
				return c.Server((c.Leader()+i-1)%3 + 1)
			})
		})
	}
}

// TestPersonas runs the whole suite against a server that behaves as each line of ZooKeeper, with
// the expectations of that line.
func TestPersonas(t *testing.T) {
	// What personas do not imitate on purpose; see persona.Kept.
	kept := map[string]string{"acl/events without READ": ">=3.6 <3.8"}
	for line := persona.Oldest; line <= persona.Newest; line++ {
		t.Run(line.String(), func(t *testing.T) {
			r := run(t, func(t *testing.T) *lockkeepertest.Server {
				return lockkeepertest.Start(t, everything, lockkeepertest.WithRelease(line.String()))
			})
			version, err := conform.ParseVersion(line.Release())
			if err != nil || r.Version != version.String() {
				t.Fatalf("it claims to be %s, not %s: %v", r.Version, version, err)
			}
			for _, x := range r.Results {
				_, keeps := kept[x.Name]
				keeps = keeps && (&conform.Check{In: kept[x.Name]}).Applies(version)
				if (x.Status == conform.Failed) != keeps || x.Status == conform.NotRun {
					t.Errorf("%s: %s (kept: %v): %s\n%s\n%s", x.Status, x.Name, keeps, x.Says, strings.Join(x.Exchange, "\n"), x.Why)
				}
				if x.Status == conform.Unsupported && (line >= 7 || line >= 5 && !strings.HasPrefix(x.Name, "quotas/")) {
					t.Errorf("unsupported: %s: %s", x.Name, x.Why)
				}
			}
			if r.Count(conform.Passed) < 220 {
				t.Error(r.Summary())
			}
		})
	}
}

// run runs the whole suite in virtual time.
func run(t *testing.T, start func(t *testing.T) *lockkeepertest.Server) (r *conform.Report) {
	var err error
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		r, err = conform.Run(t.Context(), conform.Options{
			Dial:  func(context.Context) (net.Conn, error) { return s.Dial("tcp", "", 10*time.Second) },
			Super: "super:secret", ReapWithin: time.Second,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Left != "" {
		t.Errorf("left behind %q", r.Left)
	}
	t.Log(r.Summary())
	return r
}

// whole runs the whole suite, of which every check must pass.
func whole(t *testing.T, start func(t *testing.T) *lockkeepertest.Server) {
	r := run(t, start)
	used := map[string]bool{}
	for _, x := range r.Results {
		if x.Status != conform.Passed && x.Status != conform.OtherVersion {
			t.Errorf("%s: %s: %s\n%s\n%s", x.Status, x.Name, x.Says, strings.Join(x.Exchange, "\n"), x.Why)
		}
		for _, op := range x.Ops {
			used[op] = true
		}
	}
	for _, op := range proto.Ops {
		if !used[op.Name] {
			t.Errorf("no check uses %s", op.Name)
		}
	}
	if r.Count(conform.Passed) < 400 {
		t.Error(r.Summary())
	}
}

// TestTest calls Test as a user's test does.
func TestTest(t *testing.T) {
	s := lockkeepertest.Start(t, everything, lockkeepertest.WithTCP())
	groups := []string{"delete", "multi"}
	conform.Test(t, conform.Options{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
		},
		Groups: groups,
	})
	if !slices.ContainsFunc(conform.Checks(), func(k conform.Check) bool { return k.Group() == groups[1] }) {
		t.Error("there is no such group")
	}
}
