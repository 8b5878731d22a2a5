package bench

import (
	"bytes"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestReport checks the text and the JSON of two reports, which users may parse: fields
// must not change their names.
func TestReport(t *testing.T) {
	measured := func(turn int, each time.Duration) Result {
		var times []time.Duration
		for i := range 1000 {
			times = append(times, each+time.Duration(i)*each/1000)
		}
		r := Result{Turn: turn}
		before := usage{measured: true, known: true}
		after := usage{measured: true, known: true, server: 500 * each, client: 100 * each, total: 700 * each, memory: 100 << 20}
		r.measured(1000*each, times, before, after)
		return r
	}
	failed := measured(1, time.Millisecond)
	failed.Errors, failed.Error = 3, "connection lost: EOF"
	two := measured(1, time.Millisecond)
	two.Errors, two.Error, two.TwoHolders = 1, "two holders: x", "two holders: x"
	many := measured(1, time.Microsecond)
	many.BytesPerItem, many.RestartSeconds = 895, 11.4

	one := &Report{Targets: []string{"a:1"}, Turns: 1, Cores: 2, Left: "/bench-1 on a:1 (refused)", Rows: []*Row{
		{Workload: "idle", Says: "opens one", Runs: [][]Result{{{Turn: 1, Skipped: "needs the server's process id"}}}},
		{Workload: "create-1x1", Says: "creates one", Runs: [][]Result{{failed}}},
		{Workload: "handover-8", Says: "hands over", Runs: [][]Result{{two}}},
		{Workload: "znodes", Says: "many", Runs: [][]Result{{many}}},
		{Workload: "interrupted", Says: "nothing", Runs: [][]Result{nil}},
	}}
	compared := &Report{Targets: []string{"a:1", "b:1"}, Turns: 3, Cores: 2, Rows: []*Row{
		{Workload: "create-1x1", Says: "creates one", Runs: [][]Result{
			{measured(1, 100*time.Microsecond), measured(2, 200*time.Microsecond), measured(3, 300*time.Microsecond)},
			{measured(1, 400*time.Microsecond), measured(2, 500*time.Microsecond), measured(3, 450*time.Microsecond)},
		}},
		{Workload: "idle", Says: "opens one", Runs: [][]Result{{measured(1, time.Millisecond)}, {{Turn: 1, Skipped: "needs the server's process id"}}}},
	}}
	for name, r := range map[string]*Report{"one": one, "compared": compared} {
		r.finish(12 * time.Second)
		var text bytes.Buffer
		testkit.Check(t, r.WriteText(&text))
		for _, row := range r.Rows {
			text.WriteString(row.line() + "\n")
		}
		testkit.GeneratedFile(t, "testdata/"+name+".txt", text.String())
		text.Reset()
		testkit.Check(t, r.WriteJSON(&text))
		testkit.GeneratedFile(t, "testdata/"+name+".json", text.String())
	}
	if one.Faults() != 2 || compared.Faults() != 0 {
		t.Errorf("%d and %d faults", one.Faults(), compared.Faults())
	}
}

// TestQuantile checks quantiles of one to five times.
func TestQuantile(t *testing.T) {
	for n, want := range [][3]time.Duration{{0, 0, 0}, {1, 1, 1}, {1, 2, 2}, {2, 3, 3}, {2, 4, 4}, {3, 5, 5}} {
		var times []time.Duration
		for i := range n {
			times = append(times, time.Duration(i+1))
		}
		if got := [3]time.Duration{quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1)}; got != want {
			t.Errorf("of %d times: %v, should be %v", n, got, want)
		}
	}
}
