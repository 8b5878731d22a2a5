//go:build interop

package interop

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
)

// TestReleases compares lockkeeper as each older line with the newest release of that line:
// by random requests, and by the words. The conformance suite passes on the release too, so that
// TestPersonas of package conform checks lockkeeper as that line by the right expectations.
func TestReleases(t *testing.T) {
	t.Parallel()
	atNight(t)
	for line := persona.Oldest; line < persona.Newest; line++ {
		release := zkVersion(line.Release())
		as := []string{"--behave-as", line.String()}
		t.Run(string(release), func(t *testing.T) {
			t.Run("requests", func(t *testing.T) {
				t.Parallel()
				seed := strconv.FormatUint(seeded(t).Uint64N(1e9)+1, 10)
				// 3.4 lets sessions expire that were closed, so let none expire.
				settings := merged(differSettings, map[string]string{"tickTime": "60000"})
				real := startZooKeeper(t, release, map[string]string{"zookeeper.forceSync": "no"}, settings)
				runDiffer(t, real.addr, startConfigured(t, settings, as...).addr, 10_000, seed)
			})
			t.Run("words", func(t *testing.T) {
				t.Parallel()
				compareWords(t, release, persona.For(line), as...)
			})
			t.Run("suite", func(t *testing.T) {
				t.Parallel()
				r := reportConform(t, startZooKeeper(t, release, merged(conformReaper, withTTL), conformSettings).addr)
				lacks := []conform.Status{conform.Unsupported, conform.NotApplicable} // before 3.7 there are features that it lacks
				for _, x := range r.Results {
					if x.Status != conform.Passed && x.Status != conform.OtherVersion && (line >= 7 || !slices.Contains(lacks, x.Status)) {
						t.Errorf("%s: %s\n%s\n%s\n%s", x.Status, x.Name, x.Says, strings.Join(x.Exchange, "\n"), x.Why)
					}
				}
			})
		})
	}
}
