package golden

import "github.com/lockkeeper/lockkeeper/internal/tools/releases"

// changed lists scenarios that newer releases answer differently from the recorded
// 3.8.0.
var changed = map[string]struct {
	line int    // of the file, from which on replies differ
	in   string // the releases that differ
}{
	"30-multi-edge":     {49, releases.MultiReadsModes},
	"54-malformed-body": {19, releases.UnreadableTakesNone},
}

// Changed returns a function for Options.Mask. It selects the steps at which a release
// of ZooKeeper answers differently from the recorded one.
func Changed(v releases.Version) func(*Scenario, *Step) bool {
	return func(s *Scenario, st *Step) bool {
		c, ok := changed[s.Name]
		return ok && v.In(c.in) && st.Line >= c.line
	}
}
