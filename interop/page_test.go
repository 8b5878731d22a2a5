//go:build interop

package interop

import (
	"errors"
	"fmt"
	"html"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/bench"
)

// page is what docs/performance.md is made of.
type page struct {
	About [][2]string // what the figures depend on
	Turns int
	Time  time.Duration // of one measurement
	Parts []part
}

// part has the figures of one size of cluster. The targets are those of peers, in their
// order, and the limit.
type part struct {
	Servers, IdleSessions, Znodes int
	Fresh                         *bench.Row
	Report                        bench.Report
}

const baseline = 1 // the peer that the others are compared with

// title returns the number of servers in words.
func (p *part) title() string {
	if p.Servers == 1 {
		return "One server"
	}
	return "Three servers"
}

func (p *part) chart() string { return fmt.Sprintf("performance-%d.svg", p.Servers) }

// rows returns all rows.
func (p *part) rows() []*bench.Row { return append(slices.Clone(p.Report.Rows), p.Fresh) }

// figures returns the figures of a workload, the most important one first.
func (p *part) figures(workload string) (list []bench.Figure) {
	names := map[string]string{
		"1x1": "p50 us,p99 us,CPU us/op", "16x1": "ops/s,p50 us,CPU us/op", "64x16": "ops/s,p99 us,CPU us/op",
		"lock": "ops/s,p50 us,CPU us/op", "handover": "p50 us,p99 us", "fanout": "p50 us,CPU us/op", "churn": "ops/s,CPU us/op", "elsewhere": "unseen %,p50 us",
		"snapshots": "max us,lone max us,lone p99.9 us,ops/s",
		"idle":      "memory MiB,bytes each", "znodes": "memory MiB,bytes each,restart s,ops/s", "start": "ms,memory MiB",
	}
	group, shape, _ := strings.Cut(workload, "-")
	text := names[shape]
	if text == "" {
		text = names[group]
	}
	for name := range strings.SplitSeq(text, ",") {
		if name == "ms" {
			list = append(list, bench.Figure{Name: name, Of: func(r *bench.Result) float64 { return r.P50 / 1000 }})
			continue
		}
		f := bench.Figures[slices.IndexFunc(bench.Figures, func(f bench.Figure) bool { return f.Name == name })]
		if name == "memory MiB" || name == "bytes each" { // of one member
			of := f.Of
			f.Of = func(r *bench.Result) float64 { return of(r) / float64(p.Servers) }
		}
		list = append(list, f)
	}
	return list
}

// markdown returns the text of the page.
func (p *page) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Performance

<!-- `+"`make bench-peers`"+` writes this page and its charts. Do not edit them. -->

lockkeeper, ZooKeeper and etcd in turns on one machine and one disk, all durable and with
their default settings. Figures are medians of %d turns of at most %v, after one turn that
warms the servers up. A ratio is that of two medians, with the lowest and the highest ratio
of a turn. In the name of a workload, 64x16 means 64 sessions with 16 outstanding requests
each, and a single number is the number of sessions; `+"`lockkeeper bench --list`"+` explains
them. Memory is that of one server, and processor time (CPU) that of all servers together.

etcd has put, get and a lock service, which stand for create and set, read and lock.
It is reached by the HTTP/2 client of Go's standard library, which needs more of the
machine's processors than the raw client for ZooKeeper's protocol. It reads from the member
itself, as ZooKeeper does.

The program is compiled with a profile of three servers under load, `+"`cmd/lockkeeper/default.pgo`"+`,
which go build uses by itself and `+"`make pgo`"+` makes. A program that embeds the server is compiled
with its own profile, if it has one.

What a write waits for with other disks and networks is computed in
[decision 22](decisions/022-one-disk-on-the-way.md), and sessions by the ten thousand are in
[scale.md](scale.md). What limits lockkeeper here, and what was tried and did not help, is in decisions
[16](decisions/016-where-a-lone-write-goes.md) and [18](decisions/018-what-bounds-the-rest.md).

To measure again, on an otherwise idle Debian, as root:

    make bench-peers TURNS=%d

| | |
|---|---|
`, p.Turns, p.Time, p.Turns)
	for _, x := range p.About {
		fmt.Fprintf(&b, "| %s | %s |\n", x[0], x[1])
	}
	for i := range p.Parts {
		p.Parts[i].markdown(&b)
	}
	return b.String()
}

func (p *part) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n![Ratios to ZooKeeper 3.8](%s)\n\n", p.title(), p.chart())
	names := p.Report.Targets
	fmt.Fprint(b, "| workload | figure |")
	for _, name := range names {
		if name != limitName {
			fmt.Fprintf(b, " %s |", name)
		}
	}
	fmt.Fprintf(b, " lockkeeper to %s | lockkeeper to etcd |\n|---|---|%s---|---|\n", names[baseline], strings.Repeat("---|", len(names)-1))
	for _, row := range p.rows() {
		title := p.name(row)
		for _, f := range p.figures(row.Workload) {
			if row.Value(0, f) == 0 {
				continue
			}
			fmt.Fprintf(b, "| %s | %s |", title, f.Name)
			title = ""
			for i, name := range names {
				if name != limitName {
					fmt.Fprintf(b, " %s |", show(row.Value(i, f)))
				}
			}
			for _, to := range []string{names[baseline], "etcd"} {
				fmt.Fprintf(b, " %s |", ratio(row, f, slices.Index(names, to)))
			}
			fmt.Fprint(b, "\n")
		}
	}
	p.slowest(b)
	limit := slices.Index(names, limitName)
	for _, row := range p.Report.Rows {
		if limit < 0 || row.Workload != "create-1x1" {
			continue
		}
		f := p.figures(row.Workload)[0]
		fmt.Fprintf(b, "\nThe limit: to append 4 KiB to a file, sync it (fdatasync), and make a round trip to a process\nthat does nothing takes %s us (median). A create of lockkeeper takes %s times as long.\n", show(row.Median(limit, f.Of)), ratio(row, f, limit))
	}
	var busy []float64
	for _, row := range p.Report.Rows {
		for i := range names {
			busy = append(busy, row.Median(i, func(r *bench.Result) float64 { return r.OtherCores }))
		}
	}
	fmt.Fprintf(b, "\nAll other processes of the machine, the idle servers included, used %s of %d cores (median).\n", show(median(busy)), p.Report.Cores)
	for _, row := range p.Report.Rows {
		for i, runs := range row.Runs {
			errs, text := int64(0), ""
			for _, r := range runs {
				if errs += r.Errors; text == "" {
					text = r.Error
				}
			}
			if errs > 0 {
				fmt.Fprintf(b, "\nErrors in %s on %s: %d (%s).\n", row.Workload, names[i], errs, text)
			}
		}
	}
}

// slowest writes a table of the slowest operations of each workload.
func (p *part) slowest(b *strings.Builder) {
	names := p.Report.Targets
	fmt.Fprint(b, "\nThe slowest operations, in ms: the time that one in a thousand exceeds, and the longest of all\nturns.\n\n| workload |")
	for _, name := range names {
		if name != limitName {
			fmt.Fprintf(b, " %s |", name)
		}
	}
	fmt.Fprintf(b, "\n|%s\n", strings.Repeat("---|", len(names)))
	for _, row := range p.Report.Rows {
		if row.Value(0, bench.Longest) == 0 { // not measured with this number of servers
			continue
		}
		fmt.Fprintf(b, "| %s |", p.name(row))
		for i, name := range names {
			if name == limitName {
				continue
			}
			rare, longest := row.Median(i, func(r *bench.Result) float64 { return r.P999 }), row.Value(i, bench.Longest)
			fmt.Fprintf(b, " %s, %s |", show(rare/1000), show(longest/1000))
		}
		fmt.Fprint(b, "\n")
	}
}

// name returns what a row is called on the page.
func (p *part) name(row *bench.Row) string {
	switch row.Workload {
	case "idle":
		return fmt.Sprintf("%d idle sessions", p.IdleSessions)
	case "znodes":
		return fmt.Sprintf("%d znodes of 100 bytes; kill -9 to serving", p.Znodes)
	case "snapshots":
		return fmt.Sprintf("snapshots of %d znodes; 64x16 and a lone writer", p.Znodes)
	case "start":
		return "start until a client holds a lock"
	}
	return row.Workload
}

// ratio formats the ratio of lockkeeper to another peer.
func ratio(row *bench.Row, f bench.Figure, to int) string {
	if to < 0 || to >= len(row.Runs) {
		return "–"
	}
	x, ok := row.Compare(f, 0, to)
	switch {
	case !ok:
		return "–"
	case x.Low == x.High:
		return fmt.Sprintf("**%.2f**", x.Ratio)
	}
	return fmt.Sprintf("**%.2f** (%.2f–%.2f)", x.Ratio, x.Low, x.High)
}

func show(v float64) string {
	if v == 0 {
		return "–"
	}
	return bench.Number(v)
}

// svg returns the chart of a part: for the first figure of each workload, how many times as
// good as ZooKeeper 3.8 each peer is, on a logarithmic scale.
func (p *part) svg() string {
	const left, width, barHeight, gap, top = 250.0, 400.0, 9.0, 8.0, 58.0
	colors := []string{"#2a7", "", "#89a", "#d93"}
	type bar struct {
		peer  int
		ratio float64
	}
	var bars strings.Builder
	y, low, high := top, -1.0, 2.0 // exponents of 2
	var rows [][]bar
	var labels []string
	for _, row := range p.rows() {
		f := p.figures(row.Workload)[0]
		var list []bar
		for i, name := range p.Report.Targets {
			if i == baseline || name == limitName || i >= len(row.Runs) {
				continue
			}
			x, ok := row.Compare(f, i, baseline)
			if !ok {
				continue
			}
			if !f.Higher {
				x.Ratio = 1 / x.Ratio
			}
			list = append(list, bar{i, x.Ratio})
			e := math.Log2(x.Ratio)
			low, high = min(low, math.Floor(e)), max(high, math.Ceil(e))
		}
		if len(list) > 0 {
			rows, labels = append(rows, list), append(labels, p.name(row)+", "+f.Name)
		}
	}
	at := func(exponent float64) float64 { return left + width*(exponent-low)/(high-low) }
	for i, list := range rows {
		fmt.Fprintf(&bars, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left-8, y+barHeight*float64(len(list))/2+4, html.EscapeString(labels[i]))
		for _, x := range list {
			from, to := at(0), at(math.Log2(x.ratio))
			fmt.Fprintf(&bars, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", min(from, to), y, max(math.Abs(to-from), 1), barHeight-1, colors[x.peer])
			if x.peer == 0 {
				fmt.Fprintf(&bars, "<text x=\"%.1f\" y=\"%.1f\" class=\"n\">%.2f</text>\n", max(from, to)+4, y+barHeight-1, x.ratio)
			}
			y += barHeight
		}
		y += gap
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"11\">\n", left+width+50, y+gap)
	b.WriteString("<style>text{fill:#333}.n{font-size:9px}.g{stroke:#999;stroke-width:.5}@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>\n")
	fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"16\" font-size=\"13\">%s: how many times as good as %s (longer to the right is better)</text>\n", gap, p.title(), html.EscapeString(p.Report.Targets[baseline]))
	x := left
	for i, name := range p.Report.Targets {
		if i != baseline && name != limitName {
			fmt.Fprintf(&b, "<rect x=\"%.0f\" y=\"24\" width=\"9\" height=\"9\" fill=\"%s\"/><text x=\"%.0f\" y=\"32\">%s</text>\n", x, colors[i], x+13, html.EscapeString(name))
			x += 110
		}
	}
	for e := low; e <= high; e++ {
		fmt.Fprintf(&b, "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.1f\"/><text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\" class=\"n\">%g</text>\n", at(e), at(e), top-6, y, at(e), top-10, math.Exp2(e))
	}
	b.WriteString(bars.String() + "</svg>\n")
	return b.String()
}

// readmeRows are the figures of the page that the README has, too: what one notices first.
var readmeRows = []struct{ title, part, workload, figure, unit string }{
	{"one server: from its start until a client holds a lock", "One server", "start", "ms", "ms"},
	{"one server: its memory then", "One server", "start", "memory MiB", "MiB"},
	{"three servers: taking and releasing a lock", "Three servers", "lock-1", "p50 us", "µs"},
	{"three servers: creates by 64 clients with 16 requests in flight each", "Three servers", "create-64x16", "ops/s", "per second"},
}

// readmeFigures returns the README's table of figures, which are those on the page, to the digit.
func readmeFigures(page string) string {
	var b strings.Builder
	var part, workload string
	var names []string
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			part = strings.TrimSpace(title)
			continue
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if strings.HasPrefix(line, "|  |") {
			cells = slices.Insert(strings.Split(strings.Trim(line, "| \n"), " | "), 0, workload)
		}
		switch {
		case len(cells) < 5:
			continue
		case cells[0] == "workload" && cells[1] == "figure" && names == nil:
			names = cells[2 : len(cells)-2] // without the ratios
			fmt.Fprintf(&b, "| median | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
			continue
		case len(cells) < 2+len(names):
			continue
		}
		workload = cells[0]
		for _, r := range readmeRows {
			if r.part != part || r.figure != cells[1] || workload != r.workload && !strings.HasPrefix(workload, r.workload+" ") {
				continue
			}
			fmt.Fprintf(&b, "| %s |", r.title)
			for _, value := range cells[2 : 2+len(names)] {
				if value != "–" {
					value += " " + r.unit
				}
				fmt.Fprintf(&b, " %s |", value)
			}
			fmt.Fprint(&b, "\n")
		}
	}
	return b.String()
}

// write writes the page and the charts into a directory, and some of the figures into the
// README beside it.
func (p *page) write(docs string) error {
	if err := os.WriteFile(filepath.Join(docs, "performance.md"), []byte(p.markdown()), 0o644); err != nil {
		return err
	}
	for i := range p.Parts {
		part := &p.Parts[i]
		if err := os.WriteFile(filepath.Join(docs, part.chart()), []byte(part.svg()), 0o644); err != nil {
			return err
		}
	}
	readme := filepath.Join(docs, "..", "README.md")
	b, err := os.ReadFile(readme)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	text := readmeFigures(p.markdown())
	before, rest, ok := strings.Cut(string(b), "<!-- performance -->\n")
	_, after, ok2 := strings.Cut(rest, "<!-- end of performance -->\n")
	if !ok || !ok2 {
		return errors.New("README.md has no part named performance")
	}
	return os.WriteFile(readme, []byte(before+"<!-- performance -->\n"+text+"<!-- end of performance -->\n"+after), 0o644)
}

// TestReadmeFigures checks that the README has the figures of docs/performance.md. With -rewrite it
// updates the README.
func TestReadmeFigures(t *testing.T) {
	page := must(os.ReadFile("../docs/performance.md"))(t)
	text := readmeFigures(string(page))
	for _, r := range readmeRows {
		if !strings.Contains(text, "| "+r.title+" |") {
			t.Errorf("docs/performance.md has no %s of %s, %s", r.figure, r.workload, r.part)
		}
	}
	testkit.Generated(t, "../README.md", "performance", text)
}

// TestPage checks the page and a chart that are made of figures that do not change.
func TestPage(t *testing.T) {
	result := func(turn int, us float64) bench.Result {
		return bench.Result{Turn: turn, Ops: 1000, Seconds: us / 1000, Rate: 1e6 / us, P50: us, P99: 2 * us, P999: 20 * us, Max: 30 * us, BytesPerItem: us,
			Resources: bench.Resources{CPUPerOp: us / 2, MemoryBytes: int64(us) << 20, OtherCores: 0.1}}
	}
	runs := func(us ...float64) (list [][]bench.Result) {
		for _, v := range us {
			if v == 0 {
				list = append(list, []bench.Result{{Turn: 1, Skipped: "not available"}})
				continue
			}
			list = append(list, []bench.Result{result(1, v), result(2, 1.1*v), result(3, 1.3*v+20)})
		}
		return list
	}
	p := page{About: [][2]string{{"processor", "2 × a machine"}}, Turns: 3, Time: 2 * time.Second}
	for _, n := range []int{1, 3} {
		failing := runs(100, 400, 500, 0, 0)
		failing[1][2].Errors, failing[1][2].Error = 2, "connection lost: EOF"
		p.Parts = append(p.Parts, part{
			Servers: n, IdleSessions: 10_000, Znodes: 1_000_000,
			Fresh: &bench.Row{Workload: "start", Runs: runs(15_000, 300_000, 400_000, 30_000)},
			Report: bench.Report{Targets: []string{"lockkeeper", "ZooKeeper 3.8", "ZooKeeper 3.9", "etcd", limitName}, Cores: 2, Rows: []*bench.Row{
				{Workload: "create-1x1", Runs: runs(200, 300, 350, 500, 150)},
				{Workload: "create-64x16", Runs: failing},
				{Workload: "idle", Runs: runs(200, 300, 350, 0)},
			}},
		})
	}
	dir := t.TempDir()
	docs := filepath.Join(dir, "docs")
	check(t, os.Mkdir(docs, 0o755))
	readme := filepath.Join(dir, "README.md")
	check(t, os.WriteFile(readme, []byte("a\n<!-- performance -->\nold\n<!-- end of performance -->\nb\n"), 0o644))
	check(t, p.write(docs))
	for file, golden := range map[string]string{"docs/performance.md": "page.md", "docs/performance-3.svg": "page.svg", "README.md": "page-readme.md"} {
		text := must(os.ReadFile(filepath.Join(dir, file)))(t)
		testkit.GeneratedFile(t, filepath.Join("testdata", golden), string(text))
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
