package conform

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Passed       Status = "passed"
	Failed       Status = "failed"
	Unsupported  Status = "unsupported"   // the endpoint lacks a feature that the check needs
	OtherVersion Status = "other version" // the expected version of ZooKeeper behaves otherwise
	// NotApplicable means that the endpoint is not configured as the check requires.
	NotApplicable Status = "not applicable"
	// NotRun means that the context of the run ended before the check did.
	NotRun Status = "not run"
)

// Result is the result of one check.
type Result struct {
	Name     string   `json:"name"`
	Group    string   `json:"group"`
	Says     string   `json:"says"`
	In       string   `json:"in"` // the versions of ZooKeeper that have the behaviour
	Status   Status   `json:"status"`
	Why      string   `json:"why,omitempty"`      // why it did not pass
	Exchange []string `json:"exchange,omitempty"` // what was sent and received, if it failed
	Ops      []string `json:"ops,omitempty"`      // operations that it requested

	Took time.Duration `json:"-"` // 0 if it was not run; in JSON it is "seconds", a number with decimals
}

// Report is the result of a run.
type Report struct {
	Version string   `json:"version"`          // the version of ZooKeeper that was expected
	Claims  string   `json:"claims,omitempty"` // the version that the endpoint reports
	Left    string   `json:"left,omitempty"`   // what could not be deleted, why, and how to avoid it
	Results []Result `json:"results"`          // in the order of the suite

	Took time.Duration `json:"-"` // in JSON it is "seconds", a number with decimals
}

// result and report are the forms of Result and Report in JSON.
type (
	fields Result
	result struct {
		*fields
		Seconds float64 `json:"seconds"`
	}
	outcome Report
	report  struct {
		*outcome
		Seconds float64 `json:"seconds"`
	}
)

// MarshalJSON is for package json.
func (r Result) MarshalJSON() ([]byte, error) {
	return marshal(result{(*fields)(&r), r.Took.Seconds()})
}

// UnmarshalJSON is for package json.
func (r *Result) UnmarshalJSON(b []byte) error {
	x := result{fields: (*fields)(r)}
	err := json.Unmarshal(b, &x)
	r.Took = duration(x.Seconds)
	return err
}

// MarshalJSON is for package json.
func (r Report) MarshalJSON() ([]byte, error) {
	return marshal(report{(*outcome)(&r), r.Took.Seconds()})
}

// UnmarshalJSON is for package json.
func (r *Report) UnmarshalJSON(b []byte) error {
	x := report{outcome: (*outcome)(r)}
	err := json.Unmarshal(b, &x)
	r.Took = duration(x.Seconds)
	return err
}

// marshal leaves <, > and & to the encoder that called for the value, which escapes them unless
// it was told not to.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// OK reports whether no check failed, and the run was not cut short.
func (r *Report) OK() bool { return r.Count(Failed)+r.Count(NotRun) == 0 }

// Count returns the number of checks with that status.
func (r *Report) Count(s Status) (n int) {
	for i := range r.Results {
		if r.Results[i].Status == s {
			n++
		}
	}
	return n
}

// Summary returns the result in one line.
func (r *Report) Summary() string {
	cut := ""
	if n := r.Count(NotRun); n > 0 {
		cut = fmt.Sprintf(", %d not run", n)
	}
	return fmt.Sprintf("%d checks as of ZooKeeper %s: %d passed, %d failed, %d unsupported, %d not applicable, %d of other versions%s, in %.1f s",
		len(r.Results), r.Version, r.Count(Passed), r.Count(Failed), r.Count(Unsupported), r.Count(NotApplicable), r.Count(OtherVersion), cut, r.Took.Seconds())
}

// WriteText writes the report as text: a line for each group, and the details of
// every check that did not pass.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	var groups []string
	for i := range r.Results {
		if g := r.Results[i].Group; !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	fmt.Fprintf(&b, "%-20s %7s %7s %12s %15s %14s\n", "group", "passed", "failed", "unsupported", "not applicable", "other version")
	for _, g := range groups {
		n := map[Status]int{}
		for i := range r.Results {
			if r.Results[i].Group == g {
				n[r.Results[i].Status]++
			}
		}
		fmt.Fprintf(&b, "%-20s %7d %7d %12d %15d %14d\n", g, n[Passed], n[Failed], n[Unsupported], n[NotApplicable], n[OtherVersion])
	}
	for i := range r.Results {
		if x := &r.Results[i]; x.Status == Unsupported || x.Status == NotApplicable {
			fmt.Fprintf(&b, "%s: %s: %s\n", x.Status, x.Name, x.Why)
		}
	}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Status != Failed {
			continue
		}
		fmt.Fprintf(&b, "\nFAILED %s (ZooKeeper %s)\n  %s\n", x.Name, x.In, x.Says)
		for _, line := range x.Exchange {
			fmt.Fprintf(&b, "    %s\n", line)
		}
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(x.Why, "\n", "\n  "))
	}
	if r.Left != "" {
		fmt.Fprintf(&b, "\nleft behind: %s\n", r.Left)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteJUnit writes the report in JUnit's XML format, which CI systems read.
func (r *Report) WriteJUnit(w io.Writer) error {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",cdata"`
	}
	type testcase struct {
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Time    string   `xml:"time,attr"`
		Failure *message `xml:"failure,omitempty"`
		Error   *message `xml:"error,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
	}
	type testsuite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"time,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	out := testsuite{
		Name: "conform", Tests: len(r.Results), Failures: r.Count(Failed), Errors: r.Count(NotRun),
		Skipped: r.Count(Unsupported) + r.Count(NotApplicable) + r.Count(OtherVersion), Time: fmt.Sprintf("%.3f", r.Took.Seconds()),
	}
	for i := range r.Results {
		x := &r.Results[i]
		k := testcase{Class: "conform." + x.Group, Name: x.Name, Time: fmt.Sprintf("%.3f", x.Took.Seconds())}
		switch x.Status {
		case Failed:
			k.Failure = &message{x.Why, strings.Join(append([]string{x.Says}, x.Exchange...), "\n")}
		case NotRun:
			k.Error = &message{Message: x.Why}
		case Unsupported, NotApplicable, OtherVersion:
			k.Skipped = &message{Message: x.Why}
		}
		out.Cases = append(out.Cases, k)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
