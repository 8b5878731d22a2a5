package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
)

// against has the flags of 'conform --against', which compares two servers.
type against struct {
	addr    string
	ops     int
	seed    uint64
	masks   string
	noMasks bool
}

func (a *against) define(f *pflag.FlagSet) {
	f.StringVar(&a.addr, "against", "", "send random requests to this server and the one at `HOST[:PORT]` and compare them, instead of running the checks")
	f.IntVar(&a.ops, "ops", 10_000, "`NUMBER` of requests to send")
	f.Uint64Var(&a.seed, "seed", 0, "`SEED` of the random requests; 0 picks one")
	f.StringVar(&a.masks, "mask", "", "`NAMES` of differences to allow, separated by commas, in addition to those known between the two versions")
	f.BoolVar(&a.noMasks, "no-masks", false, "allow none of the known differences")
}

func (a *against) run(flags *pflag.FlagSet, addr string, dialer *connect.Dialer, c *conformOptions, stdout, stderr io.Writer) error {
	other, err := oneServer(a.addr)
	if err != nil {
		return badFlag(flags, "against", "%w", err)
	}
	if a.ops < 1 {
		return badFlag(flags, "ops", "%d is not above 0", a.ops)
	}
	o := differ.Options{Ops: a.ops, NoMasks: a.noMasks, Super: c.Super}
	if o.Without, err = choose(flags, "without", differ.Features); err != nil {
		return err
	}
	if o.Masks, err = choose(flags, "mask", differ.MaskNames()); err != nil {
		return err
	}
	for a.seed == 0 {
		a.seed = rand.Uint64N(1_000_000_000)
	}
	o.Seed = a.seed
	dial := func(addr string) differ.Dial {
		return func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return dialer.DialContext(ctx, "tcp", addr)
		}
	}
	o.A, o.B = dial(other), dial(addr)
	fmt.Fprintf(stderr, "A is %s, B is %s, seed %d\n", a.addr, addr, a.seed)
	shown, last := progress{w: stderr, terminal: isTerminal(stderr)}, time.Now()
	o.Progress = func(r *differ.Report) {
		if time.Since(last) > 2*time.Second {
			last = time.Now()
			shown.show(fmt.Sprintf("%d of %d requests, %.0f a second, %d events, no difference", r.Ops, a.ops, float64(r.Ops)/r.Seconds, r.Events), true)
		}
	}
	ctx, cancel := interruptible()
	defer cancel()
	for _, addr := range []string{other, addr} {
		if err := dialer.Check(ctx, addr); err != nil {
			return err
		}
	}
	ctx, why := untilHopeless(ctx, dialer)
	report, err := differ.Run(ctx, o)
	err = why(err)
	shown.clear()
	if err != nil && report.Difference == nil {
		return whyNot(ctx, dialer, err, other, addr)
	}
	if c.json {
		out := json.NewEncoder(stdout)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		err = errors.Join(err, out.Encode(report))
	} else {
		_, e := fmt.Fprint(stdout, report)
		err = errors.Join(err, e)
	}
	if report.Difference != nil {
		err = errors.Join(fmt.Errorf("%w from %s: %s", errDiffers, a.addr, report.Difference.What), err)
	}
	return err
}
