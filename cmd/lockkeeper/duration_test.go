package main

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestDurationHint: every flag with a duration says how it is written, and so does its variable.
func TestDurationHint(t *testing.T) {
	t.Parallel()
	const hint = ": a duration is one or more numbers with ms, s, m or h, such as 500ms, 10s or 1h30m"
	seen := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			seen++
			for name, err := range map[string]error{
				"--" + f.Name:  flagError(c, c.ParseFlags([]string{"--" + f.Name, "5"})),
				variable(c, f): readEnvironment(c, func(name string) string { return map[string]string{variable(c, f): "5"}[name] }),
			} {
				if want := `invalid value "5" for ` + name + hint; err == nil || err.Error() != want {
					t.Errorf("%s: %v", words(c), err)
				}
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(nil, nil))
	if seen < 15 {
		t.Errorf("only %d flags", seen)
	}
	_, _, stderr := call(nil, "lock", "run", "--timeout", "5", "/a", "--", "true")
	oneError(t, stderr, `invalid value "5" for --timeout`+hint)
}
