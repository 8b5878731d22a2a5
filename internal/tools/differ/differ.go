// Package differ sends the same random sequence of requests to two ZooKeeper servers and
// compares everything that they send: every reply, Stat, event and closed connection,
// and every step of the zxid. At the first difference it searches for a short sequence
// that shows it.
//
// A run consists of rounds. Each round works below a znode of its own and deletes it at
// the end. The two servers must be standalone and otherwise idle. The package runs
// nothing concurrently: it sends a request to both servers and then waits for both.
package differ

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Options configure a run.
type Options struct {
	// A and B connect to the two servers.
	A, B Dial
	// Seed determines all random choices. Ops is the number of requests to send.
	Seed uint64
	Ops  int
	// Round is the number of requests in a round. The default is 2500.
	Round int
	// Masks are masks to use in addition to those that apply to the two versions.
	// NoMasks turns the latter off.
	Masks   []string
	NoMasks bool
	// Without lists features that the requests do not use: "quotas".
	Without []string
	// Super is USER:PASSWORD of both servers' super user, or empty.
	Super string
	// Patience limits the wait for an answer. The default is 10 s.
	Patience time.Duration
	// Minimize limits the time of the search for a short sequence. The default is 60 s.
	Minimize time.Duration
	// Progress, if not nil, is called after every round.
	Progress func(*Report)
}

// Features are the features that [Options.Without] may list.
var Features = []string{"quotas"}

// ErrOptions is wrapped by errors about invalid options.
var ErrOptions = errors.New("differ")

// Report is the result of a run.
type Report struct {
	A          string         `json:"a"` // the versions, as the servers report them
	B          string         `json:"b"`
	Seed       uint64         `json:"seed"`
	Ops        int            `json:"ops"` // requests sent, without those of the search for a short sequence
	Rounds     int            `json:"rounds"`
	Seconds    float64        `json:"seconds"`
	Sent       map[string]int `json:"sent"`    // requests by operation
	Replies    map[string]int `json:"replies"` // replies by code
	Events     int            `json:"events"`
	Masks      map[string]int `json:"masks"` // how often each mask in use hid a difference, or prevented a request
	Difference *Difference    `json:"difference,omitempty"`

	quiet bool // count nothing
}

// Difference is the first difference found.
type Difference struct {
	What       string     `json:"what"`
	Seed       uint64     `json:"seed"` // the seed of a run whose first round shows it
	Ops        int        `json:"ops"`  // the number of requests that such a run needs
	Where      Exchange   `json:"where"`
	Reproduced bool       `json:"reproduced"` // sending the same requests again showed it again
	Minimal    []Exchange `json:"minimal,omitempty"`
	Steps      int        `json:"steps"` // in Minimal
}

// Exchange is what the client and both servers sent on a connection.
type Exchange struct {
	Conn int      `json:"conn"`
	Sent []string `json:"sent"`
	A    []string `json:"a"`
	B    []string `json:"b"`
}

func (r *Report) sent(s *step, i int) {
	if r.quiet {
		return
	}
	name := wire.OpName(s.Frames[i].Op)
	switch {
	case s.Kind == open && i == 0:
		name = "connect"
	case s.Frames[i].Raw:
		name = "bad frame"
	}
	r.Ops++
	r.Sent[name]++
}

func (r *Report) got(f *wire.Frame) {
	switch {
	case r.quiet:
	case f.Kind == wire.Event:
		r.Events++
	case f.Kind == wire.Reply:
		r.Replies[f.Code.String()]++
		if m, ok := f.Body.(*proto.MultiReply); ok {
			for _, res := range m.Results {
				r.Replies["in multi: "+res.Code.String()]++
			}
		}
	}
}

// Run compares the two servers. A difference is in the report and is not an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.Round = cmp.Or(o.Round, 2500)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	o.Minimize = cmp.Or(o.Minimize, time.Minute)
	for _, w := range o.Without {
		if !slices.Contains(Features, w) {
			return nil, fmt.Errorf("%w: unknown feature %q", ErrOptions, w)
		}
	}
	start := time.Now()
	report := &Report{Seed: o.Seed, Sent: map[string]int{}, Replies: map[string]int{}, Masks: map[string]int{}}
	var versions [2]Version
	for i, dial := range []Dial{o.A, o.B} {
		nc, err := dial(ctx)
		answer := ""
		if err == nil { // it is not an error if the endpoint does not report a version
			answer, err = rawclient.Word(nc, "srvr", o.Patience)
		}
		if versions[i] = parseVersion(answer); err != nil {
			return report, fmt.Errorf("endpoint %s: %w", sideName[i], err)
		}
	}
	a, b := versions[0], versions[1]
	report.A, report.B = a.Text, b.Text
	masks, err := choose(a, b, o.Masks, o.NoMasks)
	if err != nil {
		return report, err
	}
	for name := range masks {
		report.Masks[name] = 0
	}
	for seed := o.Seed; report.Ops < o.Ops; seed++ {
		steps := generate(seed, min(o.Round, o.Ops-report.Ops), persona.For(min(a.line(), b.line())), masks, report.Masks, o.Without, o.Super)
		before := report.Ops
		n, err := attempt(ctx, &o, masks, report, steps, false, nil)
		report.Rounds++
		report.Seconds = time.Since(start).Seconds()
		var m *mismatch
		if errors.As(err, &m) {
			report.Difference = &Difference{What: m.what, Seed: seed, Ops: report.Ops - before, Where: m.Exchange}
			err = minimize(ctx, &o, masks, steps[:n], report.Difference)
			report.Seconds = time.Since(start).Seconds()
			return report, err
		}
		if err != nil {
			return report, fmt.Errorf("seed %d: %w", seed, err)
		}
		if o.Progress != nil {
			o.Progress(report)
		}
	}
	return report, nil
}

// attempt plays steps below a new root and then deletes it. It returns how many steps it
// started. The error is a *mismatch if the servers differ. If story is not nil, attempt
// stores the exchanges in it.
func attempt(ctx context.Context, o *Options, masks map[string]bool, report *Report, steps []step, closely bool, story *[]Exchange) (n int, err error) {
	r := newRun(o, masks, report, fmt.Sprintf("/differ-%08x", rand.Uint32()))
	r.closely, r.telling = closely, story != nil
	defer func() {
		if e := r.clear(context.WithoutCancel(ctx)); e != nil && err == nil {
			err = e
		}
		if story != nil {
			*story = r.story
		}
	}()
	if err := r.begin(ctx); err != nil {
		return 0, err
	}
	if err := r.play(ctx, steps); err != nil {
		return r.steps, err
	}
	return r.steps, r.survey(ctx)
}

// minimize searches for a short part of steps that still shows a difference of the same
// kind, and stores it in d.
func minimize(ctx context.Context, o *Options, masks map[string]bool, steps []step, d *Difference) error {
	quick := *o
	quick.Patience = min(o.Patience, 3*time.Second)
	deadline := time.Now().Add(o.Minimize)
	var failure error
	var story []Exchange
	closely := true
	what := "" // the kind of difference, which may change when played closely
	fails := func(steps []step) bool {
		if failure != nil || time.Now().After(deadline) {
			return false
		}
		report := &Report{quiet: true, Masks: map[string]int{}}
		var told []Exchange
		_, err := attempt(ctx, &quick, masks, report, steps, closely, &told)
		var m *mismatch
		switch {
		case err == nil:
			return false
		case !errors.As(err, &m):
			failure = err
			return false
		case what != "" && m.what != what:
			return false
		}
		what, story = m.what, told
		return true
	}
	if d.Reproduced = fails(steps); !d.Reproduced {
		closely = false // it may need several requests in progress at once
		if d.Reproduced = fails(steps); !d.Reproduced {
			return failure
		}
	}
	// The difference shows at the end, and usually only a few steps before it matter.
	for n := 8; n < len(steps); n *= 4 {
		if part := tail(steps, n); fails(part) {
			steps = part
			break
		}
	}
	for n := 0; n != len(steps); {
		n = len(steps)
		steps = join(shrink(steps, fails), fails)
	}
	for i := range steps { // then shrink the frames of each step
		if len(steps[i].Frames) < 2 {
			continue
		}
		first := 0
		if steps[i].Kind == open {
			first = 1
		}
		with := func(frames []frame) []step {
			all := slices.Clone(steps)
			all[i].Frames = slices.Concat(steps[i].Frames[:first], frames)
			return all
		}
		frames := shrink(steps[i].Frames[first:], func(frames []frame) bool { return fails(with(frames)) })
		steps = with(frames)
	}
	steps = shrink(steps, fails)
	d.Minimal, d.Steps = story, len(steps)
	return failure
}

// tail returns the last n steps, and earlier steps that open their connections.
func tail(steps []step, n int) []step {
	last := steps[max(0, len(steps)-n):]
	need := map[int]bool{}
	for _, s := range last {
		need[s.Conn] = true
	}
	sessions := map[int]bool{}
	for _, s := range steps {
		if s.Kind == open && need[s.Conn] {
			sessions[s.Session] = true
		}
	}
	var part []step
	for _, s := range steps[:len(steps)-len(last)] {
		if s.Kind == open && sessions[s.Session] {
			part = append(part, s)
		}
	}
	return append(part, last...)
}

// join moves steps from several connections to one, as long as fails remains true.
func join(steps []step, fails func([]step) bool) []step {
	first := slices.IndexFunc(steps, func(s step) bool { return s.Kind == open })
	for i := len(steps) - 1; i > first && first >= 0; i-- {
		if steps[i].Kind != open {
			continue
		}
		joined := slices.Delete(slices.Clone(steps), i, i+1)
		for j := range joined {
			if joined[j].Conn == steps[i].Conn {
				joined[j].Conn = steps[first].Conn
			}
		}
		if fails(joined) {
			steps = joined
		}
	}
	return steps
}

// shrink removes elements as long as fails remains true: halves first, then smaller and
// smaller pieces.
func shrink[T any](all []T, fails func([]T) bool) []T {
	for size := (len(all) + 1) / 2; size > 0; {
		removed := false
		for i := len(all); i > 0; i -= size {
			part := slices.Concat(all[:max(0, i-size)], all[i:])
			if fails(part) {
				all, removed = part, true
			}
		}
		switch size = min(size, len(all)); {
		case removed:
		case size == 1:
			return all
		default:
			size = (size + 1) / 2
		}
	}
	return all
}

// String formats the report as text.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "A is %s, B is %s\n", r.A, r.B)
	fmt.Fprintf(&b, "seed %d: %d requests in %d rounds and %.1f s, %d events\n", r.Seed, r.Ops, r.Rounds, r.Seconds, r.Events)
	table := func(title string, counts map[string]int) {
		fmt.Fprintf(&b, "%s:", title)
		for _, k := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&b, " %s %d,", k, counts[k])
		}
		b.WriteByte('\n')
	}
	table("requests", r.Sent)
	table("replies", r.Replies)
	table("masks", r.Masks)
	if d := r.Difference; d != nil {
		fmt.Fprintf(&b, "DIFFERENCE: %s\n%s", d.What, d.Where.text())
		fmt.Fprintf(&b, "to reproduce it: --seed %d --ops %d\n", d.Seed, d.Ops)
		if !d.Reproduced {
			b.WriteString("sending the same requests again did not show it\n")
		} else {
			fmt.Fprintf(&b, "the shortest sequence found, %d steps; zxids count from the run's start, sessions from 1:\n", d.Steps)
			for _, x := range d.Minimal {
				b.WriteString(x.text())
			}
		}
	} else {
		b.WriteString("no difference\n")
	}
	return b.String()
}

// text formats an exchange. A line that both servers sent is shown once.
func (x *Exchange) text() string {
	var b strings.Builder
	for _, s := range x.Sent {
		fmt.Fprintf(&b, "  %3d > %s\n", x.Conn, s)
	}
	for i := range max(len(x.A), len(x.B)) {
		var a, c string
		if i < len(x.A) {
			a = x.A[i]
		}
		if i < len(x.B) {
			c = x.B[i]
		}
		if a == c {
			fmt.Fprintf(&b, "  %3d <   %s\n", x.Conn, a)
			continue
		}
		fmt.Fprintf(&b, "  %3d < A %s\n  %3d < B %s\n", x.Conn, a, x.Conn, c)
	}
	return b.String()
}
