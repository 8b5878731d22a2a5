package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/golden"
	"github.com/lockkeeper/lockkeeper/internal/wiretap"
)

// wire stands between clients and a server, and tells what they say.
func wire(args []string, getenv func(string) string, stdout, stderr io.Writer) (err error) {
	if len(args) > 0 && args[0] == "replay" {
		return wireReplay(args[1:], getenv, stdout)
	}
	printer := wiretap.Printer{W: stdout}
	f := flag.NewFlagSet("wire [FLAGS] --to HOST:PORT", flag.ContinueOnError)
	listen := f.String("listen", "127.0.0.1:0", "`address` for clients; port 0 picks one")
	to := f.String("to", "", "`address` of the server")
	record := f.String("record", "", "`file` to write a recording to, for 'lockkeeper wire replay'; requests of several connections then wait for each other")
	f.BoolVar(&printer.JSON, "json", false, "print JSON, one object per line")
	f.BoolVar(&printer.Hex, "hex", false, "print the bytes too")
	quiet := f.Bool("quiet", false, "print nothing")
	only := f.String("only", "", "print these `operations` only, separated by commas; also "+strings.Join(wiretap.Selectors, ", "))
	if _, err := parse("wire", f, args, getenv, stdout); err != nil {
		return err
	}
	switch _, _, badTo := net.SplitHostPort(*to); {
	case f.NArg() > 0:
		return usageError{fmt.Errorf("wire takes no arguments, but there is %q", f.Arg(0))}
	case *to == "":
		return usageError{errors.New("wire needs the server's address: --to HOST:PORT")}
	case badTo != nil:
		return usageError{fmt.Errorf("invalid value %q for flag -to: %w", *to, badTo)}
	}
	if *only != "" {
		if printer.Only, err = wiretap.ParseOnly(*only); err != nil {
			return usageError{fmt.Errorf("invalid value %q for flag -only: %w", *only, err)}
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()

	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	defer l.Close()
	proxy := wiretap.Proxy{To: *to}
	var recorder *wiretap.Recorder
	if *record != "" {
		file, createErr := os.Create(*record)
		if createErr != nil {
			return createErr
		}
		recorder = wiretap.NewRecorder(file, *to)
		defer func() { err = errors.Join(err, recorder.Err(), file.Close()) }()
		if recorder.Err() != nil {
			return nil // the deferred function tells
		}
		proxy.InTurn = true
	}
	proxy.Handle = func(e wiretap.Event) {
		if recorder != nil {
			if recorder.Handle(e); recorder.Err() != nil {
				cancel() // a proxy that cannot record has nothing to do
			}
		}
		if !*quiet {
			printer.Handle(e)
		}
	}
	fmt.Fprintf(stderr, "lockkeeper: proxying %s to %s\n", l.Addr(), *to)
	printer.Start = time.Now()
	err = proxy.Serve(ctx, l)
	if recorder != nil && recorder.Lost() > 0 {
		fmt.Fprintf(stderr, "lockkeeper: %d connections could not be recorded to their end, since something was too long or no frame\n", recorder.Lost())
	}
	if n := proxy.Late(); n > 0 {
		fmt.Fprintf(stderr, "lockkeeper: %d requests did not wait for others that were not answered: a replay may see another order\n", n)
	}
	return err
}

// wireReplay plays recordings against an endpoint.
func wireReplay(args []string, getenv func(string) string, stdout io.Writer) error {
	var opts golden.Options
	f := flag.NewFlagSet("wire replay [FLAGS] FILE|DIR HOST:PORT", flag.ContinueOnError)
	asJSON := f.Bool("json", false, "print JSON, one object per recording")
	f.BoolVar(&opts.EventZxid, "event-zxid", false, "accept another zxid in watch events: ZooKeeper 3.8 sends -1, 3.9 that of the change")
	f.DurationVar(&opts.Timeout, "timeout", 5*time.Second, "how long to wait for what should come")
	if _, err := parse("wire replay", f, args, getenv, stdout); err != nil {
		return err
	}
	var rest []string // flags may stand behind them
	for f.NArg() > 0 {
		rest = append(rest, f.Arg(0))
		if err := f.Parse(f.Args()[1:]); errors.Is(err, flag.ErrHelp) {
			_, err = parse("wire replay", f, []string{"-h"}, getenv, stdout)
			return err
		} else if err != nil {
			return usageError{err}
		}
	}
	if len(rest) != 2 {
		return usageError{errors.New("wire replay takes a recording, or a directory of them, and the endpoint's HOST:PORT")}
	}
	path, addr := rest[0], rest[1]
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return usageError{fmt.Errorf("%q is not HOST:PORT: %w", addr, err)}
	}
	if opts.Timeout <= 0 {
		return usageError{fmt.Errorf("invalid value %v for flag -timeout: not above 0", opts.Timeout)}
	}
	scenarios, isDir, err := recordings(path)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	dialer := net.Dialer{Timeout: opts.Timeout}
	dial := func() (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }

	var played []replayed
	for _, s := range scenarios {
		began := time.Now()
		err := wiretap.Replay(ctx, s, dial, opts)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		played = append(played, replayed{s, time.Since(began), err})
	}
	return report(stdout, played, isDir, *asJSON)
}

// recordings loads a file, or those of a directory.
func recordings(path string) (all []*golden.Scenario, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if info.IsDir() {
		all, err = golden.LoadAll(os.DirFS(path))
		return all, true, err
	}
	s, err := golden.Load(os.DirFS(filepath.Dir(path)), filepath.Base(path))
	return []*golden.Scenario{s}, false, err
}

// replayed is a recording with what came of it.
type replayed struct {
	*golden.Scenario
	took time.Duration
	err  error
}

// report prints what came of recordings. Its error says how many differ.
func report(w io.Writer, played []replayed, table, asJSON bool) error {
	bad := 0
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if table && !asJSON {
		fmt.Fprintln(out, "RECORDING\tSTEPS\tTIME\tRESULT")
	}
	for _, r := range played {
		result := "same"
		if r.err != nil {
			bad++
			result = oneLine(r.err)
		}
		var d *wiretap.Difference
		if errors.As(r.err, &d) {
			result = fmt.Sprintf("line %d: %s", d.Step.Line, d.Summary())
		}
		switch {
		case asJSON:
			if err := json.NewEncoder(w).Encode(r.object(d)); err != nil {
				return err
			}
		case table:
			fmt.Fprintf(out, "%s\t%d\t%v\t%s\n", r.Name, len(r.Steps), r.took.Round(time.Millisecond), result)
		case r.err == nil:
			fmt.Fprintf(out, "%s: the same in all %d steps\n", r.Name, len(r.Steps))
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	for _, r := range played {
		if r.err != nil && !asJSON {
			fmt.Fprintln(w, r.err)
		}
	}
	switch {
	case bad == 0:
		return nil
	case !table:
		return fmt.Errorf("%s differs", played[0].Name)
	}
	return fmt.Errorf("%d of %d recordings differ", bad, len(played))
}

// object is the outcome as JSON. d is nil without a difference.
func (r *replayed) object(d *wiretap.Difference) map[string]any {
	o := map[string]any{"recording": r.Name, "title": r.Title, "steps": len(r.Steps), "seconds": r.took.Seconds(), "same": r.err == nil}
	if d != nil {
		o["line"], o["why"] = d.Step.Line, d.Summary()
		for k, v := range map[string]string{"conn": d.Step.Conn, "asked": d.Asked, "expected": d.Expected, "came": d.Came, "field": d.Field} {
			if v != "" {
				o[k] = v
			}
		}
	} else if r.err != nil {
		o["error"] = r.err.Error()
	}
	return o
}
