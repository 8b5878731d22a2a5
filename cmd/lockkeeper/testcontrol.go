package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

const mostMembers = 9

// checkTestControl checks --test-control and --cluster, and the flags that they exclude.
func (o *serveOptions) checkTestControl(flags *pflag.FlagSet) error {
	if from, _ := sourceOf(flags.Lookup("cluster")); from > byDefault && (o.cluster < 1 || o.cluster > mostMembers) {
		return badFlag(flags, "cluster", "%d is not in 1 to %d", o.cluster, mostMembers)
	}
	if o.testControl == "" {
		for flag, given := range map[string]bool{"cluster": o.cluster > 0, "tree": o.tree != ""} {
			if given {
				return badFlag(flags, flag, "only together with --memory and --test-control")
			}
		}
		return nil
	}
	if !o.memory {
		return badFlag(flags, "test-control", "only together with --memory")
	}
	// A zoo.cfg always has a dataDir, which --memory overrides, and may have an admin.serverPort.
	for _, flag := range []string{"data", "admin", "metrics-listen"} {
		if by, name := sourceOf(flags.Lookup(flag)); by > byFile {
			return badFlag(flags, "test-control", "not together with %s", name)
		}
	}
	excluded := []string{"log-store", "peers", "peer-listen", "join", "join-peers", "observer", "peer-tls-cert", "tls-listen", "tls-on-listen", "audit-log"}
	if o.cluster > 0 {
		excluded = append(excluded, "id")
	}
	for _, flag := range excluded {
		if by, name := sourceOf(flags.Lookup(flag)); by != byDefault {
			return badFlag(flags, "test-control", "not together with %s", name)
		}
	}
	if err := checkListen(o.testControl); err != nil {
		return badFlag(flags, "test-control", "%w", err)
	}
	if host, port, _ := net.SplitHostPort(o.testControl); host == "" {
		o.testControl = net.JoinHostPort("127.0.0.1", port)
	}
	return nil
}

// serveTests runs a server or a cluster with an HTTP port for tests until ctx ends.
func (o *serveOptions) serveTests(ctx context.Context, flags *pflag.FlagSet, stderr io.Writer) (err error) {
	defer keepHeapFloor(os.Getenv)()
	l, err := net.Listen("tcp", o.testControl)
	if err != nil {
		return fmt.Errorf("HTTP port for tests: %w", err)
	}
	defer l.Close()
	port := &testPort{config: o.config}
	defer func() { err = errors.Join(err, port.end()) }()
	var begin lockkeepertest.Option
	if o.tree != "" {
		begin = lockkeepertest.WithTreeFile(o.tree)
	}
	c, err := port.start(o.config, o.cluster, begin)
	if bad := (*lockkeeper.ConfigError)(nil); errors.As(err, &bad) {
		return badField(flags, bad)
	} else if bad := (*lockkeepertest.TreeError)(nil); errors.As(err, &bad) {
		return badFlag(flags, "tree", "%w", bad)
	} else if err != nil {
		return err
	}
	// Nobody needs a token, so a web page in a browser on this machine must not get through.
	web := &http.Server{Handler: admin.Protect(port, ""), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(o.config.Logger.Handler(), slog.LevelError)}
	defer web.Close()
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(l) }()
	fmt.Fprintf(stderr, "lockkeeper: test control on http://%s\n", l.Addr())
	fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients on %s\n", c.connect())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// startTested starts a server, or a cluster if members is not 0. begin is its tree.
func startTested(t *runOfServe, cfg lockkeeper.Config, members int, begin lockkeepertest.Option) (c *control, err error) {
	host, portText, err := net.SplitHostPort(cfg.ClientAddr)
	port := 0
	if err == nil {
		port, err = net.LookupPort("tcp", portText)
	}
	if err != nil {
		return nil, err
	}
	configure := lockkeepertest.WithConfig(func(member *lockkeeper.Config) {
		own := cfg
		if members > 0 {
			own.ID, own.Peers = member.ID, member.Peers
			if port > 0 {
				own.ClientAddr = net.JoinHostPort(host, strconv.Itoa(port+int(own.ID)-1))
			}
			own.Logger = cfg.Logger.With("member", own.ID)
		}
		*member = own
	})
	ended := make(chan struct{})
	c = &control{run: t, ended: ended}
	err = attempt(func() {
		if members == 0 {
			s := lockkeepertest.Start(t, configure, begin)
			c.servers, c.all = append(c.servers, s), s
			return
		}
		c.cluster = lockkeepertest.StartCluster(t, members, configure, begin)
		c.all = c.cluster
		for id := 1; id <= members; id++ {
			c.servers = append(c.servers, c.cluster.Server(id))
		}
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { close(ended) }) // which comes before the cleanups of the servers

	return c, attempt(func() { c.takeSnapshot() }) // of the beginning, number 0
}

// runOfServe plays the test that lockkeepertest expects, in a run of this command. It has the
// methods that lockkeepertest calls; the others would panic. Package testing is part of the
// command anyway, because packages raft and conform import it, and it defines its flags only
// in a test program.
type runOfServe struct {
	testing.TB

	mu       sync.Mutex
	cleanups []func()
	errs     []error

	attempting sync.Mutex // held during attemptAll
}

func (t *runOfServe) Name() string        { return "serve" }
func (t *runOfServe) Helper()             {}
func (t *runOfServe) Failed() bool        { return false } // so nothing is logged at the end
func (t *runOfServe) Logf(string, ...any) {}

func (t *runOfServe) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Errorf keeps an error that the command reports when it ends.
func (t *runOfServe) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, newFailure(format, args))
}

// Fatalf makes the attempt that called it return an error.
func (t *runOfServe) Fatalf(format string, args ...any) { panic(newFailure(format, args)) }

// attemptAll is attempt for an f that also calls Errorf.
func (t *runOfServe) attemptAll(f func()) error {
	t.attempting.Lock()
	defer t.attempting.Unlock()
	t.mu.Lock()
	before := len(t.errs)
	t.mu.Unlock()
	err := attempt(f)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.errs[before:] {
		err = errors.Join(err, e)
	}
	t.errs = t.errs[:before]
	return err
}

// end does the cleanups, and returns all errors.
func (t *runOfServe) end() error {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
	return errors.Join(t.errs...)
}

// failure is an error that lockkeepertest reports to its test.
type failure struct {
	text  string
	cause error // may be nil
}

func newFailure(format string, args []any) failure {
	f := failure{text: strings.TrimPrefix(fmt.Sprintf(format, args...), "lockkeepertest: ")}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			f.cause = err
		}
	}
	return f
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.cause }

// attempt calls f and returns the failure with which it calls Fatalf, or the refusal of deny.
func attempt(f func()) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = x
		case refusal:
			err = x
		default:
			panic(x)
		}
	}()
	f()
	return nil
}
