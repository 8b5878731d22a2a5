package cluster

import "time"

// clock tells the time.
type clock struct {
	mono func() time.Duration // a monotonic clock
	wall func() time.Time     // the wall clock
}

// newClock returns a clock; without a wall clock it uses time.Now.
func newClock(wall func() time.Time) *clock {
	if wall == nil {
		wall = time.Now
	}
	start := time.Now().Add(-time.Millisecond)
	return &clock{func() time.Duration { return time.Since(start) }, wall}
}

// nowMs is a monotonic clock in ms, for measuring durations. It is never 0, which stands for
// no time.
func (c *clock) nowMs() int64 { return c.mono().Milliseconds() }

// since returns the time elapsed since ms, a value of nowMs.
func (c *clock) since(ms int64) time.Duration {
	return time.Duration(c.nowMs()-ms) * time.Millisecond
}

// timeOfDay is the wall clock in ms since the epoch; it may jump.
func (c *clock) timeOfDay() int64 { return c.wall().UnixMilli() }
