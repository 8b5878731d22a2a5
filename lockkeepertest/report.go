package lockkeepertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/session"
)

// newReport returns the report of servers that are about to be started.
func newReport(servers ...*Server) *report {
	return &report{servers: servers, started: callSite(), messages: messages{start: time.Now()}, logged: map[testing.TB]bool{}, naming: make(chan struct{}, 1)}
}

// report logs the state of a server, or of a cluster, when a test has failed.
type report struct {
	servers    []*Server
	started    string // where in the test, FILE:LINE
	messages   messages
	guards     guards
	naming     chan struct{} // holds an element while a goroutine creates a namespace
	namespaces int           // number of the last one without a name

	mu      sync.Mutex
	logged  map[testing.TB]bool
	clients []*connected
}

// log logs the state if t has failed, and has not logged it before. It is called before
// each client is closed, so that the state is still the one of the failure.
func (r *report) log(t testing.TB) {
	t.Helper()
	if !t.Failed() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.servers[0]
	if r.logged[t] || t == s.t && len(r.logged) > 0 { // a subtest has logged it
		return
	}
	r.logged[t] = true
	t.Logf("lockkeepertest: %s", r)
}

func (r *report) String() string {
	var b strings.Builder
	shown := r.servers[0]
	if len(r.servers) == 1 {
		b.WriteString("the server's state")
		if _, err := shown.running(); err != nil {
			b.WriteString(" (it is stopped)")
		}
	} else {
		for i, s := range r.servers {
			role := "stopped"
			if server, err := s.running(); err == nil {
				role = string(server.Role())
				if server.Role() == lockkeeper.RoleLeader {
					shown = s
				}
			}
			fmt.Fprintf(&b, "member %d: %s; ", i+1, role)
		}
		for i, s := range r.servers {
			if s == shown {
				fmt.Fprintf(&b, "the state of member %d", i+1)
			}
		}
	}
	b.WriteString(":\n")
	var sessions, locks, watches, faults []string
	for _, x := range shown.Sessions() {
		line := fmt.Sprintf("%s, timeout %v", session.FormatID(x.ID), x.Timeout)
		if len(r.servers) == 1 && !x.Connected {
			line += ", not connected"
		}
		sessions = append(sessions, line)
	}
	for _, x := range shown.Locks() {
		locks = append(locks, x.String())
	}
	seen := map[*Injection]bool{} // members may share faults
	for _, s := range r.servers {
		for _, x := range s.Watches() {
			watches = append(watches, session.FormatID(x.Session)+" "+x.Path)
		}
		for _, i := range s.faults.list() {
			if !seen[i] {
				seen[i] = true
				faults = append(faults, i.String())
			}
		}
	}
	section(&b, "znodes", strings.Split(strings.TrimSuffix(shown.Tree(), "\n"), "\n"), false)
	section(&b, "sessions", sessions, false)
	section(&b, "locks", locks, false)
	section(&b, "watches", watches, false)
	section(&b, "faults", faults, false)
	section(&b, "last messages, without pings", r.messages.lines(), true)
	return b.String()
}

// section writes a part of a report, but not more than some of its lines: the last ones
// if last is set, and otherwise the first ones.
func section(b *strings.Builder, title string, lines []string, last bool) {
	const most = 25
	if len(lines) == 0 || lines[0] == "" {
		return
	}
	left := max(0, len(lines)-most)
	fmt.Fprintf(b, "  %s:", title)
	if last && left > 0 {
		fmt.Fprintf(b, " … %d more", left)
		lines = lines[left:]
	}
	b.WriteByte('\n')
	for _, line := range lines[:min(most, len(lines))] {
		b.WriteString("    " + line + "\n")
	}
	if !last && left > 0 {
		fmt.Fprintf(b, "    … %d more\n", left)
	}
}
