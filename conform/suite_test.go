package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestRows checks the fields of every check.
func TestRows(t *testing.T) {
	// What it is run against: servers in TestConform, and personas in TestPersonas.
	run := []Version{{3, 8, 0, true}, {3, 8, 0, false}}
	for line := persona.Oldest; line <= persona.Newest; line++ {
		v := testkit.Must(ParseVersion(line.Release()))(t)
		run = append(run, v)
	}
	seen := map[string]bool{}
	form := regexp.MustCompile(`^[a-z0-9 -]+/[^/]+$`)
	for _, k := range suite {
		if !form.MatchString(k.Name) || seen[k.Name] {
			t.Errorf("%q: a name must have the form GROUP/WHAT and be unique", k.Name)
		}
		seen[k.Name] = true
		if len(k.Says) < 20 || !strings.HasSuffix(k.Says, ".") {
			t.Errorf("%s: %q is not a sentence", k.Name, k.Says)
		}
		if !slices.ContainsFunc(run, k.Applies) {
			t.Errorf("%s: the suite is never run against a version in %q", k.Name, k.In)
		}
		if k.run == nil {
			t.Errorf("%s: does nothing", k.Name)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, x := range []struct {
		version, in string
		want        bool
	}{
		{"3.9.5-lockkeeper-0.1.0", ">=3.9.2", true},
		{"3.9.1-abc", ">=3.9.2", false},
		{"3.8.6", ">=3.8.4 <3.9 | >=3.9.2", true},
		{"3.9.0", ">=3.8.4 <3.9 | >=3.9.2", false},
		{"3.8.0-${mvngit.commit.id}", "debian | >=3.9", true},
		{"3.8.0+debian", "debian | >=3.9", true},
		{"3.8.0", "debian | >=3.9", false},
		{"3.8.0", ">=3.8 <3.8.4 !debian", true},
		{"3.8.0+debian", ">=3.8 <3.8.4 !debian", false},
		{"3.10.0", ">=3.9.2", true},
		{"3.4", "<3.5", true},
	} {
		v, err := ParseVersion(x.version)
		if err != nil || (&Check{In: x.in}).Applies(v) != x.want {
			t.Errorf("%s (%s) in %q: %v, %v", x.version, v, x.in, !x.want, err)
		}
		if again, err := ParseVersion(v.String()); err != nil || again != v {
			t.Errorf("%s cannot be parsed again: %v, %v", v, again, err)
		}
	}
	if _, err := ParseVersion("newest"); err == nil {
		t.Error("a word is accepted as a version")
	}
}

// withSuite runs f with the given checks in place of the real ones.
func withSuite(t *testing.T, checks []Check, f func()) {
	t.Helper()
	was := suite
	suite = checks
	defer func() { suite = was }()
	f()
}

// TestReport runs checks that each have another result.
func TestReport(t *testing.T) {
	s := lockkeepertest.Start(t)
	checks := []Check{
		{Name: "a/good", Says: "It passes.", In: ">=3.0", run: func(t *trial) { t.connect().ping() }},
		{Name: "a/wrong code", Says: "It fails.", In: ">=3.0", Alone: true, run: func(t *trial) {
			t.connect().want(proto.NodeExists, opExists("/zookeeper"))
		}},
		{Name: "a/broken", Says: "It has a bug.", In: ">=3.0", run: func(*trial) { panic("bug") }},
		{Name: "b/old", Says: "It applies only to old versions.", In: "<3.5", run: func(*trial) { panic("run") }},
		{Name: "b/needy", Says: "It needs a missing feature.", In: ">=3.0", Needs: []Feature{Reaper}, run: func(*trial) { panic("run") }},
	}
	var r *Report
	var err error
	calls := 0
	withSuite(t, checks, func() {
		r, err = Run(t.Context(), Options{
			Dial:     func(context.Context) (net.Conn, error) { return s.Dial("", "", time.Second) },
			Progress: func(done, of int, _ *Result) { calls++ },
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Status{Passed, Failed, Failed, OtherVersion, Unsupported} {
		if r.Results[i].Status != want {
			t.Errorf("%s: %s, want %s (%s)", r.Results[i].Name, r.Results[i].Status, want, r.Results[i].Why)
		}
	}
	if r.OK() || calls != len(checks) || r.Left != "" {
		t.Errorf("OK %v, %d calls of Progress, left %q", r.OK(), calls, r.Left)
	}
	text, xmlText := new(bytes.Buffer), new(bytes.Buffer)
	testkit.Check(t, errors.Join(r.WriteText(text), r.WriteJUnit(xmlText)))
	for _, want := range []string{
		"a                          1       2            0               0              0\n",
		"unsupported: b/needy: needs reaper: the time after which containers are reaped was not given\n",
		"FAILED a/wrong code (ZooKeeper >=3.0)\n  It fails.\n    A > connect {",
		"    A > exists xid=1 {path=\"/zookeeper\" watch=false}\n    A < exists xid=1 zxid=",
		"  A: exists is answered Ok, expected NodeExists\n",
		"the check panicked: bug",
		"5 checks as of ZooKeeper 3.9.5: 1 passed, 2 failed, 1 unsupported, 0 not applicable, 1 of other versions",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	again := new(Report)
	b, err := json.Marshal(r)
	if err := errors.Join(err, json.Unmarshal(b, again)); err != nil || !reflect.DeepEqual(r, again) {
		t.Errorf("after JSON: %+v, %v, want %+v", again, err, r)
	}
	if !strings.Contains(xmlText.String(), `tests="5" failures="2" errors="0" skipped="2"`) || strings.Count(xmlText.String(), "<testcase ") != 5 {
		t.Errorf("JUnit:\n%s", xmlText)
	}
}

// TestFormats: programs read these outputs.
func TestFormats(t *testing.T) {
	r := &Report{Version: "3.9.5", Claims: "3.9.5-<x>", Seconds: 1.234567891, Left: "/a & /b", Results: []Result{
		{Name: "a/b", Group: "a", Says: "It <works>.", In: ">=3.9", Status: Failed, Why: "no", Exchange: []string{"A > x"}, Ops: []string{"create"}, Seconds: 0.0015},
		{Name: "c/d", Group: "c", Says: "It is.", In: "<3.9", Status: OtherVersion},
	}}
	var text, junit bytes.Buffer
	testkit.Check(t, errors.Join(r.WriteJSON(&text), r.WriteJUnit(&junit)))
	const wantJSON = `{
  "version": "3.9.5",
  "claims": "3.9.5-<x>",
  "left": "/a & /b",
  "results": [
    {
      "name": "a/b",
      "group": "a",
      "says": "It <works>.",
      "in": ">=3.9",
      "status": "failed",
      "why": "no",
      "exchange": [
        "A > x"
      ],
      "ops": [
        "create"
      ],
      "seconds": 0.0015
    },
    {
      "name": "c/d",
      "group": "c",
      "says": "It is.",
      "in": "<3.9",
      "status": "other version",
      "seconds": 0
    }
  ],
  "seconds": 1.234567891
}
`
	if text.String() != wantJSON {
		t.Errorf("JSON:\n%s", &text)
	}
	const wantJUnit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="conform" tests="2" failures="1" errors="0" skipped="1" time="1.235">
  <testcase classname="conform.a" name="a/b" time="0.002">
    <failure message="no"><![CDATA[It <works>.
A > x]]></failure>
  </testcase>
  <testcase classname="conform.c" name="c/d" time="0.000">
    <skipped message=""></skipped>
  </testcase>
</testsuite>
`
	if junit.String() != wantJUnit {
		t.Errorf("JUnit:\n%s", &junit)
	}
}

// TestWrongOptions: Run refuses options that make no sense, before it connects.
func TestWrongOptions(t *testing.T) {
	dial := func(context.Context) (net.Conn, error) { return nil, errors.New("connects") }
	for want, o := range map[string]Options{
		"no Dial":       {},
		"Parallel":      {Dial: dial, Parallel: -1},
		"Timeout":       {Dial: dial, Timeout: -1},
		"ReapWithin":    {Dial: dial, ReapWithin: -1},
		"group \"new\"": {Dial: dial, Groups: []string{"create", "new"}},
		"feature":       {Dial: dial, Without: []Feature{"new"}},
		"no check has":  {Dial: dial, Run: regexp.MustCompile("^new$")},
		"version":       {Dial: dial, Version: "new"},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "connects") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// TestNoServer runs the suite against endpoints that do not speak ZooKeeper's protocol.
func TestNoServer(t *testing.T) {
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"refused": func(context.Context) (net.Conn, error) { return nil, errors.New("refused") },
		"closes": func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			far.Close()
			return near, nil
		},
		"another protocol": func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				far.Read(make([]byte, 1))
				far.Write([]byte("SSH-2.0-OpenSSH\r\n"))
				far.Close()
			}()
			return near, nil
		},
		"silent": func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				for {
					if _, err := jute.ReadFrame(far, 1<<20, nil); err != nil {
						return
					}
				}
			}()
			return near, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := Run(t.Context(), Options{Dial: dial, Timeout: time.Second})
				if err == nil || !strings.Contains(err.Error(), "the endpoint cannot be used") {
					t.Errorf("%v, %v", r, err)
				}
			})
		})
	}
}

// TestLeft cancels a run during a check that has created a znode that only the super
// user can delete. The suite must still delete everything else, and the report must say
// what is left and how to avoid that.
func TestLeft(t *testing.T) {
	for super, wantLeft := range map[string]bool{"": true, "super:secret": false} {
		s := lockkeepertest.Start(t, lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Auth.SuperDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4=" }))
		dial := func(ctx context.Context) (nc net.Conn, err error) {
			if err = ctx.Err(); err == nil { // as a net.Dialer does
				nc, err = s.Dial("", "", time.Second)
			}
			return nc, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		locked := ""
		checks := []Check{{Name: "a/locked", Says: "It locks itself out.", In: ">=3.0", run: func(t *trial) {
			k := t.connect()
			locked = k.create(t.path("locked"), nil, 0)
			k.create(t.path("locked/child"), nil, 0)
			k.create(t.path("other"), nil, 0)
			k.do(opSetACL(locked, []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: "nobody:x"}}}, -1))
			cancel()
		}}}
		withSuite(t, checks, func() {
			r := testkit.Must(Run(ctx, Options{Dial: dial, Super: super}))(t)
			if wantLeft != (r.Left != "") || wantLeft && !(strings.Contains(r.Left, "the children of "+locked+" cannot be listed: NoAuth") && strings.Contains(r.Left, "--super")) {
				t.Errorf("with the super user %q, left behind: %q", super, r.Left)
			}
		})
		c := s.Connect(t, time.Minute)
		for path, want := range map[string]bool{path.Dir(locked): wantLeft, path.Dir(locked) + "/other": false} {
			if there, _, err := c.Exists(path); err != nil || there != want {
				t.Errorf("with the super user %q, %s exists: %v, %v", super, path, there, err)
			}
		}
	}
}

// TestCut ends the context of a run: checks that wait for a frame or for time to pass end at
// once, and neither they nor those that come later count as failed.
func TestCut(t *testing.T) {
	s := lockkeepertest.Start(t)
	dial := func(context.Context) (net.Conn, error) { return s.Dial("", "", time.Second) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	waiting.Add(2)
	checks := []Check{
		{Name: "a/passes", Says: "It passes.", In: ">=3.0", run: func(t *trial) { t.connect() }},
		{Name: "a/reads", Says: "It reads.", In: ">=3.0", run: func(t *trial) {
			k := t.connect()
			waiting.Done()
			k.next()
		}},
		{Name: "a/waits", Says: "It waits.", In: ">=3.0", run: func(t *trial) {
			waiting.Done()
			t.wait(time.Hour)
		}},
		{Name: "a/late", Says: "It comes late.", In: ">=3.0", Alone: true, run: func(t *trial) { t.failf("it runs") }},
	}
	passed := make(chan struct{})
	var shown []string
	withSuite(t, checks, func() {
		go func() {
			waiting.Wait()
			<-passed
			cancel()
		}()
		r, err := Run(ctx, Options{Dial: dial, Timeout: time.Hour, Progress: func(_, _ int, r *Result) {
			shown = append(shown, r.Name)
			close(passed)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count(Passed) != 1 || r.Count(NotRun) != 3 || r.OK() || r.Left != "" || !slices.Equal(shown, []string{"a/passes"}) {
			t.Errorf("%+v, shown %q", r, shown)
		}
		if !strings.Contains(r.Summary(), " 0 failed, ") || !strings.Contains(r.Summary(), ", 3 not run, in ") {
			t.Errorf("%s", r.Summary())
		}
		var junit strings.Builder
		if err := r.WriteJUnit(&junit); err != nil || !strings.Contains(junit.String(), `failures="0" errors="3" skipped="0"`) || strings.Count(junit.String(), "<error ") != 3 {
			t.Errorf("%v\n%s", err, &junit)
		}
	})
	c := s.Connect(t, time.Minute)
	if names, _, err := c.Children("/"); err != nil || len(names) != 1 {
		t.Errorf("left behind: %q, %v", names, err)
	}
}

// TestSASLConfigured: a server with SASL is not expected to answer as one without.
func TestSASLConfigured(t *testing.T) {
	for why, settings := range map[string]lockkeeper.SASL{
		"with a token": {Users: map[string]string{"bob": "x"}},
		"AuthFailed":   {Mechanism: func() lockkeeper.SASLExchange { return refusing{} }},
	} {
		s := lockkeepertest.Start(t, lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Auth.SASL = settings }))
		r, err := Run(t.Context(), Options{
			Dial: func(context.Context) (net.Conn, error) { return s.Dial("", "", time.Second) },
			Run:  regexp.MustCompile("^auth/"),
		})
		if err != nil || r.Count(NotApplicable) != 1 || r.Count(Passed) < 10 || !r.OK() {
			t.Fatalf("%v, %+v", err, r)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "not applicable: auth/sasl not configured: requires no SASL, but sasl is answered "+why) {
			t.Errorf("%v\n%s", err, &text)
		}
	}
}

// refusing is a mechanism of SASL that refuses everybody, as GSSAPI does those without a ticket.
type refusing struct{}

func (refusing) Step([]byte) ([]byte, error) { return nil, errors.New("no ticket") }

func (refusing) User() (string, bool) { return "", false }

// TestReconfigEnabled runs the checks that require reconfigEnabled=false on servers with
// reconfigEnabled=true. They must be NotApplicable and change no member.
func TestReconfigEnabled(t *testing.T) {
	enabled := lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Features.Reconfig = true })
	for name, x := range map[string]struct {
		s   *lockkeepertest.Server
		why string
	}{
		"standalone": {lockkeepertest.Start(t, enabled), "Unimplemented"},
		"member":     {lockkeepertest.StartCluster(t, 3, enabled).Server(1), "BadVersion"},
	} {
		r, err := Run(t.Context(), Options{
			Dial: func(context.Context) (net.Conn, error) { return x.s.Dial("", "", time.Second) },
			Run:  regexp.MustCompile("^system nodes/reconfig"),
		})
		if err != nil || len(r.Results) != 2 || r.Count(NotApplicable) != 2 || !r.OK() || r.Left != "" {
			t.Fatalf("%s: %v, %+v", name, err, r)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "not applicable: system nodes/reconfig: requires reconfigEnabled=false, but reconfig is answered "+x.why) {
			t.Errorf("%s: %v\n%s", name, err, &text)
		}
	}
}
