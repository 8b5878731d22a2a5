package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/lockscan"
	"github.com/lockkeeper/lockkeeper/znode"
)

type lockOptions struct {
	servers, auth string
	tls           clientTLS

	// Of those that look at locks:
	json, all bool
	timeout   time.Duration
}

func lockCommand() *cobra.Command {
	var o lockOptions
	c := &cobra.Command{
		Use:   "lock COMMAND",
		Short: "Run a command under a lock; show, check and break locks",
		Long: `Run a command under a lock, and show, check and break the locks of other clients.
This works with every server that speaks ZooKeeper's protocol. Locks of
go-zookeeper, Curator (mutex, read/write lock, semaphore, leader latch and
selector), kazoo (lock, read/write lock, semaphore, election) and package lock are
recognised by the names of their znodes.`,
		Example: `  lockkeeper lock ls
  lockkeeper lock check --server a:2181,b:2181,c:2181`,
	}
	group(c.PersistentFlags(), "Servers", func(f *pflag.FlagSet) {
		f.StringVar(&o.servers, "server", "127.0.0.1:2181", "client ports of the servers, "+serverUsage+"; locks are below PATH")
		f.StringVar(&o.auth, "auth", "", "identify with a scheme of ZooKeeper's ACLs, as `SCHEME:IDENTITY`, for example digest:user:password")
		o.tls.define(f)
	})
	c.AddCommand(o.runCommand(), o.lsCommand(), o.checkCommand(), o.breakCommand(), watchdogCommand(), becomeCommand())
	return c
}

// looks defines the flags of a command that looks at locks.
func (o *lockOptions) looks(c *cobra.Command) {
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for the servers")
}

// identify returns what sends the identity of --auth, nil if there is none.
func (o *lockOptions) identify(flags *pflag.FlagSet) (func(*zk.Conn) error, error) {
	if o.auth == "" {
		return nil, nil
	}
	scheme, identity, ok := strings.Cut(o.auth, ":")
	if !ok || scheme == "" {
		return nil, badFlag(flags, "auth", "it must be SCHEME:IDENTITY") // the value may be a password
	}
	return func(conn *zk.Conn) error {
		if err := conn.AddAuth(scheme, []byte(identity)); err != nil {
			return fmt.Errorf("cannot identify by %s: %w", scheme, err)
		}
		return nil
	}, nil
}

func lockPath(at string) error {
	if !znode.ValidPath(at) {
		return usageError{fmt.Errorf("%q is not the path of a znode, such as /locks/backup", at)}
	}
	return nil
}

type look struct {
	*lockscan.Scanner
	servers []string
	dialer  *connect.Dialer
	words   *lockscan.Words
}

func (s *look) ask(ctx context.Context, words ...string) {
	s.words = lockscan.Ask(ctx, s.dialer, s.servers, words...)
}

// target is where the flags say that the locks are.
type target struct {
	servers []string
	chroot  string
	options lockscan.Options
}

func (o *lockOptions) target(flags *pflag.FlagSet) (t target, err error) {
	if t.servers, t.chroot, err = serversIn(flags, "server"); err != nil {
		return t, err
	}
	if t.options.Auth, err = o.identify(flags); err != nil {
		return t, err
	}
	t.options.Dialer, err = o.tls.dialer(flags)
	return t, err
}

// open connects to the servers. If that takes long, it says on stderr why.
func (o *lockOptions) open(ctx context.Context, flags *pflag.FlagSet, stderr io.Writer) (*look, error) {
	t, err := o.target(flags)
	if err != nil {
		return nil, err
	}
	t.options.Dial = saysWhy(t.options.Dialer.DialTimeout, t.options.Dialer, stderr, o.timeout, "timeout")
	s, err := lockscan.Start(ctx, t.servers, t.chroot, t.options)
	if err != nil {
		return nil, err
	}
	return &look{Scanner: s, servers: t.servers, dialer: t.options.Dialer}, nil
}

// waited explains why a command ends when ctx has ended.
func (o *lockOptions) waited(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("no answer from %s within %v (--timeout): %w", o.servers, o.timeout, err)
	}
	return errors.New("interrupted")
}

func (o *lockOptions) breakCommand() *cobra.Command {
	var yes bool
	var token int64
	c := &cobra.Command{
		Use:   "break PATH",
		Short: "Take a lock away from its holder",
		Long: `Take a lock away from its holder, by deleting the holder's znode. The next one in
the queue then gets the lock.

The holder is not stopped. Unless its library notices that the znode is gone, it goes
on believing that it holds the lock, so two programs may use what the lock protects
at the same time. That is safe only if the holder is certainly not running any more,
or if what the lock protects refuses the holder's token.

PATH is the lock, or the znode of one session in its queue, as 'lockkeeper lock ls
--json' shows them. The command says what it will do, and asks for confirmation on
standard input. The exit code is 1 if the lock was not broken.`,
		Example: "  lockkeeper lock break /locks/report\n  lockkeeper lock break --yes --token 4294967301 /locks/report",
		Args:    takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := needPositive(c.Flags(), "timeout"); err != nil {
				return err
			}
			if token < 0 {
				return badFlag(c.Flags(), "token", "it must not be negative")
			}
			return o.breakLock(c, args[0], yes, token)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().Int64Var(&token, "token", 0, "break the lock only if the holder has this fencing token; needed if several sessions hold the lock")
	c.Flags().DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for the servers")
	return c
}

// rootOf returns the path below which to look.
func rootOf(args []string) string {
	if len(args) == 0 {
		return "/"
	}
	return args[0]
}

func (o *lockOptions) breakLock(c *cobra.Command, at string, yes bool, token int64) error {
	if err := lockPath(at); err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	// The time that the user takes to answer does not count.
	connecting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, err := o.open(connecting, c.Flags(), c.ErrOrStderr())
	if err != nil {
		return o.waited(connecting, err)
	}
	defer s.Close()
	l, victim, err := s.victim(connecting, at, token)
	if err != nil {
		return o.waited(connecting, err)
	}
	s.ask(connecting, "cons")
	out := c.OutOrStdout()
	does := "waits for"
	if l.Holds(victim) {
		does = "holds"
	}
	fmt.Fprintf(out, "This deletes %s, version %d,\n  by which %s %s %s, with token %d, since %s.\n", victim.Path, victim.Version, s.who(victim),
		does, l.Path, victim.Token, clock(victim.Since))
	if !l.Holds(victim) {
		fmt.Fprintln(out, "The session loses its place in the queue. Its client may wait forever.")
	} else {
		if len(l.Queue) > 0 {
			fmt.Fprintf(out, "Next in the queue is %s.\n", s.who(&l.Queue[0]))
		} else {
			fmt.Fprintln(out, "Nobody waits for the lock.")
		}
		fmt.Fprintln(out, "The holder is not stopped: it goes on believing that it holds the lock, and what the\nlock protects is safe only if it refuses this token from now on.")
	}
	if written, ok := out.(*output); ok && written.Err() != nil {
		return fmt.Errorf("nothing was deleted: %w", written.Err())
	}
	if !yes {
		if err := confirm(ctx, c.InOrStdin(), out, "Break it? Type yes: ", "deleted"); err != nil {
			return err
		}
	}
	switch err := s.Conn().Delete(s.Full(victim.Path), victim.Version); {
	case errors.Is(err, zk.ErrNoNode):
		return fmt.Errorf("nothing was deleted: %s was released in the meantime", victim.Path)
	case errors.Is(err, zk.ErrBadVersion):
		return fmt.Errorf("nothing was deleted: the data of %s was changed in the meantime", victim.Path)
	case err != nil:
		return fmt.Errorf("cannot delete %s: %w", victim.Path, err)
	}
	fmt.Fprintf(out, "Deleted %s.\n", victim.Path)
	return nil
}

// confirm asks the user, and returns an error if the answer is not yes: nothing was done, which is a participle.
func confirm(ctx context.Context, in io.Reader, out io.Writer, question, done string) error {
	fmt.Fprint(out, question)
	answer := make(chan string, 1)
	go func() { // which stays until the process ends if nobody answers
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("interrupted; nothing was %s", done)
	case line := <-answer:
		if strings.TrimSpace(line) == "yes" {
			return nil
		}
		if !strings.HasSuffix(line, "\n") {
			fmt.Fprintln(out)
		}
	}
	return fmt.Errorf("nothing was %s, since the answer was not yes", done)
}

// victim finds the entry to delete: that of the holder of the lock at, or that with the path
// at.
func (s *look) victim(ctx context.Context, at string, token int64) (*locks.Lock, *locks.Contender, error) {
	if err := s.Scan(ctx, at, false); err != nil {
		return nil, nil, err
	}
	found, err := s.described(ctx, true)
	if err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(found, func(l locks.Lock) bool { return l.Path == at }); i >= 0 {
		c, err := holder(&found[i], token)
		return &found[i], c, err
	}
	dir := path.Dir(at)
	switch base := path.Base(dir); {
	case base == "leases" || base == "locks": // it may belong to a semaphore
		dir = path.Dir(dir)
	case base != locks.KazooQueue:
		dir = strings.TrimSuffix(dir, locks.KazooQueue)
	}
	if locks.Interesting(path.Base(at)) {
		if err := s.Scan(ctx, dir, false); err != nil {
			return nil, nil, err
		}
		for _, l := range s.Locks(true) {
			for _, c := range l.All() {
				if c.Path == at && (token == 0 || c.Token == token) {
					return &l, &c, nil
				}
			}
		}
	}
	return nil, nil, fmt.Errorf("nobody holds a lock at %s", at)
}

// holder returns the holder with a token. 0 stands for any, if there is only one.
func holder(l *locks.Lock, token int64) (*locks.Contender, error) {
	var those []locks.Contender
	var tokens []string
	for _, c := range l.Holders {
		if token == 0 || c.Token == token {
			those, tokens = append(those, c), append(tokens, fmt.Sprint(c.Token))
		}
	}
	switch {
	case len(those) == 0 && token != 0:
		return nil, fmt.Errorf("nobody holds %s with token %d", l.Path, token)
	case len(those) == 0:
		return nil, fmt.Errorf("nobody holds %s", l.Path)
	case len(those) > 1:
		return nil, usageError{fmt.Errorf("several sessions hold %s: choose one by --token %s", l.Path, strings.Join(tokens, " or "))}
	}
	return &those[0], nil
}

// who names the session of an entry, and its client if the servers or its data tell.
func (s *look) who(c *locks.Contender) string {
	if c.Session == 0 {
		return "nobody (the znode is not ephemeral)"
	}
	var about []string
	if client, ok := s.words.Clients[c.Session]; ok {
		about = append(about, "client "+client.Addr)
	}
	if c.Data != "" {
		about = append(about, "data "+c.Data)
	}
	if len(about) == 0 {
		return "session " + locks.ID(c.Session)
	}
	return fmt.Sprintf("session %s (%s)", locks.ID(c.Session), strings.Join(about, ", "))
}

// clock formats a time in ms since the epoch.
func clock(ms int64) string { return time.UnixMilli(ms).Format(timeFormat) }

const timeFormat = "2006-01-02T15:04:05.000Z07:00"
