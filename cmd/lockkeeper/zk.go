package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
)

type zkOptions struct {
	servers  string
	timeout  time.Duration
	readOnly bool
	auth     []string
	json     bool
	tls      clientTLS
}

func zkCommand() *cobra.Command {
	var o zkOptions
	c := &cobra.Command{
		Use:   "zk [COMMAND ...]",
		Short: "Execute commands of ZooKeeper's zkCli on any server, or start a shell for them",
		Long: `Execute a command of ZooKeeper's shell, zkCli, on any server that speaks ZooKeeper's
protocol, with the options, output and exit codes of ZooKeeper 3.9. Without a
command, read commands from standard input; on a terminal with completion of
commands and paths, history and colours.

` + zkCommands() + `

'lockkeeper zk help COMMAND' explains a command. Flags of zk come before the
command, options of the command after it.`,
		Example: `  lockkeeper zk ls -R /
  lockkeeper zk --server a:2181,b:2181/app create -s /job- data

  # To another cluster
  lockkeeper zk --server a:2181 export app.znodes /app
  lockkeeper zk --server b:2181 import app.znodes

  # A shell
  lockkeeper zk --auth digest:user:password`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			for _, c := range zkshell.Commands() {
				names = append(names, cobra.CompletionWithDesc(c.Name, c.Does))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	all := c.Flags()
	all.SetInterspersed(false)
	group(all, "Connection", func(f *pflag.FlagSet) {
		f.StringVar(&o.servers, "server", "127.0.0.1:2181", "client ports of a server or a cluster, "+serverUsage+"; paths are below PATH")
		f.DurationVar(&o.timeout, "timeout", 30*time.Second, "timeout of the session")
		f.BoolVar(&o.readOnly, "read-only", false, "accept a server that is cut off from the majority")
		f.StringArrayVar(&o.auth, "auth", nil, "identity to prove, `SCHEME:AUTH`, such as digest:user:password; can be repeated")
		o.tls.define(f)
	})
	group(all, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, "print a JSON object for each result, error and event")
	})
	return c
}

// zkCommands lists the commands by name, in lines of a common width.
func zkCommands() string {
	var b strings.Builder
	for _, c := range zkshell.Commands() {
		fmt.Fprintf(&b, "  %-21s %s\n", c.Name, c.Does)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (o *zkOptions) config(c *cobra.Command) (zkshell.Config, error) {
	flags, stdout, stderr := c.Flags(), c.OutOrStdout(), c.ErrOrStderr()
	cfg := zkshell.Config{
		Servers: o.servers, Timeout: o.timeout, ReadOnly: o.readOnly, JSON: o.json, Version: lockkeeper.Version,
		Stdout: stdout, Stderr: stderr, Visible: isTerminal(stdout),
		Color: isTerminal(stdout) && isTerminal(stderr) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
	}
	for _, a := range o.auth {
		scheme, auth, ok := strings.Cut(a, ":")
		if !ok {
			return cfg, badFlag(flags, "auth", "%q is not SCHEME:AUTH", a)
		}
		cfg.Auth = append(cfg.Auth, zkshell.Auth{Scheme: scheme, Auth: []byte(auth)})
	}
	if o.timeout < time.Millisecond || o.timeout.Milliseconds() > 1<<31-1 {
		return cfg, badFlag(flags, "timeout", "%v is not between 1ms and 596h", o.timeout)
	}
	if shown := (&progress{w: stderr, terminal: isTerminal(stderr)}); shown.terminal && !o.json {
		cfg.Progress = func(line string) {
			if line == "" {
				shown.clear()
			} else {
				shown.show(line, true)
			}
		}
	}
	if _, _, err := serversIn(flags, "server"); err != nil {
		return cfg, err
	}
	dialer, err := o.tls.dialer(flags)
	if err == nil {
		cfg.Dial, cfg.Explain = dialer.DialContext, dialer.Explain
	}
	return cfg, err
}

// run executes the command in args, or starts a shell.
func (o *zkOptions) run(c *cobra.Command, args []string) error {
	cfg, err := o.config(c)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	cfg.Command = func(ctx context.Context) (context.Context, context.CancelFunc) {
		return signal.NotifyContext(ctx, os.Interrupt)
	}
	shell := zkshell.New(cfg)
	exit := 0
	in, isFile := c.InOrStdin().(*os.File)
	out := asFile(c.OutOrStdout())
	switch {
	case len(args) > 0:
		exit = shell.Once(ctx, args)
	case isFile && out != nil && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) && !o.json:
		exit, err = shell.Interactive(ctx, in, out)
	default:
		exit = shell.Run(ctx, c.InOrStdin())
	}
	if err == nil && exit != 0 {
		err = &exitError{exit, nil}
	}
	return err
}
