package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// guide chooses what to run: in half of the runs what a new seed determines, and else a run that has reached something new,
// with other choices from shortly before that on.
type guide struct {
	reached map[string]bool
	kept    []kept
	virtual time.Duration
}

// kept is a run that has reached something new, and when it did so last.
type kept struct {
	seed  uint64
	forks string
	at    time.Duration
}

// mostForks is how often a run may be varied.
const mostForks = 8

// choose returns a seed, next if it is to be a new one, and the forks of the run.
func (g *guide) choose(next uint64) (seed uint64, forks string) {
	if len(g.kept) == 0 || rand.IntN(2) == 0 {
		return next, ""
	}
	k := g.kept[rand.IntN(len(g.kept))]
	at := time.Duration(float64(k.at) * (1 - rand.Float64()/2))
	fork := fmt.Sprintf("%v:%d", at.Round(time.Millisecond), rand.Uint64()>>1)
	// What happens after that is no more what it was.
	var all []string
	for _, f := range strings.FieldsFunc(k.forks, func(r rune) bool { return r == ',' }) {
		if was, _, _ := strings.Cut(f, ":"); duration(was) < at {
			all = append(all, f)
		}
	}
	return k.seed, strings.Join(append(all, fork), ",")
}

// learn notes what a run has reached.
func (g *guide) learn(s summary, forks string) {
	g.virtual += s.Virtual
	at := time.Duration(-1)
	for pair, when := range s.Reached {
		if !g.reached[pair] {
			g.reached[pair] = true
			at = max(at, when)
		}
	}
	if at > 0 && strings.Count(forks, ",") < mostForks {
		g.kept = append(g.kept, kept{s.Seed, forks, at})
	}
}

func (g *guide) report() {
	if len(g.reached) > 0 {
		fmt.Printf("reached %d steps in kinds of states, %.1f per virtual hour; %d runs are varied\n", len(g.reached), float64(len(g.reached))/g.virtual.Hours(), len(g.kept))
	}
}

func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// forksIn reads -sim.forks.
func forksIn(t *testing.T, text string) (all []Fork) {
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		at, seed, _ := strings.Cut(f, ":")
		d, err := time.ParseDuration(at)
		n, err2 := strconv.ParseUint(seed, 10, 64)
		if err != nil || err2 != nil {
			t.Fatalf("-sim.forks: %q is not TIME:SEED", f)
		}
		all = append(all, Fork{d, n})
	}
	slices.SortFunc(all, func(a, b Fork) int { return int(a.At - b.At) })
	return all
}
