package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// source is where the value of a flag comes from. The highest one takes precedence.
type source int

const (
	byDefault source = iota
	byFile
	byEnvironment
	byFlag
)

// setBy has the names of the annotations of flags that the environment or a file has
// set. An annotation's value is the name of the variable or the key.
var setBy = map[source]string{byFile: "set by file", byEnvironment: "set by environment"}

// sourceOf returns where the value of f comes from, and the name to use in messages: the
// one that the user has written.
func sourceOf(f *pflag.Flag) (from source, name string) {
	if f.Changed {
		return byFlag, "--" + f.Name
	}
	for _, by := range []source{byEnvironment, byFile} {
		if name := f.Annotations[setBy[by]]; name != nil {
			return by, name[0]
		}
	}
	return byDefault, "--" + f.Name
}

// setFrom sets f to a value that does not come from the command line.
func setFrom(f *pflag.Flag, by source, name, value string) error {
	if err := f.Value.Set(value); err != nil {
		return err
	}
	annotate(f, setBy[by], name)
	return nil
}

func annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// readEnvironment sets the flags of c that the command line does not set.
func readEnvironment(c *cobra.Command, getenv func(string) string) (err error) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		name := variable(c, f)
		value := getenv(name)
		if value == "" || f.Changed || f.Name == "help" || err != nil {
			return
		}
		if e := setFrom(f, byEnvironment, name, value); e != nil {
			err = invalidValue(name, value, e)
		}
	})
	return err
}

// shared are the flags that mean the same in every command that has them. Their
// variables apply to all these commands.
var shared = []string{"server", "json", "peer-tls-cert", "peer-tls-key", "peer-tls-password-file", "peer-tls-ca", "peer-tls-ca-password-file"}

// variable returns the environment variable for a flag of c: LOCKKEEPER_TICK_TIME for
// --tick-time of serve, and LOCKKEEPER_WIRE_LISTEN for --listen of wire. For a flag that
// c inherits, it is the variable of the parent.
func variable(c *cobra.Command, f *pflag.Flag) string {
	for p := c.Parent(); p != nil; p = p.Parent() {
		if p.PersistentFlags().Lookup(f.Name) == f {
			c = p
		}
	}
	name := f.Name
	if words(c) != "serve" && !slices.Contains(shared, name) {
		name = words(c) + "_" + name
	}
	return "LOCKKEEPER_" + strings.ToUpper(strings.NewReplacer("-", "_", " ", "_").Replace(name))
}
