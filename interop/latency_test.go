//go:build interop

package interop

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
)

const (
	latencyWrites    = 300 // one at a time
	latencyPause     = 3 * time.Millisecond
	latencyRounds    = 3
	latencyFailovers = 10
)

// trio is a cluster of three servers to measure.
type trio interface {
	addresses() []string
	leader() int
	kill(i int)
	launch(i int)
	await()
	signal(i int, s syscall.Signal)
	cpu() time.Duration // used by all servers so far
}

func (e *ensemble) addresses() []string { return e.listen }

func (e *ensemble) cpu() (sum time.Duration) {
	for _, p := range e.procs {
		sum += cpuTime(e.t, p.pid)
	}
	return sum
}

// zooEnsemble is a cluster of ZooKeeper servers.
type zooEnsemble struct {
	t      *testing.T
	listen []string
	procs  []*realZooKeeper
	down   int // index of the server that is down; -1 if none
}

func startZooEnsemble(t *testing.T, version zkVersion, n int) *zooEnsemble {
	t.Helper()
	return startZooEnsembleOn(t, version, slices.Repeat([]zooHost{{ip: "127.0.0.1"}}, n))
}

// zooHost is the address at which a ZooKeeper server listens, and the command that starts
// it there, if one is needed.
type zooHost struct {
	ip string
	by []string
}

// startZooEnsembleOn starts a server on each host.
func startZooEnsembleOn(t *testing.T, version zkVersion, hosts []zooHost) *zooEnsemble {
	t.Helper()
	z := &zooEnsemble{t: t, down: -1}
	cfg := merged(anyClients, withWords, map[string]string{"tickTime": "2000", "initLimit": "10", "syncLimit": "5"})
	port := func() string {
		_, port, _ := net.SplitHostPort(freeAddr(t))
		return port
	}
	for i, h := range hosts {
		cfg["server."+strconv.Itoa(i+1)] = h.ip + ":" + port() + ":" + port()
		z.listen = append(z.listen, net.JoinHostPort(h.ip, port()))
	}
	for i, addr := range z.listen {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "myid"), fmt.Append(nil, i+1), 0o600); err != nil {
			t.Fatal(err)
		}
		ip, port, _ := net.SplitHostPort(addr)
		own := map[string]string{"dataDir": dir, "clientPort": port, "clientPortAddress": ip}
		z.procs = append(z.procs, launchZooKeeperBy(t, hosts[i].by, version, nil, merged(cfg, own)))
	}
	z.await()
	return z
}

func (z *zooEnsemble) addresses() []string { return z.listen }

func (z *zooEnsemble) await() {
	for _, addr := range z.listen {
		waitZooKeeper(z.t, addr, nil)
	}
}

func (z *zooEnsemble) leader() int {
	z.t.Helper()
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for i, addr := range z.listen {
			if i == z.down {
				continue
			}
			if answer, err := fourLetterWord(addr, "srvr", time.Second); err == nil && strings.Contains(answer, "Mode: leader") {
				return i
			}
		}
	}
	z.t.Fatal("there is no leader")
	return -1
}

func (z *zooEnsemble) kill(i int) {
	z.procs[i].Kill()
	z.down = i
}

func (z *zooEnsemble) launch(i int) {
	z.procs[i].launch(z.t)
	z.down = -1
}

func (z *zooEnsemble) signal(i int, s syscall.Signal) {
	z.t.Helper()
	if err := z.procs[i].cmd.Process.Signal(s); err != nil {
		z.t.Fatalf("%v to server %d: %v", s, i+1, err)
	}
}

func (z *zooEnsemble) cpu() (sum time.Duration) {
	for _, p := range z.procs {
		sum += cpuTime(z.t, p.pid)
	}
	return sum
}

// Rows of the table.
const (
	rowLeaderWrite   = "lone write through the leader, µs"
	rowFollowerWrite = "lone write through a follower, µs"
	rowEvent         = "write by one follower to event on another, µs"
	rowFailover      = "kill -9 of the leader to the next write, ms"
)

// TestClusterLatency measures three lockkeepers and three ZooKeepers, one
// cluster after the other, with default settings on the same disk.
func TestClusterLatency(t *testing.T) {
	if os.Getenv(envBench) != "1" {
		t.Skipf("set %s=1 to measure", envBench)
	}
	lockkeeperBinary(t)
	subjects := []*subject{{name: "lockkeeper", figures: map[string][]float64{}}, {name: "ZooKeeper", figures: map[string][]float64{}}}
	for i, start := range []func(t *testing.T) trio{
		func(t *testing.T) trio { return startEnsemble(t, 3) },
		func(t *testing.T) trio { return startZooEnsemble(t, zk39, 3) },
	} {
		t.Run(subjects[i].name, func(t *testing.T) { measureTrio(t, start(t), subjects[i]) })
	}
	if t.Failed() {
		return
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\t%s\tratio\t\n", subjects[0].name, subjects[1].name)
	for _, row := range []string{rowLeaderWrite, rowFollowerWrite, rowEvent, rowCreates, rowCreateCPU, rowFailover} {
		a, b := subjects[0].figures[row], subjects[1].figures[row]
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t\n", row, spread(a), spread(b), median(a)/median(b))
	}
	w.Flush()
	t.Logf("three servers; median (lowest - highest)\n%s", &out)
	leader, follower := median(subjects[0].figures[rowLeaderWrite]), median(subjects[0].figures[rowFollowerWrite])
	t.Logf("through a follower it takes %.2f times as long", follower/leader)
	if follower > 3*leader {
		t.Error("more than three times as long through a follower")
	}
}

func measureTrio(t *testing.T, c trio, s *subject) {
	addrs := c.addresses()
	// Let the JVM warm up before the measurement.
	const warm = 50_000
	all := strings.Join(addrs, ",")
	if _, err := loadCreates(all, 16, 16, warm); err != nil {
		t.Fatal(err)
	}
	lead := c.leader()
	for range latencyRounds {
		s.note(rowLeaderWrite, loneWrites(t, addrs[lead]))
		s.note(rowFollowerWrite, loneWrites(t, addrs[(lead+1)%3]))
		s.note(rowEvent, loneEvents(t, addrs[(lead+1)%3], addrs[(lead+2)%3]))
	}
	for range latencyRounds {
		before := c.cpu()
		rate, err := loadCreates(all, besideConns, besideWindow, besideCreates)
		if err != nil {
			t.Fatal(err)
		}
		s.note(rowCreates, rate)
		s.note(rowCreateCPU, (c.cpu()-before).Seconds()*1e6/besideCreates)
	}
	for range latencyFailovers {
		lead := c.leader()
		w := reconnecting{t: t, addr: addrs[(lead+1)%3]}
		w.write()
		began := time.Now()
		c.kill(lead)
		w.write()
		s.note(rowFailover, time.Since(began).Seconds()*1000)
		w.conn.Close()
		c.launch(lead)
		c.await()
	}
}

func dialNew(t *testing.T, addr string) *rawConn {
	t.Helper()
	c, err := dialRaw(addr, 10*time.Second, 0, rawSession{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func callOK(t *testing.T, c *rawConn, m message) {
	t.Helper()
	if r, err := c.call(m); err != nil || r.code != 0 {
		t.Fatalf("code %d, %v", r.code, err)
	}
}

// loneWrites returns the median time of single writes without any other load.
func loneWrites(t *testing.T, addr string) (microseconds float64) {
	t.Helper()
	c := dialNew(t, addr)
	defer c.Close()
	path := fmt.Sprintf("/lone-%x", c.session)
	callOK(t, c, createRequest(1, path, nil, 0))
	var took []float64
	for i := range int32(latencyWrites) {
		time.Sleep(latencyPause)
		began := time.Now()
		callOK(t, c, setDataRequest(2+i, path, make([]byte, 100)))
		took = append(took, float64(time.Since(began).Nanoseconds())/1000)
	}
	return median(took)
}

// loneEvents returns the median time from a write to the event of a watch on another server.
func loneEvents(t *testing.T, from, to string) (microseconds float64) {
	t.Helper()
	w, r := dialNew(t, from), dialNew(t, to)
	defer w.Close()
	defer r.Close()
	path := fmt.Sprintf("/event-%x", w.session)
	callOK(t, w, createRequest(1, path, nil, 0))
	var sync message
	callOK(t, r, *sync.int(1).int(9).text(path))
	var took []float64
	for i := range int32(latencyWrites) {
		watch := readRequest(2+i, opGetData, path)
		watch[len(watch)-1] = 1
		callOK(t, r, watch)
		time.Sleep(latencyPause)
		began := time.Now()
		callOK(t, w, setDataRequest(2+i, path, make([]byte, 100)))
		r.SetDeadline(time.Now().Add(rawTimeout))
		if ev, err := r.receive(); err != nil || ev.xid != -1 {
			t.Fatalf("no event: xid %d, %v", ev.xid, err)
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/1000)
	}
	return median(took)
}

// reconnecting is a client that reconnects at once and keeps its session.
type reconnecting struct {
	t    *testing.T
	addr string
	conn *rawConn
	xid  int32
}

// write writes until a write is acknowledged.
func (w *reconnecting) write() {
	w.t.Helper()
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
		if w.conn == nil {
			conn, err := dialRaw(w.addr, 10*time.Second, 0, rawSession{})
			if err != nil {
				continue
			}
			w.conn = conn
		}
		w.xid++
		r, err := w.conn.call(createRequest(w.xid, fmt.Sprintf("/again-%x-%d", w.conn.session, w.xid), nil, 0))
		if err == nil && r.code == 0 {
			return
		}
		w.conn.Close()
		w.conn = nil
	}
	w.t.Fatal("no write is acknowledged")
}
