package main

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestDurationHint: whoever forgets the unit of a duration, or writes it otherwise, is told how it is written.
func TestDurationHint(t *testing.T) {
	t.Parallel()
	const general = "a duration is one or more numbers with ms, s, m or h, such as 500ms, 10s or 1h30m"
	for value, want := range map[string]string{
		"5":     "it has no unit; did you mean 5s?",
		"0.5":   "it has no unit; did you mean 0.5s?",
		"2000":  "it has no unit; did you mean 2000s or 2000ms?",
		"5 s":   "did you mean 5s?",
		"5S":    "did you mean 5s?",
		"5 min": general,
		"1d":    general,
		"":      general,
		"soon":  general,
		"-5":    general,
		"1e3":   general,
		"inf":   general,
	} {
		if got := durationHint(value); got != want {
			t.Errorf("%q: %q, not %q", value, got, want)
		}
	}

	// Every flag of every command says it, and so does its variable.
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
				if want := `invalid value "5" for ` + name + ": it has no unit; did you mean 5s?"; err == nil || err.Error() != want {
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
	oneError(t, stderr, `invalid value "5" for --timeout: it has no unit; did you mean 5s?`)
}
