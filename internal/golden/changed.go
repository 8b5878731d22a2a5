package golden

import "github.com/lockkeeper/lockkeeper/internal/releases"

// changed is by scenario from which line of its file on releases answer unlike the
// recorded 3.8.0, and which releases.
var changed = map[string]struct {
	line int
	in   string
}{
	"30-multi-edge":     {49, releases.MultiReadsModes},
	"54-malformed-body": {19, releases.UnreadableTakesNone},
}

// Changed fits Options.Mask: it names the steps at which a release of ZooKeeper
// answers unlike the recorded one.
func Changed(v releases.Version) func(*Scenario, *Step) bool {
	return func(s *Scenario, st *Step) bool {
		c, ok := changed[s.Name]
		return ok && v.In(c.in) && st.Line >= c.line
	}
}
