package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
	"github.com/lockkeeper/lockkeeper/internal/tools/privatefile"
)

// errDiffers ends the command with exit code 1. The differences have been printed.
var errDiffers = errors.New("the endpoint differs")

type conformOptions struct {
	conform.Options
	groups, pattern, without string
	junit                    string
	json, list               bool
	against                  against
	tls                      clientTLS
}

func conformCommand() *cobra.Command {
	var o conformOptions
	c := &cobra.Command{
		Use:   "conform HOST[:PORT]",
		Short: "Compare a server's behaviour with ZooKeeper's, or with another server's",
		Long: `Check byte by byte whether a server behaves as ZooKeeper does, and print each
difference with the exchange that shows it. The exit code is 1 if there is one.

The checks work below a znode of their own, /conform-XXXXXXXX, and briefly outside
of it, and delete everything that they create. Some of it can be deleted only by
the super user, and stays without --super. No other client should write to the
server at the same time, because some checks count transactions.

With --against, no checks are run. Instead, the same random requests are sent to
two servers, and every reply, Stat, event and zxid is compared. The first
difference is printed with a short sequence of requests that shows it. ZooKeeper
refuses TTL znodes unless it is configured with extendedTypesEnabled: to compare a
server of lockkeeper with it, start that with --no-ttl.`,
		Example: `  lockkeeper conform 127.0.0.1:2181

  # All checks
  lockkeeper conform 127.0.0.1:2181 --super super:secret --reap-within 3s

  # Two groups of checks, with the behaviour of ZooKeeper 3.8.4
  lockkeeper conform 127.0.0.1:2181 --group create,delete --like 3.8.4

  # Two servers
  lockkeeper conform --against zookeeper:2181 127.0.0.1:2181 --ops 50000`,
		Args: unlessListing(&o.list),
		RunE: func(c *cobra.Command, args []string) error { return o.conformance(c, args) },
	}
	all := c.Flags()
	group(all, "Checks", func(f *pflag.FlagSet) {
		f.BoolVar(&o.list, "list", false, "list the checks without running them")
		f.StringVar(&o.groups, "group", "", "`GROUPS` of checks to run, separated by commas")
		f.StringVar(&o.pattern, "run", "", "run the checks whose names match this regular `EXPRESSION`")
		f.StringVar(&o.Version, "like", "", "the `VERSION` of ZooKeeper to expect, such as 3.8.4; by default the one that the server reports")
		f.DurationVar(&o.ReapWithin, "reap-within", 0, "how long the server may take to delete an empty container; without it, checks that need this are skipped")
		f.IntVar(&o.Parallel, "parallel", 8, "`NUMBER` of checks to run at the same time")
		f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long to wait for one frame")
	})
	group(all, "Comparison of two servers", func(f *pflag.FlagSet) { o.against.define(f) })
	group(all, "Both", func(f *pflag.FlagSet) {
		f.StringVar(&o.Super, "super", "", "the super user of the server, or of both, as `USER:PASSWORD`")
		f.StringVar(&o.without, "without", "", fmt.Sprintf("`FEATURES` that the server does not have, separated by commas: %s; with --against: %s", join(conform.Features()), join(differ.Features)))
		f.BoolVar(&o.json, "json", false, "print JSON")
		o.tls.define(f)
		f.StringVar(&o.junit, "junit", "", "`FILE` to write a JUnit report of the checks to. It may have the password of --super, so only you may read it")
	})
	completeWith(c, "group", groupsOf(conform.Checks())...)
	return c
}

func (o *conformOptions) conformance(c *cobra.Command, args []string) error {
	flags, stdout, stderr := c.Flags(), c.OutOrStdout(), c.ErrOrStderr()
	if o.list {
		for _, k := range conform.Checks() {
			fmt.Fprintf(stdout, "%-50s %-14s %s\n", k.Name, k.In, k.Says)
		}
		return nil
	}
	server, err := oneServer(args[0])
	if err != nil {
		return usageError{err}
	}
	if err := needPositive(flags, "timeout"); err != nil {
		return err
	}
	switch {
	case o.Parallel < 1:
		return badFlag(flags, "parallel", "%d is not above 0", o.Parallel)
	case o.ReapWithin < 0:
		return badFlag(flags, "reap-within", "it must not be negative")
	}
	dialer, err := o.tls.dialer(flags)
	if err != nil {
		return err
	}
	if o.against.addr != "" {
		return o.against.run(flags, server, dialer, o, stdout, stderr)
	}
	if o.Run, err = regexp.Compile(o.pattern); err != nil {
		return badFlag(flags, "run", "%w", err)
	}
	if o.Version != "" {
		if _, err := conform.ParseVersion(o.Version); err != nil {
			return badFlag(flags, "like", "%w", err)
		}
	}
	if o.Groups, err = choose(flags, "group", groupsOf(conform.Checks())); err != nil {
		return err
	}
	if o.Without, err = choose(flags, "without", conform.Features()); err != nil {
		return err
	}
	o.Dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", server) }
	shown := progress{w: stderr, terminal: isTerminal(stderr)}
	o.Progress = func(done, of int, r *conform.Result) {
		shown.show(fmt.Sprintf("%d/%d %s %s", done, of, r.Status, r.Name), r.Status == conform.Failed || done%50 == 0 || done == of)
	}
	ctx, cancel := interruptible()
	defer cancel()
	if err := dialer.Check(ctx, server); err != nil {
		return err
	}
	ctx, why := untilHopeless(ctx, dialer)
	report, err := conform.Run(ctx, o.Options)
	shown.clear()
	switch err = whyNot(ctx, dialer, why(err), server); {
	case err != nil:
		return err
	case ctx.Err() != nil:
		left := ""
		if report.Left != "" {
			left = "; left behind: " + report.Left
		}
		return fmt.Errorf("interrupted: %d of %d checks were not run, %d passed, %d failed%s", report.Count(conform.NotRun),
			len(report.Results), report.Count(conform.Passed), report.Count(conform.Failed), left)
	}
	write := report.WriteText
	if o.json {
		write = report.WriteJSON
	}
	if err := write(stdout); err != nil {
		return err
	}
	if o.junit != "" {
		file, err := privatefile.Create(o.junit) // it may have the password of the super user
		if err != nil {
			return err
		}
		if err := errors.Join(report.WriteJUnit(file), file.Close()); err != nil {
			return err
		}
	}
	if !report.OK() {
		return fmt.Errorf("%w in %d checks", errDiffers, report.Count(conform.Failed))
	}
	return nil
}

// choose parses the list in a flag. Each item must be one of known.
func choose[T ~string](flags *pflag.FlagSet, name string, known []T) (chosen []T, err error) {
	for _, s := range list(flags.Lookup(name).Value.String()) {
		if !slices.Contains(known, T(s)) {
			return nil, badFlag(flags, name, "%q is not one of %s", s, join(known))
		}
		chosen = append(chosen, T(s))
	}
	return chosen, nil
}

func join[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, s := range all {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

func groupsOf(checks []conform.Check) (groups []string) {
	for _, k := range checks {
		if g := k.Group(); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	return groups
}

// progress shows how far a command is. On a terminal it uses one line, which it
// overwrites; elsewhere it writes a line from time to time.
type progress struct {
	w        io.Writer
	terminal bool
	width    int // of the text on the line
}

// show shows text. If it does not matter, it is shown only on a terminal.
func (p *progress) show(text string, matters bool) {
	switch {
	case p.terminal:
		text = fmt.Sprintf("%.79s", text) // a longer line would wrap and could not be overwritten
		fmt.Fprintf(p.w, "\r%-*s", p.width, text)
		p.width = utf8.RuneCountInString(text)
	case matters:
		fmt.Fprintln(p.w, text)
	}
}

func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%*s\r", p.width, "")
		p.width = 0
	}
}

func isTerminal(w io.Writer) bool {
	file := asFile(w)
	if file == nil {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
