package bench

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are less than 1 % wide, so it needs the same
// memory for any number of them. Its zero value is empty.
type Histogram struct {
	counts   []uint32 // by bucket, up to the highest that is used
	n        uint64
	min, max time.Duration
}

// halves is the number of bits of a duration that a bucket keeps after the highest.
const halves = 7

// bucket returns the bucket of a duration: durations below 2^halves have one each, and
// every power of two above is divided into 2^halves buckets.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-halves-1, 0)
	return shift<<halves + int(v>>shift)
}

// middle returns the middle of a bucket.
func middle(b int) time.Duration {
	shift := max(b>>halves-1, 0)
	low := uint64(b-shift<<halves) << shift
	return time.Duration(low + 1<<shift/2)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	b := bucket(d)
	if b >= len(h.counts) {
		h.counts = append(h.counts, make([]uint32, b+1-len(h.counts))...)
	}
	h.counts[b]++
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
}

// Merge adds the durations that o has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]uint32, len(o.counts)-len(h.counts))...)
	}
	for b, n := range o.counts {
		h.counts[b] += n
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.n += o.n
}

// Count returns how many durations were counted.
func (h *Histogram) Count() uint64 { return h.n }

// Quantile returns the smallest duration such that at least the share q of all is not
// longer, to within the width of a bucket. It returns 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q * float64(h.n))
	if float64(rank) < q*float64(h.n) {
		rank++
	}
	rank = min(max(rank, 1), h.n)
	var seen uint64
	for b, n := range h.counts {
		if seen += uint64(n); seen >= rank {
			return min(max(middle(b), h.min), h.max)
		}
	}
	return h.max
}

// Max returns the longest duration.
func (h *Histogram) Max() time.Duration { return h.max }
