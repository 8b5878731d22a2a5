package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what Measure has measured.
type Report struct {
	Targets []string `json:"targets"`
	Turns   int      `json:"turns"`
	Cores   int      `json:"cores"` // of the machine of the client
	Seconds float64  `json:"seconds"`
	Rows    []*Row   `json:"rows"`
	Left    string   `json:"left,omitempty"` // znodes that could not be deleted, and why
}

// Row has the measurements of one workload.
type Row struct {
	Workload string     `json:"workload"`
	Says     string     `json:"says"`             // what one operation is
	Runs     [][]Result `json:"runs"`             // by target, and then by turn
	Ratios   []Ratio    `json:"ratios,omitempty"` // of the first target to the second
}

// Result is one measurement. Figures that are unknown or do not apply are 0.
type Result struct {
	Turn    int     `json:"turn"` // 0 while warming up, which is reported only if it failed
	Ops     uint64  `json:"ops"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"opsPerSecond"`
	P50     float64 `json:"p50us"`
	P99     float64 `json:"p99us"`
	P999    float64 `json:"p999us"`
	Max     float64 `json:"maxUs"`
	Errors  int64   `json:"errors"`
	Error   string  `json:"error,omitempty"` // the most frequent one
	// TwoHolders says how two clients held a lock at once.
	TwoHolders string `json:"twoHolders,omitempty"`

	Resources
	LoneWriter

	BytesPerItem   float64 `json:"bytesPerItem,omitempty"` // for each idle session or znode
	RestartSeconds float64 `json:"restartSeconds,omitempty"`
	UnseenPercent  float64 `json:"unseenPercent,omitempty"` // of the reads of workload elsewhere

	Notes   []Note `json:"notes,omitempty"`   // figures that only this workload has
	Skipped string `json:"skipped,omitempty"` // why it was not measured
}

// Resources are what the server, the client and other processes used during a measurement.
type Resources struct {
	CPUPerOp    float64 `json:"serverCPUPerOpUs,omitempty"`
	ServerCores float64 `json:"serverCores,omitempty"`
	ClientCores float64 `json:"clientCores,omitempty"`
	OtherCores  float64 `json:"otherCores,omitempty"` // used by all other processes; without process ids, by the server too
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
}

// LoneWriter has the latencies of the lone writer beside all others, in the workload
// snapshots.
type LoneWriter struct {
	LoneP50  float64 `json:"loneP50us,omitempty"`
	LoneP999 float64 `json:"loneP999us,omitempty"`
	LoneMax  float64 `json:"loneMaxUs,omitempty"`
}

// Ratio compares one figure on two targets.
type Ratio struct {
	Figure string  `json:"figure"`
	A      float64 `json:"a"`
	B      float64 `json:"b"`
	Ratio  float64 `json:"ratio"` // A to B
	Low    float64 `json:"low"`   // the lowest and the highest ratio of a turn
	High   float64 `json:"high"`
}

// quantile returns the shortest of the sorted times such that at least the share q of all is not
// longer. It returns 0 if there are none.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[max(int(math.Ceil(q*float64(len(times)))), 1)-1]
}

// measured fills in what the measured part has found.
func (r *Result) measured(took time.Duration, times []time.Duration, before, after usage) {
	r.Ops, r.Seconds = uint64(len(times)), took.Seconds()
	r.Rate = round(float64(r.Ops) / r.Seconds)
	r.P50, r.P99, r.P999, r.Max = us(quantile(times, 0.5)), us(quantile(times, 0.99)), us(quantile(times, 0.999)), us(quantile(times, 1))
	server, client := after.server-before.server, after.client-before.client
	if after.known {
		r.ClientCores = round(client.Seconds() / r.Seconds)
		r.OtherCores = round(max(after.total-before.total-server-client, 0).Seconds() / r.Seconds)
	}
	if after.measured {
		r.ServerCores, r.MemoryBytes = round(server.Seconds()/r.Seconds), after.memory
		if r.Ops > 0 {
			r.CPUPerOp = us(server / time.Duration(r.Ops))
		}
	}
}

func us(d time.Duration) float64 { return round(float64(d) / 1000) }

func round(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return v
}

// Figure is a number in a Result.
type Figure struct {
	Name   string
	Of     func(r *Result) float64
	Higher bool // whether more is better
	Worst  bool // whether the highest of all turns counts, since a median hides what is rare
}

// Longest is the time of the longest operation.
var Longest = Figure{Name: "max us", Of: func(r *Result) float64 { return r.Max }, Worst: true}

// Figures are what is compared.
var Figures = []Figure{
	{Name: "ops/s", Of: func(r *Result) float64 { return r.Rate }, Higher: true},
	{Name: "p50 us", Of: func(r *Result) float64 { return r.P50 }},
	{Name: "p99 us", Of: func(r *Result) float64 { return r.P99 }},
	{Name: "p99.9 us", Of: func(r *Result) float64 { return r.P999 }},
	Longest,
	{Name: "lone p50 us", Of: func(r *Result) float64 { return r.LoneP50 }},
	{Name: "lone p99.9 us", Of: func(r *Result) float64 { return r.LoneP999 }},
	{Name: "lone max us", Of: func(r *Result) float64 { return r.LoneMax }, Worst: true},
	{Name: "CPU us/op", Of: func(r *Result) float64 { return r.CPUPerOp }},
	{Name: "cores", Of: func(r *Result) float64 { return r.ServerCores }},
	{Name: "memory MiB", Of: func(r *Result) float64 { return float64(r.MemoryBytes) / (1 << 20) }},
	{Name: "bytes each", Of: func(r *Result) float64 { return r.BytesPerItem }},
	{Name: "unseen %", Of: func(r *Result) float64 { return r.UnseenPercent }},
	{Name: "restart s", Of: func(r *Result) float64 { return r.RestartSeconds }},
}

func values(runs []Result, of func(r *Result) float64) (v []float64) {
	for i := range runs {
		if r := &runs[i]; r.Skipped == "" && r.Turn > 0 {
			v = append(v, of(r))
		}
	}
	return v
}

// median returns the median of v, and 0 if it is empty.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Median returns the median of a figure of target i over the turns.
func (r *Row) Median(i int, of func(r *Result) float64) float64 {
	if i >= len(r.Runs) {
		return 0
	}
	return median(values(r.Runs[i], of))
}

func (f *Figure) of(turns []float64) float64 {
	if f.Worst && len(turns) > 0 {
		return slices.Max(turns)
	}
	return median(turns)
}

// Value returns a figure of target i over the turns: the median, or the worst.
func (r *Row) Value(i int, f Figure) float64 {
	if i >= len(r.Runs) {
		return 0
	}
	return f.of(values(r.Runs[i], f.Of))
}

// Compare returns the ratio of a figure on target a to that on target b. It reports false
// if one of them does not have the figure.
func (r *Row) Compare(f Figure, a, b int) (Ratio, bool) {
	of, to := values(r.Runs[a], f.Of), values(r.Runs[b], f.Of)
	x := Ratio{Figure: f.Name, A: f.of(of), B: f.of(to), Low: math.Inf(1)}
	if x.A == 0 || x.B == 0 {
		return x, false
	}
	x.Ratio = x.A / x.B
	for i := range min(len(of), len(to)) {
		if to[i] > 0 {
			x.Low, x.High = min(x.Low, of[i]/to[i]), max(x.High, of[i]/to[i])
		}
	}
	x.Low, x.High = min(x.Low, x.Ratio), max(x.High, x.Ratio)
	x.A, x.B, x.Ratio, x.Low, x.High = round(x.A), round(x.B), round(x.Ratio), round(x.Low), round(x.High)
	return x, true
}

// trouble returns the errors of the row, and the first text for them.
func (r *Row) trouble() (n int64, text string) {
	for _, runs := range r.Runs {
		for i := range runs {
			n += runs[i].Errors
			if runs[i].TwoHolders != "" {
				text = runs[i].TwoHolders
			}
			if text == "" {
				text = runs[i].Error
			}
		}
	}
	return n, text
}

// Faults returns in how many workloads there were errors or two holders of a lock.
func (r *Report) Faults() (n int) {
	for _, row := range r.Rows {
		if errs, text := row.trouble(); errs > 0 || text != "" {
			n++
		}
	}
	return n
}

func (r *Report) finish(took time.Duration) {
	r.Seconds = round(took.Seconds())
	for _, row := range r.Rows {
		if len(r.Targets) != 2 {
			break
		}
		for _, f := range Figures {
			if x, ok := row.Compare(f, 0, 1); ok {
				row.Ratios = append(row.Ratios, x)
			}
		}
	}
}

// line is the row in one line, for progress.
func (r *Row) line() string {
	text := r.Workload
	for i := range r.Runs {
		if i > 0 {
			text += ";"
		}
		if v := r.Median(i, Figures[0].Of); v > 0 {
			text += fmt.Sprintf(" %s/s, p50 %s us", Number(v), Number(r.Median(i, Figures[1].Of)))
		} else if why := r.skipped(i); why != "" {
			text += " " + why
		}
	}
	if n, what := r.trouble(); n > 0 || what != "" {
		text += fmt.Sprintf("; errors: %d, mostly: %s", n, what)
	}
	return text
}

// Number formats a figure with about three digits, and "-" if it is unknown.
func Number(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// WriteText writes the report as a table.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	if len(r.Targets) == 2 {
		r.writeComparison(&b)
	} else {
		r.writeTable(&b)
	}
	for _, row := range r.Rows {
		for i := range row.Runs {
			if why := row.skipped(i); why != "" {
				fmt.Fprintf(&b, "%s on %s: %s\n", row.Workload, r.Targets[i], why)
			}
		}
		row.writeNotes(&b, r.Targets)
		if n, text := row.trouble(); n > 0 || text != "" {
			fmt.Fprintf(&b, "%s: errors: %d, mostly: %s\n", row.Workload, n, text)
		}
	}
	if r.Left != "" {
		fmt.Fprintf(&b, "left behind: %s\n", r.Left)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Row) writeNotes(b *strings.Builder, targets []string) {
	for i, runs := range r.Runs {
		for _, run := range runs {
			for _, n := range run.Notes {
				fmt.Fprintf(b, "%s on %s: %s: %s %s\n", r.Workload, targets[i], n.What, strconv.FormatFloat(n.Value, 'g', -1, 64), n.Unit)
			}
		}
	}
}

// skipped returns why the row was not measured on target i, and "" if it was.
func (r *Row) skipped(i int) string {
	if len(r.Runs[i]) == 0 {
		return "interrupted"
	}
	return r.Runs[i][0].Skipped
}

func (r *Report) writeTable(b *strings.Builder) {
	var shown []Figure // the columns that are not empty
	for _, f := range Figures {
		if slices.ContainsFunc(r.Rows, func(row *Row) bool { return row.Value(0, f) > 0 }) {
			shown = append(shown, f)
		}
	}
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "%s\t", r.padded("workload"))
	for _, f := range shown {
		fmt.Fprintf(tw, "%s\t", f.Name)
	}
	fmt.Fprint(tw, "errors\tother cores\t\n")
	for _, row := range r.Rows {
		fmt.Fprintf(tw, "%s\t", r.padded(row.Workload))
		for _, f := range shown {
			fmt.Fprintf(tw, "%s\t", Number(row.Value(0, f)))
		}
		n, _ := row.trouble()
		fmt.Fprintf(tw, "%d\t%s\t\n", n, Number(row.Median(0, other)))
	}
	tw.Flush()
}

// padded pads a name in the first column, which is aligned to the left.
func (r *Report) padded(name string) string {
	width := len("workload")
	for _, row := range r.Rows {
		width = max(width, len(row.Workload))
	}
	return fmt.Sprintf("%-*s", width, name)
}

func other(r *Result) float64 { return r.OtherCores }

// writeComparison writes a line for each figure of each workload.
func (r *Report) writeComparison(b *strings.Builder) {
	fmt.Fprintf(b, "A is %s\nB is %s\nmedians of %d turns, for max the worst; A/B with the lowest and the highest ratio of a turn\n\n", r.Targets[0], r.Targets[1], r.Turns)
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "%s\tfigure\tA\tB\tA/B\tspread\tother cores\t\n", r.padded("workload"))
	for _, row := range r.Rows {
		both := slices.Concat(values(row.Runs[0], other), values(row.Runs[1], other))
		name, busy := row.Workload, Number(median(both))
		for _, x := range row.Ratios {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.2f\t%.2f - %.2f\t%s\t\n", r.padded(name), x.Figure, Number(x.A), Number(x.B), x.Ratio, x.Low, x.High, busy)
			name, busy = "", "" // only on the first line of the workload
		}
	}
	tw.Flush()
}
