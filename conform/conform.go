// Package conform tests whether a server behaves as ZooKeeper does, down to the
// bytes of its replies. It is a suite of named checks that runs against any
// endpoint of ZooKeeper's protocol.
//
// A program calls [Run] and reads the [Report]; a Go test calls [Test], as with
// testing/fstest. The suite works below a root znode that it creates, and briefly
// outside of it, and deletes everything at the end. No other client may write to
// the endpoint meanwhile, because some checks count zxids.
//
// This package promises less compatibility than others, as package lockkeeper explains. A new version
// may come with new checks, which a server that passed so far may fail.
package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Check tests one behaviour of a server.
type Check struct {
	Name  string    // GROUP/WHAT, unique
	Says  string    // the behaviour, in one sentence
	In    string    // the versions of ZooKeeper that behave so, such as ">=3.5"; see [Check.Applies]
	Needs []Feature // features without which the check is Unsupported
	With  Setting   // setting without which the check is NotApplicable
	Alone bool      // no other check may run at the same time, since it counts zxids or reads totals
	run   func(*trial)
}

// Group returns the group of the check: its name up to the slash.
func (k *Check) Group() string {
	group, _, _ := strings.Cut(k.Name, "/")
	return group
}

// Applies reports whether a version of ZooKeeper behaves so. It reads In: alternatives that are
// separated by "|", each a list of conditions that must all hold. A condition is ">=3.9.2",
// "<3.9", "debian" for Debian's patched 3.8.0, or "!debian" for every other version.
func (k *Check) Applies(v Version) bool { return v.in(k.In) }

// Feature is something that an endpoint may lack or hide.
type Feature string

// The features. [Run] finds out by itself whether an endpoint has those marked †.
const (
	Words  Feature = "words"  // † all four-letter words
	TTL    Feature = "ttl"    // † TTL znodes (extendedTypesEnabled)
	Quotas Feature = "quotas" // † quotas that are enforced (enforceQuota)
	Super  Feature = "super"  // a super user, whose password is in Options.Super
	Reaper Feature = "reaper" // empty containers are deleted within Options.ReapWithin
)

// Features returns all features.
func Features() []Feature { return []Feature{Words, TTL, Quotas, Super, Reaper} }

// Setting is a configuration setting that decides which behaviour is correct. [Run]
// finds out by itself how the endpoint is configured.
type Setting string

// The settings, which are ZooKeeper's defaults.
const (
	NoReconfig Setting = "reconfigEnabled=false"
	NoSASL     Setting = "no SASL" // no JAAS file for clients
)

// Checks returns all checks, in the order of the report.
func Checks() []Check {
	all := slices.Clone(suite)
	for i := range all {
		all[i].Needs = slices.Clone(all[i].Needs)
	}
	return all
}

// suite lists all checks, in the order of the report.
var suite = slices.Concat(
	handshakeChecks,
	sessionChecks,
	createChecks,
	deleteChecks,
	dataChecks,
	childrenChecks,
	limitChecks,
	badFrameChecks,
	orderChecks,
	syncChecks,
	zxidChecks,
	multiChecks,
	multiReadChecks,
	watchChecks,
	persistentChecks,
	aclChecks,
	authChecks,
	quotaChecks,
	containerChecks,
	systemChecks,
	wordChecks,
)

// Options configure a run of the suite. Only Dial is required.
type Options struct {
	// Dial connects to the endpoint. It must be safe for concurrent use.
	Dial func(context.Context) (net.Conn, error)
	// Version is the version of ZooKeeper whose behaviour is expected, such as
	// "3.8.4", or "3.8.0+debian" for Debian's patched 3.8.0. If it is empty, the
	// suite asks the endpoint with the four-letter word srvr; without an answer it
	// expects the newest version that it knows.
	Version string
	// Groups are the groups to run; if empty, all groups.
	Groups []string
	// Run selects checks by name; nil selects all.
	Run *regexp.Regexp
	// Without lists features that the endpoint lacks, in addition to those that the
	// suite finds missing by itself.
	Without []Feature
	// Super is USER:PASSWORD of the endpoint's super user. If it is empty, checks that
	// need the super user are Unsupported.
	Super string
	// ReapWithin is the longest time after which the endpoint, as it is configured,
	// deletes an empty container. If it is 0, checks that wait for that are
	// Unsupported.
	ReapWithin time.Duration
	// Parallel is how many checks may run at the same time; 0 means 8.
	Parallel int
	// Timeout limits the wait for one frame; 0 means 10 s.
	Timeout time.Duration
	// Progress, if not nil, is called with each result, unless it is NotRun. Calls do not
	// overlap.
	Progress func(done, of int, r *Result)
}

// Test is [Run] for a test, with one subtest of t for each check. Checks that do not apply to
// the endpoint's version, features or configuration are skipped, with the reason.
func Test(t *testing.T, o Options) {
	t.Helper()
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Results {
		r := &report.Results[i]
		t.Run(r.Name, func(t *testing.T) {
			switch r.Status {
			case NotRun:
				t.Error(r.Why)
			case Failed:
				t.Errorf("%s\n%s\n%s", r.Says, r.Why, strings.Join(r.Exchange, "\n"))
			case Unsupported, NotApplicable, OtherVersion:
				t.Skip(r.Why)
			}
		})
	}
}

// Run runs the suite. It returns an error only if the suite could not be run at all, because
// the options are wrong or the endpoint does not answer as a ZooKeeper; wrong behaviour of the
// endpoint is in the report. When ctx ends, the checks that are running end too, and they and
// all that have not begun are NotRun.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("conform: %w", err)
	}
	o.Parallel = cmp.Or(o.Parallel, 8)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	var selected []Check
	for _, k := range suite {
		if (len(o.Groups) == 0 || slices.Contains(o.Groups, k.Group())) && (o.Run == nil || o.Run.MatchString(k.Name)) {
			selected = append(selected, k)
		}
	}
	if len(selected) == 0 {
		return nil, errors.New("conform: no check has such a name")
	}
	s := &state{o: o, root: fmt.Sprintf("/conform-%08x", rand.Uint32()), missing: map[Feature]string{}, otherwise: map[Setting]string{}, total: len(selected)}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	results := make([]Result, len(selected))
	var wg sync.WaitGroup
	slots := make(chan struct{}, o.Parallel)
	for _, alone := range []bool{false, true} {
		for i := range selected {
			if selected[i].Alone != alone {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				results[i] = s.check(ctx, &selected[i])
				<-slots
			})
			if alone {
				wg.Wait()
			}
		}
		wg.Wait()
	}
	r := &Report{Version: s.version.String(), Claims: s.claims, Results: results, Seconds: time.Since(began).Seconds()}
	r.Left = s.tidy(ctx)
	return r, nil
}

func (o *Options) check() error {
	if o.Dial == nil {
		return errors.New("no Dial")
	}
	if o.Parallel < 0 || o.Timeout < 0 || o.ReapWithin < 0 {
		return fmt.Errorf("an option is negative: Parallel %d, Timeout %v, ReapWithin %v", o.Parallel, o.Timeout, o.ReapWithin)
	}
	for _, g := range o.Groups {
		if !slices.ContainsFunc(suite, func(k Check) bool { return k.Group() == g }) {
			return fmt.Errorf("there is no group %q", g)
		}
	}
	for _, f := range o.Without {
		if !slices.Contains(Features(), f) {
			return fmt.Errorf("there is no feature %q", f)
		}
	}
	return nil
}

type state struct {
	o       Options
	root    string
	version Version
	claims  string             // what the endpoint calls itself
	missing map[Feature]string // the features that the endpoint lacks, and why it seems so

	otherwise map[Setting]string // the settings that the endpoint does not have, and how that shows

	mu          sync.Mutex
	done, total int
}

// prepare finds out the endpoint's version, features and settings, and creates the root.
func (s *state) prepare(ctx context.Context) error {
	for _, f := range s.o.Without {
		s.missing[f] = "listed in Options.Without"
	}
	if s.o.Super == "" {
		s.missing[Super] = "no super user's password was given"
	}
	if s.o.ReapWithin == 0 {
		s.missing[Reaper] = "the time after which containers are reaped was not given"
	}
	why := s.attempt(ctx, "srvr", func(t *trial) { s.claims = claimed(t.word("srvr")) })
	if s.claims == "" && s.missing[Words] == "" {
		s.missing[Words] = "srvr is not answered: " + cmp.Or(why, "no version in it")
	}
	var err error
	if s.version, err = ParseVersion(cmp.Or(s.o.Version, s.claims, Newest().String())); err != nil {
		return err
	}
	if why = s.attempt(ctx, "root", func(t *trial) { t.connect().create(s.root, nil, 0) }); why != "" {
		return fmt.Errorf("conform: the endpoint cannot be used: %s", why)
	}
	s.probe(ctx, Words, func(t *trial) string {
		if answer := t.word("mntr"); strings.Contains(answer, "not in the whitelist") {
			return strings.TrimSpace(answer)
		}
		return ""
	})
	s.probe(ctx, TTL, func(t *trial) string {
		if f := t.connect().call(opTTL(t.path("x"), proto.FlagTTL, 1e6)); f.Code == proto.Unimplemented {
			return "createTTL is answered Unimplemented"
		}
		return ""
	})
	s.probe(ctx, Quotas, func(t *trial) string {
		k := t.connect()
		k.quota(t.path(""), "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1")
		if f := k.call(opCreate(t.path("x"), nil, 0)); f.Code != proto.QuotaExceeded {
			return "a hard limit is not enforced"
		}
		return ""
	})
	s.attempt(ctx, "reconfig", func(t *trial) {
		// No configuration has this id, so this changes no members.
		f := t.connect().call(req(proto.OpReconfig, &proto.ReconfigRequest{Leaving: proto.Path{Path: "0"}, ConfigID: math.MinInt64}))
		if f.Code == proto.Unimplemented || f.Code == proto.BadVersion { // standalone, or a member
			s.otherwise[NoReconfig] = fmt.Sprintf("reconfig is answered %s", f.Code)
		}
	})
	s.attempt(ctx, "sasl", func(t *trial) {
		f := t.connect().call(req(proto.OpSASL, &proto.SASLRequest{Token: []byte{}}))
		switch {
		case f.Code == proto.OK && string(f.Payload[16:]) != "\xff\xff\xff\xff":
			s.otherwise[NoSASL] = "sasl is answered with a token"
		case f.Code == proto.AuthFailed || f.Code == proto.SessionClosedRequireSASLAuth: // with GSSAPI, no token is empty
			s.otherwise[NoSASL] = fmt.Sprintf("sasl is answered %s", f.Code)
		}
	})
	return nil
}

func (s *state) probe(ctx context.Context, f Feature, try func(*trial) string) {
	if s.missing[f] != "" {
		return
	}
	why := ""
	failed := s.attempt(ctx, string(f), func(t *trial) { why = try(t) })
	s.missing[f] = cmp.Or(failed, why)
}

// attempt runs a function that is not a check of the suite. It returns why it failed, or "".
func (s *state) attempt(ctx context.Context, name string, run func(*trial)) string {
	t := &trial{ctx: ctx, s: s, name: "prepare/" + name}
	defer t.end()
	return t.protect(func() {
		if name != "srvr" && name != "root" {
			t.makeRoot()
		}
		run(t)
	})
}

func (s *state) check(ctx context.Context, k *Check) Result {
	r := Result{Name: k.Name, Group: k.Group(), Says: k.Says, In: k.In, Status: Passed}
	switch why := s.leaveOut(k); {
	case why != "":
		r.Status, r.Why = Unsupported, why
	case s.otherwise[k.With] != "":
		r.Status, r.Why = NotApplicable, fmt.Sprintf("requires %s, but %s", k.With, s.otherwise[k.With])
	case !k.Applies(s.version):
		r.Status, r.Why = OtherVersion, fmt.Sprintf("applies to ZooKeeper %s, not to %s", k.In, s.version)
	case ctx.Err() != nil:
		r.Status, r.Why = NotRun, ctx.Err().Error()
	default:
		began := time.Now()
		t := &trial{ctx: ctx, s: s, name: k.Name}
		r.Why = t.protect(func() {
			t.makeRoot()
			k.run(t)
		})
		switch {
		case r.Why != "" && ctx.Err() != nil:
			r.Status, r.Why = NotRun, ctx.Err().Error()
		case r.Why != "":
			r.Status, r.Exchange = Failed, t.exchange()
		}
		r.Ops = t.ops()
		t.end()
		r.Seconds = time.Since(began).Seconds()
	}
	if r.Status == NotRun {
		return r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	if s.o.Progress != nil {
		s.o.Progress(s.done, s.total, &r)
	}
	return r
}

func (s *state) leaveOut(k *Check) string {
	for _, f := range k.Needs {
		if why := s.missing[f]; why != "" {
			return fmt.Sprintf("needs %s: %s", f, why)
		}
	}
	return ""
}

// tidy deletes everything that the run created, even if ctx has ended. It returns what
// it could not delete and why, or "".
func (s *state) tidy(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	t := &trial{ctx: ctx, s: s, name: "tidy"}
	defer t.end()
	why := t.protect(func() {
		k := t.connect()
		for _, user := range users {
			k.auth("digest", user+":"+user)
		}
		if s.o.Super != "" {
			k.auth("digest", s.o.Super)
		}
		why := k.deleteAll("/zookeeper/quota"+s.root, s.root)
		if why != "" && s.o.Super == "" {
			why += ". Some checks create znodes that only the super user can delete; give its password (--super USER:PASSWORD, or Options.Super) so that nothing is left behind"
		}
		t.ensure(why == "", "%s", why)
	})
	if why != "" {
		why = s.root + ": " + why
	}
	return why
}

func claimed(srvr string) string {
	_, v, ok := strings.Cut(srvr, "Zookeeper version: ")
	v, _, ok2 := strings.Cut(v, ",")
	if !ok || !ok2 {
		return ""
	}
	return v
}
