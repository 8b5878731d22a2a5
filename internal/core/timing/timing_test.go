package timing

import (
	"testing"
	"time"
)

// TestInequalities checks, for many settings, all that the comments of this package promise.
func TestInequalities(t *testing.T) {
	must := func(holds bool, what string, of ...any) {
		t.Helper()
		if !holds {
			t.Errorf("%s does not hold for %v", what, of)
		}
	}
	for e := MinElectionTimeout; e <= time.Minute; e += e/7 + time.Millisecond {
		lease, beat := Lease(e), Beat(e)
		must(2*lease <= e, "Lease <= election timeout / 2", e)
		must(2*beat <= lease, "2 * Beat <= Lease", e)
		must(beat <= Late(e), "Beat <= Late", e)
		must(Late(e)+4*Redial(e) <= e, "Late + 4 * Redial <= election timeout", e)
		must(lease > 0 && beat > 0 && Late(e) > 0 && Redial(e) > 0, "a time is more than 0", e)
		for tick := 4 * time.Millisecond; tick <= time.Minute; tick += tick/5 + time.Millisecond {
			report := Report(tick, lease)
			must(2*report <= lease, "2 * Report <= Lease", e, tick)
			must(4*report <= tick, "4 * Report <= tick", e, tick)
			shortest := Shortest(tick)
			if tick >= 400*time.Millisecond {
				must(8*Watch(tick) <= shortest, "8 * Watch <= session timeout", tick)
			}
			for timeout := shortest; timeout <= Longest(tick); timeout += tick / 3 {
				if unreported := Unreported(timeout, lease); unreported > 0 {
					must(Believed(timeout)+unreported+lease <= timeout, "Believed + Unreported + Lease <= session timeout", e, timeout)
				}
				must(Ask(timeout)+tick/2 <= timeout-Believed(timeout)+time.Nanosecond, "Ask + half a tick <= session timeout - Believed", tick, timeout)
				ms, slack := timeout.Milliseconds(), lease.Milliseconds()
				if unreported := Unreported(ms, slack); unreported > 0 {
					must(Believed(ms)+unreported+slack <= ms, "the same in milliseconds", ms, slack)
				}
			}
		}
	}
}
