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
