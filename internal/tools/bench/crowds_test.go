package bench

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// doors are the connections to several addresses of a server in this process.
type doors struct {
	mu     sync.Mutex
	conns  map[string][]net.Conn
	killed string // the address whose connections are closed, as if its server had been killed
}

func (d *doors) kill(_ context.Context, addr string) ([]int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed = addr
	for _, nc := range d.conns[addr] {
		nc.Close()
	}
	return nil, nil
}

// TestCrowds runs the workloads with very many sessions with a few, on a server with three ports.
func TestCrowds(t *testing.T) {
	const sessions = 60
	for _, w := range Crowds() {
		t.Run(w.Name, func(t *testing.T) {
			_, own := target(t)
			d, dial := &doors{conns: map[string][]net.Conn{}}, own.Dial
			own.Addrs, own.Kill = []string{"a:1", "b:1", "c:1"}, d.kill
			own.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				if addr == d.killed {
					return nil, net.ErrClosed
				}
				nc, err := dial(ctx, addr)
				d.conns[addr] = append(d.conns[addr], nc)
				return nc, err
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
			if d.killed != own.Addrs[0] {
				t.Errorf("%q was killed", d.killed)
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
	report, err := Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: Crowds()[1:2]})
	if err != nil || report.Rows[0].Runs[0][0].Skipped != "needs a command that kills a server" {
		t.Errorf("%v, %+v", err, report)
	}
	report, err = Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: Crowds()[:1], Sessions: most})
	if err != nil || !strings.Contains(report.Rows[0].Runs[0][0].Error, "file descriptors") {
		t.Errorf("%v, %+v", err, report.Rows[0].Runs[0])
	}
}
