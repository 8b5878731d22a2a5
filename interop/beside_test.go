//go:build interop

package interop

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	envBench = "LOCKKEEPER_BENCH" // set to 1 for TestBeside

	besideRounds  = 5
	besideStarts  = 5
	besideCreates = 100_000 // in one round
	besideReads   = 400_000 // in one round
	besideConns   = 64
	besideWindow  = 16 // requests outstanding on each connection
	besideRest    = 10 * time.Second
)

// subject is one of the servers to measure.
type subject struct {
	name string
	// start starts a server with an empty directory on the same disk. It returns as soon
	// as the server accepts clients.
	start func(t testing.TB) (addr string, pid int)

	addr    string
	pid     int
	figures map[string][]float64 // by row, one for each round
}

func (s *subject) note(row string, v float64) { s.figures[row] = append(s.figures[row], v) }

// TestBeside measures lockkeeper and ZooKeeper alternately on the same machine and disk,
// both durable and with their default settings, and prints a table. It takes about two
// minutes and needs an otherwise idle machine, so it runs only if the environment
// variable is set.
func TestBeside(t *testing.T) {
	if os.Getenv(envBench) != "1" {
		t.Skipf("set %s=1 to measure", envBench)
	}
	lockkeeperBinary(t) // built before anything is timed
	subjects := []*subject{
		{name: "lockkeeper", start: func(t testing.TB) (string, int) {
			l := startLockkeeper(t)
			return l.addr, l.pid
		}},
		{name: "ZooKeeper", start: func(t testing.TB) (string, int) {
			// The limit of 60 connections per address is below what the load opens.
			z := startZooKeeper(t, zk38, nil, anyClients)
			return z.addr, z.pid
		}},
	}
	for _, s := range subjects {
		s.figures = map[string][]float64{}
	}

	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		t.Logf("load average before: %s", load) // above 0.5, other processes disturb the measurement
	}
	for range besideStarts {
		for _, s := range subjects {
			s.note(rowFirstLock, firstLock(t, s).Seconds()*1000)
		}
	}

	for _, s := range subjects {
		s.addr, s.pid = s.start(t)
	}
	time.Sleep(2 * time.Second) // until work left over from the start is done
	before := map[*subject]time.Duration{}
	for _, s := range subjects {
		before[s] = cpuTime(t, s.pid)
	}
	time.Sleep(besideRest)
	for _, s := range subjects {
		s.note(rowRestCPU, 100*(cpuTime(t, s.pid)-before[s]).Seconds()/besideRest.Seconds())
		s.note(rowRestRSS, residentMiB(t, s.pid))
	}

	loads := []struct {
		rate, cpu string
		total     int
		run       func(addr string, conns, outstanding, total int) (float64, error)
	}{
		{rowCreates, rowCreateCPU, besideCreates, loadCreates},
		{rowReads, rowReadCPU, besideReads, loadReads},
		{rowMix, rowMixCPU, besideCreates * 2, func(addr string, conns, outstanding, total int) (float64, error) {
			return loadMix(addr, conns, outstanding, total, 10)
		}},
	}
	// The first round warms up the JVM and is not counted.
	for round := range 1 + besideRounds {
		for _, l := range loads {
			for i := range subjects {
				s := subjects[(i+round)%len(subjects)] // so that none is always first
				before := cpuTime(t, s.pid)
				rate, err := l.run(s.addr, besideConns, besideWindow, l.total)
				if err != nil {
					t.Fatalf("%s: %s: %v", s.name, l.rate, err)
				}
				if round == 0 {
					continue
				}
				s.note(l.rate, rate)
				s.note(l.cpu, (cpuTime(t, s.pid)-before).Seconds()*1e6/float64(l.total))
			}
		}
	}
	for _, s := range subjects {
		s.note(rowLoadRSS, residentMiB(t, s.pid))
	}
	t.Logf("%d connections, %d outstanding, %d rounds; median (lowest - highest)\n%s",
		besideConns, besideWindow, besideRounds, besideTable(subjects))
}

// Rows of the table.
const (
	rowCreates   = "creates/s"
	rowReads     = "reads/s"
	rowMix       = "reads with 10% creates/s"
	rowCreateCPU = "server CPU per create, µs"
	rowReadCPU   = "server CPU per read, µs"
	rowMixCPU    = "server CPU per mixed request, µs"
	rowFirstLock = "process start to first lock, ms"
	rowRestRSS   = "RSS at rest after start, MiB"
	rowLoadRSS   = "RSS after the loads, MiB"
	rowRestCPU   = "CPU at rest, % of a core"
)

var besideRows = []string{
	rowCreates, rowReads, rowMix, rowCreateCPU, rowReadCPU, rowMixCPU,
	rowFirstLock, rowRestRSS, rowLoadRSS, rowRestCPU,
}

// besideTable prints the medians and the ratio of the first subject's to the
// second's.
func besideTable(subjects []*subject) string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\t%s\tratio\t\n", subjects[0].name, subjects[1].name)
	for _, row := range besideRows {
		a, b := subjects[0].figures[row], subjects[1].figures[row]
		ratio := "-"
		if m := median(b); m > 0 {
			ratio = fmt.Sprintf("%.2f", median(a)/m)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", row, spread(a), spread(b), ratio)
	}
	w.Flush()
	return out.String()
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// spread formats the median and, if there are several values, the range.
func spread(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	digits := 1
	if median(v) >= 1000 {
		digits = 0
	}
	text := strconv.FormatFloat(median(v), 'f', digits, 64)
	if len(v) > 1 {
		text += fmt.Sprintf(" (%.*f - %.*f)", digits, slices.Min(v), digits, slices.Max(v))
	}
	return text
}

// firstLock measures from the start of a server on an empty directory until a
// stock client holds a lock, and stops the server again.
func firstLock(t *testing.T, s *subject) (took time.Duration) {
	t.Run("first lock on "+s.name, func(t *testing.T) { // its end runs the cleanups, which stop the server
		begin := time.Now()
		addr, _ := s.start(t)
		conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := zk.NewLock(conn, "/locks/first", zk.WorldACL(zk.PermAll)).Lock(); err != nil {
			t.Fatal(err)
		}
		took = time.Since(begin)
	})
	if took == 0 {
		t.FailNow()
	}
	return took
}

// cpuTime returns the processor time that all threads of a process have used, in user and
// system mode.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The second field is the name in parentheses and may hold anything.
	w := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, s := range w[11:13] { // fields 14 and 15, utime and stime
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ is 100 on every Linux Go runs on
}

// residentMiB returns the resident memory of a process.
func residentMiB(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	t.Fatalf("no VmRSS in /proc/%d/status", pid)
	return 0
}
