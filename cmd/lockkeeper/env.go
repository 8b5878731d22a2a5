package main

import (
	"log/slog"
	"regexp"
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
		if value == "" || f.Changed || isHelp(f) || err != nil {
			return
		}
		if e := setFrom(f, byEnvironment, name, value); e != nil {
			err = invalidValue(name, f, value, e)
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

// readByOthers matches variables that no flag reads, and that are no mistakes: those that 'lock run' sets for its
// command, those of the packages for other languages, and those of this repository's tests.
var readByOthers = regexp.MustCompile(`^LOCKKEEPER_(PATH|TOKEN|SESSION|BINARY|TEST_URL|BENCH|SEED|SHAKE|THOROUGH|(DEPLOY|INTEROP|RELEASE)_.*)$`)

// serviceLink matches the variables that Kubernetes and Docker set in each container for a service.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// ofService reports whether a variable says where a service is, which happens to have such a name.
func ofService(name, value string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

// warnOfVariables logs variables that are named like those of flags, but that no flag of any command has. It also logs
// empty ones of c whose flags have a default: an empty variable counts as one that is not set.
func warnOfVariables(c *cobra.Command, environ []string, log *slog.Logger) {
	known := &cobra.Command{} // cobra suggests only commands, so turn the variables into commands
	defaults := map[string]string{}
	var visit func(of *cobra.Command)
	visit = func(of *cobra.Command) {
		of.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := variable(of, f)
			if _, has := defaults[name]; has || isHelp(f) {
				return
			}
			known.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
			defaults[name] = ""
			if of == c && f.Value.Type() == "string" {
				defaults[name] = f.DefValue
			}
		})
		for _, sub := range of.Commands() {
			visit(sub)
		}
	}
	visit(c.Root())
	var unknown, empty []string
	for _, text := range environ {
		name, value, _ := strings.Cut(text, "=")
		byDefault, has := defaults[name]
		switch {
		case has && value == "" && byDefault != "":
			empty = append(empty, name)
		case strings.HasPrefix(name, "LOCKKEEPER_") && !has && !readByOthers.MatchString(name) && !ofService(name, value):
			unknown = append(unknown, name+similar(known, name))
		}
	}
	slices.Sort(unknown)
	if len(unknown) > 0 {
		log.Warn("no flag has these variables, so they have no effect", "variables", strings.Join(unknown, ", "))
	}
	slices.Sort(empty)
	if len(empty) > 0 {
		log.Warn("an empty variable counts as one that is not set; give the flag itself to set it to nothing", "variables", strings.Join(empty, ", "))
	}
}
