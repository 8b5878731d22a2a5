package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/internal/tools/lockscan"
	"github.com/lockkeeper/lockkeeper/internal/tools/procgroup"
	"github.com/lockkeeper/lockkeeper/lock"
)

// Exit codes of lock run, where possible those of timeout(1).
const (
	exitLost     = 123 // the lock was lost, and the command was ended for that reason
	exitNotHeld  = 124 // the lock was not free in time
	exitNoRun    = 125 // lock run itself failed
	exitNoExec   = 126 // the command cannot be executed
	exitNotFound = 127
	exitSignal   = 128 // plus the number of the signal
)

type runOptions struct {
	*lockOptions
	wait, connect, session, grace time.Duration
	try, shared, verbose, quiet   bool
	slots                         int
}

func (o *lockOptions) runCommand() *cobra.Command {
	r := &runOptions{lockOptions: o}
	c := &cobra.Command{
		Use: "run [flags] PATH -- CMD ...",

		DisableFlagsInUseLine: true,
		Short:                 "Run a command while holding a lock",
		Long: `Wait for the lock at PATH, run CMD while holding it, and return CMD's exit code.
Clients of go-zookeeper and of Curator's mutex can use the same lock, and with --slots
those of Curator's semaphore. With --shared, CMD may run at the same time as others that
use --shared or hold Curator's read/write lock for reading, but never at the same time as
a writer. Do not use 'lock run' without --shared on the path of Curator's read/write
lock, whose clients do not see a mutex.

CMD is found and executed as by a shell, so a script needs no #!. It inherits the file
descriptors that 'lock run' was started with, such as 3 after 3>out, and the signals that were
ignored (other than HUP and INT on Linux only). It runs in a process group of its own. Its
environment has

  LOCKKEEPER_PATH     the path of the lock
  LOCKKEEPER_TOKEN    the fencing token, a decimal number, greater than those of all
                      earlier holders; give it to what the lock protects, which should
                      refuse smaller ones
  LOCKKEEPER_SESSION  the id of the session

The signals HUP, INT, QUIT, TERM, USR1, USR2 and ALRM are passed on to the group. When CMD
ends, the lock is released; what CMD has left running in the background goes on without it.

If 'lock run' is in the foreground of a terminal, CMD's group gets the terminal until CMD
ends, so CMD can ask for a password, and Ctrl-C goes to it. In a pipeline CMD gets the
terminal when it first needs it. Ctrl-Z stops 'lock run' as well, and unless both go on
soon, the watchdog ends CMD.

The lock is lost if no server answers for two thirds of the session timeout. Then the
whole group gets TERM, and KILL after --grace, or earlier if the session could end. So it
is ended before another client can hold the lock. Only processes that leave the group, or
that this user may not signal, escape. The lock is also lost if someone deletes its znode,
but then another client may hold it at once.

A second process, the watchdog, kills the group in time if 'lock run' itself is killed, or
stopped for too long. If the watchdog is ended, or stopped for too long, the group is
killed as well. On Windows a job object takes its place, but does nothing while 'lock run'
is suspended.

The exit code is that of CMD, or

    2  the command line is wrong
  123  the lock was lost before CMD ended, or CMD was ended because of that
  124  the lock was not free in time (--try, --timeout)
  125  the lock could not be taken for another reason
  126  CMD cannot be executed
  127  CMD was not found
  128  plus the number of a signal that ended CMD, or 'lock run' while it waited`,
		Example: `  lockkeeper lock run /locks/backup -- backup.sh
  lockkeeper lock run --try /locks/cron/report -- make report
  lockkeeper lock run --slots 3 --timeout 10m /locks/upload -- sh -c 'upload --token $LOCKKEEPER_TOKEN'`,
		Args: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("lock run takes a path, --, and a command, such as: lock run /locks/backup -- backup.sh")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return r.run(c, args[0], args[1:]) },
	}
	group(c.Flags(), "Waiting", func(f *pflag.FlagSet) {
		f.BoolVar(&r.try, "try", false, "do not wait if another client holds the lock")
		f.DurationVar(&r.wait, "timeout", 0, "how long to wait for the lock; 0 means no limit")
		f.BoolVarP(&r.verbose, "verbose", "v", false, "say when the lock is taken, even if it was free")
		f.BoolVarP(&r.quiet, "quiet", "q", false, "write nothing but what CMD writes, except if the command line is wrong or CMD cannot be executed; the exit code says what has happened")
		f.DurationVar(&r.connect, "connect-timeout", 15*time.Second, "how long to wait for the first session")
	})
	group(c.Flags(), "The lock", func(f *pflag.FlagSet) {
		f.BoolVar(&r.shared, "shared", false, "take a read/write lock for reading, together with others")
		f.IntVar(&r.slots, "slots", 0, "use a semaphore that `N` clients can hold; all must give the same number")
		f.DurationVar(&r.session, "session-timeout", 10*time.Second, "how long after the last sign of life the server releases the lock; servers grant between 2 and 20 of their ticks")
		f.DurationVar(&r.grace, "grace", 5*time.Second, "the longest time between TERM and KILL if the lock is lost; it is never more than what is left of the session")
	})
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		err = flagError(c, err)
		if c.ArgsLenAtDash() < 0 {
			err = fmt.Errorf("%w; the flags of CMD come after --", err)
		}
		return err
	})
	return c
}

// watchdogCommand is the watchdog of lock run's process group. Its argument says whether it is quiet.
func watchdogCommand() *cobra.Command {
	return &cobra.Command{
		Use: watchdogName, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			beQuiet(c, args[0])
			switch fate := procgroup.Watchdog(c.InOrStdin()); fate {
			case procgroup.Dismissed:
				return nil
			case procgroup.Paused: // lock run says it, unless it is gone as well
				return &exitError{int(fate), nil}
			default:
				return &exitError{int(fate), errors.New("ended the command, since " + fates[fate])}
			}
		},
	}
}

// fates says why a watchdog has ended the command, or why lock run has when it had none any more.
var fates = map[procgroup.Fate]string{
	procgroup.Orphaned: "lock run has ended",
	procgroup.Unheard:  "lock run did not say in time that the lock was still held: it was stopped, or the machine was busy",
	procgroup.Paused:   "its watchdog, a second process, did not run in time to learn that the lock was still held: it was stopped, or the machine was busy or suspended",
	procgroup.Died:     "its watchdog, a second process, was ended, and nothing else ends the command in time if lock run is stopped",
}

// becomeCommand is the process of lock run's command before it executes it.
func becomeCommand() *cobra.Command {
	return &cobra.Command{
		Use: becomeName, Hidden: true, DisableFlagParsing: true, Args: cobra.MinimumNArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := procgroup.Become(args); err != nil {
				return cannotRun(err)
			}
			return nil
		},
	}
}

// beQuiet keeps the errors of c to itself if quiet is "true".
func beQuiet(c *cobra.Command, quiet string) {
	if quiet == "true" {
		c.SetErr(io.Discard)
	}
}

const watchdogName, becomeName = "watchdog-of-run", "become-command-of-run"

func (o *runOptions) check(flags *pflag.FlagSet) error {
	for name, d := range map[string]time.Duration{"timeout": o.wait, "grace": o.grace} {
		if d < 0 {
			return badFlag(flags, name, "it must not be negative")
		}
	}
	if err := needPositive(flags, "connect-timeout"); err != nil {
		return err
	}
	switch {
	case o.quiet && o.verbose:
		return badFlag(flags, "quiet", "not together with --verbose")
	case o.try && o.wait > 0:
		return badFlag(flags, "timeout", "not together with --try")
	case o.slots < 0:
		return badFlag(flags, "slots", "it must not be negative")
	case o.shared && o.slots > 0:
		return badFlag(flags, "slots", "not together with --shared")
	case o.session < time.Second || o.session > time.Hour:
		return badFlag(flags, "session-timeout", "%v is not between 1s and 1h", o.session)
	}
	return nil
}

// run holds the lock at a path while a command runs.
func (o *runOptions) run(c *cobra.Command, at string, command []string) error {
	if err := lockPath(at); err != nil {
		return err
	}
	if at == "/" {
		return usageError{errors.New("/ cannot be a lock")}
	}
	if err := o.check(c.Flags()); err != nil {
		return err
	}
	to, err := o.target(c.Flags())
	if err != nil {
		return err
	}
	file, err := procgroup.LookPath(command[0])
	if err != nil {
		return cannotRun(err)
	}
	stderr := c.ErrOrStderr()
	beQuiet(c, strconv.FormatBool(o.quiet))
	cmd := exec.Command(file)
	cmd.Args = command
	cmd.Stdout, cmd.Stderr = c.OutOrStdout(), stderr
	if file := asFile(c.OutOrStdout()); file != nil { // the command writes to it itself
		cmd.Stdout = file
	}
	cmd.Stdin = os.Stdin
	procgroup.KeepIgnoring()
	signals := make(chan os.Signal, 16)
	for _, s := range procgroup.Forwarded {
		if !signal.Ignored(s) { // as nohup wants it
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)

	r := newLockRun(o, at)
	r.to, r.stderr, r.signals = to, c.ErrOrStderr(), signals
	r.dialer.Base, r.to.options.Dial = saysWhy(to.options.Dialer.DialTimeout, to.options.Dialer, r.stderr, o.connect, "connect-timeout"), r.dial
	if err := r.open(); err != nil {
		return err
	}
	defer r.conn.Close()
	held, err := r.take()
	if err != nil {
		return err
	}
	return r.hold(held, cmd)
}

// cannotRun returns the error for a command that cannot be started.
func cannotRun(err error) error {
	code := exitNoExec
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &exitError{code, err}
}

type lockRun struct {
	o       *runOptions
	at      string
	to      target
	stderr  io.Writer
	signals <-chan os.Signal
	clock   *sleepClock
	dialer  lock.Dialer
	conn    *zk.Conn
	changed wake.Signal // a server has granted less than before

	mu      sync.Mutex
	dialed  time.Duration       // when the newest connection was begun, on the clock of procgroup
	timeout time.Duration       // of the session, as granted last
	held    *lock.Held          // nil before the command starts
	until   time.Duration       // until when the command may run, on the clock of procgroup
	tell    func(time.Duration) // tells the watchdog until
}

// newLockRun returns a lockRun that has no session yet.
func newLockRun(o *runOptions, at string) *lockRun {
	r := &lockRun{o: o, at: at, clock: newSleepClock(), changed: wake.NewSignal()}
	r.dialer.OnGrant = r.granted
	return r
}

func (r *lockRun) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	r.mu.Lock()
	r.dialed = procgroup.Now()
	r.mu.Unlock()
	return r.dialer.Dial(network, address, timeout)
}

// granted tells the watchdog at once when a server has granted less than before.
func (r *lockRun) granted(_ int64, timeout time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	less := timeout < r.timeout
	r.timeout = timeout
	if r.held == nil || !less {
		return
	}
	until, ok := r.trust(r.held)
	if !ok {
		// The lock may be lost, but the session lives for the timeout from the handshake on.
		until = r.dialed + afterLoss(timeout)
	}
	if until < r.until {
		r.until = until
		r.tell(until)
	}
	r.changed.Raise()
}

// ended is the error for a signal that ends lock run while it waits.
func ended(s os.Signal) error {
	code := exitSignal
	if number, ok := s.(syscall.Signal); ok {
		code += int(number)
	}
	return &exitError{code, nil}
}

func (r *lockRun) open() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.o.connect)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.conn, err = lockscan.Connect(ctx, r.to.servers, r.o.session, r.to.options)
	}()
	select {
	case <-done:
		if err != nil {
			return &exitError{exitNoRun, err}
		}
		return nil
	case s := <-r.signals:
		cancel()
		if <-done; r.conn != nil {
			r.conn.Close()
		}
		return ended(s)
	}
}

// lockKind returns how to take the lock: waiting for it, or not.
func (r *lockRun) lockKind() func(ctx context.Context) (*lock.Held, error) {
	host, _ := os.Hostname()
	self := fmt.Sprintf("%s pid %d", host, os.Getpid())
	options, at := []lock.Option{lock.WithDialer(&r.dialer), lock.WithData([]byte(self))}, r.to.chroot+r.at
	var wait, once func(context.Context) (*lock.Held, error)
	switch {
	case r.o.shared:
		m := lock.NewRWMutex(r.conn, at, options...)
		wait, once = m.RLock, m.TryRLock
	case r.o.slots > 0:
		m := lock.NewSemaphore(r.conn, at, r.o.slots, options...)
		wait, once = m.Lock, m.TryLock
	default:
		m := lock.NewMutex(r.conn, at, options...)
		wait, once = m.Lock, m.TryLock
	}
	if r.o.try {
		return once
	}
	return wait
}

const (
	lookFirst = 300 * time.Millisecond // how long lock run has waited when it first says who holds the lock
	lookAgain = 30 * time.Second       // how often it looks whether that has changed
)

func (r *lockRun) take() (*lock.Held, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if r.o.wait > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), r.o.wait)
	}
	defer cancel()
	var held *lock.Held
	var err error
	done := make(chan struct{})
	acquire := r.lockKind()
	go func() {
		defer close(done)
		held, err = acquire(ctx)
	}()
	said, began := "", time.Now()
	looked := make(chan string, 1)
	look := time.NewTimer(lookFirst)
	defer look.Stop()
	for {
		select {
		case <-done:
			switch {
			case errors.Is(err, lock.ErrBusy):
				return nil, &exitError{exitNotHeld, fmt.Errorf("%s is held by another client%s", r.at, r.odd())}
			case errors.Is(err, context.DeadlineExceeded):
				return nil, &exitError{exitNotHeld, fmt.Errorf("%s was not free within %v%s", r.at, r.o.wait, r.odd())}
			case err != nil:
				return nil, &exitError{exitNoRun, err}
			}
			if said != "" || r.o.verbose {
				fmt.Fprintf(r.stderr, "lockkeeper: %s taken after %v, token %d\n", r.at, time.Since(began).Round(100*time.Millisecond), held.Token())
			}
			return held, nil
		case <-look.C:
			go func() { looked <- r.holders() }() // ends with the connection at the latest
		case text := <-looked:
			if text != "" && text != said {
				fmt.Fprintf(r.stderr, "lockkeeper: waiting for %s\n", text)
				said = text
			}
			look.Reset(lookAgain)
		case s := <-r.signals:
			return nil, ended(s)
		}
	}
}

// queue returns the queue of the lock, or nil if another client does not hold it.
func (r *lockRun) queue(ctx context.Context) (*look, *locks.Lock) {
	s := lockscan.On(r.conn, r.to.chroot)
	if err := s.Scan(ctx, r.at, false); err != nil {
		return nil, nil
	}
	for _, l := range s.Locks(false) {
		if l.Path == r.at && len(l.Holders) > 0 && l.Holders[0].Session != r.conn.SessionID() {
			s.Describe(ctx, []locks.Lock{l}) // without it, the data is not said
			return &look{Scanner: s, servers: r.to.servers, dialer: r.to.options.Dialer}, &l
		}
	}
	return nil, nil
}

// odd says after an error if the first of the queue is something odd.
func (r *lockRun) odd() string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, l := r.queue(ctx); l != nil && l.Holders[0].Odd() != "" {
		return fmt.Sprintf("; first in its queue is %s: %s", path.Base(l.Holders[0].Path), l.Holders[0].Odd())
	}
	return ""
}

// holders says who holds the lock, or nothing.
func (r *lockRun) holders() string {
	own := r.conn.SessionID()
	look, l := r.queue(context.Background())
	if l == nil {
		return ""
	}
	h := &l.Holders[0]
	look.ask(context.Background(), "cons")
	text := fmt.Sprintf("%s: %s has held it, or waited for it, since %s, token %d", r.at, look.who(h), clock(h.Since), h.Token)
	if why := h.Odd(); why != "" {
		of := ""
		if h.Session != 0 {
			of = ", of " + look.who(h)
		}
		text = fmt.Sprintf("%s: first in its queue is %s%s, since %s: %s", r.at, path.Base(h.Path), of, clock(h.Since), why)
	}
	if n := len(l.Holders) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more with it", n)
	}
	ahead := slices.IndexFunc(l.Queue, func(c locks.Contender) bool { return c.Session == own })
	if ahead < 0 {
		ahead = len(l.Queue)
	}
	if ahead > 0 {
		text += fmt.Sprintf("; %d more wait before this command", ahead)
	}
	return text
}

// margin is how much of the last third of the session is left to the server: a leader that
// has been replaced may answer for up to 300 ms (docs/reliability.md), and KILL takes a
// moment. That there is a whole third holds for lockkeeper's servers (docs/lock.md).
func margin(timeout time.Duration) time.Duration {
	return max(400*time.Millisecond, timing.Ask(timeout))
}

// afterLoss returns how much time is left to end the group when the lock is lost.
func afterLoss(timeout time.Duration) time.Duration {
	return max(0, timeout/3-margin(timeout))
}

// trust returns until when the command may run if no server answers any more, on the clock of
// procgroup. It returns false if nothing new is known. The caller holds mu, except in tests.
func (r *lockRun) trust(held *lock.Held) (until time.Duration, ok bool) {
	// The clock is read first: if this process is stopped in between, the result is too early
	// and not too late.
	now, woke := procgroup.Now(), r.clock.woke()
	awake := time.Since(woke)
	timeout := r.dialer.SessionTimeout()
	left := held.Remaining()
	if left <= 0 {
		return 0, false
	}
	if timeout != r.dialer.SessionTimeout() {
		return 0, false // left may belong to either; granted is about to be called
	}
	// While the machine was suspended, Remaining did not count. So the last answered request
	// must have been sent since then.
	if !woke.IsZero() && awake+left <= timing.Believed(timeout) {
		return 0, false
	}
	return now + left + afterLoss(timeout), true
}

// sleepClock finds out whether the machine was suspended.
type sleepClock struct {
	began time.Time
	start time.Duration // began on the clock of procgroup, which goes on then, unlike that of package time
	slept time.Duration // since then
	last  time.Time     // when that was last seen to have grown
}

func newSleepClock() *sleepClock {
	return &sleepClock{start: procgroup.Now(), began: time.Now()}
}

// woke returns a time after the machine last woke up, or the zero time.
func (c *sleepClock) woke() time.Time {
	const little = 20 * time.Millisecond // margin has room for it
	if slept := procgroup.Now() - c.start - time.Since(c.began); slept > c.slept+little {
		c.slept, c.last = slept, time.Now()
	}
	return c.last
}

func (r *lockRun) hold(held *lock.Held, cmd *exec.Cmd) error {
	cmd.Env = append(os.Environ(), "LOCKKEEPER_PATH="+r.at, "LOCKKEEPER_TOKEN="+strconv.FormatInt(held.Token(), 10), "LOCKKEEPER_SESSION="+locks.ID(held.Session()))
	g, err := r.start(held, cmd)
	if err != nil {
		why := held.Err()
		r.release(held)
		if why != nil {
			return &exitError{exitLost, why}
		}
		return cannotRun(err)
	}
	defer g.Release()
	tick := time.NewTimer(r.interval())
	defer tick.Stop()
	for {
		select {
		case <-g.Done():
			return r.finish(held, g)
		case <-g.Unwatched():
			return r.unwatched(held, g)
		case s := <-r.signals:
			g.Signal(s)
		case <-r.changed: // so that the next message is not late
			tick.Reset(r.interval())
		case <-tick.C:
			r.extend()
			tick.Reset(r.interval())
		case <-held.Lost():
			return r.lost(held, g)
		}
	}
}

// interval is how often the watchdog is told until when to trust the command.
func (r *lockRun) interval() time.Duration { return r.dialer.SessionTimeout() / 24 }

func (r *lockRun) start(held *lock.Held, cmd *exec.Cmd) (*procgroup.Group, error) {
	for {
		if why := held.Err(); why != nil {
			return nil, why
		}
		if g, ok, err := r.tryStart(held, cmd); ok {
			return g, err
		}
		time.Sleep(10 * time.Millisecond) // the machine was suspended, or the lock is lost already
	}
}

// tryStart starts the command if it is known until when to trust it. A server that grants a
// timeout meanwhile waits for its end.
func (r *lockRun) tryStart(held *lock.Held, cmd *exec.Cmd) (g *procgroup.Group, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.trust(held)
	if !ok {
		return nil, false, nil
	}
	quiet := strconv.FormatBool(r.o.quiet)
	g, err = procgroup.Start(cmd, []string{"lock", watchdogName, quiet}, []string{"lock", becomeName}, until)
	if err == nil {
		r.held, r.until, r.tell = held, until, g.Trust
	}
	return g, true, err
}

// extend tells the watchdog until when to trust the command, if that is known.
func (r *lockRun) extend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until, ok := r.trust(r.held); ok {
		r.until = until
		r.tell(until)
	}
}

// trusted returns until when the command may run.
func (r *lockRun) trusted() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until
}

// finish ends lock run when the command has ended.
func (r *lockRun) finish(held *lock.Held, g *procgroup.Group) error {
	why := held.Err() // this process may have been stopped for a while
	if why == nil && procgroup.Now() >= r.trusted() {
		why = errors.New("the machine was suspended, or lock run was stopped")
	}
	code, fate := g.ExitCode(), g.Release()
	switch err := r.release(held); {
	case why != nil:
		return &exitError{exitLost, fmt.Errorf("the command ended with exit code %d, but the lock is not held any more: %s", code, reason(why))}
	case fate != procgroup.Dismissed && fate != procgroup.Died:
		return &exitError{exitLost, errors.New("ended the command, since " + fates[fate])}
	case err != nil:
		fmt.Fprintf(r.stderr, "lockkeeper: the command has ended, but the lock may be released only with its session: %s\n", oneLine(err))
	}
	if code != 0 {
		return &exitError{code, nil}
	}
	return nil
}

// unwatched ends lock run, and the command, when the watchdog has ended.
func (r *lockRun) unwatched(held *lock.Held, g *procgroup.Group) error {
	g.Kill() // with TERM first, a stopped lock run could not end what goes on
	<-g.Done()
	if g.Release() != procgroup.Died {
		return r.finish(held, g)
	}
	r.release(held)
	return &exitError{exitLost, errors.New("ended the command, since " + fates[procgroup.Died])}
}

// lost ends the group, in time before the watchdog does it.
func (r *lockRun) lost(held *lock.Held, g *procgroup.Group) error {
	grace := min(r.o.grace, r.trusted()-procgroup.Now()-50*time.Millisecond)
	if grace > 0 {
		g.Terminate()
		for end := time.Now().Add(grace); time.Now().Before(end) && !g.Empty() && !wake.Closed(g.Unwatched()); {
			time.Sleep(10 * time.Millisecond) // nothing reports the end of the last process
		}
	}
	g.Kill()
	<-g.Done()
	why := held.Err()
	r.release(held)
	return &exitError{exitLost, fmt.Errorf("ended the command, since the lock is not held any more: %s", reason(why))}
}

// reason returns why a lock was lost, without the text of ErrLost itself.
func reason(why error) string { return strings.TrimPrefix(why.Error(), lock.ErrLost.Error()+": ") }

// release unlocks, but does not wait for a server for long: the session, which ends with
// the process, releases the lock as well.
func (r *lockRun) release(held *lock.Held) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return held.Unlock(ctx)
}
