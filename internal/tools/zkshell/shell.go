package zkshell

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config says what a Shell connects to and where it prints.
type Config struct {
	Servers  string        // HOST[:PORT],...[/CHROOT], as in zkCli
	Timeout  time.Duration // the session's timeout to ask for
	ReadOnly bool          // accept a server without a majority
	Auth     []Auth        // presented on every connection
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	// Explain finds out more about servers that cannot be used; see connect.Dialer.
	Explain func(ctx context.Context, why []error) []error

	Stdout, Stderr io.Writer
	JSON           bool   // print one JSON object for each result, error and event
	Color          bool   // use colours
	Visible        bool   // Stdout is a terminal: do not print control characters of znodes
	Version        string // of lockkeeper
	// Command returns the context of one command, which may be cancelled to end only this
	// command, as by SIGINT.
	Command func(ctx context.Context) (context.Context, context.CancelFunc)
	// Progress shows how far a long command is, in one line; "" removes the line. It may
	// be nil.
	Progress func(line string)
}

// Shell executes commands in one session. Its methods must not be called concurrently.
type Shell struct {
	cfg     Config
	servers string // of the last connect
	client  *client
	auths   []Auth
	oneShot bool

	history []string // the line of each command, by its number
	watches bool     // print events
	quit    bool

	mu       sync.Mutex // of what follows, which the client's goroutine uses too
	out, err io.Writer  // text of commands
	json     *json.Encoder
}

// New returns a shell, which must be connected next.
func New(cfg Config) *Shell {
	s := &Shell{cfg: cfg, auths: cfg.Auth, watches: true}
	s.print(cfg.Stdout, cfg.Stderr)
	return s
}

// print sets where the shell prints.
func (s *Shell) print(stdout, stderr io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out, s.err = stdout, stderr
	if s.cfg.JSON {
		s.json = json.NewEncoder(stdout)
		s.json.SetEscapeHTML(false)
		s.out = io.Discard
	}
}

// connect starts a session with other servers and ends the one before.
func (s *Shell) connect(ctx context.Context, servers string) error {
	s.Close(ctx)
	c, err := open(context.WithoutCancel(ctx), &s.cfg, servers, s.auths, s.event, s.noteOnce())
	if err != nil {
		return usage(err.Error())
	}
	s.client, s.servers = c, servers
	return nil
}

// noteOnce returns a function that prints an error unless it is the same as before.
func (s *Shell) noteOnce() func(error) {
	said := ""
	return func(err error) {
		if said != err.Error() {
			said = err.Error()
			s.note(s.color(red, said))
		}
	}
}

// Close ends the session and waits for its goroutine. It may be called more than once.
func (s *Shell) Close(ctx context.Context) {
	if s.client != nil {
		s.client.close(ctx)
	}
}

// event prints an event. The client calls it.
func (s *Shell) event(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.watches || s.oneShot && e.Type == "None":
	case s.json != nil:
		s.json.Encode(map[string]Event{"event": e})
	default:
		path := e.Path
		if e.Type == "None" {
			path = "null"
		}
		fmt.Fprintf(s.out, "\n%s\n", s.color(yellow, "WATCHER::"))
		fmt.Fprintf(s.out, "\n%s\n", s.color(yellow, fmt.Sprintf("WatchedEvent state:%s type:%s path:%s zxid: %d", e.State, e.Type, path, e.Zxid)))
	}
}

func (s *Shell) println(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, args...)
}

func (s *Shell) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(b)
}

// note prints a line on standard error.
func (s *Shell) note(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.err, args...)
}

// Colours, as escape sequences of terminals.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
)

func (s *Shell) color(c, text string) string {
	if !s.cfg.Color || text == "" {
		return text
	}
	return c + text + "\x1b[0m"
}

// Once connects, executes one command and ends the session. It returns the exit code.
// Unlike zkCli it prints nothing about the connection.
func (s *Shell) Once(ctx context.Context, words []string) int {
	s.oneShot = true
	ctx, stop := s.cfg.Command(ctx)
	defer stop()
	if c := find(words[0]); c != nil && c.local { // needs no server
		return s.execute(ctx, words)
	}
	if err := s.connect(ctx, s.cfg.Servers); err != nil {
		return s.report(err)
	}
	defer s.Close(context.WithoutCancel(ctx))
	return s.execute(ctx, words)
}

// Run connects and executes the lines of r until it ends or says quit. It returns the exit
// code, that of the last command.
func (s *Shell) Run(ctx context.Context, r io.Reader) int {
	if !s.welcome(ctx) {
		return exitFailed
	}
	defer s.Close(context.WithoutCancel(ctx))
	exit := exitOK
	lines := bufio.NewReader(r)
	for !s.quit && ctx.Err() == nil {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			exit = s.line(ctx, line, exit)
		}
		if err != nil {
			break
		}
	}
	return exit
}

// welcome connects. It reports false, with a message, if the servers are not valid.
func (s *Shell) welcome(ctx context.Context) bool {
	s.println("Connecting to " + s.cfg.Servers)
	if err := s.connect(ctx, s.cfg.Servers); err != nil {
		s.report(err)
		return false
	}
	s.println("Welcome to ZooKeeper!")
	return true
}

// line executes a line and returns the exit code. last is that of the command before, which
// quit keeps.
func (s *Shell) line(ctx context.Context, line string, last int) int {
	ctx, stop := s.cfg.Command(ctx)
	defer stop()
	s.history = append(s.history, line)
	if exit := s.execute(ctx, split(line)); !s.quit {
		return exit
	}
	return last
}

// report prints an error and returns the exit code for it.
func (s *Shell) report(err error) int {
	exit, fields := exitFailed, map[string]any{"error": err.Error()}
	if c := (*cliError)(nil); errors.As(err, &c) {
		if exit = c.exit; c.code != 0 {
			fields["code"] = int(c.code)
		}
	}
	s.note(s.color(red, err.Error()))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.json != nil {
		s.json.Encode(fields)
	}
	return exit
}

// execute executes a command and returns the exit code.
func (s *Shell) execute(ctx context.Context, words []string) int {
	result, err := s.process(ctx, words)
	if err != nil {
		return s.report(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.json != nil && result != nil {
		result["command"] = words[0]
		s.json.Encode(result)
	}
	return exitOK
}

// fields are what a command prints as a JSON object.
type fields map[string]any

// process executes a command (ZooKeeperMain.processZKCmd).
func (s *Shell) process(ctx context.Context, words []string) (fields, error) {
	if len(words) == 0 {
		s.usage()
		return nil, usage("No command entered")
	}
	c := find(words[0])
	if c == nil {
		s.usage()
		// zkCli says it twice.
		return nil, &cliError{text: "Command not found: Command not found " + words[0], exit: exitNotFound}
	}
	var result fields
	if c.shell != nil { // options mean nothing to these
		var err error
		if result, err = c.shell(s, ctx, words[1:]); err != nil || s.quit || c.local {
			return result, err
		}
	}
	if s.client == nil || !s.client.current().alive() {
		s.println("Not connected")
		return result, nil
	}
	if c.run == nil {
		return result, nil
	}
	p, err := c.parse(words[1:])
	if err == nil && c.retains && len(p.args) > 1 { // COMMAND path [watch]
		s.note(fmt.Sprintf("'%s path [watch]' has been deprecated. Please use '%s path' instead.", c.name, c.name+" "+c.watching))
		rest := slices.Clone(words[1:])
		rest[1] = "-w"
		p, err = c.parse(rest)
	}
	if err != nil {
		return nil, usage(err.Error())
	}
	if len(p.args) < c.least || c.most >= 0 && len(p.args) > c.most {
		return nil, usage(c.usageText())
	}
	if c.path && len(p.args) > 0 {
		if err := checked(p.args[0]); err != nil {
			return nil, err
		}
	}
	return c.run(s, ctx, p)
}

// usage lists the commands on standard error.
func (s *Shell) usage() {
	s.note("lockkeeper zk --server host:port cmd args")
	for _, c := range sorted() {
		s.note("\t" + c.name + " " + c.usage)
	}
}

// The commands of the shell itself.

func quitShell(s *Shell, ctx context.Context, _ []string) (fields, error) {
	s.quit = true
	s.Close(ctx)
	return nil, nil
}

// number parses a number as Integer.decode does: also 0x1f, #1f and 017.
func number(text string) (int, error) {
	n, err := strconv.ParseInt(strings.Replace(text, "#", "0x", 1), 0, 32)
	if err != nil {
		return 0, usage(notANumber(text))
	}
	return int(n), nil
}

func notANumber(text string) string { return fmt.Sprintf("For input string: %q", text) }

func redo(s *Shell, ctx context.Context, args []string) (fields, error) {
	if len(args) == 0 {
		return nil, nil
	}
	now := len(s.history) - 1
	n, err := number(args[0])
	if err != nil {
		return nil, err
	}
	if n < 0 || n >= now {
		return nil, usage("Command index out of range")
	}
	words := split(s.history[n])
	if words[0] == "redo" {
		return nil, usage("No redoing redos")
	}
	s.history[now] = s.history[n]
	return s.process(ctx, words)
}

func showHistory(s *Shell, _ context.Context, _ []string) (fields, error) {
	last := len(s.history) - 1
	lines := []string{}
	for i := max(0, last-10); i <= last; i++ {
		s.println(fmt.Sprintf("%d - %s", i, s.history[i]))
		lines = append(lines, s.history[i])
	}
	return fields{"history": lines}, nil
}

func printWatches(s *Shell, _ context.Context, args []string) (fields, error) {
	s.mu.Lock()
	if len(args) > 0 {
		s.watches = args[0] == "on"
	}
	on := s.watches
	s.mu.Unlock()
	if len(args) == 0 {
		s.println("printwatches is " + map[bool]string{true: "on", false: "off"}[on])
	}
	return fields{"printwatches": on}, nil
}

func connectTo(s *Shell, ctx context.Context, args []string) (fields, error) {
	servers := s.servers
	if len(args) > 0 {
		servers = args[0]
	}
	return nil, s.connect(ctx, servers)
}
