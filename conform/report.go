package conform

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
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
	Seconds  float64  `json:"seconds"`            // how long it took; 0 if it was not run
}

// Report is the result of a run.
type Report struct {
	Version string   `json:"version"`          // the version of ZooKeeper that was expected
	Claims  string   `json:"claims,omitempty"` // the version that the endpoint reports
	Left    string   `json:"left,omitempty"`   // what could not be deleted, why, and how to avoid it
	Results []Result `json:"results"`          // in the order of the suite
	Seconds float64  `json:"seconds"`          // how long it took
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
		len(r.Results), r.Version, r.Count(Passed), r.Count(Failed), r.Count(Unsupported), r.Count(NotApplicable), r.Count(OtherVersion), cut, r.Seconds)
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
		Skipped: r.Count(Unsupported) + r.Count(NotApplicable) + r.Count(OtherVersion), Time: fmt.Sprintf("%.3f", r.Seconds),
	}
	for i := range r.Results {
		x := &r.Results[i]
		k := testcase{Class: "conform." + x.Group, Name: x.Name, Time: fmt.Sprintf("%.3f", x.Seconds)}
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
