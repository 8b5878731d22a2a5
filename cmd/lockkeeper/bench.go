package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/tools/bench"
	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
)

type benchOptions struct {
	bench.Options
	workloads, compare string
	list, quick, json  bool
	pids, comparePIDs  []int
	restart, kill      string
	tls                clientTLS
	dialer             *connect.Dialer
}

// quick has the values of flags with --quick. Everything together takes about quickBudget then, and less than 40 s.
var quick = map[string]int{"turns": 3, "idle-sessions": 1000, "znodes": 20_000, "sessions": 1000, "vanishing": 100, "watches": 10_000}

const quickBudget = 32 * time.Second

func benchCommand() *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench HOST[:PORT][,...][/PATH]",
		Short: "Measure how fast a server or a cluster is, or compare two",
		Long: `Drive load against any server that speaks ZooKeeper's protocol, or against a cluster
whose members are separated by commas, and print rates, latencies and errors. Given the
server's process id, also print the processor time and memory that it uses. In the name
of a workload, 64x16 means 64 sessions with 16 outstanding requests each, and a single
number is the number of sessions.

With --compare, two servers are measured in turn, A B A B, after one turn that warms
them up. The ratio is that of the medians, and its spread is that of the turns. The last
column tells how many cores all other processes of the machine used meanwhile: if it is
not small, do not trust the figures.

The workloads create znodes below one of their own, PATH/bench-XXXXXXXX, and delete them,
also when they are interrupted. The server must allow as many connections from one
address as a workload has sessions; ZooKeeper's default (maxClientCnxns) is 60.

The exit code is 1 if a request failed, a connection was lost, or two clients held a
lock at once.`,
		Example: `  lockkeeper bench 127.0.0.1:2181 --quick

  # With the processor time and memory of a server on this machine
  lockkeeper bench 127.0.0.1:2181 --pid 4711

  # Only locks, for 10 seconds each
  lockkeeper bench 127.0.0.1:2181 --workload lock,handover --time 10s

  # Two clusters of three
  lockkeeper bench a:2181,b:2181,c:2181 --compare d:2181,e:2181,f:2181 --json

  # How long a restart takes with ten million znodes
  lockkeeper bench 127.0.0.1:2181 --workload znodes --znodes 10000000 --restart-cmd 'systemctl kill -s KILL lockkeeper'`,
		Args: unlessListing(&o.list),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	all := c.Flags()
	group(all, "Workloads", func(f *pflag.FlagSet) {
		f.BoolVar(&o.list, "list", false, "list the workloads without running them")
		f.StringVar(&o.workloads, "workload", "", "`NAMES` of workloads to run, separated by commas, such as create-1x1, or create for all that begin with it")
		f.BoolVar(&o.quick, "quick", false, "take less than 40 seconds for everything, with short measurements, fewer idle sessions and fewer znodes")
		f.DurationVar(&o.Time, "time", 5*time.Second, "`DURATION` of one measurement at most")
		f.IntVar(&o.Ops, "ops", 1_000_000, "`NUMBER` of operations in one measurement at most")
		f.IntVar(&o.IdleSessions, "idle-sessions", 10_000, "`NUMBER` of sessions of the workload idle")
		f.IntVar(&o.Znodes, "znodes", 1_000_000, "`NUMBER` of znodes of the workloads znodes and snapshots")
		f.IntVar(&o.Sessions, "sessions", 100_000, "`NUMBER` of sessions of the workloads sessions-…")
		f.IntVar(&o.Vanishing, "vanishing", 10_000, "`NUMBER` of these whose clients vanish in the workload sessions-vanish")
		f.IntVar(&o.Watches, "watches", 100_000, "`NUMBER` of watches of the workload sessions-watch")
	})
	group(all, "Server", func(f *pflag.FlagSet) {
		o.tls.define(f)
		f.IntSliceVar(&o.pids, "pid", nil, "process `ID` of the server, or of each member, separated by commas; only for servers on this machine, which must run Linux")
		f.StringVar(&o.restart, "restart-cmd", "", "shell `COMMAND` that kills and restarts the server in the workload znodes; it finds the endpoint in $ENDPOINT, and prints the new process ids if --pid is given")
		f.StringVar(&o.kill, "kill-cmd", "", "shell `COMMAND` that kills a server of the cluster in the workload sessions-failover, and may start it again; it finds the client port in $ENDPOINT, and may print new process ids")
	})
	group(all, "Comparison of two servers", func(f *pflag.FlagSet) {
		f.StringVar(&o.compare, "compare", "", "measure the server at `HOST[:PORT][,...][/PATH]` too, in turn")
		f.IntSliceVar(&o.comparePIDs, "compare-pid", nil, "process `ID` of that server, or of each member")
		f.IntVar(&o.Turns, "turns", 5, "`NUMBER` of turns; by default 3 with --quick, and 1 without --compare")
	})
	group(all, "Output", func(f *pflag.FlagSet) { f.BoolVar(&o.json, "json", false, "print JSON") })
	var names []string
	for _, w := range append(bench.All(), bench.Crowds()...) {
		names = append(names, w.Name)
	}
	completeWith(c, "workload", names...)
	return c
}

func (o *benchOptions) run(c *cobra.Command, args []string) error {
	flags, stdout, stderr := c.Flags(), c.OutOrStdout(), c.ErrOrStderr()
	if o.list {
		for _, w := range append(bench.All(), bench.Crowds()...) {
			fmt.Fprintf(stdout, "%-18s %s\n", w.Name, w.Says)
		}
		return nil
	}
	if err := o.complete(flags, args[0]); err != nil {
		return err
	}
	shown := progress{w: stderr, terminal: isTerminal(stderr)}
	o.Progress = func(done, of int, text string, matters bool) {
		shown.show(fmt.Sprintf("%d/%d %s", done, of, text), matters)
	}
	ctx, cancel := interruptible()
	defer cancel()
	report, err := bench.Measure(ctx, o.Options)
	shown.clear()
	if h := (connect.Hopeless{}); errors.As(err, &h) {
		return h // which names the server
	}
	for _, t := range o.Targets {
		err = whyNot(ctx, o.dialer, err, t.Addrs...)
	}
	if err != nil {
		return err
	}
	write := report.WriteText
	if o.json {
		write = report.WriteJSON
	}
	err = write(stdout)
	switch {
	case err != nil:
		return err
	case report.Left != "":
		return fmt.Errorf("left behind: %s", report.Left)
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case report.Faults() > 0:
		return fmt.Errorf("errors in %d workloads", report.Faults())
	}
	return nil
}

// complete checks the flags and fills in the options that follow from them.
func (o *benchOptions) complete(flags *pflag.FlagSet, addrs string) (err error) {
	if o.Workloads, err = bench.Choose(list(o.workloads)); err != nil {
		return badFlag(flags, "workload", "%w", err)
	}
	if err := needPositive(flags, "time"); err != nil {
		return err
	}
	for _, name := range append(slices.Sorted(maps.Keys(quick)), "ops") {
		if n, _ := flags.GetInt(name); n < 1 {
			return badFlag(flags, name, "%d is not above 0", n)
		}
	}
	if from, _ := sourceOf(flags.Lookup("turns")); from == byDefault && o.compare == "" {
		o.Turns = 1
	}
	if o.quick {
		o.Budget = quickBudget
		for name, value := range quick {
			f := flags.Lookup(name)
			if from, _ := sourceOf(f); from == byDefault && (name != "turns" || o.Turns > value) {
				must(f.Value.Set(strconv.Itoa(value)))
			}
		}
	}
	for name, pids := range map[string][]int{"pid": o.pids, "compare-pid": o.comparePIDs} {
		for _, pid := range pids {
			if pid < 1 {
				return badFlag(flags, name, "%d is not the id of a process", pid)
			}
		}
	}
	if o.dialer, err = o.tls.dialer(flags); err != nil {
		return err
	}
	first, err := o.target(addrs, o.pids)
	if err != nil {
		return usageError{err}
	}
	o.Targets = append(o.Targets, first)
	if o.compare == "" {
		if len(o.comparePIDs) > 0 {
			return badFlag(flags, "compare-pid", "it needs --compare")
		}
		return nil
	}
	second, err := o.target(o.compare, o.comparePIDs)
	if err != nil {
		return badFlag(flags, "compare", "%w", err)
	}
	o.Targets = append(o.Targets, second)
	return nil
}

func (o *benchOptions) target(addrs string, pids []int) (*bench.Target, error) {
	servers, chroot, err := parseServers(addrs)
	if err != nil {
		return nil, err
	}
	t := &bench.Target{Name: addrs, Addrs: servers, Chroot: chroot, PIDs: pids}
	t.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		return o.dialer.DialContext(ctx, "tcp", addr)
	}
	if o.restart != "" {
		t.Restart = func(ctx context.Context) ([]int, error) { return restartBy(ctx, o.restart, addrs) }
	}
	if o.kill != "" {
		t.Kill = func(ctx context.Context, addr string) ([]int, error) { return restartBy(ctx, o.kill, addr) }
	}
	return t, nil
}

// restartBy runs the user's command and returns the process ids that it prints, if any.
func restartBy(ctx context.Context, command, addrs string) (pids []int, err error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "ENDPOINT="+addrs)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // the server may keep the output open
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		text, _ := io.ReadAll(io.LimitReader(&errs, 500))
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	for word := range strings.FieldsSeq(out.String()) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("the command printed %q, which is not a process id", word)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
