package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/lockkeeper/lockkeeper/conform"
)

// errDiffers ends the command with exit 1: what differs has been printed.
var errDiffers = errors.New("the endpoint differs")

// conformance runs the conformance suite against an endpoint.
func conformance(args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	var o conform.Options
	f := flag.NewFlagSet("conform [FLAGS] HOST:PORT", flag.ContinueOnError)
	f.StringVar(&o.Version, "like", "", "`version` of ZooKeeper to expect, such as 3.8.4; by default what the endpoint says it is")
	f.StringVar(&o.Super, "super", "", "the endpoint's super user, as `USER:PASSWORD`")
	f.DurationVar(&o.ReapWithin, "reap-within", 0, "how long after it became empty a container is gone at the latest; 0 leaves those checks out")
	f.IntVar(&o.Parallel, "parallel", 8, "how many checks may run at a time")
	f.DurationVar(&o.Timeout, "timeout", 0, "how long to wait for one frame (default 10s)")
	groups := f.String("group", "", "`groups` of checks to run, separated by commas")
	pattern := f.String("run", "", "regular expression that the `names` of the checks to run match")
	without := f.String("without", "", fmt.Sprintf("`features` that the endpoint does not have, of %s", join(conform.Features())))
	junit := f.String("junit", "", "write a JUnit report to this `file` too")
	asJSON := f.Bool("json", false, "print JSON")
	list := f.Bool("list", false, "list the checks and run none")
	var beside against
	beside.register(f)
	if _, err := parse("conform", f, args, getenv, stdout); err != nil {
		return err
	}
	if *list {
		for _, k := range conform.Checks() {
			fmt.Fprintf(stdout, "%-50s %-14s %s\n", k.Name, k.In, k.Says)
		}
		return nil
	}
	if f.NArg() != 1 {
		return usageError{errors.New("conform takes one endpoint, HOST:PORT")}
	}
	if _, _, err := net.SplitHostPort(f.Arg(0)); err != nil {
		return usageError{err}
	}
	if beside.addr != "" {
		return beside.run(f.Arg(0), *without, o.Super, *asJSON, stdout, stderr)
	}
	var err error
	if o.Run, err = regexp.Compile(*pattern); err != nil {
		return usageError{err}
	}
	if o.Version != "" {
		if _, err := conform.ParseVersion(o.Version); err != nil {
			return usageError{err}
		}
	}
	if o.Groups, err = choose("group", *groups, groupsOf(conform.Checks())); err != nil {
		return err
	}
	if o.Without, err = choose("without", *without, conform.Features()); err != nil {
		return err
	}
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", f.Arg(0))
	}
	width := 0
	o.Progress = func(done, of int, r *conform.Result) {
		line := fmt.Sprintf("%d/%d %s %s", done, of, r.Status, r.Name)
		if isTerminal(stderr) {
			fmt.Fprintf(stderr, "\r%-*s", width, line)
			width = max(width, len(line))
		} else if r.Status == conform.Failed || done%50 == 0 || done == of {
			fmt.Fprintln(stderr, line)
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	report, err := conform.Run(ctx, o)
	if err != nil {
		return err
	}
	if width > 0 {
		fmt.Fprintf(stderr, "\r%*s\r", width, "")
	}
	write := report.WriteText
	if *asJSON {
		write = report.WriteJSON
	}
	if err := write(stdout); err != nil {
		return err
	}
	if *junit != "" {
		if err := writeFile(*junit, report.WriteJUnit); err != nil {
			return err
		}
	}
	if !report.OK() {
		return fmt.Errorf("%w in %d checks", errDiffers, report.Count(conform.Failed))
	}
	return nil
}

// choose splits a list that is divided by commas; each must be one of those
// that there are.
func choose[T ~string](name, list string, known []T) (chosen []T, err error) {
	for s := range strings.SplitSeq(list, ",") {
		s := T(strings.TrimSpace(s))
		if s == "" {
			continue
		}
		if !slices.Contains(known, s) {
			return nil, usageError{fmt.Errorf("invalid value %q for flag -%s: not one of %s", s, name, join(known))}
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}

func join[T ~string](all []T) string {
	var b strings.Builder
	for i, s := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(s))
	}
	return b.String()
}

func groupsOf(checks []conform.Check) (groups []string) {
	for _, k := range checks {
		if g := k.Group(); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	return groups
}

func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// isTerminal reports whether somebody watches.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
