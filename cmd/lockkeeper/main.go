// Command lockkeeper is a ZooKeeper-compatible lock coordinator in one binary.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
	// exitDegraded is cluster status's, of a cluster that works although something is wrong.
	exitDegraded = 3
)

func main() {
	// No command ends because nobody reads standard error any more, and only those end that print for nobody (output). The
	// channel is never read. Ignoring the signal instead would pass that on to the command of lock run.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code. It writes an error as one line to
// stderr.
func run(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	out := &output{Writer: stdout}
	root := newRoot(out, stderr)
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	started := false
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if asksForAll(c) {
			return pflag.ErrHelp // which cobra answers with help
		}
		err := readEnvironment(c, getenv)
		started = err == nil
		return err
	}
	command, err := root.ExecuteC()
	stderr = command.ErrOrStderr() // which serve replaces
	if s, ok := stderr.(serveLines); ok {
		s.queue.Close() // an error comes last
	}
	if errors.Is(out.Err(), syscall.EPIPE) { // a command that ends in order
		out.inOrder = false
		out.Write([]byte("\n"))
	}
	if err == nil {
		if err := out.Err(); err != nil {
			sayError(stderr, err)
			return exitFault
		}
		return exitOK
	}
	var exit *exitError
	if errors.As(err, &exit) && exit.error == nil {
		return exit.code
	}
	sayError(stderr, err)
	if exit != nil {
		return exit.code
	}
	if out.Err() == nil && (!started || errors.As(err, &usageError{})) {
		return exitUsage
	}
	return exitFault
}

// output is standard output. It keeps the first error of a write, so that no command ends
// with success if what it printed is lost. When its reader has gone, it ends the process as SIGPIPE does: without a word.
type output struct {
	io.Writer
	inOrder bool // the command watches Err, and ends by itself first
	mu      sync.Mutex
	err     error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) && !o.inOrder {
		signal.Reset(syscall.SIGPIPE)
		var more int
		more, err = o.Writer.Write(b[n:]) // does not return unless somebody reads again
		n += more
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(o.err, err)
	return n, err
}

// Err returns the first error.
func (o *output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// asFile returns the file that w writes to, or nil.
func asFile(w io.Writer) *os.File {
	if o, ok := w.(*output); ok {
		w = o.Writer
	}
	file, _ := w.(*os.File)
	return file
}

// Help lists the commands in the order of newRoot. This is a variable of cobra's, which
// concurrent calls of run only read.
func init() { cobra.EnableCommandSorting = false }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "lockkeeper COMMAND",
		Long: `Lockkeeper is a lock coordinator that speaks ZooKeeper's protocol: a server for
unchanged ZooKeeper clients and their lock recipes, and tools that work with any
server that speaks that protocol.`,
		Example: `  lockkeeper serve
  lockkeeper help serve`,
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { writeHelp(c.OutOrStdout(), c) })
	root.SetFlagErrorFunc(flagError)
	root.Version = versionText(thisBuild()) // for --version
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(serveCommand(), lockCommand(), clusterCommand(), checkCommand(), disconnectCommand(), snapshotCommand(), migrateCommand(), conformCommand(), benchCommand(), zkCommand(), wireCommand(), versionCommand())
	finish(root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "serve":
			c.SetErr(serveLines{to: stderr})
		case "help":
			setHelp(c)
		case "completion":
			c.Use, c.Short = "completion SHELL", "Print a script for completions in a shell"
			c.Long = `Print a script that makes a shell complete commands, flags and their values.
'lockkeeper completion SHELL --help' explains how to load it in every new shell.`
			c.Example = `  source <(lockkeeper completion bash)
  lockkeeper completion zsh > "${fpath[1]}/_lockkeeper"
  lockkeeper completion fish | source`
		}
		if c.HasSubCommands() && !c.Runnable() {
			takesSubcommand(c)
		}
	}
	takesSubcommand(root)
	return root
}

// usageError is an error in the arguments, the environment or the configuration file. An
// error before a command starts counts as one, too.
type usageError struct{ error }

// exitError ends a command with an exit code of its own. Without an error nothing is printed.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// words returns a command's name without that of the program: "wire replay".
func words(c *cobra.Command) string {
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	return name
}

// takesSubcommand makes c, which does nothing by itself, print its help, and refuse
// everything except its subcommands.
func takesSubcommand(c *cobra.Command) {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		c.InitDefaultHelpFlag()
		return c.Help()
	}
}

func unknownCommand(c *cobra.Command, name string) error {
	advice := similar(c, name)
	if advice == "" {
		advice = fmt.Sprintf("; '%s --help' lists the commands", c.CommandPath())
	}
	return usageError{fmt.Errorf("unknown command %q%s", strings.TrimSpace(words(c)+" "+name), advice)}
}

// noArgs is the cobra.PositionalArgs of commands without arguments.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but got %q%s", words(c), args[0], similar(c, args[0]))
	}
	return nil
}

// takes is the cobra.PositionalArgs of commands with at least and at most so many arguments.
func takes(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("usage: %s", c.UseLine())
		}
		return nil
	}
}

// unlessListing is takes(1, 1) for commands that can also list what they have.
func unlessListing(list *bool) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if *list {
			return nil
		}
		return takes(1, 1)(c, args)
	}
}

// interruptible returns a context that ends with the first signal that asks the process to end.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel) // a second signal ends the process at once
	return ctx, cancel
}

// similar suggests subcommands of c for a name that it does not have.
func similar(c *cobra.Command, name string) string {
	c.SuggestionsMinimumDistance = 2
	names := c.SuggestionsFor(name)
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", strings.Join(names, " or "))
}

// flagError returns a one-line error about a flag of c.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name, typed := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" { // -listen, as Go programs write it
			typed = "-" + short
			name, _, _ = strings.Cut(short, "=")
		}
		all := &cobra.Command{} // cobra suggests only commands, so turn the flags into commands
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if len(name) > 1 { // everything is similar to a single letter
				all.AddCommand(&cobra.Command{Use: "--" + f.Name, Run: func(*cobra.Command, []string) {}})
			}
		})
		return fmt.Errorf("unknown flag %s%s", typed, similar(all, "--"+name))
	case errors.As(err, &invalid):
		return invalidValue("--"+invalid.GetFlag().Name, invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap())
	}
	return err
}

// invalidValue returns the error for an invalid value of a flag, whose name may be that of its variable.
func invalidValue(name string, f *pflag.Flag, value string, why error) error {
	if f.Value.Type() == "duration" {
		return usageError{fmt.Errorf("invalid value %q for %s: a duration is one or more numbers with ms, s, m or h, such as 500ms, 10s or 1h30m", value, name)}
	}
	if number := (*strconv.NumError)(nil); errors.As(why, &number) {
		why = number.Err // without the name of a Go function
	}
	return usageError{fmt.Errorf("invalid value %q for %s: %w", value, name, why)}
}

// setHelp makes c, which is cobra's command help, like the others.
func setHelp(c *cobra.Command) {
	c.Use, c.Short, c.Long = "help [COMMAND]", "Explain a command and list its flags", "Explain a command and list its flags."
	c.DisableFlagsInUseLine = true
	c.Example = "  lockkeeper help cluster add"
	c.RunE = func(help *cobra.Command, args []string) error {
		c, rest, err := help.Root().Find(args)
		if err != nil {
			return usageError{err}
		}
		if len(rest) > 0 {
			return unknownCommand(c, rest[0])
		}
		c.InitDefaultHelpFlag()
		return c.Help()
	}
}

// versionText is what version and --version print: the version, that of Go and the platform, and
// the rest as far as it is known.
func versionText(b build) string {
	text := fmt.Sprintf("lockkeeper %s %s %s/%s", b.Version, b.Go, b.OS, b.Arch)
	if b.Commit == "" && strings.HasPrefix(b.Module, "v") && b.Module != "v"+b.Version {
		text += ", module " + b.Module // of 'go install MODULE@VERSION'
	} else if b.Commit != "" {
		text += fmt.Sprintf(", commit %.12s of %s", b.Commit, b.Time)
	}
	if b.Modified {
		text += ", modified"
	}
	return text
}

func versionCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of lockkeeper, that of Go, the platform, and the commit that the
program was built from.

With --json, "commit" is that commit, "time" when it was made, and "modified" whether the
files differed from it. They are empty and false if Go was told not to note them
(-buildvcs=false), or built what it had downloaded. "module" is the version of the module as Go
knows it, which for a commit without a tag ends with the commit.`,
		Example: "  lockkeeper version\n  lockkeeper version --json",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(thisBuild())
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), versionText(thisBuild()))
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// build is what version --json prints.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Time     string `json:"time"`
	Modified bool   `json:"modified"`
	Module   string `json:"module"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func thisBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(info)
}

// buildOf returns what is known about how the program was built; info may be nil.
func buildOf(info *debug.BuildInfo) build {
	b := build{Version: lockkeeper.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info == nil {
		return b
	}
	b.Module = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func checkCommand() *cobra.Command {
	var (
		asJSON  bool
		to      string
		against string
	)
	c := &cobra.Command{
		Use:   "check DIR",
		Short: "Verify the data directory of a server that is not running",
		Long: `Verify the data directory of a server that is not running: the log, the snapshots,
and that together they give a valid state. Without --convert the directory is not
changed. The exit code is 0 if the directory is good and 1 if it is not.

With --against, verify the directories of two members of a cluster, and compare them: the
entries that both logs have, and the states after the last entry up to which the logs agree.
Entries at the ends that were never committed may differ. The exit code is 0 if all else is
the same, and 1 if it is not or if there is no entry after which both have a state.`,
		Example: `  lockkeeper check lockkeeper-data
  lockkeeper check --json /var/lib/lockkeeper

  # Do two members of a cluster that are stopped have the same state?
  lockkeeper check --against copy-of-b/data copy-of-a/data

  # From now on keep the log as 'lockkeeper serve --log-store wal' does
  lockkeeper check --convert wal lockkeeper-data`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if to != "" && !slices.Contains(storage.LogStores, storage.LogStore(to)) {
				return badFlag(c.Flags(), "convert", "it must be wal or boltdb, not %q", to)
			}
			switch {
			case against == "":
				return withRemedy(check(args[0], storage.LogStore(to), asJSON, c.OutOrStdout()))
			case to != "":
				return badFlag(c.Flags(), "against", "it does not go with --convert")
			}
			return withRemedy(compare(args[0], against, asJSON, c.OutOrStdout()))
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&to, "convert", "", "if the directory is good, keep its log in `STORE` from now on: wal or boltdb, as in serve --log-store")
	c.Flags().StringVar(&against, "against", "", "compare the directory with `DIR`, that of another member of the same cluster")
	completeWith(c, "convert", "wal", "boltdb")
	return c
}

// withRemedy adds to the error of a damaged directory what to do about it.
func withRemedy(err error) error {
	if !errors.Is(err, storage.ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w; if it is a standalone server's, %s; if it is a member's, %s", err, storage.RemedyAlone, storage.RemedyMember)
}

func check(dir string, to storage.LogStore, asJSON bool, stdout io.Writer) error {
	verify := storage.Check
	if to != "" {
		verify = func(dir string) (*storage.Report, error) { return storage.Convert(dir, to) }
	}
	r, err := verify(dir)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	of := "no cluster id yet"
	if r.Cluster != 0 {
		of = "cluster " + r.Cluster.String()
	}
	fmt.Fprintf(stdout, "%s is good: server %d, %s, zxid 0x%x, %d znodes, %d sessions, term %d, log entries %d to %d in %s after a snapshot at %d, digest %s\n",
		dir, r.ServerID, of, r.Zxid, r.Znodes, r.Sessions, r.Term, r.FirstIndex, r.LastIndex, r.LogStore, r.SnapshotIndex, r.Digest)
	return nil
}

func compare(a, b string, asJSON bool, stdout io.Writer) error {
	c, err := storage.Compare(a, b)
	if err != nil {
		return err
	}
	if asJSON {
		if err := json.NewEncoder(stdout).Encode(c); err != nil {
			return err
		}
	} else {
		if c.Tail > 0 {
			fmt.Fprintf(stdout, "from entry %d on, %s has entries up to %d, first of term %d, and %s up to %d, first of term %d: those of one of them were never committed\n",
				c.Tail, a, c.A.LastIndex, c.TermA, b, c.B.LastIndex, c.TermB)
		}
		if c.Different == "" && c.StateIndex > 0 {
			fmt.Fprintf(stdout, "%s and %s are the same: log entries %d to %d, and the state after entry %d\n", a, b, c.FirstIndex, c.LastIndex, c.StateIndex)
		}
	}
	switch {
	case c.Different != "" && c.StateIndex > 0:
		return fmt.Errorf("%s and %s differ in their states after entry %d: %s", a, b, c.StateIndex, c.Different)
	case c.Different != "":
		return fmt.Errorf("%s and %s differ: %s", a, b, c.Different)
	case c.StateIndex == 0:
		return fmt.Errorf("%s and %s have no entry after which both have a state: one has a snapshot after entry %d, and they agree only before it", a, b, max(c.A.SnapshotIndex, c.B.SnapshotIndex))
	}
	return nil
}
