package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestAgainst compares two servers that behave alike, and two that do not.
func TestAgainst(t *testing.T) {
	start := func(change func(*lockkeeper.Config)) string {
		s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithTickTime(2*time.Second), lockkeepertest.WithConfig(change))
		return s.Addr()
	}
	same := func(*lockkeeper.Config) {}
	a, b, c := start(same), start(same), start(func(c *lockkeeper.Config) { c.Features.NoTTL = true })

	code, stdout, stderr := call(nil, "conform", "--against", a, b, "--ops", "500", "--seed", "3")
	if code != exitOK || !strings.Contains(stdout, "seed 3: 5") || !strings.HasSuffix(stdout, "no difference\n") || !strings.Contains(stderr, "seed 3") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}

	code, stdout, stderr = call(nil, "conform", "--against", a, c, "--json", "--ops", "5000", "--mask", "astral,event-zxid", "--without", "quotas")
	var r differ.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("exit %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	d := r.Difference
	// At most two clients, a watch, two parents, and a createTTL.
	if code != exitFault || d == nil || !d.Reproduced || d.Steps > 6 || !strings.Contains(stderr, "the endpoint differs from "+a) {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	last := d.Minimal[len(d.Minimal)-1]
	if x := strings.Join(last.B, " "); !strings.Contains(x, "Unimplemented") {
		t.Errorf("the shortest sequence ends with %+v", last)
	}
	if _, ok := r.Masks["astral"]; !ok || r.Seed == 0 {
		t.Errorf("seed %d, masks %v", r.Seed, r.Masks)
	}
}

func TestAgainstUsage(t *testing.T) {
	for args, says := range map[string]string{
		"--against 127.0.0.1:1":                                    "usage: lockkeeper conform HOST",
		"--against no:where 127.0.0.1:1":                           `"no:where" is not HOST or HOST:PORT of `,
		"--against 127.0.0.1:1 127.0.0.1:2 --ops 0":                "--ops: 0 is not above 0",
		"--against 127.0.0.1:1 127.0.0.1:2 --mask nonsense":        `--mask: "nonsense" is not one of`,
		"--against 127.0.0.1:1 127.0.0.1:2 --without nonsense":     `--without: "nonsense" is not one of quotas`,
		"--against 127.0.0.1:1 127.0.0.1:2 --seed -1":              "invalid value",
		"--against 127.0.0.1:1 127.0.0.1:2 127.0.0.1:3 --no-masks": "usage: lockkeeper conform HOST",
	} {
		refuses(t, exitUsage, append([]string{"conform"}, strings.Fields(args)...), says)
	}
}
