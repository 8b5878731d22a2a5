package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/privatefile"
	"github.com/lockkeeper/lockkeeper/internal/tools/wiretap"
)

type wireOptions struct {
	listen, to, record, only string
	quiet                    bool
	tls                      clientTLS
	printer                  wiretap.Printer
}

func wireCommand() *cobra.Command {
	var o wireOptions
	c := &cobra.Command{
		Use:   "wire --to HOST[:PORT]",
		Short: "Print and record the traffic between ZooKeeper clients and a server",
		Long: `Run a proxy between ZooKeeper clients and a server that prints a line for each
frame. It works with any server that speaks the protocol, and forwards all bytes
unchanged.

With --record it also writes a file for 'lockkeeper wire replay'. Then it forwards
the requests of several connections one after the other, because a replay needs a
definite order.`,
		Example: `  # Between clients and a server, until Ctrl-C
  lockkeeper wire --listen 127.0.0.1:2182 --to 127.0.0.1:2181

  # Only creates and watch events, and a recording of everything
  lockkeeper wire --to a:2181 --only create,event --record session.txt`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.wire(c) },
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "the server, `HOST[:PORT]`")
	o.tls.define(f)
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "`ADDRESS` for clients; port 0 picks a free one")
	f.StringVar(&o.record, "record", "", "`FILE` to write a recording to. It has the passwords of sessions and users, so only you may read it")
	f.StringVar(&o.only, "only", "", "print only these `OPERATIONS`, separated by commas; also "+strings.Join(wiretap.Selectors, ", "))
	f.BoolVar(&o.printer.JSON, "json", false, "print JSON, one object per line")
	f.BoolVar(&o.printer.Hex, "hex", false, "print the bytes too")
	f.BoolVar(&o.quiet, "quiet", false, "print nothing")
	c.AddCommand(replayCommand())
	return c
}

func (o *wireOptions) wire(c *cobra.Command) (err error) {
	flags, stderr := c.Flags(), c.ErrOrStderr()
	o.printer.W = c.OutOrStdout()
	if o.to == "" {
		return badFlag(flags, "to", "it must give the server's address, HOST[:PORT]")
	}
	to, err := oneServer(o.to)
	if err != nil {
		return badFlag(flags, "to", "%w", err)
	}
	dialer, err := o.tls.dialer(flags)
	if err != nil {
		return err
	}
	if err := checkListen(o.listen); err != nil {
		return badFlag(flags, "listen", "%w", err)
	}
	if o.only != "" {
		if o.printer.Only, err = wiretap.ParseOnly(o.only); err != nil {
			return badFlag(flags, "only", "%w", err)
		}
	}
	ctx, cancel := interruptible()
	defer cancel()
	ctx, why := untilHopeless(ctx, dialer)

	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	defer l.Close()
	proxy := wiretap.Proxy{To: to, Dial: dialer.DialContext}
	var recorder *wiretap.Recorder
	if o.record != "" {
		file, createErr := privatefile.Create(o.record)
		if createErr != nil {
			return createErr
		}
		recorder = wiretap.NewRecorder(file, to)
		defer func() { err = errors.Join(err, recorder.Err(), file.Close()) }()
		if recorder.Err() != nil {
			return nil // the deferred function returns the error
		}
		proxy.InTurn = true
	}
	out, watched := o.printer.W.(*output)
	if watched {
		out.inOrder = true // for the recording, and for clients in the middle of a request
	}
	proxy.Handle = func(e wiretap.Event) {
		if recorder != nil {
			if recorder.Handle(e); recorder.Err() != nil {
				cancel() // stop if the recording cannot be written
			}
		}
		if !o.quiet {
			o.printer.Handle(e)
			if watched && out.Err() != nil {
				cancel() // stop if nobody can read it
			}
		}
	}
	fmt.Fprintf(stderr, "lockkeeper: proxying %s to %s\n", l.Addr(), to)
	o.printer.Start = time.Now()
	err = why(proxy.Serve(ctx, l))
	if recorder != nil && recorder.Lost() > 0 {
		fmt.Fprintf(stderr, "lockkeeper: %d connections could not be recorded to their end, because a frame was too long or the server sent something else\n", recorder.Lost())
	}
	if n := proxy.Late(); n > 0 {
		fmt.Fprintf(stderr, "lockkeeper: %d requests were forwarded before earlier ones were answered: a replay may see another order\n", n)
	}
	return err
}

func replayCommand() *cobra.Command {
	var opts golden.Options
	var secure clientTLS
	var asJSON bool
	c := &cobra.Command{
		Use:   "replay FILE|DIR HOST[:PORT]",
		Short: "Replay recordings against a server and report what differs",
		Long: `Replay a recording, or all recordings in a directory, against a server, and report
the first field of the first frame that differs. Zxids, session ids, passwords and
times may have other values, and the order of names in a list does not matter. The
exit code is 1 if something differs.

To compare two servers, record one client on the first and replay it on the
second.`,
		Example: `  lockkeeper wire replay session.txt 127.0.0.1:2181
  lockkeeper wire replay recordings/ 127.0.0.1:2181 --json`,
		Args: takes(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return wireReplay(args[0], args[1], &secure, opts, asJSON, c)
		},
	}
	f := c.Flags()
	f.DurationVar(&opts.Timeout, "timeout", 5*time.Second, "how long to wait for each frame")
	f.BoolVar(&opts.EventZxid, "event-zxid", false, "accept any zxid in watch events: ZooKeeper 3.8 sends -1, and 3.9 the zxid of the change")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object per recording")
	secure.define(f)
	return c
}

// wireReplay replays recordings against the server at addr.
func wireReplay(path, server string, secure *clientTLS, opts golden.Options, asJSON bool, c *cobra.Command) error {
	addr, err := oneServer(server)
	if err != nil {
		return usageError{err}
	}
	if err := needPositive(c.Flags(), "timeout"); err != nil {
		return err
	}
	dialer, err := secure.dialer(c.Flags())
	if err != nil {
		return err
	}
	scenarios, isDir, err := recordings(path)
	if err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	ctx, why := untilHopeless(ctx, dialer)
	dial := func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
		defer cancel()
		return dialer.DialContext(ctx, "tcp", addr)
	}

	var played []replayed
	for _, s := range scenarios {
		began := time.Now()
		err := wiretap.Replay(ctx, s, dial, opts)
		if ctx.Err() != nil {
			return why(ctx.Err())
		}
		if e := whyNot(ctx, dialer, err, addr); e != err {
			return e
		}
		played = append(played, replayed{s, time.Since(began), err})
	}
	return report(c.OutOrStdout(), played, isDir, asJSON)
}

// recordings loads a recording, or all recordings in a directory.
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

type replayed struct {
	*golden.Scenario
	took time.Duration
	err  error
}

// report prints the results of replays. It returns an error if any of them differ.
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

// object returns the result as a JSON object. d is nil if there is no difference.
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
