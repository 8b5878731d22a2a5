package sim

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var seedFlag = flag.Uint64("sim.seed", 0, "run this seed alone")

func TestSeeds(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var r *Report
			began := time.Now()
			synctest.Test(t, func(t *testing.T) {
				r = Run(Options{Seed: seed, For: time.Minute})
			})
			r.Linearize(10 * time.Second)
			t.Logf("%v virtual in %v, %+v, faults %v", r.Virtual, time.Since(began), r.Checked, r.Faults)
			for _, v := range r.History.Violations {
				t.Error(v)
			}
			if t.Failed() {
				r.History.save(fmt.Sprintf("/tmp/sim-%d.jsonl", seed))
			}
		})
		if *seedFlag != 0 {
			break
		}
	}
}
