package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestBuckets checks that buckets are in order, without gaps, and narrow.
func TestBuckets(t *testing.T) {
	last := -1
	for v := time.Duration(0); v < 5000; v++ {
		b := bucket(v)
		if b != last && b != last+1 {
			t.Fatalf("%d is in bucket %d, after bucket %d", v, b, last)
		}
		last = b
	}
	for _, v := range []time.Duration{0, 1, 127, 128, 255, 256, 257, 1000, 123_456, time.Second, time.Hour, math.MaxInt64} {
		b := bucket(v)
		if off := math.Abs(float64(middle(b)-v)) / max(float64(v), 1); off > 0.005 {
			t.Errorf("the middle of the bucket of %d is %d", v, middle(b))
		}
	}
	if bucket(-5) != bucket(0) {
		t.Error("a negative duration has a bucket of its own")
	}
}

// TestQuantiles compares quantiles with those of the sorted durations.
func TestQuantiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	var whole Histogram
	if whole.Quantile(0.5) != 0 || whole.Count() != 0 {
		t.Error("an empty histogram has durations")
	}
	var all []time.Duration
	for range 7 { // parts that are merged
		var part Histogram
		for range 1 + rnd.IntN(3000) {
			d := time.Duration(math.Exp(rnd.Float64() * 25))
			part.Add(d)
			all = append(all, d)
		}
		whole.Merge(&part)
	}
	whole.Merge(&Histogram{})
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
		got := whole.Quantile(q)
		if off := math.Abs(float64(got-want)) / max(float64(want), 1); off > 0.01 {
			t.Errorf("quantile %v of %d durations is %v, should be %v", q, len(all), got, want)
		}
	}
	if whole.Max() != all[len(all)-1] || whole.Quantile(1) > whole.Max() || whole.Count() != uint64(len(all)) {
		t.Errorf("%d durations up to %v, should be %d up to %v", whole.Count(), whole.Max(), len(all), all[len(all)-1])
	}
}
