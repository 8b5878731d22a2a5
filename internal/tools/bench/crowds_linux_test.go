package bench

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// door is a TCP port of a server in this process. It can be closed with all of its connections,
// as if the server had been killed.
type door struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func openDoor(t *testing.T, to *Target) *door {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l}
	dial := to.Dial
	var all sync.WaitGroup
	all.Go(func() {
		for {
			outside, err := l.Accept()
			if err != nil {
				return
			}
			inside, err := dial(context.Background(), "")
			if err != nil {
				outside.Close()
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, outside, inside)
			d.mu.Unlock()
			for _, pair := range [][2]net.Conn{{inside, outside}, {outside, inside}} {
				all.Go(func() {
					io.Copy(pair[0], pair[1])
					pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		d.kill()
		all.Wait()
	})
	return d
}

func (d *door) kill() {
	d.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
}

// TestCrowds runs the workloads with very many sessions with a few, on a server with three ports.
func TestCrowds(t *testing.T) {
	const sessions = 60
	for _, w := range Crowds() {
		t.Run(w.Name, func(t *testing.T) {
			_, own := target(t)
			own.PIDs, own.Plain, own.Addrs = []int{os.Getpid()}, true, nil
			doors := map[string]*door{}
			for range 3 {
				d := openDoor(t, own)
				own.Addrs = append(own.Addrs, d.Addr().String())
				doors[d.Addr().String()] = d
			}
			own.Dial = nil
			var killed string
			own.Kill = func(_ context.Context, addr string) ([]int, error) {
				killed = addr
				doors[addr].kill()
				return nil, nil
			}
			want := map[string]int{"sessions-open": sessions, "sessions-failover": sessions / 3, "sessions-vanish": sessions / 4, "sessions-watch": 4 * sessions}[w.Name]
			report, err := Measure(t.Context(), Options{
				Targets: []*Target{own}, Workloads: []Workload{w}, Time: 20 * time.Millisecond,
				Sessions: sessions, Vanishing: sessions / 4, Watches: 4 * sessions, settle: settle, vanish: time.Second,
			})
			if err != nil || report.Left != "" {
				t.Fatalf("%v, left %s", err, report.Left)
			}
			r := report.Rows[0].Runs[0][0]
			if int(r.Ops) != want || r.Errors != 0 {
				t.Errorf("%d operations, should be %d; %d errors: %s", r.Ops, want, r.Errors, r.Error)
			}
			var text strings.Builder
			if err := report.WriteText(&text); err != nil || len(r.Notes) == 0 || !strings.Contains(text.String(), r.Notes[0].What) {
				t.Errorf("%v, the notes %v are not in\n%s", err, r.Notes, &text)
			}
			if w.Name != "sessions-failover" {
				return
			}
			if killed != own.Addrs[0] {
				t.Errorf("%q was killed", killed)
			}
			for _, n := range r.Notes {
				if n.What == "sessions that had to move" && n.Value != sessions/3 || n.What == "sessions lost" && n.Value != 0 {
					t.Errorf("%s: %v", n.What, n.Value)
				}
			}
		})
	}
}

// TestCrowdNeeds names what is missing.
func TestCrowdNeeds(t *testing.T) {
	_, own := target(t)
	report, err := Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: Crowds()[:2]})
	if err != nil || report.Rows[0].Runs[0][0].Skipped != "needs TCP without TLS" || report.Rows[1].Runs[0][0].Skipped != "needs a command that kills a server" {
		t.Errorf("%v, %+v", err, report)
	}
	own.Plain = true
	report, err = Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: Crowds()[:1], Sessions: most})
	if err != nil || !strings.Contains(report.Rows[0].Runs[0][0].Error, "file descriptors") {
		t.Errorf("%v, %+v", err, report.Rows[0].Runs[0])
	}
}
